//! Mounts whose connections are lost, whose server restarts without its contexts, and whose delegations are recalled.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use bytes::Bytes;
use client::{File, LockRange, Mount, V4};
use simnet::{Trace, assert_replays, seeds};
use testkit::{
    toy::ToyInitiator,
    world::{PRINCIPAL, SECRET, Setup},
};
use tokio::{sync::watch::Sender as Watch, task::JoinSet, time::Instant};

use super::{FLAVORS, KERBEROS, LEASE, setup};

/// The ways of the clients: each version, flavour and transport is used.
const WAYS: [&str; 9] = [
    "&sec=krb5&vers=4.1&proto=tcp",
    "&sec=krb5i&vers=4.1&proto=rdma",
    "&sec=krb5p&vers=4.1&proto=tcp&nconnect=3",
    "&sec=krb5p&vers=4.2&proto=rdma",
    "&sec=krb5i&vers=4.2&proto=tcp",
    "&sec=krb5i&vers=4.0&proto=tcp",
    "&sec=krb5&vers=3&proto=rdma",
    "&sec=krb5i&vers=3&proto=tcp",
    "&sec=krb5p&vers=3&proto=tcp",
];

const LEN: usize = 300_000;
const PIECE: usize = LEN / 10;
const LOCKED: LockRange = LockRange { offset: 7, length: 100, exclusive: true };

fn v4(mount: &Mount) -> &V4 {
    mount.v4().expect("mount must have version 4")
}

fn content(number: u8) -> Bytes {
    (0..LEN).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ number).collect()
}

/// Makes a directory, and creates and locks a file in it.
async fn begin(mount: &Mount, number: u8) -> client::Result<File> {
    let dir = format!("/{number}");
    mount.mkdir(&dir, 0o755).await?;
    let created = mount.create(format!("{dir}/new"), 0o644).await?;
    assert_eq!(mount.protocol().lock(created.handle(), b"owner", LOCKED).await?, None);
    Ok(created)
}

/// Writes the file piece by piece, each onto stable storage, and counts each in `written`.
async fn write(file: File, number: u8, written: Arc<Watch<usize>>) -> client::Result<()> {
    let content = content(number);
    for at in (0..LEN).step_by(PIECE) {
        file.write_at(at as u64, content.slice(at..at + PIECE)).await?;
        written.send_modify(|count| *count += 1);
    }
    Ok(())
}

/// Renames and reads the file. Another client finds it locked, until this one unlocks it.
async fn finish(mount: Mount, other: Mount, number: u8) -> client::Result<()> {
    let path = format!("/{number}/file");
    mount.rename(format!("/{number}/new"), &path).await?;
    assert_eq!(mount.read(&path).await?, content(number));
    let file = mount.resolve(&path).await?.handle;
    let (locks, other) = (mount.protocol(), other.protocol());
    assert_eq!(other.lock(&file, b"other", LOCKED).await?, Some(LOCKED), "file {number}");
    locks.unlock(&file, b"owner", LOCKED.offset, LOCKED.length).await?;
    assert_eq!(other.lock(&file, b"other", LOCKED).await?, None, "file {number}");
    other.unlock(&file, b"other", LOCKED.offset, LOCKED.length).await?;
    mount.unmount().await
}

/// Completes the work of a client, whose error tells its way.
async fn named(way: &'static str, work: impl Future<Output = client::Result<()>>) -> Result<(), String> {
    work.await.map_err(|error| format!("{way}: {error}"))
}

async fn all(mut tasks: JoinSet<Result<(), String>>) {
    while let Some(done) = tasks.join_next().await {
        done.expect("client must not panic").unwrap();
    }
}

/// Runs a client for each way while connections are lost. While the clients write, the server's process is replaced by one that has no
/// contexts and the same recovery database, and the clients continue while connections are lost again. No piece that was on stable
/// storage is lost, and the locks are still held.
fn run(seed: u64) -> Trace {
    setup(seed, &KERBEROS).run(|mut world| async move {
        let mut mounts = Vec::new();
        for (number, way) in (1..).zip(WAYS) {
            mounts.push((number, way, world.client(number, &format!("{way}&timeo=36000")).await));
        }
        let other = world.client(99, "&sec=krb5i&vers=4.1&proto=tcp&timeo=36000").await;
        world.network.set_cut_probability(0.01);
        let mut files = Vec::new();
        for (number, way, mount) in &mounts {
            files.push(begin(mount, *number).await.unwrap_or_else(|error| panic!("{way}: {error}")));
        }
        let written = Arc::new(Watch::new(0));
        let mut working = JoinSet::new();
        for ((number, way, _), file) in mounts.iter().zip(files) {
            working.spawn(named(way, write(file, *number, written.clone())));
        }
        let all_pieces = WAYS.len() * LEN / PIECE;
        written.subscribe().wait_for(|count| *count >= all_pieces / 2).await.expect("the count must not end");
        let before = world.contexts.contexts();
        assert!(before >= WAYS.len(), "only {before} contexts");
        world.restart_server();
        assert!(*written.borrow() < all_pieces, "the clients must still write");
        assert_eq!(world.contexts.contexts(), 0, "the new process must have no contexts");
        world.network.set_cut_probability(0.005);
        all(working).await;
        assert_eq!(*written.borrow(), all_pieces);

        let mut working = JoinSet::new();
        for (number, way, mount) in mounts {
            working.spawn(named(way, finish(mount, other.clone(), number)));
        }
        all(working).await;
        assert!(world.contexts.contexts() > 0, "the clients must have negotiated again");
        world.network.trace()
    })
}

#[test]
fn mounts_survive_lost_connections_and_a_restart_without_contexts() {
    for seed in seeds(8) {
        run(seed);
    }
}

#[test]
fn runs_with_the_same_seed_are_equal() {
    assert_replays(|| run(1));
    assert_ne!(run(1), run(2));
}

/// Opens a file at one client, which gets a delegation, and then at another one.
async fn recall(one: &Mount, other: &Mount, path: &str) {
    other.write(path, &b"old"[..]).await.unwrap();
    // The creator has closed the file by then.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let file = one.open(path).await.unwrap();
    file.write_at(0, Bytes::from_static(b"new")).await.unwrap();
    assert!(v4(one).is_delegated(file.handle()), "{path} must be delegated");
    let asked = Instant::now();
    assert_eq!(other.read(path).await.unwrap(), &b"new"[..], "{path}");
    assert!(!v4(one).is_delegated(file.handle()), "the delegation of {path} must be recalled");
    assert!(asked.elapsed() < LEASE / 2, "a client that is not called would keep it: {:?}", asked.elapsed());
}

/// The backchannel of a session works whatever the flavour of its calls is, also after both sides have lost their contexts.
#[test]
fn delegations_are_recalled_on_mounts_with_kerberos() {
    for (flavor, version) in FLAVORS.into_iter().flat_map(|flavor| ["4.1", "4.2"].map(|version| (flavor, version))) {
        for transport in ["tcp", "rdma"] {
            setup(1, &KERBEROS).run(|mut world| async move {
                let way = format!("&sec={flavor}&vers={version}&proto={transport}&timeo=36000");
                let (one, other) = (world.client(1, &way).await, world.client(2, &way).await);
                recall(&one, &other, "/first").await;
                world.restart_server();
                recall(&one, &other, "/second").await;
            });
        }
    }
}

/// A context expires several times while the client holds a lock.
#[test]
fn contexts_that_expire_are_replaced_while_state_is_held() {
    for (flavor, version) in FLAVORS.into_iter().flat_map(|flavor| ["3", "4.0", "4.1"].map(|version| (flavor, version)))
    {
        let setup = Setup { context_lifetime: Some(Duration::from_secs(2)), ..setup(1, &KERBEROS) };
        setup.run(|world| async move {
            let way = format!("&sec={flavor}&vers={version}&proto=tcp");
            let (one, other) = (world.client(1, &way).await, world.client(2, &way).await);
            one.write("/f", &b"old"[..]).await.unwrap();
            // NFSv4.0 opens a file by its name.
            let opened = [one.open("/f").await.unwrap(), other.open("/f").await.unwrap()];
            let file = opened[0].handle().clone();
            assert_eq!(one.protocol().lock(&file, b"owner", LOCKED).await.unwrap(), None);
            let tokens = world.faults.tokens.load(SeqCst);
            // More than a lease: the client renews it with new contexts.
            tokio::time::sleep(3 * LEASE).await;
            assert_eq!(other.protocol().lock(&file, b"other", LOCKED).await.unwrap(), Some(LOCKED));
            one.write("/f", &b"new"[..]).await.unwrap();
            assert_eq!(other.read("/f").await.unwrap(), &b"new"[..]);
            let again = world.faults.tokens.load(SeqCst) - tokens;
            assert!(again >= 2, "{again} contexts were made again");
        });
    }
}

/// The ticket of a user ends while his client has a delegation, which it then cannot return: it has no other principal. The server
/// waits for the client no longer than for one that is gone. With a new ticket, the client continues.
#[test]
fn a_ticket_that_ends_does_not_keep_a_delegation() {
    for (flavor, version) in FLAVORS.into_iter().flat_map(|flavor| ["4.1", "4.2"].map(|version| (flavor, version))) {
        let lifetime = Some(Duration::from_secs(30));
        let setup = Setup { context_lifetime: lifetime, ..setup(1, &KERBEROS) };
        setup.run(|world| async move {
            let way = format!("&sec={flavor}&vers={version}&proto=tcp");
            let ticket = ToyInitiator { lifetime, ..ToyInitiator::new(PRINCIPAL, SECRET) };
            let (one, other) = (world.client_with(1, &way, ticket.clone()).await, world.client(2, &way).await);
            other.write("/f", &b"old"[..]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(10)).await;
            let file = one.open("/f").await.unwrap();
            file.write_at(0, Bytes::from_static(b"new")).await.unwrap();
            assert!(v4(&one).is_delegated(file.handle()), "{way}");

            ticket.has_ticket.store(false, SeqCst);
            tokio::time::sleep(Duration::from_secs(40)).await;
            let error = one.mkdir("/without", 0o755).await.unwrap_err();
            assert!(error.to_string().contains("ticket"), "{way}: {error}");
            let asked = Instant::now();
            assert_eq!(other.read("/f").await.unwrap(), &b"new"[..], "{way}");
            assert!(asked.elapsed() < 2 * LEASE, "{way}: {:?}", asked.elapsed());
            other.write("/f", &b"own"[..]).await.unwrap();

            ticket.has_ticket.store(true, SeqCst);
            assert_eq!(one.read("/f").await.unwrap(), &b"own"[..], "{way}");
            assert!(!v4(&one).is_delegated(file.handle()), "{way}");
            one.write("/f", &b"end"[..]).await.unwrap();
            assert_eq!(other.read("/f").await.unwrap(), &b"end"[..], "{way}");
        });
    }
}
