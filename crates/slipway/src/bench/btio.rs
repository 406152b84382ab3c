//! [`Btio`]: the I/O of the benchmark BTIO (class A of the NAS parallel benchmarks), on one file that all writers share.
//!
//! A run writes 40 dumps, one behind the other. A dump has the 64 × 64 × 64 points of a grid, each of five numbers of eight bytes:
//! 10,485,760 bytes. The writers are 1, 4 or 16, because each has as many cells of the grid as there are cells in a row. There are
//! two ways to write a dump:
//!
//! - FULL: the writers have exchanged their points before, so that each writes one large contiguous record.
//! - SIMPLE: each writer writes its points where it has them: one small record for each row of each of its cells.
//!
//! Only the I/O is executed, and the computation between dumps is left out. Each byte follows from its offset and the number
//! of the run. The reader of a record is not its writer, and compares each byte.
//!
//! Errors: a byte that differs is an error of the measurement, as a failed operation is. Unstable data that were lost are written again.

use std::time::Instant;

use bytes::Bytes;
use client::{File, Mount, NfsUrl, StableHow};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    load::{self, Costs},
    meter::Meter,
    point::{Operation, Point},
    runner::{Measured, Subject},
    sample::Tally,
    site::scatter,
};
use crate::{
    exit::Failure,
    reach::{self, Reach},
};

/// The file of one cluster.
pub struct Btio<'a> {
    url: NfsUrl,
    /// The process IDs of the metadata server and of the data servers.
    pids: (u32, Vec<u32>),
    dumps: u64,
    meter: &'a Meter,
    /// The number of the run that has written the file.
    run: u64,
}

/// Consecutive bytes of the file that a writer writes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    offset: u64,
    len: usize,
}

impl<'a> Btio<'a> {
    /// Returns the subject for a cluster, whose file has this many dumps.
    pub fn new(url: NfsUrl, pids: (u32, Vec<u32>), dumps: u64, meter: &'a Meter) -> Self {
        Self { url, pids, dumps, meter, run: 0 }
    }

    /// Returns the bytes of a file.
    pub fn file_size(dumps: u64) -> u64 {
        dumps * DUMP
    }

    /// Makes an empty file. Then no byte of a former run can be taken for one of this run.
    async fn prepare(&self) -> Result<(), Failure> {
        let mount = Reach::new().mount(&self.url).await?;
        let make = async {
            if mount.resolve(NAME).await.is_ok() {
                mount.remove(NAME).await?;
            }
            mount.create(NAME, 0o644).await
        };
        make.await.map(drop).map_err(|error| reach::failure(&self.url, &error))
    }
}

impl Subject for Btio<'_> {
    fn measure(&mut self, point: &Point) -> Result<Measured, Failure> {
        let writes = matches!(point.operation, Operation::BtioFullWrite | Operation::BtioSimpleWrite);
        if writes {
            self.run += 1;
            reach::run(self.prepare())?;
        }
        let connect = |thread| {
            let runtime = reach::runtime()?;
            let mount = runtime.block_on(Reach::new().mount(&self.url))?;
            let opened = runtime.block_on(mount.open(NAME));
            let file = opened.map_err(|error| reach::failure(&self.url, &error))?;
            // Another process than the writer reads a record.
            let of = if writes { thread } else { (thread + 1) % point.threads };
            Ok((Share { mount, file, point: *point, of, dumps: self.dumps, run: self.run }, runtime))
        };
        let drive = |(share, runtime): &(Share, tokio::runtime::Runtime), _| {
            runtime.block_on(share.execute()).map_err(|problem| match problem {
                Problem::Client(error) => reach::failure(&self.url, &error),
                Problem::Data(problem) => Failure::failed(format!("{NAME}: {problem}")),
            })
        };
        let finish = |(_, runtime): (Share, tokio::runtime::Runtime)| {
            runtime.block_on(reach::unmount_all());
            Ok(())
        };
        let costs = Costs { servers: &[self.pids.0], data_servers: &self.pids.1, meter: self.meter };
        // The work is fixed, and not the time.
        load::measure(point.threads, Default::default(), &costs, connect, drive, finish).map(Measured::Sample)
    }
}

/// The part of one thread.
struct Share {
    mount: Mount,
    file: File,
    point: Point,
    /// The writer whose records these are.
    of: u32,
    dumps: u64,
    run: u64,
}

enum Problem {
    Client(client::Error),
    Data(String),
}

impl From<client::Error> for Problem {
    fn from(error: client::Error) -> Self {
        Self::Client(error)
    }
}

impl Share {
    async fn execute(&self) -> Result<Tally, Problem> {
        let mut tally = Tally::until(Instant::now());
        for dump in 0..self.dumps {
            let simple = matches!(self.point.operation, Operation::BtioSimpleWrite | Operation::BtioSimpleRead);
            let records = if simple {
                simple_records(self.point.threads, self.of, dump)
            } else {
                vec![full_record(self.point.threads, self.of, dump)]
            };
            match self.point.operation {
                Operation::BtioFullWrite => self.write_full(&records, &mut tally).await?,
                Operation::BtioSimpleWrite => self.write_simple(&records, &mut tally).await?,
                _ => self.read(&records, &mut tally).await?,
            }
        }
        Ok(tally)
    }

    /// Writes large records. Each is on stable storage before the next one.
    async fn write_full(&self, records: &[Record], tally: &mut Tally) -> Result<(), Problem> {
        for record in records {
            let began = Instant::now();
            self.file.write_at(record.offset, content(self.run, *record)).await?;
            tally.count(record.len, Some(began));
        }
        Ok(())
    }

    /// Writes small records, and commits them at the end of the dump. If unstable data were lost, for example because the layout has ended,
    /// the dump is written again. Each record counts once.
    async fn write_simple(&self, records: &[Record], tally: &mut Tally) -> Result<(), Problem> {
        for _ in 0..TRIES {
            if let Some(written) = self.write_and_commit(records).await? {
                tally.add(&written);
                return Ok(());
            }
        }
        Err(Problem::Data(format!("unstable data were lost {TRIES} times")))
    }

    /// Writes small records, and commits them. Returns their counts, or `None` if some may be lost.
    async fn write_and_commit(&self, records: &[Record]) -> Result<Option<Tally>, Problem> {
        let write = |record: &Record| {
            let record = *record;
            async move {
                let (began, mut at, mut verifiers) = (Instant::now(), 0, Vec::new());
                let data = content(self.run, record);
                while at < record.len {
                    let (rest, offset) = (data.slice(at..), record.offset + at as u64);
                    let protocol = self.mount.protocol();
                    let written = protocol.write(self.file.handle(), offset, rest.into(), StableHow::Unstable).await?;
                    verifiers.extend((written.committed == StableHow::Unstable).then_some(written.verf));
                    at += written.count as usize;
                }
                Ok::<_, Problem>((record.len, began, verifiers))
            }
        };
        let (mut tally, mut verifiers) = (Tally::until(Instant::now()), Vec::new());
        let mut writes = stream::iter(records).map(write).buffer_unordered(self.point.in_flight as usize);
        while let Some((len, began, of)) = writes.try_next().await? {
            tally.count(len, Some(began));
            verifiers.extend(of);
            verifiers.dedup();
        }
        let committed = self.file.commit().await?;
        Ok(verifiers.iter().all(|verifier| *verifier == committed).then_some(tally))
    }

    /// Reads records and compares them.
    async fn read(&self, records: &[Record], tally: &mut Tally) -> Result<(), Problem> {
        let read = |record: &Record| {
            let record = *record;
            async move {
                let (began, buffer) = (Instant::now(), self.mount.pool().take(record.len));
                let (read, buffer) = self.file.read_at(record.offset, buffer).await;
                let read = read?;
                let expected = content(self.run, record);
                let same = buffer.iter().zip(&expected).take(read).take_while(|(got, wanted)| got == wanted).count();
                if same < record.len {
                    let at = record.offset + same as u64;
                    return Err(Problem::Data(format!("byte {at} is not what was written there")));
                }
                Ok((record.len, began))
            }
        };
        let mut reads = stream::iter(records).map(read).buffer_unordered(self.point.in_flight as usize);
        while let Some((len, began)) = reads.try_next().await? {
            tally.count(len, Some(began));
        }
        Ok(())
    }
}

/// Returns the record of a writer in a dump of FULL.
fn full_record(writers: u32, writer: u32, dump: u64) -> Record {
    let len = DUMP / u64::from(writers);
    Record { offset: dump * DUMP + u64::from(writer) * len, len: len as usize }
}

/// Returns the records of a writer in a dump of SIMPLE, in the order in which it has them.
fn simple_records(writers: u32, writer: u32, dump: u64) -> Vec<Record> {
    let cells = u64::from(writers.isqrt());
    let rows = GRID / cells;
    let mut records = Vec::new();
    for [x, y, z] in cells_of(cells, u64::from(writer)) {
        for (plane, row) in (0..rows).flat_map(|plane| (0..rows).map(move |row| (plane, row))) {
            let point = ((z * rows + plane) * GRID + y * rows + row) * GRID + x * rows;
            records.push(Record { offset: dump * DUMP + point * POINT, len: (rows * POINT) as usize });
        }
    }
    records
}

/// Returns the cells of a writer: one in each plane of cells, each a step along the diagonal from the last one (NPB, `make_set`).
fn cells_of(cells: u64, writer: u64) -> impl Iterator<Item = [u64; 3]> {
    (0..cells).map(move |cell| [(writer + cell) % cells, (writer / cells + cells - cell) % cells, cell])
}

/// Returns the bytes of a record. They follow from the offset and the run, so bytes at a wrong place differ.
fn content(run: u64, record: Record) -> Bytes {
    let words = record.offset / 8..(record.offset + record.len as u64) / 8;
    words.flat_map(|word| scatter(word ^ run << 48).to_le_bytes()).collect::<Vec<u8>>().into()
}

/// The points of the grid in each direction (class A).
const GRID: u64 = 64;
/// The bytes of a point.
const POINT: u64 = 40;
/// The bytes of a dump.
const DUMP: u64 = GRID * GRID * GRID * POINT;
/// The dumps of a run of class A.
pub const DUMPS: u64 = 40;
/// The number of times that a dump is written.
const TRIES: usize = 5;
/// The name of the file.
const NAME: &str = "btio";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_all_writers_are_all_bytes_once() {
        assert_eq!(DUMP, 10_485_760);
        for writers in [1, 4, 16] {
            let full = (0..writers).map(|writer| full_record(writers, writer, 3)).collect::<Vec<_>>();
            let simple = (0..writers).flat_map(|writer| simple_records(writers, writer, 3)).collect::<Vec<_>>();
            assert_eq!(simple.len() as u64, GRID * GRID * u64::from(writers.isqrt()));
            assert!(simple.iter().all(|record| record.len as u64 == GRID * POINT / u64::from(writers.isqrt())));
            for mut records in [full, simple] {
                records.sort_unstable_by_key(|record| record.offset);
                let mut at = 3 * DUMP;
                for record in records {
                    assert_eq!(record.offset, at, "{writers} writers");
                    at += record.len as u64;
                }
                assert_eq!(at, 4 * DUMP);
            }
        }
    }

    /// The arrays of NPB's `make_set` for four processes.
    #[test]
    fn cells_are_on_diagonals() {
        let of = |writer| cells_of(2, writer).collect::<Vec<_>>();
        assert_eq!(of(0), [[0, 0, 0], [1, 1, 1]]);
        assert_eq!(of(1), [[1, 0, 0], [0, 1, 1]]);
        assert_eq!(of(2), [[0, 1, 0], [1, 0, 1]]);
        assert_eq!(of(3), [[1, 1, 0], [0, 0, 1]]);
    }

    #[test]
    fn content_tells_places_and_runs_apart() {
        let record = Record { offset: 80, len: 80 };
        let both = content(1, Record { offset: 80, len: 160 });
        assert_eq!(content(1, record), both[..80]);
        assert_ne!(content(1, Record { offset: 160, ..record }), both[..80]);
        assert_ne!(content(2, record), both[..80]);
    }
}
