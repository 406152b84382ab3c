//! Tests of RPC over TCP and UDP. They are one program, because linking each test program takes long.

mod common;

mod calls;
mod faults;
mod hostile;
mod limits;
mod udp;
mod workers;
