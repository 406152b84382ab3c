//! [`Device`]: the kernel's end of a mount, `/dev/fuse`, with mounting and unmounting.
//!
//! Only this file and [`session`](super::session), which drives it, know how messages travel: FUSE over io_uring would
//! replace them. root mounts by mount(2). For other users `fusermount3` mounts and passes the device (libfuse's
//! protocol: the number of a socket in `_FUSE_COMMFD`, and the device as an SCM_RIGHTS message there).
//!
//! When the last descriptor of the device is closed, the kernel ends all requests with ECONNABORTED.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, IoSlice, IoSliceMut, Read},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::{fs::MetadataExt, net::UnixStream},
    },
    path::Path,
    process::{Command, Stdio},
};

use rustix::io::Errno;
use rustix::{
    fs::OFlags,
    io::FdFlags,
    mount::{MountFlags, UnmountFlags},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags},
};

use super::{Options, wire};

/// An open `/dev/fuse` with a mount.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Device {
    /// Mounts at `directory`. `source` appears in `/proc/mounts`.
    ///
    /// # Errors
    /// This user or machine cannot mount there.
    pub fn mount(source: &str, directory: &Path, options: &Options) -> io::Result<Self> {
        let (read_only, options) = (options.read_only, of_kernel(options));
        let fd = match mount_directly(source, directory, read_only, &options) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                mount_by_helper(source, directory, read_only, &options)?
            }
            result => result?,
        };
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self(fd))
    }

    /// Reads a request: its first bytes into `head`, and the rest into `rest`. Both together must have room for the
    /// largest request.
    pub fn read(&self, head: &mut [u8], rest: &mut [u8]) -> rustix::io::Result<usize> {
        rustix::io::readv(&self.0, &mut [IoSliceMut::new(head), IoSliceMut::new(rest)])
    }

    /// Writes a message. The kernel accepts it at once and completely.
    pub fn write(&self, message: &[u8]) -> rustix::io::Result<()> {
        rustix::io::write(&self.0, message).map(drop)
    }

    /// Replies with data, which only the kernel copies.
    pub fn reply_data(&self, unique: u64, data: &[u8]) -> rustix::io::Result<()> {
        let header = wire::out_header(size_of_val(&wire::out_header(0, 0, 0)) + data.len(), 0, unique);
        rustix::io::writev(&self.0, &[IoSlice::new(&header), IoSlice::new(data)]).map(drop)
    }

    /// Replies with an error.
    pub fn reply_error(&self, unique: u64, error: Errno) -> rustix::io::Result<()> {
        let header = wire::out_header(size_of_val(&wire::out_header(0, 0, 0)), -error.raw_os_error(), unique);
        self.write(&header)
    }
}

/// Returns the options of the kernel's file system. The server checks the permissions of other users.
fn of_kernel(options: &Options) -> String {
    let others = if options.per_caller { ",allow_other" } else { "" };
    // Without a page cache, the kernel sends the reads of read(2) one after the other, so that short ones would be slower.
    let max_read = if options.direct_io { wire::WRITE_MAX } else { wire::READ_MAX };
    format!("max_read={max_read}{others}")
}

/// Mounts by mount(2).
fn mount_directly(source: &str, directory: &Path, read_only: bool, options: &str) -> io::Result<OwnedFd> {
    let kind = directory.metadata()?.mode() & 0o170_000;
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), "there is no /dev/fuse; load it with 'modprobe fuse'"),
        _ => error,
    })?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let (uid, gid) = (uid.as_raw(), gid.as_raw());
    let fd = device.as_raw_fd();
    let options = format!("fd={fd},rootmode={kind:o},user_id={uid},group_id={gid},{options}");
    let options = std::ffi::CString::new(options).expect("numbers");
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
    flags.set(MountFlags::RDONLY, read_only);
    rustix::mount::mount(source, directory, FSTYPE, flags, options.as_c_str())?;
    Ok(device.into())
}

/// Mounts by `fusermount3`.
fn mount_by_helper(source: &str, directory: &Path, read_only: bool, options: &str) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // A comma must be escaped, because it ends an option.
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    let mut command = Command::new(HELPER);
    let access = if read_only { "ro" } else { "rw" };
    let options = format!("{access},fsname={source},subtype=slipway,nodev,nosuid,{options}");
    command.arg("-o").arg(options).arg("--").arg(directory);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string()).stdin(Stdio::null()).stderr(Stdio::piped());
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    let mut helper = command.spawn().map_err(|error| {
        io::Error::new(error.kind(), format!("users other than root need {HELPER} (Debian: fuse3): {error}"))
    })?;
    drop(theirs);
    let mut said = String::new();
    let received = receive(&ours);
    if let Some(stderr) = &mut helper.stderr {
        stderr.read_to_string(&mut said)?;
    }
    helper.wait()?;
    let device = received?.ok_or_else(|| io::Error::other(format!("{HELPER}: {}", said.trim())))?;
    rustix::io::fcntl_setfd(&device, FdFlags::CLOEXEC)?;
    Ok(device)
}

/// Receives the descriptor from the helper; `None` if the helper ends without sending it.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// Sets the read-ahead of the mount with this device number (`MAJOR:MINOR`). The kernel's default is 128 KiB, so that it would have
/// only one short read in progress.
///
/// # Errors
/// Only root can do this, and only if `/sys` is writable.
pub fn set_read_ahead(number: &str) -> io::Result<()> {
    fs::write(format!("/sys/class/bdi/{number}/read_ahead_kb"), (2 * wire::READ_MAX / 1024).to_string())
}

/// Writes data that programs have changed through memory maps, and unmounts.
///
/// # Errors
/// `EBUSY` if the mount is in use, unless `detach`.
pub fn unmount(directory: &Path, detach: bool) -> io::Result<()> {
    if !detach
        && let Ok(root) = File::open(directory)
        && let Err(error) = rustix::fs::syncfs(&root)
    {
        tracing::warn!(%error, "data that programs have changed could not be written");
    }
    let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(directory, flags) {
        Err(Errno::PERM) => {
            let how = if detach { "-uzq" } else { "-uq" };
            let done = Command::new(HELPER).arg(how).arg("--").arg(directory).status()?;
            if done.success() { Ok(()) } else { Err(Errno::BUSY.into()) }
        }
        result => Ok(result?),
    }
}

const FSTYPE: &str = "fuse.slipway";
const HELPER: &str = "fusermount3";
