//! A TCP proxy that cuts connections after a given number of bytes.
//!
//! Tests use it for faults in the middle of a message on real sockets, with any protocol.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinHandle,
};

/// The numbers of bytes after which a connection is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutAfter {
    /// The bytes from client to server that still pass; no limit if `None`.
    pub to_server: Option<u64>,
    /// The bytes from server to client that still pass; no limit if `None`.
    pub to_client: Option<u64>,
}

/// The proxy, which ends when it is dropped.
pub struct CutProxy {
    local: SocketAddr,
    passed: Arc<[AtomicU64; 2]>,
    task: JoinHandle<()>,
}

impl CutProxy {
    /// Listens on loopback for connections to `target`. The first connection is cut by the first of `cuts`, and so on.
    /// Further connections are not cut.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub async fn start(target: SocketAddr, cuts: Vec<CutAfter>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let local = listener.local_addr()?;
        let passed = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let counters = passed.clone();
        let task = tokio::spawn(async move {
            let mut cuts = cuts.into_iter();
            while let Ok((client, _)) = listener.accept().await {
                let cut = cuts.next().unwrap_or_default();
                let Ok(server) = TcpStream::connect(target).await else { continue };
                tokio::spawn(carry(client, server, cut, counters.clone()));
            }
        });
        Ok(Self { local, passed, task })
    }

    /// Returns the address to which clients connect.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the bytes that have passed to the server, and to the client.
    pub fn passed(&self) -> [u64; 2] {
        [0, 1].map(|direction| self.passed[direction].load(Ordering::Relaxed))
    }
}

impl Drop for CutProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(client: TcpStream, server: TcpStream, cut: CutAfter, passed: Arc<[AtomicU64; 2]>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut up = std::pin::pin!(pump(from_client, to_server, cut.to_server, &passed[0]));
    let mut down = std::pin::pin!(pump(from_server, to_client, cut.to_client, &passed[1]));
    // One direction can be closed normally while the other continues. A cut ends both.
    tokio::select! {
        end = &mut up => if end == End::Closed {
            down.await;
        },
        end = &mut down => if end == End::Closed {
            up.await;
        },
    }
}

#[derive(PartialEq)]
enum End {
    Closed,
    Cut,
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut left: Option<u64>, passed: &AtomicU64) -> End {
    let mut buffer = vec![0; 64 << 10];
    loop {
        if left == Some(0) {
            // The bytes that have passed must arrive before the end of the stream.
            let _ = to.shutdown().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            return End::Cut;
        }
        let Ok(len) = from.read(&mut buffer).await else { return End::Cut };
        if len == 0 {
            let _ = to.shutdown().await;
            return End::Closed;
        }
        let pass = left.map_or(len, |left| len.min(usize::try_from(left).unwrap_or(usize::MAX)));
        if to.write_all(&buffer[..pass]).await.is_err() {
            return End::Cut;
        }
        passed.fetch_add(pass as u64, Ordering::Relaxed);
        left = left.map(|left| left - pass as u64);
    }
}
