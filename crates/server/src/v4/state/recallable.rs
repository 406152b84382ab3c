//! Recallable state: what a client holds of a file until the server wants it back (RFC 8881 §10.2, §12.5.5).
//!
//! State is granted on a file to a client, one of a kind for each client and file. A kind adds a variant to [`Grant`] and
//! [`RecallableKind`], the operations that grant and return it, and the callback that recalls it. The compiler then shows each place
//! where the kinds differ. [`Delegation`] is the only one so far. [`recall`](super::transitions::recall) is what all kinds have in common.

use std::{collections::VecDeque, time::Instant};

use entropy::HashMap;
use nfs::v4::*;

use super::ids::Other;
use crate::sharing::conflict::Access;

/// Recallable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recallable {
    /// True while it is being recalled.
    pub recalled: bool,
    /// The delegation, or other state.
    pub grant: Grant,
}

/// State of one of the kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// A delegation.
    Delegation(Delegation),
}

/// A delegation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegation {
    /// True if it is to write.
    pub write: bool,
    /// The change attribute when it was given, for one to write.
    pub change: u64,
    /// True if the holder has said that it has changed the file.
    pub modified: bool,
}

/// The kinds of recallable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecallableKind {
    /// Delegations.
    Delegation,
}

/// Recallable state, and its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<F> {
    /// The client.
    pub client: Clientid4,
    /// The file.
    pub file: F,
    /// Its name.
    pub stateid: Stateid4,
}

/// The recalls in progress.
#[derive(Debug)]
pub(super) struct Recalls<F> {
    pub(super) queue: VecDeque<Held<F>>,
    /// When each is revoked that is being recalled, in order.
    pub(super) deadlines: VecDeque<(Instant, Other)>,
    /// Files of which nothing is granted before then.
    pub(super) contended: HashMap<F, Instant>,
}

impl Grant {
    pub(super) fn kind(&self) -> RecallableKind {
        match self {
            Self::Delegation(_) => RecallableKind::Delegation,
        }
    }

    /// Returns true if it lets its holder write.
    pub(super) fn may_write(&self) -> bool {
        match self {
            Self::Delegation(delegation) => delegation.write,
        }
    }

    /// Returns true if an access by another client, or another protocol, breaks the promise to the holder.
    pub(super) fn conflicts(&self, access: Access) -> bool {
        match self {
            Self::Delegation(delegation) => delegation.write || access == Access::Write,
        }
    }

    /// The status by which a client learns that it has lost this.
    pub(super) fn revoked(&self) -> Nfsstat4 {
        match self {
            Self::Delegation(_) => Nfsstat4::DelegRevoked,
        }
    }
}

impl<F> Default for Recalls<F> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), deadlines: VecDeque::new(), contended: HashMap::default() }
    }
}

impl<F> Recalls<F> {
    /// Returns true if no recall is queued.
    pub(super) fn is_settled(&self) -> bool {
        self.queue.is_empty()
    }
}
