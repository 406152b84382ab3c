//! Data servers that fail while this server writes, and crashes of this server.

use std::{collections::HashSet, pin::pin, sync::atomic::Ordering::Relaxed, task::Poll, time::Duration};

use pnfs::{Earlier, Index, ServerId, Service, record::Object};
use vfs::{
    Handle, Name, Stability, Vfs, VfsError,
    layout::{LayoutMode, LayoutModes},
};

use crate::{
    servers::Storage,
    world::{World, step},
};

fn write_unstable(world: &World, file: &Handle, value: u8) {
    let data = buf::Rope::from(bytes::Bytes::from(vec![value; 5000]));
    let report = vfs::Report::Nothing;
    world.run(|caller| world.pnfs.write(caller, file, 0, &data, Stability::Unstable, report)).unwrap();
}

#[test]
fn objects_are_not_longer_than_a_file_that_could_not_grow() {
    for world in World::each() {
        let file = world.create("file");
        world.write(&file, 0, &[1; 5000]).unwrap();
        world.disk.refusing_attributes.store(1, Relaxed);
        assert_eq!(world.write(&file, 4000, &[2; 3000]).unwrap_err(), VfsError::Io);
        assert_eq!(world.size(&file), 5000);
        world.upkeep();
        let record = world.record(&file);
        for copy in &record.copies {
            assert!(world.servers.content(copy.object).unwrap().len() <= 5000);
        }
    }
}

#[test]
fn truncation_to_the_size_of_the_file_cuts_objects_that_are_longer() {
    for world in World::each() {
        let file = world.create("file");
        world.write(&file, 0, &[1; 5000]).unwrap();
        world.disk.refusing_attributes.store(1, Relaxed);
        assert_eq!(world.write(&file, 4000, &[2; 3000]).unwrap_err(), VfsError::Io);
        world.truncate(&file, 5000).unwrap();
        world.write(&file, 9000, &[3; 10]).unwrap();
        assert!(world.read(&file).unwrap()[5000..9000].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn stale_copy_is_never_read_and_is_made_again() {
    World::each().for_each(|world| stale_copies(&world));
}

fn stale_copies(world: &World) {
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let record = world.record(&file);
    let server_of = |copy: usize| record.copies[copy].object.server.0;
    for bad in record.copies.iter().map(|copy| copy.object.server.0).collect::<HashSet<_>>() {
        // The data servers with other copies of the same stripes.
        let of_bad = (0..record.copies.len()).filter(|copy| server_of(*copy) == bad);
        let stripes = of_bad.map(|copy| record.stripe_of(copy));
        let partners: Vec<_> = stripes
            .flat_map(|stripe| record.copies_of(stripe).map(move |copy| (stripe, server_of(copy))))
            .filter(|(_, server)| *server != bad)
            .collect();
        world.servers.set_down(bad, true);
        let data = [bad as u8 + 2; 3000];
        world.write(&file, 1000, &data).unwrap();
        world.servers.set_down(bad, false);
        // The data server answers again, and has the former data.
        assert_eq!(world.read(&file).unwrap()[1000..4000], data);
        for (stripe, partner) in &partners {
            world.servers.set_down(*partner, true);
            assert_eq!(world.read(&file).unwrap_err(), VfsError::Io, "no copy of the stripe has all data");
            let offset = record.stripes.next(*stripe, 0);
            assert_eq!(world.write(&file, offset, &[9; 10]).unwrap_err(), VfsError::Io);
            world.servers.set_down(*partner, false);
        }
        world.upkeep();
        for (_, partner) in partners {
            world.servers.set_down(partner, true);
            assert_eq!(world.read(&file).unwrap()[1000..4000], data, "the new copy must have the data");
            world.servers.set_down(partner, false);
            world.upkeep();
        }
    }
    assert_eq!(world.servers.objects(), record.copies.len(), "no former object must be left");
}

#[test]
fn full_data_server_is_left_out_and_the_last_one_reports_it() {
    World::each().for_each(full_data_server);
}

fn full_data_server(world: World) {
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let record = world.record(&file);
    let copies: Vec<_> = record.copies_of(0).map(|copy| record.copies[copy].object.server.0).collect();
    let [first, second] = copies[..] else { panic!("there must be two copies") };
    world.servers.set_full(first, true);
    world.write(&file, 0, &[2; 5000]).unwrap();
    assert!(!world.record(&file).is_healthy());
    world.servers.set_full(second, true);
    assert_eq!(world.write(&file, 0, &[3; 5000]).unwrap_err(), VfsError::NoSpace);
}

#[test]
fn copy_on_a_full_data_server_is_made_again_on_another() {
    for is_away in [false, true] {
        let world = World::new();
        let file = world.create("file");
        world.write(&file, 0, &[1; 5000]).unwrap();
        let [bad, good] = [0, 1].map(|at| world.record(&file).copies[at].object.server.0);
        // If it was away, only the repair learns that it is full.
        world.servers.set_down(bad, is_away);
        world.servers.set_full(bad, true);
        world.write(&file, 0, &[2; 5000]).unwrap();
        assert!(!world.record(&file).is_healthy());
        world.servers.set_down(bad, false);
        world.upkeep();
        let record = world.record(&file);
        let servers: Vec<_> = record.copies.iter().map(|copy| copy.object.server.0).collect();
        assert!(record.is_healthy() && !servers.contains(&bad) && servers.contains(&good), "{is_away}: {record:?}");
        for copy in &record.copies {
            assert_eq!(world.servers.content(copy.object).unwrap(), [2; 5000]);
        }
        assert_eq!(world.servers.objects(), 2, "{is_away}: the former objects must be removed");
        // New files use the others, too.
        for number in 0..20 {
            let other = world.create(&format!("other{number}"));
            world.write(&other, 0, &[3; 5000]).unwrap();
            assert!(world.record(&other).is_healthy());
        }
    }
}

/// Each attempt to make a copy recalls the layouts to write.
#[test]
fn layouts_are_not_recalled_again_and_again_while_the_only_other_data_server_is_full() {
    let world = World::with(pnfs::Stripes::ONE, 2);
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let bad = world.record(&file).copies[0].object.server.0;
    world.servers.set_full(bad, true);
    world.write(&file, 0, &[2; 5000]).unwrap();
    assert_eq!(world.grant(&file, 1, LayoutMode::Write).unwrap().len(), 1);
    world.upkeep();
    assert_eq!(world.events.recalls(), []);
    assert!(!world.record(&file).is_healthy());
    assert_eq!(world.read(&file).unwrap(), [2; 5000]);
}

#[test]
fn copy_that_lost_unstable_writes_is_stale_after_commit() {
    World::each().for_each(lost_unstable_writes);
}

fn lost_unstable_writes(world: World) {
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let write = |value| write_unstable(&world, &file, value);
    let commit = || world.run(|caller| world.pnfs.commit(caller, &file, 0, 0)).unwrap();
    let verifier = world.pnfs.write_verifier();
    write(2);
    let lost = world.record(&file).copies[0].object;
    world.servers.restart(lost.server.0);
    commit();
    assert_eq!(world.pnfs.write_verifier(), verifier, "the other copy has the data");
    assert_eq!(world.read(&file).unwrap(), [2; 5000]);
    world.upkeep();
    assert!(world.record(&file).is_healthy());
    // All copies lose the data: clients must write again.
    write(3);
    world.servers.ids().for_each(|server| world.servers.restart(server));
    commit();
    assert_ne!(world.pnfs.write_verifier(), verifier);
}

#[test]
fn unstable_writes_that_nobody_commits_are_made_durable() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    write_unstable(&world, &file, 2);
    // The file is in use during the first round.
    world.upkeep();
    let copies = world.record(&file).copies;
    world.servers.restart(copies[0].object.server.0);
    for copy in copies {
        assert_eq!(world.servers.content(copy.object).unwrap(), [2; 5000], "no copy may be left behind");
    }
}

/// The new copy is made from one that has lost a write, so COMMIT must not find the write in it.
#[test]
fn copy_of_a_copy_that_lost_unstable_writes_does_not_hide_the_loss() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let [bad, good] = [0, 1].map(|at| world.record(&file).copies[at].object.server.0);
    world.servers.set_down(bad, true);
    write_unstable(&world, &file, 2);
    let verifier = world.pnfs.write_verifier();
    world.servers.restart(good);
    world.servers.set_down(bad, false);
    world.upkeep();
    assert!(world.record(&file).is_healthy());
    world.run(|caller| world.pnfs.commit(caller, &file, 0, 0)).unwrap();
    assert_eq!(world.read(&file).unwrap(), [1; 5000]);
    assert_ne!(world.pnfs.write_verifier(), verifier, "the client must write again");
}

#[test]
fn index_is_created_again_after_a_crash_and_used_by_one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index.redb");
    // The process has ended while it created the file.
    std::fs::write(path.with_extension("new"), [0; 4096]).unwrap();
    let index = Index::open(&path).unwrap();
    let file = Handle::new(b"file");
    index.set_work([(&file, pnfs::index::DIRTY)]).unwrap();
    assert!(Index::open(&path).is_err(), "two processes must not use one index");
    drop(index);
    assert_eq!(Index::open(&path).unwrap().work().unwrap()[&file], pnfs::index::DIRTY);
}

/// redb refuses all operations after an error.
#[test]
fn index_is_opened_again_after_an_error_of_its_storage() {
    for world in World::each() {
        let file = world.create("file");
        world.write(&file, 0, &[1; 5000]).unwrap();
        world.index.failing.store(1, Relaxed);
        let remove =
            || world.run(|caller| world.pnfs.remove(caller, &world.pnfs.root(), Name::new(b"file").unwrap())).map(drop);
        assert_eq!(remove(), Err(VfsError::Io));
        assert_eq!(world.read(&file).unwrap(), [1; 5000], "an operation that has failed must have no effect");
        assert_eq!(remove(), Ok(()));
        world.upkeep();
        assert_eq!(world.servers.objects(), 0);
    }
}

#[simnet::test]
async fn index_that_cannot_be_opened_again_is_tried_later() {
    let storage = Storage::default();
    let index = Index::with_backend(storage.clone()).unwrap();
    let file = Handle::new(b"file");
    let add = || index.set_work([(&file, pnfs::index::DIRTY)]);
    storage.failing.store(2, Relaxed);
    assert_eq!((add(), add(), storage.failing.load(Relaxed)), (Err(VfsError::Io), Err(VfsError::Io), 0));
    assert_eq!(add(), Err(VfsError::Io), "each attempt may read all of the file");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(add(), Ok(()));
    assert_eq!(index.work().unwrap()[&file], pnfs::index::DIRTY);
}

#[test]
fn state_of_a_data_server_that_was_stored_although_that_failed_is_set_again() {
    let world = World::with(pnfs::Stripes::ONE, 4);
    world.index.failing.store(1, Relaxed);
    assert!(world.pnfs.set_service(ServerId(3), Service::Draining).is_err());
    world.pnfs.set_service(ServerId(3), Service::Active).unwrap();
    let world = world.crash();
    assert_eq!(world.pnfs.service(ServerId(3)), Service::Active);
}

#[test]
fn work_that_was_stored_although_that_failed_is_removed() {
    for world in World::each() {
        let file = world.create("file");
        world.write(&file, 0, &[1; 5000]).unwrap();
        world.upkeep();
        world.index.failing.store(1, Relaxed);
        assert_eq!(world.truncate(&file, 100), Err(VfsError::Io));
        world.upkeep();
        let mut storage = world.index.clone();
        storage.crash();
        assert!(Index::with_backend(storage).unwrap().work().unwrap().is_empty());
        assert_eq!(world.read(&file).unwrap(), [1; 5000]);
    }
}

#[test]
fn end_of_work_may_come_back_after_a_crash_until_it_is_durable() {
    let mut storage = Storage::default();
    let file = Handle::new(b"file");
    let index = Index::with_backend(storage.clone()).unwrap();
    index.set_work([(&file, pnfs::index::DIRTY)]).unwrap();
    index.end_work(&file, 0).unwrap();
    assert!(index.work().unwrap().is_empty());
    storage.crash();
    drop(index);
    let index = Index::with_backend(storage.clone()).unwrap();
    assert_eq!(index.work().unwrap()[&file], pnfs::index::DIRTY);
    index.end_work(&file, 0).unwrap();
    index.sync().unwrap();
    storage.crash();
    drop(index);
    assert!(Index::with_backend(storage).unwrap().work().unwrap().is_empty());
}

#[test]
fn first_objects_of_files_are_in_the_index_and_survive_a_crash() {
    let mut storage = Storage::default();
    let index = Index::with_backend(storage.clone()).unwrap();
    let file = |number: u128| Handle::new(&number.to_be_bytes());
    let object = |server, number| Object { server: ServerId(server), id: number };
    let create = |index: &Index, number, used| {
        index.begin_new(&[object(1, number), object(2, number)], &file(number), pnfs::index::LAYOUTS).unwrap();
        index.end_new(&file(number), used).unwrap();
    };
    let on = |index: &Index, server| -> Vec<_> {
        let found = index.objects_on(ServerId(server), None, 100).unwrap();
        assert_eq!(index.count_on(ServerId(server)).unwrap(), found.len() as u64);
        found.into_iter().map(|(object, of)| (object.id, of == file(object.id))).collect()
    };
    let queued = |index: &Index| {
        let queue = index.removals(&[ServerId(1), ServerId(2)]).unwrap();
        assert!(queue.iter().all(|(object, of)| *of == Some(file(object.id))), "an object without a file is removed");
        queue.into_iter().map(|(object, _)| (object.server.0, object.id)).collect::<Vec<_>>()
    };
    create(&index, 1, true);
    assert_eq!((on(&index, 1), on(&index, 2), queued(&index)), (vec![(1, true)], vec![(1, true)], vec![]));
    // A file without the objects.
    create(&index, 2, false);
    assert_eq!(queued(&index), [(1, 2), (2, 2)]);
    index.end_removals(&[], &[object(1, 2), object(2, 2)]).unwrap();
    // Objects that are removed at once, by a removal of the file and by another copy.
    create(&index, 3, true);
    index.end_removals(&[], &[object(1, 3)]).unwrap();
    create(&index, 4, true);
    index.disuse(object(2, 4)).unwrap();
    assert_eq!((on(&index, 1), on(&index, 2)), (vec![(1, true), (4, true)], vec![(1, true), (3, true)]));
    index.end_removals(&[], &[object(2, 4)]).unwrap();
    index.sync().unwrap();
    // The next process does not know whether the records name objects that were new at the crash.
    create(&index, 5, true);
    index.begin_new(&[object(1, 6)], &file(6), 0).unwrap();
    storage.crash();
    drop(index);
    let index = Index::with_backend(storage.clone()).unwrap();
    assert_eq!(on(&index, 1), [(1, true), (4, true), (5, true), (6, true)]);
    assert_eq!(queued(&index), [(1, 5), (1, 6), (2, 5)]);
    // Without a crash it does.
    index.end_removals(&[object(1, 5), object(2, 5)], &[object(1, 6)]).unwrap();
    (7..2007).for_each(|number| create(&index, number, true));
    drop(index);
    let index = Index::with_backend(storage).unwrap();
    assert_eq!((queued(&index), index.count_on(ServerId(2)).unwrap()), (vec![], 2003));
}

#[test]
fn lost_objects_are_made_again() {
    World::each().for_each(lost_objects);
}

fn lost_objects(world: World) {
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let record = world.record(&file);
    world.servers.wipe(record.copies[0].object.server.0);
    assert_eq!(world.read(&file).unwrap(), [1; 5000]);
    world.write(&file, 0, &[2; 5000]).unwrap();
    world.upkeep();
    assert!(world.record(&file).is_healthy());
    assert_eq!(world.servers.objects(), record.copies.len());
}

#[test]
fn objects_of_a_held_file_stay_until_its_hold_ends() {
    World::each().for_each(held_files);
}

fn held_files(world: World) {
    let root = world.pnfs.root();
    let (large, small) = (world.create("large"), world.create("small"));
    world.write(&large, 0, &[1; 5000]).unwrap();
    world.write(&small, 0, &[2; 10]).unwrap();
    let held = [&large, &small].map(|file| world.run(|caller| world.pnfs.hold(caller, file)).unwrap());
    for name in ["large", "small"] {
        let name = Name::new(name.as_bytes()).unwrap();
        world.run(|caller| world.pnfs.remove(caller, &root, name)).unwrap();
    }
    let objects = world.servers.objects();
    world.upkeep();
    assert_eq!(world.servers.objects(), objects);
    assert_eq!(world.read(&large).unwrap(), [1; 5000]);
    // The objects that a file gets after its removal.
    world.write(&small, 0, &[3; 5000]).unwrap();
    world.upkeep();
    assert_eq!(world.read(&small).unwrap(), [3; 5000]);
    assert!(world.servers.objects() > objects);

    while step(pin!(world.pnfs.woken())) {}
    drop(held);
    assert!(step(pin!(world.pnfs.woken())), "there is work for the upkeep");
    world.upkeep();
    assert_eq!(world.servers.objects(), 0);
    assert_eq!(world.read(&large), Err(VfsError::Stale));
}

#[test]
fn objects_of_removed_files_are_removed_after_a_crash_too() {
    World::each().for_each(removed_files);
}

fn removed_files(world: World) {
    for name in ["one", "two"] {
        world.write(&world.create(name), 0, &[1; 5000]).unwrap();
    }
    let all = world.servers.objects();
    let root = world.pnfs.root();
    let remove = |world: &World, name: &str| {
        let name = Name::new(name.as_bytes()).unwrap();
        world.run(|caller| world.pnfs.remove(caller, &root, name)).unwrap();
    };
    world.servers.ids().for_each(|server| world.servers.set_down(server, true));
    remove(&world, "one");
    world.upkeep();
    assert_eq!(world.servers.objects(), all);
    let world = world.crash();
    world.servers.ids().for_each(|server| world.servers.set_down(server, false));
    world.upkeep();
    assert_eq!(world.servers.objects(), all / 2);
    remove(&world, "two");
    world.upkeep();
    assert_eq!(world.servers.objects(), 0);
}

/// A file with objects is replaced by another one, with the data servers away, and the process ends.
#[test]
fn objects_of_files_that_were_renamed_over_are_removed_after_a_crash_too() {
    World::each().for_each(renamed_over);
}

fn renamed_over(world: World) {
    for name in ["replaced", "new"] {
        world.write(&world.create(name), 0, &[name.len() as u8; 5000]).unwrap();
    }
    let (all, root) = (world.servers.objects(), world.pnfs.root());
    world.upkeep();
    world.servers.ids().for_each(|server| world.servers.set_down(server, true));
    let [from, to] = [&b"new"[..], b"replaced"].map(|name| Name::new(name).unwrap());
    world.run(|caller| world.pnfs.rename(caller, &root, from, &root, to)).unwrap();
    world.upkeep();
    assert_eq!(world.servers.objects(), all);
    let world = world.crash();
    world.servers.ids().for_each(|server| world.servers.set_down(server, false));
    world.upkeep();
    assert_eq!(world.servers.objects(), all / 2, "the objects of the replaced file must be removed");
    let file = world.run(|caller| world.pnfs.lookup(caller, &root, to)).unwrap().0;
    assert_eq!(world.read(&file).unwrap(), [3; 5000]);
    assert!(world.record(&file).is_healthy());
}

#[test]
fn holes_are_not_copied_to_data_servers() {
    World::each().for_each(holes);
}

fn holes(world: World) {
    let file = world.create("file");
    world.truncate(&file, 1 << 40).unwrap();
    world.write(&file, 1 << 39, b"data").unwrap();
    assert_eq!(world.size(&file), 1 << 40);
    assert!(world.servers.memory() < 1 << 20, "{}", world.servers.memory());
}

#[test]
fn size_is_durable_before_a_file_is_no_longer_marked_as_written() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 3000]).unwrap();
    write_unstable(&world, &file, 2);
    assert!(world.disk.unsynced.load(Relaxed), "nobody has asked for a durable size");
    world.upkeep();
    assert!(!world.disk.unsynced.load(Relaxed), "the objects could be longer than the file after a power failure");
}

#[test]
fn stale_mark_that_may_not_be_durable_recalls_layouts() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let bad = world.record(&file).copies[1].object;
    world.grant(&file, 1, LayoutMode::Read).unwrap();
    world.servers.set_down(bad.server.0, true);
    world.disk.failing.store(1, Relaxed);
    // The record has the mark, although the change has failed.
    let mut write = pin!(world.start(|caller| {
        let data = buf::Rope::from(bytes::Bytes::from_static(&[2; 10]));
        world.pnfs.write(caller, &file, 0, &data, Stability::FileSync, vfs::Report::Nothing)
    }));
    assert!(write().is_pending(), "the client can still read the copy");
    assert_eq!(world.events.recalls(), [LayoutModes::READ]);
    world.release(&file, 1, LayoutModes::ALL);
    assert!(matches!(write(), Poll::Ready(Err(VfsError::Io))));
    assert!(!world.record(&file).is_healthy());
}

#[test]
fn file_whose_record_cannot_be_read_now_is_not_removed_without_its_objects() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let world = world.crash();
    let (root, name) = (world.pnfs.root(), Name::new(b"file").unwrap());
    let remove = || world.run(|caller| world.pnfs.remove(caller, &root, name)).map(drop);
    world.disk.failing.store(1, Relaxed);
    assert_eq!(remove(), Err(VfsError::Io));
    assert_eq!(remove(), Ok(()));
    world.upkeep();
    assert_eq!(world.servers.objects(), 0);
}

#[test]
fn objects_are_not_cut_before_the_new_size_is_durable() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let object = world.record(&file).copies[0].object;
    world.disk.failing.store(2, Relaxed);
    assert_eq!(world.truncate(&file, 100), Err(VfsError::Io));
    assert_eq!(world.servers.content(object).unwrap().len(), 5000, "a power failure can bring the former size back");
    world.upkeep();
    assert_eq!(world.servers.content(object).unwrap().len(), 100);
}

#[test]
fn nobody_gets_a_layout_to_write_while_another_client_can_read_a_stale_copy() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let bad = world.record(&file).copies[1].object;
    world.grant(&file, 1, LayoutMode::Read).unwrap();
    world.servers.set_down(bad.server.0, true);
    // The data server with this copy does not answer, so the layout would be without it.
    assert_eq!(world.grant(&file, 2, LayoutMode::Write), Err(VfsError::Delay));
    assert_eq!(world.events.recalls(), [LayoutModes::READ]);
    world.release(&file, 1, LayoutModes::ALL);
    assert_eq!(world.grant(&file, 2, LayoutMode::Write).unwrap().len(), 1);
}

#[test]
fn deallocated_bytes_are_zeros_in_all_copies() {
    World::each().for_each(deallocated);
}

fn deallocated(world: World) {
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let deallocate = |offset, len| world.run(|caller| world.pnfs.deallocate(caller, &file, offset, len));
    let changed = deallocate(1000, 2000).unwrap();
    assert!(changed.after.change > changed.before.change);
    // The size stays the same.
    assert_eq!(deallocate(4500, u64::MAX).unwrap().after.size, 5000);
    let mut contents = [1; 5000];
    contents[1000..3000].fill(0);
    contents[4500..].fill(0);
    assert_eq!(world.read(&file).unwrap(), contents);
    world.upkeep();
    let record = world.record(&file);
    assert!(record.is_healthy());
    // A copy that misses the zeros is stale.
    let down = record.copies[0].object.server.0;
    world.servers.set_down(down, true);
    deallocate(0, 100).unwrap();
    contents[..100].fill(0);
    assert_eq!(world.read(&file).unwrap(), contents);
    assert!(!world.record(&file).is_healthy());
    // A range that takes too long is refused, and has its former bytes.
    world.truncate(&file, 300 << 20).unwrap();
    assert_eq!(deallocate(0, u64::MAX).unwrap_err(), VfsError::NotSupported);
    assert_eq!(world.read(&file).unwrap()[..5000], contents);
}

#[test]
fn allocated_bytes_are_written_to_all_copies() {
    World::each().for_each(allocated);
}

fn allocated(world: World) {
    let file = world.create("file");
    let allocate = |offset, len| world.run(|caller| world.pnfs.allocate(caller, &file, offset, len));
    // A file that stays with the metadata server.
    assert_eq!(allocate(0, 10).unwrap().after.size, 10);
    world.write(&file, 0, &[1; 5000]).unwrap();
    world.truncate(&file, 8000).unwrap();
    let changed = allocate(4000, 6000).unwrap();
    assert!(changed.after.change > changed.before.change);
    assert_eq!(changed.after.size, 10_000);
    let mut contents = vec![1; 10_000];
    contents[5000..].fill(0);
    assert_eq!(world.read(&file).unwrap(), contents);
    // A range within the file does not change the size.
    assert_eq!(allocate(100, 200).unwrap().after.size, 10_000);
    let record = world.record(&file);
    assert!(record.is_healthy());
    let copies = record.copies.len() / record.stripes.count();
    assert!(world.servers.memory() >= 6000 * copies as u64, "there are no holes in the range");
    assert_eq!(allocate(0, 300 << 20).unwrap_err(), VfsError::NotSupported);
    assert_eq!(allocate(u64::MAX, 2).unwrap_err(), VfsError::FileTooBig);
    assert_eq!(world.size(&file), 10_000);
}

#[test]
fn nobody_has_a_layout_to_write_while_space_is_allocated() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let copies = world.grant(&file, 1, LayoutMode::Write).unwrap();
    world.grant(&file, 2, LayoutMode::Read).unwrap();
    let mut allocate = world.start(|caller| world.pnfs.allocate(caller, &file, 0, 8000));
    assert!(allocate().is_pending());
    assert_eq!(world.events.recalls(), [LayoutModes::WRITE]);
    assert_eq!(world.grant(&file, 3, LayoutMode::Write), Err(VfsError::Delay));
    // The client still writes before it returns its layout.
    for (object, user) in copies {
        world.servers.client_write(object, user, 1000, &[7; 1000]).unwrap();
    }
    world.release(&file, 1, LayoutModes::WRITE);
    assert!(matches!(allocate(), Poll::Ready(Ok(_))));
    let mut contents = vec![1; 8000];
    contents[1000..2000].fill(7);
    contents[5000..].fill(0);
    assert_eq!(world.read(&file).unwrap(), contents);
    world.grant(&file, 3, LayoutMode::Write).unwrap();
}

#[test]
fn file_whose_work_was_done_by_another_operation_gets_layouts_again() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    world.upkeep();
    world.servers.ids().for_each(|server| world.servers.set_down(server, true));
    world.truncate(&file, 3000).unwrap();
    let world = world.crash();
    world.servers.ids().for_each(|server| world.servers.set_down(server, false));
    world.truncate(&file, 2000).unwrap();
    world.upkeep();
    assert_eq!(world.grant(&file, 1, LayoutMode::Write).unwrap().len(), 2);
}

#[simnet::test]
async fn changes_wait_until_requests_of_an_earlier_process_have_arrived() {
    let earlier = Earlier { requests: Duration::from_secs(1), ..Earlier::NOTHING };
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    // The earlier process may have been writing.
    let world = world.crash_before(earlier);
    assert_eq!(world.read(&file).unwrap(), [1; 5000], "reads must not wait");
    {
        let data = buf::Rope::from(bytes::Bytes::from(vec![2; 5000]));
        let stability = Stability::FileSync;
        let mut write =
            world.start(|caller| world.pnfs.write(caller, &file, 0, &data, stability, vfs::Report::Nothing));
        let mut upkeep = pin!(world.pnfs.upkeep());
        assert!(!step(upkeep.as_mut()) && write().is_pending());
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(!step(upkeep.as_mut()) && write().is_pending());
        tokio::time::advance(Duration::from_millis(1)).await;
        let _ = step(upkeep.as_mut());
        assert!(matches!(write(), Poll::Ready(Ok(_))));
        upkeep.await;
    }
    assert_eq!(world.read(&file).unwrap(), [2; 5000]);
    world.upkeep();
    // Nothing is left to do, so no request can be on its way.
    let world = world.crash_before(earlier);
    world.write(&file, 0, &[3; 5000]).unwrap();
}

/// An unstable write has made the file longer. A power failure can bring the former size back, and bytes behind it would be cut.
#[test]
fn stable_write_makes_the_size_durable_that_an_earlier_write_has_set() {
    for stability in [Stability::DataSync, Stability::FileSync] {
        for world in World::each() {
            let file = world.create("file");
            world.write(&file, 0, &[1; 2000]).unwrap();
            world.write_with(&file, 2000, &[2; 3000], Stability::Unstable).unwrap();
            assert!(world.disk.unsynced.load(Relaxed));
            world.write_with(&file, 2000, &[3; 1000], stability).unwrap();
            assert!(!world.disk.unsynced.load(Relaxed), "{stability:?}");
        }
    }
}
