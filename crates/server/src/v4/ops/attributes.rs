//! Attributes and rights: ACCESS, GETATTR, SETATTR, VERIFY and NVERIFY: RFC 8881 §18.1, §18.7, §18.15, §18.30, §18.31.

use nfs::v4::{
    ACCESS4_DELETE, ACCESS4_EXECUTE, ACCESS4_EXTEND, ACCESS4_LOOKUP, ACCESS4_MODIFY, ACCESS4_READ, ACCESS4_XALIST,
    ACCESS4_XAREAD, ACCESS4_XAWRITE, AccessArgs, AccessOk, Bitmap4, Fsid4, GetAttrArgs, Nfsstat4, SetAttrArgs,
    SetAttrRes, VerifyArgs,
    acl::Nfsace4,
    attr::{Attr4, Purpose},
    location::FsLocations4,
};
use vfs::{Acl, AclKind, Attr, Handle, Kind, Rights, SetAttr, StatFs, VfsError};
use xdr::Encoder;

use super::data::check_stateid;
use crate::{
    call::{error::Fault, object::Object, transfer::transfer_max},
    identity::names::Name,
    v4::{
        acl, attr,
        attr::{Features, Subject},
        cursor::Cursor,
        place::{Known, Place},
        pseudo::{NodeId, fs_locations},
        service::Context,
        status::Fault4,
    },
};

pub(super) fn access(cx: &Context<'_>, at: &Cursor, args: &AccessArgs) -> Result<AccessOk, Fault4> {
    let (supported, access) = match at.current()? {
        Place::Pseudo(_) => (DIR_BITS, ACCESS4_READ | ACCESS4_LOOKUP),
        place => {
            let object = cx.object4(place)?;
            let mut wanted = rights(args.access);
            if object.writable().is_err() {
                (wanted.modify, wanted.extend, wanted.delete) = (false, false, false);
            }
            let (granted, attr) = object.vfs().access(&object.caller(), &object.handle, wanted)?;
            let supported = if attr.kind == Kind::Dir { DIR_BITS } else { FILE_BITS };
            let xattrs = at.minor >= 2 && object.vfs().caps().xattrs && matches!(attr.kind, Kind::Dir | Kind::File);
            (if xattrs { supported | XATTR_BITS } else { supported }, bits(granted))
        }
    };
    //= rfc8881-18.1.3-1 rfc8881-18.1.3-2 rfc8881-18.1.3-3
    let supported = supported & args.access;
    //= rfc8881-18.1.3-4 rfc8881-18.1.3-5 rfc8881-18.1.3-6 rfc8881-18.1.3-9 rfc8881-18.1.3-10
    Ok(AccessOk { supported, access: access & supported })
}

pub(super) fn getattr(cx: &Context<'_>, at: &mut Cursor, args: &GetAttrArgs, out: &mut Encoder) -> Result<(), Fault4> {
    //= rfc8881-18.7.3-1 rfc8881-18.7.3-2 rfc8881-18.7.3-4
    attr::check_readable(&args.attr_request)?;
    let mut size = None;
    if let place @ Place::Object(..) = at.current()?
        && cx.core.conflicts.any()
        && depends_on_data(&args.attr_request)
    {
        // §10.4.3: the holder of a write delegation may have written more than the server knows.
        let object = cx.object4(place)?;
        //= rfc8881-18.7.4-1
        size = cx.size_at_holder(at, &object)?;
    }
    // These attributes do not depend on the object, so an export that does not allow the caller's flavour has no say.
    let root = Place::Pseudo(NodeId::ROOT);
    let place = if is_of_server(&args.attr_request) { &root } else { at.current()? };
    with_subject(cx, at, (place, size), &args.attr_request, |subject| subject.encode(&args.attr_request, out))
}

/// Returns `true` if `mask` has only the lease time, a property of the server. Linux's client asks for it with the flavour
/// of its client ID, which no export has to allow.
pub(super) fn is_of_server(mask: &Bitmap4) -> bool {
    mask.contains(Attr4::LeaseTime as u32) && mask.iter().count() == 1
}

/// Returns `true` if `mask` has an attribute that changes with the data of a file.
fn depends_on_data(mask: &Bitmap4) -> bool {
    [Attr4::Size, Attr4::Change, Attr4::TimeModify].into_iter().any(|attr| mask.contains(attr as u32))
}

/// Checks that the attributes are equal (`same`) or are not equal to the client's values. The compound continues only
/// then.
pub(super) fn verify(cx: &Context<'_>, at: &Cursor, args: &VerifyArgs, same: bool) -> Result<(), Fault4> {
    let current = at.current()?;
    let fattr = &args.obj_attributes;
    let features = match current {
        Place::Pseudo(_) => Features { acls: cx.shared.pseudo.caps().acls, layouts: false },
        place => {
            let object = cx.object4(place)?;
            Features { acls: object.export.vfs().caps().acls, layouts: cx.layout_caps(&object).is_some() }
        }
    };
    attr::decode(fattr, at.minor, features, Purpose::Verify)?;
    if cx.is_absent(current) && !fattr.attrmask.difference(attr::absent_attrs()).is_empty() {
        return Err(Nfsstat4::Moved.into());
    }
    // The kind is that of the look-up, and never changes.
    if let Known::Kind(kind) = *at.known()
        && fattr.attrmask == attr::type_alone()
    {
        return compared(same, attr::type_value(kind) == fattr.attr_vals.0);
    }
    let mut equal = false;
    with_subject(cx, at, (current, None), &fattr.attrmask, |subject| {
        equal = subject.values(&fattr.attrmask) == fattr.attr_vals.0;
    })?;
    compared(same, equal)
}

/// Returns the result of VERIFY (`same`) or NVERIFY.
fn compared(same: bool, equal: bool) -> Result<(), Fault4> {
    match (same, equal) {
        (true, false) => Err(Nfsstat4::NotSame.into()),
        //= rfc8881-18.15.3-1
        (false, true) => Err(Nfsstat4::Same.into()),
        _ => Ok(()),
    }
}

pub(super) fn setattr(cx: &Context<'_>, at: &Cursor, args: &SetAttrArgs) -> Result<(Nfsstat4, SetAttrRes), Fault4> {
    let object = cx.object4(at.current()?)?;
    let wanted = attr::set_attr(cx, &args.obj_attributes, at.minor, object.vfs().caps())?;
    object.writable()?;
    if wanted.set.size.is_some() {
        // §18.30.3: a stateid that is not special must allow writing.
        check_stateid(cx, at, &object, at.stateid(args.stateid)?, true)?;
    }
    let _changing = match wanted.set.size {
        Some(_) => cx.before_truncation(&object, Some(at.lock_client()))?,
        None => cx.before_change(&object, Some(at.lock_client()))?,
    };
    //= rfc8881-18.30.4-2 rfc8881-18.30.4-3
    let mut attrsset = args.obj_attributes.attrmask.clone();
    attrsset.remove(Attr4::Acl as u32);
    let mut status = Nfsstat4::Ok;
    if wanted.set != SetAttr::default() {
        //= rfc8881-18.30.4-1
        let set = |set: &SetAttr| object.vfs().setattr(&object.caller(), &object.handle, set, None);
        let done = match set(&wanted.set) {
            // The mode of a symbolic link has no effect, but clients that change whole trees set it.
            Err(VfsError::NotSupported) if wanted.set.mode.is_some() && object.getattr()?.kind == Kind::Symlink => {
                attrsset.remove(Attr4::Mode as u32);
                set(&SetAttr { mode: None, ..wanted.set.clone() })
            }
            done => done,
        };
        done?;
    }
    // §6.4.1.3: set the mode before the ACL.
    if let Some(aces) = &wanted.acl {
        match set_acl(&object, aces) {
            Ok(()) => attrsset.insert(Attr4::Acl as u32),
            Err(Fault::WouldBlock) => return Err(Fault::WouldBlock),
            Err(Fault::Status(failed)) => status = failed,
        }
    }
    Ok((status, SetAttrRes { status, attrsset }))
}

/// Sets the ACLs of an object.
pub(super) fn set_acl(object: &Object<'_>, aces: &[Nfsace4]) -> Result<(), Fault4> {
    let (vfs, caller) = (object.vfs(), object.caller());
    let dir = object.getattr()?.kind == Kind::Dir;
    let (access, default) = acl::to_posix(aces, dir)?;
    vfs.set_acl(&caller, &object.handle, AclKind::Access, Some(&access))?;
    if dir {
        vfs.set_acl(&caller, &object.handle, AclKind::Default, default.as_ref())?;
    }
    Ok(())
}

/// Returns the ACLs of an object, or nothing if `mask` does not have the attribute.
pub(super) fn aces(
    cx: &Context<'_>,
    object: &Object<'_>,
    handle: &Handle,
    attr: &Attr,
    mask: &Bitmap4,
) -> Result<Vec<Nfsace4>, Fault4> {
    let (vfs, caller, dir) = (object.vfs(), object.caller(), attr.kind == Kind::Dir);
    if !attr::needs_acl(mask) || !vfs.caps().acls {
        return Ok(Vec::new());
    }
    let kept = |kind| match vfs.acl(&caller, handle, kind) {
        Ok((acl, _)) => Ok(acl),
        // An object without ACL support, such as a symbolic link, gets an ACL that is derived from its mode.
        Err(VfsError::NotSupported) => Ok(None),
        //= rfc8881-18.7.3-3
        Err(error) => Err(Fault4::from(error)),
    };
    let access = kept(AclKind::Access)?.unwrap_or_else(|| Acl::from_mode(attr.mode));
    let default = if dir { kept(AclKind::Default)? } else { None };
    let mut aces = acl::to_nfs4(&access, default.as_ref(), dir);
    acl::name_all(cx, &mut aces)?;
    Ok(aces)
}

/// Calls `f` with the attribute sources of a place. `size` replaces the file system's value if a delegation holder
/// reported another one.
fn with_subject<T>(
    cx: &Context<'_>,
    at: &Cursor,
    (place, size): (&Place, Option<u64>),
    mask: &Bitmap4,
    f: impl FnOnce(&Subject<'_>) -> T,
) -> Result<T, Fault4> {
    let filehandle = if mask.contains(Attr4::Filehandle as u32) { cx.seal(place) } else { Default::default() };
    match place {
        Place::Pseudo(node) => with_node(cx, at, *node, mask, &filehandle, f),
        Place::Object(..) => {
            let object = cx.object4(place)?;
            let stat = statfs(&object, mask)?;
            let mut attr = match (&stat, at.known()) {
                (Some(stat), _) => stat.attr.clone(),
                (None, Known::Attr(attr)) => Attr::clone(attr),
                //= rfc8881-18.7.3-3
                (None, _) => object.getattr()?,
            };
            attr.size = size.unwrap_or(attr.size);
            let aces = aces(cx, &object, &object.handle, &attr, mask)?;
            Ok(f(&Subject {
                layouts: cx.layout_caps(&object),
                fsid: fsid(&object, &attr),
                mounted_on_fileid: mounted_on(cx, &object, &attr),
                filehandle: &filehandle,
                acl: Some(&aces),
                owners: attr::owners(cx, &attr, mask)?,
                locations: locations(cx, &object, mask).as_ref(),
                ..general(cx, at, &attr, object.vfs().caps(), stat.as_ref())
            }))
        }
    }
}

/// Like [`with_subject`], for a node of the pseudo file system. A referral has only the attributes of an absent file
/// system.
///
/// # Errors
/// MOVED for a referral if `mask` does not ask for its locations (RFC 8881 §11.4.1).
pub(super) fn with_node<T>(
    cx: &Context<'_>,
    at: &Cursor,
    node: NodeId,
    mask: &Bitmap4,
    filehandle: &[u8],
    f: impl FnOnce(&Subject<'_>) -> T,
) -> Result<T, Fault4> {
    let pseudo = &cx.shared.pseudo;
    let (attr, referral, asked) = (pseudo.attr(node), pseudo.referral(node), attr::needs_locations(mask));
    if referral.is_some() && !asked {
        return Err(Nfsstat4::Moved.into());
    }
    let locations = asked.then(|| match referral {
        Some(referral) => fs_locations(referral),
        // This file system begins at the root.
        None => FsLocations4::default(),
    });
    Ok(f(&Subject {
        fsid: pseudo.fsid(node),
        mounted_on_fileid: attr.fileid,
        filehandle,
        locations: locations.as_ref(),
        owners: attr::owners(cx, &attr, mask)?,
        absent: referral.is_some(),
        ..general(cx, at, &attr, pseudo.caps(), None)
    }))
}

/// Returns the locations of an object's file system, if `mask` asks for them: its path here, and no other server.
pub(super) fn locations(cx: &Context<'_>, object: &Object<'_>, mask: &Bitmap4) -> Option<FsLocations4> {
    let pseudo = &cx.shared.pseudo;
    let node = pseudo.node_of(object.export.id()).filter(|_| attr::needs_locations(mask))?;
    Some(FsLocations4 { fs_root: pseudo.path(node), locations: Vec::new() })
}

/// Returns a subject with the values that do not depend on the object. The caller fills in the others.
pub(super) fn general<'a>(
    cx: &Context<'_>,
    at: &Cursor,
    attr: &'a Attr,
    caps: &'a vfs::FsCaps,
    stat: Option<&'a StatFs>,
) -> Subject<'a> {
    Subject {
        attr,
        caps,
        layouts: None,
        fsid: Fsid4::default(),
        mounted_on_fileid: attr.fileid,
        filehandle: &[],
        stat,
        acl: None,
        locations: None,
        owners: (Name::Number(attr.uid), Name::Number(attr.gid)),
        absent: false,
        transfer_max: transfer_max(&cx.transport),
        lease_s: cx.shared.lease.as_secs() as u32,
        minor: at.minor,
        rdattr_error: Nfsstat4::Ok,
    }
}

/// Returns the space of the object's file system, if `mask` asks for it.
pub(super) fn statfs(object: &Object<'_>, mask: &Bitmap4) -> Result<Option<StatFs>, Fault4> {
    if !attr::needs_statfs(mask) {
        return Ok(None);
    }
    //= rfc8881-18.7.3-3
    Ok(Some(object.vfs().statfs(&object.caller(), &object.handle)?))
}

/// Returns the fsid of an object. Each export is a separate file system: links and renames between two exports fail.
pub(super) fn fsid(object: &Object<'_>, attr: &Attr) -> Fsid4 {
    Fsid4 { major: object.export.id().number(), minor: attr.fsid }
}

/// Returns mounted_on_fileid (§5.8.2.23): for the root of an export, the number of the directory on which it is
/// mounted.
fn mounted_on(cx: &Context<'_>, object: &Object<'_>, attr: &Attr) -> u64 {
    let pseudo = &cx.shared.pseudo;
    let node = (object.export.root() == &object.handle).then(|| pseudo.node_of(object.export.id())).flatten();
    node.map_or(attr.fileid, |node| pseudo.fileid(node))
}

fn rights(bits: u32) -> Rights {
    let has = |bit| bits & bit != 0;
    Rights {
        read: has(ACCESS4_READ | ACCESS4_XAREAD | ACCESS4_XALIST),
        lookup: has(ACCESS4_LOOKUP),
        modify: has(ACCESS4_MODIFY | ACCESS4_XAWRITE),
        extend: has(ACCESS4_EXTEND),
        delete: has(ACCESS4_DELETE),
        execute: has(ACCESS4_EXECUTE),
    }
}

fn bits(rights: Rights) -> u32 {
    let bit = |right, bit| if right { bit } else { 0 };
    // RFC 8276 §8.6: the right to read an object includes reading and listing its extended attributes, and the right to
    // write it includes setting them.
    bit(rights.read, ACCESS4_READ | ACCESS4_XAREAD | ACCESS4_XALIST)
        | bit(rights.lookup, ACCESS4_LOOKUP)
        | bit(rights.modify, ACCESS4_MODIFY | ACCESS4_XAWRITE)
        | bit(rights.extend, ACCESS4_EXTEND)
        | bit(rights.delete, ACCESS4_DELETE)
        | bit(rights.execute, ACCESS4_EXECUTE)
}

/// The access bits that apply to a directory.
const DIR_BITS: u32 = ACCESS4_READ | ACCESS4_LOOKUP | ACCESS4_MODIFY | ACCESS4_EXTEND | ACCESS4_DELETE;
/// The access bits that apply to any other object.
const FILE_BITS: u32 = ACCESS4_READ | ACCESS4_MODIFY | ACCESS4_EXTEND | ACCESS4_EXECUTE;
const XATTR_BITS: u32 = ACCESS4_XAREAD | ACCESS4_XAWRITE | ACCESS4_XALIST;
