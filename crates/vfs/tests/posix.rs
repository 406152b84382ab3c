//! Tests of a directory of the local file system: restarts, changes by other programs, paths out of the export, and
//! blocking.

use std::{
    fs,
    ops::ControlFlow,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use buf::{Pool, Rope};
use bytes::Bytes;
use vfs::{
    Caller, CreateMode, Cred, Handle, Name, Report, Result, SetAttr, Stability, Vfs, VfsError, Writer,
    posix::{Handles, Posix, PosixOptions},
};

struct Place {
    export: PathBuf,
    outside: PathBuf,
    state: PathBuf,
    cred: Cred,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [export, outside, state] = ["export", "outside", "state"].map(|name| dir.path().join(name));
        [&export, &outside, &state].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        let mut cred = Cred::root();
        cred.uid = rustix::process::geteuid().as_raw();
        cred.gid = rustix::process::getegid().as_raw();
        Self { export, outside, state, cred, _dir: dir }
    }

    fn open(&self, handles: Handles) -> Posix {
        let options = PosixOptions { state_dir: Some(self.state.clone()), handles, ..PosixOptions::default() };
        Posix::open(&self.export, options).unwrap()
    }

    fn caller(&self) -> Caller<'_> {
        Caller::blocking(&self.cred)
    }

    fn walk(&self, fs: &Posix, path: &str) -> Result<Handle> {
        path.split('/').try_fold(fs.root(), |dir, name| Ok(fs.lookup(&self.caller(), &dir, at(name))?.0))
    }

    fn read(&self, fs: &Posix, file: &Handle) -> Result<Vec<u8>> {
        let read = fs.read(&self.caller(), file, 0, 1 << 20, &Pool::default(), false)?;
        Ok(read.data.to_bytes().unwrap().to_vec())
    }
}

fn at(name: &str) -> &Name {
    Name::new(name.as_bytes()).unwrap()
}

/// Returns the kinds of handles that this user can use.
fn sources() -> Vec<Handles> {
    let kernel = rustix::process::geteuid().is_root();
    if !kernel {
        eprintln!("SKIPPED handles opened by the kernel: needs root");
    }
    if kernel { vec![Handles::Kernel, Handles::Database] } else { vec![Handles::Database] }
}

#[test]
fn handles_survive_a_restart() {
    for handles in sources() {
        let place = Place::new();
        fs::create_dir_all(place.export.join("a/b/c")).unwrap();
        fs::write(place.export.join("a/b/c/f"), "content").unwrap();
        symlink("a/b/c/f", place.export.join("l")).unwrap();
        let (file, link, root, made) = {
            let fs = place.open(handles);
            assert!(fs.handles_persist());
            let dir = place.walk(&fs, "a").unwrap();
            let mode = CreateMode::Guarded(SetAttr::default());
            let made = fs.create(&place.caller(), &dir, at("made"), &mode).unwrap().handle;
            fs.rename(&place.caller(), &dir, at("made"), &fs.root(), at("moved")).unwrap();
            (place.walk(&fs, "a/b/c/f").unwrap(), place.walk(&fs, "l").unwrap(), fs.root(), made)
        };
        for _ in 0..2 {
            let fs = place.open(handles);
            assert_eq!(fs.root(), root);
            assert_eq!(place.read(&fs, &file).unwrap(), b"content", "{handles:?}");
            assert_eq!(&fs.readlink(&place.caller(), &link).unwrap().0[..], b"a/b/c/f");
            assert_eq!(fs.getattr(&place.caller(), &made).unwrap().size, 0);
        }
        fs::remove_file(place.export.join("a/b/c/f")).unwrap();
        let fs = place.open(handles);
        assert_eq!(place.read(&fs, &file).unwrap_err(), VfsError::Stale);
    }
}

#[test]
fn listings_return_handles_that_survive_a_restart() {
    for handles in sources() {
        let place = Place::new();
        (0..50).for_each(|i| fs::write(place.export.join(format!("f{i}")), format!("{i}")).unwrap());
        let mut listed = Vec::new();
        let fs = place.open(handles);
        let mut each = |entry: vfs::DirEntry<'_>| {
            listed.push((entry.name.to_vec(), entry.object.unwrap().0));
            ControlFlow::Continue(())
        };
        fs.readdir(&place.caller(), &fs.root(), 0, [0; 8], true, &mut each).unwrap();
        drop(fs);
        let fs = place.open(handles);
        for (name, handle) in listed.into_iter().filter(|entry| entry.0[0] == b'f') {
            assert_eq!(place.read(&fs, &handle).unwrap(), name[1..]);
        }
    }
}

#[test]
fn write_verifier_changes_with_a_restart() {
    let place = Place::new();
    let before = place.open(Handles::Auto).write_verifier();
    assert_ne!(place.open(Handles::Auto).write_verifier(), before);
}

#[test]
fn objects_renamed_by_another_program_are_found() {
    for handles in sources() {
        let place = Place::new();
        fs::create_dir_all(place.export.join("a/b")).unwrap();
        fs::write(place.export.join("a/b/f"), "content").unwrap();
        let file = place.walk(&place.open(handles), "a/b/f").unwrap();
        fs::rename(place.export.join("a/b/f"), place.export.join("a/b/g")).unwrap();
        fs::write(place.export.join("a/b/f"), "another").unwrap();
        fs::rename(place.export.join("a/b"), place.export.join("a/c")).unwrap();
        fs::create_dir(place.export.join("a/b")).unwrap();
        // Restart, so that nothing is cached.
        let fs = place.open(handles);
        assert_eq!(place.read(&fs, &file).unwrap(), b"content", "{handles:?}");
        assert_ne!(place.walk(&fs, "a/c/f").unwrap(), file);
    }
}

#[test]
fn objects_removed_by_another_program_are_stale() {
    for handles in sources() {
        let place = Place::new();
        fs::create_dir(place.export.join("d")).unwrap();
        fs::write(place.export.join("f"), "content").unwrap();
        let fs = place.open(handles);
        let (file, dir) = (place.walk(&fs, "f").unwrap(), place.walk(&fs, "d").unwrap());
        place.read(&fs, &file).unwrap();
        fs::remove_file(place.export.join("f")).unwrap();
        fs::remove_dir(place.export.join("d")).unwrap();
        assert_eq!(place.read(&fs, &file).unwrap_err(), VfsError::Stale);
        assert_eq!(fs.getattr(&place.caller(), &file).unwrap_err(), VfsError::Stale);
        assert_eq!(fs.lookup(&place.caller(), &dir, at("x")).unwrap_err(), VfsError::Stale);
        let mode = CreateMode::Guarded(SetAttr::default());
        assert_eq!(fs.create(&place.caller(), &dir, at("x"), &mode).unwrap_err(), VfsError::Stale);
    }
}

#[test]
fn no_name_leads_out_of_the_export() {
    for handles in sources() {
        let place = Place::new();
        fs::write(place.outside.join("secret"), "secret").unwrap();
        symlink(&place.outside, place.export.join("absolute")).unwrap();
        symlink("../outside", place.export.join("relative")).unwrap();
        symlink("/proc/self/root", place.export.join("magic")).unwrap();
        fs::create_dir_all(place.export.join("d/e")).unwrap();
        let fs = place.open(handles);
        let caller = place.caller();
        for name in ["absolute", "relative", "magic"] {
            let link = place.walk(&fs, name).unwrap();
            for below in ["secret", "..", ".", "outside"] {
                assert_eq!(fs.lookup(&caller, &link, at(below)).unwrap_err(), VfsError::NotDir, "{name}/{below}");
            }
            assert_eq!(place.read(&fs, &link).unwrap_err(), VfsError::Invalid);
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            assert_eq!(fs.setattr(&caller, &link, &set, None).unwrap_err(), VfsError::Invalid);
        }
        assert_eq!(fs.lookup(&caller, &fs.root(), at("..")).unwrap().0, fs.root());
        let mut parent = None;
        let mut each = |entry: vfs::DirEntry<'_>| {
            if entry.name == b".." {
                parent = Some((entry.fileid, entry.object.map(|object| object.0)));
            }
            ControlFlow::Continue(())
        };
        fs.readdir(&caller, &fs.root(), 0, [0; 8], true, &mut each).unwrap();
        let root = fs.getattr(&caller, &fs.root()).unwrap();
        assert_eq!(parent, Some((root.fileid, Some(fs.root()))));
        assert_eq!(fs::read(place.outside.join("secret")).unwrap(), b"secret");
    }
}

#[test]
fn parent_of_a_directory_moved_out_is_not_accessible() {
    for handles in sources() {
        let place = Place::new();
        fs::create_dir_all(place.export.join("d/e")).unwrap();
        let fs = place.open(handles);
        let (d, e) = (place.walk(&fs, "d").unwrap(), place.walk(&fs, "d/e").unwrap());
        fs::rename(place.export.join("d"), place.outside.join("d")).unwrap();
        for dir in [&d, &e] {
            assert_eq!(fs.lookup(&place.caller(), dir, at("..")).unwrap_err(), VfsError::Stale, "{handles:?}");
        }
        let mut each = |entry: vfs::DirEntry<'_>| {
            assert!(entry.name != b".." || entry.object.is_none());
            ControlFlow::Continue(())
        };
        fs.readdir(&place.caller(), &d, 0, [0; 8], true, &mut each).unwrap();
    }
}

#[test]
fn file_systems_mounted_inside_are_not_entered() {
    let place = Place::new();
    fs::create_dir(place.export.join("m")).unwrap();
    // Mount in a namespace of this thread, which no other thread sees and which ends with the thread.
    let in_own_namespace = std::thread::scope(|scope| {
        let body = || {
            #[expect(unsafe_code)]
            // SAFETY: the flag unshares this thread's view of the mounts and nothing that memory safety depends on.
            let alone = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) };
            if alone.is_err() || mount_alone("tmpfs", &place.export.join("m")).is_err() {
                return false;
            }
            fs::write(place.export.join("m/inside"), "x").unwrap();
            for handles in sources() {
                let fs = place.open(handles);
                assert_eq!(place.walk(&fs, "m").unwrap_err(), VfsError::Access, "{handles:?}");
                let mut seen = false;
                let mut each = |entry: vfs::DirEntry<'_>| {
                    seen |= entry.name == b"m";
                    assert!(entry.name != b"m" || entry.object.is_none());
                    ControlFlow::Continue(())
                };
                fs.readdir(&place.caller(), &fs.root(), 0, [0; 8], true, &mut each).unwrap();
                assert!(seen);
                assert_eq!(fs.rmdir(&place.caller(), &fs.root(), at("m")).unwrap_err(), VfsError::Access);
                let mode = CreateMode::Unchecked(SetAttr::default());
                let open = fs.create(&place.caller(), &fs.root(), at("m"), &mode);
                assert_eq!(open.unwrap_err(), VfsError::Exists);
            }
            true
        };
        scope.spawn(body).join().unwrap()
    });
    if !in_own_namespace {
        eprintln!("SKIPPED file_systems_mounted_inside_are_not_entered: needs root that may mount");
    }
}

fn mount_alone(kind: &str, at: &Path) -> rustix::io::Result<()> {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("none", at, kind, MountFlags::empty(), None)
}

#[test]
fn operations_that_must_not_wait_return_would_block_without_effect() {
    let place = Place::new();
    fs::write(place.export.join("f"), vec![7; 300_000]).unwrap();
    let fs = place.open(Handles::Auto);
    let waitless = Caller { may_block: false, ..place.caller() };
    if !fs.caps().blocks {
        eprintln!("SKIPPED operations_that_must_not_wait…: the temporary directory never waits");
        return;
    }
    let root = fs.root();
    let mode = CreateMode::Guarded(SetAttr::default());
    assert_eq!(fs.create(&waitless, &root, at("new"), &mode).unwrap_err(), VfsError::WouldBlock);
    assert_eq!(fs.remove(&waitless, &root, at("f")).unwrap_err(), VfsError::WouldBlock);
    assert!(place.export.join("f").exists() && !place.export.join("new").exists());
    let file = place.walk(&fs, "f").unwrap();
    let data = Rope::from(Bytes::from_static(b"x"));
    let written = fs.write(&waitless, &file, 0, &data, Stability::Unstable, Report::Attributes(Writer(1)));
    assert_eq!(written.unwrap_err(), VfsError::WouldBlock);
    // Cached objects can be used without waiting.
    fs.getattr(&waitless, &file).unwrap();
    fs.lookup(&waitless, &root, at("f")).unwrap();
    assert_eq!(place.read(&fs, &file).unwrap(), [7; 300_000]);
    for file_ranges in [false, true] {
        let read = fs.read(&waitless, &file, 0, 300_000, &Pool::default(), file_ranges);
        match read {
            Ok(read) => assert_eq!(read.data.to_bytes().unwrap(), vec![7; 300_000]),
            // The data was evicted meanwhile, or the file system cannot report whether it is cached.
            Err(error) => assert_eq!(error, VfsError::WouldBlock),
        }
    }
}

#[test]
fn file_system_not_known_to_be_local_always_needs_a_blocking_thread() {
    let place = Place::new();
    let in_own_namespace = std::thread::scope(|scope| {
        let body = || {
            #[expect(unsafe_code)]
            // SAFETY: the flag unshares this thread's view of the mounts and nothing that memory safety depends on.
            let alone = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) };
            // Use the file system of message queues, which nobody exports.
            if alone.is_err() || mount_alone("mqueue", &place.export).is_err() {
                return false;
            }
            let fs = place.open(Handles::Auto);
            let waitless = Caller { may_block: false, ..place.caller() };
            assert_eq!(fs.getattr(&waitless, &fs.root()).unwrap_err(), VfsError::WouldBlock);
            fs.getattr(&place.caller(), &fs.root()).unwrap();
            true
        };
        scope.spawn(body).join().unwrap()
    });
    if !in_own_namespace {
        eprintln!("SKIPPED file_system_not_known_to_be_local…: needs root that may mount a file system `mqueue`");
    }
}

#[test]
fn data_outside_the_page_cache_is_read_by_the_blocking_thread() {
    const LEN: usize = 1 << 20;
    let place = Place::new();
    fs::write(place.export.join("f"), vec![7; LEN]).unwrap();
    let fs = place.open(Handles::Auto);
    if !fs.caps().blocks {
        eprintln!("SKIPPED data_outside_the_page_cache…: the temporary directory never waits");
        return;
    }
    let file = place.walk(&fs, "f").unwrap();
    let evicted = fs::File::open(place.export.join("f")).unwrap();
    evicted.sync_all().unwrap();
    let is_copy = |_| {
        rustix::fs::fadvise(&evicted, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let read = fs.read(&place.caller(), &file, 0, LEN, &Pool::default(), true).unwrap();
        assert_eq!(read.data.to_bytes().unwrap(), vec![7; LEN]);
        read.data.pieces().iter().all(|piece| matches!(piece, buf::Piece::Memory(_)))
    };
    // The kernel may keep the pages in memory, or read them ahead in time.
    assert!((0..100).any(is_copy), "a range that is not in the page cache was lent each time");
}

/// The kernel's RDMA devices require the credentials object itself to be unchanged. This test can only check that no
/// operation needed other credentials.
#[test]
fn thread_that_keeps_its_credentials_acts_only_as_itself() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED thread_that_keeps_its_credentials_acts_only_as_itself: needs root");
        return;
    }
    let place = Place::new();
    fs::set_permissions(&place.export, fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(place.export.join("f"), "content").unwrap();
    let fs = place.open(Handles::Auto);
    let other = Cred { uid: 4321, gid: 4321, groups: Default::default() };
    let other = Caller::blocking(&other);
    let (root, file) = (fs.root(), place.walk(&fs, "f").unwrap());
    let mode = CreateMode::Guarded(SetAttr::default());
    let data = Rope::from(Bytes::from_static(b"x"));
    let read = |caller: &Caller<'_>| fs.read(caller, &file, 0, 7, &Pool::default(), false).map(|read| read.data.len());
    std::thread::scope(|threads| {
        let keeping = threads.spawn(|| {
            vfs::posix::keep_credentials();
            assert_eq!(fs.create(&other, &root, at("new"), &mode).unwrap_err(), VfsError::WouldBlock);
            assert_eq!(fs.remove(&other, &root, at("f")).unwrap_err(), VfsError::WouldBlock);
            assert_eq!(read(&other).unwrap_err(), VfsError::WouldBlock);
            let written =
                fs.write(&place.caller(), &file, 0, &data, Stability::Unstable, Report::Attributes(Writer(1)));
            written.expect("root must be able to write");
            fs.getattr(&other, &file).unwrap();
        });
        keeping.join().unwrap();
    });
    assert!(place.export.join("f").exists() && !place.export.join("new").exists());
    // This thread does not keep its credentials. Afterwards the file is open for that caller.
    assert_eq!(read(&other), Ok(7));
    let reading = || {
        vfs::posix::keep_credentials();
        read(&other)
    };
    assert_eq!(std::thread::scope(|threads| threads.spawn(reading).join().unwrap()), Ok(7));
}

#[test]
fn few_descriptors_suffice() {
    for handles in sources() {
        let place = Place::new();
        let options =
            PosixOptions { state_dir: Some(place.state.clone()), handles, descriptors: Some(64), ..Default::default() };
        let fs = Posix::open(&place.export, options).unwrap();
        let caller = place.caller();
        let mode = CreateMode::Guarded(SetAttr::default());
        let files: Vec<_> = (0..500u32)
            .map(|i| {
                let file = fs.create(&caller, &fs.root(), at(&format!("f{i}")), &mode).unwrap().handle;
                let data = Rope::from(Bytes::from(i.to_string()));
                fs.write(&caller, &file, 0, &data, Stability::Unstable, Report::Attributes(Writer(1))).unwrap();
                file
            })
            .collect();
        for (i, file) in files.iter().enumerate() {
            assert_eq!(place.read(&fs, file).unwrap(), i.to_string().as_bytes());
        }
        let held = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let held = held.filter(|fd| fs::read_link(fd.path()).is_ok_and(|path| path.starts_with(&place.export)));
        let held = held.count();
        assert!(held <= 150, "{held} descriptors are held");
    }
}

#[test]
fn idle_files_are_closed() {
    let place = Place::new();
    fs::write(place.export.join("f"), "content").unwrap();
    let fs = place.open(Handles::Auto);
    let file = place.walk(&fs, "f").unwrap();
    let data = Rope::from(Bytes::from_static(b"x"));
    let write =
        || fs.write(&place.caller(), &file, 0, &data, Stability::Unstable, Report::Attributes(Writer(1))).unwrap();
    let open_for_data = || {
        let open = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
        let open = open.filter(|fd| {
            let path = fs::read_link(format!("/proc/self/fd/{}", fd.file_name().to_str().unwrap()));
            path.is_ok_and(|path| path == place.export.join("f"))
        });
        let flags = open.filter_map(|fd| fs::read_to_string(fd.path()).ok());
        let path_only = |info: &String| {
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            i32::from_str_radix(flags, 8).unwrap() & libc::O_PATH != 0
        };
        flags.filter(|info| !path_only(info)).count()
    };
    // On a busy machine, the file can be closed before it is looked for.
    let stays_open = (0..100).any(|_| {
        write();
        open_for_data() == 1
    });
    assert!(stays_open, "a file in use must stay open");
    let deadline = Instant::now() + Duration::from_secs(600);
    while open_for_data() > 0 {
        assert!(Instant::now() < deadline, "an idle file must be closed");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn damaged_database_loses_only_handles() {
    let place = Place::new();
    (0..20).for_each(|i| fs::write(place.export.join(format!("f{i}")), "content").unwrap());
    let fs = place.open(Handles::Database);
    let files: Vec<_> = (0..20).map(|i| place.walk(&fs, &format!("f{i}")).unwrap()).collect();
    drop(fs);
    let log = fs::read_dir(&place.state).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    let bytes = fs::read(&log).unwrap();
    fs::write(&log, &bytes[..bytes.len() / 2]).unwrap();
    let fs = place.open(Handles::Database);
    let read: Vec<_> = files.iter().map(|file| place.read(&fs, file)).collect();
    assert!(read.contains(&Err(VfsError::Stale)), "half of the log is lost");
    assert!(read.iter().any(|read| read.as_deref() == Ok(b"content")), "half of the log must still be used");
    for (i, file) in files.iter().enumerate() {
        assert_eq!(place.walk(&fs, &format!("f{i}")).unwrap(), *file);
        assert_eq!(place.read(&fs, file).unwrap(), b"content");
    }
}

#[test]
fn change_attribute_does_not_decrease_with_a_restart() {
    let place = Place::new();
    let data = |byte: u8| Rope::from(Bytes::from(vec![byte]));
    let written = |fs: &Posix, file: &Handle, byte| {
        let report = Report::Attributes(Writer(1));
        let written = fs.write(&place.caller(), file, 0, &data(byte), Stability::Unstable, report).unwrap();
        let after = written.after.unwrap().change;
        assert!(written.before.is_none_or(|before| before.change < after));
        after
    };
    fs::write(place.export.join("f"), b"").unwrap();
    fs::write(place.export.join("idle"), b"").unwrap();
    let value = |fs: &Posix, name| fs.getattr(&place.caller(), &place.walk(fs, name).unwrap()).unwrap().change;
    let (mut last, mut idle) = (0, Vec::new());
    for life in 0..5 {
        let fs = place.open(Handles::Database);
        let file = place.walk(&fs, "f").unwrap();
        assert!(value(&fs, "f") >= last, "restart {life}");
        for byte in 0..200 {
            last = written(&fs, &file, byte).max(last + 1);
            assert_eq!(value(&fs, "f"), last, "restart {life}, change {byte}");
        }
        idle.push(value(&fs, "idle"));
    }
    idle.dedup();
    assert_eq!(idle.len(), 1, "objects that do not change must keep their change attribute: {idle:?}");
}

#[test]
fn committed_file_is_not_open_for_writing() {
    let place = Place::new();
    let fs = place.open(Handles::Auto);
    let (caller, path) = (place.caller(), place.export.join("program"));
    let is_open = || {
        let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
        descriptors.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|target| target == path)
    };
    let write = |file: &Handle| {
        let data = Rope::from(Bytes::from_static(b"#!/bin/true"));
        fs.write(&caller, file, 0, &data, Stability::Unstable, Report::Nothing).map(drop)
    };
    let created = fs.create(&caller, &fs.root(), at("program"), &CreateMode::Guarded(SetAttr::default())).unwrap();
    write(&created.handle).unwrap();
    assert!(is_open(), "the descriptor is kept for further writes");
    fs.commit(&caller, &created.handle, 0, 0).unwrap();
    assert!(!is_open(), "a program that is open for writing cannot be executed");
    write(&created.handle).unwrap();
    assert_eq!(place.read(&fs, &created.handle).unwrap(), b"#!/bin/true");
}

/// Returns the number of descriptors that this process has of removed files below a directory.
fn removed_files(below: &Path) -> usize {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let targets = descriptors.filter_map(|descriptor| fs::read_link(descriptor.unwrap().path()).ok());
    targets.filter(|target| target.starts_with(below) && target.to_string_lossy().ends_with(" (deleted)")).count()
}

#[test]
fn held_file_is_kept_whatever_is_evicted() {
    for handles in sources() {
        let place = Place::new();
        let options =
            PosixOptions { state_dir: Some(place.state.clone()), handles, descriptors: Some(8), ..Default::default() };
        let fs = Posix::open(&place.export, options).unwrap();
        let (by, root) = (place.caller(), fs.root());
        // Evicts all other objects from the cache.
        let fill = |prefix: &str| {
            for number in 0..500 {
                fs::write(place.export.join(format!("{prefix}{number}")), "").unwrap();
                place.walk(&fs, &format!("{prefix}{number}")).unwrap();
            }
        };
        fs::write(place.export.join("f"), "data").unwrap();
        let file = place.walk(&fs, "f").unwrap();
        let held = fs.hold(&by, &file).unwrap();
        fill("a");
        fs.remove(&by, &root, at("f")).unwrap();
        fill("b");
        assert_eq!(place.read(&fs, &file).unwrap(), b"data");
        assert_eq!(fs.getattr(&by, &file).unwrap().nlink, 0);

        assert!(removed_files(&place.export) > 0);
        drop(held);
        assert_eq!(fs.getattr(&by, &file).unwrap_err(), VfsError::Stale);
        let deadline = Instant::now() + Duration::from_secs(600);
        while removed_files(&place.export) > 0 {
            assert!(Instant::now() < deadline, "the file must be closed when its hold ends");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn last_names_of_too_many_held_files_are_not_removed() {
    const MAX: usize = 16;
    let place = Place::new();
    let fs = Posix::open(&place.export, PosixOptions { descriptors: Some(8), ..PosixOptions::default() }).unwrap();
    let (by, root) = (place.caller(), fs.root());
    let mut held = Vec::new();
    for number in 0..=MAX {
        fs::write(place.export.join(format!("f{number}")), "data").unwrap();
        let file = place.walk(&fs, &format!("f{number}")).unwrap();
        held.push(fs.hold(&by, &file).unwrap());
        let removed = fs.remove(&by, &root, at(&format!("f{number}")));
        assert_eq!(removed.map(drop), if number < MAX { Ok(()) } else { Err(VfsError::Delay) });
    }
    let last = format!("f{MAX}");
    fs::write(place.export.join("other"), "other").unwrap();
    let renamed = fs.rename(&by, &root, at("other"), &root, at(&last));
    assert_eq!(renamed.map(drop), Err(VfsError::Delay));
    let file = place.walk(&fs, &last).unwrap();
    assert_eq!(place.read(&fs, &file).unwrap(), b"data");
    // Names that need no descriptor.
    fs.link(&by, &file, &root, at("link")).unwrap();
    fs.remove(&by, &root, at("link")).unwrap();
    fs.remove(&by, &root, at("other")).unwrap();
    held.remove(0);
    fs.remove(&by, &root, at(&last)).unwrap();
    assert_eq!(place.read(&fs, &file).unwrap(), b"data");
}

#[test]
fn held_file_is_kept_if_its_removal_by_another_program_is_noticed() {
    let place = Place::new();
    let fs = place.open(Handles::Auto);
    fs::write(place.export.join("f"), "data").unwrap();
    let file = place.walk(&fs, "f").unwrap();
    let held = fs.hold(&place.caller(), &file).unwrap();
    fs::remove_file(place.export.join("f")).unwrap();
    assert_eq!(fs.getattr(&place.caller(), &file).unwrap().nlink, 0);
    assert!(held.is_removed());
    assert_eq!(place.read(&fs, &file).unwrap(), b"data");
    drop(held);
    assert_eq!(place.read(&fs, &file).unwrap_err(), VfsError::Stale);
}
