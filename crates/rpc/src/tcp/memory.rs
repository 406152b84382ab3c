//! The memory of one connection, which is charged to the budget of its listener.
//!
//! There are two parts. [`Ledger`] is behind the lock that callers take, and has the [`Account`]. [`Tally`] belongs to
//! the driver, which adds its counts to the ledger when it takes that lock anyway. So a call needs no further lock and,
//! unless the account must take more from the shared part, no atomic operation.
//!
//! The following memory is charged: incomplete records (as their buffers are allocated), bytes that stay staged while
//! the driver sleeps (with TLS also those of an incomplete handshake, and encrypted bytes that are not sent), calls from
//! their last byte to their reply, and pieces of replies until the socket has accepted their last byte. File ranges in
//! replies use no memory.
//!
//! A connection that this side opened has no account, and no limits except those that its peer sets.

use std::{future::Future, pin::Pin, sync::Arc, task::Context};

use buf::Piece;
use tokio::time::{Instant, Sleep, sleep};
use xdr::Message;

use crate::{
    ReplyToken, TransportError,
    budget::{Account, GUARANTEED, STEP, SWEEP},
    record::Record,
    tls::ServerTls,
};

/// The limits of a connection.
pub(crate) struct Terms {
    /// The memory account; `None` for a connection that this side opened.
    pub account: Option<Account>,
    /// `false` for an accepted connection from a host that is not admitted.
    pub admitted: bool,
    /// Maximum length of a record in bytes. The option `message_max` can be lower.
    pub record_max: usize,
    /// Maximum number of calls in progress.
    pub calls_max: usize,
    /// The number of bytes of queued replies at which calls are no longer read.
    pub replies_max: usize,
    /// TLS of the listener, if it offers TLS.
    pub tls: Option<Arc<ServerTls>>,
}

impl Terms {
    /// Returns the limits of a connection that this side opened.
    pub fn connecting() -> Self {
        Self {
            account: None,
            admitted: true,
            record_max: usize::MAX,
            calls_max: usize::MAX,
            replies_max: REPLIES_MAX,
            tls: None,
        }
    }

    /// Returns the limits of an accepted connection from an admitted host.
    pub fn admitted(account: Account) -> Self {
        Self { account: Some(account), ..Self::connecting() }
    }

    /// Returns the limits of an accepted connection from a host that is not admitted.
    pub fn unadmitted(account: Account) -> Self {
        Self {
            account: Some(account),
            admitted: false,
            record_max: 16 << 10,
            calls_max: 4,
            replies_max: 64 << 10,
            tls: None,
        }
    }
}

/// The memory counts that callers and the driver share.
pub(super) struct Ledger {
    account: Option<Account>,
    /// Bytes of calls in progress. Negative while the driver has not yet added calls that have already ended.
    executing: isize,
    calls: isize,
    /// Memory of replies that the driver has not yet moved to its send queue, in bytes.
    replies: usize,
}

/// The memory counts of the driver.
pub(super) struct Tally {
    pub replies_max: usize,
    calls_max: usize,
    /// Bytes to be charged, or to be released if negative.
    unsettled: isize,
    /// Bytes of delivered calls that the ledger does not count yet.
    executing: isize,
    calls: isize,
    /// Bytes charged for staged data.
    staged: usize,
    /// Bytes charged for replies in the send queue.
    replies: usize,
    /// Total bytes received and sent, wrapping.
    moved: usize,
    /// Bytes of memory that the reader requested and did not get.
    pub refused: usize,
    /// `true` if the connection has used its guarantee, there is no room, and a call or reply in progress will release
    /// memory.
    throttled: bool,
    /// `true` if the maximum number of calls is in progress.
    calls_full: bool,
    /// `true` if the shared part has room.
    room: bool,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Ledger {
    pub fn new(account: Option<Account>) -> Self {
        Self { account, executing: 0, calls: 0, replies: 0 }
    }

    /// Releases the memory of a call that has ended.
    pub fn ended(&mut self, token: &ReplyToken) {
        self.executing -= token.call as isize;
        self.calls -= 1;
        self.adjust(-(token.call as isize));
    }

    /// Returns `true` if all calls that were delivered have ended. The driver must have settled its counts.
    pub fn is_idle(&self) -> bool {
        self.calls <= 0
    }

    /// Charges a reply.
    pub fn replied(&mut self, memory: usize) {
        self.replies += memory;
        self.adjust(memory as isize);
    }

    /// Charges a part of a record if there is room. Returns `true` if it was charged.
    pub fn try_charge(&mut self, bytes: usize) -> bool {
        self.account.as_mut().is_none_or(|account| account.try_charge(bytes))
    }

    #[cfg(test)]
    pub fn held(&self) -> isize {
        self.account.as_ref().map_or(0, Account::held)
    }

    fn adjust(&mut self, bytes: isize) {
        if let Some(account) = &mut self.account {
            account.adjust(bytes);
        }
    }
}

impl Tally {
    pub fn new(replies_max: usize, calls_max: usize) -> Self {
        Self {
            replies_max,
            calls_max,
            unsettled: 0,
            executing: 0,
            calls: 0,
            staged: 0,
            replies: 0,
            moved: 0,
            refused: 0,
            throttled: false,
            calls_full: false,
            room: true,
            pause: None,
        }
    }

    pub fn charge(&mut self, bytes: usize) {
        self.unsettled += bytes as isize;
    }

    pub fn release(&mut self, bytes: usize) {
        self.unsettled -= bytes as isize;
    }

    /// Counts a call that is in progress from now on. Its memory has been charged already.
    pub fn handed_out(&mut self, token: &ReplyToken) {
        self.executing += token.call as isize;
        self.calls += 1;
    }

    /// Counts bytes that were received or sent.
    pub fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.wrapping_add(bytes);
    }

    /// Charges the bytes that stay staged.
    pub fn stage(&mut self, bytes: usize) {
        self.unsettled += bytes as isize - self.staged as isize;
        self.staged = bytes;
    }

    /// Releases replies that have left the send queue, which keeps `left` bytes.
    pub fn flushed(&mut self, left: usize) {
        let replies = self.replies.min(left);
        self.release(self.replies - replies);
        self.replies = replies;
    }

    /// Returns the number of bytes to read ahead; `wanted` is the best number.
    pub fn ahead(&self, wanted: usize) -> usize {
        if self.room { wanted } else { wanted.min(GUARANTEED) }
    }

    /// Returns `true` if no further calls must be delivered.
    pub fn is_full(&self) -> bool {
        self.throttled || self.calls_full
    }

    /// Returns `true` if the connection waits for memory.
    pub fn waits(&self) -> bool {
        self.throttled || self.refused > 0
    }

    /// Adds the counts to the ledger, and checks how much room there is.
    pub fn settle(&mut self, ledger: &mut Ledger) {
        self.replies += std::mem::take(&mut ledger.replies);
        ledger.executing += std::mem::take(&mut self.executing);
        ledger.calls += std::mem::take(&mut self.calls);
        let Some(account) = &mut ledger.account else { return };
        account.adjust(std::mem::take(&mut self.unsettled));
        self.room = account.has_room(STEP);
        let releases = ledger.calls > 0 || self.replies > 0;
        self.throttled = !self.room && account.held() > GUARANTEED as isize && releases;
        self.calls_full = usize::try_from(ledger.calls).is_ok_and(|calls| calls >= self.calls_max);
    }

    /// Settles before the driver sleeps. `incomplete` bytes are charged for an incomplete record
    /// and for encrypted bytes. Returns `false` if
    /// the driver must continue instead.
    ///
    /// # Errors
    /// The connection was evicted because other connections need its memory.
    pub fn prepare_sleep(
        &mut self,
        ledger: &mut Ledger,
        incomplete: usize,
        cx: &mut Context<'_>,
    ) -> Result<bool, TransportError> {
        let was_full = self.is_full();
        self.settle(ledger);
        let Some(account) = &mut ledger.account else { return Ok(true) };
        account.report_progress(incomplete + self.replies, self.moved, cx.waker());
        if was_full && !self.is_full() {
            return Ok(false);
        }
        if self.waits() {
            account.wait(cx.waker());
            if account.has_room(if self.throttled { STEP } else { self.refused }) {
                return Ok(false);
            }
            let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(SWEEP)));
            while pause.as_mut().poll(cx).is_ready() {
                account.budget().sweep(Instant::now());
                pause.as_mut().reset(Instant::now() + SWEEP);
            }
        } else {
            self.pause = None;
        }
        if account.is_evicted() {
            return Err(TransportError::Lost(
                "closed because the listener is out of memory and this connection held the most".to_owned(),
            ));
        }
        Ok(true)
    }

    /// Releases all memory except that of the calls in progress.
    pub fn release_all(&mut self, ledger: &mut Ledger) {
        self.settle(ledger);
        let executing = ledger.executing;
        (self.replies, self.staged, self.refused, self.pause) = (0, 0, 0, None);
        if let Some(account) = &mut ledger.account {
            account.adjust(executing - account.held());
            account.report_progress(0, self.moved, std::task::Waker::noop());
        }
    }
}

/// Returns the bytes to charge for a call in progress: its message, and the memory of its execution.
pub(super) fn call_cost(record: &Record) -> usize {
    record.charged.max(record.message.len()) + EXECUTION
}

/// Returns the bytes of memory that a reply holds.
pub(super) fn memory_of(message: &Message) -> usize {
    let pieces = message.payloads.iter().flat_map(|payload| payload.data.pieces());
    let memory = pieces.map(|piece| if matches!(piece, Piece::File(_)) { 0 } else { piece.len() });
    message.stream.len() + memory.sum::<usize>()
}

const REPLIES_MAX: usize = 4 << 20;
/// Memory of a call besides its message, in bytes: the future that executes it, and its part of a block of small
/// records.
const EXECUTION: usize = 2 << 10;
