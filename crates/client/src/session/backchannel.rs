//! [`Backchannel`]: the callback program, which the server calls over the connections that this client has made.
//!
//! Read RFC 8881 §2.10.6 (the same slots, in the other direction) and §20 first. The backchannel decodes a callback and
//! finds its slot; a [`CallbackHandler`] executes the operations. A callback that cannot be decoded gets an error
//! reply. The slots bound the memory that a server can use here.
//!
//! A callback can arrive before the reply to the request that created the state to which it refers. CB_SEQUENCE names
//! such requests (§2.10.6.3). While one of them is outstanding, the callback waits for its reply, but not for long: then
//! it gets DELAY, and the server sends it again.

use std::{
    fmt, mem,
    ops::RangeInclusive,
    sync::{Arc, Weak},
    time::Duration,
};

use nfs::v4::{callback::*, compound::*, *};
use parking_lot::Mutex;
use rpc::{Answering, Call, Procedure, Service};
use tokio::time::timeout;
use xdr::Decode;

use super::{requests::Session, slots::SlotUse};

/// Executes the operations of callbacks.
pub(crate) trait CallbackHandler: Send + Sync {
    /// Executes an operation that is not CB_SEQUENCE.
    fn execute(&self, operation: CbArgop4) -> CbResop4;
}

/// Answers callbacks, each exactly once.
pub(crate) struct Backchannel {
    handler: Arc<dyn CallbackHandler>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    session: Sessionid4,
    /// The requests of the session.
    requests: Weak<Session>,
    slots: Vec<Slot>,
}

/// The last request of a slot.
#[derive(Clone, Debug, Default)]
struct Slot {
    sequence: u32,
    /// Its results; `None` while it is being executed.
    reply: Option<CbCompoundRes>,
}

impl Slot {
    fn is_executing(&self) -> bool {
        self.reply.is_none() && self.sequence != 0
    }
}

/// The callback program as a service of RPC.
pub(crate) struct CallbackService(pub Arc<Backchannel>);

impl Service for CallbackService {
    fn program(&self) -> u32 {
        CALLBACK_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        CALLBACK_VERSION..=CALLBACK_VERSION
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        // The slots detect retransmissions exactly, so the duplicate request cache is not needed.
        match procedure {
            PROC_NULL => Some(Procedure { name: "CB_NULL", idempotent: true }),
            PROC_COMPOUND => Some(Procedure { name: "CB_COMPOUND", idempotent: true }),
            _ => None,
        }
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            if call.procedure == PROC_NULL {
                return Ok(call.reply(&()));
            }
            //= rfc8881-2.10.2.1-2
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
            Ok(call.reply(&self.0.answer(head.tag, ops, bad).await))
        }))
    }
}

impl Backchannel {
    /// Makes a backchannel without a session.
    pub fn new(handler: Arc<dyn CallbackHandler>) -> Self {
        Self { handler, inner: Mutex::default() }
    }

    /// Sets the session whose callbacks are executed from now on, and its number of slots.
    pub fn session(&self, session: Sessionid4, slots: u32, requests: Weak<Session>) {
        let slots = vec![Slot::default(); slots.clamp(1, BACK_SLOTS) as usize];
        *self.inner.lock() = Inner { session, requests, slots };
    }

    /// Waits for the replies to the referring calls of a callback. Returns `false` if one does not arrive in time.
    async fn wait_for_replies(&self, args: &CbSequenceArgs) -> bool {
        let lists = &args.referring_call_lists.0;
        if lists.is_empty() {
            return true;
        }
        let Some(session) = self.inner.lock().requests.upgrade() else { return true };
        // A session that was replaced has no outstanding requests.
        let calls = lists.iter().filter(|list| list.sessionid == session.id).flat_map(|list| &list.referring_calls.0);
        let replies = async {
            for call in calls {
                session.wait_for_reply(SlotUse { slot: call.slotid, sequence: call.sequenceid }).await;
            }
        };
        timeout(REFERRING_WAIT, replies).await.is_ok()
    }

    async fn answer(&self, tag: Tag, ops: Vec<CbArgop4>, bad: Option<BadOperation<CbOpnum4>>) -> CbCompoundRes {
        let fail =
            |result: CbResop4| CbCompoundRes { status: result.status(), tag: tag.clone(), resarray: vec![result] };
        // RFC 8881 §20.9.3: CB_SEQUENCE must be the first operation.
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
        let begun = self.inner.lock().begin(&args);
        let (before, ok) = match begun {
            Ok(Begun::Execute(before, ok)) => (before, ok),
            Ok(Begun::Replay(reply)) => return CbCompoundRes { tag, ..*reply },
            Err(status) => return fail(CbResop4::failure(CbOpnum4::Sequence, status)),
        };
        let executing = Executing { backchannel: self, args: &args, before };
        if !self.wait_for_replies(&args).await {
            return fail(CbResop4::failure(CbOpnum4::Sequence, Nfsstat4::Delay));
        }
        let mut results = vec![CbResop4::Sequence(Res4::Ok(ok))];
        for op in ops {
            let result = match op {
                // RFC 8881 §20.9.3: CB_SEQUENCE is allowed only as the first operation.
                CbArgop4::Sequence(_) => CbResop4::failure(CbOpnum4::Sequence, Nfsstat4::SequencePos),
                op => self.handler.execute(op),
            };
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
        executing.end(&reply);
        reply
    }
}

/// A callback that occupies its slot. If it is dropped before its end, the slot is as before: an error of CB_SEQUENCE
/// does not change it (RFC 8881 §20.9.3).
struct Executing<'a> {
    backchannel: &'a Backchannel,
    args: &'a CbSequenceArgs,
    /// The slot before the callback.
    before: Slot,
}

impl Executing<'_> {
    /// Caches the reply.
    fn end(mut self, reply: &CbCompoundRes) {
        self.before = Slot { sequence: self.args.sequenceid.0, reply: Some(reply.clone()) };
    }
}

impl Drop for Executing<'_> {
    fn drop(&mut self) {
        let inner = &mut *self.backchannel.inner.lock();
        // The session can have been replaced meanwhile.
        if inner.session == self.args.sessionid
            && let Some(slot) = inner.slots.get_mut(self.args.slotid.0 as usize)
        {
            *slot = mem::take(&mut self.before);
        }
    }
}

enum Begun {
    /// The callback is new. The slot was as given before.
    Execute(Slot, CbSequenceOk),
    Replay(Box<CbCompoundRes>),
}

impl fmt::Debug for Backchannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backchannel").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Inner {
    /// Starts a callback in its slot, or finds the cached reply (RFC 8881 §2.10.6.1.3, §20.9.3).
    fn begin(&mut self, args: &CbSequenceArgs) -> Result<Begun, Nfsstat4> {
        if args.sessionid != self.session {
            return Err(Nfsstat4::BadSession);
        }
        let highest = Slotid4(self.slots.len().saturating_sub(1) as u32);
        let slot = self.slots.get_mut(args.slotid.0 as usize).ok_or(Nfsstat4::BadSlot)?;
        if args.sequenceid.0 == slot.sequence && slot.sequence != 0 {
            return slot.reply.clone().map(|reply| Begun::Replay(Box::new(reply))).ok_or(Nfsstat4::Delay);
        }
        if args.sequenceid.0 != slot.sequence.wrapping_add(1) || slot.is_executing() {
            return Err(Nfsstat4::SeqMisordered);
        }
        let before = mem::replace(slot, Slot { sequence: args.sequenceid.0, reply: None });
        let ok = CbSequenceOk {
            sessionid: args.sessionid,
            sequenceid: args.sequenceid,
            slotid: args.slotid,
            highest_slotid: highest,
            target_highest_slotid: highest,
        };
        Ok(Begun::Execute(before, ok))
    }
}

/// The program number of callbacks, from the transient range (RFC 5531 §8.3).
pub(crate) const CALLBACK_PROGRAM: u32 = 0x4000_0000;
/// Maximum operations of one callback that are decoded: the limit of the session's backchannel.
const OPERATIONS_MAX: u32 = 8;
/// The time for which a callback waits for the replies to its referring calls, as Linux's client does.
pub(crate) const REFERRING_WAIT: Duration = Duration::from_millis(500);
/// Maximum number of callbacks that can be outstanding.
pub(crate) const BACK_SLOTS: u32 = 8;

#[cfg(test)]
mod tests {
    use xdr::Array;

    use super::*;

    /// Refuses the operation CB_RECALL and accepts others.
    struct Handler;

    impl CallbackHandler for Handler {
        fn execute(&self, operation: CbArgop4) -> CbResop4 {
            match operation {
                CbArgop4::RecallAny(_) => CbResop4::RecallAny(Res4::Ok(())),
                other => CbResop4::failure(other.opnum(), Nfsstat4::BadHandle),
            }
        }
    }

    const SESSION: Sessionid4 = Sessionid4([1; 16]);

    fn backchannel() -> Arc<Backchannel> {
        let backchannel = Arc::new(Backchannel::new(Arc::new(Handler)));
        backchannel.session(SESSION, 2, Weak::new());
        backchannel
    }

    fn sequence(slot: u32, sequence: u32) -> CbSequenceArgs {
        CbSequenceArgs {
            sessionid: SESSION,
            sequenceid: Sequenceid4(sequence),
            slotid: Slotid4(slot),
            highest_slotid: Slotid4(1),
            cachethis: false,
            referring_call_lists: Array(Vec::new()),
        }
    }

    fn accepted() -> CbArgop4 {
        CbArgop4::RecallAny(CbRecallAnyArgs { objects_to_keep: 0, type_mask: Default::default() })
    }

    fn refused() -> CbArgop4 {
        let stateid = Stateid4 { seqid: 1, other: [1; 12] };
        CbArgop4::Recall(CbRecallArgs { stateid, truncate: false, fh: NfsFh4::default() })
    }

    #[test]
    fn slot_executes_one_callback_after_the_other() {
        let backchannel = backchannel();
        let begin = |slot, number| backchannel.inner.lock().begin(&sequence(slot, number)).map(drop);
        assert_eq!(begin(0, 0), Err(Nfsstat4::SeqMisordered));
        assert_eq!(begin(0, 1), Ok(()));
        assert_eq!(begin(0, 1), Err(Nfsstat4::Delay), "it is being executed");
        assert_eq!(begin(0, 2), Err(Nfsstat4::SeqMisordered), "the one before it is being executed");
        assert_eq!(begin(1, 2), Err(Nfsstat4::SeqMisordered));
        assert_eq!(begin(1, 1), Ok(()));
        assert_eq!(begin(2, 1), Err(Nfsstat4::BadSlot));
    }

    #[tokio::test]
    async fn operations_are_executed_until_one_fails() {
        let backchannel = backchannel();
        let mut number = 0;
        let mut statuses = async |ops: Vec<CbArgop4>, bad| {
            number += 1;
            let ops = [CbArgop4::Sequence(sequence(0, number))].into_iter().chain(ops).collect();
            let reply = backchannel.answer(Tag::default(), ops, bad).await;
            assert_eq!(Some(reply.status), reply.resarray.last().map(CbResop4::status));
            reply.resarray.iter().skip(1).map(CbResop4::status).collect::<Vec<_>>()
        };
        let illegal = || Some(BadOperation { opnum: CbOpnum4::Illegal, status: Nfsstat4::OpIllegal, error: None });
        assert_eq!(statuses(vec![accepted(), accepted()], None).await, [Nfsstat4::Ok; 2]);
        assert_eq!(statuses(vec![accepted()], illegal()).await, [Nfsstat4::Ok, Nfsstat4::OpIllegal]);
        for bad in [None, illegal()] {
            assert_eq!(statuses(vec![refused(), accepted()], bad).await, [Nfsstat4::BadHandle]);
        }
    }

    #[test]
    fn service_has_two_procedures() {
        let service = CallbackService(backchannel());
        assert_eq!([0, 1, 2].map(|procedure| service.procedure(1, procedure).is_some()), [true, true, false]);
    }
}
