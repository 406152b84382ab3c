//! NLM version 4, the lock manager of NFSv3: X/Open "Protocols for Interworking: XNFS" (C702) chapter 14.
//!
//! Locks are in [`locks`](crate::sharing::locks), which all protocols share. A host is stored in the recovery database
//! before it gets its first lock (`hosts.rs`, [`recovery`](crate::recovery)). So it is notified when this server has
//! restarted, and can reclaim its locks. Calls from the server to hosts (GRANTED, results of `_MSG` procedures,
//! SM_NOTIFY) are in `callbacks.rs`.

pub(crate) mod callbacks;
mod hosts;
pub(crate) mod lockd;
mod notices;
mod procedures;
mod responses;

use std::{ops::RangeInclusive, sync::Arc};

use nfs::nlm::{NLM_PROGRAM, NlmProc4, VERSION};
use rpc::{AcceptError, Answering, Call, Procedure, Service};

use self::lockd::Lockd;
use crate::call::exec::{self, Null};

/// The NLM program, version 4.
pub struct Nlm4 {
    shared: Arc<Lockd>,
}

impl Nlm4 {
    pub(crate) fn new(shared: Arc<Lockd>) -> Self {
        Self { shared }
    }
}

impl Service for Nlm4 {
    fn program(&self) -> u32 {
        NLM_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        let procedure = NlmProc4::from_number(procedure)?;
        // A delayed duplicate of a LOCK must not lock again a range that has been unlocked since.
        let idempotent = matches!(procedure, NlmProc4::Null | NlmProc4::Test);
        Some(Procedure { name: procedure.name(), idempotent })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        let shared = &self.shared;
        match NlmProc4::from_number(call.procedure) {
            None => Answering::Ready(Err(AcceptError::SystemErr)),
            Some(NlmProc4::Null) => exec::run::<Null<_>>(shared, call),
            Some(NlmProc4::Test) => exec::run::<procedures::Test>(shared, call),
            Some(NlmProc4::Lock) => exec::run::<procedures::Lock>(shared, call),
            Some(NlmProc4::Cancel) => exec::run::<procedures::Cancel>(shared, call),
            Some(NlmProc4::Unlock) => exec::run::<procedures::Unlock>(shared, call),
            Some(NlmProc4::Granted) => exec::run::<procedures::Granted>(shared, call),
            Some(NlmProc4::TestMsg) => exec::run::<procedures::TestMsg>(shared, call),
            Some(NlmProc4::LockMsg) => exec::run::<procedures::LockMsg>(shared, call),
            Some(NlmProc4::CancelMsg) => exec::run::<procedures::CancelMsg>(shared, call),
            Some(NlmProc4::UnlockMsg) => exec::run::<procedures::UnlockMsg>(shared, call),
            Some(NlmProc4::GrantedMsg) => exec::run::<procedures::GrantedMsg>(shared, call),
            Some(NlmProc4::TestRes) => exec::run::<procedures::Unexpected<nfs::nlm::TestRes>>(shared, call),
            Some(NlmProc4::LockRes | NlmProc4::CancelRes | NlmProc4::UnlockRes | NlmProc4::GrantedRes) => {
                exec::run::<procedures::Unexpected<nfs::nlm::Res>>(shared, call)
            }
            Some(NlmProc4::Share) => exec::run::<procedures::Share>(shared, call),
            Some(NlmProc4::Unshare) => exec::run::<procedures::Unshare>(shared, call),
            Some(NlmProc4::NmLock) => exec::run::<procedures::NmLock>(shared, call),
            Some(NlmProc4::FreeAll) => exec::run::<procedures::FreeAll>(shared, call),
        }
    }
}
