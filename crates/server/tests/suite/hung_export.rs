//! An export whose file system hangs occupies only its own threads and queue, and nothing of any other export. Hosts
//! share the threads of an export.
//!
//! The tests do not run in simulations, because they are about threads.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
};

use crate::blocking::Slow;
use crate::common::v4::{Client4, at, getattr, mkdir};
use crate::common::*;
use nfs::{
    mount::{Dirpath, MountProc3, MountRes, Mountstat3},
    v3::*,
    v4::{
        self, Argop4, Nfsstat4, Resop4,
        attr::{Attr4, Purpose},
        compound::CompoundArgs,
        compound::CompoundRes,
    },
};
use rpc::{AcceptError, BoxFuture};
use server::{
    BlockingOptions, Export, ExportId, ExportOptions, Exports, HandleKey, NfsServer, Squash, admin::Record,
    admin::Request, config::Settings, recovery::Recovery,
};
use vfs::{Caller, Cred, Name, Vfs};
use xdr::Message;

/// A server with the exports `/hung` and `/free`, both of which wait for storage.
struct Server {
    nfs: NfsServer,
    hung: Arc<Slow>,
    free: Arc<Slow>,
}

impl Server {
    fn new(threads: usize, queue: usize) -> Self {
        let (hung, free) = (Slow::new(false), Slow::new(false));
        let mut exports = Exports::new();
        for (name, slow) in [("/hung", &hung), ("/free", &free)] {
            let options = ExportOptions { squash: Squash::None, ..Default::default() };
            exports.add(Export::new(name, ExportId::unique(), slow.clone(), options).unwrap()).unwrap();
        }
        let settings =
            Settings { blocking: BlockingOptions { threads, queue, ..Default::default() }, ..Settings::default() };
        let nfs = NfsServer::recovering(exports, HandleKey::random(), Recovery::in_memory(), settings).unwrap();
        Self { nfs, hung, free }
    }

    /// Returns a caller of NFSv3.
    fn rig(&self) -> Rig {
        Rig::calling(&self.nfs)
    }
}

type Made = <Create as Procedure3>::Res;
type Called<'a> = BoxFuture<'a, Result<Message, AcceptError>>;

/// Begins a call. Returns its reply if it is answered at once.
fn begin(call: &mut Called<'_>) -> Option<Message> {
    match Pin::new(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Some(reply.expect("call must be accepted")),
        Poll::Pending => None,
    }
}

fn finish(call: Called<'_>) -> Message {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(call).expect("call must be accepted")
}

fn create_args(dir: &NfsFh3, name: &str) -> CreateArgs {
    CreateArgs {
        what: name_in(dir, name),
        how: CreateHow3::Guarded(Sattr3 { mode: Some(0o644), ..Default::default() }),
    }
}

/// Returns `true` if a tree has this name in its root.
fn has(tree: &dyn Vfs, name: &str) -> bool {
    let cred = Cred::root();
    let caller = Caller::blocking(&cred);
    tree.lookup(&caller, &tree.root(), Name::new(name.as_bytes()).unwrap()).is_ok()
}

/// Values with the numbers of their calls.
type Numbered<T> = Vec<(usize, T)>;

/// Begins `calls`, of which the first `running` hang. Returns the calls that wait or hang, and the replies to the
/// others.
fn fill<'a>(hung: &Slow, running: usize, calls: Vec<Called<'a>>) -> (Numbered<Called<'a>>, Numbered<Message>) {
    let (mut going_on, mut refused) = (Vec::new(), Vec::new());
    for (number, mut call) in calls.into_iter().enumerate() {
        match begin(&mut call) {
            Some(reply) => refused.push((number, reply)),
            None => going_on.push((number, call)),
        }
        if number + 1 == running {
            hung.await_hanging(running);
        }
    }
    (going_on, refused)
}

/// The number of calls of one host that run at once: there are four threads, of which one host gets three. The queue
/// has eight places.
const RUNNING: usize = 3;
const CALLS: usize = 20;
const ROOM: usize = RUNNING + 8;

#[test]
fn nfsv3_calls_beyond_the_queue_get_jukebox_and_other_exports_are_served() {
    let server = Server::new(4, 8);
    let rig = server.rig();
    let (root, free) = (rig.root_of("/hung"), rig.root_of("/free"));
    server.hung.hang();
    let name = |number: usize| format!("f{number}");
    let args: Vec<_> = (0..CALLS).map(|number| Message::encode(&create_args(&root, &name(number)))).collect();
    let caller = (rig.peer, &rig.caller);
    let calls = args.iter().map(|args| rig.paper.call(&*rig.nfs, Proc3::Create as u32, caller, args)).collect();
    let (going_on, refused) = fill(&server.hung, RUNNING, calls);
    assert_eq!((going_on.len(), refused.len()), (ROOM, CALLS - ROOM));
    for (_, reply) in &refused {
        let (status, wcc) = results::<Made>(reply).into_result().unwrap_err();
        assert_eq!((status, wcc), (Nfsstat3::Jukebox, WccData::default()));
    }
    // Other procedures are refused as well, each with its own status.
    let attr = rig.call::<GetAttr>(GetAttrArgs { object: root.clone() }).into_result().unwrap_err();
    assert_eq!(attr.0, Nfsstat3::Jukebox);
    let rename = RenameArgs { from: name_in(&root, "a"), to: name_in(&free, "b") };
    let (status, wcc) = rig.call::<Rename>(rename).into_result().unwrap_err();
    assert_eq!(
        (status, wcc.fromdir_wcc.after),
        (Nfsstat3::XDev, None),
        "the reply must have no attributes of a hung export"
    );
    match rig.mount(MountProc3::Mnt, Dirpath::from("/hung/below")) {
        MountRes::Fail(status) => assert_eq!(status, Mountstat3::ServerFault),
        MountRes::Ok(_) => panic!("MNT on a hung export must fail"),
    }

    rig.call::<Create>(create_args(&free, "f")).into_result().expect("the other export must not hang");
    let mut client = Client4::new(&server.nfs, "client", 1);
    client.ok([at("/free"), vec![mkdir("d")]].concat());
    assert_eq!(server.hung.hanging(), RUNNING, "one host must leave a thread to others");

    server.hung.release();
    let done: Vec<_> = going_on.into_iter().map(|(number, call)| (number, results::<Made>(&finish(call)))).collect();
    for (number, made) in done {
        made.into_result().unwrap_or_else(|error| panic!("{number}: {error:?}"));
        assert!(has(&*server.hung.tree, &name(number)));
    }
    assert!(
        refused.iter().all(|(number, _)| !has(&*server.hung.tree, &name(*number))),
        "refused calls must not have been executed"
    );
    rig.call::<Create>(create_args(&root, "later")).into_result().expect("the export must not hang any more");
}

#[test]
fn compounds_beyond_the_queue_get_delay_and_other_exports_are_served() {
    for minor in [0, 1, 2] {
        let server = Server::new(4, 8);
        let mut clients: Vec<_> = (0..CALLS).map(|_| Client4::stranger(&server.nfs, minor)).collect();
        if minor > 0 {
            for (number, client) in clients.iter_mut().enumerate() {
                client.introduce(&format!("client {number}"), v4_channel());
            }
        }
        server.hung.hang();
        let name = |number: usize| format!("d{number}");
        let compound = |number: usize, client: &Client4, path: &str| {
            let sequence = (minor > 0).then(|| client.sequence_op(0, client.sequence + 1));
            let argarray = sequence.into_iter().chain(at(path)).chain([mkdir(&name(number))]).collect();
            Message::encode(&CompoundArgs { tag: "".into(), minorversion: minor, argarray })
        };
        let args: Vec<_> =
            clients.iter().enumerate().map(|(number, client)| compound(number, client, "/hung")).collect();
        let (going_on, refused) = fill(&server.hung, RUNNING, clients.iter().zip(&args).map(compound_call).collect());
        assert_eq!((going_on.len(), refused.len()), (ROOM, CALLS - ROOM));
        for (_, reply) in &refused {
            let told: CompoundRes = results(reply);
            assert_eq!(told.status, Nfsstat4::Delay);
            let last = told.resarray.last().unwrap();
            assert_eq!(
                (last.opnum(), last.status()),
                (v4::Opnum4::Create, Nfsstat4::Delay),
                "the operation that cannot wait must fail"
            );
        }

        let rig = server.rig();
        rig.call::<Create>(create_args(&rig.root_of("/free"), "f"))
            .into_result()
            .expect("the other export must not hang");
        let mut other = Client4::stranger(&server.nfs, minor);
        if minor > 0 {
            other.introduce("another", v4_channel());
        }
        let free = compound(0, &other, "/free");
        assert_eq!(results::<CompoundRes>(&finish(compound_call((&other, &free)))).status, Nfsstat4::Ok);

        server.hung.release();
        for (number, call) in going_on {
            assert_eq!(results::<CompoundRes>(&finish(call)).status, Nfsstat4::Ok);
            assert!(has(&*server.hung.tree, &name(number)));
        }
        assert!(
            refused.iter().all(|(number, _)| !has(&*server.hung.tree, &name(*number))),
            "refused calls must not have been executed"
        );
    }
}

fn compound_call<'a>((client, args): (&'a Client4, &'a Message)) -> Called<'a> {
    client.paper.call(&*client.nfs, v4::PROC_COMPOUND, (client.peer, &client.caller), args)
}

fn v4_channel() -> v4::ChannelAttrs4 {
    crate::common::v4::channel()
}

#[test]
fn compound_of_two_exports_blocks_on_each_exports_own_threads() {
    let server = Server::new(1, 8);
    let mut clients: Vec<_> = (0..4).map(|number| Client4::new(&server.nfs, &format!("client {number}"), 1)).collect();
    let mut last = clients.pop().unwrap();
    server.hung.hang();
    let compound = |number: usize, client: &Client4| {
        let operations = [at("/free"), vec![mkdir(&format!("d{number}"))], at("/hung"), vec![mkdir("d")]].concat();
        let argarray = std::iter::once(client.sequence_op(0, client.sequence + 1)).chain(operations).collect();
        Message::encode(&CompoundArgs { tag: "".into(), minorversion: 1, argarray })
    };
    let args: Vec<_> = clients.iter().enumerate().map(|(number, client)| compound(number, client)).collect();
    let calls: Vec<_> = clients
        .into_iter()
        .zip(args)
        .map(|(client, args)| {
            thread::spawn(move || results::<CompoundRes>(&finish(compound_call((&client, &args)))).status)
        })
        .collect();
    server.hung.await_hanging(1);
    // `/free` has one thread, which all of the compounds need before they hang.
    last.ok([at("/free"), vec![mkdir("last")]].concat());
    server.hung.release();
    let mut statuses: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    statuses.sort();
    assert_eq!(statuses, [Nfsstat4::Ok, Nfsstat4::Exist, Nfsstat4::Exist], "each compound must be executed once");
    assert!((0..3).all(|number| has(&*server.free.tree, &format!("d{number}"))));
}

#[test]
fn list_of_exports_is_returned_while_one_hangs() {
    let server = Server::new(2, 4);
    let mut client = Client4::new(&server.nfs, "client", 1);
    server.hung.hang();
    let list = |attrs: &[Attr4]| {
        let attr_request = attrs.iter().map(|&attr| attr as u32).collect();
        let args = v4::ReadDirArgs { cookie: 0, cookieverf: [0; 8], dircount: 0, maxcount: 4096, attr_request };
        [Argop4::PutRootFh, Argop4::ReadDir(args)]
    };
    let Some(Resop4::ReadDir(v4::Res4::Ok(list))) = client.ok(list(&[Attr4::RdattrError, Attr4::Fileid])).pop() else {
        panic!("READDIR must succeed")
    };
    let attrs = |entry: &v4::Entry4| entry.attrs.to_attrs(1, Purpose::Get).unwrap();
    let entries = list.reply.entries.0.iter();
    let entries: Vec<_> = entries.map(|entry| (entry.name.to_vec(), attrs(entry).rdattr_error)).collect();
    let busy = Some(Nfsstat4::Delay);
    assert_eq!(entries, [(b"hung".to_vec(), busy), (b"free".to_vec(), busy)], "the exports must be listed as busy");
    // Clients can still look up the exports themselves.
    client.ok([at("/hung"), vec![Argop4::GetFh], at("/free"), vec![getattr(&[Attr4::Fileid])]].concat());
    server.hung.release();
}

#[test]
fn administrator_is_answered_while_an_export_hangs() {
    let server = Server::new(2, 4);
    let mut client = Client4::new(&server.nfs, "client", 1);
    let how = crate::common::v4::Open::default();
    for path in ["/hung", "/free"] {
        client.open(path, "f", how).unwrap();
        client.open(path, "g", how).unwrap();
    }
    server.hung.hang();
    let mut output = Vec::new();
    let request = serde_json::to_vec(&Request::List { client: None }).unwrap();
    server.nfs.admin().serve(&request[..], &mut output).unwrap();
    let records = output.split_inclusive(|&byte| byte == b'\n').map(|line| serde_json::from_slice(line).unwrap());
    let mut known: Vec<_> = records
        .filter_map(|record| match record {
            Record::Open { file, .. } => Some((file.export, file.fileid.is_some())),
            _ => None,
        })
        .collect();
    known.sort();
    let expected = [("/free", true), ("/free", true), ("/hung", false), ("/hung", false)];
    assert_eq!(known, expected.map(|(export, known)| (export.to_owned(), known)));
    assert_eq!(server.hung.hanging(), 1, "the listing must not wait for every file of the export");
    server.hung.release();
}

#[test]
fn host_with_one_call_is_served_in_turn() {
    let server = Server::new(1, 1000);
    let (heavy, root) = (server.rig().as_user(1, 1), server.rig().root_of("/hung"));
    server.hung.hang();
    let args = Message::encode(&GetAttrArgs { object: root });
    let call = |rig: &Rig| -> Called<'static> {
        let (rig, args) = (rig.clone(), args.clone());
        Box::pin(async move { rig.paper.call(&*rig.nfs, Proc3::GetAttr as u32, (rig.peer, &rig.caller), &args).await })
    };
    let mut calls: Vec<_> = (0..200).map(|_| call(&heavy)).collect();
    assert!(calls.iter_mut().all(|call| begin(call).is_none()));
    let light = server.rig().as_user(2, 2).from("198.51.100.1:700");
    calls.push(call(&light));
    assert!(begin(calls.last_mut().unwrap()).is_none());
    server.hung.release();
    assert!(calls.into_iter().all(|call| results::<GetAttrRes>(&finish(call)).into_result().is_ok()));
    let passed = server.hung.passed();
    assert_eq!(passed.len(), 201);
    let turn = passed.iter().position(|uid| *uid == 2).unwrap();
    assert!(turn <= 2, "at most one running call and one queued call may come first, but it came after {turn}");
}
