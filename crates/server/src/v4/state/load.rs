//! [`Reduction`]: what a client is asked for when there is too much of something.

use std::{collections::VecDeque, time::Instant};

use nfs::v4::{Clientid4, Sessionid4, Slotid4};

/// A reduction that a client is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// To use no slot of a session above this.
    Slots(Sessionid4, Slotid4),
    /// To keep no more than so many delegations.
    Delegations(u32),
}

/// The reductions that are to be asked for, and those that were.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) reductions: VecDeque<(Clientid4, Reduction)>,
    /// Whether sessions have been asked to make do with fewer slots than they were made with.
    pub(super) slots_asked: bool,
    /// When delegations were asked for.
    pub(super) delegations_asked: Option<Instant>,
}

impl Load {
    /// Whether nobody is to be asked.
    pub(super) fn is_settled(&self) -> bool {
        self.reductions.is_empty()
    }
}
