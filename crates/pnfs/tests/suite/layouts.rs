//! Layouts: clients that write to the data servers directly, fail there, and do not return.

use std::{sync::atomic::Ordering::Relaxed, task::Poll};

use buf::Rope;
use pnfs::{Stripes, record::Epochs};
use vfs::{
    Caller, Layouts, Report, Stability, Vfs, VfsError,
    layout::{DataError, LayoutCommit, LayoutHolder, LayoutKind, LayoutMode, LayoutModes, LayoutRange},
};

use crate::world::World;

use LayoutMode::{Read, Write};

#[test]
fn small_files_have_no_layout_until_a_client_writes_more() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, b"small").unwrap();
    assert_eq!(world.grant(&file, 1, Read).unwrap_err(), VfsError::NotSupported);
    let mut with_open = World::request(1, Write);
    with_open.with_open = true;
    assert_eq!(world.run(|caller| world.pnfs.grant(caller, &file, &with_open)).unwrap_err(), VfsError::NotSupported);
    assert_eq!(world.servers.objects(), 0);
    let copies = world.grant(&file, 1, Write).unwrap();
    assert_eq!(copies.len(), 2);
    assert_ne!(copies[0].0.server, copies[1].0.server);
    for (object, _) in copies {
        assert_eq!(world.servers.content(object).unwrap(), b"small");
    }
    assert!(world.run(|caller| world.pnfs.grant(caller, &file, &with_open)).is_ok());
}

#[test]
fn readers_cannot_write() {
    let world = World::new();
    let file = world.create("file");
    let written = world.grant(&file, 1, Write).unwrap();
    let read = world.grant(&file, 2, Read).unwrap();
    for ((object, writer), (same, reader)) in written.into_iter().zip(read) {
        assert_eq!(object, same);
        world.servers.client_write(object, writer, 0, b"data").unwrap();
        assert!(world.servers.client_write(object, reader, 0, b"fake").is_err());
    }
}

#[test]
fn size_is_that_of_direct_writes_after_commit_and_return() {
    let world = World::new();
    let file = world.create("file");
    let copies = world.grant(&file, 1, Write).unwrap();
    let write = |offset, data: &[u8]| {
        for (object, user) in &copies {
            world.servers.client_write(*object, *user, offset, data).unwrap();
        }
    };
    write(0, &[1; 3000]);
    assert_eq!(world.size(&file), 0);
    world.commit(&file, 1, 3000);
    assert_eq!(world.size(&file), 3000);
    world.commit(&file, 1, 10);
    assert_eq!(world.size(&file), 3000, "a commit must not shrink a file");
    write(3000, &[2; 2000]);
    world.release(&file, 1, LayoutModes::WRITE);
    assert_eq!(world.size(&file), 5000, "the client has not committed");
    assert_eq!(world.read(&file).unwrap(), [[1; 3000].to_vec(), [2; 2000].to_vec()].concat());
}

#[test]
fn time_of_a_layout_commit_does_not_replace_a_later_one() {
    let world = World::new();
    let file = world.create("file");
    world.grant(&file, 1, Write).unwrap();
    let mtime = || world.run(|caller| world.pnfs.getattr(caller, &file)).unwrap().mtime;
    let before = mtime();
    let early = vfs::Time { seconds: before.seconds - 1, ..before };
    let commit = LayoutCommit { range: LayoutRange::ALL, size: None, mtime: Some(early) };
    let holder = Some(LayoutHolder(1));
    world.run(|caller| Layouts::commit(&world.pnfs, caller, &file, holder, &commit)).unwrap();
    assert!(mtime() >= before, "the time of the file must not go back");
}

#[test]
fn reclaimed_commit_does_not_extend_a_file_without_objects() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, b"small").unwrap();
    let world = world.crash();
    let commit = LayoutCommit { range: LayoutRange::ALL, size: Some(3000), mtime: None };
    world.run(|caller| Layouts::commit(&world.pnfs, caller, &file, None, &commit)).unwrap();
    assert_eq!(world.size(&file), 5, "no client has had a layout to write");
}

#[test]
fn truncation_removes_direct_writes_that_were_not_committed() {
    let world = World::new();
    let file = world.create("file");
    for (object, user) in world.grant(&file, 1, Write).unwrap() {
        world.servers.client_write(object, user, 0, &[1; 3000]).unwrap();
    }
    // The file has size 0 already.
    world.truncate(&file, 0).unwrap();
    world.release(&file, 1, LayoutModes::WRITE);
    assert_eq!(world.size(&file), 0);
    world.truncate(&file, 10).unwrap();
    assert_eq!(world.read(&file).unwrap(), [0; 10]);
}

#[test]
fn reported_copy_is_durably_stale_before_the_next_layout_and_is_made_again() {
    let world = World::new();
    let file = world.create("file");
    let copies = world.grant(&file, 1, Write).unwrap();
    world.grant(&file, 2, Read).unwrap();
    let ((good, user), (bad, _)) = (copies[0], copies[1]);
    world.servers.set_down(bad.server.0, true);
    world.servers.client_write(good, user, 0, &[1; 3000]).unwrap();
    assert!(world.servers.client_write(bad, user, 0, &[1; 3000]).is_err());
    // A client that cannot write has nothing to report.
    world.report(&file, 2, bad, DataError::Unreachable);
    assert!(world.record(&file).is_healthy());

    world.report(&file, 1, bad, DataError::Unreachable);
    let record = world.record(&file);
    assert_eq!(record.in_sync().map(|copy| record.copies[copy].object).collect::<Vec<_>>(), [good]);
    assert_eq!(world.events.recalls(), [LayoutModes::ALL]);
    assert_eq!(world.grant(&file, 3, Write).unwrap_err(), VfsError::Delay);
    world.release(&file, 1, LayoutModes::WRITE);
    for mode in [Write, Read] {
        assert_eq!(world.grant(&file, 3, mode).unwrap_err(), VfsError::Delay, "the reader has the stale copy");
    }
    world.release(&file, 2, LayoutModes::READ);
    assert!(world.grant(&file, 3, Write).is_ok());
    assert_eq!(world.grant(&file, 3, Read).unwrap().len(), 1);
    world.release(&file, 3, LayoutModes::ALL);
    assert_eq!(world.read(&file).unwrap(), [1; 3000]);
    // The last copy is never given up.
    let layout = world.grant(&file, 4, Write).unwrap();
    world.report(&file, 4, layout[0].0, DataError::Unreachable);
    assert_eq!(world.record(&file), record);
    world.release(&file, 4, LayoutModes::WRITE);

    // After a while, the copy is a new object.
    world.servers.set_down(bad.server.0, false);
    let world = world.crash();
    world.upkeep();
    let record = world.record(&file);
    assert!(record.is_healthy() && record.copies.iter().all(|copy| copy.object != bad));
    assert_eq!(world.servers.content(bad), None, "the former object must be removed");
    for copy in record.copies {
        assert_eq!(world.servers.content(copy.object).unwrap(), [1; 3000]);
    }
}

/// The object of a data server that does not create objects by itself is never new: if it does not exist, it tells nothing about the size.
#[test]
fn commit_after_a_truncation_has_the_size_of_the_copy_that_is_left() {
    let world = World::with(Stripes::ONE, 2);
    let file = world.create("file");
    let copies = world.grant(&file, 1, Write).unwrap();
    let write =
        || copies.iter().for_each(|(object, user)| world.servers.client_write(*object, *user, 0, &[1; 3000]).unwrap());
    write();
    world.commit(&file, 1, 3000);
    world.truncate(&file, 0).unwrap();
    write();
    world.servers.wipe(copies[1].0.server.0);
    world.commit(&file, 1, 3000);
    assert_eq!(world.size(&file), 3000);
}

/// A client can wait for a data server that hangs, and never report it.
#[test]
fn layouts_with_a_data_server_that_does_not_answer_are_recalled_if_there_is_another_copy() {
    let world = World::with(Stripes::ONE, 2);
    let (file, last) = (world.create("file"), world.create("last"));
    let copies = world.grant(&last, 1, Write).unwrap();
    let (stale, hung) = (copies[0].0, copies[1].0.server);
    world.report(&last, 1, stale, DataError::Unreachable);
    world.release(&last, 1, LayoutModes::WRITE);
    assert_eq!(world.grant(&last, 1, Write).unwrap().len(), 1);
    world.grant(&file, 1, Write).unwrap();
    world.events.recalls();

    world.servers.set_down(hung.0, true);
    world.upkeep_once();
    assert_eq!(world.events.recalls(), [], "the data server may answer soon");
    world.upkeep_once();
    assert_eq!(world.events.recalls(), [LayoutModes::WRITE], "without its last copy, a client could not go on");
    assert!(world.record(&file).is_healthy(), "the client may not have written");
    world.upkeep_once();
    assert_eq!(world.events.recalls(), [], "the layout was recalled before");
    world.release(&file, 1, LayoutModes::WRITE);
    let read = world.grant(&file, 2, Read).unwrap();
    assert!(read.len() == 1 && read[0].0.server != hung, "{read:?}");
    world.upkeep_once();
    assert_eq!(world.events.recalls(), [], "the reader does not use the data server");
    world.release(&file, 2, LayoutModes::READ);
    let written = world.grant(&file, 1, Write).unwrap();
    assert!(written.len() == 1 && written[0].0.server != hung, "{written:?}");
    assert!(!world.record(&file).is_healthy(), "the copy is stale before a client writes without it");
}

#[test]
fn client_that_is_denied_access_writes_by_this_server_for_a_while() {
    let world = World::new();
    let file = world.create("file");
    let copies = world.grant(&file, 1, Write).unwrap();
    world.report(&file, 1, copies[0].0, DataError::Denied);
    assert!(world.record(&file).is_healthy());
    world.release(&file, 1, LayoutModes::WRITE);
    assert_eq!(world.grant(&file, 1, Write).unwrap_err(), VfsError::NotSupported);
}

#[test]
fn layouts_leave_out_a_copy_that_cannot_be_made_again() {
    let world = World::with(pnfs::Stripes::ONE, 2);
    let file = world.create("file");
    world.write(&file, 0, &[1; 3000]).unwrap();
    let full = world.record(&file).copies[0].object.server;
    world.servers.set_full(full.0, true);
    world.write(&file, 0, &[2; 3000]).unwrap();
    world.upkeep();
    let layout = world.grant(&file, 1, Write).unwrap();
    assert!(layout.len() == 1 && layout[0].0.server != full);
    assert!(world.events.recalls().is_empty());
}

#[test]
fn write_that_a_copy_misses_is_not_acknowledged_while_a_client_can_read_that_copy() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 3000]).unwrap();
    let copies = world.grant(&file, 1, Read).unwrap();
    world.servers.set_down(copies[1].0.server.0, true);
    let data = Rope::from(bytes::Bytes::from(vec![2; 3000]));
    let mut write = world
        .start(|caller: &Caller<'_>| world.pnfs.write(caller, &file, 0, &data, Stability::FileSync, Report::Nothing));
    assert!(write().is_pending());
    assert_eq!(world.events.recalls(), [LayoutModes::ALL.intersect(LayoutModes::READ)]);
    assert!(!world.record(&file).is_healthy());
    world.release(&file, 1, LayoutModes::READ);
    assert!(matches!(write(), Poll::Ready(Ok(_))));
    assert_eq!(world.read(&file).unwrap(), [2; 3000]);
}

#[test]
fn fenced_writer_changes_nothing_and_the_copies_become_equal() {
    let world = World::new();
    let file = world.create("file");
    let copies = world.grant(&file, 1, Write).unwrap();
    world.grant(&file, 2, Write).unwrap();
    let reader = world.grant(&file, 3, Read).unwrap();
    // The client has written to one copy only.
    let ((first, _), (second, user)) = (copies[0], copies[1]);
    world.servers.client_write(second, user, 0, &[7; 2000]).unwrap();
    world.fence(&file, 1, LayoutModes::WRITE).unwrap();
    for (object, user) in &copies {
        assert!(world.servers.client_write(*object, *user, 0, &[9; 10]).is_err(), "the client must be locked out");
    }
    assert_eq!(
        world.events.recalls(),
        [LayoutModes::WRITE],
        "the other writer has lost its access, and the reader has not"
    );
    assert_eq!(world.size(&file), 2000);
    assert_eq!(world.grant(&file, 4, Read).unwrap_err(), VfsError::NotSupported, "the copies differ");
    let seen = world.read(&file).unwrap();
    world.release(&file, 2, LayoutModes::WRITE);
    world.upkeep();
    assert_eq!(world.servers.content(first), world.servers.content(second));
    assert_eq!(world.read(&file).unwrap(), seen, "what was read before must not change");
    assert_eq!(world.grant(&file, 3, Read).unwrap(), reader);
    let again = world.grant(&file, 5, Write).unwrap();
    assert!(again.iter().zip(&copies).all(|(now, former)| now.0 == former.0 && now.1 != former.1));
}

#[test]
fn fence_is_repeated_until_a_data_server_answers() {
    let world = World::new();
    let file = world.create("file");
    let copies = world.grant(&file, 1, Write).unwrap();
    (1..=3).for_each(|server| world.servers.set_down(server, true));
    assert_eq!(world.fence(&file, 1, LayoutModes::WRITE).unwrap_err(), VfsError::Io);
    world.servers.set_down(copies[1].0.server.0, false);
    world.fence(&file, 1, LayoutModes::WRITE).unwrap();
    let record = world.record(&file);
    let in_sync: Vec<_> = record.in_sync().map(|copy| record.copies[copy].object).collect();
    assert_eq!(in_sync, [copies[1].0], "the client can still write to the copy that did not answer");
    world.fence(&file, 1, LayoutModes::WRITE).unwrap();
    assert_eq!(world.record(&file).epochs, record.epochs, "the fence is complete");
}

#[test]
fn clients_of_a_tree_that_ended_are_locked_out_and_their_writes_are_found() {
    let world = World::new();
    let file = world.create("file");
    let copies = world.grant(&file, 1, Write).unwrap();
    let ((first, user), (second, other)) = (copies[0], copies[1]);
    world.servers.client_write(first, user, 0, &[7; 2000]).unwrap();
    world.servers.client_write(second, other, 0, &[8; 1500]).unwrap();
    let world = world.crash();
    assert_eq!(world.grant(&file, 1, Write).unwrap_err(), VfsError::NotSupported);
    world.upkeep();
    assert!(world.servers.client_write(first, user, 0, &[9; 10]).is_err());
    assert_eq!(world.size(&file), 2000);
    assert_eq!(world.servers.content(first), world.servers.content(second));
    assert!(world.grant(&file, 1, Write).is_ok());
}

/// The epochs are durable before the objects have their users.
#[test]
fn clients_have_access_after_a_crash_before_the_objects_have_their_users() {
    for (first, repairs) in [(true, false), (true, true), (false, false), (false, true)] {
        let world = World::new().crash_to((!first).then_some(LayoutKind::Flexible));
        let file = world.create("file");
        world.write(&file, 0, &[1; 3000]).unwrap();
        let world = world.crash_to(Some(LayoutKind::Flexible));
        world.upkeep();
        let epochs = world.record(&file).epochs;
        assert_eq!(epochs == Epochs::default(), first, "the objects had no users");
        world.servers.ids().for_each(|server| world.servers.set_permits(server, Some(0)));
        let is_pending = if first {
            let request = World::request(1, Read);
            world.start(|caller| world.pnfs.grant(caller, &file, &request))().is_pending()
        } else {
            world.grant(&file, 1, Read).unwrap();
            world.start(|caller| world.pnfs.fence(caller, &file, LayoutHolder(1), LayoutModes::READ))().is_pending()
        };
        assert!(is_pending, "the objects must not have their new users yet");
        assert_ne!(world.record(&file).epochs, epochs);

        let world = world.crash();
        world.servers.ids().for_each(|server| world.servers.set_permits(server, None));
        if repairs {
            world.upkeep();
            let record = world.record(&file);
            for copy in &record.copies {
                let group = record.epochs.owners(copy.object).unwrap().group;
                assert!(world.servers.client_reads(copy.object, group), "the upkeep must complete the change");
            }
        }
        for (object, user) in world.grant(&file, 2, Read).unwrap() {
            assert!(world.servers.client_reads(object, user), "first: {first}, repairs: {repairs}");
        }
        for (object, user) in world.grant(&file, 3, Write).unwrap() {
            world.servers.client_write(object, user, 0, &[2; 10]).unwrap();
        }
        assert!(world.record(&file).is_healthy());
    }
}

#[test]
fn copies_are_compared_if_an_error_of_a_client_cannot_be_stored() {
    for world in World::each() {
        let file = world.create("file");
        world.write(&file, 0, &[1; 5000]).unwrap();
        let layout = world.grant_striped(&file, 1, LayoutMode::Write).unwrap();
        assert_eq!(world.client_write_mirror(layout.unit, &layout.mirrors[0], 0, &[2; 5000]), 0);
        world.index.failing.store(1, Relaxed);
        let missed = layout.mirrors[1][0].0;
        assert_eq!(world.try_report(&file, 1, missed, DataError::Io), Err(VfsError::Io));
        world.release(&file, 1, LayoutModes::WRITE);
        world.upkeep();
        let record = world.record(&file);
        for stripe in 0..record.stripes.count() {
            let contents = record.copies_of(stripe).map(|copy| world.servers.content(record.copies[copy].object));
            let contents: Vec<_> = contents.collect();
            assert_eq!((contents.len(), &contents[0]), (2, &contents[1]));
        }
    }
}

#[test]
fn layouts_to_write_end_before_a_copy_is_made_again_and_those_to_read_last() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 3000]).unwrap();
    let bad = world.record(&file).copies[0].object;
    world.servers.set_down(bad.server.0, true);
    world.write(&file, 0, &[2; 3000]).unwrap();
    let layout = world.grant(&file, 1, Write).unwrap();
    assert_eq!(layout.len(), 1);
    let read = world.grant(&file, 2, Read).unwrap();
    world.servers.set_down(bad.server.0, false);
    let mut upkeep = Box::pin(world.pnfs.upkeep());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(upkeep.as_mut().poll(&mut cx).is_pending(), "the copy must wait for the layout to write");
    assert_eq!(world.events.recalls(), [LayoutModes::WRITE]);
    let (object, user) = layout[0];
    world.servers.client_write(object, user, 1000, &[3; 1000]).unwrap();
    assert_eq!(world.grant(&file, 3, Write).unwrap_err(), VfsError::NotSupported);
    assert_eq!(world.grant(&file, 2, Read).unwrap(), read, "the reader is not disturbed");
    world.run(|caller| world.pnfs.release(caller, &file, LayoutHolder(1), LayoutModes::WRITE)).unwrap();
    assert!(upkeep.as_mut().poll(&mut cx).is_ready(), "the copy must not wait for the layout to read");
    let record = world.record(&file);
    assert!(record.is_healthy());
    assert_eq!(world.events.recalls(), [], "the reader keeps its layout");
    let (object, reader) = read[0];
    assert!(read.len() == 1 && world.servers.client_reads(object, reader), "the reader is not locked out");
    let expected = [[2; 1000], [3; 1000], [2; 1000]].concat();
    for copy in record.copies {
        assert_eq!(world.servers.content(copy.object).unwrap(), expected);
    }
}
