//! Operations that change names, and READLINK: CREATE, LINK, REMOVE, RENAME: RFC 8881 §18.4, §18.9, §18.24–18.26.

use nfs::v4::{
    Bitmap4, ChangeInfo4, CreateArgs, CreateOk, Createtype4, Ftype4, LinkArgs, Nfsstat4, ReadLinkOk, RemoveArgs,
    RenameArgs, RenameOk, Specdata4, acl::Nfsace4, attr::Attr4,
};
use vfs::{Change, Created, Device, Handle, Kind, Name, NodeKind, PreAttr, VfsError};

use super::{
    attributes::set_acl,
    filehandle::{find_entry, not_a_directory},
};
use crate::{
    call::object::Object,
    v4::{
        attr::{Wanted, change_info, set_attr},
        cursor::Cursor,
        place::{Place, component},
        service::Context,
        status::Fault4,
    },
};

pub(super) fn create(cx: &Context<'_>, at: &mut Cursor, args: &CreateArgs) -> Result<CreateOk, Fault4> {
    let dir = cx.object4(at.current()?)?;
    let Wanted { set, acl } = set_attr(cx, &args.createattrs, at.minor, dir.vfs().caps())?;
    let name = component(&args.objname)?;
    //= rfc8881-18.4.3-2 rfc8881-18.4.3-3
    let (vfs, caller) = (dir.writable()?.vfs(), dir.caller());
    let node = |kind| vfs.mknod(&caller, &dir.handle, name, kind, &set);
    let device = |Specdata4 { specdata1, specdata2 }: &Specdata4| Device { major: *specdata1, minor: *specdata2 };
    let created = match &args.objtype {
        Createtype4::Lnk(text) => {
            let text = text.0.to_bytes().map_err(|_| Nfsstat4::Io)?;
            vfs.symlink(&caller, &dir.handle, name, &text, &set)
        }
        Createtype4::Blk(numbers) => node(NodeKind::Block(device(numbers))),
        Createtype4::Chr(numbers) => node(NodeKind::Char(device(numbers))),
        Createtype4::Other(Ftype4::Dir) => vfs.mkdir(&caller, &dir.handle, name, &set),
        Createtype4::Other(Ftype4::Sock) => node(NodeKind::Socket),
        Createtype4::Other(Ftype4::Fifo) => node(NodeKind::Fifo),
        Createtype4::Other(_) => return Err(Nfsstat4::BadType.into()),
    };
    let Created { handle, dir: change, .. } = created.map_err(|error| directory_fault(&dir, error))?;
    let mut attrset = args.createattrs.attrmask.clone();
    set_initial_acl(cx, &dir, &handle, acl.as_deref(), &mut attrset)?;
    at.current = Some(Place::Object(dir.export.id(), handle).into());
    Ok(CreateOk { cinfo: change_info(&change), attrset })
}

/// Sets the ACL that the client asked for on a new object. If that fails, the object stays, and `attrset` does not have
/// the ACL.
///
/// # Errors
/// `WouldBlock` while an operation is pending.
pub(super) fn set_initial_acl(
    cx: &Context<'_>,
    dir: &Object<'_>,
    handle: &Handle,
    aces: Option<&[Nfsace4]>,
    attrset: &mut Bitmap4,
) -> Result<(), Fault4> {
    let Some(aces) = aces else { return Ok(()) };
    if let Err(fault) = set_acl(&cx.object_of(dir.export, handle.clone())?, aces) {
        if cx.thread.is_pending() {
            return Err(fault);
        }
        tracing::debug!(?fault, "the ACL of a new object could not be set");
        attrset.remove(Attr4::Acl as u32);
    }
    Ok(())
}

pub(super) fn link(cx: &Context<'_>, at: &Cursor, args: &LinkArgs) -> Result<ChangeInfo4, Fault4> {
    let (object, dir) = same_export(cx, at)?;
    let name = component(&args.newname)?;
    let vfs = dir.writable()?.vfs();
    //= rfc8881-18.9.4-2
    let _changing = cx.before_change(&object, Some(at.lock_client()))?;
    let linked = vfs.link(&dir.caller(), &object.handle, &dir.handle, name);
    let (change, _) = linked.map_err(|error| directory_fault(&dir, error))?;
    Ok(change_info(&change))
}

pub(super) fn readlink(cx: &Context<'_>, at: &Cursor) -> Result<ReadLinkOk, Fault4> {
    let Place::Object(..) = at.current()? else { return Err(Nfsstat4::WrongType.into()) };
    let link = cx.object4(at.current()?)?;
    let (text, _) = link.vfs().readlink(&link.caller(), &link.handle).map_err(|error| match error {
        // §18.24.4.
        VfsError::Invalid => Nfsstat4::WrongType.into(),
        error => Fault4::from(error),
    })?;
    if text.len().next_multiple_of(4) + READLINK_HEAD > at.room {
        return Err(at.too_big.into());
    }
    Ok(ReadLinkOk { link: text.into() })
}

pub(super) fn remove(cx: &Context<'_>, at: &Cursor, args: &RemoveArgs) -> Result<ChangeInfo4, Fault4> {
    let dir = cx.object4(at.current()?)?;
    let name = component(&args.target)?;
    let vfs = dir.writable()?.vfs();
    check_not_mount_point(cx, &dir, name)?;
    //= rfc8881-18.25.4-2
    cx.before_change_of(&dir, name, Some(at.lock_client()))?;
    // REMOVE removes any kind of object; the file system has one operation for directories and one for other kinds. Most
    // objects are not directories. So the kind is looked up only if that operation fails, and the look-up finds the status.
    let caller = dir.caller();
    let remove = |kind| match kind {
        Kind::Dir => vfs.rmdir(&caller, &dir.handle, name),
        _ => vfs.remove(&caller, &dir.handle, name),
    };
    let change = match remove(Kind::File) {
        Err(VfsError::WouldBlock) => return Err(Fault4::WouldBlock),
        Err(_) => match find_entry(&dir, name)? {
            (_, Kind::Dir) => remove(Kind::Dir),
            // The object has replaced a directory in the meantime, or its removal fails again.
            _ => remove(Kind::File),
        },
        removed => removed,
    };
    Ok(change_info(&change.map_err(|error| directory_fault(&dir, error))?))
}

pub(super) fn rename(cx: &Context<'_>, at: &Cursor, args: &RenameArgs) -> Result<RenameOk, Fault4> {
    let (from_dir, to_dir) = same_export(cx, at)?;
    let (from, to) = (component(&args.oldname)?, component(&args.newname)?);
    let vfs = to_dir.writable()?.vfs();
    check_not_mount_point(cx, &from_dir, from)?;
    check_not_mount_point(cx, &to_dir, to)?;
    //= rfc8881-18.26.4-3 rfc8881-18.26.3-3
    cx.before_change_of(&from_dir, from, Some(at.lock_client()))?;
    cx.before_change_of(&to_dir, to, Some(at.lock_client()))?;
    let renamed = vfs.rename(&to_dir.caller(), &from_dir.handle, from, &to_dir.handle, to);
    let (source, target) = match renamed {
        Ok(changes) => changes,
        Err(error @ (VfsError::NotDir | VfsError::IsDir)) => {
            return Err(rename_fault(&from_dir, &to_dir, from, to, error));
        }
        Err(error) => return Err(error.into()),
    };
    Ok(RenameOk { source_cinfo: change_info(&source), target_cinfo: change_info(&target) })
}

/// Returns FILE_OPEN if an export or a referral is mounted on the name: the object below it would be removed unseen.
/// Linux servers treat mount points as busy too.
fn check_not_mount_point(cx: &Context<'_>, dir: &Object<'_>, name: &Name) -> Result<(), Fault4> {
    match cx.shared.pseudo.junction(dir, name.as_bytes())? {
        Some(_) => Err(Nfsstat4::FileOpen.into()),
        None => Ok(()),
    }
}

/// Returns the status of a failed RENAME. A directory and another object cannot replace each other: EXIST (§18.26.3).
/// If one of the parents is not a directory: NOTDIR.
fn rename_fault(from_dir: &Object<'_>, to_dir: &Object<'_>, from: &Name, to: &Name, error: VfsError) -> Fault4 {
    for (dir, name) in [(from_dir, from), (to_dir, to)] {
        if let Err(fault) = find_entry(dir, name) {
            return fault;
        }
    }
    match error {
        //= rfc8881-18.26.3-2
        VfsError::NotDir | VfsError::IsDir => Nfsstat4::Exist.into(),
        error => error.into(),
    }
}

/// Returns the saved and the current object. Both must be in one export.
fn same_export<'a>(cx: &Context<'a>, at: &Cursor) -> Result<(Object<'a>, Object<'a>), Fault4> {
    let (saved, current) = (at.saved()?, at.current()?);
    // Before the check of the flavours: two exports can have no flavour in common.
    //= rfc8881-18.26.3-1 rfc8881-2.6.3.1.2-1 rfc8881-2.6.3.1.2-2
    if let (Place::Object(one, _), Place::Object(other, _)) = (saved, current)
        && one != other
    {
        return Err(Nfsstat4::XDev.into());
    }
    Ok((cx.object4(saved)?, cx.object4(current)?))
}

/// Converts an error of an operation in `dir`, which may not be a directory.
fn directory_fault(dir: &Object<'_>, error: VfsError) -> Fault4 {
    match error {
        VfsError::NotDir => not_a_directory(dir),
        error => error.into(),
    }
}

/// Returns the change attributes of a directory that was not changed.
pub(super) fn unchanged(attr: vfs::Attr) -> ChangeInfo4 {
    change_info(&Change { before: PreAttr::from(&attr), after: attr })
}

/// The operation number, the status and the length of the text.
const READLINK_HEAD: usize = 12;
