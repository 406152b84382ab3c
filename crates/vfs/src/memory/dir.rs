//! [`Dir`]: the entries of a directory.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use entropy::HashMap;

use super::{space::Charge, table::shrink};

/// The entries of a directory, indexed by name and by cookie.
///
/// A cookie is a counter of the entries that have ever been added to the directory, so it never refers to another
/// entry.
#[derive(Debug)]
pub(super) struct Dir {
    /// The object number of the parent directory. The root is its own parent.
    pub(super) parent: u64,
    names: HashMap<Arc<[u8]>, Slot>,
    order: BTreeMap<u64, (Arc<[u8]>, u64)>,
    next_cookie: u64,
}

#[derive(Debug)]
struct Slot {
    object: u64,
    cookie: u64,
    _charge: Charge,
}

/// Maximum number of entries that are searched for an object.
const SEARCHED_MAX: usize = 4096;
/// The cookie of the entry `.`.
pub(super) const COOKIE_SELF: u64 = 1;
/// The cookie of the entry `..`.
pub(super) const COOKIE_PARENT: u64 = 2;

impl Dir {
    pub(super) fn new(parent: u64) -> Self {
        Self { parent, names: HashMap::default(), order: BTreeMap::new(), next_cookie: COOKIE_PARENT + 1 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u64> {
        self.names.get(name).map(|slot| slot.object)
    }

    /// Returns the name of an object, if the directory is small enough to search all of it.
    pub(super) fn name_of(&self, object: u64) -> Option<&[u8]> {
        let mut entries = self.order.values().take(SEARCHED_MAX);
        entries.find(|(_, other)| *other == object).map(|(name, _)| &name[..])
    }

    /// Adds an entry. Its name must not exist.
    pub(super) fn insert(&mut self, name: &[u8], object: u64, charge: Charge) {
        let name: Arc<[u8]> = name.into();
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.order.insert(cookie, (name.clone(), object));
        let old = self.names.insert(name, Slot { object, cookie, _charge: charge });
        assert!(old.is_none(), "name must not exist");
    }

    /// Replaces the object of an existing entry. The entry keeps its cookie, because its name has existed all the time.
    pub(super) fn replace(&mut self, name: &[u8], object: u64) {
        let slot = self.names.get_mut(name).expect("name must exist");
        slot.object = object;
        self.order.get_mut(&slot.cookie).expect("name must have an entry in `order`").1 = object;
    }

    /// Removes an existing entry.
    pub(super) fn remove(&mut self, name: &[u8]) {
        let slot = self.names.remove(name).expect("name must exist");
        self.order.remove(&slot.cookie);
        shrink(&mut self.names);
    }

    /// Returns `true` if this directory has ever given out the cookie.
    pub(super) fn knows(&self, cookie: u64) -> bool {
        cookie < self.next_cookie
    }

    /// Returns cookie, name and object of the entries after `cookie`, without `.` and `..`.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Arc<[u8]>, u64)> {
        let range = (Bound::Excluded(cookie), Bound::Unbounded);
        self.order.range(range).map(|(cookie, (name, object))| (*cookie, name, *object))
    }
}
