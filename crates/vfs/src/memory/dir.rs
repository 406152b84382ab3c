//! [`Dir`]: the names in one directory.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use entropy::HashMap;

use super::{space::Charge, table::shrink};

/// The names in one directory, found by name and listed in the order of their cookies.
///
/// A cookie is the number of the entry among all that the directory has ever had, so it never means another entry.
#[derive(Debug)]
pub(super) struct Dir {
    /// The parent's object number; the root's is its own.
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

/// Cookie of the entry `.`.
pub(super) const COOKIE_SELF: u64 = 1;
/// Cookie of the entry `..`.
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

    /// Adds a name that is not there.
    pub(super) fn insert(&mut self, name: &[u8], object: u64, charge: Charge) {
        let name: Arc<[u8]> = name.into();
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.order.insert(cookie, (name.clone(), object));
        let old = self.names.insert(name, Slot { object, cookie, _charge: charge });
        assert!(old.is_none(), "the name was free");
    }

    /// Lets a name that is there mean another object. It keeps its place in the listing, as the name was never gone.
    pub(super) fn replace(&mut self, name: &[u8], object: u64) {
        let slot = self.names.get_mut(name).expect("the name is there");
        slot.object = object;
        self.order.get_mut(&slot.cookie).expect("every name is in the order").1 = object;
    }

    /// Removes a name that is there.
    pub(super) fn remove(&mut self, name: &[u8]) {
        let slot = self.names.remove(name).expect("the name is there");
        self.order.remove(&slot.cookie);
        shrink(&mut self.names);
    }

    /// Whether this directory has ever given the cookie.
    pub(super) fn knows(&self, cookie: u64) -> bool {
        cookie < self.next_cookie
    }

    /// The entries after `cookie`, `.` and `..` aside: cookie, name, object.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Arc<[u8]>, u64)> {
        let range = (Bound::Excluded(cookie), Bound::Unbounded);
        self.order.range(range).map(|(cookie, (name, object))| (*cookie, name, *object))
    }
}
