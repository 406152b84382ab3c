//! `slipway bench`: what transports and servers achieve, side by side in one run.
//!
//! Runs of the transports take turns, so that what else happens on the machine hits all of them alike.

mod load;
mod report;

use std::{collections::BTreeMap, ffi::OsString, time::Duration};

use clap::ValueEnum;
use client::NfsUrl;
use serde::Serialize;
use server::config::ByteSize;

use crate::{
    child::Server,
    exit::{Exit, Failure, Outcome},
    output, process,
    reach::Reach,
};
use load::Load;
use report::{Report, Sample};

/// Measure transports and servers, side by side.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --url a server is started in a process of its own on 127.0.0.1, and its CPU time is measured, too. Runs of the
transports take turns; rates are the median of the runs. GB are 10^9 bytes.

read, write: each operation is one READ or WRITE (UNSTABLE, with a COMMIT at the end of each run) of --block bytes.
getattr:     each operation is one GETATTR of one file.
create:      each operation is one CREATE and one REMOVE of that file.

Some machines' default congestion control is bbr, which paces even on loopback: compare under --congestion cubic.

Examples:
  slipway bench read --transport tcp,rdma
  slipway bench write --block 1M --in-flight 4 --congestion cubic
  slipway bench read --block 4K --in-flight 16 --random --backend dir:/var/tmp
  slipway bench getattr --url nfs://server/export --in-flight 16 --json")]
pub struct Args {
    /// What to measure
    #[arg(value_enum)]
    operation: Operation,
    /// Transports to compare: tcp,rdma unless said otherwise; with --url its proto
    #[arg(short, long, value_delimiter = ',', value_parser = ["tcp", "udp", "rdma"])]
    transport: Vec<String>,
    /// Bytes of a READ or WRITE, up to what the server takes
    #[arg(short, long, default_value = "128K")]
    block: ByteSize,
    /// Operations outstanding at once, for each thread
    #[arg(short = 'n', long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: u32,
    /// Client threads, each with a connection of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Seconds of each run
    #[arg(short, long, default_value_t = 3.0)]
    seconds: f64,
    /// Runs of each transport
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Offsets in random order rather than one after the other
    #[arg(long)]
    random: bool,
    /// Bytes of the file of each thread
    #[arg(long, default_value = "256M")]
    file_size: ByteSize,
    /// What the started server serves: memory, or dir:PATH (a fresh directory is made in it, and removed)
    #[arg(long, default_value = "memory", conflicts_with = "url")]
    backend: String,
    /// Threads of the started server
    #[arg(long, default_value_t = 1, conflicts_with = "url")]
    server_workers: usize,
    /// Measure this server rather than starting one
    #[arg(long)]
    url: Option<NfsUrl>,
    /// Congestion control of both ends (of ours, with --url): cubic, bbr, reno, …
    #[arg(long)]
    congestion: Option<String>,
    /// Print the results as one line of JSON
    #[arg(long)]
    json: bool,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// READ
    Read,
    /// WRITE
    Write,
    /// GETATTR
    Getattr,
    /// CREATE and REMOVE
    Create,
}

/// All that was asked for and measured, for scripts.
#[derive(Serialize)]
struct Results<'a> {
    operation: Operation,
    block: u64,
    in_flight: u32,
    threads: u32,
    random: bool,
    seconds: f64,
    file_size: u64,
    server: String,
    congestion_control: String,
    results: &'a [Report],
}

/// Measures.
pub fn run(args: &Args) -> Outcome {
    if !(args.seconds > 0.0 && args.seconds <= 86_400.0) {
        return Err(Failure::usage("--seconds: more than 0, and at most a day"));
    }
    if args.block.0 == 0 || args.file_size.0 < args.block.0 {
        return Err(Failure::usage("--file-size must hold at least one --block, and that at least a byte"));
    }
    let options: BTreeMap<String, String> =
        args.congestion.iter().map(|name| ("congestion".to_owned(), name.clone())).collect();
    let place = Place::prepare(args, &options)?;
    let loads = place.loads(args, &options)?;
    let mut samples: Vec<Vec<Sample>> = loads.iter().map(|_| Vec::new()).collect();
    for load in &loads {
        load.prepare()?;
    }
    for _ in 0..args.runs {
        for (load, samples) in loads.iter().zip(&mut samples) {
            samples.push(load.run(place.server.as_ref())?);
        }
    }
    for load in &loads {
        load.clean_up()?;
    }
    let reports: Vec<Report> =
        loads.iter().zip(&samples).map(|(load, samples)| Report::new(load.transport(), samples)).collect();
    tell(args, &place, &reports);
    Ok(Exit::Ok)
}

fn tell(args: &Args, place: &Place, reports: &[Report]) {
    let congestion = match &args.congestion {
        Some(name) => name.clone(),
        None => process::congestion_control(),
    };
    let results = Results {
        operation: args.operation,
        block: args.block.0,
        in_flight: args.in_flight,
        threads: args.threads,
        random: args.random,
        seconds: args.seconds,
        file_size: args.file_size.0,
        server: place.describe(args),
        congestion_control: congestion,
        results: reports,
    };
    if args.json {
        return output::json(&results);
    }
    let data = matches!(args.operation, Operation::Read | Operation::Write);
    let block = if data { format!(" of {}", output::size(args.block.0)) } else { String::new() };
    output::print(&format!(
        "{:?}{block}{}, {} in flight on each of {} threads, {} runs of {} s; {}; congestion control {}\n\n{}",
        args.operation,
        if args.random && data { " at random" } else { "" },
        args.in_flight,
        args.threads,
        args.runs,
        args.seconds,
        results.server,
        results.congestion_control,
        report::table(reports),
    ));
}

/// The server that is measured, and what must live as long as it is.
struct Place {
    server: Option<Server>,
    _directory: Option<tempfile::TempDir>,
}

impl Place {
    fn prepare(args: &Args, options: &BTreeMap<String, String>) -> Result<Self, Failure> {
        if args.url.is_some() {
            return Ok(Self { server: None, _directory: None });
        }
        let mut arguments: Vec<OsString> = vec!["--workers".into(), args.server_workers.to_string().into()];
        let mut directory = None;
        match args.backend.split_once(':') {
            None if args.backend == "memory" => {
                let room = (args.file_size.0 * u64::from(args.threads)).saturating_mul(2) + (64 << 20);
                arguments.extend(["--memory".into(), room.to_string().into()]);
            }
            Some(("dir", path)) => {
                let made = tempfile::Builder::new().prefix("slipway-bench-").tempdir_in(path);
                let made = made.map_err(|error| Failure::failed(format!("{path}: {error}")))?;
                arguments.extend(["--squash".into(), "none".into(), made.path().into()]);
                directory = Some(made);
            }
            _ => return Err(Failure::usage("--backend: memory, or dir:PATH")),
        }
        Ok(Self { server: Some(Server::start(&args.transports(), options, &arguments)?), _directory: directory })
    }

    fn loads(&self, args: &Args, options: &BTreeMap<String, String>) -> Result<Vec<Load>, Failure> {
        let url = |transport: &String| match (&self.server, &args.url) {
            (Some(server), _) => {
                server.url(transport, "", options).parse().map_err(|error: client::UrlError| Failure::failed(error))
            }
            (None, Some(url)) => {
                let mut url = url.clone();
                url.options.proto = transport.clone();
                url.options.transport.extend(options.clone());
                Ok(url)
            }
            (None, None) => unreachable!("one of the two is there"),
        };
        args.transports().iter().map(|transport| Ok(Load::new(args, transport, url(transport)?))).collect()
    }

    fn describe(&self, args: &Args) -> String {
        match &args.url {
            Some(url) => url.to_string(),
            None => format!("own server, {} workers, {}", args.server_workers, args.backend),
        }
    }
}

impl Args {
    fn transports(&self) -> Vec<String> {
        match (&self.transport[..], &self.url) {
            ([], Some(url)) => vec![url.options.proto.clone()],
            ([], None) => ["tcp", "rdma"].map(str::to_owned).to_vec(),
            (given, _) => given.to_vec(),
        }
    }

    /// How long a run takes.
    fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// The mount of a thread.
async fn mount(url: &NfsUrl) -> Result<client::Mount, Failure> {
    Reach::new().mount(url).await
}
