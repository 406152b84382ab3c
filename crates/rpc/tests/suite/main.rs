//! Tests of RPC over TCP and UDP. They are one program, because linking each test program takes long.

mod common;

mod faults;
mod hostile;
mod limits;
mod loopback;
mod udp;
