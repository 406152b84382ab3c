//! The operations of [`V4`] on open files and delegations: opening for as long as a file is in use, versions of a file's data, and
//! the watcher of delegations.

use std::{sync::Arc, time::Duration};

use nfs::v4::*;

use super::{
    attr,
    delegation::{Delegation, Mark, Watcher},
    opens::{InUse, wanted},
    place::Place,
    protocol::V4,
    request::Target,
};
use crate::{
    model::{Handle, Result},
    session::compound::{Compound, value},
};

/// A file that is not closed before this is dropped.
#[derive(Debug)]
pub struct Held {
    _file: InUse,
}

/// A version of a file's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataVersion {
    change: Option<u64>,
    delegated: Option<Mark>,
    /// Of the server that says so.
    server: u64,
}

impl DataVersion {
    fn of(self, at: &Place) -> Self {
        Self { server: at.number(), ..self }
    }

    /// Whether nobody but this mount can have changed the data in between.
    pub fn is_same(&self, other: &Self) -> bool {
        let same = |one: Option<u64>, other: Option<u64>| one.is_some() && one == other;
        self.server == other.server && (same(self.delegated, other.delegated) || same(self.change, other.change))
    }
}

impl V4 {
    /// Opens a file for all that the `OPEN4_SHARE_ACCESS_` bits say; returns which version of its data it has, at this moment or
    /// later. Where the server delegates it, and it is open for that already, the server is not asked.
    ///
    /// # Errors
    /// `Acces`, `RoFs`, `Stale`, …
    pub async fn open(&self, handle: &Handle, access: u32) -> Result<DataVersion> {
        let place = self.place(handle).await?;
        place.v4.server.opens.file(&place.handle).0.take_opened();
        let target = self.request("OPEN", handle).open_for(access).open(&self.deadline()).await?;
        match (promised_version(&target.place), target.file().0.take_opened()) {
            (Some(promised), _) => Ok(promised),
            (None, Some(change)) => {
                Ok(DataVersion { change: Some(change), ..DataVersion::default() }.of(&target.place))
            }
            (None, None) => self.ask_version(handle).await,
        }
    }

    /// Keeps a file open, once it is, until what comes back is dropped, also if it is not used for a while.
    pub fn hold(&self, handle: &Handle) -> Held {
        let at = self.place_now(handle);
        Held { _file: at.v4.server.opens.file(&at.handle) }
    }

    /// Which version of its data a file has now.
    ///
    /// # Errors
    /// `Stale`, …
    pub async fn data_version(&self, handle: &Handle) -> Result<DataVersion> {
        match promised_version(&self.place(handle).await?) {
            Some(version) => Ok(version),
            None => self.ask_version(handle).await,
        }
    }

    async fn ask_version(&self, handle: &Handle) -> Result<DataVersion> {
        let mut asked = 0;
        let make = |target: &mut Target| {
            asked = target.opens().delegations.now();
            Ok(Compound::on("GETATTR", target.handle()).get_attr(&wanted()))
        };
        let (target, mut results) = self.request("GETATTR", handle).run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        let attrs = attr::values(&value!(results, GetAttr)?)?;
        let attr = attr::from_values(&attrs).ok_or_else(|| results.protocol_error("an object without type or size"))?;
        target.opens().seen(target.handle(), &attr, asked);
        Ok(DataVersion { change: attrs.change, ..DataVersion::default() }.of(&target.place))
    }

    /// From now on this is told of delegations that end. There can be one.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.server.opens.delegations.watch(watcher);
    }

    /// Whether the server delegates a file to this client now.
    pub fn is_delegated(&self, file: &Handle) -> bool {
        let at = self.place_now(file);
        at.v4.server.opens.known(&at.handle).is_some_and(|file| file.state.lock().delegation.is_some())
    }

    /// How long the attributes of a file need not be asked for again, unless a [`Watcher`] hears otherwise: as long as the lease
    /// is known to last, under which the server delegates it.
    pub fn promised_for(&self, file: &Handle) -> Option<Duration> {
        let at = self.place_now(file);
        let opens = &at.v4.server.opens;
        opens.delegated_attr(&at.handle)?;
        opens.client.link.lease_left()
    }
}

/// The version of a file's data that a delegation promises.
fn promised_version(place: &Place) -> Option<DataVersion> {
    let of = |delegation: &Delegation| DataVersion {
        change: delegation.change,
        delegated: Some(delegation.since),
        ..DataVersion::default()
    };
    place.v4.server.opens.promised(&place.handle, |delegation| Some(of(delegation).of(place)))
}
