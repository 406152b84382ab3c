//! The callback program of a client that is called over its own connection.
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

/// A callback as it was received.
#[derive(Clone, Debug)]
pub struct Received {
    /// `None` in 4.0.
    pub sequence: Option<CbSequenceArgs>,
    pub operation: CbArgop4,
    pub minor: u32,
    pub ident: u32,
    pub caller: Identity,
    /// The address of the server's end of the connection.
    pub from: std::net::SocketAddr,
}

/// Records all callbacks, and answers OK unless another answer is set.
#[derive(Default)]
pub struct Back {
    pub received: Mutex<Vec<Received>>,
    /// If `true`, the next callback is recorded and then closes its connection.
    pub drop_next: AtomicBool,
    /// The status with which the next CB_SEQUENCE fails.
    pub refuse: Mutex<Option<Nfsstat4>>,
    /// If `true`, each CB_SEQUENCE fails with DELAY.
    pub busy: AtomicBool,
    /// The answers to operations after CB_SEQUENCE. Each is used until it is replaced.
    pub answers: Mutex<Vec<CbResop4>>,
    /// The operations that are never answered.
    pub silent: Mutex<Vec<CbOpnum4>>,
}

impl Back {
    /// Connects a client that can be called back.
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

    /// Sets the answer to operations of this kind.
    pub fn answer(&self, result: CbResop4) {
        let mut answers = self.answers.lock().unwrap();
        answers.retain(|other| other.opnum() != result.opnum());
        answers.push(result);
    }

    /// Waits for the first operation of a kind, and removes it from the recorded callbacks.
    pub async fn receive_operation(&self, opnum: CbOpnum4) -> CbArgop4 {
        self.receive(opnum).await.operation
    }

    /// Like [`receive_operation`](Self::receive_operation), with the whole callback.
    pub async fn receive(&self, opnum: CbOpnum4) -> Received {
        loop {
            if let Some(received) = self.take(opnum) {
                return received;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn take(&self, opnum: CbOpnum4) -> Option<Received> {
        let mut received = self.received.lock().unwrap();
        let at = received.iter().position(|received| received.operation.opnum() == opnum)?;
        Some(received.remove(at))
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
            CbArgop4::LayoutRecall(_) => CbResop4::LayoutRecall(Res4::Ok(())),
            CbArgop4::NotifyDeviceid(_) => CbResop4::NotifyDeviceid(Res4::Ok(())),
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
            let received = Received { sequence: sequence.clone(), operation, minor, ident, caller, from };
            self.received.lock().unwrap().push(received);
            if self.silent.lock().unwrap().contains(&opnum) {
                std::future::pending::<()>().await;
            }
            if self.drop_next.swap(false, SeqCst) {
                call.transport.close();
                return Err(AcceptError::Drop);
            }
            let busy = self.busy.load(SeqCst).then_some(Nfsstat4::Delay);
            if let Some(status) = busy.or_else(|| self.refuse.lock().unwrap().take()) {
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
