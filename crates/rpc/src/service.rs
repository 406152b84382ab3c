//! An RPC program on the serving side.

use std::{net::SocketAddr, ops::RangeInclusive, sync::Arc};

use xdr::{Decoder, Encoder, Message};

use crate::{BoxFuture, Identity, REPLY_HEADER_LEN, Reverse, Transport, Xid};

/// An RPC program: some versions of it, each with procedures.
///
/// The [crate's documentation](crate) has an example.
pub trait Service: Send + Sync + 'static {
    /// The program number.
    fn program(&self) -> u32;

    /// The versions it speaks.
    fn versions(&self) -> RangeInclusive<u32>;

    /// What is known of a procedure; `None` if there is no such one.
    fn procedure(&self, version: u32, procedure: u32) -> Option<Procedure>;

    /// Whether executing a call twice is the same as once: of a procedure that is many, only its arguments tell.
    fn is_idempotent(&self, procedure: &Procedure, arguments: &Decoder<'_>) -> bool {
        let _ = arguments;
        procedure.idempotent
    }

    /// Executes a call. The results are encoded by [`Call::reply`], or otherwise *behind the [`REPLY_HEADER_LEN`] bytes that
    /// [`Call::encoder`] has begun with*, so that payload positions count from the XID. A reply with another verifier gets
    /// another header when it is sent; the positions are moved then.
    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a>;

    /// A connection begins. Every service of its server hears of it, once, before any call; `peer` is for calling the
    /// other end later.
    fn connected(&self, peer: &Reverse) {
        let _ = peer;
    }

    /// A connection is over, and so are all calls that came by it. Every service of its server hears of it, once,
    /// whether or not it was ever called by that connection.
    fn disconnected(&self, connection: ConnectionId) {
        let _ = connection;
    }
}

/// The results of a call, now or later.
pub enum Answering<'a> {
    /// Now.
    Ready(Result<Message, AcceptError>),
    /// Later, or not before the future is polled.
    Pending(BoxFuture<'a, Result<Message, AcceptError>>),
}

impl<'a> IntoFuture for Answering<'a> {
    type Output = Result<Message, AcceptError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        match self {
            Answering::Ready(results) => Box::pin(std::future::ready(results)),
            Answering::Pending(results) => results,
        }
    }
}

/// Names a connection among all that this process has served, and is never the name of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// What is known of a procedure.
#[derive(Clone, Copy, Debug)]
pub struct Procedure {
    /// Its name in the specification, for logs and counters.
    pub name: &'static str,
    /// Whether executing it twice is the same as once. Others are remembered in the duplicate request cache.
    pub idempotent: bool,
}

/// A call whose header has been read.
pub struct Call<'a> {
    /// Its XID.
    pub xid: Xid,
    /// Program version; one of [`Service::versions`].
    pub version: u32,
    /// Procedure; one that [`Service::procedure`] knows.
    pub procedure: u32,
    /// Who calls.
    pub caller: &'a Identity,
    /// Whether arguments and results are wrapped on their way. No payload of them is placed then, and none is sent from a file.
    pub is_wrapped: bool,
    /// From where.
    pub peer: SocketAddr,
    /// The connection it came by; for a datagram socket that serves many, that socket.
    pub connection: ConnectionId,
    /// What carries that connection. Who keeps it, to call back by it later, keeps the connection's memory after its
    /// end, too: a [`Weak`](std::sync::Weak) reference is better, as in [`Reverse`](crate::Reverse).
    pub transport: &'a Arc<dyn Transport>,
    /// Stands at the arguments. Payload positions count from the XID.
    pub arguments: Decoder<'a>,
}

/// Why a call was accepted but not executed (RFC 5531 §9, `accept_stat`); the rest is decided before a service sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptError {
    /// The arguments are not what the procedure takes.
    GarbageArgs,
    /// The server cannot execute it: out of memory, or broken.
    SystemErr,
    /// No reply at all: the caller shall try again (RFC 1813 §2.7 leaves this to the server).
    Drop,
}

impl From<xdr::DecodeError> for AcceptError {
    fn from(_: xdr::DecodeError) -> Self {
        AcceptError::GarbageArgs
    }
}

impl Call<'_> {
    /// An encoder in which the header of a successful reply with the AUTH_NONE verifier has been written: most replies are sent
    /// with it.
    pub fn encoder(&self) -> Encoder {
        let mut encoder = Encoder::with_capacity(256);
        // RFC 5531 §9: xid, REPLY, MSG_ACCEPTED, verifier AUTH_NONE of no bytes, SUCCESS.
        [self.xid.0, 1, 0, 0, 0, 0].into_iter().for_each(|word| encoder.u32(word));
        debug_assert_eq!(encoder.stream_len(), REPLY_HEADER_LEN);
        encoder
    }

    /// Whether a payload of the results may be a range of a file.
    pub fn takes_file_ranges(&self) -> bool {
        self.transport.caps().file_ranges && !self.is_wrapped
    }

    /// A successful reply with these results.
    pub fn reply(&self, results: &impl xdr::Encode) -> Message {
        let mut encoder = self.encoder();
        results.encode(&mut encoder);
        encoder.finish()
    }
}
