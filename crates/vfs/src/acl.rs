//! Access control lists of POSIX.1e draft 17, as Linux implements them: acl(5).
//!
//! An object has a mode and can have an ACL. The entries for the owner and for others equal the mode's bits, and the
//! mode's group bits equal the ACL's mask. An ACL without a mask has the same meaning as the mode, and is not stored.

use crate::{Cred, VfsError, permission::in_group};

/// The users to whom an entry applies. The variants are in the order in which entries are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AclWho {
    /// The owner.
    Owner,
    /// The user with this ID.
    User(u32),
    /// The owning group.
    OwningGroup,
    /// The group with this ID.
    Group(u32),
    /// The upper bound of the permissions of users, groups and the owning group.
    Mask,
    /// All other users.
    Others,
}

/// An entry of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// The users to whom the entry applies.
    pub who: AclWho,
    /// The permissions: read is 4, write is 2, execute is 1.
    pub perm: u32,
}

/// One of the two ACLs of a directory. Other objects have only the access ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AclKind {
    /// The access ACL, which decides about access to the object.
    Access,
    /// The default ACL, which new objects in the directory inherit.
    Default,
}

/// A valid ACL. Its entries are sorted, and no two apply to the same user or group. It has entries for the owner, the
/// owning group and others. If it has entries for users or groups, it has a mask.
///
/// ```
/// use vfs::{Acl, AclEntry, AclWho};
///
/// let entry = |who, perm| AclEntry { who, perm };
/// let acl = Acl::new([
///     entry(AclWho::Others, 0),
///     entry(AclWho::Owner, 6),
///     entry(AclWho::OwningGroup, 6),
///     entry(AclWho::User(1234), 6),
///     entry(AclWho::Mask, 4),
/// ])?;
/// assert_eq!(acl.mode(), 0o640);
/// # Ok::<(), vfs::VfsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// Creates an ACL from its entries.
    ///
    /// # Errors
    /// Returns `Invalid` if the ACL is not valid, and `NoSpace` if it has more than [`ACL_ENTRIES_MAX`] entries.
    pub fn new(entries: impl IntoIterator<Item = AclEntry>) -> Result<Self, VfsError> {
        let mut entries: Vec<AclEntry> = entries.into_iter().take(ACL_ENTRIES_MAX + 1).collect();
        if entries.len() > ACL_ENTRIES_MAX {
            return Err(VfsError::NoSpace);
        }
        entries.sort_by_key(|entry| entry.who);
        let acl = Self(entries);
        let has = |who| acl.find(who).is_some();
        let twice = acl.0.windows(2).any(|pair| pair[0].who == pair[1].who);
        let named = acl.0.iter().any(|entry| matches!(entry.who, AclWho::User(_) | AclWho::Group(_)));
        let nobody = |entry: &AclEntry| matches!(entry.who, AclWho::User(u32::MAX) | AclWho::Group(u32::MAX));
        let whole = has(AclWho::Owner) && has(AclWho::OwningGroup) && has(AclWho::Others);
        let bad = twice || !whole || (named && !has(AclWho::Mask));
        if bad || acl.0.iter().any(|entry| entry.perm > 7 || nobody(entry)) {
            return Err(VfsError::Invalid);
        }
        Ok(acl)
    }

    /// Creates the ACL that has the same meaning as a mode.
    pub fn from_mode(mode: u32) -> Self {
        let entry = |who, shift: u32| AclEntry { who, perm: mode >> shift & 7 };
        Self(vec![entry(AclWho::Owner, 6), entry(AclWho::OwningGroup, 3), entry(AclWho::Others, 0)])
    }

    /// Returns the entries in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    /// Returns `true` if a mode has the same meaning.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// Returns the nine permission bits of the corresponding mode.
    pub fn mode(&self) -> u32 {
        let perm = |who| self.find(who).map(|entry| entry.perm);
        let group = perm(AclWho::Mask).or(perm(AclWho::OwningGroup));
        let bits = [perm(AclWho::Owner), group, perm(AclWho::Others)];
        bits.into_iter().fold(0, |mode, perm| mode << 3 | perm.expect("ACL must have an entry for each class"))
    }

    /// Changes the ACL as chmod(2) does when the mode is set.
    pub(crate) fn set_mode(&mut self, mode: u32) {
        for (class, perm) in self.classes().into_iter().zip([mode >> 6, mode >> 3, mode]) {
            self.0[class].perm = perm & 7;
        }
    }

    /// Returns the ACL of a new object that is created with `mode` in a directory with this default ACL. It grants only
    /// what both allow.
    pub(crate) fn inherited(&self, mode: u32) -> Acl {
        let mut acl = self.clone();
        acl.set_mode(self.mode() & mode);
        acl
    }

    /// Returns `true` if the ACL grants all of `wanted` on an object of this owner and group (acl(5), "Access check
    /// algorithm").
    pub(crate) fn allows(&self, owner: u32, group: u32, cred: &Cred, wanted: u32) -> bool {
        let mask = self.find(AclWho::Mask).map_or(7, |entry| entry.perm);
        let (mut in_some, mut granted) = (false, false);
        for entry in &self.0 {
            let allows = |perm: u32| perm & wanted == wanted;
            match entry.who {
                AclWho::Owner if cred.uid == owner => return allows(entry.perm),
                AclWho::User(uid) if cred.uid == uid => return allows(entry.perm & mask),
                AclWho::OwningGroup if in_group(cred, group) => {
                    (in_some, granted) = (true, granted || allows(entry.perm & mask));
                }
                AclWho::Group(gid) if in_group(cred, gid) => {
                    (in_some, granted) = (true, granted || allows(entry.perm & mask));
                }
                AclWho::Others => return if in_some { granted } else { allows(entry.perm) },
                _ => {}
            }
        }
        unreachable!("ACL must have an entry for others")
    }

    /// Encodes the ACL as Linux stores it in an extended attribute: version 2, then tag, permissions and ID of each
    /// entry.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = XATTR_VERSION.to_le_bytes().to_vec();
        for AclEntry { who, perm } in &self.0 {
            let (tag, id) = match *who {
                AclWho::Owner => (TAG_USER_OBJ, u32::MAX),
                AclWho::User(uid) => (TAG_USER, uid),
                AclWho::OwningGroup => (TAG_GROUP_OBJ, u32::MAX),
                AclWho::Group(gid) => (TAG_GROUP, gid),
                AclWho::Mask => (TAG_MASK, u32::MAX),
                AclWho::Others => (TAG_OTHER, u32::MAX),
            };
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&(*perm as u16).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// Decodes the format of [`to_xattr`](Self::to_xattr).
    ///
    /// # Errors
    /// Returns `Io` if the bytes are not an ACL.
    pub fn from_xattr(bytes: &[u8]) -> Result<Self, VfsError> {
        let (version, entries) = bytes.split_first_chunk::<4>().ok_or(VfsError::Io)?;
        let (entries, rest) = entries.as_chunks::<8>();
        if u32::from_le_bytes(*version) != XATTR_VERSION || !rest.is_empty() {
            return Err(VfsError::Io);
        }
        let entry = |bytes: &[u8; 8]| {
            let [t0, t1, p0, p1, i0, i1, i2, i3] = *bytes;
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            let who = match u16::from_le_bytes([t0, t1]) {
                TAG_USER_OBJ => AclWho::Owner,
                TAG_USER => AclWho::User(id),
                TAG_GROUP_OBJ => AclWho::OwningGroup,
                TAG_GROUP => AclWho::Group(id),
                TAG_MASK => AclWho::Mask,
                TAG_OTHER => AclWho::Others,
                _ => return Err(VfsError::Io),
            };
            Ok(AclEntry { who, perm: u16::from_le_bytes([p0, p1]).into() })
        };
        let entries = entries.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        Self::new(entries).map_err(|_| VfsError::Io)
    }

    fn find(&self, who: AclWho) -> Option<&AclEntry> {
        Some(&self.0[self.0.binary_search_by_key(&who, |entry| entry.who).ok()?])
    }

    /// Returns the indices of the entries that correspond to the three digits of the mode.
    fn classes(&self) -> [usize; 3] {
        let at = |who| self.0.binary_search_by_key(&who, |entry| entry.who);
        let group = at(AclWho::Mask).or(at(AclWho::OwningGroup));
        [at(AclWho::Owner), group, at(AclWho::Others)].map(|at| at.expect("ACL must have an entry for each class"))
    }
}

/// Maximum number of entries in an ACL.
pub const ACL_ENTRIES_MAX: usize = 1024;

const XATTR_VERSION: u32 = 2;
const TAG_USER_OBJ: u16 = 0x01;
const TAG_USER: u16 = 0x02;
const TAG_GROUP_OBJ: u16 = 0x04;
const TAG_GROUP: u16 = 0x08;
const TAG_MASK: u16 = 0x10;
const TAG_OTHER: u16 = 0x20;

#[cfg(test)]
mod tests {
    use super::{AclWho::*, *};

    fn acl(entries: &[(AclWho, u32)]) -> Result<Acl, VfsError> {
        Acl::new(entries.iter().map(|&(who, perm)| AclEntry { who, perm }))
    }

    fn cred(uid: u32, gids: &[u32]) -> Cred {
        Cred { uid, gid: gids[0], groups: gids[1..].iter().copied().collect() }
    }

    #[test]
    fn only_valid_lists_are_accepted() {
        let base = [(Owner, 7), (OwningGroup, 5), (Others, 0)];
        assert!(acl(&base).unwrap().is_minimal());
        for missing in 0..3 {
            let mut entries = base.to_vec();
            entries.remove(missing);
            assert_eq!(acl(&entries), Err(VfsError::Invalid));
        }
        let with = |more: &[(AclWho, u32)]| acl(&[&base, more].concat());
        assert_eq!(with(&[(User(1), 7)]), Err(VfsError::Invalid), "no mask");
        assert_eq!(with(&[(User(1), 7), (User(1), 6), (Mask, 7)]), Err(VfsError::Invalid), "twice");
        assert_eq!(with(&[(Mask, 8)]), Err(VfsError::Invalid), "invalid permission");
        assert_eq!(with(&[(Group(u32::MAX), 7), (Mask, 7)]), Err(VfsError::Invalid), "invalid group");
        assert!(with(&[(User(1), 7), (Group(1), 7), (Mask, 7)]).is_ok());
        let many: Vec<_> = (0..1021).map(|uid| (User(uid), 1)).chain([(Mask, 1)]).collect();
        assert!(with(&many[1..]).is_ok());
        assert_eq!(with(&many), Err(VfsError::NoSpace));
    }

    #[test]
    fn mask_bounds_all_but_owner_and_others() {
        let acl =
            acl(&[(Owner, 4), (User(10), 7), (OwningGroup, 6), (Group(20), 1), (Group(21), 4), (Mask, 5), (Others, 2)])
                .unwrap();
        let allows = |cred: &Cred, wanted| acl.allows(1, 2, cred, wanted);
        assert!(allows(&cred(1, &[2]), 4) && !allows(&cred(1, &[2]), 5), "only the owner entry applies to the owner");
        assert!(allows(&cred(10, &[2]), 5) && !allows(&cred(10, &[2]), 2), "a user, bounded by the mask");
        assert!(allows(&cred(3, &[2]), 4) && !allows(&cred(3, &[2]), 2), "the owning group, bounded by the mask");
        assert!(allows(&cred(3, &[20, 21]), 1) && allows(&cred(3, &[20, 21]), 4));
        assert!(!allows(&cred(3, &[20, 21]), 5), "no single group allows both");
        assert!(!allows(&cred(3, &[20]), 2), "the entry for others does not apply to a member of a group");
        assert!(allows(&cred(3, &[4]), 2) && !allows(&cred(3, &[4]), 4));
    }

    #[test]
    fn modes_and_acls_are_consistent() {
        let mut acl = acl(&[(Owner, 7), (User(1), 7), (OwningGroup, 7), (Mask, 6), (Others, 4)]).unwrap();
        assert_eq!(acl.mode(), 0o764);
        acl.set_mode(0o640);
        assert_eq!((acl.mode(), acl.find(OwningGroup).unwrap().perm), (0o640, 7), "chmod must set the mask");
        assert_eq!(acl.inherited(0o755).mode(), 0o640);
        assert_eq!(acl.inherited(0o600).mode(), 0o600);
        assert_eq!(Acl::from_mode(0o7751).mode(), 0o751);
    }

    #[test]
    fn kernel_format_round_trips() {
        let acl = acl(&[(Owner, 6), (User(1000), 6), (OwningGroup, 4), (Mask, 6), (Others, 4)]).unwrap();
        let bytes = acl.to_xattr();
        // The output of getfattr(1) after `setfacl -m u:1000:rw`.
        let expected = "0200000001000600ffffffff02000600e803000004000400ffffffff10000600ffffffff20000400ffffffff";
        assert_eq!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), expected);
        assert_eq!(Acl::from_xattr(&bytes), Ok(acl));
        for len in 0..bytes.len() {
            assert!(Acl::from_xattr(&bytes[..len]).is_err(), "{len} bytes");
        }
    }
}
