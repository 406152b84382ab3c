//! Data: READ, WRITE, COMMIT, and what RFC 7862 adds: sparse files, copies, advice.

use xdr::{Decode, Encode, Opaque, Payload};

use crate::v4::{bitmap::Bitmap4, location::*, status::*, types::*};

/// COMMIT arguments (RFC 8881 §18.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CommitArgs {
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 means to the end.
    pub count: u32,
}

/// COMMIT results: the verifier of WRITEs.
pub type CommitRes = Res4<Verifier4>;

/// READ arguments (RFC 8881 §18.22), and READ_PLUS arguments (RFC 7862 §15.10).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadArgs {
    /// On behalf of what.
    pub stateid: Stateid4,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub count: u32,
}

/// A successful READ.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadOk {
    /// Whether the bytes reach the end.
    pub eof: bool,
    /// The bytes; may be placed directly (RFC 8267 §5.1).
    pub data: Payload<DATA_BOUND>,
}

/// READ results.
pub type ReadRes = Res4<ReadOk>;

/// WRITE arguments (RFC 8881 §18.32).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteArgs {
    /// On behalf of what.
    pub stateid: Stateid4,
    /// First byte.
    pub offset: u64,
    /// How durable before the reply.
    pub stable: StableHow4,
    /// The bytes; may be placed directly (RFC 8267 §5.1).
    pub data: Payload<DATA_BOUND>,
}

/// A successful WRITE.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteOk {
    /// Bytes written.
    pub count: u32,
    /// How durable they are.
    pub committed: StableHow4,
    /// Changes when uncommitted writes may have been lost.
    pub writeverf: Verifier4,
}

/// WRITE results.
pub type WriteRes = Res4<WriteOk>;

/// ALLOCATE and DEALLOCATE arguments (RFC 7862 §15.1, §15.4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AllocateArgs {
    /// On behalf of what.
    pub stateid: Stateid4,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// CLONE arguments (RFC 7862 §15.13).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CloneArgs {
    /// On behalf of what it reads the saved file handle.
    pub src_stateid: Stateid4,
    /// And writes the current one.
    pub dst_stateid: Stateid4,
    /// From here.
    pub src_offset: u64,
    /// To here.
    pub dst_offset: u64,
    /// Bytes; 0 means to the end.
    pub count: u64,
}

/// COPY arguments (RFC 7862 §15.2).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CopyArgs {
    /// On behalf of what it reads.
    pub src_stateid: Stateid4,
    /// And writes.
    pub dst_stateid: Stateid4,
    /// From here.
    pub src_offset: u64,
    /// To here.
    pub dst_offset: u64,
    /// Bytes; 0 means to the end.
    pub count: u64,
    /// Whether from the first byte to the last.
    pub consecutive: bool,
    /// Whether it must end before the reply.
    pub synchronous: bool,
    /// Where the source is; nowhere means on this server.
    pub source_server: Netlocs4,
}

/// A write that may go on behind the reply (`write_response4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteResponse4 {
    /// It goes on, and this is its name.
    pub callback_id: Option<Stateid4>,
    /// Bytes written so far.
    pub count: u64,
    /// How durable they are.
    pub committed: StableHow4,
    /// As in WRITE.
    pub writeverf: Verifier4,
}

/// How a copy is, or would have to be, made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CopyRequirements4 {
    /// From the first byte to the last.
    pub consecutive: bool,
    /// Before the reply.
    pub synchronous: bool,
}

/// A successful COPY.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CopyOk {
    /// What was written.
    pub response: WriteResponse4,
    /// How.
    pub requirements: CopyRequirements4,
}

/// COPY results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum CopyRes {
    /// It is done, or being done.
    #[xdr(Nfsstat4::Ok)]
    Ok(CopyOk),
    /// It can only be done this way.
    #[xdr(Nfsstat4::OffloadNoReqs)]
    OffloadNoReqs(CopyRequirements4),
    /// Any other status.
    #[xdr(default)]
    Fail(Nfsstat4),
}
op_result!(CopyRes { Ok => Ok, OffloadNoReqs => OffloadNoReqs });

/// COPY_NOTIFY arguments (RFC 7862 §15.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CopyNotifyArgs {
    /// On behalf of what.
    pub src_stateid: Stateid4,
    /// Who will read.
    pub destination_server: Netloc4,
}

/// A successful COPY_NOTIFY.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CopyNotifyOk {
    /// For how long this holds.
    pub lease_time: Nfstime4,
    /// With what the destination reads.
    pub stateid: Stateid4,
    /// Where.
    pub source_server: Netlocs4,
}

/// COPY_NOTIFY results.
pub type CopyNotifyRes = Res4<CopyNotifyOk>;

/// OFFLOAD_CANCEL and OFFLOAD_STATUS arguments (RFC 7862 §15.8, §15.9).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OffloadArgs {
    /// The copy.
    pub stateid: Stateid4,
}

/// A successful OFFLOAD_STATUS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OffloadStatusOk {
    /// Bytes copied.
    pub count: u64,
    /// How it ended, if it has.
    pub complete: Option<Nfsstat4>,
}

/// OFFLOAD_STATUS results.
pub type OffloadStatusRes = Res4<OffloadStatusOk>;

/// What will be read and written (RFC 7862 §15.5); bits of IO_ADVISE's hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum IoAdviseType4 {
    /// Nothing special.
    Normal = 0,
    /// In order.
    Sequential = 1,
    /// In reverse order.
    SequentialBackwards = 2,
    /// In any order.
    Random = 3,
    /// Soon.
    WillNeed = 4,
    /// Soon, perhaps.
    WillNeedOpportunistic = 5,
    /// Not soon.
    DontNeed = 6,
    /// Once.
    NoReuse = 7,
    /// Read.
    Read = 8,
    /// Written.
    Write = 9,
    /// Near where it was made.
    InitProximity = 10,
}

/// IO_ADVISE arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct IoAdviseArgs {
    /// On behalf of what.
    pub stateid: Stateid4,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 means to the end.
    pub count: u64,
    /// Which of [`IoAdviseType4`].
    pub hints: Bitmap4,
}

/// IO_ADVISE results: the hints that are taken.
pub type IoAdviseRes = Res4<Bitmap4>;

/// Data or hole (RFC 7862 §11.1.3, `data_content4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum DataContent4 {
    /// Data.
    Data = 0,
    /// A hole.
    Hole = 1,
}

/// A piece of a file.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ReadPlusContent {
    /// Data.
    #[xdr(0)]
    Data {
        /// Where.
        offset: u64,
        /// The bytes; not to be placed directly (RFC 8267 §5.1).
        data: Opaque<DATA_BOUND>,
    },
    /// Zeros.
    #[xdr(1)]
    Hole {
        /// Where.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
}

/// A successful READ_PLUS (RFC 7862 §15.10).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadPlusOk {
    /// Whether it reaches the end.
    pub eof: bool,
    /// The pieces, in order.
    pub contents: Vec<ReadPlusContent>,
}

/// READ_PLUS results.
pub type ReadPlusRes = Res4<ReadPlusOk>;

/// SEEK arguments (RFC 7862 §15.11).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SeekArgs {
    /// On behalf of what.
    pub stateid: Stateid4,
    /// From here on.
    pub offset: u64,
    /// What to look for.
    pub what: DataContent4,
}

/// A successful SEEK.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SeekOk {
    /// Whether there is none up to the end.
    pub eof: bool,
    /// Where it begins.
    pub offset: u64,
}

/// SEEK results.
pub type SeekRes = Res4<SeekOk>;

/// A pattern that is written over and over (RFC 7862 §8.1.1, `app_data_block4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AppDataBlock4 {
    /// First byte.
    pub offset: u64,
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks.
    pub block_count: u64,
    /// Where in a block its number is.
    pub reloff_blocknum: u64,
    /// The first block's number.
    pub block_num: u32,
    /// Where in a block the pattern is.
    pub reloff_pattern: u64,
    /// The pattern.
    pub pattern: Opaque<BODY_BOUND>,
}

/// WRITE_SAME arguments (RFC 7862 §15.12).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteSameArgs {
    /// On behalf of what.
    pub stateid: Stateid4,
    /// How durable before the reply.
    pub stable: StableHow4,
    /// What.
    pub adb: AppDataBlock4,
}

/// WRITE_SAME results.
pub type WriteSameRes = Res4<WriteResponse4>;
