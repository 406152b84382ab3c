//! Tests of the client against servers in the same process. They are one program, because linking each test program
//! takes long.

mod common;

mod blocking;
mod closing;
mod data;
mod faults;
mod hostile;
mod locks3;
mod migration;
mod mixed;
mod opening;
mod pnfs;
mod pnfs_files;
mod pnfs_parallel;
mod pnfs_regions;
mod rdma;
mod referrals;
mod requester;
mod restart;
mod session_errors;
mod sessions;
mod sockets;
mod tree;
mod v40;
mod waiting;
