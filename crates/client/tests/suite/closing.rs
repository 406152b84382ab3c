//! When the client closes files, and in how many requests (RFC 8881 §18.2). The tests run in virtual time.

use std::{sync::Arc, time::Duration};

use client::{CreateHow, Handle, Mount, SetAttr};
use nfs::v4::*;
use simnet::Network;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use crate::common::{
    memory, nfs_server,
    recorder::{Record, Recorded},
    sim::{self, for_each_simulated},
};

for_each_simulated! {
    [removed_files_are_closed_at_once idle_files_are_closed_together]
    v4_0 = "4.0"
    v4_1 = "4.1"
    v4_2 = "4.2"
}

/// Starts a server, whose requests are recorded, and creates this many files, whose names are their numbers.
async fn create(network: &Network, vers: &str, files: usize) -> (JoinSet<()>, Record, Mount) {
    let record = Record::default();
    let process = sim::start(network, record.wrap(nfs_server(Arc::new(memory())).services()));
    let url = format!("nfs://{}/m?proto=tcp&vers={vers}&uid=0&gid=0", sim::SERVER).parse().unwrap();
    let mount = Mount::connect(&url, &sim::switch(network, 1)).await.unwrap();
    for number in 0..files {
        let (name, how) = (number.to_string(), CreateHow::Guarded(SetAttr::default()));
        mount.protocol().create(mount.root(), name.as_bytes(), how).await.unwrap();
    }
    (process, record, mount)
}

/// Returns the numbers of requests with CLOSE and of their CLOSEs. Each open must be closed once.
fn closes(record: &Record) -> (usize, usize) {
    let requests = record.with(Opnum4::Close);
    let stateid = |operation: &Argop4| match operation {
        Argop4::Close(args) => Some(args.open_stateid.other),
        _ => None,
    };
    let all: Vec<_> = requests.iter().flat_map(|one| one.args.argarray.iter().filter_map(stateid)).collect();
    let different: std::collections::HashSet<_> = all.iter().collect();
    assert_eq!(different.len(), all.len(), "an open was closed twice");
    (requests.len(), all.len())
}

async fn removed_files_are_closed_at_once(network: Network, vers: &str) {
    let start = Instant::now();
    let (_process, record, mount) = create(&network, vers, FILES + 1).await;
    // A file that is in use stays open.
    let kept = mount.protocol().lookup(mount.root(), b"0").await.unwrap().handle;
    let held = mount.v4().unwrap().hold(&kept);
    let mut tasks = JoinSet::new();
    for number in 0..=FILES {
        let mount = mount.clone();
        tasks.spawn(async move { mount.protocol().remove(mount.root(), number.to_string().as_bytes()).await });
    }
    while let Some(removed) = tasks.join_next().await {
        removed.unwrap().unwrap();
    }
    // No file has been idle for the time after which idle files are closed.
    sleep_until(start + Duration::from_millis(1400)).await;
    let (requests, closed) = closes(&record);
    assert_eq!(closed, FILES);
    // The files that are removed while a CLOSE is outstanding are closed together.
    assert!(if vers == "4.0" { requests == FILES } else { requests <= FILES / 4 }, "{requests} requests");
    drop(held);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(closes(&record), (requests + 1, FILES + 1));
}

async fn idle_files_are_closed_together(network: Network, vers: &str) {
    let (_process, record, _mount) = create(&network, vers, FILES).await;
    sleep(Duration::from_millis(900)).await;
    assert_eq!(closes(&record), (0, 0));
    sleep(Duration::from_secs(4)).await;
    let (requests, closed) = closes(&record);
    assert_eq!(closed, FILES);
    // The files were opened at different times, so not all requests are full.
    assert!(if vers == "4.0" { requests == FILES } else { requests <= FILES / 8 }, "{requests} requests");
}

/// The CLOSE of one of three files is refused once.
#[test]
fn files_after_a_failed_close_are_closed_again() {
    for status in [Nfsstat4::OldStateid, Nfsstat4::Delay, Nfsstat4::BadStateid] {
        sim::run("/?proto=tcp&vers=4.1", sim::recorded, |(scripted, record), mount| async move {
            {
                let mut script = scripted.script.lock();
                (script.delegate, script.refuse_close) = (OPEN4_SHARE_ACCESS_READ, Some((2, status)));
            }
            for name in ["a", "b", "c"] {
                let file = Handle::from(name);
                mount.v4().unwrap().open(&file, OPEN4_SHARE_ACCESS_READ).await.unwrap();
            }
            mount.unmount().await.unwrap();
            let mut closed = scripted.script.lock().closed.clone();
            closed.sort_unstable();
            assert_eq!(closed, [1, 2, 3], "{status:?}");
            let recorded = record.with(Opnum4::Close);
            let opens = recorded[0].args.argarray.iter().filter_map(|op| match op {
                Argop4::Close(args) => Some(args.open_stateid.other[0]),
                _ => None,
            });
            // The files are closed in any order.
            let before = opens.take_while(|open| *open != 2).count();
            let requests: Vec<_> = recorded.iter().map(Recorded::opnums).collect();
            let again = 3 - before;
            assert_eq!(requests.len(), 1 + again, "{requests:?}");
            let count = |of| requests.iter().flatten().filter(|opnum| **opnum == of).count();
            // The first request has all three. The delegation of the refused file is returned before the failure, and
            // the files behind it were not reached.
            assert_eq!((count(Opnum4::Close), count(Opnum4::DelegReturn)), (3 + again, 3 + again - 1), "{requests:?}");
        });
    }
}

const FILES: usize = 40;
