//! What is done to the server: threads, each with a runtime, a connection and a file of its own, and on each so many
//! tasks that do one operation after the other until time is up.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use client::{File, Mount, NfsUrl};
use hdrhistogram::Histogram;
use nfs::v3::{CreateHow3, NfsFh3, Sattr3, StableHow};
use tokio::task::JoinSet;

use super::{Args, Operation, mount, report, report::Sample};
use crate::{child::Server, exit::Failure, process, reach};

/// A load on one server by one transport.
pub struct Load {
    transport: String,
    url: NfsUrl,
    operation: Operation,
    block: usize,
    blocks: u64,
    in_flight: u32,
    threads: u32,
    random: bool,
    limit: Duration,
}

/// What a thread's tasks share.
struct Work {
    mount: Mount,
    dir: NfsFh3,
    file: File,
    operation: Operation,
    block: usize,
    blocks: u64,
    random: bool,
    /// The next block, or the seed of where it is.
    next: AtomicU64,
    /// What is written.
    data: Bytes,
    names: String,
}

/// What a thread did.
struct Tally {
    operations: u64,
    bytes: u64,
    latency: Histogram<u64>,
}

impl Load {
    /// As `args` say, at `url`.
    pub fn new(args: &Args, transport: &str, url: NfsUrl) -> Self {
        Self {
            transport: transport.to_owned(),
            url,
            operation: args.operation,
            block: args.block.0 as usize,
            blocks: args.file_size.0 / args.block.0,
            in_flight: args.in_flight,
            threads: args.threads,
            random: args.random,
            limit: args.limit(),
        }
    }

    /// The transport's name.
    pub fn transport(&self) -> &str {
        &self.transport
    }

    /// Makes the files, full of data that is not zeros.
    pub fn prepare(&self) -> Result<(), Failure> {
        self.each_file(async |mount, name| {
            let file = mount.create(&name, 0o644).await.map_err(|error| reach::failure(&self.url, &error))?;
            let mut writer = file.writer();
            let block = pattern(self.block);
            let wanted = match self.operation {
                Operation::Read | Operation::Write => self.blocks,
                Operation::Getattr | Operation::Create => 1,
            };
            for _ in 0..wanted {
                writer.write(block.clone()).await.map_err(|error| reach::failure(&self.url, &error))?;
            }
            writer.close().await.map_err(|error| reach::failure(&self.url, &error))
        })
    }

    /// Removes the files.
    pub fn clean_up(&self) -> Result<(), Failure> {
        self.each_file(async |mount, name| mount.remove(&name).await.map_err(|error| reach::failure(&self.url, &error)))
    }

    fn each_file(&self, act: impl AsyncFn(&Mount, String) -> Result<(), Failure>) -> Result<(), Failure> {
        runtime().block_on(async {
            let mount = mount(&self.url).await?;
            if self.block > mount.read_size().min(mount.write_size()) {
                let most = mount.read_size().min(mount.write_size());
                return Err(Failure::usage(format!("--block: {} takes at most {most} bytes at once", self.url)));
            }
            for thread in 0..self.threads {
                act(&mount, self.name(thread)).await?;
            }
            Ok(())
        })
    }

    /// Runs once.
    pub fn run(&self, server: Option<&Server>) -> Result<Sample, Failure> {
        // All are connected before the clock starts, and it is read before any of them tears down.
        let (start, stop) = (Barrier::new(self.threads as usize + 1), Barrier::new(self.threads as usize + 1));
        thread::scope(|scope| {
            let (start, stop) = (&start, &stop);
            let threads: Vec<_> =
                (0..self.threads).map(|thread| scope.spawn(move || self.thread(thread, start, stop))).collect();
            start.wait();
            let (began, client, served) = (Instant::now(), process::cpu_time(), server.map(Server::cpu_time));
            stop.wait();
            let elapsed = began.elapsed();
            let client_cpu = process::cpu_time().saturating_sub(client);
            let server_cpu = server.zip(served).map(|(server, before)| server.cpu_time().saturating_sub(before));
            let mut sample =
                Sample { operations: 0, bytes: 0, elapsed, client_cpu, server_cpu, latency: report::histogram() };
            for thread in threads {
                let tally = thread.join().expect("a thread of the load does not panic")?;
                sample.operations += tally.operations;
                sample.bytes += tally.bytes;
                sample.latency.add(&tally.latency).expect("their bounds are the same");
            }
            Ok(sample)
        })
    }

    /// One thread's part. It meets both barriers, whatever happens.
    fn thread(&self, thread: u32, start: &Barrier, stop: &Barrier) -> Result<Tally, Failure> {
        let runtime = runtime();
        let ready = runtime.block_on(self.connect(thread));
        start.wait();
        let done = match &ready {
            Ok(work) => runtime.block_on(self.drive(work)),
            Err(_) => Ok(Tally { operations: 0, bytes: 0, latency: report::histogram() }),
        };
        stop.wait();
        ready?;
        done
    }

    async fn connect(&self, thread: u32) -> Result<Arc<Work>, Failure> {
        let mount = mount(&self.url).await?;
        let file = mount.open(self.name(thread)).await.map_err(|error| reach::failure(&self.url, &error))?;
        let dir = mount.resolve("").await.map_err(|error| reach::failure(&self.url, &error))?.handle;
        Ok(Arc::new(Work {
            mount,
            dir,
            file,
            operation: self.operation,
            block: self.block,
            blocks: self.blocks,
            random: self.random,
            next: AtomicU64::new(0),
            data: pattern(self.block),
            names: format!("{}-new", self.name(thread)),
        }))
    }

    async fn drive(&self, work: &Arc<Work>) -> Result<Tally, Failure> {
        let end = Instant::now() + self.limit;
        let mut tasks = JoinSet::new();
        for task in 0..self.in_flight {
            tasks.spawn(work.clone().repeat(task, end));
        }
        let mut total = Tally { operations: 0, bytes: 0, latency: report::histogram() };
        while let Some(done) = tasks.join_next().await {
            let tally =
                done.expect("a task of the load does not panic").map_err(|error| reach::failure(&self.url, &error))?;
            total.operations += tally.operations;
            total.bytes += tally.bytes;
            total.latency.add(&tally.latency).expect("their bounds are the same");
        }
        if self.operation == Operation::Write {
            work.file.commit().await.map_err(|error| reach::failure(&self.url, &error))?;
        }
        Ok(total)
    }

    fn name(&self, thread: u32) -> String {
        format!("slipway-bench-{}-{}-{thread}", std::process::id(), self.transport)
    }
}

impl Work {
    /// One operation after the other until `end`.
    async fn repeat(self: Arc<Self>, task: u32, end: Instant) -> client::Result<Tally> {
        let mut tally = Tally { operations: 0, bytes: 0, latency: report::histogram() };
        let mut buffer = Some(self.mount.pool().take(self.block));
        let name = format!("{}-{task}", self.names);
        let mut now = Instant::now();
        while now < end {
            let bytes = match self.operation {
                Operation::Read => {
                    let given = buffer.take().expect("it comes back");
                    let (read, back) = self.file.read_at(self.offset(), given).await;
                    buffer = Some(back);
                    read?
                }
                Operation::Write => {
                    let data = self.data.clone();
                    let v3 = self.mount.v3();
                    v3.write(self.file.handle(), self.offset(), data, StableHow::Unstable).await?.count as usize
                }
                Operation::Getattr => {
                    self.file.stat().await?;
                    0
                }
                Operation::Create => {
                    let v3 = self.mount.v3();
                    let set = Sattr3 { mode: Some(0o644), ..Sattr3::default() };
                    v3.create(&self.dir, name.as_bytes(), CreateHow3::Guarded(set)).await?;
                    v3.remove(&self.dir, name.as_bytes()).await?;
                    0
                }
            };
            let after = Instant::now();
            tally.operations += 1;
            tally.bytes += bytes as u64;
            tally.latency.saturating_record((after - now).as_nanos() as u64);
            now = after;
        }
        Ok(tally)
    }

    /// Where the next block is.
    fn offset(&self) -> u64 {
        let turn = self.next.fetch_add(1, Relaxed);
        let block = if self.random { scatter(turn) } else { turn };
        block % self.blocks * self.block as u64
    }
}

/// Maps numbers to numbers that look random (the finalizer of SplitMix64).
fn scatter(turn: u64) -> u64 {
    let mut x = turn.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Bytes that are neither zeros nor all the same.
fn pattern(len: usize) -> Bytes {
    (0..len).map(|at| (scatter(at as u64 / 8) >> (at % 8 * 8)) as u8 | 1).collect::<Vec<u8>>().into()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had")
}
