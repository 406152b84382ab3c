//! Permissions. If the tests run as an ordinary user, the posix back end serves all callers as that user, and these
//! cases are skipped.

use std::ops::ControlFlow;

use vfs::{Caller, Cred, Device, NodeKind, Rights, SetAttr, SetTime, Time, VfsError};

use crate::backend::{Outcome, World, caller, cred, mode, name, size};

const OWNER: u32 = 1001;
const GROUP: u32 = 2001;

fn owner() -> Cred {
    cred(OWNER, GROUP, &[])
}

fn member() -> Cred {
    cred(1002, 2002, &[2003, GROUP])
}

fn other() -> Cred {
    cred(1003, 2003, &[2004, 2005])
}

/// Creates a file that belongs to [`OWNER`] and [`GROUP`].
fn owned(w: &World, at: &str, bits: u32) -> vfs::Handle {
    w.create(&owner(), &w.root(), at, &mode(bits)).unwrap().handle
}

fn owned_dir(w: &World, at: &str, bits: u32) -> vfs::Handle {
    w.fs.mkdir(&caller(&owner()), &w.root(), name(at), &mode(bits)).unwrap().handle
}

pub fn search_needs_execute(w: &World) -> Outcome {
    w.need_identities()?;
    let dir = owned_dir(w, "d", 0o710);
    w.create(&owner(), &dir, "f", &mode(0o644)).unwrap();
    let lookup = |cred: &Cred, at: &str| {
        let found = w.fs.lookup(&caller(cred), &dir, name(at)).map(drop);
        assert_eq!(
            w.fs.find(&caller(cred), &dir, name(at)).map(drop),
            found,
            "the result must be the same with and without attributes"
        );
        found
    };
    for at in ["f", ".", ".."] {
        assert_eq!(lookup(&owner(), at), Ok(()));
        assert_eq!(lookup(&member(), at), Ok(()));
        assert_eq!(lookup(&other(), at), Err(VfsError::Access));
    }
    assert_eq!(lookup(&other(), "x"), Err(VfsError::Access));
    let list =
        |cred: &Cred| w.fs.readdir(&caller(cred), &dir, 0, [0; 8], false, &mut |_| ControlFlow::Continue(())).map(drop);
    assert_eq!(list(&owner()), Ok(()));
    assert_eq!(list(&member()), Err(VfsError::Access));
    Ok(())
}

pub fn reading_and_writing_need_permission(w: &World) -> Outcome {
    w.need_identities()?;
    let file = owned(w, "f", 0o640);
    w.write_as(&owner(), &file, 0, b"data").unwrap();
    assert_eq!(&w.read_as(&member(), &file, 0, 9).unwrap()[..], b"data");
    assert_eq!(w.read_as(&other(), &file, 0, 9).unwrap_err(), VfsError::Access);
    assert_eq!(w.write_as(&member(), &file, 0, b"x").unwrap_err(), VfsError::Access);
    assert_eq!(w.write_as(&other(), &file, 0, b"x").unwrap_err(), VfsError::Access);
    assert_eq!(w.set_as(&member(), &file, &size(0)).unwrap_err(), VfsError::Access);
    // The result for one caller must not apply to another.
    assert_eq!(&w.read_as(&owner(), &file, 0, 9).unwrap()[..], b"data");
    assert_eq!(w.read_as(&other(), &file, 0, 9).unwrap_err(), VfsError::Access);
    w.set_as(&owner(), &file, &mode(0o666)).unwrap();
    w.write_as(&other(), &file, 0, b"open").unwrap();
    // A client that opens a file with truncation sets time and size at once.
    w.set_as(&other(), &file, &SetAttr { mtime: Some(SetTime::Now), ..size(0) }).unwrap();
    w.set_as(&owner(), &file, &mode(0o600)).unwrap();
    assert_eq!(w.write_as(&other(), &file, 0, b"shut").unwrap_err(), VfsError::Access);
    assert_eq!(w.read_as(&member(), &file, 0, 9).unwrap_err(), VfsError::Access);
    Ok(())
}

pub fn owners_read_and_write_whatever_the_mode(w: &World) -> Outcome {
    // RFC 1813 §4.4: a client checks permissions when it opens a file, and expects to keep access.
    let me = if w.identities { owner() } else { w.cred.clone() };
    let made = w.create(&me, &w.root(), "f", &mode(0o444)).unwrap();
    w.write_as(&me, &made.handle, 0, b"read-only").unwrap();
    w.set_as(&me, &made.handle, &mode(0)).unwrap();
    assert_eq!(&w.read_as(&me, &made.handle, 0, 20).unwrap()[..], b"read-only");
    w.set_as(&me, &made.handle, &size(4)).unwrap();
    w.write_as(&me, &made.handle, 4, b"!").unwrap();
    assert_eq!(&w.read_as(&me, &made.handle, 0, 20).unwrap()[..], b"read!");
    assert_eq!(w.attr(&made.handle).mode, 0);
    Ok(())
}

pub fn executable_files_can_be_read(w: &World) -> Outcome {
    w.need_identities()?;
    let file = owned(w, "f", 0o711);
    w.write_as(&owner(), &file, 0, b"program").unwrap();
    assert_eq!(&w.read_as(&other(), &file, 0, 9).unwrap()[..], b"program");
    assert_eq!(w.write_as(&other(), &file, 0, b"x").unwrap_err(), VfsError::Access);
    Ok(())
}

pub fn supplementary_groups_grant_access(w: &World) -> Outcome {
    w.need_identities()?;
    let file = owned(w, "f", 0o460);
    w.write_as(&member(), &file, 0, b"x").unwrap();
    let many: Vec<u32> = (3000..3015).chain([GROUP]).collect();
    w.write_as(&cred(7, 8, &many), &file, 0, b"x").unwrap();
    assert_eq!(w.write_as(&cred(7, 8, &many[..15]), &file, 0, b"x").unwrap_err(), VfsError::Access);
    // The first class that matches decides: the bits for others do not apply to a member of the group.
    let file = owned(w, "g", 0o604);
    assert_eq!(w.read_as(&member(), &file, 0, 1).unwrap_err(), VfsError::Access);
    w.read_as(&other(), &file, 0, 1).unwrap();
    Ok(())
}

pub fn the_superuser_may_do_everything(w: &World) -> Outcome {
    w.need_identities()?;
    let root = Cred::root();
    let (file, dir) = (owned(w, "f", 0), owned_dir(w, "d", 0));
    w.write_as(&root, &file, 0, b"x").unwrap();
    w.read_as(&root, &file, 0, 1).unwrap();
    let inner = w.create(&root, &dir, "f", &mode(0o600)).unwrap().handle;
    w.set_as(&root, &inner, &SetAttr { uid: Some(5), gid: Some(6), ..mode(0o123) }).unwrap();
    let attr = w.attr(&inner);
    assert_eq!((attr.uid, attr.gid, attr.mode), (5, 6, 0o123));
    w.fs.remove(&caller(&root), &dir, name("f")).unwrap();
    Ok(())
}

pub fn access_returns_granted_rights(w: &World) -> Outcome {
    w.need_identities()?;
    let rights = |cred: &Cred, object: &vfs::Handle, wanted| {
        let (rights, _) = w.fs.access(&caller(cred), object, wanted).unwrap();
        assert_eq!(
            w.fs.permits(&caller(cred), object, wanted),
            Ok(rights),
            "the result must be the same with and without attributes"
        );
        rights
    };
    let (none, all) = (Rights::default(), Rights::ALL);
    let file = owned(w, "f", 0o754);
    let write = Rights { modify: true, extend: true, ..none };
    assert_eq!(rights(&owner(), &file, all), Rights { read: true, execute: true, ..write });
    assert_eq!(rights(&member(), &file, all), Rights { read: true, execute: true, ..none });
    assert_eq!(rights(&other(), &file, all), Rights { read: true, ..none });
    assert_eq!(rights(&owner(), &file, Rights { read: true, ..none }), Rights { read: true, ..none });
    assert_eq!(rights(&owner(), &file, none), none);
    assert_eq!(rights(&Cred::root(), &owned(w, "g", 0), all), Rights { read: true, ..write });
    let dir = owned_dir(w, "d", 0o731);
    let names = Rights { delete: true, lookup: true, ..write };
    assert_eq!(rights(&owner(), &dir, all), Rights { read: true, ..names });
    assert_eq!(rights(&member(), &dir, all), names);
    assert_eq!(rights(&other(), &dir, all), Rights { lookup: true, ..none });
    let useless = owned_dir(w, "e", 0o720);
    assert_eq!(rights(&member(), &useless, all), none, "write permission without search permission is useless");
    Ok(())
}

pub fn directories_need_write_for_names(w: &World) -> Outcome {
    w.need_identities()?;
    let dir = owned_dir(w, "d", 0o755);
    let free = owned_dir(w, "free", 0o777);
    let file = w.create(&owner(), &dir, "f", &mode(0o666)).unwrap().handle;
    let other = other();
    let him = caller(&other);
    w.create(&other, &free, "g", &mode(0o644)).unwrap();
    assert_eq!(w.create(&other, &dir, "x", &mode(0o644)).unwrap_err(), VfsError::Access);
    assert_eq!(w.fs.mkdir(&him, &dir, name("x"), &mode(0o755)).unwrap_err(), VfsError::Access);
    let symlink = w.fs.symlink(&him, &dir, name("x"), b"t", &SetAttr::default());
    assert_eq!(symlink.unwrap_err(), VfsError::Access);
    let fifo = w.fs.mknod(&him, &dir, name("x"), NodeKind::Fifo, &mode(0o644));
    assert_eq!(fifo.unwrap_err(), VfsError::Access);
    assert_eq!(w.fs.link(&him, &file, &dir, name("x")).unwrap_err(), VfsError::Access);
    assert_eq!(w.fs.remove(&him, &dir, name("f")).unwrap_err(), VfsError::Access);
    assert_eq!(w.fs.remove(&him, &dir, name("none")).unwrap_err(), VfsError::NotFound);
    let rename = |from, a, to, b| w.fs.rename(&him, from, name(a), to, name(b)).map(drop);
    assert_eq!(rename(&dir, "f", &free, "f"), Err(VfsError::Access));
    assert_eq!(rename(&free, "g", &dir, "g"), Err(VfsError::Access));
    // Moving a directory changes its `..` entry, which requires write permission.
    let moving = w.fs.mkdir(&caller(&owner()), &free, name("m"), &mode(0o755)).unwrap().handle;
    w.fs.mkdir(&him, &free, name("to"), &mode(0o777)).unwrap();
    let to = w.lookup(&free, "to").unwrap();
    assert_eq!(rename(&free, "m", &to, "m"), Err(VfsError::Access));
    assert_eq!(rename(&free, "m", &free, "n"), Ok(()));
    assert_eq!(w.lookup(&free, "n").unwrap(), moving);
    Ok(())
}

pub fn sticky_directories_protect_names(w: &World) -> Outcome {
    w.need_identities()?;
    let dir = owned_dir(w, "tmp", 0o1777);
    assert_eq!(w.attr(&dir).mode, 0o1777);
    let (member, other) = (member(), other());
    for at in ["a", "b", "c"] {
        w.create(&member, &dir, at, &mode(0o666)).unwrap();
    }
    w.create(&other, &dir, "own", &mode(0o666)).unwrap();
    let him = caller(&other);
    assert_eq!(w.fs.remove(&him, &dir, name("a")).unwrap_err(), VfsError::Perm);
    assert_eq!(w.fs.rename(&him, &dir, name("a"), &dir, name("x")).unwrap_err(), VfsError::Perm);
    assert_eq!(w.fs.rename(&him, &dir, name("own"), &dir, name("a")).unwrap_err(), VfsError::Perm);
    w.fs.remove(&him, &dir, name("own")).unwrap();
    w.fs.remove(&caller(&member), &dir, name("a")).unwrap();
    w.fs.remove(&caller(&owner()), &dir, name("b")).unwrap();
    w.fs.remove(&caller(&Cred::root()), &dir, name("c")).unwrap();
    Ok(())
}

pub fn set_group_id_directories_determine_the_group(w: &World) -> Outcome {
    w.need_identities()?;
    let dir = owned_dir(w, "d", 0o777);
    w.set_as(&owner(), &dir, &mode(0o2777)).unwrap();
    let file = w.create(&other(), &dir, "f", &mode(0o2755)).unwrap().attr;
    assert_eq!((file.uid, file.gid), (1003, GROUP));
    assert_eq!(file.mode, 0o755, "set-group-id must be cleared if the caller is not in the group");
    let sub = w.fs.mkdir(&caller(&other()), &dir, name("s"), &mode(0o750)).unwrap().attr;
    assert_eq!((sub.gid, sub.mode), (GROUP, 0o2750));
    let link = w.fs.symlink(&caller(&other()), &dir, name("l"), b"t", &SetAttr::default()).unwrap().attr;
    assert_eq!(link.gid, GROUP);
    let fifo = w.fs.mknod(&caller(&other()), &dir, name("p"), NodeKind::Fifo, &mode(0o644)).unwrap().attr;
    assert_eq!(fifo.gid, GROUP);
    Ok(())
}

pub fn write_and_chown_clear_set_id_bits(w: &World) -> Outcome {
    w.need_identities()?;
    let file = owned(w, "f", 0o6777);
    assert_eq!(w.attr(&file).mode, 0o6777);
    assert_eq!(w.write_as(&other(), &file, 0, b"x").unwrap().mode, 0o777);
    w.set_as(&owner(), &file, &mode(0o6777)).unwrap();
    assert_eq!(w.set_as(&other(), &file, &size(0)).unwrap().after.mode, 0o777);
    w.set_as(&owner(), &file, &mode(0o6777)).unwrap();
    assert_eq!(
        w.write_as(&Cred::root(), &file, 0, b"x").unwrap().mode,
        0o6777,
        "a write by the superuser must not clear the bits"
    );
    let give = SetAttr { uid: Some(7), ..Default::default() };
    assert_eq!(w.set_as(&Cred::root(), &file, &give).unwrap().after.mode, 0o777);
    // Without execute permission for the group, set-group-id has another meaning and is kept.
    let file = owned(w, "g", 0o2666);
    assert_eq!(w.write_as(&member(), &file, 0, b"x").unwrap().mode, 0o2666);
    assert_eq!(w.write_as(&other(), &file, 0, b"x").unwrap().mode, 0o666);
    // If owner and mode are set in one call, the mode is set last.
    let both = SetAttr { gid: Some(8), ..mode(0o6755) };
    assert_eq!(w.set_as(&Cred::root(), &file, &both).unwrap().after.mode, 0o6755);
    let file = owned(w, "h", 0o644);
    w.set_as(&Cred::root(), &file, &SetAttr { gid: Some(9), ..Default::default() }).unwrap();
    assert_eq!(w.set_as(&owner(), &file, &mode(0o2755)).unwrap().after.mode, 0o755, "the caller is not in the group");
    Ok(())
}

pub fn only_owners_change_modes_and_times(w: &World) -> Outcome {
    w.need_identities()?;
    let file = owned(w, "f", 0o662);
    let time = Time { seconds: 5, nanoseconds: 0 };
    let exact = SetAttr { mtime: Some(SetTime::To(time)), ..Default::default() };
    let now = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..Default::default() };
    assert_eq!(w.set_as(&other(), &file, &mode(0o777)).unwrap_err(), VfsError::Perm);
    assert_eq!(w.set_as(&other(), &file, &exact).unwrap_err(), VfsError::Perm);
    w.set_as(&other(), &file, &now).unwrap();
    w.set_as(&owner(), &file, &exact).unwrap();
    w.set_as(&owner(), &file, &mode(0o640)).unwrap();
    assert_eq!(w.set_as(&other(), &file, &now).unwrap_err(), VfsError::Access);
    assert_eq!(w.attr(&file).mtime, time);
    Ok(())
}

pub fn only_the_superuser_changes_ownership(w: &World) -> Outcome {
    w.need_identities()?;
    assert!(w.fs.caps().chown_restricted);
    let file = owned(w, "f", 0o666);
    let uid = |uid| SetAttr { uid: Some(uid), ..Default::default() };
    let gid = |gid| SetAttr { gid: Some(gid), ..Default::default() };
    assert_eq!(w.set_as(&owner(), &file, &uid(7)).unwrap_err(), VfsError::Perm);
    assert_eq!(w.set_as(&other(), &file, &uid(1003)).unwrap_err(), VfsError::Perm);
    assert_eq!(w.set_as(&owner(), &file, &gid(2002)).unwrap_err(), VfsError::Perm);
    assert_eq!(w.set_as(&member(), &file, &gid(2002)).unwrap_err(), VfsError::Perm);
    w.set_as(&owner(), &file, &uid(OWNER)).unwrap();
    w.set_as(&cred(OWNER, GROUP, &[2002]), &file, &gid(2002)).unwrap();
    assert_eq!(w.attr(&file).gid, 2002);
    assert_eq!(w.create(&owner(), &w.root(), "g", &uid(7)).unwrap_err(), VfsError::Perm);
    assert_eq!(
        w.lookup(&w.root(), "g").unwrap_err(),
        VfsError::NotFound,
        "a failed creation must leave nothing behind"
    );
    let attr = w.create(&Cred::root(), &w.root(), "g", &SetAttr { gid: Some(8), ..uid(7) }).unwrap().attr;
    assert_eq!((attr.uid, attr.gid), (7, 8));
    Ok(())
}

pub fn only_the_superuser_creates_devices(w: &World) -> Outcome {
    w.need_identities()?;
    let other = other();
    for node in [NodeKind::Char(Device { major: 1, minor: 3 }), NodeKind::Block(Device { major: 8, minor: 0 })] {
        let made = w.fs.mknod(&caller(&other), &w.root(), name("x"), node, &mode(0o666));
        assert_eq!(made.unwrap_err(), VfsError::Perm);
    }
    for (at, node) in [("p", NodeKind::Fifo), ("s", NodeKind::Socket)] {
        w.fs.mknod(&caller(&other), &w.root(), name(at), node, &mode(0o666)).unwrap();
    }
    Ok(())
}

pub fn new_objects_belong_to_the_caller(w: &World) -> Outcome {
    w.need_identities()?;
    let (other, root) = (other(), w.root());
    let him = caller(&other);
    let attrs = [
        w.create(&other, &root, "f", &mode(0o644)).unwrap().attr,
        w.fs.mkdir(&him, &root, name("d"), &mode(0o755)).unwrap().attr,
        w.fs.symlink(&him, &root, name("l"), b"t", &SetAttr::default()).unwrap().attr,
        w.fs.mknod(&him, &root, name("p"), NodeKind::Fifo, &mode(0o644)).unwrap().attr,
        w.fs.create(&him, &root, name("x"), &vfs::CreateMode::Exclusive([1; 8])).unwrap().attr,
    ];
    assert!(attrs.iter().all(|attr| (attr.uid, attr.gid) == (1003, 2003)));
    Ok(())
}

pub fn identities_do_not_leak_between_threads(w: &World) -> Outcome {
    w.need_identities()?;
    let private: Vec<_> = (0..4u32)
        .map(|i| w.create(&cred(5000 + i, 6000 + i, &[]), &w.root(), &format!("f{i}"), &mode(0o600)).unwrap().handle)
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let private = &private;
            scope.spawn(move || {
                for i in 0..300usize {
                    let who = (i + thread) % 4;
                    let cred = cred(5000 + who as u32, 6000 + who as u32, &[]);
                    for (whose, file) in private.iter().enumerate() {
                        let read = w.read_as(&cred, file, 0, 1).map(drop);
                        assert_eq!(read, if whose == who { Ok(()) } else { Err(VfsError::Access) });
                    }
                    let at = format!("t{thread}-{i}");
                    let made = w.create(&cred, &w.root(), &at, &mode(0o600)).unwrap();
                    assert_eq!(made.attr.uid, cred.uid);
                    w.fs.remove(&Caller::blocking(&cred), &w.root(), name(&at)).unwrap();
                }
            });
        }
    });
    Ok(())
}
