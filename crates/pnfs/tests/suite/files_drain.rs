//! Data servers out of service in trees that grant files layouts: files have one copy, whose stripes are moved or lost.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
};

use pnfs::{DataServers, ServerId, Service, SetServiceError, Stripes};
use vfs::{
    Handle, Layouts, VfsError,
    layout::{DataTransport, LayoutHolder, LayoutKind, LayoutMode, LayoutModes},
};

use crate::world::World;

use LayoutMode::{Read, Write};

/// Trees with and without stripes. There is one data server more than a file needs.
fn worlds() -> impl Iterator<Item = World> {
    let stripes = [Stripes::ONE, Stripes::new(704, 2).unwrap(), Stripes::new(704, 4).unwrap()];
    stripes.into_iter().map(|stripes| World::of(LayoutKind::Files, stripes, 5))
}

fn bytes(seed: usize) -> Vec<u8> {
    (0..9000).map(|at| ((at * 7 + seed) % 251) as u8).collect()
}

fn set(world: &World, server: u32, service: Service) {
    world.pnfs.set_service(ServerId(server), service).unwrap();
}

/// Polls once. Returns `true` at the end of the future.
fn step(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Returns the data servers of a file, in the order of its stripes.
fn servers_of(world: &World, file: &Handle) -> Vec<u32> {
    let record = world.record(file);
    assert!(record.is_healthy() && record.copies.len() == record.stripes.count(), "{record:?}");
    record.copies.iter().map(|copy| copy.object.server.0).collect()
}

/// Writes a file by a layout. Returns it, and the data server of its first stripe.
fn written(world: &World, name: &str) -> (Handle, u32) {
    let file = world.create(name);
    let layout = world.grant_files(&file, 1, Write).unwrap();
    assert_eq!(world.client_write_files(&layout, 0, &bytes(1)), 0);
    world.commit(&file, 1, 9000);
    world.release(&file, 1, LayoutModes::WRITE);
    let first = servers_of(world, &file)[0];
    (file, first)
}

/// A client that knows only the former objects writes to them until it has returned its layout.
#[test]
fn drain_waits_for_writers_and_readers_and_loses_no_write() {
    for world in worlds() {
        let (file, from) = written(&world, "file");
        let writer = world.grant_files(&file, 1, Write).unwrap();
        world.grant_files(&file, 2, Read).unwrap();
        world.events.recalls();
        set(&world, from, Service::Draining);
        {
            let mut upkeep = pin!(world.pnfs.upkeep());
            assert!(!step(upkeep.as_mut()), "the client can still write to the former object");
            assert_eq!(world.events.recalls(), [LayoutModes::WRITE]);
            assert_eq!(world.grant_files(&file, 3, Write), Err(VfsError::NotSupported), "not while it is moved");
            assert_eq!(world.client_write_files(&writer, 0, &bytes(2)), 0);
            world.release(&file, 1, LayoutModes::WRITE);
            assert!(!step(upkeep.as_mut()), "the client can still read the former object");
            assert_eq!(world.events.recalls(), [LayoutModes::READ]);
            world.release(&file, 2, LayoutModes::READ);
            assert!(step(upkeep.as_mut()));
        }
        world.upkeep();
        assert_eq!(world.read(&file).unwrap(), bytes(2));
        let servers = servers_of(&world, &file);
        assert!(!servers.contains(&from), "{servers:?}");
        assert_eq!((world.servers.objects_on(from), world.servers.objects()), (0, servers.len()));
        // The next layout has the same stripes on the new data server.
        let layout = world.grant_files(&file, 3, Write).unwrap();
        let servers: Vec<_> = servers.into_iter().map(ServerId).collect();
        assert_eq!(Some(layout.device), world.servers.striped_device_id(&servers, DataTransport::Tcp));
        assert_eq!(world.client_write_files(&layout, 0, &bytes(3)), 0);
        world.release(&file, 3, LayoutModes::WRITE);
        assert_eq!(world.read(&file).unwrap(), bytes(3));
        assert!(world.client_write_files(&writer, 0, &bytes(4)) > 0, "the former object is not there any more");
    }
}

#[test]
fn fenced_writer_changes_neither_the_former_object_nor_the_new_one() {
    for world in worlds() {
        let (file, from) = written(&world, "file");
        let writer = world.grant_files(&file, 1, Write).unwrap();
        set(&world, from, Service::Draining);
        {
            let mut upkeep = pin!(world.pnfs.upkeep());
            assert!(!step(upkeep.as_mut()));
            // The client does not answer the recall.
            world.fence(&file, 1, LayoutModes::WRITE).unwrap();
            let pieces = world.client_write_files(&writer, 0, &bytes(2));
            assert!(pieces > 0 && world.read(&file).unwrap() == bytes(1));
            let _ = step(upkeep.as_mut());
        }
        world.upkeep();
        assert!(!servers_of(&world, &file).contains(&from));
        assert!(world.client_write_files(&writer, 0, &bytes(2)) > 0);
        assert_eq!(world.read(&file).unwrap(), bytes(1));
        assert!(world.pnfs.repairs().unwrap().is_done());
    }
}

/// The process ends during some of the moves. Every data server is drained once.
#[test]
fn interrupted_drain_continues_after_a_crash() {
    for permits in [0, 1, 3, 20] {
        for mut world in worlds() {
            let (file, _) = written(&world, "file");
            for from in 1..=5 {
                set(&world, from, Service::Draining);
                world.servers.ids().for_each(|server| world.servers.set_permits(server, Some(permits)));
                {
                    let mut upkeep = pin!(world.pnfs.upkeep());
                    let _ = step(upkeep.as_mut());
                }
                world.servers.ids().for_each(|server| world.servers.set_permits(server, None));
                world = world.crash();
                world.upkeep();
                let servers = servers_of(&world, &file);
                assert!(!servers.contains(&from), "{servers:?}");
                assert_eq!(world.servers.objects(), servers.len());
                assert_eq!(world.read(&file).unwrap(), bytes(1));
                set(&world, from, Service::Active);
            }
        }
    }
}

/// There is no other copy to read.
#[test]
fn drain_of_a_data_server_that_is_away_waits_for_it() {
    for world in worlds() {
        let (file, from) = written(&world, "file");
        world.servers.set_down(from, true);
        set(&world, from, Service::Draining);
        world.upkeep();
        let status = world.pnfs.server_list().unwrap().remove(from as usize - 1);
        assert_eq!((status.objects, status.unmovable), (1, Some((1, VfsError::Io))));
        assert!(servers_of(&world, &file).contains(&from));
        world.servers.set_down(from, false);
        world.upkeep();
        assert!(!servers_of(&world, &file).contains(&from));
        assert_eq!(world.read(&file).unwrap(), bytes(1));
        let status = world.pnfs.server_list().unwrap().remove(from as usize - 1);
        assert_eq!((status.objects, status.unmovable, world.servers.objects_on(from)), (0, None, 0));
    }
}

#[test]
fn drain_leaves_enough_data_servers_for_the_stripes() {
    let world = World::of(LayoutKind::Files, Stripes::new(704, 4).unwrap(), 5);
    set(&world, 1, Service::Draining);
    let refused = world.pnfs.set_service(ServerId(2), Service::Draining);
    assert_eq!(refused, Err(SetServiceError::TooFew { left: 3, needed: 4 }));
}

#[test]
fn files_of_a_lost_data_server_are_named_and_come_back_with_it() {
    for world in worlds() {
        let (file, lost) = written(&world, "file");
        set(&world, lost, Service::Lost);
        world.upkeep();
        let contacts = world.servers.contacts(lost);
        let number = world.run(|caller| vfs::Vfs::getattr(&world.pnfs, caller, &file)).unwrap().fileid;
        let status = world.pnfs.server_list().unwrap().remove(lost as usize - 1);
        assert_eq!((status.lost, status.lost_files), (1, vec![number]));
        let repairs = world.pnfs.repairs().unwrap();
        assert!(repairs.lost == 1 && repairs.is_done(), "{repairs:?}");
        // Nothing is invented for the stripe: neither a layout nor zeros.
        assert_eq!(world.read(&file), Err(VfsError::Io));
        assert_eq!(world.write(&file, 0, b"data"), Err(VfsError::Io));
        for mode in [Read, Write] {
            assert_eq!(world.grant_files(&file, 1, mode), Err(VfsError::NotSupported));
        }
        // New files are on other data servers.
        for number in 0..10 {
            let (other, _) = written(&world, &format!("other{number}"));
            assert!(!servers_of(&world, &other).contains(&lost));
            assert_eq!(world.read(&other).unwrap(), bytes(1));
        }
        assert_eq!(world.servers.contacts(lost), contacts, "nothing must be sent to a lost data server");
        set(&world, lost, Service::Active);
        world.upkeep();
        assert_eq!(world.read(&file).unwrap(), bytes(1));
        assert!(world.grant_files(&file, 1, Write).is_ok());
    }
}

/// A client holds a layout when the data server is marked as lost. The layout is taken from it, because it could write to the data
/// server that this server does not contact any more.
#[test]
fn layouts_of_lost_files_are_recalled_and_can_be_returned() {
    for world in worlds() {
        let (file, lost) = written(&world, "file");
        let layout = world.grant_files(&file, 1, Write).unwrap();
        world.grant_files(&file, 2, Read).unwrap();
        assert_eq!(world.client_write_files(&layout, 9000, &bytes(2)), 0);
        world.events.recalls();
        set(&world, lost, Service::Lost);
        world.upkeep();
        assert_eq!(world.events.recalls(), [LayoutModes::ALL]);
        // The size of the object is not known. The layout ends nevertheless.
        for (holder, modes) in [(1, LayoutModes::WRITE), (2, LayoutModes::READ)] {
            let _ = world.run(|caller| world.pnfs.release(caller, &file, LayoutHolder(holder), modes));
        }
        world.upkeep();
        let repairs = world.pnfs.repairs().unwrap();
        assert!(repairs.is_done(), "nothing can be done for the file: {repairs:?}");
        // The data server is found again, with what the client has written.
        set(&world, lost, Service::Active);
        world.upkeep();
        assert_eq!(world.read(&file).unwrap(), [bytes(1), bytes(2)].concat());
    }
}

#[test]
fn lost_file_can_be_removed_and_its_object_is_removed_later() {
    for world in worlds() {
        let (_, lost) = written(&world, "file");
        set(&world, lost, Service::Lost);
        world.upkeep();
        let (root, name) = (vfs::Vfs::root(&world.pnfs), vfs::Name::new(b"file").unwrap());
        world.run(|caller| vfs::Vfs::remove(&world.pnfs, caller, &root, name)).unwrap();
        world.upkeep();
        assert_eq!(world.servers.objects(), world.servers.objects_on(lost));
        let status = world.pnfs.server_list().unwrap().remove(lost as usize - 1);
        assert_eq!(status.lost, 0, "{status:?}");
        set(&world, lost, Service::Active);
        world.upkeep();
        assert_eq!(world.servers.objects(), 0);
    }
}
