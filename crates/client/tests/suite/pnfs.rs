//! Layouts of flexible files: data between the client and data servers, and what happens when one of them fails.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::common::{
    cluster::{Cluster, Flags, Form, MIRRORED, device},
    pattern,
    recorder::Recorded,
    sim::{simulate, until},
    work::{check, ways, written},
};
use buf::{Buffer, Rope};
use client::{Mount, StableHow};
use nfs::v4::{Argop4, DeviceError4, Deviceid4, LayoutErrorArgs, Nfsstat4, Opnum4};
use simnet::Network;
use tokio::time::{Instant, sleep};
use vfs::{
    VfsError,
    layout::{DataError, DataOperation, LayoutEvent, LayoutKind},
};

/// Runs a test with three data servers and a client, for each version of data servers.
fn with(form: Form, test: impl AsyncFn(Cluster, Mount)) {
    with_query(form, "", test);
}

fn with_query(form: Form, query: &str, test: impl AsyncFn(Cluster, Mount)) {
    for version in [(3, 0), (4, 1), (4, 2)] {
        with_version(version, form, query, &test);
    }
}

fn with_version(version: (u32, u32), form: Form, query: &str, test: impl AsyncFnOnce(Cluster, Mount)) {
    simulate(|network: Network| async move {
        let cluster = Cluster::new(network, 3, form).await;
        cluster.mds.state.lock().version = Some(version);
        let mount = cluster.mount(1, query).await;
        test(cluster, mount).await;
    });
}

const STRIPED: Form = Form { mirrors: 1, stripes: 3, unit: 4096, ..MIRRORED };
const LARGE: usize = 1_000_003;

#[test]
fn data_pass_to_all_mirrors_and_not_through_the_metadata_server() {
    with(MIRRORED, async |cluster, mount| {
        written(&mount, "f", LARGE).await;
        let expected = pattern(LARGE);
        assert!(cluster.mds.copies("f", LARGE).iter().all(|copy| *copy == expected));
        assert_eq!(cluster.mds.servers("f").len(), 2);
        assert_eq!(mount.stat("f").await.unwrap().size, LARGE as u64);
        let other = cluster.mount(2, "").await;
        let file = other.open("f").await.unwrap();
        let (read, buffer) = file.read_at(0, Buffer::zeroed(LARGE + 10)).await;
        assert!(read.unwrap() == LARGE && buffer[..LARGE] == expected);
        check(&other, "f", LARGE).await;
        assert_eq!(cluster.mds.proxied(), 1, "only the first bytes of `Mount::read`, which are read with the OPEN");
        assert_eq!(ways(&mount).data_servers.write_bytes, LARGE as u64);
        assert_eq!((ways(&mount).server, ways(&other).server), Default::default());
        assert!(ways(&other).data_servers.read_bytes >= LARGE as u64);
    });
}

#[test]
fn stripes_are_read_and_written_at_their_data_servers() {
    with(STRIPED, async |cluster, mount| {
        written(&mount, "f", LARGE).await;
        assert!(cluster.mds.copies("f", LARGE) == [pattern(LARGE)]);
        assert_eq!(cluster.mds.servers("f"), [0, 1, 2]);
        let other = cluster.mount(2, "").await;
        let direct = other.open("f").await.unwrap();
        let (read, buffer) = direct.read_at(4000, Buffer::zeroed(100_000)).await;
        assert!(read.unwrap() == 100_000 && buffer[..] == pattern(LARGE)[4000..104_000]);
        check(&other, "f", LARGE).await;
        assert_eq!(ways(&other).server, Default::default());
    });
}

/// The last bytes of the file are a hole, so the data files end before the file.
#[test]
fn bytes_between_the_ends_of_a_data_file_and_of_the_file_are_zeros() {
    for form in [MIRRORED, STRIPED] {
        with(form, async |_cluster, mount| {
            let file = written(&mount, "f", LARGE).await;
            file.set_len(LARGE as u64 + 20_000).await.unwrap();
            let expected: Vec<u8> = pattern(LARGE)[LARGE - 3..].iter().copied().chain([0; 20_000]).collect();
            let (read, buffer) = file.read_at(LARGE as u64 - 3, Buffer::zeroed(50_000)).await;
            assert!(read.unwrap() == 20_003 && buffer[..20_003] == expected);
            assert!(file.read_bytes(LARGE as u64 - 3, 50_000).await.unwrap() == expected);
            let (read, buffer) = file.read_at(LARGE as u64 - 3, Buffer::from(vec![7; 10_000])).await;
            assert!(read.unwrap() == 10_000 && buffer[..] == expected[..10_000]);
            assert_eq!(file.read_bytes(LARGE as u64 + 20_000, 9).await.unwrap().len(), 0);
            assert_eq!(ways(&mount).server, Default::default());
        });
    }
}

#[test]
fn small_files_need_no_layout() {
    with(MIRRORED, async |cluster, mount| {
        written(&mount, "small", 4096).await;
        check(&mount, "small", 4096).await;
        let file = mount.open("small").await.unwrap();
        assert!(file.read_bytes(0, 1 << 20).await.unwrap() == pattern(4096));
        assert_eq!(cluster.mds.state.lock().granted, 0);
        assert_eq!((ways(&mount).data_servers, ways(&mount).server.write_bytes), (Default::default(), 4096));
    });
}

/// The requests for a small file are those of a client without layouts.
#[test]
fn small_files_need_no_more_requests_than_without_layouts() {
    with(MIRRORED, async |cluster, mount| {
        written(&mount, "small", 4096).await;
        let mut requests = Vec::new();
        for (number, query) in [(2, ""), (3, "&pnfs=off")] {
            let reader = cluster.mount(number, query).await;
            let before = cluster.requests.len();
            check(&reader, "small", 4096).await;
            let file = reader.open("small").await.unwrap();
            assert!(file.read_bytes(0, 1 << 20).await.unwrap() == pattern(4096));
            let all = cluster.requests.all();
            requests.push(all[before..].iter().map(Recorded::opnums).collect::<Vec<_>>());
        }
        assert_eq!(requests[0], requests[1]);
        let whole = &requests[0][0];
        assert!(
            whole.contains(&Opnum4::Open) && whole.contains(&Opnum4::Read),
            "by its path, it is one request: {whole:?}"
        );
    });
}

#[test]
fn option_off_uses_no_layouts() {
    with_query(MIRRORED, "&pnfs=off", async |cluster, mount| {
        written(&mount, "f", LARGE).await;
        check(&mount, "f", LARGE).await;
        assert_eq!((cluster.mds.state.lock().granted, ways(&mount).data_servers), (0, Default::default()));
        assert_eq!(ways(&mount).server.write_bytes, LARGE as u64);
    });
}

/// The size is known to the server after a synchronous write, before a GETATTR and a lookup, and after close.
#[test]
fn metadata_server_knows_the_size_when_it_matters() {
    with(MIRRORED, async |cluster, mount| {
        let other = cluster.mount(2, "").await;
        let file = mount.create("f", 0o644).await.unwrap();
        file.write_at(0, pattern(10_000)).await.unwrap();
        assert_eq!(other.stat("f").await.unwrap().size, 10_000);
        let protocol = mount.protocol();
        let unstable = async |offset, len| {
            let data = Rope::from(pattern(len));
            protocol.write(file.handle(), offset, data, StableHow::Unstable).await.unwrap();
        };
        let commits = cluster.mds.state.lock().commits.len();
        unstable(10_000, 10_000).await;
        assert_eq!(cluster.mds.state.lock().commits.len(), commits, "nobody has asked yet");
        assert_eq!(file.stat().await.unwrap().size, 20_000);
        unstable(20_000, 10_000).await;
        assert_eq!(mount.stat("f").await.unwrap().size, 30_000);
        // A truncation is not undone by a later LAYOUTCOMMIT.
        unstable(30_000, 10_000).await;
        file.set_len(15_000).await.unwrap();
        assert_eq!(file.stat().await.unwrap().size, 15_000);
        unstable(15_000, 10_000).await;
        drop(file);
        // The idle file is closed.
        while other.stat("f").await.unwrap().size != 25_000 {
            sleep(Duration::from_millis(100)).await;
        }
        while !cluster.mds.state.lock().holders.is_empty() {
            sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(ways(&mount).server.writes, 1, "the first one: CREATE has not told the threshold");
    });
}

#[test]
fn flags_of_a_layout_are_honoured() {
    let flags = Flags { no_commit: true, no_read: true, return_on_close: true, stats_s: 0 };
    with(Form { flags, ..MIRRORED }, async |cluster, mount| {
        let file = written(&mount, "f", LARGE).await;
        assert!(cluster.mds.state.lock().commits.is_empty());
        // The server would take the size from the data servers.
        let granted = cluster.mds.state.lock().granted;
        cluster.mount(2, "&pnfs=off").await.truncate("f", LARGE as u64).await.unwrap();
        let data = Rope::from(pattern(5000));
        mount.protocol().write(file.handle(), 0, data, StableHow::Unstable).await.unwrap();
        assert!(file.read_bytes(0, 5000).await.unwrap() == pattern(5000));
        let more = cluster.mds.state.lock().granted - granted;
        assert_eq!(more, 2, "one layout for writing, and one for reading");
    });
}

#[test]
fn mirror_that_fails_is_replaced_for_reading_and_reported_for_writing() {
    with(MIRRORED, async |mut cluster, mount| {
        written(&mount, "f", LARGE).await;
        let failed = cluster.mds.servers("f")[0];
        cluster.stop(failed);
        let reader = cluster.mount(2, "").await;
        let began = Instant::now();
        let file = reader.open("f").await.unwrap();
        assert!(file.read_bytes(0, LARGE).await.unwrap() == pattern(LARGE));
        assert!(began.elapsed() < Duration::from_secs(10), "one timeout, and not one for each READ");
        assert_eq!(ways(&reader).server, Default::default(), "the other mirror was read");
        let file = mount.open("f").await.unwrap();
        file.write_at(500_000, pattern(300_000)).await.unwrap();
        let reports = cluster.mds.state.lock().reports.clone();
        let report = reports.iter().find(|report| report.operation == DataOperation::Write).expect("a report");
        assert_eq!((report.device, report.error), (device(failed), DataError::Unreachable));
        let mut expected = pattern(LARGE).to_vec();
        expected[500_000..800_000].copy_from_slice(&pattern(300_000));
        check_bytes(&cluster.mount(3, "").await, "f", &expected).await;
        assert_eq!(ways(&mount).server.writes, 0, "the client gets another layout");
    });
}

/// A READ that another mirror has answered is reported once: by LAYOUTERROR, or before NFSv4.2 by LAYOUTRETURN. The layout is kept.
#[test]
fn mirror_that_fails_for_reading_is_reported_once() {
    for (version, at_once) in [("4.2", 1), ("4.1", 0)] {
        with(MIRRORED, async |mut cluster, mount| {
            let file = written(&mount, "f", LARGE).await;
            file.write_at(TURN, pattern(LARGE)).await.unwrap();
            let failed = cluster.mds.servers("f")[0];
            cluster.stop(failed);
            let reader = cluster.mount(2, &format!("&vers={version}")).await;
            let file = reader.open("f").await.unwrap();
            let granted = cluster.mds.state.lock().granted;
            for offset in [0, TURN, 0, TURN] {
                assert!(file.read_bytes(offset, LEN).await.unwrap() == pattern(LARGE)[..LEN], "{version}: {offset}");
            }
            sleep(Duration::from_millis(100)).await;
            assert_eq!(ways(&reader).server, Default::default(), "{version}: the other mirror was read");
            assert_eq!(cluster.mds.state.lock().granted - granted, 1, "{version}: the layout must be kept");
            let error =
                DeviceError4 { deviceid: Deviceid4(device(failed).0), status: Nfsstat4::NxIo, opnum: Opnum4::Read };
            let sent = layout_errors(&cluster);
            assert_eq!(sent.len(), at_once, "{version}: {sent:?}");
            assert!(sent.iter().all(|args| args.length == LEN as u64 && args.errors == [error]), "{sent:?}");
            assert_eq!(cluster.mds.state.lock().reports.len(), at_once, "{version}");
            cluster.mds.recall("f");
            until(|| cluster.mds.state.lock().holders.is_empty()).await;
            let reports = cluster.mds.state.lock().reports.clone();
            let [report] = reports[..] else { panic!("{version}: {reports:?}") };
            assert_eq!((report.operation, report.device), (DataOperation::Read, device(failed)), "{version}");
            assert_eq!((report.error, layout_errors(&cluster).len()), (DataError::Unreachable, at_once), "{version}");
        });
    }
}

/// The bytes after which the other mirror is the first one to be read.
const TURN: u64 = 4 << 20;
/// The bytes of one READ.
const LEN: usize = 50_000;

/// Returns the arguments of all LAYOUTERROR operations that the metadata server has got.
fn layout_errors(cluster: &Cluster) -> Vec<LayoutErrorArgs> {
    let ops = cluster.requests.all().into_iter().flat_map(|request| request.args.argarray);
    let errors = ops.filter_map(|op| match op {
        Argop4::LayoutError(args) => Some(args),
        _ => None,
    });
    errors.collect()
}

/// A data server that refuses connections fails after `dstimeo`, and not after `timeo`. What was lost is repeated elsewhere.
#[test]
fn refused_data_server_fails_after_a_short_time() {
    for (option, least_ms) in [("", 1000), ("&dstimeo=300ms", 300)] {
        with_query(MIRRORED, &format!("&timeo=10s{option}"), async |mut cluster, mount| {
            let file = written(&mount, "f", LARGE).await;
            let reader = cluster.mount(2, &format!("&timeo=10s{option}")).await;
            let read = reader.open("f").await.unwrap();
            assert!(read.read_bytes(0, LARGE).await.unwrap() == pattern(LARGE));
            let through = ways(&reader).server;
            let failed = cluster.mds.servers("f")[0];
            cluster.stop(failed);
            let (least, most) = (Duration::from_millis(least_ms), Duration::from_millis(least_ms + 500));
            let began = Instant::now();
            file.write_at(0, pattern(300_000)).await.unwrap();
            assert!((least..most).contains(&began.elapsed()), "{:?}", began.elapsed());
            let reports = cluster.mds.state.lock().reports.clone();
            assert!(reports.iter().all(|report| report.error == DataError::Unreachable), "{reports:?}");
            assert!(reports.iter().any(|report| report.device == device(failed)));
            assert_eq!(ways(&mount).server.writes, 0, "the client gets another layout");
            let began = Instant::now();
            assert!(read.read_bytes(0, LARGE).await.unwrap() == pattern(LARGE));
            assert!(began.elapsed() < most, "{:?}", began.elapsed());
            assert_eq!(ways(&reader).server, through, "the other mirror was read");
        });
    }
}

#[test]
fn data_server_that_restarts_soon_is_not_reported() {
    with_query(MIRRORED, "&timeo=10s", async |mut cluster, mount| {
        let file = written(&mount, "f", LARGE).await;
        let granted = cluster.mds.state.lock().granted;
        let failed = cluster.mds.servers("f")[0];
        cluster.stop(failed);
        let began = Instant::now();
        let write = tokio::spawn(async move { file.write_at(0, pattern(300_000)).await });
        sleep(Duration::from_millis(400)).await;
        assert!(!write.is_finished(), "the write must need the data server");
        cluster.restart_data_server(failed);
        write.await.unwrap().unwrap();
        assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
        let state = cluster.mds.state.lock();
        assert!(state.reports.is_empty() && state.granted == granted, "{:?}", state.reports);
        assert_eq!(ways(&mount).server, Default::default());
    });
}

/// The server has made the copy again. A client that still holds the data server for failed must not make it stale again without an
/// attempt to write there.
#[test]
fn repaired_copy_is_not_reported_without_another_attempt() {
    with(MIRRORED, async |mut cluster, mount| {
        let file = written(&mount, "f", LARGE).await;
        cluster.stop(cluster.mds.servers("f")[0]);
        file.write_at(0, pattern(300_000)).await.unwrap();
        let reports = cluster.mds.state.lock().reports.len();
        assert_eq!((reports, ways(&mount).server.writes), (1, 0));
        cluster.mds.heal("f");
        cluster.mds.recall("f");
        while !cluster.mds.state.lock().holders.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        file.write_at(0, pattern(300_000)).await.unwrap();
        assert_eq!(cluster.mds.state.lock().reports.len(), reports, "the client has not tried");
        assert_eq!(ways(&mount).server.write_bytes, 300_000);
    });
}

async fn check_bytes(mount: &Mount, name: &str, expected: &[u8]) {
    assert!(mount.read(name).await.unwrap() == expected);
}

/// A data server forgets unstable data in the middle of a file. They are written again.
#[test]
fn data_that_a_data_server_has_lost_are_written_again() {
    with_query(Form { restarts: &[5, 9], ..MIRRORED }, "&wsize=65536", async |cluster, mount| {
        written(&mount, "f", LARGE).await;
        assert_eq!(cluster.data.iter().map(|data| data.boots()).max(), Some(2), "data servers must have restarted");
        assert!(cluster.mds.copies("f", LARGE).iter().all(|copy| *copy == pattern(LARGE)));
    });
}

/// The first bytes of a file pass through the metadata server, because the file is small, and later ones to data servers. The writer
/// sees one verifier, and one COMMIT makes all of them durable.
#[test]
fn data_of_both_ways_have_one_verifier() {
    with(MIRRORED, async |cluster, mount| {
        let file = mount.create("f", 0o644).await.unwrap();
        let write = async |offset, len, stable| {
            let written = mount.protocol().write(file.handle(), offset, Rope::from(pattern(len)), stable).await;
            written.unwrap().verf
        };
        let commits = || cluster.requests.with(Opnum4::Commit).len();
        let first = write(0, 10_000, StableHow::Unstable).await;
        let second = write(10_000, 100_000, StableHow::Unstable).await;
        assert_eq!((ways(&mount).server.writes, ways(&mount).data_servers.writes), (1, 1));
        let verifier = file.commit().await.unwrap();
        assert_eq!((first, second), (verifier, verifier), "nothing must be written again");
        assert_eq!(commits(), 1, "the data that have passed through the metadata server must be committed there");
        write(0, 10_000, StableHow::Unstable).await;
        assert_eq!((file.commit().await.unwrap(), commits()), (verifier, 1), "all new data are at data servers");
        assert_eq!((file.commit().await.unwrap(), commits()), (verifier, 2), "no new data");
    });
}

/// The layout is lost after a write with it. The data may be lost, so the verifier of COMMIT is that of no earlier write, also when the
/// client has forgotten the file.
#[test]
fn data_of_both_ways_are_written_again_if_the_layout_is_lost() {
    for forgets in [false, true] {
        with(MIRRORED, async |cluster, mount| {
            let file = mount.create("f", 0o644).await.unwrap();
            let mut verifiers = Vec::new();
            for (offset, len) in [(0, 10_000), (10_000, 100_000)] {
                let data = Rope::from(pattern(len));
                let written = mount.protocol().write(file.handle(), offset, data, StableHow::Unstable).await.unwrap();
                verifiers.push(written.verf);
            }
            if forgets {
                sleep(Duration::from_secs(60)).await;
                assert!(cluster.mds.state.lock().holders.is_empty(), "the file must be closed");
            } else {
                cluster.mds.recall("f");
                while !cluster.mds.state.lock().holders.is_empty() {
                    sleep(Duration::from_millis(1)).await;
                }
            }
            let verifier = file.commit().await.unwrap();
            assert!(!verifiers.contains(&verifier));
        });
    }
}

/// Data that have passed through the metadata server only need not be written again because the client has closed the file.
#[test]
fn small_unstable_data_survive_that_the_client_forgets_the_file() {
    with(MIRRORED, async |cluster, mount| {
        let file = mount.create("f", 0o644).await.unwrap();
        let data = || Rope::from(pattern(4000));
        let write = async || mount.protocol().write(file.handle(), 0, data(), StableHow::Unstable).await.unwrap().verf;
        let before = write().await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.requests.with(Opnum4::Close).len(), 1);
        assert_eq!(file.commit().await.unwrap(), before);
        assert_eq!((write().await, cluster.mds.state.lock().granted), (before, 0));
    });
}

/// The server recalls the layout again and again while the client writes and reads.
#[test]
fn recall_during_io_loses_nothing() {
    with_query(MIRRORED, "&wsize=32768&rsize=32768", async |cluster, mount| {
        written(&mount, "f", 100_000).await;
        let mds = cluster.mds.clone();
        let recalls = tokio::spawn(async move {
            for number in 0..20 {
                mds.recall("f");
                sleep(Duration::from_millis(37 * number)).await;
            }
        });
        let before = cluster.mds.state.lock().granted;
        while !recalls.is_finished() {
            written(&mount, "f", LARGE).await;
            let file = mount.open("f").await.unwrap();
            assert!(file.read_bytes(0, LARGE).await.unwrap() == pattern(LARGE));
            sleep(Duration::from_millis(60)).await;
        }
        assert!(cluster.mds.copies("f", LARGE).iter().all(|copy| *copy == pattern(LARGE)));
        let state = cluster.mds.state.lock();
        assert_eq!(state.fences, 0, "the client returns what is recalled");
        assert!(state.granted > before + 1, "and gets another layout");
    });
}

#[test]
fn all_layouts_are_returned_when_all_are_recalled() {
    with(MIRRORED, async |cluster, mount| {
        let files = [written(&mount, "a", LARGE).await, written(&mount, "b", LARGE).await];
        for file in &files {
            let data = Rope::from(pattern(10));
            mount.protocol().write(file.handle(), 0, data, StableHow::Unstable).await.unwrap();
        }
        assert_eq!(cluster.mds.state.lock().holders.len(), 2);
        cluster.mds.notify(LayoutEvent::RecallAll { changed: false });
        while !cluster.mds.state.lock().holders.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(cluster.mds.state.lock().fences, 0);
        check(&mount, "a", LARGE).await;
    });
}

/// The data servers reject the client, because the server has taken the layout away.
#[test]
fn client_that_is_locked_out_goes_through_the_server() {
    with(MIRRORED, async |cluster, mount| {
        let file = written(&mount, "f", LARGE).await;
        let data = |byte: u8| Rope::from(bytes::Bytes::from(vec![byte; 20_000]));
        mount.protocol().write(file.handle(), 0, data(1), StableHow::Unstable).await.unwrap();
        cluster.mds.lock_out("f");
        cluster.mds.state.lock().refuse = Some(VfsError::NotSupported);
        file.write_at(0, data(2)).await.unwrap();
        assert_eq!(ways(&mount).server.writes, 1);
        let denied = cluster.mds.state.lock().reports.iter().any(|report| report.error == DataError::Denied);
        assert!(denied, "the client must report the reason");
        // Both copies are stale now for this back end, so only the path is checked.
        assert!(cluster.mds.proxied.load(SeqCst) > 0);
    });
}

/// The data servers reject the client, and the server grants the same layout again and again. The client does not ask for one for each
/// READ and WRITE.
#[test]
fn layouts_that_fail_repeatedly_are_not_asked_for_with_each_io() {
    with_query(MIRRORED, "&wsize=32768&rsize=32768", async |cluster, mount| {
        written(&mount, "f", LARGE).await;
        cluster.mds.lock_out("f");
        let reader = cluster.mount(2, "&rsize=32768").await;
        let before = cluster.mds.state.lock().granted;
        check(&reader, "f", LARGE).await;
        let granted = cluster.mds.state.lock().granted - before;
        assert!((2..=6).contains(&granted), "{granted} layouts");
        // The server does not act on the report of a WRITE, either.
        cluster.mds.state.lock().is_deaf = true;
        let file = mount.open("f").await.unwrap();
        let writes = ways(&mount).server.writes;
        for _ in 0..10 {
            file.write_at(0, pattern(32_768)).await.unwrap();
        }
        let granted = cluster.mds.state.lock().granted - before - granted;
        assert!((2..=6).contains(&granted), "{granted} layouts");
        assert_eq!((ways(&mount).server.writes - writes, ways(&reader).data_servers.reads), (10, 0));
        // After some time, the client tries again.
        sleep(Duration::from_secs(31)).await;
        let before = cluster.mds.state.lock().granted;
        assert!(reader.open("f").await.unwrap().read_bytes(0, 32_768).await.unwrap() == pattern(32_768));
        assert_ne!(cluster.mds.state.lock().granted, before);
    });
}

/// A layout is asked for once, and the data do not wait for it.
#[test]
fn delayed_layout_does_not_delay_the_data() {
    with(MIRRORED, async |cluster, mount| {
        cluster.mds.state.lock().refuse = Some(VfsError::Delay);
        let begun = Instant::now();
        written(&mount, "f", LARGE).await;
        check(&mount, "f", LARGE).await;
        assert_eq!(cluster.mds.state.lock().granted, 0);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    });
}

#[test]
fn restart_of_the_metadata_server_loses_no_data() {
    with_query(MIRRORED, "&wsize=65536", async |mut cluster, mount| {
        let file = mount.create("f", 0o644).await.unwrap();
        let mut writer = file.writer();
        for (number, start) in (0..LARGE).step_by(65536).enumerate() {
            if number == 8 {
                assert_ne!(cluster.mds.state.lock().granted, 0, "the client must have a layout");
                cluster.restart().await;
            }
            writer.write(pattern(LARGE).slice(start..LARGE.min(start + 65536))).await.unwrap();
            sleep(Duration::from_millis(5)).await;
        }
        writer.close().await.unwrap();
        assert_eq!(cluster.mount(2, "").await.stat("f").await.unwrap().size, LARGE as u64);
        assert!(cluster.mds.copies("f", LARGE).iter().all(|copy| *copy == pattern(LARGE)));
    });
}

/// A data server that this client cannot use is no failure of that data server, so it is not reported.
#[test]
fn layout_with_unusable_data_servers_is_returned_without_a_report() {
    with(MIRRORED, async |cluster, mount| {
        cluster.mds.state.lock().version = Some((4, 0));
        written(&mount, "f", LARGE).await;
        check(&mount, "f", LARGE).await;
        while !cluster.mds.state.lock().holders.is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
        let state = cluster.mds.state.lock();
        assert!(state.granted > 0 && state.reports.is_empty() && state.fences == 0);
        assert_eq!(ways(&mount).data_servers, Default::default());
    });
}

/// While a file is used, its statistics are sent at the interval of the layout, and they are cumulative. The last ones are sent with
/// the layout.
#[test]
fn statistics_are_sent_at_intervals_and_with_the_layout() {
    for (version, least) in [("4.2", 2), ("4.1", 0)] {
        let flags = Flags { stats_s: 10, ..MIRRORED.flags };
        with_query(Form { flags, ..MIRRORED }, &format!("&vers={version}"), async |cluster, mount| {
            let usage = || cluster.mds.state.lock().usage.clone();
            let file = written(&mount, "f", 100_000).await;
            assert!(usage().is_empty());
            let data = || Rope::from(pattern(10_000));
            for _ in 0..25 {
                mount.protocol().write(file.handle(), 0, data(), StableHow::Unstable).await.unwrap();
                sleep(Duration::from_secs(1)).await;
            }
            let during = usage();
            assert_eq!(during.len(), 2 * least, "{version}: two data servers, every ten seconds");
            cluster.mds.recall("f");
            while !cluster.mds.state.lock().holders.is_empty() {
                sleep(Duration::from_millis(1)).await;
            }
            let last = &usage()[during.len()..];
            assert_eq!(last.len(), 2, "{version}: {last:?}");
            for usage in last {
                assert_eq!((usage.write_bytes, usage.reads), (100_000 + 25 * 10_000, 0), "{version}");
                let earlier = during.iter().filter(|earlier| earlier.device == usage.device);
                let bytes: Vec<_> = earlier.chain([usage]).map(|usage| usage.write_bytes).collect();
                assert!(bytes.windows(2).all(|two| two[0] < two[1]), "{version}: {bytes:?}");
            }
        });
    }
}

/// A removed device is asked for again.
#[test]
fn removed_device_is_forgotten() {
    with(MIRRORED, async |cluster, mount| {
        written(&mount, "f", LARGE).await;
        for server in cluster.mds.servers("f") {
            cluster.mds.notify(LayoutEvent::DeviceRemoved { device: device(server), kind: LayoutKind::Flexible });
        }
        sleep(Duration::from_secs(1)).await;
        check(&mount, "f", LARGE).await;
        assert_eq!(ways(&mount).server, Default::default());
    });
}

/// At data servers of NFSv4, the client has a session and opens no file. It has them as long as the mount exists.
#[test]
fn data_servers_of_version_4_have_a_session_and_no_open_files() {
    with_version((4, 2), MIRRORED, "", async |cluster, mount| {
        let made_by = [0, 1, 2].map(|server| cluster.clients_of(server).0);
        written(&mount, "f", LARGE).await;
        check(&mount, "f", LARGE).await;
        let used = cluster.mds.servers("f");
        for (server, made) in made_by.iter().enumerate() {
            let (clients, opens) = cluster.clients_of(server);
            assert_eq!((clients - made, opens), (usize::from(used.contains(&server)), 0));
        }
        mount.unmount().await.unwrap();
        assert_eq!([0, 1, 2].map(|server| cluster.clients_of(server).0), made_by, "the sessions must be ended");
    });
}

/// A data server of NFSv4 that was restarted does not know the client. The client introduces itself again, and keeps its layout.
#[test]
fn data_servers_of_version_4_can_restart() {
    with_version((4, 1), MIRRORED, "", async |mut cluster, mount| {
        let file = written(&mount, "f", LARGE).await;
        for server in cluster.mds.servers("f") {
            cluster.restart_data_server(server);
        }
        file.write_at(0, pattern(10_000)).await.unwrap();
        check(&mount, "f", LARGE).await;
        assert_eq!((ways(&mount).server, cluster.mds.state.lock().reports.len()), (Default::default(), 0));
        assert!(cluster.mds.copies("f", LARGE).iter().all(|copy| *copy == pattern(LARGE)));
    });
}

/// A data server cannot send the client to another server.
#[test]
fn data_servers_are_not_followed_when_they_say_that_they_have_moved() {
    with_version((4, 2), MIRRORED, "", async |mut cluster, mount| {
        let file = written(&mount, "f", LARGE).await;
        let [moved, other] = cluster.mds.servers("f")[..] else { panic!("there must be two copies") };
        let third = 3 - moved - other;
        let known = cluster.clients_of(third).0;
        cluster.move_away(moved, third);
        let reader = cluster.mount(2, "").await;
        check(&reader, "f", LARGE).await;
        file.write_at(0, pattern(10_000)).await.unwrap();
        let reports = cluster.mds.state.lock().reports.clone();
        assert!(reports.iter().any(|report| report.device == device(moved)), "{reports:?}");
        assert_eq!(cluster.clients_of(third).0, known, "the client must not go there");
        check(&cluster.mount(3, "").await, "f", LARGE).await;
    });
}
