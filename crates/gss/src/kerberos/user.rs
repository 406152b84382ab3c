//! [`KerberosTickets`]: the tickets of the users of this machine. [`UserInitiator`] is that of one of several users.

use std::{fs::File, io, os::fd::AsRawFd, path::PathBuf, sync::Arc};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

use super::KerberosInitiator;
use crate::mechanism::{GssError, Initiator, Negotiation, Step, StepFailed, Tickets, major};

/// The tickets in the credential caches of this machine: that of the process as the library finds it, and those of other
/// users as [`UserInitiator`] finds them.
#[derive(Clone, Copy, Debug)]
pub struct KerberosTickets;

impl Tickets for KerberosTickets {
    fn of_process(&self, service: &str) -> Result<Arc<dyn Initiator>, GssError> {
        Ok(Arc::new(KerberosInitiator::new(service, None)?))
    }

    fn of_user(&self, service: &str, uid: u32) -> Arc<dyn Initiator> {
        Arc::new(UserInitiator::new(service, uid))
    }
}

/// The ticket of a user for one service, from the user's credential cache `/tmp/krb5cc_UID`. A process that acts for
/// several users needs one for each of them.
///
/// Any user can create files in `/tmp`, so only a regular file of that user is used, and it is opened once: the user
/// cannot replace it by a link to another user's cache after the check.
#[derive(Debug)]
pub struct UserInitiator {
    service: String,
    uid: u32,
}

impl UserInitiator {
    /// Creates an initiator for `service`, such as `nfs@server.example.com`, and the user with this ID.
    pub fn new(service: &str, uid: u32) -> Self {
        Self { service: service.to_owned(), uid }
    }

    fn open(&self) -> io::Result<File> {
        let path = PathBuf::from(format!("/tmp/krb5cc_{}", self.uid));
        // Without NONBLOCK, opening a FIFO would wait.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(CWD, &path, flags, Mode::empty())
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let stat = fstat(&file)?;
        if stat.st_uid != self.uid || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let problem = format!("{}: not a regular file of user {}", path.display(), self.uid);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        }
        Ok(file.into())
    }
}

impl Initiator for UserInitiator {
    fn begin(&self) -> Result<Box<dyn Negotiation>, GssError> {
        let failed = |error: io::Error| {
            let text = format!("{error}; the user gets a ticket there by `kinit -c FILE:/tmp/krb5cc_{}`", self.uid);
            GssError::new(
                format!("Kerberos, service {}: no ticket of user {}", self.service, self.uid),
                major::NO_CRED,
                text,
            )
        };
        let file = self.open().map_err(failed)?;
        // The library opens the cache by its name again, and this name leads to the checked file.
        let cache = format!("FILE:/proc/self/fd/{}", file.as_raw_fd());
        let negotiation = KerberosInitiator::new(&self.service, Some(cache))?.begin()?;
        Ok(Box::new(WithCache { negotiation, _cache: file }))
    }
}

/// A negotiation, which reads its credential cache until it ends.
struct WithCache {
    // It is dropped first.
    negotiation: Box<dyn Negotiation>,
    _cache: File,
}

impl Negotiation for WithCache {
    fn step(&mut self, token: &[u8]) -> Result<Step, StepFailed> {
        self.negotiation.step(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_of_another_user_is_not_used() {
        // No such user: the file does not exist, or belongs to the user that runs the test.
        let uid = u32::MAX - 7 - std::process::id();
        let path = format!("/tmp/krb5cc_{uid}");
        let initiator = UserInitiator::new("nfs@localhost", uid);
        assert_eq!(initiator.open().unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, "").unwrap();
        let of_other = initiator.open();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/hosts", &path).unwrap();
        let link = initiator.open();
        std::fs::remove_file(&path).unwrap();
        let text = of_other.unwrap_err().to_string();
        assert!(text.contains("not a regular file of user"), "{text}");
        assert!(link.is_err(), "a link must not be followed");
        assert_eq!(initiator.begin().err().map(|error| error.major), Some(major::NO_CRED));
    }
}
