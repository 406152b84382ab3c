//! The administrator's interface: listing clients and evicting one.

use std::sync::Arc;

use crate::common::v4::*;
use crate::common::*;
use nfs::{nlm, v4::*};
use server::{
    Export, ExportId, ExportOptions, NfsServer, Squash,
    admin::{ClientName, Record, Request},
};
use xdr::Message;

fn server() -> NfsServer {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    server_of(Export::new("/m", ExportId::unique(), memory(), options).unwrap())
}

fn ask(server: &NfsServer, request: &[u8]) -> Vec<Record> {
    let mut output = Vec::new();
    server.admin().serve(request, &mut output).unwrap();
    output.split_inclusive(|&byte| byte == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect()
}

fn request(server: &NfsServer, request: &Request) -> Vec<Record> {
    ask(server, &serde_json::to_vec(request).unwrap())
}

fn list(server: &NfsServer) -> Vec<Record> {
    let mut records = request(server, &Request::List { client: None });
    assert_eq!(records.pop(), Some(Record::End));
    records
}

fn lock(client: &mut Client4, handle: &NfsFh4, open_stateid: Stateid4, (offset, length): (u64, u64)) -> Nfsstat4 {
    let lock_owner = StateOwner4 { clientid: Clientid4(0), owner: "a process".into() };
    let (open_seqid, lock_seqid) = (Seqid4(0), Seqid4(0));
    let locker = Locker4::New { open_seqid, open_stateid, lock_seqid, lock_owner };
    let args = LockArgs { locktype: NfsLockType4::Write, reclaim: false, offset, length, locker };
    client.status([putfh(handle), Argop4::Lock(args)])
}

/// Locks a whole file by NLM. The host waits if it must.
fn lock_by_nlm(server: &NfsServer, peer: &str, handle: &NfsFh4) -> nlm::Nlm4Stats {
    let rig = Rig::calling(server).from(peer);
    let fh = handle.0.clone();
    let lock = nlm::Lock { caller_name: "mars".into(), fh: fh.into(), oh: "oh".into(), svid: 7, offset: 0, len: 0 };
    let args = nlm::LockArgs { cookie: "c".into(), block: true, exclusive: true, lock, reclaim: false, state: 1 };
    let message = Message::encode(&args);
    results::<nlm::Res>(&rig.raw(&server.nlm4(), nlm::NlmProc4::Lock as u32, &message).unwrap()).status
}

#[simnet::test]
async fn clients_and_their_state_are_listed_line_by_line() {
    let server = server();
    calls_back(&server);
    assert_eq!(list(&server), []);
    let mut a = Client4::new(&server, "venus\n", 2);
    let (stateid, handle) = a.open("/m", "f", Open { deny: OPEN4_SHARE_DENY_WRITE, ..Open::default() }).unwrap();
    assert_eq!(lock(&mut a, &handle, stateid, (10, 5)), Nfsstat4::Ok);
    assert_eq!(lock_by_nlm(&server, "192.0.2.7:700", &handle), nlm::Nlm4Stats::Blocked);
    let records = list(&server);
    let [
        Record::Client(host),
        Record::Lock { waiting: true, client: by, owner, start: 0, length: None, .. },
        Record::Client(venus),
        Record::Session { slots: 16, .. },
        Record::Open { file: opened, read: true, write: true, deny_read: false, deny_write: true, .. },
        Record::Lock { file, exclusive: true, start: 10, length: Some(5), waiting: false, owner: process, .. },
    ] = &records[..]
    else {
        panic!("{records:#?}")
    };
    assert_eq!(
        (host.protocol.as_str(), host.name.as_str(), host.address.as_deref()),
        ("nlm4", "mars", Some("192.0.2.7"))
    );
    assert_eq!((*by, owner.as_str()), (host.client, "7@oh"));
    assert_eq!((venus.protocol.as_str(), venus.name.as_str(), venus.expired), ("4.2", "venus\\n", false));
    assert_eq!(venus.client.to_string(), format!("{:016x}", a.client.0));
    assert_eq!((file.export.as_str(), process.as_str()), ("/m", "a process"));
    assert!(file == opened && file.fileid.is_some() && venus.stored && host.stored);
    let one = request(&server, &Request::List { client: Some(venus.client) });
    assert_eq!(one, [&records[2..], &[Record::End]].concat());
}

/// The client has more state than fits on a page, and more than one owner.
#[simnet::test]
async fn every_item_is_listed_exactly_once() {
    let server = server();
    let mut a = Client4::new(&server, "a", 1);
    let mut wanted = Vec::new();
    for i in 0..600 {
        let owner = ["one", "two"][i % 2];
        let (stateid, handle) = a.open("/m", &format!("f{i}"), Open { owner, ..Open::default() }).unwrap();
        let fileid = a.attrs(&format!("/m/f{i}"), &[attr::Attr4::Fileid]).fileid.unwrap();
        wanted.push((owner.to_owned(), fileid));
        if i % 100 == 0 {
            assert_eq!(lock(&mut a, &handle, stateid, (0, 1)), Nfsstat4::Ok);
        }
    }
    let records = list(&server);
    let mut opens = Vec::new();
    for record in &records {
        if let Record::Open { file, owner, .. } = record {
            opens.push((owner.clone(), file.fileid.unwrap()));
        }
    }
    opens.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(opens, wanted);
    assert_eq!(records.iter().filter(|record| matches!(record, Record::Lock { .. })).count(), 6);
}

#[simnet::test]
async fn evicted_client_loses_all_state_and_can_start_anew() {
    let server = server();
    let (mut a, mut b) = (Client4::new(&server, "a", 1), Client4::new(&server, "b", 1));
    let how = Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() };
    let (stateid, handle) = a.open("/m", "f", how).unwrap();
    assert_eq!(lock(&mut a, &handle, stateid, (0, 1)), Nfsstat4::Ok);
    assert_eq!(b.open("/m", "f", Open::default()).unwrap_err(), Nfsstat4::ShareDenied);
    let name = ClientName(server::sharing::locks::LockClient::V4(a.client.0));
    assert_eq!(request(&server, &Request::Evict { client: name }), [Record::End]);
    let again = request(&server, &Request::Evict { client: name });
    assert!(matches!(&again[..], [Record::Error { message }] if message.contains(&name.to_string())), "{again:?}");

    let (opened, _) = b.open("/m", "f", Open::default()).unwrap();
    assert_eq!(lock(&mut b, &handle, opened, (0, 1)), Nfsstat4::Ok);
    //= rfc8881-2.4.2-1
    assert_eq!(a.alone(a.sequence_op(0, a.sequence + 1)).status(), Nfsstat4::BadSession);
    let create = create_session(a.client, Sequenceid4(2), channel());
    assert_eq!(a.alone(create).status(), Nfsstat4::StaleClientid);
    // The client gets a new client ID, and cannot reclaim anything.
    let mut anew = Client4::new(&server, "a", 1);
    assert_ne!(anew.client, a.client);
    let reclaim = Box::new(OpenArgs {
        seqid: Seqid4(0),
        share_access: OPEN4_SHARE_ACCESS_BOTH,
        share_deny: 0,
        owner: StateOwner4 { clientid: Clientid4(0), owner: "owner".into() },
        openhow: Openflag4::NoCreate,
        claim: OpenClaim4::Previous(OpenDelegationType4::None),
    });
    assert_eq!(anew.status([putfh(&handle), Argop4::Open(reclaim)]), Nfsstat4::NoGrace);
}

#[simnet::test]
async fn evicting_a_host_releases_its_locks() {
    let server = server();
    let mut a = Client4::new(&server, "a", 1);
    let (stateid, handle) = a.open("/m", "f", Open::default()).unwrap();
    assert_eq!(lock_by_nlm(&server, "192.0.2.7:700", &handle), nlm::Nlm4Stats::Granted);
    assert_eq!(lock(&mut a, &handle, stateid, (0, 1)), Nfsstat4::Denied);
    let Some(Record::Client(host)) = list(&server).into_iter().next() else { panic!("the host must be listed") };
    assert_eq!(request(&server, &Request::Evict { client: host.client }), [Record::End]);
    assert_eq!(lock(&mut a, &handle, stateid, (0, 1)), Nfsstat4::Ok);
    let listed = list(&server);
    assert!(!listed.iter().any(|record| matches!(record, Record::Client(client) if client.protocol == "nlm4")));
    a.ok([putfh(&handle), close(stateid)]);
    assert_eq!(
        lock_by_nlm(&server, "192.0.2.7:700", &handle),
        nlm::Nlm4Stats::Granted,
        "an evicted host can lock again"
    );
}

#[simnet::test]
async fn invalid_requests_are_answered_with_an_error() {
    let server = Arc::new(server());
    for bad in [&b""[..], b"{}", b"{\"list\":{}", &[b'['; 1 << 20], b"\xff\0"] {
        let answer = ask(&server, bad);
        assert!(matches!(&answer[..], [Record::Error { .. }]), "{answer:?}");
    }
}
