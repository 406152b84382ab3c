//! The scan of all records after the index was lost: what it had known is known again, and nothing is concluded before.

use std::pin::pin;

use pnfs::{Index, ServerId, Service, record::Object};
use redb::{Builder, ReadableDatabase, ReadableTableMetadata, TableDefinition};
use vfs::{Handle, Name, SetAttr, Vfs, VfsError, layout::LayoutMode};

use crate::{
    servers::Storage,
    world::{World, step},
};

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).unwrap()
}

fn objects_on(world: &World, server: u32) -> u64 {
    world.pnfs.server_list().unwrap().into_iter().find(|status| status.id.0 == server).unwrap().objects
}

fn objects(world: &World) -> u64 {
    world.pnfs.server_list().unwrap().iter().map(|status| status.objects).sum()
}

/// Executes one round of the upkeep.
fn round(world: &World) {
    assert!(step(pin!(world.pnfs.upkeep())), "the upkeep must not wait");
}

/// Executes the upkeep until the scan and all other work have ended. Returns the number of rounds of the scan.
fn finish(world: &World) -> usize {
    let mut rounds = 0;
    while world.pnfs.scan_status().is_some() {
        rounds += 1;
        assert!(rounds < 100, "the scan must end");
        round(world);
    }
    world.upkeep();
    rounds
}

/// Makes directories, more than one round of the scan reads.
fn directories(world: &World) -> Vec<Handle> {
    let root = world.pnfs.root();
    let make = |number: usize| {
        let text = format!("dir{number}");
        world.run(|caller| world.pnfs.mkdir(caller, &root, name(&text), &SetAttr::default())).unwrap().handle
    };
    (0..40).map(make).collect()
}

fn file_in(world: &World, dir: &Handle, text: &str) -> Handle {
    let mode = vfs::CreateMode::Unchecked(SetAttr::default());
    let file = world.run(|caller| world.pnfs.create(caller, dir, name(text), &mode)).unwrap().handle;
    world.write(&file, 0, &[7; 3000]).unwrap();
    file
}

#[test]
fn drain_waits_until_all_records_were_read_and_moves_the_only_copy() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let [stale, last] = [0, 1].map(|copy| world.record(&file).copies[copy].object.server);
    world.servers.set_down(stale.0, true);
    world.write(&file, 0, &[2; 5000]).unwrap();
    let world = world.crash_without_index();
    world.servers.set_down(stale.0, false);
    assert!(world.pnfs.scan_status().is_some());
    world.pnfs.set_service(last, Service::Draining).unwrap();
    // The index has no object, which is no answer.
    assert_eq!(objects_on(&world, last.0), 0);
    assert!(!world.pnfs.repairs().unwrap().is_done(), "the only copy with all data is there");
    assert_eq!(world.pnfs.plan_rebalance(), Err(VfsError::Delay));
    finish(&world);
    assert!(world.pnfs.repairs().unwrap().is_done());
    let record = world.record(&file);
    assert!(record.is_healthy() && record.copies.iter().all(|copy| copy.object.server != last), "{record:?}");
    assert_eq!((objects_on(&world, last.0), world.servers.objects_on(last.0)), (0, 0));
    world.servers.set_down(last.0, true);
    assert_eq!(world.read(&file).unwrap(), [2; 5000]);
}

#[test]
fn stale_copies_are_made_again() {
    for world in World::each() {
        let file = world.create("file");
        world.write(&file, 0, &[1; 5000]).unwrap();
        let away = world.record(&file).copies[0].object.server.0;
        world.servers.set_down(away, true);
        world.write(&file, 0, &[2; 5000]).unwrap();
        let world = world.crash_without_index();
        world.servers.set_down(away, false);
        finish(&world);
        let record = world.record(&file);
        assert!(record.is_healthy(), "{record:?}");
        assert_eq!(objects(&world), record.copies.len() as u64);
        assert_eq!(world.read(&file).unwrap(), [2; 5000]);
    }
}

/// Copies can differ, and a client can have written with a layout, also if the file is used before the scan reads its record.
#[test]
fn clients_of_an_earlier_process_are_locked_out_and_copies_are_compared() {
    for used in [false, true] {
        let world = World::new();
        let file = world.create("file");
        world.write(&file, 0, &[1; 5000]).unwrap();
        let layout = world.grant_striped(&file, 1, LayoutMode::Write).unwrap();
        // It writes to one copy only, and beyond the end.
        assert_eq!(world.client_write_mirror(layout.unit, &layout.mirrors[1], 0, &[3; 6000]), 0);
        let world = world.crash_without_index();
        if used {
            world.read(&file).unwrap();
            assert!(world.pnfs.file_status(b"file").unwrap().unequal, "only one copy may be read");
            assert_eq!(world.grant(&file, 2, LayoutMode::Read), Err(VfsError::NotSupported));
        }
        finish(&world);
        assert_eq!(world.size(&file), 6000, "{used}: the client has written beyond the end");
        assert_eq!(world.client_write(&layout, 0, &[4; 10]), 2, "{used}: the client must be locked out");
        let record = world.record(&file);
        let contents: Vec<_> = record.copies.iter().map(|copy| world.servers.content(copy.object)).collect();
        assert!(record.is_healthy() && contents[0] == contents[1], "{used}: the copies must be equal");
        assert_eq!(world.grant(&file, 2, LayoutMode::Write).unwrap().len(), 2);
    }
}

#[test]
fn clients_of_this_process_are_not_locked_out_by_the_scan() {
    let world = World::new();
    world.create("former");
    let world = world.crash_without_index();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let layout = world.grant_striped(&file, 1, LayoutMode::Write).unwrap();
    finish(&world);
    assert_eq!(world.client_write(&layout, 0, &[2; 5000]), 0);
    assert_eq!(world.events.recalls(), []);
}

#[test]
fn scan_that_is_interrupted_begins_again_and_its_end_is_durable() {
    let world = World::new();
    let dirs = directories(&world);
    let files: Vec<_> = dirs.iter().map(|dir| file_in(&world, dir, "file")).collect();
    let mut world = world.crash_without_index();
    for _ in 0..2 {
        round(&world);
        assert!(world.pnfs.scan_status().unwrap().files < files.len() as u64);
        world = world.crash();
    }
    assert!(finish(&world) > 1);
    assert_eq!(objects(&world), 2 * files.len() as u64);
    let world = world.crash();
    assert_eq!(world.pnfs.scan_status(), None);
    // A tree without files needs no scan.
    assert_eq!(World::new().pnfs.scan_status(), None);
}

#[test]
fn objects_of_a_file_with_another_name_are_not_removed_during_the_scan() {
    let world = World::new();
    let dirs = directories(&world);
    let file = file_in(&world, &dirs[0], "one");
    world.run(|caller| world.pnfs.link(caller, &file, &dirs[0], name("two"))).unwrap();
    let gone = file_in(&world, &dirs[0], "gone");
    let world = world.crash_without_index();
    for text in ["one", "gone"] {
        world.run(|caller| world.pnfs.remove(caller, &dirs[0], name(text))).unwrap();
    }
    round(&world);
    assert_eq!(world.pnfs.scan_status().unwrap().files, 0, "the scan must not have found the files yet");
    assert_eq!(world.read(&file).unwrap(), [7; 3000]);
    finish(&world);
    assert_eq!(world.read(&file).unwrap(), [7; 3000]);
    assert_eq!(world.servers.objects(), 2, "the objects of the other file must be removed");
    assert!(world.run(|caller| world.pnfs.getattr(caller, &gone)).is_err());
}

#[test]
fn what_is_moved_during_the_scan_is_found() {
    let world = World::new();
    let (root, dirs) = (world.pnfs.root(), directories(&world));
    let moved = file_in(&world, &dirs[0], "moved");
    let linked = file_in(&world, &dirs[1], "linked");
    let below = file_in(&world, &dirs[2], "below");
    let world = world.crash_without_index();
    round(&world);
    assert_eq!(world.pnfs.scan_status().unwrap().files, 0, "the scan must not have found the files yet");
    // The last directories were read.
    let read = &dirs[39];
    world.run(|caller| world.pnfs.rename(caller, &dirs[0], name("moved"), read, name("moved"))).unwrap();
    world.run(|caller| world.pnfs.link(caller, &linked, read, name("linked"))).unwrap();
    world.run(|caller| world.pnfs.remove(caller, &dirs[1], name("linked"))).unwrap();
    world.run(|caller| world.pnfs.rename(caller, &root, name("dir2"), read, name("dir2"))).unwrap();
    finish(&world);
    assert_eq!(objects(&world), 6);
    for file in [moved, linked, below] {
        assert_eq!(world.read(&file).unwrap(), [7; 3000]);
    }
}

#[test]
fn scan_does_not_end_while_a_record_is_damaged() {
    let world = World::new();
    let (file, other) = (world.create("file"), world.create("other"));
    for file in [&file, &other] {
        world.write(file, 0, &[7; 3000]).unwrap();
    }
    let Object { server, .. } = world.record(&other).copies[0].object;
    world.damage(&file);
    let world = world.crash_without_index();
    world.pnfs.set_service(server, Service::Lost).unwrap();
    world.upkeep();
    let status = world.pnfs.scan_status().unwrap();
    assert_eq!((status.files, status.failed), (1, Some((1, VfsError::Io))));
    let lost = world.pnfs.server_list().unwrap().into_iter().find(|status| status.id == server).unwrap();
    assert!(!lost.examined && !world.pnfs.repairs().unwrap().is_done(), "the file may have had its last copy there");
    assert_eq!(world.read(&other).unwrap(), [7; 3000]);
}

/// An index of an earlier version did not say that it is complete.
#[test]
fn index_of_an_earlier_version_is_complete() {
    let storage = Storage::default();
    let database = Builder::new().create_with_backend(storage.clone()).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(TableDefinition::<(u32, u128), &[u8]>::new("objects")).unwrap();
    transaction.commit().unwrap();
    drop(database);
    assert!(Index::with_backend(storage.clone()).unwrap().is_complete().unwrap());
    assert!(Index::with_backend(storage).unwrap().is_complete().unwrap());
    assert!(!Index::with_backend(Storage::default()).unwrap().is_complete().unwrap());
}

/// Earlier versions use these tables, and do not know the table of first objects.
const FORMER_NEW: TableDefinition<'_, &[u8], Vec<(u32, u128)>> = TableDefinition::new("new objects");
const FORMER_COMPLETE: TableDefinition<'_, (), ()> = TableDefinition::new("complete");

#[test]
fn new_objects_of_an_earlier_version_are_examined() {
    let storage = Storage::default();
    let (file, object) = (Handle::new(b"file"), Object { server: ServerId(1), id: 7 });
    let database = Builder::new().create_with_backend(storage.clone()).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(FORMER_COMPLETE).unwrap().insert((), ()).unwrap();
    transaction.open_table(FORMER_NEW).unwrap().insert(file.as_bytes(), vec![(1, 7)]).unwrap();
    transaction.commit().unwrap();
    drop(database);
    for _ in 0..2 {
        let index = Index::with_backend(storage.clone()).unwrap();
        assert!(index.is_complete().unwrap());
        assert_eq!(index.removals(&[object.server]).unwrap(), [(object, Some(file.clone()))]);
        assert_eq!(index.objects_on(object.server, None, 2).unwrap(), [(object, file.clone())]);
    }
}

/// An earlier version that opens the database finds no new objects without a file, and reads all records.
#[test]
fn earlier_version_reads_all_records() {
    let mut storage = Storage::default();
    let index = Index::with_backend(storage.clone()).unwrap();
    index.set_complete().unwrap();
    let (file, object) = (Handle::new(b"file"), Object { server: ServerId(1), id: 7 });
    index.begin_new(&[object], &file, 0).unwrap();
    storage.crash();
    drop(index);
    let database = Builder::new().create_with_backend(storage.clone()).unwrap();
    let transaction = database.begin_read().unwrap();
    assert!(transaction.open_table(FORMER_NEW).unwrap().is_empty().unwrap());
    assert!(transaction.open_table(FORMER_COMPLETE).unwrap().is_empty().unwrap());
    drop((transaction, database));
    let index = Index::with_backend(storage).unwrap();
    assert!(index.is_complete().unwrap());
    assert_eq!(index.objects_on(object.server, None, 2).unwrap(), [(object, file)]);
}
