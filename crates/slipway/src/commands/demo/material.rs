//! The material that the demo copies: a real tree and large files; and manifests, which compare trees.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::{ffi::OsStrExt, fs::FileExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::located;
use crate::{exit::Failure, output, show};

/// The directories to copy.
pub struct Material {
    /// The directory that contains `tree` and `large`.
    pub dir: PathBuf,
    /// The origin of the tree, for the output.
    pub origin: &'static str,
    /// The tree of many small files.
    pub tree: Manifest,
    /// The large files.
    pub large: Manifest,
}

impl Material {
    /// Makes the material in the new directory `dir`: a copy of the tree `from`, or of this project's source if it is
    /// there, or a generated tree; and `size` bytes of large files.
    pub fn make(dir: &Path, from: Option<&Path>, size: u64) -> Result<Self, Failure> {
        let (tree, large) = (dir.join("tree"), dir.join("large"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let made = fs::create_dir_all(&large).and_then(|()| match from {
            Some(from) => gather(from, &tree).map(|()| "of the given tree"),
            None if source.join("Cargo.lock").exists() => {
                gather(&source, &tree)?;
                generate_tree(&tree.join("generated"))?;
                Ok("this project's source and generated files")
            }
            None => generate_tree(&tree).map(|()| "generated"),
        });
        let origin = made.map_err(located(dir))?;
        generate_large(&large, size).map_err(located(dir))?;
        Ok(Self { origin, tree: Manifest::of(&tree)?, large: Manifest::of(&large)?, dir: dir.to_owned() })
    }

    /// Copies the large files to the new directory `dir`.
    pub fn copy_large(&self, dir: &Path) -> Result<(), Failure> {
        gather(&self.dir.join("large"), dir).map_err(located(dir))
    }
}

/// Copies a source tree without build output and downloads: `target` and hidden directories.
fn gather(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let target = to.join(&name);
        if kind.is_dir() {
            if name != "target" && !name.as_bytes().starts_with(b".") {
                gather(&entry.path(), &target)?;
            }
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, target)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Makes files of many sizes, in directories, with links and unusual names.
fn generate_tree(dir: &Path) -> io::Result<()> {
    let mut noise = Noise(7);
    for index in 0..500 {
        let dir = dir.join(format!("d{}/e{}", index % 7, index % 31));
        fs::create_dir_all(&dir)?;
        let mut data = vec![0; (index * index) % 60_000];
        noise.fill(&mut data);
        fs::write(dir.join(format!("file {index}")), data)?;
    }
    fs::write(dir.join("na\u{ef}ve \u{1f600}"), "a name that is not ASCII")?;
    let script = dir.join("script");
    fs::write(&script, "#!/bin/sh\n")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o750))?;
    fs::hard_link(&script, dir.join("same script"))?;
    std::os::unix::fs::symlink("d1/e1", dir.join("link"))
}

/// Makes a file of random bytes, and a file that is mostly a hole.
fn generate_large(dir: &Path, size: u64) -> io::Result<()> {
    let mut noise = Noise(11);
    let mut file = File::create(dir.join("noise"))?;
    let mut block = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        noise.fill(&mut block);
        let len = left.min(block.len() as u64) as usize;
        file.write_all(&block[..len])?;
        left -= len as u64;
    }
    let file = File::create(dir.join("sparse"))?;
    file.write_all_at(b"head", 0)?;
    file.write_all_at(&block, 32 << 20)?;
    file.set_len(64 << 20)
}

/// A generator of bytes that do not compress and do not repeat (xorshift64).
struct Noise(u64);

impl Noise {
    fn fill(&mut self, into: &mut [u8]) {
        for chunk in into.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            chunk.copy_from_slice(&self.0.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// The content of a tree: the type, mode and content of each path.
pub struct Manifest {
    /// The number of regular files.
    pub files: u64,
    /// Their bytes, holes included.
    pub bytes: u64,
    objects: BTreeMap<Vec<u8>, String>,
}

impl Manifest {
    /// Reads a complete tree.
    pub fn of(root: &Path) -> Result<Self, Failure> {
        let mut manifest = Self { files: 0, bytes: 0, objects: BTreeMap::new() };
        manifest.read(root, root).map_err(located(root))?;
        Ok(manifest)
    }

    fn read(&mut self, root: &Path, dir: &Path) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let meta = path.symlink_metadata()?;
            let mode = meta.permissions().mode() & 0o7777;
            let what = if meta.is_dir() {
                self.read(root, &path)?;
                format!("directory {mode:04o}")
            } else if meta.is_symlink() {
                format!("link to {}", output::name(fs::read_link(&path)?.as_os_str().as_bytes()))
            } else {
                self.files += 1;
                self.bytes += meta.len();
                format!("file {mode:04o} of {} bytes, SHA-256 {}", meta.len(), digest(&path)?)
            };
            let name = path.strip_prefix(root).expect("path must be below the root").as_os_str().as_bytes().to_vec();
            self.objects.insert(name, what);
        }
        Ok(())
    }

    /// Returns the differences from `other`, one line each.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let names = self.objects.keys().chain(other.objects.keys().filter(|name| !self.objects.contains_key(*name)));
        let absent = "absent".to_owned();
        let of = |manifest: &Self, name: &Vec<u8>| manifest.objects.get(name).unwrap_or(&absent).clone();
        names
            .filter(|name| of(self, name) != of(other, name))
            .map(|name| format!("{}: {}, but came back: {}", output::name(name), of(self, name), of(other, name)))
            .collect()
    }
}

fn digest(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 256 << 10];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(show::hex(&hash.finalize())),
            len => hash.update(&block[..len]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_report_every_difference() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        generate_tree(&a).unwrap();
        generate_tree(&b).unwrap();
        let sent = Manifest::of(&a).unwrap();
        assert!(sent.files > 500 && sent.differences(&Manifest::of(&b).unwrap()).is_empty());

        fs::set_permissions(b.join("script"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(b.join("more"), "x").unwrap();
        fs::remove_file(b.join("link")).unwrap();
        let file = b.join("d3/e3/file 3");
        let mut data = fs::read(&file).unwrap();
        data[4] ^= 1;
        fs::write(&file, data).unwrap();
        let differences = sent.differences(&Manifest::of(&b).unwrap()).join("\n");
        for name in ["script:", "same script:", "more: absent", "link: link to d1/e1", "file 3: file 0644 of 9 bytes"] {
            assert!(differences.contains(name), "{name} in\n{differences}");
        }
        assert_eq!(differences.lines().count(), 5, "{differences}");
    }
}
