//! [`Workers`]: the threads that serve.
//!
//! Each is a single-threaded executor that owns its connections from set-up to end. A new connection goes
//! to the worker that has the fewest.
//!
//! A service may act as its callers, by changing the credentials of the thread that it runs on. Connections that
//! bear no such change ([`Listener::keeps_credentials`]) have workers of their own, which keep theirs; so the others lose
//! nothing by them.

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

use tokio::{
    runtime,
    sync::{mpsc, watch},
    time::timeout,
};

use crate::{
    BoxFuture, ConnectionLimits, Drain, Hosts, Incoming, Listener, Server, Transport,
    connections::{Connections, Place},
    server::Observers,
    turns,
};

/// How [`Workers`] are set up.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Threads; one per core by default.
    pub threads: usize,
    /// Most threads of each worker for what blocks.
    pub blocking_threads_max: usize,
    /// Bounds of the connections of all workers.
    pub connections: ConnectionLimits,
    /// What each worker for connections that bear no change of credentials runs first, to have services keep them. Without it
    /// there are no such workers: no service here changes any. There are as many as `threads`, which do nothing
    /// until there are such connections.
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
    drain: watch::Sender<bool>,
    stop: watch::Sender<bool>,
}

#[derive(Clone)]
struct Pool {
    workers: Arc<[Worker]>,
    /// Those who keep their credentials; none if all do.
    keepers: Arc<[Worker]>,
    connections: Connections,
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
        let mut threads = Vec::new();
        let mut start = |name: &str, first: Option<fn()>| -> io::Result<Arc<[Worker]>> {
            let numbers = 0..options.threads.max(1);
            let worker = |number| {
                let (jobs, receiver) = mpsc::unbounded_channel();
                threads.push(start_thread(format!("{name}-{number}"), first, &options, receiver, stopped.clone())?);
                Ok(Worker { jobs, load: Arc::default() })
            };
            numbers.map(worker).collect()
        };
        // Now: threads have the credentials of the one that starts them, which must be as it was when listeners were made.
        let workers = start("worker", None)?;
        let keepers =
            options.keep_credentials.map_or_else(|| Ok(Arc::default()), |keep| start("keeper", Some(keep)))?;
        let connections = Connections::new(options.connections);
        let pool = Pool { workers, keepers, connections, drain: drained };
        Ok(Self { pool, threads, drain, stop })
    }

    /// Accepts connections and serves `server` on them.
    pub fn listen(&self, server: Arc<Server>, mut listener: Box<dyn Listener>) {
        if let Some(keeping) = listener.keeping_part() {
            self.listen(server.clone(), keeping);
        }
        let pool = self.pool.clone();
        let worker = &self.pool.among(listener.keeps_credentials())[0];
        worker.send(Box::new(move || Box::pin(pool.accept(server, listener))));
    }

    /// Runs something else on the worker that has the least to do, until it ends or the workers do.
    pub fn spawn(&self, job: impl FnOnce() -> BoxFuture<'static, ()> + Send + 'static) {
        self.pool.dispatch(false, Box::new(job));
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
        let (address, keeping) = (listener.local_addr(), listener.keeps_credentials());
        let mut drain = Drain::when(self.drain.clone());
        loop {
            let accepted = tokio::select! {
                biased;
                () = drain.wait() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(incoming) => self.admit(&server, keeping, incoming),
                Err(error) => return tracing::error!(%address, %error, "no more connections are accepted"),
            }
        }
    }

    /// Serves a connection if there is a place for it.
    fn admit(&self, server: &Arc<Server>, keeping: bool, incoming: Incoming) {
        let place = match incoming.peer() {
            None => None,
            Some(peer) => match self.connections.place(peer, server.hosts().admit(peer.address)) {
                None => return,
                place => place,
            },
        };
        self.serve(server.clone(), keeping, incoming, place);
    }

    fn serve(&self, server: Arc<Server>, keeping: bool, incoming: Incoming, mut place: Option<Place>) {
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
        self.dispatch(keeping, serve);
    }

    /// The workers for connections that bear a change of credentials, or not.
    fn among(&self, keeping: bool) -> &[Worker] {
        if keeping && !self.keepers.is_empty() { &self.keepers } else { &self.workers }
    }

    fn dispatch(&self, keeping: bool, job: Job) {
        let worker =
            self.among(keeping).iter().min_by_key(|worker| worker.load.load(Relaxed)).expect("there is a worker");
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
        self.workers.iter().chain(&*self.keepers).map(|worker| worker.load.load(Relaxed)).sum()
    }
}

/// Sets a connection up, unless that takes too long or it has to give way.
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
        Ok(Err(error)) => tracing::debug!(%error, "a connection was not set up"),
        Err(_) => tracing::debug!("a connection took too long to be set up"),
    }
    None
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
    name: String,
    first: Option<fn()>,
    options: &WorkerOptions,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    mut stopped: watch::Receiver<bool>,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(options.blocking_threads_max.max(1))
        .thread_name(format!("{name}-blocking"))
        .build()?;
    thread::Builder::new().name(name).spawn(move || {
        first.inspect(|first| first());
        runtime.block_on(async {
            tokio::spawn(turns::run_rounds());
            let mut stopped = std::pin::pin!(stopped.wait_for(|&now| now));
            loop {
                tokio::select! {
                    biased;
                    _ = &mut stopped => return,
                    Some(job) = jobs.recv() => drop(tokio::spawn(job())),
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
