//! [`Audit`]: the audit log, one JSON object for each line (docs/security.md).
//!
//! Calls format their records and put them in a queue of bounded length. A thread writes them, so that no call waits for the
//! file. If the queue is full, either records are dropped and counted, or operations that must be recorded are not executed
//! and their clients retry them (`on_full`). In that mode, no operation is executed without a record, except that a crash of
//! the host loses what the operating system has not stored.
//!
//! Callers that no export admits can use only an eighth of the queue. Beyond that, their records are dropped and counted in
//! both modes; their operations have no effect.

mod file;
pub(crate) mod record;
mod writer;

use std::{
    hash::{BuildHasher, Hash},
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use entropy::{HashMap, RandomState};
use parking_lot::{Mutex, RwLock};
use serde::Deserialize;

use self::{
    file::Log,
    writer::{Open, Writer},
};

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
    /// `None` after the log was closed.
    sender: RwLock<Option<Sender<Item>>>,
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
    /// The number of reloads so far.
    reloads: AtomicU64,
    is_closing: AtomicBool,
}

enum Item {
    Line(String),
    /// A reload, with its number.
    Reopen(u64),
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
    /// The file cannot be opened for appending, or is not a regular file.
    pub(crate) fn open(options: AuditOptions) -> io::Result<Self> {
        let path = options.file.clone();
        Self::start(options, Box::new(move || Log::open(&path)))
    }

    /// Starts the thread that writes to the file that `open` opens.
    fn start(options: AuditOptions, open: Open) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let queue = Arc::new(Queue::default());
        let writer = Writer::new(open, options.file.clone(), queue.clone(), options.on_full)?;
        let (ending, ended) = mpsc::channel();
        let run = move || {
            let _ending: Sender<()> = ending;
            writer.run(&receiver);
        };
        let thread = thread::Builder::new().name("audit".to_owned()).spawn(run)?;
        let (writer, uses) = (Mutex::new(Some(WriterThread { thread, ended })), Mutex::default());
        Ok(Self { options, queue, sender: RwLock::new(Some(sender)), writer, uses })
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
        let sender = self.sender.read();
        let Some(sender) = &*sender else {
            self.queue.dropped.fetch_add(1, Relaxed);
            return;
        };
        let bytes = line.len();
        let queued = self.queue.bytes.fetch_add(bytes, Relaxed);
        let max = match (trusted, self.options.on_full) {
            (false, _) => self.options.queue / UNTRUSTED_PART,
            (true, OnFull::Drop) => self.options.queue,
            (true, OnFull::Delay) => usize::MAX,
        };
        self.queue.lines.fetch_add(1, Relaxed);
        let is_full = queued.saturating_add(bytes) > max;
        if is_full || sender.send(Item::Line(line)).is_err() {
            self.queue.bytes.fetch_sub(bytes, Relaxed);
            self.queue.lines.fetch_sub(1, Relaxed);
            self.queue.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Opens the file again behind the records in the queue, after another program has renamed it. If the old file cannot be
    /// written, opens the file again at once.
    pub(crate) fn reopen(&self) {
        let reload = self.queue.reloads.fetch_add(1, Relaxed) + 1;
        if let Some(sender) = &*self.sender.read() {
            // The writer receives until the log is closed.
            let _ = sender.send(Item::Reopen(reload));
        }
        if let Some(writer) = &*self.writer.lock() {
            writer.thread.thread().unpark();
        }
    }

    /// Writes the records in the queue and ends the writer. Records that cannot be written, or not in [`CLOSE_MAX`], are
    /// lost and count as dropped, and so do later records.
    pub(crate) fn close(&self) {
        self.close_within(CLOSE_MAX);
    }

    fn close_within(&self, time: Duration) {
        self.queue.is_closing.store(true, Relaxed);
        // The writer ends behind the last item.
        *self.sender.write() = None;
        let Some(writer) = self.writer.lock().take() else { return };
        writer.thread.thread().unpark();
        match writer.ended.recv_timeout(time) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => _ = writer.thread.join(),
            // A write can hang, such as to a remote file system. It must not keep the server from ending.
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

/// The time after which the use of a file without an open is recorded again.
const USE_TIME: Duration = Duration::from_secs(60);
const USES_MAX: usize = 1 << 14;
/// The part of the queue that records of callers which no export admits can use: an eighth.
const UNTRUSTED_PART: usize = 8;
/// The time for which the end of the server waits for the records in the queue.
const CLOSE_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::fs::File;

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

    /// A pipe whose reader does not read, so that the writer waits.
    fn stuck(queue: usize, on_full: OnFull) -> (Audit, File) {
        let (reader, pipe) = rustix::pipe::pipe().unwrap();
        let pipe = File::from(pipe);
        let open = Box::new(move || pipe.try_clone().map(Log::of));
        (Audit::start(options("pipe".into(), queue, on_full), open).unwrap(), reader.into())
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
