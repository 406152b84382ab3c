//! Lists clients and the state that they hold, page by page.

use std::{
    io,
    time::{Duration, Instant},
};

use nfs::v4::Clientid4;
use vfs::{Caller, Cred, Handle, Vfs, VfsError, layout::LayoutModes};

use super::{Admin, ClientName, ClientRecord, ConnectionRecord, FileRecord, Record, unknown};
use crate::{
    call::core::ServiceState,
    export::Export,
    handle::FileId,
    nlm::lockd,
    sharing::locks::{Held, LockClient, LockKind, Owner, Range},
    v4::state::recallable::{Delegation, Grant},
};

/// Writes records to the administrator.
type Emit<'a> = dyn FnMut(&Record) -> io::Result<()> + 'a;

impl Admin {
    /// Emits the records of all clients, or of one. Returns an error message for the administrator if there is no such
    /// client.
    ///
    /// # Errors
    /// Returns the errors of `emit`.
    pub(super) fn list(&self, client: Option<ClientName>, emit: &mut Emit<'_>) -> io::Result<Option<String>> {
        let clients = match client {
            Some(ClientName(client)) => vec![client],
            None => self.clients(),
        };
        self.silent.lock().clear();
        let mut found = client.is_none();
        for client in clients {
            let record = match client {
                LockClient::V4(id) => self.v4_client(Clientid4(id)),
                LockClient::Nlm(id) => self.nlm_client(id),
            };
            // The client can have gone since the list was made.
            let Some(record) = record else { continue };
            found = true;
            emit(&Record::Client(record))?;
            if let LockClient::V4(id) = client {
                self.sessions(Clientid4(id)).iter().try_for_each(&mut *emit)?;
            }
            self.held(client, emit)?;
            if let LockClient::V4(id) = client {
                self.delegations(Clientid4(id), emit)?;
            }
        }
        Ok(client.filter(|_| !found).map(|ClientName(client)| unknown(client)))
    }

    fn clients(&self) -> Vec<LockClient> {
        let mut all: Vec<_> =
            self.v4.with_state(|state| state.clients().iter().map(|(id, _)| LockClient::V4(id.0)).collect());
        all.extend(self.lockd.holders().into_iter().map(LockClient::Nlm));
        all.sort_unstable();
        all
    }

    fn v4_client(&self, id: Clientid4) -> Option<ClientRecord> {
        let now = Instant::now();
        self.v4.with_state(|state| {
            let expired = state.clients().is_expired(id, now);
            let client = state.clients().find(id)?;
            let minor = if client.legacy.is_some() { 0 } else { client.minorversion };
            let implementation = client.implementation.as_ref();
            let location = client.legacy.as_ref().map(|legacy| &legacy.callback.cb_location);
            Some(ClientRecord {
                client: ClientName(LockClient::V4(id.0)),
                protocol: format!("4.{minor}"),
                name: text(&client.owner.ownerid),
                implementation: implementation.map(|implementation| text(&implementation.name)),
                address: location.map(|location| format!("{}:{}", text(&location.netid), text(&location.addr))),
                confirmed: client.confirmed,
                silent_s: Some(client.silent(now).as_secs()),
                expired,
                stored: client.is_stored(),
            })
        })
    }

    fn nlm_client(&self, id: u32) -> Option<ClientRecord> {
        let (address, name, stored) = self.lockd.host(id)?;
        Some(ClientRecord {
            client: ClientName(LockClient::Nlm(id)),
            protocol: "nlm4".to_owned(),
            name: text(&name),
            implementation: None,
            address: Some(address.to_string()),
            confirmed: true,
            silent_s: None,
            expired: false,
            stored,
        })
    }

    fn sessions(&self, id: Clientid4) -> Vec<Record> {
        let sessions: Vec<_> = self.v4.with_state(|state| {
            let sessions = state.sessions_of(id).map(|session| {
                let back: Vec<_> = session.backchannel().collect();
                let bound = session.connections().map(|connection| (connection, back.contains(&connection)));
                (session.id, session.fore.maxrequests, bound.collect::<Vec<_>>())
            });
            sessions.collect()
        });
        let record = |(name, slots, bound): (nfs::v4::Sessionid4, u32, Vec<(rpc::ConnectionId, bool)>)| {
            let connection = |(id, callbacks)| {
                let (transport, address) = self.v4.callbacks().peer(id)?;
                Some(ConnectionRecord { transport: transport.to_owned(), address: address.to_string(), callbacks })
            };
            Record::Session {
                client: ClientName(LockClient::V4(id.0)),
                session: name.0.iter().map(|byte| format!("{byte:02x}")).collect(),
                slots,
                connections: bound.into_iter().filter_map(connection).collect(),
            }
        };
        sessions.into_iter().map(record).collect()
    }

    /// Emits the opens and locks of a client.
    fn held(&self, client: LockClient, emit: &mut Emit<'_>) -> io::Result<()> {
        let mut end = None;
        loop {
            let (page, next) = self.lockd.core().locks.with_table(|table| table.held_by(client, end, PAGE));
            for held in &page {
                self.records(client, held).iter().try_for_each(&mut *emit)?;
            }
            match next {
                Some(_) => end = next,
                None => return Ok(()),
            }
        }
    }

    fn records(&self, client: LockClient, held: &Held<FileId>) -> Vec<Record> {
        let (client, file, owner) = (ClientName(client), self.file(&held.file), owner(&held.owner));
        let open = held.share.map(|share| Record::Open {
            client,
            file: file.clone(),
            owner: owner.clone(),
            read: share.read,
            write: share.write,
            deny_read: share.deny_read,
            deny_write: share.deny_write,
        });
        let lock = |waiting| {
            let (file, owner) = (file.clone(), owner.clone());
            move |&(range, kind): &(Range, LockKind)| Record::Lock {
                client,
                file: file.clone(),
                owner: owner.clone(),
                exclusive: kind == LockKind::Exclusive,
                start: range.first(),
                length: range.length(),
                waiting,
            }
        };
        let locks = held.ranges.iter().map(lock(false)).chain(held.waiting.iter().map(lock(true)));
        open.into_iter().chain(locks).collect()
    }

    fn delegations(&self, id: Clientid4, emit: &mut Emit<'_>) -> io::Result<()> {
        let mut end = None;
        loop {
            let (page, next) = self.v4.with_state(|state| state.recallables_of(id, end, STATEIDS));
            for (file, held) in &page {
                let (client, file) = (ClientName(LockClient::V4(id.0)), self.file(file));
                let recalled = held.is_recalled();
                emit(&match &held.grant {
                    Grant::Delegation(Delegation { write, .. }) => {
                        Record::Delegation { client, file, write: *write, recalled }
                    }
                    Grant::Layout(layout) => {
                        let LayoutModes { read, write } = layout.granted();
                        Record::Layout { client, file, read, write, recalled }
                    }
                })?;
            }
            match next {
                Some(_) => end = next,
                None => return Ok(()),
            }
        }
    }

    fn file(&self, (export, handle): &FileId) -> FileRecord {
        let Some(export) = self.lockd.core().exports.find(*export) else {
            return FileRecord { export: String::new(), fileid: None };
        };
        FileRecord { export: text(export.name()), fileid: self.fileid(export, handle) }
    }

    /// Returns the file number of an object, or `None` if its export has not answered in time during this listing.
    fn fileid(&self, export: &Export, handle: &Handle) -> Option<u64> {
        let ask = |vfs: &dyn Vfs, handle: &Handle, may_block| {
            vfs.getattr(&Caller { cred: &Cred::root(), may_block, completion: None }, handle).map(|attr| attr.fileid)
        };
        match ask(&**export.vfs(), handle, false) {
            Err(VfsError::WouldBlock) => {}
            known => return known.ok(),
        }
        if self.silent.lock().contains(&export.id()) {
            return None;
        }
        let (vfs, handle) = (export.vfs().clone(), handle.clone());
        let pool = self.lockd.core().pools.of(Some(export.id()));
        let answer = pool.run_with_timeout(STORAGE_TIMEOUT, move || ask(&*vfs, &handle, true).ok());
        if answer.is_none() {
            self.silent.lock().insert(export.id());
        }
        answer.flatten()
    }
}

/// Returns a printable name of the owner of a lock or an open. For NLM, it consists of the process number and the
/// opaque owner handle. For NFSv4, it is the owner's opaque name.
fn owner(owner: &Owner) -> String {
    match owner.client {
        LockClient::Nlm(_) => {
            let (svid, oh) = lockd::svid_and_oh(owner);
            format!("{svid}@{}", text(&oh))
        }
        LockClient::V4(_) => text(owner.opaque.get(1..).unwrap_or_default()),
    }
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Maximum time for which a listing waits for the storage of one export.
const STORAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of opens and locks read from the lock table at a time.
const PAGE: usize = 256;
/// Maximum number of stateids searched for delegations at a time.
const STATEIDS: usize = 4096;
