//! [`Caller`]: a user as whom operations are executed, on a mount that several users share.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use gss::{kerberos::KerberosTickets, mechanism::Tickets};
use rpc::AuthSys;

/// A user with groups, as whom operations are executed: see [`Mount::with_caller`](crate::Mount::with_caller). Clones
/// are the same caller. Two callers differ, even if they have the same user and groups.
#[derive(Clone)]
pub struct Caller(Arc<Inner>);

struct Inner {
    number: u64,
    user: AuthSys,
}

impl Caller {
    /// Creates a caller. Without AUTH_SYS, only the user ID matters.
    pub fn new(user: AuthSys) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(Inner { number: NEXT.fetch_add(1, Relaxed), user }))
    }

    /// Returns the number of the caller, which no other caller of this process has.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns `true` if there is no other clone.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns user and groups.
    pub fn user(&self) -> &AuthSys {
        &self.0.user
    }
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.number.hash(state);
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}, gid {}", self.0.user.uid, self.0.user.gid)
    }
}

/// The source of the tickets of a mount with Kerberos. The default is the credential caches of this machine. A program can
/// bring another one, for example if it keeps tickets itself.
#[derive(Clone, Debug, Default)]
pub struct TicketSource(Option<Arc<dyn Tickets>>);

impl TicketSource {
    /// Makes a source of a program's own tickets.
    pub fn new(tickets: Arc<dyn Tickets>) -> Self {
        Self(Some(tickets))
    }

    pub(crate) fn tickets(&self) -> Arc<dyn Tickets> {
        self.0.clone().unwrap_or_else(|| Arc::new(KerberosTickets))
    }
}

/// Sources are equal if they are the same one.
impl PartialEq for TicketSource {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for TicketSource {}
