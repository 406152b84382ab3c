//! Tests that a simulation cannot run: the providers `iwarp` and `shm` need the operating system, and the last test is about
//! threads and runtimes.

use std::sync::Arc;

use crate::common::{
    self, Server, for_each, memory,
    work::{all_is_done_once, all_was_done_once},
};
use ::rdma::hook::FaultInjector;
use client::Mount;

for_each! {
    [callers_do_not_notice_cuts_at_any_work_request]
    iwarp_per_io = ("rdma", "per-io")
    iwarp_fast = ("rdma", "fast")
    iwarp_cache = ("rdma", "cache")
    iwarp_pool = ("rdma", "pool")
    shm_per_io = ("shm", "per-io")
    shm_fast = ("shm", "fast")
    shm_cache = ("shm", "cache")
    shm_pool = ("shm", "pool")
}

/// Both ends register memory in this way, and either of them cuts connections.
async fn callers_do_not_notice_cuts_at_any_work_request((proto, way): (&str, &str)) {
    for seed in 0..3 {
        let injector = Arc::new(FaultInjector::new(seed, 0.005));
        let kind = if proto == "shm" { common::shm(injector.clone()) } else { common::iwarp(injector.clone()) };
        let programs = common::nfs_server(Arc::new(memory()));
        let mut server = Server::serving(&*common::registering(&*kind, way), programs.services()).await;
        server.switch.register(kind);
        let query = format!("proto={proto}&registration={way}&wsize=32K&rsize=32K");
        let mount = server.mount(&query).await;
        let about = format!("seed {seed}, {proto}, {way}");
        all_is_done_once(&mount, &about).await;
        assert!(injector.cuts() > 2, "{about}: {} cuts of {}", injector.cuts(), injector.operations());
        all_was_done_once(&server.mount(&query).await, &about).await;
    }
}

#[test]
fn types_can_be_used_from_any_task_and_runtime() {
    fn check<T: Send + Sync + 'static>() {}
    fn check_send<T: Send + 'static>() {}
    check::<Mount>();
    check::<client::File>();
    check::<client::V3>();
    check::<client::Error>();
    check_send::<client::Reader>();
    check_send::<client::Writer>();
    check_send::<client::Dir>();
    let server_runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Arc::new(server_runtime.block_on(Server::memory()));
    let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mount = first.block_on(server.mount(""));
    first.block_on(mount.write("f", &b"from one thread"[..])).unwrap();
    let second = std::thread::spawn({
        let mount = mount.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(mount.read("f")).unwrap()
        }
    });
    let read = first.block_on(async { tokio::task::spawn_blocking(move || second.join().unwrap()).await.unwrap() });
    assert_eq!(read, "from one thread");
}
