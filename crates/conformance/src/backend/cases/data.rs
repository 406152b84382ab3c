//! Reading and writing data.

use buf::{FileRange, Piece, Rope};
use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use vfs::{NodeKind, PreAttr, Report, SetAttr, Stability, VfsError, Writer};

use crate::backend::{Outcome, World, mode, name, rope, size};

pub fn written_data_is_read(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let content: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(w.write(&file, 0, &content).unwrap().size, 1_000_000);
    for (offset, len) in [(0, 1), (0, 1_000_000), (131_071, 2), (131_072, 131_072), (999_999, 1), (500_000, 4096)] {
        assert_eq!(w.read(&file, offset, len).unwrap(), content[offset as usize..][..len]);
        let mut into = vec![0; len];
        let read = w.fs.read_into(&w.me(), &file, offset, &mut into).unwrap();
        assert_eq!((read.len, &into[..]), (len, &content[offset as usize..][..len]));
        assert_eq!((read.eof, read.attr.size), (offset as usize + len == 1_000_000, 1_000_000));
    }
    Ok(())
}

pub fn reads_stop_at_the_end_of_the_file(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let read = |offset, len| {
        let read = w.fs.read(&w.me(), &file, offset, len, &w.pool, false).unwrap();
        let (data, eof) = w.fs.read_data(&w.me(), &file, offset, len, &w.pool, false).unwrap();
        assert_eq!((data.len(), eof), (read.data.len(), read.eof), "{len} bytes at {offset} without the attributes");
        assert_eq!(data.to_bytes().unwrap(), read.data.to_bytes().unwrap());
        (read.data.len(), read.eof)
    };
    assert_eq!(read(0, 10), (0, true));
    w.write(&file, 0, b"0123456789").unwrap();
    assert_eq!(read(0, 9), (9, false));
    assert_eq!(read(0, 10), (10, true));
    assert_eq!(read(0, 1 << 20), (10, true));
    assert_eq!(read(9, 5), (1, true));
    assert_eq!(read(10, 5), (0, true));
    assert_eq!(read(1 << 50, 5), (0, true));
    assert_eq!(read(5, 0), (0, false));
    w.write(&file, 0, &[7; 3 * 4096]).unwrap();
    assert_eq!(read(4096, 4096), (4096, false));
    assert_eq!(read(8192, 4096), (4096, true));
    assert_eq!(read(8192, 4095), (4095, false));
    assert_eq!(read(12_000, 4096), (288, true));
    let read_into = w.fs.read_into(&w.me(), &file, u64::MAX, &mut [0; 4]).unwrap();
    assert_eq!((read_into.len, read_into.eof), (0, true));
    Ok(())
}

pub fn writes_beyond_the_end_leave_a_hole(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    w.write(&file, 300_000, b"end").unwrap();
    let attr = w.attr(&file);
    assert_eq!(attr.size, 300_003);
    assert!(w.full_space || attr.used < 300_000, "holes must take no space");
    let mut expected = vec![0; 300_000];
    expected.extend(b"end");
    assert_eq!(w.read(&file, 0, 1 << 20).unwrap(), expected);
    Ok(())
}

pub fn truncation_cuts_and_extends(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    w.write(&file, 0, &[7; 200_000]).unwrap();
    let change = w.set(&file, &size(140_000)).unwrap();
    assert_eq!((change.before.size, change.after.size), (200_000, 140_000));
    w.set(&file, &size(250_000)).unwrap();
    let data = w.read(&file, 0, 1 << 20).unwrap();
    assert!(data[..140_000].iter().all(|byte| *byte == 7));
    assert!(data.len() == 250_000 && data[140_000..].iter().all(|byte| *byte == 0));
    w.set(&file, &size(0)).unwrap();
    assert_eq!(w.attr(&file).used, 0);
    Ok(())
}

pub fn offsets_beyond_four_gigabytes_work(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let far = (5u64 << 32) + 4095;
    w.write(&file, far, b"far away").unwrap();
    assert_eq!(w.attr(&file).size, far + 8);
    assert_eq!(&w.read(&file, far - 2, 100).unwrap()[..], b"\0\0far away");
    assert!(w.read(&file, 1 << 32, 5000).unwrap().iter().all(|byte| *byte == 0));
    w.set(&file, &size(far + 3)).unwrap();
    assert_eq!(&w.read(&file, far, 100).unwrap()[..], b"far");
    Ok(())
}

pub fn offsets_beyond_the_largest_file_are_refused(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let max = w.fs.caps().file_size_max;
    for offset in [max, max - 1, u64::MAX, u64::MAX - 1] {
        assert_eq!(w.write(&file, offset, b"xx").unwrap_err(), VfsError::FileTooBig, "at {offset}");
    }
    assert_eq!(w.set(&file, &size(u64::MAX)).unwrap_err(), VfsError::FileTooBig);
    assert_eq!(w.attr(&file).size, 0);
    assert_eq!(w.set(&file, &size(max)).unwrap().after.size, max);
    Ok(())
}

pub fn an_empty_write_changes_nothing(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let before = w.attr(&file);
    assert_eq!(w.write(&file, 100, b"").unwrap(), before);
    w.fs.write(&w.me(), &file, 100, &rope(b""), Stability::Unstable, Report::Nothing).unwrap();
    assert_eq!(w.attr(&file), before);
    Ok(())
}

pub fn ropes_of_many_pieces_are_written_in_order(w: &World) -> Outcome {
    let source = tempfile::tempfile().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&source, &[9; 5000], 0).unwrap();
    let source = std::sync::Arc::new(source);
    let mut data = Rope::new();
    for i in 0..3000u32 {
        data.push(Piece::Memory(Bytes::from(vec![i as u8; i as usize % 200])));
        if i % 1000 == 0 {
            data.push(Piece::File(FileRange { file: source.clone(), offset: 100, len: 4500 }));
        }
    }
    let file = w.file(&w.root(), "f");
    let written = w.fs.write(&w.me(), &file, 77, &data, Stability::Unstable, Report::Attributes(Writer(1))).unwrap();
    assert_eq!(written.after.unwrap().size, 77 + data.len() as u64);
    assert_eq!(w.read(&file, 77, data.len()).unwrap(), data.to_bytes().unwrap());
    Ok(())
}

pub fn write_returns_requested_attributes(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let attr = || w.attr(&file);
    let write = |report| w.fs.write(&w.me(), &file, 0, &rope(b"data"), Stability::Unstable, report).unwrap();
    let silent = write(Report::Nothing);
    assert_eq!((silent.before, silent.after), (None, None));
    for writer in [1, 2, 1] {
        let before = attr();
        let written = write(Report::Attributes(Writer(writer)));
        assert_eq!(written.before, Some(PreAttr::from(&before)), "another writer has changed the file before");
        assert_eq!(written.after, Some(attr()));
    }
    Ok(())
}

pub fn only_files_have_data(w: &World) -> Outcome {
    let root = w.root();
    let dir = w.dir(&root, "d");
    let fifo = w.fs.mknod(&w.me(), &root, name("p"), NodeKind::Fifo, &mode(0o666)).unwrap().handle;
    let socket = w.fs.mknod(&w.me(), &root, name("s"), NodeKind::Socket, &mode(0o666)).unwrap().handle;
    let link = w.fs.symlink(&w.me(), &root, name("l"), b"f", &SetAttr::default()).unwrap().handle;
    w.file(&root, "f");
    for (object, error) in
        [(&dir, VfsError::IsDir), (&fifo, VfsError::Invalid), (&socket, VfsError::Invalid), (&link, VfsError::Invalid)]
    {
        assert_eq!(w.read(object, 0, 10).unwrap_err(), error);
        assert_eq!(w.fs.read_into(&w.me(), object, 0, &mut [0; 4]).unwrap_err(), error);
        assert_eq!(w.write(object, 0, b"x").unwrap_err(), error);
        assert_eq!(w.fs.commit(&w.me(), object, 0, 0).unwrap_err(), error);
    }
    Ok(())
}

pub fn lent_data_does_not_change(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    w.write(&file, 0, &[1; 400_000]).unwrap();
    let lent = w.fs.read(&w.me(), &file, 0, 400_000, &w.pool, false).unwrap().data;
    w.write(&file, 0, &[2; 400_000]).unwrap();
    w.set(&file, &size(10)).unwrap();
    w.write(&file, 130_000, &[3; 10_000]).unwrap();
    w.fs.remove(&w.me(), &w.root(), name("f")).unwrap();
    assert_eq!(lent.to_bytes().unwrap(), vec![1; 400_000]);
    Ok(())
}

pub fn data_can_come_as_file_ranges(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let content: Vec<u8> = (0..300_000u32).map(|i| (i % 249) as u8).collect();
    w.write(&file, 0, &content).unwrap();
    for (offset, len) in [(0, 300_000), (1000, 65_536), (299_000, 64_000), (5, 10)] {
        let read = w.fs.read(&w.me(), &file, offset, len, &w.pool, true).unwrap();
        let end = content.len().min(offset as usize + len);
        assert_eq!(read.data.to_bytes().unwrap(), content[offset as usize..end]);
        assert_eq!(read.eof, end == content.len());
    }
    Ok(())
}

pub fn every_stability_is_honoured(w: &World) -> Outcome {
    let file = w.file(&w.root(), "f");
    let verifier = w.fs.write_verifier();
    for (i, asked) in [Stability::Unstable, Stability::DataSync, Stability::FileSync].into_iter().enumerate() {
        let written =
            w.fs.write(&w.me(), &file, 10 * i as u64, &rope(b"0123456789"), asked, Report::Attributes(Writer(1)))
                .unwrap();
        //= rfc8881-18.32.3-3 rfc8881-18.32.3-4
        assert!(written.stability >= asked);
    }
    for (offset, len) in [(0, 0), (5, 10), (1 << 40, 0), (u64::MAX, 1), (3, u64::MAX)] {
        assert_eq!(w.fs.commit(&w.me(), &file, offset, len).unwrap().after.size, 30);
    }
    assert_eq!(w.fs.write_verifier(), verifier);
    Ok(())
}

pub fn random_writes_and_truncations_agree_with_a_model(w: &World) -> Outcome {
    let mut rng = SmallRng::seed_from_u64(4);
    let file = w.file(&w.root(), "f");
    let mut model: Vec<u8> = Vec::new();
    let mut lent = Vec::new();
    for round in 0..600u32 {
        let at = rng.random_range(0..500_000usize);
        match rng.random_range(0..10) {
            0 => {
                let keep = rng.random_range(0..500_000);
                model.resize(keep, 0);
                w.set(&file, &size(keep as u64)).unwrap();
            }
            1 => {
                // Write whole, aligned pages from a pool.
                let mut page = w.pool.take(128 << 10);
                page.fill(round as u8);
                let at = at / page.len() * page.len();
                model.resize(model.len().max(at + page.len()), 0);
                model[at..at + page.len()].copy_from_slice(&page);
                let data = Rope::from(page.freeze());
                w.fs.write(&w.me(), &file, at as u64, &data, Stability::Unstable, Report::Nothing).unwrap();
            }
            2..6 => {
                let len = 1 << rng.random_range(0..18);
                let data: Vec<u8> = (0..len).map(|i| (i as u32 ^ round) as u8).collect();
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&data);
                w.write(&file, at as u64, &data).unwrap();
            }
            _ => {
                let len = rng.random_range(1..200_000);
                let end = model.len().min(at + len);
                let expected = model.get(at..end).unwrap_or_default();
                let data = w.fs.read(&w.me(), &file, at as u64, len, &w.pool, false).unwrap().data;
                assert_eq!(data.to_bytes().unwrap(), expected);
                lent.push((data, expected.to_vec()));
                lent.truncate(5);
            }
        }
        assert_eq!(w.attr(&file).size, model.len() as u64);
    }
    for (data, expected) in lent {
        assert_eq!(data.to_bytes().unwrap(), expected, "lent data has changed");
    }
    Ok(())
}

pub fn concurrent_reads_see_whole_blocks(w: &World) -> Outcome {
    const BLOCK: usize = 4096;
    let files: Vec<_> = (0..2).map(|i| w.file(&w.root(), &format!("f{i}"))).collect();
    for file in &files {
        w.write(file, 0, &[0; 64 * BLOCK]).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let files = &files;
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(u64::from(thread));
                for i in 0..400u32 {
                    let file = &files[rng.random_range(0..2)];
                    // Each thread writes only its own blocks, and reads the blocks of all threads.
                    let block = rng.random_range(0..16u64) * 4 + u64::from(thread);
                    let byte = (i % 50) as u8 * 4 + thread;
                    w.write(file, block * BLOCK as u64, &[byte; BLOCK]).unwrap();
                    let read = w.read(file, block * BLOCK as u64, BLOCK).unwrap();
                    assert!(read.len() == BLOCK && read.iter().all(|got| *got == byte));
                    let other = rng.random_range(0..64u64);
                    let read = w.read(file, other * BLOCK as u64, BLOCK).unwrap();
                    assert!(read.iter().all(|got| *got == 0 || u64::from(*got % 4) == other % 4));
                }
            });
        }
    });
    Ok(())
}
