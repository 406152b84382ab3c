//! [`Layouts`]: a back end whose file data are on data servers that clients can use directly.
//!
//! A *layout* tells a client on which data servers the bytes of a file are. The back end has the geometry of files, the
//! data servers, and the right of clients to use them. The server above it has the state of its clients: who holds which
//! layout, until when, and who must return it. They share this interface, and it has no type of a protocol.
//!
//! **Holders.** The server gives each layout that a client holds on a file a [`LayoutHolder`], which no other layout has
//! while the server runs. A back end can so keep a set of holders for each file:
//!
//! 1. [`grant`](Layouts::grant) adds the mode to the holder. The server may ask again for the same holder and mode: the
//!    client gets the geometry of that time.
//! 2. [`commit`](Layouts::commit), [`report`](Layouts::report) and [`count`](Layouts::count) are messages of a holder.
//! 3. [`release`](Layouts::release) (the client has returned the layout) or [`fence`](Layouts::fence) (the client must not
//!    use it any more, and may still try) removes modes of the holder. Each mode that was granted to a holder is removed by
//!    one of the two, unless the server ends first. A mode that the holder does not have can be removed too: the server
//!    repeats a removal if it does not know whether the earlier one was executed.
//!
//! Holders do not survive the server. When a back end is opened, all holders of the last time are gone, but their clients
//! may still use the data servers: the back end must fence the layouts that it has granted before.
//!
//! **Changes of the geometry.** A back end that wants to change a file's geometry, or the state of a copy, sends
//! [`LayoutEvent::Recall`] and waits until the holders that it concerns have been removed. The server asks the clients, and
//! fences those that do not answer. Until then, `grant` returns `Delay`.
//!
//! **Sizes.** The server recalls the layouts for writing of other clients before it truncates a file, and does not ask for
//! new ones until the truncation is complete. So a `commit` is about writes after the last truncation.
//!
//! **Identity.** The caller's credentials need not be checked: the server has checked that the client has opened the file, or
//! acts for itself.
//!
//! All operations can be [pending](crate::pending).

use std::{fmt, net::SocketAddr, sync::Arc};

use bytes::Bytes;

use crate::{Caller, Change, Handle, Result, Time};

/// The layouts of a file system tree.
pub trait Layouts: Send + Sync {
    /// Returns the properties of the layouts of this tree. They do not change.
    fn caps(&self) -> &LayoutCaps;

    /// Sets the receiver of events. The server calls this before it serves the tree. A later receiver replaces an earlier
    /// one.
    fn subscribe(&self, events: Arc<dyn LayoutEvents>);

    /// Grants a layout of the whole file to a holder. A layout for writing can also be used for reading, unless the layout
    /// says otherwise.
    ///
    /// # Errors
    /// Returns `NotSupported` if the file has no layout for this mode, and will not have one soon: the client uses the server
    /// for its data; `Delay` if there is none at the moment, for example during a recall; `Stale`, `IsDir`, `Invalid` (not a
    /// file), `NoSpace`, `ReadOnly` and others. The holder has no new mode then.
    fn grant(&self, caller: &Caller<'_>, file: &Handle, request: &LayoutRequest) -> Result<Layout>;

    /// Returns the data servers of a device that a layout of this tree names.
    ///
    /// # Errors
    /// Returns `NotFound` if there is no such device, or it is not of this kind.
    fn device(&self, caller: &Caller<'_>, id: LayoutDeviceId, kind: LayoutKind) -> Result<LayoutDevice>;

    /// Makes writes to data servers visible: a file that is shorter than the given size gets this size, and the times and
    /// the change attribute show that the data has changed. The file never becomes shorter. If the file was truncated since the
    /// writes, the size can be too large, and the back end finds the right one. The data are durable at the data
    /// servers, and the attributes are durable when this returns. The holder is `None` if it held the layout before the
    /// server was started. Returns the attributes before and after.
    ///
    /// # Errors
    /// Returns `FileTooBig`, `NoSpace`, `Io`, `Stale` and others.
    fn commit(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        holder: Option<LayoutHolder>,
        commit: &LayoutCommit,
    ) -> Result<Change>;

    /// Takes note of errors that a client had at data servers. The client is not trusted: it can be the only one that cannot
    /// reach a data server. A back end that marks a copy as stale because of this does so before it returns, and sends an event
    /// if layouts must be recalled. The holder is `None` if it held the layout before the server was started.
    ///
    /// # Errors
    /// Returns `Io`, `Stale` and others.
    fn report(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        holder: Option<LayoutHolder>,
        failures: &[DataFailure],
    ) -> Result<()>;

    /// Takes note of a client's use of a data server. This never waits.
    fn count(&self, file: &Handle, holder: LayoutHolder, usage: &DataUsage);

    /// Removes modes of a holder whose client has returned them, and does not use them any more. If the client could write
    /// and has not committed, the size of the file is that of the data when this returns. Other holders are not affected.
    ///
    /// # Errors
    /// Returns `Io`, `Stale` and others. The modes are removed in any case.
    fn release(&self, caller: &Caller<'_>, file: &Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()>;

    /// Removes modes of a holder whose client may still use them: after this, the data servers reject its operations, and
    /// the size of the file is that of the data. If the data servers cannot distinguish clients, the back end recalls the
    /// layouts of the other holders.
    ///
    /// # Errors
    /// Returns `Io`, `Delay` and others, if the holder could not be fenced. The server tries again later. A file that does not
    /// exist any more needs no fence, and is no error.
    fn fence(&self, caller: &Caller<'_>, file: &Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()>;
}

/// The properties of the layouts of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutCaps {
    /// The kinds of layouts, in the order of preference.
    pub kinds: Vec<LayoutKind>,
    /// The preferred number of bytes of an access: the stripe unit.
    pub block_size: u32,
    /// The preferred alignment of an access, in bytes.
    pub alignment: u32,
    /// The sizes below which a client should use the server and not ask for a layout.
    pub threshold: Option<LayoutThreshold>,
    /// `true` if layouts for writing must be recalled before a file is truncated by somebody else.
    pub recalled_by_truncation: bool,
}

/// The limits below which a client should use the server and not ask for a layout. A limit that is `None` does not apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayoutThreshold {
    /// The size of a file for reads, in bytes.
    pub read_size: Option<u64>,
    /// The size of a file for writes, in bytes.
    pub write_size: Option<u64>,
    /// The size of one read, in bytes.
    pub read_io: Option<u64>,
    /// The size of one write, in bytes.
    pub write_io: Option<u64>,
}

/// A kind of layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayoutKind {
    /// Copies of the file, each striped over data servers of any version of NFS.
    Flexible,
    /// The file striped over data servers of NFSv4.1 or later.
    Files,
}

/// The use for which a layout is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayoutMode {
    /// Reading.
    Read,
    /// Reading and writing.
    Write,
}

/// A set of modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LayoutModes {
    /// Layouts for reading.
    pub read: bool,
    /// Layouts for reading and writing.
    pub write: bool,
}

/// The layouts that one client holds on one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayoutHolder(pub u64);

/// A client's wish for a layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayoutRequest {
    /// The holder.
    pub holder: LayoutHolder,
    /// The kind.
    pub kind: LayoutKind,
    /// The mode.
    pub mode: LayoutMode,
    /// The bytes that the client will use first.
    pub range: LayoutRange,
    /// The transport by which the client reached the server, and so probably can reach data servers.
    pub transport: DataTransport,
    /// `true` if the client asks for the layout when it opens the file, and so does not know yet how it will use the file.
    pub with_open: bool,
    /// `true` if the client can use copies that are striped ([`LayoutKind::Flexible`]).
    pub striped_copies: bool,
}

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayoutRange {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes; `u64::MAX` means to the end of the file.
    pub len: u64,
}

/// A layout of a whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// See [`LayoutKind::Flexible`].
    Flexible(FlexibleLayout),
    /// See [`LayoutKind::Files`].
    Files(FilesLayout),
}

/// Copies of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlexibleLayout {
    /// The copies.
    pub mirrors: Vec<Mirror>,
    /// The stripe unit in bytes; 0 if each copy has one data file. A byte has the same offset in its data file as in the
    /// file.
    pub stripe_unit: u64,
    /// `true` if the client need not commit its writes by [`Layouts::commit`].
    pub no_commit: bool,
    /// `true` if the client must not use the server for data if data servers fail.
    pub no_io_through_server: bool,
    /// `true` if a layout for writing must not be used for reading.
    pub no_read: bool,
    /// The interval in which the client should report its use of data servers, in seconds; 0 for never.
    pub stats_interval_s: u32,
    /// `true` if the client must return the layout when it closes the file.
    pub return_on_close: bool,
}

/// A copy of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The data files, one for each stripe. A data file can be in several mirrors, if its stripe has fewer copies than another.
    pub data_files: Vec<DataFile>,
}

/// A data file on one data server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// The data server: a device of kind [`LayoutKind::Flexible`].
    pub device: LayoutDeviceId,
    /// The preference of this copy for reading. A higher number is better.
    pub efficiency: u32,
    /// The file handle, at most 128 bytes; at most 64 for NFSv3.
    pub handle: Bytes,
    /// The user as which the client must access the data file. A data server that is tightly coupled ignores it.
    pub uid: u32,
    /// The group as which the client must access the data file.
    pub gid: u32,
    /// The stateid with which the client must access the data file, `seqid` first. `None` if the data server checks none.
    pub stateid: Option<[u8; 16]>,
}

/// A file that is striped over data servers of NFSv4.1 or later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesLayout {
    /// The data servers: a device of kind [`LayoutKind::Files`].
    pub device: LayoutDeviceId,
    /// The stripe unit in bytes: a multiple of 64, not 0.
    pub stripe_unit: u32,
    /// `true` if the stripe units of a data file follow each other. Otherwise a byte has the same offset in its data file
    /// as in the file.
    pub dense: bool,
    /// The stripe with which the pattern starts.
    pub first_stripe: u32,
    /// The offset in the file at which the pattern starts.
    pub pattern_offset: u64,
    /// `true` if the client commits unstable writes by COMMIT to this server, and not to the data servers.
    pub commit_through_server: bool,
    /// The file handles: one for all data servers, or (sparse) one for each data server, or (dense) one for each stripe.
    pub handles: Vec<Bytes>,
    /// `true` if the client must return the layout when it closes the file.
    pub return_on_close: bool,
}

/// The identifier of a device. A device with other addresses has another identifier.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayoutDeviceId(pub [u8; 16]);

/// The data servers of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutDevice {
    /// A data server of a [`DataFile`].
    Flexible {
        /// Its addresses, in the order of preference.
        addresses: Vec<DataAddress>,
        /// Its versions, in the order of preference.
        versions: Vec<DataVersion>,
    },
    /// The data servers of a [`FilesLayout`].
    Files {
        /// For each stripe, the index of its data server.
        stripes: Vec<u32>,
        /// The addresses of each data server.
        servers: Vec<Vec<DataAddress>>,
    },
}

/// An address of a data server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataAddress {
    /// The transport.
    pub transport: DataTransport,
    /// The address.
    pub address: SocketAddr,
}

/// A transport between clients and servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataTransport {
    /// TCP.
    Tcp,
    /// RDMA.
    Rdma,
    /// Shared memory on one host. Only clients of this project know it.
    Shm,
}

/// A version of NFS that a data server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataVersion {
    /// The version: 3 or 4.
    pub version: u32,
    /// The minor version; 0 for version 3.
    pub minor: u32,
    /// Maximum bytes of a READ.
    pub read_max: u32,
    /// Maximum bytes of a WRITE.
    pub write_max: u32,
    /// `true` if the data server checks the stateids of layouts.
    pub tightly_coupled: bool,
}

/// Writes to data servers that become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayoutCommit {
    /// The range in which the client has written.
    pub range: LayoutRange,
    /// Minimum size of the file afterwards: the offset behind the last byte that the client has written. `None` if it has
    /// written none that can change the size.
    pub size: Option<u64>,
    /// The time of the last write, if the client proposes it: it is later than the file's current one and not in the future.
    pub mtime: Option<Time>,
}

/// An operation that a client could not execute at a data server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataFailure {
    /// The range of the file.
    pub range: LayoutRange,
    /// The device.
    pub device: LayoutDeviceId,
    /// The operation.
    pub operation: DataOperation,
    /// The error.
    pub error: DataError,
}

/// An operation on a data server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataOperation {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making writes durable.
    Commit,
    /// Another one.
    Other,
}

/// The error of a data server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataError {
    /// The data server could not be reached, or did not answer.
    Unreachable,
    /// The data server has no space.
    NoSpace,
    /// The data server denied access: the client is fenced, or the data server has other users.
    Denied,
    /// The data file does not exist, or its handle is not valid.
    Stale,
    /// The storage of the data server failed.
    Io,
    /// Another error, by its number in NFSv4.
    Other(u32),
}

/// A client's use of a data server since its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataUsage {
    /// The device.
    pub device: LayoutDeviceId,
    /// The number of reads.
    pub reads: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
    /// The number of writes.
    pub writes: u64,
    /// The number of bytes written.
    pub write_bytes: u64,
}

/// A receiver of events: the server.
pub trait LayoutEvents: Send + Sync {
    /// Takes an event. This never blocks and calls no function of the back end, so it can be called under locks.
    fn notify(&self, event: LayoutEvent);
}

/// An event that concerns the holders of layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutEvent {
    /// The layouts of a file must be returned. The end of the recall of each holder is [`Layouts::release`] or
    /// [`Layouts::fence`].
    Recall {
        /// The file.
        file: Handle,
        /// The modes.
        modes: LayoutModes,
        /// `true` if clients should not write their cached data with the old layout, because they would write to the wrong
        /// place or to a failed data server.
        changed: bool,
    },
    /// All layouts of the tree must be returned.
    RecallAll {
        /// See [`LayoutEvent::Recall`].
        changed: bool,
    },
    /// A device is not used by any layout any more, and clients should forget it.
    DeviceRemoved {
        /// The device.
        device: LayoutDeviceId,
        /// The kind of its layouts.
        kind: LayoutKind,
    },
    /// Another device replaces this one: clients should ask for it again when they use it next. If `immediate`, they should
    /// stop using it before that.
    DeviceChanged {
        /// The device.
        device: LayoutDeviceId,
        /// The kind of its layouts.
        kind: LayoutKind,
        /// `true` if I/O by the old addresses must stop.
        immediate: bool,
    },
}

impl Layout {
    /// Returns the kind.
    pub fn kind(&self) -> LayoutKind {
        match self {
            Self::Flexible(_) => LayoutKind::Flexible,
            Self::Files(_) => LayoutKind::Files,
        }
    }

    /// Returns `true` if the client must return the layout when it closes the file.
    pub fn return_on_close(&self) -> bool {
        match self {
            Self::Flexible(layout) => layout.return_on_close,
            Self::Files(layout) => layout.return_on_close,
        }
    }
}

impl LayoutDevice {
    /// Returns the kind of the layouts that name it.
    pub fn kind(&self) -> LayoutKind {
        match self {
            Self::Flexible { .. } => LayoutKind::Flexible,
            Self::Files { .. } => LayoutKind::Files,
        }
    }
}

impl LayoutModes {
    /// All modes.
    pub const ALL: Self = Self { read: true, write: true };
    /// No mode.
    pub const NONE: Self = Self { read: false, write: false };
    /// Layouts for reading.
    pub const READ: Self = Self { read: true, write: false };
    /// Layouts for reading and writing.
    pub const WRITE: Self = Self { read: false, write: true };

    /// Returns the modes that are in both sets.
    pub fn intersect(self, other: Self) -> Self {
        Self { read: self.read && other.read, write: self.write && other.write }
    }

    /// Returns the modes that are in this set and not in `other`.
    pub fn without(self, other: Self) -> Self {
        Self { read: self.read && !other.read, write: self.write && !other.write }
    }

    /// Returns `true` if there is no mode in the set.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

impl From<LayoutMode> for LayoutModes {
    fn from(mode: LayoutMode) -> Self {
        match mode {
            LayoutMode::Read => Self::READ,
            LayoutMode::Write => Self::WRITE,
        }
    }
}

impl LayoutRange {
    /// The whole file.
    pub const ALL: Self = Self { offset: 0, len: u64::MAX };
}

impl fmt::Debug for LayoutDeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LayoutDeviceId(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}
