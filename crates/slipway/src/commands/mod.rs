//! One file for each command: its arguments, and `run`.

pub mod bench;
pub mod cat;
pub mod clients;
pub mod completions;
pub mod cp;
pub mod demo;
pub mod df;
pub mod doctor;
pub mod ds;
pub mod layout;
pub mod ls;
pub mod mkdir;
pub mod mount;
pub mod resilver;
pub mod rm;
pub mod serve;
pub mod showmount;
pub mod stat;
