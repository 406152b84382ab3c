//! The security flavours of exports (RFC 8881 §2.6.3, RFC 1813 appendix I).

use crate::common::v4::*;
use crate::common::*;
use std::sync::Arc;

use nfs::{
    mount::{Dirpath, MountOk, MountProc3, MountRes, Mountstat3},
    nfsacl, nlm, v3,
    v4::{attr::Attr4, *},
};
use rpc::{Identity, Service, security::Principal};
use server::{Client, Export, ExportId, ExportOptions, Exports, NfsServer, Sec, SecFlavors, Squash};
use vfs::memory::{Memory, MemoryOptions};
use xdr::{Encode, Message};

const FLAVORS: [Sec; 5] = Sec::ALL;

/// Returns a caller with this flavour.
fn caller(sec: Sec) -> Identity {
    match sec {
        Sec::None => Identity::None,
        Sec::Sys => user(0, 0),
        sec => Identity::Principal(Principal { name: "alice@EXAMPLE.COM".into(), pseudo_flavor: sec.number() }),
    }
}

fn export(name: &str, sec: &[Sec]) -> Export {
    let sec = SecFlavors::new(sec.to_vec()).unwrap();
    let options = ExportOptions { squash: Squash::None, sec, ..Default::default() };
    let vfs = Memory::new(MemoryOptions { mode: 0o777, ..Default::default() });
    Export::new(name, ExportId::of(&[name.as_bytes()]), Arc::new(vfs), options).unwrap()
}

/// Creates a server with one export for each flavour; `/krb5/within`, an export in another one; and `/both`.
fn server() -> NfsServer {
    let mut exports = Exports::new();
    for sec in FLAVORS {
        exports.add(export(&format!("/{}", sec.name()), &[sec])).unwrap();
    }
    exports.add(export("/krb5/within", &[Sec::Sys])).unwrap();
    exports.add(export("/both", &[Sec::Krb5p, Sec::Sys])).unwrap();
    server_of(exports)
}

fn lookup(name: &str) -> Argop4 {
    Argop4::Lookup(LookupArgs { objname: name.into() })
}

fn secinfo(name: &str) -> Argop4 {
    Argop4::Secinfo(SecinfoArgs { name: name.into() })
}

/// Returns the names of the flavours in the result of SECINFO or SECINFO_NO_NAME.
fn listed(result: Option<Resop4>) -> Vec<&'static str> {
    let (Some(Resop4::Secinfo(Res4::Ok(found))) | Some(Resop4::SecinfoNoName(Res4::Ok(found)))) = result else {
        panic!("{result:?}")
    };
    let name = |info: &Secinfo4| match info {
        Secinfo4::Flavor(0) => "none",
        Secinfo4::Flavor(1) => "sys",
        Secinfo4::RpcsecGss(RpcsecGssInfo { oid, qop: 0, service }) => {
            assert_eq!(&oid[..], [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2]);
            match service {
                RpcGssSvc::None => "krb5",
                RpcGssSvc::Integrity => "krb5i",
                RpcGssSvc::Privacy => "krb5p",
            }
        }
        other => panic!("{other:?}"),
    };
    found.iter().map(name).collect()
}

/// Returns a client whose calls have this flavour, with a session that was created with another one.
fn client(server: &NfsServer, sec: Sec) -> Client4 {
    let mut client = Client4::stranger(server, 2);
    client.caller = caller(Sec::Krb5i);
    client.introduce(&format!("client {}", sec.name()), channel());
    client.caller = caller(sec);
    client
}

/// Returns the first word of the results of a call.
fn status_word(rig: &Rig, service: &dyn Service, procedure: u32, args: &Message) -> u32 {
    let reply = rig.raw(service, procedure, args).expect("the call must be accepted");
    u32::from_be_bytes(*reply.stream[24..].first_chunk().unwrap())
}

/// Returns the calls of all procedures of NFSv3 that have a file handle, with this handle.
fn every_call(fh: &v3::NfsFh3) -> Vec<(v3::Proc3, Message)> {
    fn call<P: v3::Procedure3>(args: P::Args) -> (v3::Proc3, Message)
    where
        P::Args: Encode,
    {
        (P::NUMBER, Message::encode(&args))
    }
    let (fh, name) = (|| fh.clone(), |name| name_in(fh, name));
    let set = v3::Sattr3::default;
    let mknod = v3::MkNodArgs { what: name("node"), data: v3::MkNodData3::Fifo(set()) };
    let symlink = v3::SymLinkArgs {
        what: name("link"),
        symlink_attributes: set(),
        symlink_data: bytes::Bytes::from("to").into(),
    };
    let pages = v3::ReadDirPlusArgs { dir: fh(), cookie: 0, cookieverf: [0; 8], dircount: 512, maxcount: 4096 };
    vec![
        call::<v3::GetAttr>(v3::GetAttrArgs { object: fh() }),
        call::<v3::SetAttr>(v3::SetAttrArgs { object: fh(), new_attributes: set(), guard: None }),
        call::<v3::Lookup>(v3::LookupArgs { what: name("x") }),
        call::<v3::Access>(v3::AccessArgs { object: fh(), access: 1 }),
        call::<v3::ReadLink>(v3::ReadLinkArgs { symlink: fh() }),
        call::<v3::Read>(v3::ReadArgs { file: fh(), offset: 0, count: 1 }),
        call::<v3::Write>(write_args(&fh(), 0, b"x")),
        call::<v3::Create>(v3::CreateArgs { what: name("file"), how: v3::CreateHow3::Unchecked(set()) }),
        call::<v3::MkDir>(v3::MkDirArgs { what: name("dir"), attributes: set() }),
        call::<v3::SymLink>(symlink),
        call::<v3::MkNod>(mknod),
        call::<v3::Remove>(v3::RemoveArgs { object: name("x") }),
        call::<v3::RmDir>(v3::RemoveArgs { object: name("x") }),
        call::<v3::Rename>(v3::RenameArgs { from: name("x"), to: name("y") }),
        call::<v3::Link>(v3::LinkArgs { file: fh(), link: name("y") }),
        call::<v3::ReadDir>(v3::ReadDirArgs { dir: fh(), cookie: 0, cookieverf: [0; 8], count: 4096 }),
        call::<v3::ReadDirPlus>(pages),
        call::<v3::FsStat>(v3::FsStatArgs { fsroot: fh() }),
        call::<v3::FsInfo>(v3::FsInfoArgs { fsroot: fh() }),
        call::<v3::PathConf>(v3::PathConfArgs { object: fh() }),
        call::<v3::Commit>(v3::CommitArgs { file: fh(), offset: 0, count: 0 }),
    ]
}

#[simnet::test]
async fn every_procedure_requires_a_flavour_of_the_export() {
    const ACCES: u32 = 13;
    let server = server();
    let mut rig = Rig::calling(&server);
    let (acl, locks) = (server.nfsacl3(), server.nlm4());
    for (allowed, own) in FLAVORS.into_iter().flat_map(|sec| FLAVORS.map(|own| (sec, own))) {
        rig.caller = caller(own);
        let root = rig.root_of(&format!("/{}", allowed.name()));
        let calls = every_call(&root);
        assert_eq!(calls.len(), 21, "all procedures but NULL");
        for (procedure, args) in calls {
            let status = status_word(&rig, &*rig.nfs, procedure as u32, &args);
            assert_eq!(status == ACCES, allowed != own, "{procedure:?} by {own:?} with {allowed:?} gets {status}");
        }
        let args = Message::encode(&nfsacl::GetAclArgs { fh: root.clone(), mask: 1 });
        let status = status_word(&rig, &acl, nfsacl::AclProc3::GetAcl as u32, &args);
        assert_eq!(status == ACCES, allowed != own, "GETACL gets {status}");
        let lock = nlm::Lock {
            caller_name: "host".into(),
            fh: root.0.clone().into(),
            oh: "o".into(),
            svid: 1,
            offset: 0,
            len: 1,
        };
        let args = Message::encode(&nlm::UnlockArgs { cookie: "c".into(), lock });
        let reply = rig.raw(&locks, nlm::NlmProc4::Unlock as u32, &args).unwrap();
        let refused = results::<nlm::Res>(&reply).status == nlm::Nlm4Stats::Denied;
        assert_eq!(refused, allowed != own, "UNLOCK by {own:?} with {allowed:?}");
    }
}

#[simnet::test]
async fn mnt_lists_the_flavours_and_serves_callers_with_another_one_as_the_anonymous_user() {
    let mut exports = Exports::new();
    let krb5p: Client = "10.0.0.0/8".parse::<Client>().unwrap().with_sec(Sec::Krb5p.into());
    let sec = SecFlavors::new(vec![Sec::Krb5i, Sec::Krb5]).unwrap();
    let clients = vec![krb5p, Client::any()];
    let options = ExportOptions { squash: Squash::None, sec, clients, ..Default::default() };
    exports.add(Export::new("/m", ExportId::unique(), memory(), options).unwrap()).unwrap();
    let mut exports = Rig::serving(exports);
    let mnt = |rig: &Rig, path: &str| match rig.mount(MountProc3::Mnt, Dirpath::from(path)) {
        MountRes::Ok(MountOk { auth_flavors, .. }) => Ok(auth_flavors),
        MountRes::Fail(status) => Err(status),
    };
    assert_eq!(mnt(&exports, "/m"), Ok(vec![390_004, 390_003]));
    assert_eq!(mnt(&exports.from("10.2.3.4:700"), "/m"), Ok(vec![390_005]));
    exports.caller = Identity::None;
    assert_eq!(mnt(&exports, "/m"), Ok(vec![390_004, 390_003]));

    // A claimed root must not see a directory that the anonymous user cannot reach.
    let vfs = plain_memory();
    let open = Export::new(
        "/open",
        ExportId::of(&[b"1"]),
        vfs.clone(),
        ExportOptions { squash: Squash::None, ..Default::default() },
    );
    let rig = Rig::serving(open.unwrap());
    let hidden = rig.dir(&rig.root_of("/open"), "hidden");
    rig.dir(&hidden, "below");
    rig.set_mode(&hidden, 0o700);
    let options = ExportOptions { squash: Squash::None, sec: Sec::Krb5.into(), ..Default::default() };
    let rig = Rig::serving(Export::new("/open", ExportId::of(&[b"1"]), vfs, options).unwrap());
    assert_eq!(mnt(&rig, "/open/hidden/below"), Err(Mountstat3::Acces));
    assert_eq!(mnt(&rig, "/open/hidden"), Ok(vec![390_003]));
}

#[simnet::test]
async fn names_lead_to_wrongsec_and_secinfo_lists_what_is_then_accepted() {
    let server = server();
    for own in FLAVORS {
        let mut client = client(&server, own);
        for other in FLAVORS {
            let name = other.name();
            let (status, results) = client.call([Argop4::PutRootFh, lookup(name), Argop4::GetFh]);
            let expected = if own == other { Nfsstat4::Ok } else { Nfsstat4::WrongSec };
            assert_eq!(status, expected, "LOOKUP of /{name} by {own:?}");
            assert_eq!(results.len(), if own == other { 3 } else { 2 });
            let found = listed(client.ok([Argop4::PutRootFh, secinfo(name)]).pop());
            assert_eq!(found, [name], "SECINFO of /{name} by {own:?}");
        }
        assert_eq!(listed(client.ok([Argop4::PutRootFh, secinfo("both")]).pop()), ["krb5p", "sys"]);
        let root = client.ok([Argop4::PutRootFh, Argop4::SecinfoNoName(SecinfoStyle4::CurrentFh)]).pop();
        assert_eq!(
            listed(root),
            ["sys", "krb5", "krb5i", "krb5p", "none"],
            "the root must offer all flavours below it"
        );
        let entries = client.ok([Argop4::PutRootFh, readdir(&[Attr4::RdattrError, Attr4::Fileid])]).pop();
        let Some(Resop4::ReadDir(Res4::Ok(read))) = entries else { panic!("{entries:?}") };
        assert_eq!(read.reply.entries.len(), 6, "entries with another flavour must be listed");
        for entry in &read.reply.entries {
            let own_flavor = &entry.name[..] == own.name().as_bytes()
                || &entry.name[..] == b"both" && [Sec::Krb5p, Sec::Sys].contains(&own);
            let error = entry.attrs.to_attrs(2, nfs::v4::attr::Purpose::Get).unwrap().rdattr_error;
            let expected = if own_flavor { Nfsstat4::Ok } else { Nfsstat4::WrongSec };
            assert_eq!(error, Some(expected), "{} by {own:?}", entry.name.escape_ascii());
        }
        let status = client.status([Argop4::PutRootFh, readdir(&[Attr4::Fileid])]);
        //= rfc8881-2.6.3.1.1.7-2
        assert_eq!(status, Nfsstat4::Access, "without rdattr_error, READDIR must fail");
    }
}

fn readdir(wanted: &[Attr4]) -> Argop4 {
    let attr_request = wanted.iter().map(|&attr| attr as u32).collect();
    Argop4::ReadDir(ReadDirArgs { cookie: 0, cookieverf: [0; 8], dircount: 0, maxcount: 4096, attr_request })
}

#[simnet::test]
async fn a_refused_file_handle_fails_where_the_next_operation_says() {
    let server = server();
    let mut owner = client(&server, Sec::Krb5);
    let root = owner.walk("krb5");
    owner.ok([putfh(&root), mkdir("within")]);
    owner.file("krb5", "file", b"data");
    let mut other = client(&server, Sec::Sys);
    let put = || putfh(&root);
    let how = |create| Open { create, ..Open::default() };
    let getattr_of = |attr| getattr(&[attr]);
    //= rfc8881-18.19.3-1 rfc8881-18.29.4-1 rfc8881-18.29.4-4 rfc8881-18.29.4-5
    //= rfc8881-2.6.3.1.1.1-1 rfc8881-2.6.3.1.1.2-1 rfc8881-2.6.3.1.1.3-1 rfc8881-2.6.3.1.1.4-1 rfc8881-2.6.3.1.1.4-2
    //= rfc8881-2.6.3.1.1.6-1 rfc8881-2.6.3.1.1.7-1 rfc8881-2.6.3.1.1.7-2
    // (the operations after PUTFH, the number of results of them, the status)
    let cases: Vec<(Vec<Argop4>, usize, Nfsstat4)> = vec![
        (vec![], 0, Nfsstat4::Ok),
        (vec![Argop4::SaveFh], 1, Nfsstat4::Ok),
        (vec![Argop4::PutRootFh, Argop4::GetFh], 2, Nfsstat4::Ok),
        (vec![Argop4::LookupP, Argop4::GetFh], 2, Nfsstat4::Ok),
        (vec![lookup("within"), Argop4::GetFh], 2, Nfsstat4::Ok),
        (vec![lookup("file"), Argop4::GetFh], 1, Nfsstat4::WrongSec),
        (vec![lookup("missing")], 1, Nfsstat4::WrongSec),
        (vec![open("file", how(false))], 1, Nfsstat4::WrongSec),
        (vec![open("new", how(true))], 0, Nfsstat4::WrongSec),
        (vec![Argop4::GetFh], 0, Nfsstat4::WrongSec),
        (vec![getattr_of(Attr4::Size)], 0, Nfsstat4::WrongSec),
        (vec![getattr_of(Attr4::LeaseTime)], 1, Nfsstat4::Ok),
        (vec![mkdir("new")], 0, Nfsstat4::WrongSec),
        (vec![remove("file")], 0, Nfsstat4::WrongSec),
        (vec![Argop4::Link(LinkArgs { newname: "x".into() })], 0, Nfsstat4::WrongSec),
        (vec![Argop4::SaveFh, mkdir("new")], 0, Nfsstat4::WrongSec),
        (vec![Argop4::SaveFh, remove("file")], 0, Nfsstat4::WrongSec),
        (vec![Argop4::SaveFh, Argop4::SaveFh, getattr_of(Attr4::Size)], 0, Nfsstat4::WrongSec),
        (vec![Argop4::SaveFh, lookup("within"), Argop4::GetFh], 3, Nfsstat4::Ok),
        (vec![getattr_of(Attr4::LeaseTime), getattr_of(Attr4::Size)], 0, Nfsstat4::WrongSec),
        (vec![getattr_of(Attr4::LeaseTime), mkdir("new")], 0, Nfsstat4::WrongSec),
        (vec![Argop4::SaveFh, Argop4::PutRootFh, Argop4::RestoreFh, Argop4::GetFh], 3, Nfsstat4::WrongSec),
        (vec![secinfo("file"), Argop4::GetFh], 2, Nfsstat4::NoFileHandle),
    ];
    for (operations, results, status) in cases {
        let text = format!("{operations:?}");
        let got = other.call([vec![put()], operations].concat());
        assert_eq!((got.0, got.1.len()), (status, results + 1), "{text}: {got:?}");
    }
    let own = other.walk("sys");
    let rename = Argop4::Rename(RenameArgs { oldname: "file".into(), newname: "x".into() });
    for operation in [rename, Argop4::Link(LinkArgs { newname: "x".into() })] {
        //= rfc8881-2.6.3.1.2-1 rfc8881-2.6.3.1.2-2
        assert_eq!(other.status([put(), Argop4::SaveFh, putfh(&own), operation]), Nfsstat4::XDev);
    }
    //= rfc8881-2.6.3.1.1.5-1 rfc8881-2.6.3.1.1.5-2
    let secinfo_no_name = |style| vec![put(), Argop4::SecinfoNoName(style)];
    assert_eq!(listed(other.ok(secinfo_no_name(SecinfoStyle4::CurrentFh)).pop()), ["krb5"]);
    assert_eq!(listed(other.ok(secinfo_no_name(SecinfoStyle4::Parent)).pop()).len(), 5, "the pseudo root");
    assert_eq!(listed(other.ok([put(), secinfo("within")]).pop()), ["sys"]);
    assert_eq!(listed(other.ok([put(), secinfo("file")]).pop()), ["krb5"]);
    assert_eq!(listed(other.ok([put(), secinfo("missing")]).pop()), ["krb5"], "what exists must not be told");
    // The parent of the export within has another flavour.
    let Some(Resop4::GetFh(Res4::Ok(within))) = other.ok([put(), lookup("within"), Argop4::GetFh]).pop() else {
        panic!()
    };
    //= rfc8881-18.14.3-1
    assert_eq!(other.status([putfh(&within), Argop4::LookupP]), Nfsstat4::WrongSec);
    let parent = other.ok([putfh(&within), Argop4::SecinfoNoName(SecinfoStyle4::Parent)]).pop();
    assert_eq!(listed(parent), ["krb5"]);
}

#[simnet::test]
async fn a_client_can_establish_its_state_with_another_flavour_than_its_files() {
    let mut exports = Exports::new();
    exports.add(export("/", &[Sec::Sys])).unwrap();
    let server = server_of(exports);
    // As a Linux client with a keytab does on a mount with sec=sys.
    let mut client = client(&server, Sec::Sys);
    let file = client.file("", "f", b"data");
    client.caller = caller(Sec::Krb5i);
    client.ok([]);
    client.ok([Argop4::PutRootFh, getattr(&[Attr4::LeaseTime])]);
    assert_eq!(client.status([putfh(&file), getattr(&[Attr4::Size])]), Nfsstat4::WrongSec);
    client.caller = caller(Sec::Sys);
    let (stateid, _) = client.open("", "f", Open::default()).unwrap();
    client.ok([putfh(&file), read(stateid, 0, 4), close(stateid)]);
    client.caller = caller(Sec::Krb5i);
    let session = client.session;
    assert_eq!(client.alone(Argop4::DestroySession(DestroySessionArgs { sessionid: session })).status(), Nfsstat4::Ok);
}

/// A cached reply to an encrypted call is not repeated in clear.
#[simnet::test]
async fn cached_reply_is_not_replayed_with_another_flavour() {
    let server = server();
    let mut client = client(&server, Sec::Krb5p);
    client.cachethis = true;
    let request = || [Argop4::PutRootFh, lookup("both"), getattr(&[Attr4::Size])];
    let first = client.call(request());
    assert_eq!(first.0, Nfsstat4::Ok);
    client.sequence -= 1;
    assert_eq!(client.call(request()), first, "a retry with the same flavour must get the cached reply");
    for sec in [Sec::Krb5, Sec::Krb5i] {
        client.caller = caller(sec);
        let mut all = vec![client.sequence_op(0, client.sequence)];
        all.extend(request());
        assert_eq!(client.compound(all).status, Nfsstat4::SeqFalseRetry, "{sec:?}");
    }
}

/// A principal with this flavour.
fn principal(name: &'static str, sec: Sec) -> Identity {
    Identity::Principal(Principal { name: name.into(), pseudo_flavor: sec.number() })
}

/// A server of one export with this flavour, and a client with state protection: Linux's client with a keytab. Calls are those of
/// alice, with the export's flavour.
fn protected_client(sec: Sec) -> (NfsServer, Client4) {
    let vfs = Memory::new(MemoryOptions { mode: 0o777, ..Default::default() });
    let clients = vec!["192.0.2.0/24".parse().unwrap()];
    let options = ExportOptions { squash: Squash::None, sec: sec.into(), clients, ..Default::default() };
    let server = server_of(Export::new("/", ExportId::unique(), Arc::new(vfs), options).unwrap());
    let mut client = Client4::stranger(&server, 2);
    client.caller = principal("host/client.example.com@EXAMPLE.COM", Sec::Krb5i);
    let must_allow = [Opnum4::Close, Opnum4::OpenDowngrade, Opnum4::LockU, Opnum4::DelegReturn];
    let must_allow = must_allow.into_iter().map(|opnum| opnum as u32).collect();
    let ops = StateProtectOps4 { must_enforce: Bitmap4::new(), must_allow };
    client.introduce_with("client", channel(), StateProtect4A::MachCred(ops));
    client.caller = principal("alice@EXAMPLE.COM", sec);
    (server, client)
}

#[simnet::test]
async fn machine_credential_releases_state_of_an_export_with_another_flavour() {
    for sec in [Sec::Krb5, Sec::Krb5p] {
        let (_server, mut client) = protected_client(sec);
        // An open can only be reduced to an access with which the file was opened before.
        client.open("", "f", Open { access: OPEN4_SHARE_ACCESS_READ, ..Open::default() }).unwrap();
        let (stateid, file) = client.open("", "f", Open::default()).unwrap();
        let locker = Locker4::New {
            open_seqid: Seqid4(0),
            open_stateid: stateid,
            lock_seqid: Seqid4(0),
            lock_owner: StateOwner4 { clientid: Clientid4(0), owner: "lock".into() },
        };
        let lock = LockArgs { locktype: NfsLockType4::Write, reclaim: false, offset: 0, length: 1, locker };
        let locked = client.ok([putfh(&file), Argop4::Lock(lock)]).pop();
        let Some(Resop4::Lock(LockRes::Ok(lock_stateid))) = locked else { panic!("{locked:?}") };
        let unlock = LockUArgs { locktype: NfsLockType4::Write, seqid: Seqid4(0), lock_stateid, offset: 0, length: 1 };
        let downgrade = OpenDowngradeArgs {
            open_stateid: stateid,
            seqid: Seqid4(0),
            share_access: OPEN4_SHARE_ACCESS_READ,
            share_deny: OPEN4_SHARE_DENY_NONE,
        };

        // The ticket of alice has ended.
        let machine = principal("host/client.example.com@EXAMPLE.COM", Sec::Krb5i);
        // Only the machine may replace her, with integrity.
        //= rfc8881-2.10.8.3-1
        for other in [
            principal("bob@EXAMPLE.COM", Sec::Krb5i),
            principal("host/client.example.com@EXAMPLE.COM", if sec == Sec::Krb5 { Sec::Krb5p } else { Sec::Krb5 }),
            user(0, 0),
        ] {
            let by_machine = other == principal("host/client.example.com@EXAMPLE.COM", Sec::Krb5p);
            client.caller = other;
            let expected = if by_machine { Nfsstat4::Ok } else { Nfsstat4::WrongSec };
            let status = client.status([putfh(&file), Argop4::LockU(unlock.clone())]);
            assert_eq!(status, expected, "{:?}", client.caller);
        }
        client.caller = machine;
        // It may do nothing else, not even beside an operation that releases state.
        let all = [
            vec![getattr(&[Attr4::Size])],
            vec![read(stateid, 0, 1)],
            vec![read(stateid, 0, 1), close(stateid)],
            vec![close(stateid), read(Stateid4::ANONYMOUS, 0, 1)],
            vec![write(stateid, 0, b"x")],
            vec![Argop4::Secinfo(SecinfoArgs { name: "x".into() }), putfh(&file), remove("f")],
        ];
        for operations in all {
            let status = client.status([vec![putfh(&file)], operations.clone()].concat());
            assert_eq!(status, Nfsstat4::WrongSec, "{operations:?}");
        }
        if sec == Sec::Krb5p {
            client.ok([putfh(&file), Argop4::LockU(unlock)]);
        }
        let downgraded = client.ok([putfh(&file), Argop4::OpenDowngrade(downgrade)]).pop();
        let Some(Resop4::OpenDowngrade(Res4::Ok(stateid))) = downgraded else { panic!("{downgraded:?}") };
        // As Linux sends it.
        client.ok([putfh(&file), getattr(&[Attr4::Size]), close(stateid)]);
        client.caller = principal("alice@EXAMPLE.COM", sec);
        assert_eq!(client.status([putfh(&file), read(stateid, 0, 1)]), Nfsstat4::BadStateid, "the open has ended");
    }
}

#[simnet::test]
async fn machine_credential_needs_state_protection_and_an_admitted_host() {
    let mut exports = Exports::new();
    exports.add(export("/", &[Sec::Krb5p])).unwrap();
    let server = server_of(exports);
    let machine = principal("host/client.example.com@EXAMPLE.COM", Sec::Krb5i);
    let mut client = Client4::stranger(&server, 2);
    client.caller = machine.clone();
    client.introduce("client without protection", channel());
    client.caller = principal("alice@EXAMPLE.COM", Sec::Krb5p);
    let (stateid, file) = client.open("", "f", Open::default()).unwrap();
    client.caller = machine.clone();
    assert_eq!(client.status([putfh(&file), close(stateid)]), Nfsstat4::WrongSec);

    let (_server, mut client) = protected_client(Sec::Krb5p);
    let (stateid, file) = client.open("", "f", Open::default()).unwrap();
    client.caller = machine;
    client.peer = "198.51.100.1:700".parse().unwrap();
    assert_eq!(client.status([putfh(&file), close(stateid)]), Nfsstat4::Access);
}
