//! [`Names`]: the names under which objects were found. Callers know objects by their handles, but NFSv4.0 opens only
//! by name (RFC 7530 §16.16; by handle since 4.1), and objects of a file system that has moved are found only by name.

use std::mem;

use bytes::Bytes;
use entropy::{HashMap, HashSet};

use crate::model::{Attr, Handle};

/// The directories and names of recently found objects. They are hints, because other clients may have renamed the
/// objects.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The roots of mounted trees at which paths begin, with their paths at the server.
    roots: HashMap<Handle, (Vec<Bytes>, Option<Id>)>,
    /// The objects of the current generation; `old` has those of the generation before.
    new: HashMap<Handle, Found>,
    old: HashMap<Handle, Found>,
    /// The number of objects found in the current generation, up to [`GENERATION`].
    fresh: usize,
    /// The object that was last found under each name.
    objects: HashMap<(Handle, Bytes), Handle>,
}

/// The identity of an object. No other existing object of its server has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub fsid: u64,
    pub fileid: u64,
}

#[derive(Clone, Debug)]
struct Found {
    dir: Handle,
    /// The name, which contains slashes if the object was found several directories below `dir`.
    name: Bytes,
    id: Option<Id>,
}

impl Id {
    /// Returns the identity from attributes; `None` if the server sends no fileid, which is then 0.
    pub fn of(attr: &Attr) -> Option<Self> {
        (attr.fileid != 0).then_some(Self { fsid: attr.fsid, fileid: attr.fileid })
    }
}

impl Names {
    /// Adds a root at which paths begin.
    pub fn root(&mut self, root: &Handle, path: &[Bytes], attr: &Attr) {
        self.roots.insert(root.detached(), (path.to_vec(), Id::of(attr)));
    }

    /// Stores the name under which an object was found. Objects for which `kept` returns `true` are not evicted.
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
            self.start_generation(kept);
        }
        let id = id.or_else(|| self.get(object)?.id);
        let (object, dir, name) = (self.shared(object), self.shared(dir), Bytes::copy_from_slice(name));
        self.objects.insert((dir.clone(), name.clone()), object.clone());
        self.fresh += usize::from(self.new.insert(object, Found { dir, name, id }).is_none());
    }

    /// Starts a generation: evicts the objects of the oldest one, except kept objects and the directories above known
    /// objects.
    fn start_generation(&mut self, kept: impl Fn(&Handle) -> bool) {
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

    /// Returns a handle to store, which shares memory with an equal stored handle if there is one.
    fn shared(&self, handle: &Handle) -> Handle {
        let known = self.new.get_key_value(handle).map(|(known, _)| known);
        known
            .or_else(|| self.roots.get_key_value(handle).map(|(known, _)| known))
            .cloned()
            .unwrap_or_else(|| handle.detached())
    }

    fn get(&self, object: &Handle) -> Option<&Found> {
        self.new.get(object).or_else(|| self.old.get(object))
    }

    /// Returns the directory and name under which an object was last found.
    pub fn name_of(&self, object: &Handle) -> Option<(Handle, Bytes)> {
        self.get(object).map(|found| (found.dir.clone(), found.name.clone()))
    }

    /// Returns the object that was last found under a name.
    pub fn object_at(&self, dir: &Handle, name: &[u8]) -> Option<Handle> {
        self.objects.get(&(dir.clone(), Bytes::copy_from_slice(name))).cloned()
    }

    /// Returns the identity of an object.
    pub fn id(&self, object: &Handle) -> Option<Id> {
        self.get(object).map_or_else(|| self.roots.get(object)?.1, |found| found.id)
    }

    /// Returns the names that lead to an object from the nearest directory above it for which `near` returns a value,
    /// with this value; or else from the root of the server.
    pub fn path_to<T>(&self, object: &Handle, near: impl Fn(&Handle) -> Option<T>) -> Option<(Option<T>, Vec<Bytes>)> {
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

    /// Returns one known object of each file system.
    pub fn file_systems(&self) -> HashMap<u64, Handle> {
        let roots = self.roots.iter().filter_map(|(root, (_, id))| Some((id.as_ref()?.fsid, root.clone())));
        let found = self.old.iter().chain(&self.new);
        found.filter_map(|(object, found)| Some((found.id?.fsid, object.clone()))).chain(roots).collect()
    }

    /// Removes an object that is not at its name any more.
    pub fn forget(&mut self, object: &Handle) {
        for found in [self.new.remove(object), self.old.remove(object)].into_iter().flatten() {
            let at = (found.dir, found.name);
            if self.objects.get(&at) == Some(object) {
                self.objects.remove(&at);
            }
        }
    }

    /// Removes a name that this client has removed. Returns the object that was last found under it.
    pub fn removed(&mut self, dir: &Handle, name: &[u8]) -> Option<Handle> {
        let object = self.objects.remove(&(dir.clone(), Bytes::copy_from_slice(name)))?;
        if self.get(&object).is_some_and(|found| found.dir == *dir && found.name == name) {
            self.forget(&object);
        }
        Some(object)
    }

    /// Changes the name of an object that was renamed.
    pub fn renamed(&mut self, from: (&Handle, &[u8]), to: (&Handle, &[u8])) {
        let Some(object) = self.objects.remove(&(from.0.clone(), Bytes::copy_from_slice(from.1))) else { return };
        let (dir, name) = (self.shared(to.0), Bytes::copy_from_slice(to.1));
        for found in [self.new.get_mut(&object), self.old.get_mut(&object)].into_iter().flatten() {
            (found.dir, found.name) = (dir.clone(), name.clone());
        }
        self.objects.insert((dir, name), object);
    }
}

/// Maximum number of known objects, without kept objects and the directories above known ones.
pub(super) const KNOWN_MAX: usize = 2 * GENERATION;
/// The number of objects in a generation. Each needs a few hundred bytes.
const GENERATION: usize = 1 << 14;
/// Maximum number of names in a path. A longer path is a loop that renames by other clients have caused.
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
        names.path_to(&handle(object), |_| None::<()>).map(|(_, path)| path)
    }

    fn root(names: &mut Names, number: usize) {
        let attr = Attr { fsid: 7, fileid: 2, ..Attr::of(crate::model::FileKind::Dir) };
        names.root(&handle(number), &["export".into(), "m".into()], &attr);
    }

    #[test]
    fn object_has_the_name_of_its_last_lookup_or_rename() {
        let mut names = Names::default();
        let (dir, other) = (handle(1), handle(2));
        find(&mut names, 3, 1, "a");
        find(&mut names, 4, 1, "b");
        names.renamed((&dir, b"a"), (&other, b"c"));
        names.renamed((&other, b"b"), (&other, b"d"));
        assert_eq!(names.name_of(&handle(3)), Some((other.clone(), "c".into())));
        assert_eq!(names.name_of(&handle(4)), Some((dir.clone(), "b".into())));
        find(&mut names, 4, 2, "d");
        assert_eq!(names.name_of(&handle(4)), Some((other.clone(), "d".into())));
        assert_eq!((names.object_at(&other, b"d"), names.object_at(&dir, b"a")), (Some(handle(4)), None));
        names.forget(&handle(4));
        assert_eq!((names.name_of(&handle(4)), names.object_at(&other, b"d")), (None, None));
    }

    #[test]
    fn path_begins_at_a_root() {
        let mut names = Names::default();
        root(&mut names, 1);
        find(&mut names, 2, 1, "a");
        find(&mut names, 3, 2, "b/c");
        let path = |names: &Names, object| Some(path(names, object)?.join(&b'/'));
        assert_eq!(path(&names, 3), Some(b"export/m/a/b/c".to_vec()));
        names.renamed((&handle(1), b"a"), (&handle(1), b"d"));
        assert_eq!(path(&names, 3), Some(b"export/m/d/b/c".to_vec()));
        assert_eq!(path(&names, 9), None);
        let near = names.path_to(&handle(3), |at| (*at == handle(2)).then_some("it"));
        assert_eq!(near, Some((Some("it"), vec!["b".into(), "c".into()])));
        find(&mut names, 5, 6, "x");
        find(&mut names, 6, 5, "y");
        assert_eq!(path(&names, 6), None, "a loop has no path");
        assert_eq!(names.id(&handle(1)), Some(Id { fsid: 7, fileid: 2 }));
    }

    #[test]
    fn recent_objects_and_their_directories_are_kept() {
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
        assert!(names.name_of(&handle(10)).is_none());
        assert!((2 * GENERATION..=3 * GENERATION).all(|number| path(&names, 10 + number).is_some()));
        assert!(names.name_of(&handle(3)).is_some());
        assert!(names.new.len() + names.old.len() <= 2 * GENERATION + 4);
        assert!(names.objects.len() <= 2 * GENERATION + 4);
    }
}
