//! [`Audit`]: the audit log, one JSON object for each line (docs/security.md).
//!
//! Calls format their records and put them in a queue of bounded length. A thread writes them, so that no call waits for the
//! file. If the queue is full, either records are dropped and counted, or operations that must be recorded are not executed
//! and their clients retry them (`on_full`). In that mode, no operation is executed without a record, except that a crash of
//! the host loses what the operating system has not stored.
//!
//! Callers that no export admits can use only an eighth of the queue. Beyond that, their records are dropped and counted in
//! both modes; their operations have no effect.

pub(crate) mod record;

use std::{
    fs::{File, OpenOptions},
    hash::{BuildHasher, Hash},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use entropy::{HashMap, RandomState};
use parking_lot::Mutex;
use serde::Deserialize;

/// The configuration of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditOptions {
    /// The file. Lines are appended.
    pub file: PathBuf,
    /// `true` if files that are opened for reading are recorded too.
    pub reads: bool,
    /// The maximum bytes of records that wait for the file.
    pub queue: usize,
    /// The reaction to a full queue.
    pub on_full: OnFull,
}

/// The reaction to a full queue of the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// Drop records, and count them.
    #[default]
    Drop,
    /// Let clients retry the operations that must be recorded.
    Delay,
}

/// An audit log that is open.
pub(crate) struct Audit {
    options: AuditOptions,
    queue: Arc<Queue>,
    sender: Sender<Item>,
    writer: Mutex<Option<WriterThread>>,
    /// The latest uses of files without an open, with their times.
    uses: Mutex<HashMap<u64, Instant>>,
}

/// The thread that writes. It never sends on `ended`, and drops the other end when it ends.
struct WriterThread {
    thread: JoinHandle<()>,
    ended: Receiver<()>,
}

/// The state that calls share with the writer.
#[derive(Default)]
struct Queue {
    /// The bytes in the queue.
    bytes: AtomicUsize,
    /// The records in the queue, and the one that is being written.
    lines: AtomicU64,
    dropped: AtomicU64,
    is_closing: AtomicBool,
}

enum Item {
    Line(String),
    Reopen,
    Close,
}

/// The kind of an operation, which decides whether it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A change of the file system, an OPEN for writing, or a mount.
    Change,
    /// An OPEN for reading.
    Read,
    /// A READ without an open.
    ReadData,
    /// A WRITE without an open.
    WriteData,
}

impl Audit {
    /// Opens the file, and starts the thread that writes.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub(crate) fn open(options: AuditOptions) -> io::Result<Self> {
        let file = open(&options.file)?;
        let (sender, receiver) = mpsc::channel();
        let queue = Arc::new(Queue::default());
        let writer = Writer {
            file,
            path: options.file.clone(),
            queue: queue.clone(),
            on_full: options.on_full,
            is_torn: false,
            reported: 0,
            reported_at: Instant::now(),
        };
        let (ending, ended) = mpsc::channel();
        let run = move || {
            let _ending: Sender<()> = ending;
            writer.run(&receiver);
        };
        let thread = thread::Builder::new().name("audit".to_owned()).spawn(run)?;
        let (writer, uses) = (Mutex::new(Some(WriterThread { thread, ended })), Mutex::default());
        Ok(Self { options, queue, sender, writer, uses })
    }

    /// Returns `true` if operations of this kind are recorded.
    pub(crate) fn records(&self, kind: Kind) -> bool {
        matches!(kind, Kind::Change | Kind::WriteData) || self.options.reads
    }

    /// Returns `true` if an operation that must be recorded must not be executed now.
    pub(crate) fn delays(&self) -> bool {
        self.options.on_full == OnFull::Delay && self.queue.bytes.load(Relaxed) >= self.options.queue
    }

    /// Reports whether a file was not used in this way for a while, for operations that are recorded once and not each time.
    pub(crate) fn is_first_use(&self, of: &impl Hash, now: Instant) -> bool {
        let mut uses = self.uses.lock();
        let use_of = RandomState::of_process().hash_one(of);
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < USE_TIME;
        if uses.get(&use_of).is_some_and(is_recent) {
            return false;
        }
        if uses.len() >= USES_MAX {
            uses.retain(|_, at| is_recent(at));
        }
        if uses.len() >= USES_MAX {
            uses.clear();
        }
        uses.insert(use_of, now);
        true
    }

    /// Appends a line to the queue. It is dropped if the queue is full, unless operations are delayed then: such a queue
    /// exceeds its maximum by the calls that were in progress. If the caller is not `trusted`, the line is dropped if it
    /// would not fit into the first part of the queue ([`UNTRUSTED_PART`]): hosts that may use nothing must neither
    /// displace the records of others nor delay their operations.
    pub(crate) fn push(&self, mut line: String, trusted: bool) {
        line.push('\n');
        let bytes = line.len();
        let queued = self.queue.bytes.fetch_add(bytes, Relaxed);
        let max = match (trusted, self.options.on_full) {
            (false, _) => self.options.queue / UNTRUSTED_PART,
            (true, OnFull::Drop) => self.options.queue,
            (true, OnFull::Delay) => usize::MAX,
        };
        self.queue.lines.fetch_add(1, Relaxed);
        let is_full = queued.saturating_add(bytes) > max;
        if is_full || self.sender.send(Item::Line(line)).is_err() {
            self.queue.bytes.fetch_sub(bytes, Relaxed);
            self.queue.lines.fetch_sub(1, Relaxed);
            self.queue.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Opens the file again behind the records in the queue, after another program has renamed it.
    pub(crate) fn reopen(&self) {
        let _ = self.sender.send(Item::Reopen);
    }

    /// Writes the records in the queue and ends the writer. Records that cannot be written, or not in [`CLOSE_MAX`], are
    /// lost and count as dropped.
    pub(crate) fn close(&self) {
        self.close_within(CLOSE_MAX);
    }

    fn close_within(&self, time: Duration) {
        self.queue.is_closing.store(true, Relaxed);
        let _ = self.sender.send(Item::Close);
        let Some(writer) = self.writer.lock().take() else { return };
        match writer.ended.recv_timeout(time) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => _ = writer.thread.join(),
            // A write can hang, such as to a pipe or to a remote file system. It must not keep the server from ending.
            Err(RecvTimeoutError::Timeout) => {
                let records = self.queue.lines.load(Relaxed);
                self.queue.dropped.fetch_add(records, Relaxed);
                tracing::error!(file = %self.options.file.display(), records, "the audit log was closed during a write that hangs");
            }
        }
    }

    /// Returns the number of records that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.queue.dropped.load(Relaxed)
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread that writes.
struct Writer {
    file: File,
    path: PathBuf,
    queue: Arc<Queue>,
    on_full: OnFull,
    /// `true` if the last write has failed, and a part of a line may be in the file.
    is_torn: bool,
    /// The number of dropped records that are in the file.
    reported: u64,
    /// The time of the last report.
    reported_at: Instant,
}

impl Writer {
    fn run(mut self, items: &Receiver<Item>) {
        loop {
            match items.recv_timeout(REPORT_INTERVAL) {
                Ok(Item::Line(line)) => self.write_queued(&line, Instant::now()),
                Ok(Item::Reopen) => self.reopen(),
                Err(RecvTimeoutError::Timeout) => self.report(Instant::now()),
                Ok(Item::Close) | Err(RecvTimeoutError::Disconnected) => return self.report(Instant::now()),
            }
        }
    }

    /// Writes a line of the queue. Reports dropped records before it if the last report is old, because a queue that is
    /// full all the time never lets the writer wait.
    fn write_queued(&mut self, line: &str, now: Instant) {
        if now.saturating_duration_since(self.reported_at) >= REPORT_INTERVAL {
            self.report(now);
        }
        self.write(line.as_bytes());
        self.queue.bytes.fetch_sub(line.len(), Relaxed);
        self.queue.lines.fetch_sub(1, Relaxed);
    }

    /// Writes a line. If that fails, drops it, or retries if operations are delayed meanwhile.
    fn write(&mut self, line: &[u8]) {
        let mut failed = false;
        loop {
            let Err(error) = self.try_write(line) else { return };
            if !failed {
                tracing::error!(file = %self.path.display(), %error, "the audit log cannot be written");
            }
            failed = true;
            if self.on_full == OnFull::Drop || self.queue.is_closing.load(Relaxed) {
                self.queue.dropped.fetch_add(1, Relaxed);
                return;
            }
            thread::sleep(RETRY_PAUSE);
        }
    }

    fn try_write(&mut self, line: &[u8]) -> io::Result<()> {
        if std::mem::replace(&mut self.is_torn, true) {
            self.file.write_all(b"\n")?;
        }
        self.file.write_all(line)?;
        self.is_torn = false;
        Ok(())
    }

    /// Records how many records were dropped since the last report.
    fn report(&mut self, now: Instant) {
        self.reported_at = now;
        let dropped = self.queue.dropped.load(Relaxed);
        if dropped > self.reported && self.try_write(record::dropped(dropped - self.reported).as_bytes()).is_ok() {
            tracing::warn!(records = dropped - self.reported, "records of the audit log were dropped");
            self.reported = dropped;
        }
    }

    fn reopen(&mut self) {
        match open(&self.path) {
            Ok(file) => (self.file, self.is_torn) = (file, false),
            Err(error) => tracing::error!(%error, "the audit log stays in its old file"),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    file.map_err(|error| io::Error::new(error.kind(), format!("the audit log {}: {error}", path.display())))
}

/// The time after which the use of a file without an open is recorded again.
const USE_TIME: Duration = Duration::from_secs(60);
const USES_MAX: usize = 1 << 14;
/// The part of the queue that records of callers which no export admits can use: an eighth.
const UNTRUSTED_PART: usize = 8;
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The time for which the end of the server waits for the records in the queue.
const CLOSE_MAX: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn options(file: PathBuf, queue: usize, on_full: OnFull) -> AuditOptions {
        AuditOptions { file, reads: false, queue, on_full }
    }

    #[test]
    fn lines_are_appended_and_the_file_is_reopened_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("audit"), dir.path().join("audit.1"));
        std::fs::write(&path, "earlier\n").unwrap();
        let audit = Audit::open(options(path.clone(), 1 << 20, OnFull::Drop)).unwrap();
        audit.push("one".to_owned(), true);
        // The writer can be slow, so `one` may be written after the file was renamed, but before it is reopened.
        std::fs::rename(&path, &old).unwrap();
        audit.reopen();
        audit.push("two".to_owned(), true);
        audit.close();
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "earlier\none\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
        assert!(Audit::open(options(dir.path().join("no/such"), 1, OnFull::Drop)).is_err());
    }

    /// A file whose reader does not read, so that the writer waits.
    fn stuck(queue: usize, on_full: OnFull) -> (Audit, File) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        (Audit::open(options(path, queue, on_full)).unwrap(), reader)
    }

    #[test]
    fn a_full_queue_drops_records_and_counts_them() {
        let (audit, mut reader) = stuck(1 << 20, OnFull::Drop);
        let line = "x".repeat((64 << 10) - 1);
        // 64 KiB are in the pipe, or with the writer; the queue has 1 MiB.
        for _ in 0..40 {
            audit.push(line.clone(), true);
        }
        let dropped = audit.dropped();
        assert!((22..=24).contains(&dropped), "{dropped}");
        assert!(!audit.delays());
        let drain = thread::spawn(move || {
            let mut lines = io::BufReader::new(&mut reader);
            let (mut written, mut reported) = (0, 0);
            while (written, reported) != (40 - dropped, dropped) {
                let mut line = String::new();
                io::BufRead::read_line(&mut lines, &mut line).unwrap();
                match line.starts_with('x') {
                    true => written += 1,
                    false => {
                        let report: serde_json::Value = serde_json::from_str(&line).unwrap();
                        reported += report["dropped"].as_u64().unwrap();
                    }
                }
                assert!(written <= 40 - dropped && reported <= dropped, "{written} {reported}");
            }
        });
        audit.close();
        drain.join().unwrap();
    }

    #[test]
    fn untrusted_callers_fill_an_eighth_of_the_queue() {
        for on_full in [OnFull::Drop, OnFull::Delay] {
            let (audit, mut reader) = stuck(1 << 20, on_full);
            let line = "x".repeat((64 << 10) - 1);
            for _ in 0..40 {
                audit.push(line.clone(), false);
            }
            // 64 KiB are in the pipe, or with the writer; an eighth of the queue has 128 KiB.
            let dropped = audit.dropped();
            assert!((36..=38).contains(&dropped), "{dropped}");
            for _ in 0..8 {
                audit.push(line.clone(), true);
            }
            assert_eq!(audit.dropped(), dropped, "the rest of the queue must have room");
            assert!(!audit.delays());
            let drain = thread::spawn(move || {
                let mut all = vec![0; (48 - dropped as usize) * (64 << 10)];
                io::Read::read_exact(&mut reader, &mut all)
            });
            audit.close();
            drain.join().unwrap().unwrap();
        }
    }

    #[test]
    fn dropped_records_are_reported_between_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let (queue, reported_at) = (Arc::new(Queue::default()), Instant::now());
        let mut writer = Writer {
            file: open(&path).unwrap(),
            path: path.clone(),
            queue: queue.clone(),
            on_full: OnFull::Drop,
            is_torn: false,
            reported: 0,
            reported_at,
        };
        queue.bytes.store(4 * 5, Relaxed);
        queue.lines.store(4, Relaxed);
        queue.dropped.store(2, Relaxed);
        for seconds in [0, 1, 1, 2] {
            writer.write_queued("line\n", reported_at + seconds * REPORT_INTERVAL);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let kinds: Vec<_> =
            text.lines().map(|line| if line.contains("\"dropped\":2") { "report" } else { line }).collect();
        assert_eq!(kinds, ["line", "report", "line", "line", "line"]);
        assert_eq!(queue.bytes.load(Relaxed), 0);
    }

    #[test]
    fn a_full_queue_can_delay_operations_and_then_loses_no_record() {
        let (audit, mut reader) = stuck(4 << 10, OnFull::Delay);
        assert!(!audit.delays());
        for _ in 0..40 {
            audit.push("x".repeat((8 << 10) - 1), true);
        }
        assert!(audit.delays());
        let drain = thread::spawn(move || {
            let mut all = vec![0; 40 * (8 << 10)];
            io::Read::read_exact(&mut reader, &mut all).map(|()| all)
        });
        audit.close();
        assert_eq!(drain.join().unwrap().unwrap().iter().filter(|byte| **byte == b'\n').count(), 40);
        assert!(!audit.delays());
        assert_eq!(audit.dropped(), 0);
    }

    #[test]
    fn a_write_that_hangs_does_not_keep_the_log_open() {
        // Nobody reads, and more than the pipe can hold waits.
        let (audit, reader) = stuck(1 << 20, OnFull::Delay);
        for _ in 0..4 {
            audit.push("x".repeat((64 << 10) - 1), true);
        }
        audit.close_within(Duration::ZERO);
        let dropped = audit.dropped();
        assert!((3..=4).contains(&dropped), "{dropped}");
        audit.close();
        drop(reader);
    }

    #[test]
    fn a_use_is_recorded_again_after_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(options(dir.path().join("audit"), 1, OnFull::Drop)).unwrap();
        let now = Instant::now();
        let uses = [(1, now), (1, now), (2, now), (1, now + USE_TIME)].map(|(of, at)| audit.is_first_use(&of, at));
        assert_eq!(uses, [true, false, true, true]);
        (0..2 * USES_MAX).for_each(|of| _ = audit.is_first_use(&of, now));
        assert!(audit.uses.lock().len() <= USES_MAX);
    }
}
