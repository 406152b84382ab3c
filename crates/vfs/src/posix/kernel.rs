//! System calls without a safe wrapper: file handles, file system IDs, access checks.

use std::{
    ffi::CStr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::io::Errno;

/// A kernel file handle: `struct file_handle` with space for the longest handle.
#[repr(C)]
pub(super) struct FileHandle {
    bytes: u32,
    kind: i32,
    data: [u8; libc::MAX_HANDLE_SZ as usize],
}

impl FileHandle {
    /// Creates a handle from its type and bytes. Returns `None` if it is longer than any handle of the kernel.
    pub(super) fn new(kind: i32, bytes: &[u8]) -> Option<Self> {
        let mut data = [0; libc::MAX_HANDLE_SZ as usize];
        data.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { bytes: bytes.len() as u32, kind, data })
    }

    /// Returns the handle of `path` below `dir`, without following a symbolic link, or of `dir` itself if `path` is
    /// empty. Also returns the ID of the mount that contains it.
    pub(super) fn of(dir: BorrowedFd<'_>, path: &CStr, identity_only: bool) -> Result<(Self, i32), Errno> {
        let mut handle = Self { bytes: libc::MAX_HANDLE_SZ as u32, kind: 0, data: [0; libc::MAX_HANDLE_SZ as usize] };
        let mut mount: libc::c_int = 0;
        let flags = libc::AT_EMPTY_PATH | if identity_only { libc::AT_HANDLE_FID } else { 0 };
        // SAFETY: `FileHandle` has the layout of `struct file_handle` followed by as many bytes as it announces. `path`
        // ends with a zero byte. All of them outlive the call.
        #[expect(unsafe_code)]
        let result = unsafe {
            libc::name_to_handle_at(
                dir.as_raw_fd(),
                path.as_ptr(),
                (&raw mut handle).cast::<libc::file_handle>(),
                &raw mut mount,
                flags,
            )
        };
        if result == 0 { Ok((handle, mount)) } else { Err(last_error()) }
    }

    /// Opens the object as a path descriptor, whatever its name is. Requires `CAP_DAC_READ_SEARCH`.
    pub(super) fn open(&mut self, mount: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: `self` has the layout of `struct file_handle` and the length that it announces.
        #[expect(unsafe_code)]
        let fd = unsafe {
            libc::open_by_handle_at(mount.as_raw_fd(), std::ptr::from_mut(self).cast::<libc::file_handle>(), flags)
        };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: the call has returned a new descriptor, which nothing else owns.
        #[expect(unsafe_code)]
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(super) fn kind(&self) -> i32 {
        self.kind
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.data[..self.bytes as usize]
    }
}

/// Sets the file system user ID of the calling thread. Returns the previous one, whether or not the call succeeds.
pub(super) fn set_fsuid(uid: u32) -> u32 {
    // SAFETY: the call takes a number and affects only the calling thread.
    #[expect(unsafe_code)]
    unsafe {
        libc::setfsuid(uid) as u32
    }
}

/// Sets the file system group ID like [`set_fsuid`].
pub(super) fn set_fsgid(gid: u32) -> u32 {
    // SAFETY: the call takes a number and affects only the calling thread.
    #[expect(unsafe_code)]
    unsafe {
        libc::setfsgid(gid) as u32
    }
}

/// Returns `true` if the calling thread may access the object with its current identity. `mode` consists of `R_OK`,
/// `W_OK` and `X_OK`.
pub(super) fn may_access(object: BorrowedFd<'_>, mode: libc::c_int) -> bool {
    // C libraries emulate the flags with the rights of the real user, so use the system call directly.
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: the path is a string that ends with a zero byte, and the call writes nothing.
    #[expect(unsafe_code)]
    let result = unsafe { libc::syscall(libc::SYS_faccessat2, object.as_raw_fd(), c"".as_ptr(), mode, flags) };
    result == 0
}

/// Returns the maximum number of links to an object on the file system of `object`.
pub(super) fn link_max(object: impl AsFd) -> Option<u32> {
    // SAFETY: the call takes only numbers.
    #[expect(unsafe_code)]
    let max = unsafe { libc::fpathconf(object.as_fd().as_raw_fd(), libc::_PC_LINK_MAX) };
    (max > 0).then(|| u32::try_from(max).unwrap_or(u32::MAX))
}

/// Sets the umask of the process. Returns the previous one.
pub(super) fn set_umask(mask: u32) -> u32 {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask)).as_raw_mode()
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
