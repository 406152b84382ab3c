//! Acting as the caller.
//!
//! As root, each operation runs with the caller's file system user, file system group and groups, of the calling
//! thread only. The kernel takes the capabilities that override permissions away with the user (capabilities(7),
//! "Effect of user ID changes on capabilities") and gives them back when root returns. The identity is given back at
//! the end of every operation, so that nothing else that the thread does is done as a client.
//!
//! What a thread has opened may answer only to the credentials that opened it: the kernel compares the object that holds
//! them, not its contents (`ib_safe_file_access` of the RDMA devices), and every change, back to root as well, makes
//! another object. A thread that [keeps its credentials](keep_credentials) therefore never acts as anybody: what would
//! need that is for a thread that may wait.
//!
//! As an ordinary user, everything runs as that user.

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

/// How callers' identities are assumed.
#[derive(Debug)]
pub(super) enum Identity {
    /// Each operation as its caller.
    Caller,
    /// Every operation as this user, who the process runs as.
    Own(Cred),
}

/// The thread acts as the caller while this lives.
pub(super) struct Acting {
    uid: bool,
    gid: bool,
}

thread_local! {
    /// Whether this thread keeps its credentials.
    static KEEPS: Cell<bool> = const { Cell::new(false) };
    /// The groups that this thread has, if it has set any. They stay when root returns, whom they give nothing.
    static GROUPS: RefCell<Option<SmallVec<[u32; 16]>>> = const { RefCell::new(None) };
}

/// The calling thread keeps the credentials that it has, for good. Operations that would need others end on it with
/// [`WouldBlock`](VfsError::WouldBlock), before anything has happened, to be run again by another thread; those that need
/// none (reading a file that is open for its caller, attributes) and those of root run on it as ever.
pub fn keep_credentials() {
    KEEPS.set(true);
}

impl Identity {
    /// What this process can do.
    ///
    /// # Errors
    /// Root without the capabilities to become others: then every caller would be root.
    pub(super) fn of_process() -> io::Result<Self> {
        let uid = rustix::process::geteuid();
        if !uid.is_root() {
            let groups = rustix::process::getgroups()?.iter().map(|gid| gid.as_raw()).collect();
            let gid = rustix::process::getegid().as_raw();
            return Ok(Self::Own(Cred { uid: uid.as_raw(), gid, groups }));
        }
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        if !rustix::thread::capabilities(None)?.effective.contains(needed) {
            let message = "running as root without CAP_SETUID and CAP_SETGID, callers cannot be told apart; \
                           grant them or run as an ordinary user";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(Self::Caller)
    }

    /// Whose rights an operation for `cred` has.
    pub(super) fn effective<'a>(&'a self, cred: &'a Cred) -> &'a Cred {
        match self {
            Self::Caller => cred,
            Self::Own(own) => own,
        }
    }

    /// Makes the calling thread act as `caller`. Before an operation's first call nothing has been changed.
    ///
    /// # Errors
    /// `Perm` for one who cannot be; `WouldBlock` on a thread that keeps its credentials.
    pub(super) fn assume(&self, caller: &Caller<'_>) -> Result<Acting> {
        let cred = caller.cred;
        let mut acting = Acting { uid: false, gid: false };
        if matches!(self, Self::Own(_)) {
            return Ok(acting);
        }
        // All ones means "leave it" to the kernel: the operation would run as root.
        if cred.uid == u32::MAX || cred.gid == u32::MAX || cred.groups.contains(&u32::MAX) {
            return Err(VfsError::Perm);
        }
        if (cred.uid != 0 || cred.gid != 0) && KEEPS.get() {
            return Err(VfsError::WouldBlock);
        }
        if cred.uid != 0 {
            set_groups(&cred.groups)?;
        }
        if cred.gid != 0 {
            acting.gid = true;
            set_fsgid(cred.gid);
            // The call reports no failure (an unmapped user, in a namespace), but the current value.
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
        // Of the thread: the C library's function of this name is the process's.
        let raw: SmallVec<[Gid; 16]> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        rustix::thread::set_thread_groups(&raw)?;
        *current = Some(SmallVec::from_slice(groups));
        Ok(())
    })
}
