//! NFS protocol data: the types of the wire protocol and their encoding. This crate executes nothing.
//!
//! The names are those of the RFCs in Rust's case. Read RFC 1813 for [`v3`] and [`mount`], and RFC 8881 and 7862 for
//! [`v4`]. [`nlm`], [`nsm`] and [`nfsacl`] are the auxiliary protocols of NFSv3 for locks and access control lists.
//! [`passthrough`] is a protocol of this project.

pub mod mount;
pub mod nfsacl;
pub mod nlm;
pub mod nsm;
pub mod passthrough;
pub mod v3;
pub mod v4;

/// The NFS program number.
pub const NFS_PROGRAM: u32 = 100_003;
/// The MOUNT program number.
pub const MOUNT_PROGRAM: u32 = 100_005;
/// The TCP and UDP port of NFS.
pub const NFS_PORT: u16 = 2049;
/// The port of NFS over RDMA (RFC 8267 §4).
pub const NFS_RDMA_PORT: u16 = 20049;
