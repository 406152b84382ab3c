//! `slipway demo`: runs all transports on this machine, without root. It first measures READ and WRITE of data in
//! memory, which shows the cost of each transport. It then copies trees in and out over each transport and compares
//! every byte. These copies include the cost of the local file system. `slipway demo pnfs` shows a pNFS cluster.

mod load;
mod material;
mod pnfs;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use client::NfsUrl;
use server::config::ByteSize;

use crate::{
    bench::{plan, report, setup},
    child::{Listen, Server},
    copy::{Copier, Node, Options, Remote},
    exit::{Exit, Failure, Outcome},
    output::{self, Align, Table},
    process,
    progress::Progress,
    reach::{self, Reach},
};
use material::{Manifest, Material};

/// Measure the transports from memory, then copy trees in and out over tcp, rdma and shm, and compare every byte.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
The demo needs neither root nor a network. The server is a separate process on 127.0.0.1, RDMA runs in software (iWARP), and shm
is memory that both processes share. The first table has READ and WRITE of data in memory, and compares the transports. The second
table has copies of trees and large files to and from --dir, and includes the file system and the disk. The demo removes its
files. The exit code is 1 if a copy differs from its original.

Examples:
  slipway demo
  slipway demo --size 1G --dir /dev/shm
  slipway demo --transport rdma --congestion cubic
  slipway demo pnfs"
)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Transports to use
    #[arg(short, long, value_delimiter = ',', default_value = "tcp,rdma,shm", value_parser = ["tcp", "udp", "rdma", "shm"])]
    transport: Vec<String>,
    /// Total bytes of the large files
    #[arg(long, default_value = "256M")]
    size: ByteSize,
    /// Directory in which temporary directories are made
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A tree to copy instead of this project's source
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Congestion control of both ends: cubic, bbr, reno, …
    #[arg(long)]
    congestion: Option<String>,
}

/// Another demo.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// Kill a data server of a pNFS cluster under load, bring it back, heal, and verify every byte
    Pnfs(pnfs::Args),
}

impl Args {
    /// Reports whether the demo lets servers fail.
    pub fn causes_failures(&self) -> bool {
        self.what.is_some()
    }
}

/// One copy and its cost.
struct Leg {
    transport: String,
    what: &'static str,
    files: u64,
    bytes: u64,
    elapsed: Duration,
    client_cpu: Duration,
    server_cpu: Duration,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    if let Some(What::Pnfs(args)) = &args.what {
        return pnfs::run(args);
    }
    let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    output::print(&memory_table(args)?);
    let room = tempfile::Builder::new().prefix("slipway-demo-").tempdir_in(&base);
    let room = room.map_err(located(&base))?;
    let served = room.path().join("served");
    make(&served)?;

    let material = Material::make(&room.path().join("material"), args.tree.as_deref(), args.size.0)?;
    output::print(&format!(
        "\nCopies to and from {} ({}), which include the cost of that file system:\n\
         {} files of {} ({}), and {} of large files.\n",
        base.display(),
        file_system(&base)?,
        material.tree.files,
        output::size(material.tree.bytes),
        material.origin,
        output::size(material.large.bytes)
    ));

    let options: BTreeMap<String, String> =
        args.congestion.iter().map(|name| ("congestion".to_owned(), name.clone())).collect();
    let arguments: Vec<OsString> = vec![
        "--squash".into(),
        "none".into(),
        "--state-dir".into(),
        room.path().join("state").into(),
        served.clone().into(),
    ];
    // The options of the network do not apply to shared memory.
    let options_of = |name: &str| if name == "shm" { BTreeMap::new() } else { options.clone() };
    let listen: Vec<_> = args.transport.iter().map(|name| Listen::on(name, options_of(name))).collect();
    let server = Server::start(&listen, &arguments)?;
    warm_up(room.path(), &material)?;
    settle(room.path())?;
    let mut legs = Vec::new();
    let mut different = 0;
    for (listener, transport) in args.transport.iter().enumerate() {
        let back = room.path().join(format!("back-{transport}"));
        make(&back)?;
        let tour = Tour { server: &server, transport, url: server.url(listener), material: &material, back };
        legs.extend(reach::run(tour.run())?);
        different += tour.check()?;
        // Remove large files, so that the next transport has as much free memory. Keep the trees, because after many
        // removals ext4 is slow to make files for a while.
        remove(&served.join(tour.name()).join("large"))?;
        remove(&tour.back.join("large"))?;
        settle(room.path())?;
    }
    drop(server);
    output::print(&table(&legs));
    if different > 0 {
        return Err(Failure::failed(format!("{different} objects came back different from what was sent")));
    }
    let congestion = args.congestion.clone().unwrap_or_else(process::congestion_control);
    output::print(&format!("All of it came back with the same SHA-256. Congestion control: {congestion}.\n"));
    Ok(Exit::Ok)
}

/// The copies over one transport.
struct Tour<'a> {
    server: &'a Server,
    transport: &'a str,
    url: NfsUrl,
    material: &'a Material,
    back: PathBuf,
}

impl Tour<'_> {
    /// Returns the name of the directory on the server.
    fn name(&self) -> String {
        format!("over-{}", self.transport)
    }

    /// Copies the tree and the large files in and out.
    async fn run(&self) -> Result<Vec<Leg>, Failure> {
        let mount = Reach::new().mount(&self.url).await?;
        let root = Remote::new(mount.clone(), mount.root().clone(), self.url.path.clone());
        let there = root.make_dir(self.name().as_bytes(), 0o755).await.map_err(Failure::failed)?;
        let mut legs = Vec::new();
        for (name, inward, outward, manifest) in [
            ("tree", "tree in", "tree out", &self.material.tree),
            ("large", "large in", "large out", &self.material.large),
        ] {
            let source = Node::Local(self.material.dir.join(name));
            legs.push(self.leg(inward, manifest, source, Node::Remote(there.clone().into()), name, &mount).await?);
            let (source, _) = there
                .child(name.as_bytes())
                .await
                .map_err(Failure::failed)?
                .ok_or_else(|| Failure::failed(format!("the copy over {} is missing", self.transport)))?;
            let target = Node::Local(self.back.clone());
            legs.push(self.leg(outward, manifest, Node::Remote(source.into()), target, name, &mount).await?);
        }
        Ok(legs)
    }

    async fn leg(
        &self,
        what: &'static str,
        manifest: &Manifest,
        source: Node,
        target: Node,
        name: &str,
        mount: &client::Mount,
    ) -> Result<Leg, Failure> {
        let options = Options {
            command: "demo",
            recursive: true,
            preserve: true,
            hard_links: true,
            umask: 0o022,
            update: false,
            resume: false,
            jobs: 64,
        };
        let meta = source.meta(true).await.map_err(Failure::failed)?;
        let (started, client, server) = (Instant::now(), process::cpu_time(), self.server.cpu_time());
        let mut copier = Copier::new(options, mount.pool().clone(), Progress::new(true));
        copier.copy(source, meta, target, name.to_owned().into()).await;
        let errors = copier.finish().await;
        if errors > 0 {
            return Err(Failure::failed(format!("{errors} errors over {}, {what}", self.transport)));
        }
        Ok(Leg {
            transport: self.transport.to_owned(),
            what,
            files: manifest.files,
            bytes: manifest.bytes,
            elapsed: started.elapsed(),
            client_cpu: process::cpu_time().saturating_sub(client),
            server_cpu: self.server.cpu_time().saturating_sub(server),
        })
    }

    /// Compares the copies with the originals. Returns the number of objects that differ.
    fn check(&self) -> Result<usize, Failure> {
        let mut different = 0;
        for (name, sent) in [("tree", &self.material.tree), ("large", &self.material.large)] {
            for difference in sent.differences(&Manifest::of(&self.back.join(name))?) {
                eprintln!("slipway demo: over {}: {name}/{difference}", self.transport);
                different += 1;
            }
        }
        Ok(different)
    }
}

/// Returns a function that makes a failure from an error at `path`.
fn located(path: &Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |error| Failure::failed(format!("{}: {error}", path.display()))
}

fn make(dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir(dir).map_err(located(dir))
}

fn remove(dir: &Path) -> Result<(), Failure> {
    std::fs::remove_dir_all(dir).map_err(located(dir))
}

/// Waits until the file system has written all its data, so that the next transport does not have to wait for it.
fn settle(room: &Path) -> Result<(), Failure> {
    std::fs::File::open(room).and_then(|dir| Ok(rustix::fs::syncfs(dir)?)).map_err(located(room))
}

/// Writes large files as a transport does, in and out, and removes them. The first use of memory for the page cache
/// costs more than the copy itself, and only the first transport would pay for that.
fn warm_up(room: &Path, material: &Material) -> Result<(), Failure> {
    let dir = room.join("warm-up");
    make(&dir)?;
    for copy in ["in", "out"] {
        material.copy_large(&dir.join(copy))?;
    }
    remove(&dir)
}

/// Returns the type of the file system of `dir`, by its name in the kernel's mount table.
fn file_system(dir: &Path) -> Result<String, Failure> {
    use std::os::unix::fs::MetadataExt;

    let device = std::fs::metadata(dir).map_err(located(dir))?.dev();
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // proc(5): ID, parent, device, …, a dash, the type, the source.
    let table = std::fs::read_to_string(MOUNT_TABLE).map_err(located(Path::new(MOUNT_TABLE)))?;
    let of_line = |line: &str| {
        let (mount, file_system) = line.split_once(" - ")?;
        (mount.split(' ').nth(2)? == device).then(|| file_system.split(' ').next().map(str::to_owned))?
    };
    Ok(table.lines().find_map(of_line).unwrap_or_else(|| "unknown file system".to_owned()))
}

/// Measures READ and WRITE of data in the server's memory over each transport.
fn memory_table(args: &Args) -> Result<String, Failure> {
    output::print(&format!(
        "READ and WRITE of {} from memory to memory, {IN_FLIGHT} in flight: the cost of each transport.\n",
        output::size(BLOCK as u64)
    ));
    let common = setup::Common::of_memory(&args.transport, args.congestion.clone());
    let report = setup::measure(&common, &plan::demo(BLOCK, IN_FLIGHT))?;
    let right = Align::Right;
    let mut table = Table::new(&[
        ("transport", Align::Left),
        ("operation", Align::Left),
        ("GB/s", right),
        ("p99 us", right),
        ("client CPU s/GB", right),
        ("server CPU s/GB", right),
    ]);
    for row in &report.results {
        let per_gb = |cost: Option<&report::Cost>| {
            let seconds = cost.and_then(|cost| cost.seconds_per_gb);
            seconds.map_or("-".to_owned(), |seconds| format!("{:.2}", seconds.median))
        };
        table.row(vec![
            row.series.clone(),
            row.point.operation.title().to_owned(),
            row.gb_per_s.map_or("-".to_owned(), |rate| format!("{:.2}", rate.median)),
            format!("{:.0}", row.latency_us.p99),
            per_gb(Some(&row.client_cpu)),
            per_gb(row.server_cpu.as_ref()),
        ]);
    }
    Ok(format!("\n{}", table.text()))
}

fn table(legs: &[Leg]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("transport", Align::Left),
        ("copy", Align::Left),
        ("seconds", right),
        ("files/s", right),
        ("GB/s", right),
        ("client CPU s/GB", right),
        ("server CPU s/GB", right),
    ]);
    for leg in legs {
        let (seconds, gb) = (leg.elapsed.as_secs_f64(), leg.bytes as f64 / 1e9);
        table.row(vec![
            leg.transport.clone(),
            leg.what.to_owned(),
            format!("{seconds:.2}"),
            format!("{:.0}", leg.files as f64 / seconds),
            format!("{:.3}", gb / seconds),
            format!("{:.2}", leg.client_cpu.as_secs_f64() / gb),
            format!("{:.2}", leg.server_cpu.as_secs_f64() / gb),
        ]);
    }
    format!("\n{}\n", table.text())
}

/// The bytes of each READ and WRITE of the first table, and the number in flight.
const BLOCK: usize = 128 << 10;
const IN_FLIGHT: u32 = 8;
const MOUNT_TABLE: &str = "/proc/self/mountinfo";
