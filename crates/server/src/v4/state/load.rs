//! [`Reduction`]: a request to a client to return slots or delegations.

use std::{collections::VecDeque, time::Instant};

use nfs::v4::{Clientid4, Sessionid4, Slotid4};

/// A request to a client to return slots or delegations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Use no slot of the session above this one.
    Slots(Sessionid4, Slotid4),
    /// Keep at most this number of delegations.
    Delegations(u32),
}

/// The reductions to be sent, and what was sent before.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) reductions: VecDeque<(Clientid4, Reduction)>,
    /// `true` if sessions were asked to use fewer slots than they were created with.
    pub(super) slots_asked: bool,
    /// The time of the last request to return delegations.
    pub(super) delegations_asked: Option<Instant>,
}

impl Load {
    /// Returns `true` if no reduction is queued.
    pub(super) fn is_settled(&self) -> bool {
        self.reductions.is_empty()
    }
}
