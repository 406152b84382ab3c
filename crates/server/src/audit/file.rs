//! [`Log`]: the file of the audit log. It knows whether the file ends within a line, so that the next record begins a line.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::OFlags;

/// The file of the audit log, open for appending.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    /// `true` if the file ends within a line: a write or an earlier server has ended there.
    is_torn: bool,
}

impl Log {
    /// Opens the file, and creates it if there is none. It must be a regular file: a pipe or a device would not keep the
    /// records, and could block. The last component of the path must not be a symbolic link.
    ///
    /// # Errors
    /// The file cannot be opened for reading and appending, or is not a regular file. The message has the path.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let place =
            |error: io::Error| io::Error::new(error.kind(), format!("the audit log {}: {error}", path.display()));
        Self::try_open(path).map_err(place)
    }

    fn try_open(path: &Path) -> io::Result<Self> {
        // Without NONBLOCK, to open a pipe, a device or a file with a lease could wait.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600).custom_flags(flags.bits().cast_signed());
        let file = options.open(path).map_err(|error| {
            let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
            if is_link { io::Error::other("it is a symbolic link: configure the path of its target") } else { error }
        })?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
        let mut last = [b'\n'];
        if let Some(offset) = metadata.len().checked_sub(1) {
            file.read_exact_at(&mut last, offset)?;
        }
        Ok(Self { file, is_torn: last != *b"\n" })
    }

    /// Appends a line, which ends in a newline, behind the end of a line. If this fails, a part of the line can be in the file.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.write(b"\n")?;
        }
        self.write(line)
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.is_torn = bytes[written - 1] != b'\n';
                    bytes = &bytes[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
impl Log {
    /// Appends to a file of any kind.
    pub(super) fn of(file: File) -> Self {
        Self { file, is_torn: false }
    }
}

#[cfg(test)]
mod tests {
    use rustix::{
        fs::{CWD, FileType, Mode, mknodat},
        io::Errno,
    };

    use super::*;

    #[test]
    fn a_line_does_not_continue_a_torn_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        for (before, after) in [
            ("", "new\nnext\n"),
            ("whole\n", "whole\nnew\nnext\n"),
            ("torn", "torn\nnew\nnext\n"),
            ("whole\ntorn", "whole\ntorn\nnew\nnext\n"),
        ] {
            std::fs::write(&path, before).unwrap();
            let mut log = Log::open(&path).unwrap();
            log.append(b"new\n").unwrap();
            log.append(b"next\n").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
        }
    }

    /// The pipe takes a part of the line and then fails, as a disk that becomes full.
    #[test]
    fn a_write_that_fails_tears_only_a_line_of_which_a_part_was_written() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let mut read = File::from(read);
        let mut log = Log::of(write.into());
        let long = [&[b'x'; 100 << 10][..], b"\n"].concat();
        assert_eq!(log.append(&long).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // Nothing more is written, so the marker of the torn line must stay.
        assert_eq!(log.append(b"a\n").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut part = vec![0; 100 << 10];
        let written = io::Read::read(&mut read, &mut part).unwrap();
        assert!(part[..written].iter().all(|byte| *byte == b'x'));
        log.append(b"b\n").unwrap();
        log.append(b"c\n").unwrap();
        let written = io::Read::read(&mut read, &mut part).unwrap();
        assert_eq!(part[..written], *b"\nb\nc\n");
        let mut full = Log::of(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let error = full.append(b"line\n").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        assert!(!full.is_torn, "no part of the line is in the file");
    }

    #[test]
    fn only_a_regular_file_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::fs::write(at("target"), "").unwrap();
        std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("missing"), at("dangling")).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for (name, reason) in [
            ("pipe", "not a regular file"),
            ("link", "symbolic link"),
            ("dangling", "symbolic link"),
            ("dir", "directory"),
            ("socket", "No such device"),
            ("no/such", "No such file"),
            ("/dev/null", "not a regular file"),
        ] {
            let error = Log::open(&at(name)).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(name), "{name}: {error}");
        }
        assert!(!at("missing").exists(), "the target of a link must not be created");
        Log::open(&at("target")).unwrap();
    }
}
