//! The calling side: [`ClientFlavor`], and how it negotiates with a server.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::timeout;
use xdr::{Decode, Decoder, Encode, Encoder, Message};

use super::Tampered;
use crate::{
    AcceptStat, AuthStat, AuthSys, BoxFuture, ClientError, OpaqueAuth, ReplyBody, ReplyHeader, ReplyPlan, Transport,
    Xid,
    msg::{CALL, RPC_VERSION},
};

/// What a client presents.
#[derive(Clone, Debug)]
pub enum Credential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(AuthSys),
    /// Another flavour, for one user.
    Flavor(Arc<dyn ClientFlavor>),
}

/// A security flavour on the calling side, for one user and one server.
pub trait ClientFlavor: fmt::Debug + Send + Sync + 'static {
    /// Begins one transmission of a call. `encoder` holds the call's header up to its procedure; credential and verifier are
    /// to be appended. A retransmission is another transmission.
    ///
    /// # Errors
    /// [`refresh`](Self::refresh) is needed first.
    fn begin(&self, encoder: &mut Encoder) -> Result<Box<dyn Transmission>, NotReady>;

    /// Makes [`begin`](Self::begin) possible: negotiates with the server, over the connection of the call that needs it or in
    /// its own way. Several calls may ask at a time.
    ///
    /// # Errors
    /// There is no way to authenticate to this server. The calls that need it end with this error.
    fn refresh<'a>(&'a self, channel: Channel<'a>) -> BoxFuture<'a, Result<(), ClientError>>;

    /// The server has refused a transmission. Returns whether another one has a chance, after a
    /// [`refresh`](Self::refresh) if [`begin`](Self::begin) asks for it.
    fn denied(&self, transmission: &dyn Transmission, stat: AuthStat) -> bool;

    /// Whether arguments and results are wrapped. If so, no payload may be placed.
    fn wraps(&self) -> bool {
        false
    }

    /// Bytes that a reply can be longer than with AUTH_NONE: its verifier, and what wrapping adds.
    fn reply_growth(&self) -> usize;
}

/// The client has nothing with which to call this server now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotReady;

/// Protects one transmission of a call, and knows its reply.
pub trait Transmission: Send + Sync {
    /// The context that it was made in, for [`ClientFlavor::denied`]; the flavour's own number.
    fn context(&self) -> u64 {
        0
    }

    /// Appends the arguments as they are sent to the call's header.
    ///
    /// # Errors
    /// They cannot be wrapped: nothing is sent.
    fn wrap(&self, arguments: Bytes, call: &mut Encoder) -> Result<(), Tampered> {
        call.raw(&arguments);
        Ok(())
    }

    /// Whether this is the verifier of the reply to this transmission.
    fn verifies(&self, verifier: &OpaqueAuth) -> bool;

    /// The results in clear.
    ///
    /// # Errors
    /// They are not what the server has wrapped.
    fn unwrap(&self, results: Bytes) -> Result<Bytes, Tampered> {
        Ok(results)
    }
}

/// Carries the exchanges of a flavour: calls of procedure 0, over the connection of the call that needs them.
#[derive(Clone, Copy)]
pub struct Channel<'a> {
    pub(crate) transport: &'a dyn Transport,
    pub(crate) next_xid: &'a (dyn Fn() -> Xid + Sync),
    /// Program and version of the call.
    pub(crate) program: (u32, u32),
    /// When to send again over a transport that loses messages.
    pub(crate) retransmit: Duration,
}

/// The reply to an exchange of a flavour.
#[derive(Clone, Debug)]
pub struct ControlReply {
    /// Its verifier.
    pub verifier: OpaqueAuth,
    /// Its results, as XDR.
    pub results: Bytes,
}

impl Channel<'_> {
    /// Calls procedure 0 with a credential and a verifier made by the flavour; `sign` computes the verifier from the
    /// bytes that it covers. Arguments and results are XDR of at most 64 KiB and a little.
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
            let reply = self.transport.call(call.clone(), plan());
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

/// A call's header up to its procedure, with room for so many bytes in all.
pub(crate) fn encode_start(xid: Xid, (program, version, procedure): (u32, u32, u32), capacity: usize) -> Encoder {
    let mut encoder = Encoder::with_capacity(capacity);
    [xid.0, CALL, RPC_VERSION, program, version, procedure].into_iter().for_each(|word| encoder.u32(word));
    encoder
}

/// Tokens have at most 64 KiB.
const CONTROL_MAX: usize = (64 << 10) + 1024;
