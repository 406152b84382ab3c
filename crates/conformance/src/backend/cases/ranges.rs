//! Ranges of files: holes, allocation, copies, clones.

use vfs::{SeekFor, VfsError};

use crate::backend::{Outcome, Skipped, World, cred, mode, size};

/// A length that is a multiple of every file system's block size.
const BLOCK: u64 = 1 << 17;

pub fn holes_and_data_are_found(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    w.write(&file, 2 * BLOCK, b"data").unwrap();
    w.set(&file, &size(4 * BLOCK)).unwrap();
    let seek = |offset, what| w.fs.seek(&w.me(), &file, offset, what);
    match seek(0, SeekFor::Data) {
        Err(VfsError::NotSupported) => {
            return Err(Skipped("the file system has no holes"));
        }
        // lseek(2): a file system can report holes as data.
        Ok(Some(0)) => {
            assert_eq!(seek(3 * BLOCK, SeekFor::Data), Ok(Some(3 * BLOCK)));
            assert_eq!(seek(0, SeekFor::Hole), Ok(None));
            assert_eq!(seek(4 * BLOCK, SeekFor::Data), Err(VfsError::NoDevice));
            return Err(Skipped("the file system does not know its holes"));
        }
        found => assert_eq!(found, Ok(Some(2 * BLOCK))),
    }
    assert_eq!(seek(0, SeekFor::Hole), Ok(Some(0)));
    assert_eq!(seek(2 * BLOCK + 1, SeekFor::Data), Ok(Some(2 * BLOCK + 1)));
    let hole = seek(2 * BLOCK, SeekFor::Hole).unwrap().unwrap();
    assert!((2 * BLOCK + 4..=3 * BLOCK).contains(&hole));
    assert_eq!(seek(3 * BLOCK, SeekFor::Data), Ok(None));
    assert_eq!(seek(4 * BLOCK, SeekFor::Data), Err(VfsError::NoDevice));
    w.write(&file, 0, &vec![1; 4 * BLOCK as usize]).unwrap();
    assert_eq!(seek(0, SeekFor::Hole), Ok(None));
    assert_eq!(seek(0, SeekFor::Data), Ok(Some(0)));
    Ok(())
}

pub fn ranges_are_deallocated(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    w.write(&file, 0, &vec![7; 3 * BLOCK as usize]).unwrap();
    let before = w.attr(&file);
    let change = match w.fs.deallocate(&w.me(), &file, 100, 2 * BLOCK) {
        Err(VfsError::NotSupported) => {
            return Err(Skipped("the file system cannot make holes"));
        }
        change => change.unwrap(),
    };
    assert_eq!((change.after.size, change.before.ctime), (3 * BLOCK, before.ctime));
    assert!(w.full_space || change.after.used < before.used);
    let mut expected = vec![7; 3 * BLOCK as usize];
    expected[100..100 + 2 * BLOCK as usize].fill(0);
    assert!(w.read(&file, 0, expected.len()).unwrap() == expected);
    // A range beyond the end has no effect, and the size does not change.
    w.fs.deallocate(&w.me(), &file, 3 * BLOCK - 10, u64::MAX / 2).unwrap();
    assert_eq!(w.attr(&file).size, 3 * BLOCK);
    assert_eq!(&w.read(&file, 3 * BLOCK - 11, 99).unwrap()[..], [&[7][..], &[0; 10]].concat());
    Ok(())
}

pub fn ranges_are_allocated(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    w.write(&file, 0, b"x").unwrap();
    match w.fs.allocate(&w.me(), &file, 10, 2 * BLOCK) {
        Err(VfsError::NotSupported) => {
            return Err(Skipped("the file system does not support allocation"));
        }
        change => assert_eq!(change.unwrap().after.size, 2 * BLOCK + 10),
    }
    assert!(w.attr(&file).used >= 2 * BLOCK);
    let read = w.read(&file, 0, 4 * BLOCK as usize).unwrap();
    assert!(read[0] == b'x' && read[1..].iter().all(|byte| *byte == 0));
    assert_eq!(w.fs.allocate(&w.me(), &file, u64::MAX - 10, 20).unwrap_err(), VfsError::FileTooBig);
    assert!(w.fs.allocate(&w.me(), &file, 0, 1 << 60).is_err());
    assert_eq!(w.attr(&file).size, 2 * BLOCK + 10);
    Ok(())
}

pub fn files_are_copied(w: &World) -> Outcome {
    let (from, to) = (w.file(&w.root(), "from"), w.file(&w.root(), "to"));
    let data: Vec<u8> = (0..3 * BLOCK).map(|at| (at % 251) as u8).collect();
    w.write(&from, 0, &data).unwrap();
    w.write(&to, 0, b"0123456789").unwrap();
    match w.fs.copy(&w.me(), (&from, 5), (&to, 3), BLOCK) {
        Err(VfsError::NotSupported) => return Err(Skipped("the file system does not support copies")),
        copied => assert_eq!(copied, Ok(BLOCK)),
    }
    let expected = [b"012", &data[5..5 + BLOCK as usize]].concat();
    assert!(w.read(&to, 0, 4 * BLOCK as usize).unwrap() == expected);
    // The copy ends at the end of the source.
    assert_eq!(w.fs.copy(&w.me(), (&from, 3 * BLOCK - 2), (&to, 0), 100), Ok(2));
    assert_eq!(w.fs.copy(&w.me(), (&from, 0), (&from, 10), 100), Err(VfsError::Invalid));
    assert_eq!(w.fs.copy(&w.me(), (&from, 0), (&from, 100), 100), Ok(100));
    assert_eq!(w.read(&from, 100, 100).unwrap(), data[..100]);
    // A later change of the source does not change the copy.
    w.write(&from, 0, &vec![9; 3 * BLOCK as usize]).unwrap();
    assert!(w.read(&to, 3, BLOCK as usize).unwrap()[2..] == expected[5..]);
    if w.identities {
        let other = cred(1001, 1001, &[]);
        w.set(&from, &mode(0o600)).unwrap();
        let mine = w.create(&other, &w.root(), "mine", &mode(0o600)).unwrap().handle;
        let caller = crate::backend::caller(&other);
        assert_eq!(w.fs.copy(&caller, (&from, 0), (&mine, 0), 1), Err(VfsError::Access));
    }
    Ok(())
}

pub fn files_are_cloned(w: &World) -> Outcome {
    let block = u64::from(w.fs.caps().clone_block);
    let (from, to) = (w.file(&w.root(), "from"), w.file(&w.root(), "to"));
    if block == 0 {
        let refused = w.fs.clone_range(&w.me(), (&from, 0), (&to, 0), 0);
        assert_eq!(refused.unwrap_err(), VfsError::NotSupported);
        return Err(Skipped("the file system does not support clones"));
    }
    let data: Vec<u8> = (0..3 * block + 7).map(|at| (at % 251) as u8).collect();
    w.write(&from, 0, &data).unwrap();
    w.fs.clone_range(&w.me(), (&from, 0), (&to, 0), 0).unwrap();
    assert!(w.read(&to, 0, data.len() + 1).unwrap() == data);
    w.fs.clone_range(&w.me(), (&from, block), (&to, 0), block).unwrap();
    assert!(w.read(&to, 0, block as usize).unwrap() == data[block as usize..2 * block as usize]);
    for (offset, at, len) in [(1, 0, block), (0, 1, block), (0, 0, block + 1), (block, 0, 3 * block)] {
        let refused = w.fs.clone_range(&w.me(), (&from, offset), (&to, at), len);
        assert_eq!(refused.unwrap_err(), VfsError::Invalid, "{offset} {at} {len}");
    }
    w.write(&from, 0, &vec![9; data.len()]).unwrap();
    assert!(w.read(&to, block, 2 * block as usize).unwrap() == data[block as usize..3 * block as usize]);
    Ok(())
}
