//! [`Reduction`]: a request to a client to return slots, delegations or layouts.

use std::{collections::VecDeque, time::Instant};

use entropy::HashMap;
use nfs::v4::{Clientid4, Sessionid4, Slotid4};

use super::recallable::RecallableKind;

/// A request to a client to return slots, delegations or layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Use no slot of the session above this one.
    Slots(Sessionid4, Slotid4),
    /// Keep at most this number of delegations, or of files with layouts of a kind.
    Recallables(RecallableKind, u32),
}

/// The reductions to be sent, and what was sent before.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) reductions: VecDeque<(Clientid4, Reduction)>,
    /// `true` if sessions were asked to use fewer slots than they were created with.
    pub(super) slots_asked: bool,
    /// The time of the last request to return recallable state, for each kind.
    pub(super) asked: HashMap<RecallableKind, Instant>,
}

impl Load {
    /// Returns `true` if no reduction is queued.
    pub(super) fn is_settled(&self) -> bool {
        self.reductions.is_empty()
    }
}
