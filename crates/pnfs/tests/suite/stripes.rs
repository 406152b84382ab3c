//! Striped files: where their bytes are, layouts for clients that accept stripes and for others, and repair of single objects.

use std::{
    collections::HashSet,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use pnfs::{Earlier, Index, Options, Pnfs, Record, Stripes, record::CopyState};
use redb::backends::InMemoryBackend;
use vfs::{
    Caller, Handle, Layouts, SetAttr, Vfs, VfsError,
    layout::{
        DataError, LayoutCommit, LayoutHolder,
        LayoutMode::{Read, Write},
        LayoutModes, LayoutRange,
    },
    memory::{Memory, MemoryOptions},
};

use crate::{
    servers::Servers,
    world::{Striped, World, step},
};

/// Two copies of each of three stripes. Each of three data servers has copies of two stripes.
fn few_servers() -> World {
    World::with(Stripes::new(UNIT, 3).unwrap(), 3)
}

/// Two copies of each of three stripes, each on a data server of its own.
fn many_servers() -> World {
    World::with(Stripes::new(UNIT, 3).unwrap(), 6)
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 100 + 1) as u8).collect()
}

/// Checks that each copy of each stripe has these bytes at the offsets of the file, and zeros elsewhere.
fn check_objects(world: &World, record: &Record, expected: &[u8]) {
    let size = expected.len() as u64;
    for (copy, at) in record.copies.iter().zip(0..) {
        let stripe = record.stripe_of(at);
        let object = world.servers.content(copy.object).unwrap();
        assert!(object.len() as u64 >= record.stripes.end(stripe, size), "clients must not see the end of the file");
        assert!(object.len() <= expected.len());
        for piece in record.stripes.pieces(0..object.len() as u64) {
            let range = piece.range.start as usize..piece.range.end as usize;
            match piece.stripe == stripe {
                true => assert_eq!(object[range.clone()], expected[range]),
                false => assert!(object[range].iter().all(|byte| *byte == 0)),
            }
        }
    }
}

fn state_of(record: &Record, server: u32) -> HashSet<CopyState> {
    record.copies.iter().filter(|copy| copy.object.server.0 == server).map(|copy| copy.state).collect()
}

#[test]
fn bytes_are_at_the_same_offsets_in_the_objects_of_their_stripes() {
    for world in [few_servers(), many_servers()] {
        let file = world.create("file");
        let data = content(5000);
        // The file spills with 900 bytes in it.
        world.write(&file, 0, &data[..900]).unwrap();
        world.write(&file, 900, &data[900..]).unwrap();
        let record = world.record(&file);
        assert_eq!((record.stripes, record.copies.len()), (Stripes::new(UNIT, 3).unwrap(), 6));
        check_objects(&world, &record, &data);
        assert_eq!(world.read(&file).unwrap(), data);
        for size in [2500, 4000] {
            world.truncate(&file, size).unwrap();
            let mut cut = data[..2500].to_vec();
            cut.resize(size as usize, 0);
            check_objects(&world, &record, &cut);
        }
    }
}

#[test]
fn client_writes_to_all_objects_directly() {
    let world = few_servers();
    let file = world.create("file");
    let layout = world.grant_striped(&file, 1, Write).unwrap();
    assert_eq!((layout.unit, layout.mirrors.len(), layout.mirrors[0].len()), (UNIT, 2, 3));
    let data = content(5000);
    assert_eq!(world.client_write(&layout, 0, &data), 0);
    world.commit(&file, 1, 5000);
    assert_eq!(world.read(&file).unwrap(), data);
    check_objects(&world, &world.record(&file), &data);
    // What this server writes is where the client reads.
    world.write(&file, 1500, &[9; 1000]).unwrap();
    let expected = [&data[..1500], &[9; 1000], &data[2500..]].concat();
    check_objects(&world, &world.record(&file), &expected);
    assert_eq!(world.grant_striped(&file, 2, Read).unwrap().mirrors.len(), 2);
}

#[test]
fn client_without_stripes_gets_mirrors_without_stripes_or_none() {
    let world = few_servers();
    let (old, new) = (world.create("old"), world.create("new"));
    // The client is the first one that writes much.
    assert_eq!(world.grant(&old, 1, Write).unwrap().len(), 2);
    assert_eq!(world.record(&old).stripes, Stripes::ONE);
    world.write(&old, 0, &content(5000)).unwrap();
    assert_eq!(world.grant_striped(&old, 2, Read).unwrap().mirrors[0].len(), 1);
    // Others have written before.
    world.write(&new, 0, &content(5000)).unwrap();
    for mode in [Read, Write] {
        assert_eq!(world.grant(&new, 1, mode).unwrap_err(), VfsError::NotSupported);
    }
    assert_eq!(world.grant_striped(&new, 2, Write).unwrap().mirrors[0].len(), 3);
}

#[test]
fn failed_data_server_makes_only_its_objects_stale() {
    let world = few_servers();
    let file = world.create("file");
    world.write(&file, 0, &content(5000)).unwrap();
    for bad in 1..=3 {
        world.servers.set_down(bad, true);
        world.write(&file, 0, &content(5000)).unwrap();
        let record = world.record(&file);
        let now = [1, 2, 3].map(|server| state_of(&record, server));
        for (server, states) in (1..).zip(now) {
            let expected = if server == bad { CopyState::Stale } else { CopyState::InSync };
            assert_eq!(states, HashSet::from([expected]), "data server {server}");
        }
        world.servers.set_down(bad, false);
        world.upkeep();
        let record = world.record(&file);
        assert!(record.is_healthy());
        check_objects(&world, &record, &content(5000));
    }
}

#[test]
fn copy_is_repaired_while_another_data_server_is_still_away() {
    let world = many_servers();
    let file = world.create("file");
    world.write(&file, 0, &content(5000)).unwrap();
    let record = world.record(&file);
    // The first copies of the first two stripes.
    let [away, back] = [0, 1].map(|copy| record.copies[copy].object.server.0);
    [away, back].iter().for_each(|server| world.servers.set_down(*server, true));
    let data = [7; 5000];
    world.write(&file, 0, &data).unwrap();
    world.servers.set_down(back, false);
    world.upkeep();
    let states: Vec<_> = world.record(&file).copies.iter().map(|copy| copy.state).collect();
    assert_eq!(states[..2], [CopyState::Stale, CopyState::InSync]);
    world.servers.set_down(record.copies[4].object.server.0, true);
    assert_eq!(world.read(&file).unwrap(), data);
}

#[test]
fn stripe_with_fewer_copies_is_in_all_mirrors() {
    let world = many_servers();
    let file = world.create("file");
    world.write(&file, 0, &content(5000)).unwrap();
    let bad = world.record(&file).copies[4].object;
    world.servers.set_down(bad.server.0, true);
    world.write(&file, 0, &content(5000)).unwrap();
    let layout = world.grant_striped(&file, 1, Write).unwrap();
    let [first, second] = &layout.mirrors[..] else { panic!("two stripes have two copies") };
    assert_eq!(first[1], second[1], "one copy of the stripe is left");
    assert!(first[0] != second[0] && first[2] != second[2]);
    assert!(layout.mirrors.iter().flatten().all(|(object, _)| *object != bad));
    let data = [8; 5000];
    assert_eq!(world.client_write(&layout, 0, &data), 0);
    world.release(&file, 1, LayoutModes::WRITE);
    world.servers.set_down(bad.server.0, false);
    world.upkeep();
    assert!(world.record(&file).is_healthy());
    check_objects(&world, &world.record(&file), &data);
}

#[test]
fn client_that_cannot_write_to_a_data_server_spares_the_last_copy_of_a_stripe() {
    let world = few_servers();
    let file = world.create("file");
    world.write(&file, 0, &content(5000)).unwrap();
    // One stripe has only one copy.
    let record = world.record(&file);
    let copies: Vec<_> = record.copies_of(0).map(|copy| record.copies[copy].object).collect();
    let [gone, last] = copies[..] else { panic!("there must be two copies") };
    world.servers.set_down(gone.server.0, true);
    world.write(&file, 0, &content(100)).unwrap();
    world.servers.set_down(gone.server.0, false);
    assert_eq!(world.record(&file).in_sync_of(0).count(), 1);

    world.grant_striped(&file, 1, Write).unwrap();
    world.report(&file, 1, last, DataError::Unreachable);
    let record = world.record(&file);
    let on_last = record.copies.iter().filter(|copy| copy.object.server == last.server);
    let states: HashSet<_> = on_last.map(|copy| (copy.object == last, copy.state)).collect();
    assert_eq!(states, HashSet::from([(true, CopyState::InSync), (false, CopyState::Stale)]));
}

#[test]
fn every_object_reaches_the_last_byte_of_its_stripe() {
    let world = few_servers();
    let file = world.create("file");
    world.write(&file, 0, &content(1500)).unwrap();
    // A hole of several units.
    world.write(&file, 9 * UNIT + 100, &[5; 50]).unwrap();
    let mut expected = content(1500);
    expected.resize(9 * UNIT as usize + 100, 0);
    expected.extend([5; 50]);
    check_objects(&world, &world.record(&file), &expected);
    assert_eq!(world.read(&file).unwrap(), expected);

    // A client leaves another one.
    let layout = world.grant_striped(&file, 1, Write).unwrap();
    let end = 14 * UNIT + 1;
    assert_eq!(world.client_write(&layout, end - 1, &[6]), 0);
    world.commit(&file, 1, end);
    expected.resize(end as usize - 1, 0);
    expected.push(6);
    check_objects(&world, &world.record(&file), &expected);
    // And one without LAYOUTCOMMIT.
    let end = 20 * UNIT + 10;
    assert_eq!(world.client_write(&layout, end - 1, &[7]), 0);
    world.release(&file, 1, LayoutModes::WRITE);
    expected.resize(end as usize - 1, 0);
    expected.push(7);
    check_objects(&world, &world.record(&file), &expected);
    assert_eq!(world.read(&file).unwrap(), expected);
    assert!(world.record(&file).is_healthy());
}

#[test]
fn fence_locks_the_client_out_of_every_object() {
    let world = few_servers();
    let file = world.create("file");
    let layout = world.grant_striped(&file, 1, Write).unwrap();
    // The client has written different data to the copies.
    for (mirror, value) in layout.mirrors.iter().zip([3, 4]) {
        assert_eq!(world.client_write_mirror(UNIT, mirror, 0, &vec![value; 2000 + usize::from(value)]), 0);
    }
    world.fence(&file, 1, LayoutModes::WRITE).unwrap();
    for (object, user) in layout.mirrors.iter().flatten() {
        assert!(world.servers.client_write(*object, *user, 0, b"late").is_err());
    }
    assert_eq!(world.size(&file), 2004);
    let seen = world.read(&file).unwrap();
    world.upkeep();
    assert_eq!(world.read(&file).unwrap(), seen, "what was read before must not change");
    check_objects(&world, &world.record(&file), &seen);
    assert!(world.grant_striped(&file, 1, Write).is_ok());
}

#[test]
fn size_is_not_known_without_one_copy_of_each_stripe() {
    let world = few_servers();
    let file = world.create("file");
    let layout = world.grant_striped(&file, 1, Write).unwrap();
    assert_eq!(world.client_write(&layout, 2 * UNIT, &[3; 10]), 0);
    // The data servers with the last stripe.
    let last: Vec<_> = layout.mirrors.iter().map(|mirror| mirror[2].0.server.0).collect();
    last.iter().for_each(|server| world.servers.set_down(*server, true));
    assert_eq!(world.fence(&file, 1, LayoutModes::WRITE).unwrap_err(), VfsError::Io);
    let release = |caller: &Caller<'_>| world.pnfs.release(caller, &file, LayoutHolder(1), LayoutModes::WRITE);
    assert_eq!(world.run(release).unwrap_err(), VfsError::Io);
    assert_eq!(world.size(&file), 0);
    last.iter().for_each(|server| world.servers.set_down(*server, false));
    world.upkeep();
    assert_eq!(world.size(&file), 2 * UNIT + 10);
}

#[test]
fn return_of_a_layout_locks_out_nobody_if_the_size_is_not_known() {
    let world = few_servers();
    let file = world.create("file");
    let [returned, held] = [1, 2].map(|holder| world.grant_striped(&file, holder, Write).unwrap());
    assert_eq!(world.client_write(&returned, 2 * UNIT, &[3; 10]), 0);
    let last: Vec<_> = returned.mirrors.iter().map(|mirror| mirror[2].0.server.0).collect();
    last.iter().for_each(|server| world.servers.set_down(*server, true));
    let release = |caller: &Caller<'_>| world.pnfs.release(caller, &file, LayoutHolder(1), LayoutModes::WRITE);
    assert_eq!(world.run(release).unwrap_err(), VfsError::Io);
    assert_eq!(world.size(&file), 0);
    last.iter().for_each(|server| world.servers.set_down(*server, false));
    // A caller that goes away while it takes the size leaves that to the next one.
    world.servers.hold_answers(last[0], true);
    let set = SetAttr { size: Some(5), ..SetAttr::default() };
    let mut change = world.start(|caller| world.pnfs.setattr(caller, &file, &set, None));
    assert!(change().is_pending());
    drop(change);
    world.servers.hold_answers(last[0], false);
    // The copies may differ, so the upkeep waits for the other layout.
    let mut upkeep = pin!(world.pnfs.upkeep());
    assert!(!step(upkeep.as_mut()));
    assert_eq!(world.size(&file), 2 * UNIT + 10);
    assert_eq!(world.client_write(&held, 0, &[4; 10]), 0, "the other client must not be locked out");
    world.release(&file, 2, LayoutModes::WRITE);
    assert!(step(upkeep.as_mut()));
}

#[test]
fn one_copy_of_each_stripe_tells_the_size() {
    let world = few_servers();
    let file = world.create("file");
    let layout = world.grant_striped(&file, 1, Write).unwrap();
    assert_eq!(world.client_write(&layout, 2 * UNIT, &[3; 10]), 0);
    world.servers.set_down(layout.mirrors[0][2].0.server.0, true);
    world.fence(&file, 1, LayoutModes::WRITE).unwrap();
    assert_eq!(world.size(&file), 2 * UNIT + 10);
}

#[test]
fn returned_layout_costs_each_copy_with_data_a_question_if_the_client_has_committed() {
    let world = many_servers();
    let file = world.create("file");
    let (all, committed) = (content(5 * UNIT as usize), 4 * UNIT as usize);
    let contacts = || world.servers.ids().map(|server| world.servers.contacts(server)).sum::<u64>();
    for (size, copies) in [(committed / 8, 2), (committed, 6)] {
        let layout = world.grant_striped(&file, 1, Write).unwrap();
        assert_eq!(world.client_write(&layout, 0, &all[..size]), 0);
        world.commit(&file, 1, size as u64);
        let before = contacts();
        world.release(&file, 1, LayoutModes::WRITE);
        assert_eq!(contacts() - before, copies, "of a file of {size} bytes");
    }

    // The client has written on.
    let layout = world.grant_striped(&file, 2, Write).unwrap();
    world.commit(&file, 2, committed as u64);
    assert_eq!(world.client_write(&layout, committed as u64, &all[committed..]), 0);
    world.release(&file, 2, LayoutModes::WRITE);
    assert_eq!(world.read(&file).unwrap(), all);
}

#[test]
fn all_stripes_tell_the_size_if_the_client_may_not_have_committed_all_its_writes() {
    type Doubt = fn(&World, &Handle, &Striped);
    let failed: Doubt = |world, file, _| {
        world.disk.refusing_attributes.store(1, Relaxed);
        let commit = LayoutCommit { range: LayoutRange::ALL, size: Some(2 * UNIT), mtime: None };
        let holder = Some(LayoutHolder(1));
        let refused = world.run(|caller| Layouts::commit(&world.pnfs, caller, file, holder, &commit));
        assert_eq!(refused.map(drop), Err(VfsError::Io));
        world.commit(file, 1, UNIT);
    };
    let denied: Doubt = |world, file, layout| world.report(file, 1, layout.mirrors[0][0].0, DataError::Denied);
    let recalled: Doubt = |world, file, layout| {
        world.grant_striped(file, 2, Write).unwrap();
        world.report(file, 2, layout.mirrors[0][0].0, DataError::Unreachable);
        assert_eq!(world.events.recalls(), [LayoutModes::WRITE]);
    };
    for doubt in [failed, denied, recalled] {
        let world = many_servers();
        let file = world.create("file");
        let layout = world.grant_striped(&file, 1, Write).unwrap();
        let size = 3 * UNIT;
        assert_eq!(world.client_write(&layout, 0, &content(UNIT as usize)), 0);
        world.commit(&file, 1, UNIT);
        // The stripe with the next byte is left out.
        assert_eq!(world.client_write(&layout, 2 * UNIT, &content(UNIT as usize)), 0);
        doubt(&world, &file, &layout);
        world.release(&file, 1, LayoutModes::WRITE);
        assert_eq!(world.size(&file), size);
    }
}

#[test]
fn copies_of_each_stripe_are_equal_after_a_crash() {
    let world = few_servers();
    let file = world.create("file");
    let layout = world.grant_striped(&file, 1, Write).unwrap();
    let data = content(5000);
    assert_eq!(world.client_write(&layout, 0, &data), 0);
    // The last write has reached one copy.
    assert_eq!(world.client_write_mirror(UNIT, &layout.mirrors[1], 0, &[9; 3000]), 0);
    let world = world.crash();
    world.upkeep();
    assert_eq!(world.read(&file).unwrap(), data, "the first copy of each stripe is read");
    check_objects(&world, &world.record(&file), &data);
    assert_eq!(world.client_write(&layout, 0, &data), 16, "the client must be locked out");
}

#[test]
fn tree_needs_enough_data_servers() {
    let open = |mirrors, stripes, servers| {
        let inner = Arc::new(Memory::new(MemoryOptions::default()));
        let index = Index::with_backend(InMemoryBackend::new()).unwrap();
        let stripes = Stripes::new(UNIT, stripes).unwrap();
        let options = Options {
            mirrors,
            stripes,
            threshold: 0,
            layouts: Some(vfs::layout::LayoutKind::Flexible),
            earlier: Earlier::NOTHING,
        };
        let opened = Pnfs::new(inner, Arc::new(Servers::new(servers)), index, options);
        opened.map(drop).map_err(|error| error.to_string())
    };
    let refused = |mirrors, stripes, servers, message: &str| {
        assert_eq!(open(mirrors, stripes, servers).unwrap_err(), message);
    };
    refused(3, 2, 2, "mirrors = 3 needs as many data servers, and there are 2");
    refused(2, 4, 3, "stripes = 4 needs as many data servers, and there are 3");
    let message = "mirrors = 8 and stripes = 16: a file would have 128 objects, and can have 64";
    refused(8, 16, 16, message);
    open(2, 4, 4).unwrap();
    open(4, 16, 16).unwrap();
}

#[test]
fn new_files_avoid_data_servers_that_have_failed() {
    let world = World::with(Stripes::new(UNIT, 2).unwrap(), 3);
    let write = |name: &str| {
        let file = world.create(name);
        world.write(&file, 0, &content(5000)).unwrap();
        file
    };
    world.servers.set_down(2, true);
    write("first");
    // Some file has noticed that.
    for at in 0..20 {
        write(&at.to_string());
    }
    let record = world.record(&write("last"));
    assert!(record.is_healthy() && record.copies.iter().all(|copy| copy.object.server.0 != 2));
}

const UNIT: u64 = 700;

/// The server writes such a byte before a write that leaves a hole, and the write can fail.
#[test]
fn byte_at_the_end_of_an_object_that_belongs_to_another_stripe_is_no_byte_of_the_file() {
    let world = few_servers();
    let file = world.create("file");
    let layout = world.grant_striped(&file, 1, Write).unwrap();
    assert_eq!(world.client_write(&layout, 0, &content(UNIT as usize)), 0);
    for mirror in &layout.mirrors {
        let (object, user) = mirror[0];
        world.servers.client_write(object, user, UNIT, &[0]).unwrap();
    }
    world.release(&file, 1, LayoutModes::WRITE);
    assert_eq!(world.size(&file), UNIT);
}
