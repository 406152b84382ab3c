//! Storage that fails: what a client has lost nobody else gets, if the client could reclaim it after a restart.

#[allow(dead_code)] // Of how a disk can fail one way is enough.
#[path = "../../../testkit/tests/exactly_once/disk.rs"]
mod disk;

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::v4::*;
use crate::common::*;
use disk::Disk;
use nfs::v4::*;
use rand::{SeedableRng, rngs::StdRng};
use server::{Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings, recovery::Recovery};

fn serve(disk: &Disk) -> NfsServer {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), memory(), options).unwrap();
    let recovery = Recovery::on(disk.open()).unwrap();
    let settings = Settings { lease: LEASE, ..Settings::default() };
    NfsServer::recovering(export, HandleKey::random(), recovery, settings).unwrap()
}

#[test]
fn who_cannot_be_forgotten_loses_nothing_to_others() {
    let disk = Disk::default();
    let server = serve(&disk);
    let mut holder = Client4::new(&server, "holder", 1);
    let alone = Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() };
    holder.open("m", "f", alone).unwrap();
    let mut other = Client4::new(&server, "other", 1);
    // It is remembered before anything fails.
    let (stateid, file) = other.open("m", "another", Open::default()).unwrap();
    disk.crash();
    thread::sleep(LEASE * 2);
    assert_eq!(other.open("m", "f", Open::default()).unwrap_err(), Nfsstat4::Io, "its holder's lease is over");
    assert_eq!(other.open("m", "f", Open::default()).unwrap_err(), Nfsstat4::Io, "nor when it asks again");
    other.ok([putfh(&file), write(stateid, 0, b"what it had it keeps"), close(stateid)]);

    disk.restart(&mut StdRng::seed_from_u64(0));
    let remembered = Recovery::on(disk.open()).unwrap().v4_clients().unwrap();
    assert!(remembered.reclaiming.contains(&b"holder"[..]), "{remembered:?}");
}

#[test]
fn who_is_forgotten_loses_what_others_want() {
    let server = serve(&Disk::default());
    let mut holder = Client4::new(&server, "holder", 1);
    let begun = Instant::now();
    holder.open("m", "f", Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() }).unwrap();
    let mut other = Client4::new(&server, "other", 1);
    let denied = other.open("m", "f", Open::default());
    // A machine that is that busy has made a lease of it already.
    assert!(begun.elapsed() > LEASE || denied.is_err_and(|status| status == Nfsstat4::ShareDenied));
    thread::sleep(LEASE * 2);
    // Its own lease is over as well, but nobody wants what it has.
    assert!(other.open("m", "f", Open::default()).is_ok());
}

const LEASE: Duration = Duration::from_secs(2);
