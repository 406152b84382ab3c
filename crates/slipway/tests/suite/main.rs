//! Tests of the binary. They are one program, because each test program is linked separately.

mod common;

mod bench;
mod cli;
mod clients;
mod commands;
mod cp;
mod cp_resume;
mod documented;
mod mount;
mod mount_acl;
mod mount_cache;
mod mount_outage;
mod mount_passthrough;
mod mount_read;
mod mount_referrals;
mod mount_status;
mod mount_unpack;
mod mount_users;
mod mount_v4;
mod mount_write;
mod mount_writeback;
mod outside;
mod pnfs;
mod pnfs_attributes;
mod pnfs_doctor;
mod pnfs_objects;
mod pnfs_operations;
mod pnfs_transports;
mod privilege;
mod secrets;
mod serve;
mod serve_hung;
mod state;
mod tls;
mod unread;
