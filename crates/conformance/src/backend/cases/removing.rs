//! Removing names, and the object with its last name.

use vfs::{CreateMode, SetAttr, VfsError};

use crate::backend::{Outcome, World, mode, name};

pub fn a_removed_object_is_stale(w: &World) -> Outcome {
    let root = w.root();
    let (file, dir) = (w.file(&root, "f"), w.dir(&root, "d"));
    w.write(&file, 0, b"data").unwrap();
    w.read(&file, 0, 4).unwrap();
    w.fs.remove(&w.me(), &root, name("f")).unwrap();
    w.fs.rmdir(&w.me(), &root, name("d")).unwrap();
    for at in ["f", "d"] {
        assert_eq!(w.lookup(&root, at).unwrap_err(), VfsError::NotFound);
    }
    for gone in [&file, &dir] {
        assert_eq!(w.fs.getattr(&w.me(), gone).unwrap_err(), VfsError::Stale);
        assert_eq!(w.set(gone, &mode(0o600)).unwrap_err(), VfsError::Stale);
        assert_eq!(w.read(gone, 0, 1).unwrap_err(), VfsError::Stale);
        assert_eq!(w.write(gone, 0, b"x").unwrap_err(), VfsError::Stale);
        assert_eq!(w.lookup(gone, "x").unwrap_err(), VfsError::Stale);
        assert_eq!(w.fs.statfs(&w.me(), gone).unwrap_err(), VfsError::Stale);
        assert_eq!(w.fs.link(&w.me(), gone, &root, name("again")).unwrap_err(), VfsError::Stale);
    }
    Ok(())
}

pub fn object_exists_until_its_last_name_is_removed(w: &World) -> Outcome {
    let root = w.root();
    let (file, dir) = (w.file(&root, "a"), w.dir(&root, "d"));
    w.write(&file, 0, b"data").unwrap();
    w.fs.link(&w.me(), &file, &dir, name("b")).unwrap();
    w.fs.remove(&w.me(), &root, name("a")).unwrap();
    let found = w.lookup(&dir, "b").unwrap();
    assert_eq!(w.attr(&found).nlink, 1);
    assert_eq!(w.attr(&file).nlink, 1, "the first handle must stay valid");
    assert_eq!(&w.read(&file, 0, 9).unwrap()[..], b"data");
    w.fs.remove(&w.me(), &dir, name("b")).unwrap();
    assert_eq!(w.fs.getattr(&w.me(), &found).unwrap_err(), VfsError::Stale);
    Ok(())
}

pub fn remove_and_rmdir_distinguish_files_from_directories(w: &World) -> Outcome {
    let root = w.root();
    w.file(&root, "f");
    w.dir(&root, "d");
    w.fs.symlink(&w.me(), &root, name("l"), b"d", &SetAttr::default()).unwrap();
    assert_eq!(w.fs.remove(&w.me(), &root, name("d")).unwrap_err(), VfsError::IsDir);
    assert_eq!(w.fs.rmdir(&w.me(), &root, name("f")).unwrap_err(), VfsError::NotDir);
    assert_eq!(w.fs.rmdir(&w.me(), &root, name("l")).unwrap_err(), VfsError::NotDir);
    assert_eq!(w.fs.remove(&w.me(), &root, name("x")).unwrap_err(), VfsError::NotFound);
    assert_eq!(w.fs.rmdir(&w.me(), &root, name("x")).unwrap_err(), VfsError::NotFound);
    w.fs.remove(&w.me(), &root, name("l")).unwrap();
    w.lookup(&root, "d").unwrap();
    Ok(())
}

pub fn nonempty_directories_cannot_be_removed(w: &World) -> Outcome {
    let root = w.root();
    let dir = w.dir(&root, "d");
    w.file(&dir, "f");
    assert_eq!(w.fs.rmdir(&w.me(), &root, name("d")).unwrap_err(), VfsError::NotEmpty);
    w.fs.remove(&w.me(), &dir, name("f")).unwrap();
    w.fs.rmdir(&w.me(), &root, name("d")).unwrap();
    Ok(())
}

pub fn dots_cannot_be_removed(w: &World) -> Outcome {
    let dir = w.dir(&w.root(), "d");
    for dots in [".", ".."] {
        assert_eq!(w.fs.remove(&w.me(), &dir, name(dots)).unwrap_err(), VfsError::Invalid);
        assert_eq!(w.fs.rmdir(&w.me(), &dir, name(dots)).unwrap_err(), VfsError::Invalid);
    }
    Ok(())
}

pub fn removed_directory_accepts_no_entries(w: &World) -> Outcome {
    let (root, file) = (w.root(), w.file(&w.root(), "f"));
    let dir = w.dir(&root, "d");
    w.list(&dir, 10);
    w.fs.rmdir(&w.me(), &root, name("d")).unwrap();
    assert_eq!(w.create(&w.cred, &dir, "x", &mode(0o644)).unwrap_err(), VfsError::Stale);
    assert_eq!(w.fs.mkdir(&w.me(), &dir, name("x"), &mode(0o755)).unwrap_err(), VfsError::Stale);
    assert_eq!(w.fs.link(&w.me(), &file, &dir, name("x")).unwrap_err(), VfsError::Stale);
    assert_eq!(w.rename(&root, "f", &dir, "x").unwrap_err(), VfsError::Stale);
    assert_eq!(w.rename(&dir, "x", &root, "y").unwrap_err(), VfsError::Stale);
    let exclusive = w.fs.create(&w.me(), &dir, name("x"), &CreateMode::Exclusive([1; 8]));
    assert_eq!(exclusive.unwrap_err(), VfsError::Stale);
    Ok(())
}

pub fn handle_never_refers_to_another_object(w: &World) -> Outcome {
    let root = w.root();
    let mut old = Vec::new();
    for i in 0..50 {
        // File systems often reuse an inode number at once.
        let file = w.file(&root, "f");
        w.write(&file, 0, &[i]).unwrap();
        w.fs.remove(&w.me(), &root, name("f")).unwrap();
        old.push(file);
    }
    let last = w.file(&root, "f");
    for file in &old {
        assert_ne!(*file, last);
        assert_eq!(w.fs.getattr(&w.me(), file).unwrap_err(), VfsError::Stale);
        assert_eq!(w.write(file, 0, b"wrong").unwrap_err(), VfsError::Stale);
    }
    assert_eq!(w.attr(&last).size, 0);
    Ok(())
}
