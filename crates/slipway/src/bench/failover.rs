//! `slipway bench failover`: measures one session of NFSv4.1 over a TCP and an RDMA connection, while one or the other
//! is cut repeatedly.
//!
//! A connection is cut as by the network: its socket is shut down below the client. No request may fail. The client
//! sends outstanding requests again over the other connection, in the same slots, and reconnects the first one.

use std::{
    fs, io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use client::{NfsUrl, Version};
use parking_lot::Mutex;
use rustix::{
    net::{Shutdown, getpeername, shutdown},
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};
use serde::Serialize;

use super::{
    meter::Meter,
    point::{Operation, Point},
    report::Row,
    runner::{self, Cell, Measured, Subject},
    series::NfsSubject,
    site::Site,
};
use crate::{
    child::{Listen, Server},
    exit::{Exit, Failure, Outcome},
    output::{self, Align, Table},
    progress::Steps,
    reach,
};

/// The options of the measurement.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Milliseconds between two cuts
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Outstanding operations
    #[arg(short = 'n', long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: u32,
    /// Seconds of each run
    #[arg(short, long, default_value_t = 2.0)]
    seconds: f64,
    /// Runs of each session, in turns
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Congestion control of both ends: cubic, bbr, reno, …
    #[arg(long)]
    congestion: Option<String>,
    /// Print the results as one line of JSON
    #[arg(long)]
    json: bool,
}

/// The result of a session at a point.
#[derive(Debug, Serialize)]
struct Found {
    #[serde(flatten)]
    row: Row,
    /// The number of cut connections, in all runs of this session at all points.
    cuts: usize,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
        return Err(Failure::usage("--seconds: more than 0, and at most an hour"));
    }
    let points = [Operation::Read, Operation::Write].map(|operation| Point::new(operation, BLOCK, args.in_flight));
    let site = Arc::new(Site::new("slipway-bench-failover".to_owned(), &points, FILE_BYTES));
    let options = args.congestion.iter().map(|name| ("congestion".to_owned(), name.clone())).collect();
    let listen = TRANSPORTS.map(|transport| Listen::on(transport, Clone::clone(&options)));
    let server = Server::start(&listen, &["--memory".into(), (4 * FILE_BYTES).to_string().into()])?;
    let block_max = reach::run(site.prepare(&server.url(0)))?;

    let meter = Meter::find(Path::new("/"));
    let subject = |session: &Session| -> Result<Cutting<NfsSubject<'_>>, Failure> {
        let limit = Duration::from_secs_f64(args.seconds);
        let url = url(&server, session.connections)?;
        let inner = NfsSubject::new(vec![url], site.clone(), block_max, vec![server.pid()], limit, &meter);
        let driven = inner.driven();
        let connections = session.connections.iter().map(|&at| address(&server.url(at))).collect();
        let cut = session.cut.iter().map(|&at| address(&server.url(at))).collect();
        Ok(Cutting { inner, driven, connections, cut, every: Duration::from_millis(args.every), cuts: 0 })
    };
    let mut subjects = SESSIONS.iter().map(subject).collect::<Result<Vec<_>, _>>()?;
    let steps = Steps::new(!args.json, points.len() * SESSIONS.len() * args.rounds as usize);
    let cells = runner::run(&mut subjects, &points, args.rounds, || steps.step())?;
    drop(steps);

    let mut found = Vec::new();
    for (point, cells) in points.iter().zip(&cells) {
        for ((session, subject), cell) in SESSIONS.iter().zip(&subjects).zip(cells) {
            match cell {
                Cell::Samples(samples) => {
                    found.push(Found { row: Row::new(session.name, point, samples), cuts: subject.cuts });
                }
                Cell::Unable(why) => return Err(Failure::failed(format!("{}: {why}", session.name))),
            }
        }
    }
    match args.json {
        true => output::json(&found),
        false => output::print(&text(&found)),
    }
    Ok(Exit::Ok)
}

/// Returns the URL of a session over the listeners with these indices.
fn url(server: &Server, connections: &[usize]) -> Result<NfsUrl, Failure> {
    let mut url = server.url(connections[0]);
    url.options.version = Version::V4_1;
    let further = connections[1..].iter().map(|&at| format!("{}@{}", TRANSPORTS[at], address(&server.url(at))));
    url.options.set("addr", &further.collect::<Vec<_>>().join(",")).map_err(Failure::usage)?;
    Ok(url)
}

fn address(url: &NfsUrl) -> SocketAddr {
    let host = url.host.parse().expect("host must be an address");
    SocketAddr::new(host, url.port.expect("URL must have a port"))
}

/// A subject whose connections are cut during the measurement.
struct Cutting<S> {
    inner: S,
    /// Locked while the load runs, and not while connections are made and closed.
    driven: Arc<Mutex<bool>>,
    /// The peers of all connections. While one of them is not connected, none is cut.
    connections: Vec<SocketAddr>,
    /// The peers of the connections to cut, one after the other.
    cut: Vec<SocketAddr>,
    every: Duration,
    /// The number of cuts.
    cuts: usize,
}

impl<S: Subject> Subject for Cutting<S> {
    fn measure(&mut self, point: &Point) -> Result<Measured, Failure> {
        let Self { inner, driven, connections, cut, every, cuts } = self;
        thread::scope(|scope| {
            let (done, is_done) = mpsc::channel::<()>();
            let cutter = scope.spawn(move || -> io::Result<usize> {
                let (mut turns, mut count) = (cut.iter().cycle(), 0);
                while is_done.recv_timeout(*every) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let driven = driven.lock();
                    if !*driven {
                        continue;
                    }
                    let Some(next) = turns.next() else { break };
                    let sockets = Sockets::connected()?;
                    if connections.iter().all(|peer| sockets.to(peer).next().is_some()) {
                        count += sockets.to(next).filter(|socket| shutdown(socket, Shutdown::Both).is_ok()).count();
                    }
                }
                Ok(count)
            });
            let measured = inner.measure(point);
            drop(done);
            let cut = cutter.join().expect("thread must not panic");
            *cuts += cut.map_err(|error| Failure::failed(format!("connections cannot be cut: {error}")))?;
            measured
        })
    }
}

/// Sockets of this process, with their peers.
struct Sockets(Vec<(rustix::fd::OwnedFd, SocketAddr)>);

impl Sockets {
    /// Returns all connected sockets.
    fn connected() -> io::Result<Self> {
        let this = pidfd_open(getpid(), PidfdFlags::empty())?;
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc/self/fd")? {
            let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // Ignore descriptors that have been closed meanwhile, or are not sockets.
            let Ok(socket) = pidfd_getfd(&this, number, PidfdGetfdFlags::empty()) else { continue };
            let peer = getpeername(&socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
            all.extend(peer.map(|peer| (socket, peer)));
        }
        Ok(Self(all))
    }

    fn to(&self, peer: &SocketAddr) -> impl Iterator<Item = &rustix::fd::OwnedFd> {
        self.0.iter().filter(move |(_, other)| other == peer).map(|(socket, _)| socket)
    }
}

fn text(found: &[Found]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("what", Align::Left),
        ("session over", Align::Left),
        ("GB/s", right),
        ("CPU s/GB", right),
        ("p99 ms", right),
        ("longest", right),
        ("operations", right),
        ("cuts", right),
    ]);
    for Found { row, cuts } in found {
        let per_gb = |cost: Option<f64>| cost.unwrap_or(0.0);
        let client = per_gb(row.client_cpu.seconds_per_gb.map(|cost| cost.median));
        let server = per_gb(row.server_cpu.and_then(|cost| cost.seconds_per_gb).map(|cost| cost.median));
        table.row(vec![
            row.point.label(),
            row.series.clone(),
            format!("{:.3}", row.gb_per_s.map_or(0.0, |rate| rate.median)),
            format!("{:.3}", client + server),
            format!("{:.2}", row.latency_us.p99 / 1e3),
            format!("{:.2}", row.latency_us.max / 1e3),
            row.operations.to_string(),
            cuts.to_string(),
        ]);
    }
    format!("{}\nNo request failed. Cuts count the READs and WRITEs of a session together.\n", table.text())
}

/// A session configuration.
struct Session {
    name: &'static str,
    /// Its connections, as indices of [`TRANSPORTS`].
    connections: &'static [usize],
    /// The connections that are cut, in turns.
    cut: &'static [usize],
}

const TRANSPORTS: [&str; 2] = ["tcp", "rdma"];
const SESSIONS: [Session; 6] = [
    Session { name: "tcp", connections: &[0], cut: &[] },
    Session { name: "rdma", connections: &[1], cut: &[] },
    Session { name: "both", connections: &[0, 1], cut: &[] },
    Session { name: "both, tcp cut", connections: &[0, 1], cut: &[0] },
    Session { name: "both, rdma cut", connections: &[0, 1], cut: &[1] },
    Session { name: "both, cut in turns", connections: &[0, 1], cut: &[0, 1] },
];
const BLOCK: usize = 128 << 10;
const FILE_BYTES: u64 = 64 << 20;
