//! [`Compound`]: the operations of one request and the limits of its reply; and [`Results`]: its results in order.
//!
//! Read RFC 8881 §16.2: a compound ends with its first failure, so all results but the last are those of successes.

use std::sync::Arc;

use bytes::Bytes;
use nfs::v4::{
    Argop4, Bitmap4, Component4, GetAttrArgs, LookupArgs, Nfsstat4, Opnum4, PutFhArgs, Resop4, SequenceArgs,
    compound::{CompoundHead, CompoundRes, OperationCount, Tag},
};
use rpc::{ReplyHeader, ReplyPlan};
use xdr::{Decode, Encode, Encoder, Located, Message, Opaque};

use crate::model::{Caller, Error, ErrorKind, Handle, Result, Status};

/// The operations of one COMPOUND request.
#[derive(Clone, Debug)]
pub(crate) struct Compound {
    /// The operations after SEQUENCE, which the session adds.
    pub ops: Vec<Argop4>,
    /// Maximum bytes of the reply without its payload.
    pub reply_max: usize,
    /// Maximum bytes of the payload of the reply.
    pub payload_max: usize,
    /// Set if the payload is the last item, so that it can be located while the reply arrives.
    pub payload_last: bool,
    /// Set if executing the request twice can differ from executing it once, so that the server must cache the reply
    /// (RFC 8881 §2.10.6.1.3).
    pub cache: bool,
    /// The seqid of the lock owner that the request names, for NFSv4.0.
    pub locker: Option<Counter>,
    /// The caller as whom the request is executed; `None` for the user of the mount.
    pub caller: Option<Caller>,
    /// The name for errors that are not those of one operation.
    pub name: &'static str,
}

impl Compound {
    #[inline]
    pub fn new(name: &'static str) -> Self {
        let (ops, reply_max) = (Vec::with_capacity(5), REPLY_BASE);
        let (payload_max, payload_last, cache) = (0, false, false);
        Self { ops, reply_max, payload_max, payload_last, cache, locker: None, caller: None, name }
    }

    /// Makes a request that begins with PUTFH of an object.
    pub fn on(name: &'static str, handle: &Handle) -> Self {
        Self::new(name).put_fh(handle)
    }

    /// Adds an operation whose result has at most `result_max` bytes.
    #[inline]
    pub fn op(mut self, op: Argop4, result_max: usize) -> Self {
        self.ops.push(op);
        self.reply_max += RESULT_HEAD + result_max;
        self
    }

    #[inline]
    pub fn put_fh(self, handle: &Handle) -> Self {
        self.op(Argop4::PutFh(PutFhArgs { object: handle.clone() }), 0)
    }

    pub fn lookup(self, name: Component4) -> Self {
        self.op(Argop4::Lookup(LookupArgs { objname: name }), 0)
    }

    /// Adds an OPEN with the GETFH that must follow it.
    pub fn open(self, open: Argop4) -> Self {
        //= rfc8881-18.16.4.1-1 rfc8881-2.10.6.4-4
        self.op(open, OPEN_MAX).get_fh()
    }

    pub fn get_fh(self) -> Self {
        self.op(Argop4::GetFh, 4 + nfs::v4::FHSIZE4)
    }

    #[inline]
    pub fn get_attr(self, attributes: &Bitmap4) -> Self {
        self.op(Argop4::GetAttr(GetAttrArgs { attr_request: attributes.clone() }), ATTRS_MAX)
    }

    /// Asks the server to cache the reply.
    pub fn once(mut self) -> Self {
        self.cache = true;
        self
    }

    /// Sets the seqid of the lock owner that the request names.
    pub fn locker(mut self, counter: Counter) -> Self {
        self.locker = Some(counter);
        self
    }

    /// Sets the caller as whom the request is executed.
    pub fn by(mut self, caller: Option<&Caller>) -> Self {
        self.caller = caller.cloned();
        self
    }

    /// Sets the maximum bytes of data in the reply, and whether the data are the last item.
    pub fn payload(mut self, payload_max: usize, last: bool) -> Self {
        (self.payload_max, self.payload_last) = (payload_max, last);
        self
    }

    /// Returns the limits of the reply, for the transport.
    pub fn plan(&self) -> ReplyPlan {
        // `locate` finds the payload from the first bytes of the reply.
        let locate = (self.payload_max > 0 && self.payload_last).then_some(locate as fn(&Bytes) -> Option<Located>);
        ReplyPlan { inline_max: self.reply_max, payload_max: self.payload_max, sink: None, locate }
    }
}

/// The arguments of COMPOUND as they are encoded. SEQUENCE and the other operations are borrowed from different places.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub minor: u32,
    /// SEQUENCE, from NFSv4.1 on.
    pub first: Option<&'a SequenceArgs>,
    pub ops: &'a [Argop4],
}

impl Encode for Request<'_> {
    fn encode(&self, encoder: &mut Encoder) {
        let count = usize::from(self.first.is_some()) + self.ops.len();
        let operations = OperationCount(u32::try_from(count).expect("the number of operations must fit in 32 bits"));
        CompoundHead { tag: Tag::default(), minorversion: self.minor, operations }.encode(encoder);
        if let Some(sequence) = self.first {
            Opnum4::Sequence.encode(encoder);
            sequence.encode(encoder);
        }
        self.ops.iter().for_each(|operation| operation.encode(encoder));
    }
}

fn locate(prefix: &Bytes) -> Option<Located> {
    Message::locate::<CompoundRes>(prefix, |decoder| ReplyHeader::decode(decoder).map(drop))
}

/// Converts a name to a component.
///
/// # Errors
/// The name is too long for any server.
pub(crate) fn component(name: &[u8]) -> Result<Component4> {
    if name.len() > nfs::v4::NAME_BOUND {
        return Err(Error::refused(Status::NameTooLong, "name"));
    }
    Ok(Opaque(Bytes::copy_from_slice(name)))
}

/// The results of a request that succeeded, without that of SEQUENCE.
#[derive(Debug)]
pub(crate) struct Results {
    results: std::vec::IntoIter<Resop4>,
    name: &'static str,
}

impl Results {
    pub fn new(results: std::vec::IntoIter<Resop4>, name: &'static str) -> Self {
        Self { results, name }
    }

    /// Returns the next result.
    ///
    /// # Errors
    /// There are no more results.
    pub fn next(&mut self) -> Result<Resop4> {
        self.results.next().ok_or_else(|| self.protocol_error("a result is missing"))
    }

    /// Skips the results of operations that return only their status.
    ///
    /// # Errors
    /// The results are those of other operations.
    pub fn skip(&mut self, opnums: &[Opnum4]) -> Result<()> {
        for &opnum in opnums {
            if self.next()?.opnum() != opnum {
                return Err(self.protocol_error("a result is of another operation than the request's"));
            }
        }
        Ok(())
    }

    /// Returns the results that are left.
    pub fn rest(self) -> Vec<Resop4> {
        self.results.collect()
    }

    pub fn protocol_error(&self, problem: &str) -> Error {
        Error::new(ErrorKind::Protocol(problem.to_owned()), self.name)
    }
}

/// Returns the value of the next result, which must be of the given operation.
macro_rules! value {
    ($results:expr, $name:ident) => {{
        let results: &mut $crate::session::compound::Results = &mut $results;
        match results.next() {
            Ok(nfs::v4::Resop4::$name(nfs::v4::Res4::Ok(value))) => Ok(value),
            Ok(_) => Err(results.protocol_error("a result is of another operation than the request's")),
            Err(error) => Err(error),
        }
    }};
}
pub(crate) use value;

/// Returns the error of a status.
pub(crate) fn failure(status: Nfsstat4, operation: &'static str) -> Error {
    Error::of_status(status, operation)
}

/// The seqid of an owner's next operation in NFSv4.0. It is locked while an operation is outstanding.
pub(crate) type Counter = Arc<tokio::sync::Mutex<u32>>;

/// The outcome of one attempt at a request.
pub(crate) enum Outcome {
    /// The server has executed the request, or has returned its cached reply.
    Answered(CompoundRes),
    /// The request failed and cannot be attempted again.
    Failed(Error),
    /// The connection was lost.
    Disconnected(Error),
    /// No connection was established before the deadline.
    NoConnection,
    /// No slot was free before the deadline.
    NoSlot,
    /// The server is executing the request, or is busy.
    SlotBusy,
    /// The connection is not bound to the session.
    Unbound,
    /// The server has executed the request, and has not cached its reply.
    Uncached,
    /// The server has lost this client or its session. The request must be made again after recovery.
    Lost,
    /// The server has lost this client, and the request contains a stateid that is lost too. After recovery, this reply
    /// is final.
    Outdated(CompoundRes),
}

/// Maximum bytes of the result of OPEN, which is longest with a write delegation.
const OPEN_MAX: usize = 1024;
/// Bytes of a reply's RPC header with the longest verifier, the head of the compound and the result of SEQUENCE.
const REPLY_BASE: usize = 24 + 400 + 16 + 48;
/// Bytes of a result without a body.
const RESULT_HEAD: usize = 8;
/// Maximum bytes of the attributes that the client asks for: numbers, and the names of owner and group.
const ATTRS_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use nfs::v4::{ReadOk, Res4};
    use rpc::{AcceptStat, ReplyBody, Xid};

    use super::*;

    #[test]
    fn limits_of_a_reply_are_the_sum_of_its_results() {
        let handle = Handle::from("a handle");
        let (one, two) =
            (Compound::new("test").op(Argop4::GetFh, 100), Compound::on("test", &handle).op(Argop4::GetFh, 100));
        assert_eq!(two.plan().inline_max - one.plan().inline_max, RESULT_HEAD);
        assert_eq!(one.plan().inline_max - Compound::new("test").plan().inline_max, RESULT_HEAD + 100);
        for (payload_max, last, located) in [(4096, true, true), (4096, false, false), (0, true, false)] {
            let plan = Compound::new("test").payload(payload_max, last).plan();
            assert_eq!((plan.payload_max, plan.locate.is_some()), (payload_max, located));
        }
    }

    #[test]
    fn payload_of_a_read_is_located() {
        let data = Bytes::from(vec![7; 1000]);
        let read = Resop4::Read(Res4::Ok(ReadOk { eof: true, data: data.clone().into() }));
        let mut reply = Encoder::with_capacity(256);
        ReplyHeader { xid: Xid(1), body: ReplyBody::accepted(AcceptStat::Success) }.encode(&mut reply);
        CompoundRes { status: Nfsstat4::Ok, tag: Tag::default(), resarray: vec![read] }.encode(&mut reply);
        let reply = reply.finish().to_rope().to_bytes().unwrap();
        let located = locate(&reply.slice(..reply.len() - 500)).expect("the payload must be located");
        assert_eq!((located.position, located.len), (reply.len() - data.len(), data.len()));
    }

    #[test]
    fn names_are_bounded() {
        assert!(component(&[b'n'; nfs::v4::NAME_BOUND]).is_ok());
        let error = component(&[b'n'; nfs::v4::NAME_BOUND + 1]).unwrap_err();
        assert_eq!(error.status(), Some(Status::NameTooLong));
    }
}
