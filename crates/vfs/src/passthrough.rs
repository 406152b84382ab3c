//! FUSE_PASSTHROUGH: a FUSE file system registers a file with the kernel, which then reads it without the file system.
//!
//! Read `Documentation/filesystems/fuse-passthrough.rst` and `include/uapi/linux/fuse.h` of Linux first. The functions are here because
//! the system calls have no safe wrapper, and the program that mounts has no unsafe code.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::{
    io::Errno,
    ioctl::{self, Setter, opcode},
};

/// `struct fuse_backing_map`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// The ioctl that registers a file, whose return value is the number of the registration.
struct BackingOpen(BackingMap);

// SAFETY: the opcode is that of FUSE_DEV_IOC_BACKING_OPEN, which reads a `fuse_backing_map` and writes nothing.
#[expect(unsafe_code)]
unsafe impl ioctl::Ioctl for BackingOpen {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> ioctl::Opcode {
        opcode::write::<BackingMap>(MAGIC, 1)
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        (&raw mut self.0).cast()
    }

    #[expect(unsafe_code)]
    unsafe fn output_from_ptr(number: ioctl::IoctlOutput, _: *mut rustix::ffi::c_void) -> rustix::io::Result<i32> {
        Ok(number)
    }
}

/// Registers `file` with the kernel's end `device` of a FUSE mount that has negotiated FUSE_PASSTHROUGH. Returns the number of the
/// registration, for replies to OPEN, until [`unregister`].
///
/// # Errors
/// Returns `PERM` without CAP_SYS_ADMIN in the initial user namespace, or if the mount has not negotiated it; `LOOP` if the file is on a
/// stacked file system such as overlayfs; `OPNOTSUPP` for a file that is not regular; and `NOTTY` if the kernel is older than 6.9.
pub fn register(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> rustix::io::Result<i32> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: the ioctl only reads its argument, and both descriptors are borrowed. A descriptor of another kind of file returns an
    // error, because no other driver has this number with an argument of this size.
    #[expect(unsafe_code)]
    let number = unsafe { ioctl::ioctl(device, BackingOpen(map)) }?;
    if number > 0 { Ok(number) } else { Err(Errno::INVAL) }
}

/// Ends a registration. Files that are open with it stay open.
///
/// # Errors
/// Returns `NOENT` if there is no such registration.
pub fn unregister(device: BorrowedFd<'_>, number: i32) -> rustix::io::Result<()> {
    // SAFETY: FUSE_DEV_IOC_BACKING_CLOSE reads a number of 32 bits and writes nothing.
    #[expect(unsafe_code)]
    unsafe {
        ioctl::ioctl(device, Setter::<{ opcode::write::<u32>(MAGIC, 2) }, u32>::new(number as u32))
    }
}

/// FUSE_DEV_IOC_MAGIC.
const MAGIC: u8 = 229;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn layouts_are_those_of_the_kernel() {
        assert_eq!(size_of::<BackingMap>(), 16);
        let map = BackingMap { fd: 0, flags: 0, padding: 0 };
        assert_eq!(ioctl::Ioctl::opcode(&BackingOpen(map)), 0x4010_e501);
        assert_eq!(opcode::write::<u32>(MAGIC, 2), 0x4004_e502);
    }

    #[test]
    fn only_a_mount_registers_files() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(register(file.as_fd(), file.as_fd()), Err(Errno::NOTTY));
        assert_eq!(unregister(file.as_fd(), 1), Err(Errno::NOTTY));
    }
}
