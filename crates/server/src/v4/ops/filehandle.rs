//! Operations that move about: GETFH, PUTFH, PUTROOTFH, SAVEFH, RESTOREFH, LOOKUP, LOOKUPP, SECINFO and
//! SECINFO_NO_NAME: RFC 8881 §18.8, §18.13, §18.14, §18.19–18.21, §18.27–18.29, §18.45.

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

/// A file handle, as it goes out.
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
    at.current = Some(arrive(cx, NodeId::ROOT)?.into());
    Ok(())
}

pub(super) fn savefh(at: &mut Cursor) -> Result<(), Fault4> {
    at.current()?;
    at.saved.clone_from(&at.current);
    Ok(())
}

pub(super) fn restorefh(at: &mut Cursor) -> Result<(), Fault4> {
    // §18.27.3: NOFILEHANDLE since 4.1; RFC 7530 §16.29.
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
    // §18.29.3: the file handle is used up, as in 4.0 it is not.
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

/// What is called `name` in a directory.
fn find(cx: &Context<'_>, dir: &Place, name: &[u8]) -> Result<Place, Fault4> {
    let name = component(name)?;
    match dir {
        Place::Pseudo(node) => {
            let child = cx.shared.pseudo.child(*node, name.as_bytes()).ok_or(Nfsstat4::NoEnt)?;
            arrive(cx, child)
        }
        Place::Object(..) => {
            let dir = cx.object4(dir)?;
            if let Some(node) = cx.shared.pseudo.junction(&dir, name.as_bytes())? {
                return arrive(cx, node);
            }
            let (handle, _) = look(&dir, name)?;
            Ok(Place::Object(dir.export.id(), handle))
        }
    }
}

/// A name in a directory of an export. What is in the way is told as version 4 does.
pub(super) fn look(dir: &Object<'_>, name: &Name) -> Result<(Handle, Kind), Fault4> {
    dir.vfs().find(&dir.caller(), &dir.handle, name).map_err(|error| match error {
        VfsError::NotDir => not_a_directory(dir),
        error => error.into(),
    })
}

/// §18.13.3: the current file handle of LOOKUP and the like may be that of a symbolic link, which the client is to follow.
pub(super) fn not_a_directory(object: &Object<'_>) -> Fault4 {
    match object.getattr() {
        Err(VfsError::WouldBlock) => Fault4::WouldBlock,
        Ok(attr) if attr.kind == Kind::Symlink => Nfsstat4::Symlink.into(),
        _ => Nfsstat4::NotDir.into(),
    }
}

/// The directory that holds a directory.
fn parent(cx: &Context<'_>, of: &Place) -> Result<Place, Fault4> {
    let pseudo = &cx.shared.pseudo;
    let node = match of {
        Place::Pseudo(node) => *node,
        Place::Object(id, handle) => {
            let object = cx.object4(of)?;
            if object.export.root() != handle {
                let parent = Name::new(b"..").expect("a component");
                let (handle, _) = look(&object, parent)?;
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
    arrive(cx, above)
}

/// What is at a node: an export, or the node itself.
///
/// # Errors
/// NOENT for what the caller is not to know of; the root alone is there for everybody.
fn arrive(cx: &Context<'_>, node: NodeId) -> Result<Place, Fault4> {
    let pseudo = &cx.shared.pseudo;
    if node != NodeId::ROOT && !pseudo.leads_somewhere(cx, node) {
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
