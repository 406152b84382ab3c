//! Calls from the server to other hosts, and to programs of its own host: GRANTED, results of `_MSG` procedures, and
//! notices of restarts.
//!
//! The server finds the programs of a host through the host's rpcbind, at the address from which the host has called.
//! It does not resolve names. Calls come from an unprivileged port, with two exceptions. First, Linux's lockd accepts a
//! notice of a restart only from a privileged port of its own host. Second, status monitors accept NOTIFY from any port
//! (Linux's does), but not all do if it comes from another address of the server.
//!
//! GRANTED is repeated until the host confirms it. A host that does not confirm it within [`GRANT_TIMEOUT`] loses the
//! lock to the next request. NOTIFY about a restart of this server is repeated for [`NOTIFY_TIMEOUT`].
//!
//! Any host can make the server call it, so calls in progress and their sockets are bounded. See [`NOTICES_AT_ONCE`],
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
    sync::{Semaphore, mpsc::UnboundedReceiver},
    task::JoinSet,
    time::{Instant, sleep},
};
use xdr::{Decode, Encode};

use super::lockd::{Destination, Lockd, Outgoing};
use crate::{call::core::ServiceState, callback_port::unprivileged, sharing::locks::WaiterId};

/// The transports for calls to other hosts. Connections come from a port below 1024 where a peer requires it, if these
/// transports support that.
#[derive(Clone)]
pub struct CallbackTransports {
    /// TCP.
    pub tcp: Arc<dyn TransportKind>,
    /// UDP, because many status monitors support nothing else.
    pub udp: Arc<dyn TransportKind>,
}

/// The source port of a call.
#[derive(Clone, Copy)]
enum SourcePort {
    Any,
    Privileged,
}

/// The callback transports, with and without privileged source ports.
struct Transports {
    privileged: CallbackTransports,
    unprivileged: CallbackTransports,
}

impl Transports {
    fn new(privileged: CallbackTransports) -> Self {
        let CallbackTransports { tcp, udp } = &privileged;
        let unprivileged = CallbackTransports { tcp: unprivileged(tcp), udp: unprivileged(udp) };
        Self { privileged, unprivileged }
    }

    fn kind(&self, port: SourcePort, is_udp: bool) -> &Arc<dyn TransportKind> {
        let CallbackTransports { tcp, udp } = match port {
            SourcePort::Any => &self.unprivileged,
            SourcePort::Privileged => &self.privileged,
        };
        if is_udp { udp } else { tcp }
    }

    async fn call<R: Decode>(
        &self,
        transport: (SourcePort, bool),
        host: IpAddr,
        program: (u32, u32),
        procedure: u32,
        args: &impl Encode,
    ) -> Result<R, LookupError> {
        let client = self.connect(transport, host, program).await?;
        let answer = client.call::<R>(procedure, args, ReplyPlan::default(), CallOptions::default()).await;
        answer.map(|answer| answer.results).map_err(|failed| LookupError::Call(failed.error))
    }

    /// Connects to a program whose address the host's rpcbind knows. The request to rpcbind needs no privileged port.
    async fn connect(
        &self,
        (port, is_udp): (SourcePort, bool),
        host: IpAddr,
        (program, version): (u32, u32),
    ) -> Result<Client, LookupError> {
        let rpcbind = SocketAddr::new(host, rpcbind::PORT);
        let ask = self.kind(SourcePort::Any, is_udp);
        let netid = Netid::new(ask.name(), rpcbind);
        let address = rpcbind::lookup(ask.clone(), rpcbind, program, version, &netid).await?;
        let credential = Credential::Sys(AuthSys::of_process());
        let options = ClientOptions { deadline: DEADLINE, credential, ..ClientOptions::new(program, version) };
        Ok(Client::connect(self.kind(port, is_udp).clone(), address, options).await?)
    }
}

/// Sends queued callbacks until the server ends.
pub(crate) fn run(lockd: Arc<Lockd>, transports: CallbackTransports) -> impl Future<Output = ()> + Send + 'static {
    // Requests wait for locks from now on, and not only once the task runs.
    let queue = lockd.take_queue();
    async move {
        if let Some(queue) = queue {
            make_calls(lockd, transports, queue).await;
        }
    }
}

async fn make_calls(lockd: Arc<Lockd>, transports: CallbackTransports, mut queue: UnboundedReceiver<Outgoing>) {
    let (transports, notify) = (Transports::new(transports), Semaphore::new(NOTIFY_AT_ONCE));
    let callbacks = Arc::new(Callbacks { lockd: lockd.clone(), transports, clients: Mutex::default(), notify });
    let mut tasks = JoinSet::new();
    tasks.spawn(callbacks.clone().send_notices());
    loop {
        tokio::select! {
            biased;
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            () = lockd.core().locks.granted() => lockd.collect_grants(),
            callback = queue.recv() => match callback {
                Some(callback) => drop(tasks.spawn(callbacks.clone().send(callback))),
                None => return,
            },
        }
    }
}

struct Callbacks {
    lockd: Arc<Lockd>,
    transports: Transports,
    /// Connections to recently called lock managers.
    clients: Mutex<HashMap<Destination, Arc<tokio::sync::Mutex<Option<Client>>>>>,
    /// Bounds the calls to status monitors.
    notify: Semaphore,
}

impl Callbacks {
    async fn send(self: Arc<Self>, callback: Outgoing) {
        match callback {
            Outgoing::Granted(id) => self.grant(id).await,
            Outgoing::Response { to, procedure, results, .. } => {
                let sent = self.call_nlm::<()>(&to, procedure, &Raw(results)).await;
                if let Err(error) = sent {
                    tracing::debug!(host = %to.address, %error, procedure = procedure.name(), "cannot send the result of a _MSG procedure");
                }
            }
            Outgoing::Restarted(to) => self.notify(&to).await,
        }
    }

    /// Sends GRANTED to a host whose request has been granted.
    async fn grant(&self, id: WaiterId) {
        let until = Instant::now() + GRANT_TIMEOUT;
        let mut pause = PAUSE_MIN;
        // The loop ends if the host has requested the lock again meanwhile, or is gone.
        while let Some((to, args)) = self.lockd.granted(id) {
            let answer = self.call_nlm::<nlm::Res>(&to, NlmProc4::Granted, &args).await;
            match answer {
                Ok(res) if res.status == Nlm4Stats::Granted => {
                    tracing::debug!(host = %to.address, "host has confirmed GRANTED");
                    return self.lockd.end_granted(id, true);
                }
                Ok(res) if res.status != Nlm4Stats::DeniedGracePeriod => {
                    tracing::debug!(host = %to.address, status = ?res.status, "host no longer wants the granted lock");
                    return self.lockd.end_granted(id, false);
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(host = %to.address, %error, "cannot send GRANTED"),
            }
            if Instant::now() + pause > until {
                tracing::warn!(host = %to.address, "host did not confirm GRANTED in time: its lock is released");
                return self.lockd.end_granted(id, false);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Sends notices to programs on this host that other hosts have restarted, until the server ends.
    async fn send_notices(self: Arc<Self>) {
        let mut tasks = JoinSet::new();
        loop {
            let (my_id, status) = self.lockd.notices.next().await;
            let callbacks = self.clone();
            tasks.spawn(async move { callbacks.send_notice(&my_id, &status).await });
            sleep(NOTICE_PAUSE).await;
            while tasks.try_join_next().is_some() {}
            while tasks.len() >= NOTICES_AT_ONCE {
                tasks.join_next().await;
            }
        }
    }

    /// Sends NOTIFY to a host after a restart of this server.
    async fn notify(&self, to: &Destination) {
        let (name, state) = self.lockd.identity();
        let args = nsm::StatChge { mon_name: name.clone().into(), state };
        let until = Instant::now() + NOTIFY_TIMEOUT;
        let mut pause = PAUSE_MIN;
        loop {
            let mut failed = None;
            let calling = self.notify.acquire().await.expect("semaphore must not be closed");
            // Every status monitor supports UDP, but a firewall may pass only TCP.
            for is_udp in [true, false] {
                let (transport, program) = ((SourcePort::Privileged, is_udp), (nsm::SM_PROGRAM, nsm::VERSION));
                match self.transports.call::<()>(transport, to.address, program, SmProc::Notify as u32, &args).await {
                    Ok(()) => {
                        return tracing::info!(host = %to.address, "host has been notified of the restart of this server");
                    }
                    Err(error) => failed = Some(error),
                }
            }
            drop(calling);
            let error = failed.expect("both transports must have failed");
            if Instant::now() + pause > until {
                return tracing::warn!(host = %to.address, %error, "giving up: host could not be notified of the restart of this server");
            }
            tracing::debug!(host = %to.address, %error, "host could not be notified of the restart of this server: retrying");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Sends a notice to a program on this host that another host has restarted.
    async fn send_notice(&self, my_id: &nsm::MyId, status: &nsm::Status) {
        // Any user of this host can register any program for notices, so only the lock manager gets a call from a
        // privileged port.
        let port = if my_id.my_prog == nlm::NLM_PROGRAM { SourcePort::Privileged } else { SourcePort::Any };
        for is_udp in [true, false] {
            let (transport, program) = ((port, is_udp), (my_id.my_prog, my_id.my_vers));
            match self
                .transports
                .call::<()>(transport, Ipv4Addr::LOCALHOST.into(), program, my_id.my_proc, status)
                .await
            {
                Ok(()) => return,
                Err(error) => tracing::debug!(program = my_id.my_prog, %error, "cannot notify a program of a restart"),
            }
        }
    }

    /// Calls a host's lock manager on the cached connection, or on a new one.
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
                    let (transport, program) = ((SourcePort::Any, to.lossy), (nlm::NLM_PROGRAM, nlm::VERSION));
                    let new = self.transports.connect(transport, to.address, program).await?;
                    client.insert(new).clone()
                }
            }
        };
        let answer = client.call::<R>(procedure as u32, args, ReplyPlan::default(), CallOptions::default()).await;
        match answer {
            Ok(answer) => Ok(answer.results),
            Err(failed) => {
                // The program may have moved to another port.
                place.lock().await.take();
                Err(LookupError::Call(failed.error))
            }
        }
    }
}

/// Arguments that have already been encoded.
struct Raw(Bytes);

impl Encode for Raw {
    fn encode(&self, encoder: &mut xdr::Encoder) {
        self.0.chunks_exact(4).for_each(|word| {
            encoder.u32(u32::from_be_bytes(word.try_into().expect("XDR must consist of words of four bytes")))
        });
    }
}

/// The time within which a host must confirm a lock that it has waited for.
const GRANT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which the server tries to notify a host of its restart, as long as Linux's sm-notify does.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(15 * 60);
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_secs(10);
const CLIENTS_MAX: usize = 1024;
/// Maximum number of programs of this host that are notified of a restart at the same time.
const NOTICES_AT_ONCE: usize = 8;
/// Pause between two such notices.
const NOTICE_PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of hosts that are notified of a restart of this server at the same time.
const NOTIFY_AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use rpc::{TcpKind, UdpKind};
    use simnet::{Network, NetworkOptions, StreamListener};

    use super::*;
    use crate::{
        call::core::Core,
        call::core::CoreOptions,
        export::Exports,
        handle::HandleKey,
        recovery::{MonitoredHost, Recovery},
    };

    #[test]
    fn host_is_notified_of_a_restart_once_for_all_its_names() {
        let recovery = Recovery::in_memory();
        for (address, name) in [("192.0.2.1", "a"), ("192.0.2.1", "b"), ("192.0.2.1", "c"), ("192.0.2.2", "a")] {
            let (address, name) = (address.parse().unwrap(), Bytes::from_static(name.as_bytes()));
            recovery.add_host(&MonitoredHost { address, name, state: 1 }, []).unwrap();
        }
        let options = CoreOptions { grace: Duration::from_secs(90), ..CoreOptions::default() };
        let core = Core::new(Exports::new(), HandleKey::random(), recovery, options, (None, None));
        let lockd = Lockd::start(core).unwrap();
        let mut queue = lockd.take_queue().unwrap();
        let mut hosts: Vec<_> = std::iter::from_fn(|| queue.try_recv().ok())
            .map(|said| match said {
                Outgoing::Restarted(to) => to.address.to_string(),
                _ => panic!("no other callback must be queued"),
            })
            .collect();
        hosts.sort();
        assert_eq!(hosts, ["192.0.2.1", "192.0.2.2"]);
    }

    /// Calls to a lock manager come from an unprivileged port. Calls to a status monitor come from a privileged port if
    /// the process may use one.
    #[simnet::test]
    async fn privileged_ports_are_used_only_where_a_peer_needs_them() {
        let network = Network::new(NetworkOptions::default());
        let mut listener = StreamListener::bind(&network, "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr();
        let transports = Transports::new(CallbackTransports {
            tcp: Arc::new(TcpKind::simulated(network, Default::default(), Default::default())),
            udp: Arc::new(UdpKind::default()),
        });
        for (port, is_privileged) in [(SourcePort::Any, false), (SourcePort::Privileged, true)] {
            let kind = transports.kind(port, false);
            let (_connection, accepted) = tokio::join!(kind.connect(address), listener.accept());
            assert_eq!(accepted.unwrap().peer_addr().port() < 1024, is_privileged);
        }
        assert_eq!(transports.kind(SourcePort::Any, true).name(), "udp");
    }
}
