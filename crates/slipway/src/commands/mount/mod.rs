//! `slipway mount`: mounts a server's tree for all programs through FUSE.

mod status;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::{Mount, NfsUrl};
use tokio::signal::unix::{SignalKind, signal};

use self::status::StatusSocket;
use crate::{
    exit::{Exit, Failure, Outcome},
    fuse::{Device, Fuse, InFlight, Options, Recovery, ServerWaits, Session, Waits, refusal, set_read_ahead, unmount},
    output,
    reach::{self, Reach},
};

/// Mount an export or a directory below it, for all programs.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
The command runs until the mount ends: by SIGTERM, SIGINT, or umount. Files are accessed as the user that runs it, or with the uid
and gid of the URL. Only that user can use the mount, unless --allow-other. When a file is closed, its data are on stable storage.

root needs only FUSE in the kernel; other users also need fusermount3 (Debian: fuse3).

Examples:
  slipway mount nfs://server/srv/data /mnt
  slipway mount 'nfs://server/srv/data?proto=rdma' /mnt --direct-io
  slipway mount --status=/mnt
  slipway mount nfs://server/srv/data /mnt -o vers=4.2,xprtsec=tls --tls-ca /etc/slipway/ca.pem
  fio --directory=/mnt --name=job --rw=randread --bs=4k --size=64m --direct=1 --ioengine=libaio --iodepth=16")]
pub struct Args {
    /// The export or directory to mount
    #[arg(value_name = "URL", required_unless_present = "status")]
    url: Option<NfsUrl>,
    /// The mount point
    #[arg(value_name = "DIR", required_unless_present = "status")]
    directory: Option<PathBuf>,
    /// Mount nothing; print which servers your mounts wait for: all mounts, or the one at DIR
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, conflicts_with_all = MOUNTING)]
    status: Option<Option<PathBuf>>,
    /// With --status, print each mount as a line of JSON
    #[arg(long, requires = "status", conflicts_with_all = MOUNTING)]
    json: bool,
    /// Options of the URL, separated by commas: vers=4.2,xprtsec=tls. Also ro, rw, sync, async, hard, soft, softerr and retrans=N, as in
    /// mount(8) and nfs(5)
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// The file of the issuers that may sign the server's certificate; by default that of the system
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<String>,
    /// The file of this client's certificate, for xprtsec=mtls
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,
    /// The file of the private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,
    /// Allow other users: each operation acts as the user that calls it, and the server decides what that user may do
    #[arg(long)]
    allow_other: bool,
    /// Bypass the page cache: each read and write of a program goes to the server
    #[arg(long)]
    direct_io: bool,
    /// Let the kernel keep written data until a close, an fsync, or for up to 30 seconds, and own the size and times of open files: for
    /// files that no other machine changes while programs here have them open
    #[arg(long, conflicts_with = "direct_io")]
    writeback: bool,
    /// Let the kernel read large files of a server on this host itself: over proto=shm, as root, from exports with passthrough = true
    #[arg(long, conflicts_with_all = ["direct_io", "writeback"])]
    passthrough: bool,
    /// Seconds for which names and attributes are cached, like acregmin of nfs(5)
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    attributes: f64,
    /// Fail with EIO when the server has not answered for timeo × (retrans + 1); without this or --softerr, operations
    /// wait until it answers
    #[arg(long)]
    soft: bool,
    /// Like --soft, but fail with ETIMEDOUT
    #[arg(long, conflicts_with = "soft")]
    softerr: bool,
    /// Additional periods of the URL's timeo before an operation of a soft mount fails
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=i64::from(RETRANS_MAX)))]
    retrans: u32,
}

impl Args {
    /// Returns the URL with the options of the command line, the mount point, and the options of the mount.
    fn applied(&self) -> Result<(NfsUrl, &Path, Options), Failure> {
        let ttl = Duration::try_from_secs_f64(self.attributes).ok().filter(|ttl| *ttl <= TTL_MAX);
        let ttl = ttl.ok_or_else(|| Failure::usage("--attributes: from 0 to 3600 seconds"))?;
        let (Some(mut url), Some(directory)) = (self.url.clone(), &self.directory) else {
            return Err(Failure::usage("a URL and a directory are needed"));
        };
        let options = &mut url.options;
        let (mut soft, mut softerr, mut retrans) = (self.soft, self.softerr, self.retrans);
        let (mut read_only, mut synchronous) = (false, false);
        for option in &self.options {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let failed = |problem: String| Failure::usage(format!("-o {option}: {problem}"));
            match (key, value) {
                ("ro", "") => read_only = true,
                ("rw", "") => read_only = false,
                ("sync", "") if self.writeback => {
                    return Err(failed("--writeback leaves data in the kernel, and excludes sync".to_owned()));
                }
                ("sync", "") => synchronous = true,
                ("async", "") => synchronous = false,
                ("hard", "") => (soft, softerr) = (false, false),
                ("soft", "") => (soft, softerr) = (true, false),
                ("softerr", "") => (soft, softerr) = (false, true),
                ("retrans", _) => match value.parse() {
                    Ok(number @ 0..=RETRANS_MAX) => retrans = number,
                    _ => return Err(failed(format!("a number from 0 to {RETRANS_MAX} is needed"))),
                },
                _ => options.set(key, value).map_err(failed)?,
            }
        }
        let deadline = options.deadline.saturating_mul(retrans + 1);
        let recovery = match (soft, softerr) {
            (true, _) => Recovery::Soft(deadline),
            (_, true) => Recovery::SoftErr(deadline),
            _ => Recovery::Hard,
        };
        if self.allow_other && (options.uid.is_some() || options.gid.is_some() || options.gids.is_some()) {
            let problem =
                "with --allow-other each operation acts as its caller, so the URL cannot have uid, gid or gids";
            return Err(Failure::usage(problem));
        }
        let files = [
            (&self.tls_ca, &mut options.tls.ca),
            (&self.tls_cert, &mut options.tls.cert),
            (&self.tls_key, &mut options.tls.key),
        ];
        for (given, option) in files {
            if let Some(file) = given {
                *option = Some(file.clone());
            }
        }
        options.tls.check().map_err(Failure::usage)?;
        let options = Options {
            ttl,
            direct_io: self.direct_io,
            writeback: self.writeback,
            passthrough: self.passthrough,
            synchronous,
            read_only,
            per_caller: self.allow_other,
            recovery,
        };
        Ok((url, directory, options))
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    if let Some(directory) = &args.status {
        return status::print(directory.as_deref(), args.json);
    }
    let (url, directory, options) = args.applied()?;
    reach::run(serve((&url, directory), options))
}

async fn serve((url, directory): (&NfsUrl, &Path), mut options: Options) -> Outcome {
    buf::keep_heap();
    // The path in the form of the kernel. It can be resolved only before the mount.
    let directory = mount_point(directory)?;
    let mount = Reach::new().connect(url).await?;
    let root = mount.resolve("").await.map_err(|error| reach::failure(url, &error))?;
    if root.attr.kind != client::FileKind::Dir {
        return Err(Failure::failed(format!("cannot mount {url}: it is not a directory on the server")));
    }
    if options.passthrough
        && let Some(why) = why_no_passthrough(&root).await
    {
        tracing::warn!(%url, "--passthrough has no effect: {why}");
        options.passthrough = false;
    }
    if mount.protocol().has_locks()
        && let Err(error) = mount.protocol().find_lock_manager().await
    {
        let failure = reach::failure(url, &error);
        let hint = "with '-o nolock', locks are kept on this machine and hold only between programs of this mount";
        return Err(Failure { message: format!("{}; {hint}", failure.message), ..failure });
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;

    let device = Device::mount(&url.to_string(), &directory, &options)
        .map_err(|error| Failure::failed(format!("cannot mount at {}: {error}", directory.display())))?;
    let place = Place::of(directory);
    if let Some(Err(error)) = place.device.as_deref().map(set_read_ahead) {
        tracing::debug!(%error, "cannot set the read-ahead of the mount");
    }
    let session = Session::new(device, mount.pool().clone());
    let in_flight = session.in_flight().clone();
    let fuse = Fuse::new(root, &session, options);
    let waits = fuse.waits(&session);
    let _status = StatusSocket::open(&url.to_string(), &place.directory, waits.clone());
    let report = tokio::spawn(report(url.clone(), waits));
    let watch = tokio::spawn({
        let (in_flight, device) = (in_flight.clone(), session.device());
        async move { in_flight.watch(device).await }
    });
    let mut work = tokio::spawn(session.run(fuse.clone()));
    output::print(&format!("{url} is mounted at {}\n", place.directory.display()));
    let ended = tokio::select! {
        ended = &mut work => Some(ended.map_err(Failure::failed)?),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    match ended {
        Some(ended) => {
            ended.map_err(|error| Failure::failed(format!("the kernel ended the mount: {error}")))?;
            detach_aborted(&place).await?;
        }
        None => end(&place, &in_flight, &fuse).await?,
    }
    // When the device is closed, the kernel aborts all operations in progress.
    work.abort();
    watch.abort();
    report.abort();
    unmount_server(mount, &fuse).await;
    Ok(Exit::Ok)
}

/// Returns the reason why the kernel cannot read files of this mount itself, if it is known before the mount.
async fn why_no_passthrough(root: &client::Object) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can register files with the kernel".to_owned());
    }
    refusal(root).await.map(|why| why.to_string())
}

/// Logs when operations wait for the server, and when it answers again.
async fn report(url: NfsUrl, waits: Waits) {
    let mut said = BTreeSet::new();
    loop {
        tokio::time::sleep(REPORT).await;
        let late = waits.by_server(LATE_S);
        said.retain(|server| {
            let is_late = late.iter().any(|waits| waits.server == *server);
            if !is_late {
                tracing::warn!(%url, server, "the server answers again");
            }
            is_late
        });
        for ServerWaits { server, operations, since_s, operation, ino, pid } in late {
            if said.insert(server.clone()) {
                let text = "the server does not answer; still trying";
                tracing::warn!(%url, server, operation, ino, pid, since = since_s, operations, "{text}");
            }
        }
    }
}

/// Returns the canonical path of the mount point.
fn mount_point(path: &Path) -> Result<PathBuf, Failure> {
    let failed =
        |problem: &dyn std::fmt::Display| Failure::failed(format!("cannot mount at {}: {problem}", path.display()));
    let canonical = path.canonicalize().map_err(|error| failed(&error))?;
    let kind = fs::metadata(&canonical).map_err(|error| failed(&error))?;
    if kind.is_dir() { Ok(canonical) } else { Err(failed(&"not a directory")) }
}

/// The mount point, and the device number that distinguishes this mount from a later one at the same path.
struct Place {
    directory: PathBuf,
    /// The major and minor number of the file system, in the format of proc_pid_mountinfo(5).
    device: Option<String>,
}

impl Place {
    /// Returns the place of a new mount at `directory`.
    fn of(directory: PathBuf) -> Self {
        let device = mounted_at(&directory).pop();
        Self { directory, device }
    }

    /// Returns `true` if the mount is still there.
    fn is_there(&self) -> bool {
        self.device.as_ref().is_some_and(|device| mounted_at(&self.directory).contains(device))
    }
}

/// Returns the mounts at a directory, the topmost last.
fn mounted_at(directory: &Path) -> Vec<String> {
    let device = |line: &str| {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?;
        (Path::new(&unescaped(fields.nth(1)?)) == directory).then(|| device.to_owned())
    };
    fs::read_to_string("/proc/self/mountinfo").map_or(Vec::new(), |mounts| mounts.lines().filter_map(device).collect())
}

/// Unmounts. If the mount is in use, it is detached at once, and programs can no longer use their open files.
/// Operations that wait for a server without an answer are aborted.
async fn end(place: &Place, in_flight: &Arc<InFlight>, fuse: &Fuse) -> Result<(), Failure> {
    if !place.is_there() {
        // It was unmounted by umount -l, or is below another mount.
        tracing::warn!("{} is no longer mounted there; open files are closed", place.directory.display());
        return Ok(());
    }
    let failed = |error: io::Error| Failure::failed(format!("cannot unmount {}: {error}", place.directory.display()));
    let written_back_and_unmounted = async {
        fuse.write_back().await;
        unmounted(place, false).await
    };
    tokio::select! {
        unmounted = written_back_and_unmounted => match unmounted {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                tracing::warn!("the mount is in use; it has been detached");
            }
            Err(error) => return Err(failed(error)),
        },
        waiting = stalled(in_flight) => {
            tracing::warn!(operations = waiting, "the server does not answer; operations that wait for it are aborted");
        }
    }
    match unmounted(place, true).await {
        Err(error) if place.is_there() => Err(failed(error)),
        // The program that unmounts it waits until the device is closed.
        _ => Ok(()),
    }
}

/// Removes a mount that the kernel has aborted while programs used it, as `umount -f` does. Without this, the mount point would fail
/// with ENOTCONN until the next umount.
async fn detach_aborted(place: &Place) -> Result<(), Failure> {
    if !place.is_there() {
        return Ok(());
    }
    tracing::warn!("the mount has been aborted while it was in use; it is detached, and programs get errors");
    match unmounted(place, true).await {
        Err(error) if place.is_there() => {
            Err(Failure::failed(format!("cannot unmount {}: {error}", place.directory.display())))
        }
        _ => Ok(()),
    }
}

/// Unmounts on a separate thread. The kernel may send requests meanwhile, which this process must answer, and the end
/// of the runtime must not wait for the thread.
async fn unmounted(place: &Place, detach: bool) -> io::Result<()> {
    let (sender, done) = tokio::sync::oneshot::channel();
    let directory = place.directory.clone();
    std::thread::spawn(move || sender.send(unmount(&directory, detach)));
    done.await.map_err(io::Error::other)?
}

/// Completes when operations are in progress and none has ended for a while. Returns their number.
async fn stalled(in_flight: &InFlight) -> usize {
    let (mut before, mut looks) = (in_flight.counts().0, 0);
    loop {
        tokio::time::sleep(LOOK).await;
        let (ended, waiting) = in_flight.counts();
        looks = if ended == before && waiting > 0 { looks + 1 } else { 0 };
        before = ended;
        if looks >= STALLED_LOOKS {
            return waiting;
        }
    }
}

/// Sends the data of files that were open, and unmounts at the server, if it answers. If it does not, its mount list
/// does not matter.
async fn unmount_server(mount: Mount, fuse: &Fuse) {
    let null = mount.protocol().null();
    if matches!(tokio::time::timeout(ANSWER_MAX, null).await, Ok(Ok(()))) {
        if tokio::time::timeout(FAREWELL_MAX, fuse.settle()).await.is_err() {
            tracing::warn!("data of files that were open are lost: the server does not accept them");
        }
        let _ = tokio::time::timeout(FAREWELL_MAX, mount.unmount()).await;
    }
}

/// Decodes a path of proc_pid_mountinfo(5): space, tab, newline and backslash are three octal digits.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// The arguments of a mount, which `--status` excludes.
const MOUNTING: [&str; 14] = [
    "url",
    "directory",
    "options",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "allow_other",
    "direct_io",
    "writeback",
    "passthrough",
    "attributes",
    "soft",
    "softerr",
    "retrans",
];
/// The maximum time to wait for an answer of the server before the unmount is skipped.
const ANSWER_MAX: Duration = Duration::from_millis(200);
/// The interval of the check for waiting operations, and the time that they have waited when the log says so.
const REPORT: Duration = Duration::from_secs(1);
const LATE_S: u64 = 10;
const FAREWELL_MAX: Duration = Duration::from_secs(2);
const RETRANS_MAX: u32 = 1000;
const TTL_MAX: Duration = Duration::from_secs(3600);
/// The interval and the number of checks without an ended operation after which the server counts as not answering.
const LOOK: Duration = Duration::from_millis(100);
const STALLED_LOOKS: u32 = 4;
