//! `slipway bench connections`: measures the server's memory for idle connections, and their effect on active ones.
//!
//! Each transport has its own [`Counted`] server. Connections are added in steps. Each makes one call, as a mount does,
//! and is then idle. Then several active connections READ, in turns with and without the idle ones.

use std::time::{Duration, Instant};

use client::NfsUrl;
use futures_util::{StreamExt, TryStreamExt, future::try_join_all, stream};
use rpc::{CallOptions, Client, ClientOptions, ReplyPlan};
use serde::Serialize;
use server::config::ByteSize;

use super::{
    counted::{self, AT_ONCE, Counted},
    site,
};
use crate::{
    exit::{Failure, Outcome},
    output::{self, Align, Table},
    reach::{self, Reach},
};

/// The options of the measurement.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Transports
    #[arg(short, long, value_delimiter = ',', default_values = ["tcp", "rdma"], value_parser = ["tcp", "rdma"])]
    transport: Vec<String>,
    /// Numbers of idle connections at which the server's memory is read
    #[arg(long, value_delimiter = ',', default_values_t = [1, 100, 1_000, 10_000])]
    idle: Vec<usize>,
    /// Active connections, for the goodput; 0 skips it
    #[arg(long, default_value_t = 100)]
    active: usize,
    /// Idle connections during the second goodput
    #[arg(long, default_value_t = 1_000)]
    beside: usize,
    /// Bytes of a READ
    #[arg(short, long, default_value = "32K")]
    block: ByteSize,
    /// Seconds of each run of the goodput
    #[arg(short, long, default_value_t = 2.0)]
    seconds: f64,
    /// Runs of the goodput, in turns with and without idle connections
    #[arg(short, long, default_value_t = 3)]
    rounds: usize,
    /// Threads of the server
    #[arg(long, default_value_t = 1)]
    server_workers: usize,
    /// Congestion control of both ends: cubic, bbr, reno, …
    #[arg(long)]
    congestion: Option<String>,
    /// Print the results as one line of JSON
    #[arg(long)]
    json: bool,
}

/// The result for one transport.
#[derive(Debug, Serialize)]
struct Found {
    transport: String,
    /// The memory at each number of idle connections.
    memory: Vec<Resident>,
    /// The bytes for each connection beyond the first hundred, if there were more.
    bytes_each: Option<f64>,
    goodput: Option<Goodput>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Resident {
    connections: usize,
    /// The resident bytes of the server's process.
    bytes: u64,
}

/// The bytes a second of all active connections together; each is the median of the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Goodput {
    active: usize,
    alone: f64,
    idle: usize,
    beside_idle: f64,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) || args.rounds == 0 || args.block.0 == 0 {
        return Err(Failure::usage("--seconds: more than 0, and at most an hour; --rounds and --block: at least 1"));
    }
    let most = args.idle.iter().copied().max().unwrap_or(0).max(args.beside + args.active);
    counted::each(&args.transport, most, args.json, text, |transport| of_transport(args, transport, most))
}

fn of_transport(args: &Args, transport: &str, most: usize) -> Result<Found, Failure> {
    let options: Vec<_> = args.congestion.iter().map(|name| ("congestion", name.as_str())).collect();
    let workers = args.server_workers.to_string();
    let server = Counted::start(transport, &options, most, FILE_BYTES + (64 << 20), &["--workers", &workers])?;
    reach::run(async {
        let memory = memory(args, &server).await?;
        let goodput = if args.active > 0 { Some(goodput(args, &server.url).await?) } else { None };
        Ok(Found { transport: transport.to_owned(), bytes_each: bytes_each(&memory), memory, goodput })
    })
}

/// Measures the resident memory of the server at each number of idle connections.
async fn memory(args: &Args, server: &Counted) -> Result<Vec<Resident>, Failure> {
    let mut counts = args.idle.clone();
    counts.sort_unstable();
    let (mut idle, mut found) = (Vec::new(), Vec::new());
    for connections in counts {
        add_idle(&mut idle, connections, &server.url).await?;
        found.push(Resident { connections, bytes: server.resident().await? });
    }
    Ok(found)
}

/// Opens connections until there are `wanted`, and makes one call on each.
async fn add_idle(idle: &mut Vec<Client>, wanted: usize, url: &NfsUrl) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("a connection to {url}: {error}"));
    let kind = transports::for_client().find(&url.options.proto).expect("transport must be known");
    let kind = kind.with_options(&url.options.transport).map_err(|error| failed(&error))?;
    let address = (url.host.parse().ok(), url.port);
    let (Some(host), Some(port)) = address else { return Err(failed(&"no address")) };
    let server = std::net::SocketAddr::new(host, port);
    let connect = || async {
        let client = Client::connect(kind.clone(), server, ClientOptions::new(NFS_PROGRAM, 3)).await;
        let client = client.map_err(|error| failed(&error))?;
        let null = client.call::<()>(0, &(), ReplyPlan::default(), CallOptions::default()).await;
        null.map_err(|error| failed(&error.error))?;
        Ok(client)
    };
    let missing = wanted.saturating_sub(idle.len());
    let new: Vec<Client> = stream::iter(0..missing).map(|_| connect()).buffer_unordered(AT_ONCE).try_collect().await?;
    idle.extend(new);
    Ok(())
}

/// Measures the goodput of the active connections, without and with idle ones.
async fn goodput(args: &Args, url: &NfsUrl) -> Result<Goodput, Failure> {
    let reach = Reach::new();
    let mount = reach.mount(url).await?;
    let failed = |error: client::Error| reach::failure(url, &error);
    mount.write(FILE, site::pattern(FILE_BYTES as usize)).await.map_err(failed)?;
    let block = usize::try_from(args.block.0).unwrap_or(usize::MAX).min(mount.read_size());
    let files = try_join_all((0..args.active).map(|_| async {
        let mount = reach.mount(url).await?;
        let file = mount.open(FILE).await.map_err(failed)?;
        Ok::<_, Failure>((mount, file))
    }))
    .await?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let mut idle = Vec::new();
        for runs in [&mut alone, &mut beside] {
            let begin = Instant::now();
            let end = begin + Duration::from_secs_f64(args.seconds);
            let read = try_join_all(files.iter().enumerate().map(|(number, (mount, file))| async move {
                let (mut bytes, mut turn) = (0, number as u64);
                let mut buffer = mount.pool().take(block);
                loop {
                    let offset = (site::scatter(turn) % (FILE_BYTES / block as u64)) * block as u64;
                    let (len, back) = file.read_at(offset, buffer).await;
                    (bytes, turn, buffer) = (bytes + len.map_err(failed)? as u64, turn + 1, back);
                    if Instant::now() >= end {
                        return Ok::<u64, Failure>(bytes);
                    }
                }
            }))
            .await?;
            runs.push(read.iter().sum::<u64>() as f64 / begin.elapsed().as_secs_f64());
            add_idle(&mut idle, args.beside, url).await?;
        }
    }
    Ok(Goodput { active: args.active, alone: median(alone), idle: args.beside, beside_idle: median(beside) })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn bytes_each(memory: &[Resident]) -> Option<f64> {
    let first = memory.iter().find(|at| at.connections == HUNDRED)?;
    let last = memory.iter().filter(|at| at.connections > HUNDRED).max_by_key(|at| at.connections)?;
    Some((last.bytes as f64 - first.bytes as f64) / (last.connections - HUNDRED) as f64)
}

fn text(found: &[Found]) -> String {
    let mut memory = Table::new(&[
        ("transport", Align::Left),
        ("idle connections", Align::Right),
        ("server resident", Align::Right),
        ("each beyond 100", Align::Right),
    ]);
    let mut goodput = Table::new(&[
        ("transport", Align::Left),
        ("active", Align::Right),
        ("GB/s alone", Align::Right),
        ("idle", Align::Right),
        ("GB/s with them", Align::Right),
        ("part", Align::Right),
    ]);
    for Found { transport, memory: at, goodput: run, .. } in found {
        for (index, Resident { connections, bytes }) in at.iter().enumerate() {
            let each = bytes_each(&at[..=index]).filter(|_| *connections > HUNDRED);
            memory.row(vec![
                transport.clone(),
                connections.to_string(),
                output::size(*bytes),
                each.map_or("-".to_owned(), |bytes| output::size(bytes.max(0.0) as u64)),
            ]);
        }
        if let Some(Goodput { active, alone, idle, beside_idle }) = run {
            goodput.row(vec![
                transport.clone(),
                active.to_string(),
                format!("{:.3}", alone / 1e9),
                idle.to_string(),
                format!("{:.3}", beside_idle / 1e9),
                format!("{:.2}", beside_idle / alone),
            ]);
        }
    }
    let with_goodput = found.iter().any(|found| found.goodput.is_some());
    let goodput = if with_goodput { format!("\n{}", goodput.text()) } else { String::new() };
    format!("{}{goodput}", memory.text())
}

const NFS_PROGRAM: u32 = 100_003;
/// The number of connections that are not counted, because their cost includes the start of the server.
const HUNDRED: usize = 100;
const FILE: &str = "/slipway-bench-connections";
const FILE_BYTES: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_excludes_the_first_hundred_connections() {
        let at = |connections, bytes| Resident { connections, bytes };
        assert_eq!(bytes_each(&[at(1, 5), at(100, 1000), at(1000, 91_000), at(1100, 101_000)]), Some(100.0));
        assert_eq!(bytes_each(&[at(1, 5), at(100, 1000)]), None);
        assert_eq!(bytes_each(&[at(1000, 5)]), None);
    }
}
