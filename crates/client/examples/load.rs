//! A well-behaved client of every transport that runs until standard input is closed. `cargo xtask interop --only
//! hostile` runs it beside each attack and judges the server by its output.
//!
//! `load DIRECTORY URL…`: DIRECTORY contains the sockets of shm. For each URL, one mount stats, reads 4 KiB, and
//! creates and removes files, one operation after the other. For the first URL, another client repeatedly mounts,
//! creates a file and unmounts. Each operation prints a line: `WHO OPERATION MICROSECONDS`, or `WHO OPERATION FAILED:
//! WHY`. WHO is the transport, or `new` for the client that mounts repeatedly.

use std::{fmt::Display, io::Read, path::Path, sync::Arc, time::Duration};

use buf::{Pool, PoolOptions};
use client::{Mount, NfsUrl};
use rdma::{
    iwarp::{Iwarp, IwarpOptions},
    shm::{Shm, ShmOptions},
};
use rpc::{Switch, TcpKind, TcpOptions};
use rpcrdma::RdmaKind;
use tokio::time::{Instant, sleep};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, urls @ ..] = &arguments[..] else { panic!("load DIRECTORY URL…") };
    let switch = switch(directory.as_ref());
    for url in urls {
        let url: NfsUrl = url.parse().expect("URL must be valid");
        tokio::task::spawn(work(url, switch.clone()));
    }
    if let Some(url) = urls.first() {
        tokio::task::spawn(mount_repeatedly(url.parse().expect("URL must be valid"), switch.clone()));
    }
    // Standard input is read on a thread of its own, because the runtime must not wait for it.
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        let _ = ended.send(());
    });
    let _ = end.await;
}

/// Runs one operation after the other on one mount.
async fn work(url: NfsUrl, switch: Switch) {
    let who = url.options.proto.clone();
    let mount = loop {
        match Mount::connect(&url, &switch).await {
            Ok(mount) => break mount,
            Err(error) => failed(&who, "mount", &error),
        }
        sleep(PAUSE).await;
    };
    // The process ID is part of the name, because another process may run at the same time.
    let file = format!("load.{who}.{}", std::process::id());
    let opened = async || {
        mount.write(&file, vec![7; FILE_LEN]).await?;
        mount.open(&file).await
    };
    let opened = loop {
        match opened().await {
            Ok(opened) => break opened,
            Err(error) => failed(&who, "write", &error),
        }
        sleep(PAUSE).await;
    };
    let other = format!("{file}.new");
    for turn in 0u64.. {
        let begun = Instant::now();
        let (operation, result) = match turn % 8 {
            7 => ("create", mount.create(&other, 0o644).await.map(drop)),
            3 if turn > 8 => ("remove", mount.remove(&other).await),
            0 | 2 | 4 | 6 => {
                let offset = turn.wrapping_mul(0x9e37_79b9) % (FILE_LEN as u64 / BLOCK as u64) * BLOCK as u64;
                ("read", opened.read_at(offset, mount.pool().take(BLOCK)).await.0.map(drop))
            }
            _ => ("stat", opened.stat().await.map(drop)),
        };
        report(&who, operation, begun, result);
        sleep(PAUSE).await;
    }
}

/// Repeatedly mounts, creates and removes a file, and unmounts.
async fn mount_repeatedly(url: NfsUrl, switch: Switch) {
    loop {
        let begun = Instant::now();
        let result = async {
            let mount = Mount::connect(&url, &switch).await?;
            let name = format!("load.new.{}", std::process::id());
            mount.create(&name, 0o644).await?;
            mount.remove(&name).await?;
            mount.unmount().await
        };
        report("new", "client", begun, result.await);
        sleep(PAUSE_BETWEEN_MOUNTS).await;
    }
}

fn report(who: &str, operation: &str, begun: Instant, result: client::Result<()>) {
    match result {
        Ok(()) => println!("{who} {operation} {}", begun.elapsed().as_micros()),
        Err(error) => failed(who, operation, &error),
    }
}

fn failed(who: &str, operation: &str, why: &dyn Display) {
    println!("{who} {operation} FAILED: {why}");
}

fn switch(directory: &Path) -> Switch {
    let mut switch = Switch::new();
    switch.register(Arc::new(TcpKind::new(TcpOptions::default(), Pool::default())));
    switch.register(Arc::new(RdmaKind::new(Arc::new(Iwarp::new(IwarpOptions::default())), Default::default())));
    let shm = Shm::new(ShmOptions { directory: Some(directory.to_owned()), ..ShmOptions::default() });
    let pool = Pool::new(PoolOptions { shared: true, ..PoolOptions::default() });
    switch.register(Arc::new(RdmaKind::new(Arc::new(shm), Default::default()).with_pool(pool).named("shm")));
    switch
}

const FILE_LEN: usize = 256 << 10;
const BLOCK: usize = 4 << 10;
/// The pause between operations, so that the clients use only a part of a processor.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_BETWEEN_MOUNTS: Duration = Duration::from_millis(100);
