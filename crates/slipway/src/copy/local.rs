//! The local end of a copy: blocking system calls. The engine runs them on threads that may block.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileExt, OpenOptionsExt, fchown, lchown},
    },
    path::{Path, PathBuf},
};

use buf::Pool;
use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Timestamps};

use super::{
    Error, Result,
    meta::{Kind, Meta},
    node::{Node, blocking, join},
    staged::temporary_name,
};

/// Returns the attributes of `path`. If `follow`, follows a symbolic link.
pub fn meta(path: &Path, follow: bool) -> io::Result<Meta> {
    let stat = if follow { rustix::fs::stat(path)? } else { rustix::fs::lstat(path)? };
    Ok(Meta::from(&stat))
}

/// Returns the names in a directory, each with its attributes or an error, in the order of the names' bytes.
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

/// Returns the target of a symbolic link.
pub fn read_link(path: &Path) -> io::Result<Vec<u8>> {
    Ok(fs::read_link(path)?.into_os_string().into_vec())
}

/// Makes a directory that its owner can write to, unless it exists.
pub fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(mode | 0o700)) {
        Err(rustix::io::Errno::EXIST) if fs::metadata(path)?.is_dir() => Ok(()),
        done => Ok(done?),
    }
}

/// Makes a symbolic link. Replaces an object that is not a directory.
pub fn symlink(path: &Path, target: &[u8]) -> io::Result<()> {
    replacing(path, || Ok(rustix::fs::symlink(OsStr::from_bytes(target), path)?))
}

/// Makes a hard link. Replaces an object that is not a directory.
pub fn hard_link(existing: &Path, path: &Path) -> io::Result<()> {
    replacing(path, || fs::hard_link(existing, path))
}

/// Makes a device, socket or pipe with the attributes of `meta`.
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

/// Sets the owner, mode and times of `meta`. If the owner cannot be set, leaves it, as `cp -p` does, and omits the
/// set-user-ID and set-group-ID bits.
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

/// Reads the data of a file from `start` on, in blocks of at most `block` bytes, without holes, until `each` returns
/// `false`. Returns the file's size.
pub fn read(
    path: &Path,
    (start, block): (u64, usize),
    pool: &Pool,
    mut each: impl FnMut(u64, Bytes) -> bool,
) -> io::Result<u64> {
    let file = File::open(path)?;
    let mut end = file.metadata()?.len();
    let mut at = start;
    // If the file grows meanwhile, read to its new end.
    while at < end {
        let Some(extent) = next_data(&file, at, end)? else { break };
        at = extent.start;
        while at < extent.end {
            let mut buffer = pool.take(block.min((extent.end - at).try_into().unwrap_or(block)));
            let got = read_at(&file, &mut buffer, at)?;
            if got == 0 {
                return Ok(at); // The file was truncated meanwhile.
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

/// Reads up to `len` bytes at an offset; fewer only at the end of the file.
pub fn read_range(path: &Path, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    let mut data = vec![0; len];
    let got = read_at(&file, &mut data, offset)?;
    data.truncate(got);
    Ok(data)
}

/// Writes a small file, or replaces its first bytes, and waits until they are on stable storage. Does not follow a link.
pub fn put(path: &Path, data: &[u8]) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path)?;
    file.write_all_at(data, 0)?;
    file.sync_all()
}

/// Returns the directory and the name of the file that a copy to `name` in `dir` replaces, with links followed; `None`
/// if it is written in place.
pub async fn final_name(dir: &Path, name: &Bytes) -> Result<Option<(Node, Bytes)>> {
    let found = blocking(&join(dir, name), resolve).await?;
    Ok(found.and_then(|(path, _)| {
        let name = Bytes::copy_from_slice(path.file_name()?.as_bytes());
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some((Node::Local(parent.to_owned()), name))
    }))
}

/// Returns the next extent of data from `at` on, or the rest of the file if its file system has no holes.
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

/// A local file that is being written. A regular file has a temporary name until it is finished, and is removed if it
/// is dropped before. Any other object, such as a device or a pipe, is written in place.
pub struct Output {
    file: File,
    /// The path from the command line, for messages.
    path: PathBuf,
    place: Place,
    /// The end of the last block.
    end: u64,
}

enum Place {
    /// A new file, which `finish` renames to `name`.
    Temporary { path: PathBuf, name: PathBuf, replaced: Option<Meta> },
    /// An existing object. `end` bytes have been written; gaps are filled with zeros.
    There { end: u64 },
    /// The file has its final name.
    Finished,
}

impl Output {
    /// Opens a file for writing that will become `path`. If it replaces no file, it gets `mode`. Follows a symbolic
    /// link. With `resumed`, the temporary name and an offset, continues the file of an interrupted copy from there, or
    /// makes one of this name if the offset is 0.
    pub fn create(path: &Path, mode: u32, resumed: Option<(&Bytes, u64)>) -> Result<Self> {
        let owned = path.to_owned();
        let Some((name, replaced)) = resolve(path).map_err(|error| Error::doing("look it up", path, &error))? else {
            let file = OpenOptions::new().write(true).truncate(true).open(path);
            let file = file.map_err(|error| Error::doing("open it", path, &error))?;
            return Ok(Self { file, path: owned, place: Place::There { end: 0 }, end: 0 });
        };
        let made_up = || temporary_name(name.file_name().unwrap_or_default().as_bytes());
        let temporary = resumed.map_or_else(made_up, |(temporary, _)| temporary.clone());
        let temporary = name.with_file_name(OsStr::from_bytes(&temporary));
        let end = resumed.map_or(0, |(_, at)| at);
        // No other user can read the file before it has the owner and mode of the file that it replaces.
        let mode = if replaced.is_some() { 0o600 } else { mode };
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(end == 0).mode(mode).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(&temporary);
        let file = file.map_err(|error| Error::doing("create it", &temporary, &error))?;
        Ok(Self { file, path: owned, place: Place::Temporary { path: temporary, name, replaced }, end })
    }

    /// Waits until all blocks are on stable storage. Returns the end of the last one.
    pub fn sync(&mut self) -> Result<u64> {
        self.file.sync_data().map_err(|error| Error::doing("write", &self.path, &error))?;
        Ok(self.end)
    }

    /// Keeps the incomplete file with its temporary name.
    pub fn keep(&mut self) {
        if let Place::Temporary { .. } = self.place {
            self.place = Place::Finished;
        }
    }

    /// Writes a block after the previous one.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.end = offset + data.len() as u64;
        let written = match &mut self.place {
            Place::There { end } => {
                let gap = offset - *end;
                *end = offset + data.len() as u64;
                zeros(&mut self.file, gap).and_then(|()| self.file.write_all(data))
            }
            _ => self.file.write_all_at(data, offset),
        };
        written.map_err(|error| Error::doing("write", &self.path, &error))
    }

    /// Ends the file at `size`, so that unwritten parts are holes. Sets the attributes of `meta`, or if it is `None`
    /// the owner and mode of the replaced file, and renames the file to its final name.
    pub fn finish(mut self, size: u64, meta: Option<&Meta>) -> Result<()> {
        let fail = |what| move |error: io::Error| (what, error);
        let finished = match &self.place {
            Place::There { end } => zeros(&mut self.file, size - end).map_err(fail("write")),
            Place::Temporary { path, name, replaced } => (|| {
                self.file.set_len(size).map_err(fail("set its size"))?;
                set_attributes(&self.file, meta, replaced.as_ref()).map_err(fail("set its attributes"))?;
                fs::rename(path, name).map_err(fail("rename its temporary file"))
            })(),
            Place::Finished => unreachable!("a file must be finished once"),
        };
        finished.map_err(|(what, error)| Error::doing(what, &self.path, &error))?;
        self.place = Place::Finished;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Place::Temporary { path, .. } = &self.place
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove a temporary file");
        }
    }
}

/// Returns the final path of a new file, with symbolic links followed, and the attributes of the regular file that it
/// replaces. Returns `None` if the object is to be written in place: it is not a regular file, or the target of a link
/// in /proc, such as /dev/stdout.
fn resolve(path: &Path) -> io::Result<Option<(PathBuf, Option<Meta>)>> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match meta(&path, false) {
            Ok(there) if there.kind == Kind::Symlink => {
                let dir = path.parent().unwrap_or(Path::new("/"));
                if dir.canonicalize()?.starts_with("/proc") {
                    return Ok(None);
                }
                path = dir.join(fs::read_link(&path)?);
            }
            Ok(there) if there.kind == Kind::File => return Ok(Some((path, Some(there)))),
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some((path, None))),
            Err(error) => return Err(error),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Sets the attributes to be preserved, or else the owner and mode of the file that is replaced.
fn set_attributes(file: &File, preserved: Option<&Meta>, replaced: Option<&Meta>) -> io::Result<()> {
    let Some(meta) = preserved.or(replaced) else { return Ok(()) };
    let owned = fchown(file, Some(meta.uid), Some(meta.gid)).is_ok();
    rustix::fs::fchmod(file, preserved_mode(meta, owned))?;
    if preserved.is_some() {
        let times = Timestamps { last_access: meta.atime.into(), last_modification: meta.mtime.into() };
        rustix::fs::futimens(file, &times)?;
    }
    Ok(())
}

fn zeros(file: &mut File, len: u64) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), len), file).map(drop)
}

/// The maximum number of symbolic links in one path, as in Linux.
const LINKS_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_not_read_and_are_restored() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let mut output = Output::create(&from, 0o644, None).unwrap();
        output.write(0, b"head").unwrap();
        output.write(10 << 20, b"middle").unwrap();
        output.finish(30 << 20, None).unwrap();

        let pool = Pool::new(Default::default());
        let mut output = Output::create(&to, 0o600, None).unwrap();
        let mut moved = 0;
        let size = read(&from, (0, 64 << 10), &pool, |offset, data| {
            moved += data.len();
            output.write(offset, &data).is_ok()
        })
        .unwrap();
        assert_eq!(size, 30 << 20);
        assert!(moved < 1 << 20, "{moved} bytes for a file that is almost only holes");
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
