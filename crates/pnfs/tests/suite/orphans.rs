//! The search for objects that no file has: it finds all of them, and no object of a file.

use std::pin::pin;

use futures_util::FutureExt;
use pnfs::{Orphans, Pnfs, ServerId, Service, record::Object};
use vfs::{Handle, Name, Report, SetAttr, Stability, Vfs, VfsError, layout::LayoutMode};

use crate::{
    servers::Servers,
    world::{World, step},
};

fn listed(pnfs: &Pnfs, servers: &Servers) -> Vec<Object> {
    let of = |server: u32| {
        let objects = pnfs.objects_on(ServerId(server)).now_or_never().expect("the data server must answer");
        objects.unwrap().into_iter().map(move |id| Object { server: ServerId(server), id })
    };
    servers.ids().flat_map(of).collect()
}

fn search(world: &World) -> Vec<Object> {
    search_in(&world.pnfs, &world.servers)
}

fn search_in(pnfs: &Pnfs, servers: &Servers) -> Vec<Object> {
    let mut orphans = Orphans::new(listed(pnfs, servers));
    pnfs.exclude_used(&mut orphans).unwrap();
    let mut orphans = orphans.objects();
    orphans.sort_unstable();
    orphans
}

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).unwrap()
}

/// Makes a file in a directory, with data on data servers.
fn file_in(world: &World, dir: &Handle, text: &str) -> Handle {
    let mode = vfs::CreateMode::Unchecked(SetAttr::default());
    let file = world.run(|caller| world.pnfs.create(caller, dir, name(text), &mode)).unwrap().handle;
    world.write(&file, 0, &[7; 3000]).unwrap();
    file
}

fn directory(world: &World, text: &str) -> Handle {
    let root = world.pnfs.root();
    world.run(|caller| world.pnfs.mkdir(caller, &root, name(text), &SetAttr::default())).unwrap().handle
}

#[test]
fn objects_of_files_that_a_program_has_removed_are_found_and_removed() {
    for world in World::each() {
        let dir = directory(&world, "dir");
        let (kept, gone) = (file_in(&world, &dir, "kept"), file_in(&world, &dir, "gone"));
        assert_eq!(search(&world), []);
        // Objects of new files stay in the queue of removals until the next round.
        world.upkeep();
        let mut expected: Vec<_> = world.record(&gone).copies.iter().map(|copy| copy.object).collect();
        expected.sort_unstable();
        world.remove_below(&dir, "gone");
        let found = search(&world);
        assert_eq!(found, expected);
        world.upkeep();
        assert_eq!(search(&world), expected, "a search alone removes nothing");
        world.pnfs.remove_orphans(&found).unwrap();
        assert_eq!(search(&world), [], "they are about to be removed");
        world.upkeep();
        assert!(found.iter().all(|object| world.servers.content(*object).is_none()));
        assert_eq!(world.read(&kept).unwrap(), [7; 3000]);
        assert!(world.record(&kept).is_healthy());
    }
}

/// The objects of all files are unknown to a new index. The search finds them by the records of the files, and adds them.
#[test]
fn files_are_found_without_the_index() {
    for world in World::each() {
        let dir = directory(&world, "dir");
        let files = [file_in(&world, &dir, "one"), file_in(&world, &world.pnfs.root(), "two")];
        let objects = world.servers.objects();
        let world = world.crash_without_index();
        let count = || world.pnfs.server_list().unwrap().iter().map(|server| server.objects).sum::<u64>();
        assert_eq!(count(), 0);
        assert_eq!(search(&world), []);
        assert_eq!(count(), objects as u64, "the index must be made again");
        // Even if an administrator demands it.
        world.pnfs.remove_orphans(&listed(&world.pnfs, &world.servers)).unwrap();
        world.upkeep();
        for file in &files {
            assert_eq!(world.read(file).unwrap(), [7; 3000]);
            assert!(world.record(file).is_healthy());
        }
    }
}

/// In each order of the directories, one file is moved from the one that is not yet read to the one that was read.
#[test]
fn file_that_is_moved_during_the_search_is_found() {
    let world = World::new();
    let dirs = ["a", "b"].map(|text| directory(&world, text));
    let files = [file_in(&world, &dirs[0], "a"), file_in(&world, &dirs[1], "b")];
    let world = world.crash_without_index();
    let (tree, [a, b]) = (world.pnfs.clone(), dirs);
    // The root, and the first directory.
    world.disk.before("readdir", 2, move || {
        let root = vfs::Cred::root();
        let caller = vfs::Caller::blocking(&root);
        for (from, to, text) in [(&a, &b, "a"), (&b, &a, "b")] {
            tree.rename(&caller, from, name(text), to, name("moved")).unwrap();
            tree.rename(&caller, to, name("moved"), to, name(text)).unwrap();
        }
    });
    assert_eq!(search(&world), []);
    assert!(world.disk.has_run());
    for file in &files {
        assert_eq!(world.read(file).unwrap(), [7; 3000]);
    }
}

#[test]
fn objects_of_changes_in_progress_are_no_orphans() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[7; 3000]).unwrap();
    // A copy is moved.
    let used = |server: u32| world.record(&file).copies.iter().any(|copy| copy.object.server.0 == server);
    let (from, to) = ((1..=3).find(|server| used(*server)).unwrap(), (1..=3).find(|server| !used(*server)).unwrap());
    world.pnfs.set_service(ServerId(from), Service::Draining).unwrap();
    world.servers.set_permits(to, Some(0));
    let (tree, servers) = (world.pnfs.clone(), world.servers.clone());
    // Before the record with the new object is stored.
    world.disk.before("set_xattr", 0, move || {
        assert_eq!(servers.objects(), 3, "the new object must be there");
        assert_eq!(search_in(&tree, &servers), []);
    });
    let mut upkeep = pin!(world.pnfs.upkeep());
    while !step(upkeep.as_mut()) {
        assert_eq!(search(&world), []);
        world.servers.add_permit(to);
    }
    assert!(world.disk.has_run());
    world.servers.set_permits(to, None);
    world.upkeep();
    assert_eq!(search(&world), []);
    // A file is about to get its first data.
    let other = world.create("other");
    for server in world.servers.ids() {
        world.servers.set_permits(server, Some(0));
    }
    let data = buf::Rope::from(bytes::Bytes::from(vec![8; 3000]));
    let (tree, of) = (world.pnfs.clone(), other.clone());
    let mut write = world.start(move |caller| tree.write(caller, &of, 0, &data, Stability::FileSync, Report::Nothing));
    let before = world.servers.objects();
    assert!(write().is_pending());
    while write().is_pending() {
        assert_eq!(search(&world), []);
        world.servers.ids().for_each(|server| world.servers.add_permit(server));
    }
    assert!(world.servers.objects() > before);
    assert_eq!(world.read(&other).unwrap(), [8; 3000]);
    // A new file without data has objects, too.
    let empty = world.create("empty");
    world.grant(&empty, 1, LayoutMode::Write).unwrap();
    assert_eq!(search(&world), []);
}

#[test]
fn nothing_is_an_orphan_while_a_record_is_damaged() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[7; 3000]).unwrap();
    let world = world.crash_without_index();
    world.damage(&file);
    let mut orphans = Orphans::new(listed(&world.pnfs, &world.servers));
    assert_eq!(world.pnfs.exclude_used(&mut orphans), Err(VfsError::Io));
}
