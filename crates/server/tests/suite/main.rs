//! Tests of the server, called directly and over TCP. They are one program, because each test program would link
//! everything again.

mod common;

mod acls;
mod admin;
mod admission;
mod audit;
mod blocking;
mod callbacks;
mod hung_export;
mod identity;
mod io;
mod locks;
mod names;
mod objects;
mod over_tcp;
mod pending;
mod readdir;
mod restart;
mod sec;
mod v40;
mod v40_callbacks;
mod v4_compound;
mod v4_data_server;
mod v4_delegations;
mod v4_files;
mod v4_holder;
mod v4_hostile;
mod v4_hostile_callbacks;
mod v4_layout_reclaims;
mod v4_layouts;
mod v4_minor2;
mod v4_names;
mod v4_offload;
mod v4_referrals;
mod v4_removed;
mod v4_rules;
mod v4_storage;
mod v4_waiting;
mod xprtsec;
