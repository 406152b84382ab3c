//! Operations that use the current file handle or change it: GETFH, PUTFH, PUTROOTFH, SAVEFH, RESTOREFH, LOOKUP,
//! LOOKUPP, SECINFO and SECINFO_NO_NAME: RFC 8881 §18.8, §18.13, §18.14, §18.19–18.21, §18.27–18.29, §18.45.

use bytes::Bytes;
use nfs::v4::{LookupArgs, Nfsstat4, PutFhArgs, RpcGssSvc, RpcsecGssInfo, Secinfo4, SecinfoArgs, SecinfoStyle4};
use vfs::{Handle, Kind, Name, VfsError};
use xdr::{Encode, Encoder};

use crate::{
    call::object::Object,
    export::{
        Export,
        policy::{Purpose, Refusal},
        sec::Sec,
    },
    v4::{
        cursor::Cursor,
        place::{FhBytes, Filehandle, Known, Place, component},
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
    let (filehandle, wrong_sec) = cx.filehandle(&args.object)?;
    (at.current, at.wrong_sec) = (Some(filehandle), wrong_sec);
    Ok(())
}

pub(super) fn putrootfh(cx: &Context<'_>, at: &mut Cursor) -> Result<(), Fault4> {
    let place = place_of_node(cx, NodeId::ROOT)?;
    at.wrong_sec = cx.refuses_flavor(&place);
    at.current = Some(place.into());
    Ok(())
}

pub(super) fn savefh(at: &mut Cursor) -> Result<(), Fault4> {
    at.current()?;
    at.saved.clone_from(&at.current);
    Ok(())
}

pub(super) fn restorefh(cx: &Context<'_>, at: &mut Cursor) -> Result<(), Fault4> {
    // §18.27.3: NOFILEHANDLE from 4.1 on. In 4.0 it is RESTOREFH (RFC 7530 §16.29).
    let saved = at.saved().map_err(|status| if at.minor == 0 { Nfsstat4::RestoreFh } else { status })?;
    at.wrong_sec = cx.refuses_flavor(saved);
    at.current.clone_from(&at.saved);
    Ok(())
}

pub(super) fn lookup(cx: &Context<'_>, at: &mut Cursor, args: &LookupArgs) -> Result<(), Fault4> {
    let (found, kind) = find(cx, at.current()?, &args.objname)?;
    at.current = Some(Filehandle::new(allowed(cx, found)?, kind.map_or(Known::Nothing, Known::Kind)));
    Ok(())
}

pub(super) fn lookupp(cx: &Context<'_>, at: &mut Cursor) -> Result<(), Fault4> {
    //= rfc8881-18.14.3-1
    let found = parent(cx, at.current()?)?;
    at.current = Some(allowed(cx, found)?.into());
    Ok(())
}

/// Returns a place if it allows the caller's security flavour, else WRONGSEC.
fn allowed(cx: &Context<'_>, place: Place) -> Result<Place, Fault4> {
    if cx.refuses_flavor(&place) { Err(Nfsstat4::WrongSec.into()) } else { Ok(place) }
}

pub(super) fn secinfo(cx: &Context<'_>, at: &mut Cursor, args: &SecinfoArgs) -> Result<Vec<Secinfo4>, Fault4> {
    // The search does not check the flavour of the call.
    //= rfc8881-18.29.3-1 rfc8881-2.6.3.1.1.5-2
    let (found, _) = find(cx, at.current()?, &args.name)?;
    // §18.29.3: SECINFO consumes the current file handle. In 4.0 it does not.
    if at.minor > 0 {
        at.current = None;
    }
    Ok(flavors(cx, &found))
}

pub(super) fn secinfo_no_name(
    cx: &Context<'_>,
    at: &mut Cursor,
    style: SecinfoStyle4,
) -> Result<Vec<Secinfo4>, Fault4> {
    let current = at.current()?;
    let flavors = match style {
        SecinfoStyle4::Parent => flavors(cx, &parent(cx, current)?),
        SecinfoStyle4::CurrentFh => flavors(cx, current),
    };
    at.current = None;
    Ok(flavors)
}

/// Finds the entry `name` of a directory, and its kind if the file system was asked. The security flavour of the entry is
/// not checked. If the directory does not allow the caller's flavour, only another export that is mounted there is found.
/// For any other name the result is the directory, which is as good for a decision about flavours, and tells the caller
/// nothing about its contents.
fn find(cx: &Context<'_>, dir: &Place, name: &[u8]) -> Result<(Place, Option<Kind>), Fault4> {
    let name = component(name)?;
    match dir {
        Place::Pseudo(node) => {
            let child = cx.shared.pseudo.child(*node, name.as_bytes()).ok_or(Nfsstat4::NoEnt)?;
            Ok((place_of_node(cx, child)?, None))
        }
        Place::Object(id, handle) if cx.refuses_flavor(dir) => {
            let export = cx.core.exports.find(*id).ok_or(Nfsstat4::Stale)?;
            let object = cx.object_as_anonymous(export, handle.clone());
            match cx.shared.pseudo.junction(&object, name.as_bytes())? {
                Some(node) => Ok((place_of_node(cx, node)?, None)),
                None => Ok((dir.clone(), None)),
            }
        }
        Place::Object(..) => {
            let dir = cx.object4(dir)?;
            if let Some(node) = cx.shared.pseudo.junction(&dir, name.as_bytes())? {
                return Ok((place_of_node(cx, node)?, None));
            }
            let (handle, kind) = find_entry(&dir, name)?;
            Ok((Place::Object(dir.export.id(), handle), Some(kind)))
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

/// Returns the parent directory of a directory. As in [`find`], the result can be another object of the same export if
/// that does not allow the caller's security flavour.
fn parent(cx: &Context<'_>, of: &Place) -> Result<Place, Fault4> {
    let pseudo = &cx.shared.pseudo;
    let node = match of {
        Place::Pseudo(node) => *node,
        Place::Object(id, handle) => {
            let export = cx.core.exports.find(*id).ok_or(Nfsstat4::Stale)?;
            if export.root() != handle {
                if cx.refuses_flavor(of) {
                    return Ok(of.clone());
                }
                let object = cx.object4(of)?;
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
        let export = match cx.export(export, Purpose::Files) {
            Err(Refusal::WrongSec) => {
                let export = cx.core.exports.find(export).ok_or(Nfsstat4::Stale)?;
                return Ok(Place::Object(export.id(), export.root().clone()));
            }
            export => export?,
        };
        let object = cx.object_of(export, export.root().clone())?;
        let handle = pseudo.mount_point(&object, top, node)?.ok_or(Nfsstat4::NoEnt)?;
        return Ok(Place::Object(export.id(), handle));
    }
    place_of_node(cx, above)
}

/// Returns the place of a node: the root of the export that is mounted there, or the node itself.
///
/// # Errors
/// NOENT if the caller must not see the node. Every caller sees the root. The security flavour is not checked.
fn place_of_node(cx: &Context<'_>, node: NodeId) -> Result<Place, Fault4> {
    let pseudo = &cx.shared.pseudo;
    if node != NodeId::ROOT && !pseudo.is_visible(cx, node) {
        return Err(Nfsstat4::NoEnt.into());
    }
    let admitted =
        |export: &&Export| matches!(export.decide(&cx.requester(), Purpose::Files), Ok(()) | Err(Refusal::WrongSec));
    match pseudo.export(node).and_then(|id| cx.core.exports.find(id)).filter(admitted) {
        Some(export) => Ok(Place::Object(export.id(), export.root().clone())),
        None => Ok(Place::Pseudo(node)),
    }
}

/// Returns the flavours with which the caller's host can use a place, as SECINFO lists them.
fn flavors(cx: &Context<'_>, place: &Place) -> Vec<Secinfo4> {
    let krb5 = |service| {
        let oid = Bytes::from_static(&KRB5_OID).into();
        Secinfo4::RpcsecGss(RpcsecGssInfo { oid, qop: 0, service })
    };
    let info = |sec: Sec| match sec {
        Sec::Krb5 => krb5(RpcGssSvc::None),
        Sec::Krb5i => krb5(RpcGssSvc::Integrity),
        Sec::Krb5p => krb5(RpcGssSvc::Privacy),
        Sec::Sys | Sec::None => Secinfo4::Flavor(sec.number()),
    };
    cx.flavors(place).into_iter().map(info).collect()
}

/// The object identifier of Kerberos 5, 1.2.840.113554.1.2.2, in DER without tag and length (RFC 1964 §1, RFC 7530
/// §3.2.1.1).
const KRB5_OID: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];
