//! Tests of RPC-over-RDMA over simulated and real providers. One program, because each test program links everything anew.

mod common;

mod credits;
mod iwarp;
mod keyvalue;
mod pair;
mod read_read;
mod regions;
mod requester;
mod responder;
mod reverse;
mod rpc;
mod transport;
