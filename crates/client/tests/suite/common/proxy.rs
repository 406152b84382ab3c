//! A TCP proxy that cuts connections after a number of bytes.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A proxy that cuts connections.
pub struct Cutter {
    pub address: SocketAddr,
    /// The number of connections that it has cut.
    pub cuts: Arc<AtomicUsize>,
}

/// Starts a proxy for `server`. It cuts each of the first `cuts` connections after a random number of bytes below
/// `most`, counted in both directions together. It does not cut later connections.
pub async fn start(server: SocketAddr, seed: u64, cuts: usize, most: usize) -> Cutter {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let cutter = Cutter { address: listener.local_addr().unwrap(), cuts: Arc::default() };
    let done = cutter.cuts.clone();
    tokio::spawn(async move {
        let mut rng = StdRng::seed_from_u64(seed);
        for connection in 0.. {
            let Ok((client, _)) = listener.accept().await else { return };
            let budget = if connection < cuts { rng.random_range(1..most) } else { usize::MAX };
            let done = done.clone();
            tokio::spawn(async move {
                if let Ok(server) = TcpStream::connect(server).await {
                    pass(client, server, budget).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    cutter
}

async fn pass(mut client: TcpStream, mut server: TcpStream, mut budget: usize) {
    let (mut up, mut down) = (vec![0; 65536], vec![0; 65536]);
    while budget > 0 {
        let (data, read, to) = tokio::select! {
            read = client.read(&mut up) => (&up, read, &mut server),
            read = server.read(&mut down) => (&down, read, &mut client),
        };
        let Some(len) = read.ok().filter(|&len| len > 0) else { return };
        let len = len.min(budget);
        if to.write_all(&data[..len]).await.is_err() {
            return;
        }
        budget -= len;
    }
}
