//! [`Reverse`]: a server's calls to its client, over the connection that the client has made.
//!
//! RFC 8881 §2.10.3.1 carries NFSv4.1's callbacks so, and RFC 8167 says how over RDMA. The driver of the connection is
//! whoever serves it. Nothing is retried here, and no new connection is made: that is for the client to do.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::time::timeout;
use xdr::{Decode, Encode};

use crate::{
    Answer, CallFailed, ClientError, ConnectionId, Credential, DeadlinePassed, ReplyPlan, Transport, TransportError,
    Xid,
    client::{decode, encode_auth, encode_call},
};

/// The other end of a connection, as one to call. It does not keep the connection: when that is over, calls fail.
#[derive(Clone)]
pub struct Reverse {
    connection: ConnectionId,
    transport: Weak<dyn Transport>,
}

/// What is called, and by whom.
#[derive(Clone, Debug)]
pub struct ReverseTarget {
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Credential and verifier as they stand in a call.
    auth: Bytes,
}

impl ReverseTarget {
    /// A program of the peer, for a caller of this credential.
    pub fn new(program: u32, version: u32, credential: &Credential) -> Self {
        Self { program, version, auth: encode_auth(credential) }
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
        (plan, deadline): (ReplyPlan, Duration),
    ) -> Result<Answer<R>, CallFailed> {
        let Some(transport) = self.transport.upgrade() else {
            let error = ClientError::Transport(TransportError::Lost("it is over".to_owned()));
            return Err(CallFailed { error, sink: plan.sink });
        };
        let procedure = (target.program, target.version, procedure);
        let message = encode_call(next_xid(), procedure, &target.auth, arguments);
        match timeout(deadline, transport.call(message, plan)).await {
            Ok(Ok(reply)) => match decode(&reply.message) {
                Ok(results) => Ok(Answer { results, sink: reply.sink }),
                Err(error) => Err(CallFailed { error, sink: None }),
            },
            Ok(Err(failed)) => Err(CallFailed { error: ClientError::Transport(failed.error), sink: failed.sink }),
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

/// One sequence for all connections: several callers may share one, and must not use an XID twice at a time.
fn next_xid() -> Xid {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = NEXT.fetch_add(1, Relaxed);
    Xid(count.wrapping_add(*FIRST))
}

static FIRST: std::sync::LazyLock<u32> = std::sync::LazyLock::new(rand::random);
