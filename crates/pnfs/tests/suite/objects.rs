//! Data servers of kind `slipway`: what file handles permit, fences, and files whose objects come into being with the first write.

use std::{num::NonZeroU32, path::Path, pin::pin, sync::Arc};

use buf::{Pool, Rope};
use bytes::Bytes;
use pnfs::{
    DataServers, Earlier, Index, Options, Pnfs, Record, Stripes,
    objects::{
        Objects, create_until,
        fences::Fences,
        handle::{ClusterKey, ObjectHandle, Right},
        name,
    },
};
use redb::backends::InMemoryBackend;
use vfs::{
    Caller, CreateMode, Cred, Handle, Layouts, Name, Report, Result, Rights, SetAttr, Stability, Vfs, VfsError,
    layout::*,
    memory::{Memory, MemoryOptions},
    pending::drive,
    posix::{Posix, PosixOptions},
};

use crate::{
    computed::{Computed, adopted, empty_store, key, store_of},
    world::{World, step},
};

/// A client, whose user does not count.
fn client() -> Cred {
    Cred { uid: 4711, ..Cred::root() }
}

fn of_client(right: Right, epoch: u32, creates: bool) -> ObjectHandle {
    ObjectHandle { right, create_until: creates.then(create_until).flatten(), epoch, object: 5 }
}

fn write_as(store: &Objects, cred: &Cred, handle: &ObjectHandle) -> Result<()> {
    let (file, data) = (adopted(store, handle), Rope::from(Bytes::from_static(b"data")));
    let caller = Caller::blocking(cred);
    store.write(&caller, &file, 0, &data, Stability::FileSync, Report::Nothing).map(drop)
}

fn read_as(store: &Objects, cred: &Cred, handle: &ObjectHandle) -> Result<Vec<u8>> {
    let read = store.read(&Caller::blocking(cred), &adopted(store, handle), 0, 100, &Pool::default(), false)?;
    assert!(read.eof);
    Ok(read.data.to_bytes().unwrap().to_vec())
}

fn set_as(store: &Objects, cred: &Cred, handle: &ObjectHandle, set: &SetAttr) -> Result<()> {
    store.setattr(&Caller::blocking(cred), &adopted(store, handle), set, None).map(drop)
}

fn epochs(writers: u32, readers: u32) -> SetAttr {
    SetAttr { uid: Some(writers), gid: Some(readers), ..SetAttr::default() }
}

fn fence(store: &Objects, writers: u32, readers: u32) -> Result<()> {
    set_as(store, &Cred::root(), &ObjectHandle::control(5, false), &epochs(writers, readers))
}

fn remove(store: &Objects, cred: &Cred, handle: &ObjectHandle) -> Result<()> {
    let dir = adopted(store, handle);
    store.remove(&Caller::blocking(cred), &dir, Name::new(name(5).as_bytes()).unwrap()).map(drop)
}

#[test]
fn first_write_creates_an_object_which_is_empty_before() {
    let store = empty_store();
    let (reader, writer) = (of_client(Right::Read, 1, true), of_client(Right::Write, 1, true));
    assert_eq!(read_as(&store, &client(), &reader), Ok(Vec::new()));
    let caller = client();
    let attr = |handle| store.getattr(&Caller::blocking(&caller), &adopted(&store, handle)).unwrap();
    assert_eq!((attr(&reader).size, attr(&reader).nlink), (0, 0));
    assert!(store.commit(&Caller::blocking(&caller), &adopted(&store, &writer), 0, 0).is_ok());
    assert_eq!(read_as(&store, &client(), &of_client(Right::Read, 1, false)), Err(VfsError::Stale), "it is lost");
    assert_eq!(write_as(&store, &client(), &of_client(Right::Write, 1, false)), Err(VfsError::Stale), "it is lost");
    write_as(&store, &client(), &writer).unwrap();
    for creates in [true, false] {
        assert_eq!(read_as(&store, &client(), &of_client(Right::Read, 1, creates)).unwrap(), b"data");
        write_as(&store, &client(), &of_client(Right::Write, 1, creates)).unwrap();
    }
    assert_eq!((attr(&reader).size, attr(&reader).nlink, attr(&reader).fileid), (4, 1, 5));
}

#[test]
fn handles_permit_no_more_than_their_right() {
    let (store, root) = (empty_store(), Cred::root());
    let (reader, writer) = (of_client(Right::Read, 1, true), of_client(Right::Write, 1, true));
    assert_eq!(write_as(&store, &client(), &reader), Err(VfsError::Access));
    assert_eq!(write_as(&store, &root, &reader), Err(VfsError::Access), "the user does not count");
    assert_eq!(read_as(&store, &client(), &writer), Ok(Vec::new()));
    let size = SetAttr { size: Some(9), ..SetAttr::default() };
    for handle in [reader, writer, ObjectHandle::store()] {
        assert_eq!(set_as(&store, &root, &handle, &epochs(9, 9)), Err(VfsError::Access), "{handle:?}");
        assert_eq!(set_as(&store, &root, &handle, &size), Err(VfsError::Access), "{handle:?}");
    }
    for handle in [reader, writer, ObjectHandle::control(5, true)] {
        assert_eq!(remove(&store, &root, &handle), Err(VfsError::Access), "{handle:?}");
    }
    let control = ObjectHandle::control(5, true);
    for set in [&size, &epochs(9, 9)] {
        assert_eq!(set_as(&store, &client(), &control, set), Err(VfsError::Access), "a host whose root is squashed");
    }
    assert_eq!(write_as(&store, &client(), &control), Err(VfsError::Access));
    assert_eq!(read_as(&store, &client(), &control), Err(VfsError::Access));
    assert_eq!(remove(&store, &client(), &ObjectHandle::store()), Err(VfsError::Access));
    assert_eq!(read_as(&store, &root, &ObjectHandle::store()), Err(VfsError::Access));
    set_as(&store, &root, &control, &size).unwrap();
    assert_eq!(read_as(&store, &root, &ObjectHandle::control(5, false)).unwrap(), [0; 9]);
    let (caller, wanted) = (client(), Rights { read: true, modify: true, ..Rights::default() });
    let rights = |handle| store.access(&Caller::blocking(&caller), &adopted(&store, handle), wanted).unwrap().0;
    assert_eq!(rights(&writer), wanted);
    assert_eq!(rights(&reader), Rights { read: true, ..Rights::default() });
    assert_eq!(rights(&control), Rights::default());
}

#[test]
fn root_directory_shows_and_changes_nothing() {
    let (store, cred) = (empty_store(), Cred::root());
    write_as(&store, &client(), &of_client(Right::Write, 1, true)).unwrap();
    let (caller, root, text) = (Caller::blocking(&cred), store.root(), name(5));
    let object = Name::new(text.as_bytes()).unwrap();
    for dir in [&root, &adopted(&store, &ObjectHandle::store())] {
        assert_eq!(store.lookup(&caller, dir, object).unwrap_err(), VfsError::Access);
        let mode = CreateMode::Unchecked(SetAttr::default());
        assert_eq!(store.create(&caller, dir, object, &mode).unwrap_err(), VfsError::Access);
        assert_eq!(store.rename(&caller, dir, object, dir, object).unwrap_err(), VfsError::Access);
    }
    assert_eq!(store.remove(&caller, &root, object).unwrap_err(), VfsError::Access);
    let outside = adopted(&store, &ObjectHandle::store());
    let hidden = Name::new(b".slipway-store").unwrap();
    assert_eq!(store.remove(&caller, &outside, hidden).unwrap_err(), VfsError::Invalid);
    assert!(store.statfs(&caller, &root).is_ok());
}

#[test]
fn metadata_server_lists_the_objects_and_nothing_else() {
    let (store, root) = (empty_store(), Cred::root());
    write_as(&store, &client(), &of_client(Right::Write, 1, true)).unwrap();
    let list = |cred: &Cred, dir: &Handle| {
        let mut names = Vec::new();
        let mut each = |entry: vfs::DirEntry<'_>| {
            assert!(entry.object.is_none(), "a handle of the directory below");
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            std::ops::ControlFlow::Continue(())
        };
        store.readdir(&Caller::blocking(cred), dir, 0, [0; 8], true, &mut each).map(|read| (names, read.eof))
    };
    let dir = adopted(&store, &ObjectHandle::store());
    assert_eq!(list(&root, &dir), Ok((vec![name(5)], true)), "not `.slipway-store`");
    assert_eq!(list(&client(), &dir), Err(VfsError::Access), "a host whose root is squashed");
    for handle in [of_client(Right::Write, 1, true), ObjectHandle::control(5, true)] {
        assert_eq!(list(&root, &adopted(&store, &handle)), Err(VfsError::Access), "{handle:?}");
    }
    assert_eq!(list(&root, &store.root()), Err(VfsError::Access), "without the key");
}

#[test]
fn fence_refuses_earlier_handles_of_its_right() {
    let store = empty_store();
    let handles = |epoch| (of_client(Right::Write, epoch, true), of_client(Right::Read, epoch, true));
    let (writer, reader) = handles(1);
    fence(&store, 2, 1).unwrap();
    assert_eq!(write_as(&store, &client(), &writer), Err(VfsError::Access), "the object does not exist yet");
    assert_eq!(read_as(&store, &client(), &writer), Err(VfsError::Access));
    assert_eq!(read_as(&store, &client(), &reader), Ok(Vec::new()), "layouts to read are undisturbed");
    write_as(&store, &client(), &handles(2).0).unwrap();
    fence(&store, 2, 2).unwrap();
    assert_eq!(read_as(&store, &client(), &reader), Err(VfsError::Access));
    fence(&store, 1, 1).unwrap();
    assert_eq!(write_as(&store, &client(), &writer), Err(VfsError::Access), "an earlier fence was repeated");
    assert_eq!(read_as(&store, &client(), &reader), Err(VfsError::Access));
    assert_eq!(read_as(&store, &client(), &handles(2).1).unwrap(), b"data");
    let caller = Cred::root();
    let other = ObjectHandle { object: 6, ..writer };
    assert!(write_as(&store, &caller, &other).is_ok(), "another object has epochs of its own");
}

#[test]
fn removed_object_is_not_created_again() {
    let (store, root) = (empty_store(), Cred::root());
    let writer = of_client(Right::Write, 1, true);
    write_as(&store, &client(), &writer).unwrap();
    remove(&store, &root, &ObjectHandle::store()).unwrap();
    assert_eq!(write_as(&store, &client(), &writer), Err(VfsError::Stale));
    let reader = of_client(Right::Read, 1, true);
    assert_eq!(read_as(&store, &client(), &reader), Err(VfsError::Stale), "a removed file is not an empty one");
    assert_eq!(write_as(&store, &root, &ObjectHandle::control(5, true)), Err(VfsError::Stale));
    remove(&store, &root, &ObjectHandle::store()).unwrap();
    let store = empty_store();
    remove(&store, &root, &ObjectHandle::store()).unwrap();
    assert_eq!(write_as(&store, &client(), &writer), Err(VfsError::Stale), "it was removed before its first write");
}

#[test]
fn handle_creates_its_object_for_a_time_only() {
    let store = empty_store();
    let now = create_until().unwrap().get();
    let until = |until| ObjectHandle { create_until: NonZeroU32::new(until), ..of_client(Right::Write, 1, true) };
    // `create_until` is one to two hours ahead.
    assert_eq!(write_as(&store, &client(), &until(now - 7201)), Err(VfsError::Access));
    assert_eq!(write_as(&store, &client(), &until(now + 7200)), Err(VfsError::Access), "the clocks differ too much");
    assert_eq!(read_as(&store, &client(), &until(now - 7201)), Ok(Vec::new()));
    write_as(&store, &client(), &until(now)).unwrap();
    write_as(&store, &client(), &until(now - 7201)).unwrap();
}

#[test]
fn forged_handles_and_those_of_others_are_refused() {
    let (store, other) = (empty_store(), empty_store());
    let handle = of_client(Right::Write, 1, true);
    let adopt = |bytes: &[u8]| store.adopt(bytes).map(drop);
    let mut bytes = key().seal(store_of(&store), &handle);
    assert_eq!(adopt(&bytes), Ok(()));
    assert_eq!(adopt(&key().seal(store_of(&other), &handle)), Err(VfsError::Stale), "another data server");
    assert_eq!(
        adopt(&ClusterKey::new(&[8; 32]).seal(store_of(&store), &handle)),
        Err(VfsError::Stale),
        "another cluster"
    );
    assert_eq!(adopt(&bytes[..41]), Err(VfsError::BadHandle));
    assert_eq!(adopt(store.root().as_bytes()), Err(VfsError::BadHandle));
    bytes[25] ^= 1;
    assert_eq!(adopt(&bytes), Err(VfsError::Stale), "another object");
}

fn open_directory(dir: &Path) -> Objects {
    let posix = Posix::open(dir.join("objects"), PosixOptions::default()).unwrap();
    Objects::open(Arc::new(posix), Fences::open(&dir.join("objects.redb")).unwrap(), key()).unwrap()
}

#[test]
fn objects_and_fences_survive_a_restart_and_handles_end_with_their_directory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("objects")).unwrap();
    let store = open_directory(dir.path());
    let (writer, reader) = (of_client(Right::Write, 1, true), of_client(Right::Read, 2, false));
    write_as(&store, &client(), &writer).unwrap();
    fence(&store, 2, 2).unwrap();
    let before = store_of(&store);
    drop(store);
    let store = open_directory(dir.path());
    assert_eq!(store_of(&store), before);
    assert_eq!(write_as(&store, &client(), &writer), Err(VfsError::Access));
    assert_eq!(read_as(&store, &client(), &reader).unwrap(), b"data");
    drop(store);
    for lost in ["objects/.slipway-store", "objects.redb"] {
        std::fs::remove_file(dir.path().join(lost)).unwrap();
        let store = open_directory(dir.path());
        assert_ne!(store_of(&store), before, "{lost}");
        assert_eq!(store.adopt(&key().seal(before, &reader)), Err(VfsError::Stale), "{lost}");
    }
}

/// A tree with two copies of each file on data servers of kind `slipway`.
struct Cluster {
    pnfs: Pnfs,
    servers: Computed,
    inner: Arc<Memory>,
}

impl Cluster {
    fn new(servers: u32, mirrors: usize, stripes: Stripes) -> Self {
        let (servers, inner) =
            (Computed::new(servers), Arc::new(Memory::new(MemoryOptions { mode: 0o777, ..Default::default() })));
        let (threshold, layouts, earlier) = (1000, Some(LayoutKind::Flexible), Earlier::NOTHING);
        let options = Options { mirrors, stripes, threshold, layouts, earlier };
        let index = Index::with_backend(InMemoryBackend::new()).unwrap();
        let pnfs = Pnfs::new(inner.clone(), Arc::new(servers.clone()), index, options).unwrap();
        Self { pnfs, servers, inner }
    }

    fn run<T>(&self, operation: impl FnMut(&Caller<'_>) -> Result<T>) -> Result<T> {
        let root = Cred::root();
        drive(&Caller::blocking(&root), operation)
    }

    fn create(&self, name: &str) -> Handle {
        let (root, mode) = (self.pnfs.root(), CreateMode::Unchecked(SetAttr::default()));
        let name = Name::new(name.as_bytes()).unwrap();
        self.run(|caller| self.pnfs.create(caller, &root, name, &mode)).unwrap().handle
    }

    fn grant(&self, file: &Handle, holder: u64, mode: LayoutMode) -> Result<FlexibleLayout> {
        let request = LayoutRequest { striped_copies: true, ..World::request(holder, mode) };
        match self.run(|caller| self.pnfs.grant(caller, file, &request))? {
            Layout::Flexible(layout) => Ok(layout),
            layout => panic!("{layout:?}"),
        }
    }

    fn release(&self, file: &Handle, holder: u64) {
        self.run(|caller| self.pnfs.release(caller, file, LayoutHolder(holder), LayoutModes::ALL)).unwrap();
    }

    /// Writes to all mirrors of a layout of one stripe, as a client does.
    fn client_write(&self, layout: &FlexibleLayout, data: &'static [u8]) -> Result<()> {
        let cred = client();
        layout.mirrors.iter().try_for_each(|mirror| {
            let file = &mirror.data_files[0];
            let store = self.servers.store(self.servers.server_of(file.device).unwrap());
            let (handle, data) = (store.adopt(&file.handle)?, Rope::from(Bytes::from_static(data)));
            store.write(&Caller::blocking(&cred), &handle, 0, &data, Stability::FileSync, Report::Nothing).map(drop)
        })
    }

    fn commit(&self, file: &Handle, holder: u64, size: u64) {
        let commit = LayoutCommit { range: LayoutRange::ALL, size: Some(size), mtime: None };
        let holder = Some(LayoutHolder(holder));
        self.run(|caller| Layouts::commit(&self.pnfs, caller, file, holder, &commit)).unwrap();
    }

    fn write(&self, file: &Handle, offset: u64, len: usize) -> Result<()> {
        let data = Rope::from(Bytes::from(vec![7; len]));
        let write =
            |caller: &Caller<'_>| self.pnfs.write(caller, file, offset, &data, Stability::FileSync, Report::Nothing);
        self.run(write).map(drop)
    }

    fn read(&self, file: &Handle) -> Result<Vec<u8>> {
        let read = self.run(|caller| self.pnfs.read(caller, file, 0, 1 << 20, &Pool::default(), false))?;
        Ok(read.data.to_bytes().unwrap().to_vec())
    }

    fn truncate(&self, file: &Handle, size: u64) -> Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.run(|caller| self.pnfs.setattr(caller, file, &set, None)).map(drop)
    }

    fn record(&self, file: &Handle) -> Record {
        let name = Name::new(b"slipway.layout").unwrap();
        Record::decode(&self.run(|caller| self.inner.xattr(caller, file, name)).unwrap()).unwrap()
    }

    fn upkeep(&self) {
        for _ in 0..3 {
            assert!(step(pin!(self.pnfs.upkeep())), "the upkeep must not wait");
        }
    }

    /// Loses an object, as nobody but a person at the data server does.
    fn lose(&self, object: pnfs::record::Object) {
        let removed = self.servers.remove(object);
        assert!(step(pin!(async { removed.await.unwrap() })));
    }
}

fn stripes() -> Stripes {
    Stripes::new(700, 2).unwrap()
}

#[test]
fn new_files_need_no_call_whatever_the_number_of_data_servers() {
    let unit = |count| Stripes::new(700, count).unwrap();
    for (servers, mirrors, stripes) in
        [(1, 1, Stripes::ONE), (16, 1, Stripes::ONE), (16, 16, Stripes::ONE), (16, 1, unit(16))]
    {
        let cluster = Cluster::new(servers, mirrors, stripes);
        for number in 0..10 {
            let file = cluster.create(&number.to_string());
            let layout = cluster.grant(&file, number, LayoutMode::Write).unwrap();
            assert_eq!((layout.mirrors.len(), layout.mirrors[0].data_files.len()), (mirrors, stripes.count()));
        }
        assert_eq!(cluster.servers.calls(), 0, "{servers} data servers");
    }
}

/// The metadata server knows that the file has no data, so it looks for no object.
#[test]
fn proxied_write_is_one_call_for_each_copy() {
    for (mirrors, stripes) in [(1, Stripes::ONE), (3, Stripes::ONE), (2, stripes())] {
        let cluster = Cluster::new(4, mirrors, stripes);
        let calls_of = |file: &Handle, offset: u64, len: usize| {
            let before = cluster.servers.calls();
            cluster.write(file, offset, len).unwrap();
            cluster.servers.calls() - before
        };
        let file = cluster.create("without a layout");
        let objects = (mirrors * stripes.count()) as u64;
        assert_eq!(calls_of(&file, 0, 1400), objects, "the first write goes to all stripes");
        let file = cluster.create("with a layout");
        cluster.grant(&file, 1, LayoutMode::Write).unwrap();
        cluster.release(&file, 1);
        for offset in [0, 100, 200] {
            assert_eq!(calls_of(&file, offset, 100), mirrors as u64, "{stripes:?}, {offset}");
        }
        assert!(cluster.record(&file).is_healthy());
    }
}

#[test]
fn data_of_clients_are_read_and_a_fenced_client_is_refused() {
    let cluster = Cluster::new(3, 2, Stripes::ONE);
    let file = cluster.create("f");
    let layout = cluster.grant(&file, 1, LayoutMode::Write).unwrap();
    cluster.client_write(&layout, b"hello").unwrap();
    cluster.commit(&file, 1, 5);
    assert_eq!(cluster.read(&file).unwrap(), b"hello");
    cluster.run(|caller| cluster.pnfs.fence(caller, &file, LayoutHolder(1), LayoutModes::ALL)).unwrap();
    assert_eq!(cluster.client_write(&layout, b"later"), Err(VfsError::Access));
    cluster.upkeep();
    assert_eq!(cluster.read(&file).unwrap(), b"hello");
    let layout = cluster.grant(&file, 2, LayoutMode::Write).unwrap();
    cluster.client_write(&layout, b"again").unwrap();
    cluster.release(&file, 2);
    assert_eq!(cluster.read(&file).unwrap(), b"again");
}

#[test]
fn every_copy_exists_of_a_file_whose_client_has_written_one_copy_only() {
    let cluster = Cluster::new(3, 2, Stripes::ONE);
    let file = cluster.create("f");
    let mut layout = cluster.grant(&file, 1, LayoutMode::Write).unwrap();
    // The client ends before it writes to the other copy.
    layout.mirrors.truncate(1);
    cluster.client_write(&layout, b"hello").unwrap();
    cluster.run(|caller| cluster.pnfs.fence(caller, &file, LayoutHolder(1), LayoutModes::ALL)).unwrap();
    let server = cluster.servers.server_of(layout.mirrors[0].data_files[0].device).unwrap();
    let written = cluster.record(&file).copies.iter().find(|copy| copy.object.server == server).unwrap().object;
    cluster.lose(written);
    assert_eq!(cluster.read(&file).unwrap().len(), 5);
    cluster.upkeep();
    assert!(cluster.record(&file).is_healthy());
}

#[test]
fn client_that_is_fenced_before_its_first_write_creates_nothing() {
    let cluster = Cluster::new(3, 2, Stripes::ONE);
    let file = cluster.create("f");
    let layout = cluster.grant(&file, 1, LayoutMode::Write).unwrap();
    cluster.run(|caller| cluster.pnfs.fence(caller, &file, LayoutHolder(1), LayoutModes::ALL)).unwrap();
    assert_eq!(cluster.client_write(&layout, b"late"), Err(VfsError::Access));
    cluster.upkeep();
    assert_eq!(cluster.read(&file).unwrap(), b"");
    cluster.write(&file, 0, 2000).unwrap();
    assert!(cluster.record(&file).is_healthy());
    assert_eq!(cluster.read(&file).unwrap(), [7; 2000]);
}

#[test]
fn files_without_objects_can_be_used_in_every_way() {
    for stripes in [Stripes::ONE, stripes()] {
        let cluster = Cluster::new(4, 2, stripes);
        let new = |name: &str| {
            let file = cluster.create(name);
            cluster.grant(&file, 1, LayoutMode::Write).unwrap();
            cluster.release(&file, 1);
            file
        };
        let (written, grown, cut, read) = (new("written"), new("grown"), new("cut"), new("read"));
        cluster.write(&written, 3000, 10).unwrap();
        assert_eq!(cluster.read(&written).unwrap(), [vec![0; 3000], vec![7; 10]].concat());
        cluster.truncate(&grown, 5000).unwrap();
        assert_eq!(cluster.read(&grown).unwrap(), [0; 5000]);
        cluster.truncate(&cut, 0).unwrap();
        assert_eq!((cluster.read(&cut).unwrap(), cluster.read(&read).unwrap()), (Vec::new(), Vec::new()));
        cluster.upkeep();
        for file in [&written, &grown, &cut, &read] {
            assert!(cluster.record(file).is_healthy(), "{file:?}");
        }
    }
}

#[test]
fn lost_object_is_not_taken_for_a_new_one() {
    let cluster = Cluster::new(3, 2, Stripes::ONE);
    let file = cluster.create("f");
    cluster.write(&file, 0, 2000).unwrap();
    let record = cluster.record(&file);
    cluster.lose(record.copies[0].object);
    let layout = cluster.grant(&file, 1, LayoutMode::Write).unwrap();
    assert_eq!(cluster.client_write(&layout, b"part of it"), Err(VfsError::Stale));
    cluster.release(&file, 1);
    cluster.write(&file, 100, 10).unwrap();
    assert!(!cluster.record(&file).is_healthy(), "the copy must be stale");
    cluster.truncate(&file, 3000).unwrap();
    cluster.upkeep();
    let repaired = cluster.record(&file);
    assert!(repaired.is_healthy() && repaired.copies[0].object != record.copies[0].object);
    assert_eq!(cluster.read(&file).unwrap(), [vec![7; 2000], vec![0; 1000]].concat());
}
