//! [`Interpose`]: a layer over a back end through which all operations pass.
//!
//! A layer that treats all operations alike (delays them, counts them, caches their results) implements [`Interpose`].
//! [`Interposed`] makes a [`Vfs`] of it.

use std::{hash::BuildHasher, ops::ControlFlow, sync::Arc};

use buf::{Pool, Rope};
use bytes::Bytes;
use foldhash::quality::FixedState;

use crate::{
    Acl, AclKind, Attr, Caller, Change, CreateMode, Created, DirEntry, FsCaps, Handle, Held, Kind, Layouts, Name,
    NodeKind, Read, ReadDir, ReadInto, Report, Result, Rights, SeekFor, SetAttr, Stability, StatFs, Time, Vfs, Written,
    XattrMode,
    layout::{
        DataFailure, DataUsage, Layout, LayoutCaps, LayoutCommit, LayoutDevice, LayoutDeviceId, LayoutEvents,
        LayoutHolder, LayoutKind, LayoutModes, LayoutRequest,
    },
};

/// A layer over a back end.
pub trait Interpose: Send + Sync + 'static {
    /// Returns the back end.
    fn inner(&self) -> &dyn Vfs;

    /// Returns the capabilities and limits of the tree with this layer.
    fn caps(&self) -> &FsCaps {
        self.inner().caps()
    }

    /// Returns the layouts of the tree: those of the back end, or those of this layer.
    fn layouts(&self) -> Option<&dyn Layouts> {
        self.inner().layouts()
    }

    /// Executes an operation. `run` calls it on the back end, and may be called any number of times, including zero.
    ///
    /// # Errors
    /// Returns the errors of the operation.
    fn operation<T: Clone + Send + 'static>(
        &self,
        caller: &Caller<'_>,
        operation: Operation,
        run: &mut dyn FnMut(&Caller<'_>) -> Result<T>,
    ) -> Result<T>;
}

/// The identity of an operation within a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The name of the [`Vfs`] function.
    pub name: &'static str,
    /// A hash of the name and the arguments, without the data of a write.
    pub key: u64,
}

impl Operation {
    fn new(name: &'static str, arguments: impl std::hash::Hash) -> Self {
        Self { name, key: KEYS.hash_one((name, arguments)) }
    }
}

/// The file system of a layer.
#[derive(Clone, Debug)]
pub struct Interposed<I>(pub I);

/// The entries of a directory that one call of [`Vfs::readdir`] has listed.
#[derive(Clone)]
struct Listing {
    entries: Vec<Entry>,
    read: ReadDir,
}

#[derive(Clone)]
struct Entry {
    name: Box<[u8]>,
    fileid: u64,
    cookie: u64,
    object: Option<(Handle, Attr)>,
}

macro_rules! operations {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty, by $key:expr;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $($arg: $type),*) -> Result<$result> {
            let operation = Operation::new(stringify!($name), $key);
            self.0.operation(caller, operation, &mut |caller| self.0.inner().$name(caller, $($arg),*))
        }
    )*};
}

impl<I: Interpose> Vfs for Interposed<I> {
    fn caps(&self) -> &FsCaps {
        self.0.caps()
    }

    fn root(&self) -> Handle {
        self.0.inner().root()
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.0.inner().write_verifier()
    }

    fn adopt(&self, handle: &[u8]) -> Result<Handle> {
        self.0.inner().adopt(handle)
    }

    /// Holds a file without the layer, because this has no effect that a caller could see.
    fn hold(&self, caller: &Caller<'_>, file: &Handle) -> Result<Held> {
        self.0.inner().hold(caller, file)
    }

    operations! {
        fn lookup(dir: &Handle, name: &Name) -> (Handle, Attr), by (dir, name);
        fn find(dir: &Handle, name: &Name) -> (Handle, Kind), by (dir, name);
        fn getattr(object: &Handle) -> Attr, by object;
        fn setattr(object: &Handle, set: &SetAttr, guard: Option<Time>) -> Change, by (object, set, guard);
        fn access(object: &Handle, wanted: Rights) -> (Rights, Attr), by (object, wanted);
        fn permits(object: &Handle, wanted: Rights) -> Rights, by (object, wanted);
        fn readlink(link: &Handle) -> (Bytes, Attr), by link;
        fn read(file: &Handle, offset: u64, len: usize, pool: &Pool, ranges: bool) -> Read, by (file, offset, len);
        fn write(file: &Handle, offset: u64, data: &Rope, stability: Stability, report: Report) -> Written,
            by (file, offset, data.len(), stability);
        fn commit(file: &Handle, offset: u64, len: u64) -> Change, by (file, offset, len);
        fn create(dir: &Handle, name: &Name, mode: &CreateMode) -> Created, by (dir, name, mode);
        fn mkdir(dir: &Handle, name: &Name, set: &SetAttr) -> Created, by (dir, name, set);
        fn symlink(dir: &Handle, name: &Name, target: &[u8], set: &SetAttr) -> Created, by (dir, name, target, set);
        fn mknod(dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Created, by (dir, name, node, set);
        fn remove(dir: &Handle, name: &Name) -> Change, by (dir, name);
        fn rmdir(dir: &Handle, name: &Name) -> Change, by (dir, name);
        fn rename(from_dir: &Handle, from: &Name, to_dir: &Handle, to: &Name) -> (Change, Change),
            by (from_dir, from, to_dir, to);
        fn link(object: &Handle, dir: &Handle, name: &Name) -> (Change, Attr), by (object, dir, name);
        fn acl(object: &Handle, kind: AclKind) -> (Option<Acl>, Attr), by (object, kind);
        fn set_acl(object: &Handle, kind: AclKind, acl: Option<&Acl>) -> Change, by (object, kind, acl);
        fn seek(file: &Handle, offset: u64, what: SeekFor) -> Option<u64>, by (file, offset, what);
        fn allocate(file: &Handle, offset: u64, len: u64) -> Change, by (file, offset, len);
        fn deallocate(file: &Handle, offset: u64, len: u64) -> Change, by (file, offset, len);
        fn copy(from: (&Handle, u64), to: (&Handle, u64), len: u64) -> u64, by (from, to, len);
        fn clone_range(from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Change, by (from, to, len);
        fn xattr(object: &Handle, name: &Name) -> Bytes, by (object, name);
        fn set_xattr(object: &Handle, name: &Name, value: &[u8], how: XattrMode) -> Change,
            by (object, name, value, how);
        fn remove_xattr(object: &Handle, name: &Name) -> Change, by (object, name);
        fn xattrs(object: &Handle) -> Vec<Bytes>, by object;
        fn statfs(object: &Handle) -> StatFs, by object;
    }

    fn read_into(&self, caller: &Caller<'_>, file: &Handle, offset: u64, into: &mut [u8]) -> Result<ReadInto> {
        let len = into.len();
        let (data, read) =
            self.0.operation(caller, Operation::new("read_into", (file, offset, len)), &mut |caller| {
                let mut data = vec![0; len];
                let read = self.0.inner().read_into(caller, file, offset, &mut data)?;
                data.truncate(read.len);
                Ok((data, read))
            })?;
        into[..data.len()].copy_from_slice(&data);
        Ok(read)
    }

    fn readdir(
        &self,
        caller: &Caller<'_>,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        attrs: bool,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<ReadDir> {
        let operation = Operation::new("readdir", (dir, cookie, verifier, attrs));
        // `each` may call other operations, so it is called after this one.
        let Listing { entries, read } = self.0.operation(caller, operation, &mut |caller| {
            let mut entries = Vec::new();
            let read = self.0.inner().readdir(caller, dir, cookie, verifier, attrs, &mut |entry| {
                if entries.len() == ENTRIES_MAX {
                    return ControlFlow::Break(());
                }
                let DirEntry { name, fileid, cookie, object } = entry;
                entries.push(Entry { name: name.into(), fileid, cookie, object });
                ControlFlow::Continue(())
            })?;
            Ok(Listing { entries, read })
        })?;
        let eof = read.eof;
        for Entry { name, fileid, cookie, object } in entries {
            if each(DirEntry { name: &name, fileid, cookie, object }).is_break() {
                return Ok(ReadDir { eof: false, ..read });
            }
        }
        Ok(ReadDir { eof, ..read })
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        self.0.layouts().map(|_| self as &dyn Layouts)
    }
}

macro_rules! layout_operations {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty, by $key:expr;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $($arg: $type),*) -> Result<$result> {
            let operation = Operation::new(concat!("layout_", stringify!($name)), $key);
            self.0.operation(caller, operation, &mut |caller| layouts_of(&self.0).$name(caller, $($arg),*))
        }
    )*};
}

impl<I: Interpose> Layouts for Interposed<I> {
    fn caps(&self) -> &LayoutCaps {
        layouts_of(&self.0).caps()
    }

    fn subscribe(&self, events: Arc<dyn LayoutEvents>) {
        layouts_of(&self.0).subscribe(events);
    }

    layout_operations! {
        fn grant(file: &Handle, request: &LayoutRequest) -> Layout, by (file, request);
        fn device(id: LayoutDeviceId, kind: LayoutKind) -> LayoutDevice, by (id, kind);
        fn commit(file: &Handle, holder: Option<LayoutHolder>, commit: &LayoutCommit) -> Change,
            by (file, holder, commit);
        fn report(file: &Handle, holder: Option<LayoutHolder>, failures: &[DataFailure]) -> (),
            by (file, holder, failures);
        fn release(file: &Handle, holder: LayoutHolder, modes: LayoutModes) -> (), by (file, holder, modes);
        fn fence(file: &Handle, holder: LayoutHolder, modes: LayoutModes) -> (), by (file, holder, modes);
    }

    fn count(&self, file: &Handle, holder: LayoutHolder, usage: &DataUsage) {
        layouts_of(&self.0).count(file, holder, usage);
    }
}

/// Returns the layouts of a layer. [`Vfs::layouts`] has returned the layer because it has some.
fn layouts_of(layer: &impl Interpose) -> &dyn Layouts {
    layer.layouts().expect("a tree has layouts always or never")
}

/// Maximum number of entries that one call of `readdir` lists.
const ENTRIES_MAX: usize = 2048;
const KEYS: FixedState = FixedState::with_seed(0);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Cred,
        memory::{Memory, MemoryOptions},
    };

    struct Plain(Memory);

    impl Interpose for Plain {
        fn inner(&self) -> &dyn Vfs {
            &self.0
        }

        fn operation<T: Clone + Send + 'static>(
            &self,
            caller: &Caller<'_>,
            _: Operation,
            run: &mut dyn FnMut(&Caller<'_>) -> Result<T>,
        ) -> Result<T> {
            run(caller)
        }
    }

    #[test]
    fn long_directory_is_listed_in_consecutive_parts() {
        let fs = Interposed(Plain(Memory::new(MemoryOptions::default())));
        let (cred, root) = (Cred::root(), fs.root());
        let caller = Caller::nonblocking(&cred);
        let files = 2 * ENTRIES_MAX + 10;
        for number in 0..files {
            let name = format!("f{number}");
            fs.mkdir(&caller, &root, Name::new(name.as_bytes()).unwrap(), &SetAttr::default()).unwrap();
        }
        let (mut cookie, mut verifier, mut names, mut calls) = (0, [0; 8], Vec::new(), 0);
        loop {
            calls += 1;
            let read = fs.readdir(&caller, &root, cookie, verifier, false, &mut |entry| {
                cookie = entry.cookie;
                names.push(entry.name.to_vec());
                ControlFlow::Continue(())
            });
            let ReadDir { eof, verifier: next, .. } = read.unwrap();
            if eof {
                break;
            }
            verifier = next;
        }
        assert_eq!((names.len(), calls), (files + 2, 3));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), files + 2);
    }

    #[test]
    fn different_arguments_give_different_keys() {
        let (a, b) = (Handle::new(b"a"), Handle::new(b"b"));
        let keys = [
            Operation::new("getattr", &a),
            Operation::new("getattr", &b),
            Operation::new("statfs", &a),
            Operation::new("commit", (&a, 0u64, 0u64)),
            Operation::new("commit", (&a, 0u64, 1u64)),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(keys[at + 1..].iter().all(|other| other.key != one.key), "{one:?}");
        }
    }
}
