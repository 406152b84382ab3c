//! POSIX ACLs over NFSv3: getfacl(1) and setfacl(1) access them as extended attributes.
//!
//! The server decides permissions, so the kernel only passes the attributes through. The format of a value is that of
//! Linux, `include/uapi/linux/posix_acl_xattr.h`: a version, and entries of tag, permissions and ID, in little-endian
//! order. Tags have the values of NFS_ACL.

use bytes::Bytes;
use client::{PosixAcls, V3};
use nfs::nfsacl::{ACL_GROUP, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER, ACL_USER, ACL_USER_OBJ, AclEntry, ENTRIES_MAX};
use rustix::io::Errno;

use super::{
    nodes::Node,
    tree::{Answer, Answered},
    view::{Target, View},
};

/// One of the two ACLs of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PosixAcl {
    /// The one that decides about access.
    Access,
    /// The one that new objects in a directory get.
    Default,
}

impl PosixAcl {
    /// Returns the ACL of an extended attribute with this name.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        match name {
            ACCESS => Some(Self::Access),
            DEFAULT => Some(Self::Default),
            _ => None,
        }
    }

    /// Fails with EACCES if an object cannot have this ACL: only directories have default ACLs.
    pub(super) fn check_settable(self, node: &Node) -> Answer<()> {
        if self == Self::Default && !node.is_dir { Err(Errno::ACCESS) } else { Ok(()) }
    }

    fn of(self, acls: &mut PosixAcls) -> &mut Vec<AclEntry> {
        match self {
            Self::Access => &mut acls.access,
            Self::Default => &mut acls.default,
        }
    }
}

impl View {
    /// Returns an ACL. The error is ENODATA if the object has only a mode.
    pub(super) async fn posix_acl(&self, v3: &V3, node: &Target, which: PosixAcl) -> Answer<Bytes> {
        let since = node.rights.version();
        let mut acls = v3.acls(node.handle()).await.answer()?;
        if is_minimal(&acls.access) && acls.default.is_empty() {
            node.rights.store_only_mode(self.ttl, since);
        }
        let entries = which.of(&mut acls);
        let is_there = !entries.is_empty() && (which == PosixAcl::Default || !is_minimal(entries));
        if is_there { Ok(encode(entries)) } else { Err(Errno::NODATA) }
    }

    /// Returns the names of the extended attributes for the ACLs that an object has.
    pub(super) async fn posix_acl_names(&self, v3: &V3, node: &Target) -> Answer<Bytes> {
        let acls = v3.acls(node.handle()).await.answer()?;
        let access = if is_minimal(&acls.access) { None } else { Some(ACCESS) };
        let default = if acls.default.is_empty() { None } else { Some(DEFAULT) };
        Ok([access, default].into_iter().flatten().flat_map(|name| [name, b"\0"]).flatten().copied().collect())
    }

    /// Sets an ACL. Without a value, removes it: access is then what the mode says.
    pub(super) async fn set_posix_acl(
        &self,
        v3: &V3,
        node: &Target,
        which: PosixAcl,
        value: Option<&[u8]>,
    ) -> Answer<()> {
        which.check_settable(node)?;
        let attr = node.mount().protocol().getattr(node.handle()).await.answer()?;
        // SETACL sets both.
        let mut acls = v3.acls(node.handle()).await.answer()?;
        *which.of(&mut acls) = match value {
            Some(value) => decode(value).ok_or(Errno::INVAL)?,
            None if which == PosixAcl::Access => of_mode(attr.mode),
            None => Vec::new(),
        };
        let done = v3.set_acls(node.handle(), &acls, &attr).await.answer();
        self.acl_changed(node).await;
        done
    }
}

/// Returns `true` if an access ACL means the same as a mode.
fn is_minimal(entries: &[AclEntry]) -> bool {
    let perm = |kind| entries.iter().find(|entry| entry.kind == kind).map(|entry| entry.perm);
    let mask = perm(ACL_MASK);
    entries.iter().all(|entry| !matches!(entry.kind, ACL_USER | ACL_GROUP))
        && (mask.is_none() || mask == perm(ACL_GROUP_OBJ))
}

fn of_mode(mode: u32) -> Vec<AclEntry> {
    let entry = |kind, shift: u32| AclEntry { kind, id: 0, perm: (mode >> shift) & 7 };
    vec![entry(ACL_USER_OBJ, 6), entry(ACL_GROUP_OBJ, 3), entry(ACL_OTHER, 0)]
}

fn encode(entries: &[AclEntry]) -> Bytes {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        let has_id = matches!(entry.kind, ACL_USER | ACL_GROUP);
        value.extend((entry.kind as u16).to_le_bytes());
        value.extend((entry.perm as u16 & 7).to_le_bytes());
        value.extend(if has_id { entry.id } else { NO_ID }.to_le_bytes());
    }
    value.into()
}

fn decode(value: &[u8]) -> Option<Vec<AclEntry>> {
    let (version, rest) = value.split_first_chunk()?;
    let (entries, []) = rest.as_chunks::<8>() else { return None };
    if u32::from_le_bytes(*version) != VERSION || entries.len() > ENTRIES_MAX {
        return None;
    }
    let entry = |bytes: &[u8; 8]| {
        let [tag, perm] = [0, 2].map(|at| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])));
        let known = matches!(tag, ACL_USER_OBJ | ACL_USER | ACL_GROUP_OBJ | ACL_GROUP | ACL_MASK | ACL_OTHER);
        let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        (known && perm <= 7).then_some(AclEntry { kind: tag, id, perm })
    };
    entries.iter().map(entry).collect()
}

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const VERSION: u32 = 2;
/// The ID in entries without one.
const NO_ID: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_and_invalid_ones_are_rejected() {
        let entry = |kind, id, perm| AclEntry { kind, id, perm };
        let entries = vec![
            entry(ACL_USER_OBJ, NO_ID, 6),
            entry(ACL_USER, 12, 5),
            entry(ACL_GROUP_OBJ, NO_ID, 4),
            entry(ACL_MASK, NO_ID, 5),
        ];
        let value = encode(&entries);
        assert_eq!(value[..12], [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
        assert_eq!(decode(&value), Some(entries));
        for len in (0..value.len()).filter(|len| len % 8 != 4) {
            assert_eq!(decode(&value[..len]), None, "{len} bytes");
        }
        for (at, byte) in [(0, 3), (4, 3), (6, 8)] {
            let mut wrong = value.to_vec();
            wrong[at] = byte;
            assert_eq!(decode(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn only_lists_that_say_more_than_a_mode_are_acls() {
        let mut entries = of_mode(0o640);
        assert!(is_minimal(&entries));
        entries.push(AclEntry { kind: ACL_MASK, id: 0, perm: 4 });
        assert!(is_minimal(&entries));
        entries[3].perm = 5;
        assert!(!is_minimal(&entries));
        entries[3] = AclEntry { kind: ACL_USER, id: 1, perm: 4 };
        assert!(!is_minimal(&entries));
    }
}
