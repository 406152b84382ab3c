//! All transports of Slipway, as one [`rpc::Switch`].
//!
//! | name | transport | feature |
//! |---|---|---|
//! | `tcp`, `udp` | RPC over sockets | always |
//! | `rdma` | RPC-over-RDMA on an adapter or on iWARP in software | `verbs`, `iwarp` |
//! | `shm` | RPC-over-RDMA in memory shared with a server on this host | `shm` |
//! | `auto` | for clients: the best of the others that leads to the server | always |
//!
//! All features are on by default. A switch without `rdma` or `shm` reports a name that it does not have as any other unknown name.
//!
//! The option `provider` of `rdma` selects adapters alone (`verbs`), iWARP in software alone (`iwarp`), or both (`auto`, the
//! default): a server listens on both, and a client connects by an adapter if one leads to the server and the server answers
//! there, otherwise in software. Its other options are those of RPC-over-RDMA and, in the same place, those of iWARP in software:
//! `crc`, `congestion`, `sndbuf` and `rcvbuf` (bytes), `mpa`, `pcap`. The options of `shm` are those of RPC-over-RDMA and
//! `socket` (path) and `spin` (microseconds).
//!
//! Buffers of transports come from a [`Pool`]. An adapter or a shared memory peer reads and writes that memory: a server that takes
//! its file data from the same pool sends it without a copy.
//!
//! A program adds a transport of its own with [`Switch::register`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = transports::for_server(&buf::Pool::default());
//! let listener = server.find("tcp").expect("always there").listen("127.0.0.1:0".parse()?)?;
//!
//! let client = transports::for_client();
//! let transport = client.find("tcp").expect("always there").connect(listener.local_addr()).await?;
//! # let _ = transport;
//! # Ok(()) }
//! ```

mod auto;
#[cfg(any(feature = "iwarp", feature = "verbs"))]
mod rdma_kind;
#[cfg(feature = "shm")]
mod shm;

use std::{sync::Arc, time::Duration};

use buf::{Pool, PoolOptions};
use rpc::{Switch, TcpKind, UdpKind};

/// All transports for a program that connects to servers.
///
/// Buffers come from a pool of the switch's own; those of `shm` come from one whose memory a server on this host is given.
pub fn for_client() -> Switch {
    let shared = PoolOptions { shared: true, huge_pages: true, ..PoolOptions::default() };
    with_pools(&Pool::default(), &Pool::new(shared))
}

/// All transports for a program that accepts connections, with buffers from `pool`.
///
/// The memory of `pool` is never given to a client.
pub fn for_server(pool: &Pool) -> Switch {
    with_pools(pool, pool)
}

fn with_pools(pool: &Pool, of_shm: &Pool) -> Switch {
    let mut switch = Switch::new();
    switch.register(Arc::new(TcpKind::new(Default::default(), pool.clone())));
    switch.register(Arc::new(UdpKind::new(Default::default(), pool.clone())));
    #[cfg(any(feature = "iwarp", feature = "verbs"))]
    switch.register(Arc::new(rdma_kind::Rdma::new(pool)));
    #[cfg(feature = "shm")]
    switch.register(Arc::new(shm::SharedMemory::new(Default::default(), of_shm)));
    #[cfg(not(feature = "shm"))]
    let _ = of_shm;
    switch.register(Arc::new(auto::Auto::new(&switch)));
    switch
}

/// The packages that RDMA adapters need on Debian, separated by spaces.
pub const VERBS_PACKAGES: &str = "libibverbs1 librdmacm1 ibverbs-providers rdma-core";

/// An adapter that has not connected to the server by then is given up: the server may not listen on one.
const ADAPTER_LIMIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests;
