//! The operations of the load: [`Work`] has a thread's connection and file, and executes operations on them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use bytes::Bytes;
use client::{CreateHow, File, Handle, Mount, NfsUrl, Result, SetAttr, StableHow};
use nfs::v3::ACCESS3_READ;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{
    point::{Operation, Point},
    sample::Tally,
    site::{self, Site},
};
use crate::{
    exit::Failure,
    reach::{self, Reach},
};

/// The state that the tasks of one thread share.
pub struct Work {
    point: Point,
    mount: Mount,
    dir: Handle,
    file: File,
    blocks: u64,
    /// The index of the next block, or the seed of its offset.
    next: AtomicU64,
    /// The data to write.
    data: Bytes,
    /// The prefix of names that this thread creates.
    name: String,
    /// The names of the files to remove at the end.
    made: Mutex<Vec<String>>,
    /// The directory of the sources and its handle, if they are used.
    tree: Option<(String, Handle)>,
}

impl Work {
    /// Connects, and opens the thread's files.
    ///
    /// # Errors
    /// The server cannot be reached, or the files do not exist.
    pub async fn connect(
        url: &NfsUrl,
        site: &Site,
        thread: u32,
        point: &Point,
    ) -> std::result::Result<Arc<Self>, Failure> {
        let mount = Reach::new().mount(url).await?;
        let open = async {
            let dir = mount.resolve("").await?.handle;
            let (file, tree) = if point.operation.takes_a_tree() {
                let path = site.sources(thread);
                let sources = mount.resolve(&path).await?.handle;
                (File::new(mount.clone(), sources.clone(), path.clone()), Some((path, sources)))
            } else {
                (mount.open(site.file(thread)).await?, None)
            };
            Ok((dir, file, tree))
        };
        let (dir, file, tree) = open.await.map_err(|error| reach::failure(url, &error))?;
        let blocks = (site.file_size() / point.block as u64).max(1);
        let work = Arc::new(Self {
            point: *point,
            dir,
            file,
            blocks,
            next: AtomicU64::new(site.first_block(thread, point.threads, blocks)),
            // In memory of the pool, as in an application that takes its buffers from the mount.
            data: in_pool(&mount, &site::pattern(point.block)),
            name: format!("{}-new", site.file(thread)),
            made: Mutex::default(),
            tree,
            mount,
        });
        if point.operation == Operation::NewFile {
            work.make_first_files().await.map_err(|error| reach::failure(url, &error))?;
        }
        Ok(work)
    }

    /// Makes files before the measurement, so that the mount has connections to nearly all data servers, as one that has been in use.
    async fn make_first_files(&self) -> Result<()> {
        for file in 0..FIRST_FILES {
            let name = format!("{}-first-{file}", self.name);
            self.made.lock().push(name.clone());
            self.make_file(&name).await?;
        }
        Ok(())
    }

    /// Executes operations until `end`, with as many in flight as the point says.
    ///
    /// # Errors
    /// The error of the first operation that failed.
    pub async fn drive(self: &Arc<Self>, end: Instant) -> Result<Tally> {
        let mut tasks = JoinSet::new();
        for task in 0..self.point.tasks() {
            tasks.spawn(self.clone().repeat(task, end));
        }
        let mut total = Tally::until(end);
        while let Some(done) = tasks.join_next().await {
            total.add(&done.expect("a load task must not panic")?);
        }
        if self.point.operation == Operation::Write {
            self.file.commit().await?;
        }
        Ok(total)
    }

    async fn repeat(self: Arc<Self>, task: u32, end: Instant) -> Result<Tally> {
        let mut tally = Tally::until(end);
        let name = format!("{}-{task}", self.name);
        match self.point.operation {
            Operation::Read => self.read(&mut tally).await,
            Operation::ReadAhead if self.point.in_flight == 0 => self.read(&mut tally).await,
            Operation::ReadAhead => self.read_ahead(&mut tally).await,
            Operation::Write => self.write(&mut tally).await,
            Operation::Oltp => self.transactions(&mut tally).await,
            Operation::Getattr => {
                while tally.goes_on() {
                    self.file.stat().await?;
                    tally.count(0, None);
                }
                Ok(())
            }
            Operation::Create => {
                while tally.goes_on() {
                    let how = CreateHow::Guarded(SetAttr { mode: Some(0o644), ..SetAttr::default() });
                    self.mount.protocol().create(&self.dir, name.as_bytes(), how).await?;
                    self.mount.protocol().remove(&self.dir, name.as_bytes()).await?;
                    tally.count(0, None);
                }
                Ok(())
            }
            Operation::Small => {
                let (path, _) = self.tree.as_ref().expect("sources must be open");
                while tally.goes_on() {
                    let source = site::source(self.next.fetch_add(1, Relaxed));
                    let content = self.mount.read(format!("{path}/{}", source.name)).await?;
                    tally.count(content.len(), None);
                }
                Ok(())
            }
            Operation::Build => {
                let (_, sources) = self.tree.as_ref().expect("sources must be open");
                while tally.goes_on() {
                    self.compile(sources, &name, &mut tally).await?;
                }
                Ok(())
            }
            Operation::NewFile => {
                let most = NEW_FILES / u64::from(self.point.threads * self.point.tasks());
                while tally.goes_on() && tally.operations < most {
                    let name = format!("{name}-{}", tally.operations);
                    self.made.lock().push(name.clone());
                    tally.count(self.make_file(&name).await?, None);
                }
                Ok(())
            }
            Operation::BtioFullWrite
            | Operation::BtioFullRead
            | Operation::BtioSimpleWrite
            | Operation::BtioSimpleRead => unreachable!("`Btio` executes these"),
            Operation::NewLayout
            | Operation::LayoutGet
            | Operation::LayoutReturn
            | Operation::GetDeviceInfo
            | Operation::LayoutCommit => unreachable!("`Creation` and `Layouts` execute these"),
        }?;
        Ok(tally)
    }

    async fn read(&self, tally: &mut Tally) -> Result<()> {
        let mut buffer = self.mount.pool().take(self.point.block);
        while tally.goes_on() {
            let (read, back) = self.file.read_at(self.offset(), buffer).await;
            tally.count(read?, None);
            buffer = back;
        }
        Ok(())
    }

    /// Reads through the client's reader, as an application does. The mount's read-ahead is the point's blocks in
    /// flight.
    async fn read_ahead(&self, tally: &mut Tally) -> Result<()> {
        let end = self.blocks * self.point.block as u64;
        while tally.goes_on() {
            let (mut reader, mut pieces) = (self.file.reader_range(0, end), 0);
            while tally.goes_on() {
                let Some(piece) = reader.next().await? else { break };
                pieces += piece.len();
                if pieces >= self.point.block {
                    tally.count(pieces, None);
                    pieces = 0;
                }
            }
        }
        Ok(())
    }

    async fn write(&self, tally: &mut Tally) -> Result<()> {
        let stable = if self.point.in_flight == 0 { StableHow::FileSync } else { StableHow::Unstable };
        while tally.goes_on() {
            tally.count(self.write_block(stable).await?, None);
        }
        Ok(())
    }

    async fn write_block(&self, stable: StableHow) -> Result<usize> {
        let (protocol, handle) = (self.mount.protocol(), self.file.handle());
        Ok(protocol.write(handle, self.offset(), self.data.clone().into(), stable).await?.count as usize)
    }

    /// Reads and commits as a database does: 70 of 100 are READs, at random offsets.
    async fn transactions(&self, tally: &mut Tally) -> Result<()> {
        let mut buffer = self.mount.pool().take(self.point.block);
        while tally.goes_on() {
            if site::scatter(self.next.load(Relaxed) ^ 0x5eed) % 10 < 7 {
                let (read, back) = self.file.read_at(self.offset(), buffer).await;
                tally.count(read?, None);
                buffer = back;
            } else {
                let written = self.write_block(StableHow::Unstable).await?;
                self.file.commit().await?;
                tally.count(written, None);
            }
        }
        Ok(())
    }

    /// Removes the files that the operations have left.
    ///
    /// # Errors
    /// The error of a removal.
    pub async fn remove_files(&self) -> Result<()> {
        let made = std::mem::take(&mut *self.made.lock());
        for name in made {
            self.mount.protocol().remove(&self.dir, name.as_bytes()).await?;
        }
        Ok(())
    }

    /// Makes a file with a block of data on stable storage, looks at it, and changes its mode. Returns the bytes of the block.
    async fn make_file(&self, name: &str) -> Result<usize> {
        let protocol = self.mount.protocol();
        let how = CreateHow::Guarded(SetAttr { mode: Some(0o600), ..SetAttr::default() });
        let made = protocol.create(&self.dir, name.as_bytes(), how).await?.handle;
        let file = File::new(self.mount.clone(), made, name.to_owned());
        file.write_at(0, self.data.clone()).await?;
        file.stat().await?;
        file.set_attr(SetAttr { mode: Some(0o644), ..SetAttr::default() }).await?;
        Ok(self.data.len())
    }

    /// Makes one object file from one source file, and removes it. Each procedure is an operation.
    async fn compile(&self, sources: &Handle, object: &str, tally: &mut Tally) -> Result<()> {
        let (protocol, turn) = (self.mount.protocol(), self.next.fetch_add(1, Relaxed));
        let source = site::source(turn);
        let found = protocol.lookup(sources, source.name.as_bytes()).await?.handle;
        tally.count(0, None);
        protocol.access(&found, ACCESS3_READ).await?;
        tally.count(0, None);
        tally.count(protocol.read(&found, 0, source.size as u32).await?.data.len(), None);
        let how = CreateHow::Unchecked(SetAttr { mode: Some(0o644), size: Some(0), ..SetAttr::default() });
        let made = protocol.create(sources, object.as_bytes(), how).await?.handle;
        tally.count(0, None);
        let data = self.data.slice(..source.size.min(self.data.len()));
        tally.count(protocol.write(&made, 0, data.into(), StableHow::Unstable).await?.count as usize, None);
        protocol.commit(&made).await?;
        tally.count(0, None);
        protocol.getattr(&made).await?;
        tally.count(0, None);
        protocol.remove(sources, object.as_bytes()).await?;
        tally.count(0, None);
        Ok(())
    }

    /// Returns the offset of the next block.
    fn offset(&self) -> u64 {
        let turn = self.next.fetch_add(1, Relaxed);
        site::block_at(turn, &self.point, self.blocks) * self.point.block as u64
    }
}

/// The maximum number of new files of a measurement, which ends when they are made. It bounds the space that the servers need.
pub const NEW_FILES: u64 = 8192;
/// The number of files that each thread makes before.
pub const FIRST_FILES: u64 = 64;

fn in_pool(mount: &Mount, data: &[u8]) -> Bytes {
    let mut buffer = mount.pool().take(data.len());
    buffer.copy_from_slice(data);
    buffer.freeze()
}
