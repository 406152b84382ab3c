//! Failing storage: a client's state is not granted to others while the client could reclaim it after a restart.

use std::time::Duration;

use crate::common::machine::background_work;
use crate::common::v4::*;
use crate::common::*;
use nfs::v4::*;
use rand::{SeedableRng, rngs::StdRng};
use server::{
    Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash,
    config::Settings,
    recovery::{Recovery, state_dir::OnLoss},
};
use testkit::disk::Disk;
use tokio::time::{Instant, sleep};

fn serve(disk: &Disk) -> NfsServer {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), memory(), options).unwrap();
    let recovery = Recovery::on(disk.open()).unwrap();
    let settings = on_one_thread(Settings { lease: LEASE, ..Settings::default() });
    NfsServer::recovering(export, HandleKey::random(), recovery, settings).unwrap()
}

#[simnet::test]
async fn state_is_not_revoked_while_records_cannot_be_removed() {
    let disk = Disk::default();
    let server = serve(&disk);
    let mut holder = Client4::new(&server, "holder", 1);
    let alone = Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() };
    holder.open("m", "f", alone).unwrap();
    let mut other = Client4::new(&server, "other", 1);
    // This client is stored before the disk fails.
    let (stateid, file) = other.open("m", "another", Open::default()).unwrap();
    disk.set_full(true);
    sleep(LEASE * 2).await;
    assert_eq!(
        other.open("m", "f", Open::default()).unwrap_err(),
        Nfsstat4::Delay,
        "the lease of the holder has expired"
    );
    assert_eq!(other.open("m", "f", Open::default()).unwrap_err(), Nfsstat4::Delay, "a retry is refused too");
    other.ok([putfh(&file), write(stateid, 0, b"what it had it keeps"), close(stateid)]);
    assert!(server.storage().is_failing && server.storage().refusals >= 2, "{:?}", server.storage());

    disk.crash();
    disk.restart(&mut StdRng::seed_from_u64(0));
    let remembered = Recovery::on(disk.open()).unwrap().v4_clients();
    assert!(remembered.reclaiming.contains(&b"holder"[..]), "{remembered:?}");
}

/// A full disk only affects new clients. They are served when there is space again.
#[simnet::test]
async fn full_disk_delays_only_new_clients() {
    let disk = Disk::default();
    let server = serve(&disk);
    let mut old = Client4::new(&server, "old", 1);
    old.open("m", "f", Open::default()).unwrap();
    disk.set_full(true);
    let mut new = Client4::new(&server, "new", 1);
    assert_eq!(new.open("m", "g", Open::default()).unwrap_err(), Nfsstat4::Delay);
    // The new client has no state, and the old one is fully served.
    let (stateid, file) = old.open("m", "g", Open::default()).unwrap();
    old.ok([putfh(&file), write(stateid, 0, b"data"), close(stateid)]);
    assert_eq!(new.open("m", "g", Open::default()).unwrap_err(), Nfsstat4::Delay);
    disk.set_full(false);
    while let Err(status) = new.open("m", "g", Open::default()) {
        assert_eq!(status, Nfsstat4::Delay);
        sleep(Duration::from_millis(50)).await;
    }
    assert!(!server.storage().is_failing);
    disk.crash();
    disk.restart(&mut StdRng::seed_from_u64(0));
    let remembered = Recovery::on(disk.open()).unwrap().v4_clients();
    assert_eq!(remembered.reclaiming.len(), 2, "{remembered:?}");
}

/// After the loss of the recovery database nothing can be reclaimed, and nothing new is granted until all leases have
/// expired. The database is a file, because the server finds out by its name that it is lost.
#[simnet::test]
async fn no_state_is_granted_in_grace_after_a_reset() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = server::config::ExportConfig::directory(dir.path(), options).unwrap();
    let config = server::Config { export: vec![export.clone()], ..Default::default() };
    let state = state.path().join("state");
    let open = |on_loss| {
        let settings = on_one_thread(Settings { grace: LEASE, lease: LEASE, on_loss, ..Settings::default() });
        NfsServer::open_with(&config, &state, &buf::Pool::default(), settings)
    };
    let name = export.name.trim_start_matches('/').to_owned();
    let handle = {
        let server = open(OnLoss::Refuse).unwrap();
        Client4::new(&server, "holder", 1).open(&name, "f", Open::default()).unwrap().1
    };
    std::fs::write(state.join("recovery.redb"), "no database").unwrap();
    assert!(open(OnLoss::Refuse).is_err());
    let server = open(OnLoss::Reset).unwrap();
    let begun = Instant::now();
    let _background = background_work(&server);
    let mut holder = Client4::returning(&server, "holder");
    //= rfc8881-8.4.3-3
    assert_eq!(holder.status(reclaim(&handle, Open::default())), Nfsstat4::NoGrace);
    let mut other = Client4::new(&server, "other", 1);
    while let Err(status) = other.open(&name, "f", Open::default()) {
        assert_eq!(status, Nfsstat4::Grace);
        sleep(Duration::from_millis(50)).await;
    }
    let took = begun.elapsed();
    assert!((LEASE..LEASE * 2).contains(&took), "the grace period took {took:?}, not until all leases have expired");
}

#[simnet::test]
async fn expired_client_loses_conflicting_state() {
    let server = serve(&Disk::default());
    let mut holder = Client4::new(&server, "holder", 1);
    holder.open("m", "f", Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() }).unwrap();
    let mut other = Client4::new(&server, "other", 1);
    assert_eq!(other.open("m", "f", Open::default()).unwrap_err(), Nfsstat4::ShareDenied);
    sleep(LEASE / 2).await;
    assert_eq!(other.open("m", "f", Open::default()).unwrap_err(), Nfsstat4::ShareDenied);
    sleep(LEASE * 2).await;
    // The lease of `other` has expired too, but no other client wants its state.
    assert!(other.open("m", "f", Open::default()).is_ok());
}

const LEASE: Duration = Duration::from_secs(2);
