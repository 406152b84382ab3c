//! Converts between the ACLs of NFSv4 and of POSIX.
//!
//! The file system stores and enforces POSIX ACLs. A client reads an NFSv4 ACL that allows and denies the same. If it
//! sets an ACL, the server stores a POSIX ACL that allows no more than that ACL. Read draft-ietf-nfsv4-acl-mapping-05
//! and RFC 8881 §6.2.1. Linux's server maps in the same way, so the existing tools for it work here.

use nfs::v4::{Nfsstat4, acl::*};
use vfs::{Acl, AclEntry, AclWho};

use super::{
    service::Context,
    status::{Fault4, nfsstat4},
};
use rpc::users::{Who, number};

use crate::identity::names::{Name, Names};

/// Converts the ACLs of an object to an NFSv4 ACL with numbers for users and groups.
pub fn to_nfs4(access: &Acl, default: Option<&Acl>, dir: bool) -> Vec<Nfsace4> {
    let mut aces = Vec::new();
    push_aces(&mut aces, access, dir, 0);
    if let Some(default) = default {
        push_aces(&mut aces, default, dir, INHERITED_ONLY);
    }
    aces
}

/// Converts an NFSv4 ACL to the access ACL of an object and the default ACL of a directory.
///
/// # Errors
/// ATTRNOTSUPP for entries without an equivalent in POSIX; BADOWNER; INVAL.
pub fn to_posix(aces: &[Nfsace4], dir: bool) -> Result<(Acl, Option<Acl>), Nfsstat4> {
    let (mut access, mut default) = (Builder::default(), Builder::default());
    let mut has_default = false;
    for ace in aces {
        if ace.flag & !FLAGS_KNOWN != 0 {
            return Err(Nfsstat4::AttrNotSupp);
        }
        let inherited = ace.flag & (ACE4_FILE_INHERIT_ACE | ACE4_DIRECTORY_INHERIT_ACE) != 0;
        if inherited && !dir {
            return Err(Nfsstat4::Inval);
        }
        if inherited {
            has_default = true;
            default.add(ace)?;
        }
        if ace.flag & ACE4_INHERIT_ONLY_ACE == 0 {
            access.add(ace)?;
        }
    }
    Ok((access.build()?, has_default.then(|| default.build()).transpose()?))
}

/// Appends entries that are equivalent to a POSIX ACL, whose order of precedence is owner, users, groups, others.
fn push_aces(aces: &mut Vec<Nfsace4>, acl: &Acl, dir: bool, flags: u32) {
    let find = |who| acl.entries().iter().find(|entry| entry.who == who).map(|entry| entry.perm);
    let mask = find(AclWho::Mask).unwrap_or(7);
    let (owner, group) = (find(AclWho::Owner).unwrap_or(0), find(AclWho::OwningGroup).unwrap_or(0) & mask);
    let others = find(AclWho::Others).unwrap_or(0);
    let named = |is: fn(AclWho) -> Option<u32>| {
        acl.entries().iter().filter_map(move |entry| is(entry.who).map(|id| (id, entry.perm & mask)))
    };
    let users: Vec<_> = named(|who| if let AclWho::User(id) = who { Some(id) } else { None }).collect();
    let groups: Vec<_> = named(|who| if let AclWho::Group(id) = who { Some(id) } else { None }).collect();
    let of_groups = groups.iter().fold(group | others, |all, (_, perm)| all | perm);
    let of_all = users.iter().fold(of_groups, |all, (_, perm)| all | perm);

    let mut push = |who: &str, flag: u32, allowed: u32, denied: u32, always: u32| {
        let ace = |acetype, access_mask| Nfsace4 { acetype, flag: flags | flag, access_mask, who: who.into() };
        if denied != 0 {
            aces.push(ace(Acetype4::ACCESS_DENIED, rights(denied, dir)));
        }
        aces.push(ace(Acetype4::ACCESS_ALLOWED, rights(allowed, dir) | always));
    };
    push(OWNER, 0, owner, of_all & !owner, ANYONE | OWNERS);
    for (id, perm) in users {
        push(&id.to_string(), 0, perm, of_groups & !perm, ANYONE);
    }
    // A member of several groups has the union of their rights, so all groups allow before one denies.
    let groups: Vec<(String, u32, u32)> = std::iter::once((GROUP.to_owned(), 0, group))
        .chain(groups.into_iter().map(|(id, perm)| (id.to_string(), ACE4_IDENTIFIER_GROUP, perm)))
        .collect();
    for (who, flag, perm) in &groups {
        push(who, *flag, *perm, 0, ANYONE);
    }
    for (who, flag, perm) in &groups {
        let denied = others & !perm;
        if denied != 0 {
            let access_mask = rights(denied, dir);
            let (acetype, flag) = (Acetype4::ACCESS_DENIED, flags | flag);
            aces.push(Nfsace4 { acetype, flag, access_mask, who: who.as_str().into() });
        }
    }
    aces.push(Nfsace4 {
        acetype: Acetype4::ACCESS_ALLOWED,
        flag: flags,
        access_mask: rights(others, dir) | ANYONE,
        who: EVERYONE.into(),
    });
}

/// Converts the rights to read, write and execute to an access mask of NFSv4.
fn rights(perm: u32, dir: bool) -> u32 {
    let bit = |bit, rights| if perm & bit != 0 { rights } else { 0 };
    bit(READ, ACE4_READ_DATA) | bit(WRITE, write_rights(dir)) | bit(EXECUTE, ACE4_EXECUTE)
}

fn write_rights(dir: bool) -> u32 {
    let child = if dir { ACE4_DELETE_CHILD } else { 0 };
    ACE4_WRITE_DATA | ACE4_APPEND_DATA | child
}

/// The rights that are decided so far.
#[derive(Clone, Copy, Default)]
struct Decision {
    allowed: u32,
    denied: u32,
}

impl Decision {
    /// The first entry that mentions a right decides about it (RFC 8881 §6.2.1).
    fn decide(&mut self, allow: bool, rights: u32) {
        if allow {
            self.allowed |= rights & !self.denied;
        } else {
            self.denied |= rights & !self.allowed;
        }
    }

    /// Returns the permissions of POSIX. A permission is granted only if all access bits that it consists of are
    /// allowed.
    fn perm(self) -> u32 {
        let all = |wanted, perm| if self.allowed & wanted == wanted { perm } else { 0 };
        all(ACE4_READ_DATA, READ) | all(ACE4_WRITE_DATA | ACE4_APPEND_DATA, WRITE) | all(ACE4_EXECUTE, EXECUTE)
    }
}

/// A POSIX ACL under construction.
#[derive(Default)]
struct Builder {
    owner: Decision,
    group: Decision,
    others: Decision,
    /// Users and groups, in the order of the entries.
    named: Vec<(AclWho, Decision)>,
}

impl Builder {
    fn add(&mut self, ace: &Nfsace4) -> Result<(), Nfsstat4> {
        let allow = match ace.acetype {
            Acetype4::ACCESS_ALLOWED => true,
            Acetype4::ACCESS_DENIED => false,
            _ => return Err(Nfsstat4::AttrNotSupp),
        };
        let rights = ace.access_mask;
        match &ace.who[..] {
            who if who == OWNER.as_bytes() => self.owner.decide(allow, rights),
            who if who == GROUP.as_bytes() => {
                self.group.decide(allow, rights);
                // Any user can be a member of the group.
                self.deny_unless(allow, rights, None);
            }
            who if who == EVERYONE.as_bytes() => {
                for decided in [&mut self.owner, &mut self.group, &mut self.others] {
                    decided.decide(allow, rights);
                }
                self.named.iter_mut().for_each(|(_, decided)| decided.decide(allow, rights));
            }
            who => {
                let group = ace.flag & ACE4_IDENTIFIER_GROUP != 0;
                let id = number_of(who)?;
                let who = if group { AclWho::Group(id) } else { AclWho::User(id) };
                let at = self.index_of(who)?;
                self.named[at].1.decide(allow, rights);
                if group {
                    self.deny_unless(allow, rights, Some(at));
                } else if !allow {
                    // The owner can be this user.
                    self.owner.decide(false, rights);
                }
            }
        }
        Ok(())
    }

    /// Denies the rights of a deny entry about a group to everybody else who can be a member of it.
    fn deny_unless(&mut self, allow: bool, rights: u32, at: Option<usize>) {
        if allow {
            return;
        }
        for decided in [&mut self.owner, &mut self.group, &mut self.others] {
            decided.decide(false, rights);
        }
        let rest = self.named.iter_mut().enumerate().filter(|(index, _)| Some(*index) != at);
        rest.for_each(|(_, (_, decided))| decided.decide(false, rights));
    }

    /// Returns the index of a user or group. A new one starts with what EVERYONE@ entries have decided so far.
    fn index_of(&mut self, who: AclWho) -> Result<usize, Nfsstat4> {
        if let Some(at) = self.named.iter().position(|(other, _)| *other == who) {
            return Ok(at);
        }
        if self.named.len() >= vfs::ACL_ENTRIES_MAX {
            return Err(Nfsstat4::NoSpc);
        }
        self.named.push((who, self.others));
        Ok(self.named.len() - 1)
    }

    fn build(self) -> Result<Acl, Nfsstat4> {
        let entry = |who, decided: Decision| AclEntry { who, perm: decided.perm() };
        let mut entries = vec![
            entry(AclWho::Owner, self.owner),
            entry(AclWho::OwningGroup, self.group),
            entry(AclWho::Others, self.others),
        ];
        if !self.named.is_empty() {
            let all = self.named.iter().fold(self.group.perm(), |all, (_, decided)| all | decided.perm());
            entries.push(AclEntry { who: AclWho::Mask, perm: all });
            entries.extend(self.named.iter().map(|&(who, decided)| entry(who, decided)));
        }
        Acl::new(entries).map_err(nfsstat4)
    }
}

const OWNER: &str = "OWNER@";
const GROUP: &str = "GROUP@";
const EVERYONE: &str = "EVERYONE@";
const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;
/// The rights that everybody has, independent of the mode.
const ANYONE: u32 = ACE4_READ_ATTRIBUTES | ACE4_READ_ACL | ACE4_SYNCHRONIZE;
/// The rights that owners have.
const OWNERS: u32 = ACE4_WRITE_ATTRIBUTES | ACE4_WRITE_ACL;
const INHERITED_ONLY: u32 = ACE4_FILE_INHERIT_ACE | ACE4_DIRECTORY_INHERIT_ACE | ACE4_INHERIT_ONLY_ACE;
const FLAGS_KNOWN: u32 = INHERITED_ONLY | ACE4_IDENTIFIER_GROUP;

/// Replaces the numbers of an ACL by names.
///
/// # Errors
/// Those of [`Names::name`].
pub(super) fn name_all(cx: &Context<'_>, aces: &mut [Nfsace4]) -> Result<(), Fault4> {
    let names = &cx.shared.names;
    if !names.are_told(cx.identity) {
        return Ok(());
    }
    for ace in aces {
        let id = std::str::from_utf8(&ace.who).ok().and_then(number);
        if let Some(id) = id
            && let Name::Text(name) = names.name(kind_of(ace), id, cx.identity, cx.may_block)?
        {
            ace.who = name.into();
        }
    }
    Ok(())
}

/// Replaces the names of an ACL by numbers. The special identifiers of the protocol stay.
///
/// # Errors
/// Those of [`Names::id`].
pub(super) fn number_all(names: &Names, aces: &mut [Nfsace4], may_block: bool) -> Result<(), Fault4> {
    for ace in aces {
        // §6.2.1.5: special identifiers end with the at sign.
        if !ace.who.ends_with(b"@") {
            ace.who = names.id(kind_of(ace), &ace.who, may_block)?.to_string().as_str().into();
        }
    }
    Ok(())
}

fn kind_of(ace: &Nfsace4) -> Who {
    if ace.flag & nfs::v4::acl::ACE4_IDENTIFIER_GROUP != 0 { Who::Group } else { Who::User }
}

/// Parses a user or group of an ACL that has only numbers.
///
/// # Errors
/// BADOWNER if it is not a number.
fn number_of(who: &[u8]) -> Result<u32, Nfsstat4> {
    std::str::from_utf8(who).ok().and_then(number).ok_or(Nfsstat4::BadOwner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn acl(owner: u32, group: u32, others: u32, named: &[(AclWho, u32)], mask: Option<u32>) -> Acl {
        let mut entries = vec![(AclWho::Owner, owner), (AclWho::OwningGroup, group), (AclWho::Others, others)];
        entries.extend(named);
        entries.extend(mask.map(|mask| (AclWho::Mask, mask)));
        Acl::new(entries.into_iter().map(|(who, perm)| AclEntry { who, perm })).unwrap()
    }

    /// Applies the mask to each entry, as a client sees the ACL.
    fn masked(acl: &Acl) -> Vec<AclEntry> {
        let mask = acl.entries().iter().find(|entry| entry.who == AclWho::Mask).map_or(7, |entry| entry.perm);
        let entries = acl.entries().iter().filter(|entry| entry.who != AclWho::Mask).copied();
        let exempt = |who| matches!(who, AclWho::Owner | AclWho::Others);
        entries
            .map(|entry| if exempt(entry.who) { entry } else { AclEntry { perm: entry.perm & mask, ..entry } })
            .collect()
    }

    proptest! {
        #[test]
        fn round_trip_of_a_posix_acl_never_adds_rights(
            modes in prop::array::uniform3(0u32..8),
            users in prop::collection::btree_map(0u32..5, 0u32..8, 0..3),
            groups in prop::collection::btree_map(0u32..5, 0u32..8, 0..3),
            mask in 0u32..8,
            dir: bool,
        ) {
            let mut named: Vec<_> = users.into_iter().map(|(id, perm)| (AclWho::User(id), perm)).collect();
            named.extend(groups.into_iter().map(|(id, perm)| (AclWho::Group(id), perm)));
            let mask = (!named.is_empty()).then_some(mask);
            let [owner, group, others] = modes;
            let acl = acl(owner, group, others, &named, mask);
            let default = dir.then_some(&acl);
            let (access, new_default) = to_posix(&to_nfs4(&acl, default, dir), dir).unwrap();
            // A deny entry for a group also denies others. The round trip loses the rights that others have beyond a
            // group, and nothing else.
            for (before, after) in masked(&acl).iter().zip(masked(&access)) {
                prop_assert_eq!(before.who, after.who);
                prop_assert_eq!(before.perm & after.perm, after.perm);
            }
            prop_assert_eq!(new_default.is_some(), dir);
        }
    }

    #[test]
    fn round_trip_preserves_a_mode() {
        for mode in 0..0o1000 {
            let (owner, group, others) = (mode >> 6, mode >> 3 & 7, mode & 7);
            if others & !group != 0 || group & !owner != 0 {
                continue;
            }
            let acl = Acl::from_mode(mode);
            assert_eq!(to_posix(&to_nfs4(&acl, None, false), false), Ok((acl, None)), "{owner}{group}{others}");
        }
    }

    #[test]
    fn first_entry_about_a_right_decides() {
        let ace = |acetype, access_mask, who: &str| Nfsace4 { acetype, flag: 0, access_mask, who: who.into() };
        let aces = [
            ace(Acetype4::ACCESS_DENIED, ACE4_WRITE_DATA, "77"),
            ace(Acetype4::ACCESS_ALLOWED, ACE4_READ_DATA | ACE4_WRITE_DATA | ACE4_APPEND_DATA, EVERYONE),
        ];
        let (access, _) = to_posix(&aces, false).unwrap();
        // The owner can be user 77.
        assert_eq!(access, acl(4, 6, 6, &[(AclWho::User(77), 4)], Some(6)));
        assert_eq!(to_posix(&[ace(Acetype4::SYSTEM_AUDIT, 1, EVERYONE)], false), Err(Nfsstat4::AttrNotSupp));
        assert_eq!(to_posix(&[ace(Acetype4::ACCESS_ALLOWED, 1, "x@y")], false), Err(Nfsstat4::BadOwner));
    }
}
