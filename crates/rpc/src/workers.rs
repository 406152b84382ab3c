//! [`Workers`]: the threads that serve.
//!
//! Each is a single-threaded executor that owns its connections from set-up to end. A new connection goes
//! to the worker that has the fewest.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime,
    sync::{mpsc, watch},
    time::timeout,
};

use crate::{BoxFuture, Drain, Incoming, Listener, Server};

/// How [`Workers`] are set up.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Threads; one per core by default.
    pub threads: usize,
    /// Most threads of each worker for what blocks.
    pub blocking_threads_max: usize,
    /// Most connections of all workers; beyond, new ones are closed at once.
    pub connections_max: usize,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Self { threads, blocking_threads_max: 16, connections_max: 16384 }
    }
}

/// Threads that serve connections.
pub struct Workers {
    pool: Pool,
    threads: Vec<thread::JoinHandle<()>>,
    drain: watch::Sender<bool>,
    stop: watch::Sender<bool>,
}

#[derive(Clone)]
struct Pool {
    workers: Arc<[Worker]>,
    connections_max: usize,
    drain: watch::Receiver<bool>,
}

struct Worker {
    jobs: mpsc::UnboundedSender<Job>,
    load: Arc<AtomicUsize>,
}

type Job = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub fn new(options: WorkerOptions) -> io::Result<Self> {
        let (drain, drained) = watch::channel(false);
        let (stop, stopped) = watch::channel(false);
        let (mut workers, mut threads) = (Vec::new(), Vec::new());
        for number in 0..options.threads.max(1) {
            let (jobs, receiver) = mpsc::unbounded_channel();
            workers.push(Worker { jobs, load: Arc::default() });
            threads.push(start_thread(number, &options, receiver, stopped.clone())?);
        }
        let pool = Pool { workers: workers.into(), connections_max: options.connections_max, drain: drained };
        Ok(Self { pool, threads, drain, stop })
    }

    /// Accepts connections and serves `server` on them.
    pub fn listen(&self, server: Arc<Server>, listener: Box<dyn Listener>) {
        let pool = self.pool.clone();
        self.pool.workers[0].send(Box::new(move || Box::pin(pool.accept(server, listener))));
    }

    /// Runs something else on the worker that has the least to do, until it ends or the workers do.
    pub fn spawn(&self, job: impl FnOnce() -> BoxFuture<'static, ()> + Send + 'static) {
        self.pool.dispatch(Box::new(job));
    }

    /// Connections and other jobs now.
    pub fn load(&self) -> usize {
        self.pool.load()
    }

    /// Accepts no more, answers what has been called, and closes; what is not done by the deadline is dropped.
    /// Returns whether all was done.
    pub async fn drain(self, deadline: Duration) -> bool {
        self.drain.send_replace(true);
        let done = async {
            while self.pool.load() > 0 {
                tokio::time::sleep(DRAIN_POLL).await;
            }
        };
        timeout(deadline, done).await.is_ok()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Pool {
    async fn accept(self, server: Arc<Server>, mut listener: Box<dyn Listener>) {
        let address = listener.local_addr();
        let mut drain = Drain::when(self.drain.clone());
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = drain.wait() => return,
            };
            match accepted {
                Ok(incoming) if self.load() < self.connections_max => self.serve(server.clone(), incoming),
                Ok(_) => tracing::warn!(%address, max = self.connections_max, "too many connections: one was refused"),
                Err(error) => return tracing::error!(%address, %error, "no more connections are accepted"),
            }
        }
    }

    fn serve(&self, server: Arc<Server>, incoming: Incoming) {
        let drain = Drain::when(self.drain.clone());
        self.dispatch(Box::new(move || {
            Box::pin(async move {
                match timeout(SETUP_MAX, incoming()).await {
                    Ok(Ok(transport)) => {
                        let (peer, name) = (transport.peer(), transport.caps().name);
                        tracing::debug!(%peer, transport = name, "connected");
                        let why = server.serve(transport, drain).await;
                        tracing::debug!(%peer, transport = name, %why, "disconnected");
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "a connection was not set up"),
                    Err(_) => tracing::debug!("a connection took too long to be set up"),
                }
            })
        }));
    }

    fn dispatch(&self, job: Job) {
        let worker = self.workers.iter().min_by_key(|worker| worker.load.load(Relaxed)).expect("there is a worker");
        worker.load.fetch_add(1, Relaxed);
        let done = Done(worker.load.clone());
        worker.send(Box::new(move || {
            let job = job();
            Box::pin(async move {
                let _done = done;
                job.await;
            })
        }));
    }

    fn load(&self) -> usize {
        self.workers.iter().map(|worker| worker.load.load(Relaxed)).sum()
    }
}

impl Worker {
    fn send(&self, job: Job) {
        // It fails only when the workers have been stopped.
        let _ = self.jobs.send(job);
    }
}

/// Takes one from a worker's load, however its job ends.
struct Done(Arc<AtomicUsize>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn start_thread(
    number: usize,
    options: &WorkerOptions,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    mut stopped: watch::Receiver<bool>,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(options.blocking_threads_max.max(1))
        .thread_name(format!("worker-{number}-blocking"))
        .build()?;
    thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
        runtime.block_on(async {
            let mut stopped = std::pin::pin!(stopped.wait_for(|&now| now));
            loop {
                tokio::select! {
                    Some(job) = jobs.recv() => drop(tokio::spawn(job())),
                    _ = &mut stopped => return,
                    else => return,
                }
            }
        });
        // What blocks may take for ever; nobody waits for its result any more.
        runtime.shutdown_background();
    })
}

const SETUP_MAX: Duration = Duration::from_secs(30);
const DRAIN_POLL: Duration = Duration::from_millis(5);
