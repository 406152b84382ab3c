//! [`Database`]: where objects are, for a process that may not open them by handle.
//!
//! A handle's bytes identify an object but do not lead to it. The database knows under which names an object was last
//! seen; whoever opens it by one of them checks that it is the object still. Names change by operations of this
//! process, which are recorded, or behind its back, and then the directory is searched.
//!
//! It is a map in memory and, if there is a state directory, a log that is read at the start. The log begins with
//!
//! | bytes | |
//! |---|---|
//! | 8 | `slipwayH` |
//! | 8 | length of the snapshot, with this header, little-endian |
//! | 4 | CRC32C of these 16 bytes, little-endian |
//!
//! and goes on with records:
//!
//! | bytes | |
//! |---|---|
//! | 4 | CRC32C of the rest, little-endian |
//! | 1 | 1: is at; 2: is no longer at |
//! | 1 + n | handle |
//! | 1 + n | the directory's handle |
//! | 1 + n | name |
//!
//! The snapshot was on stable storage before the log got its name, so damage there is an error. What follows it is appended and
//! not synced: a crash of the process loses nothing, a crash of the system may cut the end off. The first record that is incomplete
//! or damaged ends the log there, and handles that it would have noted are stale until their objects are looked up again. The log is
//! written anew when most of it is obsolete, and, after storage has failed, as soon as it works again.

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

/// A name of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) dir: Handle,
    pub(super) name: Box<[u8]>,
}

/// Where objects are.
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
    /// When a record could not be appended: the log lacks it, and is to be written anew.
    failed: Option<Instant>,
}

/// What to do about a log that is missing or damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// Refuse a damaged one; create a missing one.
    Create,
    /// Refuse either: there was one.
    Refuse,
    /// Set a damaged one aside and begin a new one.
    Accept,
}

impl Database {
    /// Reads the log at `path`, if one is to be kept, and writes it anew without what is obsolete.
    ///
    /// # Errors
    /// `InvalidData`: it is damaged, is no regular file, or is missing and must not be. Others: it cannot be used as it is.
    pub(super) fn open(path: Option<PathBuf>, loss: Loss) -> io::Result<Self> {
        let Some(path) = path else { return Ok(Self { places: RwLock::default(), log: None }) };
        let places = match Self::read(&path, loss) {
            Err(error) if loss == Loss::Accept && error.kind() == io::ErrorKind::InvalidData => {
                let aside = private::set_aside(&path)?;
                tracing::warn!(%error, aside = %aside.display(), "a new handle database is begun: clients must mount again");
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
            return if loss == Loss::Refuse { Err(damaged("it is missing, and there was one")) } else { Ok(places) };
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let snapshot = snapshot_len(&bytes).ok_or_else(|| damaged("its header is damaged"))?;
        let read = HEADER_LEN + replay(&bytes[HEADER_LEN..], &mut places);
        if read < snapshot {
            return Err(damaged(&format!("it is damaged at byte {read} of {snapshot} that were stored")));
        }
        if read < bytes.len() {
            tracing::warn!(bytes = bytes.len() - read, "the end of the handle database is damaged and left out");
        }
        Ok(places)
    }

    /// The names under which an object was seen.
    pub(super) fn places(&self, object: &Handle) -> SmallVec<[Place; 1]> {
        self.places.read().get(object).cloned().unwrap_or_default()
    }

    /// Notes that the object is at `name` in `dir`.
    pub(super) fn place(&self, object: &Handle, dir: &Handle, name: &[u8]) {
        let at = |place: &Place| place.dir == *dir && *place.name == *name;
        if self.places.read().get(object).is_some_and(|places| places.iter().any(at)) {
            return;
        }
        let place = Place { dir: dir.clone(), name: name.into() };
        // The map first: a log that is written anew in between then has it already.
        add(&mut self.places.write(), object.clone(), place.clone());
        self.append(IS_AT, object, &place);
    }

    /// Notes that the object is no longer at `name` in `dir`.
    pub(super) fn displace(&self, object: &Handle, dir: &Handle, name: &[u8]) {
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

    /// Whether it is kept on disk.
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
        into.push(u8::try_from(field.len()).expect("handles and names are shorter than 256 bytes"));
        into.extend(field);
    }
    let crc = crc32c::crc32c(&into[start + 4..]);
    into[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Reads a record; returns it and what follows.
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

/// Reads records up to the first that is incomplete or damaged; returns how many bytes they have.
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

/// The length of a log's snapshot, if its header is good.
fn snapshot_len(bytes: &[u8]) -> Option<usize> {
    let found = bytes.first_chunk::<HEADER_LEN>()?;
    let len = usize::try_from(u64::from_le_bytes(found[8..16].try_into().expect("eight bytes"))).ok()?;
    (len >= HEADER_LEN && *found == header(len)).then_some(len)
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Log {
    /// Writes a new log beside the old one and puts it in its place.
    fn rewrite(path: PathBuf, places: &Places) -> io::Result<Self> {
        let new = path.with_extension("new");
        let mut file = private::create(&new)?;
        let written = Self::write_snapshot(&mut file, places).and_then(|bytes| {
            private::rename(&new, &path)?;
            Ok(bytes)
        });
        if written.is_err() {
            // It would only keep others from the room that it takes.
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

    /// Appends a record. If that fails the operation is done all the same, and its handle stale after a restart, unless the log
    /// can be written anew before.
    fn append(&mut self, record: &[u8], places: &RwLock<Places>) {
        if self.failed.is_some_and(|at| at.elapsed() < RETRY_INTERVAL) {
            return;
        }
        let again = self.failed.is_some();
        match self.try_append(record, places) {
            Ok(()) if again => tracing::info!(path = %self.path.display(), "handles are noted again"),
            Ok(()) => {}
            Err(error) => {
                self.failed = Some(Instant::now());
                if !again {
                    tracing::error!(%error, path = %self.path.display(), "cannot note handles: they may not survive a restart");
                }
            }
        }
    }

    fn try_append(&mut self, record: &[u8], places: &RwLock<Places>) -> io::Result<()> {
        if self.failed.is_some() {
            *self = Self::rewrite(self.path.clone(), &places.read())?;
            return Ok(());
        }
        // At its place: if a record was written in part, the next one replaces it.
        self.file.write_all_at(record, self.bytes as u64)?;
        self.bytes += record.len();
        if self.bytes > LOG_LEAST {
            let places = places.read();
            if self.bytes / RECORD_USUAL > 4 * places.len() {
                *self = Self::rewrite(self.path.clone(), &places)?;
            }
        }
        Ok(())
    }
}

const MAGIC: &[u8; 8] = b"slipwayH";
const HEADER_LEN: usize = 20;
/// Between attempts to write a log anew after storage has failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const IS_AT: u8 = 1;
const IS_NOT_AT: u8 = 2;
/// Names of one object that are remembered.
const PLACES_MAX: usize = 8;
/// Bytes of a record, about.
const RECORD_USUAL: usize = 64;
/// A log up to this length is left as it is.
const LOG_LEAST: usize = 4 << 20;
const RECORD_MAX: usize = 4 + 1 + 2 * (1 + HANDLE_MAX) + 1 + NAME_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(i: u32) -> Handle {
        Handle::new(&i.to_be_bytes())
    }

    #[test]
    fn the_log_brings_back_what_was_noted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handles");
        let root = handle(0);
        {
            let database = Database::open(Some(path.clone()), Loss::Create).unwrap();
            (1..100).for_each(|i| database.place(&handle(i), &root, format!("n{i}").as_bytes()));
            (1..50).for_each(|i| database.displace(&handle(i), &root, format!("n{i}").as_bytes()));
            database.place(&handle(60), &handle(1), b"second");
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
    fn a_log_of_much_that_is_obsolete_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handles");
        let database = Database::open(Some(path.clone()), Loss::Create).unwrap();
        database.place(&handle(1), &handle(0), b"stays");
        for i in 0..100_000 {
            database.place(&handle(2), &handle(0), format!("name-{i}").as_bytes());
            database.displace(&handle(2), &handle(0), format!("name-{i}").as_bytes());
        }
        assert!(std::fs::metadata(&path).unwrap().len() < 2 * LOG_LEAST as u64);
        database.place(&handle(3), &handle(0), b"last");
        drop(database);
        let database = Database::open(Some(path), Loss::Create).unwrap();
        assert_eq!(database.len(), 2);
        assert_eq!(&*database.places(&handle(3))[0].name, b"last");
    }

    /// A log of a snapshot of ten objects and ten records behind it, and where each of these records ends.
    fn logged(path: &std::path::Path) -> (Vec<u8>, Vec<usize>) {
        let place = |database: &Database, i: u32| database.place(&handle(i), &handle(99), &vec![b'x'; i as usize]);
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
    fn a_log_that_is_cut_behind_its_snapshot_gives_what_is_before() {
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
                        10 + whole.checked_sub(1).expect("the snapshot is whole"),
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
    fn a_changed_byte_of_the_snapshot_is_refused_and_one_behind_it_ends_the_log() {
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
    fn a_lost_log_is_refused_until_the_loss_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handles");
        let open = |loss| Database::open(Some(path.clone()), loss);
        assert!(open(Loss::Refuse).unwrap_err().to_string().contains("missing"));
        std::fs::create_dir(&path).unwrap();
        assert!(open(Loss::Create).unwrap_err().to_string().contains("a directory"));
        assert_eq!(open(Loss::Accept).unwrap().len(), 0);
        assert_eq!(open(Loss::Refuse).unwrap().len(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "the old one is kept beside it");
    }

    #[test]
    fn what_could_not_be_appended_is_noted_when_storage_works_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handles");
        let database = Database::open(Some(path.clone()), Loss::Create).unwrap();
        database.place(&handle(1), &handle(0), b"before");
        let log = database.log.as_ref().unwrap();
        // A descriptor that cannot be written to.
        log.lock().file = File::open(&path).unwrap();
        database.place(&handle(2), &handle(0), b"meanwhile");
        let failed = log.lock().failed.expect("it is noticed");
        log.lock().failed = failed.checked_sub(RETRY_INTERVAL);
        database.place(&handle(3), &handle(0), b"after");
        drop(database);
        assert_eq!(Database::open(Some(path), Loss::Refuse).unwrap().len(), 3);
    }
}
