//! Measures the cost of an operation in each back end, in nanoseconds of one thread's processor time.
//!
//! `cargo run --release -p slipway-vfs --example backend_speed [directory…]` measures the memory back end and the given
//! directories.

use std::hint::black_box;

use buf::{Pool, Rope};
use vfs::{
    Caller, CreateMode, Cred, Handle, Name, Report, SetAttr, Stability, Vfs, Writer,
    memory::{Memory, MemoryOptions},
    posix::{Posix, PosixOptions},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    measure("memory", &Memory::new(MemoryOptions::default()));
    for dir in std::env::args().skip(1) {
        measure(&dir, &Posix::open(&dir, PosixOptions::default())?);
    }
    Ok(())
}

fn measure(title: &str, fs: &dyn Vfs) {
    println!("{title}");
    let (cred, pool) = (Cred::root(), Pool::default());
    let caller = Caller::blocking(&cred);
    let root = fs.root();
    let name = Name::new(b"backend-speed").expect("name must be valid");
    let mode = CreateMode::Unchecked(SetAttr { size: Some(0), ..SetAttr::default() });
    let file = fs.create(&caller, &root, name, &mode).expect("cannot create a file").handle;
    let mut block = pool.take(128 << 10);
    block.fill(1);
    let block = Rope::from(block.freeze());
    for i in 0..BLOCKS {
        fs.write(&caller, &file, i << 17, &block, Stability::Unstable, Report::Attributes(Writer(1)))
            .expect("cannot write 64 MiB");
    }
    let small = block.slice(0, 4096);
    let mut into = vec![0; 4096];
    let anywhere = |i: u64| (i.wrapping_mul(7919) % (BLOCKS * 32)) << 12;
    let next = |i: u64| (i % BLOCKS) << 17;
    report("getattr", 1_000_000, |_| drop(black_box(fs.getattr(&caller, &file))));
    report("lookup", 300_000, |_| drop(black_box(fs.lookup(&caller, &root, name))));
    report("read 4 KiB", 1_000_000, |i| read(fs, &caller, &file, &pool, anywhere(i), 4096));
    report("read_into 4 KiB", 500_000, |i| {
        drop(black_box(fs.read_into(&caller, &file, anywhere(i), &mut into)));
    });
    report("read 128 KiB", 50_000, |i| read(fs, &caller, &file, &pool, next(i), 128 << 10));
    report("write 4 KiB", 200_000, |i| write(fs, &caller, &file, anywhere(i), &small));
    report("write 128 KiB", 20_000, |i| {
        // Use a new buffer for each write, as a transport does.
        let buffer = pool.take(128 << 10);
        write(fs, &caller, &file, next(i), &Rope::from(buffer.freeze()));
    });
    report("create + remove", 50_000, |_| {
        let name = Name::new(b"backend-speed-new").expect("name must be valid");
        fs.create(&caller, &root, name, &CreateMode::Guarded(SetAttr::default())).expect("cannot create a file");
        fs.remove(&caller, &root, name).expect("cannot remove the file");
    });
    fs.remove(&caller, &root, name).expect("cannot remove the file");
}

fn read(fs: &dyn Vfs, caller: &Caller<'_>, file: &Handle, pool: &Pool, offset: u64, len: usize) {
    drop(black_box(fs.read(caller, file, offset, len, pool, true).expect("cannot read")));
}

fn write(fs: &dyn Vfs, caller: &Caller<'_>, file: &Handle, offset: u64, data: &Rope) {
    fs.write(caller, file, offset, data, Stability::Unstable, Report::Attributes(Writer(1))).expect("cannot write");
}

fn report(what: &str, times: u64, mut run: impl FnMut(u64)) {
    (0..times / 10).for_each(&mut run);
    let start = used();
    (0..times).for_each(&mut run);
    println!("  {what:<16} {:>8.0} ns", (used() - start) / times as f64);
}

fn used() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

const BLOCKS: u64 = 512;
