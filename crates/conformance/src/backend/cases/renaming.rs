//! Renaming and name resolution.

use vfs::{Kind, SetAttr, VfsError};

use crate::backend::{Outcome, World, name};

pub fn handles_survive_rename(w: &World) -> Outcome {
    let root = w.root();
    let (file, a, b) = (w.file(&root, "f"), w.dir(&root, "a"), w.dir(&root, "b"));
    w.write(&file, 0, b"data").unwrap();
    let inner = w.file(&a, "inner");
    let (from, to) = w.rename(&root, "f", &b, "g").unwrap();
    assert_eq!((from.after.fileid, to.after.fileid), (w.attr(&root).fileid, w.attr(&b).fileid));
    assert_eq!(w.lookup(&root, "f").unwrap_err(), VfsError::NotFound);
    assert_eq!(w.lookup(&b, "g").unwrap(), file);
    w.rename(&root, "a", &b, "c").unwrap();
    assert_eq!(w.lookup(&b, "c").unwrap(), a);
    assert_eq!(w.lookup(&a, "inner").unwrap(), inner);
    assert_eq!(&w.read(&file, 0, 10).unwrap()[..], b"data");
    w.write(&inner, 0, b"still").unwrap();
    Ok(())
}

pub fn names_are_found_without_attributes(w: &World) -> Outcome {
    let root = w.root();
    let (file, dir) = (w.file(&root, "f"), w.dir(&root, "d"));
    w.fs.symlink(&w.me(), &root, name("l"), b"d", &SetAttr::default()).unwrap();
    let find = |dir, at: &str| w.fs.find(&w.me(), dir, name(at));
    for _ in 0..2 {
        assert_eq!(find(&root, "f"), Ok((file.clone(), Kind::File)));
        assert_eq!(find(&root, "d"), Ok((dir.clone(), Kind::Dir)));
        assert_eq!(find(&root, "l").map(|found| found.1), Ok(Kind::Symlink), "the link must not be followed");
        assert_eq!(find(&dir, "."), Ok((dir.clone(), Kind::Dir)));
        assert_eq!(find(&dir, ".."), Ok((root.clone(), Kind::Dir)));
        assert_eq!(find(&root, "x"), Err(VfsError::NotFound));
        assert_eq!(find(&file, "x"), Err(VfsError::NotDir));
    }
    w.rename(&root, "f", &dir, "l").unwrap();
    assert_eq!(find(&root, "f"), Err(VfsError::NotFound));
    assert_eq!(find(&dir, "l"), Ok((file.clone(), Kind::File)));
    w.fs.remove(&w.me(), &root, name("l")).unwrap();
    assert_eq!(find(&root, "l"), Err(VfsError::NotFound));
    Ok(())
}

pub fn rename_replaces_files(w: &World) -> Outcome {
    let root = w.root();
    let (a, b) = (w.file(&root, "a"), w.file(&root, "b"));
    w.fs.link(&w.me(), &b, &root, name("other")).unwrap();
    w.rename(&root, "a", &root, "b").unwrap();
    assert_eq!(w.lookup(&root, "b").unwrap(), a);
    assert_eq!(w.attr(&b).nlink, 1, "the replaced object must have lost a name");
    w.rename(&root, "b", &root, "other").unwrap();
    assert_eq!(w.fs.getattr(&w.me(), &b).unwrap_err(), VfsError::Stale);
    assert_eq!(w.list(&root, 10), [b"other"]);
    Ok(())
}

pub fn rename_replaces_empty_directories_only(w: &World) -> Outcome {
    let root = w.root();
    let (a, b) = (w.dir(&root, "a"), w.dir(&root, "b"));
    w.file(&b, "f");
    assert_eq!(w.rename(&root, "a", &root, "b").unwrap_err(), VfsError::NotEmpty);
    w.fs.remove(&w.me(), &b, name("f")).unwrap();
    w.rename(&root, "a", &root, "b").unwrap();
    assert_eq!(w.lookup(&root, "b").unwrap(), a);
    assert_eq!(w.fs.getattr(&w.me(), &b).unwrap_err(), VfsError::Stale);
    assert_eq!(w.attr(&root).nlink, 3);
    Ok(())
}

pub fn rename_does_not_mix_files_and_directories(w: &World) -> Outcome {
    let root = w.root();
    w.file(&root, "f");
    w.dir(&root, "d");
    assert_eq!(w.rename(&root, "f", &root, "d").unwrap_err(), VfsError::IsDir);
    assert_eq!(w.rename(&root, "d", &root, "f").unwrap_err(), VfsError::NotDir);
    assert_eq!(w.rename(&root, "x", &root, "f").unwrap_err(), VfsError::NotFound);
    Ok(())
}

pub fn a_directory_does_not_move_into_itself(w: &World) -> Outcome {
    let root = w.root();
    let a = w.dir(&root, "a");
    let b = w.dir(&a, "b");
    assert_eq!(w.rename(&root, "a", &a, "x").unwrap_err(), VfsError::Invalid);
    assert_eq!(w.rename(&root, "a", &b, "x").unwrap_err(), VfsError::Invalid);
    assert_eq!(w.rename(&a, "b", &root, "a").unwrap_err(), VfsError::NotEmpty);
    assert_eq!(w.lookup(&a, "b").unwrap(), b);
    Ok(())
}

pub fn rename_between_links_of_one_object_does_nothing(w: &World) -> Outcome {
    let (root, dir) = (w.root(), w.dir(&w.root(), "d"));
    let file = w.file(&root, "a");
    w.fs.link(&w.me(), &file, &root, name("b")).unwrap();
    w.fs.link(&w.me(), &file, &dir, name("c")).unwrap();
    for (from, to_dir, to) in
        [("a", &root, "b"), ("a", &root, "a"), ("a", &dir, "c"), ("d", &root, "d"), ("b", &root, "a")]
    {
        let before = [&root, to_dir, &file, &dir].map(|object| w.attr(object));
        let (source, target) = w.rename(&root, from, to_dir, to).unwrap();
        for (change, before) in [(&source, &before[0]), (&target, &before[1])] {
            assert_eq!(change.before.change, change.after.change, "{from} to {to}: a directory has changed");
            assert_eq!(change.after.change, before.change);
            assert_eq!((change.before.mtime, change.before.ctime), (before.mtime, before.ctime));
            assert_eq!((change.after.mtime, change.after.ctime), (before.mtime, before.ctime));
        }
        for (object, before) in [&root, to_dir, &file, &dir].into_iter().zip(&before) {
            let after = w.attr(object);
            assert_eq!((after.change, after.ctime, after.nlink), (before.change, before.ctime, before.nlink));
        }
    }
    let mut names = w.list(&root, 10);
    names.sort();
    assert_eq!(names, [b"a", b"b", b"d"]);
    let (source, _) = w.rename(&root, "a", &root, "x").unwrap();
    assert_ne!(source.before.change, source.after.change, "any other rename must change the directory");
    Ok(())
}

pub fn a_moved_directory_has_a_new_parent(w: &World) -> Outcome {
    let root = w.root();
    let (a, b) = (w.dir(&root, "a"), w.dir(&root, "b"));
    let moved = w.dir(&a, "m");
    assert_eq!(w.lookup(&moved, "..").unwrap(), a);
    w.rename(&a, "m", &b, "m").unwrap();
    assert_eq!(w.lookup(&moved, "..").unwrap(), b);
    assert_eq!(w.lookup(&moved, ".").unwrap(), moved);
    Ok(())
}

pub fn dots_cannot_be_renamed(w: &World) -> Outcome {
    let root = w.root();
    let dir = w.dir(&root, "d");
    w.file(&dir, "f");
    for dots in [".", ".."] {
        assert_eq!(w.rename(&dir, dots, &root, "x").unwrap_err(), VfsError::Invalid);
        assert_eq!(w.rename(&dir, "f", &dir, dots).unwrap_err(), VfsError::Invalid);
    }
    Ok(())
}

pub fn the_parent_of_the_root_is_the_root(w: &World) -> Outcome {
    let mut at = w.dir(&w.dir(&w.root(), "a"), "b");
    for _ in 0..2 {
        at = w.lookup(&at, "..").unwrap();
    }
    assert_eq!(at, w.root());
    assert_eq!(w.lookup(&w.root(), "..").unwrap(), w.root());
    Ok(())
}

pub fn symlinks_are_never_followed(w: &World) -> Outcome {
    let root = w.root();
    let dir = w.dir(&root, "d");
    w.file(&dir, "f");
    for (at, target) in [("out", &b"/"[..]), ("up", b"../../../.."), ("in", b"d"), ("loop", b"loop")] {
        w.fs.symlink(&w.me(), &root, name(at), target, &SetAttr::default()).unwrap();
        let (link, attr) = w.fs.lookup(&w.me(), &root, name(at)).unwrap();
        assert_eq!(attr.kind, Kind::Symlink);
        assert_eq!(w.lookup(&link, "f").unwrap_err(), VfsError::NotDir);
        assert_eq!(w.lookup(&link, "..").unwrap_err(), VfsError::NotDir);
        assert_eq!(w.create(&w.cred, &link, "f", &SetAttr::default()).unwrap_err(), VfsError::NotDir);
        assert_eq!(w.read(&link, 0, 1).unwrap_err(), VfsError::Invalid);
        w.rename(&root, at, &dir, at).unwrap();
        assert_eq!(w.lookup(&dir, at).unwrap(), link);
        w.fs.remove(&w.me(), &dir, name(at)).unwrap();
    }
    assert_eq!(w.list(&dir, 10), [b"f"]);
    Ok(())
}

pub fn deep_trees_keep_their_handles(w: &World) -> Outcome {
    // The tree is deeper than the longest path of a system call.
    let long = "x".repeat(200);
    let mut handles = vec![w.root()];
    for _ in 0..40 {
        let deeper = w.dir(handles.last().unwrap(), &long);
        handles.push(deeper);
    }
    let last = handles.last().unwrap();
    let file = w.file(last, "f");
    w.write(&file, 0, b"deep").unwrap();
    w.rename(&w.root(), &long, &w.root(), "renamed").unwrap();
    assert_eq!(&w.read(&file, 0, 10).unwrap()[..], b"deep");
    assert_eq!(w.lookup(last, "..").unwrap(), handles[39]);
    assert_eq!(w.lookup(last, "f").unwrap(), file);
    // Remove it here, because not every function that removes temporary directories can go so deep.
    w.fs.remove(&w.me(), last, name("f")).unwrap();
    for (depth, dir) in handles[..40].iter().enumerate().rev() {
        w.fs.rmdir(&w.me(), dir, name(if depth == 0 { "renamed" } else { &long })).unwrap();
    }
    Ok(())
}

pub fn concurrent_renames_lose_no_object(w: &World) -> Outcome {
    let root = w.root();
    let dirs: Vec<_> = (0..3).map(|i| w.dir(&root, &format!("d{i}"))).collect();
    for i in 0..4 {
        w.dir(&dirs[0], &format!("s{i}"));
    }
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let (dirs, root) = (&dirs, &root);
            scope.spawn(move || {
                for i in 0..300usize {
                    let (from, to) = (&dirs[(i + thread) % 3], &dirs[(i * 7 + thread) % 3]);
                    let (a, b) = (format!("s{}", i % 4), format!("s{}", (i + 1) % 4));
                    // Often the rename fails because a name does not exist, a directory is not empty, or one is inside
                    // the other. Only lost objects matter.
                    let _ = w.rename(from, &a, to, &a);
                    if let (Ok(into), Ok(_)) = (w.lookup(from, &b), w.lookup(to, &a)) {
                        let _ = w.rename(to, &a, &into, &a);
                    }
                    if let Ok(inner) = w.lookup(to, &b) {
                        let _ = w.rename(&inner, &a, root, &format!("out{thread}"));
                        let _ = w.rename(root, &format!("out{thread}"), from, &a);
                    }
                }
            });
        }
    });
    let mut left = dirs;
    left.push(root);
    let (mut found, mut subdirs) = (0, 0);
    while let Some(dir) = left.pop() {
        let names = w.list(&dir, 100);
        found += names.iter().filter(|at| at[0] == b's' || at[0] == b'o').count();
        let inner = names.iter().filter(|at| at[0] != b'd');
        for at in inner {
            left.push(w.lookup(&dir, std::str::from_utf8(at).unwrap()).unwrap());
        }
        assert_eq!(w.attr(&dir).nlink as usize, 2 + names.len());
        subdirs += names.len();
    }
    // Empty directories may have been replaced. No directory may exist twice or be counted wrongly.
    assert!((1..=4).contains(&found) && subdirs == found + 3, "{found} of 4 left");
    Ok(())
}
