//! System calls that have no safe wrapper elsewhere: file handles, file system identity, access checks.

use std::{
    ffi::CStr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::io::Errno;

/// A kernel file handle: `struct file_handle` with room for the longest.
#[repr(C)]
pub(super) struct FileHandle {
    bytes: u32,
    kind: i32,
    data: [u8; libc::MAX_HANDLE_SZ as usize],
}

impl FileHandle {
    /// A handle of this type and these bytes; `None` if no kernel makes such a one.
    pub(super) fn new(kind: i32, bytes: &[u8]) -> Option<Self> {
        let mut data = [0; libc::MAX_HANDLE_SZ as usize];
        data.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { bytes: bytes.len() as u32, kind, data })
    }

    /// The handle of `path` below `dir`, which is not followed if it is a symbolic link, or of `dir` itself if it is
    /// empty; and the number of the mount that it is on.
    pub(super) fn of(dir: BorrowedFd<'_>, path: &CStr, identity_only: bool) -> Result<(Self, i32), Errno> {
        let mut handle = Self { bytes: libc::MAX_HANDLE_SZ as u32, kind: 0, data: [0; libc::MAX_HANDLE_SZ as usize] };
        let mut mount: libc::c_int = 0;
        let flags = libc::AT_EMPTY_PATH | if identity_only { libc::AT_HANDLE_FID } else { 0 };
        // SAFETY: `FileHandle` is laid out as `struct file_handle` followed by the `bytes` bytes that it announces;
        // `path` ends with a zero byte; all of them outlive the call.
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

    /// Opens the object, by whatever name it has, as a path only. Needs `CAP_DAC_READ_SEARCH`.
    pub(super) fn open(&mut self, mount: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: `self` is laid out as `struct file_handle` and as long as it says.
        #[expect(unsafe_code)]
        let fd = unsafe {
            libc::open_by_handle_at(mount.as_raw_fd(), std::ptr::from_mut(self).cast::<libc::file_handle>(), flags)
        };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: the call has returned a new descriptor, which nobody else owns.
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

/// Sets the calling thread's file system user; returns what it was, whether or not it could be set.
pub(super) fn set_fsuid(uid: u32) -> u32 {
    // SAFETY: the call takes a number and concerns the calling thread only.
    #[expect(unsafe_code)]
    unsafe {
        libc::setfsuid(uid) as u32
    }
}

/// As [`set_fsuid`], for the group.
pub(super) fn set_fsgid(gid: u32) -> u32 {
    // SAFETY: as above.
    #[expect(unsafe_code)]
    unsafe {
        libc::setfsgid(gid) as u32
    }
}

/// Whether the calling thread, as it is now, may access the object: `mode` is of `R_OK`, `W_OK`, `X_OK`.
pub(super) fn may_access(object: BorrowedFd<'_>, mode: libc::c_int) -> bool {
    // The wrappers of C libraries emulate the flags by the real user's rights: only the system call itself will do.
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: the path is a string that ends with a zero byte; the call writes nothing.
    #[expect(unsafe_code)]
    let result = unsafe { libc::syscall(libc::SYS_faccessat2, object.as_raw_fd(), c"".as_ptr(), mode, flags) };
    result == 0
}

/// Most names an object can have on the file system of `object`.
pub(super) fn link_max(object: impl AsFd) -> Option<u32> {
    // SAFETY: the call takes numbers only.
    #[expect(unsafe_code)]
    let max = unsafe { libc::fpathconf(object.as_fd().as_raw_fd(), libc::_PC_LINK_MAX) };
    (max > 0).then(|| u32::try_from(max).unwrap_or(u32::MAX))
}

/// Sets the mode that the process takes away from new files; returns what it was.
pub(super) fn set_umask(mask: u32) -> u32 {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask)).as_raw_mode()
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
