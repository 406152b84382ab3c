//! Tests of the client against servers in the same process. One program, because each test program links everything anew.

mod common;

mod blocking;
mod data;
mod faults;
mod hostile;
mod migration;
mod mixed;
mod rdma;
mod referrals;
mod restart;
mod sessions;
mod tree;
mod v40;
mod waiting;
