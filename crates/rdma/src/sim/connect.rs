//! Opens connections between two ends of a [`Sim`].

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Weak},
};

use buf::Buffer;
use bytes::Bytes;
use simnet::Listening;
use tokio::{sync::oneshot, time::sleep};

use super::{
    Sim,
    link::{End, SharedLink, SimQp},
};
use crate::{BoxFuture, ConnectRequest, Connected, Listener, QpOptions, QueuePair, WorkId};

pub(super) struct SimListener(Listening<SimRequest>);

/// A connection request. Dropping the sender `reply` rejects it.
pub(super) struct SimRequest {
    sim: Sim,
    client: SocketAddr,
    server: SocketAddr,
    options: QpOptions,
    private_data: Bytes,
    recvs: Vec<(WorkId, Buffer)>,
    reply: oneshot::Sender<(SimQp, Bytes)>,
}

impl SimListener {
    pub(super) fn bind(sim: &Sim, local: SocketAddr) -> io::Result<Self> {
        sim.network.listen(local).map(Self)
    }
}

impl Listener for SimListener {
    fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn ConnectRequest>>> {
        Box::pin(async {
            let request = self.0.accept().await?;
            Ok(Box::new(request) as Box<dyn ConnectRequest>)
        })
    }
}

pub(super) async fn connect(
    sim: &Sim,
    remote: SocketAddr,
    options: &QpOptions,
    private_data: &[u8],
    recvs: Vec<(WorkId, Buffer)>,
) -> io::Result<Connected> {
    check_private_data(sim, private_data)?;
    let client = sim.network.take_address();
    sleep(sim.network.latency()).await;
    let (reply, answer) = oneshot::channel();
    let request = SimRequest {
        sim: sim.clone(),
        client,
        server: remote,
        options: options.clone(),
        private_data: Bytes::copy_from_slice(private_data),
        recvs,
        reply,
    };
    sim.network.request(remote, request)?;
    let (qp, private_data) = answer.await.map_err(|_| io::ErrorKind::ConnectionRefused)?;
    sleep(sim.network.latency()).await;
    Ok(Connected { qp: Box::new(qp), private_data })
}

impl ConnectRequest for SimRequest {
    fn peer(&self) -> SocketAddr {
        self.client
    }

    fn private_data(&mut self) -> BoxFuture<'_, io::Result<Bytes>> {
        Box::pin(async {
            sleep(self.sim.network.latency()).await;
            if self.reply.is_closed() {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Ok(self.private_data.clone())
        })
    }

    fn accept<'a>(
        self: Box<Self>,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Box<dyn QueuePair>>> {
        Box::pin(async move {
            check_private_data(&self.sim, private_data)?;
            let regions = self.sim.regions_max;
            let client_reads = self.options.outbound_reads.min(options.inbound_reads);
            let server_reads = options.outbound_reads.min(self.options.inbound_reads);
            let client = End::new(self.client, &self.options, client_reads, regions, self.recvs);
            let server = End::new(self.server, options, server_reads, regions, recvs);
            let link = SharedLink::new([client, server]);
            let known: Weak<SharedLink> = Arc::downgrade(&link);
            self.sim.network.connected(known);
            let [client, server] = SimQp::pair(&self.sim, &link);
            // If the client gave up, it drops its end when it gets it, and the server sees that.
            let _ = self.reply.send((client, Bytes::copy_from_slice(private_data)));
            sleep(self.sim.network.latency()).await;
            Ok(Box::new(server) as Box<dyn QueuePair>)
        })
    }
}

fn check_private_data(sim: &Sim, private_data: &[u8]) -> io::Result<()> {
    if private_data.len() > sim.private_data_max {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "private data is too long"));
    }
    Ok(())
}
