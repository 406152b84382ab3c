//! [`Compound`]: the operations of one request and what is known of its reply, and [`Results`], its results in order.
//!
//! Read RFC 8881 §16.2: a compound ends with its first failure, so results are those of successes, but for the last.

use std::sync::Arc;

use bytes::Bytes;
use nfs::v4::{
    Argop4, Bitmap4, Component4, GetAttrArgs, LookupArgs, Nfsstat4, Opnum4, PutFhArgs, Resop4,
    attr::Attr4,
    compound::{CompoundHead, CompoundRes, OperationCount, Tag},
};
use rpc::{ReplyHeader, ReplyPlan};
use xdr::{Decode, Encode, Encoder, Located, Message, Opaque};

use crate::model::{Error, ErrorKind, Handle, Result, Status};

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Compound {
    /// After SEQUENCE, which the session puts first.
    pub ops: Vec<Argop4>,
    /// Most bytes of the reply without payload.
    pub reply_max: usize,
    /// Most bytes of its payload.
    pub payload_max: usize,
    /// Whether the payload is the last item, so that it can be located while it arrives.
    pub payload_last: bool,
    /// Whether executing it twice could differ from once: the server must keep the reply (RFC 8881 §2.10.6.1.3).
    pub cache: bool,
    /// Counts the operations of the owner of locks that it names, in version 4.0.
    pub locker: Option<Counter>,
    /// What it is called in errors, where an operation does not say it.
    pub name: &'static str,
}

impl Compound {
    pub fn new(name: &'static str) -> Self {
        let (ops, reply_max) = (Vec::with_capacity(4), REPLY_BASE);
        Self { ops, reply_max, payload_max: 0, payload_last: false, cache: false, locker: None, name }
    }

    /// A request on an object.
    pub fn on(name: &'static str, handle: &Handle) -> Self {
        Self::new(name).put_fh(handle)
    }

    /// Adds an operation whose result has at most `result_max` bytes.
    pub fn op(mut self, op: Argop4, result_max: usize) -> Self {
        self.ops.push(op);
        self.reply_max += RESULT_HEAD + result_max;
        self
    }

    pub fn put_fh(self, handle: &Handle) -> Self {
        self.op(Argop4::PutFh(PutFhArgs { object: handle.clone() }), 0)
    }

    pub fn lookup(self, name: Component4) -> Self {
        self.op(Argop4::Lookup(LookupArgs { objname: name }), 0)
    }

    pub fn get_fh(self) -> Self {
        //= rfc8881-18.16.4.1-1
        self.op(Argop4::GetFh, 4 + nfs::v4::FHSIZE4)
    }

    pub fn get_attr(self, attributes: &[Attr4]) -> Self {
        let attr_request = attributes.iter().map(|&attribute| attribute as u32).collect::<Bitmap4>();
        self.op(Argop4::GetAttr(GetAttrArgs { attr_request }), ATTRS_MAX)
    }

    /// The server keeps the reply.
    pub fn once(mut self) -> Self {
        self.cache = true;
        self
    }

    /// With an operation of an owner of locks.
    pub fn locker(mut self, counter: Counter) -> Self {
        self.locker = Some(counter);
        self
    }

    /// With data of at most so many bytes in the reply.
    pub fn payload(mut self, payload_max: usize, last: bool) -> Self {
        (self.payload_max, self.payload_last) = (payload_max, last);
        self
    }

    /// What is known of its reply.
    pub fn plan(&self) -> ReplyPlan {
        // Finds the data in the first bytes of the reply.
        let locate = (self.payload_max > 0 && self.payload_last).then_some(locate as fn(&Bytes) -> Option<Located>);
        ReplyPlan { inline_max: self.reply_max, payload_max: self.payload_max, sink: None, locate }
    }
}

/// A request as it travels: the arguments of COMPOUND, of which the operations need not be had in one place.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub minor: u32,
    /// SEQUENCE, where there are sessions.
    pub first: Option<&'a Argop4>,
    pub ops: &'a [Argop4],
}

impl Encode for Request<'_> {
    fn encode(&self, encoder: &mut Encoder) {
        let count = usize::from(self.first.is_some()) + self.ops.len();
        let operations = OperationCount(u32::try_from(count).expect("few operations"));
        CompoundHead { tag: Tag::default(), minorversion: self.minor, operations }.encode(encoder);
        self.first.into_iter().chain(self.ops).for_each(|operation| operation.encode(encoder));
    }
}

fn locate(prefix: &Bytes) -> Option<Located> {
    Message::locate::<CompoundRes>(prefix, |decoder| ReplyHeader::decode(decoder).map(drop))
}

/// A name for an operation.
///
/// # Errors
/// It is too long for any server.
pub(crate) fn component(name: &[u8]) -> Result<Component4> {
    if name.len() > nfs::v4::NAME_BOUND {
        return Err(Error::refused(Status::NameTooLong, "name"));
    }
    Ok(Opaque(Bytes::copy_from_slice(name)))
}

/// The results of a request that succeeded, SEQUENCE's aside.
#[derive(Debug)]
pub(crate) struct Results {
    results: std::vec::IntoIter<Resop4>,
    name: &'static str,
}

impl Results {
    pub fn new(results: std::vec::IntoIter<Resop4>, name: &'static str) -> Self {
        Self { results, name }
    }

    /// The next result.
    ///
    /// # Errors
    /// There is none.
    pub fn next(&mut self) -> Result<Resop4> {
        self.results.next().ok_or_else(|| self.nonsense("a result is missing"))
    }

    /// Passes over the results of operations that say nothing else than that they succeeded.
    ///
    /// # Errors
    /// Other results are there.
    pub fn skip(&mut self, opnums: &[Opnum4]) -> Result<()> {
        for &opnum in opnums {
            if self.next()?.opnum() != opnum {
                return Err(self.nonsense("results that are not those of what was called"));
            }
        }
        Ok(())
    }

    pub fn nonsense(&self, problem: &str) -> Error {
        Error::new(ErrorKind::Protocol(problem.to_owned()), self.name)
    }
}

/// The value of the next result, which must be of this operation.
macro_rules! value {
    ($results:expr, $name:ident) => {{
        let results: &mut $crate::session::compound::Results = &mut $results;
        match results.next() {
            Ok(nfs::v4::Resop4::$name(nfs::v4::Res4::Ok(value))) => Ok(value),
            Ok(_) => Err(results.nonsense("results that are not those of what was called")),
            Err(error) => Err(error),
        }
    }};
}
pub(crate) use value;

/// The error of a status.
pub(crate) fn failure(status: Nfsstat4, operation: &'static str) -> Error {
    Error::of_status(status, operation)
}

/// The number of an owner's next operation in version 4.0; locked while one is outstanding.
pub(crate) type Counter = Arc<tokio::sync::Mutex<u32>>;

/// The outcome of one attempt at a request.
pub(crate) enum Outcome {
    /// The server has executed the request, or kept its reply.
    Answered(CompoundRes),
    /// The request cannot be attempted again.
    Failed(Error),
    /// The connection was lost.
    Disconnected(Error),
    /// There was no connection until the deadline.
    NoConnection,
    /// There was no slot until the deadline.
    NoSlot,
    /// The server is executing the request, or is busy.
    SlotBusy,
    /// The connection is not bound to the session.
    Unbound,
    /// The server has executed the request, and has not kept its reply.
    Uncached,
    /// The server has forgotten this client or its session: the request is to be made again after recovery.
    Lost,
    /// The server has forgotten this client, and the request names state that is lost: this is the answer, after recovery.
    Outdated(CompoundRes),
}

/// Bytes of a reply's RPC header with the longest verifier, the compound's head and SEQUENCE.
const REPLY_BASE: usize = 24 + 400 + 16 + 48;
/// Bytes of a result that has nothing but a status.
const RESULT_HEAD: usize = 8;
/// Bytes of the attributes that we ask for: numbers, and the names of owner and group.
const ATTRS_MAX: usize = 512;
