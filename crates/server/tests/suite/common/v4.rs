//! An NFSv4 client on paper: a session, and compounds in it.
#![allow(dead_code)] // Each test file uses its part.

use std::{net::SocketAddr, sync::Arc};

use nfs::v4::{
    attr::{Attr4, Attrs, Fattr4, Purpose},
    compound::{CompoundArgs, CompoundRes},
    *,
};
use rpc::{AcceptError, Identity};
use server::{Nfs4, NfsServer};
use testkit::paper::Paper;
use xdr::Message;

use super::{finish, results, user};

/// A client with a session. It calls in one slot of it.
pub struct Client4 {
    pub nfs: Arc<Nfs4>,
    pub paper: Paper,
    pub peer: SocketAddr,
    pub caller: Identity,
    pub minor: u32,
    pub client: Clientid4,
    pub session: Sessionid4,
    pub sequence: u32,
    pub cachethis: bool,
}

pub fn channel() -> ChannelAttrs4 {
    ChannelAttrs4 {
        headerpadsize: 0,
        maxrequestsize: 2 << 20,
        maxresponsesize: 2 << 20,
        maxresponsesize_cached: 8 << 10,
        maxoperations: 100,
        maxrequests: 16,
        rdma_ird: None,
    }
}

pub fn exchange_id(name: &str) -> Argop4 {
    exchange_id_with(name, StateProtect4A::None)
}

fn exchange_id_with(name: &str, state_protect: StateProtect4A) -> Argop4 {
    Argop4::ExchangeId(Box::new(ExchangeIdArgs {
        clientowner: ClientOwner4 { verifier: [1; 8], ownerid: name.into() },
        flags: 0,
        state_protect,
        client_impl_id: None,
    }))
}

pub fn create_session(clientid: Clientid4, sequence: Sequenceid4, fore: ChannelAttrs4) -> Argop4 {
    Argop4::CreateSession(Box::new(CreateSessionArgs {
        clientid,
        sequence,
        flags: 0,
        fore_chan_attrs: fore,
        back_chan_attrs: channel(),
        cb_program: 0x4000_0000,
        sec_parms: Default::default(),
    }))
}

impl Client4 {
    /// Creates a client with a session and nothing to reclaim.
    pub fn new(server: &NfsServer, name: &str, minor: u32) -> Self {
        Self::with_channel(server, name, minor, channel())
    }

    pub fn with_channel(server: &NfsServer, name: &str, minor: u32, fore: ChannelAttrs4) -> Self {
        let mut client = Self::stranger(server, minor);
        client.introduce(name, fore);
        client
    }

    /// Introduces the client and completes its reclaims.
    pub fn introduce(&mut self, name: &str, fore: ChannelAttrs4) {
        self.introduce_with(name, fore, StateProtect4A::None);
    }

    /// Introduces the client with this state protection, and completes its reclaims.
    pub fn introduce_with(&mut self, name: &str, fore: ChannelAttrs4, protect: StateProtect4A) {
        let exchanged = self.alone(exchange_id_with(name, protect));
        let Resop4::ExchangeId(Res4::Ok(exchanged)) = exchanged else { panic!("{exchanged:?}") };
        self.client = exchanged.clientid;
        let create = create_session(exchanged.clientid, exchanged.sequenceid, fore);
        let Resop4::CreateSession(Res4::Ok(created)) = self.alone(create) else { panic!("CREATE_SESSION") };
        self.session = created.sessionid;
        self.ok([Argop4::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]);
    }

    /// Creates a client of the previous server start, with a new session. It has reclaimed nothing.
    pub fn returning(server: &NfsServer, name: &str) -> Self {
        let mut client = Self::stranger(server, 1);
        let Resop4::ExchangeId(Res4::Ok(exchanged)) = client.alone(exchange_id(name)) else { panic!("EXCHANGE_ID") };
        let create = create_session(exchanged.clientid, exchanged.sequenceid, channel());
        let Resop4::CreateSession(Res4::Ok(created)) = client.alone(create) else { panic!("CREATE_SESSION") };
        (client.client, client.session) = (exchanged.clientid, created.sessionid);
        client
    }

    /// Creates a client that has not introduced itself.
    pub fn stranger(server: &NfsServer, minor: u32) -> Self {
        Self {
            nfs: Arc::new(server.nfs4()),
            paper: Paper::new("tcp", 4 << 20),
            peer: "192.0.2.1:700".parse().unwrap(),
            caller: user(0, 0),
            minor,
            client: Clientid4::default(),
            session: Sessionid4::default(),
            sequence: 0,
            cachethis: false,
        }
    }

    /// Returns the bytes of the results of a call.
    pub fn raw(&self, message: &Message) -> Result<Message, AcceptError> {
        finish(self.paper.call(&*self.nfs, PROC_COMPOUND, (self.peer, &self.caller), message))
    }

    pub fn compound(&self, argarray: Vec<Argop4>) -> CompoundRes {
        let args = CompoundArgs { tag: "tag".into(), minorversion: self.minor, argarray };
        let results: CompoundRes = results(&self.raw(&Message::encode(&args)).expect("the call must be accepted"));
        assert_eq!(results.tag, "tag".into());
        results
    }

    /// Returns the result of an operation that needs no session.
    pub fn alone(&self, operation: Argop4) -> Resop4 {
        self.compound(vec![operation]).resarray.pop().expect("there must be a result")
    }

    pub fn sequence_op(&self, slot: u32, sequence: u32) -> Argop4 {
        Argop4::Sequence(SequenceArgs {
            sessionid: self.session,
            sequenceid: Sequenceid4(sequence),
            slotid: Slotid4(slot),
            highest_slotid: Slotid4(slot),
            cachethis: self.cachethis,
        })
    }

    /// Returns the status, and the results after that of SEQUENCE.
    pub fn call(&mut self, operations: impl IntoIterator<Item = Argop4>) -> (Nfsstat4, Vec<Resop4>) {
        self.sequence += 1;
        let mut all = vec![self.sequence_op(0, self.sequence)];
        all.extend(operations);
        let CompoundRes { status, mut resarray, .. } = self.compound(all);
        assert_eq!(resarray.first().map(Resop4::status), Some(Nfsstat4::Ok), "{status:?}");
        assert_eq!(resarray.last().map(Resop4::status), Some(status));
        resarray.remove(0);
        (status, resarray)
    }

    /// Returns the results. All must be OK.
    pub fn ok(&mut self, operations: impl IntoIterator<Item = Argop4>) -> Vec<Resop4> {
        let (status, results) = self.call(operations);
        assert_eq!(status, Nfsstat4::Ok, "{results:?}");
        results
    }

    /// Returns the status of a compound.
    pub fn status(&mut self, operations: impl IntoIterator<Item = Argop4>) -> Nfsstat4 {
        self.call(operations).0
    }

    /// Returns the file handle at a path.
    pub fn walk(&mut self, path: &str) -> NfsFh4 {
        let mut operations = at(path);
        operations.push(Argop4::GetFh);
        match self.ok(operations).pop() {
            Some(Resop4::GetFh(Res4::Ok(handle))) => handle,
            other => panic!("{other:?}"),
        }
    }

    pub fn attrs(&mut self, path: &str, wanted: &[Attr4]) -> Attrs {
        let mut operations = at(path);
        operations.push(getattr(wanted));
        match self.ok(operations).pop() {
            Some(Resop4::GetAttr(Res4::Ok(fattr))) => fattr.to_attrs(2, Purpose::Get).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Opens a file in a directory, and creates it if `how.create`. Returns its stateid and handle.
    pub fn open(&mut self, dir: &str, name: &str, how: Open) -> Result<(Stateid4, NfsFh4), Nfsstat4> {
        let mut operations = at(dir);
        operations.push(open(name, how));
        operations.push(Argop4::GetFh);
        let (status, mut results) = self.call(operations);
        if status != Nfsstat4::Ok {
            return Err(status);
        }
        let Some(Resop4::GetFh(Res4::Ok(handle))) = results.pop() else { panic!("GETFH") };
        let Some(Resop4::Open(Res4::Ok(opened))) = results.pop() else { panic!("OPEN") };
        Ok((opened.stateid, handle))
    }

    /// Creates a file with this content.
    pub fn file(&mut self, dir: &str, name: &str, content: &[u8]) -> NfsFh4 {
        let (stateid, handle) = self.open(dir, name, Open::default()).unwrap();
        self.ok([putfh(&handle), write(stateid, 0, content), close(stateid)]);
        handle
    }
}

/// The arguments of an OPEN.
#[derive(Clone, Copy)]
pub struct Open {
    pub owner: &'static str,
    pub access: u32,
    pub deny: u32,
    pub create: bool,
}

impl Default for Open {
    fn default() -> Self {
        Self { owner: "owner", access: OPEN4_SHARE_ACCESS_BOTH, deny: OPEN4_SHARE_DENY_NONE, create: true }
    }
}

pub fn open(name: &str, how: Open) -> Argop4 {
    let attrs = Fattr4::from(Attrs { mode: Some(0o644), ..Attrs::default() });
    let openhow = if how.create { Openflag4::Create(Createhow4::Unchecked(attrs)) } else { Openflag4::NoCreate };
    Argop4::Open(Box::new(OpenArgs {
        seqid: Seqid4(0),
        share_access: how.access,
        share_deny: how.deny,
        owner: StateOwner4 { clientid: Clientid4(0), owner: how.owner.into() },
        openhow,
        claim: OpenClaim4::Null(name.into()),
    }))
}

/// Returns the operations that reclaim an open.
pub fn reclaim(handle: &NfsFh4, how: Open) -> [Argop4; 2] {
    let open = Argop4::Open(Box::new(OpenArgs {
        seqid: Seqid4(0),
        share_access: how.access,
        share_deny: how.deny,
        owner: StateOwner4 { clientid: Clientid4(0), owner: how.owner.into() },
        openhow: Openflag4::NoCreate,
        claim: OpenClaim4::Previous(OpenDelegationType4::None),
    }));
    [putfh(handle), open]
}

/// Returns PUTROOTFH and LOOKUPs.
pub fn at(path: &str) -> Vec<Argop4> {
    let lookup = |name: &str| Argop4::Lookup(LookupArgs { objname: name.into() });
    std::iter::once(Argop4::PutRootFh).chain(path.split('/').filter(|name| !name.is_empty()).map(lookup)).collect()
}

pub fn getattr(wanted: &[Attr4]) -> Argop4 {
    Argop4::GetAttr(GetAttrArgs { attr_request: wanted.iter().map(|&attr| attr as u32).collect() })
}

pub fn putfh(handle: &NfsFh4) -> Argop4 {
    Argop4::PutFh(PutFhArgs { object: handle.clone() })
}

pub fn write(stateid: Stateid4, offset: u64, data: &[u8]) -> Argop4 {
    let data = bytes::Bytes::copy_from_slice(data).into();
    Argop4::Write(WriteArgs { stateid, offset, stable: StableHow4::FileSync, data })
}

pub fn read(stateid: Stateid4, offset: u64, count: u32) -> Argop4 {
    Argop4::Read(ReadArgs { stateid, offset, count })
}

pub fn close(open_stateid: Stateid4) -> Argop4 {
    Argop4::Close(CloseArgs { seqid: Seqid4(0), open_stateid })
}

pub fn set(attrs: Attrs) -> Argop4 {
    Argop4::SetAttr(SetAttrArgs { stateid: Stateid4::ANONYMOUS, obj_attributes: attrs.into() })
}

pub fn mkdir(name: &str) -> Argop4 {
    create(name, Createtype4::Other(Ftype4::Dir))
}

pub fn create(name: &str, objtype: Createtype4) -> Argop4 {
    let createattrs = Attrs { mode: Some(0o755), ..Attrs::default() }.into();
    Argop4::Create(Box::new(CreateArgs { objtype, objname: name.into(), createattrs }))
}

pub fn remove(name: &str) -> Argop4 {
    Argop4::Remove(RemoveArgs { target: name.into() })
}
