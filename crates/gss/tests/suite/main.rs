//! RPCSEC_GSS over every transport, with a mechanism that needs no Kerberos.

mod contexts;
#[path = "../../../testkit/src/process.rs"]
#[allow(dead_code, reason = "one of its two functions is used")]
mod process;
mod rig;
mod storm;
#[path = "../../../testkit/src/toy.rs"]
mod toy;
mod transmissions;
mod window;
