//! The local end of a copy: plain system calls, all of them blocking. The engine runs them on threads that may wait.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions},
    io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileExt, OpenOptionsExt, fchown, lchown},
    },
    path::Path,
};

use buf::Pool;
use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, FileType, Mode, SeekFrom, Timestamps};

use super::meta::{Kind, Meta};

/// The attributes of `path`; of what a symbolic link there leads to, if it is to be followed.
pub fn meta(path: &Path, follow: bool) -> io::Result<Meta> {
    let stat = if follow { rustix::fs::stat(path)? } else { rustix::fs::lstat(path)? };
    Ok(Meta::from(&stat))
}

/// The names in a directory, each with what could be found out of it, in the order of the names' bytes.
pub fn list(dir: &Path) -> io::Result<Vec<(OsString, io::Result<Meta>)>> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<OsString>>>()?;
    let mut entries: Vec<_> = names
        .into_iter()
        .map(|name| {
            let meta = meta(&dir.join(&name), false);
            (name, meta)
        })
        .collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(entries)
}

/// The text of a symbolic link.
pub fn read_link(path: &Path) -> io::Result<Vec<u8>> {
    Ok(fs::read_link(path)?.into_os_string().into_vec())
}

/// Makes a directory that its owner can fill, or finds one.
pub fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(mode | 0o700)) {
        Err(rustix::io::Errno::EXIST) if fs::metadata(path)?.is_dir() => Ok(()),
        done => Ok(done?),
    }
}

/// Makes a symbolic link, in the place of an object that is not a directory.
pub fn symlink(path: &Path, target: &[u8]) -> io::Result<()> {
    replacing(path, || Ok(rustix::fs::symlink(OsStr::from_bytes(target), path)?))
}

/// Makes a hard link, in the place of an object that is not a directory.
pub fn hard_link(existing: &Path, path: &Path) -> io::Result<()> {
    replacing(path, || fs::hard_link(existing, path))
}

/// Makes a device, socket or pipe as `meta` describes it.
pub fn make_node(path: &Path, meta: &Meta) -> io::Result<()> {
    let kind = match meta.kind {
        Kind::Block => FileType::BlockDevice,
        Kind::Char => FileType::CharacterDevice,
        Kind::Socket => FileType::Socket,
        Kind::Fifo => FileType::Fifo,
        Kind::File | Kind::Dir | Kind::Symlink => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let device = rustix::fs::makedev(meta.device.0, meta.device.1);
    replacing(path, || Ok(rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(meta.mode), device)?))
}

fn replacing(path: &Path, make: impl Fn() -> io::Result<()>) -> io::Result<()> {
    match make() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            make()
        }
        done => done,
    }
}

/// Gives an object the owner, mode and times of `meta`. An owner that may not be given is left, as `cp -p` does;
/// set-user-id and set-group-id bits are then left out.
pub fn preserve(path: &Path, meta: &Meta) -> io::Result<()> {
    let owned = lchown(path, Some(meta.uid), Some(meta.gid)).is_ok();
    if meta.kind != Kind::Symlink {
        rustix::fs::chmod(path, preserved_mode(meta, owned))?;
    }
    let times = Timestamps { last_access: meta.atime.into(), last_modification: meta.mtime.into() };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn preserved_mode(meta: &Meta, owned: bool) -> Mode {
    Mode::from_raw_mode(if owned { meta.mode } else { meta.mode & !0o6000 })
}

/// Reads a file's data in blocks of at most `block` bytes, holes left out, until `each` says that nobody wants more.
/// Returns the file's size.
pub fn read(path: &Path, block: usize, pool: &Pool, mut each: impl FnMut(u64, Bytes) -> bool) -> io::Result<u64> {
    let file = File::open(path)?;
    let mut end = file.metadata()?.len();
    let mut at = 0;
    // A file that grows meanwhile is read to its new end.
    while at < end {
        let Some(extent) = next_data(&file, at, end)? else { break };
        at = extent.start;
        while at < extent.end {
            let mut buffer = pool.take(block.min((extent.end - at).try_into().unwrap_or(block)));
            let got = read_at(&file, &mut buffer, at)?;
            if got == 0 {
                return Ok(at); // Truncated meanwhile.
            }
            buffer.set_len(got);
            if !each(at, buffer.freeze()) {
                return Ok(at);
            }
            at += got as u64;
        }
        end = end.max(file.metadata()?.len());
    }
    Ok(end)
}

/// The next extent of data from `at` on; all of the file where its file system knows no holes.
fn next_data(file: &File, at: u64, end: u64) -> io::Result<Option<std::ops::Range<u64>>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(rustix::io::Errno::NXIO) => return Ok(None),
        Err(_) => return Ok(Some(at..end)),
    };
    let stop = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(end);
    Ok(Some(start..stop))
}

fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// A local file being written.
pub struct Output {
    file: File,
}

impl Output {
    /// Opens `path` for writing, empty; a new file has `mode`.
    pub fn create(path: &Path, mode: u32) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        Ok(Self { file })
    }

    /// Writes a block.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Ends the file at `size`, which makes a hole of what was not written, and preserves `meta` if it is given.
    pub fn finish(self, size: u64, meta: Option<&Meta>) -> io::Result<()> {
        self.file.set_len(size)?;
        let Some(meta) = meta else { return Ok(()) };
        let owned = fchown(&self.file, Some(meta.uid), Some(meta.gid)).is_ok();
        rustix::fs::fchmod(&self.file, preserved_mode(meta, owned))?;
        let times = Timestamps { last_access: meta.atime.into(), last_modification: meta.mtime.into() };
        Ok(rustix::fs::futimens(&self.file, &times)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_left_out_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let mut output = Output::create(&from, 0o644).unwrap();
        output.write(0, b"head").unwrap();
        output.write(10 << 20, b"middle").unwrap();
        output.finish(30 << 20, None).unwrap();

        let pool = Pool::new(Default::default());
        let mut output = Output::create(&to, 0o600).unwrap();
        let mut moved = 0;
        let size = read(&from, 64 << 10, &pool, |offset, data| {
            moved += data.len();
            output.write(offset, &data).is_ok()
        })
        .unwrap();
        assert_eq!(size, 30 << 20);
        assert!(moved < 1 << 20, "{moved} bytes for a file of almost only holes");
        output.finish(size, Some(&meta(&from, true).unwrap())).unwrap();
        assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
        let (a, b) = (meta(&from, true).unwrap(), meta(&to, true).unwrap());
        assert_eq!((a.mode, a.mtime, a.size), (b.mode, b.mtime, b.size));
        assert!(b.is_sparse());
    }

    #[test]
    fn links_replace_files_but_not_directories() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("name");
        fs::write(&path, "x").unwrap();
        symlink(&path, b"over there").unwrap();
        assert_eq!(read_link(&path).unwrap(), b"over there");
        assert_eq!(meta(&path, false).unwrap().kind, Kind::Symlink);
        let sub = dir.path().join("sub");
        make_dir(&sub, 0o755).unwrap();
        make_dir(&sub, 0o755).unwrap();
        assert!(symlink(&sub, b"x").is_err());
        assert!(make_dir(&path, 0o755).is_err());
    }

    #[test]
    fn a_pipe_is_made_and_listed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b"), "x").unwrap();
        let like = Meta { kind: Kind::Fifo, mode: 0o640, ..meta(&dir.path().join("b"), true).unwrap() };
        make_node(&dir.path().join("a"), &like).unwrap();
        preserve(&dir.path().join("a"), &like).unwrap();
        let list = list(dir.path()).unwrap();
        let kinds: Vec<_> =
            list.iter().map(|(name, meta)| (name.to_str().unwrap(), meta.as_ref().unwrap().kind)).collect();
        assert_eq!(kinds, [("a", Kind::Fifo), ("b", Kind::File)]);
        assert_eq!(list[0].1.as_ref().unwrap().mode, 0o640);
    }
}
