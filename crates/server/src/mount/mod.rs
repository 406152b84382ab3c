//! MOUNT version 3: RFC 1813 appendix I.
//!
//! MNT turns a path into a file handle. A path is bytes. Its components are looked up one after the other from the root
//! of an export, with the caller's identity. `..` is rejected and symbolic links are not followed, so a path cannot
//! leave the export. The server keeps a bounded list of reported mounts, which only DUMP uses.

use std::{
    collections::{BTreeSet, VecDeque},
    net::IpAddr,
    ops::RangeInclusive,
    sync::Arc,
};

use bytes::Bytes;
use nfs::{
    mount::{Dirpath, ExportEntry, MountEntry, MountOk, MountProc3, MountRes, Mountstat3, VERSION},
    v3::NfsFh3,
};
use parking_lot::Mutex;
use rpc::{AcceptError, Answering, Call, Procedure, Service};
use vfs::{Kind, Name, VfsError};
use xdr::{Encode, Encoder, List};

use crate::{
    audit,
    call::{
        audit::{Action, Subject},
        context,
        core::{Core, ServiceState},
        error::WouldBlock,
        exec::{self, Answer, Null},
    },
    export::{client::Client, policy::Purpose, sec::Sec},
};

type Context<'a> = context::Context<'a, Mounts>;

/// The MOUNT program, version 3.
pub struct Mount3 {
    shared: Arc<Mounts>,
}

impl Mount3 {
    pub(crate) fn new(shared: Arc<Mounts>) -> Self {
        Self { shared }
    }
}

impl Service for Mount3 {
    fn program(&self) -> u32 {
        nfs::MOUNT_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        let procedure = MountProc3::from_number(procedure)?;
        Some(Procedure { name: procedure.name(), idempotent: true })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        let shared = &self.shared;
        match MountProc3::from_number(call.procedure) {
            None => Answering::Ready(Err(AcceptError::SystemErr)),
            Some(MountProc3::Null) => exec::run::<Null<_>>(shared, call),
            Some(MountProc3::Mnt) => exec::run::<Mnt>(shared, call),
            Some(MountProc3::Dump) => exec::run::<Dump>(shared, call),
            Some(MountProc3::Umnt) => exec::run::<Umnt>(shared, call),
            Some(MountProc3::UmntAll) => exec::run::<UmntAll>(shared, call),
            Some(MountProc3::Export) => exec::run::<Export>(shared, call),
        }
    }
}

struct Mnt;

impl Answer for Mnt {
    type Shared = Mounts;
    type Args = Dirpath;
    type Status = Mountstat3;
    const NAME: &'static str = "MNT";

    fn action(_: &Context<'_>, path: &Dirpath) -> Option<Action> {
        let object = Subject::Path(path.to_vec());
        Some(Action {
            kind: audit::Kind::Change,
            protocol: "mount3",
            operation: Self::NAME,
            access: None,
            object,
            to: None,
        })
    }

    fn answer(cx: &Context<'_>, path: &Dirpath, out: &mut Encoder) -> Result<Mountstat3, WouldBlock> {
        let (result, status) = match resolve(cx, path) {
            Ok((fhandle, flavors)) => {
                cx.shared.table.lock().add(cx.peer.ip(), path);
                let auth_flavors = flavors.into_iter().map(Sec::number).collect();
                (MountRes::Ok(MountOk { fhandle, auth_flavors }), Mountstat3::Ok)
            }
            Err(VfsError::WouldBlock) => return Err(WouldBlock),
            Err(error) => (MountRes::Fail(mountstat3(error)), mountstat3(error)),
        };
        tracing::info!(peer = %cx.peer, transport = cx.transport.name, path = %path.escape_ascii(), ?status, "mount");
        result.encode(out);
        Ok(status)
    }
}

struct Dump;

impl Answer for Dump {
    type Shared = Mounts;
    type Args = ();
    type Status = ();
    const NAME: &'static str = "DUMP";

    fn answer(cx: &Context<'_>, (): &(), out: &mut Encoder) -> Result<(), WouldBlock> {
        let entry = |(host, path): &(IpAddr, Bytes)| MountEntry {
            hostname: host.to_string().as_str().into(),
            directory: path.clone().into(),
        };
        List(cx.shared.table.lock().order.iter().map(entry).collect()).encode(out);
        Ok(())
    }
}

struct Umnt;

impl Answer for Umnt {
    type Shared = Mounts;
    type Args = Dirpath;
    type Status = ();
    const NAME: &'static str = "UMNT";

    fn answer(cx: &Context<'_>, path: &Dirpath, _: &mut Encoder) -> Result<(), WouldBlock> {
        cx.shared.table.lock().remove(cx.peer.ip(), Some(path));
        tracing::info!(peer = %cx.peer, path = %path.escape_ascii(), "unmount");
        Ok(())
    }
}

struct UmntAll;

impl Answer for UmntAll {
    type Shared = Mounts;
    type Args = ();
    type Status = ();
    const NAME: &'static str = "UMNTALL";

    fn answer(cx: &Context<'_>, (): &(), _: &mut Encoder) -> Result<(), WouldBlock> {
        cx.shared.table.lock().remove(cx.peer.ip(), None);
        Ok(())
    }
}

struct Export;

impl Answer for Export {
    type Shared = Mounts;
    type Args = ();
    type Status = ();
    const NAME: &'static str = "EXPORT";

    fn answer(cx: &Context<'_>, (): &(), out: &mut Encoder) -> Result<(), WouldBlock> {
        let entry = |export: &crate::export::Export| {
            let clients = &export.options().clients;
            let named = if clients.iter().any(Client::is_any) { &[][..] } else { clients };
            let groups = named.iter().map(|client| client.as_str().into()).collect();
            ExportEntry { dir: export.name().clone().into(), groups: List(groups) }
        };
        List(cx.core.exports.iter().map(entry).collect()).encode(out);
        Ok(())
    }
}

/// Returns the file handle of a directory that a client mounts, and the flavours with which the client can use it. If the
/// flavour of this call is not one of them, or the connection lacks the export's protection, the path is looked up as the
/// anonymous user.
fn resolve(cx: &Context<'_>, path: &[u8]) -> Result<(NfsFh3, Vec<Sec>), VfsError> {
    cx.thread.admit()?;
    let (export, below) = cx.core.exports.resolve(path).ok_or(VfsError::NotFound)?;
    let requester = cx.requester();
    export.decide(&requester, Purpose::Mount)?;
    let root = export.root().clone();
    let mut object = match export.decide(&requester, Purpose::Locks) {
        Ok(()) => cx.object_of(export, root)?,
        Err(_) => cx.object_as_anonymous(export, root),
    };
    let mut kind = Kind::Dir;
    for part in below {
        if kind != Kind::Dir {
            return Err(VfsError::NotDir);
        }
        if part == b".." {
            return Err(VfsError::Access);
        }
        let (handle, attr) = object.vfs().lookup(&object.caller(), &object.handle, Name::new(part)?)?;
        (object.handle, kind) = (handle, attr.kind);
    }
    if kind != Kind::Dir {
        return Err(VfsError::NotDir);
    }
    let fhandle = Bytes::copy_from_slice(&object.seal(&object.handle)).into();
    Ok((fhandle, export.flavors(&requester, Purpose::Mount)))
}

/// Returns the status of RFC 1813 appendix I for an error of the file system.
fn mountstat3(error: VfsError) -> Mountstat3 {
    match error {
        VfsError::Perm => Mountstat3::Perm,
        VfsError::NotFound | VfsError::Stale => Mountstat3::NoEnt,
        VfsError::Access => Mountstat3::Acces,
        VfsError::NotDir => Mountstat3::NotDir,
        VfsError::Invalid | VfsError::NoXattr | VfsError::XattrTooBig => Mountstat3::Inval,
        VfsError::NameTooLong => Mountstat3::NameTooLong,
        VfsError::NotSupported => Mountstat3::NotSupp,
        VfsError::Io => Mountstat3::Io,
        _ => Mountstat3::ServerFault,
    }
}

/// The state of the MOUNT service.
pub(crate) struct Mounts {
    core: Arc<Core>,
    table: Mutex<MountTable>,
}

impl Mounts {
    /// Creates the state with an empty list of mounts.
    pub(crate) fn new(core: Arc<Core>) -> Arc<Self> {
        Arc::new(Self { core, table: Mutex::default() })
    }
}

impl ServiceState for Mounts {
    fn core(&self) -> &Core {
        &self.core
    }
}

/// The latest mounts that clients have reported.
#[derive(Default)]
struct MountTable {
    order: VecDeque<(IpAddr, Bytes)>,
    known: BTreeSet<(IpAddr, Bytes)>,
}

impl MountTable {
    fn add(&mut self, host: IpAddr, path: &[u8]) {
        // Copy the path, because it is part of a larger receive buffer.
        let entry = (host.to_canonical(), Bytes::copy_from_slice(path));
        if !self.known.insert(entry.clone()) {
            return;
        }
        self.order.push_back(entry);
        if self.order.len() > MOUNTS_MAX {
            let oldest = self.order.pop_front().expect("full table must have an oldest entry");
            self.known.remove(&oldest);
        }
    }

    fn remove(&mut self, host: IpAddr, path: Option<&[u8]>) {
        let host = host.to_canonical();
        let gone = |entry: &(IpAddr, Bytes)| entry.0 == host && path.is_none_or(|path| entry.1 == path);
        self.order.retain(|entry| !gone(entry));
        self.known.retain(|entry| !gone(entry));
    }
}

const MOUNTS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_table_drops_the_oldest_entry() {
        let mut table = MountTable::default();
        let host = |i: usize| IpAddr::from([10, 0, (i >> 8) as u8, i as u8]);
        for i in 0..MOUNTS_MAX + 10 {
            table.add(host(i), b"/a");
            table.add(host(i), b"/a");
        }
        assert_eq!((table.order.len(), table.known.len()), (MOUNTS_MAX, MOUNTS_MAX));
        assert_eq!(table.order[0].0, host(10));

        table.add(host(20), b"/b");
        table.remove(host(20), Some(b"/a"));
        assert!(table.order.iter().any(|entry| entry.0 == host(20) && entry.1 == "/b"));
        table.remove(host(20), None);
        assert!(!table.order.iter().any(|entry| entry.0 == host(20)));
        assert_eq!(table.order.len(), table.known.len());
    }
}
