//! The client side: [`ClientFlavor`], and its negotiation with a server.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit, time::timeout};
use xdr::{Decode, Decoder, Encode, Encoder, Message};

use super::Tampered;
use crate::{
    AcceptStat, AuthStat, AuthSys, BoxFuture, ClientError, OpaqueAuth, ReplyBody, ReplyHeader, ReplyPlan, Transport,
    Xid,
    msg::{CALL, RPC_VERSION},
};

/// The credential of a client.
#[derive(Clone, Debug)]
pub enum Credential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(AuthSys),
    /// Another flavour, for one user.
    Flavor(Arc<dyn ClientFlavor>),
}

/// A security flavour on the client side, for one user and one server.
pub trait ClientFlavor: fmt::Debug + Send + Sync + 'static {
    /// Begins one transmission of a call. `encoder` holds the call's header up to its procedure; the flavour appends
    /// credential and verifier. A retransmission is another transmission.
    ///
    /// # Errors
    /// [`refresh`](Self::refresh) must be called first.
    fn begin(&self, encoder: &mut Encoder) -> Result<Box<dyn Transmission>, NotReady>;

    /// Waits until the server permits another outstanding call in the present context, and returns a place for the call.
    /// The inner result is `None` if there is no context yet. Returns `None` if the flavour has no such limit.
    fn place(&self) -> Option<BoxFuture<'_, Option<Place>>> {
        None
    }

    /// Notes the connection over which the next transmissions travel, for the flavour's [`LastMessage`].
    fn note_connection(&self, channel: Channel<'_>) {
        let _ = channel;
    }

    /// Negotiates with the server, so that [`begin`](Self::begin) succeeds. It uses the connection of the call that
    /// needs it, or another way. Several calls can run this at the same time.
    ///
    /// # Errors
    /// The user cannot be authenticated to this server. The calls that wait for this fail with the error.
    fn refresh<'a>(&'a self, channel: Channel<'a>) -> BoxFuture<'a, Result<(), ClientError>>;

    /// Handles a transmission that the server has rejected. Returns `true` if another transmission can succeed, after a
    /// [`refresh`](Self::refresh) if [`begin`](Self::begin) requires it.
    fn denied(&self, transmission: &dyn Transmission, stat: AuthStat) -> bool;

    /// Returns `true` if arguments and results are wrapped. Then no payload can be placed.
    fn wraps(&self) -> bool {
        false
    }

    /// Returns the maximum number of bytes by which a reply is longer than with AUTH_NONE: its verifier, and what
    /// wrapping adds.
    fn reply_growth(&self) -> usize;
}

/// A call's place among those that a context permits at the same time. It is free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    /// The context, as in [`Transmission::context`].
    pub context: u64,
    /// The place.
    pub permit: OwnedSemaphorePermit,
}

/// The error that the flavour has no context with which to call the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotReady;

/// The protection of one transmission of a call and of its reply.
pub trait Transmission: Send + Sync {
    /// Returns the context in which the transmission was made, for [`ClientFlavor::denied`]. The flavour defines the
    /// number.
    fn context(&self) -> u64 {
        0
    }

    /// Appends the arguments, in the form that is sent, to the call's header.
    ///
    /// # Errors
    /// The arguments cannot be wrapped; nothing is sent.
    fn wrap(&self, arguments: Bytes, call: &mut Encoder) -> Result<(), Tampered> {
        call.raw(&arguments);
        Ok(())
    }

    /// Returns `true` if `verifier` is the verifier of the reply to this transmission.
    fn verifies(&self, verifier: &OpaqueAuth) -> bool;

    /// Unwraps the results.
    ///
    /// # Errors
    /// The results differ from what the server has wrapped.
    fn unwrap(&self, results: Bytes) -> Result<Bytes, Tampered> {
        Ok(results)
    }
}

/// The connection for the exchanges of a flavour: calls of procedure 0, over the connection of the call that needs
/// them.
#[derive(Clone, Copy)]
pub struct Channel<'a> {
    pub(crate) transport: &'a Arc<dyn Transport>,
    pub(crate) next_xid: &'a (dyn Fn() -> Xid + Sync),
    /// The program and version of the call.
    pub(crate) program: (u32, u32),
    /// The time until the first retransmission over a transport that loses messages.
    pub(crate) retransmit: Duration,
}

/// The reply to an exchange of a flavour.
#[derive(Clone, Debug)]
pub struct ControlReply {
    /// The verifier.
    pub verifier: OpaqueAuth,
    /// The results, as XDR.
    pub results: Bytes,
}

/// The connection for the last message of a flavour, after its calls. It does not keep the connection open.
#[derive(Debug)]
pub struct LastMessage {
    transport: Weak<dyn Transport>,
    xid: Xid,
    program: (u32, u32),
}

impl LastMessage {
    /// Returns `true` if the message would use the connection of `channel`.
    pub fn is_over(&self, channel: Channel<'_>) -> bool {
        std::ptr::addr_eq(self.transport.as_ptr(), Arc::as_ptr(channel.transport))
    }

    /// Calls procedure 0 with a credential and a verifier of the flavour, without arguments. `sign` computes the verifier
    /// from the bytes that it covers. Nobody waits for the reply: the message is queued before this function returns, so that it
    /// is sent even if the connection is closed next. Does nothing if the connection is closed already, or outside of
    /// a tokio runtime.
    pub fn send(&self, credential: &OpaqueAuth, sign: impl FnOnce(&[u8]) -> Option<OpaqueAuth>) {
        let (Some(transport), Ok(runtime)) = (self.transport.upgrade(), Handle::try_current()) else { return };
        let mut encoder = encode_start(self.xid, (self.program.0, self.program.1, 0), 512);
        credential.encode(&mut encoder);
        let Some(verifier) = sign(encoder.written(0)) else { return };
        verifier.encode(&mut encoder);
        let plan = ReplyPlan { inline_max: CONTROL_MAX, ..ReplyPlan::default() };
        let mut reply = transport.call(encoder.finish(), plan);
        // A call is queued when it is first polled.
        if (&mut reply).now_or_never().is_none() {
            runtime.spawn(timeout(LAST_MESSAGE_MAX, reply));
        }
    }
}

impl Channel<'_> {
    /// Prepares the last message of the flavour over this connection.
    pub fn last_message(&self) -> LastMessage {
        LastMessage { transport: Arc::downgrade(self.transport), xid: (self.next_xid)(), program: self.program }
    }

    /// Calls procedure 0 with a credential and a verifier of the flavour. `sign` computes the verifier from the bytes
    /// that it covers. Arguments and results are XDR, of at most 64 KiB plus 1 KiB.
    ///
    /// # Errors
    /// The connection was lost, or the server did not accept the call.
    pub async fn call(
        &self,
        credential: &OpaqueAuth,
        sign: impl FnOnce(&[u8]) -> OpaqueAuth,
        arguments: &[u8],
    ) -> Result<ControlReply, ClientError> {
        let mut encoder = encode_start((self.next_xid)(), (self.program.0, self.program.1, 0), 512 + arguments.len());
        credential.encode(&mut encoder);
        sign(encoder.written(0)).encode(&mut encoder);
        encoder.raw(arguments);
        let reply = self.exchange(encoder.finish()).await?;
        let mut decoder = Decoder::new(&reply);
        let header = ReplyHeader::decode(&mut decoder).map_err(ClientError::Decode)?;
        match header.body {
            ReplyBody::Accepted { verifier, stat: AcceptStat::Success } => {
                Ok(ControlReply { verifier, results: decoder.take_rest() })
            }
            ReplyBody::Accepted { stat, .. } => Err(ClientError::NotExecuted(stat)),
            ReplyBody::Denied(stat) => Err(ClientError::Denied(stat)),
        }
    }

    async fn exchange(&self, call: Message) -> Result<Message, ClientError> {
        let plan = || ReplyPlan { inline_max: CONTROL_MAX, ..ReplyPlan::default() };
        let mut pause = self.retransmit;
        loop {
            let reply = self.transport.clone().call(call.clone(), plan());
            let reply = match self.transport.caps().lossy {
                false => reply.await,
                true => match timeout(pause, reply).await {
                    Ok(reply) => reply,
                    Err(_) => {
                        pause = (pause * 2).min(crate::client::RETRANSMIT_MAX);
                        continue;
                    }
                },
            };
            return reply.map(|reply| reply.message).map_err(|failed| ClientError::Transport(failed.error));
        }
    }
}

/// Encodes a call's header up to its procedure, with room for `capacity` bytes in total.
pub(crate) fn encode_start(xid: Xid, (program, version, procedure): (u32, u32, u32), capacity: usize) -> Encoder {
    let mut encoder = Encoder::with_capacity(capacity);
    encoder.words([xid.0, CALL, RPC_VERSION, program, version, procedure]);
    encoder
}

/// The time for which the reply to a last message is awaited. The call then ends, which frees what the transport keeps for it.
const LAST_MESSAGE_MAX: Duration = Duration::from_secs(5);
/// Maximum bytes of a reply: a token of 64 KiB, and its header.
const CONTROL_MAX: usize = (64 << 10) + 1024;
