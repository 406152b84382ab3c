//! [`Session`]: takes the kernel's requests in, and gives the replies of tasks back.
//!
//! Read `Documentation/filesystems/fuse/fuse.rst` of Linux first ("Interrupting filesystem operations"). One loop reads requests
//! and never waits for an operation: each is a task, so that there is always somebody to read an interrupt.
//!
//! **Interrupts.** The kernel tells of every signal that a waiting thread gets. As with the kernel's own NFS client, only a fatal one
//! ends a wait, since programs do not expect EINTR of files; a program that waits for a lock hears of any. A signal that is not fatal
//! is told once only, so the thread is then looked after until the operation ends. A process that dies by a signal also waits for the
//! flush of its files, which no signal interrupts any more: it is looked after as well.
//!
//! **What has begun.** A call that has been sent cannot be taken back. An operation that changes names or holds state goes on after
//! its program has been told EINTR, and what the kernel then does not know of is undone ([`Undo`]). Any other is dropped, which is what
//! its deadline would do: the client library keeps its slot or XID, and the transport its buffers, until the reply.
//!
//! Whoever drops the session closes the device: the kernel ends all that is under way.

use std::{
    collections::HashMap,
    fs,
    future::Future,
    io,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use buf::{Buffer, Pool};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
    task::AbortHandle,
};

use super::{
    device::Device,
    wire::{HEADER, Header, Out, WRITE_HEAD, WRITE_MAX, op},
};

/// A mount, as long as it is there.
#[derive(Debug)]
pub struct Session {
    device: Arc<Device>,
    underway: Arc<Underway>,
    pool: Pool,
}

/// A request of the kernel.
#[derive(Debug)]
pub struct Request {
    pub header: Header,
    /// What follows the header; of a WRITE without its data.
    pub body: Vec<u8>,
    /// The data of a WRITE.
    pub data: Bytes,
}

/// What a successful operation replies.
#[derive(Debug)]
pub enum Reply {
    /// Fields.
    Out(Out),
    /// This much of what has been read.
    Data(Buffer, usize),
}

/// What to take back if the kernel does not hear of the success of an operation.
#[derive(Debug)]
pub enum Undo {
    Nothing,
    /// It has been told of these objects.
    Forget(Vec<u64>),
    /// An object is open, by this number.
    Release(u64, u64),
    /// It has been told of an object, which is open by this number.
    ForgetAndRelease(u64, u64),
    /// An owner has got a lock: the object, the owner, and the range.
    Unlock(u64, u64, super::locks::Lock),
}

/// What the session's operations are done by.
pub trait Handler: Send + Sync + 'static {
    /// Begins an operation.
    fn begin(self: &Arc<Self>, request: Request, replier: Replier);

    /// Takes back what the kernel has not heard of.
    fn undo(&self, undo: Undo) -> impl Future<Output = ()> + Send;
}

/// How the reply to one request is given: once.
#[derive(Debug)]
pub struct Replier {
    unique: u64,
    /// Weak, so that a task does not keep the device open.
    device: Weak<Device>,
    underway: Arc<Underway>,
}

/// The operations under way.
#[derive(Debug, Default)]
pub struct Underway {
    operations: Mutex<HashMap<u64, Operation>>,
    /// Operations that have ended.
    ended: AtomicU64,
    /// Counts [`TICK`]s, for which no operation has to read the clock.
    tick: AtomicU64,
}

/// One of them.
#[derive(Debug)]
struct Operation {
    header: Header,
    since: u64,
    /// A signal has come, or can come without being told.
    watched: bool,
    /// Ends the task.
    abort: Option<AbortHandle>,
    /// Told of any signal.
    interrupted: Option<Arc<Notify>>,
}

/// An operation that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub operation: &'static str,
    pub ino: u64,
    pub pid: u32,
    pub since: Duration,
}

impl Session {
    /// Of a device, with memory for data from this pool.
    pub fn new(device: Device, pool: Pool) -> Self {
        Self { device: Arc::new(device), underway: Arc::default(), pool }
    }

    /// The device, for notifications.
    pub fn device(&self) -> Weak<Device> {
        Arc::downgrade(&self.device)
    }

    /// What is under way.
    pub fn underway(&self) -> &Arc<Underway> {
        &self.underway
    }

    /// Works until the mount has ended.
    ///
    /// # Errors
    /// The kernel does not give requests.
    pub async fn run(self, handler: Arc<impl Handler>) -> io::Result<()> {
        let Self { device, underway, pool } = self;
        #[expect(
            deprecated,
            reason = "the other constructor is unsafe; an owned descriptor stays open while it is registered"
        )]
        let ready = AsyncFd::with_interest(device.clone(), WAKES)?;
        let (mut head, mut rest) = ([0; WRITE_HEAD], pool.take(WRITE_MAX));
        loop {
            let mut guard = ready.ready(WAKES).await?;
            for _ in 0..BATCH {
                match device.read(&mut head, &mut rest) {
                    Ok(len) => {
                        let Some(header) = Header::decode(&head[..len.min(WRITE_HEAD)]) else { continue };
                        if header.opcode == op::INTERRUPT {
                            underway.interrupt(&device, &head[HEADER..len.min(WRITE_HEAD)]);
                            continue;
                        }
                        let request = take_in(header, &head[..len.min(WRITE_HEAD)], len, &mut rest, &pool);
                        underway.add(header);
                        let (device, underway) = (Arc::downgrade(&device), underway.clone());
                        handler.begin(request, Replier { unique: header.unique, device, underway });
                    }
                    Err(Errno::AGAIN) => {
                        guard.clear_ready();
                        break;
                    }
                    // A request that has been aborted before it could be read.
                    Err(Errno::NOENT | Errno::INTR) => {}
                    Err(Errno::NODEV) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            // What has been begun goes on before more is.
            tokio::task::yield_now().await;
        }
    }
}

/// A request out of the buffers that it has been read into. The buffer of a large WRITE goes with it; the data of a small one is copied,
/// so that it does not keep a large buffer until it is committed.
fn take_in(header: Header, head: &[u8], len: usize, rest: &mut Buffer, pool: &Pool) -> Request {
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
    /// Does `work` in a task, and replies what `done` makes of its success. What the kernel does not hear of is undone.
    pub fn spawn<T: Send, H: Handler>(
        self,
        handler: &Arc<H>,
        work: impl Future<Output = Result<T, Errno>> + Send + 'static,
        done: impl FnOnce(T) -> (Reply, Undo) + Send + 'static,
    ) {
        let (unique, underway, handler) = (self.unique, self.underway.clone(), handler.clone());
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
        if let Some(operation) = underway.operations.lock().get_mut(&unique) {
            operation.abort = can_be_dropped(operation.header.opcode).then(|| task.abort_handle());
        }
    }

    /// Ready when the thread that waits for the operation has a signal.
    pub fn interrupted(&self) -> impl Future<Output = ()> + Send + 'static {
        let notify = Arc::<Notify>::default();
        if let Some(operation) = self.underway.operations.lock().get_mut(&self.unique) {
            operation.interrupted = Some(notify.clone());
        }
        async move { notify.notified().await }
    }

    /// Replies; returns whether the kernel has heard of it.
    pub fn reply(&self, reply: Reply) -> bool {
        let Some(device) = self.take() else { return false };
        let written = match reply {
            Reply::Out(out) => device.write(&out.finish(self.unique)),
            Reply::Data(data, len) => device.reply_data(self.unique, &data[..len]),
        };
        heard(written)
    }

    /// Replies with an error.
    pub fn refuse(&self, error: Errno) {
        if let Some(device) = self.take() {
            heard(device.reply_error(self.unique, error));
        }
    }

    /// The request has no reply.
    pub fn forget(self) {
        self.take();
    }

    /// The device, if nobody has replied yet.
    fn take(&self) -> Option<Arc<Device>> {
        self.underway.remove(self.unique)?;
        self.device.upgrade()
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        // A request that is dropped without a reply would be waited for until the end of the mount.
        self.refuse(Errno::INTR);
    }
}

fn heard(written: rustix::io::Result<()>) -> bool {
    match written {
        Ok(()) => true,
        // The caller is gone, or the mount.
        Err(Errno::NOENT | Errno::NODEV) => false,
        Err(error) => {
            tracing::warn!(%error, "the kernel does not take a reply");
            false
        }
    }
}

/// Whether an operation changes nothing that would have to be undone or finished.
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

impl Underway {
    fn add(&self, header: Header) {
        let since = self.tick.load(Relaxed);
        // The flush of a process that dies is interrupted by nothing that is told.
        let watched = header.opcode == op::FLUSH;
        let operation = Operation { header, since, watched, abort: None, interrupted: None };
        self.operations.lock().insert(header.unique, operation);
    }

    fn remove(&self, unique: u64) -> Option<Operation> {
        let operation = self.operations.lock().remove(&unique)?;
        self.ended.fetch_add(1, Relaxed);
        Some(operation)
    }

    /// How many operations have ended, and how many are under way.
    pub fn counts(&self) -> (u64, usize) {
        (self.ended.load(Relaxed), self.operations.lock().len())
    }

    /// The operation that has waited for the server longest, and how many are under way.
    pub fn oldest(&self) -> Option<(Waiting, usize)> {
        let (now, operations) = (self.tick.load(Relaxed), self.operations.lock());
        // Who waits for a lock waits for its holder.
        let waits = operations.values().filter(|operation| operation.header.opcode != op::SETLKW);
        let oldest = waits.min_by_key(|operation| (operation.since, operation.header.unique))?;
        let Header { opcode, ino, pid, .. } = oldest.header;
        let since = TICK * u32::try_from(now - oldest.since).unwrap_or(u32::MAX);
        Some((Waiting { operation: op::name(opcode), ino, pid, since }, operations.len()))
    }

    /// FUSE_INTERRUPT: a thread that waits has a signal.
    fn interrupt(&self, device: &Device, body: &[u8]) {
        let Some(unique) = body.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes)) else { return };
        let pid = {
            let mut operations = self.operations.lock();
            // It has been answered in the meantime.
            let Some(operation) = operations.get_mut(&unique) else { return };
            operation.watched = true;
            if let Some(interrupted) = &operation.interrupted {
                interrupted.notify_one();
            }
            operation.header.pid
        };
        if is_dying(pid) {
            self.end(device, unique);
        }
    }

    /// Replies EINTR in the place of whoever works on it.
    fn end(&self, device: &Device, unique: u64) {
        let Some(operation) = self.remove(unique) else { return };
        if let Some(abort) = operation.abort {
            abort.abort();
        }
        heard(device.reply_error(unique, Errno::INTR));
    }

    /// Looks after those whose signals are not told any more, for as long as there is a device.
    pub async fn watch(&self, device: Weak<Device>) {
        loop {
            tokio::time::sleep(TICK).await;
            let Some(device) = device.upgrade() else { return };
            let now = self.tick.fetch_add(1, Relaxed) + 1;
            for (unique, pid) in self.watched(now) {
                if is_dying(pid) {
                    self.end(&device, unique);
                }
            }
        }
    }

    fn watched(&self, now: u64) -> Vec<(u64, u32)> {
        let operations = self.operations.lock();
        let watched = operations.iter().filter(|(_, operation)| operation.watched && operation.since + 1 < now);
        watched.map(|(&unique, operation)| (unique, operation.header.pid)).collect()
    }
}

/// Whether a thread has a fatal signal, or dies by one. One that cannot be seen has none.
fn is_dying(pid: u32) -> bool {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    pid != 0
        && (read("status").is_some_and(|status| has_fatal_signal(&status))
            || read("stat").is_some_and(|stat| dies_by_signal(&stat)))
}

/// Whether a signal is pending that ends the process, by what proc(5) says of a thread.
fn has_fatal_signal(status: &str) -> bool {
    let mask = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    let handled = mask("SigBlk") | mask("SigIgn") | mask("SigCgt") | NOT_FATAL;
    (mask("SigPnd") | mask("ShdPnd")) & (!handled | KILL) != 0
}

/// Whether the thread is exiting (field 9 of proc(5)'s `stat`, `PF_EXITING`) and its exit code (field 52) has a signal.
fn dies_by_signal(stat: &str) -> bool {
    // The name, field 2, is in parentheses and can have spaces.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let field = |number: usize| rest.split_whitespace().nth(number - 3)?.parse::<u64>().ok();
    field(9).is_some_and(|flags| flags & PF_EXITING != 0) && field(52).is_some_and(|code| code & 0x7f != 0)
}

/// A request, or the end of the mount, which epoll(7) says as an error.
const WAKES: Interest = Interest::READABLE.add(Interest::ERROR);
/// Requests that are begun before those that are under way go on.
const BATCH: usize = 16;
/// How often a thread is looked after.
const TICK: Duration = Duration::from_millis(250);
const PF_EXITING: u64 = 4;
const KILL: u64 = 1 << 8;
/// What signal(7) says is ignored, continues or stops: SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG and SIGWINCH.
const NOT_FATAL: u64 = 1 << 16 | 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 27;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_fatal_if_nothing_handles_it() {
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
    fn a_thread_that_exits_by_a_signal_is_told_from_one_that_ends() {
        let stat = |flags: u32, code: u32| {
            let middle = ["0"; 42].join(" ");
            format!("12 (a) b) S 1 2 3 4 5 {flags} {middle} {code}\n")
        };
        assert!(dies_by_signal(&stat(4, 9)) && dies_by_signal(&stat(0x40_0004, 15)));
        assert!(!dies_by_signal(&stat(4, 0)) && !dies_by_signal(&stat(4, 1 << 8)) && !dies_by_signal(&stat(0, 9)));
        assert!(!dies_by_signal("") && !dies_by_signal("1 (x) S 1"));
    }
}
