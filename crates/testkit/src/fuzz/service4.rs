//! The service of NFSv4.1 and 4.2: compounds of arbitrary operations, by two clients with sessions.

use std::{
    net::SocketAddr,
    pin::pin,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use nfs::v4::{
    compound::{CompoundArgs, CompoundRes},
    *,
};
use rpc::{AcceptError, AuthSys, Identity};
use server::{Export, ExportId, ExportOptions, HandleKey, Nfs4, NfsServer, Squash};
use vfs::memory::{Memory, MemoryOptions};
use xdr::{Encode, Encoder, Message};

use crate::paper::{Paper, results};

/// Sends compounds to a server of a small memory file system, one after the other.
///
/// | bytes | meaning |
/// |---|---|
/// | 0 | bit 0: the client; bit 1: minor version 2; bit 2: the reply is to be cached; bits 3–4: the first operations |
/// | 1 | the number of further operations |
/// | 2 | the length of these operations, in words |
/// | … | the operations, and so on with the next compound |
///
/// File handles cannot be guessed, so SEQUENCE is followed by one of these: nothing; the root of the export; the export
/// saved, and an open file there, so that there is a current stateid; or a directory.
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
    let mut after = Peer::new(&world.server, &world.paper, "after", 1);
    after.begin(&world.paper, &[Argop4::PutRootFh, Argop4::GetFh]);
}

struct World {
    server: NfsServer,
    paper: Paper,
    peers: [Peer; 2],
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
        let export = Export::new("/m", ExportId::of(&[b"fuzz"]), std::sync::Arc::new(memory), options)
            .expect("name must be valid");
        let server = NfsServer::new(export, HandleKey::random());
        let paper = Paper::new("tcp", 2 << 20);
        let mut first = Peer::new(&server, &paper, "first", 1);
        let mkdir = CreateArgs {
            objtype: Createtype4::Other(Ftype4::Dir),
            objname: "dir".into(),
            createattrs: Default::default(),
        };
        first.begin(&paper, &[Argop4::PutRootFh, lookup("m"), Argop4::Create(Box::new(mkdir))]);
        let second = Peer::new(&server, &paper, "second", 2);
        Self { server, paper, peers: [first, second] }
    }

    fn call(&mut self, how: u8, count: u32, operations: &[u8]) {
        let peer = &mut self.peers[usize::from(how & 1)];
        peer.minor = 1 + u32::from(how >> 1 & 1);
        let start = match how >> 3 & 3 {
            0 => vec![],
            1 => vec![Argop4::PutRootFh, lookup("m")],
            2 => vec![Argop4::PutRootFh, lookup("m"), Argop4::SaveFh, open()],
            _ => vec![Argop4::PutRootFh, lookup("m"), lookup("dir")],
        };
        let (message, all) = peer.compound(how & 4 != 0, &start, count, operations);
        let first = peer.raw(&self.paper, &message);
        let Ok(reply) = &first else { return };
        let done: CompoundRes = results(reply);
        assert!(done.resarray.len() <= all as usize, "there must not be more results than operations");
        assert!(done.resarray.iter().rev().skip(1).all(|result| result.status() == Nfsstat4::Ok));
        if let Some(last) = done.resarray.last() {
            assert_eq!(last.status(), done.status);
        }
        let begun = matches!(done.resarray.first(), Some(Resop4::Sequence(Res4::Ok(_))));
        if begun && how & 4 != 0 && done.status != Nfsstat4::RepTooBigToCache {
            // The compound may have destroyed the session.
            if let Ok(again) = peer.raw(&self.paper, &message) {
                let retried: CompoundRes = results(&again);
                let gone = retried.status == Nfsstat4::BadSession;
                assert!(gone || again.to_rope().to_bytes().unwrap() == reply.to_rope().to_bytes().unwrap());
            }
        }
        peer.sequence += u32::from(begun);
    }
}

impl Peer {
    fn new(server: &NfsServer, paper: &Paper, name: &str, minor: u32) -> Self {
        let sys = AuthSys { stamp: 0, machine: Bytes::new(), uid: 0, gid: 0, gids: Default::default() };
        let (nfs, caller) = (server.nfs4(), Identity::Sys(sys));
        let mut peer = Self { nfs, caller, session: Sessionid4::default(), sequence: 1, minor };
        let exchange = ExchangeIdArgs {
            clientowner: ClientOwner4 { verifier: [1; 8], ownerid: name.into() },
            flags: 0,
            state_protect: StateProtect4A::None,
            client_impl_id: None,
        };
        let Resop4::ExchangeId(Res4::Ok(known)) = peer.alone(paper, Argop4::ExchangeId(Box::new(exchange))) else {
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
            flags: 0,
            fore_chan_attrs: channel,
            back_chan_attrs: channel,
            cb_program: 1,
            sec_parms: Default::default(),
        };
        let Resop4::CreateSession(Res4::Ok(made)) = peer.alone(paper, Argop4::CreateSession(Box::new(create))) else {
            panic!()
        };
        peer.session = made.sessionid;
        peer.begin(paper, &[Argop4::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]);
        peer
    }

    fn alone(&self, paper: &Paper, operation: Argop4) -> Resop4 {
        let args = CompoundArgs { tag: "".into(), minorversion: self.minor, argarray: vec![operation] };
        let reply = self.raw(paper, &Message::encode(&args)).expect("accepted");
        results::<CompoundRes>(&reply).resarray.pop().expect("compound must have a result")
    }

    /// Executes operations, which must succeed.
    fn begin(&mut self, paper: &Paper, operations: &[Argop4]) {
        let (message, _) = self.compound(false, operations, 0, &[]);
        let done: CompoundRes = results(&self.raw(paper, &message).expect("accepted"));
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

    fn raw(&self, paper: &Paper, message: &Message) -> Result<Message, AcceptError> {
        let peer = SocketAddr::from(([192, 0, 2, 1], 700));
        let future = paper.call(&self.nfs, PROC_COMPOUND, (peer, &self.caller), message);
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("memory must not wait"),
        }
    }
}

fn lookup(name: &str) -> Argop4 {
    Argop4::Lookup(LookupArgs { objname: name.into() })
}

fn open() -> Argop4 {
    Argop4::Open(Box::new(OpenArgs {
        seqid: Seqid4(0),
        share_access: OPEN4_SHARE_ACCESS_BOTH,
        share_deny: OPEN4_SHARE_DENY_NONE,
        owner: StateOwner4 { clientid: Clientid4(0), owner: "owner".into() },
        openhow: Openflag4::Create(Createhow4::Unchecked(Default::default())),
        claim: OpenClaim4::Null("file".into()),
    }))
}
