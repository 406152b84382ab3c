//! `slipway rm`: removes files and trees on servers.

use std::sync::Arc;

use bytes::Bytes;
use client::NfsUrl;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    copy::{self, Kind, Meta, Remote},
    exit::{Exit, Failure, Outcome},
    output,
    reach::{self, Reach, Tally},
};

/// Remove files, and with -r directories, on servers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Symbolic links are removed, never followed. An export's root is not removed.

Examples:
  slipway rm nfs://server/export/file
  slipway rm -r nfs://server/export/dir
  slipway rm -rf nfs://server/export/dir   # no error if there is none")]
pub struct Args {
    /// Remove directories with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    force: bool,
    /// Print the removed files
    #[arg(long)]
    list: bool,
    /// The objects to remove: nfs://host[:port]/export/path[?proto=tcp|udp|rdma&…]
    #[arg(value_name = "URL", required = true)]
    urls: Vec<NfsUrl>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    reach::run(async {
        let (reach, mut tally) = (Reach::new(), Tally::new("rm"));
        for url in &args.urls {
            let found = find(&reach, url, args.force).await;
            if let Some(Some((dir, name, node, meta))) = tally.check(found) {
                Removal { args, tally: &mut tally, files: JoinSet::new() }.remove(dir, name, node, meta).await;
            }
        }
        Ok(tally.exit())
    })
}

/// Returns the object of a URL and its parent; `None` if it does not exist and `force` is set.
async fn find(reach: &Reach, url: &NfsUrl, force: bool) -> Result<Option<(Remote, Bytes, Remote, Meta)>, Failure> {
    let (dir, name) = match reach.parent(url).await {
        Err(failure) if force && failure.exit == Exit::Failed => return Ok(None),
        found => found?,
    };
    match dir.child(&name).await.map_err(Failure::failed)? {
        Some((node, meta)) => Ok(Some((dir, name, node, meta))),
        None if force => Ok(None),
        None => Err(Failure::failed(format!("{url}: no such file or directory"))),
    }
}

struct Removal<'a> {
    args: &'a Args,
    tally: &'a mut Tally,
    files: JoinSet<copy::Result<()>>,
}

impl Removal<'_> {
    async fn remove(&mut self, dir: Remote, name: Bytes, node: Remote, meta: Meta) {
        if meta.kind != Kind::Dir {
            self.say(node.path());
            let done = dir.remove(&name).await;
            return self.check(done);
        }
        if !self.args.recursive {
            let path = output::name(node.path());
            return self.tally.fail(Exit::Failed, &format!("{path}: is a directory (use -r)"));
        }
        self.tree(dir, name, node).await;
    }

    /// Removes files while the walk finds them, many at once, and then the directories from the bottom up.
    async fn tree(&mut self, dir: Remote, name: Bytes, node: Remote) {
        let permits = Arc::new(Semaphore::new(IN_FLIGHT));
        let mut directories = vec![(dir, name, node.clone())];
        let mut pending = vec![node];
        while let Some(dir) = pending.pop() {
            let entries = match dir.list().await {
                Ok(entries) => entries,
                Err(error) => {
                    self.check(Err(error));
                    continue;
                }
            };
            for (name, node, meta) in entries {
                if meta.kind == Kind::Dir {
                    directories.push((dir.clone(), name, node.clone()));
                    pending.push(node);
                    continue;
                }
                self.say(node.path());
                while let Some(done) = self.files.try_join_next() {
                    self.check(done.expect("removing must not panic"));
                }
                let permit = permits.clone().acquire_owned().await.expect("semaphore must stay open");
                let dir = dir.clone();
                self.files.spawn(async move {
                    let done = dir.remove(&name).await;
                    drop(permit);
                    done
                });
            }
        }
        while let Some(done) = self.files.join_next().await {
            self.check(done.expect("removing must not panic"));
        }
        for (dir, name, node) in directories.into_iter().rev() {
            self.say(node.path());
            let done = dir.remove_dir(&name).await;
            self.check(done);
        }
    }

    fn say(&self, path: &[u8]) {
        if self.args.list {
            output::print(&format!("{}\n", output::name(path)));
        }
    }

    fn check(&mut self, done: copy::Result<()>) {
        if let Err(error) = done {
            self.tally.fail(Exit::Failed, &error.to_string());
        }
    }
}

/// The maximum number of files that are removed at once.
const IN_FLIGHT: usize = 64;
