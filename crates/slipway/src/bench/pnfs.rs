//! `slipway bench pnfs`: clients of pNFS clusters.
//!
//! All servers run on one machine, so more data servers do not make it faster. With the pattern `limited`, each is limited to a number of bytes
//! per second, as by its network, and the sum of all limits must be below what the machine can do. Then the figures show whether the client
//! uses all data servers at the same time, and whether the metadata server stays out of the way. The same clusters without limits show what the
//! machine can do. `direct` has no limits, and shows what the way by layouts costs.
//!
//! Each series is a cluster, whose metadata server and data servers are reached over one transport. Its files have one copy that is distributed
//! over all its data servers. With `direct`, a series can also be one server, or as many as a cluster has data servers, each with a file of its
//! own: these show what the machine can do with so many processes. With `create`, there are clusters that make each object at a data server
//! before they grant a layout (nfs3), and clusters that compute its handle (slipway); files have an object at each data server, and with
//! slipway also one object. All connections are tcp there. With `latency`, only the metadata server is used, and a second cluster of each
//! series has files with many objects.

mod aims;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::{NfsUrl, Version};
use server::config::ByteSize;

use super::{
    btio::{self, Btio},
    creation::Creation,
    html::Page,
    layouts::{Layouts, Sizes, WIDE},
    machine::Machine,
    meter::Meter,
    plan::{self, Plan},
    point::Point,
    report::{Conditions, Report},
    runner::{self, Measured, Subject},
    series::{NfsSubject, Series},
    site::Site,
    text,
    workload::{FIRST_FILES, NEW_FILES},
};
use crate::{
    child::{Listen, Server},
    cluster::{Cluster, Kind, Shape},
    exit::{Exit, Failure, Outcome},
    output,
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
    /// The kinds of the data servers: nfs3 has its objects in memory, and makes them before a layout is granted; slipway has them in
    /// directories, and the metadata server computes their handles [default: nfs3; create: nfs3,slipway]
    #[arg(long, value_enum, value_delimiter = ',')]
    kind: Vec<DataServerKind>,
    /// Objects of a file, at most one for each data server [create: with nfs3 16, with slipway 1,16]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=16))]
    stripes: Vec<u32>,
    /// Transports, each with series of its own: to the metadata server with latency [tcp,rdma,shm], and to all servers with direct [tcp,shm],
    /// limited and btio [tcp]
    #[arg(short, long, value_delimiter = ',')]
    transport: Vec<String>,
    /// Numbers of clients, each with its own mount [limited: 1,2,4,8; create: 1,4,16]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: Vec<u32>,
    /// Bytes of a READ or WRITE [limited: 32K,1M; direct: 128K]
    #[arg(short, long, value_delimiter = ',')]
    block: Vec<ByteSize>,
    /// Outstanding READs and WRITEs; with limited, several for each data server, of all clients together [limited: 32; direct, btio: 8]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: Option<u32>,
    /// Dumps of BTIO
    #[arg(long, default_value_t = btio::DUMPS, value_parser = clap::value_parser!(u64).range(1..=1000))]
    dumps: u64,
    /// Runs of each cluster at each point, in turns [default: 3; limited: 2; btio: 1]
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
    /// READ and WRITE by several clients, with limited data servers
    Limited,
    /// READ and WRITE by layouts from data servers without limits, beside one server directly
    Direct,
    /// New files with layouts, GETATTR and SETATTR, by several clients, without data and with a WRITE
    Create,
    /// Operations at the metadata server with payloads of 1 byte to 32 KiB, also on layouts, one outstanding
    Latency,
    /// The records of BTIO (class A), FULL and SIMPLE, by 1, 4 and 16 writers of one file, which is read back and compared
    Btio,
}

/// The values of the options.
struct Chosen {
    pattern: Pattern,
    servers: Vec<u32>,
    kinds: Vec<DataServerKind>,
    stripes: Vec<u32>,
    limit: Option<u64>,
    transports: Vec<String>,
    clients: Vec<u32>,
    blocks: Vec<usize>,
    in_flight: u32,
    rounds: u32,
    file_size: u64,
    dir: PathBuf,
}

impl Chosen {
    fn new(args: &Args) -> Self {
        let or = |given: &[u32], default: &[u32]| if given.is_empty() { default.to_vec() } else { given.to_vec() };
        let (servers, clients): (&[u32], &[u32]) = match args.pattern {
            Pattern::Limited => (&ALL, &[1, 2, 4, 8]),
            Pattern::Direct => (&[2], &[1]),
            Pattern::Create => (&ALL, &plan::WRITERS),
            Pattern::Latency => (&[1], &[1]),
            Pattern::Btio => (&[4], &plan::WRITERS),
        };
        let (transports, blocks, in_flight, rounds): (&[&str], &[usize], _, _) = match args.pattern {
            Pattern::Limited => (&["tcp"], &[32 << 10, 1 << 20], 32, 2),
            Pattern::Direct => (&["tcp", "shm"], &[128 << 10], 8, 3),
            Pattern::Create => (&["tcp"], &[1], 1, 3),
            Pattern::Latency => (&["tcp", "rdma", "shm"], &[1], 1, 3),
            Pattern::Btio => (&["tcp"], &[1], 8, 1),
        };
        let kinds: &[_] = match args.pattern {
            Pattern::Create => &[DataServerKind::Nfs3, DataServerKind::Slipway],
            _ => &[DataServerKind::Nfs3],
        };
        let own = || transports.iter().map(|name| (*name).to_owned()).collect();
        let given: Vec<_> = args.block.iter().map(|block| block.0 as usize).collect();
        Self {
            pattern: args.pattern,
            servers: or(&args.servers, servers),
            kinds: if args.kind.is_empty() { kinds.to_vec() } else { args.kind.clone() },
            stripes: args.stripes.clone(),
            limit: args.limit.map(|limit| limit.0).or((args.pattern == Pattern::Limited).then_some(16 << 20)),
            transports: if args.transport.is_empty() { own() } else { args.transport.clone() },
            clients: or(&args.clients, clients),
            blocks: if given.is_empty() { blocks.to_vec() } else { given },
            in_flight: args.in_flight.unwrap_or(in_flight),
            rounds: args.rounds.unwrap_or(rounds),
            file_size: 0,
            dir: args.dir.clone().unwrap_or_else(std::env::temp_dir),
        }
    }

    fn plan(&self, dumps: u64) -> Plan {
        match self.pattern {
            Pattern::Limited => plan::pnfs_limited(&self.blocks, &self.clients, self.in_flight),
            Pattern::Direct => plan::pnfs_direct(self.blocks[0], self.in_flight),
            Pattern::Create => plan::pnfs_create(&self.clients),
            Pattern::Latency => plan::pnfs_latency(),
            Pattern::Btio => plan::pnfs_btio(dumps, self.in_flight),
        }
    }

    /// Returns the files of the cluster at this place in the order of the series. With `limited`, all clients use one.
    fn site(&self, at: usize, points: &[Point]) -> Site {
        let site = Site::new(format!("slipway-bench-{at}"), points, self.file_size);
        if self.pattern == Pattern::Limited { site.shared() } else { site }
    }

    /// Checks the options that only some patterns have.
    ///
    /// # Errors
    /// One of them does not fit the pattern.
    fn check(&self, args: &Args, seconds: f64) -> Result<(), Failure> {
        let refused = |message: &str| Err(Failure::usage(message));
        let is_btio = self.pattern == Pattern::Btio;
        if is_btio && (args.seconds.is_some() || args.file_size.is_some()) {
            return refused("--seconds and --file-size: BTIO is a fixed work; use --dumps");
        }
        if !(is_btio || seconds > 0.0 && seconds <= 3600.0) {
            return refused("--seconds: more than 0, and at most an hour");
        }
        let has_clients = matches!(self.pattern, Pattern::Limited | Pattern::Create);
        if !args.clients.is_empty() && !has_clients {
            return refused("--clients: only limited and create have several clients of your choice");
        }
        if self.blocks.len() > 1 && self.pattern != Pattern::Limited {
            return refused("--block: only limited has several sizes of blocks");
        }
        if !args.stripes.is_empty() && self.pattern != Pattern::Create {
            return refused("--stripes: only create has a number of objects of your choice");
        }
        if !args.transport.is_empty() && self.pattern == Pattern::Create {
            return refused("--transport: create uses tcp");
        }
        if self.pattern == Pattern::Latency {
            let is_fixed = args.block.is_empty() && args.in_flight.is_none() && args.file_size.is_none();
            let message = "--block, --in-flight and --file-size: latency has fixed payloads in a file that stays at the metadata server";
            return if is_fixed { Ok(()) } else { refused(message) };
        }
        let fits = |block: &usize| (1..=1 << 20).contains(block) && self.file_size >= *block as u64;
        if !self.blocks.iter().all(fits) || self.file_size < FILE_MIN {
            return refused("--block is from 1 byte to 1 MiB, and --file-size at least one block and 128 KiB");
        }
        Ok(())
    }
}

/// The kind of data servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DataServerKind {
    Nfs3,
    Slipway,
}

impl DataServerKind {
    fn name(self) -> &'static str {
        match self {
            Self::Nfs3 => "nfs3",
            Self::Slipway => "slipway",
        }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let page = Page::open(args.html.as_deref())?;
    let mut chosen = Chosen::new(args);
    let plan = chosen.plan(args.dumps);
    chosen.file_size = args.file_size.map_or(plan.file_size, |size| size.0);
    let seconds = args.seconds.unwrap_or(plan.seconds);
    chosen.check(args, seconds)?;
    let report = measure(&chosen, args, &plan, Duration::from_secs_f64(seconds))?;
    page.write(&plan, &report)?;
    match args.json {
        true => output::json(&report),
        false => output::print(&text::report(&plan, &report)),
    }
    Ok(Exit::Ok)
}

fn measure(chosen: &Chosen, args: &Args, plan: &Plan, limit: Duration) -> Result<Report, Failure> {
    let (meter, sizes) = (Meter::find(Path::new("/")), Sizes::default());
    let all = series_of(chosen);
    let places = all.iter().map(|one| Place::start(chosen, one)).collect::<Result<Vec<_>, _>>()?;
    let wide = |one: &OneSeries| Cluster::start(&wide(chosen, &one.transport));
    let wide: Vec<_> = all.iter().filter(|_| chosen.pattern == Pattern::Latency).map(wide).collect::<Result<_, _>>()?;
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    for (at, place) in places.iter().enumerate() {
        if let (Pattern::Btio, Place::Cluster(cluster)) = (chosen.pattern, place) {
            let url = cluster.url(0, Version::V4_2);
            let pids = (cluster.metadata_pid(), place.data_pids(chosen.pattern));
            subjects.push(Box::new(Btio::new(url, pids, args.dumps, &meter)));
            continue;
        }
        let site = Arc::new(chosen.site(at, &plan.points));
        let (urls, mut block_max) = (place.urls(), usize::MAX);
        for url in &urls {
            block_max = block_max.min(reach::run(site.prepare(url))?);
        }
        let load = NfsSubject::new(urls, site, block_max, place.pids(chosen.pattern), limit, &meter)
            .with_data_servers(place.data_pids(chosen.pattern));
        let of = |cluster: &Cluster| (cluster.url(0, Version::V4_2), cluster.metadata_pid());
        let layouts: Option<Box<dyn Subject>> = match (place, wide.get(at)) {
            (Place::Cluster(narrow), Some(wide)) => {
                Some(Box::new(Layouts { narrow: of(narrow), wide: of(wide), limit, meter: &meter, sizes: &sizes }))
            }
            (Place::Cluster(cluster), None) if chosen.pattern == Pattern::Create => {
                let (url, pid) = of(cluster);
                let pids = (pid, place.data_pids(chosen.pattern));
                Some(Box::new(Creation { url, objects: all[at].stripes, pids, limit, meter: &meter }))
            }
            _ => None,
        };
        subjects.push(Box::new(Settled { load, layouts, place }));
    }
    let steps = Steps::new(!args.json, plan.points.len() * all.len() * chosen.rounds as usize);
    let cells = runner::run(&mut subjects, &plan.points, chosen.rounds, || steps.step())?;
    drop(steps);
    let mut report = Report {
        benchmark: plan.name,
        title: format!("{}{}", plan.title, sizes.text()),
        machine: Machine::this(),
        memory_bandwidth: meter.describe(),
        conditions: Conditions {
            rounds: chosen.rounds,
            seconds: limit.as_secs_f64(),
            file_size: chosen.file_size,
            server: conditions(chosen),
            congestion_control: None,
        },
        series: all.iter().map(one_series).collect(),
        results: Vec::new(),
        unable: Vec::new(),
        comparisons: Vec::new(),
    };
    report.fill(&plan.points, &cells);
    report.comparisons = aims::comparisons(chosen, plan, &report);
    Ok(report)
}

/// Describes the clusters.
fn conditions(chosen: &Chosen) -> String {
    let place = |kind: &DataServerKind| match kind {
        DataServerKind::Nfs3 => "in memory",
        DataServerKind::Slipway => "of kind slipway",
    };
    let places: Vec<_> = chosen.kinds.iter().map(place).collect();
    let unit = unit_of(chosen).map_or(String::new(), |unit| format!(" in units of {}", output::size(unit)));
    let unless = if chosen.pattern == Pattern::Limited { ", unless they are unlimited" } else { "" };
    let limited = chosen.limit.map_or(String::new(), |limit| format!(" with {}/s each{unless}", output::size(limit)));
    let counted = if chosen.pattern == Pattern::Direct { "all servers" } else { "the metadata server" };
    format!(
        "own clusters; data servers {}{limited}, files striped{unit}; the server's CPU is that of {counted}",
        places.join(" and ")
    )
}

/// A series: what is measured over which transport.
struct OneSeries {
    name: String,
    transport: String,
    servers: Servers,
    kind: DataServerKind,
    /// The number of objects of a file.
    stripes: u32,
    /// Maximum bytes per second of each data server.
    limit: Option<u64>,
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
    let one = |transport: &str, kind: DataServerKind, servers: Servers, stripes: u32, limit: Option<u64>| {
        let name = match servers {
            Servers::Cluster(1) => "1 data server".to_owned(),
            Servers::Cluster(count) => format!("{count} data servers"),
            Servers::Direct(1) => "one server directly".to_owned(),
            Servers::Direct(count) => format!("{count} servers directly"),
        };
        let of = if chosen.kinds.len() > 1 { format!(", {}", kind.name()) } else { String::new() };
        let objects = match servers {
            Servers::Cluster(count) if stripes < count => format!(", {stripes} for a file"),
            _ => String::new(),
        };
        let over = match (chosen.pattern, transport) {
            (_, "tcp") => String::new(),
            (Pattern::Latency, _) => format!(", metadata over {transport}"),
            _ => format!(" over {transport}"),
        };
        let unlimited = if chosen.limit.is_some() && limit.is_none() { ", unlimited" } else { "" };
        let name = format!("{name}{objects}{of}{unlimited}{over}");
        OneSeries { name, transport: transport.to_owned(), servers, kind, stripes, limit }
    };
    let of = |transport: &String| {
        let mut all = Vec::new();
        if chosen.pattern == Pattern::Direct {
            let several = chosen.servers.iter().copied().filter(|count| *count > 1);
            let direct = std::iter::once(1).chain(several).map(Servers::Direct);
            all.extend(direct.map(|servers| one(transport, DataServerKind::Nfs3, servers, 1, None)));
        }
        let unlimited = (chosen.pattern == Pattern::Limited).then_some(None);
        for limit in std::iter::once(chosen.limit).chain(unlimited) {
            for kind in &chosen.kinds {
                for count in &chosen.servers {
                    let stripes = stripes_of(chosen, *kind, *count).into_iter();
                    all.extend(stripes.map(|stripes| one(transport, *kind, Servers::Cluster(*count), stripes, limit)));
                }
            }
        }
        all
    };
    chosen.transports.iter().flat_map(of).collect()
}

/// Returns the numbers of objects that files have in clusters with this number of data servers, each of its own.
fn stripes_of(chosen: &Chosen, kind: DataServerKind, servers: u32) -> BTreeSet<u32> {
    let default: &[u32] = match (chosen.pattern, kind) {
        (Pattern::Create, DataServerKind::Slipway) => &[1, STRIPES_MAX],
        _ => &[STRIPES_MAX],
    };
    let wanted = if chosen.stripes.is_empty() { default } else { &chosen.stripes };
    wanted.iter().map(|stripes| (*stripes).min(servers)).collect()
}

/// The servers of one series.
enum Place {
    Cluster(Cluster),
    Servers(Vec<Server>),
}

impl Place {
    fn start(chosen: &Chosen, one: &OneSeries) -> Result<Self, Failure> {
        match one.servers {
            Servers::Cluster(count) => Cluster::start(&shape(chosen, one, count as usize)).map(Self::Cluster),
            Servers::Direct(count) => Self::servers(chosen, count, &one.transport),
        }
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

    /// Returns the process IDs of the data servers, if their CPU time counts by itself. With `direct`, it is part of that of the servers.
    fn data_pids(&self, pattern: Pattern) -> Vec<u32> {
        match self {
            Self::Cluster(cluster) if pattern != Pattern::Direct => cluster.data_server_pids().collect(),
            _ => Vec::new(),
        }
    }
}

/// A load on the servers of a series. When it has ended, they have no work left that would take processors from the next series.
struct Settled<'a> {
    load: NfsSubject<'a>,
    /// The operations on layouts.
    layouts: Option<Box<dyn Subject + 'a>>,
    place: &'a Place,
}

impl Subject for Settled<'_> {
    fn measure(&mut self, point: &Point) -> Result<Measured, Failure> {
        let load: &mut dyn Subject = match &mut self.layouts {
            Some(layouts) if point.operation.is_of_layouts() => layouts,
            _ => &mut self.load,
        };
        let Place::Cluster(cluster) = self.place else { return load.measure(point) };
        let calls = || Ok(cluster.data_traffic()?.iter().map(|traffic| traffic.data_calls).sum::<u64>());
        let before = calls()?;
        let mut measured = load.measure(point)?;
        if let Measured::Sample(sample) = &mut measured {
            sample.data_server_calls = Some(calls()? - before);
        }
        cluster.await_removals()?;
        Ok(measured)
    }
}

/// Returns the shape of a cluster whose files have one copy.
fn shape(chosen: &Chosen, one: &OneSeries, servers: usize) -> Shape {
    let moves_data = matches!(chosen.pattern, Pattern::Limited | Pattern::Direct | Pattern::Btio);
    Shape {
        servers,
        mirrors: 1,
        stripes: one.stripes as usize,
        one_stripe: false,
        stripe_unit: unit_of(chosen),
        // Each new file has objects.
        threshold: (chosen.pattern == Pattern::Create).then_some(0),
        kind: match one.kind {
            DataServerKind::Nfs3 => Kind::Nfs3(room(chosen)),
            DataServerKind::Slipway => Kind::Slipway,
        },
        limit: one.limit,
        transports: vec![one.transport.clone()],
        data_transport: moves_data.then(|| one.transport.clone()),
        dir: chosen.dir.clone(),
    }
}

/// Returns the shape of a cluster whose layouts are as large as possible, also with one stripe.
fn wide(chosen: &Chosen, transport: &str) -> Shape {
    Shape {
        servers: WIDE,
        mirrors: WIDE,
        stripes: WIDE,
        one_stripe: true,
        stripe_unit: None,
        threshold: None,
        kind: Kind::Nfs3(room(chosen)),
        limit: None,
        transports: vec![transport.to_owned()],
        data_transport: None,
        dir: chosen.dir.clone(),
    }
}

/// Returns the stripe unit, if it is not the default.
fn unit_of(chosen: &Chosen) -> Option<u64> {
    match chosen.pattern {
        // Otherwise eight successive blocks of 128 KiB are one stripe unit, and one data server has all outstanding operations.
        Pattern::Direct => Some((chosen.blocks[0] as u64).next_multiple_of(4 << 10).max(UNIT_MIN)),
        // The outstanding operations of a client reach all data servers, with blocks of 32 KiB and with larger ones.
        Pattern::Limited => Some(UNIT_MIN),
        _ => None,
    }
}

/// Returns the bytes of memory of each server.
fn room(chosen: &Chosen) -> u64 {
    let threads = chosen.clients.iter().copied().max().unwrap_or(1);
    let new = if chosen.pattern == Pattern::Create { NEW_FILES + FIRST_FILES * u64::from(threads) } else { 0 };
    chosen.file_size * 2 + new * plan::NEW_LARGE as u64 + (64 << 20)
}

fn one_series(one: &OneSeries) -> Series {
    let (options, mount) = Default::default();
    Series { name: one.name.clone(), transport: one.transport.clone(), options, mount, backend: "pnfs".to_owned() }
}

/// The maximum number of objects of a file with one copy.
const STRIPES_MAX: u32 = 16;
/// The numbers of data servers of the published comparison.
const ALL: [u32; 5] = [1, 2, 4, 8, 16];
/// The smallest stripe unit that clusters can have here.
const UNIT_MIN: u64 = 64 << 10;
/// The smallest file whose data are on data servers.
const FILE_MIN: u64 = 128 << 10;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    pub(super) struct Line {
        #[command(flatten)]
        pub args: Args,
    }

    #[test]
    fn data_servers_are_used_over_the_transport_of_their_series() {
        for pattern in ["limited", "direct", "btio"] {
            let args = ["bench", "--pattern", pattern, "--transport", "rdma,shm", "--servers", "2"];
            let chosen = Chosen::new(&Line::parse_from(args).args);
            let shapes: Vec<_> = series_of(&chosen).iter().map(|one| shape(&chosen, one, 2)).collect();
            for transport in ["rdma", "shm"] {
                let of: Vec<_> = shapes.iter().filter(|shape| shape.transports == [transport]).collect();
                assert!(!of.is_empty() && of.iter().all(|shape| shape.data_transport.as_deref() == Some(transport)));
            }
        }
    }

    #[test]
    fn each_limited_cluster_has_one_without_limits() {
        let args = ["bench", "--transport", "tcp,rdma", "--servers", "1,8", "--limit", "1M"];
        let chosen = Chosen::new(&Line::parse_from(args).args);
        let limits: Vec<_> = series_of(&chosen).iter().map(|one| shape(&chosen, one, 8).limit).collect();
        let limited = Some(1 << 20);
        assert_eq!(limits, [limited, limited, None, None, limited, limited, None, None]);
    }

    #[test]
    fn clients_of_limited_data_servers_use_one_file() {
        for (pattern, is_shared) in [("limited", true), ("create", false)] {
            let chosen = Chosen::new(&Line::parse_from(["bench", "--pattern", pattern]).args);
            let site = chosen.site(0, &chosen.plan(1).points);
            assert_eq!(site.file(0) == site.file(1), is_shared, "{pattern}");
        }
    }
}
