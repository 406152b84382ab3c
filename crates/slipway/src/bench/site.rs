//! [`Site`]: the files on a server that a series works with: for each thread one, and a tree of sources if it builds.

use bytes::Bytes;
use client::{Mount, NfsUrl};

use super::point::Point;
use crate::{
    exit::Failure,
    reach::{self, Reach},
};

/// The files of one series.
pub struct Site {
    /// What all names begin with: nobody else's do.
    prefix: String,
    file_size: u64,
    /// Threads that have a file.
    files: u32,
    /// Whether blocks of the files will be read or written: only then are they filled.
    filled: bool,
    /// Threads that have sources.
    trees: u32,
}

/// A source file.
pub struct Source {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub size: usize,
}

impl Site {
    /// What `points` need, under names that begin with `prefix`.
    pub fn new(prefix: String, points: &[Point], file_size: u64) -> Self {
        let most = |wanted: fn(&Point) -> bool| {
            points.iter().filter(|point| wanted(point)).map(|point| point.threads).max().unwrap_or(0)
        };
        Self {
            prefix,
            file_size,
            files: most(|point| !point.operation.takes_a_tree()),
            filled: points.iter().any(|point| point.operation.moves_blocks()),
            trees: most(|point| point.operation.takes_a_tree()),
        }
    }

    /// Bytes of each file.
    pub fn file_size(&self) -> u64 {
        self.file_size
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        let files = if self.filled { self.file_size.saturating_mul(self.files.into()) } else { 0 };
        let tree: u64 = (0..SOURCES).map(|at| source(at).size as u64 + OVERHEAD).sum();
        files.saturating_add(tree * u64::from(self.trees))
    }

    /// The file of a thread.
    pub fn file(&self, thread: u32) -> String {
        format!("{}-{thread}", self.prefix)
    }

    /// The directory of a thread's sources.
    pub fn sources(&self, thread: u32) -> String {
        format!("{}-{thread}.src", self.prefix)
    }

    /// Makes the files, full of data that is not zeros. Returns the largest block that the transport takes.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub async fn prepare(&self, url: &NfsUrl) -> Result<usize, Failure> {
        let mount = Reach::new().mount(url).await?;
        let make = async {
            for thread in 0..self.files {
                let mut writer = mount.create(self.file(thread), 0o644).await?.writer();
                let mut left = if self.filled { self.file_size } else { 0 };
                let data = pattern((1 << 20).min(mount.write_size()));
                while left > 0 {
                    let len = left.min(data.len() as u64);
                    writer.write(data.slice(..len as usize)).await?;
                    left -= len;
                }
                writer.close().await?;
            }
            for thread in 0..self.trees {
                mount.mkdir(self.sources(thread), 0o755).await?;
                for Source { name, size } in (0..SOURCES).map(source) {
                    mount.write(format!("{}/{name}", self.sources(thread)), pattern(size)).await?;
                }
            }
            Ok(())
        };
        make.await.map_err(|error| reach::failure(url, &error))?;
        Ok(mount.read_size().min(mount.write_size()))
    }

    /// Removes what is there of the files, also of names that operations made and a failure left.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub async fn clear(&self, url: &NfsUrl) -> Result<(), Failure> {
        let mount = Reach::new().mount(url).await?;
        self.remove(&mount).await.map_err(|error| reach::failure(url, &error))
    }

    async fn remove(&self, mount: &Mount) -> client::Result<()> {
        let own = format!("{}-", self.prefix);
        let ours = |name: &Bytes| name.starts_with(own.as_bytes());
        for entry in mount.read_dir("").await?.collect().await?.into_iter().filter(|entry| ours(&entry.name)) {
            if !entry.name.ends_with(b".src") {
                mount.remove(&entry.name).await?;
                continue;
            }
            for inner in mount.read_dir(&entry.name).await?.collect().await? {
                mount.remove([&entry.name[..], b"/", &inner.name].concat()).await?;
            }
            mount.rmdir(&entry.name).await?;
        }
        Ok(())
    }
}

/// The source file that is compiled at a turn: sizes of 1 to 16 KiB, as most sources have.
pub fn source(turn: u64) -> Source {
    let at = turn % SOURCES;
    Source { name: format!("source-{at}.c"), size: 1024 << (scatter(at) % 5) }
}

/// The block that is touched at a turn, of so many.
pub fn block_at(turn: u64, random: bool, blocks: u64) -> u64 {
    (if random { scatter(turn) } else { turn }) % blocks
}

/// Maps numbers to numbers that look random (the finalizer of SplitMix64).
pub fn scatter(turn: u64) -> u64 {
    let mut x = turn.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Bytes that are neither zeros nor all the same.
pub fn pattern(len: usize) -> Bytes {
    (0..len).map(|at| (scatter(at as u64 / 8) >> (at % 8 * 8)) as u8 | 1).collect::<Vec<u8>>().into()
}

/// Sources in a tree.
const SOURCES: u64 = 256;
/// What a small file may take beyond its bytes.
const OVERHEAD: u64 = 8 << 10;
