//! RPC programs on the server side.

use std::{net::SocketAddr, ops::RangeInclusive, sync::Arc, time::Instant};

use xdr::{Decoder, Encoder, Message};

use crate::{BoxFuture, Identity, REPLY_HEADER_LEN, Reverse, Transport, Xid};

/// An RPC program: one or more versions of it, each with its procedures.
///
/// The [crate's documentation](crate) has an example.
pub trait Service: Send + Sync + 'static {
    /// Returns the program number.
    fn program(&self) -> u32;

    /// Returns the range of supported versions.
    fn versions(&self) -> RangeInclusive<u32>;

    /// Returns `true` if these versions must not be called over a transport that loses messages, such as UDP. They do not exist there
    /// for callers.
    fn needs_reliability(&self) -> bool {
        false
    }

    /// Returns the properties of a procedure, or `None` if the version has no such procedure.
    fn procedure(&self, version: u32, procedure: u32) -> Option<Procedure>;

    /// Returns `true` if executing the call twice has the same effect as executing it once. Override this for a
    /// procedure that represents several operations, whose arguments decide.
    fn is_idempotent(&self, procedure: &Procedure, arguments: &Decoder<'_>) -> bool {
        let _ = arguments;
        procedure.idempotent
    }

    /// Executes a call. The results are encoded by [`Call::reply`], or *behind the [`REPLY_HEADER_LEN`] bytes with
    /// which [`Call::encoder`] begins*, so that payload positions count from the XID. A reply with another verifier
    /// gets another header when it is sent, and the positions are moved then.
    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a>;

    /// Reports that a connection was opened. Each service of the server is called once, before any call arrives on that
    /// connection. `peer` makes callbacks to the other end later.
    fn connected(&self, peer: &Reverse) {
        let _ = peer;
    }

    /// Reports that a connection was closed; no call of that connection is in progress any more. Each service of the
    /// server is called once, even if it never got a call on that connection.
    fn disconnected(&self, connection: ConnectionId) {
        let _ = connection;
    }
}

/// The results of a call, or a future of them.
pub enum Answering<'a> {
    /// The results.
    Ready(Result<Message, AcceptError>),
    /// A future of the results. It executes the call, or the rest of it, when it is polled.
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

/// The number of a connection. It is unique among all connections that this process has served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The properties of a procedure.
#[derive(Clone, Copy, Debug)]
pub struct Procedure {
    /// The name in the specification, for logs and counters.
    pub name: &'static str,
    /// `true` if executing the procedure twice has the same effect as once. The duplicate request cache stores the
    /// results of all other procedures.
    pub idempotent: bool,
}

/// A call whose header has been decoded.
pub struct Call<'a> {
    /// The XID.
    pub xid: Xid,
    /// The program version; one of [`Service::versions`].
    pub version: u32,
    /// The procedure; one for which [`Service::procedure`] returns `Some`.
    pub procedure: u32,
    /// The identity of the caller.
    pub caller: &'a Identity,
    /// `true` if arguments and results are wrapped in transmission. Then no payload of them is placed, and none is sent
    /// from a file.
    pub is_wrapped: bool,
    /// The address of the caller.
    pub peer: SocketAddr,
    /// The time at which the connection's turn began in which the call arrived, by the clock of the runtime. Calls that
    /// arrive together share it, so that the clock is read once for all of them.
    pub arrived: Instant,
    /// The connection on which the call arrived. All peers of a datagram socket have the same number.
    pub connection: ConnectionId,
    /// The transport of that connection. To call back later, keep a [`Weak`](std::sync::Weak) reference, as
    /// [`Reverse`](crate::Reverse) does: a strong one keeps the connection's memory after the connection is closed.
    pub transport: &'a Arc<dyn Transport>,
    /// A decoder at the start of the arguments. Payload positions count from the XID.
    pub arguments: Decoder<'a>,
}

/// The reason why a call was accepted but not executed (RFC 5531 §9, `accept_stat`). The server decides the other
/// reasons before a service sees the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptError {
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// The server cannot execute the call, for example because memory is exhausted.
    SystemErr,
    /// The server sends no reply, and the caller retransmits (RFC 1813 §2.7 leaves this to the server).
    Drop,
}

impl From<xdr::DecodeError> for AcceptError {
    fn from(_: xdr::DecodeError) -> Self {
        AcceptError::GarbageArgs
    }
}

impl Call<'_> {
    /// Creates an encoder that begins with the header of a successful reply with the AUTH_NONE verifier. Most replies
    /// are sent with that header.
    pub fn encoder(&self) -> Encoder {
        let mut encoder = Encoder::with_capacity(REPLY_CAPACITY);
        // RFC 5531 §9: xid, REPLY, MSG_ACCEPTED, verifier AUTH_NONE of no bytes, SUCCESS.
        encoder.words([self.xid.0, 1, 0, 0, 0, 0]);
        debug_assert_eq!(encoder.stream_len(), REPLY_HEADER_LEN);
        encoder
    }

    /// Returns `true` if a payload of the results can be a range of a file.
    pub fn takes_file_ranges(&self) -> bool {
        self.transport.caps().file_ranges && !self.is_wrapped
    }

    /// Encodes a successful reply with `results`.
    pub fn reply(&self, results: &impl xdr::Encode) -> Message {
        let mut encoder = self.encoder();
        results.encode(&mut encoder);
        encoder.finish()
    }
}

/// The initial capacity of a reply, in bytes. The reply to a CREATE of NFSv3 has 280 with a file handle of 38 bytes.
const REPLY_CAPACITY: usize = 320;
