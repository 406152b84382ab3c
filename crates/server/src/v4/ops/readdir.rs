//! READDIR: RFC 8881 §18.23.
//!
//! Entries are encoded while the file system visits them, until the client's limits are reached. `maxcount` limits the
//! whole result, `dircount` the names and cookies. If not even one entry fits, the result is TOOSMALL. `.` and `..` are
//! not entries in this protocol. Their cookies 1 and 2 are never sent.

use std::ops::ControlFlow;

use nfs::v4::{Bitmap4, Nfsstat4, ReadDirArgs, attr::Attr4};
use vfs::{Attr, DirEntry, StatFs, VfsError};
use xdr::{Encode, Encoder};

use super::{
    attributes::{aces, fsid, general, locations, statfs, with_node},
    filehandle::not_a_directory,
};
use crate::{
    call::{object::Object, transfer::directory_max},
    export::policy::{Purpose, Refusal},
    v4::{
        attr,
        attr::{Subject, needs_acl, needs_locations, needs_owners, owners},
        cursor::Cursor,
        place::{FhBytes, Place},
        pseudo::NodeId,
        service::Context,
        status::Fault4,
    },
};

pub(super) fn readdir(cx: &Context<'_>, at: &Cursor, args: &ReadDirArgs) -> Result<Raw, Fault4> {
    attr::check_readable(&args.attr_request)?;
    let has_names = needs_owners(&args.attr_request) || needs_acl(&args.attr_request);
    if has_names && cx.shared.names.are_told(cx.identity) && !cx.may_block {
        // Name lookups can block for each entry, so run all of it on a thread that may block.
        return Err(Fault4::WouldBlock);
    }
    let max = args.maxcount.min(directory_max(&cx.transport)) as usize;
    let room = max.min(at.room.saturating_sub(RESULT_HEAD)).checked_sub(VERIFIER + END).ok_or(Nfsstat4::TooSmall)?;
    // §18.23.3: zero means that there is no hint.
    let dir_room = if args.dircount == 0 { usize::MAX } else { args.dircount as usize };
    let list = List { out: Encoder::with_capacity(room.min(CAPACITY_MAX)), room, dir_room, entries: 0, full: false };
    match at.current()? {
        Place::Pseudo(node) => pseudo(cx, at, *node, args, list),
        place => object(cx, at, &cx.object4(place)?, args, list),
    }
}

fn object(cx: &Context<'_>, at: &Cursor, dir: &Object<'_>, args: &ReadDirArgs, mut list: List) -> Result<Raw, Fault4> {
    if matches!(args.cookie, 1 | 2) {
        return Err(Nfsstat4::BadCookie.into());
    }
    let mask = &args.attr_request;
    let stat = statfs(dir, mask)?;
    // A placeholder: the verifier is known after the entries.
    [0u8; VERIFIER].encode(&mut list.out);
    let mut failed = None;
    let each = &mut |entry: DirEntry<'_>| {
        if matches!(entry.name, b"." | b"..") {
            return ControlFlow::Continue(());
        }
        let listed = entry_of(cx, at, dir, mask, stat.as_ref(), &entry, &mut list);
        listed.unwrap_or_else(|status| {
            failed = Some(status);
            ControlFlow::Break(())
        })
    };
    let read = dir.vfs().readdir(&dir.caller(), &dir.handle, args.cookie, args.cookieverf, true, each);
    let read = read.map_err(|error| match error {
        vfs::VfsError::NotDir => not_a_directory(dir),
        error => error.into(),
    })?;
    if let Some(status) = failed.filter(|_| list.entries == 0) {
        return Err(status.into());
    }
    let eof = read.eof && !list.full && failed.is_none();
    list.finish(read.verifier, eof)
}

/// Adds an entry of an export's directory.
///
/// # Errors
/// The attributes of the entry are unavailable, and the client did not ask for rdattr_error.
fn entry_of(
    cx: &Context<'_>,
    at: &Cursor,
    dir: &Object<'_>,
    mask: &Bitmap4,
    stat: Option<&StatFs>,
    entry: &DirEntry<'_>,
    list: &mut List,
) -> Result<ControlFlow<()>, Nfsstat4> {
    let caps = dir.vfs().caps();
    let mounted = cx.shared.pseudo.has_junctions(dir.export.id());
    if mounted && let Ok(Some(node)) = cx.shared.pseudo.junction(dir, entry.name) {
        return node_entry(cx, at, node, entry.cookie, mask, list);
    }
    let Some((handle, attr)) = &entry.object else {
        return without_attributes(mask, entry, list);
    };
    let wants_fh = mask.contains(Attr4::Filehandle as u32);
    let filehandle: FhBytes = if wants_fh { FhBytes::from_slice(&dir.seal(handle)) } else { FhBytes::new() };
    let Ok(aces) = aces(cx, dir, handle, attr, mask) else { return without_attributes(mask, entry, list) };
    let (fsid, acl) = (fsid(dir, attr), Some(&aces[..]));
    let locations = locations(cx, dir, mask);
    let (locations, owners) = (locations.as_ref(), owners(cx, attr, mask).expect("this thread may block"));
    let layouts = cx.layout_caps(dir);
    let general = general(cx, at, attr, caps, stat);
    let subject = Subject { layouts, fsid, filehandle: &filehandle, acl, locations, owners, ..general };
    Ok(list.entry(entry.name, entry.cookie, |out| subject.encode(mask, out)))
}

/// Adds an entry without attributes. rdattr_error says why they are missing (§5.8.1.12). Omits the entry if the client
/// did not ask for rdattr_error.
fn without_attributes(mask: &Bitmap4, entry: &DirEntry<'_>, list: &mut List) -> Result<ControlFlow<()>, Nfsstat4> {
    if !mask.contains(Attr4::RdattrError as u32) {
        // The object was removed or cannot be served. In both cases the client does not need the entry.
        return Ok(ControlFlow::Continue(()));
    }
    Ok(list.entry(entry.name, entry.cookie, |out| only_error(Nfsstat4::Access, out)))
}

/// Encodes rdattr_error as the only attribute.
fn only_error(why: Nfsstat4, out: &mut Encoder) {
    let only: Bitmap4 = [Attr4::RdattrError as u32].into_iter().collect();
    only.encode(out);
    out.length(4);
    why.encode(out);
}

fn pseudo(cx: &Context<'_>, at: &Cursor, dir: NodeId, args: &ReadDirArgs, mut list: List) -> Result<Raw, Fault4> {
    let pseudo = &cx.shared.pseudo;
    let is_export = |node| pseudo.export(node).is_some_and(|id| cx.export(id, Purpose::Files).is_ok());
    if !cx.may_block && pseudo.visible(cx, dir).any(is_export) && cx.check_resolved().is_err() {
        // The attributes of the exports need the caller's user. The look-up needs the storage of no export.
        return Err(Fault4::WouldBlock);
    }
    VERIFIER_PSEUDO.encode(&mut list.out);
    let first = match args.cookie {
        0 => 0,
        1 | 2 => return Err(Nfsstat4::BadCookie.into()),
        cookie => cookie - COOKIE_FIRST + 1,
    };
    let nodes = pseudo.visible(cx, dir).enumerate().skip(usize::try_from(first).unwrap_or(usize::MAX));
    for (index, node) in nodes {
        let cookie = COOKIE_FIRST + index as u64;
        if node_entry(cx, at, node, cookie, &args.attr_request, &mut list)?.is_break() {
            return list.finish(VERIFIER_PSEUDO, false);
        }
    }
    list.finish(VERIFIER_PSEUDO, true)
}

/// Adds a node of the pseudo file system. If an export is mounted there, the entry has the attributes of its root, if
/// those are available.
///
/// # Errors
/// MOVED for a referral if the client asks neither for locations nor for rdattr_error (RFC 8881 §11.4.2). ACCESS for an
/// export that does not allow the caller's security flavour, if the client does not ask for rdattr_error.
fn node_entry(
    cx: &Context<'_>,
    at: &Cursor,
    node: NodeId,
    cookie: u64,
    mask: &Bitmap4,
    list: &mut List,
) -> Result<ControlFlow<()>, Nfsstat4> {
    let pseudo = &cx.shared.pseudo;
    let name = pseudo.name(node).clone();
    let export = pseudo.export(node).map(|id| cx.export(id, Purpose::Files));
    let has_error = mask.contains(Attr4::RdattrError as u32);
    if let Some(Err(Refusal::WrongSec)) = export {
        //= rfc8881-2.6.3.1.1.7-2
        let refused = |out: &mut Encoder| only_error(Nfsstat4::WrongSec, out);
        return if has_error { Ok(list.entry(&name, cookie, refused)) } else { Err(Nfsstat4::Access) };
    }
    let root = export.and_then(Result::ok).map(|export| cx.object_at_once(export, export.root().clone()));
    let known = root
        .map(|root| root.and_then(|root| Ok((root.getattr()?, root))))
        .map(|known| known.map(|(attr, root)| (root, attr)));
    if has_error && let Some(Err(VfsError::WouldBlock | VfsError::Delay)) = known {
        // Do not wait for one export after the other: an export may hang. LOOKUP waits. DELAY says that the name service
        // failed to look up the caller.
        return Ok(list.entry(&name, cookie, |out| only_error(Nfsstat4::Delay, out)));
    }
    let known: Option<(Object<'_>, Attr)> = known.and_then(Result::ok);
    let Some((root, attr)) = &known else {
        if pseudo.referral(node).is_some() && !needs_locations(mask) {
            let moved = |out: &mut Encoder| only_error(Nfsstat4::Moved, out);
            return if has_error { Ok(list.entry(&name, cookie, moved)) } else { Err(Nfsstat4::Moved) };
        }
        let filehandle = cx.seal(&Place::Pseudo(node));
        let listed = with_node(cx, at, node, mask, &filehandle, |subject| {
            list.entry(&name, cookie, |out| subject.encode(mask, out))
        });
        return Ok(listed.expect("a referral without locations was handled above"));
    };
    let filehandle = cx.seal(&root.place());
    let aces = aces(cx, root, &root.handle, attr, mask).unwrap_or_default();
    let locations = locations(cx, root, mask);
    let subject = Subject {
        acl: Some(&aces),
        layouts: cx.layout_caps(root),
        fsid: fsid(root, attr),
        mounted_on_fileid: pseudo.fileid(node),
        filehandle: &filehandle,
        locations: locations.as_ref(),
        owners: owners(cx, attr, mask).expect("this thread may block"),
        ..general(cx, at, attr, root.vfs().caps(), None)
    };
    Ok(list.entry(&name, cookie, |out| subject.encode(mask, out)))
}

/// A result that is being encoded, with its remaining space.
struct List {
    out: Encoder,
    /// The bytes left for entries.
    room: usize,
    /// The bytes left for names and cookies.
    dir_room: usize,
    entries: usize,
    /// `true` if an entry did not fit.
    full: bool,
}

impl List {
    fn entry(&mut self, name: &[u8], cookie: u64, attributes: impl FnOnce(&mut Encoder)) -> ControlFlow<()> {
        let start = self.out.stream_len();
        true.encode(&mut self.out);
        self.out.u64(cookie);
        self.out.opaque(name);
        let names = self.out.stream_len() - start - 4;
        attributes(&mut self.out);
        let room = self.room.checked_sub(self.out.stream_len() - start);
        // `dircount` is a hint: at least one entry is returned.
        let dir_room = self.dir_room.checked_sub(names).or((self.entries == 0).then_some(0));
        let Some((room, dir_room)) = room.zip(dir_room) else {
            self.out.truncate(start);
            self.full = true;
            return ControlFlow::Break(());
        };
        (self.room, self.dir_room) = (room, dir_room);
        self.entries += 1;
        ControlFlow::Continue(())
    }

    fn finish(mut self, verifier: [u8; VERIFIER], eof: bool) -> Result<Raw, Fault4> {
        //= rfc8881-18.23.3-1
        if self.full && self.entries == 0 {
            return Err(Nfsstat4::TooSmall.into());
        }
        for (at, word) in verifier.as_chunks().0.iter().enumerate() {
            self.out.patch_u32(4 * at, u32::from_be_bytes(*word));
        }
        false.encode(&mut self.out);
        eof.encode(&mut self.out);
        Ok(Raw(self.out.finish().stream))
    }
}

/// A body that is already encoded.
pub(super) struct Raw(bytes::Bytes);

impl Encode for Raw {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.raw(&self.0);
    }
}

/// The operation number and the status of the result.
const RESULT_HEAD: usize = 8;
const VERIFIER: usize = 8;
/// The end of the list, and `eof`.
const END: usize = 4 + 4;
const CAPACITY_MAX: usize = 32 << 10;
const COOKIE_FIRST: u64 = 3;
/// The exports do not change while a server runs, so the verifier is constant.
const VERIFIER_PSEUDO: [u8; 8] = *b"exports\0";
