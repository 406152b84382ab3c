//! Tests of RPC-over-RDMA over simulated and real providers. They are one program, because linking each test program
//! takes long.

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
