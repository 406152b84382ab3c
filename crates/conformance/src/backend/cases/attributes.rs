//! Reading and setting attributes, and the capabilities of the file system.

use buf::Rope;
use bytes::Bytes;
use vfs::{Handle, Kind, NodeKind, Report, SetAttr, SetTime, Stability, Time, VfsError};

use crate::backend::{Outcome, World, clock_moves, mode, name, size};

pub fn foreign_handles_are_rejected(w: &World) -> Outcome {
    let real = w.file(&w.root(), "f");
    assert_eq!(w.fs.getattr(&w.me(), &Handle::new(b"")).unwrap_err(), VfsError::BadHandle);
    let mut bytes = real.as_bytes().to_vec();
    for i in 0..bytes.len() {
        bytes[i] ^= 0x55;
        // The handle must never refer to another object. The altered byte decides which of the two errors is returned.
        if let Err(error) = w.fs.getattr(&w.me(), &Handle::new(&bytes)) {
            assert!(matches!(error, VfsError::BadHandle | VfsError::Stale), "byte {i}: {error}");
        }
        bytes[i] ^= 0x55;
        let short = w.fs.getattr(&w.me(), &Handle::new(&bytes[..i])).unwrap_err();
        assert!(matches!(short, VfsError::BadHandle | VfsError::Stale), "{i} bytes: {short}");
    }
    Ok(())
}

pub fn times_are_set_exactly_and_to_now(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let grain = w.fs.caps().time_resolution_ns;
    let old = |nanoseconds| Time { seconds: 1_000_000_007, nanoseconds: nanoseconds / grain * grain };
    let (atime, mtime) = (old(123_456_789), old(987_654_321));
    let set = SetAttr { atime: Some(SetTime::To(atime)), mtime: Some(SetTime::To(mtime)), ..Default::default() };
    let change = w.set(&file, &set).unwrap();
    assert_eq!((change.after.atime, change.after.mtime), (atime, mtime));
    assert!(change.after.ctime > mtime);
    let set = SetAttr { mtime: Some(SetTime::Now), ..Default::default() };
    let after = w.set(&file, &set).unwrap().after;
    assert_eq!(after.atime, atime);
    assert!(after.mtime.seconds > mtime.seconds);
    let early = Time { seconds: 0, nanoseconds: 0 };
    let set = SetAttr { atime: Some(SetTime::To(early)), mtime: Some(SetTime::Now), ..Default::default() };
    assert_eq!(w.set(&w.root(), &set).unwrap().after.atime, early);
    Ok(())
}

pub fn change_attribute_counts_rapid_changes(w: &World) -> Outcome {
    let (root, dir) = (w.root(), w.dir(&w.root(), "d"));
    let file = w.file(&root, "f");
    let mut last = [&file, &root, &dir].map(|object| w.attr(object).change);
    // `moved` tells which of the three objects were changed.
    let mut check = |what: &str, moved: [bool; 3]| {
        for ((object, last), moved) in [&file, &root, &dir].into_iter().zip(&mut last).zip(moved) {
            let now = w.attr(object).change;
            if moved {
                assert!(now > *last, "{what}: {now} is less than {last}");
            } else {
                assert_eq!(now, *last, "{what}");
            }
            *last = now;
        }
    };
    for i in 0..100 {
        let change = w.set(&file, &mode(0o600 + i % 8)).unwrap();
        assert!(change.before.change < change.after.change);
        check("mode", [true, false, false]);
        assert_eq!(w.write(&file, 0, b"x").unwrap().change, w.attr(&file).change);
        check("data", [true, false, false]);
        w.fs.write(&w.me(), &file, 0, &Rope::from(Bytes::from_static(b"y")), Stability::Unstable, Report::Nothing)
            .unwrap();
        check("data without a report", [true, false, false]);
        w.fs.commit(&w.me(), &file, 0, 0).unwrap();
        check("nothing", [false; 3]);
        w.set(&file, &size(u64::from(i))).unwrap();
        check("size", [true, false, false]);
        let (change, attr) = w.fs.link(&w.me(), &file, &dir, name("l")).unwrap();
        assert_eq!((change.after.change, attr.change), (w.attr(&dir).change, w.attr(&file).change));
        check("link", [true, false, true]);
        w.fs.remove(&w.me(), &dir, name("l")).unwrap();
        check("remove", [true, false, true]);
        w.rename(&root, "f", &dir, "f").unwrap();
        w.rename(&dir, "f", &root, "f").unwrap();
        check("rename", [true; 3]);
        w.file(&dir, "n");
        check("create", [false, false, true]);
        w.fs.remove(&w.me(), &dir, name("n")).unwrap();
        check("remove", [false, false, true]);
    }
    Ok(())
}

pub fn change_time_always_increases(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let mut last = w.attr(&file).ctime;
    for i in 0..20 {
        // If the kernel's clock is coarse, wait for its next tick.
        if w.coarse_times {
            clock_moves();
        }
        let after = match i % 3 {
            0 => w.set(&file, &mode(0o600 + i)).unwrap().after,
            1 => w.write(&file, 0, b"x").unwrap(),
            _ => w.set(&file, &size(u64::from(i))).unwrap().after,
        };
        assert!(after.ctime > last, "change {i}");
        last = after.ctime;
    }
    Ok(())
}

pub fn guards_are_change_times(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let ctime = w.attr(&file).ctime;
    let other = Time { nanoseconds: ctime.nanoseconds ^ 1, ..ctime };
    let guarded = |guard| w.fs.setattr(&w.me(), &file, &mode(0o600), Some(guard));
    assert_eq!(guarded(other).unwrap_err(), VfsError::NotSync);
    assert_eq!(w.attr(&file).mode, 0o644);
    assert_eq!(guarded(ctime).unwrap().after.mode, 0o600);
    Ok(())
}

pub fn size_is_for_files_only(w: &World) -> Outcome {
    let root = w.root();
    assert_eq!(w.set(&root, &size(0)).unwrap_err(), VfsError::IsDir);
    let fifo = w.fs.mknod(&w.me(), &root, name("p"), NodeKind::Fifo, &mode(0o644)).unwrap().handle;
    assert_eq!(w.set(&fifo, &size(0)).unwrap_err(), VfsError::Invalid);
    let link = w.fs.symlink(&w.me(), &root, name("l"), b"f", &SetAttr::default()).unwrap().handle;
    let file = w.file(&root, "f");
    w.write(&file, 0, b"data").unwrap();
    assert_eq!(w.set(&link, &size(0)).unwrap_err(), VfsError::Invalid);
    assert_eq!(w.attr(&file).size, 4, "the link must not be followed");
    Ok(())
}

pub fn symlinks_have_owners_and_times_but_no_mode(w: &World) -> Outcome {
    let root = w.root();
    let file = w.file(&root, "f");
    let before = w.attr(&file);
    let link = w.fs.symlink(&w.me(), &root, name("l"), b"f", &mode(0o600)).unwrap();
    assert_eq!(link.attr.kind, Kind::Symlink);
    let time = Time { seconds: 1_234_567, nanoseconds: 0 };
    let set = SetAttr { mtime: Some(SetTime::To(time)), uid: Some(w.cred.uid), ..Default::default() };
    assert_eq!(w.set(&link.handle, &set).unwrap().after.mtime, time);
    assert_eq!(w.set(&link.handle, &mode(0o600)).unwrap_err(), VfsError::NotSupported);
    assert_eq!(w.attr(&file), before, "the link must not be followed");
    Ok(())
}

pub fn nothing_to_set_changes_nothing(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let before = w.attr(&file);
    clock_moves();
    assert_eq!(w.set(&file, &SetAttr::default()).unwrap().after, before);
    assert_eq!(w.attr(&file), before);
    Ok(())
}

pub fn file_system_numbers_are_plausible(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let before = w.fs.statfs(&w.me(), &w.root()).unwrap();
    assert!(before.bytes_total >= before.bytes_free && before.bytes_free >= before.bytes_available);
    assert!(before.bytes_total > 0 && before.files_total >= before.files_free);
    w.write(&file, 0, &vec![1; 1 << 20]).unwrap();
    let attr = w.attr(&file);
    assert_eq!(attr.fsid, w.attr(&w.root()).fsid);
    assert_ne!(attr.fileid, w.attr(&w.root()).fileid);
    let after = w.fs.statfs(&w.me(), &file).unwrap();
    assert_eq!(after.bytes_total, before.bytes_total);
    assert_eq!(after.attr.fileid, attr.fileid);
    Ok(())
}

pub fn capabilities_hold(w: &World) -> Outcome {
    let caps = w.fs.caps();
    assert!(caps.links && caps.symlinks && caps.link_max >= 8);
    assert_eq!(caps.name_max, 255);
    assert!(caps.file_size_max > 1 << 40 && caps.time_resolution_ns >= 1);
    if !caps.blocks {
        let waitless = vfs::Caller { may_block: false, ..w.me() };
        w.fs.getattr(&waitless, &w.root()).unwrap();
    }
    Ok(())
}
