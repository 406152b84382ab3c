//! Data servers out of service: their copies are moved or made again, and nothing is lost.

use std::{pin::pin, sync::atomic::Ordering::Relaxed};

use pnfs::{
    ServerId, Service, SetServiceError,
    record::{CopyState, Object},
};
use vfs::{Vfs, VfsError, layout::*};

use crate::world::{World, Writes, step};

/// Returns the data servers of a file's copies, all of which must be in sync and have these bytes.
fn servers_of(world: &World, file: &vfs::Handle, contents: &[u8]) -> Vec<u32> {
    let record = world.record(file);
    assert!(record.is_healthy(), "{record:?}");
    for copy in &record.copies {
        assert!(world.servers.content(copy.object).as_deref() == Some(contents), "{:?} must be equal", copy.object);
    }
    record.copies.iter().map(|copy| copy.object.server.0).collect()
}

fn status(world: &World, server: u32) -> pnfs::ServerStatus {
    world.pnfs.server_list().unwrap().into_iter().find(|status| status.id.0 == server).unwrap()
}

fn set(world: &World, server: u32, service: Service) {
    world.pnfs.set_service(ServerId(server), service).unwrap();
}

fn spilled(world: &World, name: &str, contents: &[u8]) -> (vfs::Handle, Object) {
    let file = world.create(name);
    world.write(&file, 0, contents).unwrap();
    let object = world.record(&file).copies[0].object;
    (file, object)
}

const MIB: usize = 1 << 20;

#[test]
fn drained_data_server_has_no_objects_and_gets_none() {
    let world = World::new();
    let contents = vec![1; 5000];
    let files: Vec<_> = (0..10).map(|number| spilled(&world, &format!("file{number}"), &contents).0).collect();
    let before = status(&world, 1).objects;
    assert_eq!((before, world.pnfs.repairs().unwrap().is_done()), (world.servers.objects_on(1) as u64, true));
    set(&world, 1, Service::Draining);
    let repairs = world.pnfs.repairs().unwrap();
    assert_eq!((repairs.moves, repairs.bytes), (before, Some(before * 5000)));
    spilled(&world, "another", &contents);
    world.upkeep();
    assert_eq!((status(&world, 1).objects, world.servers.objects_on(1)), (0, 0));
    for file in &files {
        let mut servers = servers_of(&world, file, &contents);
        servers.sort_unstable();
        assert_eq!(servers, [2, 3]);
    }
    assert!(world.pnfs.repairs().unwrap().is_done());
    // It returns to service. Files get objects on it again.
    set(&world, 1, Service::Active);
    for number in 0..50 {
        spilled(&world, &format!("more{number}"), &contents);
    }
    assert_ne!(world.servers.objects_on(1), 0);
}

#[test]
fn write_during_a_move_is_never_lost() {
    let world = World::new();
    let mut contents = vec![1; 4 * MIB];
    let (file, object) = spilled(&world, "file", &contents);
    let from = object.server.0;
    let target = (1..=3).find(|server| world.record(&file).copies.iter().all(|copy| copy.object.server.0 != *server));
    let target = target.unwrap();
    set(&world, from, Service::Draining);
    // The new copy waits before each of its writes, and writes of callers begin before and after each piece of it.
    world.servers.set_permits(target, Some(0));
    let mut upkeep = Box::pin(world.pnfs.upkeep());
    let (mut writes, mut round) = (Writes::default(), 0);
    while !step(upkeep.as_mut()) {
        round += 1;
        assert!(round < 100, "the move must end");
        writes.begin(&world, &file, &mut contents, round);
        world.servers.add_permit(target);
        writes.advance();
    }
    world.servers.set_permits(target, None);
    assert_eq!(writes.advance(), 0, "all writes must be answered");
    assert!(round > 4, "writes must run during the move: {round}");
    drop(upkeep);
    world.upkeep();
    let servers = servers_of(&world, &file, &contents);
    assert!(servers.contains(&target) && !servers.contains(&from), "{servers:?}");
    assert_eq!((world.servers.objects(), status(&world, from).objects), (2, 0));
}

/// The data server from which a copy is read is restarted during the move, and loses a write that is not durable.
#[test]
fn copy_of_data_that_have_lost_a_write_is_not_used() {
    let world = World::new();
    let mut contents = vec![1; 2 * MIB];
    let (file, source) = spilled(&world, "file", &contents);
    world.upkeep();
    let record = world.record(&file);
    let from = record.copies[1].object.server.0;
    let target = (1..=3).find(|server| record.copies.iter().all(|copy| copy.object.server.0 != *server)).unwrap();
    set(&world, from, Service::Draining);
    world.servers.set_permits(target, Some(0));
    let mut upkeep = Box::pin(world.pnfs.upkeep());
    assert!(!step(upkeep.as_mut()), "the first piece must wait");
    // The write is to the second piece.
    let mut writes = Writes::default();
    writes.begin_at(&world, &file, &mut contents, (MIB + 5000, 7));
    world.servers.set_permits(target, None);
    assert_eq!(writes.advance(), 0);
    world.servers.restart(source.server.0);
    assert_ne!(world.servers.content(source).unwrap(), contents);
    step(upkeep.as_mut());
    drop(upkeep);
    world.run(|caller| Vfs::commit(&world.pnfs, caller, &file, 0, 0)).unwrap();
    world.upkeep();
    assert!(world.read(&file).unwrap() == contents[..MIB], "the first read is of one MiB");
    let servers = servers_of(&world, &file, &contents);
    assert!(!servers.contains(&from), "{servers:?}");
}

/// Checks that a striped file has two copies in sync on other data servers than `from`, with these bytes.
fn check_striped(world: &World, file: &vfs::Handle, contents: &[u8], from: u32) {
    let record = world.record(file);
    assert!(record.is_healthy() && record.copies.len() == 4, "{record:?}");
    for stripe in 0..2 {
        let servers: Vec<_> = record.copies_of(stripe).map(|copy| record.copies[copy].object.server.0).collect();
        assert!(servers[0] != servers[1] && !servers.contains(&from), "{servers:?}");
    }
    let left = world.servers.objects() - world.servers.objects_on(from);
    assert_eq!((left, status(world, from).objects), (4, 0));
    for away in (1..=5).filter(|server| *server != from) {
        world.servers.set_down(away, true);
        assert!(world.read(file).unwrap() == contents, "each copy must have the bytes: {away}");
        world.servers.set_down(away, false);
    }
    world.upkeep();
}

/// Every object of a striped file is moved once. The process ends during some of the moves.
#[test]
fn objects_of_striped_files_are_moved() {
    for permits in [0, 1, 3, 20] {
        let mut world = World::with(pnfs::Stripes::new(100_000, 2).unwrap(), 5);
        let mut contents: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 1000) as u8).collect();
        let (file, _) = spilled(&world, "file", &contents);
        for from in 1..=5 {
            set(&world, from, Service::Draining);
            (1..=5).for_each(|server| world.servers.set_permits(server, Some(permits)));
            {
                let mut upkeep = pin!(world.pnfs.upkeep());
                let ended = step(upkeep.as_mut());
                assert!(ended || permits < 20);
            }
            (1..=5).for_each(|server| world.servers.set_permits(server, None));
            world = world.crash();
            let at = from as usize * 150_000;
            contents[at..at + 120_000].fill(from as u8);
            world.write(&file, at as u64, &contents[at..at + 120_000]).unwrap();
            world.upkeep();
            check_striped(&world, &file, &contents, from);
            set(&world, from, Service::Active);
        }
    }
}

#[test]
fn lost_stripes_are_made_elsewhere_and_the_last_one_is_reported() {
    let world = World::with(pnfs::Stripes::new(100_000, 2).unwrap(), 5);
    let contents: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 1000) as u8).collect();
    let (file, object) = spilled(&world, "file", &contents);
    let lost = object.server.0;
    set(&world, lost, Service::Lost);
    world.upkeep();
    check_striped(&world, &file, &contents, lost);
    // Both copies of one stripe are lost, and the other stripe is still there.
    let record = world.record(&file);
    let servers: Vec<_> = record.copies_of(1).map(|copy| record.copies[copy].object.server.0).collect();
    servers.iter().for_each(|server| set(&world, *server, Service::Lost));
    world.upkeep();
    assert_eq!(servers.iter().map(|server| status(&world, *server).lost).sum::<u64>(), 1);
    assert_eq!((world.pnfs.repairs().unwrap().lost, world.read(&file).unwrap_err()), (1, VfsError::Io));
}

#[test]
fn interrupted_move_continues_after_a_crash_and_leaves_no_object() {
    for permits in 0..5 {
        let mut world = World::new();
        let contents = vec![7; 3 * MIB];
        let (file, object) = spilled(&world, "file", &contents);
        let from = object.server.0;
        set(&world, from, Service::Draining);
        (1..=3).filter(|server| *server != from).for_each(|server| world.servers.set_permits(server, Some(permits)));
        {
            let mut upkeep = pin!(world.pnfs.upkeep());
            let ended = step(upkeep.as_mut());
            assert_eq!(ended, permits > 2, "{permits}");
            let copying = world.record(&file).copies.iter().any(|copy| copy.state == CopyState::Copying);
            assert_eq!(copying, !ended, "{permits}");
        }
        world = world.crash();
        (1..=3).for_each(|server| world.servers.set_permits(server, None));
        assert_eq!(status(&world, from).service, Service::Draining, "the state must be durable");
        assert_eq!(world.read(&file).unwrap().len(), MIB);
        world.upkeep();
        let servers = servers_of(&world, &file, &contents);
        assert!(servers.len() == 2 && !servers.contains(&from), "{servers:?}");
        assert_eq!((world.servers.objects(), status(&world, from).objects), (2, 0), "{permits}");
    }
}

#[test]
fn file_that_is_removed_during_a_move_leaves_no_object() {
    let world = World::new();
    let (_, object) = spilled(&world, "file", &[7; 3 * MIB]);
    let from = object.server.0;
    set(&world, from, Service::Draining);
    (1..=3).for_each(|server| world.servers.set_permits(server, Some(1)));
    let mut upkeep = Box::pin(world.pnfs.upkeep());
    assert!(!step(upkeep.as_mut()));
    let (root, name) = (vfs::Vfs::root(&world.pnfs), vfs::Name::new(b"file").unwrap());
    world.run(|caller| vfs::Vfs::remove(&world.pnfs, caller, &root, name)).unwrap();
    (1..=3).for_each(|server| world.servers.set_permits(server, None));
    assert!(step(upkeep.as_mut()));
    world.upkeep();
    assert_eq!((world.servers.objects(), status(&world, from).objects), (0, 0));
    assert!(world.pnfs.repairs().unwrap().is_done());
}

#[test]
fn failed_move_is_undone_and_repeated() {
    let world = World::new();
    let contents = vec![7; 5000];
    let (file, object) = spilled(&world, "file", &contents);
    let from = object.server.0;
    (1..=3).filter(|server| *server != from).for_each(|server| world.servers.set_full(server, true));
    set(&world, from, Service::Draining);
    world.upkeep();
    assert_eq!(world.record(&file).copies.len(), 2);
    assert_eq!(status(&world, from).unmovable, Some((1, VfsError::NoSpace)));
    assert_eq!((servers_of(&world, &file, &contents)[0], world.servers.objects()), (from, 2));
    (1..=3).for_each(|server| world.servers.set_full(server, false));
    world.upkeep();
    assert!(!servers_of(&world, &file, &contents).contains(&from));
    assert_eq!(world.servers.objects(), 2);
}

#[test]
fn drained_data_server_that_is_away_is_replaced() {
    let world = World::new();
    let contents = vec![7; 5000];
    let (file, object) = spilled(&world, "file", &contents);
    world.servers.set_down(object.server.0, true);
    set(&world, object.server.0, Service::Draining);
    world.upkeep();
    assert!(!servers_of(&world, &file, &contents).contains(&object.server.0));
    assert_eq!(status(&world, object.server.0).objects, 0, "nothing refers to it any more");
    // Its former object is removed when it returns.
    world.servers.set_down(object.server.0, false);
    world.upkeep();
    assert_eq!(world.servers.objects(), 2);
}

#[test]
fn layouts_are_recalled_for_a_move() {
    let world = World::new();
    let (file, object) = spilled(&world, "file", &[1; 5000]);
    let copies = world.grant(&file, 1, LayoutMode::Write).unwrap();
    world.grant(&file, 2, LayoutMode::Read).unwrap();
    set(&world, object.server.0, Service::Draining);
    let mut upkeep = Box::pin(world.pnfs.upkeep());
    assert!(!step(upkeep.as_mut()), "the client can still write to the former copies only");
    assert_eq!(world.events.recalls(), [LayoutModes::WRITE]);
    for (object, user) in &copies {
        world.servers.client_write(*object, *user, 100, &[9; 50]).unwrap();
    }
    world.release(&file, 1, LayoutModes::ALL);
    assert!(!step(upkeep.as_mut()), "a client can still read the former object");
    assert_eq!(world.events.recalls(), [LayoutModes::READ]);
    assert!(world.servers.content(object).is_some());
    world.release(&file, 2, LayoutModes::ALL);
    assert!(step(upkeep.as_mut()));
    let mut contents = [1; 5000];
    contents[100..150].fill(9);
    assert!(!servers_of(&world, &file, &contents).contains(&object.server.0));
    assert_eq!(world.servers.content(object), None);
    assert!(world.grant(&file, 3, LayoutMode::Write).unwrap().iter().all(|(copy, _)| copy.server != object.server));
}

/// The move is complete in the record, and not in the index.
#[test]
fn copy_that_was_moved_is_not_removed_when_it_becomes_stale() {
    let world = World::new();
    let (file, object) = spilled(&world, "file", &[1; 5000]);
    world.grant(&file, 1, LayoutMode::Read).unwrap();
    set(&world, object.server.0, Service::Draining);
    let mut upkeep = Box::pin(world.pnfs.upkeep());
    assert!(!step(upkeep.as_mut()), "a client can still read the former object");
    let moved = world.record(&file).copies[0].object;
    assert_ne!(moved, object);
    world.servers.set_down(moved.server.0, true);
    let write = |caller: &vfs::Caller<'_>| {
        let (data, report) = (buf::Rope::from(bytes::Bytes::from_static(&[9; 10])), vfs::Report::Nothing);
        vfs::Vfs::write(&world.pnfs, caller, &file, 0, &data, vfs::Stability::FileSync, report)
    };
    assert!(world.start(write)().is_pending(), "the client can still read the former object");
    assert!(!world.record(&file).is_healthy());
    drop(upkeep);
    let world = world.crash();
    world.servers.set_down(moved.server.0, false);
    world.upkeep();
    let contents = [&[9; 10], &[1; 4990][..]].concat();
    assert_eq!(servers_of(&world, &file, &contents).len(), 2);
    assert_eq!(world.servers.objects(), 2, "the former objects must be removed");
}

#[test]
fn move_that_cannot_be_undone_at_once_leaves_no_copy() {
    let world = World::new();
    let contents = [1; 5000];
    let (file, object) = spilled(&world, "file", &contents);
    let other = world.record(&file).copies[1].object;
    world.grant(&file, 1, LayoutMode::Read).unwrap();
    set(&world, object.server.0, Service::Draining);
    // The record with the additional copy cannot be stored durably, and then not read.
    world.disk.failing.store(2, Relaxed);
    {
        let mut upkeep = Box::pin(world.pnfs.upkeep());
        assert!(step(upkeep.as_mut()));
    }
    assert_eq!(world.record(&file).copies.len(), 3);
    // Another copy becomes stale, and the move still cannot be undone when the next round begins.
    world.release(&file, 1, LayoutModes::ALL);
    world.servers.set_down(other.server.0, true);
    world.write(&file, 0, &[1; 10]).unwrap();
    world.servers.set_down(other.server.0, false);
    world.disk.refusing.store(1, Relaxed);
    world.upkeep();
    assert_eq!(servers_of(&world, &file, &contents).len(), 2);
    assert_eq!(world.servers.objects(), 2);
}

/// Writes go to the new copy only. If a power failure took the record back, the former copy would be in sync without them.
#[test]
fn end_of_a_move_in_an_earlier_process_is_durable_before_the_file_is_used() {
    let mut world = World::new();
    let contents = [7; 5000];
    let (file, object) = spilled(&world, "file", &contents);
    // No other work is left for the file.
    world.upkeep();
    world.upkeep();
    set(&world, object.server.0, Service::Draining);
    world.servers.ids().for_each(|server| world.servers.set_permits(server, Some(0)));
    {
        let mut upkeep = pin!(world.pnfs.upkeep());
        assert!(!step(upkeep.as_mut()));
        // From now on, the metadata server cannot make anything durable.
        world.disk.failing.store(u32::MAX, Relaxed);
        world.servers.ids().for_each(|server| world.servers.set_permits(server, None));
        let _ = step(upkeep.as_mut());
    }
    world = world.crash();
    world.disk.failing.store(0, Relaxed);
    assert!(world.record(&file).copies.iter().all(|copy| copy.object != object), "the move must have ended");
    assert!(world.disk.unsynced.load(Relaxed));
    assert_eq!(world.read(&file).unwrap(), contents);
    assert!(!world.disk.unsynced.load(Relaxed));
    world.upkeep();
    assert_eq!((servers_of(&world, &file, &contents).len(), world.servers.objects()), (2, 2));
}

#[test]
fn lost_data_server_is_replaced_without_contact() {
    let world = World::new();
    let contents = vec![7; 5000];
    let (file, object) = spilled(&world, "file", &contents);
    let lost = object.server.0;
    let contacts = world.servers.contacts(lost);
    set(&world, lost, Service::Lost);
    // A write before the upkeep has examined the object.
    world.write(&file, 0, &[8; 10]).unwrap();
    let world = world.crash();
    spilled(&world, "another", &contents);
    world.upkeep();
    let contents = [&[8; 10], &contents[10..]].concat();
    assert!(!servers_of(&world, &file, &contents).contains(&lost));
    let (status, repairs) = (status(&world, lost), world.pnfs.repairs().unwrap());
    assert_eq!((status.service, status.examined, status.objects, status.lost), (Service::Lost, true, 0, 0));
    assert!(repairs.is_done() && repairs.lost == 0, "{repairs:?}");
    assert_eq!(world.servers.contacts(lost), contacts, "nothing must be sent to a lost data server");
    // The decision was wrong: what is left there is removed.
    set(&world, lost, Service::Active);
    world.upkeep();
    assert_eq!(world.servers.objects_on(lost), 0);
}

#[test]
fn last_copy_is_reported_and_kept() {
    let world = World::new();
    let contents = vec![7; 5000];
    let (file, last) = spilled(&world, "file", &contents);
    let other = world.record(&file).copies[1].object;
    // The other copy is stale, and is not made again before the last one is lost.
    world.servers.set_down(other.server.0, true);
    world.write(&file, 0, &[8; 5000]).unwrap();
    set(&world, last.server.0, Service::Lost);
    world.servers.set_down(other.server.0, false);
    world.upkeep();
    let lost = status(&world, last.server.0);
    let number = world.run(|caller| vfs::Vfs::getattr(&world.pnfs, caller, &file)).unwrap().fileid;
    assert_eq!((lost.lost, lost.lost_files), (1, vec![number]));
    let repairs = world.pnfs.repairs().unwrap();
    assert!(repairs.lost == 1 && repairs.is_done(), "{repairs:?}");
    assert_eq!(world.read(&file).unwrap_err(), VfsError::Io, "the stale copy must not be read");
    let states: Vec<_> =
        world.record(&file).copies.iter().map(|copy| (copy.object.id == last.id, copy.state)).collect();
    assert!(states.contains(&(true, CopyState::InSync)), "{states:?}");
    // The data server is found again.
    set(&world, last.server.0, Service::Active);
    world.upkeep();
    servers_of(&world, &file, &[8; 5000]);
}

#[test]
fn files_written_while_too_few_data_servers_are_left_get_their_copies_later() {
    let world = World::new();
    let contents = vec![7; 5000];
    set(&world, 1, Service::Lost);
    set(&world, 2, Service::Lost);
    let (file, _) = spilled(&world, "file", &contents);
    let record = world.record(&file);
    let in_sync: Vec<_> = record.in_sync().map(|copy| record.copies[copy].object.server.0).collect();
    assert_eq!((in_sync, record.copies.len()), (vec![3], 2));
    world.upkeep();
    assert_eq!(world.pnfs.repairs().unwrap().copies, 1);
    set(&world, 1, Service::Active);
    world.upkeep();
    let mut servers = servers_of(&world, &file, &contents);
    servers.sort_unstable();
    assert_eq!(servers, [1, 3]);
}

#[test]
fn wrong_decisions_are_refused() {
    let world = World::new();
    let set = |server, service| world.pnfs.set_service(ServerId(server), service);
    assert_eq!(set(9, Service::Lost), Err(SetServiceError::Unknown));
    assert_eq!(set(1, Service::Draining), Ok(()));
    assert_eq!(set(2, Service::Draining), Err(SetServiceError::TooFew { left: 1, needed: 2 }));
    assert_eq!(set(1, Service::Lost), Ok(()));
    assert_eq!(set(1, Service::Draining), Err(SetServiceError::Lost));
    assert_eq!(set(1, Service::Active), Ok(()));
}
