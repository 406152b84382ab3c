//! Data: READ, WRITE, COMMIT, and the operations of RFC 7862 for sparse files, copies and hints.

use xdr::{Decode, Encode, Opaque, Payload};

use crate::v4::{bitmap::Bitmap4, location::*, status::*, types::*};

/// COMMIT arguments (RFC 8881 §18.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CommitArgs {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes; 0 means to the end of the file.
    pub count: u32,
}

/// COMMIT results: the verifier of WRITEs.
pub type CommitRes = Res4<Verifier4>;

/// READ arguments (RFC 8881 §18.22), and READ_PLUS arguments (RFC 7862 §15.10).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadArgs {
    /// The stateid of an open, lock or delegation.
    pub stateid: Stateid4,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub count: u32,
}

/// A successful READ.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadOk {
    /// `true` if the data reaches the end of the file.
    pub eof: bool,
    /// The data; it may be placed directly (RFC 8267 §5.1).
    pub data: Payload<DATA_BOUND>,
}

/// READ results.
pub type ReadRes = Res4<ReadOk>;

/// WRITE arguments (RFC 8881 §18.32).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteArgs {
    /// The stateid of an open, lock or delegation.
    pub stateid: Stateid4,
    /// The offset of the first byte.
    pub offset: u64,
    /// The durability that is required before the reply.
    pub stable: StableHow4,
    /// The data; it may be placed directly (RFC 8267 §5.1).
    pub data: Payload<DATA_BOUND>,
}

/// A successful WRITE.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteOk {
    /// The number of bytes written.
    pub count: u32,
    /// The durability of the written data.
    pub committed: StableHow4,
    /// The write verifier, which changes when uncommitted writes may have been lost.
    pub writeverf: Verifier4,
}

/// WRITE results.
pub type WriteRes = Res4<WriteOk>;

/// ALLOCATE and DEALLOCATE arguments (RFC 7862 §15.1, §15.4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AllocateArgs {
    /// The stateid of an open, lock or delegation.
    pub stateid: Stateid4,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

/// CLONE arguments (RFC 7862 §15.13).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CloneArgs {
    /// The stateid for reading the source, which is the saved file handle.
    pub src_stateid: Stateid4,
    /// The stateid for writing the destination, which is the current file handle.
    pub dst_stateid: Stateid4,
    /// The offset in the source.
    pub src_offset: u64,
    /// The offset in the destination.
    pub dst_offset: u64,
    /// The number of bytes; 0 means to the end of the file.
    pub count: u64,
}

/// COPY arguments (RFC 7862 §15.2).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CopyArgs {
    /// The stateid for reading the source.
    pub src_stateid: Stateid4,
    /// The stateid for writing the destination.
    pub dst_stateid: Stateid4,
    /// The offset in the source.
    pub src_offset: u64,
    /// The offset in the destination.
    pub dst_offset: u64,
    /// The number of bytes; 0 means to the end of the file.
    pub count: u64,
    /// `true` if the bytes must be copied in order.
    pub consecutive: bool,
    /// `true` if the copy must end before the reply.
    pub synchronous: bool,
    /// The servers that have the source. An empty list means this server.
    pub source_server: Netlocs4,
}

/// The result of a write that may continue after the reply (`write_response4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteResponse4 {
    /// The stateid of the operation, if it continues.
    pub callback_id: Option<Stateid4>,
    /// The number of bytes written so far.
    pub count: u64,
    /// The durability of the written data.
    pub committed: StableHow4,
    /// The write verifier, as in WRITE.
    pub writeverf: Verifier4,
}

/// The way in which a copy is made, or would have to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CopyRequirements4 {
    /// `true` if the bytes are copied in order.
    pub consecutive: bool,
    /// `true` if the copy ends before the reply.
    pub synchronous: bool,
}

/// A successful COPY.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CopyOk {
    /// The result of the write.
    pub response: WriteResponse4,
    /// The way in which the copy is made.
    pub requirements: CopyRequirements4,
}

/// COPY results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum CopyRes {
    /// The copy is complete or in progress.
    #[xdr(Nfsstat4::Ok)]
    Ok(CopyOk),
    /// The copy can only be made in this way.
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
    /// The stateid of an open, lock or delegation.
    pub src_stateid: Stateid4,
    /// The server that will read the source.
    pub destination_server: Netloc4,
}

/// A successful COPY_NOTIFY.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CopyNotifyOk {
    /// The time for which the stateid is valid.
    pub lease_time: Nfstime4,
    /// The stateid with which the destination reads.
    pub stateid: Stateid4,
    /// The servers from which the destination can read.
    pub source_server: Netlocs4,
}

/// COPY_NOTIFY results.
pub type CopyNotifyRes = Res4<CopyNotifyOk>;

/// OFFLOAD_CANCEL and OFFLOAD_STATUS arguments (RFC 7862 §15.8, §15.9).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OffloadArgs {
    /// The stateid of the copy.
    pub stateid: Stateid4,
}

/// A successful OFFLOAD_STATUS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OffloadStatusOk {
    /// The number of bytes copied.
    pub count: u64,
    /// The final status, if the copy has ended.
    pub complete: Option<Nfsstat4>,
}

/// OFFLOAD_STATUS results.
pub type OffloadStatusRes = Res4<OffloadStatusOk>;

/// The expected use of data (RFC 7862 §15.5). The variants are bits of the hints of IO_ADVISE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum IoAdviseType4 {
    /// No special pattern.
    Normal = 0,
    /// Sequential access.
    Sequential = 1,
    /// Sequential access in reverse order.
    SequentialBackwards = 2,
    /// Random access.
    Random = 3,
    /// The data will be used soon.
    WillNeed = 4,
    /// The data may be used soon.
    WillNeedOpportunistic = 5,
    /// The data will not be used soon.
    DontNeed = 6,
    /// The data will be used once.
    NoReuse = 7,
    /// The data will be read.
    Read = 8,
    /// The data will be written.
    Write = 9,
    /// The data will be accessed from near the place where it was created.
    InitProximity = 10,
}

/// IO_ADVISE arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct IoAdviseArgs {
    /// The stateid of an open, lock or delegation.
    pub stateid: Stateid4,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes; 0 means to the end of the file.
    pub count: u64,
    /// The hints: bits of [`IoAdviseType4`].
    pub hints: Bitmap4,
}

/// IO_ADVISE results: the hints that the server will use.
pub type IoAdviseRes = Res4<Bitmap4>;

/// The kind of content (RFC 7862 §11.1.3, `data_content4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum DataContent4 {
    /// The content is data.
    Data = 0,
    /// A hole.
    Hole = 1,
}

/// A segment of a file.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ReadPlusContent {
    /// Data.
    #[xdr(0)]
    Data {
        /// The offset.
        offset: u64,
        /// The data; it must not be placed directly (RFC 8267 §5.1).
        data: Opaque<DATA_BOUND>,
    },
    /// A hole.
    #[xdr(1)]
    Hole {
        /// The offset.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
}

/// A successful READ_PLUS (RFC 7862 §15.10).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadPlusOk {
    /// `true` if the result reaches the end of the file.
    pub eof: bool,
    /// The segments, in order.
    pub contents: Vec<ReadPlusContent>,
}

/// READ_PLUS results.
pub type ReadPlusRes = Res4<ReadPlusOk>;

/// SEEK arguments (RFC 7862 §15.11).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SeekArgs {
    /// The stateid of an open, lock or delegation.
    pub stateid: Stateid4,
    /// The offset from which to search.
    pub offset: u64,
    /// The kind of content to search for.
    pub what: DataContent4,
}

/// A successful SEEK.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SeekOk {
    /// `true` if there is none before the end of the file.
    pub eof: bool,
    /// The offset at which it begins.
    pub offset: u64,
}

/// SEEK results.
pub type SeekRes = Res4<SeekOk>;

/// A pattern that is written repeatedly (RFC 7862 §8.1.1, `app_data_block4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AppDataBlock4 {
    /// The offset of the first byte.
    pub offset: u64,
    /// The size of a block in bytes.
    pub block_size: u64,
    /// The number of blocks.
    pub block_count: u64,
    /// The offset of the block number in a block.
    pub reloff_blocknum: u64,
    /// The number of the first block.
    pub block_num: u32,
    /// The offset of the pattern in a block.
    pub reloff_pattern: u64,
    /// The pattern.
    pub pattern: Opaque<BODY_BOUND>,
}

/// WRITE_SAME arguments (RFC 7862 §15.12).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteSameArgs {
    /// The stateid of an open, lock or delegation.
    pub stateid: Stateid4,
    /// The durability that is required before the reply.
    pub stable: StableHow4,
    /// The pattern to write.
    pub adb: AppDataBlock4,
}

/// WRITE_SAME results.
pub type WriteSameRes = Res4<WriteResponse4>;
