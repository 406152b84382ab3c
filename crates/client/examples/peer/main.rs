//! This client against a server of another implementation: `cargo xtask interop --only knfsd4` runs it, and
//! `--only pnfs-knfsd`. It panics if a check fails.
//!
//! - `peer locks URL`: locks of two clients, with any version.
//! - `peer checks URL ADDR`: the operations that only NFSv4 has, by one URL of an export. ADDR is a further address of
//!   its server.
//! - `peer layouts URL`: layouts of pNFS.
//! - `peer idle DIR URL…`: idle clients hold locks over several leases.
//! - `peer restart DIR URL…`: the server restarts under load.
//!
//! Each URL must have a query. Files in DIR signal progress; each mode documents them.

mod checks;
mod lasting;
mod layouts;

use std::sync::Arc;

use buf::Pool;
use bytes::Bytes;
use client::{LockRange, Mount, NfsUrl, V4};
use rdma::iwarp::{Iwarp, IwarpOptions};
use rpc::{Switch, TcpKind, TcpOptions};
use rpcrdma::RdmaKind;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["checks", url, also] => checks::all(url, also).await,
        ["locks", url] => checks::check_locks_conflict(url).await,
        ["layouts", url] => layouts::all(url).await,
        ["idle", dir, urls @ ..] => lasting::idle(dir.as_ref(), urls).await,
        ["restart", dir, urls @ ..] => lasting::restart(dir.as_ref(), urls).await,
        _ => panic!("peer locks URL | checks URL ADDR | layouts URL | idle DIR URL… | restart DIR URL…"),
    }
}

/// Mounts the export as another client.
async fn mount(url: &str) -> Mount {
    let url: NfsUrl = format!("{url}&timeo={CALL_LIMIT_DS}").parse().expect("URL must be valid");
    Mount::connect(&url, &switch()).await.unwrap_or_else(|error| panic!("mounting: {error}"))
}

fn switch() -> Switch {
    let mut switch = Switch::new();
    switch.register(Arc::new(TcpKind::new(TcpOptions::default(), Pool::default())));
    switch.register(Arc::new(RdmaKind::new(Arc::new(Iwarp::new(IwarpOptions::default())), Default::default())));
    switch
}

fn v4(mount: &Mount) -> &V4 {
    mount.v4().expect("the mount must use NFSv4")
}

fn exclusive(offset: u64, length: u64) -> LockRange {
    LockRange { offset, length, exclusive: true }
}

fn shared(offset: u64, length: u64) -> LockRange {
    LockRange { offset, length, exclusive: false }
}

/// Returns bytes that depend on `seed`.
fn data(len: u32, seed: u32) -> Bytes {
    (0..len).map(|at| (at.wrapping_mul(seed) ^ (at >> 8)) as u8).collect()
}

/// The timeout of a call in tenths of a second. It is long, because the server restarts and the machine may be busy.
const CALL_LIMIT_DS: u32 = 6000;
