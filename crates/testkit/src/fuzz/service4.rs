//! The service of NFSv4.1 and 4.2: compounds of arbitrary operations, by two clients with sessions.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use nfs::v4::{
    compound::{CompoundArgs, CompoundRes},
    *,
};
use rpc::{AcceptError, AuthSys, Identity};
use server::{
    Export, ExportId, ExportOptions, Exports, HandleKey, Nfs4, NfsServer, Squash, config::Settings, recovery::Recovery,
};
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
    time::{sleep, timeout},
};
use vfs::{
    Vfs,
    interpose::Interposed,
    memory::{Memory, MemoryOptions},
};
use xdr::{Array, Encode, Encoder, Message};

use super::granting::Granting;
use crate::paper::{Paper, results};

/// Sends compounds to a server of two small memory file systems, one after the other. The second one has layouts, and checks that no
/// message of a forged layout reaches it ([`Granting`]).
///
/// | bytes | meaning |
/// |---|---|
/// | 0 | bit 0: the client; bit 1: minor version 2; bit 2: the reply is to be cached; bits 3–4: the first operations |
/// | | bit 5: the second file system; bit 6: leases expire before |
/// | 1 | the number of further operations |
/// | 2 | the length of these operations, in words |
/// | … | the operations, and so on with the next compound |
///
/// File handles cannot be guessed, so SEQUENCE is followed by one of these: nothing; the root of the export; the export
/// saved, and an open file there, so that there is a current stateid; or a directory, and in the second file system an open file with a
/// layout, whose stateid is the current one. Bytes `a0` or `a1` that are as many as in the `other` of a stateid are replaced by that of the last
/// layout of the first or second client. A layout of the other client must not be usable.
pub fn nfs4_service(data: &[u8]) {
    let mut world = World::new();
    let mut rest = data;
    while let [how, count, words, following @ ..] = rest {
        let len = (usize::from(*words) * 4).min(following.len() & !3);
        let (operations, following) = following.split_at(len);
        world.call(*how, u32::from(*count), operations);
        rest = following;
    }
    // After any input, a new client must be served.
    let mut after = Peer::new(&world.server, &world.line, "after", 1);
    after.begin(&world.line, &[Argop4::PutRootFh, Argop4::GetFh]);
    assert_eq!(world.granting.0.violation(), None);
}

struct World {
    server: NfsServer,
    granting: Arc<Interposed<Granting>>,
    line: Line,
    peers: [Peer; 2],
    /// The last layout of each client.
    layouts: [Option<[u8; 12]>; 2],
}

/// A connection without I/O, and a runtime with a virtual clock for the server's background tasks. Callbacks fail, because no client can be
/// called over the connection.
struct Line {
    runtime: Runtime,
    paper: Paper,
}

struct Peer {
    nfs: Nfs4,
    caller: Identity,
    session: Sessionid4,
    sequence: u32,
    minor: u32,
}

impl World {
    fn new() -> Self {
        let memory = Memory::new(MemoryOptions { capacity: 1 << 20, mode: 0o777, ..Default::default() });
        let options = ExportOptions { squash: Squash::None, ..Default::default() };
        let granting = Arc::new(Interposed(Granting::new()));
        let mut exports = Exports::new();
        for (name, vfs) in [("/m", Arc::new(memory) as Arc<dyn Vfs>), ("/l", granting.clone())] {
            let export = Export::new(name, ExportId::of(&[name.as_bytes()]), vfs, options.clone());
            exports.add(export.expect("name must be valid")).expect("names must differ");
        }
        // It is a data server, too, and takes some handles for those of files layouts.
        let settings = Settings { data_server: true, ..Settings::default() };
        let server = NfsServer::recovering(exports, HandleKey::random(), Recovery::in_memory(), settings);
        let server = server.expect("state in memory cannot fail");
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let line = Line { runtime: runtime.expect("a runtime needs no resources"), paper: Paper::new("tcp", 2 << 20) };
        line.runtime.spawn(server.upkeep());
        let mut first = Peer::new(&server, &line, "first", 1);
        let mkdir = CreateArgs {
            objtype: Createtype4::Other(Ftype4::Dir),
            objname: "dir".into(),
            createattrs: Default::default(),
        };
        first.begin(&line, &[Argop4::PutRootFh, lookup("m"), Argop4::Create(Box::new(mkdir))]);
        let second = Peer::new(&server, &line, "second", 2);
        Self { server, granting, line, peers: [first, second], layouts: [None; 2] }
    }

    fn call(&mut self, how: u8, count: u32, operations: &[u8]) {
        let operations = &self.with_layouts(operations)[..];
        let number = usize::from(how & 1);
        if how & 64 != 0 {
            self.line.runtime.block_on(async { sleep(PATIENCE).await });
        }
        let peer = &mut self.peers[number];
        peer.minor = 1 + u32::from(how >> 1 & 1);
        let with_layouts = how & 32 != 0;
        let (tree, wish) = if with_layouts { ("l", OPEN4_SHARE_ACCESS_WANT_NO_DELEG) } else { ("m", 0) };
        let tree = lookup(tree);
        let start = match how >> 3 & 3 {
            0 => vec![],
            1 => vec![Argop4::PutRootFh, tree],
            2 => vec![Argop4::PutRootFh, tree, Argop4::SaveFh, open(wish)],
            _ if with_layouts => vec![Argop4::PutRootFh, tree, open(wish), layout_get()],
            _ => vec![Argop4::PutRootFh, tree, lookup("dir")],
        };
        let (message, all) = peer.compound(how & 4 != 0, &start, count, operations);
        let first = peer.raw(&self.line, &message);
        let Ok(reply) = &first else { return };
        let done: CompoundRes = results(reply);
        assert!(done.resarray.len() <= all as usize, "there must not be more results than operations");
        assert!(done.resarray.iter().rev().skip(1).all(|result| result.status() == Nfsstat4::Ok));
        if let Some(last) = done.resarray.last() {
            assert_eq!(last.status(), done.status);
        }
        assert_eq!(self.granting.0.violation(), None);
        let of_other = self.layouts[1 - number];
        if let Ok(sent) = message.decode::<CompoundArgs>() {
            for (operation, result) in sent.argarray.iter().zip(&done.resarray) {
                // The first byte of such a handle is its version.
                let is_of_data = matches!(operation, Argop4::PutFh(args) if args.object.0.first() == Some(&2));
                assert!(!is_of_data || result.status() != Nfsstat4::Ok, "a handle of a data server was forged");
                let layout = layout_of(operation).map(|stateid| stateid.other);
                let forged = layout.is_some() && layout == of_other;
                assert!(
                    !forged || result.status() != Nfsstat4::Ok,
                    "a layout of the other client was used: {operation:?}"
                );
            }
        }
        for result in &done.resarray {
            if let Resop4::LayoutGet(LayoutGetRes::Ok(granted)) = result {
                self.layouts[number] = Some(granted.stateid.other);
            }
        }
        let begun = matches!(done.resarray.first(), Some(Resop4::Sequence(Res4::Ok(_))));
        if begun && how & 4 != 0 && done.status != Nfsstat4::RepTooBigToCache {
            // The compound may have destroyed the session.
            if let Ok(again) = peer.raw(&self.line, &message) {
                let retried: CompoundRes = results(&again);
                let gone = retried.status == Nfsstat4::BadSession;
                assert!(gone || again.to_rope().to_bytes().unwrap() == reply.to_rope().to_bytes().unwrap());
            }
        }
        peer.sequence += u32::from(begun);
    }
}

impl World {
    /// Replaces the bytes that stand for layouts.
    fn with_layouts(&self, operations: &[u8]) -> Vec<u8> {
        let mut operations = operations.to_vec();
        for (mark, layout) in [0xa0, 0xa1].into_iter().zip(self.layouts) {
            let found = operations.windows(12).position(|window| window == [mark; 12]);
            if let (Some(at), Some(layout)) = (found, layout) {
                operations[at..at + 12].copy_from_slice(&layout);
            }
        }
        operations
    }
}

/// Returns the stateid of the layout that an operation uses.
fn layout_of(operation: &Argop4) -> Option<Stateid4> {
    match operation {
        Argop4::LayoutCommit(args) => Some(args.stateid),
        Argop4::LayoutError(args) => Some(args.stateid),
        Argop4::LayoutStats(args) => Some(args.stateid),
        Argop4::LayoutReturn(LayoutReturnArgs { layoutreturn: Layoutreturn4::File { stateid, .. }, .. }) => {
            Some(*stateid)
        }
        Argop4::LayoutGet(args) => Some(args.stateid),
        _ => None,
    }
}

impl Peer {
    fn new(server: &NfsServer, line: &Line, name: &str, minor: u32) -> Self {
        let sys = AuthSys { stamp: 0, machine: Bytes::new(), uid: 0, gid: 0, gids: Default::default() };
        let (nfs, caller) = (server.nfs4(), Identity::Sys(sys));
        let mut peer = Self { nfs, caller, session: Sessionid4::default(), sequence: 1, minor };
        let exchange = ExchangeIdArgs {
            clientowner: ClientOwner4 { verifier: [1; 8], ownerid: name.into() },
            flags: 0,
            state_protect: StateProtect4A::None,
            client_impl_id: None,
        };
        let Resop4::ExchangeId(Res4::Ok(known)) = peer.alone(line, Argop4::ExchangeId(Box::new(exchange))) else {
            panic!()
        };
        let channel = ChannelAttrs4 {
            headerpadsize: 0,
            maxrequestsize: 1 << 20,
            maxresponsesize: 1 << 20,
            maxresponsesize_cached: 4096,
            maxoperations: 16,
            maxrequests: 1,
            rdma_ird: None,
        };
        let create = CreateSessionArgs {
            clientid: known.clientid,
            sequence: known.sequenceid,
            flags: CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
            fore_chan_attrs: channel,
            back_chan_attrs: channel,
            cb_program: 1,
            sec_parms: Array(vec![CallbackSecParms4::None]),
        };
        let Resop4::CreateSession(Res4::Ok(made)) = peer.alone(line, Argop4::CreateSession(Box::new(create))) else {
            panic!()
        };
        peer.session = made.sessionid;
        peer.begin(line, &[Argop4::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]);
        peer
    }

    fn alone(&self, line: &Line, operation: Argop4) -> Resop4 {
        let args = CompoundArgs { tag: "".into(), minorversion: self.minor, argarray: vec![operation] };
        let reply = self.raw(line, &Message::encode(&args)).expect("accepted");
        results::<CompoundRes>(&reply).resarray.pop().expect("compound must have a result")
    }

    /// Executes operations, which must succeed.
    fn begin(&mut self, line: &Line, operations: &[Argop4]) {
        let (message, _) = self.compound(false, operations, 0, &[]);
        let done: CompoundRes = results(&self.raw(line, &message).expect("accepted"));
        assert_eq!(done.status, Nfsstat4::Ok, "{done:?}");
        self.sequence += 1;
    }

    /// Builds a compound. Also returns the number of operations in its header.
    fn compound(&self, cachethis: bool, start: &[Argop4], count: u32, operations: &[u8]) -> (Message, u32) {
        let all = 1 + start.len() as u32 + count;
        let mut out = Encoder::default();
        out.opaque(b"");
        out.u32(self.minor);
        out.u32(all);
        let (sequenceid, slotid) = (Sequenceid4(self.sequence), Slotid4(0));
        let sequence = SequenceArgs { sessionid: self.session, sequenceid, slotid, highest_slotid: slotid, cachethis };
        Argop4::Sequence(sequence).encode(&mut out);
        start.iter().for_each(|operation| operation.encode(&mut out));
        out.raw(operations);
        // In the form in which it would arrive, without payloads.
        (Message::from(out.finish().to_rope().to_bytes().expect("stream must be in memory")), all)
    }

    fn raw(&self, line: &Line, message: &Message) -> Result<Message, AcceptError> {
        let peer = SocketAddr::from(([192, 0, 2, 1], 700));
        line.runtime.block_on(async {
            let reply = line.paper.call(&self.nfs, PROC_COMPOUND, (peer, &self.caller), message);
            let reply = timeout(PATIENCE, reply).await.expect("an operation must end");
            // Background tasks run before the next call.
            yield_now().await;
            reply
        })
    }
}

/// Longer than a server waits for anything, by the virtual clock.
const PATIENCE: Duration = Duration::from_secs(600);

fn lookup(name: &str) -> Argop4 {
    Argop4::Lookup(LookupArgs { objname: name.into() })
}

fn open(wish: u32) -> Argop4 {
    Argop4::Open(Box::new(OpenArgs {
        seqid: Seqid4(0),
        share_access: OPEN4_SHARE_ACCESS_BOTH | wish,
        share_deny: OPEN4_SHARE_DENY_NONE,
        owner: StateOwner4 { clientid: Clientid4(0), owner: "owner".into() },
        openhow: Openflag4::Create(Createhow4::Unchecked(Default::default())),
        claim: OpenClaim4::Null("file".into()),
    }))
}

fn layout_get() -> Argop4 {
    Argop4::LayoutGet(LayoutGetArgs {
        signal_layout_avail: false,
        layout_type: Layouttype4::FLEX_FILES,
        iomode: Layoutiomode4::Rw,
        offset: 0,
        length: u64::MAX,
        minlength: 0,
        stateid: Stateid4::CURRENT,
        maxcount: 4096,
    })
}
