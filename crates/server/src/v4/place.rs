//! [`Place`]: the object that a file handle of version 4 names, and how it is found.

use nfs::v4::{FHSIZE4, Nfsstat4, Stateid4};
use smallvec::SmallVec;
use vfs::{Attr, Cred, Handle, Kind, layout::LayoutCaps};

use super::pseudo::NodeId;
use crate::{
    call::object::Object,
    data_handle::DataHandle,
    export::{
        policy::{Purpose, Refusal},
        sec::Sec,
    },
    handle::{AdoptedHandle, ExportId, FileId},
    v4::{
        cursor::Cursor,
        service::Context,
        status::{Fault4, nfsstat4, refusal},
    },
};

/// The object that a file handle names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A directory of the pseudo file system.
    Pseudo(NodeId),
    /// An object of an export.
    Object(ExportId, Handle),
}

/// A current or saved file handle, with its current stateid (RFC 8881 §16.2.3.1.2).
#[derive(Clone, Debug)]
pub(super) struct Filehandle {
    pub(super) place: Place,
    pub(super) stateid: Stateid4,
    pub(super) known: Known,
    /// The user of a [`DataHandle`]. Only operations on data are executed with it.
    pub(super) user: Option<Cred>,
    /// `true` for an [`AdoptedHandle`]. Only operations on data are executed with it.
    pub(super) adopted: bool,
}

/// Facts about the object that the operation which set the current file handle has found. Only operations that change nothing
/// keep it.
#[derive(Clone, Debug)]
pub(super) enum Known {
    Nothing,
    /// The kind, which never changes.
    Kind(Kind),
    /// The attributes.
    Attr(Box<Attr>),
}

/// The bytes of a file handle.
pub(super) type FhBytes = SmallVec<[u8; FHSIZE4]>;

impl From<Place> for Filehandle {
    fn from(place: Place) -> Self {
        Self::new(place, Known::Nothing)
    }
}

impl Filehandle {
    /// Makes a file handle of an object about which something is known.
    pub(super) fn new(place: Place, known: Known) -> Self {
        Self { place, stateid: Stateid4::ANONYMOUS, known, user: None, adopted: false }
    }
}

impl<'a> Context<'a> {
    /// Returns the object of a file handle that a client may have from a files layout, as [`place`](Self::place) does.
    pub(super) fn filehandle(&self, bytes: &[u8]) -> Result<(Filehandle, bool), Nfsstat4> {
        let data = if self.shared.data_server { DataHandle::decode(bytes).map_err(nfsstat4)? } else { None };
        let (user, bytes) = data.map_or((None, bytes), |(user, bytes)| (Some(user), bytes));
        let adopted = AdoptedHandle::decode(bytes).is_some();
        let (place, wrong_sec) = self.place(bytes)?;
        match (&user, &place) {
            (Some(_), Place::Pseudo(_)) => Err(Nfsstat4::BadHandle),
            _ => Ok((Filehandle { user, adopted, ..Filehandle::from(place) }, wrong_sec)),
        }
    }

    /// Authenticates a file handle of a request and returns its object, if the export admits the caller. The second value
    /// is `true` if the export does not allow the caller's security flavour.
    fn place(&self, bytes: &[u8]) -> Result<(Place, bool), Nfsstat4> {
        let (id, handle) = self.core.open(bytes).map_err(nfsstat4)?;
        if id == self.shared.pseudo.id() {
            let node = self.shared.pseudo.find(handle.as_bytes()).ok_or(Nfsstat4::Stale)?;
            return Ok((Place::Pseudo(node), false));
        }
        match self.export(id, Purpose::Files) {
            Ok(_) => Ok((Place::Object(id, handle), false)),
            Err(Refusal::WrongSec) => Ok((Place::Object(id, handle), true)),
            Err(refused) => Err(refusal(refused)),
        }
    }

    /// Returns `true` if the export of a place does not allow the caller's security flavour. The pseudo file system
    /// allows every flavour: a client uses it to find out which flavours the exports allow, and asks it for the lease
    /// with a flavour of its own choice.
    pub(super) fn refuses_flavor(&self, place: &Place) -> bool {
        match place {
            Place::Pseudo(_) => false,
            Place::Object(id, _) => self.export(*id, Purpose::Files).is_err_and(|refused| refused == Refusal::WrongSec),
        }
    }

    /// Returns the security flavours with which the caller's host can use a place, in the order of the configuration.
    /// For a directory of the pseudo file system, these are the flavours of all exports below it.
    pub(super) fn flavors(&self, place: &Place) -> Vec<Sec> {
        match place {
            Place::Pseudo(node) => self.shared.pseudo.flavors(self, *node),
            Place::Object(id, _) => self
                .core
                .exports
                .find(*id)
                .map_or(Vec::new(), |export| export.flavors(&self.requester(), Purpose::Locks)),
        }
    }

    /// Returns the file handle of a place.
    pub(super) fn seal(&self, place: &Place) -> FhBytes {
        let sealed = match place {
            Place::Pseudo(node) => {
                let pseudo = &self.shared.pseudo;
                self.core.key.seal(pseudo.id(), &pseudo.handle(*node))
            }
            Place::Object(id, handle) => self.core.key.seal(*id, handle),
        };
        SmallVec::from_slice(&sealed)
    }

    /// Returns `true` if a place is the root of a file system that is on another server.
    pub(super) fn is_absent(&self, place: &Place) -> bool {
        matches!(place, Place::Pseudo(node) if self.shared.pseudo.referral(*node).is_some())
    }

    /// Returns the object of an export that a place names.
    ///
    /// # Errors
    /// ROFS for a directory of the pseudo file system: callers need a file or change something.
    #[inline]
    pub(super) fn object4(&self, place: &Place) -> Result<Object<'a>, Fault4> {
        match place {
            Place::Pseudo(_) => Err(Nfsstat4::RoFs.into()),
            Place::Object(id, handle) => Ok(self.object_of(self.export(*id, Purpose::Files)?, handle.clone())?),
        }
    }
}

impl<'a> Context<'a> {
    /// Returns the current object for an operation on its data. With a [`DataHandle`], its user is the caller.
    ///
    /// # Errors
    /// The errors of [`object4`](Self::object4).
    #[inline]
    pub(super) fn data_object(&self, at: &Cursor) -> Result<Object<'a>, Fault4> {
        match (at.data_user(), at.current()?) {
            (Some(user), Place::Object(id, handle)) => {
                let export = self.export(*id, Purpose::Files)?;
                Ok(self.object_as_user(export, handle.clone(), user.clone()))
            }
            (_, place) => self.object4(place),
        }
    }
}

impl Context<'_> {
    /// Returns the file that a place names, for an operation on state alone. It does not look up the caller: state must not
    /// stay because the name service fails.
    ///
    /// # Errors
    /// The errors of [`object4`](Self::object4), except those of the look-up.
    pub(super) fn file_id(&self, place: &Place) -> Result<FileId, Fault4> {
        match place {
            Place::Pseudo(_) => Err(Nfsstat4::RoFs.into()),
            Place::Object(id, handle) => {
                self.export(*id, Purpose::Files)?;
                Ok((*id, handle.clone()))
            }
        }
    }
}

impl Context<'_> {
    /// Returns the layouts of the file system of an object, if it has any and the caller may have them.
    pub(super) fn layout_caps<'o>(&self, object: &'o Object<'_>) -> Option<&'o LayoutCaps> {
        let layouts = object.vfs().layouts()?;
        object.export.permits_layouts(&self.requester()).then(|| layouts.caps())
    }
}

impl Object<'_> {
    /// Returns the place of this object.
    pub(super) fn place(&self) -> Place {
        Place::Object(self.export.id(), self.handle.clone())
    }
}

/// Checks a component of a request: the name of an existing object or of one to be created.
pub(super) fn component(name: &[u8]) -> Result<&vfs::Name, Fault4> {
    let name = vfs::Name::new(name).map_err(|error| match error {
        _ if name.contains(&b'/') || name.contains(&0) => Nfsstat4::BadChar,
        error => nfsstat4(error),
    })?;
    // `.` and `..` have no special meaning in this protocol and are invalid (RFC 8881 §15.1.5.2).
    if name.is_dots() { Err(Nfsstat4::BadName.into()) } else { Ok(name) }
}
