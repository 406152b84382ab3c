//! [`Session`]: reads the kernel's requests, and writes the replies of tasks.
//!
//! Read `Documentation/filesystems/fuse/fuse.rst` of Linux first ("Interrupting filesystem operations"). One loop reads
//! requests and never waits for an operation. Each operation is a task, so the loop can always read an interrupt.
//!
//! **Interrupts.** The kernel reports every signal of a waiting thread. As with the kernel's own NFS client, only a
//! fatal signal ends a wait, because programs do not expect EINTR of files. Any signal ends a wait for a lock. The
//! kernel reports a signal only once, so if it was not fatal, the thread is polled until the operation ends. A process
//! that dies by a signal also waits for the flush of its files, and a thread can wait for an O_DIRECT read or write. The
//! kernel reports no signals for these, so these threads are polled as well. A thread that is known to die closes its files one after the
//! other: each further flush is answered at once, and its data are sent later.
//!
//! **Operations in progress.** A call that has been sent cannot be cancelled. An operation that changes names or holds
//! state continues after its program has got EINTR, and results that the kernel does not receive are undone ([`Undo`]).
//! Any other operation is dropped, as at its deadline: the client library keeps its slot or XID, and the transport its
//! buffers, until the reply.
//!
//! Dropping the session closes the device, and the kernel ends all operations in progress.

use std::{
    collections::{HashMap, HashSet},
    fs,
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use buf::{Buffer, Pool, SPIN_MAX, Spin};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::{
    io::{
        Interest,
        unix::{AsyncFd, AsyncFdReadyGuard},
    },
    sync::Notify,
    task::AbortHandle,
};

use super::{
    device::Device,
    wire::{HEADER, Header, Out, WRITE_HEAD, WRITE_MAX, op},
};

/// A mount, while it exists.
#[derive(Debug)]
pub struct Session {
    device: Arc<Device>,
    in_flight: Arc<InFlight>,
    pool: Pool,
}

/// A request of the kernel.
#[derive(Debug)]
pub struct Request {
    pub header: Header,
    /// The bytes after the header; for a WRITE, without its data.
    pub body: Vec<u8>,
    /// The data of a WRITE.
    pub data: Bytes,
}

/// The reply to a successful operation.
#[derive(Debug)]
pub enum Reply {
    /// A reply of fields.
    Out(Out),
    /// A reply of the first bytes of a buffer.
    Data(Buffer, usize),
}

/// The effects to undo if the kernel does not receive the result of an operation.
#[derive(Debug)]
pub enum Undo {
    Nothing,
    /// The kernel would have received these objects.
    Forget(Vec<u64>),
    /// An object is open with this number.
    Release(u64, u64),
    /// A directory is open with this number.
    CloseDirectory(u64),
    /// The kernel would have received an object, which is open with this number.
    ForgetAndRelease(u64, u64),
    /// An owner has got a lock: the object, the owner, and the range.
    Unlock(u64, u64, super::locks::Lock),
}

/// Executes the operations of a session.
pub trait Handler: Send + Sync + 'static {
    /// Starts an operation.
    fn begin(self: &Arc<Self>, request: Request, replier: Replier);

    /// Undoes an effect whose result the kernel did not receive.
    fn undo(&self, undo: Undo) -> impl Future<Output = ()> + Send;
}

/// Sends the reply to one request, once.
#[derive(Debug)]
pub struct Replier {
    pub header: Header,
    /// Weak, so that a task does not keep the device open.
    device: Weak<Device>,
    in_flight: Arc<InFlight>,
}

/// The operations in progress.
#[derive(Debug, Default)]
pub struct InFlight {
    operations: Mutex<HashMap<u64, Operation>>,
    /// The threads that are dying.
    dying: Mutex<HashSet<u32>>,
    /// The number of ended operations.
    ended: AtomicU64,
    /// Counts [`TICK`]s, so that operations need not read the clock.
    tick: AtomicU64,
}

/// An operation in progress.
#[derive(Debug)]
struct Operation {
    header: Header,
    since: u64,
    /// `true` if a signal has arrived, or can arrive without a report, so that the thread must be polled.
    watched: bool,
    /// Ends the task.
    abort: Option<AbortHandle>,
    /// Notified of any signal.
    interrupted: Option<Arc<Notify>>,
}

/// An operation that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub operation: &'static str,
    pub ino: u64,
    pub pid: u32,
    pub since: Duration,
}

impl Session {
    /// Creates a session of a device. Buffers for data come from this pool.
    pub fn new(device: Device, pool: Pool) -> Self {
        Self { device: Arc::new(device), in_flight: Arc::default(), pool }
    }

    /// Returns the device, for notifications.
    pub fn device(&self) -> Weak<Device> {
        Arc::downgrade(&self.device)
    }

    /// Returns the operations in progress.
    pub fn in_flight(&self) -> &Arc<InFlight> {
        &self.in_flight
    }

    /// Processes requests until the mount ends.
    ///
    /// # Errors
    /// Requests cannot be read.
    pub async fn run(self, handler: Arc<impl Handler>) -> io::Result<()> {
        let Self { device, in_flight, pool } = self;
        #[expect(
            deprecated,
            reason = "the other constructor is unsafe; an owned descriptor stays open while it is registered"
        )]
        let ready = AsyncFd::with_interest(device.clone(), WAKES)?;
        let (mut head, mut rest) = ([0; WRITE_HEAD], pool.take(WRITE_MAX));
        let mut spin = Spin::new(SPIN_MAX);
        loop {
            let mut guard = readable(&ready, &mut spin).await?;
            for _ in 0..BATCH {
                match device.read(&mut head, &mut rest) {
                    Ok(len) => {
                        let Some(header) = Header::decode(&head[..len.min(WRITE_HEAD)]) else { continue };
                        if header.opcode == op::INTERRUPT {
                            in_flight.interrupt(&device, &head[HEADER..len.min(WRITE_HEAD)]);
                            continue;
                        }
                        let request = into_request(header, &head[..len.min(WRITE_HEAD)], len, &mut rest, &pool);
                        in_flight.add(header);
                        let replier = (Arc::downgrade(&device), in_flight.clone());
                        handler.begin(request, Replier { header, device: replier.0, in_flight: replier.1 });
                        in_flight.end_of_dying(&device, header);
                    }
                    Err(Errno::AGAIN) => {
                        guard.clear_ready();
                        break;
                    }
                    // The request was aborted before it could be read.
                    Err(Errno::NOENT | Errno::INTR) => {}
                    Err(Errno::NODEV) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            // Let running operations continue before reading more requests.
            tokio::task::yield_now().await;
        }
    }
}

/// Waits for a request or the end of the mount. A program that makes one call after the other sends the next request
/// soon, so the thread spins before it sleeps. Other tasks of the thread run meanwhile.
async fn readable<'a>(
    ready: &'a AsyncFd<Arc<Device>>,
    spin: &mut Spin,
) -> io::Result<AsyncFdReadyGuard<'a, Arc<Device>>> {
    let mut wakes = pin!(ready.ready(WAKES));
    poll_fn(|cx| {
        let polled = wakes.as_mut().poll(cx);
        if polled.is_ready() {
            spin.worked(Instant::now);
        } else {
            spin.poll_again(cx);
        }
        polled
    })
    .await
}

/// Makes a request from the buffers into which it was read. A large WRITE takes its buffer along. The data of a small
/// WRITE are copied, so that they do not keep a large buffer until they are committed.
fn into_request(header: Header, head: &[u8], len: usize, rest: &mut Buffer, pool: &Pool) -> Request {
    let more = len.saturating_sub(WRITE_HEAD);
    if header.opcode != op::WRITE {
        let body = [&head[HEADER..], &rest[..more]].concat();
        return Request { header, body, data: Bytes::new() };
    }
    let data = if more > WRITE_MAX / 2 {
        let mut data = std::mem::replace(rest, pool.take(WRITE_MAX));
        data.set_len(more);
        data.freeze()
    } else {
        let mut data = pool.take(more);
        data.copy_from_slice(&rest[..more]);
        data.freeze()
    };
    Request { header, body: head[HEADER..].to_vec(), data }
}

impl Replier {
    /// Runs `work` in a task, and replies with the result of `done`. Effects whose result the kernel does not receive
    /// are undone.
    pub fn spawn<T: Send, H: Handler>(
        self,
        handler: &Arc<H>,
        work: impl Future<Output = Result<T, Errno>> + Send + 'static,
        done: impl FnOnce(T) -> (Reply, Undo) + Send + 'static,
    ) {
        let (unique, in_flight, handler) = (self.header.unique, self.in_flight.clone(), handler.clone());
        let task = tokio::spawn(async move {
            match work.await {
                Err(error) => self.refuse(error),
                Ok(value) => {
                    let (reply, undo) = done(value);
                    if !self.reply(reply) {
                        handler.undo(undo).await;
                    }
                }
            }
        });
        if let Some(operation) = in_flight.operations.lock().get_mut(&unique) {
            operation.abort = can_be_dropped(operation.header.opcode).then(|| task.abort_handle());
        }
    }

    /// Completes when the thread that waits for the operation gets a signal.
    pub fn interrupted(&self) -> impl Future<Output = ()> + Send + 'static {
        let notify = Arc::<Notify>::default();
        if let Some(operation) = self.in_flight.operations.lock().get_mut(&self.header.unique) {
            operation.interrupted = Some(notify.clone());
        }
        async move { notify.notified().await }
    }

    /// Replies. Returns `true` if the kernel has received the reply.
    pub fn reply(&self, reply: Reply) -> bool {
        let Some(device) = self.take() else { return false };
        let written = match reply {
            Reply::Out(out) => device.write(&out.finish(self.header.unique)),
            Reply::Data(data, len) => device.reply_data(self.header.unique, &data[..len]),
        };
        is_received(written)
    }

    /// Replies with an error.
    pub fn refuse(&self, error: Errno) {
        if let Some(device) = self.take() {
            is_received(device.reply_error(self.header.unique, error));
        }
    }

    /// Consumes a request without a reply.
    pub fn forget(self) {
        self.take();
    }

    /// Returns the device, unless a reply was sent.
    fn take(&self) -> Option<Arc<Device>> {
        self.in_flight.remove(self.header.unique)?;
        self.device.upgrade()
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        // The caller of a request that is dropped without a reply would wait until the end of the mount.
        self.refuse(Errno::INTR);
    }
}

fn is_received(written: rustix::io::Result<()>) -> bool {
    match written {
        Ok(()) => true,
        // The caller has ended, or the mount.
        Err(Errno::NOENT | Errno::NODEV) => false,
        Err(error) => {
            tracing::warn!(%error, "the kernel rejects a reply");
            false
        }
    }
}

/// Returns `true` if an operation has no effect that would have to be undone or completed.
fn can_be_dropped(opcode: u32) -> bool {
    matches!(
        opcode,
        op::READ
            | op::WRITE
            | op::GETATTR
            | op::READLINK
            | op::ACCESS
            | op::STATFS
            | op::GETXATTR
            | op::LISTXATTR
            | op::GETLK
            | op::LSEEK
    )
}

impl InFlight {
    fn add(&self, header: Header) {
        let since = self.tick.load(Relaxed);
        // The kernel reports no signals for the flush of a dying process. Nor does it report them for O_DIRECT reads and
        // writes through the page cache: it sends them in the background, and the thread waits for them in D state. With write-back
        // caching, a flush is preceded by the SETATTR of the kernel's times.
        let watched = matches!(header.opcode, op::FLUSH | op::SETATTR | op::READ | op::WRITE);
        let operation = Operation { header, since, watched, abort: None, interrupted: None };
        self.operations.lock().insert(header.unique, operation);
    }

    fn remove(&self, unique: u64) -> Option<Operation> {
        let operation = self.operations.lock().remove(&unique)?;
        self.ended.fetch_add(1, Relaxed);
        Some(operation)
    }

    /// Returns the number of ended operations, and of those in progress.
    pub fn counts(&self) -> (u64, usize) {
        (self.ended.load(Relaxed), self.operations.lock().len())
    }

    /// Returns the operations that wait for a server.
    pub fn waiting(&self) -> Vec<Waiting> {
        let (now, operations) = (self.tick.load(Relaxed), self.operations.lock());
        // A program that waits for a lock waits for its holder, not for the server.
        let waits = operations.values().filter(|operation| operation.header.opcode != op::SETLKW);
        let waiting = |operation: &Operation| {
            let Header { opcode, ino, pid, .. } = operation.header;
            let since = TICK * u32::try_from(now - operation.since).unwrap_or(u32::MAX);
            Waiting { operation: op::name(opcode), ino, pid, since }
        };
        waits.map(waiting).collect()
    }

    /// Handles FUSE_INTERRUPT: a waiting thread has a signal.
    fn interrupt(&self, device: &Device, body: &[u8]) {
        let Some(unique) = body.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes)) else { return };
        let pid = {
            let mut operations = self.operations.lock();
            // The operation has been answered in the meantime.
            let Some(operation) = operations.get_mut(&unique) else { return };
            operation.watched = true;
            if let Some(interrupted) = &operation.interrupted {
                interrupted.notify_one();
            }
            operation.header.pid
        };
        if is_dying(pid) {
            self.dying.lock().insert(pid);
            self.end(device, unique);
        }
    }

    /// Ends an operation of closing a file if the thread is known to die.
    fn end_of_dying(&self, device: &Device, header: Header) {
        let closes = matches!(header.opcode, op::FLUSH | op::SETATTR);
        if closes && self.dying.lock().contains(&header.pid) && is_dying(header.pid) {
            self.end(device, header.unique);
        }
    }

    /// Replies EINTR before the task does.
    fn end(&self, device: &Device, unique: u64) {
        let Some(operation) = self.remove(unique) else { return };
        if let Some(abort) = operation.abort {
            abort.abort();
        }
        is_received(device.reply_error(unique, Errno::INTR));
    }

    /// Polls the threads whose signals are no longer reported, while the device exists.
    pub async fn watch(&self, device: Weak<Device>) {
        loop {
            tokio::time::sleep(TICK).await;
            let Some(device) = device.upgrade() else { return };
            let now = self.tick.fetch_add(1, Relaxed) + 1;
            for (unique, pid) in self.watched(now) {
                if is_dying(pid) {
                    self.dying.lock().insert(pid);
                    self.end(&device, unique);
                }
            }
            // The number of a thread that has ended can be used again.
            self.dying.lock().retain(|&pid| is_dying(pid));
        }
    }

    fn watched(&self, now: u64) -> Vec<(u64, u32)> {
        let operations = self.operations.lock();
        let watched = operations.iter().filter(|(_, operation)| operation.watched && operation.since + 1 < now);
        watched.map(|(&unique, operation)| (unique, operation.header.pid)).collect()
    }
}

/// Returns `true` if a thread has a fatal signal, or dies by one. A thread that cannot be seen has none.
fn is_dying(pid: u32) -> bool {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    if pid == 0 {
        return false;
    }
    let Some(status) = read("status") else { return false };
    // While a thread executes execve(2), the kernel lets nobody read its `stat`. It can then wait for this mount, because execve
    // closes files. So `stat` is read only of threads that are exiting.
    has_fatal_signal(&status) || !has_memory(&status) && read("stat").is_some_and(|stat| dies_by_signal(&stat))
}

/// Returns `true` if the thread has memory, according to its status in proc(5). An exiting thread has released it before it closes
/// files.
fn has_memory(status: &str) -> bool {
    status.lines().any(|line| line.starts_with("VmSize:"))
}

/// Returns `true` if a signal is pending that ends the process, according to the status of a thread in proc(5).
fn has_fatal_signal(status: &str) -> bool {
    let mask = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    let handled = mask("SigBlk") | mask("SigIgn") | mask("SigCgt") | NOT_FATAL;
    (mask("SigPnd") | mask("ShdPnd")) & (!handled | KILL) != 0
}

/// Returns `true` if the thread is exiting (field 9 of proc(5)'s `stat`, `PF_EXITING`) and its exit code (field 52) has
/// a signal.
fn dies_by_signal(stat: &str) -> bool {
    // The name, field 2, is in parentheses and can contain spaces.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let field = |number: usize| rest.split_whitespace().nth(number - 3)?.parse::<u64>().ok();
    field(9).is_some_and(|flags| flags & PF_EXITING != 0) && field(52).is_some_and(|code| code & 0x7f != 0)
}

/// A request, or the end of the mount, which epoll(7) reports as an error.
const WAKES: Interest = Interest::READABLE.add(Interest::ERROR);
/// The maximum number of requests that are started before running operations continue.
const BATCH: usize = 16;
/// The polling interval for threads.
const TICK: Duration = Duration::from_millis(250);
const PF_EXITING: u64 = 4;
const KILL: u64 = 1 << 8;
/// The signals that are ignored, continue or stop by default, from signal(7): SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP,
/// SIGTTIN, SIGTTOU, SIGURG and SIGWINCH.
const NOT_FATAL: u64 = 1 << 16 | 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 27;

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitId, WaitIdOptions};

    use super::*;

    #[test]
    fn signal_is_fatal_if_it_is_not_handled() {
        let status = |pending: u64, shared: u64, blocked: u64, ignored: u64, caught: u64| {
            let line = |name: &str, mask: u64| format!("{name}:\t{mask:016x}\n");
            let text = [line("SigPnd", pending), line("ShdPnd", shared), line("SigBlk", blocked)].concat();
            has_fatal_signal(&[text, line("SigIgn", ignored), line("SigCgt", caught)].concat())
        };
        let (int, term, alarm, child) = (1 << 1, 1 << 14, 1 << 13, 1 << 16);
        assert!(status(KILL, 0, 0, 0, 0) && status(0, int, 0, 0, 0) && status(0, term, int, 0, 0));
        assert!(!status(0, 0, 0, 0, 0) && !status(0, child, 0, 0, 0));
        assert!(!status(0, int, int, 0, 0) && !status(0, int, 0, int, 0) && !status(0, alarm, 0, 0, alarm));
        assert!(status(KILL, 0, !0, 0, 0), "nothing blocks SIGKILL");
        assert!(!has_fatal_signal(""));
    }

    #[test]
    fn thread_killed_by_a_signal_differs_from_one_that_exits() {
        let stat = |flags: u32, code: u32| {
            let middle = ["0"; 42].join(" ");
            format!("12 (a) b) S 1 2 3 4 5 {flags} {middle} {code}\n")
        };
        assert!(dies_by_signal(&stat(4, 9)) && dies_by_signal(&stat(0x40_0004, 15)));
        assert!(!dies_by_signal(&stat(4, 0)) && !dies_by_signal(&stat(4, 1 << 8)) && !dies_by_signal(&stat(0, 9)));
        assert!(!dies_by_signal("") && !dies_by_signal("1 (x) S 1"));
    }

    #[test]
    fn thread_that_has_exited_has_no_memory() {
        let status = |pid: u32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(has_memory(&status(std::process::id())));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let of_child = WaitId::Pid(Pid::from_child(&child));
        rustix::process::waitid(of_child, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert!(!has_memory(&status(child.id())));
        child.wait().unwrap();
    }
}
