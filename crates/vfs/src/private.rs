//! Files that only the process's own user may change: keys, databases, logs.
//!
//! A file is checked through its descriptor after it has been opened, so that nobody can replace it between the check
//! and the use. The caller must have checked the directory with [`check_dir`].
//!
//! Errors describe the problem and a command that solves it. Their kind is `PermissionDenied` for a wrong owner or
//! mode, and `InvalidData` for something that is not a regular file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use rustix::{
    fs::OFlags,
    process::{Uid, geteuid},
};

/// Checks an open directory: it must belong to this user, and nobody else may write to it.
///
/// # Errors
/// Returns `PermissionDenied` with a command that solves the problem.
pub fn check_dir(dir: &File, path: &Path) -> io::Result<()> {
    let metadata = dir.metadata()?;
    check_owner(&metadata, path)?;
    if metadata.mode() & OTHERS_WRITE != 0 {
        return Err(denied(format!("others can write to it: chmod go-w {}", path.display())));
    }
    Ok(())
}

/// Opens an existing file for reading and writing. Returns `None` if it does not exist. Others must not have the
/// permissions `forbidden`, which is [`OTHERS_ANY`] or [`OTHERS_WRITE`].
///
/// # Errors
/// Returns an error if it is not a regular file, belongs to another user, grants one of these permissions, or cannot be
/// opened.
pub fn open(path: &Path, forbidden: u32) -> io::Result<Option<File>> {
    // Without O_NONBLOCK, opening a FIFO would wait for its other end.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(explain(path, error)),
    };
    let metadata = file.metadata()?;
    check_kind(&metadata)?;
    check_owner(&metadata, path)?;
    if metadata.mode() & forbidden != 0 {
        let what = if forbidden == OTHERS_WRITE { "write to" } else { "read" };
        return Err(denied(format!("others can {what} it: chmod 600 {}", path.display())));
    }
    Ok(Some(file))
}

/// Creates an empty file of mode 0600. First removes a file of the same name that a crash has left behind.
///
/// # Errors
/// Returns an error if the file cannot be created.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Renames a file. The rename is on stable storage when this returns.
///
/// # Errors
/// Returns an error if the storage fails.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    File::open(to.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Replaces the contents of a file atomically: after a crash, it has either its old or its new contents.
///
/// # Errors
/// Returns an error if the storage fails. The file then has its old contents.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_added_extension("new");
    let written = create(&new).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    let written = written.and_then(|()| rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Renames a file to an unused name in the same directory. Returns the new path.
///
/// # Errors
/// Returns an error if the storage fails.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let seconds = entropy::system_time().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let names = (0..).map(|count| path.with_added_extension(format!("bad-{seconds}-{count}")));
    let free = |path: &PathBuf| fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let aside = names.take(NAMES_MAX).find(free).ok_or(io::ErrorKind::AlreadyExists)?;
    rename(path, &aside)?;
    Ok(aside)
}

fn check_kind(metadata: &fs::Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    let is = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is {is}, not a regular file")))
}

fn check_owner(metadata: &fs::Metadata, path: &Path) -> io::Result<()> {
    let (owner, user) = (Uid::from_raw(metadata.uid()), geteuid());
    if owner == user {
        return Ok(());
    }
    let (owner, user) = (owner.as_raw(), user.as_raw());
    Err(denied(format!("it is owned by user {owner}, and the server runs as {user}: chown {user} {}", path.display())))
}

/// Explains an error of opening a file by the file's metadata, if possible.
fn explain(path: &Path, error: io::Error) -> io::Error {
    let Ok(metadata) = fs::symlink_metadata(path) else { return error };
    let why = check_kind(&metadata).and_then(|()| check_owner(&metadata, path));
    match why {
        Err(why) => why,
        Ok(()) if error.kind() == io::ErrorKind::PermissionDenied => {
            denied(format!("{error}: chmod 600 {}", path.display()))
        }
        Ok(()) => error,
    }
}

fn denied(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

/// The write permissions of the group and of others.
pub const OTHERS_WRITE: u32 = 0o022;
/// All permissions of the group and of others.
pub const OTHERS_ANY: u32 = 0o077;

/// Maximum number of names to try for files that are set aside within one second.
const NAMES_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_regular_file_of_this_user_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let refused = |name: &str| open(&at(name), OTHERS_ANY).unwrap_err();
        assert!(open(&at("none"), OTHERS_ANY).unwrap().is_none());
        replace(&at("file"), b"content").unwrap();
        assert!(open(&at("file"), OTHERS_ANY).unwrap().is_some());

        symlink(at("file"), at("link")).unwrap();
        assert!(refused("link").to_string().contains("symbolic link"));
        fs::create_dir(at("dir")).unwrap();
        assert!(refused("dir").to_string().contains("a directory"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(refused("fifo").to_string().contains("a FIFO"));
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(refused("file").to_string().contains("chmod 600"));
        assert!(open(&at("file"), OTHERS_WRITE).unwrap().is_some());
        if geteuid().is_root() {
            std::os::unix::fs::chown(at("file"), Some(1), None).unwrap();
            assert!(refused("file").to_string().contains("chown 0"));
        }
    }

    #[test]
    fn replaced_file_is_private_and_leaves_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(dir.path().join("file.new"), "left by a crash").unwrap();
        for content in ["first", "second"] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
