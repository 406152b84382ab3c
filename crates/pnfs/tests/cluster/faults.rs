//! The faults of a run, which follow from its seed, and how often each kind has occurred.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use crate::chance;

/// A kind of fault. Each must occur in the runs of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A request to the metadata server does not arrive. The client sends it again.
    RequestLost,
    /// A request arrives after the client has sent it again.
    RequestLate,
    /// A request is executed, and the reply does not arrive. The client sends the request again.
    ReplyLost,
    /// The reply to a request that is sent again was not cached, so the client makes a new request of it.
    ReplyNotCached,
    /// A recall does not arrive. The metadata server sends it again.
    RecallLost,
    /// A recall arrives late. The layout can have been returned, and granted again, since.
    RecallLate,
    /// A client answers a recall with DELAY, and the metadata server sends it again.
    RecallDelayed,
    /// The storage of a data server fails in an operation, which has its effect or not.
    Server(Operation),
    /// A COMMIT that fails loses what it should have made durable.
    CommitLost,
    /// An access to the disk of the metadata server fails, with its effect or without.
    Disk(Access),
    /// A message to a data server is not delivered as it was sent.
    Message(Delivery),
    /// A part of the cluster fails for a while, or ends.
    Part(Part),
    /// A data server is drained.
    Drained,
    /// The files are rebalanced.
    Rebalanced,
}

/// The faults of messages to data servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Delivery {
    Lost,
    Delayed,
    /// It is sent twice.
    Repeated,
    /// It is executed, and the reply does not arrive.
    WithoutReply,
}

/// The faults of parts of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    ServerDown,
    ServerHung,
    ServerSlow,
    ServerFull,
    /// The storage of a data server fails often.
    ServerSick,
    /// The metadata server does not reach a data server.
    ServerCutFromMds,
    /// A client does not reach a data server.
    ServerCutFromClient,
    ServerRestarted,
    AllServersRestarted,
    /// The disk of the metadata server fails often.
    DiskSick,
    /// The metadata server ends at an operation on its disk.
    MdsEndedByDisk,
    /// The metadata server ends at another time.
    MdsEnded,
    /// The host of the metadata server loses its power.
    PowerLost,
    /// A client does not reach the metadata server.
    ClientCut,
    /// A client does not answer recalls, and goes on writing.
    ClientSilent,
    ClientEnded,
    /// A client ends in the middle of a write to several copies.
    ClientEndedInWrite,
}

/// The kinds of accesses to the disk of the metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Changes of names.
    Names,
    /// Changes of a size, of times and of data.
    File,
    /// Changes of a record.
    Record,
    /// Synchronization of a file.
    Sync,
    IndexRead,
    IndexWrite,
    IndexLength,
    IndexSync,
}

/// The kinds of operations on data servers that use their storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Read,
    Write,
    Commit,
    Getattr,
    SetSize,
    /// Changes of users, and of epochs.
    Fence,
    Create,
    Remove,
}

/// All kinds.
pub const FAULTS: [Fault; 47] = [
    Fault::RequestLost,
    Fault::RequestLate,
    Fault::ReplyLost,
    Fault::ReplyNotCached,
    Fault::RecallLost,
    Fault::RecallLate,
    Fault::RecallDelayed,
    Fault::Server(Operation::Read),
    Fault::Server(Operation::Write),
    Fault::Server(Operation::Commit),
    Fault::Server(Operation::Getattr),
    Fault::Server(Operation::SetSize),
    Fault::Server(Operation::Fence),
    Fault::Server(Operation::Create),
    Fault::Server(Operation::Remove),
    Fault::CommitLost,
    Fault::Disk(Access::Names),
    Fault::Disk(Access::File),
    Fault::Disk(Access::Record),
    Fault::Disk(Access::Sync),
    Fault::Disk(Access::IndexRead),
    Fault::Disk(Access::IndexWrite),
    Fault::Disk(Access::IndexLength),
    Fault::Disk(Access::IndexSync),
    Fault::Message(Delivery::Lost),
    Fault::Message(Delivery::Delayed),
    Fault::Message(Delivery::Repeated),
    Fault::Message(Delivery::WithoutReply),
    Fault::Part(Part::ServerDown),
    Fault::Part(Part::ServerHung),
    Fault::Part(Part::ServerSlow),
    Fault::Part(Part::ServerFull),
    Fault::Part(Part::ServerSick),
    Fault::Part(Part::ServerCutFromMds),
    Fault::Part(Part::ServerCutFromClient),
    Fault::Part(Part::ServerRestarted),
    Fault::Part(Part::AllServersRestarted),
    Fault::Part(Part::DiskSick),
    Fault::Part(Part::MdsEndedByDisk),
    Fault::Part(Part::MdsEnded),
    Fault::Part(Part::PowerLost),
    Fault::Part(Part::ClientCut),
    Fault::Part(Part::ClientSilent),
    Fault::Part(Part::ClientEnded),
    Fault::Part(Part::ClientEndedInWrite),
    Fault::Drained,
    Fault::Rebalanced,
];

/// The number of faults of each kind.
pub type Counts = BTreeMap<Fault, u64>;

/// The faults of a run. Clones are the same ones. There are none before [`begin`](Self::begin).
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    active: bool,
    counts: Counts,
}

impl Faults {
    pub fn begin(&self) {
        self.0.lock().active = true;
    }

    pub fn end(&self) {
        self.0.lock().active = false;
    }

    pub fn are_active(&self) -> bool {
        self.0.lock().active
    }

    /// Returns `true` with this probability while there are faults.
    pub fn chance(&self, share: f64) -> bool {
        self.are_active() && chance(share)
    }

    /// Lets a fault of this kind occur with this probability.
    pub fn occurs(&self, fault: Fault, share: f64) -> bool {
        let occurs = self.chance(share);
        if occurs {
            self.count(fault);
        }
        occurs
    }

    /// Counts a fault.
    pub fn count(&self, fault: Fault) {
        *self.0.lock().counts.entry(fault).or_default() += 1;
    }

    pub fn counts(&self) -> Counts {
        self.0.lock().counts.clone()
    }
}
