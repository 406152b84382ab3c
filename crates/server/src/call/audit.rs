//! The records of calls in the audit log: what an operation does to which objects ([`Action`]), and how that becomes a
//! [`Record`].

use std::fmt::Debug;

use vfs::Handle;

use super::{context::Context, core::ServiceState};
use crate::{
    audit::{
        Kind,
        record::{Event, Object, Record},
    },
    clock,
    export::{policy::Purpose, sec::Sec},
    handle::{ExportId, FileId},
};

/// An operation, as far as the audit log is concerned.
#[derive(Clone, Debug)]
pub(crate) struct Action {
    pub(crate) kind: Kind,
    pub(crate) protocol: &'static str,
    pub(crate) operation: &'static str,
    /// The access of an OPEN.
    pub(crate) access: Option<&'static str>,
    pub(crate) object: Subject,
    /// The second object of RENAME, LINK, COPY and CLONE.
    pub(crate) to: Option<Subject>,
}

/// An object of an action.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// A name in an object, or the object itself.
    Object(FileId, Option<Vec<u8>>),
    /// A path from the root of all exports.
    Path(Vec<u8>),
    /// The file handle is not valid.
    Unknown,
}

impl<S: ServiceState> Context<'_, S> {
    /// Returns `true` if an action must not be executed now, because the audit log has no room for it.
    pub(crate) fn delays(&self, action: impl FnOnce() -> Option<Action>) -> bool {
        let Some(audit) = self.core.audit.as_ref().filter(|audit| audit.delays()) else { return false };
        action().is_some_and(|action| audit.records(action.kind))
    }

    /// Records an action and its status in the audit log, if it is of a kind that is recorded. An action that the client
    /// retries is recorded only if it has `changed` something.
    pub(crate) fn record(&self, action: impl FnOnce() -> Option<Action>, status: &impl Debug, changed: bool) {
        let Some(audit) = &self.core.audit else { return };
        let Some(action) = action().filter(|action| audit.records(action.kind)) else { return };
        let result = format!("{status:?}").to_ascii_uppercase();
        // The operation has not been executed, and the client retries it.
        if !changed && RETRIED.contains(&&result[..]) {
            return;
        }
        if let (Kind::ReadData | Kind::WriteData, Subject::Object(file, _)) = (action.kind, &action.object) {
            let caller = match self.identity {
                rpc::Identity::None => (None, &[][..]),
                rpc::Identity::Sys(sys) => (Some(sys.uid), &[][..]),
                rpc::Identity::Principal(principal) => (None, &principal.name[..]),
            };
            if !audit.is_first_use(&(self.peer.ip(), caller, file, action.operation, &result), clock::now()) {
                return;
            }
        }
        let event = Event {
            peer: self.peer,
            transport: self.transport.name,
            tls: self.tls(),
            caller: self.identity,
            sec: Sec::of(self.identity).map_or("other", Sec::name),
            protocol: action.protocol,
            operation: action.operation,
            access: action.access,
            result,
        };
        let export = match &action.object {
            Subject::Object((export, _), _) => self.core.exports.find(*export).map(|export| &export.name()[..]),
            _ => None,
        };
        let to = action.to.map(|to| self.describe(to));
        audit.push(Record::line(event, export, self.describe(action.object), to), self.is_admitted());
    }

    /// Returns `true` if an export admits the caller's host.
    fn is_admitted(&self) -> bool {
        let requester = self.requester();
        self.core.exports.iter().any(|export| export.decide(&requester, Purpose::Mount).is_ok())
    }

    fn describe(&self, subject: Subject) -> Object {
        match subject {
            Subject::Object((export, handle), name) => {
                let path = self.core.exports.find(export).and_then(|export| export.vfs().path(&handle));
                Object::new(handle.as_bytes(), path.as_deref(), name.as_deref())
            }
            Subject::Path(path) => Object::of_path(&path),
            Subject::Unknown => Object::default(),
        }
    }

    /// Returns a name in the object of a file handle, or the object itself.
    pub(crate) fn subject(&self, handle: &[u8], name: Option<&[u8]>) -> Subject {
        match self.core.open(handle) {
            Ok(file) => Subject::of(file, name),
            Err(_) => Subject::Unknown,
        }
    }
}

impl Subject {
    /// Returns a name in an object, or the object itself.
    pub(crate) fn of(file: (ExportId, Handle), name: Option<&[u8]>) -> Self {
        Self::Object(file, name.map(<[u8]>::to_vec))
    }
}

/// The statuses after which a client retries an operation that was not executed.
const RETRIED: [&str; 3] = ["JUKEBOX", "DELAY", "GRACE"];
