//! All transports of Slipway, as one [`rpc::Switch`].
//!
//! | name | transport | feature |
//! |---|---|---|
//! | `tcp`, `udp` | RPC over sockets | always |
//! | `rdma` | RPC-over-RDMA on an adapter or on iWARP in software | `verbs`, `iwarp` |
//! | `shm` | RPC-over-RDMA in memory shared with a server on this host | `shm` |
//! | `auto` | for clients: the best of the others that reaches the server | always |
//!
//! All features are enabled by default. A switch without `rdma` or `shm` reports their names like any other unknown
//! name.
//!
//! The option `provider` of `rdma` selects only adapters (`verbs`), only iWARP in software (`iwarp`), or both (`auto`,
//! the default). With `auto`, a server listens on both. A client connects over an adapter if one reaches the server and
//! the server answers there, otherwise over iWARP in software. The other options are those of RPC-over-RDMA and those
//! of iWARP in software: `crc`, `congestion`, `sndbuf` and `rcvbuf` (bytes), `mpa`, `pcap`. The options of `shm` are
//! those of RPC-over-RDMA and `socket` (path) and `spin` (microseconds).
//!
//! The buffers of transports come from a [`Pool`]. An adapter or a shared memory peer reads and writes its memory
//! directly, so a server that takes its file data from the same pool sends them without a copy.
//!
//! [`Switch::register`] adds a transport of the program's own.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = transports::for_server(&buf::Pool::default());
//! let listener = server.find("tcp").expect("tcp must be available").listen("127.0.0.1:0".parse()?)?;
//!
//! let client = transports::for_client();
//! let transport = client.find("tcp").expect("tcp must be available").connect(listener.local_addr()).await?;
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

/// Returns a switch with all transports, for a program that connects to servers.
///
/// The buffers come from a new pool. Those of `shm` come from another pool, whose memory is shared with servers on this
/// host.
pub fn for_client() -> Switch {
    let shared = PoolOptions { shared: true, huge_pages: true, ..PoolOptions::default() };
    with_pools(&Pool::default(), &Pool::new(shared))
}

/// Returns a switch with all transports, for a program that accepts connections, with buffers from `pool`.
///
/// The memory of `pool` is never shared with a client.
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

/// The timeout of an attempt over an adapter, because the server may not listen on one.
const ADAPTER_LIMIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests;
