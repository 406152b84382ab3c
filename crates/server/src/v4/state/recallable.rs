//! Recallable state: state about a file that a client holds until the server recalls it (RFC 8881 §10.2, §12.5.5).
//!
//! State is granted to a client on a file, at most one of a kind for each client and file. A new kind adds a variant to
//! [`Grant`] and [`RecallableKind`], the operations that grant and return it, and the callback that recalls it. The
//! compiler then shows each place where the kinds differ. The kinds are [`Delegation`]s and layouts ([`LayoutGrant`]).
//! [`recall`](super::transitions::recall) is common to all kinds.

use std::{collections::VecDeque, time::Instant};

use entropy::HashMap;
use nfs::v4::*;
use vfs::layout::LayoutKind;

use super::{
    ids::{Other, ReferringCall},
    layout::LayoutGrant,
};
use crate::sharing::conflict::Access;

/// Recallable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recallable {
    /// The time at which the state is revoked, while it is being recalled.
    pub due: Option<Instant>,
    /// The request that granted the state; `None` in 4.0.
    pub granted_by: Option<ReferringCall>,
    /// The granted state.
    pub grant: Grant,
}

/// The state of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// A delegation.
    Delegation(Delegation),
    /// Layouts.
    Layout(LayoutGrant),
}

/// A delegation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegation {
    /// `true` for a write delegation.
    pub write: bool,
    /// The change attribute of the file when a write delegation was granted.
    pub change: u64,
    /// `true` if the holder has reported that it changed the file.
    pub modified: bool,
}

/// The kinds of recallable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecallableKind {
    /// Delegations.
    Delegation,
    /// Layouts of this kind.
    Layout(LayoutKind),
}

impl RecallableKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Delegation, Self::Layout(LayoutKind::Flexible), Self::Layout(LayoutKind::Files)];
}

/// Recallable state, and its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<F> {
    /// The client.
    pub client: Clientid4,
    /// The file.
    pub file: F,
    /// Its stateid.
    pub stateid: Stateid4,
}

/// The recalls in progress.
#[derive(Debug)]
pub(super) struct Recalls<F> {
    pub(super) queue: VecDeque<Held<F>>,
    /// The time at which each recalled state is revoked, in order.
    pub(super) deadlines: VecDeque<(Instant, Other)>,
    /// The files on which nothing is granted before the given time.
    pub(super) contended: HashMap<F, Instant>,
}

impl Recallable {
    /// Returns `true` while the state is being recalled.
    pub fn is_recalled(&self) -> bool {
        self.due.is_some()
    }
}

impl Grant {
    pub(super) fn kind(&self) -> RecallableKind {
        match self {
            Self::Delegation(_) => RecallableKind::Delegation,
            Self::Layout(layout) => RecallableKind::Layout(layout.kind),
        }
    }

    /// Returns `true` if the holder may write by this server.
    pub(super) fn may_write(&self) -> bool {
        match self {
            Self::Delegation(delegation) => delegation.write,
            Self::Layout(_) => false,
        }
    }

    /// Returns `true` if an access by another client, or by another protocol, conflicts with this grant.
    pub(super) fn conflicts(&self, access: Access) -> bool {
        match self {
            Self::Delegation(delegation) => delegation.write || access != Access::Read,
            Self::Layout(layout) => {
                access == Access::Truncate && layout.recalled_by_truncation && layout.write.is_some()
            }
        }
    }
}

impl<F> Default for Recalls<F> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), deadlines: VecDeque::new(), contended: HashMap::default() }
    }
}

impl<F> Recalls<F> {
    /// Returns `true` if no recall is queued.
    pub(super) fn is_settled(&self) -> bool {
        self.queue.is_empty()
    }
}
