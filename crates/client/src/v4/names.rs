//! [`Names`]: by which names files were found. Version 4.0 opens by name only (RFC 7530 §16.16; by handle since 4.1), and what
//! is above here knows files by their handles.

use std::{collections::HashMap, mem};

use bytes::Bytes;

use crate::Handle;

/// Directory and name of files, those found lately. It is a hint: others may have renamed them.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The latest, up to [`GENERATION`]; and as many that were the latest before.
    new: HashMap<Handle, (Handle, Bytes)>,
    old: HashMap<Handle, (Handle, Bytes)>,
}

impl Names {
    /// A file was found there.
    pub fn found(&mut self, file: &Handle, dir: &Handle, name: &[u8]) {
        if self.new.len() >= GENERATION && !self.new.contains_key(file) {
            self.old = mem::take(&mut self.new);
        }
        self.new.insert(file.detached(), (dir.detached(), Bytes::copy_from_slice(name)));
    }

    /// Where a file was found last.
    pub fn of(&self, file: &Handle) -> Option<(Handle, Bytes)> {
        self.new.get(file).or_else(|| self.old.get(file)).cloned()
    }

    /// A file is not there any more.
    pub fn forget(&mut self, file: &Handle) {
        self.new.remove(file);
        self.old.remove(file);
    }

    /// What was at one name is now at another.
    pub fn renamed(&mut self, from: (&Handle, &[u8]), to: (&Handle, &[u8])) {
        for (dir, name) in self.new.values_mut().chain(self.old.values_mut()) {
            if (&*dir, &name[..]) == from {
                (*dir, *name) = (to.0.detached(), Bytes::copy_from_slice(to.1));
            }
        }
    }
}

/// A few hundred bytes each.
const GENERATION: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: usize) -> Handle {
        Bytes::from(number.to_string()).into()
    }

    #[test]
    fn a_file_is_where_it_was_found_or_renamed_to_last() {
        let (mut names, dir, other) = (Names::default(), handle(1), handle(2));
        names.found(&handle(3), &dir, b"a");
        names.found(&handle(4), &dir, b"b");
        names.renamed((&dir, b"a"), (&other, b"c"));
        names.renamed((&other, b"b"), (&other, b"d"));
        assert_eq!(names.of(&handle(3)), Some((other.clone(), "c".into())));
        assert_eq!(names.of(&handle(4)), Some((dir.clone(), "b".into())));
        names.found(&handle(4), &other, b"d");
        assert_eq!(names.of(&handle(4)), Some((other, "d".into())));
        names.forget(&handle(4));
        assert_eq!(names.of(&handle(4)), None);
    }

    #[test]
    fn the_latest_are_kept() {
        let (mut names, dir) = (Names::default(), handle(1));
        for number in 0..=3 * GENERATION {
            names.found(&handle(number), &dir, b"name");
        }
        assert!(names.of(&handle(0)).is_none());
        assert!((2 * GENERATION..=3 * GENERATION).all(|number| names.of(&handle(number)).is_some()));
        assert!(names.new.len() + names.old.len() <= 2 * GENERATION);
    }
}
