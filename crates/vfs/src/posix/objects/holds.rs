//! Held files: see [`Vfs::hold`](crate::Vfs::hold).
//!
//! A hold counts by handle and needs no descriptor. When a held file loses its last name, its descriptor is *pinned*: the
//! kernel keeps the file, and it is opened for data through that descriptor, until the last hold ends. So the number of
//! descriptors that cannot be closed is that of held files without a name.

use std::sync::{Arc, atomic::Ordering};

use super::{Object, Objects, Shared};
use crate::{Handle, Hold};

/// A hold of a file.
#[derive(Debug)]
pub(in crate::posix) struct PosixHold {
    shared: Arc<Shared>,
    handle: Handle,
}

impl Objects {
    /// Holds a file. Returns `None` if the object is not cached any more, because it was evicted or removed.
    pub(in crate::posix) fn hold(&self, object: &Arc<Object>) -> Option<PosixHold> {
        let mut shard = self.0.shard(&object.handle).lock();
        if !shard.find(&object.handle).is_some_and(|found| Arc::ptr_eq(found, object)) {
            return None;
        }
        *shard.held.entry(object.handle.clone()).or_default() += 1;
        Some(PosixHold { shared: self.0.clone(), handle: object.handle.clone() })
    }

    /// Reports whether a file is held.
    pub(in crate::posix) fn is_held(&self, handle: &Handle) -> bool {
        self.0.shard(handle).lock().held.contains_key(handle)
    }

    /// Reports whether no more files should be pinned.
    pub(in crate::posix) fn has_no_pin_left(&self) -> bool {
        self.0.pins.load(Ordering::Relaxed) >= self.0.pins_max
    }

    /// Pins an object that has lost its last name, if it is held. Otherwise evicts it. `object` is given if the removal has
    /// made sure that it can be pinned. Returns `true` if the object is pinned.
    pub(in crate::posix) fn pin(&self, handle: &Handle, object: Option<&Arc<Object>>) -> bool {
        let may_pin = object.is_some() || !self.has_no_pin_left();
        let mut shard = self.0.shard(handle).lock();
        if shard.pinned.contains_key(handle) {
            return true;
        }
        let cached = shard.take(handle);
        let was_cached = cached.is_some();
        let is_held = may_pin && shard.held.contains_key(handle);
        let pinned = cached.clone().or_else(|| object.cloned()).filter(|_| is_held);
        let is_pinned = pinned.is_some();
        if let Some(object) = pinned {
            shard.pinned.insert(handle.clone(), object);
            self.0.pins.fetch_add(1, Ordering::Relaxed);
        }
        drop(shard);
        match (was_cached, is_pinned) {
            (true, false) => _ = self.0.count.fetch_sub(1, Ordering::Relaxed),
            (false, true) if self.0.count.fetch_add(1, Ordering::Relaxed) == 0 => self.0.notify(),
            _ => {}
        }
        if let Some(object) = cached.filter(|_| !is_pinned) {
            object.close();
        }
        is_pinned
    }
}

impl Hold for PosixHold {
    fn is_removed(&self) -> bool {
        self.shared.shard(&self.handle).lock().pinned.contains_key(&self.handle)
    }
}

impl Drop for PosixHold {
    fn drop(&mut self) {
        let mut shard = self.shared.shard(&self.handle).lock();
        let count = shard.held.get_mut(&self.handle).expect("a held file must be counted");
        *count -= 1;
        if *count > 0 {
            return;
        }
        shard.held.remove(&self.handle);
        let unpinned = shard.pinned.remove(&self.handle);
        drop(shard);
        if let Some(object) = unpinned {
            self.shared.pins.fetch_sub(1, Ordering::Relaxed);
            self.shared.count.fetch_sub(1, Ordering::Relaxed);
            // Closing the last descriptor of a file frees its space, which can take long.
            let stopped = self.shared.stopped.lock();
            if !*stopped {
                self.shared.unpinned.lock().push(object);
                self.shared.wake.notify_one();
            }
        }
    }
}
