//! Operations that use the current file handle or change it: GETFH, PUTFH, PUTROOTFH, SAVEFH, RESTOREFH, LOOKUP,
//! LOOKUPP, SECINFO and SECINFO_NO_NAME: RFC 8881 §18.8, §18.13, §18.14, §18.19–18.21, §18.27–18.29, §18.45.

use nfs::v4::{LookupArgs, Nfsstat4, PutFhArgs, Secinfo4, SecinfoArgs, SecinfoStyle4};
use vfs::{Handle, Kind, Name, VfsError};
use xdr::{Encode, Encoder};

use crate::{
    call::object::Object,
    export::policy::Purpose,
    v4::{
        cursor::Cursor,
        place::{FhBytes, Place, component},
        pseudo::NodeId,
        service::Context,
        status::Fault4,
    },
};

pub(super) fn getfh(cx: &Context<'_>, at: &Cursor) -> Result<Sealed, Fault4> {
    Ok(Sealed(cx.seal(at.current()?)))
}

/// The bytes of a file handle in a result.
pub(super) struct Sealed(FhBytes);

impl Encode for Sealed {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.opaque(&self.0);
    }
}

pub(super) fn putfh(cx: &Context<'_>, at: &mut Cursor, args: &PutFhArgs) -> Result<(), Fault4> {
    at.current = Some(cx.place(&args.object)?.into());
    Ok(())
}

pub(super) fn putrootfh(cx: &Context<'_>, at: &mut Cursor) -> Result<(), Fault4> {
    at.current = Some(place_of_node(cx, NodeId::ROOT)?.into());
    Ok(())
}

pub(super) fn savefh(at: &mut Cursor) -> Result<(), Fault4> {
    at.current()?;
    at.saved.clone_from(&at.current);
    Ok(())
}

pub(super) fn restorefh(at: &mut Cursor) -> Result<(), Fault4> {
    // §18.27.3: NOFILEHANDLE from 4.1 on. In 4.0 it is RESTOREFH (RFC 7530 §16.29).
    at.saved().map_err(|status| if at.minor == 0 { Nfsstat4::RestoreFh } else { status })?;
    at.current.clone_from(&at.saved);
    Ok(())
}

pub(super) fn lookup(cx: &Context<'_>, at: &mut Cursor, args: &LookupArgs) -> Result<(), Fault4> {
    at.current = Some(find(cx, at.current()?, &args.objname)?.into());
    Ok(())
}

pub(super) fn lookupp(cx: &Context<'_>, at: &mut Cursor) -> Result<(), Fault4> {
    at.current = Some(parent(cx, at.current()?)?.into());
    Ok(())
}

pub(super) fn secinfo(cx: &Context<'_>, at: &mut Cursor, args: &SecinfoArgs) -> Result<Vec<Secinfo4>, Fault4> {
    //= rfc8881-18.29.3-1
    find(cx, at.current()?, &args.name)?;
    // §18.29.3: SECINFO consumes the current file handle. In 4.0 it does not.
    if at.minor > 0 {
        at.current = None;
    }
    Ok(flavors())
}

pub(super) fn secinfo_no_name(
    cx: &Context<'_>,
    at: &mut Cursor,
    style: SecinfoStyle4,
) -> Result<Vec<Secinfo4>, Fault4> {
    let current = at.current()?;
    if style == SecinfoStyle4::Parent {
        parent(cx, current)?;
    }
    at.current = None;
    Ok(flavors())
}

/// Finds the entry `name` of a directory.
fn find(cx: &Context<'_>, dir: &Place, name: &[u8]) -> Result<Place, Fault4> {
    let name = component(name)?;
    match dir {
        Place::Pseudo(node) => {
            let child = cx.shared.pseudo.child(*node, name.as_bytes()).ok_or(Nfsstat4::NoEnt)?;
            place_of_node(cx, child)
        }
        Place::Object(..) => {
            let dir = cx.object4(dir)?;
            if let Some(node) = cx.shared.pseudo.junction(&dir, name.as_bytes())? {
                return place_of_node(cx, node);
            }
            let (handle, _) = find_entry(&dir, name)?;
            Ok(Place::Object(dir.export.id(), handle))
        }
    }
}

/// Finds an entry of a directory of an export, and returns errors as version 4 defines them.
pub(super) fn find_entry(dir: &Object<'_>, name: &Name) -> Result<(Handle, Kind), Fault4> {
    dir.vfs().find(&dir.caller(), &dir.handle, name).map_err(|error| match error {
        VfsError::NotDir => not_a_directory(dir),
        error => error.into(),
    })
}

/// Returns SYMLINK for a symbolic link, which the client should follow, else NOTDIR. LOOKUP and similar operations need
/// a directory (§18.13.3).
pub(super) fn not_a_directory(object: &Object<'_>) -> Fault4 {
    match object.getattr() {
        Err(VfsError::WouldBlock) => Fault4::WouldBlock,
        Ok(attr) if attr.kind == Kind::Symlink => Nfsstat4::Symlink.into(),
        _ => Nfsstat4::NotDir.into(),
    }
}

/// Returns the parent directory of a directory.
fn parent(cx: &Context<'_>, of: &Place) -> Result<Place, Fault4> {
    let pseudo = &cx.shared.pseudo;
    let node = match of {
        Place::Pseudo(node) => *node,
        Place::Object(id, handle) => {
            let object = cx.object4(of)?;
            if object.export.root() != handle {
                let parent = Name::new(b"..").expect("`..` must be a valid name");
                let (handle, _) = find_entry(&object, parent)?;
                return Ok(Place::Object(*id, handle));
            }
            pseudo.node_of(*id).ok_or(Nfsstat4::Stale)?
        }
    };
    //= rfc8881-18.45.3-1
    let above = pseudo.parent(node).ok_or(Nfsstat4::NoEnt)?;
    if let Some((top, export)) = pseudo.enclosing(node) {
        let export = cx.export(export, Purpose::Files)?;
        let object = cx.object_of(export, export.root().clone());
        let handle = pseudo.mount_point(&object, top, node)?.ok_or(Nfsstat4::NoEnt)?;
        return Ok(Place::Object(export.id(), handle));
    }
    place_of_node(cx, above)
}

/// Returns the place of a node: the root of the export that is mounted there, or the node itself.
///
/// # Errors
/// NOENT if the caller must not see the node. Every caller sees the root.
fn place_of_node(cx: &Context<'_>, node: NodeId) -> Result<Place, Fault4> {
    let pseudo = &cx.shared.pseudo;
    if node != NodeId::ROOT && !pseudo.is_visible(cx, node) {
        return Err(Nfsstat4::NoEnt.into());
    }
    match pseudo.export(node).map(|id| cx.export(id, Purpose::Files)) {
        Some(Ok(export)) => Ok(Place::Object(export.id(), export.root().clone())),
        _ => Ok(Place::Pseudo(node)),
    }
}

fn flavors() -> Vec<Secinfo4> {
    vec![Secinfo4::Flavor(AUTH_SYS), Secinfo4::Flavor(AUTH_NONE)]
}

const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
