//! The load of `slipway demo pnfs`: files whose every block is known, which are written and read at the same time.
//!
//! A block has the number of its last write as its version, and its bytes follow from file, position and version. So every byte can
//! be checked at any time without a second copy of the data.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use bytes::Bytes;
use client::{DataWays, File, Mount, NfsUrl};
use futures_util::future::try_join_all;

use crate::{
    exit::Failure,
    reach::{self, Reach},
};

/// The bytes of a block.
pub const BLOCK: usize = 1 << 20;

/// The files.
#[derive(Clone, Copy)]
pub struct Files {
    /// The number of files.
    pub count: usize,
    /// The number of blocks of each.
    pub blocks: usize,
}

/// The versions of all blocks, by file.
pub type Versions = Vec<Vec<u64>>;

/// Counters of the load while it runs.
#[derive(Default)]
pub struct Gauges {
    pub stop: AtomicBool,
    pub written: AtomicU64,
    pub read: AtomicU64,
    /// The longest operation since the last look, in microseconds.
    pub longest_us: AtomicU64,
    /// The reads and writes of the mount by their way, when the load has ended.
    pub ways: Mutex<DataWays>,
}

impl Files {
    /// Returns the name of a file.
    pub fn name(file: usize) -> String {
        format!("file{file}")
    }

    /// Returns the bytes of all files.
    pub fn bytes(self) -> u64 {
        (self.count * self.blocks * BLOCK) as u64
    }

    /// Writes all files, with all blocks in version 1.
    ///
    /// # Errors
    /// An operation failed.
    pub fn write(self, url: &NfsUrl) -> Result<Versions, Failure> {
        reach::run(async {
            let mount = Reach::new().mount(url).await?;
            let write = async |file: usize| {
                let created = mount.create(Self::name(file), 0o644).await?;
                let mut writer = created.writer();
                for at in 0..self.blocks {
                    writer.write(content(file, at, 1)).await?;
                }
                writer.close().await
            };
            try_join_all((0..self.count).map(write)).await.map_err(Failure::failed)?;
            Ok(vec![vec![1; self.blocks]; self.count])
        })
    }

    /// Writes and reads blocks in random order until `gauges` say to stop. Each block that is read is compared. Each write is on
    /// stable storage before the next one of this file. Returns the versions then.
    ///
    /// # Errors
    /// An operation failed, or a block that was read is wrong.
    pub fn use_all(self, url: &NfsUrl, versions: Versions, gauges: &Gauges) -> Result<Versions, Failure> {
        reach::run(async {
            let mount = Reach::new().mount(url).await?;
            let tasks = versions.into_iter().enumerate().map(|(file, versions)| one(&mount, file, versions, gauges));
            let versions = try_join_all(tasks).await;
            if let Some(v4) = mount.v4() {
                *gauges.ways.lock().expect("no holder panics") = v4.data_ways();
            }
            versions
        })
    }

    /// Reads all files. Returns the number of wrong blocks, and the reads of the mount by their way.
    ///
    /// # Errors
    /// An operation failed.
    pub fn check(self, url: &NfsUrl, versions: &Versions) -> Result<(u64, DataWays), Failure> {
        reach::run(async {
            let mount = Reach::new().mount(url).await?;
            let mut wrong = 0;
            for (file, versions) in versions.iter().enumerate() {
                let opened = mount.open(Self::name(file)).await.map_err(Failure::failed)?;
                wrong += wrong_blocks(&opened, file, versions).await?;
            }
            Ok((wrong, mount.v4().map(|v4| v4.data_ways()).unwrap_or_default()))
        })
    }

    /// Reads objects of a data server, each of which must be a copy of a file. Returns the number of wrong blocks.
    ///
    /// # Errors
    /// An operation failed.
    pub fn check_objects(self, url: &NfsUrl, objects: &[(usize, String)], versions: &Versions) -> Result<u64, Failure> {
        reach::run(async {
            let mount = Reach::new().mount(url).await?;
            let mut wrong = 0;
            for (file, object) in objects {
                let opened = mount.open(object).await.map_err(Failure::failed)?;
                wrong += wrong_blocks(&opened, *file, &versions[*file]).await?;
            }
            Ok(wrong)
        })
    }
}

/// Changes the first byte of an object of a data server.
///
/// # Errors
/// An operation failed.
pub fn flip_first_byte(url: &NfsUrl, object: &str) -> Result<(), Failure> {
    reach::run(async {
        let mount = Reach::new().mount(url).await?;
        let opened = mount.open(object).await.map_err(Failure::failed)?;
        let first = opened.read_bytes(0, 1).await.map_err(Failure::failed)?;
        let flipped: Bytes = first.iter().map(|byte| byte ^ 1).collect();
        opened.write_at(0, flipped).await.map_err(Failure::failed)
    })
}

/// Uses one file.
async fn one(mount: &Mount, file: usize, mut versions: Vec<u64>, gauges: &Gauges) -> Result<Vec<u64>, Failure> {
    let opened = mount.open(Files::name(file)).await.map_err(Failure::failed)?;
    let mut random = Random(file as u64 + 1);
    while !gauges.stop.load(Relaxed) {
        let at = random.below(versions.len());
        let begun = Instant::now();
        versions[at] += 1;
        opened.write_at((at * BLOCK) as u64, content(file, at, versions[at])).await.map_err(Failure::failed)?;
        gauges.written.fetch_add(BLOCK as u64, Relaxed);
        gauges.took(begun);

        let at = random.below(versions.len());
        let begun = Instant::now();
        let read = opened.read_bytes((at * BLOCK) as u64, BLOCK).await.map_err(Failure::failed)?;
        if read != content(file, at, versions[at]) {
            return Err(Failure::failed(format!("{}: block {at} is wrong under load", Files::name(file))));
        }
        gauges.read.fetch_add(BLOCK as u64, Relaxed);
        gauges.took(begun);
    }
    Ok(versions)
}

impl Gauges {
    fn took(&self, since: Instant) {
        self.longest_us.fetch_max(since.elapsed().as_micros() as u64, Relaxed);
    }
}

/// Returns the number of blocks of a file that are not as they must be. Bytes behind the last block count as one.
async fn wrong_blocks(opened: &File, file: usize, versions: &[u64]) -> Result<u64, Failure> {
    let mut wrong = 0;
    for (at, version) in versions.iter().enumerate() {
        let read = opened.read_bytes((at * BLOCK) as u64, BLOCK).await.map_err(Failure::failed)?;
        wrong += u64::from(read != content(file, at, *version));
    }
    let behind = opened.read_bytes((versions.len() * BLOCK) as u64, 1).await.map_err(Failure::failed)?;
    Ok(wrong + u64::from(!behind.is_empty()))
}

/// Returns the bytes of a block.
fn content(file: usize, at: usize, version: u64) -> Bytes {
    let mut random = Random((file as u64) << 48 ^ (at as u64) << 32 ^ version);
    let mut data = Vec::with_capacity(BLOCK);
    while data.len() < BLOCK {
        data.extend_from_slice(&random.next().to_le_bytes());
    }
    data.into()
}

/// A generator of numbers that follow from its seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_and_version_has_other_bytes() {
        let block = content(1, 2, 3);
        assert_eq!((block.len(), &block), (BLOCK, &content(1, 2, 3)));
        for other in [content(0, 2, 3), content(1, 1, 3), content(1, 2, 4)] {
            assert_ne!(block, other);
        }
    }
}
