//! `slipway mount`: a server's tree where every program can use it, by FUSE.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use client::NfsUrl;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

use crate::{
    exit::{Exit, Failure, Outcome},
    fuse::{Fuse, Options},
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
}

/// Mounts, and works until the end.
pub fn run(args: &Args) -> Outcome {
    let ttl = Duration::try_from_secs_f64(args.attributes).ok().filter(|ttl| *ttl <= TTL_MAX);
    let ttl = ttl.ok_or_else(|| Failure::usage("--attributes: from 0 to 3600 seconds"))?;
    reach::run(serve(args, Options { ttl, direct_io: args.direct_io }))
}

async fn serve(args: &Args, options: Options) -> Outcome {
    // As the kernel names it, which can only be asked as long as nothing is mounted there.
    let canonical = args.directory.canonicalize().unwrap_or_else(|_| args.directory.clone());
    let mount = Reach::new().mount(&args.url).await?;
    let root = mount.resolve("").await.map_err(|error| reach::failure(&args.url, &error))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;

    let runtime = tokio::runtime::Handle::current();
    let (fuse, ended) = Fuse::new(root.mount.clone(), root, runtime, options);
    let session = start(args, fuse).map_err(|error| {
        let advice = match error.raw_os_error() {
            None => ": users other than root need fusermount3 (Debian: fuse3)",
            Some(_) => "",
        };
        Failure::failed(format!("cannot mount at {}: {error}{advice}", args.directory.display()))
    })?;
    output::print(&format!("{} is mounted at {}\n", args.url, args.directory.display()));
    let told = tokio::select! {
        _ = ended => false,
        _ = terminate.recv() => true,
        _ = interrupt.recv() => true,
    };
    if told {
        end(args, &canonical, session).await?;
    }
    // Whether the server strikes it off its list matters to nobody else, least of all if it does not answer.
    let _ = tokio::time::timeout(FAREWELL_MAX, mount.unmount()).await;
    Ok(Exit::Ok)
}

fn start(args: &Args, fuse: Fuse) -> std::io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options =
        vec![MountOption::FSName(args.url.to_string()), MountOption::Subtype("slipway".to_owned()), MountOption::NoDev];
    config.mount_options.push(MountOption::NoSuid);
    if args.allow_other {
        config.acl = SessionACL::All;
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    let notify = fuse.notify();
    let session = Session::new(fuse, &args.directory, &config)?;
    notify(session.notifier());
    session.spawn()
}

/// Takes the mount away. If it is in use it disappears at once nevertheless; files that are open are then lost to who
/// has them.
async fn end(args: &Args, canonical: &Path, session: BackgroundSession) -> Result<(), Failure> {
    let (sender, unmounted) = oneshot::channel();
    // The kernel may have requests meanwhile, which are answered here: it must not wait for itself. And not one of the
    // runtime's threads, which it would wait for.
    std::thread::spawn(move || sender.send(session.umount_and_join()));
    let unmounted = tokio::select! {
        unmounted = unmounted => unmounted.map_err(Failure::failed)?,
        () = gone(canonical) => {
            tracing::warn!("another mount namespace has the mount yet; it ends there, too");
            return Ok(());
        }
    };
    let Err(error) = unmounted else { return Ok(()) };
    let directory = args.directory.clone();
    let detached =
        tokio::task::spawn_blocking(move || rustix::mount::unmount(directory, rustix::mount::UnmountFlags::DETACH));
    match detached.await.map_err(Failure::failed)? {
        Ok(()) => {
            tracing::warn!(%error, "the mount is in use; it has been detached");
            Ok(())
        }
        Err(_) => Err(Failure::failed(format!("cannot unmount {}: {error}", args.directory.display()))),
    }
}

/// Ready when the mount has not been seen here for a while: the kernel has written what there was to be written. It goes on with
/// requests where the mount was copied to, by who has made a mount namespace of his own.
async fn gone(directory: &Path) {
    let here = |line: &str| line.split(' ').nth(4).is_some_and(|at| Path::new(&unescaped(at)) == directory);
    let mut missed = 0;
    while missed < MISSED_MAX {
        tokio::time::sleep(LOOK).await;
        let seen = std::fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| mounts.lines().any(here));
        missed = if seen { 0 } else { missed + 1 };
    }
}

/// proc_pid_mountinfo(5): space, tab, newline and backslash are three octal digits.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

const FAREWELL_MAX: Duration = Duration::from_secs(2);
const TTL_MAX: Duration = Duration::from_secs(3600);
/// How often, and how many times, it is looked for the mount before it is taken to be gone.
const LOOK: Duration = Duration::from_millis(500);
const MISSED_MAX: u32 = 6;
