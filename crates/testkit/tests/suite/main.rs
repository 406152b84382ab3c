//! Tests with simulated worlds, captures and corpora. They are one program, because each program compiles the whole server
//! and the whole client again.

mod callbacks4;
mod capture_iwarp;
mod capture_nfs;
mod capture_rpcrdma;
mod deferred;
mod exactly_once;
mod faults;
mod fuzz_corpora;
mod gss;
mod idle;
mod iwarp_cut;
mod port;
mod regions;
mod replay;
mod security;
