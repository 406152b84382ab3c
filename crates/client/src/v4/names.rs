//! [`Names`]: by which names objects were found. Version 4.0 opens by name only (RFC 7530 §16.16; by handle since 4.1), and in a
//! file system that has moved nothing else leads to an object; what is above here knows objects by their handles.

use std::mem;

use bytes::Bytes;
use entropy::{HashMap, HashSet};

use crate::model::{Attr, Handle};

/// Directory and name of objects, those found lately. It is a hint: others may have renamed them.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Where paths begin: roots of what is mounted, by their paths at the server.
    roots: HashMap<Handle, (Vec<Bytes>, Option<Id>)>,
    /// The latest; and those that were the latest before.
    new: HashMap<Handle, Found>,
    old: HashMap<Handle, Found>,
    /// Objects found since `new` was begun, up to [`GENERATION`].
    fresh: usize,
    /// The latest object of each name.
    objects: HashMap<(Handle, Bytes), Handle>,
}

/// An object, for ever: no other of its server has the same while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub fsid: u64,
    pub fileid: u64,
}

#[derive(Clone, Debug)]
struct Found {
    dir: Handle,
    /// With slashes if it was several directories further.
    name: Bytes,
    id: Option<Id>,
}

impl Id {
    /// What a server says of an object. One that gives it no number (it is 0 then) does not say which object it is.
    pub fn of(attr: &Attr) -> Option<Self> {
        (attr.fileid != 0).then_some(Self { fsid: attr.fsid, fileid: attr.fileid })
    }
}

impl Names {
    /// A path begins there.
    pub fn root(&mut self, root: &Handle, path: &[Bytes], attr: &Attr) {
        self.roots.insert(root.detached(), (path.to_vec(), Id::of(attr)));
    }

    /// An object was found there. What is `kept` is not forgotten.
    pub fn found(
        &mut self,
        object: &Handle,
        (dir, name): (&Handle, &[u8]),
        attr: Option<&Attr>,
        kept: impl Fn(&Handle) -> bool,
    ) {
        let id = attr.and_then(Id::of);
        if self.new.get(object).is_some_and(|found| found.dir == *dir && found.name == name && found.id == id) {
            return;
        }
        if self.fresh >= GENERATION {
            self.age(kept);
        }
        let id = id.or_else(|| self.get(object)?.id);
        let (object, dir, name) = (self.own(object), self.own(dir), Bytes::copy_from_slice(name));
        self.objects.insert((dir.clone(), name.clone()), object.clone());
        self.fresh += usize::from(self.new.insert(object, Found { dir, name, id }).is_none());
    }

    /// Forgets what has not been found lately, but not the ways to what has.
    fn age(&mut self, kept: impl Fn(&Handle) -> bool) {
        let mut gone = mem::replace(&mut self.old, mem::take(&mut self.new));
        self.fresh = 0;
        let mut wanted: Vec<Handle> = self.old.values().map(|found| found.dir.clone()).collect();
        wanted.extend(gone.keys().filter(|object| kept(object)).cloned());
        while let Some(object) = wanted.pop() {
            if let Some(found) = gone.remove(&object) {
                wanted.push(found.dir.clone());
                self.new.insert(object, found);
            }
        }
        let Self { new, old, objects, .. } = self;
        let known: HashSet<_> =
            new.iter().chain(old.iter()).map(|(object, found)| (object, &found.dir, &found.name)).collect();
        objects.retain(|(dir, name), object| known.contains(&(&*object, dir, name)));
    }

    /// A handle that is kept, which shares its memory with where it is kept already.
    fn own(&self, handle: &Handle) -> Handle {
        let known = self.new.get_key_value(handle).map(|(known, _)| known);
        known
            .or_else(|| self.roots.get_key_value(handle).map(|(known, _)| known))
            .cloned()
            .unwrap_or_else(|| handle.detached())
    }

    fn get(&self, object: &Handle) -> Option<&Found> {
        self.new.get(object).or_else(|| self.old.get(object))
    }

    /// Where an object was found last.
    pub fn of(&self, object: &Handle) -> Option<(Handle, Bytes)> {
        self.get(object).map(|found| (found.dir.clone(), found.name.clone()))
    }

    /// The object that was found there last.
    pub fn at(&self, dir: &Handle, name: &[u8]) -> Option<Handle> {
        self.objects.get(&(dir.clone(), Bytes::copy_from_slice(name))).cloned()
    }

    /// Which object it is.
    pub fn id(&self, object: &Handle) -> Option<Id> {
        self.get(object).map_or_else(|| self.roots.get(object)?.1, |found| found.id)
    }

    /// The names that lead to it: from the nearest above it that `near` knows, with what that knows; or else its path at the server.
    pub fn way<T>(&self, object: &Handle, near: impl Fn(&Handle) -> Option<T>) -> Option<(Option<T>, Vec<Bytes>)> {
        let (mut at, mut back) = (object.clone(), Vec::new());
        for _ in 0..DEPTH_MAX {
            if let Some(near) = near(&at) {
                return Some((Some(near), back.into_iter().rev().collect()));
            }
            if let Some((path, _)) = self.roots.get(&at) {
                return Some((None, path.iter().cloned().chain(back.into_iter().rev()).collect()));
            }
            let found = self.get(&at)?;
            back.extend(found.name.split(|&byte| byte == b'/').rev().map(|name| found.name.slice_ref(name)));
            at = found.dir.clone();
        }
        None
    }

    /// All of which something is known, by their file systems.
    pub fn file_systems(&self) -> HashMap<u64, Handle> {
        let roots = self.roots.iter().filter_map(|(root, (_, id))| Some((id.as_ref()?.fsid, root.clone())));
        let found = self.old.iter().chain(&self.new);
        found.filter_map(|(object, found)| Some((found.id?.fsid, object.clone()))).chain(roots).collect()
    }

    /// An object is not there any more.
    pub fn forget(&mut self, object: &Handle) {
        for found in [self.new.remove(object), self.old.remove(object)].into_iter().flatten() {
            let at = (found.dir, found.name);
            if self.objects.get(&at) == Some(object) {
                self.objects.remove(&at);
            }
        }
    }

    /// What was at one name is now at another.
    pub fn renamed(&mut self, from: (&Handle, &[u8]), to: (&Handle, &[u8])) {
        let Some(object) = self.objects.remove(&(from.0.clone(), Bytes::copy_from_slice(from.1))) else { return };
        let (dir, name) = (self.own(to.0), Bytes::copy_from_slice(to.1));
        for found in [self.new.get_mut(&object), self.old.get_mut(&object)].into_iter().flatten() {
            (found.dir, found.name) = (dir.clone(), name.clone());
        }
        self.objects.insert((dir, name), object);
    }
}

/// Objects of which something is known, but for those on the way to them and those that are kept.
pub(super) const KNOWN_MAX: usize = 2 * GENERATION;
/// A few hundred bytes each.
const GENERATION: usize = 1 << 14;
/// Names in a path; more are a circle of what others have renamed.
const DEPTH_MAX: usize = 1 << 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: usize) -> Handle {
        Bytes::from(number.to_string()).into()
    }

    fn find(names: &mut Names, object: usize, dir: usize, name: &str) {
        names.found(&handle(object), (&handle(dir), name.as_bytes()), None, |_| false);
    }

    fn path(names: &Names, object: usize) -> Option<Vec<Bytes>> {
        names.way(&handle(object), |_| None::<()>).map(|(_, path)| path)
    }

    fn root(names: &mut Names, number: usize) {
        let attr = Attr { fsid: 7, fileid: 2, ..Attr::of(crate::model::FileKind::Dir) };
        names.root(&handle(number), &["export".into(), "m".into()], &attr);
    }

    #[test]
    fn an_object_is_where_it_was_found_or_renamed_to_last() {
        let mut names = Names::default();
        let (dir, other) = (handle(1), handle(2));
        find(&mut names, 3, 1, "a");
        find(&mut names, 4, 1, "b");
        names.renamed((&dir, b"a"), (&other, b"c"));
        names.renamed((&other, b"b"), (&other, b"d"));
        assert_eq!(names.of(&handle(3)), Some((other.clone(), "c".into())));
        assert_eq!(names.of(&handle(4)), Some((dir.clone(), "b".into())));
        find(&mut names, 4, 2, "d");
        assert_eq!(names.of(&handle(4)), Some((other.clone(), "d".into())));
        assert_eq!((names.at(&other, b"d"), names.at(&dir, b"a")), (Some(handle(4)), None));
        names.forget(&handle(4));
        assert_eq!((names.of(&handle(4)), names.at(&other, b"d")), (None, None));
    }

    #[test]
    fn a_path_begins_at_a_root() {
        let mut names = Names::default();
        root(&mut names, 1);
        find(&mut names, 2, 1, "a");
        find(&mut names, 3, 2, "b/c");
        let path = |names: &Names, object| Some(path(names, object)?.join(&b'/'));
        assert_eq!(path(&names, 3), Some(b"export/m/a/b/c".to_vec()));
        names.renamed((&handle(1), b"a"), (&handle(1), b"d"));
        assert_eq!(path(&names, 3), Some(b"export/m/d/b/c".to_vec()));
        assert_eq!(path(&names, 9), None);
        let near = names.way(&handle(3), |at| (*at == handle(2)).then_some("it"));
        assert_eq!(near, Some((Some("it"), vec!["b".into(), "c".into()])));
        find(&mut names, 5, 6, "x");
        find(&mut names, 6, 5, "y");
        assert_eq!(path(&names, 6), None, "a circle");
        assert_eq!(names.id(&handle(1)), Some(Id { fsid: 7, fileid: 2 }));
    }

    #[test]
    fn the_latest_are_kept_and_the_ways_to_them() {
        let mut names = Names::default();
        root(&mut names, 1);
        find(&mut names, 4, 1, "dir");
        find(&mut names, 2, 4, "dir");
        find(&mut names, 3, 1, "kept");
        for number in 0..=3 * GENERATION {
            names.found(&handle(10 + number), (&handle(2), number.to_string().as_bytes()), None, |object| {
                *object == handle(3)
            });
        }
        assert!(names.of(&handle(10)).is_none());
        assert!((2 * GENERATION..=3 * GENERATION).all(|number| path(&names, 10 + number).is_some()));
        assert!(names.of(&handle(3)).is_some());
        assert!(names.new.len() + names.old.len() <= 2 * GENERATION + 4);
        assert!(names.objects.len() <= 2 * GENERATION + 4);
    }
}
