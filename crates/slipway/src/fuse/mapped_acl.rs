//! POSIX ACLs over NFSv4: converts them to the ACLs of NFSv4 and back, for getfacl(1) and setfacl(1).
//!
//! Read draft-ietf-nfsv4-acl-mapping-05 first. Our server and Linux's store POSIX ACLs, and send the NFSv4 ACL that
//! [`to_nfs4`] makes of them. Such an ACL is converted exactly: a POSIX ACL is shown only if the NFSv4 ACL is what a
//! server sends for it. Any other ACL has no POSIX ACL, and is read and set by nfs4_getfacl(1) and nfs4_setfacl(1).
//!
//! NFSv4 has no mask. A server sends the permissions that remain after the mask, and the mask is in the mode.

use bytes::Bytes;
use client::V4;
use nfs::v4::acl::*;
use rustix::io::Errno;
use server::v4::acl::{to_nfs4, to_posix};
use vfs::{Acl, AclEntry, AclWho};

use super::{
    posix_acl::PosixAcl,
    tree::{Answer, Answered},
    view::{Target, View},
};

/// The ACLs of an object.
#[derive(Debug, PartialEq, Eq)]
struct Acls {
    access: Acl,
    default: Option<Acl>,
}

impl View {
    async fn mapped_acls(&self, v4: &V4, node: &Target) -> Answer<Acls> {
        let since = node.rights.version();
        let (aces, mode) = v4.acl_and_mode(node.handle()).await.answer()?;
        let acls = posix_of(&aces, node.is_dir, mode).ok_or(Errno::OPNOTSUPP)?;
        if acls.are_mode() {
            node.rights.store_only_mode(self.ttl, since);
        }
        Ok(acls)
    }

    /// Returns an ACL. The error is ENODATA if the object has only a mode, and EOPNOTSUPP if POSIX cannot represent the
    /// server's ACL.
    pub(super) async fn mapped_acl(&self, v4: &V4, node: &Target, which: PosixAcl) -> Answer<Bytes> {
        let Acls { access, default } = self.mapped_acls(v4, node).await?;
        let acl = match which {
            PosixAcl::Access => Some(access).filter(|acl| !acl.is_minimal()),
            PosixAcl::Default => default,
        };
        acl.map(|acl| acl.to_xattr().into()).ok_or(Errno::NODATA)
    }

    /// Sets an ACL. Without a value, removes it: access is then what the mode says. The error is EOPNOTSUPP if the server
    /// would store an ACL with fewer rights, or if POSIX cannot represent the ACL that is there.
    pub(super) async fn set_mapped_acl(
        &self,
        v4: &V4,
        node: &Target,
        which: PosixAcl,
        value: Option<&[u8]>,
    ) -> Answer<()> {
        which.check_settable(node)?;
        let set = value.map(Acl::from_xattr).transpose().map_err(|_| Errno::INVAL)?;
        let mut acls = self.mapped_acls(v4, node).await?;
        match which {
            PosixAcl::Access => acls.access = set.unwrap_or_else(|| Acl::from_mode(acls.access.mode())),
            PosixAcl::Default => acls.default = set,
        }
        let aces = nfs4_of(&acls, node.is_dir).ok_or_else(|| {
            tracing::warn!("the server would deny rights that the ACL grants to others but not to a group");
            Errno::OPNOTSUPP
        })?;
        let done = v4.set_acl(node.handle(), aces).await.answer();
        self.acl_changed(node).await;
        done
    }
}

impl Acls {
    /// Returns `true` if they are what the mode says.
    fn are_mode(&self) -> bool {
        self.access.is_minimal() && self.default.is_none()
    }
}

/// Returns `true` if the ACL of a server is what the mode says.
pub fn has_only_mode(aces: &[Nfsace4], dir: bool, mode: u32) -> bool {
    posix_of(aces, dir, mode).is_some_and(|acls| acls.are_mode())
}

/// Converts the ACL of a server exactly; `None` if a server with POSIX ACLs does not send it.
fn posix_of(aces: &[Nfsace4], dir: bool, mode: u32) -> Option<Acls> {
    let (inherited, own): (Vec<_>, Vec<_>) = aces.iter().partition(|ace| ace.flag & ACE4_INHERIT_ONLY_ACE != 0);
    let access = allowed(&own, Some(mode >> 3 & 7))?;
    let default = if inherited.is_empty() { None } else { Some(allowed(&inherited, None)?) };
    let sent = to_nfs4(&access, default.as_ref(), dir);
    (comparable(&sent, dir)? == comparable(aces, dir)?).then_some(Acls { access, default })
}

/// Returns the POSIX ACL whose entries have the rights that the entries of an NFSv4 ACL allow. The group bits of a mode
/// are the mask.
fn allowed(aces: &[&Nfsace4], group_bits: Option<u32>) -> Option<Acl> {
    let mut entries = Vec::new();
    for ace in aces.iter().filter(|ace| ace.acetype == Acetype4::ACCESS_ALLOWED) {
        entries.push(AclEntry { who: who(ace)?, perm: permissions(ace.access_mask) });
    }
    let in_class = |entry: &&AclEntry| !matches!(entry.who, AclWho::Owner | AclWho::Others);
    let all = entries.iter().filter(in_class).fold(0, |all, entry| all | entry.perm);
    let is_named = entries.iter().any(|entry| matches!(entry.who, AclWho::User(_) | AclWho::Group(_)));
    let mask = group_bits.filter(|bits| all & !bits == 0).unwrap_or(all);
    if is_named || mask != all {
        entries.push(AclEntry { who: AclWho::Mask, perm: mask });
    }
    Acl::new(entries).ok()
}

fn who(ace: &Nfsace4) -> Option<AclWho> {
    Some(match &ace.who[..] {
        b"OWNER@" => AclWho::Owner,
        b"GROUP@" => AclWho::OwningGroup,
        b"EVERYONE@" => AclWho::Others,
        name => {
            let id = std::str::from_utf8(name).ok()?.parse().ok()?;
            if ace.flag & ACE4_IDENTIFIER_GROUP != 0 { AclWho::Group(id) } else { AclWho::User(id) }
        }
    })
}

fn permissions(mask: u32) -> u32 {
    [(ACE4_READ_DATA, 4), (ACE4_WRITE_DATA, 2), (ACE4_EXECUTE, 1)]
        .into_iter()
        .fold(0, |all, (right, perm)| if mask & right != 0 { all | perm } else { all })
}

/// An entry without what POSIX ACLs do not have: the type, inheritance flags, the principal, and the rights.
type Comparable = (Acetype4, u32, AclWho, u32);

/// Returns entries for a comparison. The order of users, and of groups of which all allow or all deny, has no meaning.
/// The rights that servers add for everybody, or leave out, are ignored.
fn comparable(aces: &[Nfsace4], dir: bool) -> Option<Vec<Comparable>> {
    let child = if dir { ACE4_DELETE_CHILD } else { 0 };
    let rights = ACE4_READ_DATA | ACE4_WRITE_DATA | ACE4_APPEND_DATA | ACE4_EXECUTE | child;
    let entry = |ace: &Nfsace4| {
        let flags = ace.flag & !ACE4_IDENTIFIER_GROUP;
        Some((ace.acetype, flags, who(ace)?, ace.access_mask & rights))
    };
    let mut entries = aces.iter().map(entry).collect::<Option<Vec<_>>>()?;
    let kind = |entry: &Comparable| match entry.2 {
        AclWho::User(_) => (0, Acetype4::ACCESS_ALLOWED),
        AclWho::Group(_) | AclWho::OwningGroup => (1, entry.0),
        AclWho::Owner | AclWho::Mask => (2, Acetype4::ACCESS_ALLOWED),
        AclWho::Others => (3, Acetype4::ACCESS_ALLOWED),
    };
    for run in entries.chunk_by_mut(|one, next| (kind(one), one.1) == (kind(next), next.1)) {
        // The entries about one user keep their order.
        run.sort_by_key(|entry| entry.2);
    }
    Some(entries)
}

/// Converts ACLs for a server that stores POSIX ACLs; `None` if it would store fewer rights.
fn nfs4_of(acls: &Acls, dir: bool) -> Option<Vec<Nfsace4>> {
    let aces = to_nfs4(&acls.access, acls.default.as_ref(), dir);
    let (access, default) = to_posix(&aces, dir).ok()?;
    let is_kept = effective(&access) == effective(&acls.access)
        && default.as_ref().map(effective) == acls.default.as_ref().map(effective);
    is_kept.then_some(aces)
}

/// Returns the permissions that remain after the mask.
fn effective(acl: &Acl) -> Vec<AclEntry> {
    let mask = acl.entries().iter().find(|entry| entry.who == AclWho::Mask).map_or(7, |entry| entry.perm);
    let entries = acl.entries().iter().filter(|entry| entry.who != AclWho::Mask);
    let masked = |entry: &AclEntry| match entry.who {
        AclWho::Owner | AclWho::Others => *entry,
        who => AclEntry { who, perm: entry.perm & mask },
    };
    entries.map(masked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(AclWho, u32)]) -> Acl {
        Acl::new(entries.iter().map(|&(who, perm)| AclEntry { who, perm })).unwrap()
    }

    /// All ACLs with these modes, a user, a group, and a mask.
    fn all() -> impl Iterator<Item = Acl> {
        (0..1 << 18).step_by(41).map(|bits: u32| {
            let [owner, user, own, group, mask, others] = [0, 3, 6, 9, 12, 15].map(|shift| bits >> shift & 7);
            acl(&[
                (AclWho::Owner, owner),
                (AclWho::User(12), user),
                (AclWho::OwningGroup, own),
                (AclWho::Group(34), group),
                (AclWho::Mask, mask),
                (AclWho::Others, others),
            ])
        })
    }

    #[test]
    fn acl_that_a_server_sends_is_converted_exactly() {
        for acl in all() {
            for dir in [false, true] {
                let default = dir.then(|| acl.clone());
                let aces = to_nfs4(&acl, default.as_ref(), dir);
                let found = posix_of(&aces, dir, acl.mode()).unwrap();
                assert_eq!((found.access.mode(), effective(&found.access)), (acl.mode(), effective(&acl)));
                assert_eq!(found.default.as_ref().map(effective), default.as_ref().map(effective));
                assert_eq!(
                    comparable(&to_nfs4(&found.access, found.default.as_ref(), dir), dir),
                    comparable(&aces, dir)
                );
            }
        }
        for mode in 0..0o1000 {
            let found = posix_of(&to_nfs4(&Acl::from_mode(mode), None, false), false, mode).unwrap();
            assert_eq!(found, Acls { access: Acl::from_mode(mode), default: None });
        }
    }

    #[test]
    fn order_of_users_has_no_meaning() {
        let acl = acl(&[
            (AclWho::Owner, 6),
            (AclWho::User(9), 4),
            (AclWho::User(12), 0),
            (AclWho::OwningGroup, 4),
            (AclWho::Mask, 6),
            (AclWho::Others, 4),
        ]);
        let mut aces = to_nfs4(&acl, None, false);
        let at = aces.iter().position(|ace| &ace.who[..] == b"9").unwrap();
        let first = aces.remove(at);
        aces.insert(at + 2, first);
        assert_eq!(&aces[at].who[..], b"12");
        assert_eq!(posix_of(&aces, false, acl.mode()).unwrap().access, acl);
    }

    #[test]
    fn other_acls_have_no_posix_acl() {
        let aces = to_nfs4(&Acl::from_mode(0o640), None, false);
        let changed = |change: fn(&mut Vec<Nfsace4>)| {
            let mut aces = aces.clone();
            change(&mut aces);
            posix_of(&aces, false, 0o640)
        };
        assert!(changed(|_| ()).is_some());
        assert_eq!(changed(|aces| aces[0].acetype = Acetype4::SYSTEM_AUDIT), None);
        assert_eq!(changed(|aces| aces[0].access_mask = ACE4_APPEND_DATA), None, "APPEND without WRITE");
        assert_eq!(changed(|aces| aces[0].who = "user@domain".into()), None);
        assert_eq!(changed(|aces| aces[0].flag = ACE4_FILE_INHERIT_ACE), None);
        assert_eq!(changed(|aces| aces.reverse()), None);
        assert_eq!(changed(|aces| drop(aces.pop())), None, "no entry for others");
        let deny = Nfsace4 { acetype: Acetype4::ACCESS_DENIED, ..aces[0].clone() };
        assert_eq!(posix_of(&[&[deny], &aces[..]].concat(), false, 0o640), None);
    }

    #[test]
    fn only_acls_that_a_server_stores_are_set() {
        let set = |access: Acl| nfs4_of(&Acls { access, default: None }, false);
        for access in all() {
            let Some(aces) = set(access.clone()) else { continue };
            assert_eq!(effective(&to_posix(&aces, false).unwrap().0), effective(&access));
        }
        assert!(set(Acl::from_mode(0o640)).is_some());
        assert_eq!(set(Acl::from_mode(0o604)), None, "others have a right that the group lacks");
    }
}
