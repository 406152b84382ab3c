//! READDIR and READDIRPLUS: RFC 1813 §3.3.16 and §3.3.17.
//!
//! Entries are encoded while the file system visits them, up to the number of bytes that the client accepts. There is
//! no intermediate list. The parts of the result count against these limits:
//!
//! | part of the result | bytes | `count`, `maxcount` | `dircount` |
//! |---|---|---|---|
//! | status | 4 | no | no |
//! | attributes of the directory, cookie verifier | 88 + 8 | yes | no |
//! | an entry's mark, number, name and cookie | 4 + 8 + 4 + padded name + 8 | yes | yes |
//! | an entry's attributes and handle | 88 + (4 or 8 + padded handle) | yes | no |
//! | end of list and `eof` | 4 + 4 | yes | no |
//!
//! If not even one entry fits, the status is TOOSMALL, because the client could make no progress with an empty list.

use std::ops::ControlFlow;

use nfs::v3::{Nfsstat3, ReadDirArgs, ReadDirPlusArgs};
use vfs::{DirEntry, VfsError};
use xdr::{Encode, Encoder};

use super::{
    answers,
    object::{post_op, with},
};
use crate::{
    call::{context::Context, error::WouldBlock, object::Object, transfer::directory_max},
    v3::status::{Fault3, encode_result},
};

answers! {
    ReadDir => readdir;
    ReadDirPlus => readdirplus;
}

fn readdir(cx: &Context<'_>, args: &ReadDirArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let dir = cx.object(&args.dir);
    let result = with(&dir, |dir| {
        let max = args.count.min(directory_max(&cx.transport)) as usize;
        list(dir, (args.cookie, args.cookieverf), Listing::new(dir, out, max, usize::MAX, false))
    });
    finish(out, result, &dir)
}

fn readdirplus(cx: &Context<'_>, args: &ReadDirPlusArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let dir = cx.object(&args.dir);
    let result = with(&dir, |dir| {
        let max = args.maxcount.min(directory_max(&cx.transport)) as usize;
        list(dir, (args.cookie, args.cookieverf), Listing::new(dir, out, max, args.dircount as usize, true))
    });
    finish(out, result, &dir)
}

fn finish(
    out: &mut Encoder,
    result: Result<(), Fault3>,
    dir: &Result<Object<'_>, VfsError>,
) -> Result<Nfsstat3, WouldBlock> {
    match result {
        Ok(()) => Ok(Nfsstat3::Ok),
        fault => encode_result(out, fault, || post_op(dir)),
    }
}

/// Encodes a successful result with its status. Encodes nothing if it fails.
fn list(dir: &Object<'_>, (cookie, verifier): (u64, [u8; 8]), mut listing: Listing<'_, '_>) -> Result<(), Fault3> {
    let result = listing.list(dir, cookie, verifier);
    if result.is_err() {
        listing.out.truncate(listing.start);
    }
    result
}

/// A result that is being encoded, and the space that is left.
struct Listing<'o, 'd> {
    dir: &'o Object<'d>,
    out: &'o mut Encoder,
    /// The position of the status in the stream.
    start: usize,
    /// Bytes left for entries.
    room: usize,
    /// Bytes left for entries without attributes and handles.
    dir_room: usize,
    plus: bool,
    entries: usize,
    /// `true` if an entry did not fit.
    full: bool,
}

impl<'o, 'd> Listing<'o, 'd> {
    fn new(dir: &'o Object<'d>, out: &'o mut Encoder, max: usize, dir_max: usize, plus: bool) -> Self {
        let start = out.stream_len();
        Self { dir, out, start, room: max, dir_room: dir_max, plus, entries: 0, full: false }
    }

    fn list(&mut self, dir: &Object<'_>, cookie: u64, verifier: [u8; 8]) -> Result<(), Fault3> {
        self.room = self.room.checked_sub(ATTRIBUTES + VERIFIER + END).ok_or(Nfsstat3::TooSmall)?;
        Nfsstat3::Ok.encode(self.out);
        // The attributes are known only after the entries, so reserve space for them.
        self.out.raw(&[0; ATTRIBUTES + VERIFIER]);
        let (caller, plus) = (dir.caller(), self.plus);
        let read = dir.vfs().readdir(&caller, &dir.handle, cookie, verifier, plus, &mut |entry| self.entry(&entry))?;
        if self.full && self.entries == 0 {
            return Err(Nfsstat3::TooSmall.into());
        }
        let mut head = Encoder::with_capacity(ATTRIBUTES + VERIFIER);
        Some(dir.fattr(&read.attr)).encode(&mut head);
        read.verifier.encode(&mut head);
        let words = head.finish().stream;
        for (i, word) in words.as_chunks().0.iter().enumerate() {
            self.out.patch_u32(self.start + 4 * (i + 1), u32::from_be_bytes(*word));
        }
        false.encode(self.out);
        (read.eof && !self.full).encode(self.out);
        Ok(())
    }

    fn entry(&mut self, entry: &DirEntry<'_>) -> ControlFlow<()> {
        let base = 4 + 8 + 4 + entry.name.len().next_multiple_of(4) + 8;
        let handle = entry.object.as_ref().filter(|_| self.plus).map(|(handle, _)| self.dir.seal(handle));
        let object = match &handle {
            _ if !self.plus => 0,
            None => 4 + 4,
            Some(handle) => ATTRIBUTES + 4 + 4 + handle.len().next_multiple_of(4),
        };
        let room = self.room.checked_sub(base + object).zip(self.dir_room.checked_sub(base));
        let Some((room, dir_room)) = room else {
            self.full = true;
            return ControlFlow::Break(());
        };
        (self.room, self.dir_room) = (room, dir_room);
        self.entries += 1;
        true.encode(self.out);
        self.out.u64(entry.fileid);
        self.out.opaque(entry.name);
        self.out.u64(entry.cookie);
        if self.plus {
            entry.object.as_ref().map(|(_, attr)| self.dir.fattr(attr)).encode(self.out);
            handle.is_some().encode(self.out);
            if let Some(handle) = handle {
                self.out.opaque(&handle);
            }
        }
        ControlFlow::Continue(())
    }
}

/// Bytes of `post_op_attr` with attributes.
const ATTRIBUTES: usize = 4 + 84;
/// Bytes of `cookieverf3`.
const VERIFIER: usize = 8;
/// Bytes of the end of the list and `eof`.
const END: usize = 4 + 4;
