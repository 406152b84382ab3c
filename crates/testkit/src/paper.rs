//! [`Paper`]: a transport that exists only on paper, for calling a service directly.

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use buf::Pool;
use rpc::{
    AcceptError, BoxFuture, Call, CallError, CallsMade, ConnectionId, Identity, IncomingCall, Reply, ReplyPlan,
    ReplyToken, Service, Transport, TransportCaps, TransportError, Xid,
};
use xdr::{Decode, Decoder, Message};

/// A transport that only says what it is. It carries nothing.
pub struct Paper {
    transport: Arc<dyn Transport>,
    connection: ConnectionId,
}

struct Blank {
    caps: TransportCaps,
    pool: Pool,
}

impl Paper {
    /// A transport of this name and longest message.
    pub fn new(name: &'static str, message_max: usize) -> Self {
        let caps = TransportCaps { name, message_max, lossy: false, file_ranges: false, idle: None };
        Self { transport: Arc::new(Blank { caps, pool: Pool::default() }), connection: ConnectionId(0) }
    }

    /// Another connection by it; that of [`new`](Self::new) is 0.
    pub fn connection(&self, connection: ConnectionId) -> Self {
        Self { transport: self.transport.clone(), connection }
    }

    /// A call as `service` would get it over this transport. Its XID is 7 and its version the highest.
    pub fn call<'a>(
        &'a self,
        service: &'a dyn Service,
        procedure: u32,
        (peer, caller): (SocketAddr, &'a Identity),
        arguments: &'a Message,
    ) -> BoxFuture<'a, Result<Message, AcceptError>> {
        service
            .call(Call {
                xid: Xid(7),
                version: *service.versions().end(),
                procedure,
                caller,
                is_wrapped: false,
                peer,
                connection: self.connection,
                transport: &self.transport,
                arguments: Decoder::new(arguments),
            })
            .into_future()
    }
}

/// The results behind the header of an accepted reply to a [`call`](Paper::call); nothing else may follow.
///
/// # Panics
/// If they are not of this type, or the header is another.
pub fn results<R: Decode>(reply: &Message) -> R {
    let mut decoder = Decoder::new(reply);
    let header: [u32; 6] = std::array::from_fn(|_| decoder.u32().expect("a header"));
    assert_eq!(header, [7, 1, 0, 0, 0, 0]);
    let results = R::decode(&mut decoder).expect("results of ours");
    decoder.finish().expect("nothing more");
    results
}

impl Transport for Blank {
    fn caps(&self) -> &TransportCaps {
        &self.caps
    }

    fn peer(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1))
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn call(&self, _: Message, _: ReplyPlan) -> BoxFuture<'_, Result<Reply, CallError>> {
        unreachable!("nothing is called over paper")
    }

    fn poll_recv(&self, _: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>> {
        unreachable!("nothing arrives over paper")
    }

    fn reply(&self, _: ReplyToken, _: Message) -> Result<(), TransportError> {
        unreachable!("nothing is sent over paper")
    }

    fn calls_made(&self) -> CallsMade {
        CallsMade::default()
    }

    fn close(&self) {}
}
