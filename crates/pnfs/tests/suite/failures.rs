//! Data servers that fail while this server writes, and crashes of this server.

use pnfs::Index;
use vfs::{Handle, Name, Stability, Vfs, VfsError};

use crate::world::World;

fn write_unstable(world: &World, file: &Handle, value: u8) {
    let data = buf::Rope::from(bytes::Bytes::from(vec![value; 5000]));
    let report = vfs::Report::Nothing;
    world.run(|caller| world.pnfs.write(caller, file, 0, &data, Stability::Unstable, report)).unwrap();
}

#[test]
fn stale_copy_is_never_read_and_is_made_again() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let copies = world.record(&file).copies;
    for at in [0, 1] {
        let (bad, other) = (copies[at].object.server.0, copies[1 - at].object.server.0);
        world.servers.set_down(bad, true);
        let data = [at as u8 + 2; 3000];
        world.write(&file, 1000, &data).unwrap();
        world.servers.set_down(bad, false);
        // The data server answers again, and has the former data.
        assert_eq!(world.read(&file).unwrap()[1000..4000], data);
        world.servers.set_down(other, true);
        assert_eq!(world.read(&file).unwrap_err(), VfsError::Io, "there is no copy with all data");
        assert_eq!(world.write(&file, 0, &[9; 10]).unwrap_err(), VfsError::Io);
        world.servers.set_down(other, false);
        world.upkeep();
        world.servers.set_down(other, true);
        assert_eq!(world.read(&file).unwrap()[1000..4000], data, "the new copy must have the data");
        world.servers.set_down(other, false);
        world.upkeep();
    }
    assert_eq!(world.servers.objects(), 2, "no former object must be left");
}

#[test]
fn full_data_server_is_left_out_and_the_last_one_reports_it() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let [first, second] = [0, 1].map(|at| world.record(&file).copies[at].object.server.0);
    world.servers.set_full(first, true);
    world.write(&file, 0, &[2; 5000]).unwrap();
    assert!(!world.record(&file).is_healthy());
    world.servers.set_full(second, true);
    assert_eq!(world.write(&file, 0, &[3; 5000]).unwrap_err(), VfsError::NoSpace);
}

#[test]
fn copy_that_lost_unstable_writes_is_stale_after_commit() {
    let world = World::new();
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
    (1..=3).for_each(|server| world.servers.restart(server));
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
    index.set_work(&file, pnfs::index::DIRTY).unwrap();
    assert!(Index::open(&path).is_err(), "two processes must not use one index");
    drop(index);
    assert_eq!(Index::open(&path).unwrap().work().unwrap()[&file], pnfs::index::DIRTY);
}

#[test]
fn lost_objects_are_made_again() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let lost = world.record(&file).copies[0].object.server.0;
    world.servers.wipe(lost);
    assert_eq!(world.read(&file).unwrap(), [1; 5000]);
    world.write(&file, 0, &[2; 10]).unwrap();
    world.upkeep();
    assert!(world.record(&file).is_healthy());
    assert_eq!(world.servers.objects(), 2);
}

#[test]
fn objects_of_removed_files_are_removed_after_a_crash_too() {
    let world = World::new();
    for name in ["one", "two"] {
        world.write(&world.create(name), 0, &[1; 5000]).unwrap();
    }
    let root = world.pnfs.root();
    let remove = |world: &World, name: &str| {
        let name = Name::new(name.as_bytes()).unwrap();
        world.run(|caller| world.pnfs.remove(caller, &root, name)).unwrap();
    };
    (1..=3).for_each(|server| world.servers.set_down(server, true));
    remove(&world, "one");
    world.upkeep();
    assert_eq!(world.servers.objects(), 4);
    let world = world.crash();
    (1..=3).for_each(|server| world.servers.set_down(server, false));
    world.upkeep();
    assert_eq!(world.servers.objects(), 2);
    remove(&world, "two");
    world.upkeep();
    assert_eq!(world.servers.objects(), 0);
}

#[test]
fn holes_are_not_copied_to_data_servers() {
    let world = World::new();
    let file = world.create("file");
    world.truncate(&file, 1 << 40).unwrap();
    world.write(&file, 1 << 39, b"data").unwrap();
    assert_eq!(world.size(&file), 1 << 40);
    assert!(world.servers.memory() < 1 << 20, "{}", world.servers.memory());
}
