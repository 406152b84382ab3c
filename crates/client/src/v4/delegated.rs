//! The operations of [`V4`] on open files and delegations: lasting opens, versions of a file's data, and the watcher of
//! delegations.

use std::{sync::Arc, time::Duration};

use nfs::v4::*;

use super::{
    attr,
    delegation::{Delegation, EventTime, Watcher},
    opens::InUse,
    place::Place,
    protocol::V4,
    request::Target,
};
use crate::{
    model::{Error, Handle, Result, Status},
    session::compound::{Compound, value},
};

/// Keeps a file open until it is dropped.
#[derive(Debug)]
pub struct Held {
    _file: InUse,
}

/// A version of a file's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataVersion {
    change: Option<u64>,
    delegated: Option<EventTime>,
    /// The number of the server that issued the version.
    server: u64,
}

impl DataVersion {
    fn of(self, at: &Place) -> Self {
        Self { server: at.number(), ..self }
    }

    /// Returns `true` if no other client can have changed the data between the two versions.
    pub fn is_same(&self, other: &Self) -> bool {
        let same = |one: Option<u64>, other: Option<u64>| one.is_some() && one == other;
        //= rfc8881-10.3.1-1
        self.server == other.server && (same(self.delegated, other.delegated) || same(self.change, other.change))
    }
}

impl V4 {
    /// Opens a file for the access in the `OPEN4_SHARE_ACCESS_` bits. Returns the version of its data at this moment or
    /// later. Sends no request if the file is delegated and already open for this access.
    ///
    /// A file without a name cannot be opened: the server keeps it only for those that have it open, and the name that led to it
    /// is now that of another file, or of none.
    ///
    /// # Errors
    /// `AccessDenied`, `ReadOnly`, `StaleHandle` (also if the file has no name), …
    pub async fn open(&self, handle: &Handle, access: u32) -> Result<DataVersion> {
        let place = self.place(handle).await?;
        place.v4.server.opens.file(&place.handle).0.take_opened();
        let target = self.request("OPEN", handle).open_for(access).open(&self.deadline()).await?;
        match (delegated_version(&target.place), target.file().0.take_opened()) {
            (Some(promised), _) => Ok(promised),
            (None, Some(change)) => {
                Ok(DataVersion { change: Some(change), ..DataVersion::default() }.of(&target.place))
            }
            (None, None) => match self.ask_version(handle).await? {
                (_, 0) => Err(Error::refused(Status::StaleHandle, "OPEN")),
                (version, _) => Ok(version),
            },
        }
    }

    /// Returns `true` if the caller has the file open for this access, so that [`open`](Self::open) may send no request.
    pub fn is_open(&self, file: &Handle, access: u32) -> bool {
        let at = self.place_now(file);
        let opens = &at.v4.server.opens;
        let by = (self.caller.as_ref(), access);
        opens.known(&at.handle).is_some_and(|file| file.open_stateid(opens, by).is_some())
    }

    /// Keeps a file open, once it was opened, until the returned value is dropped, even if the file is idle.
    pub fn hold(&self, handle: &Handle) -> Held {
        let at = self.place_now(handle);
        Held { _file: at.v4.server.opens.file(&at.handle) }
    }

    /// Returns the current version of a file's data.
    ///
    /// # Errors
    /// `StaleHandle`, …
    pub async fn data_version(&self, handle: &Handle) -> Result<DataVersion> {
        match delegated_version(&self.place(handle).await?) {
            Some(version) => Ok(version),
            None => Ok(self.ask_version(handle).await?.0),
        }
    }

    /// Returns the version of a file's data and the number of its names.
    async fn ask_version(&self, handle: &Handle) -> Result<(DataVersion, u32)> {
        self.publish(handle).await;
        let mut requested_at = 0;
        let make = |target: &mut Target| {
            requested_at = target.opens().delegations.now();
            Ok(Compound::on("GETATTR", target.handle()).get_attr(&target.opens().wanted()))
        };
        let (target, mut results) = self.request("GETATTR", handle).run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        let attrs = attr::values(&value!(results, GetAttr)?)?;
        let attr =
            attr::from_values(&attrs).ok_or_else(|| results.protocol_error("the attributes lack type or size"))?;
        target.opens().store_attributes(target.handle(), &attr, requested_at);
        Ok((DataVersion { change: attrs.change, ..DataVersion::default() }.of(&target.place), attr.nlink))
    }

    /// Registers a watcher that is notified when delegations end. There can be one.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.server.opens.delegations.watch(watcher);
    }

    /// Returns `true` if the server delegates a file to this client now.
    pub fn is_delegated(&self, file: &Handle) -> bool {
        let at = self.place_now(file);
        at.v4.server.opens.known(&at.handle).is_some_and(|file| file.state.lock().delegation.is_some())
    }

    /// Returns the time for which the cached attributes of a delegated file are valid, unless the [`Watcher`] is
    /// notified before: the rest of the lease. Returns `None` if they are not cached.
    pub fn attributes_valid_for(&self, file: &Handle) -> Option<Duration> {
        let at = self.place_now(file);
        let opens = &at.v4.server.opens;
        opens.delegated_attr(&at.handle)?;
        opens.client.link.lease_left()
    }
}

/// Returns the version of a file's data that its delegation guarantees.
fn delegated_version(place: &Place) -> Option<DataVersion> {
    let of = |delegation: &Delegation| DataVersion {
        change: delegation.change,
        delegated: Some(delegation.since),
        ..DataVersion::default()
    };
    place.v4.server.opens.trusted_delegation(&place.handle, |delegation| Some(of(delegation).of(place)))
}
