//! [`Database`]: where objects are, for a process that may not open them by handle.
//!
//! A handle's bytes identify an object but do not lead to it. The database knows under which names an object was last
//! seen; whoever opens it by one of them checks that it is the object still. Names change by operations of this
//! process, which are recorded, or behind its back, and then the directory is searched.
//!
//! It is a map in memory and, if there is a state directory, a log that is read at the start. A record is
//!
//! | bytes | |
//! |---|---|
//! | 4 | CRC32C of the rest, little-endian |
//! | 1 | 1: is at; 2: is no longer at |
//! | 1 + n | handle |
//! | 1 + n | the directory's handle |
//! | 1 + n | name |
//!
//! The first that is incomplete or damaged ends the log: what a crash of the system cut off. Its handles are then stale
//! until their objects are looked up again. A crash of the process loses nothing. The log is written anew when most of
//! it is obsolete.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use crate::{HANDLE_MAX, Handle, NAME_MAX};

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
}

impl Database {
    /// Reads the log at `path`, if one is to be kept, and writes it anew without what is obsolete.
    pub(super) fn open(path: Option<PathBuf>) -> io::Result<Self> {
        let mut places = HashMap::new();
        let Some(path) = path else { return Ok(Self { places: RwLock::new(places), log: None }) };
        let mut bytes = Vec::new();
        match File::open(&path) {
            Ok(mut file) => drop(file.read_to_end(&mut bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        replay(&bytes, &mut places);
        let log = Log::rewrite(path, &places)?;
        Ok(Self { places: RwLock::new(places), log: Some(Mutex::new(log)) })
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
        let mut log = log.lock();
        // The operation is done, whether or not it can be noted: a handle that is lost is stale after a restart.
        if let Err(error) = log.append(&record, &self.places) {
            tracing::error!(%error, path = %log.path.display(), "cannot note handles; they may not survive a restart");
        }
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

fn replay(mut bytes: &[u8], places: &mut Places) {
    while let Some((kind, object, place, rest)) = decode(bytes) {
        match kind {
            IS_AT => add(places, object, place),
            _ => drop(remove(places, &object, &place)),
        }
        bytes = rest;
    }
    if !bytes.is_empty() {
        tracing::warn!(bytes = bytes.len(), "the end of the handle database is damaged and left out");
    }
}

impl Log {
    /// Writes a new log beside the old one and puts it in its place.
    fn rewrite(path: PathBuf, places: &Places) -> io::Result<Self> {
        let new = path.with_extension("new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        let (mut records, mut bytes) = (Vec::new(), 0);
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
        file.sync_data()?;
        std::fs::rename(&new, &path)?;
        Ok(Self { path, file, bytes })
    }

    fn append(&mut self, record: &[u8], places: &RwLock<Places>) -> io::Result<()> {
        self.file.write_all(record)?;
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
            let database = Database::open(Some(path.clone())).unwrap();
            (1..100).for_each(|i| database.place(&handle(i), &root, format!("n{i}").as_bytes()));
            (1..50).for_each(|i| database.displace(&handle(i), &root, format!("n{i}").as_bytes()));
            database.place(&handle(60), &handle(1), b"second");
        }
        for _ in 0..2 {
            let database = Database::open(Some(path.clone())).unwrap();
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
        let database = Database::open(Some(path.clone())).unwrap();
        database.place(&handle(1), &handle(0), b"stays");
        for i in 0..100_000 {
            database.place(&handle(2), &handle(0), format!("name-{i}").as_bytes());
            database.displace(&handle(2), &handle(0), format!("name-{i}").as_bytes());
        }
        assert!(std::fs::metadata(&path).unwrap().len() < 2 * LOG_LEAST as u64);
        database.place(&handle(3), &handle(0), b"last");
        drop(database);
        let database = Database::open(Some(path)).unwrap();
        assert_eq!(database.len(), 2);
        assert_eq!(&*database.places(&handle(3))[0].name, b"last");
    }

    #[test]
    fn a_log_that_is_cut_anywhere_gives_what_is_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handles");
        let mut log = Vec::new();
        let mut ends = vec![0];
        for i in 0..20 {
            encode(&mut log, IS_AT, &handle(i), &Place { dir: handle(99), name: vec![b'x'; 10 * i as usize].into() });
            ends.push(log.len());
        }
        for cut in 0..log.len() {
            std::fs::write(&path, &log[..cut]).unwrap();
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            let mut places = HashMap::new();
            replay(&log[..cut], &mut places);
            assert_eq!(places.len(), whole, "cut at {cut}");
        }
        let middle = ends[10] + 7;
        log[middle] ^= 1;
        std::fs::write(&path, &log).unwrap();
        assert_eq!(Database::open(Some(path)).unwrap().len(), 10);
    }
}
