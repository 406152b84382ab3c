//! Clients are told to forget devices that no layout has any more, and not before.

use std::pin::pin;

use pnfs::{DataServers, ServerId, Service, Stripes};
use vfs::{
    Handle, Name, Vfs,
    layout::{DataTransport, LayoutDeviceId, LayoutKind, LayoutMode, LayoutModes},
};

use crate::world::{World, step};

fn device(world: &World, server: ServerId) -> LayoutDeviceId {
    world.servers.device_id(server, DataTransport::Tcp).unwrap()
}

fn spilled(world: &World, name: &str) -> (Handle, ServerId) {
    let file = world.create(name);
    world.write(&file, 0, &[1; 5000]).unwrap();
    let server = world.record(&file).copies[0].object.server;
    (file, server)
}

#[test]
fn device_of_a_drained_data_server_is_removed_when_no_layout_has_it() {
    let world = World::new();
    let (file, from) = spilled(&world, "file");
    world.grant(&file, 1, LayoutMode::Read).unwrap();
    let (gone, last) = (world.create("gone"), device(&world, from));
    world.write(&gone, 0, &[1; 5000]).unwrap();
    world.release(&file, 1, LayoutModes::ALL);
    world.upkeep();
    assert_eq!(world.events.removed_devices(), [], "another layout would have it");
    // A client still has a layout of a file that is removed.
    world.grant(&file, 2, LayoutMode::Read).unwrap();
    let root = world.pnfs.root();
    world.run(|caller| world.pnfs.remove(caller, &root, Name::new(b"file").unwrap())).unwrap();
    world.pnfs.set_service(from, Service::Draining).unwrap();
    world.upkeep();
    assert!(world.pnfs.repairs().unwrap().is_done());
    assert_eq!(world.events.removed_devices(), [], "a layout has it");
    world.release(&file, 2, LayoutModes::ALL);
    world.upkeep();
    assert_eq!(world.events.removed_devices(), [last]);
    world.upkeep();
    assert_eq!(world.events.removed_devices(), [], "it is removed once");
    // It returns to service. Clients get its device again.
    world.pnfs.set_service(from, Service::Active).unwrap();
    let names = (0..20).map(|number| format!("file{number}"));
    let files: Vec<_> = names.map(|name| spilled(&world, &name).0).collect();
    for file in &files {
        world.grant(file, 1, LayoutMode::Read).unwrap();
        world.release(file, 1, LayoutModes::ALL);
    }
    world.pnfs.set_service(from, Service::Draining).unwrap();
    while !world.pnfs.repairs().unwrap().is_done() {
        world.upkeep();
    }
    world.upkeep();
    assert_eq!(world.events.removed_devices(), [last]);
}

#[test]
fn device_of_a_lost_data_server_is_removed() {
    let world = World::new();
    let (file, lost) = spilled(&world, "file");
    world.grant(&file, 1, LayoutMode::Read).unwrap();
    world.servers.set_down(lost.0, true);
    world.pnfs.set_service(lost, Service::Lost).unwrap();
    assert!(step(pin!(world.pnfs.upkeep())));
    assert_eq!((world.events.recalls(), world.events.removed_devices()), (vec![LayoutModes::READ], Vec::new()));
    world.release(&file, 1, LayoutModes::ALL);
    world.upkeep();
    assert_eq!(world.events.removed_devices(), [device(&world, lost)]);
}

#[test]
fn device_is_removed_when_its_data_server_has_another_one() {
    let world = World::new();
    let (file, server) = spilled(&world, "file");
    world.grant(&file, 1, LayoutMode::Read).unwrap();
    let former = device(&world, server);
    world.servers.set_version(server.0, 1);
    assert_ne!(device(&world, server), former);
    world.upkeep();
    assert_eq!(world.events.removed_devices(), [], "a layout has it");
    // The same client gets the new device, too.
    world.grant(&file, 2, LayoutMode::Read).unwrap();
    world.release(&file, 1, LayoutModes::ALL);
    world.upkeep();
    assert_eq!(world.events.removed_devices(), [former]);
}

#[test]
fn device_of_a_files_layout_is_removed_with_each_of_its_data_servers() {
    let world = World::of(LayoutKind::Files, Stripes::new(704, 2).unwrap(), 4);
    let (file, from) = spilled(&world, "file");
    let layout = world.grant_files(&file, 1, LayoutMode::Read).unwrap();
    world.release(&file, 1, LayoutModes::ALL);
    world.upkeep();
    assert_eq!(world.events.removed_devices(), []);
    world.pnfs.set_service(from, Service::Draining).unwrap();
    world.upkeep();
    assert_eq!(world.events.removed_devices(), [layout.device]);
}
