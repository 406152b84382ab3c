//! [`Reverse`]: a server's calls to its client, over the connection that the client opened.
//!
//! NFSv4.1 makes callbacks in this way (RFC 8881 §2.10.3.1); RFC 8167 defines it for RDMA. The task that serves the
//! connection drives it. This module retries nothing and opens no connection; the client must reconnect.

use std::{
    hash::BuildHasher,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use entropy::{RandomState, Sequence};
use tokio::time::timeout;
use xdr::{Decode, Encode};

use crate::{
    Answer, CallFailed, ClientError, ConnectionId, Credential, DeadlinePassed, ReplyPlan, Transport, TransportError,
    Xid,
    client::{RETRANSMIT_MAX, attempt},
    request::{Auth, Request, decode},
    security::{Channel, VerifiedReply},
};

/// The other end of a connection, as the target of callbacks. It does not keep the connection open; after the
/// connection is closed, calls fail.
#[derive(Clone)]
pub struct Reverse {
    connection: ConnectionId,
    transport: Weak<dyn Transport>,
}

/// The program that is called, with the caller's credential.
#[derive(Clone)]
pub struct ReverseTarget {
    /// The program number.
    pub program: u32,
    /// The program version.
    pub version: u32,
    auth: Auth,
}

impl ReverseTarget {
    /// Creates a target: a program of the peer, and the credential of the caller.
    pub fn new(program: u32, version: u32, credential: &Credential) -> Self {
        Self { program, version, auth: Auth::new(credential) }
    }
}

impl Reverse {
    /// Creates the other end of a connection.
    pub fn new(connection: ConnectionId, transport: &Arc<dyn Transport>) -> Self {
        Self { connection, transport: Arc::downgrade(transport) }
    }

    /// Returns the ID of the connection.
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// Returns the transport's name and the peer's address, or `None` if the connection is closed.
    pub fn peer(&self) -> Option<(&'static str, SocketAddr)> {
        self.transport.upgrade().map(|transport| (transport.caps().name, transport.peer()))
    }

    /// Calls a procedure and waits for its results until `deadline` has passed. Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`ClientError::Transport`] if the connection is closed, or if its transport does not support calls in this
    /// direction.
    pub async fn call<R: Decode>(
        &self,
        target: &ReverseTarget,
        procedure: u32,
        arguments: &impl Encode,
        (mut plan, deadline): (ReplyPlan, Duration),
    ) -> Result<Answer<R>, CallFailed> {
        let Some(transport) = self.transport.upgrade() else {
            let error = ClientError::Transport(TransportError::Lost("the connection is closed".to_owned()));
            return Err(CallFailed { error, sink: plan.sink });
        };
        let procedure = (target.program, target.version, procedure);
        let request = Request::new(next_xid(), procedure, &target.auth, arguments);
        match timeout(deadline, exchange(&transport, &request, &mut plan)).await {
            Ok(Ok(VerifiedReply { reply, is_bare })) => match decode(&reply.message, is_bare) {
                Ok(results) => Ok(Answer { results, sink: reply.sink }),
                Err(error) => Err(CallFailed { error, sink: None }),
            },
            Ok(Err(error)) => Err(CallFailed { error, sink: plan.sink }),
            Err(_) => {
                let passed = DeadlinePassed {
                    server: transport.peer(),
                    transport: transport.caps().name,
                    procedure,
                    after: deadline,
                    last: None,
                };
                Err(CallFailed { error: ClientError::Deadline(Box::new(passed)), sink: None })
            }
        }
    }
}

async fn exchange(
    transport: &Arc<dyn Transport>,
    request: &Request<'_>,
    plan: &mut ReplyPlan,
) -> Result<VerifiedReply, ClientError> {
    match request {
        Request::Plain(message) => {
            let reply = attempt(transport, message.clone(), plan).await.map_err(ClientError::Transport)?;
            Ok(VerifiedReply { reply, is_bare: false })
        }
        Request::Protected(call) => {
            let (program, version, _) = call.target;
            let channel =
                Channel { transport, next_xid: &next_xid, program: (program, version), retransmit: RETRANSMIT_MAX };
            Box::pin(call.exchange(channel, plan)).await
        }
    }
}

/// Returns the next XID. All connections share one sequence: several callers can share a connection, and must not use
/// the same XID at the same time.
fn next_xid() -> Xid {
    static CALLS: Sequence = Sequence::new();
    let first = RandomState::of_process().hash_one("xid") as u32;
    Xid(first.wrapping_add(CALLS.next() as u32))
}
