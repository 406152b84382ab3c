//! Files layouts: data between the client and the data servers of their stripes, with both packings.

use std::time::Duration;

use crate::common::{
    cluster::{Cluster, Form, MIRRORED},
    pattern,
    sim::simulate,
    work::{check, ways, written},
};
use buf::{Buffer, Rope};
use client::{Mount, StableHow};
use nfs::v4::layout::stripe::Packing;
use simnet::Network;
use tokio::time::sleep;
use vfs::{
    VfsError,
    layout::{LayoutEvent, LayoutKind},
};

const SPARSE: Form = Form { mirrors: 1, stripes: 3, unit: 4096, files: Some(Packing::Sparse), ..MIRRORED };
/// Each data server has two stripes of a file.
const DENSE: Form = Form { stripes: 6, files: Some(Packing::Dense), ..SPARSE };
const ONE: Form = Form { stripes: 1, unit: 1 << 20, ..SPARSE };

/// Runs a test with three data servers and a client, for each form of files and version of the protocol.
fn with(query: &str, test: impl AsyncFn(Cluster, Mount)) {
    for form in [SPARSE, DENSE, ONE] {
        with_form(form, query, &test);
    }
}

fn with_form(form: Form, query: &str, test: impl AsyncFn(Cluster, Mount)) {
    for version in ["4.1", "4.2"] {
        simulate(|network: Network| async {
            let cluster = Cluster::new(network, 3, form).await;
            let mount = cluster.mount(1, &format!("&vers={version}{query}")).await;
            test(cluster, mount).await;
        });
    }
}

async fn returned(cluster: &Cluster) {
    while !cluster.mds.state.lock().holders.is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
}

const LARGE: usize = 1_000_003;

#[test]
fn stripes_are_read_and_written_at_their_data_servers() {
    with("", async |cluster, mount| {
        written(&mount, "f", LARGE).await;
        assert!(cluster.mds.copies("f", LARGE) == [pattern(LARGE)]);
        assert_eq!(mount.stat("f").await.unwrap().size, LARGE as u64);
        let other = cluster.mount(2, "").await;
        let file = other.open("f").await.unwrap();
        for range in [0..LARGE, 4000..104_000, 8192..12_288, 5000..5001] {
            let (read, buffer) = file.read_at(range.start as u64, Buffer::zeroed(range.len())).await;
            assert!(read.unwrap() == range.len() && buffer[..] == pattern(LARGE)[range]);
        }
        check(&other, "f", LARGE).await;
        assert_eq!(cluster.mds.proxied(), 1, "only the first bytes of `Mount::read`, which are read with the OPEN");
        assert_eq!(ways(&mount).data_servers.write_bytes, LARGE as u64);
        assert_eq!((ways(&mount).server, ways(&other).server), Default::default());
        drop(file);
        returned(&cluster).await;
        let state = cluster.mds.state.lock();
        assert_eq!((state.fences, state.reports.len(), state.usage.len()), (0, 0, 0));
    });
}

#[test]
fn bytes_between_the_ends_of_a_data_file_and_of_the_file_are_zeros() {
    with("", async |_cluster, mount| {
        let file = written(&mount, "f", LARGE).await;
        file.set_len(LARGE as u64 + 20_000).await.unwrap();
        let expected: Vec<u8> = pattern(LARGE)[LARGE - 3..].iter().copied().chain([0; 20_000]).collect();
        let (read, buffer) = file.read_at(LARGE as u64 - 3, Buffer::zeroed(50_000)).await;
        assert!(read.unwrap() == 20_003 && buffer[..20_003] == expected);
        let (read, buffer) = file.read_at(LARGE as u64 - 3, Buffer::from(vec![7; 10_000])).await;
        assert!(read.unwrap() == 10_000 && buffer[..] == expected[..10_000]);
        // A hole that the client has written itself.
        file.set_len(0).await.unwrap();
        file.write_at(70_000, pattern(10)).await.unwrap();
        let expected = [&[0; 70_000][..], &pattern(10)].concat();
        assert!(file.read_bytes(0, 100_000).await.unwrap() == expected);
        assert_eq!(ways(&mount).server, Default::default());
    });
}

/// The data servers acknowledge synchronous writes with DATA_SYNC4, and the client tells the metadata server.
#[test]
fn metadata_server_knows_the_size_after_a_synchronous_write() {
    with("", async |cluster, mount| {
        let file = written(&mount, "f", 100_000).await;
        let commits = || cluster.mds.state.lock().commits.iter().map(|commit| commit.size).collect::<Vec<_>>();
        let before = commits().len();
        file.write_at(100_000, pattern(10_000)).await.unwrap();
        file.write_at(0, pattern(5_000)).await.unwrap();
        assert_eq!(commits()[before..], [Some(110_000), Some(5_000)], "the time changes, too");
        assert_eq!(ways(&mount).server, Default::default());
        assert_eq!(cluster.mount(2, "").await.stat("f").await.unwrap().size, 110_000);
    });
}

#[test]
fn data_pass_through_the_metadata_server_while_a_data_server_fails() {
    with("", async |mut cluster, mount| {
        let file = written(&mount, "f", LARGE).await;
        let failed = cluster.mds.servers("f")[0];
        cluster.stop(failed);
        file.write_at(0, pattern(300_000)).await.unwrap();
        assert!(ways(&mount).server.writes > 0, "there is no other copy");
        let reader = cluster.mount(2, "").await;
        check(&reader, "f", LARGE).await;
        assert!(ways(&reader).server.reads > 0);
        assert!(cluster.mds.state.lock().reports.is_empty(), "a files layout has no reports");
        cluster.restart_data_server(failed);
        sleep(Duration::from_secs(60)).await;
        let before = ways(&mount).server;
        file.write_at(0, pattern(300_000)).await.unwrap();
        assert_eq!(ways(&mount).server, before, "the data server is used again");
        check(&cluster.mount(3, "").await, "f", LARGE).await;
    });
}

#[test]
fn client_that_is_locked_out_goes_through_the_server() {
    with("", async |cluster, mount| {
        let file = written(&mount, "f", LARGE).await;
        let data = Rope::from(pattern(20_000));
        mount.protocol().write(file.handle(), 0, data, StableHow::Unstable).await.unwrap();
        assert_eq!(ways(&mount).server.writes, 0);
        cluster.mds.lock_out("f");
        cluster.mds.state.lock().refuse = Some(VfsError::NotSupported);
        file.write_at(0, pattern(20_000)).await.unwrap();
        assert_eq!(ways(&mount).server.writes, 1);
        assert!(cluster.mds.copies("f", LARGE) == [pattern(LARGE)]);
    });
}

#[test]
fn recall_during_io_loses_nothing() {
    with("&wsize=32768&rsize=32768", async |cluster, mount| {
        written(&mount, "f", 100_000).await;
        let mds = cluster.mds.clone();
        let recalls = tokio::spawn(async move {
            for number in 0..8 {
                match number % 5 {
                    4 => mds.notify(LayoutEvent::RecallAll { changed: false }),
                    _ => mds.recall("f"),
                }
                sleep(Duration::from_millis(37 * number)).await;
            }
        });
        while !recalls.is_finished() {
            written(&mount, "f", LARGE).await;
            let file = mount.open("f").await.unwrap();
            assert!(file.read_bytes(0, LARGE).await.unwrap() == pattern(LARGE));
            sleep(Duration::from_millis(60)).await;
        }
        assert!(cluster.mds.copies("f", LARGE) == [pattern(LARGE)]);
        assert_eq!(cluster.mds.state.lock().fences, 0, "the client returns what is recalled");
    });
}

#[test]
fn restarts_of_servers_lose_no_data() {
    with("&wsize=65536", async |mut cluster, mount| {
        let file = mount.create("f", 0o644).await.unwrap();
        let mut writer = file.writer();
        for (number, start) in (0..LARGE).step_by(65536).enumerate() {
            match number {
                10 | 13 => cluster.restart_data_server(cluster.mds.servers("f")[0]),
                8 => cluster.restart().await,
                _ => {}
            }
            writer.write(pattern(LARGE).slice(start..LARGE.min(start + 65536))).await.unwrap();
            sleep(Duration::from_millis(5)).await;
        }
        writer.close().await.unwrap();
        assert_eq!(cluster.mount(2, "").await.stat("f").await.unwrap().size, LARGE as u64);
        assert!(cluster.mds.copies("f", LARGE) == [pattern(LARGE)]);
    });
}

#[test]
fn data_that_a_data_server_has_lost_are_written_again() {
    for form in [SPARSE, DENSE] {
        with_form(Form { restarts: &[5, 9], ..form }, "&wsize=65536", async |cluster, mount| {
            written(&mount, "f", LARGE).await;
            assert_eq!(cluster.data.iter().map(|data| data.boots()).max(), Some(2), "data servers must have restarted");
            assert!(cluster.mds.copies("f", LARGE) == [pattern(LARGE)]);
        });
    }
}

/// Files have devices of their own, and their data servers are the same.
#[test]
fn devices_share_sessions_with_data_servers() {
    with_form(ONE, "", async |cluster, mount| {
        let made_by = [0, 1, 2].map(|server| cluster.clients_of(server).0);
        for name in ["a", "b", "c", "d"] {
            written(&mount, name, LARGE).await;
        }
        assert_eq!(cluster.mds.state.lock().devices, 3);
        for (server, made) in made_by.iter().enumerate() {
            let (clients, opens) = cluster.clients_of(server);
            assert_eq!((clients - made, opens), (1, 0));
        }
    });
    with_form(SPARSE, "", async |cluster, mount| {
        let made_by = [0, 1, 2].map(|server| cluster.clients_of(server).0);
        for name in ["a", "b", "c", "d"] {
            written(&mount, name, LARGE).await;
        }
        assert_eq!(cluster.mds.state.lock().devices, 3, "one for each order of the data servers");
        assert_eq!([0, 1, 2].map(|server| cluster.clients_of(server).0), made_by.map(|made| made + 1));
        mount.unmount().await.unwrap();
        assert_eq!([0, 1, 2].map(|server| cluster.clients_of(server).0), made_by, "the sessions must be ended");
    });
}

#[test]
fn removed_device_is_asked_for_again() {
    with_form(SPARSE, "", async |cluster, mount| {
        written(&mount, "f", LARGE).await;
        let device = cluster.mds.device_of("f");
        cluster.mds.notify(LayoutEvent::DeviceRemoved { device, kind: LayoutKind::Files });
        sleep(Duration::from_secs(1)).await;
        check(&mount, "f", LARGE).await;
        assert_eq!(ways(&mount).server, Default::default());
        assert_eq!(cluster.mds.state.lock().devices, 2);
    });
}
