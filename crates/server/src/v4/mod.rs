//! NFS version 4. So far its state: [`state`], which no service uses yet.

pub mod callback;
pub mod state;
