//! OPEN as an operation that [`drive`] executes, and its results.

use std::sync::Arc;

use bytes::Bytes;
use nfs::v4::{compound::CompoundRes, *};
use tokio::sync::OwnedMutexGuard;

use super::{
    delegation::{Delegation, EventTime},
    opens::{CallerOpen, OpenAttributes, OpenFile, Opens, open, open_attributes, opened},
};
use crate::{
    call::Deadline,
    model::{Caller, Error, Handle, Result, Status},
    session::{
        client::Client4,
        compound::{Compound, Results, component},
        drive::{Next, Operation, Retry, drive},
    },
};

impl OpenFile {
    /// Returns the stateid for READ or WRITE. Opens the file if it is not open for this access.
    ///
    /// # Errors
    /// OPEN failed.
    pub async fn stateid(
        &self,
        opens: &Arc<Opens>,
        by: (Option<&Caller>, u32),
        deadline: &Deadline,
    ) -> Result<Stateid4> {
        match self.open_stateid(opens, by) {
            Some(stateid) => Ok(stateid),
            // Boxed, so that this rare case does not enlarge the future of every operation.
            None => Box::pin(self.open(opens, by, deadline)).await,
        }
    }

    async fn open(&self, opens: &Arc<Opens>, by: (Option<&Caller>, u32), deadline: &Deadline) -> Result<Stateid4> {
        let requested_at = opens.delegations.now();
        let mut opening =
            Opening { opens, file: self, by, changes: None, claimed: None, ready: None, compound: None, requested_at };
        let res = match drive(&mut opening, None, deadline).await.0? {
            Some(res) => res,
            None => return Ok(opening.ready.expect("an operation without a request must have a stateid")),
        };
        let (compound, requested_at) =
            (opening.compound.as_ref().expect("the request must have been sent"), opening.requested_at);
        let results = opens.client.results(compound, res);
        match opens.client.minor() {
            0 => self.opened_by_name(opens, by, results, requested_at),
            _ => {
                let mut results = results?;
                results.skip(&[Opnum4::PutFh])?;
                let (ok, _) = opened(&mut results)?;
                self.store_open(opens, *ok, by, open_attributes(&mut results, requested_at)?);
                self.open_stateid(opens, by)
                    .ok_or_else(|| results.protocol_error("OPEN succeeded without access to the file"))
            }
        }
    }

    /// Stores the results of an OPEN by name. If the name is now that of another file, returns the anonymous stateid.
    fn opened_by_name(
        &self,
        opens: &Arc<Opens>,
        by: (Option<&Caller>, u32),
        results: Result<Results>,
        requested_at: EventTime,
    ) -> Result<Stateid4> {
        match results {
            Ok(mut results) => {
                results.skip(&[Opnum4::PutFh])?;
                let (ok, handle) = opened(&mut results)?;
                let seen = open_attributes(&mut results, requested_at)?;
                if handle == self.handle {
                    self.store_open(opens, *ok, by, seen);
                    return self
                        .open_stateid(opens, by)
                        .ok_or_else(|| results.protocol_error("OPEN succeeded without access to the file"));
                }
                // The other file is closed when it has been idle.
                opens.opened(&handle, *ok, by, seen);
            }
            Err(error) if is_elsewhere(&error) => {}
            Err(error) => return Err(error),
        }
        opens.names.lock().forget(&self.handle);
        Ok(Stateid4::ANONYMOUS)
    }

    /// Returns the stateid of the caller's open, if it includes this access.
    pub fn open_stateid(&self, opens: &Opens, (caller, access): (Option<&Caller>, u32)) -> Option<Stateid4> {
        let state = self.state.lock();
        let open = state.open_of(caller)?;
        (open.access & access == access).then_some(opens.client.latest(open.stateid))
    }

    /// Stores the results of a caller's OPEN.
    pub fn store_open(
        &self,
        opens: &Arc<Opens>,
        ok: OpenOk,
        (caller, access): (Option<&Caller>, u32),
        seen: OpenAttributes,
    ) {
        self.layouts.held.lock().opened(seen.attr.as_ref().map(|attr| attr.size), seen.threshold);
        let mut state = self.state.lock();
        let before = state.open_of(caller).filter(|open| open.stateid.other == ok.stateid.other);
        let access = access | before.map_or(0, |open| open.access);
        state.opens.retain(|open| open.caller.as_ref() != caller);
        state.opens.push(CallerOpen { caller: caller.cloned(), stateid: ok.stateid, access });
        state.may_notify = ok.rflags & OPEN4_RESULT_MAY_NOTIFY_LOCK != 0;
        let has_name = seen.attr.as_ref().is_none_or(|attr| attr.nlink > 0);
        // The attributes may or may not contain changes that this client made at the same time.
        let attr = seen.attr.filter(|_| state.is_settled(seen.requested_at) && self.is_published());
        // `V4::open` asks again about a file without a name.
        state.opened = seen.change.filter(|_| has_name);
        let (stateid, write, recall) = match ok.delegation {
            OpenDelegation4::Read(read) => (read.stateid, false, read.recall),
            OpenDelegation4::Write(write) => (write.stateid, true, write.recall),
            //= rfc8881-10.2-1
            OpenDelegation4::None | OpenDelegation4::NoneExt(_) => return,
        };
        let same = state.delegation.take().filter(|had| had.stateid.other == stateid.other);
        let mut delegation = same.unwrap_or_else(|| {
            let since = opens.delegations.event();
            Delegation::new(stateid, write, since)
        });
        (delegation.stateid, delegation.write, delegation.requested_at) = (stateid, write, seen.requested_at);
        delegation.size = attr.as_ref().map(|attr| attr.size);
        (delegation.attr, delegation.change) = (attr, seen.change);
        state.delegation = Some(delegation);
        drop(state);
        // RFC 8881 §20.2.3: a recall can arrive before the reply to the OPEN that granted the delegation.
        if recall || opens.delegations.was_recalled(&stateid) {
            opens.recall(stateid);
        }
    }
}

/// OPEN of a file by its handle, or by its name in NFSv4.0. It excludes other opens and closes of the file, except
/// during pauses.
struct Opening<'a> {
    opens: &'a Arc<Opens>,
    file: &'a OpenFile,
    /// The caller and the access.
    by: (Option<&'a Caller>, u32),
    changes: Option<OwnedMutexGuard<()>>,
    /// The stateid of the delegation that the OPEN claims.
    claimed: Option<Stateid4>,
    /// The stateid of the open, if no request is needed.
    ready: Option<Stateid4>,
    compound: Option<Compound>,
    /// The time of the last attempt.
    requested_at: EventTime,
}

impl Opening<'_> {
    /// Claims a delegation if there is one, because the server could take another open for a conflict with it (RFC 8881
    /// §10.4.1).
    fn by_handle(&mut self) -> Compound {
        let writes = self.by.1 & OPEN4_SHARE_ACCESS_WRITE != 0;
        self.claimed = {
            let state = self.file.state.lock();
            state.delegation.as_ref().filter(|delegation| delegation.write || !writes).map(|by| by.stateid)
        };
        let claim = self.claimed.map_or(OpenClaim4::Fh, OpenClaim4::DelegCurFh);
        Compound::on("OPEN", &self.file.handle)
            .open(open(self.opens, self.by, Openflag4::NoCreate, claim))
            .get_attr(&self.opens.wanted())
            .by(self.by.0)
            .once()
    }

    fn by_name(&self, (dir, name): (Handle, Bytes)) -> Result<Compound> {
        let claim = OpenClaim4::Null(component(&name)?);
        let opening = open(self.opens, self.by, Openflag4::NoCreate, claim);
        Ok(Compound::on("OPEN", &dir).open(opening).get_attr(&self.opens.wanted()).by(self.by.0))
    }
}

impl Operation for Opening<'_> {
    async fn prepare(&mut self, _: &Deadline) -> Result<Next> {
        if self.changes.is_none() {
            self.changes = Some(self.file.lock_changes().await);
        }
        self.ready = self.file.open_stateid(self.opens, self.by);
        if self.ready.is_some() {
            return Ok(Next::Done);
        }
        self.requested_at = self.opens.delegations.now();
        self.compound = Some(if self.opens.client.minor() == 0 {
            let name = self.opens.names.lock().name_of(&self.file.handle);
            let Some(name) = name else {
                self.ready = Some(Stateid4::ANONYMOUS);
                return Ok(Next::Done);
            };
            self.by_name(name)?
        } else {
            self.by_handle()
        });
        Ok(Next::Send)
    }

    fn client(&self) -> &Arc<Client4> {
        &self.opens.client
    }

    fn compound(&self) -> &Compound {
        self.compound.as_ref().expect("the operation must be prepared")
    }

    async fn recover(&mut self, res: &CompoundRes, _: &Deadline) -> Result<Retry> {
        let lost = self.claimed.is_some_and(|by| self.file.state_failed(&by, res.status));
        Ok(if lost { Retry::AfterPause } else { Retry::No })
    }

    fn before_pause(&mut self) {
        // Other tasks may wait for the lock to return a delegation of this file, and this OPEN waits for that.
        self.changes = None;
    }
}

/// Returns `true` if an error of OPEN by name means that the name does not lead to the file any more.
fn is_elsewhere(error: &Error) -> bool {
    use Status as S;
    matches!(
        error.status(),
        Some(S::NotFound | S::NotADirectory | S::IsADirectory | S::StaleHandle | S::InvalidArgument | S::SymbolicLink)
    )
}
