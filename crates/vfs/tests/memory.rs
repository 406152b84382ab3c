//! Properties that only the memory file system has: a capacity, and data that is not copied.

use buf::{Pool, PoolOptions, Rope};
use bytes::Bytes;
use vfs::{
    Caller, CreateMode, Cred, Handle, Name, Report, SetAttr, Stability, Vfs, VfsError, Writer,
    memory::{Memory, MemoryOptions},
};

fn small(capacity: u64) -> Memory {
    Memory::new(MemoryOptions { capacity, ..MemoryOptions::default() })
}

fn create(fs: &Memory, name: &str) -> vfs::Result<Handle> {
    let root = Cred::root();
    let caller = Caller::nonblocking(&root);
    let name = Name::new(name.as_bytes())?;
    Ok(fs.create(&caller, &fs.root(), name, &CreateMode::Guarded(SetAttr::default()))?.handle)
}

fn write(fs: &Memory, file: &Handle, offset: u64, data: impl Into<Bytes>) -> vfs::Result<()> {
    let root = Cred::root();
    let caller = Caller::nonblocking(&root);
    fs.write(&caller, file, offset, &Rope::from(data.into()), Stability::FileSync, Report::Attributes(Writer(1)))
        .map(drop)
}

fn free(fs: &Memory) -> u64 {
    let root = Cred::root();
    let caller = Caller::nonblocking(&root);
    fs.statfs(&caller, &fs.root()).unwrap().bytes_free
}

#[test]
fn full_file_system_returns_no_space_and_loses_nothing() {
    let fs = small(4 << 20);
    let root = Cred::root();
    let caller = Caller::nonblocking(&root);
    let file = create(&fs, "f").unwrap();
    let mut written = 0;
    while write(&fs, &file, written << 17, vec![7; 128 << 10]).is_ok() {
        written += 1;
    }
    assert!((28..32).contains(&written), "{written} blocks of 128 KiB in 4 MiB");
    assert_eq!(write(&fs, &file, 0, vec![1; 8 << 20]).unwrap_err(), VfsError::NoSpace);
    let size = fs.getattr(&caller, &file).unwrap().size;
    assert_eq!(size, written << 17, "a write that did not fit must not be executed in part");
    let data = fs.read(&caller, &file, 0, 4 << 20, &Pool::default(), false).unwrap().data;
    assert!(data.to_bytes().unwrap().iter().all(|byte| *byte == 7));
    // Existing data can be overwritten, even while it is lent.
    write(&fs, &file, 0, vec![2; 128 << 10]).unwrap();
    fs.remove(&caller, &fs.root(), Name::new(b"f").unwrap()).unwrap();
    let again = create(&fs, "g").unwrap();
    write(&fs, &again, 0, vec![1; 3 << 20]).unwrap();
}

#[test]
fn names_and_objects_take_space() {
    let fs = small(1 << 20);
    let made = (0..).take_while(|i| create(&fs, &format!("f{i}")).is_ok()).count();
    assert!((100..2000).contains(&made), "{made} objects in 1 MiB");
    assert_eq!(create(&fs, "one more").unwrap_err(), VfsError::NoSpace);
    let root = Cred::root();
    let caller = Caller::nonblocking(&root);
    for i in 0..made {
        fs.remove(&caller, &fs.root(), Name::new(format!("f{i}").as_bytes()).unwrap()).unwrap();
    }
    assert_eq!(free(&fs), free(&small(1 << 20)), "all space must be released");
}

#[test]
fn data_is_lent_from_the_pool_without_a_copy() {
    let pool = Pool::new(PoolOptions::default());
    let fs = Memory::new(MemoryOptions { pool: pool.clone(), ..MemoryOptions::default() });
    let root = Cred::root();
    let caller = Caller::nonblocking(&root);
    let file = create(&fs, "f").unwrap();
    let mut page = pool.take(128 << 10);
    page.fill(3);
    let page = page.freeze();
    write(&fs, &file, 128 << 10, page.clone()).unwrap();
    let used = pool.stats().mapped - pool.stats().free;
    let read = || fs.read(&caller, &file, 128 << 10, 128 << 10, &Pool::default(), false).unwrap().data;
    let (first, second) = (read(), read());
    assert_eq!(first.pieces().len(), 1);
    assert_eq!(first.to_bytes().unwrap().as_ptr(), page.as_ptr());
    assert_eq!(second.to_bytes().unwrap().as_ptr(), page.as_ptr());
    assert_eq!(pool.stats().mapped - pool.stats().free, used, "reading must not take memory from the pool");
    write(&fs, &file, 128 << 10, vec![4; 10]).unwrap();
    assert_eq!(first.to_bytes().unwrap(), vec![3; 128 << 10]);
}

#[test]
fn handles_and_verifiers_belong_to_one_instance() {
    let (one, two) = (small(1 << 20), small(1 << 20));
    let root = Cred::root();
    let caller = Caller::nonblocking(&root);
    let file = create(&one, "f").unwrap();
    create(&two, "f").unwrap();
    assert_eq!(two.getattr(&caller, &file).unwrap_err(), VfsError::Stale);
    //= rfc8881-18.32.3-4
    assert_ne!(one.write_verifier(), two.write_verifier());
    assert_ne!(one.root(), two.root());
}

fn remove(fs: &Memory, name: &str) {
    let root = Cred::root();
    let caller = Caller::nonblocking(&root);
    fs.remove(&caller, &fs.root(), Name::new(name.as_bytes()).unwrap()).unwrap();
}

#[test]
fn memory_of_removed_data_returns_to_the_system() {
    const BLOCK: usize = 128 << 10;
    let pool = Pool::new(PoolOptions::default());
    let fs = Memory::new(MemoryOptions { pool: pool.clone(), ..MemoryOptions::default() });
    let root = Cred::root();
    let caller = Caller::nonblocking(&root);
    // Trim twice with no operation in between: the memory that is free then was not needed.
    let mapped = || {
        pool.trim();
        pool.trim();
        pool.stats().mapped
    };
    let empty = mapped();
    for name in ["removed", "cut", "renamed over"] {
        let file = create(&fs, name).unwrap();
        for block in 0..512 {
            // Write both copied and adopted pages.
            let mut data = pool.take(BLOCK);
            data.fill(1);
            write(&fs, &file, block * BLOCK as u64, data.freeze()).unwrap();
            write(&fs, &file, (block * BLOCK as u64) + 1, vec![2; 5000]).unwrap();
        }
        assert!(mapped() >= empty + (64 << 20), "{name}");
        match name {
            "removed" => remove(&fs, name),
            "cut" => {
                let cut = SetAttr { size: Some(0), ..SetAttr::default() };
                fs.setattr(&caller, &file, &cut, None).unwrap();
            }
            _ => {
                create(&fs, "other").unwrap();
                let (from, to) = (Name::new(b"other").unwrap(), Name::new(name.as_bytes()).unwrap());
                fs.rename(&caller, &fs.root(), from, &fs.root(), to).unwrap();
            }
        }
        // One slab of each size that was used may stay.
        assert!(mapped() <= empty + (8 << 20), "{name}: {} bytes are mapped", mapped());
    }
}
