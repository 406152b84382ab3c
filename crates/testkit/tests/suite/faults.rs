//! Tests of a client and a server on the simulated network, whose connections are cut at every message.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use client::{FileKind, Mount, OpenOptions, StableHow};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rdma::{registration::Registration, sim::Cut};
use rpc::DrcOptions;
use server::{AuditOptions, OnFull, config::Settings};
use simnet::seeds;
use testkit::{
    deferred::{Deferred, Pace},
    world::{Setup, memory},
};
use vfs::Vfs;

/// Executes operations that must not be executed twice, and transfers data in every way: inline, in read chunks and
/// write chunks, and in a reply chunk. All of it must succeed, whatever happens to the connection. Returns the
/// resulting tree.
async fn work(mount: &Mount) -> client::Result<Tree> {
    mount.mkdir("/d", 0o755).await?;
    for name in ["/d/a", "/d/b", "/d/c"] {
        mount.open_with(name, EXCLUSIVE).await?;
    }
    mount.rename("/d/a", "/d/renamed").await?;
    mount.link("/d/b", "/d/second-name").await?;
    mount.symlink(vec![b'x'; 900], "/d/long-link").await?;
    mount.remove("/d/c").await?;
    mount.mkdir("/d/e", 0o700).await?;
    mount.rmdir("/d/e").await?;
    mount.chmod("/d/b", 0o600).await?;
    let handle = mount.resolve("/d/b").await?.handle;
    for (offset, len) in [(0, 700), (700, 30_000), (30_700, 5)] {
        mount.protocol().write(&handle, offset, pattern(offset, len).into(), StableHow::FileSync).await?;
    }
    snapshot(mount).await
}

const EXCLUSIVE: OpenOptions = OpenOptions { create: Some(0o644), exclusive: true, truncate: false };

fn pattern(offset: u64, len: usize) -> Bytes {
    (offset..offset + len as u64).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect::<Vec<_>>().into()
}

/// The type, mode, links, size and content of all objects, by path.
type Tree = BTreeMap<String, (FileKind, u32, u32, u64, Bytes)>;

async fn snapshot(mount: &Mount) -> client::Result<Tree> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![String::new()];
    while let Some(dir) = dirs.pop() {
        let mut entries = mount.read_dir(if dir.is_empty() { "/" } else { &dir }).await?;
        while let Some(entry) = entries.next().await? {
            let path = format!("{dir}/{}", String::from_utf8_lossy(&entry.name));
            let attr = mount.stat_link(&path).await?;
            let content = match attr.kind {
                FileKind::Reg => mount.read(&path).await?,
                FileKind::Lnk => mount.readlink(&path).await?,
                _ => Bytes::new(),
            };
            if attr.kind == FileKind::Dir {
                dirs.push(path.clone());
            }
            found.insert(path, (attr.kind, attr.mode, attr.nlink, attr.size, content));
        }
    }
    Ok(found)
}

/// Runs the work of the seed, and cuts a connection at message number `message`.
fn run_cut(way: &str, message: u64, cut: Cut, drc: DrcOptions) -> client::Result<Tree> {
    Setup { drc, ..Setup::new(1) }.run(|world| async move {
        let mount = world.client(1, way).await;
        world.network.cut_at(world.network.messages() + message, cut);
        work(&mount).await
    })
}

/// Runs the work without a cut. Returns the number of messages, and the tree.
fn run_whole(way: &str) -> (u64, Tree) {
    Setup::new(1).run(|world| async move {
        let mount = world.client(1, way).await;
        let before = world.network.messages();
        let tree = work(&mount).await.expect("work must succeed without a fault");
        assert_eq!(tree["/d/b"].4, pattern(0, 30_705));
        (world.network.messages() - before, tree)
    })
}

/// Runs the work of the seed over a back end that completes each operation later, with the same cut.
fn run_cut_deferred(message: Option<(u64, Cut)>) -> (u64, Tree) {
    let (sender, fs) = std::sync::mpsc::channel();
    let vfs = move || -> Arc<dyn Vfs> {
        let fs = Deferred::new(memory(), Pace::Manual);
        sender.send(fs.clone()).expect("receiver must exist");
        fs
    };
    Setup { vfs: Box::new(vfs), ..Setup::new(1) }.run(|world| async move {
        let fs = fs.recv().expect("the world must have created the file system");
        let completing = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                fs.0.complete(usize::MAX);
            }
        });
        let mount = world.client(1, "").await;
        let before = world.network.messages();
        if let Some((message, cut)) = message {
            world.network.cut_at(before + message, cut);
        }
        let tree = work(&mount).await.expect("work must succeed");
        completing.abort();
        (world.network.messages() - before, tree)
    })
}

#[test]
fn a_connection_cut_while_operations_are_pending_changes_nothing() {
    let (_, expected) = run_whole("");
    let (messages, tree) = run_cut_deferred(None);
    assert_eq!(tree, expected);
    for message in 0..messages {
        for cut in [Cut::Before, Cut::After] {
            let (_, tree) = run_cut_deferred(Some((message, cut)));
            assert_eq!(tree, expected, "cut {cut:?} message {message}");
        }
    }
}

fn a_connection_cut_at_any_message_changes_nothing(way: &str) {
    let (messages, expected) = run_whole(way);
    assert!(messages > 60, "{messages} messages are too few for this test");
    for message in 0..messages {
        for cut in [Cut::Before, Cut::After] {
            let tree = run_cut(way, message, cut, DrcOptions::default());
            assert_eq!(tree.expect("work must succeed"), expected, "cut {cut:?} message {message}");
        }
    }
}

#[test]
fn a_connection_cut_at_any_message_changes_nothing_over_rdma() {
    a_connection_cut_at_any_message_changes_nothing("");
}

#[test]
fn a_connection_cut_at_any_segment_changes_nothing_over_tcp() {
    a_connection_cut_at_any_message_changes_nothing("&proto=tcp");
}

#[test]
fn a_connection_cut_at_any_segment_changes_nothing_over_tcp_with_sessions() {
    a_connection_cut_at_any_message_changes_nothing("&proto=tcp&vers=4.2");
}

/// Shows that the tests above can fail: a server without a duplicate request cache does not pass them.
fn a_server_without_a_reply_cache_is_detected(way: &str) {
    let (messages, expected) = run_whole(way);
    let forgetful = DrcOptions { reply_max: 0, ..DrcOptions::default() };
    let run = |message| run_cut(way, message, Cut::Before, forgetful.clone());
    let survived = (0..messages).filter(|&message| run(message).is_ok_and(|tree| tree == expected)).count() as u64;
    assert!(survived < messages, "at least one cut of {messages} must make a difference");
}

#[test]
fn a_server_without_a_reply_cache_is_detected_over_rdma() {
    a_server_without_a_reply_cache_is_detected("");
}

#[test]
fn a_server_without_a_reply_cache_is_detected_over_tcp() {
    a_server_without_a_reply_cache_is_detected("&proto=tcp");
}

#[test]
fn clients_complete_their_work_despite_frequent_disconnects() {
    for seed in seeds(20) {
        Setup::new(seed).run(|world| async move {
            let mut clients = tokio::task::JoinSet::new();
            world.network.set_cut_probability(0.02);
            for number in 1..=3 {
                // The last client uses TCP.
                let way = match number {
                    3 => "proto=tcp".to_owned(),
                    _ => format!("registration={}", Registration::ALL[seed as usize % Registration::ALL.len()]),
                };
                let mount = world.client(number, &format!("&timeo=36000&{way}")).await;
                clients.spawn(async move {
                    let mut rng = StdRng::seed_from_u64(seed * 10 + u64::from(number));
                    let dir = format!("/client-{number}");
                    mount.mkdir(&dir, 0o755).await.expect("mkdir");
                    let mut model = BTreeMap::new();
                    for step in 0..60u32 {
                        churn(&mount, &dir, &mut model, step, &mut rng).await;
                    }
                    for (name, content) in &model {
                        let found = mount.read(format!("{dir}/{name}")).await.expect("read");
                        assert!(found == content, "seed {seed}: {dir}/{name} differs");
                    }
                    let mut entries = mount.read_dir(&dir).await.expect("readdir");
                    let mut names = Vec::new();
                    while let Some(entry) = entries.next().await.expect("readdir") {
                        names.push(String::from_utf8_lossy(&entry.name).into_owned());
                    }
                    names.sort();
                    assert_eq!(names, model.keys().cloned().collect::<Vec<_>>());
                });
            }
            while let Some(done) = clients.join_next().await {
                done.expect("client must complete its work");
            }
        });
    }
}

/// Executes one random step on the server and on its model.
async fn churn(mount: &Mount, dir: &str, model: &mut BTreeMap<String, Vec<u8>>, step: u32, rng: &mut StdRng) {
    let pick = (!model.is_empty()).then(|| model.keys().nth(rng.random_range(0..model.len())).cloned()).flatten();
    match (rng.random_range(0..5), pick) {
        (0 | 1, _) | (_, None) => {
            let name = format!("f{step}");
            mount.open_with(format!("{dir}/{name}"), EXCLUSIVE).await.expect("create");
            model.insert(name, Vec::new());
        }
        (2, Some(name)) => {
            mount.remove(format!("{dir}/{name}")).await.expect("remove");
            model.remove(&name);
        }
        (3, Some(name)) => {
            let to = format!("r{step}");
            mount.rename(format!("{dir}/{name}"), format!("{dir}/{to}")).await.expect("rename");
            let content = model.remove(&name).expect("name must be in the model");
            model.insert(to, content);
        }
        (_, Some(name)) => {
            let handle = mount.resolve(format!("{dir}/{name}")).await.expect("lookup").handle;
            let content = model.get_mut(&name).expect("name must be in the model");
            let offset = rng.random_range(0..=content.len());
            let len = rng.random_range(1..40_000);
            let data = pattern(u64::from(step) * 1_000_003, len);
            content.resize(content.len().max(offset + len), 0);
            content[offset..offset + len].copy_from_slice(&data);
            mount
                .protocol()
                .write(&handle, offset as u64, data.into(), StableHow::FileSync)
                .await
                .expect("WRITE must succeed");
        }
    }
}

#[test]
fn clients_wait_for_a_server_that_is_down() {
    for seed in seeds(10) {
        Setup::new(seed).run(|mut world| async move {
            let proto = if seed % 2 == 0 { "rdma" } else { "tcp" };
            let mount = world.client(1, &format!("&timeo=6000&proto={proto}")).await;
            let file = mount.create("/f", 0o644).await.expect("create");
            let writing = tokio::spawn(async move {
                let mut writer = file.writer();
                for part in 0..40 {
                    writer.write(pattern(part * 50_000, 50_000)).await.expect("write");
                }
                writer.close().await.expect("close");
            });
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_millis(40)).await;
                world.restart_server();
            }
            writing.await.expect("writer must end");
            let back = mount.read("/f").await.expect("read");
            assert!(back == pattern(0, 2_000_000), "seed {seed}: the file must be complete");
        });
    }
}

/// The server's audit log has each operation once, however often its call and its reply were sent.
#[test]
fn each_operation_is_audited_once_despite_cut_connections() {
    for (seed, version) in seeds(4).zip(["3", "4.1", "3", "4.1"]) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("audit.json");
        let audit = AuditOptions { file: file.clone(), reads: false, queue: 1 << 20, on_full: OnFull::Drop };
        let settings = Settings { audit: Some(audit), ..Settings::default() };
        // The server is dropped with its world, and writes its last records then.
        Setup { settings, ..Setup::new(seed) }.run(|world| async move {
            let mount = world.client(1, &format!("&vers={version}")).await;
            world.network.set_cut_probability(0.05);
            for number in 0..100 {
                mount.mkdir(format!("/{number}"), 0o755).await.unwrap();
            }
        });
        let text = std::fs::read_to_string(&file).unwrap();
        for number in 0..100 {
            let path = format!("\"path\":\"/{number}\"");
            let found: Vec<_> = text.lines().filter(|line| line.contains(&path)).collect();
            let once = found.len() == 1 && found[0].contains("\"result\":\"OK\"");
            assert!(once, "seed {seed}, version {version}: {path} has these records: {found:?}");
        }
    }
}
