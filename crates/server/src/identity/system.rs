//! [`System`]: the users of this host, from its name service switch (nsswitch.conf(5)).

use std::{ffi::CString, io};

use nix::{
    errno::Errno,
    unistd::{Gid, Uid, getgrouplist},
};

use super::users::{User, UserDatabase};

/// The users of this host.
pub(crate) struct System;

impl UserDatabase for System {
    fn by_uid(&self, uid: u32) -> io::Result<Option<User>> {
        found(nix::unistd::User::from_uid(Uid::from_raw(uid)))
    }

    fn by_name(&self, name: &str) -> io::Result<Option<User>> {
        found(nix::unistd::User::from_name(name))
    }
}

/// Adds the groups to a user of the password database.
fn found(user: nix::Result<Option<nix::unistd::User>>) -> io::Result<Option<User>> {
    let user = match user {
        Ok(Some(user)) => user,
        // getpwuid(3): libraries return any of these if there is no such user.
        Ok(None) | Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let Ok(name) = CString::new(user.name) else { return Ok(None) };
    let groups = getgrouplist(&name, user.gid)?.into_iter().map(Gid::as_raw).collect();
    Ok(Some(User { uid: user.uid.as_raw(), gid: user.gid.as_raw(), groups }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_by_number_and_name() {
        let root = System.by_uid(0).unwrap().expect("every host has root");
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(System.by_name("root").unwrap(), Some(root));
        assert_eq!(System.by_uid(u32::MAX - 7).unwrap(), None);
        assert_eq!(System.by_name("no such user").unwrap(), None);
        assert_eq!(System.by_name("a\0b").unwrap_or(None), None);
    }
}
