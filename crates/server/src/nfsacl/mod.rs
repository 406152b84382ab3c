//! NFS_ACL version 3: POSIX ACLs beside NFSv3, on the same connection.
//!
//! On the wire, an ACL always has a mask. An ACL that needs no mask is sent with one that equals the permissions of its
//! group, and such a mask is removed from a received ACL (according to Linux, `fs/nfs_common/nfsacl.c`, Solaris
//! requires this).

use std::{ops::RangeInclusive, sync::Arc};

use nfs::{
    nfsacl::{
        self, ACL_DEFAULT, ACL_GROUP, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER, ACL_USER, ACL_USER_OBJ, AclProc3, GetAclArgs,
        GetAclOk, NFS_ACL, NFS_ACLCNT, NFS_DFACL, NFS_DFACLCNT, NFSACL_PROGRAM, SecAttr, SetAclArgs, VERSION,
    },
    v3::Nfsstat3,
};
use rpc::{AcceptError, Answering, Call, Procedure, Service};
use vfs::{Acl, AclEntry, AclKind, AclWho, Attr, VfsError};
use xdr::{Array, Encoder};

use crate::{
    audit::Kind,
    call::{
        audit::Action,
        context::Context,
        core::Core,
        error::WouldBlock,
        exec,
        exec::{Answer, Null},
        object::Object,
    },
    v3::{
        self, post_op,
        status::{Fault3, encode_result},
        with,
    },
};

/// The NFS_ACL program, version 3.
pub struct NfsAcl3 {
    shared: Arc<Core>,
}

impl NfsAcl3 {
    pub(crate) fn new(shared: Arc<Core>) -> Self {
        Self { shared }
    }
}

impl Service for NfsAcl3 {
    fn program(&self) -> u32 {
        NFSACL_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        let procedure = AclProc3::from_number(procedure)?;
        Some(Procedure { name: procedure.name(), idempotent: procedure != AclProc3::SetAcl })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        let shared = &self.shared;
        match AclProc3::from_number(call.procedure) {
            None => Answering::Ready(Err(AcceptError::SystemErr)),
            Some(AclProc3::Null) => exec::run::<Null<_>>(shared, call),
            Some(AclProc3::GetAcl) => exec::run::<GetAcl>(shared, call),
            Some(AclProc3::SetAcl) => exec::run::<SetAcl>(shared, call),
        }
    }
}

struct GetAcl;

impl Answer for GetAcl {
    type Shared = Core;
    type Args = GetAclArgs;
    type Status = Nfsstat3;
    const NAME: &'static str = "GETACL";

    fn answer(cx: &Context<'_>, args: &GetAclArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
        let object = cx.object(&args.fh);
        encode_result(out, with(&object, |object| get(object, args.mask)), || post_op(&object))
    }
}

struct SetAcl;

impl Answer for SetAcl {
    type Shared = Core;
    type Args = SetAclArgs;
    type Status = Nfsstat3;
    const NAME: &'static str = "SETACL";

    fn action(cx: &Context<'_>, args: &SetAclArgs) -> Option<Action> {
        Some(v3::action(cx, Self::NAME, Kind::Change, ((&args.fh, None), None)))
    }

    fn answer(cx: &Context<'_>, args: &SetAclArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
        let object = cx.object(&args.fh);
        let result = with(&object, |object| {
            set(object, &args.acl)?;
            object.post_op().map_err(|WouldBlock| Fault3::WouldBlock)
        });
        encode_result(out, result, || post_op(&object))
    }
}

fn get(object: &Object<'_>, mask: u32) -> Result<GetAclOk, Fault3> {
    if mask & !ALL != 0 {
        return Err(Nfsstat3::Inval.into());
    }
    let (access, attr) = object.vfs().acl(&object.caller(), &object.handle, AclKind::Access)?;
    let mut lists = SecAttr { mask, ..SecAttr::default() };
    if mask & (NFS_ACL | NFS_ACLCNT) != 0 {
        // As in Solaris, an object without an ACL has the ACL that its mode means.
        let acl = access.unwrap_or_else(|| Acl::from_mode(attr.mode));
        lists.acl = to_wire(&acl, &attr, 0, mask & NFS_ACL != 0);
    }
    if mask & (NFS_DFACL | NFS_DFACLCNT) != 0 {
        let (default, attr) = object.vfs().acl(&object.caller(), &object.handle, AclKind::Default)?;
        if let Some(acl) = default {
            lists.default_acl = to_wire(&acl, &attr, ACL_DEFAULT, mask & NFS_DFACL != 0);
        }
    }
    Ok(GetAclOk { attr: Some(object.fattr(&attr)), acl: lists })
}

fn set(object: &Object<'_>, lists: &SecAttr) -> Result<(), Fault3> {
    if lists.mask & !ALL != 0 {
        return Err(Nfsstat3::Inval.into());
    }
    // Decode both ACLs before setting one.
    let access = if lists.mask & NFS_ACL != 0 { Some(from_wire(&lists.acl)?) } else { None };
    let default = if lists.mask & NFS_DFACL != 0 { Some(from_wire(&lists.default_acl)?) } else { None };
    let vfs = object.writable()?.vfs();
    // The first operation may have to wait. If it has not, the second must not, either (see `Answer`).
    let caller = object.caller();
    if let Some(acl) = &access {
        vfs.set_acl(&caller, &object.handle, AclKind::Access, acl.as_ref())?;
    }
    if let Some(acl) = &default {
        vfs.set_acl(&caller, &object.handle, AclKind::Default, acl.as_ref())?;
    }
    Ok(())
}

fn to_wire(acl: &Acl, attr: &Attr, mark: u32, with_entries: bool) -> nfsacl::Acl {
    let entry = |entry: &AclEntry| {
        let (kind, id) = match entry.who {
            AclWho::Owner => (ACL_USER_OBJ, attr.uid),
            AclWho::User(uid) => (ACL_USER, uid),
            AclWho::OwningGroup => (ACL_GROUP_OBJ, attr.gid),
            AclWho::Group(gid) => (ACL_GROUP, gid),
            AclWho::Mask => (ACL_MASK, 0),
            AclWho::Others => (ACL_OTHER, 0),
        };
        nfsacl::AclEntry { kind: kind | mark, id, perm: entry.perm }
    };
    let mut entries: Vec<_> = acl.entries().iter().map(entry).collect();
    if acl.is_minimal() {
        let group = entries[1].perm;
        entries.insert(2, nfsacl::AclEntry { kind: ACL_MASK | mark, id: 0, perm: group });
    }
    let count = entries.len() as u32;
    nfsacl::Acl { count, entries: Array(if with_entries { entries } else { Vec::new() }) }
}

/// Decodes an ACL. Returns `None` if it has no entries, which means that the ACL is removed.
fn from_wire(list: &nfsacl::Acl) -> Result<Option<Acl>, Fault3> {
    if list.count as usize != list.entries.0.len() {
        return Err(Nfsstat3::Inval.into());
    }
    let entry = |entry: &nfsacl::AclEntry| {
        let (who, perm) = match entry.kind & !ACL_DEFAULT {
            ACL_USER_OBJ => (AclWho::Owner, entry.perm),
            ACL_USER => (AclWho::User(entry.id), entry.perm),
            ACL_GROUP_OBJ => (AclWho::OwningGroup, entry.perm),
            ACL_GROUP => (AclWho::Group(entry.id), entry.perm),
            // Solaris sometimes sets more bits here.
            ACL_MASK => (AclWho::Mask, entry.perm & 7),
            ACL_OTHER => (AclWho::Others, entry.perm),
            _ => return Err(VfsError::Invalid),
        };
        Ok(AclEntry { who, perm })
    };
    let mut entries = list.entries.0.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    if entries.is_empty() {
        return Ok(None);
    }
    let perm = |who| entries.iter().find(|entry| entry.who == who).map(|entry| entry.perm);
    if entries.len() == 4 && perm(AclWho::Mask).is_some() && perm(AclWho::Mask) == perm(AclWho::OwningGroup) {
        entries.retain(|entry| entry.who != AclWho::Mask);
    }
    Ok(Some(Acl::new(entries)?))
}

const ALL: u32 = NFS_ACL | NFS_ACLCNT | NFS_DFACL | NFS_DFACLCNT;
