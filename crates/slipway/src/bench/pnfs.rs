//! `slipway bench pnfs`: clients of pNFS clusters.
//!
//! All servers run on one machine, so more data servers do not make it faster. With the pattern `limited`, each is limited to a number of bytes
//! per second, as by its network, and the sum of all limits must be below what the machine can do. Then the figures show whether the client
//! uses all data servers at the same time, and whether the metadata server stays out of the way. `direct` has no limits, and shows what the way by
//! layouts costs.
//!
//! Each series is a cluster. Its files have one copy that is distributed over all its data servers. With `direct`, a series can also be one server,
//! or as many as a cluster has data servers, each with a file of its own: these show what the machine can do with so many processes.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::{NfsUrl, Version};
use server::config::ByteSize;

use super::{
    btio::{self, Btio},
    html::Page,
    machine::Machine,
    meter::Meter,
    plan::{self, Plan},
    point::{Operation, Point},
    report::{Conditions, Report, Row, Spread},
    runner::{self, Measured, Subject},
    series::{NfsSubject, Series},
    site::Site,
    text,
    workload::NEW_FILES,
};
use crate::{
    child::{Listen, Server},
    cluster::{Cluster, Kind, Shape},
    exit::{Exit, Failure, Outcome},
    output::{self, Align, Table},
    progress::Steps,
    reach,
};

/// The options of the measurement.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The load
    #[arg(short, long, value_enum, default_value_t = Pattern::Limited)]
    pattern: Pattern,
    /// Numbers of data servers, each of a cluster; the first one is compared with [default: 1,2,4,8,16; direct: 2; latency: 1; btio: 4]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=16))]
    servers: Vec<u32>,
    /// Maximum bytes per second of each data server; the machine must be able to do more than all together [limited: 16M]
    #[arg(long, value_name = "RATE")]
    limit: Option<ByteSize>,
    /// The kind of the data servers: nfs3 has its objects in memory, slipway in directories
    #[arg(long, value_enum, default_value = "nfs3")]
    kind: DataServerKind,
    /// Transports [limited, latency: to a metadata server with one data server, besides tcp: rdma,shm; direct: to all servers: tcp,shm]
    #[arg(short, long, value_delimiter = ',')]
    transport: Vec<String>,
    /// Bytes of a READ or WRITE [limited: 1M; direct: 128K]
    #[arg(short, long)]
    block: Option<ByteSize>,
    /// Outstanding READs and WRITEs; with limited, several for each data server [limited: 32; direct, btio: 8]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: Option<u32>,
    /// Dumps of BTIO
    #[arg(long, default_value_t = btio::DUMPS, value_parser = clap::value_parser!(u64).range(1..=1000))]
    dumps: u64,
    /// Runs of each cluster at each point, in turns [default: 3; btio: 1]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds of each run; BTIO is a fixed work
    #[arg(short, long)]
    seconds: Option<f64>,
    /// Bytes of the file of each cluster; those of BTIO follow from its dumps
    #[arg(long)]
    file_size: Option<ByteSize>,
    /// Directory in which temporary directories are made, on a file system with extended attributes
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print the results as one line of JSON
    #[arg(long)]
    json: bool,
    /// Also write a self-contained page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The load on clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Pattern {
    /// READ and WRITE, CREATE and GETATTR, with limited data servers
    Limited,
    /// READ and WRITE by layouts from data servers without limits, beside one server directly
    Direct,
    /// CREATE, WRITE, GETATTR and SETATTR of new files, by 1, 4 and 16 writers
    Create,
    /// Operations at the metadata server with payloads of 1 byte to 32 KiB, one outstanding
    Latency,
    /// The records of BTIO (class A), FULL and SIMPLE, by 1, 4 and 16 writers of one file, which is read back and compared
    Btio,
}

/// The values of the options.
struct Chosen {
    pattern: Pattern,
    servers: Vec<u32>,
    kind: DataServerKind,
    limit: Option<u64>,
    transports: Vec<String>,
    block: usize,
    in_flight: u32,
    rounds: u32,
    file_size: u64,
    dir: PathBuf,
}

impl Chosen {
    fn new(args: &Args) -> Self {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (servers, limit, transports, block, in_flight, rounds): (&[u32], _, _, _, _, _) = match args.pattern {
            Pattern::Limited => (&ALL, Some(16 << 20), names(&["rdma", "shm"]), 1 << 20, 32, 3),
            Pattern::Direct => (&[2], None, names(&["tcp", "shm"]), 128 << 10, 8, 3),
            Pattern::Create => (&ALL, None, Vec::new(), 1 << 20, 1, 3),
            Pattern::Latency => (&[1], None, names(&["rdma", "shm"]), 1, 1, 3),
            Pattern::Btio => (&[4], None, Vec::new(), 1 << 20, 8, 1),
        };
        Self {
            pattern: args.pattern,
            servers: if args.servers.is_empty() { servers.to_vec() } else { args.servers.clone() },
            kind: args.kind,
            limit: args.limit.map(|limit| limit.0).or(limit),
            transports: if args.transport.is_empty() { transports } else { args.transport.clone() },
            block: args.block.map_or(block, |block| block.0 as usize),
            in_flight: args.in_flight.unwrap_or(in_flight),
            rounds: args.rounds.unwrap_or(rounds),
            file_size: 0,
            dir: args.dir.clone().unwrap_or_else(std::env::temp_dir),
        }
    }

    fn plan(&self, dumps: u64) -> Plan {
        match self.pattern {
            Pattern::Limited => plan::pnfs_limited(self.block, self.in_flight),
            Pattern::Direct => plan::pnfs_direct(self.block, self.in_flight),
            Pattern::Create => plan::pnfs_create(),
            Pattern::Latency => plan::pnfs_latency(),
            Pattern::Btio => plan::pnfs_btio(dumps, self.in_flight),
        }
    }
}

/// The kind of data servers.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum DataServerKind {
    Nfs3,
    Slipway,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let page = Page::open(args.html.as_deref())?;
    let mut chosen = Chosen::new(args);
    let plan = chosen.plan(args.dumps);
    let is_btio = args.pattern == Pattern::Btio;
    let seconds = args.seconds.unwrap_or(plan.seconds);
    if is_btio && (args.seconds.is_some() || args.file_size.is_some()) {
        return Err(Failure::usage("--seconds and --file-size: BTIO is a fixed work; use --dumps"));
    }
    if !(is_btio || seconds > 0.0 && seconds <= 3600.0) {
        return Err(Failure::usage("--seconds: more than 0, and at most an hour"));
    }
    let is_latency = args.pattern == Pattern::Latency;
    if is_latency && (args.block.is_some() || args.in_flight.is_some() || args.file_size.is_some()) {
        let message = "--block, --in-flight and --file-size: latency has fixed payloads in a file that stays at the metadata server";
        return Err(Failure::usage(message));
    }
    chosen.file_size = args.file_size.map_or(plan.file_size, |size| size.0);
    let is_possible = (1..=1 << 20).contains(&chosen.block) && chosen.file_size >= (chosen.block as u64).max(FILE_MIN);
    if !(is_latency || is_possible) {
        return Err(Failure::usage("--block is from 1 byte to 1 MiB, and --file-size at least one block and 128 KiB"));
    }
    let report = measure(&chosen, args, &plan, Duration::from_secs_f64(seconds))?;
    page.write(&plan, &report)?;
    let compared = match args.pattern {
        Pattern::Limited => gains(&chosen, &plan, &report),
        Pattern::Direct => shares(&chosen, &plan, &report),
        Pattern::Create | Pattern::Latency | Pattern::Btio => String::new(),
    };
    match args.json {
        true => output::json(&report),
        false => output::print(&format!("{}\n{compared}", text::report(&plan, &report))),
    }
    Ok(Exit::Ok)
}

fn measure(chosen: &Chosen, args: &Args, plan: &Plan, limit: Duration) -> Result<Report, Failure> {
    let meter = Meter::find(Path::new("/"));
    let (mut series, mut places) = (Vec::new(), Vec::new());
    for shape in series_of(chosen) {
        series.push(one_series(shape.name, &shape.transport));
        places.push(match shape.servers {
            Servers::Cluster(count) => Place::cluster(chosen, count, &shape.transport)?,
            Servers::Direct(count) => Place::servers(chosen, count, &shape.transport)?,
        });
    }
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    for (at, place) in places.iter().enumerate() {
        if let (Pattern::Btio, Place::Cluster(cluster)) = (chosen.pattern, place) {
            let url = cluster.url(0, Version::V4_2);
            subjects.push(Box::new(Btio::new(url, cluster.metadata_pid(), args.dumps, &meter)));
            continue;
        }
        let site = Arc::new(Site::new(format!("slipway-bench-{at}"), &plan.points, chosen.file_size));
        let (urls, mut block_max) = (place.urls(), usize::MAX);
        for url in &urls {
            block_max = block_max.min(reach::run(site.prepare(url))?);
        }
        let load = NfsSubject::new(urls, site, block_max, place.pids(chosen.pattern), limit, &meter);
        subjects.push(Box::new(Settled { load, place }));
    }
    let steps = Steps::new(!args.json, plan.points.len() * series.len() * chosen.rounds as usize);
    let cells = runner::run(&mut subjects, &plan.points, chosen.rounds, || steps.step())?;
    drop(steps);
    let limited = chosen.limit.map_or(String::new(), |limit| format!(" with {}/s each", output::size(limit)));
    let place = match chosen.kind {
        DataServerKind::Nfs3 => "in memory",
        DataServerKind::Slipway => "of kind slipway",
    };
    let counted = if chosen.pattern == Pattern::Direct { "all servers" } else { "the metadata server" };
    let mut report = Report {
        benchmark: plan.name,
        title: plan.title.clone(),
        machine: Machine::this(),
        memory_bandwidth: meter.describe(),
        conditions: Conditions {
            rounds: chosen.rounds,
            seconds: limit.as_secs_f64(),
            file_size: chosen.file_size,
            server: format!("own clusters; data servers {place}{limited}; the server's CPU is that of {counted}"),
            congestion_control: None,
        },
        series,
        results: Vec::new(),
        unable: Vec::new(),
    };
    report.fill(&plan.points, &cells);
    Ok(report)
}

/// A series: what is measured over which transport.
struct OneSeries {
    name: String,
    transport: String,
    servers: Servers,
}

/// The servers of a series.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Servers {
    /// A cluster with this number of data servers.
    Cluster(u32),
    /// This number of servers without layouts, whose files are used at the same time.
    Direct(u32),
}

/// Returns the series of a measurement.
fn series_of(chosen: &Chosen) -> Vec<OneSeries> {
    let all = chosen.servers.iter();
    if chosen.pattern == Pattern::Direct {
        let of = |transport: &String| {
            let one = |servers: Servers| {
                let name = match servers {
                    Servers::Cluster(count) => name(count),
                    Servers::Direct(1) => DIRECT.to_owned(),
                    Servers::Direct(count) => format!("{count} servers directly"),
                };
                let name = if transport == "tcp" { name } else { format!("{name} over {transport}") };
                OneSeries { name, transport: transport.clone(), servers }
            };
            let several = all.clone().filter(|count| **count > 1).map(|count| one(Servers::Direct(*count)));
            let clusters = all.clone().map(|count| one(Servers::Cluster(*count)));
            std::iter::once(one(Servers::Direct(1))).chain(several).chain(clusters).collect::<Vec<_>>()
        };
        return chosen.transports.iter().flat_map(of).collect();
    }
    let cluster = |name, transport: &str, count| OneSeries {
        name,
        transport: transport.to_owned(),
        servers: Servers::Cluster(count),
    };
    let over_tcp = all.map(|count| cluster(name(*count), "tcp", *count));
    let others = chosen.transports.iter();
    let others = others.map(|transport| cluster(format!("1 data server, metadata over {transport}"), transport, 1));
    over_tcp.chain(others).collect()
}

/// The servers of one series.
enum Place {
    Cluster(Cluster),
    Servers(Vec<Server>),
}

impl Place {
    fn cluster(chosen: &Chosen, servers: u32, transport: &str) -> Result<Self, Failure> {
        let started = Cluster::start(&Shape {
            servers: servers as usize,
            mirrors: 1,
            stripes: servers as usize,
            // Otherwise eight successive blocks of 128 KiB are one stripe unit, and one data server has all outstanding operations.
            stripe_unit: (chosen.pattern == Pattern::Direct).then(|| stripe_unit(chosen.block)),
            kind: match chosen.kind {
                DataServerKind::Nfs3 => Kind::Nfs3(room(chosen)),
                DataServerKind::Slipway => Kind::Slipway,
            },
            limit: chosen.limit,
            transports: vec![transport.to_owned()],
            // With the other patterns, data servers are used over tcp, so that their rates can be compared.
            data_transport: (chosen.pattern == Pattern::Direct).then(|| transport.to_owned()),
            dir: chosen.dir.clone(),
        });
        started.map(Self::Cluster)
    }

    /// Starts servers that have the data themselves. They have the options of data servers.
    fn servers(chosen: &Chosen, count: u32, transport: &str) -> Result<Self, Failure> {
        let arguments = ["--memory", &room(chosen).to_string(), "--squash", "none", "--workers", "1"].map(Into::into);
        let start = |_| Server::start(&[Listen::on(transport, Default::default())], &arguments);
        (0..count).map(start).collect::<Result<_, _>>().map(Self::Servers)
    }

    fn urls(&self) -> Vec<NfsUrl> {
        let by_server = |server: &Server| {
            let mut url = server.url(0);
            url.options.version = Version::V4_2;
            url
        };
        match self {
            Self::Cluster(cluster) => vec![cluster.url(0, Version::V4_2)],
            Self::Servers(servers) => servers.iter().map(by_server).collect(),
        }
    }

    /// Returns the process IDs of the servers whose CPU time counts.
    fn pids(&self, pattern: Pattern) -> Vec<u32> {
        match self {
            Self::Cluster(cluster) => {
                let data = cluster.data_server_pids().filter(|_| pattern == Pattern::Direct);
                std::iter::once(cluster.metadata_pid()).chain(data).collect()
            }
            Self::Servers(servers) => servers.iter().map(Server::pid).collect(),
        }
    }
}

/// A load on the servers of a series. When it has ended, they have no work left that would take processors from the next series.
struct Settled<'a> {
    load: NfsSubject<'a>,
    place: &'a Place,
}

impl Subject for Settled<'_> {
    fn measure(&mut self, point: &Point) -> Result<Measured, Failure> {
        let measured = self.load.measure(point)?;
        if let Place::Cluster(cluster) = self.place {
            cluster.await_removals()?;
        }
        Ok(measured)
    }
}

/// Returns the smallest stripe unit with a whole block: a multiple of 4 KiB from 64 KiB on.
fn stripe_unit(block: usize) -> u64 {
    (block as u64).next_multiple_of(4 << 10).max(64 << 10)
}

/// Returns the bytes of memory of each server.
fn room(chosen: &Chosen) -> u64 {
    let new = if chosen.pattern == Pattern::Create { NEW_FILES * plan::NEW_LARGE as u64 } else { 0 };
    chosen.file_size * 2 + new + (64 << 20)
}

/// Returns a table with the share of the throughput of one server that the way by layouts reaches, and that of several servers without layouts.
fn shares(chosen: &Chosen, plan: &Plan, report: &Report) -> String {
    let right = Align::Right;
    let points: Vec<String> = plan.points.iter().map(Point::label).collect();
    let columns = points.iter().map(|label| (label.as_str(), right));
    let mut table = Table::new(&[("series", Align::Left)].into_iter().chain(columns).collect::<Vec<_>>());
    let all = series_of(chosen);
    for OneSeries { name, transport, .. } in all.iter().filter(|one| one.servers != Servers::Direct(1)) {
        let is_direct = |one: &&OneSeries| one.transport == *transport && one.servers == Servers::Direct(1);
        let Some(direct) = all.iter().find(is_direct) else { continue };
        let share = |point: &Point| {
            let rows = report.row(name, point).zip(report.row(&direct.name, point));
            rows.map_or("-".to_owned(), |(row, direct)| {
                let Spread { median, low, high } = row.ratio(direct);
                format!("{median:.2} ({low:.2} to {high:.2})")
            })
        };
        table.row(std::iter::once(name.clone()).chain(plan.points.iter().map(share)).collect());
    }
    format!(
        "Throughput, divided by that of one server directly in the same round (median, and range):\n\n{}",
        table.text()
    )
}

fn name(servers: u32) -> String {
    if servers == 1 { "1 data server".to_owned() } else { format!("{servers} data servers") }
}

fn one_series(name: String, transport: &str) -> Series {
    let (options, mount) = Default::default();
    Series { name, transport: transport.to_owned(), options, mount, backend: "pnfs".to_owned() }
}

/// Returns a table of the clusters over TCP, compared with the first one: the rates for each data server, and the rate of CREATE.
fn gains(chosen: &Chosen, plan: &Plan, report: &Report) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("data servers", right),
        ("READ", right),
        ("of N times", right),
        ("WRITE", right),
        ("of N times", right),
        ("CREATE", right),
    ]);
    let first = chosen.servers[0];
    for servers in &chosen.servers {
        let times = f64::from(*servers) / f64::from(first);
        let mut cells = vec![servers.to_string()];
        for operation in [Operation::Read, Operation::Write] {
            let gain = ratio(plan, report, operation, |row| row.gb_per_s.map(|rate| rate.median), (*servers, first));
            cells.push(gain.map_or("-".to_owned(), |gain| format!("{gain:.2}")));
            cells.push(gain.map_or("-".to_owned(), |gain| format!("{:.2}", gain / times)));
        }
        let gain = ratio(plan, report, Operation::Create, |row| Some(row.iops.median), (*servers, first));
        cells.push(gain.map_or("-".to_owned(), |gain| format!("{gain:.2}")));
        table.row(cells);
    }
    format!("Compared with {}:\n\n{}", name(first), table.text())
}

/// Returns the value of one cluster divided by that of another one, at the first point with an operation.
fn ratio(
    plan: &Plan,
    report: &Report,
    operation: Operation,
    value: impl Fn(&Row) -> Option<f64>,
    (servers, first): (u32, u32),
) -> Option<f64> {
    let point: &Point = plan.points.iter().find(|point| point.operation == operation)?;
    let of = |servers| value(report.row(&name(servers), point)?);
    Some(of(servers)? / of(first)?)
}

/// The numbers of data servers of the published comparison.
const ALL: [u32; 5] = [1, 2, 4, 8, 16];
/// The name of a series without layouts.
const DIRECT: &str = "one server directly";
/// The smallest file whose data are on data servers.
const FILE_MIN: u64 = 128 << 10;
