//! NLM with RPCSEC_GSS: the policy of the export, and the call by which a host gets a lock that it has waited for.

use std::{net::SocketAddr, ops::RangeInclusive, sync::Arc};

use client::LockRange;
use gss::{GssClient, Service as Protection};
use nfs::nlm::{Lock, LockArgs, NLM_PROGRAM, Nlm4Stats, NlmProc4, Res, TestArgs, UnlockArgs, VERSION};
use parking_lot::Mutex;
use rpc::{
    Answering, AuthSys, Call, CallOptions, Client, ClientOptions, Credential, Identity, Procedure, ReplyPlan, Service,
    TcpKind, TcpOptions, TransportKind,
    rpcbind::{self, Binding, Netid, Registry, Rpcbind},
};
use server::Sec;
use testkit::{
    process::process,
    toy::ToyInitiator,
    world::{PRINCIPAL, SECRET, SERVER, World},
};
use tokio::{sync::Notify, task::JoinSet};
use xdr::{Decode, Encode};

use super::setup;

/// A host that locks by NLM, with the lock manager that the server calls.
struct Host {
    rpc: Client,
    lockd: Arc<Lockd>,
    name: String,
    _processes: [JoinSet<()>; 2],
}

/// The lock manager of a host.
#[derive(Default)]
struct Lockd {
    /// The callers of GRANTED, and the locks.
    granted: Mutex<Vec<(Identity, Lock)>>,
    called: Notify,
}

impl Service for Lockd {
    fn program(&self) -> u32 {
        NLM_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        let procedure = NlmProc4::from_number(procedure)?;
        Some(Procedure { name: procedure.name(), idempotent: true })
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            assert_eq!(call.procedure, NlmProc4::Granted as u32);
            let args = TestArgs::decode(&mut call.arguments)?;
            self.granted.lock().push((call.caller.clone(), args.lock));
            self.called.notify_one();
            Ok(call.reply(&Res { cookie: args.cookie, status: Nlm4Stats::Granted }))
        }))
    }
}

impl Host {
    /// Creates the host with this number, whose calls have this credential.
    async fn new(world: &World, number: u8, credential: Credential) -> Self {
        let network = world.host(number);
        let address = SocketAddr::new([127, 0, 1, number].into(), 0);
        let kind: Arc<dyn TransportKind> =
            Arc::new(TcpKind::simulated(network, TcpOptions::default(), buf::Pool::default()));
        let lockd = Arc::<Lockd>::default();
        let (at, locking) = process(&*kind, address, vec![lockd.clone()]);
        let registry = Registry::default();
        let netid = Netid::new("tcp", at);
        assert!(registry.set(Binding { program: NLM_PROGRAM, version: VERSION, netid, address: at }));
        let rpcbind = SocketAddr::new(address.ip(), rpcbind::PORT);
        let (_, binding) = process(&*kind, rpcbind, vec![Arc::new(Rpcbind::new(registry))]);
        let options = ClientOptions { credential, ..ClientOptions::new(NLM_PROGRAM, VERSION) };
        let rpc = Client::connect(kind, SERVER, options).await.unwrap();
        Self { rpc, lockd, name: format!("host {number}"), _processes: [locking, binding] }
    }

    fn of(&self, file: &[u8]) -> Lock {
        let fh = bytes::Bytes::copy_from_slice(file).into();
        Lock { caller_name: self.name.as_str().into(), fh, oh: "owner".into(), svid: 1, offset: 0, len: 10 }
    }

    async fn call(&self, procedure: NlmProc4, args: &(impl Encode + Sync)) -> Nlm4Stats {
        let answer = self.rpc.call::<Res>(procedure as u32, args, ReplyPlan::default(), CallOptions::default()).await;
        answer.unwrap().results.status
    }

    async fn lock(&self, file: &[u8], block: bool) -> Nlm4Stats {
        let (cookie, lock) = ("c".into(), self.of(file));
        let args = LockArgs { cookie, block, exclusive: true, lock, reclaim: false, state: 3 };
        self.call(NlmProc4::Lock, &args).await
    }

    async fn unlock(&self, file: &[u8]) -> Nlm4Stats {
        self.call(NlmProc4::Unlock, &UnlockArgs { cookie: "c".into(), lock: self.of(file) }).await
    }
}

fn kerberos(protection: Protection) -> Credential {
    Credential::Flavor(GssClient::new(Arc::new(ToyInitiator::new(PRINCIPAL, SECRET)), protection))
}

fn sys() -> Credential {
    Credential::Sys(AuthSys { uid: 1000, gid: 1000, ..AuthSys::of_process() })
}

const FLAVORS: [(Sec, &str); 4] =
    [(Sec::Sys, "sys"), (Sec::Krb5, "krb5"), (Sec::Krb5i, "krb5i"), (Sec::Krb5p, "krb5p")];

/// Only the flavours of the export lock its files.
#[test]
fn files_are_locked_with_the_flavours_of_the_export() {
    for (allowed, name) in FLAVORS {
        setup(1, &[allowed]).run(|world| async move {
            let mount = world.client(1, &format!("&sec={name}&vers=3&proto=tcp")).await;
            mount.write("/f", &b"data"[..]).await.unwrap();
            let file = mount.resolve("/f").await.unwrap().handle;
            let credentials = [
                (Sec::Sys, sys()),
                (Sec::Krb5, kerberos(Protection::None)),
                (Sec::Krb5i, kerberos(Protection::Integrity)),
                (Sec::Krb5p, kerberos(Protection::Privacy)),
            ];
            for (number, (own, credential)) in (10..).zip(credentials) {
                let host = Host::new(&world, number, credential).await;
                let expected = if own == allowed { Nlm4Stats::Granted } else { Nlm4Stats::Denied };
                assert_eq!(host.lock(&file, false).await, expected, "LOCK by {own:?} with {allowed:?}");
                assert_eq!(host.unlock(&file).await, expected, "UNLOCK by {own:?} with {allowed:?}");
            }
        });
    }
}

/// Our client locks with the flavour and the protection of its mount: the export allows no other one.
#[test]
fn mounts_of_version_3_lock_with_their_flavour() {
    let range = LockRange { offset: 7, length: 100, exclusive: true };
    for (allowed, name) in FLAVORS {
        for transport in ["tcp", "rdma"] {
            setup(1, &[allowed]).run(|world| async move {
                let query = format!("&sec={name}&vers=3&proto={transport}");
                let (one, other) = (world.client(1, &query).await, world.client(2, &query).await);
                one.write("/f", &b"data"[..]).await.unwrap();
                let file = one.resolve("/f").await.unwrap().handle;
                let (one, other) = (one.protocol(), other.protocol());
                assert_eq!(one.lock(&file, b"owner", range).await.unwrap(), None, "{query}");
                assert_eq!(other.lock(&file, b"owner", range).await.unwrap(), Some(range), "{query}");
                // A host with another flavour can neither lock, nor take the lock away.
                let stranger = if allowed == Sec::Sys { kerberos(Protection::Privacy) } else { sys() };
                let host = Host::new(&world, 10, stranger).await;
                assert_eq!(host.lock(&file, false).await, Nlm4Stats::Denied, "{query}");
                one.unlock(&file, b"owner", 0, u64::MAX).await.unwrap();
                assert_eq!(other.lock(&file, b"owner", range).await.unwrap(), None, "{query}");
            });
        }
    }
}

/// A host that has asked with Kerberos gets the lock that it waits for. The call is by AUTH_SYS: the server has no ticket for
/// the host, and Linux's lock manager accepts no other flavour.
#[test]
fn a_waiting_host_with_kerberos_gets_its_lock() {
    setup(1, &[Sec::Krb5i]).run(|world| async move {
        let mount = world.client(1, "&sec=krb5i&vers=3&proto=tcp").await;
        mount.write("/f", &b"data"[..]).await.unwrap();
        let file = mount.resolve("/f").await.unwrap().handle;
        let holder = Host::new(&world, 10, kerberos(Protection::Integrity)).await;
        let waiting = Host::new(&world, 11, kerberos(Protection::Integrity)).await;
        assert_eq!(holder.lock(&file, true).await, Nlm4Stats::Granted);
        assert_eq!(waiting.lock(&file, true).await, Nlm4Stats::Blocked);
        assert_eq!(holder.unlock(&file).await, Nlm4Stats::Granted);
        waiting.lockd.called.notified().await;
        let granted = waiting.lockd.granted.lock().clone();
        let [(Identity::Sys(_), lock)] = &granted[..] else { panic!("{granted:?}") };
        assert_eq!(*lock, waiting.of(&file));
        assert_eq!(holder.lock(&file, false).await, Nlm4Stats::Denied);
        assert_eq!(waiting.unlock(&file).await, Nlm4Stats::Granted);
        assert_eq!(holder.lock(&file, false).await, Nlm4Stats::Granted);
    });
}
