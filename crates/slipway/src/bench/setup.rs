//! [`Common`]: the options of all subcommands. [`measure`] prepares servers and files, runs the [`runner`], and cleans
//! up.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::NfsUrl;
use server::config::ByteSize;
use tempfile::{NamedTempFile, TempDir};

use super::{
    bare::{Bare, BareSubject},
    certificates::Certificates,
    machine::{self, Machine},
    meter::Meter,
    plan::Plan,
    point::{self, Point},
    report::{Conditions, Report},
    runner::{self, Cell, Subject},
    series::{Axis, NfsSubject, Series, cross},
    site::{self, Site},
};
use crate::{
    child::{Listen, Server},
    exit::Failure,
    output,
    progress::Steps,
    reach,
};

/// The options of all subcommands.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Series")]
pub struct Common {
    /// Transports: tcp,rdma,shm by default; with --url, that of its proto
    #[arg(short, long, value_delimiter = ',')]
    pub transport: Vec<String>,
    /// An option of a transport or mount, and values to compare: crc=on,off. With one value, it applies to all series.
    /// It applies to the transports that have the option
    #[arg(long, value_name = "OPTION=VALUE,…")]
    pub axis: Vec<Axis>,
    /// The back ends of started servers: memory, or dir:PATH (uses a new directory there, and removes it)
    #[arg(long, value_delimiter = ',', default_value = "memory", conflicts_with = "url")]
    pub backend: Vec<String>,
    /// Loops without NFS to measure as well, for points that read blocks
    #[arg(long, value_delimiter = ',', value_name = "LOOP")]
    pub beside: Vec<Bare>,
    /// A key of nfs/localhost, with which started servers accept Kerberos: --axis sec=sys,krb5p. The realm is that of
    /// KRB5_CONFIG or /etc/krb5.conf, and the client uses the ticket of its user
    #[arg(long, value_name = "FILE")]
    pub keytab: Option<PathBuf>,
    /// Threads of a started server
    #[arg(long, default_value_t = 1, conflicts_with = "url")]
    pub server_workers: usize,
    /// Measure this server instead of starting one
    #[arg(long)]
    pub url: Option<NfsUrl>,
    /// Congestion control of both ends (only the client with --url): cubic, bbr, reno, …
    #[arg(long)]
    pub congestion: Option<String>,
    /// Runs of each series at each point, in turns
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "How")]
    pub rounds: u32,
    /// Seconds of each run; the default depends on the subcommand
    #[arg(short, long, help_heading = "How")]
    pub seconds: Option<f64>,
    /// Bytes of each thread's file; the default depends on the subcommand
    #[arg(long, help_heading = "How")]
    pub file_size: Option<ByteSize>,
    /// Print the results as one line of JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Also write a self-contained page with plots to this file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
}

/// Measures `plan` for all series of `common`.
///
/// # Errors
/// An option is invalid, a server cannot be used, or an operation failed.
pub fn measure(common: &Common, plan: &Plan) -> Result<Report, Failure> {
    let limits = Limits::check(common, plan)?;
    let nfs = common.series()?;
    let meter = Meter::find(Path::new("/"));
    let sites: Vec<Arc<Site>> = (0..nfs.len())
        .map(|at| format!("slipway-bench-{}-{at}", std::process::id()))
        .map(|prefix| Arc::new(Site::new(prefix, &plan.points, limits.file_size)))
        .collect();
    let certificates = Certificates::for_series(&nfs)?;
    let places = Place::prepare(common, &nfs, &sites, certificates.as_ref())?;
    let urls = urls(common, &nfs, &places, certificates.as_ref())?;
    let steps =
        Steps::new(!common.json, plan.points.len() * (nfs.len() + common.beside.len()) * common.rounds as usize);

    let prepared = || -> Result<Vec<Vec<Cell>>, Failure> {
        let mut subjects: Vec<Box<dyn Subject + '_>> = Vec::new();
        for ((url, server), site) in urls.iter().zip(&sites) {
            let block_max = reach::run(site.prepare(url))?;
            let subject = NfsSubject::new(
                vec![url.clone()],
                site.clone(),
                block_max,
                Vec::from_iter(*server),
                limits.run,
                &meter,
            );
            subjects.push(Box::new(subject));
        }
        let file = limits.bare_file(common, &plan.points)?;
        for &bare in &common.beside {
            let (path, congestion, keytab) = (file.path(), common.congestion.as_deref(), common.keytab.as_deref());
            let subject = BareSubject::start(bare, path, limits.file_size, limits.run, congestion, keytab, &meter)?;
            subjects.push(Box::new(subject));
        }
        runner::run(&mut subjects, &plan.points, common.rounds, || steps.step())
    };
    let cells = prepared();
    // Remove the files on a server that this command did not start, also after a failure.
    let cleared: Result<Vec<()>, Failure> = match common.url {
        Some(_) => urls.iter().zip(&sites).map(|((url, _), site)| reach::run(site.clear(url))).collect(),
        None => Ok(Vec::new()),
    };
    let cells = cells?;
    cleared?;
    drop(steps);

    let mut report = Report {
        benchmark: plan.name,
        title: plan.title.clone(),
        machine: Machine::this(),
        memory_bandwidth: meter.describe(),
        conditions: Conditions {
            rounds: common.rounds,
            seconds: limits.run.as_secs_f64(),
            file_size: limits.file_size,
            server: common.describe(),
            congestion_control: common.congestion.clone(),
        },
        series: nfs.into_iter().chain(common.beside.iter().map(|&bare| bare_series(bare))).collect(),
        results: Vec::new(),
        unable: Vec::new(),
        comparisons: Vec::new(),
    };
    report.fill(&plan.points, &cells);
    if report.results.is_empty() {
        let why = report.unable.first().map_or("there is no point", |unable| unable.why.as_str());
        return Err(Failure::usage(format!("nothing can be measured: {} {why}", report.series[0].name)));
    }
    Ok(report)
}

impl Common {
    /// Returns options that compare `transports` on a memory back end, in three rounds.
    pub fn of_memory(transports: &[String], congestion: Option<String>) -> Self {
        Self {
            transport: transports.to_vec(),
            axis: Vec::new(),
            backend: vec!["memory".to_owned()],
            beside: Vec::new(),
            keytab: None,
            server_workers: 1,
            url: None,
            congestion,
            rounds: 3,
            seconds: None,
            file_size: None,
            json: false,
            html: None,
        }
    }

    /// Returns the series over NFS.
    fn series(&self) -> Result<Vec<Series>, Failure> {
        let transports = match (&self.transport[..], &self.url) {
            ([], Some(url)) => vec![url.options.proto.clone()],
            ([], None) => ["tcp", "rdma", "shm"].map(str::to_owned).to_vec(),
            (given, _) => given.to_vec(),
        };
        let congestion = self.congestion.as_ref();
        let congestion = congestion.map(|name| Axis { key: "congestion".to_owned(), values: vec![name.clone()] });
        let axes: Vec<Axis> = congestion.into_iter().chain(self.axis.iter().cloned()).collect();
        let backends = if self.url.is_some() { vec!["url".to_owned()] } else { self.backend.clone() };
        cross(&transports::for_client(), &transports, &axes, &backends)
    }

    fn describe(&self) -> String {
        match &self.url {
            Some(url) => url.to_string(),
            None => format!("own server, {} workers, {}", self.server_workers, self.backend.join(" and ")),
        }
    }

    /// Returns the directory of a `dir:` back end, if there is one.
    fn directory(&self) -> Option<&str> {
        self.backend.iter().find_map(|backend| backend.strip_prefix("dir:"))
    }
}

fn bare_series(bare: Bare) -> Series {
    let name = bare.name();
    let (options, mount) = (BTreeMap::new(), BTreeMap::new());
    Series { name: name.clone(), transport: name, options, mount, backend: "none".to_owned() }
}

/// The duration and the file size.
struct Limits {
    run: Duration,
    file_size: u64,
}

impl Limits {
    fn check(common: &Common, plan: &Plan) -> Result<Self, Failure> {
        let seconds = common.seconds.unwrap_or(plan.seconds);
        if !(seconds > 0.0 && seconds <= 86_400.0) {
            return Err(Failure::usage("--seconds: more than 0, and at most a day"));
        }
        let file_size = common.file_size.map_or(plan.file_size, |size| size.0);
        let moved = plan.points.iter().filter(|point| point.operation.moves_blocks());
        let largest = moved.map(|point| point.block).max().unwrap_or(1);
        if plan.points.iter().any(|point| point.block == 0) || file_size < largest as u64 {
            return Err(Failure::usage(format!(
                "--file-size must hold at least one block, here of {}, and a block at least one byte",
                point::block(largest)
            )));
        }
        Ok(Self { run: Duration::from_secs_f64(seconds), file_size })
    }

    /// Makes the file for the loops without NFS: in the exported directory, else in memory.
    fn bare_file(&self, common: &Common, points: &[Point]) -> Result<NamedTempFile, Failure> {
        let dir = common.directory().unwrap_or("/dev/shm");
        let failed = |error: std::io::Error| Failure::failed(format!("{dir}: {error}"));
        let mut file = NamedTempFile::with_prefix_in("slipway-bench-", dir).map_err(failed)?;
        if !common.beside.is_empty() {
            let threads = points.iter().map(|point| point.threads).max().unwrap_or(1);
            let (mut left, data) = (self.file_size.saturating_mul(threads.into()), site::pattern(1 << 20));
            while left > 0 {
                let len = left.min(data.len() as u64);
                file.write_all(&data[..len as usize]).map_err(failed)?;
                left -= len;
            }
        }
        Ok(file)
    }
}

/// A server, its back end, and the temporary directory that must outlive it.
struct Place {
    backend: String,
    server: Server,
    _directory: Option<TempDir>,
}

impl Place {
    /// Starts a server for each back end. It has one listener for each series.
    fn prepare(
        common: &Common,
        series: &[Series],
        sites: &[Arc<Site>],
        certificates: Option<&Certificates>,
    ) -> Result<Vec<Self>, Failure> {
        if common.url.is_some() {
            return Ok(Vec::new());
        }
        let of = |backend: &String| {
            let mut listen = Vec::new();
            let mut room = ROOM_SPARE;
            for (series, site) in series.iter().zip(sites).filter(|(series, _)| series.backend == *backend) {
                let mut options = series.options.clone();
                options.extend(certificates.iter().flat_map(|certificates| certificates.of_listener(series)));
                listen.push(Listen::on(&series.transport, options));
                room += site.bytes().saturating_mul(2);
            }
            Self::start(common, backend, room, &listen)
        };
        common.backend.iter().map(of).collect()
    }

    fn start(common: &Common, backend: &str, room: u64, listen: &[Listen]) -> Result<Self, Failure> {
        let mut arguments: Vec<OsString> = vec!["--workers".into(), common.server_workers.to_string().into()];
        if let Some(keytab) = &common.keytab {
            arguments.extend(["--keytab".into(), keytab.into()]);
            arguments.extend(["sys", "krb5", "krb5i", "krb5p"].map(|sec| format!("--sec={sec}").into()));
        }
        let mut directory = None;
        match backend.split_once(':') {
            None if backend == "memory" => {
                // Half of the memory is for the files, the other half for data that are written.
                if room / 2 > machine::memory_available() {
                    let (wanted, there) = (output::size(room / 2), output::size(machine::memory_available()));
                    return Err(Failure::usage(format!(
                        "the files need {wanted} of memory and {there} are free: select a smaller --file-size"
                    )));
                }
                arguments.extend(["--memory".into(), room.to_string().into()]);
            }
            Some(("dir", path)) => {
                let made = tempfile::Builder::new().prefix("slipway-bench-").tempdir_in(path);
                let made = made.map_err(|error| Failure::failed(format!("{path}: {error}")))?;
                let (state, served) = (made.path().join("state"), made.path().join("served"));
                fs::create_dir(&served).map_err(|error| Failure::failed(format!("{}: {error}", served.display())))?;
                arguments.extend(["--squash".into(), "none".into(), "--state-dir".into(), state.into(), served.into()]);
                directory = Some(made);
            }
            _ => return Err(Failure::usage(format!("--backend {backend}: memory, or dir:PATH"))),
        }
        let server = Server::start(listen, &arguments)?;
        Ok(Self { backend: backend.to_owned(), server, _directory: directory })
    }
}

/// Returns the URL of each series, and the process ID of its server if this command started it.
fn urls(
    common: &Common,
    series: &[Series],
    places: &[Place],
    certificates: Option<&Certificates>,
) -> Result<Vec<(NfsUrl, Option<u32>)>, Failure> {
    let mut listeners: BTreeMap<String, usize> = BTreeMap::new();
    let of = |series: &Series| {
        let Series { transport, options, mount, backend, .. } = series;
        let (mut url, server) = match &common.url {
            Some(url) => {
                let mut url = url.clone();
                url.options.proto = transport.clone();
                url.options.transport.extend(options.clone());
                (url, None)
            }
            None => {
                let place =
                    places.iter().find(|place| place.backend == *backend).expect("every back end must be prepared");
                let next = listeners.entry(backend.clone()).or_default();
                *next += 1;
                let mut url = place.server.url(*next - 1);
                // Without the options of the listener's TLS.
                url.options.transport = options.clone().into_iter().collect();
                (url, Some(place.server.pid()))
            }
        };
        if common.keytab.is_some() && mount.get("sec").is_some_and(|sec| sec != "sys") {
            // The name of the service, whose key the keytab has.
            url.host = "localhost".to_owned();
        }
        for (key, value) in mount {
            url.options.set(key, value).map_err(Failure::usage)?;
        }
        if let (Some(certificates), None) = (certificates, &common.url) {
            certificates.add_to(&mut url);
        }
        Ok((url, server))
    };
    series.iter().map(of).collect()
}

/// The additional memory of a memory back end beyond the files.
const ROOM_SPARE: u64 = 64 << 20;
