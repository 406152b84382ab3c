//! File systems that move to another server while they are used, in all minor versions of NFSv4 (RFC 8881 §11.10, RFC
//! 7530 §8). The servers and their client are in a simulation.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::common::{
    gated::Gated,
    memory,
    moving::{Gone, MoveState, Moving},
    pattern,
    recorder::{Record, Recorded},
    recovery,
    sim::{self, for_each_simulated},
    wrapped::wrapped,
};
use bytes::Bytes;
use client::{ErrorKind, File, Handle, LockRange, Mount, Status, Watcher};
use nfs::v4::{Argop4, OpenClaim4};
use rpc::{BoxFuture, Service, rpcbind::to_universal};
use server::{BlockingOptions, Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings};
use simnet::Network;
use tempfile::TempDir;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use vfs::Vfs;

for_each_simulated! {
    [
        open_and_locks_are_reclaimed
        state_is_not_reclaimed_after_the_move
        lost_locks_are_reported
        operations_in_progress_continue
        objects_renamed_after_the_move_are_found
        another_file_with_the_same_name_is_rejected
        requests_wait_for_one_attempt_and_share_its_failure
        moved_lease_is_found
        file_system_can_move_twice
    ]
    v4_0 = "4.0"
    v4_1 = "4.1"
    v4_2 = "4.2"
}

for_each_simulated! {
    [requests_for_new_state_wait_for_reclaim_complete watcher_gets_the_handles_that_callers_know]
    session_v4_1 = "4.1"
    session_v4_2 = "4.2"
}

/// The hosts of the servers of one test.
struct Hosts {
    network: Network,
    /// The number of servers so far.
    servers: AtomicU8,
}

/// A server that has the file system, or had it before.
struct Site {
    address: SocketAddr,
    network: Network,
    move_state: Arc<MoveState>,
    record: Record,
    state: TempDir,
    _process: JoinSet<()>,
}

impl Hosts {
    fn new(network: Network) -> Self {
        Self { network, servers: AtomicU8::new(0) }
    }

    /// Starts a server that exports under this name. Clients of `after` may reclaim their state here.
    fn start(&self, name: &str, vfs: Arc<dyn Vfs>, after: Option<&Site>) -> Site {
        self.start_behind(name, vfs, after, |service| service)
    }

    fn start_behind(
        &self,
        name: &str,
        vfs: Arc<dyn Vfs>,
        after: Option<&Site>,
        wrap: impl Fn(Arc<dyn Service>) -> Arc<dyn Service>,
    ) -> Site {
        let state = tempfile::tempdir().unwrap();
        after.iter().for_each(|after| copy(after.state.path(), state.path()));
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        // The handles and the ID of the file system must differ from those of another server.
        let export = Export::new(name, ExportId::of(&[name.as_bytes()]), vfs, options).unwrap();
        // In virtual time, no task may wait for another thread.
        let blocking = BlockingOptions { threads: 0, ..BlockingOptions::default() };
        let settings = Settings { blocking, grace: GRACE, ..Settings::default() };
        let recovery = recovery(state.path());
        let nfs = NfsServer::recovering(export, HandleKey::random(), recovery, settings).unwrap();
        let move_state = Arc::<MoveState>::default();
        let moving = |service| wrap(wrapped(service, Moving(move_state.clone())));
        let record = Record::default();
        let services = record.wrap(vec![moving(Arc::new(nfs.nfs4()))]);
        let number = self.servers.fetch_add(1, SeqCst);
        let address = SocketAddr::new(IpAddr::from([10, 0, 0, number]), 2049);
        let mut process = sim::start_at(&self.network, address, services);
        process.spawn(nfs.upkeep());
        Site { address, network: self.network.clone(), move_state, record, state, _process: process }
    }
}

impl Site {
    async fn mount(&self, path: &str, vers: &str) -> Mount {
        let url = format!("nfs://{}{path}?vers={vers}&uid=0&gid=0&timeo=600s", self.address).parse().unwrap();
        Mount::connect(&url, &sim::switch(&self.network, 1)).await.unwrap()
    }

    /// Moves the file system away.
    async fn moves(&self, mount: &Mount, path: &'static str, places: Vec<(String, &'static str)>, lease_moved: bool) {
        let fsid = mount.stat("").await.unwrap().fsid;
        *self.move_state.gone.lock() = Some(Gone { fsid, path, places, lease_moved });
    }

    fn place(&self, path: &'static str) -> (String, &'static str) {
        (to_universal(self.address), path)
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Fills a file system with the files for the tests. `first` are created before all others.
async fn filled(hosts: &Hosts, vfs: Arc<dyn Vfs>, first: &[&str]) -> Arc<dyn Vfs> {
    let server = hosts.start("/fill", vfs.clone(), None);
    let mount = server.mount("/fill", "4.2").await;
    for name in first {
        mount.write(name, &b"unrelated"[..]).await.unwrap();
    }
    mount.mkdir("d", 0o755).await.unwrap();
    mount.write("d/f", &b"0123456789"[..]).await.unwrap();
    mount.write("w", &b""[..]).await.unwrap();
    mount.write("large", pattern(LARGE)).await.unwrap();
    mount.unmount().await.unwrap();
    vfs
}

/// A mount of a server whose file system will move, and an open file there.
struct Before {
    hosts: Hosts,
    vfs: Arc<dyn Vfs>,
    here: Site,
    mount: Mount,
    file: File,
}

impl Before {
    async fn opened(network: Network, vers: &str) -> Self {
        let hosts = Hosts::new(network);
        let vfs = filled(&hosts, Arc::new(memory()), &[]).await;
        let here = hosts.start("/m", vfs.clone(), None);
        let mount = here.mount("/m", vers).await;
        let file = mount.open("d/f").await.unwrap();
        Self { hosts, vfs, here, mount, file }
    }

    /// Returns a mount whose file has been read, and whose first bytes `a` has locked.
    async fn locked(network: Network, vers: &str) -> Self {
        let before = Self::opened(network, vers).await;
        assert_eq!(before.file.read_bytes(0, 4).await.unwrap(), "0123");
        let v4 = before.mount.v4().unwrap();
        assert_eq!(v4.lock(before.file.handle(), b"a", range(0)).await.unwrap(), None);
        before
    }
}

fn range(offset: u64) -> LockRange {
    LockRange { offset, length: 5, exclusive: true }
}

async fn open_and_locks_are_reclaimed(network: Network, vers: &str) {
    let Before { hosts, vfs, here, mount, file } = Before::locked(network, vers).await;
    let v4 = mount.v4().unwrap();
    let there = hosts.start("/srv/new", vfs, Some(&here));
    here.moves(&mount, "/m", vec![there.place("/srv/new")], false).await;
    // An open that is not reclaimed would have to wait for the end of the grace period.
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789");
    v4.unlock(file.handle(), b"a", 0, 1).await.unwrap();
    file.write_at(9, Bytes::from_static(b"!")).await.unwrap();
    assert_eq!(here.move_state.asked.load(SeqCst), 1, "all requests must share one query");
    if vers != "4.0" {
        // From NFSv4.1 on, the server knows that no more state is reclaimed, and ends the grace period.
        let other = there.mount("/srv/new", vers).await;
        let seen = other.open("d/f").await.unwrap();
        let conflict = other.v4().unwrap().test_lock(seen.handle(), b"a", range(0)).await.unwrap();
        assert_eq!(conflict.map(|lock| (lock.offset, lock.length)), Some((1, 4)), "the new server must hold the lock");
        assert_eq!(v4.lock(file.handle(), b"a", range(100)).await.unwrap(), None);
        assert_eq!(other.read("d/f").await.unwrap(), "012345678!");
    }
    mount.unmount().await.unwrap();
}

/// The file is found at the other server only after the move, when the client has sent RECLAIM_COMPLETE.
async fn state_is_not_reclaimed_after_the_move(network: Network, vers: &str) {
    let Before { hosts, vfs, here, mount, file } = Before::locked(network, vers).await;
    let v4 = mount.v4().unwrap();
    let there = hosts.start("/n", vfs.clone(), Some(&here));
    let renaming = hosts.start("/other", vfs, None);
    let direct = renaming.mount("/other", "4.2").await;
    direct.rename("d/f", "d/g").await.unwrap();
    here.moves(&mount, "/m", vec![there.place("/n")], false).await;
    let error = file.read_bytes(0, 4).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Moved(_)), "{error}");
    direct.rename("d/g", "d/f").await.unwrap();
    mount.protocol().getattr(file.handle()).await.unwrap();
    //= rfc8881-18.51.3-3
    assert!(!there.record.all().iter().any(Recorded::reclaims));
    let error = v4.unlock(file.handle(), b"a", 0, 5).await.unwrap_err();
    assert!(error.to_string().contains("lost the locks"), "{error}");
}

/// Returns `true` if an operation asks for new state.
fn asks_for_state(op: &Argop4) -> bool {
    match op {
        Argop4::Open(open) => !matches!(open.claim, OpenClaim4::Previous(_)),
        Argop4::Lock(lock) => !lock.reclaim,
        _ => false,
    }
}

/// Many files are open and locked. As soon as the first of them is found at the other server, it could be locked there.
async fn requests_for_new_state_wait_for_reclaim_complete(network: Network, vers: &str) {
    let Before { hosts, vfs, here, mount, file } = Before::locked(network, vers).await;
    let mut files = vec![file];
    for number in 0..WAITING {
        let file = mount.create(format!("d/{number}"), 0o644).await.unwrap();
        assert_eq!(mount.v4().unwrap().lock(file.handle(), b"a", range(0)).await.unwrap(), None);
        files.push(file);
    }
    let there = hosts.start("/n", vfs, Some(&here));
    here.moves(&mount, "/m", vec![there.place("/n")], false).await;
    let finding = tokio::spawn({
        let mount = mount.clone();
        async move { mount.stat("").await.unwrap() }
    });
    // The first file has been found, and the next ones have not.
    sim::until(|| there.record.all().iter().filter(|one| one.reclaims()).count() > 2).await;
    let mut tasks = JoinSet::new();
    for file in files {
        let v4 = mount.v4().unwrap().clone();
        tasks.spawn(async move { v4.lock(file.handle(), b"b", range(100)).await });
    }
    for locked in tasks.join_all().await {
        assert_eq!(locked.unwrap(), None);
    }
    finding.await.unwrap();
    let requests = there.record.all();
    let of_fs = |one: &Recorded| {
        let ops = &one.args.argarray[..];
        matches!(ops, [_, Argop4::PutFh(_), Argop4::ReclaimComplete(args)] if args.one_fs)
    };
    let complete = requests.iter().position(of_fs).expect("RECLAIM_COMPLETE for the file system must be sent");
    let asks = |one: &Recorded| one.args.argarray.iter().any(asks_for_state);
    let first = requests.iter().position(asks).expect("the locks must have been requested");
    //= rfc8881-18.51.3-2
    assert!(complete < first, "{:?} was sent before RECLAIM_COMPLETE", requests[first].opnums());
    let reclaimed = |requests: &[Recorded]| requests.iter().filter(|one| one.reclaims()).count();
    assert_eq!(reclaimed(&requests[..complete]), 2 * (WAITING + 1), "each open and each lock must be reclaimed");
    //= rfc8881-18.51.3-3
    assert_eq!(reclaimed(&requests[complete..]), 0);
}

async fn lost_locks_are_reported(network: Network, vers: &str) {
    let Before { hosts, vfs, here, mount, file } = Before::locked(network, vers).await;
    let v4 = mount.v4().unwrap();
    let there = hosts.start("/n", vfs, None);
    here.moves(&mount, "/m", vec![there.place("/n")], false).await;
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789", "the file must be opened again");
    let error = v4.unlock(file.handle(), b"a", 0, 5).await.unwrap_err();
    assert!(error.to_string().contains("lost the locks"), "{error}");
    assert_eq!(v4.lock(file.handle(), b"b", range(0)).await.unwrap(), None, "another owner must be able to lock");
    v4.release_locks(file.handle(), b"a").await.unwrap();
    v4.unlock(file.handle(), b"b", 0, 5).await.unwrap();
    assert_eq!(v4.lock(file.handle(), b"a", range(0)).await.unwrap(), None);
}

/// The other server has a copy. Only paths and fileids are the same there.
async fn operations_in_progress_continue(network: Network, vers: &str) {
    let hosts = Hosts::new(network);
    let copies = (filled(&hosts, Arc::new(memory()), &[]).await, filled(&hosts, Arc::new(memory()), &[]).await);
    let (here, there) = (hosts.start("/m", copies.0, None), hosts.start("/n", copies.1, None));
    let (mount, direct) = (here.mount("/m", vers).await, there.mount("/n", vers).await);
    let name = |number: usize| format!("d/a name long enough that these come in many pages {number:04}");
    for number in 0..MANY {
        mount.symlink("text", name(number)).await.unwrap();
        direct.symlink("text", name(MANY - 1 - number)).await.unwrap();
    }
    let mut listing = mount.read_dir("d").await.unwrap();
    let mut listed = vec![listing.next().await.unwrap().unwrap().name];
    let mut reader = mount.open("large").await.unwrap().reader();
    let mut read = reader.next().await.unwrap().unwrap().to_vec();
    let written = mount.open("w").await.unwrap();
    let mut writer = written.writer();
    let data = pattern(3 << 20);
    writer.write(data.slice(..2 << 20)).await.unwrap();
    while here.move_state.written.load(SeqCst) == 0 {
        // The writer makes progress only while it is polled.
        writer.write(Bytes::new()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = mount.resolve("d/f").await.unwrap();

    here.moves(&mount, "/m", vec![there.place("/n")], false).await;
    writer.write(data.slice(2 << 20..)).await.unwrap();
    writer.close().await.unwrap();
    assert!(direct.read("w").await.unwrap() == data, "uncommitted data must be written again");
    while let Some(more) = reader.next().await.unwrap() {
        read.extend_from_slice(&more);
    }
    assert!(read == pattern(LARGE));
    while let Some(entry) = listing.next().await.unwrap() {
        listed.push(entry.name);
    }
    listed.sort();
    let mut all: Vec<_> = (0..MANY).map(|number| name(number)[2..].to_owned()).chain(["f".to_owned()]).collect();
    all.sort();
    assert_eq!(listed, all, "each entry must be listed once");

    let after = mount.resolve("d/f").await.unwrap();
    assert_eq!((after.handle, after.attr.fileid), (before.handle.clone(), before.attr.fileid));
    mount.rename("d/f", "d/g").await.unwrap();
    mount.link("d/g", "h").await.unwrap();
    mount.write("new", &b"made there"[..]).await.unwrap();
    assert_eq!(direct.read("new").await.unwrap(), "made there");
    assert_eq!(direct.stat("h").await.unwrap().nlink, 2);
    let new = mount.open("new").await.unwrap();
    assert_eq!(mount.v4().unwrap().lock(new.handle(), b"me", range(0)).await.unwrap(), None);
    assert_eq!(new.read_bytes(0, 100).await.unwrap(), "made there");
    assert_eq!(mount.protocol().getattr(&before.handle).await.unwrap().nlink, 2);
    assert_eq!(mount.stat("d/f").await.unwrap_err().status(), Some(Status::NotFound));
    assert!(mount.statfs("").await.unwrap().tbytes > 0);
    mount.unmount().await.unwrap();
}

/// The objects are known before the move, and are used again only after they were renamed.
async fn objects_renamed_after_the_move_are_found(network: Network, vers: &str) {
    let hosts = Hosts::new(network);
    let vfs = filled(&hosts, Arc::new(memory()), &[]).await;
    let [here, there] = ["/m", "/n"].map(|name| hosts.start(name, vfs.clone(), None));
    let (mount, other) = (here.mount("/m", vers).await, there.mount("/n", vers).await);
    let mut known = Vec::new();
    for path in ["w", "d", "d/f", "large"] {
        let found = mount.resolve(path).await.unwrap();
        known.push((found.handle, found.attr.fileid));
    }
    here.moves(&mount, "/m", vec![there.place("/n")], false).await;
    mount.mkdir("made", 0o755).await.unwrap();
    mount.rename("w", "made/w").await.unwrap();
    mount.rename("d", "made/d").await.unwrap();
    mount.rename("made/d", "made/e").await.unwrap();
    let check = async |known: &[_]| {
        for (handle, fileid) in known {
            assert_eq!(mount.protocol().getattr(handle).await.unwrap().fileid, *fileid);
        }
    };
    check(&known[..2]).await;
    // The client knows the directory at the new server, so a rename by another client does not matter.
    other.rename("made/e", "others").await.unwrap();
    check(&known).await;
    assert_eq!(mount.resolve("made/w").await.unwrap().handle, known[0].0);
}

async fn another_file_with_the_same_name_is_rejected(network: Network, vers: &str) {
    let hosts = Hosts::new(network);
    let here = hosts.start("/m", filled(&hosts, Arc::new(memory()), &[]).await, None);
    let there = hosts.start("/n", filled(&hosts, Arc::new(memory()), &["x", "y"]).await, None);
    let mount = here.mount("/m", vers).await;
    let file = mount.open("d/f").await.unwrap();
    file.read_bytes(0, 4).await.unwrap();
    here.moves(&mount, "/m", vec![there.place("/n")], false).await;
    for _ in 0..2 {
        let error = file.read_bytes(0, 4).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Moved(_)), "{error}");
        assert!(error.to_string().contains("/m/d/f is another file"), "{error}");
    }
    file.write_at(0, Bytes::from_static(b"not there")).await.unwrap_err();
    let direct = there.mount("/n", vers).await;
    assert_eq!(direct.read("d/f").await.unwrap(), "0123456789");
    assert_eq!(mount.read("x").await.unwrap(), "unrelated", "files at the new server must be readable");
}

async fn requests_wait_for_one_attempt_and_share_its_failure(network: Network, vers: &str) {
    let Before { hosts, vfs, here, mount, file } = Before::opened(network, vers).await;
    let introduced = Arc::new(AtomicUsize::new(0));
    let (gate, open) = watch::channel(false);
    let there = hosts.start_behind("/n", vfs, None, |inner| {
        wrapped(inner, Gated { introduced: introduced.clone(), open: open.clone() })
    });
    here.moves(&mount, "/m", vec![there.place("/other")], false).await;
    let mut tasks = JoinSet::new();
    for _ in 0..WAITING {
        let file = file.clone();
        tasks.spawn(async move { file.stat().await });
    }
    sim::until(|| here.move_state.asked.load(SeqCst) >= WAITING && introduced.load(SeqCst) > 0).await;
    gate.send_replace(true);
    while let Some(result) = tasks.join_next().await {
        let error = result.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Referral(_)), "{error}");
        assert!(error.to_string().contains("/other: "), "{error}");
    }
    assert_eq!(introduced.load(SeqCst), 1, "the requests must share one attempt");
    here.moves_to(vec![there.place("/other"), there.place("/n")]);
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789", "a later request must start another attempt");
}

impl Site {
    fn moves_to(&self, places: Vec<(String, &'static str)>) {
        self.move_state.gone.lock().as_mut().unwrap().places = places;
    }
}

/// The client must reclaim its locks in the grace period of the other server, even if it sends no request on the moved
/// file system.
async fn moved_lease_is_found(network: Network, vers: &str) {
    let Before { hosts, vfs, here, mount, file } = Before::locked(network, vers).await;
    let v4 = mount.v4().unwrap();
    let there = hosts.start("/n", vfs, Some(&here));
    here.moves(&mount, "/m", vec![there.place("/n")], true).await;
    if vers == "4.0" {
        // In NFSv4.0, any request reports the moved lease. The request must succeed nevertheless.
        v4.unlock(file.handle(), b"a", 0, 1).await.unwrap();
    } else {
        mount.protocol().null().await.unwrap();
    }
    sim::until(|| here.move_state.asked.load(SeqCst) > 0).await;
    v4.unlock(file.handle(), b"a", 1, 1).await.unwrap();
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789");
    assert!(!here.move_state.gone.lock().as_ref().unwrap().lease_moved);
}

/// Sends the files whose delegations end to a channel.
#[derive(Debug)]
struct ChannelWatcher(mpsc::UnboundedSender<Handle>);

impl Watcher for ChannelWatcher {
    fn drop_cache(&self, file: Handle) -> BoxFuture<'static, ()> {
        let _ = self.0.send(file);
        Box::pin(async {})
    }
}

/// This needs NFSv4.1, because the client has no delegations in NFSv4.0.
async fn watcher_gets_the_handles_that_callers_know(network: Network, vers: &str) {
    let hosts = Hosts::new(network);
    let vfs = filled(&hosts, Arc::new(memory()), &[]).await;
    let [here, there] = ["/m", "/n"].map(|name| hosts.start(name, vfs.clone(), None));
    let (mount, other) = (here.mount("/m", vers).await, there.mount("/n", vers).await);
    let (sender, mut ended) = mpsc::unbounded_channel();
    mount.v4().unwrap().watch(Arc::new(ChannelWatcher(sender)));
    let known = mount.resolve("d/f").await.unwrap().handle;
    here.moves(&mount, "/m", vec![there.place("/n")], false).await;
    // The server may first have to find out that it can call the client back.
    let file = loop {
        let file = mount.open("d/f").await.unwrap();
        file.read_bytes(0, 4).await.unwrap();
        if mount.v4().unwrap().is_delegated(file.handle()) {
            break file;
        }
        drop(file);
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    other.write("d/f", &b"others'"[..]).await.unwrap();
    assert_eq!(ended.recv().await, Some(known));
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "others'");
}

async fn file_system_can_move_twice(network: Network, vers: &str) {
    let hosts = Hosts::new(network);
    let vfs = filled(&hosts, Arc::new(memory()), &[]).await;
    let [one, two, three] = ["/m", "/n", "/o"].map(|name| hosts.start(name, vfs.clone(), None));
    let mount = one.mount("/m/d", vers).await;
    let file = mount.open("f").await.unwrap();
    one.moves(&mount, "/m", vec![two.place("/n")], false).await;
    mount.write("made at the second", &b"2"[..]).await.unwrap();
    let second = mount.open("made at the second").await.unwrap();
    let at_two = two.mount("/n", vers).await;
    two.moves(&at_two, "/n", vec![three.place("/o")], false).await;
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789");
    assert_eq!(second.read_bytes(0, 100).await.unwrap(), "2");
    let mut names: Vec<_> = mount.read_dir("").await.unwrap().collect().await.unwrap();
    names.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(names.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), [&b"f"[..], b"made at the second"]);
    assert_eq!(names[0].handle.as_ref(), Some(file.handle()));
    assert!(two.move_state.asked.load(SeqCst) > 0);
    mount.unmount().await.unwrap();
}

/// The grace period. No test waits for its end.
const GRACE: Duration = Duration::from_secs(3600);
const LARGE: usize = 9 << 20;
const MANY: usize = 500;
const WAITING: usize = 8;
