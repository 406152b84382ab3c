//! [`Backchannel`]: the callback program, which the server calls over the connections that this client has made.
//!
//! Read RFC 8881 §2.10.6 (the same slots, the other way) and §20 first. Delegations are given back when they are recalled;
//! what needs anything else that is not had here (layouts, notifications) is answered as the RFC says for a client that
//! has none of it. What cannot be read is answered as malformed; the most that a server can hold here is its slots.

use std::{
    ops::RangeInclusive,
    sync::{Arc, Weak},
};

use nfs::v4::{callback::*, compound::*, *};
use parking_lot::Mutex;
use rpc::{AcceptError, BoxFuture, Call, Procedure, Service};
use xdr::{Decode, Message, Opaque};

use super::{compound::Compound, identity::BACK_SLOTS, offload::Offloads, shared::Shared};
use crate::{Handle, deadline::Deadline};

/// Answers callbacks.
#[derive(Debug, Default)]
pub(crate) struct Backchannel {
    pub offloads: Offloads,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    shared: Weak<Shared>,
    session: Sessionid4,
    slots: Vec<Slot>,
    /// Recalled before this client had heard of them.
    early: Vec<Stateid4>,
}

/// The last request of a slot.
#[derive(Clone, Debug, Default)]
struct Slot {
    sequence: u32,
    /// Its results; `None` while it is being executed.
    reply: Option<CbCompoundRes>,
}

/// The callback program as RPC sees it.
pub(crate) struct CallbackService(pub Arc<Backchannel>);

impl Service for CallbackService {
    fn program(&self) -> u32 {
        CALLBACK_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        CALLBACK_VERSION..=CALLBACK_VERSION
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        // The slots know what has been executed, better than a cache could.
        match procedure {
            PROC_NULL => Some(Procedure { name: "CB_NULL", idempotent: true }),
            PROC_COMPOUND => Some(Procedure { name: "CB_COMPOUND", idempotent: true }),
            _ => None,
        }
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> BoxFuture<'a, Result<Message, AcceptError>> {
        Box::pin(async move {
            if call.procedure == PROC_NULL {
                return Ok(call.reply(&()));
            }
            let head = CbCompoundHead::decode(&mut call.arguments)?;
            let mut ops = Vec::new();
            let mut bad = None;
            for _ in 0..head.operations.0.min(OPERATIONS_MAX) {
                match CbArgop4::decode_next(&mut call.arguments, head.minorversion) {
                    Ok(op) => ops.push(op),
                    Err(error) => {
                        bad = Some(error);
                        break;
                    }
                }
            }
            Ok(call.reply(&self.0.answer(head.tag, ops, bad)))
        })
    }
}

impl Backchannel {
    /// From now on, callbacks are of this session.
    pub fn session(&self, session: Sessionid4, slots: u32) {
        let mut inner = self.inner.lock();
        inner.session = session;
        inner.slots = vec![Slot::default(); slots.clamp(1, BACK_SLOTS) as usize];
    }

    /// Whose callbacks they are.
    pub fn serve(&self, shared: &Arc<Shared>) {
        self.inner.lock().shared = Arc::downgrade(shared);
    }

    /// Whether a delegation was recalled before this client had heard of it.
    pub fn was_recalled(&self, stateid: &Stateid4) -> bool {
        let mut inner = self.inner.lock();
        let early = inner.early.iter().position(|early| early.other == stateid.other);
        early.map(|at| inner.early.swap_remove(at)).is_some()
    }

    fn answer(&self, tag: Tag, ops: Vec<CbArgop4>, bad: Option<BadOperation<CbOpnum4>>) -> CbCompoundRes {
        let fail =
            |result: CbResop4| CbCompoundRes { status: result.status(), tag: tag.clone(), resarray: vec![result] };
        // RFC 8881 §20.9.3: CB_SEQUENCE is first.
        let mut ops = ops.into_iter();
        let args = match ops.next() {
            Some(CbArgop4::Sequence(args)) => args,
            Some(other) => return fail(CbResop4::failure(other.opnum(), Nfsstat4::OpNotInSession)),
            None => {
                return bad.map_or_else(
                    || CbCompoundRes { status: Nfsstat4::Ok, tag: tag.clone(), resarray: Vec::new() },
                    |bad| fail(bad.into()),
                );
            }
        };
        let (slot, ok) = match self.inner.lock().begin(&args) {
            Ok(Begun::Execute(ok)) => (args.slotid.0 as usize, ok),
            Ok(Begun::Replay(reply)) => return CbCompoundRes { tag, ..*reply },
            Err(status) => return fail(CbResop4::failure(CbOpnum4::Sequence, status)),
        };
        let mut results = vec![CbResop4::Sequence(Res4::Ok(ok))];
        for op in ops {
            let result = self.execute(op);
            let status = result.status();
            results.push(result);
            if status != Nfsstat4::Ok {
                break;
            }
        }
        if let Some(bad) = bad.filter(|_| results.last().is_some_and(|last| last.status() == Nfsstat4::Ok)) {
            results.push(bad.into());
        }
        let status = results.last().map_or(Nfsstat4::Ok, CbResop4::status);
        let reply = CbCompoundRes { status, tag, resarray: results };
        if let Some(slot) = self.inner.lock().slots.get_mut(slot) {
            slot.reply = Some(reply.clone());
        }
        reply
    }

    fn execute(&self, op: CbArgop4) -> CbResop4 {
        let opnum = op.opnum();
        let status = match op {
            CbArgop4::Recall(args) => self.recall(&args),
            CbArgop4::RecallAny(args) => self.recall_any(&args),
            CbArgop4::NotifyLock(args) => self.notify_lock(&args),
            CbArgop4::GetAttr(args) => return CbResop4::GetAttr(self.getattr(&args).into()),
            // No layouts, and none that could be: RFC 8881 §20.3.3.
            CbArgop4::LayoutRecall(_) => Nfsstat4::NoMatchingLayout,
            // RFC 8881 §20.5.3: none was wanted.
            CbArgop4::PushDeleg(_) => Nfsstat4::RejectDeleg,
            CbArgop4::RecallSlot(args) => self.recall_slot(&args),
            CbArgop4::RecallableObjAvail(_) | CbArgop4::WantsCancelled(_) | CbArgop4::NotifyDeviceid(_) => Nfsstat4::Ok,
            CbArgop4::Offload(args) => {
                self.offloads.ended(args.stateid, args.offload_info);
                Nfsstat4::Ok
            }
            CbArgop4::Notify(_) => Nfsstat4::NotSupp,
            // §20.9.3: only the first.
            CbArgop4::Sequence(_) => Nfsstat4::SequencePos,
        };
        match (opnum, status) {
            (CbOpnum4::Recall, Nfsstat4::Ok) => CbResop4::Recall(Res4::Ok(())),
            (CbOpnum4::RecallAny, Nfsstat4::Ok) => CbResop4::RecallAny(Res4::Ok(())),
            (CbOpnum4::RecallSlot, Nfsstat4::Ok) => CbResop4::RecallSlot(Res4::Ok(())),
            (CbOpnum4::RecallableObjAvail, Nfsstat4::Ok) => CbResop4::RecallableObjAvail(Res4::Ok(())),
            (CbOpnum4::WantsCancelled, Nfsstat4::Ok) => CbResop4::WantsCancelled(Res4::Ok(())),
            (CbOpnum4::NotifyLock, Nfsstat4::Ok) => CbResop4::NotifyLock(Res4::Ok(())),
            (CbOpnum4::Offload, Nfsstat4::Ok) => CbResop4::Offload(Res4::Ok(())),
            (CbOpnum4::NotifyDeviceid, Nfsstat4::Ok) => CbResop4::NotifyDeviceid(Res4::Ok(())),
            (opnum, status) => CbResop4::failure(opnum, status),
        }
    }

    fn recall(&self, args: &CbRecallArgs) -> Nfsstat4 {
        let Some(shared) = self.inner.lock().shared.upgrade() else { return Nfsstat4::BadHandle };
        if shared.opens.delegated(&args.stateid).is_none() {
            // RFC 8881 §20.2.3, §10.4.3: the reply to the OPEN that granted it may be on its way.
            let mut inner = self.inner.lock();
            if inner.early.len() >= EARLY_MAX {
                inner.early.remove(0);
            }
            inner.early.push(args.stateid);
        }
        shared.recall(args.stateid);
        Nfsstat4::Ok
    }

    fn recall_any(&self, args: &CbRecallAnyArgs) -> Nfsstat4 {
        let mask = &args.type_mask;
        // Not locked any more when a delegation is given back, which looks here.
        let shared = self.inner.lock().shared.upgrade();
        if (mask.contains(RCA4_TYPE_MASK_RDATA_DLG) || mask.contains(RCA4_TYPE_MASK_WDATA_DLG))
            && let Some(shared) = shared
        {
            let files = shared.opens.delegated_files();
            let excess = files.len().saturating_sub(args.objects_to_keep as usize);
            for file in files.into_iter().take(excess) {
                let stateid = file.state.lock().delegation.as_ref().map(|delegation| delegation.stateid);
                stateid.into_iter().for_each(|stateid| shared.recall(stateid));
            }
        }
        Nfsstat4::Ok
    }

    /// Uses fewer slots, and lets the server know, which may then forget the others (RFC 8881 §20.8.3).
    fn recall_slot(&self, args: &CbRecallSlotArgs) -> Nfsstat4 {
        let shared = self.inner.lock().shared.upgrade();
        if let Some(shared) = shared {
            if let Some(session) = shared.session() {
                session.use_no_more_than(args.target_highest_slotid);
            }
            shared.runtime.clone().spawn(async move {
                let deadline = &Deadline::strict(shared.lease());
                // By the first reply the server knows that its wish is known, by the second request it knows that it is heeded.
                for _ in 0..2 {
                    if let Err(error) = shared.run(&Compound::new("SEQUENCE"), deadline).await {
                        tracing::debug!(%error, "slots are given up, and the server does not know");
                    }
                }
            });
        }
        Nfsstat4::Ok
    }

    /// An owner that waits for a lock may ask again (RFC 8881 §20.11). Who has stopped waiting meanwhile does not mind.
    fn notify_lock(&self, args: &CbNotifyLockArgs) -> Nfsstat4 {
        let handle: Handle = Opaque(args.fh.0.clone());
        let shared = self.inner.lock().shared.upgrade();
        if let Some(file) = shared.and_then(|shared| shared.opens.known(&handle)) {
            let told = file.state.lock().waiting.get(&args.lock_owner.owner.0).cloned();
            told.into_iter().for_each(|told| told.notify_waiters());
        }
        Nfsstat4::Ok
    }

    /// What this client knows better than the server of a file that it may write: as it writes through, what is under way
    /// (RFC 8881 §10.4.3).
    fn getattr(&self, args: &CbGetAttrArgs) -> Result<attr::Fattr4, Nfsstat4> {
        let handle: Handle = Opaque(args.fh.0.clone());
        let shared = self.inner.lock().shared.upgrade().ok_or(Nfsstat4::BadHandle)?;
        let file = shared.opens.known(&handle).ok_or(Nfsstat4::BadHandle)?;
        let state = file.state.lock();
        let delegated = state.delegation.as_ref().filter(|delegation| delegation.write).ok_or(Nfsstat4::BadHandle)?;
        let (change, size) = delegated.change.zip(delegated.size).ok_or(Nfsstat4::BadHandle)?;
        let change = change.wrapping_add(u64::from(state.writing > 0));
        let mut attrs = attr::Attrs { change: Some(change), size: Some(size), ..attr::Attrs::default() };
        attrs.retain(&args.attr_request);
        Ok(attrs.into())
    }
}

enum Begun {
    Execute(CbSequenceOk),
    Replay(Box<CbCompoundRes>),
}

impl Inner {
    /// RFC 8881 §2.10.6.1.3, §20.9.3.
    fn begin(&mut self, args: &CbSequenceArgs) -> Result<Begun, Nfsstat4> {
        if args.sessionid != self.session {
            return Err(Nfsstat4::BadSession);
        }
        let highest = Slotid4(self.slots.len().saturating_sub(1) as u32);
        let slot = self.slots.get_mut(args.slotid.0 as usize).ok_or(Nfsstat4::BadSlot)?;
        if args.sequenceid.0 == slot.sequence && slot.sequence != 0 {
            return slot.reply.clone().map(|reply| Begun::Replay(Box::new(reply))).ok_or(Nfsstat4::Delay);
        }
        if args.sequenceid.0 != slot.sequence.wrapping_add(1) {
            return Err(Nfsstat4::SeqMisordered);
        }
        *slot = Slot { sequence: args.sequenceid.0, reply: None };
        Ok(Begun::Execute(CbSequenceOk {
            sessionid: args.sessionid,
            sequenceid: args.sequenceid,
            slotid: args.slotid,
            highest_slotid: highest,
            target_highest_slotid: highest,
        }))
    }
}

impl Shared {
    /// Gives a delegation back, in a task of its own: the server waits for the answer to its callback first.
    pub fn recall(self: &Arc<Self>, stateid: Stateid4) {
        let Some(file) = self.opens.delegated(&stateid) else { return };
        self.backchannel.was_recalled(&stateid);
        let shared = self.clone();
        self.runtime.spawn(async move {
            let deadline = &Deadline::strict(shared.lease());
            shared.opens.return_delegation(&shared, &file, deadline).await;
        });
    }
}

/// The number by which the server calls: any that is not taken (RFC 5531 §8.3: transient).
pub(crate) const CALLBACK_PROGRAM: u32 = 0x4000_0000;
/// Operations of one callback that are looked at: what a session's backchannel allows.
const OPERATIONS_MAX: u32 = 8;
/// Recalls that are remembered until their OPEN is answered.
const EARLY_MAX: usize = 64;
