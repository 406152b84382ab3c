//! Tests of the rules of RFC 8881 §18 for single operations. Each test has the rules of one operation, or one rule that
//! several operations share.

use std::sync::Arc;

use crate::common::v4::*;
use crate::common::*;
use nfs::v4::{
    attr::{Attr4, Attrs, Fattr4},
    *,
};
use server::{Export, ExportId, ExportOptions, NfsServer, Squash};
use vfs::{
    Caller, Vfs, VfsError,
    interpose::{Interpose, Interposed, Operation},
};

fn server() -> NfsServer {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    server_of(Export::new("/m", ExportId::unique(), memory(), options).unwrap())
}

/// Returns a client, and the handle of a file `f` with this mode.
fn with_file(mode: u32) -> (Client4, NfsFh4) {
    let mut client = Client4::new(&server(), "a", 1);
    let handle = client.file("m", "f", b"12345");
    client.ok([putfh(&handle), set(Attrs { mode: Some(mode), ..Attrs::default() })]);
    (client, handle)
}

const USER: u32 = 1000;

#[simnet::test]
async fn operations_without_a_session_must_be_alone_in_their_compound() {
    let mut client = Client4::new(&server(), "a", 1);
    let bind = Argop4::BindConnToSession(BindConnToSessionArgs {
        sessid: client.session,
        dir: ChannelDirFromClient4::Fore,
        use_conn_in_rdma_mode: false,
    });
    let single = [
        exchange_id("a"),
        create_session(client.client, Sequenceid4(2), channel()),
        Argop4::DestroySession(DestroySessionArgs { sessionid: client.session }),
        Argop4::DestroyClientId(ClientIdArgs { clientid: client.client }),
        bind.clone(),
    ];
    for operation in single {
        let refused = client.compound(vec![operation, Argop4::PutRootFh]);
        //= rfc8881-18.34.3-2 rfc8881-18.36.3-1 rfc8881-18.36.3-2 rfc8881-18.37.3-5 rfc8881-18.50.3-3
        assert_eq!((refused.status, refused.resarray.len()), (Nfsstat4::NotOnlyOp, 1));
    }
    //= rfc8881-18.34.3-2
    assert_eq!(client.status([bind]), Nfsstat4::NotOnlyOp);
    client.ok([Argop4::PutRootFh]);
}

#[simnet::test]
async fn exchange_id_announces_referrals_and_no_pnfs() {
    let server = server();
    let client = Client4::stranger(&server, 1);
    let Resop4::ExchangeId(Res4::Ok(exchanged)) = client.alone(exchange_id("a")) else { panic!("EXCHANGE_ID") };
    //= rfc8881-18.35.3-11 rfc8881-18.35.3-13
    assert_eq!(exchanged.flags, EXCHGID4_FLAG_USE_NON_PNFS | EXCHGID4_FLAG_SUPP_MOVED_REFER);
    //= rfc8881-18.35.3-35
    let Argop4::ExchangeId(args) = exchange_id("a") else { unreachable!() };
    assert_eq!(args.client_impl_id, None);
}

#[simnet::test]
async fn sequence_returns_its_session_slot_and_sequence_id() {
    let client = Client4::new(&server(), "a", 1);
    for (slot, sequence) in [(3, 1), (3, 2), (4, 1)] {
        let results = client.compound(vec![client.sequence_op(slot, sequence)]).resarray;
        let [Resop4::Sequence(Res4::Ok(ok))] = &results[..] else { panic!("{results:?}") };
        //= rfc8881-18.46.3-4 rfc8881-18.46.3-5 rfc8881-18.46.3-6
        assert_eq!((ok.sessionid, ok.slotid, ok.sequenceid), (client.session, Slotid4(slot), Sequenceid4(sequence)));
    }
}

#[simnet::test]
async fn access_reports_only_requested_rights() {
    let (mut client, handle) = with_file(0o640);
    let mut access = |uid, mode, asked| {
        client.caller = user(0, 0);
        client.ok([putfh(&handle), set(Attrs { mode: Some(mode), ..Attrs::default() })]);
        client.caller = user(uid, uid);
        let results = client.ok([putfh(&handle), Argop4::Access(AccessArgs { access: asked })]);
        let Some(Resop4::Access(Res4::Ok(ok))) = results.last() else { panic!("{results:?}") };
        (ok.supported, ok.access)
    };
    const READ: u32 = ACCESS4_READ;
    const EXECUTE: u32 = ACCESS4_EXECUTE;
    //= rfc8881-18.1.3-1 rfc8881-18.1.3-2 rfc8881-18.1.3-3
    assert_eq!(access(USER, 0o777, READ), (READ, READ));
    assert_eq!(access(USER, 0o640, READ | EXECUTE), (READ | EXECUTE, 0));
    assert_eq!(access(USER, 0o777, ACCESS4_LOOKUP), (0, 0), "LOOKUP must be supported for directories only");
    //= rfc8881-18.1.3-4 rfc8881-18.1.3-5
    assert_eq!(access(USER, 0o001, READ | EXECUTE).1, EXECUTE);
    //= rfc8881-18.1.3-9 rfc8881-18.1.3-10
    assert_eq!(access(USER, 0o004, READ | EXECUTE).1, READ);
    //= rfc8881-18.1.3-6
    assert_eq!(access(0, 0o666, EXECUTE).1, 0, "root must not execute a file without an execute bit");
    assert_eq!(access(0, 0o100, EXECUTE).1, EXECUTE);
}

#[simnet::test]
async fn sequence_ids_of_version_4_0_are_ignored() {
    let (mut client, _) = with_file(0o644);
    let Argop4::Open(mut args) = open("f", Open { create: false, ..Open::default() }) else { unreachable!() };
    args.seqid = Seqid4(77);
    args.owner.clientid = Clientid4(0xdead);
    let results = client.ok([at("m"), vec![Argop4::Open(args.clone()), Argop4::GetFh]].concat());
    let [.., Resop4::Open(Res4::Ok(opened)), Resop4::GetFh(Res4::Ok(handle))] = &results[..] else { panic!() };
    //= rfc8881-18.16.3-8 rfc8881-18.16.3-9 rfc8881-18.16.3-10
    let mut reading = args;
    reading.share_access = OPEN4_SHARE_ACCESS_READ;
    let results = client.ok([at("m"), vec![Argop4::Open(reading)]].concat());
    let Some(Resop4::Open(Res4::Ok(again))) = results.last() else { panic!() };
    //= rfc8881-9.9-2
    assert_eq!(again.stateid, Stateid4 { seqid: 2, ..opened.stateid }, "the client ID must be that of the session");
    let locker = Locker4::New {
        open_seqid: Seqid4(5),
        open_stateid: again.stateid,
        lock_seqid: Seqid4(6),
        lock_owner: StateOwner4 { clientid: Clientid4(0xdead), owner: "locker".into() },
    };
    let lock = |locker| LockArgs { locktype: NfsLockType4::Write, reclaim: false, offset: 0, length: 10, locker };
    let results = client.ok([putfh(handle), Argop4::Lock(lock(locker))]);
    let Some(Resop4::Lock(LockRes::Ok(held))) = results.last() else { panic!() };
    let locker = Locker4::Exist { lock_stateid: *held, lock_seqid: Seqid4(99) };
    //= rfc8881-18.10.3-3 rfc8881-18.10.3-4 rfc8881-18.10.3-5
    let results = client.ok([putfh(handle), Argop4::Lock(lock(locker))]);
    let Some(&Resop4::Lock(LockRes::Ok(lock_stateid))) = results.last() else { panic!() };
    let (seqid, locktype) = (Seqid4(42), NfsLockType4::ReadW);
    let unlock = LockUArgs { locktype, seqid, lock_stateid, offset: 0, length: 10 };
    //= rfc8881-18.12.3-1 rfc8881-18.12.3-2
    client.ok([putfh(handle), Argop4::LockU(unlock)]);
    let reduced = OpenDowngradeArgs {
        open_stateid: again.stateid,
        seqid: Seqid4(3),
        share_access: OPEN4_SHARE_ACCESS_READ,
        share_deny: 0,
    };
    //= rfc8881-18.18.3-3
    let results = client.ok([putfh(handle), Argop4::OpenDowngrade(reduced)]);
    let Some(&Resop4::OpenDowngrade(Res4::Ok(open_stateid))) = results.last() else { panic!("{results:?}") };
    //= rfc8881-18.2.3-2
    client.ok([putfh(handle), Argop4::Close(CloseArgs { seqid: Seqid4(1234), open_stateid })]);
}

#[simnet::test]
async fn open_with_create_requires_a_name_and_settable_attributes() {
    let (mut client, handle) = with_file(0o640);
    let Argop4::Open(args) = open("new", Open::default()) else { unreachable!() };
    let mut by_handle = args.clone();
    by_handle.claim = OpenClaim4::Fh;
    //= rfc8881-18.16.3-1
    assert_eq!(client.status([putfh(&handle), Argop4::Open(by_handle)]), Nfsstat4::Inval);
    let exclusive = |attrs: Attrs| {
        let mut args = args.clone();
        args.openhow = Openflag4::Create(Createhow4::Exclusive41 { verf: [9; 8], attrs: attrs.into() });
        [at("m"), vec![Argop4::Open(args)]].concat()
    };
    let times = client.attrs("m/f", &[Attr4::SuppattrExclcreat]).suppattr_exclcreat.unwrap();
    assert!(!times.contains(Attr4::Size as u32) && times.contains(Attr4::Mode as u32));
    //= rfc8881-18.16.3-3
    assert_eq!(client.status(exclusive(Attrs { size: Some(0), ..Attrs::default() })), Nfsstat4::Inval);
    assert_eq!(client.status(exclusive(Attrs { mode: Some(0o600), ..Attrs::default() })), Nfsstat4::Ok);
    client.caller = user(USER, USER);
    //= rfc8881-18.16.4-9
    assert_eq!(client.open("m", "f", Open { create: false, ..Open::default() }), Err(Nfsstat4::Access));
}

#[simnet::test]
async fn new_object_belongs_to_its_creator() {
    let (mut client, _) = with_file(0o644);
    client.ok([at("m"), vec![set(Attrs { mode: Some(0o777), ..Attrs::default() })]].concat());
    client.caller = user(USER, USER + 1);
    client.ok([at("m"), vec![mkdir("d")]].concat());
    client.open("m", "g", Open::default()).unwrap();
    for name in ["m/d", "m/g"] {
        let attrs = client.attrs(name, &[Attr4::Owner, Attr4::OwnerGroup]);
        //= rfc8881-18.4.3-2 rfc8881-18.4.3-3 rfc8881-18.16.3-13
        assert_eq!((attrs.owner, attrs.owner_group), (Some("1000".into()), Some("1001".into())), "{name}");
    }
}

#[simnet::test]
async fn setattr_extends_a_file_and_returns_the_set_attributes() {
    let (mut client, handle) = with_file(0o644);
    let wanted = Fattr4::from(Attrs { size: Some(1 << 20), mode: Some(0o600), ..Attrs::default() });
    let args = SetAttrArgs { stateid: Stateid4::ANONYMOUS, obj_attributes: wanted.clone() };
    let results = client.ok([putfh(&handle), Argop4::SetAttr(args)]);
    let Some(Resop4::SetAttr(set)) = results.last() else { panic!("{results:?}") };
    //= rfc8881-18.30.4-2 rfc8881-18.30.4-3
    assert_eq!((set.status, &set.attrsset), (Nfsstat4::Ok, &wanted.attrmask));
    //= rfc8881-18.30.4-1
    assert_eq!(client.attrs("m/f", &[Attr4::Size]).size, Some(1 << 20));
}

#[simnet::test]
async fn nverify_of_equal_attributes_returns_same() {
    let (mut client, handle) = with_file(0o644);
    let nverify = |size| {
        let attrs = Attrs { size: Some(size), ..Attrs::default() };
        Argop4::NVerify(VerifyArgs { obj_attributes: attrs.into() })
    };
    //= rfc8881-18.15.3-1
    assert_eq!(client.status([putfh(&handle), nverify(5)]), Nfsstat4::Same);
    assert_eq!(client.status([putfh(&handle), nverify(6)]), Nfsstat4::Ok);
}

#[simnet::test]
async fn rename_to_another_link_of_the_same_file_does_nothing() {
    let (mut client, _) = with_file(0o644);
    let within = |operation| [at("m"), vec![Argop4::SaveFh], vec![operation]].concat();
    let link = Argop4::Link(LinkArgs { newname: "g".into() });
    client.ok([at("m/f"), vec![Argop4::SaveFh], at("m"), vec![link]].concat());
    client.ok(within(Argop4::Rename(RenameArgs { oldname: "f".into(), newname: "g".into() })));
    for name in ["m/f", "m/g"] {
        //= rfc8881-18.26.3-3
        assert_eq!(client.attrs(name, &[Attr4::Numlinks]).numlinks, Some(2), "{name}");
    }
}

#[simnet::test]
async fn readdir_with_too_small_maxcount_returns_too_small() {
    let (mut client, _) = with_file(0o644);
    let mut read = |maxcount| {
        let attr_request = [Attr4::Fileid as u32].into_iter().collect();
        let args = ReadDirArgs { cookie: 0, cookieverf: [0; 8], dircount: 0, maxcount, attr_request };
        client.status([at("m"), vec![Argop4::ReadDir(args)]].concat())
    };
    //= rfc8881-18.23.3-1
    assert_eq!((read(40), read(400)), (Nfsstat4::TooSmall, Nfsstat4::Ok));
}

#[simnet::test]
async fn secinfo_requires_search_permission_and_secinfo_no_name_a_parent() {
    let (mut client, _) = with_file(0o644);
    client.ok([at("m"), vec![mkdir("d")]].concat());
    client.ok([at("m/d"), vec![set(Attrs { mode: Some(0o700), ..Attrs::default() }), mkdir("e")]].concat());
    let secinfo = [at("m/d"), vec![Argop4::Secinfo(SecinfoArgs { name: "e".into() })]].concat();
    assert_eq!(client.status(secinfo.clone()), Nfsstat4::Ok);
    client.caller = user(USER, USER);
    //= rfc8881-18.29.3-1
    assert_eq!(client.status(secinfo), Nfsstat4::Access);
    let of_parent = Argop4::SecinfoNoName(SecinfoStyle4::Parent);
    //= rfc8881-18.45.3-1
    assert_eq!(client.status([Argop4::PutRootFh, of_parent]), Nfsstat4::NoEnt);
}

#[simnet::test]
async fn every_required_attribute_is_supported() {
    use Attr4::*;
    let required = [
        SupportedAttrs,
        Type,
        FhExpireType,
        Change,
        Size,
        LinkSupport,
        SymlinkSupport,
        NamedAttr,
        Fsid,
        UniqueHandles,
        LeaseTime,
        RdattrError,
        Filehandle,
        SuppattrExclcreat,
    ];
    let (mut client, _) = with_file(0o644);
    for path in ["", "m", "m/f"] {
        let supported = client.attrs(path, &[SupportedAttrs]).supported_attrs.unwrap();
        for attribute in required {
            //= rfc8881-18.7.3-4
            assert!(supported.contains(attribute as u32), "{path}: {attribute:?}");
        }
    }
}

#[simnet::test]
async fn undefined_special_stateids_are_rejected() {
    let (mut client, handle) = with_file(0o666);
    let (open, _) = client.open("m", "f", Open { create: false, ..Open::default() }).unwrap();
    let special = |seqid, byte| Stateid4 { seqid, other: [byte; 12] };
    let undefined =
        [special(2, 0), special(u32::MAX - 1, 0), special(0, 255), special(1, 255), special(u32::MAX - 1, 255)];
    let owner = || StateOwner4 { clientid: Clientid4(0), owner: "l".into() };
    let locker =
        |open_stateid| Locker4::New { open_seqid: Seqid4(0), open_stateid, lock_seqid: Seqid4(0), lock_owner: owner() };
    let lock = |stateid| {
        let (locktype, locker) = (NfsLockType4::Write, locker(stateid));
        Argop4::Lock(LockArgs { locktype, reclaim: false, offset: 0, length: 10, locker })
    };
    let size = |stateid| {
        let obj_attributes = Attrs { size: Some(3), ..Attrs::default() }.into();
        Argop4::SetAttr(SetAttrArgs { stateid, obj_attributes })
    };
    let uses = |stateid| [read(stateid, 0, 10), write(stateid, 0, b"x"), size(stateid), lock(stateid), close(stateid)];
    for stateid in undefined {
        for operation in uses(stateid) {
            let opnum = operation.opnum();
            //= rfc8881-8.2.3-6
            assert_eq!(client.status([putfh(&handle), operation]), Nfsstat4::BadStateid, "{opnum:?} {stateid:?}");
        }
    }
    // There is no current stateid, because no operation of the compound has returned one.
    for operation in uses(Stateid4::CURRENT) {
        let opnum = operation.opnum();
        //= rfc8881-8.2.3-4
        assert_eq!(client.status([putfh(&handle), operation]), Nfsstat4::BadStateid, "{opnum:?}");
    }
    let closed = [putfh(&handle), close(open), read(Stateid4::CURRENT, 0, 10)];
    //= rfc8881-8.2.3-4
    assert_eq!(client.status(closed), Nfsstat4::BadStateid, "CLOSE has returned a special stateid");
}

/// A server without EXCHGID4_FLAG_BIND_PRINC_STATEID lets each user of a client use the opens of the others.
#[simnet::test]
async fn io_is_checked_by_the_rights_of_its_user_and_not_of_the_opener() {
    let (mut client, handle) = with_file(0o604);
    let (open, _) = client.open("m", "f", Open { create: false, ..Open::default() }).unwrap();
    let reads = || [putfh(&handle), read(open, 0, 10)];
    let writes = || [putfh(&handle), write(open, 0, b"data")];
    client.caller = user(USER, USER);
    //= rfc8881-18.16.4-10
    assert_eq!((client.status(reads()), client.status(writes())), (Nfsstat4::Ok, Nfsstat4::Access));
    client.caller = user(0, 0);
    client.ok(writes());
    client.ok([putfh(&handle), set(Attrs { mode: Some(0o602), ..Attrs::default() })]);
    client.caller = user(USER, USER);
    //= rfc8881-18.16.4-10
    assert_eq!((client.status(reads()), client.status(writes())), (Nfsstat4::Access, Nfsstat4::Ok));
}

/// A layer in which one operation fails.
struct Failing(Arc<dyn Vfs>, &'static str);

impl Interpose for Failing {
    fn inner(&self) -> &dyn Vfs {
        &*self.0
    }

    fn operation<T: Clone + Send + 'static>(
        &self,
        caller: &Caller<'_>,
        operation: Operation,
        run: &mut dyn FnMut(&Caller<'_>) -> vfs::Result<T>,
    ) -> vfs::Result<T> {
        if operation.name == self.1 { Err(VfsError::Io) } else { run(caller) }
    }
}

#[simnet::test]
async fn getattr_fails_if_an_attribute_cannot_be_read() {
    for (fails, attribute) in [("statfs", Attr4::SpaceFree), ("acl", Attr4::Acl)] {
        let options = ExportOptions { squash: Squash::None, ..Default::default() };
        let tree = Arc::new(Interposed(Failing(memory(), fails)));
        let mut client =
            Client4::new(&server_of(Export::new("/m", ExportId::unique(), tree, options).unwrap()), "a", 1);
        let supported = client.attrs("m", &[Attr4::SupportedAttrs]).supported_attrs.unwrap();
        assert!(supported.contains(attribute as u32));
        let asked = [at("m"), vec![getattr(&[Attr4::Type, attribute])]].concat();
        //= rfc8881-18.7.3-3
        assert_eq!(client.status(asked), Nfsstat4::Io, "{attribute:?}");
    }
}
