use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    sync::{Arc, atomic::AtomicU32},
};

use vfs::private;

use super::{RecordChange::*, *};

fn owner(name: &'static str) -> Bytes {
    Bytes::from_static(name.as_bytes())
}

fn host(address: &str, name: &str, state: i32) -> MonitoredHost {
    MonitoredHost { address: address.parse().unwrap(), name: name.to_owned().into(), state }
}

fn clients(reclaiming: &[&'static str], forfeited: &[&'static str]) -> V4Clients {
    V4Clients {
        reclaiming: reclaiming.iter().copied().map(owner).collect(),
        forfeited: forfeited.iter().copied().map(owner).collect(),
    }
}

fn create(dir: &Path) -> Recovery {
    Recovery::open(&StateDir::open(dir).unwrap(), false, OnLoss::Refuse).unwrap()
}

fn reopen(dir: &Path) -> io::Result<Recovery> {
    Recovery::open(&StateDir::open(dir)?, true, OnLoss::Refuse)
}

#[test]
fn hosts_monitors_and_state_number_survive() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (host("10.0.0.1", "venus", 3), host("fe80::1", "", -1));
    let monitor = Monitor { mon_id: Bytes::from_static(b"mars"), private: [7; 16] };
    let first = {
        let recovery = create(dir.path());
        assert!(!recovery.was_used());
        recovery.add_host(&a, []).unwrap();
        recovery.add_host(&b, []).unwrap();
        recovery.add_host(&a, []).unwrap();
        recovery.add_monitor(&monitor).unwrap();
        recovery.add_handle_database("handles-1".into()).unwrap();
        recovery.next_nsm_state().unwrap()
    };
    let recovery = reopen(dir.path()).unwrap();
    assert!(recovery.was_used());
    assert_eq!(recovery.hosts(), [a.clone(), b.clone()]);
    assert_eq!(recovery.monitors(b"ma"), [monitor]);
    assert_eq!(recovery.handle_databases(), ["handles-1"]);
    let second = recovery.next_nsm_state().unwrap();
    assert_eq!((first % 2, second), (1, first + 2));
    recovery.add_host(&b, [(a.address, &a.name[..])]).unwrap();
    assert_eq!(recovery.hosts(), std::slice::from_ref(&b));
    recovery.remove_host(b.address, &b.name);
    assert_eq!(recovery.hosts(), []);
    assert_eq!(recovery.monitors(b"mb"), []);
    recovery.remove_monitors([Bytes::from("other")]).unwrap();
    assert_eq!(recovery.monitors_len(), 1);
    recovery.remove_monitors([Bytes::from("mars")]).unwrap();
    assert_eq!(recovery.monitors_len(), 0);
}

#[test]
fn v4_clients_survive_until_they_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    {
        let recovery = create(dir.path());
        assert_eq!(recovery.v4_clients(), V4Clients::default());
        recovery.add_v4_client(owner("venus")).unwrap();
        recovery.note_v4_clients([Add(owner("mars")), Forfeit(owner("venus")), Add(owner("")), Add(owner("mars"))]);
        recovery.note_v4_clients([
            Remove(owner("mercury")),
            Forfeit(owner("pluto")),
            Forfeit(owner("luna")),
            Add(owner("luna")),
        ]);
    }
    {
        let recovery = reopen(dir.path()).unwrap();
        assert_eq!(recovery.v4_clients(), clients(&["", "mars", "luna"], &["venus", "pluto"]));
        recovery.note_v4_clients([Remove(owner("mars")), Remove(owner("")), Remove(owner("pluto"))]);
    }
    assert_eq!(reopen(dir.path()).unwrap().v4_clients(), clients(&["luna"], &["venus"]));
}

#[test]
fn in_memory_state_works_alike_but_does_not_persist() {
    let recovery = Recovery::in_memory();
    let first = recovery.next_nsm_state().unwrap();
    assert_eq!(recovery.next_nsm_state().unwrap(), first + 2);
    recovery.add_host(&host("::ffff:10.0.0.1", "x", 1), []).unwrap();
    assert_eq!(recovery.hosts(), [host("10.0.0.1", "x", 1)]);
    assert!(!recovery.is_persistent());
    assert_eq!(recovery.report(), StorageReport::default());
}

/// Files that can be switched to fail every write, every sync and every creation.
#[derive(Clone)]
struct Flaky {
    files: Arc<Files>,
    is_full: Arc<AtomicBool>,
    begun: Arc<AtomicU32>,
    /// A sync waits for this.
    syncs: Arc<Mutex<()>>,
}

#[derive(Debug)]
struct FlakyFile(redb::backends::FileBackend, Arc<AtomicBool>, Arc<Mutex<()>>);

impl Flaky {
    fn at(dir: &Path) -> Self {
        let files = Arc::new(Files::at(dir.join(FILE)));
        Self { files, is_full: Arc::default(), begun: Arc::default(), syncs: Arc::default() }
    }

    fn file(&self, file: redb::backends::FileBackend) -> FlakyFile {
        FlakyFile(file, self.is_full.clone(), self.syncs.clone())
    }
}

fn room(is_full: &AtomicBool) -> io::Result<()> {
    if is_full.load(Acquire) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
}

impl Storage for Flaky {
    type File = FlakyFile;

    fn open(&self) -> io::Result<Option<FlakyFile>> {
        Ok(Storage::open(&*self.files)?.map(|file| self.file(file)))
    }

    fn begin(&self) -> io::Result<FlakyFile> {
        self.begun.fetch_add(1, Relaxed);
        room(&self.is_full)?;
        Ok(self.file(self.files.begin()?))
    }

    fn replace(&self) -> io::Result<()> {
        room(&self.is_full)?;
        Storage::replace(&*self.files)
    }
}

impl StorageBackend for FlakyFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        room(&self.1)?;
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        room(&self.1)?;
        let _syncing = self.2.lock();
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        room(&self.1)?;
        self.0.write(offset, data)
    }
}

#[test]
fn readers_do_not_wait_for_storage() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Flaky::at(dir.path());
    let recovery = Recovery::on(storage.clone()).unwrap();
    recovery.add_v4_client(owner("old")).unwrap();

    std::thread::scope(|scope| {
        let hung = storage.syncs.lock();
        let writer = scope.spawn(|| recovery.add_v4_client(owner("new")));
        while !recovery.stored.is_locked() {
            std::thread::yield_now();
        }
        // Each of these would wait for ever.
        assert_eq!(recovery.v4_clients(), clients(&["old"], &[]), "what is not stored is not granted");
        assert_eq!((recovery.hosts(), recovery.monitors(b""), recovery.monitors_len()), (vec![], vec![], 0));
        assert!(recovery.was_used() || !recovery.clients_unknown());
        drop(hung);
        writer.join().unwrap().unwrap();
    });
    assert_eq!(recovery.v4_clients(), clients(&["old", "new"], &[]));
}

#[tokio::test(start_paused = true)]
async fn full_disk_refuses_new_clients_and_recovers_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Flaky::at(dir.path());
    let recovery = Recovery::on(storage.clone()).unwrap();
    recovery.add_v4_client(owner("old")).unwrap();
    let begun = storage.begun.load(Relaxed);

    storage.is_full.store(true, Release);
    for _ in 0..100 {
        assert!(recovery.add_v4_client(owner("new")).is_err());
    }
    assert!(!recovery.is_behind(), "no change that has happened must be missing");
    assert_eq!(storage.begun.load(Relaxed), begun + 1, "attempts must be bounded");
    assert_eq!(recovery.report(), StorageReport { is_failing: true, failures: 2, refusals: 100 });
    tokio::time::advance(RETRY_INTERVAL).await;
    recovery.maintain();
    assert_eq!(recovery.report().failures, 3);

    storage.is_full.store(false, Release);
    assert!(recovery.add_v4_client(owner("new")).is_err(), "the retry interval has not passed");
    tokio::time::advance(RETRY_INTERVAL).await;
    recovery.add_v4_client(owner("new")).unwrap();
    assert!(!recovery.report().is_failing);
    drop(recovery);
    assert_eq!(Recovery::on(storage).unwrap().v4_clients(), clients(&["old", "new"], &[]));
}

#[tokio::test(start_paused = true)]
async fn deferred_changes_are_stored_with_next_change_by_maintenance_or_on_drop() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Flaky::at(dir.path());
    let stored = || {
        let copy = tempfile::tempdir().unwrap();
        fs::copy(dir.path().join(FILE), copy.path().join(FILE)).unwrap();
        Recovery::on(Flaky::at(copy.path())).unwrap().v4_clients()
    };
    let recovery = Recovery::on(storage.clone()).unwrap();
    for name in ["a", "b", "c", "d"] {
        recovery.add_v4_client(owner(name)).unwrap();
    }
    recovery.defer_v4_clients([Retire(owner("a"))]);
    assert_eq!(stored(), clients(&["a", "b", "c", "d"], &[]), "deferring must not wait for storage");
    recovery.add_v4_client(owner("a")).unwrap();
    assert_eq!(stored(), clients(&["a", "b", "c", "d"], &[]), "the newer change must be applied last");
    recovery.defer_v4_clients([Retire(owner("a"))]);
    assert!(recovery.note_v4_clients([Forfeit(owner("b"))]));
    assert_eq!(stored(), clients(&["c", "d"], &["b"]));
    recovery.defer_v4_clients([Retire(owner("c"))]);
    assert!(recovery.maintain());
    assert_eq!(stored(), clients(&["d"], &["b"]));

    recovery.defer_v4_clients([Retire(owner("d"))]);
    storage.is_full.store(true, Release);
    assert!(recovery.add_v4_client(owner("e")).is_err());
    assert!(!recovery.is_behind(), "no client must wait for a deferred change");
    storage.is_full.store(false, Release);
    tokio::time::advance(RETRY_INTERVAL).await;
    assert!(recovery.maintain());
    assert_eq!(stored(), clients(&[], &["b"]));
    recovery.add_v4_client(owner("f")).unwrap();
    recovery.defer_v4_clients([Retire(owner("f"))]);
    drop(recovery);
    assert_eq!(stored(), clients(&[], &["b"]));
}

#[tokio::test(start_paused = true)]
async fn unstored_loss_blocks_other_clients_until_it_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Flaky::at(dir.path());
    let recovery = Recovery::on(storage.clone()).unwrap();
    for name in ["a", "b", "c"] {
        recovery.add_v4_client(owner(name)).unwrap();
    }
    storage.is_full.store(true, Release);
    recovery.note_v4_clients([Remove(owner("a"))]);
    recovery.note_v4_clients([Forfeit(owner("b"))]);
    assert!(recovery.is_behind());
    tokio::time::advance(RETRY_INTERVAL).await;
    recovery.maintain();
    assert!(recovery.is_behind());
    {
        // If the server ended now, it would still know these clients after the restart.
        let copy = tempfile::tempdir().unwrap();
        fs::copy(dir.path().join(FILE), copy.path().join(FILE)).unwrap();
        assert_eq!(Recovery::on(Flaky::at(copy.path())).unwrap().v4_clients(), clients(&["a", "b", "c"], &[]));
    }
    storage.is_full.store(false, Release);
    tokio::time::advance(RETRY_INTERVAL).await;
    recovery.maintain();
    assert!(!recovery.is_behind());
    drop(recovery);
    assert_eq!(Recovery::on(storage).unwrap().v4_clients(), clients(&["c"], &["b"]));
}

/// Creates a state directory whose database has rows in every table.
fn used() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let recovery = create(dir.path());
    recovery.next_nsm_state().unwrap();
    recovery.add_host(&host("10.0.0.1", "venus", 3), []).unwrap();
    recovery.add_v4_client(owner("mars")).unwrap();
    recovery.note_v4_clients([Forfeit(owner("luna"))]);
    dir
}

#[test]
fn unusable_database_is_refused_until_the_loss_is_accepted() {
    type Break = fn(&Path);
    let unusable: [(&str, Break); 6] = [
        ("missing", |path| fs::remove_file(path).unwrap()),
        ("empty", |path| fs::write(path, "").unwrap()),
        ("damaged", |path| fs::write(path, vec![7; 10_000]).unwrap()),
        ("a directory", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("a symbolic link", |path| {
            fs::rename(path, path.with_extension("moved")).unwrap();
            symlink(path.with_extension("moved"), path).unwrap();
        }),
        ("damaged", |path| {
            let len = fs::metadata(path).unwrap().len();
            fs::File::options().write(true).open(path).unwrap().set_len(len / 2).unwrap();
        }),
    ];
    for (why, break_it) in unusable {
        let dir = used();
        break_it(&dir.path().join(FILE));
        for _ in 0..2 {
            let Err(error) = reopen(dir.path()) else { panic!("{why}: the database must be refused") };
            let said = error.to_string();
            let parts = [why, FILE, "--recovery=reset"];
            assert!(parts.iter().all(|part| said.contains(part)), "{why}: {said}");
        }
        let accepted = Recovery::open(&StateDir::open(dir.path()).unwrap(), true, OnLoss::Reset).unwrap();
        assert!(accepted.clients_unknown() && accepted.v4_clients() == V4Clients::default(), "{why}");
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let aside = names.filter(|name| name.starts_with("recovery.redb.bad-")).count();
        assert_eq!(aside, usize::from(why != "missing"), "{why}");
    }
}

#[test]
fn database_accessible_to_others_is_refused_but_not_lost() {
    let dir = used();
    let path = dir.path().join(FILE);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    for on_loss in [OnLoss::Refuse, OnLoss::Reset] {
        let Err(error) = Recovery::open(&state, true, on_loss) else { panic!("the database must be refused") };
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(!Recovery::open(&state, true, OnLoss::Reset).unwrap().clients_unknown(), "a valid database must be kept");
}

#[test]
fn clients_are_unknown_after_a_reset_until_grace_has_ended() {
    let dir = used();
    fs::remove_file(dir.path().join(FILE)).unwrap();
    {
        let recovery = Recovery::open(&StateDir::open(dir.path()).unwrap(), true, OnLoss::Reset).unwrap();
        recovery.add_v4_client(owner("mars")).unwrap();
        recovery.add_host(&host("10.0.0.1", "venus", 3), []).unwrap();
    }
    {
        // The server ended in its grace period, so clients recorded in it cannot have been granted anything.
        let recovery = reopen(dir.path()).unwrap();
        assert!(recovery.clients_unknown());
        assert_eq!((recovery.v4_clients(), recovery.hosts()), (V4Clients::default(), vec![]));
        recovery.end_grace([]);
    }
    assert!(!reopen(dir.path()).unwrap().clients_unknown());
}

/// Checks that a damaged database is either refused or complete, and that opening it neither panics nor hangs.
fn damage(good: &[u8], v4: &V4Clients) {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    let mut refused = 0;
    let mut check = |content: &[u8], what: &dyn Fn() -> String| {
        private::replace(&state.file(FILE), content).unwrap();
        match Recovery::open(&state, true, OnLoss::Refuse) {
            Ok(recovery) => assert_eq!(recovery.v4_clients(), *v4, "{}", what()),
            Err(_) => refused += 1,
        }
    };
    // Change every byte of the header, and a sample of the bytes of the rest that are not zero.
    let filled: Vec<usize> = (HEADER_LEN..good.len()).filter(|at| good[*at] != 0).collect();
    let positions = (0..HEADER_LEN).chain(filled.iter().copied().step_by(filled.len().div_ceil(150).max(1)));
    for (number, at) in positions.enumerate() {
        let mut changed = good.to_vec();
        changed[at] ^= 1 << (number % 8);
        check(&changed, &|| format!("byte {at}, bit {}", number % 8));
    }
    for len in (0..good.len()).step_by(good.len() / 32) {
        check(&good[..len], &|| format!("the first {len} bytes"));
    }
    assert!(refused > 32, "only {refused} databases were refused");
}

#[test]
fn damaged_database_of_a_stopped_server_is_refused_or_complete() {
    let dir = used();
    let v4 = reopen(dir.path()).unwrap().v4_clients();
    damage(&fs::read(dir.path().join(FILE)).unwrap(), &v4);
}

#[test]
fn damaged_database_of_a_killed_server_is_refused_or_complete() {
    let dir = used();
    let recovery = reopen(dir.path()).unwrap();
    recovery.note_v4_clients([Remove(owner("mars"))]);
    recovery.add_v4_client(owner("pluto")).unwrap();
    damage(&fs::read(dir.path().join(FILE)).unwrap(), &recovery.v4_clients());
}

/// Length of redb's header, which records the pages in use.
const HEADER_LEN: usize = 320;
