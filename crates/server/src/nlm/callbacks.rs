//! What we say to other hosts without having been asked, and to programs of this one.
//!
//! Each host's programs are found by its rpcbind, at the address that the host has called from; names are not resolved. Calls come
//! from an unprivileged port, with two exceptions. Linux's lockd takes the news of a restart only from a privileged port of its
//! own host. Status monitors take NOTIFY from any port (Linux's does), but not all do where it comes from another address of the
//! server. GRANTED is said until the host confirms it, and then the lock is the
//! host's for good; who does not answer for [`GRANTED_FOR`] loses it to the next. A host is told for [`NOTIFY_FOR`] that
//! we have restarted.
//!
//! Any host can make the server call: what is on its way is bounded, and sockets with it. See [`NEWS_AT_ONCE`],
//! [`NOTIFY_AT_ONCE`] and [`Responses`](super::responses::Responses).

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use entropy::HashMap;
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
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};
use xdr::{Decode, Encode};

use super::lockd::{Destination, Lockd, Outgoing};
use crate::{call::core::ServiceState, callback_port::unprivileged, sharing::locks::WaiterId};

/// How other hosts are called. Connections from a port below 1024 are made where a peer needs them, if these transports can.
#[derive(Clone)]
pub struct CallbackTransports {
    /// TCP.
    pub tcp: Arc<dyn TransportKind>,
    /// UDP: many a status monitor has nothing else.
    pub udp: Arc<dyn TransportKind>,
}

/// Whether a call comes from a port that only root can use.
#[derive(Clone, Copy)]
enum From {
    AnyPort,
    PrivilegedPort,
}

/// Ways to call.
struct Ways {
    privileged: CallbackTransports,
    unprivileged: CallbackTransports,
}

impl Ways {
    fn new(privileged: CallbackTransports) -> Self {
        let CallbackTransports { tcp, udp } = &privileged;
        let unprivileged = CallbackTransports { tcp: unprivileged(tcp), udp: unprivileged(udp) };
        Self { privileged, unprivileged }
    }

    fn kind(&self, from: From, is_udp: bool) -> &Arc<dyn TransportKind> {
        let CallbackTransports { tcp, udp } = match from {
            From::AnyPort => &self.unprivileged,
            From::PrivilegedPort => &self.privileged,
        };
        if is_udp { udp } else { tcp }
    }

    async fn call<R: Decode>(
        &self,
        way: (From, bool),
        host: IpAddr,
        program: (u32, u32),
        procedure: u32,
        args: &impl Encode,
    ) -> Result<R, LookupError> {
        let client = self.connect(way, host, program).await?;
        let answer = client.call::<R>(procedure, args, ReplyPlan::default(), CallOptions::default()).await;
        answer.map(|answer| answer.results).map_err(|failed| LookupError::Call(failed.error))
    }

    /// Connects to a program that the host's rpcbind knows. Asking that needs no privileged port.
    async fn connect(
        &self,
        (from, is_udp): (From, bool),
        host: IpAddr,
        (program, version): (u32, u32),
    ) -> Result<Client, LookupError> {
        let rpcbind = SocketAddr::new(host, rpcbind::PORT);
        let ask = self.kind(From::AnyPort, is_udp);
        let netid = Netid::new(ask.name(), rpcbind);
        let address = rpcbind::lookup(ask.clone(), rpcbind, program, version, &netid).await?;
        let credential = Credential::Sys(AuthSys::of_process());
        let options = ClientOptions { deadline: DEADLINE, credential, ..ClientOptions::new(program, version) };
        Ok(Client::connect(self.kind(from, is_udp).clone(), address, options).await?)
    }
}

/// Says what is to be said, until the server ends.
pub(crate) async fn run(lockd: Arc<Lockd>, transports: CallbackTransports) {
    let Some(mut queue) = lockd.take_queue() else { return };
    let (ways, notify) = (Ways::new(transports), Semaphore::new(NOTIFY_AT_ONCE));
    let callbacks = Arc::new(Callbacks { lockd: lockd.clone(), ways, clients: Mutex::default(), notify });
    let mut tasks = JoinSet::new();
    tasks.spawn(callbacks.clone().pass_on());
    loop {
        tokio::select! {
            biased;
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            () = lockd.core().locks.granted() => lockd.collect_grants(),
            said = queue.recv() => match said {
                Some(said) => drop(tasks.spawn(callbacks.clone().say(said))),
                None => return,
            },
        }
    }
}

struct Callbacks {
    lockd: Arc<Lockd>,
    ways: Ways,
    /// Connections to lock managers that have lately been called.
    clients: Mutex<HashMap<Destination, Arc<tokio::sync::Mutex<Option<Client>>>>>,
    /// Taken while a status monitor is called.
    notify: Semaphore,
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
        }
    }

    /// Tells a host that its request is granted.
    async fn grant(&self, id: WaiterId) {
        let until = Instant::now() + GRANTED_FOR;
        let mut pause = PAUSE_MIN;
        // There is nothing to say any more when the host has asked again meanwhile, or has gone.
        while let Some((to, args)) = self.lockd.granted(id) {
            let said = self.call_nlm::<nlm::Res>(&to, NlmProc4::Granted, &args).await;
            match said {
                Ok(res) if res.status == Nlm4Stats::Granted => {
                    tracing::debug!(host = %to.address, "a host has the lock that it waited for");
                    return self.lockd.settle_granted(id, true);
                }
                Ok(res) if res.status != Nlm4Stats::DeniedGracePeriod => {
                    tracing::debug!(host = %to.address, status = ?res.status, "a lock that was granted is not wanted any more");
                    return self.lockd.settle_granted(id, false);
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(host = %to.address, %error, "a host does not learn that it has a lock"),
            }
            if Instant::now() + pause > until {
                tracing::warn!(host = %to.address, "a host did not learn that it has a lock: the next one gets it");
                return self.lockd.settle_granted(id, false);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Tells programs on this host that others have restarted, until the server ends.
    async fn pass_on(self: Arc<Self>) {
        let mut tasks = JoinSet::new();
        loop {
            let (my_id, status) = self.lockd.news.next().await;
            let callbacks = self.clone();
            tasks.spawn(async move { callbacks.news(&my_id, &status).await });
            sleep(NEWS_PAUSE).await;
            while tasks.try_join_next().is_some() {}
            while tasks.len() >= NEWS_AT_ONCE {
                tasks.join_next().await;
            }
        }
    }

    /// Tells a host that we have restarted.
    async fn restarted(&self, to: &Destination) {
        let (name, state) = self.lockd.identity();
        let args = nsm::StatChge { mon_name: name.clone().into(), state };
        let until = Instant::now() + NOTIFY_FOR;
        let mut pause = PAUSE_MIN;
        loop {
            let mut failed = None;
            let calling = self.notify.acquire().await.expect("it is never closed");
            // Every status monitor has UDP; a firewall may let only TCP through.
            for is_udp in [true, false] {
                let (way, program) = ((From::PrivilegedPort, is_udp), (nsm::SM_PROGRAM, nsm::VERSION));
                match self.ways.call::<()>(way, to.address, program, SmProc::Notify as u32, &args).await {
                    Ok(()) => return tracing::info!(host = %to.address, "a host knows that we have restarted"),
                    Err(error) => failed = Some(error),
                }
            }
            drop(calling);
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
        // Any user of this host can ask for the news, at whatever program: the lock manager alone is trusted with the port.
        let from = if my_id.my_prog == nlm::NLM_PROGRAM { From::PrivilegedPort } else { From::AnyPort };
        for is_udp in [true, false] {
            let (way, program) = ((from, is_udp), (my_id.my_prog, my_id.my_vers));
            match self.ways.call::<()>(way, Ipv4Addr::LOCALHOST.into(), program, my_id.my_proc, status).await {
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
                    let (way, program) = ((From::AnyPort, to.lossy), (nlm::NLM_PROGRAM, nlm::VERSION));
                    let new = self.ways.connect(way, to.address, program).await?;
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
/// Programs of this host that are told of a restart at the same time.
const NEWS_AT_ONCE: usize = 8;
/// Between one such call and the next.
const NEWS_PAUSE: Duration = Duration::from_millis(10);
/// Hosts that are told of our restart at the same time.
const NOTIFY_AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use rpc::{TcpKind, UdpKind};

    use super::*;
    use crate::{
        blocking::BlockingOptions,
        call::core::Core,
        export::Exports,
        handle::HandleKey,
        recovery::{MonitoredHost, Recovery},
    };

    #[test]
    fn a_host_is_told_of_a_restart_once_for_all_its_names() {
        let recovery = Recovery::in_memory();
        for (address, name) in [("192.0.2.1", "a"), ("192.0.2.1", "b"), ("192.0.2.1", "c"), ("192.0.2.2", "a")] {
            let (address, name) = (address.parse().unwrap(), Bytes::from_static(name.as_bytes()));
            recovery.add_host(&MonitoredHost { address, name, state: 1 }, []).unwrap();
        }
        let options = (BlockingOptions::default(), Duration::from_secs(90));
        let core = Core::new(Exports::new(), HandleKey::random(), recovery, options, None);
        let lockd = Lockd::start(core).unwrap();
        let mut queue = lockd.take_queue().unwrap();
        let mut hosts: Vec<_> = std::iter::from_fn(|| queue.try_recv().ok())
            .map(|said| match said {
                Outgoing::Restarted(to) => to.address.to_string(),
                _ => panic!("nothing else is to be said"),
            })
            .collect();
        hosts.sort();
        assert_eq!(hosts, ["192.0.2.1", "192.0.2.2"]);
    }

    /// A lock manager is called from an unprivileged port, a status monitor from a privileged one where that can be had.
    #[tokio::test]
    async fn ports_are_privileged_only_where_a_peer_needs_that() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ways =
            Ways::new(CallbackTransports { tcp: Arc::new(TcpKind::default()), udp: Arc::new(UdpKind::default()) });
        for (from, is_privileged) in
            [(From::AnyPort, false), (From::PrivilegedPort, rustix::process::geteuid().is_root())]
        {
            let _connection = ways.kind(from, false).connect(address).await.unwrap();
            assert_eq!(listener.accept().unwrap().1.port() < 1024, is_privileged);
        }
        assert_eq!(ways.kind(From::AnyPort, true).name(), "udp");
    }
}
