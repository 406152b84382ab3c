//! NFS version 4. So far its state: [`state`].

pub mod state;
