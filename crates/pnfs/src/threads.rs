//! [`Threads`]: threads that wait for the inner file system and the database, so that a future does not.

use std::{collections::VecDeque, sync::Arc, thread, time::Duration};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use vfs::{Result, VfsError};

/// The threads. They are started when they are needed, and end when they have been idle for a while.
#[derive(Clone)]
pub struct Threads(Option<Arc<Shared>>);

struct Shared {
    jobs: Mutex<Jobs>,
    added: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Box<dyn FnOnce() + Send>>,
    threads: usize,
    idle: usize,
}

impl Threads {
    /// Creates threads, or none if `blocks` is false: then jobs run where their futures are polled.
    pub fn new(blocks: bool) -> Self {
        Self(blocks.then(|| Arc::new(Shared { jobs: Mutex::default(), added: Condvar::new() })))
    }

    /// Runs a job.
    ///
    /// # Errors
    /// Returns the errors of the job, and `Io` if it panicked.
    pub async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let Some(shared) = &self.0 else { return job() };
        let (sender, done) = oneshot::channel();
        shared.add(Box::new(move || drop(sender.send(job()))));
        done.await.unwrap_or(Err(VfsError::Io))
    }
}

impl Shared {
    fn add(self: &Arc<Self>, job: Box<dyn FnOnce() + Send>) {
        let mut jobs = self.jobs.lock();
        jobs.waiting.push_back(job);
        if jobs.idle >= jobs.waiting.len() || jobs.threads == THREADS_MAX {
            drop(jobs);
            self.added.notify_one();
            return;
        }
        let shared = self.clone();
        match thread::Builder::new().name("pnfs".to_owned()).spawn(move || shared.work()) {
            Ok(_) => jobs.threads += 1,
            Err(error) if jobs.threads == 0 => {
                tracing::error!(%error, "cannot start a thread");
                // Dropping the job answers its caller.
                jobs.waiting.pop_back();
            }
            Err(_) => {}
        }
    }

    fn work(&self) {
        let mut jobs = self.jobs.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                drop(jobs);
                // The job's panic has been printed, and dropping its sender answers the caller.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                jobs = self.jobs.lock();
                continue;
            }
            jobs.idle += 1;
            let timed_out = self.added.wait_for(&mut jobs, IDLE_MAX).timed_out();
            jobs.idle -= 1;
            if timed_out && jobs.waiting.is_empty() {
                jobs.threads -= 1;
                return;
            }
        }
    }
}

const THREADS_MAX: usize = 16;
const IDLE_MAX: Duration = Duration::from_secs(10);
