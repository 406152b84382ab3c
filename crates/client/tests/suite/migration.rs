//! File systems that move to another server while they are used: over all of version 4 (RFC 8881 §11.10, RFC 7530 §8).

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::common::{
    for_each,
    gated::Gated,
    memory,
    moving::{Fate, Gone, Moving},
    pattern, process, recovery, switch, tcp,
};
use bytes::Bytes;
use client::{ErrorKind, File, Handle, LockRange, Mount, Status, Watcher};
use rpc::{BoxFuture, Service, rpcbind::to_universal};
use server::{Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings};
use tempfile::TempDir;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use vfs::Vfs;

for_each! {
    [
        what_is_held_is_reclaimed
        what_cannot_be_reclaimed_is_lost_and_said_so
        whoever_is_at_work_goes_on
        what_is_renamed_there_is_found_again
        another_file_of_that_name_is_refused
        requests_wait_for_one_attempt_and_share_its_failure
        a_lease_that_has_moved_is_looked_for
        it_can_move_again
    ]
    v4_0 = "4.0"
    v4_1 = "4.1"
    v4_2 = "4.2"
}

/// A server that has the file system, or has had it.
struct Site {
    address: SocketAddr,
    fate: Arc<Fate>,
    state: TempDir,
    _process: JoinSet<()>,
}

impl Site {
    /// Exports under this name; `after` another, whose clients may reclaim here what they had there.
    fn start(name: &str, vfs: Arc<dyn Vfs>, after: Option<&Site>) -> Self {
        Self::behind(name, vfs, after, |service| service)
    }

    fn behind(
        name: &str,
        vfs: Arc<dyn Vfs>,
        after: Option<&Site>,
        wrap: impl Fn(Arc<dyn Service>) -> Arc<dyn Service>,
    ) -> Self {
        let state = tempfile::tempdir().unwrap();
        after.iter().for_each(|after| copy(after.state.path(), state.path()));
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        // Neither handles nor the number of the file system are those of another server.
        let export = Export::new(name, ExportId::of(&[name.as_bytes()]), vfs, options).unwrap();
        let settings = Settings { grace: GRACE, ..Settings::default() };
        let recovery = recovery(state.path());
        let nfs = NfsServer::recovering(export, HandleKey::random(), recovery, settings).unwrap();
        let fate = Arc::<Fate>::default();
        let moving = |service| wrap(Arc::new(Moving(service, fate.clone())));
        let services = vec![moving(Arc::new(nfs.nfs4()))];
        let (address, mut process) = process(&*tcp(), "127.0.0.1:0".parse().unwrap(), services);
        process.spawn(nfs.upkeep());
        Self { address, fate, state, _process: process }
    }

    async fn mount(&self, path: &str, vers: &str) -> Mount {
        let url = format!("nfs://{}{path}?vers={vers}&uid=0&gid=0&timeo=600s", self.address).parse().unwrap();
        Mount::connect(&url, &switch()).await.unwrap()
    }

    /// From now on the file system is elsewhere.
    async fn moves(&self, mount: &Mount, path: &'static str, places: Vec<(String, &'static str)>, lease_moved: bool) {
        let fsid = mount.stat("").await.unwrap().fsid;
        *self.fate.gone.lock() = Some(Gone { fsid, path, places, lease_moved });
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

/// A file system with what the tests want there.
async fn filled(vfs: Arc<dyn Vfs>, first: &[&str]) -> Arc<dyn Vfs> {
    let server = Site::start("/fill", vfs.clone(), None);
    let mount = server.mount("/fill", "4.2").await;
    for name in first {
        mount.write(name, &b"in the way"[..]).await.unwrap();
    }
    mount.mkdir("d", 0o755).await.unwrap();
    mount.write("d/f", &b"0123456789"[..]).await.unwrap();
    mount.write("w", &b""[..]).await.unwrap();
    mount.write("large", pattern(LARGE)).await.unwrap();
    mount.unmount().await.unwrap();
    vfs
}

/// A mount of a server that has a file system which is to move, and a file that is open there.
struct Before {
    vfs: Arc<dyn Vfs>,
    here: Site,
    mount: Mount,
    file: File,
}

impl Before {
    async fn opened(vers: &str) -> Self {
        let vfs = filled(Arc::new(memory()), &[]).await;
        let here = Site::start("/m", vfs.clone(), None);
        let mount = here.mount("/m", vers).await;
        let file = mount.open("d/f").await.unwrap();
        Self { vfs, here, mount, file }
    }

    /// The file has been read, and its first bytes are locked by `a`.
    async fn locked(vers: &str) -> Self {
        let before = Self::opened(vers).await;
        assert_eq!(before.file.read_bytes(0, 4).await.unwrap(), "0123");
        let v4 = before.mount.v4().unwrap();
        assert_eq!(v4.lock(before.file.handle(), b"a", range(0)).await.unwrap(), None);
        before
    }
}

fn range(offset: u64) -> LockRange {
    LockRange { offset, length: 5, exclusive: true }
}

async fn what_is_held_is_reclaimed(vers: &str) {
    let Before { vfs, here, mount, file } = Before::locked(vers).await;
    let v4 = mount.v4().unwrap();
    let there = Site::start("/srv/new", vfs, Some(&here));
    here.moves(&mount, "/m", vec![there.place("/srv/new")], false).await;
    // An open that is not reclaimed would have to wait for the end of grace.
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789");
    v4.unlock(file.handle(), b"a", 0, 1).await.unwrap();
    file.write_at(9, Bytes::from_static(b"!")).await.unwrap();
    assert_eq!(here.fate.asked.load(SeqCst), 1, "the first has found out for all");
    if vers != "4.0" {
        // Which knows that nothing more is reclaimed, and ends grace.
        let other = there.mount("/srv/new", vers).await;
        let seen = other.open("d/f").await.unwrap();
        let in_the_way = other.v4().unwrap().test_lock(seen.handle(), b"a", range(0)).await.unwrap();
        assert_eq!(in_the_way.map(|lock| (lock.offset, lock.length)), Some((1, 4)), "it is held there");
        assert_eq!(v4.lock(file.handle(), b"a", range(100)).await.unwrap(), None);
        assert_eq!(other.read("d/f").await.unwrap(), "012345678!");
    }
    mount.unmount().await.unwrap();
}

async fn what_cannot_be_reclaimed_is_lost_and_said_so(vers: &str) {
    let Before { vfs, here, mount, file } = Before::locked(vers).await;
    let v4 = mount.v4().unwrap();
    let there = Site::start("/n", vfs, None);
    here.moves(&mount, "/m", vec![there.place("/n")], false).await;
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789", "it is opened anew");
    let error = v4.unlock(file.handle(), b"a", 0, 5).await.unwrap_err();
    assert!(error.to_string().contains("lost locks"), "{error}");
    assert_eq!(v4.lock(file.handle(), b"b", range(0)).await.unwrap(), None, "another owner has lost nothing");
    v4.release_locks(file.handle(), b"a").await.unwrap();
    v4.unlock(file.handle(), b"b", 0, 5).await.unwrap();
    assert_eq!(v4.lock(file.handle(), b"a", range(0)).await.unwrap(), None);
}

/// The other server has a copy: nothing of the former's is worth anything there but paths and fileids.
async fn whoever_is_at_work_goes_on(vers: &str) {
    let (here, there) = (filled(Arc::new(memory()), &[]).await, filled(Arc::new(memory()), &[]).await);
    let (here, there) = (Site::start("/m", here, None), Site::start("/n", there, None));
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
    while here.fate.written.load(SeqCst) == 0 {
        // It goes on only while it is asked to.
        writer.write(Bytes::new()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = mount.resolve("d/f").await.unwrap();

    here.moves(&mount, "/m", vec![there.place("/n")], false).await;
    writer.write(data.slice(2 << 20..)).await.unwrap();
    writer.close().await.unwrap();
    assert!(direct.read("w").await.unwrap() == data, "what was not committed is written again");
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
    assert_eq!(listed, all, "each once");

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

/// Known before, and not asked for since until it has another path.
async fn what_is_renamed_there_is_found_again(vers: &str) {
    let vfs = filled(Arc::new(memory()), &[]).await;
    let [here, there] = ["/m", "/n"].map(|name| Site::start(name, vfs.clone(), None));
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
    // Its directory is known by now, however others call that.
    other.rename("made/e", "others").await.unwrap();
    check(&known).await;
    assert_eq!(mount.resolve("made/w").await.unwrap().handle, known[0].0);
}

async fn another_file_of_that_name_is_refused(vers: &str) {
    let (here, other) = (filled(Arc::new(memory()), &[]).await, filled(Arc::new(memory()), &["x", "y"]).await);
    let (here, there) = (Site::start("/m", here, None), Site::start("/n", other, None));
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
    assert_eq!(mount.read("x").await.unwrap(), "in the way", "who asks for what is there gets it");
}

async fn requests_wait_for_one_attempt_and_share_its_failure(vers: &str) {
    let Before { vfs, here, mount, file } = Before::opened(vers).await;
    let introduced = Arc::new(AtomicUsize::new(0));
    let (gate, open) = watch::channel(false);
    let there = Site::behind("/n", vfs, None, |inner| {
        Arc::new(Gated { inner, introduced: introduced.clone(), open: open.clone() })
    });
    here.moves(&mount, "/m", vec![there.place("/other")], false).await;
    let mut tasks = JoinSet::new();
    for _ in 0..WAITING {
        let file = file.clone();
        tasks.spawn(async move { file.stat().await });
    }
    while here.fate.asked.load(SeqCst) < WAITING || introduced.load(SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    gate.send_replace(true);
    while let Some(result) = tasks.join_next().await {
        let error = result.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Referral(_)), "{error}");
        assert!(error.to_string().contains("/other: "), "{error}");
    }
    assert_eq!(introduced.load(SeqCst), 1, "they have made one attempt");
    here.moves_to(vec![there.place("/other"), there.place("/n")]);
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789", "who comes later tries again");
}

impl Site {
    fn moves_to(&self, places: Vec<(String, &'static str)>) {
        self.fate.gone.lock().as_mut().unwrap().places = places;
    }
}

/// What is locked must be reclaimed in the other server's grace, although nobody does anything there.
async fn a_lease_that_has_moved_is_looked_for(vers: &str) {
    let Before { vfs, here, mount, file } = Before::locked(vers).await;
    let v4 = mount.v4().unwrap();
    let there = Site::start("/n", vfs, Some(&here));
    here.moves(&mount, "/m", vec![there.place("/n")], true).await;
    if vers == "4.0" {
        // Whatever it is, it hears of it, and is done all the same.
        v4.unlock(file.handle(), b"a", 0, 1).await.unwrap();
    } else {
        mount.protocol().null().await.unwrap();
    }
    while here.fate.asked.load(SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    v4.unlock(file.handle(), b"a", 1, 1).await.unwrap();
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789");
    assert!(!here.fate.gone.lock().as_ref().unwrap().lease_moved);
}

/// Who is told which delegations end.
#[derive(Debug)]
struct Told(mpsc::UnboundedSender<Handle>);

impl Watcher for Told {
    fn ends(&self, file: Handle) -> BoxFuture<'static, ()> {
        let _ = self.0.send(file);
        Box::pin(async {})
    }
}

/// In version 4.0 the client has none.
#[tokio::test]
async fn delegations_end_by_the_handles_that_are_known() {
    let vfs = filled(Arc::new(memory()), &[]).await;
    let [here, there] = ["/m", "/n"].map(|name| Site::start(name, vfs.clone(), None));
    let (mount, other) = (here.mount("/m", "4.1").await, there.mount("/n", "4.1").await);
    let (told, mut ended) = mpsc::unbounded_channel();
    mount.v4().unwrap().watch(Arc::new(Told(told)));
    let known = mount.resolve("d/f").await.unwrap().handle;
    here.moves(&mount, "/m", vec![there.place("/n")], false).await;
    // The server may have to find out first that it can call back.
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

async fn it_can_move_again(vers: &str) {
    let vfs = filled(Arc::new(memory()), &[]).await;
    let [one, two, three] = ["/m", "/n", "/o"].map(|name| Site::start(name, vfs.clone(), None));
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
    assert!(two.fate.asked.load(SeqCst) > 0);
    mount.unmount().await.unwrap();
}

/// Nobody waits for its end.
const GRACE: Duration = Duration::from_secs(3600);
const LARGE: usize = 9 << 20;
const MANY: usize = 500;
const WAITING: usize = 8;
