//! Creating objects and names.

use vfs::{CreateMode, Device, Kind, Name, NodeKind, SetAttr, VfsError};

use crate::backend::{Outcome, Skipped, World, caller, clock_moves, mode, name, size};

pub fn a_new_tree_is_an_empty_directory(w: &World) -> Outcome {
    let root = w.attr(&w.root());
    assert_eq!((root.kind, root.nlink), (Kind::Dir, 2));
    assert!(w.list(&w.root(), 10).is_empty());
    assert_eq!(w.lookup(&w.root(), "x").unwrap_err(), VfsError::NotFound);
    assert_eq!(w.lookup(&w.root(), ".").unwrap(), w.root());
    Ok(())
}

pub fn files_are_created_with_their_attributes(w: &World) -> Outcome {
    let set = SetAttr { mode: Some(0o4751), size: Some(12345), ..Default::default() };
    let made = w.create(&w.cred, &w.root(), "f", &set).unwrap();
    assert_eq!((made.attr.kind, made.attr.mode, made.attr.size), (Kind::File, 0o4751, 12345));
    assert_eq!((made.attr.nlink, made.attr.uid), (1, w.cred.uid));
    assert_eq!(w.attr(&made.handle), made.attr);
    let (found, attr) = w.fs.lookup(&w.me(), &w.root(), name("f")).unwrap();
    assert_eq!((found, attr), (made.handle, made.attr));
    Ok(())
}

pub fn modes_are_not_masked_and_have_defaults(w: &World) -> Outcome {
    let root = w.root();
    let made = |at: &str, set: &SetAttr| w.create(&w.cred, &root, at, set).unwrap().attr.mode;
    assert_eq!(made("all", &mode(0o666)), 0o666);
    assert_eq!(made("none", &mode(0)), 0);
    assert_eq!(made("default", &SetAttr::default()), vfs::DEFAULT_MODE);
    let dir = |at: &str, set: &SetAttr| w.fs.mkdir(&w.me(), &root, name(at), set).unwrap().attr.mode;
    assert_eq!(dir("dir", &mode(0o777)), 0o777);
    assert_eq!(dir("default-dir", &SetAttr::default()), vfs::DEFAULT_DIR_MODE);
    Ok(())
}

pub fn guarded_create_refuses_an_existing_name(w: &World) -> Outcome {
    let root = w.root();
    let file = w.file(&root, "f");
    w.write(&file, 0, b"stays").unwrap();
    w.dir(&root, "d");
    for at in ["f", "d"] {
        assert_eq!(w.create(&w.cred, &root, at, &size(0)).unwrap_err(), VfsError::Exists);
        assert_eq!(w.fs.mkdir(&w.me(), &root, name(at), &mode(0o755)).unwrap_err(), VfsError::Exists);
        let symlink = w.fs.symlink(&w.me(), &root, name(at), b"t", &SetAttr::default());
        assert_eq!(symlink.unwrap_err(), VfsError::Exists);
        let fifo = w.fs.mknod(&w.me(), &root, name(at), NodeKind::Fifo, &mode(0o644));
        assert_eq!(fifo.unwrap_err(), VfsError::Exists);
        assert_eq!(w.fs.link(&w.me(), &file, &root, name(at)).unwrap_err(), VfsError::Exists);
    }
    assert_eq!(&w.read(&file, 0, 10).unwrap()[..], b"stays");
    Ok(())
}

pub fn unchecked_create_opens_and_truncates(w: &World) -> Outcome {
    let root = w.root();
    let unchecked = |set| w.fs.create(&w.me(), &root, name("f"), &CreateMode::Unchecked(set));
    let made = unchecked(mode(0o640)).unwrap();
    w.write(&made.handle, 0, b"data").unwrap();
    let again = unchecked(mode(0o600)).unwrap();
    assert_eq!((again.handle, again.attr.size, again.attr.mode), (made.handle.clone(), 4, 0o640));
    let cut = unchecked(size(1)).unwrap();
    assert_eq!((cut.handle, cut.attr.size), (made.handle, 1));
    for (at, make) in [("d", true), ("l", false)] {
        if make {
            w.dir(&root, at);
        } else {
            w.fs.symlink(&w.me(), &root, name(at), b"elsewhere", &SetAttr::default()).unwrap();
        }
        let open = w.fs.create(&w.me(), &root, name(at), &CreateMode::Unchecked(size(0)));
        assert_eq!(open.unwrap_err(), VfsError::Exists, "{at} is not a file");
    }
    Ok(())
}

pub fn exclusive_create_can_be_replayed(w: &World) -> Outcome {
    let root = w.root();
    for (i, verifier) in [[0; 8], [1, 2, 3, 4, 5, 6, 7, 8], [0xff; 8]].into_iter().enumerate() {
        let at = format!("f{i}");
        let create = |verifier| w.fs.create(&w.me(), &root, name(&at), &CreateMode::Exclusive(verifier));
        let first = create(verifier).unwrap();
        assert_eq!(first.attr.size, 0);
        let replay = create(verifier).unwrap();
        assert_eq!(replay.handle, first.handle);
        for bit in 0..64 {
            let mut other = verifier;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(create(other).unwrap_err(), VfsError::Exists, "bit {bit} must matter");
        }
    }
    w.file(&root, "plain");
    let other = w.fs.create(&w.me(), &root, name("plain"), &CreateMode::Exclusive([0; 8]));
    assert_eq!(other.unwrap_err(), VfsError::Exists);
    Ok(())
}

pub fn directories_count_their_subdirectories(w: &World) -> Outcome {
    let root = w.root();
    let dir = w.dir(&root, "d");
    assert_eq!((w.attr(&dir).nlink, w.attr(&root).nlink), (2, 3));
    w.dir(&dir, "a");
    w.file(&dir, "f");
    assert_eq!(w.attr(&dir).nlink, 3);
    w.rename(&dir, "a", &root, "a").unwrap();
    assert_eq!((w.attr(&dir).nlink, w.attr(&root).nlink), (2, 4));
    w.fs.rmdir(&w.me(), &root, name("a")).unwrap();
    assert_eq!(w.attr(&root).nlink, 3);
    Ok(())
}

pub fn symlinks_hold_any_target(w: &World) -> Outcome {
    let long = vec![b'x'; vfs::TARGET_MAX];
    let targets: [&[u8]; 6] = [b"a", b"/etc/passwd", b"../../..", b"\xff\n/", b".", &long];
    for (i, target) in targets.into_iter().enumerate() {
        let at = format!("l{i}");
        let made = w.fs.symlink(&w.me(), &w.root(), name(&at), target, &SetAttr::default()).unwrap();
        assert_eq!((made.attr.kind, made.attr.size), (Kind::Symlink, target.len() as u64));
        let (read, attr) = w.fs.readlink(&w.me(), &made.handle).unwrap();
        assert_eq!((&read[..], attr.fileid), (target, made.attr.fileid));
        assert_eq!(w.lookup(&w.root(), &at).unwrap(), made.handle);
    }
    let file = w.file(&w.root(), "f");
    assert_eq!(w.fs.readlink(&w.me(), &file).unwrap_err(), VfsError::Invalid);
    assert_eq!(w.fs.readlink(&w.me(), &w.root()).unwrap_err(), VfsError::Invalid);
    Ok(())
}

pub fn bad_symlink_targets_are_refused(w: &World) -> Outcome {
    let make = |target: &[u8]| w.fs.symlink(&w.me(), &w.root(), name("l"), target, &SetAttr::default()).unwrap_err();
    assert_eq!(make(b""), VfsError::Invalid);
    assert_eq!(make(b"a\0b"), VfsError::Invalid);
    assert_eq!(make(&vec![b'x'; vfs::TARGET_MAX + 1]), VfsError::NameTooLong);
    Ok(())
}

pub fn special_files_are_created(w: &World) -> Outcome {
    let make = |at: &str, node| w.fs.mknod(&w.me(), &w.root(), name(at), node, &mode(0o620)).map(|made| made.attr);
    let fifo = make("fifo", NodeKind::Fifo).unwrap();
    assert_eq!((fifo.kind, fifo.mode, fifo.nlink), (Kind::Fifo, 0o620, 1));
    assert_eq!(make("socket", NodeKind::Socket).unwrap().kind, Kind::Socket);
    let device = Device { major: 300, minor: 70_000 };
    if w.cred.uid != 0 {
        return Err(Skipped("needs root: devices"));
    }
    for (at, node, kind) in
        [("char", NodeKind::Char(device), Kind::Char), ("block", NodeKind::Block(device), Kind::Block)]
    {
        let attr = make(at, node).unwrap();
        assert_eq!((attr.kind, attr.device, attr.mode), (kind, device, 0o620));
        assert_eq!(w.attr(&w.lookup(&w.root(), at).unwrap()), attr);
    }
    Ok(())
}

pub fn dots_cannot_be_created(w: &World) -> Outcome {
    let (root, file) = (w.root(), w.file(&w.root(), "f"));
    for dots in [".", ".."] {
        let at = name(dots);
        assert_eq!(w.create(&w.cred, &root, dots, &mode(0o644)).unwrap_err(), VfsError::Exists);
        let unchecked = w.fs.create(&w.me(), &root, at, &CreateMode::Unchecked(mode(0o644)));
        assert_eq!(unchecked.unwrap_err(), VfsError::Exists);
        let exclusive = w.fs.create(&w.me(), &root, at, &CreateMode::Exclusive([1; 8]));
        assert_eq!(exclusive.unwrap_err(), VfsError::Exists);
        assert_eq!(w.fs.mkdir(&w.me(), &root, at, &mode(0o755)).unwrap_err(), VfsError::Exists);
        let symlink = w.fs.symlink(&w.me(), &root, at, b"t", &SetAttr::default());
        assert_eq!(symlink.unwrap_err(), VfsError::Exists);
        let fifo = w.fs.mknod(&w.me(), &root, at, NodeKind::Fifo, &mode(0o644));
        assert_eq!(fifo.unwrap_err(), VfsError::Exists);
        assert_eq!(w.fs.link(&w.me(), &file, &root, at).unwrap_err(), VfsError::Exists);
    }
    Ok(())
}

pub fn names_are_bytes(w: &World) -> Outcome {
    let names: [&[u8]; 9] =
        [b"\xff\xfe", b"\n", b" ", b"...", b"-rf", b"a\\b", b"\x01\x7f", "\u{e4}".as_bytes(), "a\u{308}".as_bytes()];
    for at in names {
        let at = Name::new(at).unwrap();
        let made = w.fs.create(&w.me(), &w.root(), at, &CreateMode::Guarded(mode(0o644))).unwrap();
        assert_eq!(w.fs.lookup(&w.me(), &w.root(), at).unwrap().0, made.handle);
    }
    let mut listed = w.list(&w.root(), 3);
    let mut expected = names.map(<[u8]>::to_vec).to_vec();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    for bad in [&b""[..], b"a/b", b"/", b"a\0"] {
        assert_eq!(Name::new(bad).unwrap_err(), VfsError::Invalid);
    }
    Ok(())
}

pub fn names_have_a_maximum_length(w: &World) -> Outcome {
    let longest = "n".repeat(w.fs.caps().name_max as usize);
    let file = w.file(&w.root(), &longest);
    assert_eq!(w.lookup(&w.root(), &longest).unwrap(), file);
    assert_eq!(w.list(&w.root(), 10), [longest.as_bytes()]);
    assert_eq!(Name::new(&[b'n'; 256]).unwrap_err(), VfsError::NameTooLong);
    Ok(())
}

pub fn objects_are_created_only_in_directories(w: &World) -> Outcome {
    let (root, at) = (w.root(), name("x"));
    let file = w.file(&root, "f");
    let link = w.fs.symlink(&w.me(), &root, name("l"), b".", &SetAttr::default()).unwrap().handle;
    for no_dir in [&file, &link] {
        assert_eq!(w.create(&w.cred, no_dir, "x", &mode(0o644)).unwrap_err(), VfsError::NotDir);
        assert_eq!(w.fs.mkdir(&w.me(), no_dir, at, &mode(0o755)).unwrap_err(), VfsError::NotDir);
        let symlink = w.fs.symlink(&w.me(), no_dir, at, b"t", &SetAttr::default());
        assert_eq!(symlink.unwrap_err(), VfsError::NotDir);
        let fifo = w.fs.mknod(&w.me(), no_dir, at, NodeKind::Fifo, &mode(0o644));
        assert_eq!(fifo.unwrap_err(), VfsError::NotDir);
        assert_eq!(w.fs.link(&w.me(), &file, no_dir, at).unwrap_err(), VfsError::NotDir);
        assert_eq!(w.lookup(no_dir, "x").unwrap_err(), VfsError::NotDir);
        assert_eq!(w.lookup(no_dir, ".").unwrap_err(), VfsError::NotDir);
        assert_eq!(w.fs.remove(&w.me(), no_dir, at).unwrap_err(), VfsError::NotDir);
        assert_eq!(w.fs.rmdir(&w.me(), no_dir, at).unwrap_err(), VfsError::NotDir);
        assert_eq!(w.rename(no_dir, "x", &root, "y").unwrap_err(), VfsError::NotDir);
        assert_eq!(w.rename(&root, "f", no_dir, "y").unwrap_err(), VfsError::NotDir);
    }
    Ok(())
}

pub fn hard_links_are_one_object(w: &World) -> Outcome {
    let root = w.root();
    let (dir, file) = (w.dir(&root, "d"), w.file(&root, "f"));
    let (change, attr) = w.fs.link(&w.me(), &file, &dir, name("g")).unwrap();
    assert_eq!((attr.nlink, change.after.kind), (2, Kind::Dir));
    let found = w.lookup(&dir, "g").unwrap();
    assert_eq!(w.attr(&found).fileid, w.attr(&file).fileid);
    w.write(&found, 0, b"shared").unwrap();
    assert_eq!(&w.read(&file, 0, 10).unwrap()[..], b"shared");
    let fifo = w.fs.mknod(&w.me(), &root, name("p"), NodeKind::Fifo, &mode(0o644)).unwrap().handle;
    assert_eq!(w.fs.link(&w.me(), &fifo, &root, name("q")).unwrap().1.nlink, 2);
    let symlink = w.fs.symlink(&w.me(), &root, name("l"), b"nowhere", &SetAttr::default()).unwrap().handle;
    let (_, attr) = w.fs.link(&w.me(), &symlink, &root, name("m")).unwrap();
    assert_eq!((attr.kind, attr.nlink), (Kind::Symlink, 2));
    Ok(())
}

pub fn links_to_directories_are_refused(w: &World) -> Outcome {
    let dir = w.dir(&w.root(), "d");
    assert_eq!(w.fs.link(&w.me(), &dir, &w.root(), name("e")).unwrap_err(), VfsError::IsDir);
    assert_eq!(w.fs.link(&w.me(), &w.root(), &dir, name("e")).unwrap_err(), VfsError::IsDir);
    Ok(())
}

pub fn changes_show_before_and_after(w: &World) -> Outcome {
    let dir = w.dir(&w.root(), "d");
    let mut last = w.attr(&dir);
    let mut follows = |change: vfs::Change| {
        assert_eq!(change.before.ctime, last.ctime, "the attributes before must be the previous ones");
        assert!(change.after.ctime > last.ctime && change.after.mtime > last.mtime, "a change must increase the times");
        last = change.after;
    };
    let me = caller(&w.cred);
    // Time must advance noticeably even if its resolution is coarse.
    let pause = clock_moves;
    pause();
    let file = w.create(&w.cred, &dir, "f", &mode(0o644)).unwrap();
    follows(file.dir);
    pause();
    follows(w.fs.mkdir(&me, &dir, name("s"), &mode(0o755)).unwrap().dir);
    pause();
    follows(w.fs.symlink(&me, &dir, name("l"), b"t", &SetAttr::default()).unwrap().dir);
    pause();
    follows(w.fs.mknod(&me, &dir, name("p"), NodeKind::Fifo, &mode(0o644)).unwrap().dir);
    pause();
    follows(w.fs.link(&me, &file.handle, &dir, name("g")).unwrap().0);
    pause();
    follows(w.rename(&dir, "g", &dir, "h").unwrap().0);
    pause();
    follows(w.fs.remove(&me, &dir, name("h")).unwrap());
    pause();
    follows(w.fs.rmdir(&me, &dir, name("s")).unwrap());
    Ok(())
}
