//! The memory of one connection, as it is charged to the budget of its listener.
//!
//! Two parts: [`Ledger`] is behind the lock that callers take, and has the [`Account`]; [`Tally`] is the driver's own, and passes
//! what it has counted to the ledger when the driver takes that lock anyway. So a call adds no lock and, as long as the
//! account need not take more from the shared part, no atomic operation.
//!
//! Charged are: incomplete records (as their buffers are allocated), bytes that stay staged while the driver sleeps, calls from
//! their last byte to their reply, and replies until the socket has taken them. Files that replies refer to cost no memory.
//!
//! A connection that was made here has no account, and no bounds but those of its peer.

use std::{future::Future, pin::Pin, task::Context};

use buf::Piece;
use tokio::time::{Instant, Sleep, sleep};
use xdr::Message;

use crate::{
    ReplyToken, TransportError,
    budget::{Account, GUARANTEED, STEP, SWEEP},
    record::Record,
};

/// What a connection may use.
pub(crate) struct Terms {
    /// None for a connection that was made here.
    pub account: Option<Account>,
    /// Longest record that is taken, if the option `message_max` is not less.
    pub record_max: usize,
    /// Most calls in progress.
    pub calls_max: usize,
    /// While so many bytes of replies wait, calls are not read.
    pub replies_max: usize,
}

impl Terms {
    /// Those of a connection that was made here.
    pub fn connecting() -> Self {
        Self { account: None, record_max: usize::MAX, calls_max: usize::MAX, replies_max: REPLIES_MAX }
    }

    /// Those of an accepted connection from a host that is served in full.
    pub fn admitted(account: Account) -> Self {
        Self { account: Some(account), ..Self::connecting() }
    }

    /// Those of an accepted connection from any other host.
    pub fn stranger(account: Account) -> Self {
        Self { account: Some(account), record_max: 16 << 10, calls_max: 4, replies_max: 64 << 10 }
    }
}

/// What callers and the driver know of the memory.
pub(super) struct Ledger {
    account: Option<Account>,
    /// Bytes of calls in progress. Below zero while the driver has not told of those that have ended already.
    executing: isize,
    calls: isize,
    /// Memory of replies that the driver has not taken up.
    replies: usize,
}

/// What the driver has counted.
pub(super) struct Tally {
    pub replies_max: usize,
    calls_max: usize,
    /// Bytes to be charged, or to be released if below zero.
    unsettled: isize,
    /// Bytes and calls handed out.
    executing: isize,
    calls: isize,
    /// Charged for staged bytes.
    staged: usize,
    /// Charged for replies in the send queue.
    replies: usize,
    /// Bytes received and sent, wrapping.
    moved: usize,
    /// Bytes for which the reader was refused memory.
    pub refused: usize,
    /// Whether the guarantee is used up, there is no more, and something is going on that will release some.
    throttled: bool,
    /// Whether as many calls are in progress as may be.
    crowded: bool,
    /// Whether there is room in the shared part.
    room: bool,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Ledger {
    pub fn new(account: Option<Account>) -> Self {
        Self { account, executing: 0, calls: 0, replies: 0 }
    }

    /// Releases a call that has ended.
    pub fn ended(&mut self, token: &ReplyToken) {
        self.executing -= token.call as isize;
        self.calls -= 1;
        self.adjust(-(token.call as isize));
    }

    /// Charges a reply.
    pub fn replied(&mut self, memory: usize) {
        self.replies += memory;
        self.adjust(memory as isize);
    }

    /// Charges a part of a record, if there is room.
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
            crowded: false,
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

    /// Counts a call that is in progress from now on. It was charged before.
    pub fn handed_out(&mut self, token: &ReplyToken) {
        self.executing += token.call as isize;
        self.calls += 1;
    }

    /// Counts bytes that went over the network.
    pub fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.wrapping_add(bytes);
    }

    /// Charges the bytes that stay staged.
    pub fn stage(&mut self, bytes: usize) {
        self.unsettled += bytes as isize - self.staged as isize;
        self.staged = bytes;
    }

    /// Releases replies of which no more than `left` bytes are in the send queue.
    pub fn flushed(&mut self, left: usize) {
        let replies = self.replies.min(left);
        self.release(self.replies - replies);
        self.replies = replies;
    }

    /// How much to read ahead, where `wanted` is best.
    pub fn ahead(&self, wanted: usize) -> usize {
        if self.room { wanted } else { wanted.min(GUARANTEED) }
    }

    /// Whether further calls are unwanted.
    pub fn is_full(&self) -> bool {
        self.throttled || self.crowded
    }

    /// Whether the connection waits for memory.
    pub fn waits(&self) -> bool {
        self.throttled || self.refused > 0
    }

    /// Passes on what was counted, and looks how much room there is.
    pub fn settle(&mut self, ledger: &mut Ledger) {
        self.replies += std::mem::take(&mut ledger.replies);
        ledger.executing += std::mem::take(&mut self.executing);
        ledger.calls += std::mem::take(&mut self.calls);
        let Some(account) = &mut ledger.account else { return };
        account.adjust(std::mem::take(&mut self.unsettled));
        self.room = account.has_room(STEP);
        let releases = ledger.calls > 0 || self.replies > 0;
        self.throttled = !self.room && account.held() > GUARANTEED as isize && releases;
        self.crowded = usize::try_from(ledger.calls).is_ok_and(|calls| calls >= self.calls_max);
    }

    /// Settles before the driver sleeps. False if it has to go on. `incomplete` bytes are charged for an incomplete record.
    ///
    /// # Errors
    /// The connection has to be closed, as others need its memory.
    pub fn rest(
        &mut self,
        ledger: &mut Ledger,
        incomplete: usize,
        cx: &mut Context<'_>,
    ) -> Result<bool, TransportError> {
        let was_full = self.is_full();
        self.settle(ledger);
        let Some(account) = &mut ledger.account else { return Ok(true) };
        account.rest(incomplete + self.replies, self.moved, cx.waker());
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
            return Err(TransportError::Lost("closed for want of memory, of which it held most".to_owned()));
        }
        Ok(true)
    }

    /// Releases all but the calls in progress.
    pub fn give_up(&mut self, ledger: &mut Ledger) {
        self.settle(ledger);
        let executing = ledger.executing;
        (self.replies, self.staged, self.refused, self.pause) = (0, 0, 0, None);
        if let Some(account) = &mut ledger.account {
            account.adjust(executing - account.held());
            account.rest(0, self.moved, std::task::Waker::noop());
        }
    }
}

/// Bytes to charge for a call in progress: its message, and what its execution takes.
pub(super) fn call_cost(record: &Record) -> usize {
    record.charged.max(record.message.len()) + EXECUTION
}

/// Bytes of memory that a reply holds.
pub(super) fn memory_of(message: &Message) -> usize {
    let pieces = message.payloads.iter().flat_map(|payload| payload.data.pieces());
    let memory = pieces.map(|piece| if matches!(piece, Piece::File(_)) { 0 } else { piece.len() });
    message.stream.len() + memory.sum::<usize>()
}

const REPLIES_MAX: usize = 4 << 20;
/// What a call takes besides its message: the future that executes it, and its part of a block of small records.
const EXECUTION: usize = 2 << 10;
