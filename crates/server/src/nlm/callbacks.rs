//! What we say to other hosts without having been asked, and to programs of this one.
//!
//! Each host's programs are found by its rpcbind. GRANTED is said until the host confirms it, and then the lock is the
//! host's for good; who does not answer for [`GRANTED_FOR`] loses it to the next. A host is told for [`NOTIFY_FOR`] that
//! we have restarted.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use nfs::{
    nlm::{self, Nlm4Stats, NlmProc4},
    nsm::{self, SmProc},
};
use parking_lot::Mutex;
use rpc::{
    AuthSys, CallOptions, Client, ClientOptions, Credential, ReplyPlan, TransportKind,
    rpcbind::{self, LookupError, Netid},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use xdr::{Decode, Encode};

use super::lockd::{Destination, Outgoing};
use crate::{context::Shared, locks::WaiterId};

/// How other hosts are called.
#[derive(Clone)]
pub struct CallbackTransports {
    /// TCP.
    pub tcp: Arc<dyn TransportKind>,
    /// UDP: many a status monitor has nothing else.
    pub udp: Arc<dyn TransportKind>,
}

/// Says what is to be said, until the server ends.
pub(crate) async fn run(shared: Arc<Shared>, transports: CallbackTransports) {
    let Some(mut queue) = shared.lockd.take_queue() else { return };
    let callbacks = Arc::new(Callbacks { shared: shared.clone(), transports, clients: Mutex::default() });
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            said = queue.recv() => match said {
                Some(said) => drop(tasks.spawn(callbacks.clone().say(said))),
                None => return,
            },
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
        }
    }
}

struct Callbacks {
    shared: Arc<Shared>,
    transports: CallbackTransports,
    /// Connections to lock managers that have lately been called.
    clients: Mutex<HashMap<Destination, Arc<tokio::sync::Mutex<Option<Client>>>>>,
}

impl Callbacks {
    async fn say(self: Arc<Self>, what: Outgoing) {
        match what {
            Outgoing::Granted(id) => self.grant(id).await,
            Outgoing::Response { to, procedure, results, .. } => {
                let said = self.call_nlm::<()>(&to, procedure, &Raw(results)).await;
                if let Err(error) = said {
                    tracing::debug!(host = %to.address, %error, procedure = procedure.name(), "not said");
                }
            }
            Outgoing::Restarted(to) => self.restarted(&to).await,
            Outgoing::News { my_id, status } => self.news(&my_id, &status).await,
        }
    }

    /// Tells a host that its request is granted.
    async fn grant(&self, id: WaiterId) {
        let until = Instant::now() + GRANTED_FOR;
        let mut pause = PAUSE_MIN;
        // There is nothing to say any more when the host has asked again meanwhile, or has gone.
        while let Some((to, args)) = self.shared.lockd.granted(id) {
            let said = self.call_nlm::<nlm::Res>(&to, NlmProc4::Granted, &args).await;
            match said {
                Ok(res) if res.status == Nlm4Stats::Granted => {
                    tracing::debug!(host = %to.address, "a host has the lock that it waited for");
                    return self.shared.lockd.settle_granted(id, true);
                }
                Ok(res) if res.status != Nlm4Stats::DeniedGracePeriod => {
                    tracing::debug!(host = %to.address, status = ?res.status, "a lock that was granted is not wanted any more");
                    return self.shared.lockd.settle_granted(id, false);
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(host = %to.address, %error, "a host does not learn that it has a lock"),
            }
            if Instant::now() + pause > until {
                tracing::warn!(host = %to.address, "a host did not learn that it has a lock: the next one gets it");
                return self.shared.lockd.settle_granted(id, false);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Tells a host that we have restarted.
    async fn restarted(&self, to: &Destination) {
        let (name, state) = self.shared.lockd.identity();
        let args = nsm::StatChge { mon_name: name.clone().into(), state };
        let until = Instant::now() + NOTIFY_FOR;
        let mut pause = PAUSE_MIN;
        loop {
            let mut failed = None;
            // Every status monitor has UDP; a firewall may let only TCP through.
            for kind in [&self.transports.udp, &self.transports.tcp] {
                let program = (nsm::SM_PROGRAM, nsm::VERSION);
                match call::<()>(kind, to.address, program, SmProc::Notify as u32, &args).await {
                    Ok(()) => return tracing::info!(host = %to.address, "a host knows that we have restarted"),
                    Err(error) => failed = Some(error),
                }
            }
            let error = failed.expect("both have failed");
            if Instant::now() + pause > until {
                return tracing::warn!(host = %to.address, %error, "a host does not learn that we have restarted");
            }
            tracing::debug!(host = %to.address, %error, "a host does not yet know that we have restarted");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Tells a program on this host that another host has restarted.
    async fn news(&self, my_id: &nsm::MyId, status: &nsm::Status) {
        for kind in [&self.transports.udp, &self.transports.tcp] {
            let program = (my_id.my_prog, my_id.my_vers);
            match call::<()>(kind, IpAddr::V4(Ipv4Addr::LOCALHOST), program, my_id.my_proc, status).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(program = my_id.my_prog, %error, "a program does not learn of a restart"),
            }
        }
    }

    /// Calls a host's lock manager, on the connection that there is, or on a new one.
    async fn call_nlm<R: Decode>(
        &self,
        to: &Destination,
        procedure: NlmProc4,
        args: &(impl Encode + Sync),
    ) -> Result<R, LookupError> {
        let place = {
            let mut clients = self.clients.lock();
            if clients.len() >= CLIENTS_MAX && !clients.contains_key(to) {
                clients.clear();
            }
            clients.entry(to.clone()).or_default().clone()
        };
        let client = {
            let mut client = place.lock().await;
            match &*client {
                Some(client) => client.clone(),
                None => {
                    let kind = if to.lossy { &self.transports.udp } else { &self.transports.tcp };
                    let new = connect(kind, to.address, (nlm::NLM_PROGRAM, nlm::VERSION)).await?;
                    client.insert(new).clone()
                }
            }
        };
        let answer = client.call::<R>(procedure as u32, args, ReplyPlan::default(), CallOptions::default()).await;
        match answer {
            Ok(answer) => Ok(answer.results),
            Err(failed) => {
                // It may have moved to another port.
                place.lock().await.take();
                Err(LookupError::Call(failed.error))
            }
        }
    }
}

async fn call<R: Decode>(
    kind: &Arc<dyn TransportKind>,
    host: IpAddr,
    program: (u32, u32),
    procedure: u32,
    args: &impl Encode,
) -> Result<R, LookupError> {
    let client = connect(kind, host, program).await?;
    let answer = client.call::<R>(procedure, args, ReplyPlan::default(), CallOptions::default()).await;
    answer.map(|answer| answer.results).map_err(|failed| LookupError::Call(failed.error))
}

/// Connects to a program that the host's rpcbind knows.
async fn connect(
    kind: &Arc<dyn TransportKind>,
    host: IpAddr,
    (program, version): (u32, u32),
) -> Result<Client, LookupError> {
    let rpcbind = SocketAddr::new(host, rpcbind::PORT);
    let netid = Netid::new(kind.name(), rpcbind);
    let address = rpcbind::lookup(kind.clone(), rpcbind, program, version, &netid).await?;
    let credential = Credential::Sys(AuthSys::of_process());
    let options = ClientOptions { deadline: DEADLINE, credential, ..ClientOptions::new(program, version) };
    Ok(Client::connect(kind.clone(), address, options).await?)
}

/// What is encoded already.
struct Raw(Bytes);

impl Encode for Raw {
    fn encode(&self, encoder: &mut xdr::Encoder) {
        self.0.chunks_exact(4).for_each(|word| encoder.u32(u32::from_be_bytes(word.try_into().expect("four bytes"))));
    }
}

/// How long a host may take to confirm a lock for which it waited.
const GRANTED_FOR: Duration = Duration::from_secs(60);
/// How long a host is told that we have restarted, as Linux's sm-notify does.
const NOTIFY_FOR: Duration = Duration::from_secs(15 * 60);
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_secs(10);
const CLIENTS_MAX: usize = 1024;
