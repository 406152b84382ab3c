//! Tests of RPC over TCP and UDP. One program, because each test program links everything anew.

mod common;

mod faults;
mod hostile;
mod limits;
mod loopback;
mod udp;
