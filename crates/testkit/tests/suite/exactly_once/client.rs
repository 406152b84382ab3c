//! A client: sessions and slots by the rules of RFC 8881 §2.10.6, retransmission until the server answers, and recovery
//! by §8.4.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use nfs::v4::{compound::*, *};
use parking_lot::Mutex;
use rand::Rng;
use rpc::ConnectionId;
use tokio::{sync::mpsc, time::timeout};

use super::{
    work::{Locker, Worker},
    world::World,
};

/// A client.
pub struct Client {
    /// The world of the client.
    pub world: Arc<World>,
    /// The index of the client.
    pub number: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    incarnation: u64,
    clientid: Clientid4,
    session: Sessionid4,
    sequences: [u32; SLOTS],
    connection: Option<ConnectionId>,
    /// `true` if the client must restart and forget everything.
    reboot: bool,
}

/// The session does not exist any more.
#[derive(Debug)]
pub struct SessionLost;

impl Client {
    /// Creates a client that has not called yet.
    pub fn new(world: &Arc<World>, number: usize) -> Self {
        Self { world: world.clone(), number, inner: Mutex::default() }
    }

    /// Does all of the client's work.
    pub async fn run(&self) {
        let mut workers: [Worker; 2] = std::array::from_fn(|number| Worker::new(self, number));
        let mut locker = Locker::default();
        let [first, second] = &mut workers;
        loop {
            if self.begin(&mut locker).await.is_err() {
                continue;
            }
            let worked = tokio::join!(first.run(self), second.run(self), locker.run(self));
            if let (Ok(()), Ok(()), Ok(())) = worked {
                return;
            }
        }
    }

    /// Makes the client forget everything when it next uses its session.
    pub fn reboot(&self) {
        self.inner.lock().reboot = true;
    }

    /// Registers at the server, and reclaims its state if the server has restarted.
    async fn begin(&self, locker: &mut Locker) -> Result<(), SessionLost> {
        if std::mem::take(&mut self.inner.lock().reboot) {
            self.inner.lock().incarnation += 1;
            *locker = locker.after_reboot();
            self.world.judge(|judge, at| judge.reboots(at, self.number));
        }
        let known = self.exchange_id().await;
        let is_new = known.clientid != self.inner.lock().clientid;
        let create = self.alone(create_session(&known)).await;
        let Resop4::CreateSession(Res4::Ok(made)) = create else {
            if create.status() != Nfsstat4::StaleClientid {
                self.fail(format!("CREATE_SESSION: {}", create.status().name()));
            }
            return Err(SessionLost);
        };
        if is_new {
            self.world.judge(|judge, at| judge.begins(at, self.number, known.clientid.0));
        }
        {
            let mut inner = self.inner.lock();
            (inner.clientid, inner.session, inner.sequences) = (known.clientid, made.sessionid, [0; SLOTS]);
        }
        if is_new {
            locker.reclaim(self).await?;
            self.complete().await?;
        }
        Ok(())
    }

    /// Sends RECLAIM_COMPLETE.
    async fn complete(&self) -> Result<(), SessionLost> {
        let complete = Argop4::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });
        let mut delayed = false;
        loop {
            match self.call(0, vec![complete.clone()]).await?.0 {
                Nfsstat4::Ok => return Ok(()),
                // The first attempt could not be stored.
                Nfsstat4::CompleteAlready if delayed => return Ok(()),
                Nfsstat4::Delay => delayed = true,
                other => {
                    self.fail(format!("RECLAIM_COMPLETE: {} for NFS4_OK", other.name()));
                    return Ok(());
                }
            }
            self.world.wait(500).await;
        }
    }

    async fn exchange_id(&self) -> ExchangeIdOk {
        loop {
            let incarnation = self.inner.lock().incarnation;
            let exchange = Argop4::ExchangeId(Box::new(ExchangeIdArgs {
                clientowner: ClientOwner4 {
                    verifier: incarnation.to_be_bytes(),
                    ownerid: format!("client {}", self.number).as_str().into(),
                },
                flags: 0,
                state_protect: StateProtect4A::None,
                client_impl_id: None,
            }));
            match self.alone(exchange).await {
                Resop4::ExchangeId(Res4::Ok(known)) => return *known,
                other => self.fail(format!("EXCHANGE_ID: {}", other.status().name())),
            }
        }
    }

    /// Returns the result of an operation without a session.
    async fn alone(&self, operation: Argop4) -> Resop4 {
        let args = self.compound(vec![operation]);
        loop {
            let (mut results, _) = self.exchange(&args).await;
            if let Some(result) = results.resarray.pop() {
                return result;
            }
        }
    }

    /// Executes operations after SEQUENCE, and returns the status and the results. No other call may use the slot.
    ///
    /// # Errors
    /// The session is lost, and it is unknown whether the operations were executed.
    pub async fn call(&self, slot: usize, operations: Vec<Argop4>) -> Result<(Nfsstat4, Vec<Resop4>), SessionLost> {
        let sequence = {
            let mut inner = self.inner.lock();
            if inner.reboot {
                return Err(SessionLost);
            }
            inner.sequences[slot] += 1;
            SequenceArgs {
                sessionid: inner.session,
                sequenceid: Sequenceid4(inner.sequences[slot]),
                slotid: Slotid4(slot as u32),
                highest_slotid: Slotid4(SLOTS as u32 - 1),
                cachethis: true,
            }
        };
        let args = self.compound([vec![Argop4::Sequence(sequence)], operations].concat());
        loop {
            let (CompoundRes { status, mut resarray, .. }, sent) = self.exchange(&args).await;
            if self.inner.lock().reboot {
                return Err(SessionLost);
            }
            match resarray.first() {
                Some(Resop4::Sequence(Res4::Ok(ok))) => {
                    let of = (ok.sessionid, ok.slotid, ok.sequenceid);
                    if of != (sequence.sessionid, sequence.slotid, sequence.sequenceid) {
                        self.fail(format!("slot {slot} got the reply of {of:?}"));
                    }
                    let tag = super::judge::tag_of(&args.tag.0);
                    self.world.judge(|judge, at| judge.received(at, self.number, tag, sent));
                    resarray.remove(0);
                    return Ok((status, resarray));
                }
                Some(Resop4::Sequence(Res4::Fail(Nfsstat4::BadSession))) => return Err(SessionLost),
                Some(Resop4::Sequence(Res4::Fail(Nfsstat4::Delay))) => self.world.wait(20).await,
                other => {
                    self.fail(format!("SEQUENCE in slot {slot}: {:?}", other.map(Resop4::status)));
                    return Err(SessionLost);
                }
            }
        }
    }

    fn compound(&self, argarray: Vec<Argop4>) -> Arc<CompoundArgs> {
        let tag = Bytes::copy_from_slice(&self.world.next_request().to_be_bytes());
        Arc::new(CompoundArgs { tag: tag.into(), minorversion: 1, argarray })
    }

    /// Retransmits a request until the server answers. Returns the results, and the time of the transmission that was
    /// answered.
    async fn exchange(&self, args: &Arc<CompoundArgs>) -> (CompoundRes, Duration) {
        let mut pause = 50;
        loop {
            let connection = self.connection();
            let (sender, mut replies) = mpsc::unbounded_channel();
            let sent = self.world.now();
            self.world.send(connection, args, &sender);
            drop(sender);
            let patience = self.world.random(|rng| rng.random_range(50..400));
            if let Ok(Some(results)) = timeout(Duration::from_millis(patience), replies.recv()).await {
                if results.tag != args.tag {
                    self.fail("a request got the reply of another".into());
                }
                return (results, sent);
            }
            // §2.10.6.2: a request must not be retransmitted over the same connection.
            self.world.cut(connection);
            self.world.wait(self.world.random(|rng| rng.random_range(1..pause))).await;
            pause = (pause * 2).min(1000);
        }
    }

    fn connection(&self) -> ConnectionId {
        let mut inner = self.inner.lock();
        match inner.connection {
            Some(connection) if self.world.is_up(connection) => connection,
            _ => *inner.connection.insert(self.world.connect(self.number)),
        }
    }

    /// Reports a violation.
    pub fn fail(&self, what: String) {
        self.world.judge(|judge, at| judge.fail(at, format!("client {}: {what}", self.number)));
    }
}

fn create_session(known: &ExchangeIdOk) -> Argop4 {
    Argop4::CreateSession(Box::new(CreateSessionArgs {
        clientid: known.clientid,
        sequence: known.sequenceid,
        flags: 0,
        fore_chan_attrs: CHANNEL,
        back_chan_attrs: CHANNEL,
        cb_program: 0x4000_0000,
        sec_parms: Default::default(),
    }))
}

/// One slot for each worker, and one for the locks.
pub const SLOTS: usize = 3;
const CHANNEL: ChannelAttrs4 = ChannelAttrs4 {
    headerpadsize: 0,
    maxrequestsize: 8 << 10,
    maxresponsesize: 8 << 10,
    maxresponsesize_cached: 2 << 10,
    maxoperations: 8,
    maxrequests: SLOTS as u32,
    rdma_ird: None,
};
