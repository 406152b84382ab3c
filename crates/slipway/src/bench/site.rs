//! [`Site`]: the files of a series on a server: one for each thread, and a tree of sources for a build.

use bytes::Bytes;
use client::{Mount, NfsUrl};

use super::point::Point;
use crate::{
    exit::Failure,
    reach::{self, Reach},
};

/// The files of one series.
pub struct Site {
    /// The unique prefix of all names.
    prefix: String,
    file_size: u64,
    /// The number of threads that have a file.
    files: u32,
    /// `true` if all threads have the same file.
    shared: bool,
    /// `true` if blocks of the files are read or written. Only then are the files filled.
    filled: bool,
    /// The number of threads that have sources.
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
    /// Returns the files for `points`, with names that begin with `prefix`.
    pub fn new(prefix: String, points: &[Point], file_size: u64) -> Self {
        let most = |wanted: fn(&Point) -> bool| {
            points.iter().filter(|point| wanted(point)).map(|point| point.threads).max().unwrap_or(0)
        };
        Self {
            prefix,
            file_size,
            files: most(|point| !point.operation.takes_a_tree()),
            shared: false,
            filled: points.iter().any(|point| point.operation.moves_blocks()),
            trees: most(|point| point.operation.takes_a_tree()),
        }
    }

    /// Returns this site with one file for all threads. Each begins in another part of it.
    pub fn shared(self) -> Self {
        Self { files: self.files.min(1), shared: true, ..self }
    }

    /// Returns the block with which a thread begins.
    pub fn first_block(&self, thread: u32, threads: u32, blocks: u64) -> u64 {
        if self.shared { blocks * u64::from(thread) / u64::from(threads) } else { 0 }
    }

    /// Returns the bytes of each file.
    pub fn file_size(&self) -> u64 {
        self.file_size
    }

    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        let files = if self.filled { self.file_size.saturating_mul(self.files.into()) } else { 0 };
        let tree: u64 = (0..SOURCES).map(|at| source(at).size as u64 + OVERHEAD).sum();
        files.saturating_add(tree * u64::from(self.trees))
    }

    /// Returns the file name of a thread.
    pub fn file(&self, thread: u32) -> String {
        format!("{}-{}", self.prefix, if self.shared { 0 } else { thread })
    }

    /// Returns the directory with the sources of a thread.
    pub fn sources(&self, thread: u32) -> String {
        format!("{}-{thread}.src", self.prefix)
    }

    /// Makes the files, with data that are not zeros. Returns the largest block of the transport.
    ///
    /// # Errors
    /// The server cannot be reached, or rejects an operation.
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

    /// Removes the files, also those that a failed operation has left.
    ///
    /// # Errors
    /// The server cannot be reached, or rejects an operation.
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

/// Returns the source file of a turn. Sizes are 1 to 16 KiB, as of most sources.
pub fn source(turn: u64) -> Source {
    let at = turn % SOURCES;
    Source { name: format!("source-{at}.c"), size: 1024 << (scatter(at) % 5) }
}

/// Returns the index of the block of a turn, of `blocks` blocks.
pub fn block_at(turn: u64, point: &Point, blocks: u64) -> u64 {
    match (point.zipf, point.random) {
        (true, _) => zipf(turn, blocks),
        (false, random) => (if random { scatter(turn) } else { turn }) % blocks,
    }
}

/// Returns the index of the block of a turn by Zipf's law: the block with rank k comes with a probability that is proportional to
/// k to the power of −0.9, as by fio's `random_distribution=zipf:0.9`.
fn zipf(turn: u64, blocks: u64) -> u64 {
    // The inverse of the integral of the law from 1 to `blocks` + 1.
    let (uniform, power) = (scatter(turn) as f64 / 2_f64.powi(64), 1.0 - 0.9);
    let rank = (uniform * ((blocks as f64 + 1.0).powf(power) - 1.0) + 1.0).powf(1.0 / power);
    let rank = (rank as u64).clamp(1, blocks) - 1;
    // Blocks that come often are not neighbours. The factor is a prime, so each rank has its own block.
    rank.wrapping_mul(7919) % blocks
}

/// Maps numbers to pseudo-random numbers (the finalizer of SplitMix64).
pub fn scatter(turn: u64) -> u64 {
    let mut x = turn.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns bytes that are neither zeros nor all the same.
pub fn pattern(len: usize) -> Bytes {
    (0..len).map(|at| (scatter(at as u64 / 8) >> (at % 8 * 8)) as u8 | 1).collect::<Vec<u8>>().into()
}

/// The number of sources in a tree.
const SOURCES: u64 = 256;
/// The storage of a small file beyond its bytes.
const OVERHEAD: u64 = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::point::Operation;

    #[test]
    fn threads_of_a_shared_file_begin_in_other_parts() {
        let points = [Point::new(Operation::Read, 4096, 1).threads(4)];
        let own = Site::new("x".to_owned(), &points, 1 << 20);
        assert_eq!((own.file(3), own.first_block(3, 4, 256), own.files), ("x-3".to_owned(), 0, 4));
        let shared = Site::new("x".to_owned(), &points, 1 << 20).shared();
        assert_eq!((shared.file(3), shared.files), ("x-0".to_owned(), 1));
        assert_eq!([0, 1, 3].map(|thread| shared.first_block(thread, 4, 256)), [0, 64, 192]);
    }

    #[test]
    fn blocks_come_as_often_as_the_order_says() {
        let point = Point::new(Operation::Read, 4096, 1);
        let counts = |point: Point, blocks: u64| {
            let mut counts = vec![0_u32; blocks as usize];
            (0..100_000).for_each(|turn| counts[block_at(turn, &point, blocks) as usize] += 1);
            counts.sort_unstable();
            counts
        };
        assert_eq!(counts(point, 500), [200; 500]);
        let random = counts(point.random(), 500);
        assert!(random[0] > 100 && random[499] < 300, "{random:?}");
        // The integral of the law over the first rank is 0.083 of all, and that over the first fifty 0.56.
        let zipf = counts(point.zipf(), 500);
        assert!(zipf[0] > 0 && (8_000..8_600).contains(&zipf[499]), "{zipf:?}");
        assert!((55_000..57_000).contains(&zipf[450..].iter().sum::<u32>()), "{zipf:?}");
        assert_eq!(counts(point.zipf(), 1), [100_000]);
    }
}
