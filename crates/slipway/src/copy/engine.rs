//! [`Copier`]: copies files and trees with many files in flight.
//!
//! One task walks the source and makes directories, links and special files. Each regular file is a separate task.
//! Permits bound the work in flight: a small file takes one permit, a large file as many as it can use. Hard links, and
//! the modes and times of directories, are set at the end, because they need all other objects.
//!
//! An error is reported and ends the copy of one file, or of the subtree of one directory. The rest continues. If a
//! signal stops the copy, the copier removes the temporary files of the files in flight.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use buf::Pool;
use bytes::Bytes;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};

use super::{
    Error, Result,
    meta::{Kind, Meta},
    node::{Entry, Node},
    resume::Resume,
    stream::{Sink, Source},
};
use crate::{output, progress::Progress};

/// The options of a copy.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command, for messages.
    pub command: &'static str,
    /// Copy directories.
    pub recursive: bool,
    /// Keep owner, mode and times.
    pub preserve: bool,
    /// Keep hard links between the copied files.
    pub hard_links: bool,
    /// The permission bits that new objects do not get, unless modes are kept.
    pub umask: u32,
    /// Skip a file if its target has the same size and is not older.
    pub update: bool,
    /// Continue interrupted copies, and keep what has been copied when this one is interrupted.
    pub resume: bool,
    /// The number of small files in flight; a large file counts as up to 16.
    pub jobs: u32,
}

/// Copies trees.
pub struct Copier {
    shared: Arc<Shared>,
    files: JoinSet<()>,
    /// The first name of each file with several names, if [`Options::hard_links`].
    names: HashMap<(u64, u64), (Node, Bytes)>,
    links: Vec<Link>,
    /// The new directories with their final attributes; parents before children.
    directories: Vec<(Node, Meta, bool)>,
}

/// The state that the tasks of files share.
struct Shared {
    options: Options,
    permits: Arc<Semaphore>,
    pool: Pool,
    progress: Progress,
    errors: AtomicU64,
    stopped: watch::Sender<bool>,
}

/// A hard link to a file that has been copied under another name.
struct Link {
    dir: Node,
    name: Bytes,
    first: (Node, Bytes),
}

impl Copier {
    /// Creates a copier that reports to `progress`. Buffers for local data come from `pool`.
    pub fn new(options: Options, pool: Pool, progress: Progress) -> Self {
        let permits = Arc::new(Semaphore::new(options.jobs.max(WEIGHT_MAX) as usize));
        Self {
            shared: Arc::new(Shared {
                options,
                permits,
                pool,
                progress,
                errors: AtomicU64::new(0),
                stopped: watch::Sender::new(false),
            }),
            files: JoinSet::new(),
            names: HashMap::new(),
            links: Vec::new(),
            directories: Vec::new(),
        }
    }

    /// Copies `source` to `name` in `dir`, recursively if it is a directory. Returns when the copy of every file has
    /// started. [`finish`](Self::finish) waits for their end.
    pub async fn copy(&mut self, source: Node, meta: Meta, dir: Node, name: Bytes) {
        if meta.kind == Kind::Dir {
            self.directory(source, meta, dir, name).await;
        } else {
            self.entry(Entry { name: name.clone(), node: source, meta: Ok(meta) }, &dir, name).await;
        }
    }

    /// Copies the content of the directory `source` into the existing directory `target`.
    pub async fn copy_content(&mut self, source: Node, target: Node) {
        self.fill(source, target).await;
    }

    /// Reports that an object could not be copied.
    pub fn fail(&self, error: &Error) {
        self.shared.fail(error);
    }

    /// Waits for all files, then makes hard links and sets the attributes of directories. Returns the number of errors.
    pub async fn finish(&mut self) -> u64 {
        self.drain().await;
        for link in std::mem::take(&mut self.links) {
            let Link { dir, name, first: (first_dir, first_name) } = link;
            let made = match first_dir.child(&first_name).await {
                Ok(Some((first, _))) => dir.link(&name, &first).await,
                Ok(None) => Err(Error(format!("{}: its other name was not copied", output::name(&name)))),
                Err(error) => Err(error),
            };
            self.shared.check(made);
        }
        for (node, meta, made) in std::mem::take(&mut self.directories).into_iter().rev() {
            let done = if self.shared.options.preserve {
                node.preserve(&meta).await
            } else if made && meta.mode & 0o700 != 0o700 {
                node.set_mode(meta.mode & !self.shared.options.umask).await
            } else {
                Ok(())
            };
            self.shared.check(done);
        }
        self.shared.progress.finish();
        self.shared.errors.load(Relaxed)
    }

    /// Stops all copies in flight, which remove their temporary files. The removal has a time limit, because the server
    /// may not answer. Returns the number of errors so far.
    pub async fn stop(&mut self) -> u64 {
        let errors = self.shared.errors.load(Relaxed);
        self.shared.stopped.send_replace(true);
        let _ = tokio::time::timeout(DISCARD_MAX, self.drain()).await;
        self.shared.progress.finish();
        errors
    }

    async fn drain(&mut self) {
        while let Some(done) = self.files.join_next().await {
            done.expect("copying a file must not panic");
        }
    }

    /// Copies a directory to `name` in `dir`.
    async fn directory(&mut self, source: Node, meta: Meta, dir: Node, name: Bytes) {
        if !self.shared.options.recursive {
            let path = output::name(&source.path());
            return self.shared.fail(&Error(format!("{path}: is a directory (use -r)")));
        }
        if let Some(target) = self.make_dir(&meta, &dir, &name).await {
            self.fill(source, target).await;
        }
    }

    /// Creates the directory to which a directory is copied.
    async fn make_dir(&mut self, meta: &Meta, dir: &Node, name: &Bytes) -> Option<Node> {
        let mode =
            if self.shared.options.preserve { meta.mode & 0o777 } else { meta.mode & !self.shared.options.umask };
        let target = self.shared.check(dir.make_dir(name, mode).await)?;
        self.directories.push((target.clone(), meta.clone(), true));
        Some(target)
    }

    /// Copies the content of `source` into `target`.
    async fn fill(&mut self, source: Node, target: Node) {
        // If a tree is copied into itself, the walk finds the new directory, and must skip it.
        let Some(made_meta) = self.shared.check(target.meta(true).await) else { return };
        let made_here = target.clone();
        let mut pending = vec![(source, target)];
        while let Some((source, target)) = pending.pop() {
            let Some(entries) = self.shared.check(source.list().await) else { continue };
            for entry in entries {
                let name = entry.name.clone();
                match &entry.meta {
                    Ok(meta) if meta.kind == Kind::Dir => {
                        if Node::is_same((&entry.node, meta), (&made_here, &made_meta)) {
                            let path = output::name(&entry.node.path());
                            self.shared.fail(&Error(format!("{path}: is the target of this copy; skipped")));
                        } else if let Some(made) = self.make_dir(&meta.clone(), &target, &name).await {
                            pending.push((entry.node, made));
                        }
                    }
                    _ => self.entry(entry, &target, name).await,
                }
            }
        }
    }

    /// Copies an object that is not a directory.
    async fn entry(&mut self, entry: Entry, dir: &Node, name: Bytes) {
        let Some(meta) = self.shared.check(entry.meta) else { return };
        if self.shared.options.hard_links
            && meta.nlink > 1
            && let Some(id) = meta.id
        {
            if let Some(first) = self.names.get(&id) {
                self.links.push(Link { dir: dir.clone(), name, first: first.clone() });
                return;
            }
            self.names.insert(id, (dir.clone(), name.clone()));
        }
        match meta.kind {
            Kind::File => self.file(entry.node, meta, dir.clone(), name).await,
            _ => {
                let made = self.shared.special(&entry.node, &meta, dir, &name).await;
                self.shared.check(made);
            }
        }
    }

    /// Starts to copy a regular file when a permit is free.
    async fn file(&mut self, source: Node, meta: Meta, dir: Node, name: Bytes) {
        // Completed tasks also leave the set.
        while self.files.try_join_next().is_some() {}
        self.shared.progress.expect(meta.size);
        let weight = (meta.size / WEIGHT_BYTES).clamp(1, WEIGHT_MAX.into()) as u32;
        let permit = self.shared.permits.clone().acquire_many_owned(weight).await.expect("semaphore must stay open");
        let shared = self.shared.clone();
        self.files.spawn(async move {
            let done = shared.transfer(&source, &meta, &dir, &name).await;
            match done {
                Ok(true) => shared.progress.file(),
                Ok(false) => shared.progress.skip(meta.size),
                // A stopped copy is not an error.
                Err(_) if *shared.stopped.borrow() => {}
                Err(error) => shared.fail(&error),
            }
            drop(permit);
        });
    }
}

impl Shared {
    fn fail(&self, error: &Error) {
        self.errors.fetch_add(1, Relaxed);
        self.progress.say(&format!("slipway {}: {error}", self.options.command));
    }

    fn check<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.fail(&error)).ok()
    }

    async fn special(&self, node: &Node, meta: &Meta, dir: &Node, name: &Bytes) -> Result<()> {
        let made = match meta.kind {
            Kind::Symlink => dir.symlink(name, node.read_link().await?).await?,
            _ => dir.make_node(name, &Meta { mode: meta.mode & !self.umask(), ..meta.clone() }).await?,
        };
        if self.options.preserve { made.preserve(meta).await } else { Ok(()) }
    }

    fn umask(&self) -> u32 {
        if self.options.preserve { 0 } else { self.options.umask }
    }

    /// Copies one file. Returns `false` if it is skipped because its target is up to date.
    async fn transfer(&self, source: &Node, meta: &Meta, dir: &Node, name: &Bytes) -> Result<bool> {
        if self.options.update
            && let Some((_, there)) = dir.child(name).await?
            && there.kind == Kind::File
            && there.size == meta.size
            && there.mtime >= meta.mtime
        {
            return Ok(false);
        }
        let mut resume = if self.options.resume { Resume::find(dir, name, source, meta).await? } else { None };
        let start = resume.as_ref().map(Resume::start);
        let mut to = Sink::create(dir, name, meta.mode & 0o777 & !self.umask(), start).await?;
        let mut stopped = self.stopped.subscribe();
        let moved = tokio::select! {
            moved = self.fill(source, meta, &mut to, resume.as_mut()) => moved,
            _ = stopped.wait_for(|stopped| *stopped) => Err(Error("stopped".into())),
        };
        if moved.is_err() {
            let end = async {
                match &mut resume {
                    Some(resume) => resume.suspend(to).await,
                    None => to.discard().await,
                }
            };
            let _ = tokio::time::timeout(DISCARD_MAX, end).await;
        }
        moved.map(|()| true)
    }

    /// Copies the data of one file, and finishes the file.
    async fn fill(&self, source: &Node, meta: &Meta, to: &mut Sink, mut resume: Option<&mut Resume>) -> Result<()> {
        let preserve = self.options.preserve.then_some(meta);
        let start = resume.as_ref().map_or(0, |resume| resume.start().1);
        if start > 0 {
            self.progress.resumed(start);
        } else if let (Node::Remote(source), Sink::Remote { staged, .. }) = (source, &mut *to)
            && source.copy_within(meta, staged.file()).await?
        {
            self.progress.moved(meta.size);
            return staged.publish(preserve).await;
        }
        let mut from = Source::open(source, meta, start, &self.pool);
        let mut whole = true;
        while let Some((offset, data)) = from.next().await? {
            let len = data.len() as u64;
            if !to.write(offset, data).await? {
                whole = false;
                break;
            }
            self.progress.moved(len);
            if let Some(resume) = &mut resume {
                resume.wrote(len, to).await?;
            }
        }
        // If the sink accepts no more data, it has failed, and `finish` returns the error.
        let size = if whole { from.finish().await? } else { 0 };
        if let Some(resume) = &resume {
            resume.check(source).await?;
        }
        to.finish(size, preserve).await?;
        match resume {
            Some(resume) => resume.finish().await,
            None => Ok(()),
        }
    }
}

/// The maximum time for the removal of temporary files.
const DISCARD_MAX: Duration = Duration::from_secs(3);
/// The maximum number of permits that one file takes.
const WEIGHT_MAX: u32 = 16;
/// The number of bytes of a file for each permit.
const WEIGHT_BYTES: u64 = 1 << 20;
