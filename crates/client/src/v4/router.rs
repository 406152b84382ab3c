//! [`MigrationRouter`]: directs the requests of an operation to the server that has the objects now.

use std::sync::Arc;

use nfs::v4::{Nfsstat4, Opnum4, compound::CompoundRes};

use super::{migration::MOVES_MAX, place::Place, protocol::V4};
use crate::{
    call::Deadline,
    model::{Handle, Result},
    session::compound::failure,
};

/// One or two objects of an operation, which can move from server to server.
pub(crate) struct MigrationRouter<'a> {
    v4: &'a V4,
    one: &'a Handle,
    other: Option<&'a Handle>,
    /// The number of moves of the objects during the operation.
    moves: u32,
}

impl<'a> MigrationRouter<'a> {
    pub fn new(v4: &'a V4, one: &'a Handle, other: Option<&'a Handle>) -> Self {
        Self { v4, one, other, moves: 0 }
    }

    /// Returns the place of the first object, and the handle of the other one there.
    ///
    /// # Errors
    /// `CrossDevice` if the objects are on different servers, or an object has moved and cannot be found.
    pub async fn route(&self, operation: &'static str, deadline: &Deadline) -> Result<(Place, Option<Handle>)> {
        let (place, other) = (self.v4.place(self.one).await?, self.other);
        let there = match other {
            Some(other) => Some(self.v4.place(other).await?),
            None => None,
        };
        if place.is_elsewhere() {
            // Finding the object may have taken long.
            deadline.restart();
        }
        match there {
            Some(there) if !Arc::ptr_eq(&place.v4.server, &there.v4.server) => {
                Err(failure(Nfsstat4::XDev, operation).on(self.v4.program().server()))
            }
            there => Ok((place, there.map(|there| there.handle))),
        }
    }

    /// Returns `true` if the first object is still at this place.
    pub fn is_still_at(&self, place: &Place) -> bool {
        let now = self.v4.place_now(self.one);
        Arc::ptr_eq(&now.v4.server, &place.v4.server) && now.handle == place.handle
    }

    /// Finds the objects after a server has answered MOVED. Returns `true` if one of them has moved. Otherwise the name
    /// that the request looks up refers to another server's file system.
    ///
    /// # Errors
    /// An object has moved and cannot be found.
    pub async fn moved(&mut self, place: &Place, other: Option<&Handle>, deadline: &Deadline) -> Result<bool> {
        if self.moves >= MOVES_MAX {
            return Ok(false);
        }
        self.moves += 1;
        let v4 = &place.v4;
        let gone = Box::pin(v4.moved(&place.handle, deadline)).await?
            || match other.filter(|other| **other != place.handle) {
                Some(other) => Box::pin(v4.moved(other, deadline)).await?,
                None => false,
            };
        if gone {
            deadline.restart();
        }
        Ok(gone)
    }
}

/// Returns `true` if MOVED is about the object of PUTFH, and not about the object to which a name leads.
pub(crate) fn is_about_object(res: &CompoundRes) -> bool {
    matches!(res.resarray.last().map(|last| last.opnum()), Some(Opnum4::PutFh | Opnum4::Lookup))
}
