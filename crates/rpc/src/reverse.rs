//! [`Reverse`]: a server's calls to its client, over the connection that the client has made.
//!
//! RFC 8881 §2.10.3.1 carries NFSv4.1's callbacks so, and RFC 8167 says how over RDMA. The driver of the connection is
//! whoever serves it. Nothing is retried here, and no new connection is made: that is for the client to do.

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
    client::{Auth, RETRANSMIT_MAX, Request, attempt, decode},
    security::{Channel, Genuine},
};

/// The other end of a connection, as one to call. It does not keep the connection: when that is over, calls fail.
#[derive(Clone)]
pub struct Reverse {
    connection: ConnectionId,
    transport: Weak<dyn Transport>,
}

/// What is called, and by whom.
#[derive(Clone)]
pub struct ReverseTarget {
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    auth: Auth,
}

impl ReverseTarget {
    /// A program of the peer, for a caller of this credential.
    pub fn new(program: u32, version: u32, credential: &Credential) -> Self {
        Self { program, version, auth: Auth::new(credential) }
    }
}

impl Reverse {
    /// The other end of this connection.
    pub fn new(connection: ConnectionId, transport: &Arc<dyn Transport>) -> Self {
        Self { connection, transport: Arc::downgrade(transport) }
    }

    /// Which connection it is.
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// By which transport and from where the peer has come, as long as it is there.
    pub fn peer(&self) -> Option<(&'static str, SocketAddr)> {
        self.transport.upgrade().map(|transport| (transport.caps().name, transport.peer()))
    }

    /// Calls a procedure, and waits for its results for so long. Dropping the future gives up the call.
    ///
    /// # Errors
    /// [`ClientError::Transport`] if the connection is over, or calls cannot go this way by it.
    pub async fn call<R: Decode>(
        &self,
        target: &ReverseTarget,
        procedure: u32,
        arguments: &impl Encode,
        (mut plan, deadline): (ReplyPlan, Duration),
    ) -> Result<Answer<R>, CallFailed> {
        let Some(transport) = self.transport.upgrade() else {
            let error = ClientError::Transport(TransportError::Lost("it is over".to_owned()));
            return Err(CallFailed { error, sink: plan.sink });
        };
        let procedure = (target.program, target.version, procedure);
        let request = Request::new(next_xid(), procedure, &target.auth, arguments);
        match timeout(deadline, exchange(&*transport, &request, &mut plan)).await {
            Ok(Ok(Genuine { reply, is_bare })) => match decode(&reply.message, is_bare) {
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
    transport: &dyn Transport,
    request: &Request<'_>,
    plan: &mut ReplyPlan,
) -> Result<Genuine, ClientError> {
    match request {
        Request::Plain(message) => {
            let reply = attempt(transport, message.clone(), plan).await.map_err(ClientError::Transport)?;
            Ok(Genuine { reply, is_bare: false })
        }
        Request::Protected(call) => {
            let (program, version, _) = call.target;
            let channel =
                Channel { transport, next_xid: &next_xid, program: (program, version), retransmit: RETRANSMIT_MAX };
            Box::pin(call.exchange(channel, plan)).await
        }
    }
}

/// One sequence for all connections: several callers may share one, and must not use an XID twice at a time.
fn next_xid() -> Xid {
    static CALLS: Sequence = Sequence::new();
    let first = RandomState::of_process().hash_one("xid") as u32;
    Xid(first.wrapping_add(CALLS.next() as u32))
}
