//! NFSv3 and MOUNT: calls with arbitrary arguments, and file handles.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use nfs::{
    mount::{Dirpath, ExportEntry, MountEntry, MountProc3, MountRes},
    v3::*,
};
use rpc::{AcceptError, AuthSys, Identity, Service};
use server::{Export, ExportId, ExportOptions, HandleKey, Mount3, Nfs3, NfsServer, Squash};
use vfs::memory::{Memory, MemoryOptions};
use xdr::{Decode, Decoder, Encode, List, Message};

use crate::paper::Paper;

/// Calls a server of a small memory file system, one call after the other.
///
/// | bytes | meaning |
/// |---|---|
/// | 0 | the procedure: 0–21 of NFS, 22–27 of MOUNT, modulo 28 |
/// | 1 | the length of the arguments, in words |
/// | … | the arguments, and so on with the next call |
///
/// File handles cannot be guessed, so in the arguments, a handle of a single byte stands for that of a known object:
/// 240 the root, 241 a directory, 242 a file, 243 a symbolic link, 244 a named pipe, 245 a removed directory, 246 the
/// last created object.
pub fn nfs3_call(data: &[u8]) {
    let mut server = Fixture::new();
    let mut rest = data;
    while let [procedure, words, following @ ..] = rest {
        let len = (usize::from(*words) * 4).min(following.len());
        let (arguments, following) = following.split_at(len);
        server.call(u32::from(*procedure) % 28, arguments);
        rest = following;
    }
    // After any input, the server must answer a valid call.
    let args = Message::encode(&GetAttrArgs { object: server.handles[0].clone() });
    let reply = server.nfs(Proc3::GetAttr as u32, &args).expect("call must be valid");
    assert!(matches!(results::<GetAttrRes>(&reply), GetAttrRes::Ok(_)));
}

/// Bytes as a file handle. A key must reject handles that it has not made.
pub fn handle(data: &[u8]) {
    let key = HandleKey::random();
    assert!(key.open(data).is_err(), "a handle of another key must be rejected");
    let object = vfs::Handle::new(&data[..data.len().min(vfs::HANDLE_MAX)]);
    let id = ExportId::of(&[data]);
    let sealed = key.seal(id, &object);
    assert_eq!(key.open(&sealed), Ok((id, object)));
    for (i, &byte) in data.iter().enumerate().take(sealed.len()) {
        let mut altered = sealed.to_vec();
        altered[i] ^= byte;
        assert_eq!(key.open(&altered).is_ok(), byte == 0);
    }
}

struct Fixture {
    nfs: Nfs3,
    mount: Mount3,
    paper: Paper,
    caller: Identity,
    handles: Vec<NfsFh3>,
}

impl Fixture {
    fn new() -> Self {
        let vfs = Arc::new(Memory::new(MemoryOptions { capacity: CAPACITY, mode: 0o777, ..Default::default() }));
        let options = ExportOptions { squash: Squash::None, ..Default::default() };
        let export = Export::new("/m", ExportId::of(&[b"fuzz"]), vfs, options).expect("name must be valid");
        let server = NfsServer::new(export, HandleKey::random());
        let sys = AuthSys { stamp: 0, machine: Bytes::new(), uid: 0, gid: 0, gids: Default::default() };
        let mut fixture = Self {
            nfs: server.nfs3(),
            mount: server.mount3(),
            paper: Paper::new("tcp", 2 << 20),
            caller: Identity::Sys(sys),
            handles: Vec::new(),
        };
        fixture.populate();
        fixture
    }

    fn populate(&mut self) {
        let mount =
            self.mount(MountProc3::Mnt as u32, &Message::encode(&Dirpath::from("/m"))).expect("MNT must succeed");
        let MountRes::Ok(mount) = results(&mount) else { panic!("the root must exist") };
        let root = mount.fhandle;
        let what = |name: &str| Diropargs3 { dir: root.clone(), name: name.into() };
        let text = Bytes::from_static(b"target").into();
        let created = |how| CreateArgs { what: what("file"), how };
        let calls = [
            (Proc3::MkDir, Message::encode(&MkDirArgs { what: what("dir"), attributes: Sattr3::default() })),
            (Proc3::Create, Message::encode(&created(CreateHow3::Guarded(Sattr3::default())))),
            (
                Proc3::SymLink,
                Message::encode(&SymLinkArgs {
                    what: what("link"),
                    symlink_attributes: Sattr3::default(),
                    symlink_data: text,
                }),
            ),
            (
                Proc3::MkNod,
                Message::encode(&MkNodArgs { what: what("pipe"), data: MkNodData3::Fifo(Sattr3::default()) }),
            ),
            (Proc3::MkDir, Message::encode(&MkDirArgs { what: what("gone"), attributes: Sattr3::default() })),
        ];
        self.handles.push(root.clone());
        for (procedure, args) in calls {
            let reply = self.nfs(procedure as u32, &args).expect("call must be valid");
            let made = results::<NewObjectRes>(&reply).into_result().expect("room");
            self.handles.push(made.obj.expect("reply must have a handle"));
        }
        let gone = Message::encode(&RemoveArgs { object: what("gone") });
        self.nfs(Proc3::RmDir as u32, &gone).expect("call must be valid");
        self.handles.push(root);
    }

    fn call(&mut self, procedure: u32, arguments: &[u8]) {
        let args = Message::from(self.with_handles(arguments));
        let reply = match procedure.checked_sub(22) {
            None => self.nfs(procedure, &args),
            Some(procedure) => self.mount(procedure, &args),
        };
        let Ok(reply) = reply.inspect_err(|error| assert_eq!(*error, AcceptError::GarbageArgs)) else { return };
        assert!(reply.stream.len() <= STREAM_MAX && reply.len() <= REPLY_MAX, "a reply of {} bytes", reply.len());
        match procedure.checked_sub(22) {
            None => self.check(Proc3::from_number(procedure).expect("procedure must be one of 22"), &reply),
            Some(procedure) => {
                check_mount(MountProc3::from_number(procedure).expect("procedure must be one of 6"), &reply)
            }
        }
    }

    /// Replaces handles of a single byte in the arguments by real ones.
    fn with_handles(&self, arguments: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(arguments.len() + 128);
        let mut rest = arguments;
        while let Some((&word, after)) = rest.split_first_chunk::<4>() {
            let known = match (word, after) {
                ([0, 0, 0, 1], &[name, 0, 0, 0, ..]) => name.checked_sub(NAMED_FROM),
                _ => None,
            };
            if let Some(handle) = known.and_then(|index| self.handles.get(usize::from(index))) {
                out.extend(&Message::encode(handle).stream);
                rest = &after[4..];
            } else {
                out.extend(word);
                rest = after;
            }
        }
        out.extend(rest);
        out.into()
    }

    fn nfs(&self, procedure: u32, args: &Message) -> Result<Message, AcceptError> {
        self.run(&self.nfs, procedure, args)
    }

    fn mount(&self, procedure: u32, args: &Message) -> Result<Message, AcceptError> {
        self.run(&self.mount, procedure, args)
    }

    fn run(&self, service: &dyn Service, procedure: u32, args: &Message) -> Result<Message, AcceptError> {
        let peer = SocketAddr::from(([192, 0, 2, 1], 700));
        let future = pin!(self.paper.call(service, procedure, (peer, &self.caller), args));
        match { future }.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => reply,
            Poll::Pending => panic!("memory must not block"),
        }
    }

    /// Checks that the reply has the result type of the procedure, and respects its bounds.
    fn check(&mut self, procedure: Proc3, reply: &Message) {
        macro_rules! decodes {
            ($($name:ident)*) => {
                match procedure {
                    $(Proc3::$name => drop(results::<<$name as Procedure3>::Res>(reply)),)*
                    Proc3::Create | Proc3::MkDir | Proc3::SymLink | Proc3::MkNod => {
                        if let NewObjectRes::Ok(made) = results(reply) {
                            *self.handles.last_mut().expect("table must have handles") = made.obj.expect("reply must have a handle");
                        }
                    }
                }
            };
        }
        decodes!(Null GetAttr SetAttr Lookup Access ReadLink Read Write Remove RmDir Rename Link ReadDir ReadDirPlus
            FsStat FsInfo PathConf Commit);
    }
}

fn check_mount(procedure: MountProc3, reply: &Message) {
    match procedure {
        MountProc3::Null | MountProc3::Umnt | MountProc3::UmntAll => results::<()>(reply),
        MountProc3::Mnt => drop(results::<MountRes>(reply)),
        MountProc3::Dump => drop(results::<List<MountEntry>>(reply)),
        MountProc3::Export => drop(results::<List<ExportEntry>>(reply)),
    }
}

/// Decodes the results after the header of a reply. They must encode to the same bytes.
fn results<R: Decode + Encode>(reply: &Message) -> R {
    let mut decoder = Decoder::new(reply);
    for expected in [7, 1, 0, 0, 0, 0] {
        assert_eq!(decoder.u32(), Ok(expected), "the header must be that of a reply");
    }
    let results = R::decode(&mut decoder).expect("results");
    decoder.finish().expect("reply must end after its results");
    let again = Message::encode(&results);
    assert_eq!(again.stream, reply.stream[24..]);
    results
}

/// The byte of the root; the other objects follow.
const NAMED_FROM: u8 = 240;
const CAPACITY: u64 = 2 << 20;
const STREAM_MAX: usize = (256 << 10) + 1024;
const REPLY_MAX: usize = (1 << 20) + 1024;
