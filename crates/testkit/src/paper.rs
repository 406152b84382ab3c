//! [`Paper`]: a transport without I/O, for calling a service directly.

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use buf::Pool;
use rpc::{
    AcceptError, BoxFuture, Call, CallError, CallsMade, ConnectionId, ConnectionTls, Identity, IncomingCall, Reply,
    ReplyPlan, ReplyToken, Service, Transport, TransportCaps, TransportError, Xid,
};
use xdr::{Decode, Decoder, Message};

/// A transport that has only properties. It carries no messages.
pub struct Paper {
    transport: Arc<dyn Transport>,
    connection: ConnectionId,
}

struct Blank {
    caps: TransportCaps,
    pool: Pool,
    tls: ConnectionTls,
}

impl Paper {
    /// Creates a transport with this name and maximum message length.
    pub fn new(name: &'static str, message_max: usize) -> Self {
        Self::with_tls(name, message_max, ConnectionTls::None)
    }

    /// Creates a transport like [`new`](Self::new), with this protection.
    pub fn with_tls(name: &'static str, message_max: usize, tls: ConnectionTls) -> Self {
        let caps = TransportCaps { name, message_max, lossy: false, file_ranges: false, idle: None };
        Self { transport: Arc::new(Blank { caps, pool: Pool::default(), tls }), connection: ConnectionId(0) }
    }

    /// Returns another connection of the transport. That of [`new`](Self::new) is 0.
    pub fn connection(&self, connection: ConnectionId) -> Self {
        Self { transport: self.transport.clone(), connection }
    }

    /// Returns a call as `service` would receive it over this transport. Its XID is 7, and its version is the highest.
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
                arrived: tokio::time::Instant::now().into_std(),
                connection: self.connection,
                transport: &self.transport,
                arguments: Decoder::new(arguments),
            })
            .into_future()
    }
}

/// Decodes the results after the header of an accepted reply to a [`call`](Paper::call). No bytes may follow.
///
/// # Panics
/// The results are not of this type, or the header is wrong.
pub fn results<R: Decode>(reply: &Message) -> R {
    let mut decoder = Decoder::new(reply);
    let header: [u32; 6] = std::array::from_fn(|_| decoder.u32().expect("reply must have a header"));
    assert_eq!(header, [7, 1, 0, 0, 0, 0]);
    let results = R::decode(&mut decoder).expect("results must decode");
    decoder.finish().expect("reply must end after its results");
    results
}

impl Transport for Blank {
    fn caps(&self) -> &TransportCaps {
        &self.caps
    }

    fn tls(&self) -> &ConnectionTls {
        &self.tls
    }

    fn peer(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1))
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn call(self: Arc<Self>, _: Message, _: ReplyPlan) -> BoxFuture<'static, Result<Reply, CallError>> {
        unreachable!("no client may use this transport")
    }

    fn poll_recv(&self, _: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>> {
        unreachable!("no server may use this transport")
    }

    fn reply(&self, _: ReplyToken, _: Message) -> Result<(), TransportError> {
        unreachable!("no server may use this transport")
    }

    fn calls_made(&self) -> CallsMade {
        CallsMade::default()
    }

    fn close(&self) {}
}
