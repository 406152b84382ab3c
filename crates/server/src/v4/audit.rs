//! The operations of NFSv4 that the audit log records. READ, READ_PLUS and WRITE are part of the record of their OPEN,
//! unless they have a special stateid.

use nfs::v4::{Argop4, OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_WRITE, OpenClaim4, Openflag4, Stateid4};

use super::{
    cursor::Cursor,
    place::{Filehandle, Place},
};
use crate::{
    audit::Kind,
    call::audit::{Action, Subject},
};

/// Returns what an operation is about to do, if the audit log can record it.
pub(super) fn action(at: &Cursor, operation: &Argop4) -> Option<Action> {
    use Argop4::*;
    let (current, saved) = (|name| subject(at.current.as_ref(), name), |name| subject(at.saved.as_ref(), name));
    let is_special = |stateid: &Stateid4| {
        at.stateid(*stateid).is_ok_and(|stateid| [Stateid4::ANONYMOUS, Stateid4::READ_BYPASS].contains(&stateid))
    };
    let mut access = None;
    let mut kind = Kind::Change;
    let (object, to) = match operation {
        Create(args) => (current(Some(&args.objname)), None),
        Remove(args) => (current(Some(&args.target)), None),
        Rename(args) => (saved(Some(&args.oldname)), Some(current(Some(&args.newname)))),
        Link(args) => (saved(None), Some(current(Some(&args.newname)))),
        SetAttr(_) | SetXattr(_) | RemoveXattr(_) | Allocate(_) | Deallocate(_) => (current(None), None),
        Copy(_) | Clone(_) => (saved(None), Some(current(None))),
        Open(args) => {
            let writes = args.share_access & OPEN4_SHARE_ACCESS_WRITE != 0;
            let reads = args.share_access & OPEN4_SHARE_ACCESS_BOTH != OPEN4_SHARE_ACCESS_WRITE;
            access = Some(if !writes {
                "read"
            } else if reads {
                "both"
            } else {
                "write"
            });
            if !writes && args.openhow == Openflag4::NoCreate {
                kind = Kind::Read;
            }
            match &args.claim {
                OpenClaim4::Null(name) => (current(Some(name)), None),
                OpenClaim4::DelegateCur { file, .. } => (current(Some(file)), None),
                _ => (current(None), None),
            }
        }
        Read(args) | ReadPlus(args) if is_special(&args.stateid) => {
            kind = Kind::ReadData;
            (current(None), None)
        }
        Write(args) if is_special(&args.stateid) => {
            kind = Kind::WriteData;
            (current(None), None)
        }
        _ => return None,
    };
    let protocol = ["nfs4.0", "nfs4.1", "nfs4.2"].get(at.minor as usize).copied().unwrap_or("nfs4");
    Some(Action { kind, protocol, operation: operation.opnum().name(), access, object, to })
}

fn subject(at: Option<&Filehandle>, name: Option<&[u8]>) -> Subject {
    match at.map(|at| &at.place) {
        Some(Place::Object(export, handle)) => Subject::of((*export, handle.clone()), name),
        Some(Place::Pseudo(_)) | None => Subject::Unknown,
    }
}
