//! A FUSE file system with the least work that a process needs for each message: the user-space floor of `bench/mount.sh`.
//!
//! ```sh
//! floor_mount DIR
//! ```
//!
//! It keeps names and attributes in tables and drops the data of files. One thread reads a message, answers it, and spins for up to
//! 200 µs for the next one before it sleeps, as `slipway mount` does. The device and the formats are those of `slipway mount`. It
//! serves what `tar -x`, creates, `rm -r` and writes need, until it is unmounted.

// The binary has no library. Its modules have more than this example needs.
#![allow(dead_code)]

#[path = "../src/fuse/device.rs"]
mod device;
#[path = "../src/fuse/wire.rs"]
mod wire;

use std::{
    collections::HashMap,
    env, io,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::{Duration, Instant},
};

use client::Time;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use device::Device;
use wire::{Arguments, Attributes, HEADER, Header, Init, Listed, Out, WRITE_HEAD, WRITE_MAX, init, op, set};

/// The options of [`Device`].
struct Options {
    direct_io: bool,
    per_caller: bool,
    read_only: bool,
}

/// An object: its attributes, and its names if it is a directory.
struct Node {
    attr: Attributes,
    names: HashMap<Vec<u8>, u64>,
}

/// The objects by number.
struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
}

type Answer = Result<Option<Out>, Errno>;

impl Tree {
    fn new() -> Self {
        let mut tree = Self { nodes: HashMap::new(), next: 1 };
        tree.insert(0o040_755);
        tree
    }

    fn insert(&mut self, mode: u32) -> Attributes {
        let (ino, zero) = (self.next, Time { seconds: 0, nseconds: 0 });
        self.next += 1;
        let attr = Attributes {
            node: ino,
            ino,
            size: 0,
            blocks: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        };
        self.nodes.insert(ino, Node { attr, names: HashMap::new() });
        attr
    }

    fn node(&mut self, ino: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::STALE)
    }

    fn make(&mut self, dir: u64, name: &[u8], mode: u32) -> Result<Attributes, Errno> {
        let attr = self.insert(mode);
        self.node(dir)?.names.insert(name.to_owned(), attr.ino);
        Ok(attr)
    }

    fn remove(&mut self, dir: u64, name: &[u8]) -> Answer {
        let ino = self.node(dir)?.names.remove(name).ok_or(Errno::NOENT)?;
        self.nodes.remove(&ino);
        Ok(Some(Out::new()))
    }

    /// Executes a request. Returns `None` if it has no reply.
    fn execute(&mut self, header: Header, mut arguments: Arguments<'_>) -> Answer {
        let ino = header.ino;
        match header.opcode {
            op::INIT => Ok(Some(Out::new().init(Init::agree(arguments, WANTED)?.ok_or(Errno::PROTO)?))),
            op::LOOKUP => match self.node(ino)?.names.get(arguments.name()?.as_bytes()).copied() {
                Some(found) => Ok(Some(Out::new().entry(found, &self.node(found)?.attr, TTL, TTL))),
                None => Ok(Some(Out::new().no_entry(TTL))),
            },
            op::GETATTR => Ok(Some(Out::new().attr(&self.node(ino)?.attr, TTL))),
            op::SETATTR => self.set(ino, arguments),
            op::CREATE => {
                let (_flags, mode, _umask, _unused) =
                    (arguments.u32()?, arguments.u32()?, arguments.u32()?, arguments.u32()?);
                let attr = self.make(ino, arguments.name()?.as_bytes(), mode)?;
                Ok(Some(Out::new().entry(attr.ino, &attr, TTL, TTL).open(attr.ino, 0, 0)))
            }
            op::MKDIR => {
                let (mode, _umask) = (arguments.u32()?, arguments.u32()?);
                let attr = self.make(ino, arguments.name()?.as_bytes(), 0o040_000 | mode & 0o7777)?;
                Ok(Some(Out::new().entry(attr.ino, &attr, TTL, TTL)))
            }
            op::UNLINK | op::RMDIR => self.remove(ino, arguments.name()?.as_bytes()),
            op::OPEN | op::OPENDIR => Ok(Some(Out::new().open(ino, 0, 0))),
            op::WRITE => {
                let (_number, offset, size) = (arguments.u64()?, arguments.u64()?, arguments.u32()?);
                let attr = &mut self.node(ino)?.attr;
                attr.size = attr.size.max(offset + u64::from(size));
                Ok(Some(Out::new().u32(size).u32(0)))
            }
            op::READDIR => {
                let (_number, offset, room) = (arguments.u64()?, arguments.u64()?, arguments.u32()?);
                let mut listed = Listed::new(room);
                for (at, (name, ino)) in self.node(ino)?.names.iter().enumerate().skip(offset as usize) {
                    if !listed.add(*ino, at as u64 + 1, 0, name, None) {
                        break;
                    }
                }
                Ok(Some(listed.out()))
            }
            op::FLUSH | op::RELEASE | op::RELEASEDIR | op::FSYNC | op::DESTROY => Ok(Some(Out::new())),
            op::STATFS => Ok(Some(Out::new().statfs([0; 5], 4096, 255))),
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT => Ok(None),
            _ => Err(Errno::NOSYS),
        }
    }

    fn set(&mut self, ino: u64, mut arguments: Arguments<'_>) -> Answer {
        let valid = arguments.u32()?;
        let (_padding, _number, size, _owner) =
            (arguments.u32()?, arguments.u64()?, arguments.u64()?, arguments.u64()?);
        let (atime, mtime, _ctime) = (arguments.i64()?, arguments.i64()?, arguments.i64()?);
        let (_atime, _mtime, _ctime) = (arguments.u32()?, arguments.u32()?, arguments.u32()?);
        let (mode, _unused) = (arguments.u32()?, arguments.u32()?);
        let attr = &mut self.node(ino)?.attr;
        if valid & set::SIZE != 0 {
            attr.size = size;
        }
        if valid & set::ATIME != 0 {
            attr.atime.seconds = atime;
        }
        if valid & set::MTIME != 0 {
            attr.mtime.seconds = mtime;
        }
        if valid & set::MODE != 0 {
            attr.mode = attr.mode & !0o7777 | mode & 0o7777;
        }
        Ok(Some(Out::new().attr(attr, TTL)))
    }
}

/// Serves until the mount ends.
fn serve(device: &Device) -> rustix::io::Result<()> {
    let (mut head, mut rest, mut tree) = ([0; WRITE_HEAD], vec![0; WRITE_MAX], Tree::new());
    let mut idle = Instant::now();
    loop {
        let len = match device.read(&mut head, &mut rest) {
            Ok(len) => len,
            Err(Errno::AGAIN) => {
                if idle.elapsed() > SPIN {
                    poll(&mut [PollFd::new(device, PollFlags::IN)], None)?;
                    idle = Instant::now();
                }
                continue;
            }
            Err(Errno::NOENT | Errno::INTR) => continue,
            Err(Errno::NODEV) => return Ok(()),
            Err(error) => return Err(error),
        };
        idle = Instant::now();
        let start = len.min(WRITE_HEAD);
        let Some(header) = Header::decode(&head[..start]) else { continue };
        let body = if header.opcode == op::WRITE {
            head[HEADER..start].to_vec()
        } else {
            [&head[HEADER..start], &rest[..len - start]].concat()
        };
        let answered = match tree.execute(header, Arguments::new(&body)) {
            Ok(None) => continue,
            Ok(Some(out)) => device.write(&out.finish(header.unique)),
            Err(error) => device.reply_error(header.unique, error),
        };
        match answered {
            // The program has ended.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NODEV) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn main() -> io::Result<()> {
    let directory = env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: floor_mount DIR"))?;
    let options = Options { direct_io: false, per_caller: false, read_only: false };
    Ok(serve(&Device::mount("floor", Path::new(&directory), &options)?)?)
}

/// The features that `slipway mount` asks for and that change the messages of these programs.
const WANTED: u64 = init::BIG_WRITES | init::MAX_PAGES | init::HANDLE_KILLPRIV_V2 | init::PARALLEL_DIROPS;
/// The time for which the kernel caches names and attributes.
const TTL: Duration = Duration::from_secs(1);
/// The time to spin, which is that of `slipway mount`.
const SPIN: Duration = Duration::from_micros(200);
