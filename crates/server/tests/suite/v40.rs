//! NFSv4.0: clients without sessions, and owners with sequence IDs.

use std::time::Duration;

use crate::common::machine::Machine;
use crate::common::v4;
use crate::common::v4::{Client4, Open, at, putfh, read, write};
use crate::common::*;
use nfs::v4::{
    attr::{Attr4, Purpose},
    *,
};
use rpc::{ConnectionTls, Identity, security::Principal};
use server::{
    Export, ExportId, ExportOptions, Exports, HandleKey, NfsServer, Sec, SecFlavors, Squash, config::Settings,
    recovery::Recovery,
};
use testkit::paper::Paper;

fn serving() -> NfsServer {
    let mut exports = Exports::new();
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    exports.add(Export::new("/", ExportId::unique(), memory(), options).unwrap()).unwrap();
    server_of(exports)
}

fn set_clientid(name: &str, verifier: u8) -> Argop4 {
    Argop4::SetClientId(Box::new(SetClientIdArgs {
        client: NfsClientId4 { verifier: [verifier; 8], id: name.into() },
        callback: CbClient4 {
            cb_program: 0x4000_0000,
            cb_location: Netaddr4 { netid: "tcp".into(), addr: "192.0.2.1.2.1".into() },
        },
        callback_ident: 1,
    }))
}

fn introduce(client: &Client4, name: &str, verifier: u8) -> SetClientIdOk {
    match client.alone(set_clientid(name, verifier)) {
        Resop4::SetClientId(SetClientIdRes::Ok(ok)) => ok,
        other => panic!("{other:?}"),
    }
}

fn confirm(client: &Client4, SetClientIdOk { clientid, setclientid_confirm }: &SetClientIdOk) -> Nfsstat4 {
    let args = SetClientIdConfirmArgs { clientid: *clientid, setclientid_confirm: *setclientid_confirm };
    client.alone(Argop4::SetClientIdConfirm(args)).status()
}

fn renew(client: &Client4, clientid: Clientid4) -> Nfsstat4 {
    client.alone(Argop4::Renew(ClientIdArgs { clientid })).status()
}

/// A client with one open-owner.
struct Client40 {
    on: Client4,
    id: Clientid4,
    seqid: u32,
    /// The directory in which it opens files.
    dir: String,
}

impl Client40 {
    fn new(server: &NfsServer, name: &str) -> Self {
        let on = Client4::stranger(server, 0);
        let introduced = introduce(&on, name, 1);
        assert_eq!(confirm(&on, &introduced), Nfsstat4::Ok);
        Self { on, id: introduced.clientid, seqid: 0, dir: String::new() }
    }

    fn call(&self, operations: impl IntoIterator<Item = Argop4>) -> (Nfsstat4, Vec<Resop4>) {
        let results = self.on.compound(operations.into_iter().collect());
        (results.status, results.resarray)
    }

    fn status(&self, operations: impl IntoIterator<Item = Argop4>) -> Nfsstat4 {
        self.call(operations).0
    }

    fn next(&mut self) -> Seqid4 {
        self.seqid += 1;
        Seqid4(self.seqid)
    }

    fn open_op(&self, name: &str, seqid: Seqid4) -> Vec<Argop4> {
        let Argop4::Open(args) = v4::open(name, Open::default()) else { unreachable!() };
        let owner = StateOwner4 { clientid: self.id, ..args.owner.clone() };
        let open = [Argop4::Open(Box::new(OpenArgs { seqid, owner, ..*args })), Argop4::GetFh];
        at(&self.dir).into_iter().chain(open).collect()
    }

    fn open(&mut self, name: &str) -> (OpenOk, NfsFh4) {
        let seqid = self.next();
        opened(self.call(self.open_op(name, seqid)))
    }

    /// Opens a file for the first time and confirms the owner.
    fn open_first(&mut self, name: &str) -> (Stateid4, NfsFh4) {
        let (ok, handle) = self.open(name);
        assert_ne!(ok.rflags & OPEN4_RESULT_CONFIRM, 0);
        let args = OpenConfirmArgs { open_stateid: ok.stateid, seqid: self.next() };
        let (_, results) = self.call([putfh(&handle), Argop4::OpenConfirm(args)]);
        let [_, Resop4::OpenConfirm(Res4::Ok(stateid))] = results[..] else { panic!("{results:?}") };
        (stateid, handle)
    }

    fn lock(&self, handle: &NfsFh4, locker: Locker4) -> (Nfsstat4, Option<Stateid4>) {
        let lock = LockArgs { locktype: NfsLockType4::Write, reclaim: false, offset: 0, length: 10, locker };
        let (status, results) = self.call([putfh(handle), Argop4::Lock(lock)]);
        match results.last() {
            Some(Resop4::Lock(LockRes::Ok(stateid))) => (status, Some(*stateid)),
            _ => (status, None),
        }
    }

    fn lock_first(&mut self, handle: &NfsFh4, open_stateid: Stateid4) -> (Nfsstat4, Option<Stateid4>) {
        let lock_owner = StateOwner4 { clientid: self.id, owner: "locker".into() };
        let open_seqid = self.next();
        self.lock(handle, Locker4::New { open_seqid, open_stateid, lock_seqid: Seqid4(40), lock_owner })
    }
}

fn opened((status, mut results): (Nfsstat4, Vec<Resop4>)) -> (OpenOk, NfsFh4) {
    assert_eq!(status, Nfsstat4::Ok, "{results:?}");
    let (Some(Resop4::GetFh(Res4::Ok(handle))), Some(Resop4::Open(Res4::Ok(ok)))) = (results.pop(), results.pop())
    else {
        panic!()
    };
    (*ok, handle)
}

#[simnet::test]
async fn client_is_confirmed_and_may_change_its_callback_address() {
    let server = serving();
    let on = Client4::stranger(&server, 0);
    let first = introduce(&on, "a", 1);
    assert_eq!(renew(&on, first.clientid), Nfsstat4::StaleClientid, "the client is not confirmed");
    let again = introduce(&on, "a", 1);
    assert_eq!(confirm(&on, &first), Nfsstat4::StaleClientid, "the record was replaced before its confirmation");
    assert_eq!(confirm(&on, &again), Nfsstat4::Ok);
    assert_eq!(confirm(&on, &again), Nfsstat4::Ok, "a retry succeeds");
    assert_eq!(renew(&on, again.clientid), Nfsstat4::Ok);
    let moved = introduce(&on, "a", 1);
    assert_eq!(moved.clientid, again.clientid);
    assert_ne!(moved.setclientid_confirm, again.setclientid_confirm);
    assert_eq!(confirm(&on, &moved), Nfsstat4::Ok);
    assert_eq!(confirm(&on, &again), Nfsstat4::StaleClientid);
    let stranger = Client4 { caller: user(7, 7), ..Client4::stranger(&server, 0) };
    let other = introduce(&stranger, "a", 1);
    assert_ne!(other.clientid, again.clientid, "another principal may take the name of a client without state");
    assert_eq!(confirm(&on, &other), Nfsstat4::ClidInuse);
    assert_eq!(confirm(&stranger, &other), Nfsstat4::Ok);
    assert_eq!(renew(&on, again.clientid), Nfsstat4::StaleClientid);
}

#[simnet::test]
async fn open_is_usable_after_its_owner_is_confirmed() {
    let server = serving();
    let mut client = Client40::new(&server, "a");
    let (ok, handle) = client.open("f");
    assert_ne!(ok.rflags & OPEN4_RESULT_CONFIRM, 0);
    assert_eq!(client.status([putfh(&handle), read(ok.stateid, 0, 10)]), Nfsstat4::BadStateid);
    let wrong = OpenConfirmArgs { open_stateid: ok.stateid, seqid: Seqid4(9) };
    assert_eq!(client.status([putfh(&handle), Argop4::OpenConfirm(wrong)]), Nfsstat4::BadSeqid);
    let right = OpenConfirmArgs { open_stateid: ok.stateid, seqid: client.next() };
    let (_, results) = client.call([putfh(&handle), Argop4::OpenConfirm(right)]);
    let [_, Resop4::OpenConfirm(Res4::Ok(stateid))] = results[..] else { panic!("{results:?}") };
    assert_eq!(client.status([putfh(&handle), write(stateid, 0, b"data")]), Nfsstat4::Ok);
    assert_eq!(client.status([putfh(&handle), write(ok.stateid, 0, b"data")]), Nfsstat4::OldStateid);
    let (second, _) = client.open("g");
    assert_eq!(second.rflags & OPEN4_RESULT_CONFIRM, 0, "the owner is confirmed once");
}

#[simnet::test]
async fn reclaimed_open_needs_no_confirmation() {
    let machine = Machine::new();
    let handle = {
        let mut client = Client40::new(&machine.start(GRACE), "a");
        client.dir = "/m".to_owned();
        client.open_first("f").1
    };
    let server = machine.start(GRACE);
    let mut client = Client40::new(&server, "a");
    let open = |client: &mut Client40| {
        let (seqid, owner) = (client.next(), StateOwner4 { clientid: client.id, owner: "owner".into() });
        let Argop4::Open(args) = v4::open("f", Open { create: false, ..Open::default() }) else { unreachable!() };
        let claim = OpenClaim4::Previous(OpenDelegationType4::None);
        opened(client.call([
            putfh(&handle),
            Argop4::Open(Box::new(OpenArgs { seqid, owner, claim, ..*args })),
            Argop4::GetFh,
        ]))
        .0
    };
    let ok = open(&mut client);
    assert_eq!(ok.rflags & OPEN4_RESULT_CONFIRM, 0);
    assert_eq!(client.status([putfh(&handle), read(ok.stateid, 0, 10)]), Nfsstat4::Ok);
    assert_eq!(open(&mut client).stateid.other, ok.stateid.other, "the second reclaim must not close the first");
}

#[simnet::test]
async fn open_file_keeps_its_data_when_another_client_removes_its_name() {
    let server = serving();
    let (mut holder, mut other) = (Client40::new(&server, "a"), Client40::new(&server, "b"));
    let (stateid, handle) = holder.open_first("f");
    assert_eq!(holder.status([putfh(&handle), write(stateid, 0, b"data")]), Nfsstat4::Ok);
    other.open_first("g");
    let rename = |from: &str, to: &str| {
        let rename = RenameArgs { oldname: from.into(), newname: to.into() };
        [Argop4::PutRootFh, Argop4::SaveFh, Argop4::Rename(rename)]
    };
    assert_eq!(other.status(rename("g", "f")), Nfsstat4::Ok, "g replaces f");
    let check_and_close = |holder: &mut Client40, handle: &NfsFh4, stateid| {
        let (_, results) = holder.call([putfh(handle), read(stateid, 0, 10)]);
        let [_, Resop4::Read(Res4::Ok(read))] = &results[..] else { panic!("{results:?}") };
        assert_eq!(read.data.0.to_bytes().unwrap(), &b"data"[..]);
        let seqid = holder.next();
        assert_eq!(holder.status([putfh(handle), close_op(seqid.0, stateid)]), Nfsstat4::Ok);
        assert_eq!(holder.status([putfh(handle), v4::getattr(&[Attr4::Size])]), Nfsstat4::Stale);
    };
    check_and_close(&mut holder, &handle, stateid);

    let (OpenOk { stateid, .. }, handle) = holder.open("h");
    assert_eq!(holder.status([putfh(&handle), write(stateid, 0, b"data")]), Nfsstat4::Ok);
    assert_eq!(other.status([Argop4::PutRootFh, v4::remove("h")]), Nfsstat4::Ok);
    check_and_close(&mut holder, &handle, stateid);
}

#[simnet::test]
async fn retry_of_an_owner_gets_the_cached_result() {
    let server = serving();
    let mut client = Client40::new(&server, "a");
    client.open_first("f");
    let seqid = client.next();
    let first = client.call(client.open_op("g", seqid));
    assert_eq!(client.call(client.open_op("g", seqid)), first, "the retry also sets the current file handle");
    let (ok, handle) = opened(first);
    assert_eq!(ok.stateid.seqid, 1, "the file must be opened once");
    let close = [putfh(&handle), Argop4::Close(CloseArgs { seqid: client.next(), open_stateid: ok.stateid })];
    assert_eq!(client.status(close.clone()), Nfsstat4::Ok);
    assert_eq!(client.status(close.clone()), Nfsstat4::Ok, "the retry gets the cached result");
    let again =
        [putfh(&handle), Argop4::Close(CloseArgs { seqid: Seqid4(client.seqid + 1), open_stateid: ok.stateid })];
    assert_eq!(client.status(again), Nfsstat4::BadStateid, "the open no longer exists");
    assert_eq!(client.status(close), Nfsstat4::BadStateid, "the stateid no longer names an owner");
    assert_eq!(client.status(client.open_op("g", Seqid4(90))), Nfsstat4::BadSeqid);
    let missing = client.next();
    let mut operations = client.open_op("no/slash", missing);
    assert_eq!(client.status(operations.clone()), Nfsstat4::BadChar);
    operations.truncate(2);
    assert_eq!(client.status(operations), Nfsstat4::BadChar, "a failure is cached too");
    client.open("h");
}

#[simnet::test]
async fn lock_owners_have_their_own_sequence() {
    let server = serving();
    let (mut one, mut two) = (Client40::new(&server, "a"), Client40::new(&server, "b"));
    let (open, handle) = one.open_first("f");
    let (other_open, _) = two.open_first("f");
    let of_another = StateOwner4 { clientid: two.id, owner: "locker".into() };
    let new = Locker4::New {
        open_seqid: Seqid4(one.seqid + 1),
        open_stateid: open,
        lock_seqid: Seqid4(40),
        lock_owner: of_another,
    };
    assert_eq!(one.lock(&handle, new).0, Nfsstat4::BadStateid, "the lock-owner names another client");
    let (_, locked) = one.lock_first(&handle, open);
    let locked = locked.unwrap();
    assert_eq!(two.lock_first(&handle, other_open), (Nfsstat4::Denied, None));
    let exist = |lock_seqid| Locker4::Exist { lock_stateid: locked, lock_seqid: Seqid4(lock_seqid) };
    assert_eq!(one.lock(&handle, exist(50)).0, Nfsstat4::BadSeqid);
    let (status, again) = one.lock(&handle, exist(41));
    assert_eq!((status, one.lock(&handle, exist(41)).1), (Nfsstat4::Ok, again), "the retry gets the cached result");
    let owner = StateOwner4 { clientid: one.id, owner: "locker".into() };
    let release = || Argop4::ReleaseLockOwner(ReleaseLockOwnerArgs { lock_owner: owner.clone() });
    assert_eq!(one.status([release()]), Nfsstat4::LocksHeld);
    let unlock = |seqid, lock_stateid| {
        let args =
            LockUArgs { locktype: NfsLockType4::Write, seqid: Seqid4(seqid), lock_stateid, offset: 0, length: 10 };
        [putfh(&handle), Argop4::LockU(args)]
    };
    assert_eq!(one.status(unlock(42, again.unwrap())), Nfsstat4::Ok);
    assert_eq!(two.lock_first(&handle, other_open).0, Nfsstat4::Ok);
    assert_eq!(one.status([release()]), Nfsstat4::Ok);
    assert_eq!(one.status(unlock(43, again.unwrap())), Nfsstat4::BadStateid);
}

#[simnet::test]
async fn restarted_client_loses_its_state() {
    let server = serving();
    let (mut one, mut two) = (Client40::new(&server, "a"), Client40::new(&server, "b"));
    let (open, handle) = one.open_first("f");
    let (other_open, _) = two.open_first("f");
    assert_eq!(one.lock_first(&handle, open).0, Nfsstat4::Ok);
    let restarted = introduce(&one.on, "a", 2);
    assert_eq!(two.lock_first(&handle, other_open).0, Nfsstat4::Denied, "the state stays until the confirmation");
    assert_eq!(confirm(&one.on, &restarted), Nfsstat4::Ok);
    assert_eq!(two.lock_first(&handle, other_open).0, Nfsstat4::Ok);
    assert_eq!(one.status([putfh(&handle), read(open, 0, 1)]), Nfsstat4::BadStateid);
    assert_eq!(renew(&one.on, one.id), Nfsstat4::StaleClientid);
    // A client that returns with a later version has restarted too.
    let Resop4::ExchangeId(Res4::Ok(exchanged)) = Client4::stranger(&server, 1).alone(v4::exchange_id("b")) else {
        panic!()
    };
    assert_ne!(exchanged.clientid, two.id);
}

#[simnet::test]
async fn operations_of_a_compound_are_bounded() {
    let client = Client40::new(&serving(), "a");
    assert_eq!(client.status(vec![Argop4::PutRootFh; 64]), Nfsstat4::Ok);
    let (status, results) = client.call(vec![Argop4::PutRootFh; 65]);
    assert_eq!((status, results.len()), (Nfsstat4::Resource, 0));
}

#[simnet::test]
async fn only_readable_attributes_of_this_version_are_returned() {
    let client = Client40::new(&serving(), "a");
    let (_, results) = client.call([Argop4::PutRootFh, v4::getattr(&[Attr4::SupportedAttrs])]);
    let Some(Resop4::GetAttr(Res4::Ok(fattr))) = results.last() else { panic!("{results:?}") };
    let supported = fattr.to_attrs(0, Purpose::Get).unwrap().supported_attrs.unwrap();
    assert!(supported.contains(Attr4::MountedOnFileid as u32));
    assert!(supported.iter().all(|attr| attr <= Attr4::MountedOnFileid as u32), "{supported:?}");
    for attr in [Attr4::TimeAccessSet, Attr4::TimeModifySet] {
        assert_eq!(client.status([Argop4::PutRootFh, v4::getattr(&[Attr4::Size, attr])]), Nfsstat4::Inval);
        let attr_request = [attr as u32].into_iter().collect();
        let list = ReadDirArgs { cookie: 0, cookieverf: [0; 8], dircount: 0, maxcount: 4096, attr_request };
        assert_eq!(client.status([Argop4::PutRootFh, Argop4::ReadDir(list)]), Nfsstat4::Inval);
    }
    assert_eq!(client.status([Argop4::PutRootFh, Argop4::RestoreFh]), Nfsstat4::RestoreFh);
}

#[simnet::test]
async fn client_with_state_keeps_its_name() {
    let server = serving();
    let mut one = Client40::new(&server, "a");
    one.open_first("f");
    let stranger = Client4 { caller: user(7, 7), ..Client4::stranger(&server, 0) };
    let result = stranger.alone(set_clientid("a", 1));
    let Resop4::SetClientId(SetClientIdRes::ClidInuse(address)) = result else { panic!("{result:?}") };
    assert_eq!(
        address,
        Netaddr4 { netid: "tcp".into(), addr: "192.0.2.1.2.1".into() },
        "the error has the callback address of the client"
    );
    assert_eq!(renew(&one.on, one.id), Nfsstat4::Ok);
}

#[simnet::test]
async fn stateids_of_another_server_start_are_stale() {
    let (server, other) = (serving(), serving());
    let (mut here, mut there) = (Client40::new(&server, "a"), Client40::new(&other, "a"));
    let (_, handle) = here.open_first("f");
    let (foreign, _) = there.open_first("f");
    let foreign = Stateid4 { other: std::array::from_fn(|at| foreign.other[at] ^ u8::from(at < 4)), ..foreign };
    assert_eq!(here.status([putfh(&handle), read(foreign, 0, 1)]), Nfsstat4::StaleStateid);
    assert_eq!(here.status([putfh(&handle), read(Stateid4::CURRENT, 0, 1)]), Nfsstat4::BadStateid);
    assert_eq!(here.status([putfh(&handle), read(Stateid4::ANONYMOUS, 0, 1)]), Nfsstat4::Ok);
    assert_eq!(renew(&here.on, Clientid4(here.id.0 ^ 1 << 40)), Nfsstat4::StaleClientid);
    let sequence = Argop4::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });
    assert_eq!(here.status([sequence]), Nfsstat4::OpIllegal, "the operation belongs to a later version");
    assert_eq!(here.status(at("f")), Nfsstat4::Ok);
}

const GRACE: Duration = Duration::from_secs(3600);

#[test]
fn cached_result_is_not_sent_to_a_connection_in_clear_or_to_another_principal() {
    let server = serving();
    let mut client = Client40::new(&server, "a");
    let over = |client: &mut Client40, tls| client.on.paper = Paper::with_tls("tcp", 4 << 20, tls);
    over(&mut client, ConnectionTls::Tls);
    client.open_first("f");
    let seqid = client.next();
    let open = client.open_op("f", seqid);
    let first = client.call(open.clone());
    assert_eq!(first.0, Nfsstat4::Ok);
    assert_eq!(client.call(open.clone()), first, "a retry over TLS must get the cached result");
    over(&mut client, ConnectionTls::None);
    assert_eq!(client.status(open.clone()), Nfsstat4::BadSeqid);
    over(&mut client, ConnectionTls::Tls);
    let own = std::mem::replace(&mut client.on.caller, user(1000, 1000));
    assert_eq!(client.status(open.clone()), Nfsstat4::BadSeqid);
    client.on.caller = own;
    assert_eq!(client.call(open), first);
}

/// Serves a directory in which everybody may create files, by all flavours. The lease is short.
fn shared() -> NfsServer {
    let sec = SecFlavors::new(Sec::ALL.to_vec()).unwrap();
    let options = ExportOptions { squash: Squash::None, sec, ..ExportOptions::default() };
    let export = Export::new("/m", ExportId::unique(), plain_memory(), options).unwrap();
    let settings = on_one_thread(Settings { lease: LEASE, ..Settings::default() });
    let server = NfsServer::recovering(export, HandleKey::random(), Recovery::in_memory(), settings).unwrap();
    let rig = Rig::calling(&server);
    rig.set_mode(&rig.root(), 0o777);
    server
}

const LEASE: Duration = Duration::from_secs(10);

fn principal(name: &'static str) -> Identity {
    Identity::Principal(Principal { name: name.into(), pseudo_flavor: 390_003 })
}

fn close_op(seqid: u32, open_stateid: Stateid4) -> Argop4 {
    Argop4::Close(CloseArgs { seqid: Seqid4(seqid), open_stateid })
}

fn lock_owner(client: &Client40) -> StateOwner4 {
    StateOwner4 { clientid: client.id, owner: "locker".into() }
}

fn lock_test(client: &Client40, handle: &NfsFh4) -> Nfsstat4 {
    let owner = lock_owner(client);
    let args = LockTArgs { locktype: NfsLockType4::Read, offset: 0, length: 1, owner };
    client.status([putfh(handle), Argop4::LockT(args)])
}

/// A caller that knows the names and IDs of a client of TLS has no effect in clear, and does not keep its lease.
#[simnet::test]
async fn caller_in_clear_does_not_use_a_client_of_tls() {
    let server = shared();
    let mut client = Client40 { dir: "m".to_owned(), ..over_tls(&server, "a") };
    let (stateid, handle) = client.open_first("f");
    let locker = Locker4::New {
        open_seqid: client.next(),
        open_stateid: stateid,
        lock_seqid: Seqid4(1),
        lock_owner: lock_owner(&client),
    };
    let (_, Some(lock_stateid)) = client.lock(&handle, locker) else { panic!("LOCK") };
    let over = |client: &mut Client40, tls| client.on.paper = Paper::with_tls("tcp", 4 << 20, tls);
    over(&mut client, ConnectionTls::None);
    let next = client.seqid + 1;
    let release = || Argop4::ReleaseLockOwner(ReleaseLockOwnerArgs { lock_owner: lock_owner(&client) });
    let attempt = |client: &Client40| {
        assert_eq!(renew(&client.on, client.id), Nfsstat4::StaleClientid);
        assert_eq!(client.status([release()]), Nfsstat4::StaleClientid);
        assert_eq!(lock_test(client, &handle), Nfsstat4::StaleClientid);
        assert_eq!(client.status(client.open_op("f", Seqid4(next))), Nfsstat4::StaleClientid);
        assert_eq!(client.status([putfh(&handle), close_op(next, stateid)]), Nfsstat4::BadStateid);
        assert_eq!(client.status([putfh(&handle), read(stateid, 0, 1)]), Nfsstat4::BadStateid);
        let unlock =
            LockUArgs { locktype: NfsLockType4::Write, seqid: Seqid4(2), lock_stateid, offset: 0, length: u64::MAX };
        assert_eq!(client.status([putfh(&handle), Argop4::LockU(unlock)]), Nfsstat4::BadStateid);
        let again = client.on.alone(set_clientid("a", 1));
        assert!(matches!(again, Resop4::SetClientId(SetClientIdRes::ClidInuse(_))), "{again:?}");
    };
    attempt(&client);
    over(&mut client, ConnectionTls::Tls);
    assert_eq!(client.status([putfh(&handle), read(stateid, 0, 1)]), Nfsstat4::Ok);
    let seqid = client.next();
    assert_eq!(client.status(client.open_op("f", seqid)), Nfsstat4::Ok, "the sequence must not have advanced");
    over(&mut client, ConnectionTls::None);
    for _ in 0..3 {
        tokio::time::sleep(LEASE / 2).await;
        assert_eq!(renew(&client.on, client.id), Nfsstat4::StaleClientid);
    }
    let taken = Client40::new(&server, "a");
    assert_ne!(taken.id, client.id, "after its lease, the name of the client is free");
}

fn over_tls(server: &NfsServer, name: &str) -> Client40 {
    let mut on = Client4::stranger(server, 0);
    on.paper = Paper::with_tls("tcp", 4 << 20, ConnectionTls::Tls);
    let introduced = introduce(&on, name, 1);
    assert_eq!(confirm(&on, &introduced), Nfsstat4::Ok);
    Client40 { on, id: introduced.clientid, seqid: 0, dir: String::new() }
}

/// A client with a keytab introduces itself with Kerberos. Its users may call with Kerberos or with AUTH_SYS.
#[simnet::test]
async fn caller_with_auth_sys_does_not_use_the_owners_of_kerberos() {
    let server = shared();
    let mut on = Client4::stranger(&server, 0);
    on.caller = principal("host/a@REALM");
    let introduced = introduce(&on, "a", 1);
    assert_eq!(confirm(&on, &introduced), Nfsstat4::Ok);
    let mut client = Client40 { on, id: introduced.clientid, seqid: 0, dir: "m".to_owned() };
    client.on.caller = principal("alice@REALM");
    let (stateid, handle) = client.open_first("f");
    let locker = Locker4::New {
        open_seqid: client.next(),
        open_stateid: stateid,
        lock_seqid: Seqid4(1),
        lock_owner: lock_owner(&client),
    };
    assert_eq!(client.lock(&handle, locker).0, Nfsstat4::Ok);
    let next = client.seqid + 1;
    client.on.caller = user(0, 0);
    let release = Argop4::ReleaseLockOwner(ReleaseLockOwnerArgs { lock_owner: lock_owner(&client) });
    assert_eq!(client.status([release]), Nfsstat4::StaleClientid);
    assert_eq!(client.status(client.open_op("f", Seqid4(next))), Nfsstat4::BadSeqid);
    assert_eq!(client.status([putfh(&handle), close_op(next, stateid)]), Nfsstat4::BadSeqid);
    assert_eq!(client.status([putfh(&handle), read(stateid, 0, 1)]), Nfsstat4::BadStateid);
    assert_eq!(renew(&client.on, client.id), Nfsstat4::Access);
    client.on.caller = principal("alice@REALM");
    let seqid = client.next();
    assert_eq!(client.status(client.open_op("f", seqid)), Nfsstat4::Ok, "the sequence must not have advanced");
    assert_eq!(renew(&client.on, client.id), Nfsstat4::Ok);
    for _ in 0..3 {
        tokio::time::sleep(LEASE / 2).await;
        client.on.caller = user(0, 0);
        assert_eq!(lock_test(&client, &handle), Nfsstat4::Ok, "LOCKT by a user of AUTH_SYS has an answer");
        assert_eq!(renew(&client.on, client.id), Nfsstat4::Access);
    }
    client.on.caller = principal("alice@REALM");
    let other = Client40::new(&server, "b");
    let deny = Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() };
    let Argop4::Open(args) = v4::open("f", deny) else { unreachable!() };
    let owner = StateOwner4 { clientid: other.id, ..args.owner.clone() };
    let open = Argop4::Open(Box::new(OpenArgs { seqid: Seqid4(1), owner, ..*args }));
    assert_eq!(other.status(at("m").into_iter().chain([open])), Nfsstat4::Ok, "the lease was not renewed");
    assert_eq!(renew(&client.on, client.id), Nfsstat4::Expired);
}

/// RFC 7530 §16.28.4.
#[simnet::test]
async fn only_users_of_a_client_renew_its_lease() {
    let server = shared();
    for (file, host, alice, bob) in [
        ("f", user(7, 7), user(0, 0), user(8, 8)),
        ("g", principal("host/a@REALM"), principal("alice@REALM"), principal("bob@REALM")),
    ] {
        let mut on = Client4::stranger(&server, 0);
        on.caller = host.clone();
        let introduced = introduce(&on, "a", 1);
        assert_eq!(confirm(&on, &introduced), Nfsstat4::Ok);
        let mut client = Client40 { on, id: introduced.clientid, seqid: 0, dir: "m".to_owned() };
        for (caller, expected) in [(&host, Nfsstat4::Ok), (&alice, Nfsstat4::Access), (&bob, Nfsstat4::Access)] {
            client.on.caller = caller.clone();
            assert_eq!(renew(&client.on, client.id), expected, "{caller:?}");
        }
        client.on.caller = alice.clone();
        let (stateid, handle) = client.open_first(file);
        assert_eq!(renew(&client.on, client.id), Nfsstat4::Ok, "alice has an open file");
        client.on.caller = bob;
        assert_eq!(renew(&client.on, client.id), Nfsstat4::Access);
        client.on.caller = alice;
        let seqid = client.next();
        assert_eq!(client.status([putfh(&handle), close_op(seqid.0, stateid)]), Nfsstat4::Ok);
        assert_eq!(renew(&client.on, client.id), Nfsstat4::Access, "the file is closed");
    }
}

/// As Linux does with a keytab, for a mount with `sec=sys`.
#[simnet::test]
async fn client_of_kerberos_may_have_owners_of_auth_sys() {
    let server = shared();
    let mut on = Client4::stranger(&server, 0);
    on.caller = principal("host/a@REALM");
    let introduced = introduce(&on, "a", 1);
    assert_eq!(confirm(&on, &introduced), Nfsstat4::Ok);
    on.caller = user(0, 0);
    let mut client = Client40 { on, id: introduced.clientid, seqid: 0, dir: "m".to_owned() };
    let stranger = Client4 { caller: user(7, 7), ..Client4::stranger(&server, 0) };
    let name_is_taken = || {
        let refused = stranger.alone(set_clientid("a", 1));
        assert!(matches!(refused, Resop4::SetClientId(SetClientIdRes::ClidInuse(_))), "{refused:?}");
    };
    let (mut stateid, handle) = client.open_first("f");
    for _ in 0..3 {
        tokio::time::sleep(LEASE * 2 / 3).await;
        assert_eq!(client.status([putfh(&handle), read(stateid, 0, 1)]), Nfsstat4::Ok, "READ renews the lease");
        tokio::time::sleep(LEASE * 2 / 3).await;
        name_is_taken();
        let (ok, _) = client.open("f");
        stateid = ok.stateid;
        tokio::time::sleep(LEASE * 2 / 3).await;
        name_is_taken();
        assert_eq!(lock_test(&client, &handle), Nfsstat4::Ok);
    }
    let seqid = client.next();
    assert_eq!(client.status([putfh(&handle), close_op(seqid.0, stateid)]), Nfsstat4::Ok);
}
