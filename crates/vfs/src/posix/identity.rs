//! Runs operations with the identity of the caller.
//!
//! If the server is root, each operation runs with the caller's file system user ID, file system group ID and groups,
//! set for the calling thread only. When the user ID changes, the kernel removes the capabilities that override
//! permissions (capabilities(7), "Effect of user ID changes on capabilities"), and restores them with root's. Root's
//! identity is restored at the end of every operation, so that the thread does nothing else as a client.
//!
//! A descriptor may be usable only with the credentials that opened it. The kernel compares the credentials object, not
//! its contents (`ib_safe_file_access` of the RDMA devices), and every change of credentials, even back to root's,
//! creates another object. So a thread that [keeps its credentials](keep_credentials) never assumes another identity.
//! Operations that need one run on a thread that may block.
//!
//! If the server is an ordinary user, all operations run as that user.

use std::{
    cell::{Cell, RefCell},
    io,
};

use rustix::{
    process::{Gid, Uid},
    thread::CapabilitySet,
};
use smallvec::SmallVec;

use super::kernel::{set_fsgid, set_fsuid};
use crate::{Caller, Cred, Result, VfsError};

/// The way in which operations get the identity of their callers.
#[derive(Debug)]
pub(super) enum Identity {
    /// Each operation runs as its caller.
    Caller,
    /// All operations run as this user, the one that runs the process.
    Own(Cred),
}

/// A guard: the thread has the identity of the caller until it is dropped.
pub(super) struct Acting {
    uid: bool,
    gid: bool,
}

thread_local! {
    /// `true` if this thread keeps its credentials.
    static KEEPS_CREDENTIALS: Cell<bool> = const { Cell::new(false) };
    /// The groups that this thread has set, if any. They stay when root's identity is restored, because root needs no
    /// groups.
    static GROUPS: RefCell<Option<SmallVec<[u32; 16]>>> = const { RefCell::new(None) };
}

/// Makes the calling thread keep its credentials for good. Operations on it that would need other credentials fail with
/// [`WouldBlock`](VfsError::WouldBlock) before they have any effect, and can be run again by another thread. Operations
/// that need no other credentials (reading a file that is open for its caller, reading attributes) and those of root
/// still run on it.
pub fn keep_credentials() {
    KEEPS_CREDENTIALS.set(true);
}

impl Identity {
    /// Returns the way that the privileges of this process allow.
    ///
    /// # Errors
    /// Returns an error if the process is root but lacks the capabilities to become other users, because every caller
    /// would then act as root.
    pub(super) fn of_process() -> io::Result<Self> {
        let uid = rustix::process::geteuid();
        if !uid.is_root() {
            let groups = rustix::process::getgroups()?.iter().map(|gid| gid.as_raw()).collect();
            let gid = rustix::process::getegid().as_raw();
            return Ok(Self::Own(Cred { uid: uid.as_raw(), gid, groups }));
        }
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        if !rustix::thread::capabilities(None)?.effective.contains(needed) {
            let message = "running as root without CAP_SETUID and CAP_SETGID, the server cannot act as its callers; \
                           grant them or run as an ordinary user";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(Self::Caller)
    }

    /// Returns the credentials with which an operation for `cred` runs.
    pub(super) fn effective<'a>(&'a self, cred: &'a Cred) -> &'a Cred {
        match self {
            Self::Caller => cred,
            Self::Own(own) => own,
        }
    }

    /// Makes the calling thread act as `caller`. Call it before the operation changes anything.
    ///
    /// # Errors
    /// Returns `Perm` if the identity cannot be assumed, and `WouldBlock` on a thread that keeps its credentials.
    pub(super) fn assume(&self, caller: &Caller<'_>) -> Result<Acting> {
        let cred = caller.cred;
        let mut acting = Acting { uid: false, gid: false };
        if matches!(self, Self::Own(_)) {
            return Ok(acting);
        }
        // To the kernel, all ones mean "do not change": the operation would run as root.
        if cred.uid == u32::MAX || cred.gid == u32::MAX || cred.groups.contains(&u32::MAX) {
            return Err(VfsError::Perm);
        }
        if (cred.uid != 0 || cred.gid != 0) && KEEPS_CREDENTIALS.get() {
            return Err(VfsError::WouldBlock);
        }
        if cred.uid != 0 {
            set_groups(&cred.groups)?;
        }
        if cred.gid != 0 {
            acting.gid = true;
            set_fsgid(cred.gid);
            // The call does not report failure (such as a user without a mapping in a namespace), but returns the
            // current value.
            if set_fsgid(u32::MAX) != cred.gid {
                return Err(VfsError::Perm);
            }
        }
        if cred.uid != 0 {
            acting.uid = true;
            set_fsuid(cred.uid);
            if set_fsuid(u32::MAX) != cred.uid {
                return Err(VfsError::Perm);
            }
        }
        Ok(acting)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        if self.uid {
            set_fsuid(Uid::ROOT.as_raw());
        }
        if self.gid {
            set_fsgid(Gid::ROOT.as_raw());
        }
    }
}

fn set_groups(groups: &[u32]) -> Result<()> {
    GROUPS.with_borrow_mut(|current| {
        if current.as_deref() == Some(groups) {
            return Ok(());
        }
        // This sets the groups of the thread. The C library's function of the same name sets those of the process.
        let raw: SmallVec<[Gid; 16]> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        rustix::thread::set_thread_groups(&raw)?;
        *current = Some(SmallVec::from_slice(groups));
        Ok(())
    })
}
