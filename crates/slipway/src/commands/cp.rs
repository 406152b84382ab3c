//! `slipway cp`: copies to, from and between servers.

use std::{fs, path::Path, time::Instant};

use buf::Pool;
use bytes::Bytes;
use client::NfsUrl;
use serde::Serialize;
use tokio::signal::unix::{self, SignalKind};

use crate::{
    copy::{Copier, Kind, Meta, Node, Options, Remote},
    exit::{Exit, Failure, Outcome},
    output,
    progress::Progress,
    reach::{self, Location, Reach, local_name},
};

/// Copy files and trees to, from and between servers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Holes are kept. Symbolic links inside trees are copied as links; a source that is a link is followed without -r.
When a copy to a server ends, its data are on stable storage there. An error ends the copy of one file, and the rest
continues; the exit code is then 1.

A regular file is written as .NAME.slipway- and 16 hexadecimal digits in the directory of its target, and renamed when it
is complete.
The new file has the owner (if allowed) and mode of the file that it replaces. An error, SIGINT and SIGTERM remove the
temporary file; it remains after SIGKILL, or if the server does not answer. An existing target that is not a regular file,
such as a local device, pipe or /dev/stdout, is written in place.

With --resume, the temporary file and a record of what is on stable storage remain after an interruption, and the next
cp --resume to the same target continues if the source has not changed. For trees, use it with -u.

The exit code is 130 after SIGINT and 143 after SIGTERM; 'slipway --help' lists the others.

Examples:
  slipway cp notes.txt nfs://server/export/
  slipway cp -r src nfs://server/export/backup
  slipway cp -a 'nfs://server/export/src?proto=rdma' .
  slipway cp -r nfs://one/export/data 'nfs://two/export/data?proto=rdma'")]
pub struct Args {
    /// Copy directories and their content
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep owner (if allowed), mode and times
    #[arg(short, long)]
    preserve: bool,
    /// Keep everything that can be kept: -r, -p, and hard links
    #[arg(short, long)]
    archive: bool,
    /// Skip a file if its target is a regular file of the same size that was not modified earlier
    #[arg(short, long)]
    update: bool,
    /// Continue interrupted copies; keep what has been copied if this one is interrupted
    #[arg(long)]
    resume: bool,
    /// Small files in flight; a large file counts as up to 16
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    jobs: u32,
    /// Show no progress bar
    #[arg(short, long)]
    quiet: bool,
    /// Print the result as one line of JSON at the end
    #[arg(long)]
    json: bool,
    /// The sources: paths, or nfs://host[:port]/export/path[?proto=tcp|udp|rdma&…]
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<Location>,
    /// The target: a directory, or a new name
    #[arg(value_name = "TARGET")]
    target: Location,
}

/// The result in JSON.
#[derive(Serialize)]
struct Done {
    files: u64,
    bytes: u64,
    skipped: u64,
    seconds: f64,
    errors: u64,
    /// The bytes that passed directly between this process and data servers of pNFS.
    direct_bytes: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    reach::run(async {
        let reach = Reach::new();
        let mut signals = Signals::new().map_err(Failure::failed)?;
        let target = tokio::select! {
            target = Target::find(&reach, &args.target) => target?,
            exit = signals.next() => return Ok(exit),
        };
        if args.sources.len() > 1 && !matches!(target, Target::Directory(_)) {
            return Err(Failure::usage("several sources need a directory as their target"));
        }
        let options = Options {
            command: "cp",
            recursive: args.recursive || args.archive,
            preserve: args.preserve || args.archive,
            hard_links: args.archive,
            umask: umask(),
            update: args.update,
            resume: args.resume,
            jobs: args.jobs,
        };
        let pool = target.pool();
        let progress = Progress::new(!args.quiet);
        let started = Instant::now();
        let mut copier = Copier::new(options, pool, progress.clone());
        let done = tokio::select! {
            done = all(&reach, args, &mut copier, &target) => Ok(done),
            exit = signals.next() => Err(exit),
        };
        let (errors, exit) = match done {
            Ok(done) => done,
            Err(exit) => {
                // A second signal ends the wait.
                let errors = tokio::select! {
                    errors = copier.stop() => errors,
                    exit = signals.next() => return Ok(exit),
                };
                (errors, exit)
            }
        };
        if args.json {
            let seconds = started.elapsed().as_secs_f64();
            output::json(&Done {
                files: progress.files(),
                bytes: progress.bytes(),
                skipped: progress.skipped(),
                seconds,
                errors,
                direct_bytes: reach::direct_bytes(),
            });
        }
        Ok(exit)
    })
}

/// Copies all sources. Returns the number of errors, and the exit code.
async fn all(reach: &Reach, args: &Args, copier: &mut Copier, target: &Target) -> (u64, Exit) {
    let mut unreachable = 0;
    for source in &args.sources {
        if let Err(failure) = one(reach, args, copier, source, target).await {
            unreachable += u64::from(failure.exit == Exit::Unreachable);
            copier.fail(&crate::copy::Error(failure.message));
        }
    }
    let errors = copier.finish().await;
    let exit = match errors {
        0 => Exit::Ok,
        _ if errors == unreachable => Exit::Unreachable,
        _ => Exit::Failed,
    };
    (errors, exit)
}

/// Copies one source.
async fn one(
    reach: &Reach,
    args: &Args,
    copier: &mut Copier,
    source: &Location,
    target: &Target,
) -> Result<(), Failure> {
    let follow = !(args.recursive || args.archive);
    let (node, meta, name) = find(reach, source, follow).await?;
    let (dir, name) = match (target, name) {
        (Target::Directory(dir), Some(name)) => (dir, name),
        (Target::Name { dir, name, .. }, _) => (dir, name.clone()),
        // A source without a name, such as `.` or the root of an export, is copied by its content.
        (Target::Directory(dir), None) if args.recursive || args.archive => {
            copier.copy_content(node, dir.clone()).await;
            return Ok(());
        }
        (Target::Directory(_), None) => {
            return Err(Failure::failed(format!("{}: is a directory (use -r)", shown(&node))));
        }
    };
    if let Some((there, there_meta)) = dir.child(&name).await.map_err(Failure::failed)? {
        if Node::is_same((&there, &there_meta), (&node, &meta)) {
            return Err(Failure::failed(format!("{} and {} are the same", shown(&node), shown(&there))));
        }
        if meta.kind != Kind::Dir && there_meta.kind == Kind::Dir {
            return Err(Failure::failed(format!("{}: is a directory, and {} is not", shown(&there), shown(&node))));
        }
    }
    copier.copy(node, meta, dir.clone(), name).await;
    Ok(())
}

fn shown(node: &Node) -> String {
    output::name(&node.path())
}

/// Returns the object of a source, its attributes and its name.
async fn find(reach: &Reach, source: &Location, follow: bool) -> Result<(Node, Meta, Option<Bytes>), Failure> {
    match source {
        Location::Local(path) => {
            let node = Node::Local(path.clone());
            let meta = node.meta(follow).await.map_err(Failure::failed)?;
            Ok((node, meta, local_name(path)))
        }
        Location::Remote(url) => {
            let (node, meta) = reach.object(url, follow).await?;
            let name = reach::split(&url.path).map(|(_, name)| name);
            Ok((Node::Remote(node.into()), meta, name))
        }
    }
}

/// The signals that end a copy.
struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Self { interrupt: unix::signal(interrupt)?, terminate: unix::signal(terminate)? })
    }

    /// Waits for a signal, and returns its exit code.
    async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.terminate.recv() => Exit::Terminated,
        }
    }
}

/// The target of copies.
enum Target {
    /// A directory; each source keeps its name.
    Directory(Node),
    /// This name in a directory.
    Name { dir: Node, name: Bytes },
}

impl Target {
    async fn find(reach: &Reach, target: &Location) -> Result<Self, Failure> {
        match target {
            Location::Local(path) => Self::local(path).await,
            Location::Remote(url) => Self::remote(reach, url).await,
        }
    }

    async fn local(path: &Path) -> Result<Self, Failure> {
        if fs::metadata(path).is_ok_and(|meta| meta.is_dir()) {
            return Ok(Target::Directory(Node::Local(path.to_owned())));
        }
        let name = local_name(path).ok_or_else(|| Failure::failed(format!("{}: no such directory", path.display())))?;
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        if !fs::metadata(dir).is_ok_and(|meta| meta.is_dir()) {
            return Err(Failure::failed(format!("{}: no such directory", dir.display())));
        }
        Ok(Target::Name { dir: Node::Local(dir.to_owned()), name })
    }

    async fn remote(reach: &Reach, url: &NfsUrl) -> Result<Self, Failure> {
        let mount = reach.mount(url).await?;
        match mount.resolve("").await {
            Ok(object) => {
                let node = Remote::new(object.mount, object.handle, url.path.clone());
                if Meta::from(&object.attr).kind == Kind::Dir {
                    return Ok(Target::Directory(Node::Remote(node.into())));
                }
            }
            Err(error) if error.is_not_found() && !url.path.ends_with(b"/") => {}
            Err(error) => return Err(reach::failure(url, &error)),
        }
        let (dir, name) = reach.parent(url).await?;
        Ok(Target::Name { dir: Node::Remote(dir.into()), name })
    }

    /// Returns the pool for buffers with local data: the pool of the target's transport.
    fn pool(&self) -> Pool {
        let (Target::Directory(node) | Target::Name { dir: node, .. }) = self;
        match node {
            Node::Local(_) => Pool::new(Default::default()),
            Node::Remote(remote) => remote.mount().pool().clone(),
        }
    }
}

/// Returns the umask of the process, without changing it.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    umask.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}
