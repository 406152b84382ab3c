//! Random operations by random users have the same outcome in the back end `memory` as in a directory of the host.
//!
//! The host's directory is the model: its behaviour is correct. As an ordinary user, all callers act as that user.

use std::{os::unix::fs::PermissionsExt, sync::Arc};

use buf::{Pool, Rope};
use bytes::Bytes;
use proptest::{prelude::*, sample::select};
use smallvec::SmallVec;
use vfs::{
    Attr, Caller, CreateMode, Cred, Handle, Kind, Name, NodeKind, Report, Rights, SetAttr, Stability, Vfs, VfsError,
    Writer,
    memory::{Memory, MemoryOptions},
    posix::{Posix, PosixOptions},
};

#[derive(Clone, Debug)]
enum Op {
    Create(UserIndex, Location, u32),
    Truncate(UserIndex, Location, u64),
    Exclusive(UserIndex, Location, u64),
    Mkdir(UserIndex, Location, u32),
    Symlink(UserIndex, Location),
    Fifo(UserIndex, Location),
    Remove(UserIndex, Location),
    Rmdir(UserIndex, Location),
    Rename(UserIndex, Location, Location),
    Link(UserIndex, Location, Location),
    Chmod(UserIndex, Location, u32),
    Chown(UserIndex, Location, u32, u32),
    Resize(UserIndex, Location, u64),
    Write(UserIndex, Location, u64, usize),
    Read(UserIndex, Location, u64, usize),
    Access(UserIndex, Location),
}

/// The index of a user in [`users`].
type UserIndex = usize;

/// A location: the index of a created directory, and a name in it.
type Location = (usize, &'static str);

fn users() -> [Cred; 4] {
    let user = |uid, gid, groups: &[u32]| Cred { uid, gid, groups: SmallVec::from_slice(groups) };
    [user(0, 0, &[]), user(1001, 2001, &[]), user(1002, 2001, &[2002]), user(1003, 2003, &[2002])]
}

fn op() -> impl Strategy<Value = Op> {
    let who = || 0..4usize;
    let at = || (0..6usize, select(vec!["a", "b", "c"]));
    let mode = || select(vec![0o777, 0o755, 0o700, 0o1777, 0o2775, 0o070, 0o6755, 0o2644, 0o666, 0o000]);
    let size = || select(vec![0, 1, 4095, 4096, 131_071, 131_072, 131_073, 300_000]);
    let id = || select(vec![0, 1001, 1002, 2001, 2002]);
    prop_oneof![
        4 => (who(), at(), mode()).prop_map(|(who, at, mode)| Op::Create(who, at, mode)),
        1 => (who(), at(), size()).prop_map(|(who, at, size)| Op::Truncate(who, at, size)),
        // A verifier is never used twice: a real directory stores it in the times, so a read would make a
        // retransmission fail.
        1 => (who(), at(), any::<u64>()).prop_map(|(who, at, verifier)| Op::Exclusive(who, at, verifier)),
        4 => (who(), at(), mode()).prop_map(|(who, at, mode)| Op::Mkdir(who, at, mode)),
        1 => (who(), at()).prop_map(|(who, at)| Op::Symlink(who, at)),
        1 => (who(), at()).prop_map(|(who, at)| Op::Fifo(who, at)),
        2 => (who(), at()).prop_map(|(who, at)| Op::Remove(who, at)),
        2 => (who(), at()).prop_map(|(who, at)| Op::Rmdir(who, at)),
        4 => (who(), at(), at()).prop_map(|(who, from, to)| Op::Rename(who, from, to)),
        2 => (at(), at()).prop_map(|(from, to)| Op::Link(0, from, to)),
        2 => (who(), at(), mode()).prop_map(|(who, at, mode)| Op::Chmod(who, at, mode)),
        2 => (who(), at(), id(), id()).prop_map(|(who, at, uid, gid)| Op::Chown(who, at, uid, gid)),
        2 => (who(), at(), size()).prop_map(|(who, at, size)| Op::Resize(who, at, size)),
        3 => (who(), at(), size(), 1..200_000usize).prop_map(|(who, at, offset, len)| Op::Write(who, at, offset, len)),
        3 => (who(), at(), size(), 1..200_000usize).prop_map(|(who, at, offset, len)| Op::Read(who, at, offset, len)),
        1 => (who(), at()).prop_map(|(who, at)| Op::Access(who, at)),
    ]
}

/// One of the two trees, with the directories that have been created in it.
struct Tree {
    fs: Arc<dyn Vfs>,
    dirs: Vec<Handle>,
    pool: Pool,
}

/// The attributes that can be compared: all but file numbers and times.
type ComparedAttributes = (Kind, u32, u32, u32, u32, u64);

/// The outcome of an operation.
#[derive(Debug, PartialEq)]
enum Outcome {
    Error(VfsError),
    Object(ComparedAttributes),
    Dirs(ComparedAttributes, ComparedAttributes),
    Data(Bytes, bool),
    Rights(Rights),
}

fn compared(attr: &Attr) -> ComparedAttributes {
    // The size of a directory depends on the file system.
    let size = if attr.kind == Kind::Dir { 0 } else { attr.size };
    // So does the mode of a symbolic link.
    let mode = if attr.kind == Kind::Symlink { 0 } else { attr.mode };
    (attr.kind, mode, attr.nlink, attr.uid, attr.gid, size)
}

impl Tree {
    fn new(fs: Arc<dyn Vfs>) -> Self {
        Self { dirs: vec![fs.root()], fs, pool: Pool::default() }
    }

    fn dir(&self, at: Location) -> (&Handle, &'static Name) {
        (&self.dirs[at.0 % self.dirs.len()], Name::new(at.1.as_bytes()).unwrap())
    }

    fn find(&self, at: Location) -> Result<Handle, VfsError> {
        let (dir, name) = self.dir(at);
        let users = users();
        let root = Caller::blocking(&users[0]);
        self.fs.lookup(&root, dir, name).map(|found| found.0)
    }

    fn run(&mut self, op: &Op) -> Outcome {
        self.try_run(op).unwrap_or_else(Outcome::Error)
    }

    fn try_run(&mut self, op: &Op) -> Result<Outcome, VfsError> {
        // Long: one arm for each operation.
        let users = users();
        let by = |who: UserIndex| Caller::blocking(&users[who]);
        let fs = self.fs.clone();
        let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
        let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        let create = |who, at, mode: CreateMode| {
            let (dir, name) = self.dir(at);
            fs.create(&by(who), dir, name, &mode)
                .map(|made| Outcome::Dirs(compared(&made.attr), compared(&made.dir.after)))
        };
        let set = |who, at, set: SetAttr| {
            fs.setattr(&by(who), &self.find(at)?, &set, None).map(|change| Outcome::Object(compared(&change.after)))
        };
        match *op {
            Op::Create(who, at, bits) => create(who, at, CreateMode::Guarded(mode(bits))),
            Op::Truncate(who, at, len) => create(who, at, CreateMode::Unchecked(size(len))),
            Op::Exclusive(who, at, verifier) => create(who, at, CreateMode::Exclusive(verifier.to_be_bytes())),
            Op::Mkdir(who, at, bits) => {
                let (dir, name) = self.dir(at);
                let made = fs.mkdir(&by(who), dir, name, &mode(bits))?;
                self.dirs.push(made.handle);
                Ok(Outcome::Dirs(compared(&made.attr), compared(&made.dir.after)))
            }
            Op::Symlink(who, at) => {
                let (dir, name) = self.dir(at);
                let made = fs.symlink(&by(who), dir, name, b"target", &SetAttr::default())?;
                Ok(Outcome::Dirs(compared(&made.attr), compared(&made.dir.after)))
            }
            Op::Fifo(who, at) => {
                let (dir, name) = self.dir(at);
                let made = fs.mknod(&by(who), dir, name, NodeKind::Fifo, &mode(0o644))?;
                Ok(Outcome::Dirs(compared(&made.attr), compared(&made.dir.after)))
            }
            Op::Remove(who, at) => {
                let (dir, name) = self.dir(at);
                fs.remove(&by(who), dir, name).map(|change| Outcome::Object(compared(&change.after)))
            }
            Op::Rmdir(who, at) => {
                let (dir, name) = self.dir(at);
                fs.rmdir(&by(who), dir, name).map(|change| Outcome::Object(compared(&change.after)))
            }
            Op::Rename(who, from, to) => {
                let ((from_dir, from), (to_dir, to)) = (self.dir(from), self.dir(to));
                let (from, to) = fs.rename(&by(who), from_dir, from, to_dir, to)?;
                Ok(Outcome::Dirs(compared(&from.after), compared(&to.after)))
            }
            Op::Link(who, from, to) => {
                let object = self.find(from)?;
                let (dir, name) = self.dir(to);
                let (change, attr) = fs.link(&by(who), &object, dir, name)?;
                Ok(Outcome::Dirs(compared(&attr), compared(&change.after)))
            }
            Op::Chmod(who, at, bits) => set(who, at, mode(bits)),
            Op::Chown(who, at, uid, gid) => {
                set(who, at, SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })
            }
            Op::Resize(who, at, len) => set(who, at, size(len)),
            Op::Write(who, at, offset, len) => {
                let data = Rope::from(Bytes::from((0..len).map(|i| (i ^ offset as usize) as u8).collect::<Vec<_>>()));
                let written = fs.write(
                    &by(who),
                    &self.find(at)?,
                    offset,
                    &data,
                    Stability::Unstable,
                    Report::Attributes(Writer(1)),
                )?;
                Ok(Outcome::Object(compared(&written.after.unwrap())))
            }
            Op::Read(who, at, offset, len) => {
                let read = fs.read(&by(who), &self.find(at)?, offset, len, &self.pool, false)?;
                Ok(Outcome::Data(read.data.to_bytes().unwrap(), read.eof))
            }
            Op::Access(who, at) => {
                fs.access(&by(who), &self.find(at)?, Rights::ALL).map(|(rights, _)| Outcome::Rights(rights))
            }
        }
    }
}

fn agree(posix: Posix, ops: &[Op]) -> Result<(), TestCaseError> {
    let mode = 0o777;
    let memory = Memory::new(MemoryOptions { mode, capacity: 1 << 30, ..MemoryOptions::default() });
    let (mut real, mut memory) = (Tree::new(Arc::new(posix)), Tree::new(Arc::new(memory)));
    for (i, op) in ops.iter().enumerate() {
        let (expected, got) = (real.run(op), memory.run(op));
        prop_assert_eq!(expected, got, "operation {}: {:?}", i, op);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_behaves_like_a_real_directory(ops in proptest::collection::vec(op(), 1..120)) {
        let dir = tempfile::tempdir().unwrap();
        let posix = Posix::open(dir.path(), PosixOptions::default()).unwrap();
        if !posix.tells_callers_apart() {
            eprintln!("SKIPPED memory_behaves_like_a_real_directory: needs root");
            return Ok(());
        }
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        agree(posix, &ops)?;
    }
}
