//! Layouts: a client reads or writes the data of a file at data servers (RFC 8881 §12.5, §18.42–18.44, §20.3).
//!
//! A layout does not conflict with other uses of the file, because the back end gives everybody the same data. It is
//! recalled if the back end changes the geometry of the file, or before another client truncates it.
//!
//! **LAYOUTGET** has two halves with an operation of the back end in between. [`State::plan_layout`] makes the holder, so
//! that a recall in the meantime finds it. [`State::commit_layout`] grants the layout, unless it was recalled.
//! [`State::cancel_layout`] takes the place of the second half if the back end has no layout, or if the call was dropped.
//!
//! **The end of a layout** is told to the back end: by the operation itself for a LAYOUTRETURN of one file, otherwise by
//! [`State::poll_layout_end`]. A client that does not return a layout within a lease is fenced. It does not get
//! `SEQ4_STATUS_RECALLABLE_STATE_REVOKED`: that would stay until the client frees the stateid, which Linux's client never
//! does for layouts. The client finds out at the data servers, and here the stateid is unknown (BAD_STATEID).
//!
//! Layouts do not survive a restart of this server (§12.7.4), so there is nothing to reclaim. An error leaves the state
//! unchanged.

use std::{hash::Hash, time::Instant};

use nfs::v4::*;
use vfs::layout::{LayoutHolder, LayoutKind, LayoutMode, LayoutModes};

use crate::v4::state::{
    State,
    ids::{Other, ReferringCall},
    layout::{BulkRecall, Hold, LayoutEnd, LayoutGrant, Ranges},
    recallable::{Grant, Held, Recallable, RecallableKind},
    stateid::Kind,
};

/// A LAYOUTGET that was checked.
#[derive(Clone, Debug)]
pub struct LayoutWanted<'a, F> {
    /// The client.
    pub client: Clientid4,
    /// The file, which is a regular file.
    pub file: &'a F,
    /// The file system of the file within its export.
    pub fsid: u64,
    /// A stateid of an open, lock, delegation or of layouts.
    pub stateid: &'a Stateid4,
    /// The kind.
    pub kind: LayoutKind,
    /// The mode.
    pub mode: LayoutMode,
    /// `true` if the stateid is that of an earlier operation of the same request, so that the request also opens the file.
    pub with_open: bool,
    /// `true` if a truncation of the file must recall the layout.
    pub recalled_by_truncation: bool,
    /// The request.
    pub call: Option<ReferringCall>,
}

/// A LAYOUTGET whose layout the back end must grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutPlan<F> {
    /// The file.
    pub file: F,
    /// The mode.
    pub mode: LayoutMode,
    /// The holder.
    pub holder: LayoutHolder,
    other: Other,
}

/// The layouts that a LAYOUTRETURN returns.
#[derive(Clone, Copy, Debug)]
pub struct LayoutsReturned {
    /// The kind.
    pub kind: LayoutKind,
    /// The modes.
    pub modes: LayoutModes,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

/// The contents of CB_LAYOUTRECALL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutRecall {
    /// The kind.
    pub kind: LayoutKind,
    /// The modes.
    pub modes: LayoutModes,
    /// `true` if the client must not write cached data by the layouts.
    pub changed: bool,
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Checks a LAYOUTGET (§18.43), and makes the holder of the layout. The caller must end the plan by
    /// [`commit_layout`](Self::commit_layout) or [`cancel_layout`](Self::cancel_layout).
    ///
    /// # Errors
    /// GRACE; BAD_STATEID, OLD_STATEID, OPENMODE; RECALLCONFLICT; LAYOUTTRYLATER if the client cannot be called, or the limits
    /// are reached, or the file is being truncated, or the client opens a file of which it holds layouts.
    pub fn plan_layout(&mut self, wanted: &LayoutWanted<'_, F>, now: Instant) -> Result<LayoutPlan<F>, Nfsstat4> {
        let &LayoutWanted { client, file, kind, mode, .. } = wanted;
        if self.in_grace() {
            //= rfc8881-18.43.3-1
            return Err(Nfsstat4::Grace);
        }
        self.check_layoutget_stateid(wanted)?;
        let own = self.stateids.find_recallable(client, RecallableKind::Layout(kind), file);
        let layout = own.and_then(|other| self.stateids.layout(&other));
        if layout.is_some_and(|layout| !layout.recalling.intersect(mode.into()).is_empty()) {
            //= rfc8881-18.43.3-29
            return Err(Nfsstat4::RecallConflict);
        }
        let waits =
            mode == LayoutMode::Write && (self.layouts.awaits_truncation(file, now) || self.layouts.is_fencing(file));
        // Linux's client ignores a layout that it gets with OPEN if it holds others of the file, and with it the new sequence ID.
        // It would then answer each recall with DELAY (fs/nfs/pnfs.c, callback_proc.c).
        let by_open = wanted.with_open && self.stateids.layout(&wanted.stateid.other).is_none();
        let ignored = by_open && layout.is_some_and(|layout| layout.known);
        let full = own.is_none()
            && (self.is_full_of(RecallableKind::Layout(kind))
                || self.is_at_stateid_limit(client)
                || !self.can_be_called(client));
        if waits || ignored || full {
            //= rfc8881-18.43.3-4 rfc8881-18.43.3-28
            return Err(Nfsstat4::LayoutTryLater);
        }
        let other = own.unwrap_or_else(|| self.insert_layout(wanted));
        let new = self.layouts.new_holder();
        let layout = self.stateids.layout_mut(&other).expect("the layout must exist");
        let make = || Hold { holder: new, ranges: Ranges::default(), granting: 0 };
        let hold = layout.hold_mut(mode).get_or_insert_with(make);
        hold.granting += 1;
        Ok(LayoutPlan { file: file.clone(), mode, holder: hold.holder, other })
    }

    fn insert_layout(&mut self, wanted: &LayoutWanted<'_, F>) -> Other {
        let layout = LayoutGrant {
            kind: wanted.kind,
            fsid: wanted.fsid,
            read: None,
            write: None,
            recalling: LayoutModes::NONE,
            changed: false,
            return_on_close: false,
            recalled_by_truncation: wanted.recalled_by_truncation,
            known: false,
        };
        let kind = Kind::Recallable(Recallable { due: None, granted_by: wanted.call, grant: Grant::Layout(layout) });
        let group = self.group_of(wanted.client);
        self.stateids.insert((wanted.client, group), wanted.file.clone(), kind).other
    }

    /// Checks the stateid of a LAYOUTGET: that of the client's layouts, or of an open, lock or delegation that permits the
    /// mode (§12.5.2, §12.5.3).
    fn check_layoutget_stateid(&self, wanted: &LayoutWanted<'_, F>) -> Result<(), Nfsstat4> {
        let &LayoutWanted { client, file, stateid, kind, mode, .. } = wanted;
        if let Some(layout) = self.stateids.layout(&stateid.other) {
            let same = layout.kind == kind;
            self.stateids.resolve_layout(client, file, stateid)?;
            return if same { Ok(()) } else { Err(Nfsstat4::BadStateid) };
        }
        let other = self.stateids.resolve(client, Some(file), stateid)?;
        let (may_read, may_write) = match &self.stateids.entry(&other).kind {
            Kind::Open(open) => accesses(open.access),
            Kind::Lock { open, .. } => accesses(self.stateids.open(open).access),
            Kind::Recallable(held) => (true, held.grant.may_write()),
        };
        let permitted = match mode {
            LayoutMode::Read => may_read,
            LayoutMode::Write => may_write,
        };
        if permitted { Ok(()) } else { Err(Nfsstat4::OpenMode) }
    }

    /// Grants the layout of a plan, and returns the stateid. Ends the plan.
    ///
    /// # Errors
    /// RECALLCONFLICT if the layout was recalled, returned or revoked meanwhile. The back end is told that the holder has
    /// ended.
    pub fn commit_layout(&mut self, plan: &LayoutPlan<F>, return_on_close: bool) -> Result<Stateid4, Nfsstat4> {
        let layout = self.stateids.layout_mut(&plan.other);
        let Some(layout) = layout.filter(|layout| is_held(layout, plan)) else {
            self.cancel_layout(plan);
            return Err(Nfsstat4::RecallConflict);
        };
        if !layout.recalling.intersect(plan.mode.into()).is_empty() {
            self.cancel_layout(plan);
            return Err(Nfsstat4::RecallConflict);
        }
        let hold = layout.hold_mut(plan.mode).as_mut().expect("the mode must be held");
        (hold.granting, hold.ranges) = (hold.granting - 1, Ranges::all());
        layout.return_on_close |= return_on_close;
        let first = !std::mem::replace(&mut layout.known, true);
        Ok(if first { self.stateids.current(&plan.other) } else { self.stateids.change(&plan.other) })
    }

    /// Ends a plan without a layout. If nothing else holds the layout, the back end is told that the holder has ended.
    pub fn cancel_layout(&mut self, plan: &LayoutPlan<F>) {
        let held = self.stateids.layout_mut(&plan.other).filter(|layout| is_held(layout, plan));
        let unused = match held.and_then(|layout| layout.hold_mut(plan.mode).as_mut()) {
            Some(hold) => {
                hold.granting -= 1;
                hold.granting == 0 && hold.ranges.is_empty()
            }
            // The client has returned or lost the layout. The back end may have granted it after that.
            None => true,
        };
        if unused {
            self.layouts.ended.push_back(LayoutEnd {
                file: plan.file.clone(),
                holder: plan.holder,
                mode: plan.mode,
                fence: false,
            });
            if let Some(layout) = self.stateids.layout_mut(&plan.other).filter(|layout| is_held(layout, plan)) {
                *layout.hold_mut(plan.mode) = None;
                self.tidy_layout(&plan.other);
            }
        }
    }

    /// Executes LAYOUTRETURN of one file (§18.44). Returns the new stateid, if the client still holds layouts of the file,
    /// and the layouts that have ended. The caller tells the back end.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID.
    pub fn return_layout(
        &mut self,
        client: Clientid4,
        file: &F,
        stateid: &Stateid4,
        returned: &LayoutsReturned,
    ) -> Result<(Option<Stateid4>, Vec<LayoutEnd<F>>), Nfsstat4> {
        //= rfc8881-18.44.3-2 rfc8881-18.44.3-5
        let other = self.stateids.resolve_layout(client, file, stateid)?;
        let layout = self.stateids.layout_mut(&other).ok_or(Nfsstat4::BadStateid)?;
        if layout.kind != returned.kind {
            return Err(Nfsstat4::BadStateid);
        }
        let mut ended = Vec::new();
        for mode in modes_of(returned.modes) {
            let hold = layout.hold_mut(mode);
            let Some(Hold { holder, ranges, .. }) = hold else { continue };
            ranges.remove(returned.offset, returned.length);
            if ranges.is_empty() {
                ended.push(LayoutEnd { file: file.clone(), holder: *holder, mode, fence: false });
                *hold = None;
            }
        }
        if self.tidy_layout(&other) {
            //= rfc8881-18.44.3-6
            return Ok((None, ended));
        }
        Ok((Some(self.stateids.change(&other)), ended))
    }

    /// Executes LAYOUTRETURN of a file system, or of all of them: returns all layouts of a client on files that `of`
    /// accepts.
    pub fn return_layouts(
        &mut self,
        client: Clientid4,
        (kind, modes): (LayoutKind, LayoutModes),
        of: impl Fn(&F, &LayoutGrant) -> bool,
    ) {
        for other in self.stateids.of_client(client) {
            let Some(layout) = self.stateids.layout(&other) else { continue };
            if layout.kind == kind && of(&self.stateids.entry(&other).file, layout) {
                self.end_layouts(&other, modes, false);
            }
        }
    }

    /// Finds the layouts of a stateid for LAYOUTCOMMIT, LAYOUTERROR or LAYOUTSTATS, also while they are recalled.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID.
    pub fn find_layout(&self, client: Clientid4, file: &F, stateid: &Stateid4) -> Result<&LayoutGrant, Nfsstat4> {
        let other = self.stateids.resolve_layout(client, file, stateid)?;
        self.stateids.layout(&other).ok_or(Nfsstat4::BadStateid)
    }

    /// Reports whether a stateid was made by an earlier start of the server, as far as its bytes tell.
    pub fn is_of_earlier_start(&self, stateid: &Stateid4) -> bool {
        self.stateids.status_of_unknown(&stateid.other) == Nfsstat4::StaleStateid
    }

    /// Recalls layouts of a file because the back end asks for it.
    pub fn recall_layouts(&mut self, file: &F, modes: LayoutModes, changed: bool, now: Instant) {
        for other in self.stateids.recallables(file) {
            if self.stateids.layout(&other).is_some() {
                self.begin_layout_recall(&other, (modes, changed), now);
            }
        }
    }

    /// Recalls all layouts of files that `of` accepts, with one callback for each client, kind and file system (§20.3).
    pub fn recall_all_layouts(&mut self, of: impl Fn(&F) -> bool, changed: bool, now: Instant) {
        let due = now + self.options.lease;
        for kind in [LayoutKind::Flexible, LayoutKind::Files] {
            let all: Vec<_> = self.stateids.all_recallables(RecallableKind::Layout(kind)).collect();
            for (client, other) in all {
                let file = self.stateids.entry(&other).file.clone();
                if !of(&file) || self.fence_if_expired(client, &other, now) {
                    continue;
                }
                let Some(held) = self.stateids.recallable_mut(&other) else { continue };
                let Grant::Layout(layout) = &mut held.grant else { continue };
                (layout.recalling, layout.changed) = (LayoutModes::ALL, layout.changed || changed);
                let fsid = layout.fsid;
                if layout.granted().is_empty() || held.due.is_some() {
                    continue;
                }
                held.due = Some(due);
                self.recalls.deadlines.push_back((due, other));
                let is_same = |bulk: &BulkRecall<F>| (bulk.client, bulk.kind, bulk.fsid) == (client, kind, fsid);
                if !self.layouts.bulk.iter().any(is_same) {
                    self.layouts.bulk.push_back(BulkRecall { client, file, kind, fsid, changed });
                }
            }
        }
    }

    /// Begins the recall of modes, unless it has begun before.
    pub(in crate::v4::state) fn begin_layout_recall(
        &mut self,
        other: &Other,
        (modes, changed): (LayoutModes, bool),
        now: Instant,
    ) {
        let client = self.stateids.entry(other).client;
        if self.fence_if_expired(client, other, now) {
            return;
        }
        let due = now + self.options.lease;
        let Some(held) = self.stateids.recallable_mut(other) else { return };
        let Grant::Layout(layout) = &mut held.grant else { return };
        let new = modes.intersect(layout.modes()).without(layout.recalling);
        layout.recalling =
            LayoutModes { read: layout.recalling.read || new.read, write: layout.recalling.write || new.write };
        layout.changed |= changed;
        if new.intersect(layout.granted()).is_empty() {
            // A LAYOUTGET in progress fails by itself.
            return;
        }
        held.due = Some(due);
        self.recalls.deadlines.push_back((due, *other));
        // §12.5.3: a recall changes the stateid.
        let stateid = self.stateids.change(other);
        let file = self.stateids.entry(other).file.clone();
        self.recalls.queue.push_back(Held { client, file, stateid });
    }

    /// Fences expired clients from files that they may have written by layouts. Nobody wants such a layout, so it would never be
    /// recalled, but until it ends, the size and times of the file lack the writes that the client has not committed. The
    /// client must not use its layouts any more (§12.7.2).
    pub(in crate::v4::state) fn expire_layouts(&mut self, now: Instant) {
        let expired: Vec<_> = self.clients.expired(now).map(|(client, _)| client).collect();
        for client in expired {
            for other in self.stateids.of_client(client) {
                if self.stateids.layout(&other).is_some_and(|layout| layout.write.is_some()) {
                    self.fence_if_expired(client, &other, now);
                }
            }
        }
    }

    /// Fences a client whose lease has expired, instead of a recall.
    fn fence_if_expired(&mut self, client: Clientid4, other: &Other, now: Instant) -> bool {
        let expired = self.clients.is_expired(client, now) && !self.is_busy(client);
        if expired {
            self.fence_layouts(other, LayoutModes::ALL);
        }
        expired
    }

    /// Returns the contents of a recall, or `None` if it is not about layouts or has ended.
    pub fn layout_recall(&self, held: &Held<F>) -> Option<LayoutRecall> {
        let layout = self.stateids.layout(&held.stateid.other)?;
        let recall = LayoutRecall { kind: layout.kind, modes: layout.recalling, changed: layout.changed };
        (!layout.recalling.is_empty()).then_some(recall)
    }

    /// Takes note that a client holds no layout of a recall any more: it has answered NOMATCHING_LAYOUT (§12.5.5.1).
    pub fn layout_forgotten(&mut self, held: &Held<F>) {
        if let Some(layout) = self.stateids.layout(&held.stateid.other) {
            let modes = layout.recalling;
            self.end_layouts(&held.stateid.other, modes, false);
        }
    }

    /// Returns `true` while a client holds a layout of a bulk recall. `of` accepts the files of its export.
    pub fn is_recalling_all(&self, bulk: &BulkRecall<F>, of: impl Fn(&F) -> bool) -> bool {
        !self.of_bulk(bulk, of).is_empty()
    }

    /// Like [`layout_forgotten`](Self::layout_forgotten), for a bulk recall.
    pub fn all_forgotten(&mut self, bulk: &BulkRecall<F>, of: impl Fn(&F) -> bool) {
        for other in self.of_bulk(bulk, of) {
            self.end_layouts(&other, LayoutModes::ALL, false);
        }
    }

    fn of_bulk(&self, bulk: &BulkRecall<F>, of: impl Fn(&F) -> bool) -> Vec<Other> {
        let is_of = |other: &Other| {
            let Some(layout) = self.stateids.layout(other) else { return false };
            let same = layout.kind == bulk.kind && layout.fsid == bulk.fsid && of(&self.stateids.entry(other).file);
            same && self.stateids.recallable(other).is_some_and(Recallable::is_recalled)
        };
        self.stateids.of_client(bulk.client).into_iter().filter(is_of).collect()
    }

    /// Recalls the layouts of a client on a file of which it has closed the last open, if it had to return them before
    /// (§18.43.3).
    pub fn recall_closed_layouts(&mut self, client: Clientid4, file: &F, now: Instant) {
        if !self.marks().may_be_delegated(file) {
            return;
        }
        for other in self.stateids.recallables(file) {
            let layout = self.stateids.layout(&other);
            let recalled =
                self.stateids.entry(&other).client == client && layout.is_some_and(|layout| layout.return_on_close);
            if recalled && !self.has_opens(client, file) {
                //= rfc8881-18.43.3-22
                self.begin_layout_recall(&other, (LayoutModes::ALL, false), now);
            }
        }
    }

    fn has_opens(&self, client: Clientid4, file: &F) -> bool {
        let is_open = |other: &Other| {
            let entry = self.stateids.entry(other);
            entry.file == *file && entry.revoked.is_none() && matches!(entry.kind, Kind::Open(_))
        };
        self.stateids.of_client(client).iter().any(is_open)
    }

    /// Returns the next layout of whose end the back end must be told.
    pub fn poll_layout_end(&mut self) -> Option<LayoutEnd<F>> {
        self.layouts.ended.pop_front()
    }

    /// Returns the next bulk recall to send.
    pub fn poll_bulk_recall(&mut self) -> Option<BulkRecall<F>> {
        self.layouts.bulk.pop_front()
    }

    /// Returns `true` if a client can use copies that are striped: our own, and Linux from 6.18 on. Older ones fail all I/O
    /// with such a layout.
    pub fn accepts_striped_copies(&self, client: Clientid4) -> bool {
        let software = self.clients.find(client).and_then(|client| client.implementation.as_ref());
        software.is_some_and(|software| accepts_stripes(&software.name.0))
    }

    /// Takes note that a fence is complete.
    pub fn fenced(&mut self, file: &F) {
        let Some(count) = self.layouts.fencing.get_mut(file) else { return };
        *count -= 1;
        if *count == 0 {
            self.layouts.fencing.remove(file);
            self.stateids.marks().remove(file);
        }
    }

    /// Takes layouts from a client that has not returned them. Does nothing if the stateid is not of layouts.
    pub(in crate::v4::state) fn fence_layouts(&mut self, other: &Other, modes: LayoutModes) {
        self.end_layouts(other, modes, true);
    }

    /// Ends layouts. Layouts that the client has never got are not fenced.
    fn end_layouts(&mut self, other: &Other, modes: LayoutModes, fence: bool) {
        let file = match self.stateids.layout(other) {
            Some(_) => self.stateids.entry(other).file.clone(),
            None => return,
        };
        for mode in modes_of(modes) {
            let layout = self.stateids.layout_mut(other).expect("the layout must exist");
            let Some(hold) = layout.hold_mut(mode).take() else { continue };
            let fence = fence && !hold.ranges.is_empty();
            if fence && !self.layouts.is_fencing(&file) {
                // Others must not truncate the file before.
                self.stateids.marks().add(&file);
            }
            if fence {
                *self.layouts.fencing.entry(file.clone()).or_default() += 1;
            }
            self.layouts.ended.push_back(LayoutEnd { file: file.clone(), holder: hold.holder, mode, fence });
        }
        self.tidy_layout(other);
    }

    /// Ends the recall of modes that are not held, and removes the stateid if no mode is held. Returns `true` if it did.
    fn tidy_layout(&mut self, other: &Other) -> bool {
        let Some(held) = self.stateids.recallable_mut(other) else { return true };
        let Grant::Layout(layout) = &mut held.grant else { return false };
        layout.recalling = layout.recalling.intersect(layout.modes());
        if layout.recalling.is_empty() {
            (held.due, layout.changed) = (None, false);
        }
        let empty = layout.modes().is_empty();
        if empty {
            self.stateids.remove(other);
        }
        empty
    }
}

fn is_held<F>(layout: &LayoutGrant, plan: &LayoutPlan<F>) -> bool {
    layout.hold(plan.mode).is_some_and(|hold| hold.holder == plan.holder)
}

/// Returns whether an open permits reads and writes.
fn accesses(access: u32) -> (bool, bool) {
    (access & OPEN4_SHARE_ACCESS_READ != 0, access & OPEN4_SHARE_ACCESS_WRITE != 0)
}

/// Returns `true` if client software of this name accepts more than one stripe in each copy.
fn accepts_stripes(name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name);
    let Some(version) = name.strip_prefix("Linux ") else { return name.starts_with("slipway") };
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 18))
}

/// Returns the modes of a set.
fn modes_of(modes: LayoutModes) -> impl Iterator<Item = LayoutMode> {
    let of = |held: bool, mode| held.then_some(mode);
    [of(modes.read, LayoutMode::Read), of(modes.write, LayoutMode::Write)].into_iter().flatten()
}
