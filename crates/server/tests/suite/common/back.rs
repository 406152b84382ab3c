//! The callback program of a client that is called over a connection of its own.
#![allow(dead_code)] // Each test file uses its part.

use std::{
    ops::RangeInclusive,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use nfs::v4::{
    callback::{CbArgop4, CbOpnum4, CbResop4, CbSequenceArgs, CbSequenceOk},
    compound::{CbCompoundArgs, CbCompoundRes},
    *,
};
use rpc::{
    AcceptError, Answering, Call, Client, ClientOptions, Credential, Identity, Procedure, Server, Service,
    TransportKind,
};
use xdr::Decode;

pub const CB_PROGRAM: u32 = 0x4000_0001;

/// A callback as it came.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Not in 4.0.
    pub sequence: Option<CbSequenceArgs>,
    pub operation: CbArgop4,
    pub minor: u32,
    pub ident: u32,
    pub caller: Identity,
    /// The server's end of the connection.
    pub from: std::net::SocketAddr,
}

/// Keeps what it is called with, and says OK to it unless it is told otherwise.
#[derive(Default)]
pub struct Back {
    pub heard: Mutex<Vec<Heard>>,
    /// The next callback is heard, and ends its connection.
    pub drop_next: AtomicBool,
    /// What the next CB_SEQUENCE fails with.
    pub refuse: Mutex<Option<Nfsstat4>>,
    /// What the operations behind it are answered with, each until it is replaced.
    pub answers: Mutex<Vec<CbResop4>>,
    /// Operations that are never answered.
    pub silent: Mutex<Vec<CbOpnum4>>,
}

impl Back {
    /// A client that can be called.
    pub async fn connect(
        self: &Arc<Self>,
        kind: &Arc<dyn TransportKind>,
        address: std::net::SocketAddr,
        credential: Credential,
    ) -> Client {
        let callbacks = Some(Server::builder().shared(self.clone()).build());
        let options = ClientOptions { callbacks, credential, ..ClientOptions::new(nfs::NFS_PROGRAM, VERSION) };
        Client::connect(kind.clone(), address, options).await.unwrap()
    }

    /// Answers operations of this kind with this from now on.
    pub fn answer(&self, result: CbResop4) {
        let mut answers = self.answers.lock().unwrap();
        answers.retain(|other| other.opnum() != result.opnum());
        answers.push(result);
    }

    /// The first operation of a kind, when it has come; it is taken out of what was heard.
    pub async fn called(&self, opnum: CbOpnum4) -> CbArgop4 {
        self.hears(opnum).await.operation
    }

    /// The same, with all that came with it.
    pub async fn hears(&self, opnum: CbOpnum4) -> Heard {
        loop {
            if let Some(heard) = self.take(opnum) {
                return heard;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn take(&self, opnum: CbOpnum4) -> Option<Heard> {
        let mut heard = self.heard.lock().unwrap();
        let at = heard.iter().position(|heard| heard.operation.opnum() == opnum)?;
        Some(heard.remove(at))
    }

    fn result(&self, operation: &CbArgop4) -> CbResop4 {
        let answers = self.answers.lock().unwrap();
        if let Some(answer) = answers.iter().find(|answer| answer.opnum() == operation.opnum()) {
            return answer.clone();
        }
        match operation {
            CbArgop4::Recall(_) => CbResop4::Recall(Res4::Ok(())),
            CbArgop4::RecallAny(_) => CbResop4::RecallAny(Res4::Ok(())),
            CbArgop4::RecallSlot(_) => CbResop4::RecallSlot(Res4::Ok(())),
            CbArgop4::NotifyLock(_) => CbResop4::NotifyLock(Res4::Ok(())),
            CbArgop4::Offload(_) => CbResop4::Offload(Res4::Ok(())),
            other => CbResop4::failure(other.opnum(), Nfsstat4::NotSupp),
        }
    }
}

impl Service for Back {
    fn program(&self) -> u32 {
        CB_PROGRAM
    }
    fn versions(&self) -> RangeInclusive<u32> {
        CALLBACK_VERSION..=CALLBACK_VERSION
    }
    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        let name = if procedure == PROC_COMPOUND { "CB_COMPOUND" } else { "CB_NULL" };
        (procedure <= PROC_COMPOUND).then_some(Procedure { name, idempotent: true })
    }
    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            if call.procedure == PROC_NULL {
                return Ok(call.reply(&()));
            }
            let CbCompoundArgs { tag, minorversion: minor, callback_ident: ident, argarray } =
                CbCompoundArgs::decode(&mut call.arguments)?;
            let (sequence, operation) = match &argarray[..] {
                [CbArgop4::Sequence(sequence), operation] if minor > 0 => (Some(sequence.clone()), operation.clone()),
                [operation] if minor == 0 => (None, operation.clone()),
                _ => panic!("{minor} {argarray:?}"),
            };
            let (result, opnum) = (self.result(&operation), operation.opnum());
            let (caller, from) = (call.caller.clone(), call.peer);
            let heard = Heard { sequence: sequence.clone(), operation, minor, ident, caller, from };
            self.heard.lock().unwrap().push(heard);
            if self.silent.lock().unwrap().contains(&opnum) {
                std::future::pending::<()>().await;
            }
            if self.drop_next.swap(false, SeqCst) {
                call.transport.close();
                return Err(AcceptError::Drop);
            }
            if let Some(status) = self.refuse.lock().unwrap().take() {
                let resarray = vec![CbResop4::Sequence(Res4::Fail(status))];
                return Ok(call.reply(&CbCompoundRes { status, tag, resarray }));
            }
            let (highest_slotid, target_highest_slotid) = (Slotid4(1), Slotid4(1));
            let sequence = sequence.map(|CbSequenceArgs { sessionid, sequenceid, slotid, .. }| CbSequenceOk {
                sessionid,
                sequenceid,
                slotid,
                highest_slotid,
                target_highest_slotid,
            });
            let status = result.status();
            let resarray = sequence.map(|ok| CbResop4::Sequence(Res4::Ok(ok))).into_iter().chain([result]).collect();
            Ok(call.reply(&CbCompoundRes { status, tag, resarray }))
        }))
    }
}
