//! The requests in which the client opens and creates files, and what it assumes about a file that the server delegates or
//! does not delegate (RFC 8881 §10 and §18.16). The tests run in virtual time.

use std::sync::Arc;

use crate::common::{
    memory, nfs_server,
    recorder::{Record, Recorded},
    scripted::{CONTENT, Scripted},
    sim::{self, for_each_simulated},
};
use client::{CreateHow, Mount, OpenOptions, SetAttr, SetTime, Special, Time};
use nfs::v4::{
    attr::{Attr4, Attrs, Purpose},
    *,
};
use simnet::Network;

for_each_simulated! {
    [getfh_follows_each_operation_that_creates_or_opens]
    v4_0 = "4.0"
    v4_1 = "4.1"
    v4_2 = "4.2"
}

const EXCLUSIVE: OpenOptions = OpenOptions { create: Some(0o640), exclusive: true, truncate: false };

async fn getfh_follows_each_operation_that_creates_or_opens(network: Network, vers: &str) {
    let record = Record::default();
    let _process = sim::start(&network, record.wrap(nfs_server(Arc::new(memory())).services()));
    let url = format!("nfs://{}/m?proto=tcp&vers={vers}&uid=0&gid=0", sim::SERVER).parse().unwrap();
    let mount = Mount::connect(&url, &sim::switch(&network, 1)).await.unwrap();
    mount.write("f", CONTENT).await.unwrap();
    mount.create("g", 0o600).await.unwrap();
    mount.open_with("h", EXCLUSIVE).await.unwrap();
    mount.mkdir("d", 0o755).await.unwrap();
    mount.symlink("f", "l").await.unwrap();
    mount.protocol().mknod(mount.root(), b"p", Special::Fifo, SetAttr::default()).await.unwrap();
    let file = mount.open("f").await.unwrap();
    // A small file is opened by its handle and closed in one request, and opened for longer by other requests.
    assert_eq!(file.reader().expecting(CONTENT.len() as u64).next().await.unwrap().unwrap(), CONTENT);
    assert_eq!(mount.read("f").await.unwrap(), CONTENT);
    assert_eq!(file.read_bytes(0, 4).await.unwrap(), &CONTENT[..4]);
    file.write_at(0, bytes::Bytes::from_static(b"C")).await.unwrap();
    let mut seen = Vec::new();
    for request in record.all() {
        let opnums = request.opnums();
        for (at, opnum) in opnums.iter().enumerate().filter(|(_, opnum)| [Opnum4::Open, Opnum4::Create].contains(opnum))
        {
            //= rfc8881-18.16.4.1-1 rfc8881-2.10.6.4-4
            assert_eq!(opnums.get(at + 1), Some(&Opnum4::GetFh), "{opnums:?}");
            seen.push(*opnum);
        }
    }
    let count = |of| seen.iter().filter(|opnum| **opnum == of).count();
    assert!(count(Opnum4::Open) >= 5 && count(Opnum4::Create) == 3, "{seen:?}");
}

/// Another client has the file open for writing, so that it is not delegated.
#[test]
fn data_that_another_client_changes_have_another_version() {
    sim::simulate(|network| async move {
        let _process = sim::start(&network, nfs_server(Arc::new(memory())).services());
        let url = format!("nfs://{}/m?proto=tcp&vers=4.2&uid=0&gid=0", sim::SERVER).parse().unwrap();
        let own = Mount::connect(&url, &sim::switch(&network, 1)).await.unwrap();
        let other = Mount::connect(&url, &sim::switch(&network, 2)).await.unwrap();
        own.write("f", CONTENT).await.unwrap();
        let handle = own.open("f").await.unwrap().handle().clone();
        let _held = other.v4().unwrap().hold(&handle);
        other.v4().unwrap().open(&handle, OPEN4_SHARE_ACCESS_BOTH).await.unwrap();
        let open = async || own.v4().unwrap().open(&handle, OPEN4_SHARE_ACCESS_READ).await.unwrap();
        let first = open().await;
        assert!(!own.v4().unwrap().is_delegated(&handle));
        assert!(open().await.is_same(&first));
        //= rfc8881-10.3.1-1
        other.open("f").await.unwrap().write_at(0, bytes::Bytes::from_static(b"C")).await.unwrap();
        assert!(!open().await.is_same(&first));
    });
}

/// Runs a test with a scripted server, the record of its requests, and a mount.
fn scripted(test: impl AsyncFnOnce(Arc<Scripted>, Record, Mount)) {
    sim::run("/?proto=tcp&vers=4.1", sim::recorded, |(scripted, record), mount| async move {
        test(scripted, record, mount).await;
    });
}

fn set_by(request: &Recorded) -> Attrs {
    let set = request.args.argarray.iter().find_map(|op| match op {
        Argop4::SetAttr(args) => Some(args.obj_attributes.to_attrs(1, Purpose::Set).unwrap()),
        _ => None,
    });
    set.expect("the request must have a SETATTR")
}

/// The server stores the verifier of EXCLUSIVE4_1 in attributes that the client has not asked for.
#[test]
fn attributes_that_hold_the_verifier_are_set_after_the_creation() {
    use Attr4::{Mode, TimeAccess, TimeAccessSet, TimeModify, TimeModifySet};
    let now = Some(Settime4::ToServerTime);
    for (attrset, atime, mtime) in [
        (vec![Mode, TimeAccessSet, TimeModifySet], now, now),
        (vec![Mode, TimeAccess, TimeModify], now, now),
        (vec![Mode, TimeModifySet], None, now),
    ] {
        scripted(async |scripted, record, mount| {
            scripted.script.lock().attrset = attrset;
            mount.open_with("new", EXCLUSIVE).await.unwrap();
            let created = record.position(|one| one.has(Opnum4::Open)).unwrap();
            let next = &record.all()[created + 1];
            //= rfc8881-18.16.4-3
            let set = set_by(next);
            assert_eq!((set.time_access_set, set.time_modify_set, set.mode), (atime, mtime, None));
            //= rfc8881-18.16.4-4
            assert!(!next.has(Opnum4::Open) && !record.all()[created].has(Opnum4::SetAttr));
        });
    }
    scripted(async |scripted, record, mount| {
        scripted.script.lock().attrset = vec![Mode];
        mount.open_with("new", EXCLUSIVE).await.unwrap();
        assert!(record.with(Opnum4::SetAttr).is_empty(), "no attribute holds the verifier");
    });
}

/// The times cannot be set by the OPEN, because they may hold the verifier.
#[test]
fn times_of_an_exclusive_creation_are_set_after_it() {
    scripted(async |_, record, mount| {
        let mtime = SetTime::ToClientTime(Time { seconds: 7, nseconds: 0 });
        let set = SetAttr { mode: Some(0o600), mtime, ..SetAttr::default() };
        mount.protocol().create(mount.root(), b"new", CreateHow::Exclusive([1; 8], set)).await.unwrap();
        let set = set_by(&record.with(Opnum4::SetAttr)[0]);
        let mtime = Settime4::ToClientTime(Nfstime4 { seconds: 7, nseconds: 0 });
        assert_eq!((set.time_access_set, set.time_modify_set), (None, Some(mtime)));
    });
}

#[test]
fn attributes_are_cached_only_while_a_delegation_is_granted() {
    scripted(async |scripted, record, mount| {
        let requests_of_stat = async |file: &client::File| {
            let before = record.len();
            file.stat().await.unwrap();
            record.len() - before
        };
        let file = mount.open("file").await.unwrap();
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), CONTENT);
        //= rfc8881-10.2-1
        assert_eq!((requests_of_stat(&file).await, requests_of_stat(&file).await), (1, 1));
        // The server grants a delegation, and does not grant it again after a restart.
        scripted.restart();
        scripted.script.lock().delegate = OPEN4_SHARE_ACCESS_READ;
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), CONTENT);
        assert!(mount.v4().unwrap().is_delegated(file.handle()));
        assert_eq!(requests_of_stat(&file).await, 0);
        scripted.restart();
        scripted.script.lock().delegate = 0;
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), CONTENT);
        let reclaimed = record.all().into_iter().rfind(Recorded::reclaims).unwrap();
        let claims = |op: &Argop4| matches!(op, Argop4::Open(open) if open.claim == OpenClaim4::Previous(OpenDelegationType4::Read));
        assert!(
            reclaimed.args.argarray.iter().any(claims),
            "the client must have asked for the delegation: {reclaimed:?}"
        );
        //= rfc8881-10.2-1
        assert_eq!((requests_of_stat(&file).await, requests_of_stat(&file).await), (1, 1));
    });
}

#[test]
fn attributes_of_a_delegated_file_are_set_at_the_server_at_once() {
    scripted(async |scripted, record, mount| {
        scripted.script.lock().delegate = OPEN4_SHARE_ACCESS_WRITE;
        let file = mount.open("file").await.unwrap();
        mount.v4().unwrap().open(file.handle(), OPEN4_SHARE_ACCESS_WRITE).await.unwrap();
        assert!(mount.v4().unwrap().is_delegated(file.handle()));
        let before = record.len();
        file.stat().await.unwrap();
        assert_eq!(record.len(), before, "the attributes must be cached");
        file.set_attr(SetAttr { mode: Some(0o600), ..SetAttr::default() }).await.unwrap();
        //= rfc8881-10.6-1
        assert_eq!(set_by(&record.all()[before]).mode, Some(0o600));
        file.stat().await.unwrap();
        //= rfc8881-10.6-1
        assert_eq!(record.len(), before + 2, "the modified attributes must come from the server");
    });
}
