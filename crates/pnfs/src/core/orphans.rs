//! The search for orphans: objects at data servers that no file has.
//!
//! Objects are left behind if a program on the metadata server removes or replaces files, or if a data server or the metadata server
//! was restored from a backup. The order of the search makes sure that no object of a file is taken for an orphan:
//!
//! 1. The objects of the data servers are listed. An object is in the index before it exists. So an object that a file gets later is
//!    not in the list.
//! 2. The objects in the index are checked as before a removal.
//! 3. The records of all files are read for the other ones. The index gets them if it has lost them. A file that was moved meanwhile
//!    can have been missed, so this is repeated until no name was moved.
//!
//! Orphans are added to the queue of removals, so they are checked again before they are removed, and a data server can be away.

use std::collections::BTreeSet;

use entropy::HashSet;
use vfs::{Handle, Result, VfsError};

use super::{Core, Pnfs, upkeep::Usage, walk::Walk};
use crate::{
    files::Place,
    record::{Object, ServerId},
    servers::{ObjectAttr, ServerFuture},
};

/// The objects of data servers of which it is not known whether a file has them.
#[derive(Debug, Default)]
pub struct Orphans {
    listed: Vec<Object>,
    unknown: HashSet<u128>,
}

impl Orphans {
    /// Begins with all objects of data servers.
    pub fn new(listed: Vec<Object>) -> Self {
        let unknown = listed.iter().map(|object| object.id).collect();
        Self { listed, unknown }
    }

    /// Returns the objects that no file has, as far as the trees were asked.
    pub fn objects(&self) -> Vec<Object> {
        self.listed.iter().filter(|object| self.unknown.contains(&object.id)).copied().collect()
    }

    fn is_unknown(&self, object: Object) -> bool {
        self.unknown.contains(&object.id)
    }

    /// Takes note that an object is not an orphan. Trees can have different numbers for the same data server, and no two objects have
    /// the same identifier.
    fn found(&mut self, object: Object) {
        self.unknown.remove(&object.id);
    }
}

impl Pnfs {
    /// Returns the objects that a data server has.
    pub fn objects_on(&self, server: ServerId) -> ServerFuture<Vec<u128>> {
        self.0.servers.objects(server)
    }

    /// Returns the attributes of an object.
    pub fn object_attr(&self, object: Object) -> ServerFuture<ObjectAttr> {
        self.0.servers.getattr(object)
    }

    /// Excludes the objects that a file of this tree has, that a change in progress gives to a file, or that are about to be removed.
    /// They were listed before. This waits for the inner file system and the database, which can take long.
    ///
    /// # Errors
    /// Returns `Delay` if names were moved again and again meanwhile; `Io` if the record of a file is damaged; and the errors of the
    /// inner file system and of the index. Then it is not known which objects are orphans.
    pub fn exclude_used(&self, orphans: &mut Orphans) -> Result<()> {
        let core = &self.0;
        core.exclude_changing(orphans)?;
        core.exclude_indexed(orphans)?;
        for _ in 0..WALKS_MAX {
            if orphans.unknown.is_empty() {
                return Ok(());
            }
            let renames = core.renames.now();
            core.exclude_recorded(orphans)?;
            if core.renames.none_since(renames) {
                // A file that has been removed meanwhile has left its objects in the queue.
                return core.exclude_changing(orphans);
            }
        }
        Err(VfsError::Delay)
    }

    /// Adds orphans to the queue of removals, durably. An object that a file has is not removed.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn remove_orphans(&self, orphans: &[Object]) -> Result<()> {
        for part in orphans.chunks(BATCH) {
            self.0.index.enqueue_removals(part)?;
        }
        self.0.wake.notify_one();
        Ok(())
    }
}

impl Core {
    /// Excludes the objects of changes in progress, and those in the queue of removals.
    fn exclude_changing(&self, orphans: &mut Orphans) -> Result<()> {
        self.pinned.lock().iter().for_each(|object| orphans.found(*object));
        for begun in self.index.moves()? {
            orphans.found(begun.object);
            orphans.found(begun.former);
        }
        let removals = self.index.removals(&self.known_servers())?;
        removals.iter().for_each(|(object, _)| orphans.found(*object));
        Ok(())
    }

    /// Returns the data servers that the index may have.
    fn known_servers(&self) -> Vec<ServerId> {
        let out = self.services.out_of_service().into_iter().map(|(server, _)| server);
        self.services.configured().into_iter().chain(out).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Excludes the objects that a file has by the index.
    fn exclude_indexed(&self, orphans: &mut Orphans) -> Result<()> {
        for server in self.known_servers() {
            let mut after = None;
            loop {
                let batch = self.index.objects_on(server, after, BATCH)?;
                for (object, file) in &batch {
                    if orphans.is_unknown(*object) && self.usage(file, *object) != Usage::Unused {
                        orphans.found(*object);
                    }
                }
                match batch.last() {
                    Some((object, _)) if batch.len() == BATCH => after = Some(object.id),
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// Excludes the objects in the records of all files of the tree, and adds them to the index.
    fn exclude_recorded(&self, orphans: &mut Orphans) -> Result<()> {
        let mut walk = Walk::new(self.inner.root());
        while let Some(files) = walk.next(self)? {
            files.iter().try_for_each(|file| self.exclude_record(file, orphans))?;
        }
        Ok(())
    }

    fn exclude_record(&self, file: &Handle, orphans: &mut Orphans) -> Result<()> {
        let record = match self.place_now(&self.files.get(file), true) {
            Ok(Place::Servers(record)) => record,
            Ok(Place::Inner) | Err(VfsError::Stale | VfsError::NotFound | VfsError::BadHandle) => return Ok(()),
            Err(error) => return Err(error),
        };
        for copy in &record.copies {
            if orphans.is_unknown(copy.object) {
                self.index.add(copy.object, file)?;
                orphans.found(copy.object);
            }
        }
        Ok(())
    }
}

/// The number of objects that are examined at a time.
const BATCH: usize = 1000;
/// The number of times that the records of all files are read.
const WALKS_MAX: usize = 5;
