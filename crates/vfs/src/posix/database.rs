//! [`Database`]: the locations of objects, for a process that may not open objects by handle.
//!
//! The bytes of a handle identify an object but do not locate it. The database records the names under which an object
//! was last seen. To open an object, the server opens such a name and checks that it still is that object. Operations
//! of this process that change names are recorded. If another program has changed a name, the directory is searched.
//!
//! The database is a map in memory. If there is a state directory, it also has a log, which is read at the start. The
//! log begins with this header:
//!
//! | bytes | |
//! |---|---|
//! | 8 | `slipwayH` |
//! | 8 | length of the snapshot, with this header, little-endian |
//! | 4 | CRC32C of these 16 bytes, little-endian |
//!
//! Records follow the header:
//!
//! | bytes | |
//! |---|---|
//! | 4 | CRC32C of the rest, little-endian |
//! | 1 | 1: the object is at this location; 2: it is no longer there |
//! | 1 + n | handle |
//! | 1 + n | the directory's handle |
//! | 1 + n | name |
//!
//! The snapshot was on stable storage before the log was renamed to its final name, so damage in the snapshot is an
//! error. Later records are appended without a sync: a crash of the process loses none of them, but a crash of the
//! system can truncate them. The first incomplete or damaged record ends the log. Handles in lost records are stale
//! until their objects are looked up again. The log is rewritten when most of it is obsolete. After a failure of
//! storage, it is rewritten as soon as the storage works again.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use entropy::HashMap;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use crate::{HANDLE_MAX, Handle, NAME_MAX, private};

/// A location of an object: a name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) dir: Handle,
    pub(super) name: Box<[u8]>,
}

/// The locations of objects.
#[derive(Debug)]
pub(super) struct Database {
    places: RwLock<Places>,
    log: Option<Mutex<Log>>,
}

type Places = HashMap<Handle, SmallVec<[Place; 1]>>;

#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    bytes: usize,
    /// The time at which a record could not be appended. The log is then incomplete and must be rewritten.
    failed: Option<Instant>,
}

/// The reaction to a log that is missing or damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// Refuse a damaged log. Create a missing one.
    Create,
    /// Refuse a damaged or missing log, because there was one.
    Refuse,
    /// Rename a damaged log and create a new one.
    Accept,
}

impl Database {
    /// Reads the log at `path`, if there is a path, and rewrites it without obsolete records.
    ///
    /// # Errors
    /// Returns `InvalidData` if the log is damaged, is not a regular file, or is missing and must not be. Returns other
    /// errors if it cannot be opened or written.
    pub(super) fn open(path: Option<PathBuf>, loss: Loss) -> io::Result<Self> {
        let Some(path) = path else { return Ok(Self { places: RwLock::default(), log: None }) };
        let places = match Self::read(&path, loss) {
            Err(error) if loss == Loss::Accept && error.kind() == io::ErrorKind::InvalidData => {
                let aside = private::set_aside(&path)?;
                tracing::warn!(%error, aside = %aside.display(), "a new handle database is created: clients must mount again");
                Places::default()
            }
            read => read?,
        };
        let log = Log::rewrite(path, &places)?;
        Ok(Self { places: RwLock::new(places), log: Some(Mutex::new(log)) })
    }

    fn read(path: &std::path::Path, loss: Loss) -> io::Result<Places> {
        let mut places = Places::default();
        let Some(mut file) = private::open(path, private::OTHERS_WRITE)? else {
            return if loss == Loss::Refuse { Err(damaged("it is missing, but there was one")) } else { Ok(places) };
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let snapshot = snapshot_len(&bytes).ok_or_else(|| damaged("its header is damaged"))?;
        let read = HEADER_LEN + replay(&bytes[HEADER_LEN..], &mut places);
        if read < snapshot {
            return Err(damaged(&format!("it is damaged at byte {read} of {snapshot} stored bytes")));
        }
        if read < bytes.len() {
            tracing::warn!(bytes = bytes.len() - read, "the end of the handle database is damaged and ignored");
        }
        Ok(places)
    }

    /// Returns the locations at which an object was seen.
    pub(super) fn places(&self, object: &Handle) -> SmallVec<[Place; 1]> {
        self.places.read().get(object).cloned().unwrap_or_default()
    }

    /// Records that the object is at `name` in `dir`.
    pub(super) fn add(&self, object: &Handle, dir: &Handle, name: &[u8]) {
        let at = |place: &Place| place.dir == *dir && *place.name == *name;
        if self.places.read().get(object).is_some_and(|places| places.iter().any(at)) {
            return;
        }
        let place = Place { dir: dir.clone(), name: name.into() };
        // Change the map first: if the log is rewritten concurrently, the new log includes the change.
        add(&mut self.places.write(), object.clone(), place.clone());
        self.append(IS_AT, object, &place);
    }

    /// Records that the object is no longer at `name` in `dir`.
    pub(super) fn remove(&self, object: &Handle, dir: &Handle, name: &[u8]) {
        let place = Place { dir: dir.clone(), name: name.into() };
        if remove(&mut self.places.write(), object, &place) {
            self.append(IS_NOT_AT, object, &place);
        }
    }

    fn append(&self, kind: u8, object: &Handle, place: &Place) {
        let Some(log) = &self.log else { return };
        let mut record = Vec::with_capacity(RECORD_MAX);
        encode(&mut record, kind, object, place);
        log.lock().append(&record, &self.places);
    }

    /// Returns `true` if the database is stored on disk.
    pub(super) fn is_persistent(&self) -> bool {
        self.log.is_some()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.places.read().len()
    }
}

fn add(places: &mut Places, object: Handle, place: Place) {
    let known = places.entry(object).or_default();
    if known.contains(&place) {
        return;
    }
    if known.len() >= PLACES_MAX {
        known.remove(0);
    }
    known.push(place);
}

fn remove(places: &mut Places, object: &Handle, place: &Place) -> bool {
    let Some(known) = places.get_mut(object) else { return false };
    let Some(index) = known.iter().position(|at| at == place) else { return false };
    known.remove(index);
    if known.is_empty() {
        places.remove(object);
    }
    true
}

fn encode(into: &mut Vec<u8>, kind: u8, object: &Handle, place: &Place) {
    let start = into.len();
    into.extend([0; 4]);
    into.push(kind);
    for field in [object.as_bytes(), place.dir.as_bytes(), &place.name] {
        into.push(u8::try_from(field.len()).expect("handles and names must be shorter than 256 bytes"));
        into.extend(field);
    }
    let crc = crc32c::crc32c(&into[start + 4..]);
    into[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes a record. Returns it and the remaining bytes.
fn decode(bytes: &[u8]) -> Option<(u8, Handle, Place, &[u8])> {
    let (crc, record) = bytes.split_first_chunk::<4>()?;
    let (kind, mut rest) = record.split_first()?;
    let mut field = |max: usize| {
        let (len, after) = rest.split_first()?;
        let (field, after) = after.split_at_checked(usize::from(*len))?;
        rest = after;
        (field.len() <= max).then_some(field)
    };
    let object = Handle::new(field(HANDLE_MAX)?);
    let dir = Handle::new(field(HANDLE_MAX)?);
    let name = field(NAME_MAX)?.into();
    let len = record.len() - rest.len();
    (crc32c::crc32c(&record[..len]) == u32::from_le_bytes(*crc)).then_some((*kind, object, Place { dir, name }, rest))
}

/// Applies records up to the first that is incomplete or damaged. Returns their length in bytes.
fn replay(bytes: &[u8], places: &mut Places) -> usize {
    let mut left = bytes;
    while let Some((kind, object, place, rest)) = decode(left) {
        match kind {
            IS_AT => add(places, object, place),
            _ => drop(remove(places, &object, &place)),
        }
        left = rest;
    }
    bytes.len() - left.len()
}

fn header(snapshot_len: usize) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&(snapshot_len as u64).to_le_bytes());
    let crc = crc32c::crc32c(&header[..16]);
    header[16..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Returns the length of a log's snapshot if its header is valid.
fn snapshot_len(bytes: &[u8]) -> Option<usize> {
    let found = bytes.first_chunk::<HEADER_LEN>()?;
    let len =
        usize::try_from(u64::from_le_bytes(found[8..16].try_into().expect("length must have eight bytes"))).ok()?;
    (len >= HEADER_LEN && *found == header(len)).then_some(len)
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Log {
    /// Writes a new log beside the old one and renames it over the old one.
    fn rewrite(path: PathBuf, places: &Places) -> io::Result<Self> {
        let new = path.with_extension("new");
        let mut file = private::create(&new)?;
        let written = Self::write_snapshot(&mut file, places).and_then(|bytes| {
            private::rename(&new, &path)?;
            Ok(bytes)
        });
        if written.is_err() {
            // Remove the incomplete file, because it takes space that others may need.
            let _ = std::fs::remove_file(&new);
        }
        Ok(Self { path, file, bytes: written?, failed: None })
    }

    fn write_snapshot(file: &mut File, places: &Places) -> io::Result<usize> {
        let (mut records, mut bytes) = (vec![0; HEADER_LEN], 0);
        for (object, known) in places {
            known.iter().for_each(|place| encode(&mut records, IS_AT, object, place));
            if records.len() > 1 << 20 {
                file.write_all(&records)?;
                bytes += records.len();
                records.clear();
            }
        }
        file.write_all(&records)?;
        bytes += records.len();
        file.write_all_at(&header(bytes), 0)?;
        file.sync_all()?;
        Ok(bytes)
    }

    /// Appends a record. If that fails, the operation still succeeds, but the handle is stale after a restart unless
    /// the log can be rewritten before.
    fn append(&mut self, record: &[u8], places: &RwLock<Places>) {
        if self.failed.is_some_and(|at| at.elapsed() < RETRY_INTERVAL) {
            return;
        }
        let again = self.failed.is_some();
        match self.try_append(record, places) {
            Ok(()) if again => tracing::info!(path = %self.path.display(), "handles can be stored again"),
            Ok(()) => {}
            Err(error) => {
                self.failed = Some(Instant::now());
                if !again {
                    tracing::error!(%error, path = %self.path.display(), "cannot store handles: they may not survive a restart");
                }
            }
        }
    }

    fn try_append(&mut self, record: &[u8], places: &RwLock<Places>) -> io::Result<()> {
        if self.failed.is_some() {
            *self = Self::rewrite(self.path.clone(), &places.read())?;
            return Ok(());
        }
        // Write at a fixed position, so that the next record overwrites one that was written in part.
        self.file.write_all_at(record, self.bytes as u64)?;
        self.bytes += record.len();
        if self.bytes > LOG_REWRITE_MIN {
            let places = places.read();
            if self.bytes / RECORD_TYPICAL > 4 * places.len() {
                *self = Self::rewrite(self.path.clone(), &places)?;
            }
        }
        Ok(())
    }
}

const MAGIC: &[u8; 8] = b"slipwayH";
const HEADER_LEN: usize = 20;
/// Minimum time between attempts to rewrite the log after a failure of storage.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const IS_AT: u8 = 1;
const IS_NOT_AT: u8 = 2;
/// Maximum number of recorded locations of one object.
const PLACES_MAX: usize = 8;
/// Approximate bytes of a record.
const RECORD_TYPICAL: usize = 64;
/// Length up to which a log is not rewritten.
const LOG_REWRITE_MIN: usize = 4 << 20;
const RECORD_MAX: usize = 4 + 1 + 2 * (1 + HANDLE_MAX) + 1 + NAME_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(i: u32) -> Handle {
        Handle::new(&i.to_be_bytes())
    }

    #[test]
    fn log_restores_recorded_locations() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handles");
        let root = handle(0);
        {
            let database = Database::open(Some(path.clone()), Loss::Create).unwrap();
            (1..100).for_each(|i| database.add(&handle(i), &root, format!("n{i}").as_bytes()));
            (1..50).for_each(|i| database.remove(&handle(i), &root, format!("n{i}").as_bytes()));
            database.add(&handle(60), &handle(1), b"second");
        }
        for _ in 0..2 {
            let database = Database::open(Some(path.clone()), Loss::Create).unwrap();
            assert_eq!(database.len(), 50);
            assert!(database.places(&handle(49)).is_empty());
            let place = |dir: &Handle, name: &[u8]| Place { dir: dir.clone(), name: name.into() };
            assert_eq!(database.places(&handle(99)).as_slice(), [place(&root, b"n99")]);
            assert_eq!(database.places(&handle(60)).as_slice(), [place(&root, b"n60"), place(&handle(1), b"second")]);
        }
    }

    #[test]
    fn mostly_obsolete_log_is_rewritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handles");
        let database = Database::open(Some(path.clone()), Loss::Create).unwrap();
        database.add(&handle(1), &handle(0), b"stays");
        for i in 0..100_000 {
            database.add(&handle(2), &handle(0), format!("name-{i}").as_bytes());
            database.remove(&handle(2), &handle(0), format!("name-{i}").as_bytes());
        }
        assert!(std::fs::metadata(&path).unwrap().len() < 2 * LOG_REWRITE_MIN as u64);
        database.add(&handle(3), &handle(0), b"last");
        drop(database);
        let database = Database::open(Some(path), Loss::Create).unwrap();
        assert_eq!(database.len(), 2);
        assert_eq!(&*database.places(&handle(3))[0].name, b"last");
    }

    /// Creates a log with a snapshot of ten objects and ten records after it. Returns its bytes and the end of each of
    /// these records.
    fn logged(path: &std::path::Path) -> (Vec<u8>, Vec<usize>) {
        let place = |database: &Database, i: u32| database.add(&handle(i), &handle(99), &vec![b'x'; i as usize]);
        {
            let database = Database::open(Some(path.into()), Loss::Create).unwrap();
            (0..10).for_each(|i| place(&database, i));
        }
        let database = Database::open(Some(path.into()), Loss::Create).unwrap();
        let len = || std::fs::metadata(path).unwrap().len() as usize;
        let mut ends = vec![len()];
        for i in 10..20 {
            place(&database, i);
            ends.push(len());
        }
        (std::fs::read(path).unwrap(), ends)
    }

    #[test]
    fn log_truncated_after_its_snapshot_keeps_earlier_records() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handles");
        let (log, ends) = logged(&path);
        for cut in 0..log.len() {
            std::fs::write(&path, &log[..cut]).unwrap();
            match Database::open(Some(path.clone()), Loss::Create) {
                Ok(database) => {
                    let whole = ends.iter().filter(|end| **end <= cut).count();
                    assert_eq!(
                        database.len(),
                        10 + whole.checked_sub(1).expect("snapshot must be complete"),
                        "cut at {cut}"
                    );
                }
                Err(error) => {
                    assert!(cut < ends[0], "cut at {cut}: {error}");
                    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
                }
            }
        }
    }

    #[test]
    fn changed_byte_in_snapshot_is_refused_and_later_one_ends_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handles");
        let (log, ends) = logged(&path);
        for at in 0..log.len() {
            let mut changed = log.clone();
            changed[at] ^= 0x10;
            std::fs::write(&path, &changed).unwrap();
            let opened = Database::open(Some(path.clone()), Loss::Create);
            assert_eq!(opened.is_ok(), at >= ends[0], "byte {at}");
            if let Ok(database) = opened {
                assert_eq!(database.len(), 10 + ends.iter().filter(|end| **end <= at).count() - 1, "byte {at}");
            }
        }
    }

    #[test]
    fn lost_log_is_refused_until_the_loss_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handles");
        let open = |loss| Database::open(Some(path.clone()), loss);
        assert!(open(Loss::Refuse).unwrap_err().to_string().contains("missing"));
        std::fs::create_dir(&path).unwrap();
        assert!(open(Loss::Create).unwrap_err().to_string().contains("a directory"));
        assert_eq!(open(Loss::Accept).unwrap().len(), 0);
        assert_eq!(open(Loss::Refuse).unwrap().len(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "the old log must be kept beside the new one");
    }

    #[test]
    fn failed_appends_are_stored_when_storage_works_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handles");
        let database = Database::open(Some(path.clone()), Loss::Create).unwrap();
        database.add(&handle(1), &handle(0), b"before");
        let log = database.log.as_ref().unwrap();
        // Replace the descriptor by one that cannot be written.
        log.lock().file = File::open(&path).unwrap();
        database.add(&handle(2), &handle(0), b"meanwhile");
        let failed = log.lock().failed.expect("the failure must be recorded");
        log.lock().failed = failed.checked_sub(RETRY_INTERVAL);
        database.add(&handle(3), &handle(0), b"after");
        drop(database);
        assert_eq!(Database::open(Some(path), Loss::Refuse).unwrap().len(), 3);
    }
}
