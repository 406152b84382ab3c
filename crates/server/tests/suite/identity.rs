//! The users as which callers act: groups from the name service, and principals (`[identity]`).

use crate::common::v4::*;
use crate::common::*;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use nfs::v3::*;
use nfs::{nlm, v4, v4::Argop4, v4::Nfsstat4, v4::attr::Attr4};
use rpc::{Identity, security::Principal};
use server::{
    Export, ExportId, ExportOptions, HandleKey, IdentityOptions, LocalUser, NfsServer, PrincipalNames, Sec, SecFlavors,
    Squash, UnknownUid, User, UserDatabase, config::Settings, recovery::Recovery,
};
use xdr::Message;

/// The user 7, `venus`, in 40 groups, of which the last is 139. Counts the look-ups.
#[derive(Default)]
struct Users {
    asked: AtomicUsize,
    fails: AtomicBool,
}

impl Users {
    fn answer(&self, known: bool) -> io::Result<Option<User>> {
        self.asked.fetch_add(1, Relaxed);
        if self.fails.load(Relaxed) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(known.then(|| User { uid: 7, gid: 100, groups: (100..140).collect() }))
    }
}

impl UserDatabase for Users {
    fn by_uid(&self, uid: u32) -> io::Result<Option<User>> {
        self.answer(uid == 7)
    }

    fn by_name(&self, name: &str) -> io::Result<Option<User>> {
        self.answer(name == "venus")
    }
}

struct Realm;

impl PrincipalNames for Realm {
    fn local_name(&self, principal: &Principal) -> Option<String> {
        std::str::from_utf8(&principal.name).ok()?.strip_suffix("@REALM").map(str::to_owned)
    }
}

fn principal(name: &str) -> Identity {
    Identity::Principal(Principal { name: bytes::Bytes::copy_from_slice(name.as_bytes()), pseudo_flavor: 390_003 })
}

fn server(identity: IdentityOptions) -> (NfsServer, Arc<Users>) {
    let sec = SecFlavors::new(Sec::ALL.to_vec()).unwrap();
    let options = ExportOptions { squash: Squash::None, sec, anon_uid: 77, anon_gid: 88, ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), memory(), options).unwrap();
    let settings = Settings { identity, ..Settings::default() };
    let server = NfsServer::recovering(export, HandleKey::random(), Recovery::in_memory(), settings).unwrap();
    let users = Arc::new(Users::default());
    server.look_up_users_in(users.clone());
    server.name_principals_by(Arc::new(Realm));
    (server, users)
}

/// Creates a directory that only a group can use.
fn group_dir(rig: &Rig, gid: u32) -> NfsFh3 {
    let dir = rig.dir(&rig.root(), "team");
    let new_attributes = Sattr3 { mode: Some(0o770), gid: Some(gid), ..Default::default() };
    rig.call::<SetAttr>(SetAttrArgs { object: dir.clone(), new_attributes, guard: None }).into_result().unwrap();
    dir
}

fn create(rig: &Rig, dir: &NfsFh3, name: &str) -> Result<(u32, u32), Nfsstat3> {
    let how = CreateHow3::Guarded(Sattr3::default());
    let made = rig.call::<Create>(CreateArgs { what: name_in(dir, name), how }).into_result();
    made.map(|made| made.obj_attributes.map(|attr| (attr.uid, attr.gid)).unwrap()).map_err(|(status, _)| status)
}

#[test]
fn the_fortieth_group_counts_in_version_3_and_4() {
    for manage_gids in [false, true] {
        let (server, users) = server(IdentityOptions { manage_gids, ..Default::default() });
        let root = Rig::calling(&server);
        let dir = group_dir(&root, 139);
        let venus = root.as_user(7, 1);
        let expected = if manage_gids { Ok((7, 1)) } else { Err(Nfsstat3::Acces) };
        assert_eq!(create(&venus, &dir, "f"), expected);
        let mut client = Client4::new(&server, "c", 2);
        client.caller = user(7, 1);
        let opened = client.open("m/team", "g", Open::default()).map(drop);
        assert_eq!(opened, if manage_gids { Ok(()) } else { Err(Nfsstat4::Access) });
        let looked_up = users.asked.load(Relaxed);
        assert_eq!(looked_up, if manage_gids { 2 } else { 0 }, "root and venus must be looked up once");
    }
}

#[test]
fn an_unknown_user_keeps_or_loses_the_groups_that_it_claims() {
    for (unknown_uid, expected) in [(UnknownUid::Keep, Ok((9, 1))), (UnknownUid::Drop, Err(Nfsstat3::Acces))] {
        let (server, _) = server(IdentityOptions { manage_gids: true, unknown_uid, ..Default::default() });
        let root = Rig::calling(&server);
        let dir = group_dir(&root, 139);
        let mut claims = auth_sys(9, 1);
        claims.gids = [139].into_iter().collect();
        let caller = Rig { caller: Identity::Sys(claims), ..root };
        assert_eq!(create(&caller, &dir, "f"), expected, "{unknown_uid:?}");
    }
}

#[test]
fn principals_act_as_their_users() {
    let principals = [("mars@ELSEWHERE".to_owned(), LocalUser::Name("venus".to_owned()))].into();
    let (server, _) = server(IdentityOptions { principals, ..Default::default() });
    let root = Rig::calling(&server);
    let dir = group_dir(&root, 139);
    let open = root.dir(&root.root(), "open");
    root.set_mode(&open, 0o777);
    for (name, expected) in [
        ("venus@REALM", Some((7, 100))),
        ("mars@ELSEWHERE", Some((7, 100))),
        ("venus@ELSEWHERE", None),
        ("nfs/client@REALM", None),
        ("CLIENT$@REALM", None),
    ] {
        let rig = Rig { caller: principal(name), ..root.clone() };
        let team = create(&rig, &dir, name.split(['@', '/']).next().unwrap());
        assert_eq!(team, expected.ok_or(Nfsstat3::Acces), "{name}");
        let anywhere = create(&rig, &open, &name.replace('/', " "));
        assert_eq!(anywhere, Ok(expected.unwrap_or((77, 88))), "{name}");
    }
}

#[test]
fn principals_get_owner_names_and_others_numbers() {
    let (server, _) = server(IdentityOptions::default());
    let mut client = Client4::new(&server, "c", 2);
    assert_eq!(&client.attrs("m", &[Attr4::Owner]).owner.unwrap()[..], b"0");
    client.caller = principal("venus@REALM");
    let owner = client.attrs("m", &[Attr4::Owner]).owner.unwrap();
    assert!(owner.starts_with(b"root@") && owner.len() > 5, "{}", owner.escape_ascii());
}

/// Groups of AUTH_SYS callers come from the name service, and no result is cached.
fn uncached() -> IdentityOptions {
    IdentityOptions { manage_gids: true, cache: Duration::ZERO, ..Default::default() }
}

#[test]
fn locks_of_version_3_are_released_while_the_name_service_fails() {
    let (server, users) = server(uncached());
    calls_back(&server);
    let (rig, nlm) = (Rig::calling(&server), server.nlm4());
    let file = rig.file(&rig.root(), "f", b"data");
    let other = rig.from("192.0.2.2:700");
    let lock_of = |rig: &Rig| nlm::Lock {
        caller_name: rig.peer.ip().to_string().as_str().into(),
        fh: file.0.clone().into(),
        oh: "oh".into(),
        svid: 1,
        offset: 0,
        len: 0,
    };
    let call = |rig: &Rig, procedure: nlm::NlmProc4, args: Message| -> nlm::Res {
        results(&rig.raw(&nlm, procedure as u32, &args).expect("the call must be accepted"))
    };
    let lock = |rig: &Rig, block| {
        let (cookie, lock) = ("c".into(), lock_of(rig));
        let args = nlm::LockArgs { cookie, block, exclusive: true, lock, reclaim: false, state: 3 };
        call(rig, nlm::NlmProc4::Lock, Message::encode(&args)).status
    };
    let share = |procedure: nlm::NlmProc4| {
        let (mode, access) = (nlm::ShareMode::DenyWrite, nlm::ShareAccess::Read);
        let nlm::Lock { caller_name, fh, oh, .. } = lock_of(&rig);
        let share = nlm::Share { caller_name, fh, oh, mode, access };
        let args = Message::encode(&nlm::ShareArgs { cookie: "c".into(), share, reclaim: false });
        let shared: nlm::ShareRes =
            results(&rig.raw(&nlm, procedure as u32, &args).expect("the call must be accepted"));
        shared.status
    };
    assert_eq!(lock(&rig, false), nlm::Nlm4Stats::Granted);
    assert_eq!(lock(&other, true), nlm::Nlm4Stats::Blocked);
    assert_eq!(share(nlm::NlmProc4::Share), nlm::Nlm4Stats::Granted);
    users.fails.store(true, Relaxed);
    assert_eq!(lock(&rig, false), nlm::Nlm4Stats::DeniedNoLocks, "the name service fails");
    let cancel = nlm::CancelArgs { cookie: "c".into(), block: true, exclusive: true, lock: lock_of(&other) };
    let cancelled = call(&other, nlm::NlmProc4::Cancel, Message::encode(&cancel));
    assert_eq!(cancelled.status, nlm::Nlm4Stats::Granted);
    let unlock = nlm::UnlockArgs { cookie: "c".into(), lock: lock_of(&rig) };
    assert_eq!(call(&rig, nlm::NlmProc4::Unlock, Message::encode(&unlock)).status, nlm::Nlm4Stats::Granted);
    assert_eq!(share(nlm::NlmProc4::Unshare), nlm::Nlm4Stats::Granted);
    users.fails.store(false, Relaxed);
    assert_eq!(lock(&other, false), nlm::Nlm4Stats::Granted, "the lock was released");
}

#[test]
fn state_of_version_4_is_released_while_the_name_service_fails() {
    let (server, users) = server(uncached());
    let mut client = Client4::new(&server, "c", 2);
    client.open("m", "f", Open::default()).unwrap();
    let again = Open { access: v4::OPEN4_SHARE_ACCESS_READ, create: false, ..Open::default() };
    let (open_stateid, file) = client.open("m", "f", again).unwrap();
    let lock_owner = v4::StateOwner4 { clientid: v4::Clientid4(0), owner: "o".into() };
    let (open_seqid, lock_seqid) = (v4::Seqid4(0), v4::Seqid4(0));
    let locker = v4::Locker4::New { open_seqid, open_stateid, lock_seqid, lock_owner };
    let (locktype, offset, length) = (v4::NfsLockType4::Write, 0, v4::LENGTH_TO_EOF);
    let lock = v4::LockArgs { locktype, reclaim: false, offset, length, locker };
    let open_stateid = v4::Stateid4 { seqid: 0, ..open_stateid };
    let mut locked = client.ok([putfh(&file), Argop4::Lock(lock)]);
    let Some(v4::Resop4::Lock(v4::LockRes::Ok(lock_stateid))) = locked.pop() else { panic!("{locked:?}") };
    users.fails.store(true, Relaxed);
    assert_eq!(client.status([putfh(&file), getattr(&[Attr4::Size])]), Nfsstat4::Delay, "the name service fails");
    let unlock = v4::LockUArgs { locktype, seqid: v4::Seqid4(0), lock_stateid, offset, length };
    client.ok([putfh(&file), Argop4::LockU(unlock)]);
    let downgrade = v4::OpenDowngradeArgs {
        open_stateid,
        seqid: v4::Seqid4(0),
        share_access: v4::OPEN4_SHARE_ACCESS_READ,
        share_deny: 0,
    };
    client.ok([putfh(&file), Argop4::OpenDowngrade(downgrade)]);
    client.ok([putfh(&file), close(open_stateid)]);
    let unknown = Argop4::DelegReturn(v4::DelegReturnArgs { deleg_stateid: open_stateid });
    assert_eq!(client.status([putfh(&file), unknown]), Nfsstat4::BadStateid, "the state must answer");
}

/// Returns the file IDs and the errors of the entries in the root of all exports.
fn roots(client: &mut Client4) -> Vec<(Option<u64>, Option<Nfsstat4>)> {
    let attr_request = [Attr4::Fileid, Attr4::RdattrError].into_iter().map(|attr| attr as u32).collect();
    let args = v4::ReadDirArgs { cookie: 0, cookieverf: [0; 8], dircount: 0, maxcount: 4096, attr_request };
    let mut results = client.ok([Argop4::PutRootFh, Argop4::ReadDir(args)]);
    let Some(v4::Resop4::ReadDir(v4::Res4::Ok(read))) = results.pop() else { panic!("{results:?}") };
    let attrs = read.reply.entries.0.iter().map(|entry| entry.attrs.to_attrs(2, v4::attr::Purpose::Get).unwrap());
    attrs.map(|attrs| (attrs.fileid, attrs.rdattr_error)).collect()
}

#[test]
fn readdir_of_the_pseudo_file_system_looks_up_the_caller() {
    let (server, users) = server(IdentityOptions { manage_gids: true, ..Default::default() });
    let mut client = Client4::new(&server, "c", 2);
    let fileid = client.attrs("m", &[Attr4::Fileid]).fileid;
    assert!(fileid.is_some());
    let asked = users.asked.load(Relaxed);
    client.caller = user(7, 1);
    assert_eq!(roots(&mut client), [(fileid, Some(Nfsstat4::Ok))], "the attributes of the export's root");
    assert_eq!(users.asked.load(Relaxed), asked + 1);
    users.fails.store(true, Relaxed);
    client.caller = user(8, 1);
    assert_eq!(roots(&mut client), [(None, Some(Nfsstat4::Delay))]);
}
