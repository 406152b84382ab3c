//! [`Workers`]: the threads that serve connections.
//!
//! Each worker is a single-threaded executor that owns its connections from set-up to close. A new connection goes to
//! the worker with the fewest connections.
//!
//! A service can act on behalf of its callers by changing the credentials of the thread that it runs on. Some
//! connections do not work on such a thread ([`Listener::keeps_credentials`]). They have workers of their own, whose
//! credentials never change, so that the other connections are not restricted.

use std::{
    future::poll_fn,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tokio::{runtime, sync::mpsc, time::timeout};

use crate::{
    BoxFuture, ConnectionLimits, Drain, Hosts, Incoming, Listener, Server, Signal, Transport,
    connections::{Connections, Place},
    server::Observers,
    turns,
};

/// Settings of [`Workers`].
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The number of threads; by default one for each core.
    pub threads: usize,
    /// Maximum number of threads of each worker for blocking work.
    pub blocking_threads_max: usize,
    /// Limits on the connections of all workers together.
    pub connections: ConnectionLimits,
    /// A function that each worker for connections with fixed credentials ([`Listener::keeps_credentials`]) runs first.
    /// It makes services on that thread leave the credentials unchanged. There are `threads` such workers, which are
    /// idle until there are such connections. With `None` there are none: no service changes credentials.
    pub keep_credentials: Option<fn()>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Self { threads, blocking_threads_max: 16, connections: ConnectionLimits::default(), keep_credentials: None }
    }
}

/// Threads that serve connections.
pub struct Workers {
    pool: Pool,
    threads: Vec<thread::JoinHandle<()>>,
    drain: Signal,
    stop: Signal,
}

#[derive(Clone)]
struct Pool {
    workers: Arc<[Worker]>,
    /// Workers whose credentials never change. Empty if no worker changes its credentials.
    fixed_credentials: Arc<[Worker]>,
    connections: Connections,
    drain: Signal,
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
    /// The system cannot start another thread.
    pub fn new(options: WorkerOptions) -> io::Result<Self> {
        let (drain, stop) = (Signal::default(), Signal::default());
        let mut threads = Vec::new();
        let mut start = |name: &str, first: Option<fn()>| -> io::Result<Arc<[Worker]>> {
            let numbers = 0..options.threads.max(1);
            let worker = |number| {
                let (jobs, receiver) = mpsc::unbounded_channel();
                threads.push(start_thread(format!("{name}-{number}"), first, &options, receiver, stop.clone())?);
                Ok(Worker { jobs, load: Arc::default() })
            };
            numbers.map(worker).collect()
        };
        // The threads are started here because a thread inherits the credentials of the thread that starts it, and
        // these must be the credentials with which the listeners were made.
        let workers = start("worker", None)?;
        let fixed_credentials =
            options.keep_credentials.map_or_else(|| Ok(Arc::default()), |keep| start("fixed-worker", Some(keep)))?;
        let connections = Connections::new(options.connections);
        let pool = Pool { workers, fixed_credentials, connections, drain: drain.clone() };
        Ok(Self { pool, threads, drain, stop })
    }

    /// Accepts connections and serves `server` on them.
    pub fn listen(&self, server: Arc<Server>, mut listener: Box<dyn Listener>) {
        if let Some(fixed) = listener.take_fixed_credentials_part() {
            self.listen(server.clone(), fixed);
        }
        let pool = self.pool.clone();
        let worker = &self.pool.among(listener.keeps_credentials())[0];
        worker.send(Box::new(move || Box::pin(pool.accept(server, listener))));
    }

    /// Runs another job on the worker with the least load, until the job ends or the workers stop.
    pub fn spawn(&self, job: impl FnOnce() -> BoxFuture<'static, ()> + Send + 'static) {
        self.pool.dispatch(false, Box::new(job));
    }

    /// Returns the number of current connections and other jobs.
    pub fn load(&self) -> usize {
        self.pool.load()
    }

    /// Stops accepting connections, answers the calls in progress, and closes the connections. Calls that are not
    /// answered before the deadline are dropped. Returns `true` if all calls were answered.
    pub async fn drain(self, deadline: Duration) -> bool {
        self.drain.send();
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
        self.stop.send();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Pool {
    async fn accept(self, server: Arc<Server>, mut listener: Box<dyn Listener>) {
        let (address, fixed) = (listener.local_addr(), listener.keeps_credentials());
        let drain = Drain::when(self.drain.clone());
        loop {
            let accepted = tokio::select! {
                biased;
                () = drain.wait() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(incoming) => {
                    self.admit(&server, fixed, incoming);
                    // A burst of connections must not delay the calls of others.
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    return tracing::error!(%address, %error, "the listener failed; it accepts no more connections");
                }
            }
        }
    }

    /// Serves a connection if the connection limits permit it.
    fn admit(&self, server: &Arc<Server>, fixed: bool, incoming: Incoming) {
        let place = match incoming.peer() {
            None => None,
            Some(peer) => match self.connections.place(peer, server.hosts().admit(peer.address)) {
                None => return,
                place => place,
            },
        };
        self.serve(server.clone(), fixed, incoming, place);
    }

    fn serve(&self, server: Arc<Server>, fixed: bool, incoming: Incoming, mut place: Option<Place>) {
        let drain = Drain::when(self.drain.clone());
        let serve: Job = Box::new(move || {
            Box::pin(async move {
                let Some(transport) = set_up(incoming, server.hosts(), place.as_mut()).await else { return };
                let (peer, name) = (transport.peer(), transport.caps().name);
                tracing::debug!(%peer, transport = name, "connected");
                let why = server.serve_with(transport, drain, Observers { tell: None, place }).await;
                tracing::debug!(%peer, transport = name, %why, "disconnected");
            })
        });
        self.dispatch(fixed, serve);
    }

    /// Returns the workers for connections with fixed credentials, or for all others.
    fn among(&self, fixed: bool) -> &[Worker] {
        if fixed && !self.fixed_credentials.is_empty() { &self.fixed_credentials } else { &self.workers }
    }

    fn dispatch(&self, fixed: bool, job: Job) {
        let worker = self
            .among(fixed)
            .iter()
            .min_by_key(|worker| worker.load.load(Relaxed))
            .expect("there must be at least one worker");
        worker.load.fetch_add(1, Relaxed);
        let guard = LoadGuard(worker.load.clone());
        worker.send(Box::new(move || {
            let job = job();
            Box::pin(async move {
                let _guard = guard;
                job.await;
            })
        }));
    }

    fn load(&self) -> usize {
        self.workers.iter().chain(&*self.fixed_credentials).map(|worker| worker.load.load(Relaxed)).sum()
    }
}

/// Sets a connection up. Returns `None` if that fails, takes too long, or the connection is evicted meanwhile.
async fn set_up(incoming: Incoming, hosts: &Hosts, place: Option<&mut Place>) -> Option<Arc<dyn Transport>> {
    let evicted = async {
        match place {
            Some(place) => drop(poll_fn(|cx| place.poll_closed(cx)).await),
            None => std::future::pending().await,
        }
    };
    let set_up = tokio::select! {
        biased;
        set_up = timeout(SETUP_MAX, incoming.set_up(hosts.clone())) => set_up,
        () = evicted => return None,
    };
    match set_up {
        Ok(Ok(transport)) => return Some(transport),
        Ok(Err(error)) => tracing::debug!(%error, "a connection could not be set up"),
        Err(_) => tracing::debug!("the setup of a connection timed out"),
    }
    None
}

impl Worker {
    fn send(&self, job: Job) {
        // Sending fails only if the workers have been stopped.
        let _ = self.jobs.send(job);
    }
}

/// Decrements a worker's load when it is dropped, however the job ends.
struct LoadGuard(Arc<AtomicUsize>);

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn start_thread(
    name: String,
    first: Option<fn()>,
    options: &WorkerOptions,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    stopped: Signal,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .max_blocking_threads(options.blocking_threads_max.max(1))
        .thread_name(format!("{name}-blocking"))
        .build()?;
    thread::Builder::new().name(name).spawn(move || {
        first.inspect(|first| first());
        runtime.block_on(async {
            tokio::spawn(turns::run_rounds());
            let mut stopped = std::pin::pin!(stopped.wait());
            loop {
                tokio::select! {
                    biased;
                    () = &mut stopped => return,
                    Some(job) = jobs.recv() => drop(tokio::spawn(job())),
                    else => return,
                }
            }
        });
        // Blocking work can take forever, and nothing waits for its result any more.
        runtime.shutdown_background();
    })
}

const SETUP_MAX: Duration = Duration::from_secs(30);
/// Turns of tasks after which a busy worker polls for events. A turn can last as long as a peer's share of a round, so a large number
/// delays the calls of other peers.
const EVENT_INTERVAL: u32 = 8;
const DRAIN_POLL: Duration = Duration::from_millis(5);
