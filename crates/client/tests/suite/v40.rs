//! NFSv4.0: found where there is nothing newer, opening by name, and owners whose operations are counted.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use crate::common::{Server, memory, nfs_server, proxy, tcp};
use client::{LockRange, Mount, NfsUrl};
use nfs::v4::{Nfsstat4, Opnum4, compound::*};
use parking_lot::Mutex;
use rpc::{Answering, Call, Procedure, Service};
use xdr::Decode;

/// A service that knows version 4.0 alone, and remembers the operations of each request.
struct OnlyZero(Arc<dyn Service>, Arc<Mutex<Vec<Vec<Opnum4>>>>);

impl OnlyZero {
    fn new() -> Self {
        let services = nfs_server(Arc::new(memory())).services();
        let v4 = services.into_iter().find(|service| service.versions().contains(&4) && service.program() == 100_003);
        Self(v4.unwrap(), Arc::default())
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

const ALL: LockRange = LockRange { offset: 0, length: u64::MAX, exclusive: true };

#[tokio::test]
async fn it_is_found_where_there_is_nothing_newer() {
    let server = Server::serving(&*tcp(), vec![Arc::new(OnlyZero::new())]).await;
    let mount = server.mount("vers=auto&nconnect=3").await;
    assert_eq!(mount.protocol().version(), "4.0");
    assert_eq!(mount.v4().unwrap().connections(), 3);
    mount.write("f", &b"content"[..]).await.unwrap();
    assert_eq!(mount.read("f").await.unwrap(), "content");
    mount.unmount().await.unwrap();
    let query = format!("vers=4.0&addr={}", server.address);
    let error = server.mount_path("", &query).await.unwrap_err();
    assert!(error.to_string().contains("cannot tell whether two addresses are of one server"), "{error}");
}

/// It has no current stateid (RFC 7530 §9.1.4): what a request opens can be read by the next only.
#[tokio::test]
async fn a_file_is_not_read_by_the_request_that_opens_it() {
    let service = OnlyZero::new();
    let requests = service.1.clone();
    let server = Server::serving(&*tcp(), vec![Arc::new(service)]).await;
    let mount = server.mount("vers=4.0").await;
    mount.write("f", &b"content"[..]).await.unwrap();
    let all = std::mem::take(&mut *requests.lock());
    assert!(all.iter().flatten().any(|opnum| *opnum == Opnum4::Open), "requests are seen");
    assert_eq!(mount.read("f").await.unwrap(), "content");
    let mut reader = mount.open("f").await.unwrap().reader().expecting(7);
    assert_eq!(reader.next().await.unwrap().unwrap(), "content");
    let of_reading = requests.lock().clone();
    let reads: Vec<_> = of_reading.iter().filter(|ops| ops.contains(&Opnum4::Read)).collect();
    assert_eq!(reads.len(), 2, "{of_reading:?}");
    assert!(reads.iter().all(|ops| **ops == [Opnum4::PutFh, Opnum4::Read]), "{reads:?}");
}

#[tokio::test]
async fn a_file_that_was_renamed_is_read_all_the_same() {
    let server = Server::memory().await;
    let (one, other) = (server.mount("vers=4.0").await, server.mount("vers=4.0").await);
    one.write("f", &b"content"[..]).await.unwrap();
    let file = other.open("f").await.unwrap();
    one.rename("f", "g").await.unwrap();
    one.write("f", &b"another"[..]).await.unwrap();
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "content", "the file, not the name");
    let error = other.v4().unwrap().lock(file.handle(), b"me", ALL).await.unwrap_err();
    assert!(error.to_string().contains("known by its name"), "{error}");
    let file = other.open("g").await.unwrap();
    assert_eq!(other.v4().unwrap().lock(file.handle(), b"me", ALL).await.unwrap(), None);
    other.rename("g", "h").await.unwrap();
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "content", "what it has renamed itself, it finds");
}

/// A request that its caller gives up is sent until it is answered: the next of its owner has the next number.
#[tokio::test]
async fn what_is_given_up_is_counted_as_well() {
    let server = Server::memory().await;
    let (gate, address) = proxy::gate(server.address).await;
    let url: NfsUrl = format!("nfs://{address}/m?vers=4.0&uid=0&gid=0").parse().unwrap();
    let mount = Mount::connect(&url, &server.switch).await.unwrap();
    mount.write("f", &b"content"[..]).await.unwrap();
    let handle = mount.resolve("f").await.unwrap().handle;
    let (v4, hurried) = (mount.v4().unwrap(), mount.with_deadline(Duration::from_millis(200)));
    for round in 0..3 {
        let range = LockRange { offset: 10 * round, length: 10, exclusive: true };
        assert_eq!(v4.lock(&handle, b"me", range).await.unwrap(), None);
        gate.close();
        hurried.v4().unwrap().unlock(&handle, b"me", range.offset, 10).await.unwrap_err();
        hurried.open_with("new", client::OpenOptions { create: Some(0o600), ..Default::default() }).await.unwrap_err();
        gate.open();
    }
    v4.unlock(&handle, b"me", 0, u64::MAX).await.unwrap();
    let direct = server.mount("vers=4.0").await;
    let seen = direct.resolve("f").await.unwrap().handle;
    assert_eq!(direct.v4().unwrap().lock(&seen, b"me", ALL).await.unwrap(), None, "everything is unlocked");
}
