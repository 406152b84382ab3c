//! Files layouts: files of one copy that clients write to the data servers of their stripes.

use std::sync::Arc;

use pnfs::{DataServers, Earlier, Index, Options, Pnfs, Stripes};
use redb::backends::InMemoryBackend;
use vfs::{
    Layouts, VfsError,
    layout::{
        DataError, DataTransport, LayoutDevice, LayoutHolder, LayoutKind, LayoutMode, LayoutModes, LayoutRequest,
    },
    memory::{Memory, MemoryOptions},
};

use crate::{servers::Servers, world::World};

use LayoutMode::{Read, Write};

/// Trees with and without stripes.
fn worlds() -> impl Iterator<Item = World> {
    let stripes = [Stripes::ONE, Stripes::new(704, 2).unwrap(), Stripes::new(704, 4).unwrap()];
    stripes.into_iter().map(|stripes| World::of(LayoutKind::Files, stripes, 4))
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 7 + seed) % 251) as u8).collect()
}

#[test]
fn clients_write_each_stripe_to_its_data_server() {
    for world in worlds() {
        let file = world.create("file");
        world.write(&file, 0, &bytes(500, 1)).unwrap();
        let layout = world.grant_files(&file, 1, Write).unwrap();
        let record = world.record(&file);
        assert_eq!(layout.handles.len(), record.stripes.count());
        assert!(!layout.dense && !layout.commit_through_server && layout.return_on_close);
        assert_eq!((layout.first_stripe, layout.pattern_offset), (0, 0));
        let mut expected = [bytes(500, 1), vec![0; 500]].concat();
        expected.extend(bytes(9000, 2));
        assert_eq!(world.client_write_files(&layout, 1000, &bytes(9000, 2)), 0);
        world.commit(&file, 1, 10_000);
        assert_eq!(world.size(&file), 10_000);
        assert_eq!(world.read(&file).unwrap(), expected);
        world.release(&file, 1, LayoutModes::WRITE);
        // Other servers have the same stripes in the same order.
        let servers: Vec<_> = record.copies.iter().map(|copy| copy.object.server).collect();
        assert_eq!(Some(layout.device), world.servers.striped_device_id(&servers, DataTransport::Tcp));
    }
}

#[test]
fn size_is_that_of_direct_writes_after_return_and_after_a_crash() {
    for world in worlds() {
        let file = world.create("file");
        let layout = world.grant_files(&file, 1, Write).unwrap();
        assert_eq!(world.client_write_files(&layout, 0, &bytes(5000, 1)), 0);
        world.release(&file, 1, LayoutModes::WRITE);
        assert_eq!(world.size(&file), 5000, "the client has not committed");
        let layout = world.grant_files(&file, 2, Write).unwrap();
        assert_eq!(world.client_write_files(&layout, 5000, &bytes(3000, 2)), 0);
        let world = world.crash();
        world.upkeep();
        assert_eq!(world.size(&file), 8000);
        assert_eq!(world.read(&file).unwrap(), [bytes(5000, 1), bytes(3000, 2)].concat());
        assert!(world.client_write_files(&layout, 0, b"late") > 0, "the client is locked out");
        assert_eq!(world.read(&file).unwrap()[..4], bytes(5000, 1)[..4]);
    }
}

#[test]
fn readers_and_fenced_writers_cannot_write() {
    for world in worlds() {
        let file = world.create("file");
        let written = world.grant_files(&file, 1, Write).unwrap();
        let read = world.grant_files(&file, 2, Read).unwrap();
        assert_eq!(written.device, read.device);
        assert_eq!(world.client_write_files(&written, 0, b"data"), 0);
        assert_eq!(world.client_write_files(&read, 0, b"fake"), 1);
        world.fence(&file, 1, LayoutModes::WRITE).unwrap();
        assert_eq!(world.client_write_files(&written, 0, b"late"), 1);
        world.upkeep();
        assert_eq!(world.read(&file).unwrap(), b"data");
        let next = world.grant_files(&file, 3, Write).unwrap();
        assert_eq!(world.client_write_files(&next, 0, b"next"), 0);
    }
}

#[test]
fn errors_of_the_only_copy_lose_nothing() {
    for world in worlds() {
        let file = world.create("file");
        let layout = world.grant_files(&file, 1, Write).unwrap();
        assert_eq!(world.client_write_files(&layout, 0, &bytes(5000, 1)), 0);
        world.commit(&file, 1, 5000);
        let object = world.record(&file).copies[0].object;
        world.report(&file, 1, object, DataError::Unreachable);
        world.servers.set_down(object.server.0, true);
        assert_eq!(world.write(&file, 0, b"lost"), Err(VfsError::Io), "there is no other copy");
        assert_eq!(world.read(&file), Err(VfsError::Io));
        let released = world.run(|caller| world.pnfs.release(caller, &file, LayoutHolder(1), LayoutModes::WRITE));
        assert_eq!(released, Err(VfsError::Io), "the size of the object is not known");
        world.servers.set_down(object.server.0, false);
        world.upkeep();
        assert_eq!(world.read(&file).unwrap(), bytes(5000, 1));
        world.write(&file, 0, b"next").unwrap();
        assert!(world.grant_files(&file, 2, Write).is_ok());
    }
}

/// Such files can be there from a time with other settings.
#[test]
fn files_with_two_copies_have_files_layouts_to_read_only() {
    let world = World::of(LayoutKind::Flexible, Stripes::new(704, 2).unwrap(), 4);
    let file = world.create("file");
    world.write(&file, 0, &bytes(5000, 1)).unwrap();
    let world = world.crash_to(Some(LayoutKind::Files));
    world.upkeep();
    assert_eq!(world.grant_files(&file, 1, Write), Err(VfsError::NotSupported));
    assert_eq!(world.grant_files(&file, 2, Read).unwrap().handles.len(), 2);
}

#[test]
fn each_tree_grants_one_kind_of_layout() {
    for (kind, other) in [(LayoutKind::Files, LayoutKind::Flexible), (LayoutKind::Flexible, LayoutKind::Files)] {
        let world = World::of(kind, Stripes::ONE, 4);
        let file = world.create("file");
        let grant = |kind| {
            let request = LayoutRequest { kind, ..World::request(1, Write) };
            world.run(|caller| world.pnfs.grant(caller, &file, &request)).map(|layout| layout.kind())
        };
        assert_eq!((grant(kind), grant(other)), (Ok(kind), Err(VfsError::NotSupported)));
        assert_eq!(world.pnfs.caps().kinds, [kind]);
    }
}

#[test]
fn devices_are_found_by_their_kind() {
    let world = World::of(LayoutKind::Files, Stripes::new(704, 2).unwrap(), 4);
    let file = world.create("file");
    let device = world.grant_files(&file, 1, Read).map(|layout| layout.device);
    assert_eq!(device, Err(VfsError::NotSupported), "the data are still on this server");
    let device = world.grant_files(&file, 1, Write).unwrap().device;
    let find = |kind| world.run(|caller| world.pnfs.device(caller, device, kind));
    let LayoutDevice::Files { stripes, servers } = find(LayoutKind::Files).unwrap() else { panic!("a files device") };
    assert_eq!((stripes, servers.len()), (vec![0, 1], 2));
    assert_eq!(find(LayoutKind::Flexible), Err(VfsError::NotFound));
}

#[test]
fn files_layouts_need_one_copy() {
    let memory = Memory::new(MemoryOptions { mode: 0o777, ..Default::default() });
    let index = Index::with_backend(InMemoryBackend::new()).unwrap();
    let (layouts, earlier) = (Some(LayoutKind::Files), Earlier::NOTHING);
    let options = Options { mirrors: 2, stripes: Stripes::ONE, threshold: 0, layouts, earlier };
    let error = Pnfs::new(Arc::new(memory), Arc::new(Servers::new(4)), index, options).map(drop).unwrap_err();
    assert!(error.to_string().starts_with("mirrors = 2: a files layout has no copies"), "{error}");
}
