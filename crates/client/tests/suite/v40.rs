//! NFSv4.0: falling back to it, opening by name, and the seqids of owners. The tests run in simulations.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use crate::common::{
    Server, memory, nfs_server,
    recorder::Record,
    sim,
    wrapped::{Wrap, wrapped},
};
use client::{LockRange, Mount};
use nfs::v4::{Argop4, LockArgs, Locker4, Nfsstat4, Opnum4, Resop4, compound::*};
use parking_lot::Mutex;
use rpc::{AcceptError, Answering, Call, Procedure, Service};
use simnet::Network;
use xdr::Decode;

/// A service that supports only NFSv4.0 and records the operations of each request.
struct OnlyZero(Arc<dyn Service>, Arc<Mutex<Vec<Vec<Opnum4>>>>);

impl OnlyZero {
    /// Adds the operations of each request to `requests`.
    fn services(requests: Arc<Mutex<Vec<Vec<Opnum4>>>>) -> Vec<Arc<dyn Service>> {
        let is_v4 = |service: &Arc<dyn Service>| service.versions().contains(&4) && service.program() == 100_003;
        let v4 = all_versions().into_iter().find(is_v4).unwrap();
        vec![Arc::new(Self(v4, requests))]
    }
}

impl Service for OnlyZero {
    fn program(&self) -> u32 {
        self.0.program()
    }

    fn versions(&self) -> RangeInclusive<u32> {
        4..=4
    }

    fn procedure(&self, version: u32, procedure: u32) -> Option<Procedure> {
        self.0.procedure(version, procedure)
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        if let Ok(args) = CompoundArgs::decode(&mut call.arguments.clone()) {
            self.1.lock().push(args.argarray.iter().map(|operation| operation.opnum()).collect());
        }
        match CompoundHead::decode(&mut call.arguments.clone()) {
            Ok(head) if head.minorversion > 0 => {
                let status = Nfsstat4::MinorVersMismatch;
                Answering::Pending(Box::pin(async move {
                    Ok(call.reply(&CompoundRes { status, tag: head.tag, resarray: Vec::new() }))
                }))
            }
            _ => self.0.call(call),
        }
    }
}

/// Refuses the next request with an operation, and records all requests.
#[derive(Clone, Default)]
struct Refusal {
    next: Arc<Mutex<Option<(Opnum4, Nfsstat4)>>>,
    /// The operation whose requests get no reply of NFS but this one of RPC.
    of_rpc: Arc<Mutex<Option<(Opnum4, AcceptError)>>>,
    record: Record,
}

impl Refusal {
    fn refuse(&self, opnum: Opnum4, status: Nfsstat4) {
        *self.next.lock() = Some((opnum, status));
    }

    /// Returns the number of requests with this operation.
    fn count(&self, opnum: Opnum4) -> usize {
        self.record.with(opnum).len()
    }

    /// Returns the programs of a server with a memory file system, which refuses operations.
    fn services(&self) -> Vec<Arc<dyn Service>> {
        let refusing = |service| wrapped(service, self.clone());
        self.record.wrap(all_versions().into_iter().map(refusing).collect())
    }
}

impl Wrap for Refusal {
    fn call<'a>(&'a self, inner: &'a dyn Service, call: Call<'a>) -> Answering<'a> {
        let Ok(args) = CompoundArgs::decode(&mut call.arguments.clone()) else { return inner.call(call) };
        let is_in = |opnum| args.argarray.iter().any(|op| op.opnum() == opnum);
        if let Some((opnum, error)) = *self.of_rpc.lock()
            && is_in(opnum)
        {
            return Answering::Pending(Box::pin(async move { Err(error) }));
        }
        let refused = self.next.lock().take_if(|(opnum, _)| is_in(*opnum));
        let Some((opnum, status)) = refused else { return inner.call(call) };
        let resarray = vec![Resop4::failure(opnum, status)];
        Answering::Pending(Box::pin(async move { Ok(call.reply(&CompoundRes { status, tag: args.tag, resarray })) }))
    }
}

/// Returns the programs of a server with a memory file system.
fn all_versions() -> Vec<Arc<dyn Service>> {
    nfs_server(Arc::new(memory())).services()
}

/// Runs a test with a server of these programs. They are created in the simulation, because they use its time and random numbers.
fn simulated(services: impl FnOnce() -> Vec<Arc<dyn Service>>, test: impl AsyncFnOnce(Network, Server)) {
    sim::simulate(|network| async move {
        let _process = sim::start(&network, services());
        let server = Server { address: sim::SERVER, switch: sim::switch(&network, 1) };
        test(network, server).await;
    });
}

/// Runs a test with a mount of a server that refuses operations. The mount has written the file `f`.
fn refusing(test: impl AsyncFnOnce(Refusal, Mount)) {
    let refusal = Refusal::default();
    simulated(
        || refusal.services(),
        async |_, server| {
            let mount = server.mount("vers=4.0").await;
            mount.write("f", &b"content"[..]).await.unwrap();
            test(refusal.clone(), mount).await;
        },
    );
}

const ALL: LockRange = LockRange { offset: 0, length: u64::MAX, exclusive: true };

#[test]
fn auto_falls_back_to_v40() {
    simulated(
        || OnlyZero::services(Arc::default()),
        async |_, server| {
            let mount = server.mount("vers=auto&nconnect=3").await;
            assert_eq!(mount.protocol().version(), "4.0");
            assert_eq!(mount.v4().unwrap().connections(), 3);
            mount.write("f", &b"content"[..]).await.unwrap();
            assert_eq!(mount.read("f").await.unwrap(), "content");
            mount.unmount().await.unwrap();
            let query = format!("vers=4.0&addr={}", server.address);
            let error = server.mount_path("", &query).await.unwrap_err();
            assert!(error.to_string().contains("cannot check that two addresses belong to the same server"), "{error}");
        },
    );
}

/// NFSv4.0 has no current stateid (RFC 7530 §9.1.4), so READ cannot be in the same request as its OPEN.
#[test]
fn open_and_read_are_separate_requests() {
    let requests = Arc::default();
    simulated(
        || OnlyZero::services(Arc::clone(&requests)),
        async |_, server| {
            let mount = server.mount("vers=4.0").await;
            mount.write("f", &b"content"[..]).await.unwrap();
            let all = std::mem::take(&mut *requests.lock());
            assert!(all.iter().flatten().any(|opnum| *opnum == Opnum4::Open), "the service must record requests");
            assert_eq!(mount.read("f").await.unwrap(), "content");
            let mut reader = mount.open("f").await.unwrap().reader().expecting(7);
            assert_eq!(reader.next().await.unwrap().unwrap(), "content");
            let of_reading = requests.lock().clone();
            let reads: Vec<_> = of_reading.iter().filter(|ops| ops.contains(&Opnum4::Read)).collect();
            assert_eq!(reads.len(), 2, "{of_reading:?}");
            assert!(reads.iter().all(|ops| **ops == [Opnum4::PutFh, Opnum4::Read]), "{reads:?}");
        },
    );
}

#[test]
fn renamed_file_is_read_by_its_handle() {
    simulated(all_versions, async |_, server| {
        let (one, other) = (server.mount("vers=4.0").await, server.mount("vers=4.0").await);
        one.write("f", &b"content"[..]).await.unwrap();
        let file = other.open("f").await.unwrap();
        one.rename("f", "g").await.unwrap();
        one.write("f", &b"another"[..]).await.unwrap();
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), "content", "the handle must be read, not the name");
        let error = other.v4().unwrap().lock(file.handle(), b"me", ALL).await.unwrap_err();
        assert!(error.to_string().contains("its name is known"), "{error}");
        let file = other.open("g").await.unwrap();
        assert_eq!(other.v4().unwrap().lock(file.handle(), b"me", ALL).await.unwrap(), None);
        other.rename("g", "h").await.unwrap();
        assert_eq!(
            file.read_bytes(0, 100).await.unwrap(),
            "content",
            "a file that this client has renamed must be found"
        );
    });
}

/// An operation with a seqid is sent until it is answered, even if its caller gives up, because the next operation has
/// the next seqid.
#[test]
fn cancelled_operations_keep_seqids_in_step() {
    simulated(all_versions, async |network, server| {
        let mount = server.mount("vers=4.0").await;
        mount.write("f", &b"content"[..]).await.unwrap();
        let handle = mount.resolve("f").await.unwrap().handle;
        let (v4, hurried) = (mount.v4().unwrap(), mount.with_deadline(Duration::from_millis(200)));
        for round in 0..3 {
            let range = LockRange { offset: 10 * round, length: 10, exclusive: true };
            assert_eq!(v4.lock(&handle, b"me", range).await.unwrap(), None);
            network.stall(Duration::from_secs(10));
            hurried.v4().unwrap().unlock(&handle, b"me", range.offset, 10).await.unwrap_err();
            hurried
                .open_with("new", client::OpenOptions { create: Some(0o600), ..Default::default() })
                .await
                .unwrap_err();
        }
        v4.unlock(&handle, b"me", 0, u64::MAX).await.unwrap();
        let direct = server.mount("vers=4.0").await;
        let seen = direct.resolve("f").await.unwrap().handle;
        assert_eq!(direct.v4().unwrap().lock(&seen, b"me", ALL).await.unwrap(), None, "all bytes must be unlocked");
    });
}

#[test]
fn conflicting_lock_is_found() {
    simulated(all_versions, async |_, server| {
        let (holder, other) = (server.mount("vers=4.0").await, server.mount("vers=4.0").await);
        holder.write("f", &b"content"[..]).await.unwrap();
        let file = holder.open("f").await.unwrap();
        let range = LockRange { offset: 5, length: 10, exclusive: true };
        assert_eq!(holder.v4().unwrap().lock(file.handle(), b"me", range).await.unwrap(), None);
        let seen = other.resolve("f").await.unwrap().handle;
        assert_eq!(other.v4().unwrap().test_lock(&seen, b"me", ALL).await.unwrap(), Some(range));
        assert_eq!(holder.v4().unwrap().test_lock(file.handle(), b"me", ALL).await.unwrap(), None);
    });
}

/// RFC 7530 §13.1.5: the server returns this for any request, until the client has found the file system that has moved.
#[test]
fn request_is_sent_again_after_lease_moved() {
    refusing(async |refusal, mount| {
        refusal.refuse(Opnum4::Lookup, Nfsstat4::LeaseMoved);
        let before = refusal.count(Opnum4::Lookup);
        assert_eq!(mount.stat("f").await.unwrap().size, 7);
        assert_eq!(refusal.count(Opnum4::Lookup), before + 2);
    });
}

/// The server has restarted, and a file system has moved.
#[test]
fn reclaim_is_sent_again_after_lease_moved() {
    refusing(async |refusal, mount| {
        let file = mount.open("f").await.unwrap();
        assert_eq!(mount.v4().unwrap().lock(file.handle(), b"me", ALL).await.unwrap(), None);
        let before = refusal.count(Opnum4::Open);
        refusal.refuse(Opnum4::LockT, Nfsstat4::StaleClientid);
        let moved = async {
            sim::until(|| refusal.next.lock().is_none()).await;
            refusal.refuse(Opnum4::Open, Nfsstat4::LeaseMoved);
        };
        let (tested, ()) =
            tokio::join!(async { mount.v4().unwrap().test_lock(file.handle(), b"me", ALL).await }, moved);
        assert_eq!(tested.unwrap(), None);
        assert_eq!(refusal.count(Opnum4::Open), before + 2);
    });
}

/// A stateid that the server has forgotten is not sent to it twice.
#[test]
fn forgotten_stateid_is_sent_once() {
    refusing(async |refusal, mount| {
        let file = mount.open("f").await.unwrap();
        file.read_bytes(0, 7).await.unwrap();
        let closes = refusal.count(Opnum4::Close);
        refusal.refuse(Opnum4::Close, Nfsstat4::StaleStateid);
        drop(file);
        sim::until(|| refusal.next.lock().is_none()).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(refusal.count(Opnum4::Close), closes + 1);
    });
}

/// The server has restarted: the client registers again, and sends the request again.
#[test]
fn stale_client_registers_again() {
    refusing(async |refusal, mount| {
        let file = mount.open("f").await.unwrap();
        for status in [Nfsstat4::StaleClientid, Nfsstat4::Expired] {
            let before = refusal.count(Opnum4::SetClientIdConfirm);
            refusal.refuse(Opnum4::LockT, status);
            assert_eq!(mount.v4().unwrap().test_lock(file.handle(), b"me", ALL).await.unwrap(), None);
            assert_eq!(refusal.count(Opnum4::SetClientIdConfirm), before + 1, "{status:?}");
        }
    });
}

/// Only a restart of the server between the two operations of the registration is a reason to repeat it.
#[test]
fn refused_registration_is_final() {
    for (status, registrations) in [(Nfsstat4::StaleClientid, 2), (Nfsstat4::Access, 1)] {
        let refusal = Refusal::default();
        refusal.refuse(Opnum4::SetClientIdConfirm, status);
        simulated(
            || refusal.services(),
            async |_, server| {
                let mounted = server.mount_path("", "vers=4.0").await;
                assert_eq!(mounted.is_ok(), registrations == 2, "{mounted:?}");
                assert_eq!(refusal.count(Opnum4::SetClientId), registrations, "{status:?}");
            },
        );
    }
}

/// RFC 7530 §9.5: requests that name no state do not renew the lease.
#[test]
fn lease_is_renewed_beside_requests_without_state() {
    refusing(async |refusal, mount| {
        let file = mount.open("f").await.unwrap();
        assert_eq!(mount.v4().unwrap().lock(file.handle(), b"me", ALL).await.unwrap(), None);
        let (registrations, renewals) = (refusal.count(Opnum4::SetClientId), refusal.count(Opnum4::Renew));
        for _ in 0..300 {
            mount.stat("f").await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let renewed = refusal.count(Opnum4::Renew) - renewals;
        assert!((2..20).contains(&renewed), "{renewed} times in 300 s");
        assert_eq!(refusal.count(Opnum4::SetClientId), registrations, "the client must have kept its state");
    });
}

/// An OPEN has a seqid, so it is sent until the server answers. Every answer counts, also one of RPC.
#[test]
fn error_of_rpc_ends_an_open() {
    refusing(async |refusal, mount| {
        *refusal.of_rpc.lock() = Some((Opnum4::Open, AcceptError::SystemErr));
        let before = refusal.count(Opnum4::Open);
        mount.write("g", &b"content"[..]).await.unwrap_err();
        assert_eq!(refusal.count(Opnum4::Open), before + 1);
    });
}

/// The mount is not in use any more, so nobody needs the seqid of an OPEN that the server does not answer.
#[test]
fn open_of_a_dropped_mount_is_given_up() {
    refusing(async |refusal, mount| {
        *refusal.of_rpc.lock() = Some((Opnum4::Open, AcceptError::Drop));
        mount.with_deadline(Duration::from_secs(1)).write("g", &b"content"[..]).await.unwrap_err();
        drop(mount);
        tokio::time::sleep(Duration::from_secs(300)).await;
        let sent = refusal.count(Opnum4::Open);
        tokio::time::sleep(Duration::from_secs(3000)).await;
        assert_eq!(refusal.count(Opnum4::Open), sent);
    });
}

#[test]
fn closed_file_and_unused_lock_owner_are_removed_at_the_server() {
    refusing(async |refusal, mount| {
        let file = mount.open("f").await.unwrap();
        assert_eq!(mount.v4().unwrap().lock(file.handle(), b"me", ALL).await.unwrap(), None);
        mount.v4().unwrap().release_locks(file.handle(), b"me").await.unwrap();
        sim::until(|| refusal.count(Opnum4::ReleaseLockOwner) == 1).await;
        let lock = refusal.record.with(Opnum4::Lock).remove(0);
        let release = refusal.record.with(Opnum4::ReleaseLockOwner).remove(0);
        let Some(Argop4::Lock(LockArgs { locker: Locker4::New { lock_owner, .. }, .. })) = lock.args.argarray.last()
        else {
            panic!("{lock:?}")
        };
        let Argop4::ReleaseLockOwner(released) = &release.args.argarray[0] else { panic!("{release:?}") };
        assert_eq!(released.lock_owner, *lock_owner);
        let closed = refusal.count(Opnum4::Close);
        drop(file);
        sim::until(|| refusal.count(Opnum4::Close) == closed + 1).await;
        mount.unmount().await.unwrap();
    });
}
