//! The bytes of storage that files take.

use std::ops::ControlFlow;

use buf::{Pool, Rope};
use bytes::Bytes;
use vfs::{
    AclKind, Attr, Handle, Name, Report, Rights, SetAttr, Stability, Vfs, Writer, XattrMode,
    layout::{LayoutCommit, LayoutHolder, LayoutMode, LayoutRange},
};

use crate::world::World;

/// Returns the attributes of a file in the root that all operations report, each with the operation.
fn reported(world: &World, file: &Handle, name: &str) -> Vec<(&'static str, Attr)> {
    let (tree, root, pool) = (&world.pnfs, world.pnfs.root(), Pool::default());
    let name = Name::new(name.as_bytes()).unwrap();
    let (mode, other) = (SetAttr { mode: Some(0o600), ..SetAttr::default() }, Name::new(b"user").unwrap());
    let mut all = vec![
        ("getattr", world.run(|caller| tree.getattr(caller, file)).unwrap()),
        ("lookup", world.run(|caller| tree.lookup(caller, &root, name)).unwrap().1),
        ("access", world.run(|caller| tree.access(caller, file, Rights::ALL)).unwrap().1),
        ("statfs", world.run(|caller| tree.statfs(caller, file)).unwrap().attr),
        ("setattr", world.run(|caller| tree.setattr(caller, file, &mode, None)).unwrap().after),
        ("read", world.run(|caller| tree.read(caller, file, 0, 10, &pool, false)).unwrap().attr),
        ("read_into", world.run(|caller| tree.read_into(caller, file, 0, &mut [0; 10])).unwrap().attr),
        ("commit", world.run(|caller| tree.commit(caller, file, 0, 0)).unwrap().after),
    ];
    let (data, report) = (Rope::from(Bytes::from_static(b"data")), Report::Attributes(Writer(1)));
    let written = world.run(|caller| tree.write(caller, file, 0, &data, Stability::Unstable, report)).unwrap();
    all.push(("write", written.after.unwrap()));
    let set = |caller: &vfs::Caller<'_>| tree.set_xattr(caller, file, other, b"value", XattrMode::Either);
    all.push(("set_xattr", world.run(set).unwrap().after));
    all.push(("remove_xattr", world.run(|caller| tree.remove_xattr(caller, file, other)).unwrap().after));
    all.push(("deallocate", world.run(|caller| tree.deallocate(caller, file, 0, 1)).unwrap().after));
    if let Ok((_, attr)) = world.run(|caller| tree.acl(caller, file, AclKind::Access)) {
        all.push(("acl", attr));
    }
    let open = vfs::CreateMode::Unchecked(SetAttr::default());
    all.push(("create", world.run(|caller| tree.create(caller, &root, name, &open)).unwrap().attr));
    let mut listed = Vec::new();
    world
        .run(|caller| {
            tree.readdir(caller, &root, 0, [0; 8], true, &mut |entry| {
                listed.extend(entry.object.filter(|(object, _)| object == file).map(|(_, attr)| attr));
                ControlFlow::Continue(())
            })
        })
        .unwrap();
    all.extend(listed.into_iter().map(|attr| ("readdir", attr)));
    let link = Name::new(b"link").unwrap();
    all.push(("link", world.run(|caller| tree.link(caller, file, &root, link)).unwrap().1));
    world.run(|caller| tree.remove(caller, &root, link)).unwrap();
    all
}

/// GNU tar archives a file that takes no storage as one hole.
#[test]
fn file_on_data_servers_takes_as_many_bytes_as_it_is_long() {
    for world in World::each() {
        let file = world.create("file");
        world.write(&file, 0, &[1; 5000]).unwrap();
        // It is smaller than the threshold, and stays on data servers.
        for size in [5000, 50, 100_000] {
            world.truncate(&file, size).unwrap();
            let all = reported(&world, &file, "file");
            assert!(all.iter().any(|(operation, _)| *operation == "readdir"));
            for (operation, attr) in all {
                assert_eq!(attr.size, size, "{operation}");
                assert!(attr.used >= size, "{operation}: {} of {size} bytes", attr.used);
            }
        }
        world.grant(&file, 1, LayoutMode::Write).ok();
        let commit = LayoutCommit { range: LayoutRange::ALL, size: Some(200_000), mtime: None };
        let holder = Some(LayoutHolder(1));
        let committed = world.run(|caller| vfs::Layouts::commit(&world.pnfs, caller, &file, holder, &commit));
        assert_eq!(committed.unwrap().after.used, 200_000);
    }
}

#[test]
fn file_in_the_inner_file_system_takes_what_it_takes_there() {
    let world = World::new();
    let (file, sparse) = (world.create("file"), world.create("sparse"));
    world.write(&file, 0, &[1; 100]).unwrap();
    world.truncate(&sparse, 1 << 30).unwrap();
    let attr = |object: &Handle| world.run(|caller| world.pnfs.getattr(caller, object)).unwrap();
    assert!(attr(&file).used >= 100);
    assert_eq!(attr(&sparse).used, 0, "programs need not read a file that has no data");
    for object in [file, sparse, world.pnfs.root()] {
        assert_eq!(attr(&object), world.inner_attr(&object));
    }
}

/// The next process learns from the record that the file has data.
#[test]
fn space_of_a_file_is_known_after_a_restart() {
    let world = World::new();
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    assert!(world.inner_attr(&file).used < 5000);
    let world = world.crash();
    for operations in 0..2 {
        let attr = world.run(|caller| world.pnfs.getattr(caller, &file)).unwrap();
        assert_eq!(attr.used, 5000, "{operations}");
        // The attribute is not read again.
        world.disk.before("xattr", 0, || panic!("the attribute must not be read"));
    }
}
