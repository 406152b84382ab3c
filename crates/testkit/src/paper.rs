//! [`Paper`]: a transport that exists only on paper, for calling a service directly.

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use buf::Pool;
use rpc::{
    AcceptError, BoxFuture, Call, CallError, CallsMade, ConnectionId, Credential, IncomingCall, Reply, ReplyPlan,
    ReplyToken, Service, Transport, TransportCaps, TransportError, Xid,
};
use xdr::{Decoder, Message};

/// A transport that only says what it is. It carries nothing.
pub struct Paper(Arc<dyn Transport>);

struct Blank {
    caps: TransportCaps,
    pool: Pool,
}

impl Paper {
    /// A transport of this name and longest message.
    pub fn new(name: &'static str, message_max: usize) -> Self {
        let caps = TransportCaps { name, message_max, lossy: false, file_ranges: false, idle: None };
        Self(Arc::new(Blank { caps, pool: Pool::default() }))
    }

    /// A call as `service` would get it over this transport. Its XID is 7 and its version the highest.
    pub fn call<'a>(
        &'a self,
        service: &'a dyn Service,
        procedure: u32,
        (peer, credential): (SocketAddr, &'a Credential),
        arguments: &'a Message,
    ) -> BoxFuture<'a, Result<Message, AcceptError>> {
        service.call(Call {
            xid: Xid(7),
            version: *service.versions().end(),
            procedure,
            credential,
            peer,
            connection: ConnectionId(0),
            transport: &self.0,
            arguments: Decoder::new(arguments),
        })
    }
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
