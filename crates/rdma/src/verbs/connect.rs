//! Connection establishment: resolution of addresses and routes, and connection requests and their acceptance.
//!
//! A request's identifier moves from the listener's channel to a channel of its own when the request is accepted, on
//! any thread. On InfiniBand and RoCE, whose messages have a fixed size, private data arrives padded with zeros.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use buf::Buffer;
use bytes::Bytes;

use super::{
    PRIVATE_DATA_MAX, VerbsOptions,
    cm::{CmId, Event, EventChannel, Events, Offer, canonical},
    ffi::{
        RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_ESTABLISHED,
        RDMA_CM_EVENT_ROUTE_RESOLVED,
    },
    library::Library,
    qp::VerbsQp,
    queue::Queues,
};
use crate::{
    BoxFuture, ConnectRequest, Connected, Listener, QpOptions, QueuePair, WorkId,
    handshake::{Deferred, check_private_data, within},
};

pub(super) struct VerbsListener {
    options: Arc<VerbsOptions>,
    local: SocketAddr,
    events: Deferred<Arc<EventChannel>, Events>,
    /// One for each address family.
    _ids: Vec<CmId>,
}

struct VerbsRequest {
    options: Arc<VerbsOptions>,
    /// Present until the request is accepted.
    id: Option<CmId>,
    peer: SocketAddr,
    private_data: Bytes,
    /// The numbers of RDMA Reads that the peer proposes, from the local point of view: outbound, inbound.
    reads: (u8, u8),
}

impl VerbsListener {
    pub(super) fn bind(options: &Arc<VerbsOptions>, local: SocketAddr) -> io::Result<Self> {
        let channel = EventChannel::create(Library::load()?)?;
        let backlog = i32::try_from(options.backlog).unwrap_or(i32::MAX);
        let listen = |local: SocketAddr| {
            let id = CmId::create(&channel)?;
            id.listen(local, backlog).map_err(|error| io::Error::new(error.kind(), format!("{local}: {error}")))?;
            Ok::<_, io::Error>(id)
        };
        let first = listen(local)?;
        let bound = first.local().map_or(local, |bound| SocketAddr::new(local.ip(), bound.port()));
        let mut ids = vec![first];
        if local.ip() == Ipv6Addr::UNSPECIFIED {
            // Like a socket bound to `[::]`, this listener accepts IPv4 as well.
            ids.push(listen((Ipv4Addr::UNSPECIFIED, bound.port()).into())?);
        }
        Ok(Self { options: options.clone(), local: bound, events: Deferred::new(channel), _ids: ids })
    }
}

impl Listener for VerbsListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn ConnectRequest>>> {
        Box::pin(async {
            let events = self.events.registered(Events::new)?;
            loop {
                let Event { kind, request, private_data, reads, .. } = events.next().await?;
                let Some(id) = request else {
                    // A failure of a request that has not been accepted yet appears when it is accepted.
                    if kind == RDMA_CM_EVENT_DEVICE_REMOVAL {
                        tracing::warn!(local = %self.local, "an adapter is being removed");
                    }
                    continue;
                };
                let Some(peer) = id.peer() else {
                    tracing::debug!("a connection request without an IP address");
                    id.reject();
                    continue;
                };
                let (options, peer) = (self.options.clone(), canonical(peer));
                return Ok(Box::new(VerbsRequest { options, id: Some(id), peer, private_data, reads })
                    as Box<dyn ConnectRequest>);
            }
        })
    }
}

impl ConnectRequest for VerbsRequest {
    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn private_data(&mut self) -> BoxFuture<'_, io::Result<Bytes>> {
        Box::pin(async { Ok(self.private_data.clone()) })
    }

    fn shared_receives(&self) -> bool {
        let device = self.id.as_ref().and_then(|id| id.device().ok());
        device.is_some_and(|device| device.caps.shared_receives > 0)
    }

    fn accept<'a>(
        mut self: Box<Self>,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Box<dyn QueuePair>>> {
        Box::pin(async move {
            check_private_data(private_data, PRIVATE_DATA_MAX)?;
            let mut id = self.id.take().expect("accepted once");
            let channel = EventChannel::create(id.library())?;
            id.migrate(&channel)?;
            let mut qp = prepare(id, Events::new(channel)?, self.peer, &self.options, options, recvs)?;
            let device = qp.queues().device.caps.reads;
            let (outbound, inbound) = self.reads;
            let outbound_reads = least(options.outbound_reads.min(device.0), outbound);
            let inbound_reads = least(options.inbound_reads.min(device.1), inbound);
            let waits_for_receives = qp.queues().shares();
            qp.queues().id.accept(&Offer { private_data, outbound_reads, inbound_reads, waits_for_receives })?;
            within(self.options.handshake_timeout, qp.events().expect(RDMA_CM_EVENT_ESTABLISHED)).await?;
            if waits_for_receives {
                qp.queues().retry_soon()?;
            }
            self.options.devices.keep(qp.queues());
            qp.established(outbound_reads.into(), true);
            Ok(Box::new(qp) as Box<dyn QueuePair>)
        })
    }
}

impl Drop for VerbsRequest {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            id.reject();
        }
    }
}

pub(super) async fn connect(
    verbs: &Arc<VerbsOptions>,
    remote: SocketAddr,
    options: &QpOptions,
    private_data: &[u8],
    recvs: Vec<(WorkId, Buffer)>,
) -> io::Result<Connected> {
    check_private_data(private_data, PRIVATE_DATA_MAX)?;
    let channel = EventChannel::create(Library::load()?)?;
    let id = CmId::create(&channel)?;
    let events = Events::new(channel)?;
    let timeout_ms = i32::try_from(verbs.handshake_timeout.as_millis()).unwrap_or(i32::MAX);
    let set_up = async {
        id.resolve_address(remote, timeout_ms)?;
        events.expect(RDMA_CM_EVENT_ADDR_RESOLVED).await?;
        id.resolve_route(timeout_ms)?;
        events.expect(RDMA_CM_EVENT_ROUTE_RESOLVED).await
    };
    within(verbs.handshake_timeout, set_up).await?;
    let mut qp = prepare(id, events, remote, verbs, options, recvs)?;
    let device = qp.queues().device.caps.reads;
    let outbound_reads = least(options.outbound_reads.min(device.0), u8::MAX);
    let inbound_reads = least(options.inbound_reads.min(device.1), u8::MAX);
    let waits_for_receives = qp.queues().shares();
    qp.queues().id.connect(&Offer { private_data, outbound_reads, inbound_reads, waits_for_receives })?;
    let event = within(verbs.handshake_timeout, qp.events().expect(RDMA_CM_EVENT_ESTABLISHED)).await?;
    verbs.devices.keep(qp.queues());
    qp.established(outbound_reads.min(event.reads.0).into(), false);
    Ok(Connected { qp: Box::new(qp), private_data: event.private_data })
}

/// Creates a queue pair with its receives posted, on an identifier that is bound to a device.
fn prepare(
    id: CmId,
    events: Events,
    peer: SocketAddr,
    verbs: &VerbsOptions,
    options: &QpOptions,
    recvs: Vec<(WorkId, Buffer)>,
) -> io::Result<VerbsQp> {
    let source = options.receive_source.as_ref().map(|(source, _)| source);
    let queues = Queues::create(id, options.send_queue.min(SENDS_MAX), recvs.len().max(RECVS_MIN), source)?;
    let mut qp = VerbsQp::new(queues, events, peer, verbs, options);
    qp.post_first_recvs(recvs)?;
    Ok(qp)
}

fn least(ours: u16, theirs: u8) -> u8 {
    u8::try_from(ours).unwrap_or(u8::MAX).min(theirs)
}

/// The maximum number of work requests that are posted to the adapter. Further requests are queued in the process,
/// where they use less memory.
const SENDS_MAX: usize = 256;
/// The minimum depth of the adapter's receive queue. It is greater if more receives are posted at the start.
const RECVS_MIN: usize = 64;
