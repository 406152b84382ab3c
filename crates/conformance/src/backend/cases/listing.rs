//! Listing directories.

use std::{collections::HashMap, ops::ControlFlow};

use vfs::{DirEntry, VfsError};

use crate::backend::{Outcome, World, name};

pub fn listing_has_every_entry_once(w: &World) -> Outcome {
    let dir = w.dir(&w.root(), "d");
    let mut expected: Vec<_> = (0..5000).map(|i| format!("entry-{i}").into_bytes()).collect();
    let mut last = None;
    for (i, at) in expected.iter().enumerate() {
        // Create mostly hard links, which are cheaper than files.
        match &last {
            Some(file) if i % 20 != 0 => drop(w.fs.link(&w.me(), file, &dir, vfs::Name::new(at).unwrap()).unwrap()),
            _ => last = Some(w.file(&dir, std::str::from_utf8(at).unwrap())),
        }
    }
    expected.sort();
    for batch in [37, 1000, 10_000] {
        let mut listed = w.list(&dir, batch);
        listed.sort();
        assert!(listed == expected, "{} of {} in batches of {batch}", listed.len(), expected.len());
    }
    Ok(())
}

pub fn listing_continues_from_any_cookie(w: &World) -> Outcome {
    let dir = w.dir(&w.root(), "d");
    for i in 0..40 {
        w.file(&dir, &format!("f{i}"));
    }
    let mut entries = Vec::new();
    let mut each = |entry: DirEntry<'_>| {
        entries.push((entry.name.to_vec(), entry.fileid, entry.cookie));
        ControlFlow::Continue(())
    };
    let read = w.fs.readdir(&w.me(), &dir, 0, [0; 8], false, &mut each).unwrap();
    assert!(read.eof);
    assert_eq!(entries.len(), 42);
    let fileid = |at: &[u8]| entries.iter().find(|entry| entry.0 == at).unwrap().1;
    assert_eq!(fileid(b"."), w.attr(&dir).fileid);
    assert_eq!(fileid(b".."), w.attr(&w.root()).fileid);
    assert!(entries.iter().all(|entry| entry.2 != 0), "cookie 0 must mean the start");
    for (i, (_, _, cookie)) in entries.iter().enumerate() {
        let mut rest = Vec::new();
        let mut each = |entry: DirEntry<'_>| {
            rest.push((entry.name.to_vec(), entry.fileid, entry.cookie));
            ControlFlow::Continue(())
        };
        assert!(w.fs.readdir(&w.me(), &dir, *cookie, read.verifier, false, &mut each).unwrap().eof);
        assert_eq!(rest, entries[i + 1..]);
    }
    Ok(())
}

pub fn listing_includes_handles_and_attributes(w: &World) -> Outcome {
    let dir = w.dir(&w.root(), "d");
    let mut expected = HashMap::new();
    for i in 0..100 {
        let at = format!("f{i}");
        let file = w.file(&dir, &at);
        w.write(&file, 0, &vec![1; i]).unwrap();
        expected.insert(at.into_bytes(), (file.clone(), w.attr(&file)));
    }
    w.fs.symlink(&w.me(), &dir, name("l"), b"f1", &Default::default()).unwrap();
    let link = w.lookup(&dir, "l").unwrap();
    expected.insert(b"l".to_vec(), (link.clone(), w.attr(&link)));
    expected.insert(b".".to_vec(), (dir.clone(), w.attr(&dir)));
    expected.insert(b"..".to_vec(), (w.root(), w.attr(&w.root())));
    let mut each = |entry: DirEntry<'_>| {
        let (handle, attr) = entry.object.expect("an entry must include its object");
        let (expected_handle, expected_attr) = expected.remove(entry.name).expect("a name must be listed once");
        assert_eq!(entry.fileid, attr.fileid);
        assert_eq!((attr.kind, attr.size, attr.mode), (expected_attr.kind, expected_attr.size, expected_attr.mode));
        assert_eq!(handle, expected_handle);
        ControlFlow::Continue(())
    };
    assert!(w.fs.readdir(&w.me(), &dir, 0, [0; 8], true, &mut each).unwrap().eof);
    assert!(expected.is_empty());
    let parent = |entry: DirEntry<'_>| entry.name == b".." && entry.object.unwrap().0 == w.root();
    let mut seen = false;
    let mut each = |entry: DirEntry<'_>| {
        seen |= parent(entry);
        ControlFlow::Continue(())
    };
    w.fs.readdir(&w.me(), &w.root(), 0, [0; 8], true, &mut each).unwrap();
    assert!(seen, "a listing must also show the root as its own parent");
    Ok(())
}

pub fn unchanged_entries_are_listed_once_during_changes(w: &World) -> Outcome {
    let dir = w.dir(&w.root(), "d");
    for i in 0..300 {
        w.file(&dir, &format!("stay-{i}"));
        w.file(&dir, &format!("go-{i}"));
    }
    let (mut all, mut at, mut step) = (Vec::new(), (0, [0; 8]), 0);
    while let Some(next) = w.list_some(&dir, at, 9, &mut all) {
        at = next;
        for i in (step * 4)..(step * 4 + 4).min(300) {
            // Remove from both ends, so that removals happen before and after the position of the listing.
            let gone = if i % 2 == 0 { i } else { 299 - i };
            let _ = w.fs.remove(&w.me(), &dir, name(&format!("go-{gone}")));
            w.file(&dir, &format!("come-{i}"));
        }
        if step % 5 == 0 && step < 100 {
            let _ = w.rename(&dir, &format!("come-{}", step * 4), &dir, &format!("moved-{step}"));
        }
        step += 1;
        assert!(step < 3000, "the listing must end");
    }
    let mut stayed: Vec<_> = all.iter().filter(|at| at.starts_with(b"stay-")).collect();
    assert_eq!(stayed.len(), 300);
    stayed.sort();
    stayed.dedup();
    assert_eq!(stayed.len(), 300);
    Ok(())
}

/// Removes entries while they are listed, like `rm -r` over NFS.
pub fn removing_listed_entries_skips_none(w: &World) -> Outcome {
    let dir = w.dir(&w.root(), "d");
    for i in 0..1000 {
        w.file(&dir, &format!("f{i}"));
    }
    let (mut at, mut removed) = (Some((0, [0; 8])), 0);
    while let Some(from) = at {
        let mut some = Vec::new();
        at = w.list_some(&dir, from, 13, &mut some);
        for entry in some.iter().filter(|at| at[0] == b'f') {
            w.fs.remove(&w.me(), &dir, vfs::Name::new(entry).unwrap()).unwrap();
            removed += 1;
        }
    }
    assert_eq!(removed, 1000);
    w.fs.rmdir(&w.me(), &w.root(), name("d")).unwrap();
    Ok(())
}

pub fn only_directories_are_listed(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let listed = w.fs.readdir(&w.me(), &file, 0, [0; 8], false, &mut |_| ControlFlow::Continue(()));
    assert_eq!(listed.unwrap_err(), VfsError::NotDir);
    Ok(())
}

pub fn bad_verifiers_are_refused(w: &World) -> Outcome {
    w.file(&w.root(), "f");
    let mut cookie = 0;
    let mut each = |entry: DirEntry<'_>| {
        cookie = entry.cookie;
        ControlFlow::Continue(())
    };
    let mut verifier = w.fs.readdir(&w.me(), &w.root(), 0, [0; 8], false, &mut each).unwrap().verifier;
    verifier[3] ^= 1;
    let listed = w.fs.readdir(&w.me(), &w.root(), cookie, verifier, false, &mut |_| ControlFlow::Continue(()));
    assert_eq!(listed.unwrap_err(), VfsError::BadCookie);
    Ok(())
}
