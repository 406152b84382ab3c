//! `slipway bench pnfs`: one client of pNFS clusters with different numbers of data servers.
//!
//! All servers run on one machine, so more data servers do not make it faster. Each is limited to a number of bytes per second, as
//! by its network, and the sum of all limits must be below what the machine can do. Then the figures show whether the client uses all data
//! servers at the same time, and whether the metadata server stays out of the way.
//!
//! Each series is a cluster. Its files have one copy that is distributed over all its data servers.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::Version;
use server::config::ByteSize;

use super::{
    html::Page,
    machine::Machine,
    meter::Meter,
    plan::{self, Plan},
    point::{Operation, Point},
    report::{Conditions, Report, Row},
    runner,
    series::{NfsSubject, Series},
    site::Site,
    text,
};
use crate::{
    cluster::{Cluster, Kind, Shape},
    exit::{Exit, Failure, Outcome},
    output::{self, Align, Table},
    progress::Steps,
    reach,
};

/// The options of the measurement.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of data servers, each of a cluster; the first one is compared with
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u32).range(1..=16))]
    servers: Vec<u32>,
    /// Maximum bytes per second of each data server; the machine must be able to do more than all together
    #[arg(long, value_name = "RATE", default_value = "16M")]
    limit: ByteSize,
    /// The kind of the data servers: nfs3 has its objects in memory, slipway in directories
    #[arg(long, value_enum, default_value = "nfs3")]
    kind: DataServerKind,
    /// Transports to a metadata server with one data server, besides tcp
    #[arg(short, long, value_delimiter = ',', default_value = "rdma,shm")]
    transport: Vec<String>,
    /// Bytes of a READ or WRITE
    #[arg(short, long, default_value = "1M")]
    block: ByteSize,
    /// Outstanding READs and WRITEs; several for each data server
    #[arg(short = 'n', long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: u32,
    /// Runs of each cluster at each point, in turns
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of each run
    #[arg(short, long)]
    seconds: Option<f64>,
    /// Bytes of the file of each cluster
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

/// The kind of data servers.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum DataServerKind {
    Nfs3,
    Slipway,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let page = Page::open(args.html.as_deref())?;
    let plan = plan::pnfs(args.block.0 as usize, args.in_flight);
    let seconds = args.seconds.unwrap_or(plan.seconds);
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(Failure::usage("--seconds: more than 0, and at most an hour"));
    }
    let file_size = args.file_size.map_or(plan.file_size, |size| size.0);
    if args.block.0 == 0 || args.block.0 > 1 << 20 || file_size < args.block.0.max(FILE_MIN) {
        return Err(Failure::usage("--block is from 1 byte to 1 MiB, and --file-size at least one block and 128 KiB"));
    }
    let report = measure(args, &plan, Duration::from_secs_f64(seconds), file_size)?;
    page.write(&plan, &report)?;
    match args.json {
        true => output::json(&report),
        false => output::print(&format!("{}\n{}", text::report(&plan, &report), gains(args, &plan, &report))),
    }
    Ok(Exit::Ok)
}

fn measure(args: &Args, plan: &Plan, limit: Duration, file_size: u64) -> Result<Report, Failure> {
    let meter = Meter::find(Path::new("/"));
    // A series: its name, its cluster, and its transport.
    let mut series = Vec::new();
    let mut clusters = Vec::new();
    for servers in &args.servers {
        clusters.push(start(args, *servers, "tcp", file_size)?);
        series.push(one_series(name(*servers), "tcp"));
    }
    for transport in &args.transport {
        clusters.push(start(args, 1, transport, file_size)?);
        series.push(one_series(format!("1 data server, metadata over {transport}"), transport));
    }
    let mut subjects = Vec::new();
    for (at, cluster) in clusters.iter().enumerate() {
        let url = cluster.url(0, Version::V4_2);
        let site = Arc::new(Site::new(format!("slipway-bench-{at}"), &plan.points, file_size));
        let block_max = reach::run(site.prepare(&url))?;
        subjects.push(NfsSubject::new(url, site, block_max, Some(cluster.metadata_pid()), limit, &meter));
    }
    let steps = Steps::new(!args.json, plan.points.len() * series.len() * args.rounds as usize);
    let cells = runner::run(&mut subjects, &plan.points, args.rounds, || steps.step())?;
    drop(steps);
    let servers = output::size(args.limit.0);
    let place = match args.kind {
        DataServerKind::Nfs3 => "in memory",
        DataServerKind::Slipway => "of kind slipway",
    };
    let mut report = Report {
        benchmark: plan.name,
        title: plan.title.clone(),
        machine: Machine::this(),
        memory_bandwidth: meter.describe(),
        conditions: Conditions {
            rounds: args.rounds,
            seconds: limit.as_secs_f64(),
            file_size,
            server: format!(
                "own clusters; data servers {place} with {servers}/s each; the server's CPU is that of the metadata server"
            ),
            congestion_control: None,
        },
        series,
        results: Vec::new(),
        unable: Vec::new(),
    };
    report.fill(&plan.points, &cells);
    Ok(report)
}

fn start(args: &Args, servers: u32, transport: &str, file_size: u64) -> Result<Cluster, Failure> {
    Cluster::start(&Shape {
        servers: servers as usize,
        mirrors: 1,
        stripes: servers as usize,
        kind: match args.kind {
            DataServerKind::Nfs3 => Kind::Nfs3(file_size + (64 << 20)),
            DataServerKind::Slipway => Kind::Slipway,
        },
        limit: Some(args.limit.0),
        transports: vec![transport.to_owned()],
        dir: args.dir.clone().unwrap_or_else(std::env::temp_dir),
    })
}

fn name(servers: u32) -> String {
    if servers == 1 { "1 data server".to_owned() } else { format!("{servers} data servers") }
}

fn one_series(name: String, transport: &str) -> Series {
    let (options, mount) = Default::default();
    Series { name, transport: transport.to_owned(), options, mount, backend: "pnfs".to_owned() }
}

/// Returns a table of the clusters over TCP, compared with the first one: the rates for each data server, and the rate of CREATE.
fn gains(args: &Args, plan: &Plan, report: &Report) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("data servers", right),
        ("READ", right),
        ("of N times", right),
        ("WRITE", right),
        ("of N times", right),
        ("CREATE", right),
    ]);
    let first = args.servers[0];
    for servers in &args.servers {
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

/// The smallest file whose data are on data servers.
const FILE_MIN: u64 = 128 << 10;
