//! Holding files whose names are removed.

use vfs::{AclKind, Handle, Held, SetAttr, VfsError};

use crate::backend::{Outcome, World, mode, name, size};

fn hold(w: &World, file: &Handle) -> Held {
    w.fs.hold(&w.me(), file).unwrap()
}

fn remove(w: &World, at: &str) {
    w.fs.remove(&w.me(), &w.root(), name(at)).unwrap();
}

fn assert_stale(w: &World, file: &Handle) {
    assert_eq!(w.fs.getattr(&w.me(), file).unwrap_err(), VfsError::Stale);
    assert_eq!(w.read(file, 0, 1).unwrap_err(), VfsError::Stale);
    assert_eq!(w.fs.hold(&w.me(), file).map(drop).unwrap_err(), VfsError::Stale);
}

pub fn a_held_file_outlives_its_name(w: &World) -> Outcome {
    let (root, caps) = (w.root(), w.fs.caps());
    let file = w.file(&root, "f");
    w.write(&file, 0, b"old data").unwrap();
    let held = hold(w, &file);
    assert!(!held.is_removed());
    remove(w, "f");
    assert!(held.is_removed());
    assert_eq!(w.lookup(&root, "f").unwrap_err(), VfsError::NotFound);
    let other = w.file(&root, "f");
    assert_ne!(other, file);

    assert_eq!(&w.read(&file, 0, 9).unwrap()[..], b"old data");
    assert_eq!(w.write(&file, 0, b"new").unwrap().nlink, 0);
    w.fs.commit(&w.me(), &file, 0, 0).unwrap();
    assert_eq!(&w.read(&file, 0, 9).unwrap()[..], b"new data");
    assert_eq!(w.set(&file, &size(3)).unwrap().after.size, 3);
    assert_eq!(w.set(&file, &mode(0o600)).unwrap().after.mode, 0o600);
    assert_eq!(&w.read(&file, 0, 9).unwrap()[..], b"new", "a change of the mode closes descriptors");
    let attr = w.attr(&file);
    assert_eq!((attr.nlink, attr.size), (0, 3));
    if caps.acls {
        w.fs.acl(&w.me(), &file, AclKind::Access).unwrap();
    }
    if caps.xattrs {
        w.fs.xattrs(&w.me(), &file).unwrap();
    }
    w.fs.statfs(&w.me(), &file).unwrap();
    assert_eq!(w.fs.link(&w.me(), &file, &root, name("again")).unwrap_err(), VfsError::NotFound);
    assert_eq!(w.attr(&other).size, 0);

    drop(held);
    assert_stale(w, &file);
    assert_eq!(w.attr(&other).nlink, 1);
    Ok(())
}

pub fn a_held_file_outlives_a_rename_over_it(w: &World) -> Outcome {
    let root = w.root();
    let (file, moved) = (w.file(&root, "f"), w.file(&root, "moved"));
    w.write(&file, 0, b"replaced").unwrap();
    w.write(&moved, 0, b"moved").unwrap();
    let (held, held_too) = (hold(w, &file), hold(w, &moved));
    w.rename(&root, "moved", &root, "f").unwrap();
    assert!(held.is_removed());
    assert!(!held_too.is_removed());
    assert_eq!(&w.read(&file, 0, 9).unwrap()[..], b"replaced");
    assert_eq!(&w.read(&moved, 0, 9).unwrap()[..], b"moved");
    assert_eq!((w.attr(&file).nlink, w.attr(&moved).nlink), (0, 1));
    drop((held, held_too));
    assert_stale(w, &file);
    assert_eq!(&w.read(&moved, 0, 9).unwrap()[..], b"moved");
    Ok(())
}

pub fn a_file_is_kept_until_its_last_hold_ends(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    w.write(&file, 0, b"data").unwrap();
    let (first, second) = (hold(w, &file), hold(w, &file));
    remove(w, "f");
    let third = hold(w, &file);
    drop(first);
    drop(third);
    assert_eq!(&w.read(&file, 0, 9).unwrap()[..], b"data");
    drop(second);
    assert_stale(w, &file);
    Ok(())
}

pub fn a_hold_does_not_remove_a_file_with_names(w: &World) -> Outcome {
    let root = w.root();
    let file = w.file(&root, "f");
    w.write(&file, 0, b"data").unwrap();
    drop(hold(w, &file));
    assert_eq!(&w.read(&file, 0, 9).unwrap()[..], b"data");
    let held = hold(w, &file);
    w.rename(&root, "f", &root, "g").unwrap();
    assert!(!held.is_removed());
    drop(held);
    assert_eq!(w.lookup(&root, "g"), Ok(file.clone()));
    remove(w, "g");
    assert_stale(w, &file);
    Ok(())
}

pub fn a_held_file_is_kept_after_its_last_of_many_names(w: &World) -> Outcome {
    let root = w.root();
    let file = w.file(&root, "a");
    w.write(&file, 0, b"data").unwrap();
    w.fs.link(&w.me(), &file, &root, name("b")).unwrap();
    let held = hold(w, &file);
    remove(w, "a");
    assert!(!held.is_removed());
    assert_eq!(w.attr(&file).nlink, 1);
    remove(w, "b");
    assert!(held.is_removed());
    assert_eq!(w.attr(&file).nlink, 0);
    assert_eq!(&w.read(&file, 0, 9).unwrap()[..], b"data");
    drop(held);
    assert_stale(w, &file);
    Ok(())
}

pub fn many_held_files_are_kept_at_a_time(w: &World) -> Outcome {
    let root = w.root();
    let files: Vec<_> = (0..100u8)
        .map(|number| {
            let file = w.file(&root, &format!("f{number}"));
            w.write(&file, 0, &[number]).unwrap();
            let held = hold(w, &file);
            (number, file, held)
        })
        .collect();
    (0..100).for_each(|number| remove(w, &format!("f{number}")));
    for (number, file, held) in files {
        assert_eq!(&w.read(&file, 0, 9).unwrap()[..], [number]);
        drop(held);
        assert_stale(w, &file);
    }
    Ok(())
}

pub fn only_existing_files_are_held(w: &World) -> Outcome {
    let root = w.root();
    let (file, dir) = (w.file(&root, "f"), w.dir(&root, "d"));
    let link = w.fs.symlink(&w.me(), &root, name("l"), b"f", &SetAttr::default()).unwrap().handle;
    let error = |object| w.fs.hold(&w.me(), object).map(drop).unwrap_err();
    assert_eq!((error(&dir), error(&link)), (VfsError::IsDir, VfsError::Invalid));
    remove(w, "f");
    assert_eq!(error(&file), VfsError::Stale);
    Ok(())
}
