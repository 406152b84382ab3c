//! [`Absent`]: the names that a new directory does not have.
//!
//! A directory that this mount has just made is empty, so each name in it is one that this mount has made since, or that another
//! client has. The latter can be unknown for as long as the kernel may cache that a name does not exist. So until then a name that
//! this mount has not made needs no LOOKUP: a program that unpacks an archive saves one call for each file.

use std::collections::HashSet;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The names that a directory is known to lack.
#[derive(Debug, Default)]
pub struct Absent(Mutex<Option<New>>);

/// A directory that was empty a short time ago.
#[derive(Debug)]
struct New {
    /// The end of the time for which it is known that a name does not exist.
    until: Instant,
    /// The names that this mount has made or tried to make since.
    made: HashSet<Vec<u8>>,
}

impl Absent {
    /// Records that the directory was empty when it was made, which is known until `until`.
    pub fn was_empty(&self, until: Instant) {
        *self.0.lock() = Some(New { until, made: HashSet::new() });
    }

    /// Records a name that this mount may make. Call it before the request.
    pub fn make(&self, name: &[u8]) {
        let mut new = self.0.lock();
        if let Some(known) = &mut *new {
            known.made.insert(name.to_owned());
            if known.made.len() > NAMES_MAX || known.until <= Instant::now() {
                *new = None;
            }
        }
    }

    /// Returns `true` if the directory has no such name.
    pub fn has(&self, name: &[u8]) -> bool {
        let mut new = self.0.lock();
        if new.as_ref().is_some_and(|known| known.until <= Instant::now()) {
            *new = None;
        }
        new.as_ref().is_some_and(|known| !known.made.contains(name))
    }
}

/// The maximum number of names that are kept for a directory.
const NAMES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn new_directory_lacks_names_until_they_are_made_or_the_time_is_over() {
        let absent = Absent::default();
        assert!(!absent.has(b"a"), "nothing is known of a directory that was found");
        absent.was_empty(Instant::now() + Duration::from_secs(1));
        assert!(absent.has(b"a"));
        absent.make(b"a");
        assert!(!absent.has(b"a") && absent.has(b"b"));
        tokio::time::advance(Duration::from_millis(1001)).await;
        assert!(!absent.has(b"b"), "another client may have made it");
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_names_is_bounded() {
        let absent = Absent::default();
        absent.was_empty(Instant::now() + Duration::from_secs(1));
        (0..=NAMES_MAX).for_each(|number| absent.make(number.to_string().as_bytes()));
        assert!(!absent.has(b"other") && absent.0.lock().is_none());
    }
}
