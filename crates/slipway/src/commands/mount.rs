//! `slipway mount`: a server's tree where every program can use it, by FUSE.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::{Mount, NfsUrl};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    exit::{Exit, Failure, Outcome},
    fuse::{Device, Fuse, Options, Recovery, Session, Underway, Waiting, unmount},
    output,
    reach::{self, Reach},
};

/// Mount what a server exports, for every program.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It runs until the mount ends: by SIGTERM, SIGINT, or umount. Files are read and written as the user that runs it, or as the
uid and gid of the URL say; only that user can use it, unless --allow-other. What is closed is on stable storage.

As root it needs nothing but Linux's FUSE; others need fusermount3 (Debian: fuse3).

Examples:
  slipway mount nfs://server/srv/data /mnt
  slipway mount 'nfs://server/srv/data?proto=rdma' /mnt --direct-io
  fio --directory=/mnt --name=job --rw=randread --bs=4k --size=64m --direct=1 --ioengine=libaio --iodepth=16")]
pub struct Args {
    /// What is mounted
    #[arg(value_name = "URL")]
    url: NfsUrl,
    /// The directory where it appears
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Let other users in; the kernel checks what each may do by owner, group and mode
    #[arg(long)]
    allow_other: bool,
    /// Pass the page cache by: reads and writes go to the server as programs make them
    #[arg(long)]
    direct_io: bool,
    /// Seconds for which names and attributes are believed
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    attributes: f64,
    /// Let operations fail with EIO when the server has not answered for timeo × (retrans + 1); without this or --softerr they wait
    /// until it does
    #[arg(long)]
    soft: bool,
    /// The same, but let them fail with ETIMEDOUT
    #[arg(long, conflicts_with = "soft")]
    softerr: bool,
    /// How many times more timeo of the URL is waited before an operation of a soft mount fails
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1000))]
    retrans: u32,
}

/// Mounts, and works until the end.
pub fn run(args: &Args) -> Outcome {
    let ttl = Duration::try_from_secs_f64(args.attributes).ok().filter(|ttl| *ttl <= TTL_MAX);
    let ttl = ttl.ok_or_else(|| Failure::usage("--attributes: from 0 to 3600 seconds"))?;
    let deadline = args.url.options.deadline.saturating_mul(args.retrans + 1);
    let recovery = match (args.soft, args.softerr) {
        (true, _) => Recovery::Soft(deadline),
        (_, true) => Recovery::SoftErr(deadline),
        _ => Recovery::Hard,
    };
    reach::run(serve(args, Options { ttl, direct_io: args.direct_io, recovery }))
}

async fn serve(args: &Args, options: Options) -> Outcome {
    // As the kernel names it, which can only be asked as long as nothing is mounted there.
    let directory = directory(&args.directory)?;
    let mount = Reach::new().connect(&args.url).await?;
    let root = mount.resolve("").await.map_err(|error| reach::failure(&args.url, &error))?;
    if root.attr.kind != client::FileKind::Dir {
        return Err(Failure::failed(format!("cannot mount {}: not a directory on the server", args.url)));
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;

    let device = Device::mount(&args.url.to_string(), &directory, args.allow_other)
        .map_err(|error| Failure::failed(format!("cannot mount at {}: {error}", directory.display())))?;
    let place = Place::of(directory);
    let session = Session::new(device, mount.pool().clone());
    let underway = session.underway().clone();
    let fuse = Fuse::new(root, &session, options);
    let report = tokio::spawn(report(args.url.clone(), underway.clone()));
    let watch = tokio::spawn({
        let (underway, device) = (underway.clone(), session.device());
        async move { underway.watch(device).await }
    });
    let mut work = tokio::spawn(session.run(fuse));
    output::print(&format!("{} is mounted at {}\n", args.url, place.directory.display()));
    let ended = tokio::select! {
        ended = &mut work => Some(ended.map_err(Failure::failed)?),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    match ended {
        Some(ended) => ended.map_err(|error| Failure::failed(format!("the kernel ended the mount: {error}")))?,
        None => end(&place, &underway).await?,
    }
    // With the device, what is still under way ends: the kernel gives it up.
    work.abort();
    watch.abort();
    report.abort();
    farewell(mount).await;
    Ok(Exit::Ok)
}

/// Logs when the server keeps operations waiting, and when it answers again.
async fn report(url: NfsUrl, underway: Arc<Underway>) {
    let mut said = false;
    loop {
        tokio::time::sleep(REPORT).await;
        let late = underway.oldest().filter(|(waiting, _)| waiting.since >= LATE);
        match late {
            Some((Waiting { operation, ino, pid, since }, operations)) if !said => {
                let since = since.as_secs();
                tracing::warn!(%url, operation, ino, pid, since, operations, "the server does not answer; still trying");
                said = true;
            }
            None if said => {
                tracing::warn!(%url, "the server answers again");
                said = false;
            }
            _ => {}
        }
    }
}

/// The canonical path of what is to be mounted on.
fn directory(path: &Path) -> Result<PathBuf, Failure> {
    let failed =
        |problem: &dyn std::fmt::Display| Failure::failed(format!("cannot mount at {}: {problem}", path.display()));
    let canonical = path.canonicalize().map_err(|error| failed(&error))?;
    let kind = fs::metadata(&canonical).map_err(|error| failed(&error))?;
    if kind.is_dir() { Ok(canonical) } else { Err(failed(&"not a directory")) }
}

/// Where the mount is, and by what it is told from one that another has put in its place.
struct Place {
    directory: PathBuf,
    /// Major and minor number of the file system, as proc_pid_mountinfo(5) has them.
    device: Option<String>,
}

impl Place {
    /// Of what has just been mounted there.
    fn of(directory: PathBuf) -> Self {
        let device = mounted_at(&directory).pop();
        Self { directory, device }
    }

    /// Whether it is there.
    fn is_there(&self) -> bool {
        self.device.as_ref().is_some_and(|device| mounted_at(&self.directory).contains(device))
    }
}

/// What is mounted at a directory, the uppermost last.
fn mounted_at(directory: &Path) -> Vec<String> {
    let device = |line: &str| {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?;
        (Path::new(&unescaped(fields.nth(1)?)) == directory).then(|| device.to_owned())
    };
    fs::read_to_string("/proc/self/mountinfo").map_or(Vec::new(), |mounts| mounts.lines().filter_map(device).collect())
}

/// Takes the mount away. If it is in use it disappears at once nevertheless; files that are open are then lost to who
/// has them. What waits for a server that does not answer is given up.
async fn end(place: &Place, underway: &Arc<Underway>) -> Result<(), Failure> {
    if !place.is_there() {
        // By umount -l, or under another mount.
        tracing::warn!("{} is not mounted there any more; what is still open ends", place.directory.display());
        return Ok(());
    }
    let failed = |error: io::Error| Failure::failed(format!("cannot unmount {}: {error}", place.directory.display()));
    tokio::select! {
        unmounted = unmounted(place, false) => match unmounted {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                tracing::warn!("the mount is in use; it has been detached");
            }
            Err(error) => return Err(failed(error)),
        },
        waiting = stalled(underway) => {
            tracing::warn!(operations = waiting, "the server does not answer; what waits for it is given up");
        }
    }
    match unmounted(place, true).await {
        Err(error) if place.is_there() => Err(failed(error)),
        // Whoever unmounts it waits for the device to be closed.
        _ => Ok(()),
    }
}

/// Unmounts on a thread of its own: the kernel may have requests meanwhile, which are answered here, and must not be waited for by
/// the runtime's end.
async fn unmounted(place: &Place, detach: bool) -> io::Result<()> {
    let (sender, done) = tokio::sync::oneshot::channel();
    let directory = place.directory.clone();
    std::thread::spawn(move || sender.send(unmount(&directory, detach)));
    done.await.map_err(io::Error::other)?
}

/// Ready when operations are under way and none has ended for a while; says how many.
async fn stalled(underway: &Underway) -> usize {
    let (mut before, mut looks) = (underway.counts().0, 0);
    loop {
        tokio::time::sleep(LOOK).await;
        let (ended, waiting) = underway.counts();
        looks = if ended == before && waiting > 0 { looks + 1 } else { 0 };
        before = ended;
        if looks >= STALLED_LOOKS {
            return waiting;
        }
    }
}

/// Tells the server, if it answers. To one that does not, it matters least whether it strikes the mount off its list.
async fn farewell(mount: Mount) {
    let null = mount.protocol().null();
    if matches!(tokio::time::timeout(ANSWER_MAX, null).await, Ok(Ok(()))) {
        let _ = tokio::time::timeout(FAREWELL_MAX, mount.unmount()).await;
    }
}

/// proc_pid_mountinfo(5): space, tab, newline and backslash are three octal digits.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// How long a server may take to say that it is there before it is taken leave of.
const ANSWER_MAX: Duration = Duration::from_millis(200);
/// How often it is looked for operations that wait, and how long they have then waited for the log to say so.
const REPORT: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(10);
const FAREWELL_MAX: Duration = Duration::from_secs(2);
const TTL_MAX: Duration = Duration::from_secs(3600);
/// How often, and how many times, no operation has ended before the server is taken not to answer.
const LOOK: Duration = Duration::from_millis(100);
const STALLED_LOOKS: u32 = 4;
