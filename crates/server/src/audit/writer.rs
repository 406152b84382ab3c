//! [`Writer`]: the thread that writes the audit log.
//!
//! A write that fails is retried, or its record is dropped (`on_full`). A reload opens the file again behind the records that
//! were made before it, but at once if a write fails: so a new file on another disk ends a failure.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use super::{Item, OnFull, Queue, file::Log, record};

/// Opens the file. It is called again for each reload.
pub(super) type Open = Box<dyn FnMut() -> io::Result<Log> + Send>;

/// The thread that writes.
pub(super) struct Writer {
    log: Log,
    open: Open,
    /// The path of the file, for messages.
    path: PathBuf,
    queue: Arc<Queue>,
    on_full: OnFull,
    /// `true` since a write has failed, until the next one succeeds.
    is_failing: bool,
    /// The number of reloads for which the file was opened again, or could not be.
    reloads: u64,
    /// `true` if the file could not be opened for the last reload.
    is_old: bool,
    /// The number of dropped records that are in the file.
    reported: u64,
    /// The time at which dropped records were last reported.
    reported_at: Instant,
}

impl Writer {
    /// Opens the file.
    ///
    /// # Errors
    /// Those of `open`.
    pub(super) fn new(mut open: Open, path: PathBuf, queue: Arc<Queue>, on_full: OnFull) -> io::Result<Self> {
        Ok(Self {
            log: open()?,
            open,
            path,
            queue,
            on_full,
            is_failing: false,
            reloads: 0,
            is_old: false,
            reported: 0,
            reported_at: Instant::now(),
        })
    }

    /// Writes until the queue is closed and empty.
    pub(super) fn run(mut self, items: &Receiver<Item>) {
        loop {
            match items.recv_timeout(UPKEEP_INTERVAL) {
                Ok(Item::Line(line)) => self.write_queued(&line, Instant::now()),
                Ok(Item::Reopen(reload)) => self.reload(reload),
                Err(RecvTimeoutError::Timeout) => self.upkeep(Instant::now()),
                Err(RecvTimeoutError::Disconnected) => return self.upkeep(Instant::now()),
            }
        }
    }

    /// Writes a line of the queue. Does the upkeep before it if that is due, because a queue that is full all the time never
    /// lets the writer wait.
    fn write_queued(&mut self, line: &str, now: Instant) {
        if now.saturating_duration_since(self.reported_at) >= UPKEEP_INTERVAL {
            self.upkeep(now);
        }
        self.write(line.as_bytes());
        self.queue.bytes.fetch_sub(line.len(), Relaxed);
        self.queue.lines.fetch_sub(1, Relaxed);
    }

    /// Writes a line. If that fails, drops it, or retries if operations are delayed meanwhile.
    fn write(&mut self, line: &[u8]) {
        loop {
            let Err(error) = self.log.append(line) else {
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!(file = %self.path.display(), "the audit log can be written again");
                }
                return;
            };
            if !std::mem::replace(&mut self.is_failing, true) {
                tracing::error!(file = %self.path.display(), %error, "the audit log cannot be written");
            }
            let reload = self.queue.reloads.load(Relaxed);
            if self.reloads < reload && self.reopen(reload) {
                continue;
            }
            if self.on_full == OnFull::Drop || self.queue.is_closing.load(Relaxed) {
                self.queue.dropped.fetch_add(1, Relaxed);
                return;
            }
            // A reload and the end of the server wake the thread.
            thread::park_timeout(RETRY_PAUSE);
            if self.is_old {
                self.reopen(self.reloads);
            }
        }
    }

    /// Retries what has failed: opens the file again, and records how many records were dropped since the last report.
    fn upkeep(&mut self, now: Instant) {
        self.reported_at = now;
        if self.is_old {
            self.reopen(self.reloads);
        }
        let dropped = self.queue.dropped.load(Relaxed);
        if dropped > self.reported && self.log.append(record::dropped(dropped - self.reported).as_bytes()).is_ok() {
            tracing::warn!(records = dropped - self.reported, "records of the audit log were dropped");
            self.reported = dropped;
        }
    }

    /// Opens the file again, unless a failed write has already done so for this reload.
    fn reload(&mut self, reload: u64) {
        if self.reloads < reload {
            self.reopen(reload);
        }
    }

    /// Opens the file again, and reports whether that succeeded. If not, records go to the old file, and the file is opened
    /// later.
    fn reopen(&mut self, reload: u64) -> bool {
        self.reloads = reload;
        match (self.open)() {
            Ok(log) => {
                self.log = log;
                if std::mem::take(&mut self.is_old) {
                    tracing::info!(file = %self.path.display(), "the audit log was opened again");
                }
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_old, true) {
                    tracing::error!(%error, "the audit log stays in its old file until it can be opened");
                }
                false
            }
        }
    }
}

/// The time between two reports of dropped records, and between two attempts to open the file.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, path::Path, sync::mpsc};

    use super::{
        super::{Audit, AuditOptions},
        *,
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    fn full() -> Log {
        Log::of(OpenOptions::new().write(true).open("/dev/full").unwrap())
    }

    fn writer(path: &Path, queue: &Arc<Queue>) -> Writer {
        let file = path.to_owned();
        Writer::new(Box::new(move || Log::open(&file)), path.to_owned(), queue.clone(), OnFull::Drop).unwrap()
    }

    #[test]
    fn dropped_records_are_reported_between_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let queue = Arc::new(Queue::default());
        let mut writer = writer(&path, &queue);
        let reported_at = writer.reported_at;
        queue.bytes.store(4 * 5, Relaxed);
        queue.lines.store(4, Relaxed);
        queue.dropped.store(2, Relaxed);
        for seconds in [0, 1, 1, 2] {
            writer.write_queued("line\n", reported_at + seconds * UPKEEP_INTERVAL);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let kinds: Vec<_> =
            text.lines().map(|line| if line.contains("\"dropped\":2") { "report" } else { line }).collect();
        assert_eq!(kinds, ["line", "report", "line", "line", "line"]);
        assert_eq!(queue.bytes.load(Relaxed), 0);
    }

    #[test]
    fn a_reload_ends_a_failure_to_write() {
        for on_full in [OnFull::Drop, OnFull::Delay] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("audit");
            let options = AuditOptions { file: path.clone(), reads: false, queue: 1 << 20, on_full };
            let (tried, attempts) = mpsc::channel();
            let file = path.clone();
            let mut opens = 0;
            let open = move || {
                opens += 1;
                tried.send(()).unwrap();
                if opens == 1 { Ok(full()) } else { Log::open(&file) }
            };
            let audit = Audit::start(options, Box::new(open)).unwrap();
            attempts.recv().unwrap();
            for number in 0..10 {
                audit.push(format!("line {number}"), true);
            }
            audit.reopen();
            attempts.recv_timeout(PATIENCE).expect("a reload must open the file while writes fail");
            audit.push("line 10".to_owned(), true);
            audit.close();
            assert!(attempts.try_recv().is_err(), "a reload must open the file once");
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<_> = text.lines().filter(|line| line.starts_with("line")).collect();
            assert_eq!(lines.len() as u64 + audit.dropped(), 11);
            assert_eq!(lines.last(), Some(&"line 10"));
            if on_full == OnFull::Delay {
                assert_eq!(lines.len(), 11, "nothing must be dropped");
            }
        }
    }

    #[test]
    fn a_reload_that_fails_is_retried() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("audit"), dir.path().join("audit.1"));
        let mut writer = writer(&path, &Arc::default());
        std::fs::rename(&path, &old).unwrap();
        std::fs::create_dir(&path).unwrap();
        writer.reload(1);
        let at = writer.reported_at;
        writer.write_queued("one\n", at);
        std::fs::remove_dir(&path).unwrap();
        writer.write_queued("two\n", at);
        writer.write_queued("three\n", at + UPKEEP_INTERVAL);
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "one\ntwo\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
    }

    #[test]
    fn a_reload_of_the_same_file_does_not_continue_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let mut writer = writer(&path, &Arc::default());
        std::fs::write(&path, "torn").unwrap();
        writer.reload(1);
        writer.write(b"line\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "torn\nline\n");
    }

    #[test]
    fn records_after_the_end_count_as_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("audit");
        let options = AuditOptions { file: file.clone(), reads: false, queue: 1 << 20, on_full: OnFull::Drop };
        let audit = Audit::open(options).unwrap();
        // Many threads record while the log is closed. Each record is in the file or counted.
        let pushed: u64 = thread::scope(|scope| {
            let (started, starts) = mpsc::channel();
            let audit = &audit;
            let push = |started: mpsc::Sender<()>| {
                move || {
                    let mut pushed = 0;
                    while !audit.queue.is_closing.load(Relaxed) || pushed < 1000 {
                        audit.push("line".to_owned(), true);
                        pushed += 1;
                        let _ = started.send(());
                    }
                    pushed
                }
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(push(started.clone()))).collect();
            starts.recv().unwrap();
            audit.close();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        audit.push("late".to_owned(), true);
        let written = std::fs::read_to_string(&file).unwrap().lines().filter(|line| *line == "line").count();
        assert_eq!(written as u64 + audit.dropped(), pushed + 1);
    }
}
