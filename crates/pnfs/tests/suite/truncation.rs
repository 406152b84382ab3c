//! Truncations by a client that keeps its layout to write, as Linux does.

use std::{sync::atomic::Ordering::Relaxed, task::Poll};

use buf::Rope;
use vfs::{
    Caller, Handle, Layouts, Report, SetAttr, Stability, Time, Vfs, VfsError,
    layout::{LayoutCommit, LayoutHolder, LayoutMode::Write, LayoutModes, LayoutRange},
};

use crate::world::{Striped, World};

/// A file to which a client has written 3000 bytes with its layout. The client has not committed them.
fn written(world: &World) -> (Handle, Striped) {
    let file = world.create("file");
    let layout = world.grant_striped(&file, 1, Write).unwrap();
    assert_eq!(world.client_write(&layout, 0, &[1; 3000]), 0);
    (file, layout)
}

/// Checks that the file and all copies have `kept` bytes of the client and zeros behind them, when the file has grown again.
fn check_cut(world: &World, file: &Handle, kept: usize) {
    truncate_again(world, file, 4000);
    let expected = [vec![1; kept], vec![0; 4000 - kept]].concat();
    assert!(world.read(file).unwrap() == expected);
    let record = world.record(file);
    for piece in record.stripes.pieces(0..4000) {
        let range = piece.range.start as usize..piece.range.end as usize;
        for copy in record.copies_of(piece.stripe) {
            let content = world.servers.content(record.copies[copy].object).unwrap();
            assert!(content[range.clone()] == expected[range.clone()], "copy {copy}");
        }
    }
}

/// Sets the size. If an earlier truncation may not have reached the objects, client 1 returns its layout to write first.
fn truncate_again(world: &World, file: &Handle, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    let mut truncation = world.start(|caller: &Caller<'_>| world.pnfs.setattr(caller, file, &set, None));
    world.events.recalls();
    if truncation().is_pending() {
        assert!(world.events.recalls().iter().any(|modes| modes.write));
        world.release(file, 1, LayoutModes::WRITE);
        assert!(matches!(truncation(), Poll::Ready(Ok(_))));
    }
}

#[test]
fn writes_after_a_truncation_that_has_failed_survive_the_next_one() {
    for world in World::each() {
        let (file, layout) = written(&world);
        world.servers.ids().for_each(|server| world.servers.set_down(server, true));
        assert_eq!(world.truncate(&file, 0).unwrap_err(), VfsError::Io);
        world.servers.ids().for_each(|server| world.servers.set_down(server, false));
        // The client still has its layout.
        assert_eq!(world.client_write(&layout, 1000, &[2; 1000]), 0);
        let set = SetAttr { size: Some(2500), ..SetAttr::default() };
        let mut truncation = world.start(|caller: &Caller<'_>| world.pnfs.setattr(caller, &file, &set, None));
        world.events.recalls();
        assert!(truncation().is_pending(), "the objects must not be cut before the client has committed its writes");
        assert!(world.events.recalls().iter().any(|modes| modes.write));
        world.commit(&file, 1, 2000);
        world.release(&file, 1, LayoutModes::WRITE);
        assert!(matches!(truncation(), Poll::Ready(Ok(_))));
        let read = world.read(&file).unwrap();
        assert_eq!((read.len(), &read[1000..2000], &read[2000..]), (2500, &[2; 1000][..], &[0; 500][..]));
    }
}

#[test]
fn layout_commit_during_a_truncation_does_not_undo_it() {
    for world in World::each() {
        let (file, _) = written(&world);
        world.servers.ids().for_each(|server| world.servers.hold_sizes(server, true));
        let set = SetAttr { size: Some(10), ..SetAttr::default() };
        let mut truncation = world.start(|caller: &Caller<'_>| world.pnfs.setattr(caller, &file, &set, None));
        assert!(truncation().is_pending());
        // The client has sent this before it knew that the truncation was done.
        world.commit(&file, 1, 3000);
        world.servers.ids().for_each(|server| world.servers.hold_sizes(server, false));
        assert!(matches!(truncation(), Poll::Ready(Ok(_))));
        assert_eq!(world.size(&file), 10);
        check_cut(&world, &file, 10);
    }
}

#[test]
fn layout_commit_after_a_truncation_gives_the_file_only_the_size_of_later_writes() {
    for world in World::each() {
        let (file, layout) = written(&world);
        world.truncate(&file, 10).unwrap();
        world.commit(&file, 1, 3000);
        assert_eq!(world.size(&file), 10, "the client has named a byte of before the truncation");
        check_cut(&world, &file, 10);
        world.truncate(&file, 10).unwrap();
        assert_eq!(world.client_write(&layout, 500, &[1; 1500]), 0);
        world.commit(&file, 1, 3000);
        assert_eq!(world.size(&file), 2000);
        // With its next layout, the client cannot commit writes of before.
        world.release(&file, 1, LayoutModes::WRITE);
        world.grant_striped(&file, 1, Write).unwrap();
        let contacts: Vec<_> = world.servers.ids().map(|server| world.servers.contacts(server)).collect();
        world.commit(&file, 1, 2000);
        assert_eq!(contacts, world.servers.ids().map(|server| world.servers.contacts(server)).collect::<Vec<_>>());
    }
}

#[test]
fn layout_commit_of_a_layout_of_before_a_restart_does_not_undo_a_truncation() {
    for world in World::each() {
        let (file, _) = written(&world);
        world.truncate(&file, 10).unwrap();
        let world = world.crash();
        let commit = LayoutCommit { range: LayoutRange::ALL, size: Some(3000), mtime: None };
        world.run(|caller| Layouts::commit(&world.pnfs, caller, &file, None, &commit)).unwrap();
        assert_eq!(world.size(&file), 10);
    }
}

#[test]
fn layout_commit_of_a_layout_of_before_a_restart_gives_the_file_its_size() {
    for world in World::each() {
        let (file, _) = written(&world);
        let world = world.crash();
        let commit = LayoutCommit { range: LayoutRange::ALL, size: Some(3000), mtime: None };
        world.run(|caller| Layouts::commit(&world.pnfs, caller, &file, None, &commit)).unwrap();
        assert_eq!(world.size(&file), 3000);
    }
}

/// The sizes of the objects were asked for before the truncation, and are answered after it. The process ends while it writes to the ends
/// of objects.
#[test]
fn return_of_a_layout_during_a_truncation_and_a_crash_does_not_undo_it() {
    for world in World::each() {
        let (file, _) = written(&world);
        world.servers.ids().for_each(|server| world.servers.hold_answers(server, true));
        let (tree, of) = (world.pnfs.clone(), file.clone());
        let mut release = world.start(move |caller| tree.release(caller, &of, LayoutHolder(1), LayoutModes::ALL));
        assert!(release().is_pending());
        world.truncate(&file, 10).unwrap();
        world.servers.set_permits(1, Some(0));
        world.servers.ids().for_each(|server| world.servers.hold_answers(server, false));
        let _ = release();
        drop(release);
        world.servers.set_permits(1, None);
        let world = world.crash();
        world.upkeep();
        assert_eq!(world.size(&file), 10);
        check_cut(&world, &file, 10);
    }
}

/// Otherwise the client would write behind the new end, and the objects would be cut later.
#[test]
fn truncation_fails_if_no_copy_is_cut_and_the_client_has_a_layout_to_write() {
    for world in World::each() {
        let (file, layout) = written(&world);
        world.servers.ids().for_each(|server| world.servers.set_down(server, true));
        assert_eq!(world.truncate(&file, 10), Err(VfsError::Io));
        world.servers.ids().for_each(|server| world.servers.set_down(server, false));
        assert_eq!(world.client_write(&layout, 3000, &[2; 1000]), 0);
        world.commit(&file, 1, 4000);
        world.release(&file, 1, LayoutModes::WRITE);
        world.upkeep();
        let expected = [[1; 3000].to_vec(), [2; 1000].to_vec()].concat();
        assert!(world.read(&file).unwrap() == expected, "what the client has committed after the error must stay");
    }
}

#[test]
fn truncation_that_is_refused_cuts_no_object() {
    for world in World::each() {
        let (file, _) = written(&world);
        let set = SetAttr { size: Some(10), ..SetAttr::default() };
        let other = Some(Time { seconds: 1, nanoseconds: 0 });
        world.run(|caller| world.pnfs.setattr(caller, &file, &set, other)).unwrap_err();
        world.commit(&file, 1, 3000);
        assert!(world.read(&file).unwrap() == [1; 3000]);
    }
}

/// The disk fails, and then the database: the truncation may have to be completed.
#[test]
fn truncation_whose_outcome_is_not_known_removes_nothing_that_a_client_has_written() {
    for world in World::each() {
        let (file, _) = written(&world);
        world.disk.refusing_attributes.store(1, Relaxed);
        let failing = world.index.failing.clone();
        world.disk.before("setattr", 0, move || failing.store(1, Relaxed));
        assert_eq!(world.truncate(&file, 4000), Err(VfsError::Io));
        assert!(world.disk.has_run() && world.index.failing.load(Relaxed) == 0);
        world.commit(&file, 1, 3000);
        assert!(world.read(&file).unwrap() == [1; 3000]);
        world.release(&file, 1, LayoutModes::WRITE);
        world.upkeep();
        assert!(world.read(&file).unwrap() == [1; 3000]);
    }
}

#[test]
fn size_that_a_caller_sets_is_durable_although_the_file_has_it_already() {
    for world in World::each() {
        let file = world.create("file");
        world.write(&file, 0, &[1; 3000]).unwrap();
        let data = Rope::from(bytes::Bytes::from(vec![1; 1000]));
        let write =
            |caller: &Caller<'_>| world.pnfs.write(caller, &file, 3000, &data, Stability::Unstable, Report::Nothing);
        world.run(write).unwrap();
        assert!(world.disk.unsynced.load(Relaxed));
        world.truncate(&file, 4000).unwrap();
        assert!(!world.disk.unsynced.load(Relaxed));
    }
}
