//! Opening connections between two ends of a [`Sim`].

use std::{io, net::SocketAddr};

use buf::Buffer;
use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use super::{
    Sim,
    link::{End, Link, SimQp},
};
use crate::{BoxFuture, ConnectRequest, Connected, Listener, QpOptions, QueuePair, WorkId};

pub(super) struct SimListener {
    sim: Sim,
    local: SocketAddr,
    requests: mpsc::UnboundedReceiver<SimRequest>,
}

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
    pub(super) fn bind(sim: &Sim, mut local: SocketAddr) -> io::Result<Self> {
        let mut fabric = sim.fabric.lock();
        if local.port() == 0 {
            local.set_port(fabric.take_port());
        }
        // An address whose listener was dropped without closing (because its task ended) is free again.
        if fabric.listeners.get(&local).is_some_and(|requests| !requests.is_closed()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (sender, requests) = mpsc::unbounded_channel();
        fabric.listeners.insert(local, sender);
        Ok(Self { sim: sim.clone(), local, requests })
    }
}

impl Listener for SimListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn ConnectRequest>>> {
        Box::pin(async {
            let request = self.requests.recv().await.ok_or(io::ErrorKind::ConnectionAborted)?;
            Ok(Box::new(request) as Box<dyn ConnectRequest>)
        })
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.requests.close();
        let mut fabric = self.sim.fabric.lock();
        if fabric.listeners.get(&self.local).is_some_and(mpsc::UnboundedSender::is_closed) {
            fabric.listeners.remove(&self.local);
        }
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
    let client = SocketAddr::new(sim.host, sim.fabric.lock().take_port());
    sleep(sim.latency()).await;
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
    {
        let fabric = sim.fabric.lock();
        let listener = fabric.listeners.get(&remote).filter(|_| !fabric.refusing);
        let listener = listener.ok_or(io::ErrorKind::ConnectionRefused)?;
        listener.send(request).map_err(|_| io::ErrorKind::ConnectionRefused)?;
    }
    let (qp, private_data) = answer.await.map_err(|_| io::ErrorKind::ConnectionRefused)?;
    sleep(sim.latency()).await;
    Ok(Connected { qp: Box::new(qp), private_data })
}

impl ConnectRequest for SimRequest {
    fn peer(&self) -> SocketAddr {
        self.client
    }

    fn private_data(&mut self) -> BoxFuture<'_, io::Result<Bytes>> {
        Box::pin(async {
            sleep(self.sim.latency()).await;
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
            let regions = self.sim.options.regions_max;
            let client_reads = self.options.outbound_reads.min(options.inbound_reads);
            let server_reads = options.outbound_reads.min(self.options.inbound_reads);
            let client = End::new(self.client, &self.options, client_reads, regions, self.recvs);
            let server = End::new(self.server, options, server_reads, regions, recvs);
            let link = Link::shared([client, server]);
            self.sim.fabric.lock().add_link(&link);
            let [client, server] = SimQp::pair(&self.sim, &link);
            // If the client gave up, it drops its end when it gets it, and the server sees that.
            let _ = self.reply.send((client, Bytes::copy_from_slice(private_data)));
            sleep(self.sim.latency()).await;
            Ok(Box::new(server) as Box<dyn QueuePair>)
        })
    }
}

fn check_private_data(sim: &Sim, private_data: &[u8]) -> io::Result<()> {
    if private_data.len() > sim.options.private_data_max {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "private data is too long"));
    }
    Ok(())
}
