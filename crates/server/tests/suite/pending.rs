//! Operations that complete later: they occupy no thread, each has its effect once, and calls in flight are bounded.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::common::v4::{Client4, Open, at, channel, getattr, mkdir, open, read, write};
use crate::common::{toy::Toy, *};
use nfs::{
    mount::{Dirpath, MountProc3, MountRes, Mountstat3},
    v3::*,
    v4::{
        self, Argop4, Nfsstat4, Resop4, Stateid4, attr::Attr4, attr::Attrs, compound::CompoundArgs,
        compound::CompoundRes,
    },
};
use rpc::{AcceptError, BoxFuture};
use server::{
    BlockingOptions, Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, admin::ClientName,
    config::Settings, recovery::Recovery,
};
use testkit::deferred::{Deferred, DeferredFs, Pace};
use vfs::{Caller, Cred, Name};
use xdr::Message;

type Made = <Create as Procedure3>::Res;
type Called<'a> = BoxFuture<'a, Result<Message, AcceptError>>;

/// A server with the export `/m`, whose operations complete when the test says so.
struct World {
    nfs: NfsServer,
    fs: Arc<DeferredFs>,
}

impl World {
    fn new() -> Self {
        Self::with(BlockingOptions::default())
    }

    fn with(blocking: BlockingOptions) -> Self {
        let fs = Deferred::new(plain_memory(), Pace::Manual);
        fs.0.hold(false);
        let options = ExportOptions { squash: Squash::None, ..Default::default() };
        let export = Export::new("/m", ExportId::unique(), fs.clone(), options).unwrap();
        let settings = Settings { blocking, ..Settings::default() };
        let nfs = NfsServer::recovering(export, HandleKey::random(), Recovery::in_memory(), settings).unwrap();
        Self { nfs, fs }
    }

    fn has(&self, name: &str) -> bool {
        let (tree, cred) = (self.fs.0.tree(), Cred::root());
        tree.lookup(&Caller::blocking(&cred), &tree.root(), Name::new(name.as_bytes()).unwrap()).is_ok()
    }

    /// Completes operations until all calls have been answered. All of it happens on this thread.
    fn finish(&self, mut calls: Vec<Called<'_>>, each: usize) -> Vec<Message> {
        let mut replies: Vec<_> = calls.iter().map(|_| None).collect();
        while replies.iter().any(Option::is_none) {
            let completed = self.fs.0.complete(each);
            let before = replies.iter().flatten().count();
            for (call, reply) in calls.iter_mut().zip(&mut replies) {
                if reply.is_none() {
                    *reply = begin(call);
                }
            }
            assert!(completed > 0 || replies.iter().flatten().count() > before, "no operation completes any more");
        }
        replies.into_iter().flatten().collect()
    }
}

/// Polls a call. Returns its reply, if there is one.
fn begin(call: &mut Called<'_>) -> Option<Message> {
    // The task of the test is not interrupted, so the call must not use up its budget.
    match pin!(tokio::task::unconstrained(call)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Some(reply.expect("call must be accepted")),
        Poll::Pending => None,
    }
}

/// Checks that no pool thread exists in this process.
fn assert_no_pool_thread() {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default();
        // If the test program runs without nextest, other tests may have started such threads.
        assert!(!name.starts_with("export-") || std::env::var_os("NEXTEST").is_none(), "a pool thread exists: {name}");
    }
}

fn create_args(dir: &NfsFh3, name: &str) -> CreateArgs {
    let how = CreateHow3::Guarded(Sattr3 { mode: Some(0o644), ..Default::default() });
    CreateArgs { what: name_in(dir, name), how }
}

const MANY: usize = 10_000;

/// A write is lost after the back end has begun it. Its client must write again when it sees the verifier of COMMIT.
#[simnet::test]
async fn pending_write_has_the_verifier_of_its_beginning() {
    let toy = Toy::new(plain_memory());
    let fs = Deferred::new(toy.clone(), Pace::Manual);
    fs.0.hold(false);
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), fs.clone(), options).unwrap();
    let settings = Settings::default();
    let nfs = NfsServer::recovering(export, HandleKey::random(), Recovery::in_memory(), settings).unwrap();
    let world = World { nfs, fs };
    let rig = Rig::calling(&world.nfs);
    let file = rig.file(&rig.root(), "f", b"");
    world.fs.0.hold(true);
    let message = Message::encode(&WriteArgs { stable: StableHow::Unstable, ..write_args(&file, 0, b"data") });
    let mut call = rig.paper.call(&*rig.nfs, Proc3::Write as u32, (rig.peer, &rig.caller), &message);
    assert!(begin(&mut call).is_none(), "the write must be pending");
    toy.state().lost = true;
    let reply = world.finish(vec![call], 1).remove(0);
    let written = results::<<Write as Procedure3>::Res>(&reply).into_result().unwrap();
    world.fs.0.hold(false);
    let committed = rig.call::<Commit>(CommitArgs { file, offset: 0, count: 0 }).into_result().unwrap();
    assert_ne!(written.verf, committed.verf);
}

#[simnet::test]
async fn ten_thousand_nfsv3_calls_wait_on_one_thread() {
    let world = World::new();
    let rig = Rig::calling(&world.nfs);
    let root = rig.root();
    world.fs.0.hold(true);
    let name = |number: usize| format!("f{number}");
    // LOOKUP executes two operations, and CREATE one.
    let args: Vec<_> = (0..MANY)
        .map(|number| match number % 2 {
            0 => (Proc3::Create, Message::encode(&create_args(&root, &name(number)))),
            _ => (Proc3::Lookup, Message::encode(&LookupArgs { what: name_in(&root, ".") })),
        })
        .collect();
    let caller = (rig.peer, &rig.caller);
    let mut calls: Vec<_> =
        args.iter().map(|(procedure, args)| rig.paper.call(&*rig.nfs, *procedure as u32, caller, args)).collect();
    assert!(calls.iter_mut().all(|call| begin(call).is_none()));
    assert_eq!(world.fs.0.in_flight(), MANY);
    assert_no_pool_thread();
    let replies = world.finish(calls, 777);
    for (number, reply) in replies.iter().enumerate() {
        if number % 2 == 0 {
            results::<Made>(reply).into_result().unwrap_or_else(|error| panic!("{number}: {error:?}"));
        } else {
            let found = results::<LookupRes>(reply).into_result().unwrap();
            assert!(found.dir_attributes.is_some());
        }
    }
    let executed = ["create", "lookup", "getattr"].map(|operation| world.fs.0.executed(operation));
    assert_eq!(executed, [MANY / 2; 3], "each operation must be executed once");
    assert!((0..MANY).step_by(2).all(|number| world.has(&name(number))));
    assert_eq!(world.fs.0.in_flight(), 0);
}

#[simnet::test]
async fn ten_thousand_nfsv4_1_compounds_wait_on_one_thread() {
    let world = World::new();
    let fore = v4::ChannelAttrs4 { maxrequests: 64, maxresponsesize_cached: 512, ..channel() };
    let slots = 40;
    let clients: Vec<_> = (0..MANY / slots)
        .map(|number| {
            let mut client = Client4::stranger(&world.nfs, 1);
            client.peer = format!("192.0.2.{}:700", number % 250 + 1).parse().unwrap();
            client.introduce(&format!("client {number}"), fore);
            client
        })
        .collect();
    world.fs.0.hold(true);
    let name = |client: usize, slot: usize| format!("d{client}-{slot}");
    // The first slot has already been used once.
    let compound = |number: usize, client: &Client4, slot: usize| {
        let sequence = client.sequence_op(slot as u32, if slot == 0 { client.sequence + 1 } else { 1 });
        let operations = [mkdir(&name(number, slot)), getattr(&[Attr4::Type, Attr4::Owner])];
        let argarray = [sequence].into_iter().chain(at("/m")).chain(operations).collect();
        Message::encode(&CompoundArgs { tag: "".into(), minorversion: 1, argarray })
    };
    let args: Vec<Vec<_>> = clients
        .iter()
        .enumerate()
        .map(|(number, client)| (0..slots).map(|slot| compound(number, client, slot)).collect())
        .collect();
    let mut calls: Vec<_> = clients
        .iter()
        .zip(&args)
        .flat_map(|(client, args)| args.iter().map(move |args| compound_call(client, args)))
        .collect();
    let answered = calls.iter_mut().filter_map(begin).map(|reply| results::<CompoundRes>(&reply)).next();
    assert!(answered.is_none(), "{answered:?}");
    assert_eq!(world.fs.0.in_flight(), MANY);
    assert_no_pool_thread();
    for reply in world.finish(calls, 999) {
        let result: CompoundRes = results(&reply);
        assert_eq!(result.status, Nfsstat4::Ok, "{:?}", result.resarray.last());
    }
    assert_eq!(
        [world.fs.0.executed("mkdir"), world.fs.0.executed("getattr")],
        [MANY; 2],
        "each operation must be executed once"
    );
    assert!((0..clients.len()).all(|client| (0..slots).all(|slot| world.has(&name(client, slot)))));
}

fn compound_call<'a>(client: &'a Client4, args: &'a Message) -> Called<'a> {
    client.paper.call(&*client.nfs, v4::PROC_COMPOUND, (client.peer, &client.caller), args)
}

/// Executes a compound whose operations are pending one after the other.
fn slowly(world: &World, client: &mut Client4, operations: Vec<Argop4>) -> CompoundRes {
    client.sequence += 1;
    let argarray = [client.sequence_op(0, client.sequence)].into_iter().chain(operations).collect();
    let args = Message::encode(&CompoundArgs { tag: "".into(), minorversion: client.minor, argarray });
    let mut call = compound_call(client, &args);
    assert!(begin(&mut call).is_none(), "the compound must wait");
    results(&world.finish(vec![call], 1)[0])
}

/// Returns an OPEN that truncates an existing file.
fn truncating(name: &str) -> Argop4 {
    let Argop4::Open(args) = open(name, Open::default()) else { unreachable!("open() must return an OPEN") };
    let attrs = v4::attr::Fattr4::from(Attrs { size: Some(0), ..Attrs::default() });
    Argop4::Open(Box::new(v4::OpenArgs { openhow: v4::Openflag4::Create(v4::Createhow4::Unchecked(attrs)), ..*args }))
}

#[simnet::test]
async fn creating_open_and_truncating_open_have_each_effect_once() {
    let world = World::new();
    let mut client = Client4::new(&world.nfs, "client", 2);
    world.fs.0.hold(true);
    let make = [at("/m"), vec![open("f", Open::default())], vec![write(Stateid4::CURRENT, 0, b"content")]].concat();
    let made = slowly(&world, &mut client, make);
    assert_eq!(made.status, Nfsstat4::Ok, "{made:?}");
    assert_eq!(["create", "write"].map(|operation| world.fs.0.executed(operation)), [1, 1]);
    let seqid = |result: &CompoundRes| {
        let opened = result.resarray.iter().find_map(|result| match result {
            Resop4::Open(v4::Res4::Ok(opened)) => Some(opened.stateid),
            _ => None,
        });
        opened.expect("OPEN must succeed").seqid
    };
    assert_eq!(seqid(&made), 1, "the share must be taken once");
    // The share is taken before the truncation, and not again when the truncation has completed.
    let truncate = [at("/m"), vec![truncating("f")], vec![read(Stateid4::CURRENT, 0, 100)]].concat();
    let truncated = slowly(&world, &mut client, truncate);
    assert_eq!((truncated.status, seqid(&truncated)), (Nfsstat4::Ok, 2), "{truncated:?}");
    assert_eq!(world.fs.0.executed("setattr"), 1);
    let Some(Resop4::Read(v4::Res4::Ok(read))) = truncated.resarray.last() else { panic!("READ must succeed") };
    assert!(read.eof && read.data.0.is_empty());
}

/// An OPEN that has truncated its file must not be refused by a check that it has already passed.
#[test]
fn open_whose_client_is_evicted_after_the_truncation_is_not_refused() {
    let world = World::new();
    let mut client = Client4::new(&world.nfs, "client", 2);
    client.file("/m", "f", b"content");
    world.fs.0.hold(true);
    client.sequence += 1;
    let argarray = [vec![client.sequence_op(0, client.sequence)], at("/m"), vec![truncating("f")]].concat();
    let args = Message::encode(&CompoundArgs { tag: "".into(), minorversion: client.minor, argarray });
    let mut call = compound_call(&client, &args);
    while world.fs.0.executed("setattr") == 0 {
        assert!(begin(&mut call).is_none(), "the compound must wait for the truncation");
        if world.fs.0.executed("setattr") == 0 {
            assert_eq!(world.fs.0.complete(1), 1);
        }
    }
    let client = ClientName(server::sharing::locks::LockClient::V4(client.client.0));
    let request = serde_json::to_vec(&server::admin::Request::Evict { client }).unwrap();
    world.nfs.admin().serve(&request[..], &mut Vec::new()).unwrap();
    let result: CompoundRes = results(&world.finish(vec![call], 1)[0]);
    assert_eq!(result.status, Nfsstat4::Ok, "{result:?}");
    assert_eq!(world.fs.0.executed("setattr"), 1);
}

#[simnet::test]
async fn calls_beyond_the_bound_are_refused_and_hosts_share_the_bound() {
    let world = World::with(BlockingOptions { pending: 8, ..Default::default() });
    let one = Rig::calling(&world.nfs);
    let other = one.from("192.0.2.2:700");
    let root = one.root();
    world.fs.0.hold(true);
    let name = |rig: usize, number: usize| format!("f{rig}-{number}");
    let args: Vec<Vec<_>> = (0..2)
        .map(|rig| (0..8).map(|number| Message::encode(&create_args(&root, &name(rig, number)))).collect())
        .collect();
    let start = |rig: usize| {
        let from = [&one, &other][rig];
        let call = |args| from.paper.call(&*from.nfs, Proc3::Create as u32, (from.peer, &from.caller), args);
        let (mut going_on, mut refused) = (Vec::new(), 0);
        for args in &args[rig] {
            let mut call = call(args);
            match begin(&mut call) {
                None => going_on.push(call),
                Some(reply) => {
                    let (status, _) = results::<Made>(&reply).into_result().unwrap_err();
                    assert_eq!(status, Nfsstat3::Jukebox);
                    refused += 1;
                }
            }
        }
        (going_on, refused)
    };
    let (first, refused) = start(0);
    assert_eq!((first.len(), refused), (4, 4), "one host must get half of the permits");
    let (second, refused) = start(1);
    assert_eq!((second.len(), refused), (2, 6), "a second host must get half of the rest");
    assert_eq!(world.fs.0.executed("create"), 6, "a refused call must have had no effect");
    // MOUNT and NFSv4 refuse calls as well, each with its own status.
    match one.mount(MountProc3::Mnt, Dirpath::from("/m/below")) {
        MountRes::Fail(status) => assert_eq!(status, Mountstat3::ServerFault),
        MountRes::Ok(_) => panic!("there must be no permit left"),
    }
    let mut client = Client4::new(&world.nfs, "client", 1);
    assert_eq!(client.status([at("/m"), vec![mkdir("d")]].concat()), Nfsstat4::Delay);
    // Dropped calls return their permits. Their operations have had their effect.
    drop(first);
    assert_eq!(world.fs.0.in_flight(), 2);
    assert!((0..4).all(|number| world.has(&name(0, number))));
    let (again, _) = start(0);
    assert_eq!(again.len(), 3);
    assert_eq!(world.finish(again, 1).len(), 3);
    assert_eq!(world.finish(second, 1).len(), 2);
}

#[simnet::test]
async fn mount_and_acl_calls_can_be_pending() {
    let world = World::new();
    let rig = Rig::calling(&world.nfs);
    let root = rig.root();
    rig.dir(&root, "d");
    world.fs.0.hold(true);
    let caller = (rig.peer, &rig.caller);
    let path = Message::encode(&Dirpath::from("/m/d"));
    let mount = rig.paper.call(&*rig.mount, MountProc3::Mnt as u32, caller, &path);
    let acls = world.nfs.nfsacl3();
    let get = Message::encode(&nfs::nfsacl::GetAclArgs { fh: root.clone(), mask: 5 });
    let acl = rig.paper.call(&acls, nfs::nfsacl::AclProc3::GetAcl as u32, caller, &get);
    let mut calls = vec![mount, acl];
    assert!(calls.iter_mut().all(|call| begin(call).is_none()));
    let replies = world.finish(calls, 1);
    assert!(matches!(results::<MountRes>(&replies[0]), MountRes::Ok(_)));
    assert_eq!(world.fs.0.executed("acl"), 2, "both ACLs must be requested one after the other, each once");
    assert_no_pool_thread();
}
