//! [`Layouts`]: LAYOUTGET, LAYOUTRETURN, LAYOUTCOMMIT and GETDEVICEINFO, one after the other.
//!
//! The client library decides by itself when it sends these operations. So this file has a minimal client, [`Session`]: one connection, and
//! one slot of one session of NFSv4.2. Read RFC 8881 §18.40 to §18.44 first.
//!
//! The number of objects of a file determines the size of its layout. One cluster has files with one object. Another one has copies on all its
//! data servers: a file that is first used by a client without stripes has an object for each copy, and any other file has one for each
//! stripe of each copy.
//!
//! Errors: a status other than NFS4_OK ends the measurement. Only a request to come later is obeyed.

use std::{cell::Cell, collections::BTreeMap, net::SocketAddr, time::Duration, time::Instant};

use bytes::Bytes;
use client::NfsUrl;
use nfs::v4::{
    attr::Attrs,
    compound::{CompoundArgs, CompoundRes},
    layout::{
        encode_body,
        flex::{FfLayout4, FfLayoutReturn4},
    },
    *,
};
use parking_lot::Mutex;
use rpc::{AuthSys, Client, ClientOptions, Credential, ReplyPlan};
use xdr::{Array, Opaque};

use super::{
    load::{self, Costs},
    meter::Meter,
    point::{Operation, Point},
    runner::{Measured, Subject},
    sample::Tally,
};
use crate::{exit::Failure, output};

/// The metadata servers of one series, each a URL and a process ID.
pub struct Layouts<'a> {
    /// The cluster whose files have one object.
    pub narrow: (NfsUrl, u32),
    /// The cluster whose files have objects on all data servers.
    pub wide: (NfsUrl, u32),
    /// The time of each run.
    pub limit: Duration,
    /// The meter of the machine's memory.
    pub meter: &'a Meter,
    /// The sizes of what the servers sent.
    pub sizes: &'a Sizes,
}

/// The bytes of the layouts and devices that servers sent, by their names.
#[derive(Default)]
pub struct Sizes(Mutex<BTreeMap<String, usize>>);

impl Sizes {
    fn note(&self, name: String, bytes: usize) {
        self.0.lock().insert(name, bytes);
    }

    /// Returns the sizes as the end of a sentence, from the smallest to the largest.
    pub fn text(&self) -> String {
        let mut sizes: Vec<_> = self.0.lock().iter().map(|(name, bytes)| (*bytes, name.clone())).collect();
        sizes.sort_unstable();
        sizes.iter().map(|(bytes, name)| format!("; {name} has {}", output::size(*bytes as u64))).collect()
    }
}

impl Subject for Layouts<'_> {
    fn measure(&mut self, point: &Point) -> Result<Measured, Failure> {
        let (url, pid) = if point.objects == 1 { &self.narrow } else { &self.wide };
        let connect = |_| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
            let opened = runtime.block_on(Opened::new(url, point, self.sizes))?;
            Ok((opened, runtime))
        };
        let drive = |(opened, runtime): &(Opened, tokio::runtime::Runtime), end| {
            runtime.block_on(opened.repeat(point.operation, end))
        };
        let finish = |(opened, runtime): (Opened, tokio::runtime::Runtime)| runtime.block_on(opened.close());
        let costs = Costs { servers: &[*pid], meter: self.meter };
        load::measure(1, self.limit, &costs, connect, drive, finish).map(Measured::Sample)
    }
}

/// A file that a session has open, and whose objects exist.
struct Opened {
    session: Session,
    handle: NfsFh4,
    open: Stateid4,
    device: Deviceid4,
}

impl Opened {
    /// Opens the file of a point. If this is the first use, its objects are made.
    async fn new(url: &NfsUrl, point: &Point, sizes: &Sizes) -> Result<Self, Failure> {
        let session = Session::new(url, point.objects != ONE_STRIPE).await?;
        let root = String::from_utf8_lossy(&url.path).into_owned();
        let names = root.split('/').filter(|name| !name.is_empty());
        let lookups = names.map(|name| Argop4::Lookup(LookupArgs { objname: name.into() }));
        let name = format!("layout-{}", point.objects);
        let open = [open(session.client, &name), Argop4::GetFh];
        let mut results = session.ok(std::iter::once(Argop4::PutRootFh).chain(lookups).chain(open)).await?;
        let (Some(Resop4::GetFh(Res4::Ok(handle))), Some(Resop4::Open(Res4::Ok(opened)))) =
            (results.pop(), results.pop())
        else {
            return Err(session.unexpected("OPEN"));
        };
        let mut file = Self { session, handle, open: opened.stateid, device: Deviceid4::default() };
        // A layout to read does not make objects.
        let granted = file.get(Layoutiomode4::Rw).await?;
        let [layout] = &granted.layout.0[..] else { return Err(file.session.unexpected("LAYOUTGET")) };
        let body: Result<FfLayout4, _> = layout.content.decode_as(Layouttype4::FLEX_FILES);
        let body = body.map_err(|_| file.session.unexpected("LAYOUTGET"))?;
        let objects: Vec<_> = body.mirrors.iter().flat_map(|mirror| &mirror.data_servers).collect();
        if objects.len() != point.objects as usize {
            let message = format!("{name}: the layout has {} objects instead of {}", objects.len(), point.objects);
            return Err(Failure::failed(message));
        }
        file.device = objects[0].deviceid;
        let of = if point.objects == 1 { "one object".to_owned() } else { format!("{} objects", point.objects) };
        sizes.note(format!("a layout of {of}"), layout.content.body.0.len());
        file.return_layout(granted.stateid).await?;
        let device = file.get_device().await?;
        sizes.note(format!("a device over {}", url.options.proto), device.device_addr.body.0.len());
        Ok(file)
    }

    /// Executes an operation until `end`. Only its own time counts.
    async fn repeat(&self, operation: Operation, end: Instant) -> Result<Tally, Failure> {
        let mut tally = Tally::until(end);
        match operation {
            Operation::GetDeviceInfo => {
                while tally.goes_on() {
                    let began = Instant::now();
                    self.get_device().await?;
                    tally.count(0, Some(began));
                }
            }
            Operation::LayoutCommit => {
                let stateid = self.get(Layoutiomode4::Rw).await?.stateid;
                while tally.goes_on() {
                    let began = Instant::now();
                    self.commit(stateid).await?;
                    tally.count(0, Some(began));
                }
                self.return_layout(stateid).await?;
            }
            _ => {
                while tally.goes_on() {
                    let began = Instant::now();
                    let stateid = self.get(Layoutiomode4::Read).await?.stateid;
                    let granted = Instant::now();
                    if operation == Operation::LayoutGet {
                        tally.count(0, Some(began));
                    }
                    self.return_layout(stateid).await?;
                    if operation == Operation::LayoutReturn {
                        tally.count(0, Some(granted));
                    }
                }
            }
        }
        Ok(tally)
    }

    async fn get(&self, iomode: Layoutiomode4) -> Result<LayoutGetOk, Failure> {
        let args = LayoutGetArgs {
            signal_layout_avail: false,
            layout_type: Layouttype4::FLEX_FILES,
            iomode,
            offset: 0,
            length: LENGTH_TO_EOF,
            minlength: 4096,
            stateid: self.open,
            maxcount: REPLY_MAX as u32,
        };
        match self.on_file(Argop4::LayoutGet(args)).await? {
            Resop4::LayoutGet(LayoutGetRes::Ok(granted)) => Ok(granted),
            _ => Err(self.session.unexpected("LAYOUTGET")),
        }
    }

    async fn return_layout(&self, stateid: Stateid4) -> Result<(), Failure> {
        let body = encode_body(&FfLayoutReturn4::default());
        let args = LayoutReturnArgs {
            reclaim: false,
            layout_type: Layouttype4::FLEX_FILES,
            iomode: Layoutiomode4::Any,
            layoutreturn: Layoutreturn4::File { offset: 0, length: LENGTH_TO_EOF, stateid, body },
        };
        self.on_file(Argop4::LayoutReturn(args)).await.map(drop)
    }

    /// Commits a write of the first byte.
    async fn commit(&self, stateid: Stateid4) -> Result<(), Failure> {
        let args = LayoutCommitArgs {
            offset: 0,
            length: LENGTH_TO_EOF,
            reclaim: false,
            stateid,
            last_write_offset: Some(0),
            time_modify: None,
            layoutupdate: LayoutBody4 { layout_type: Layouttype4::FLEX_FILES, body: Opaque::default() },
        };
        self.on_file(Argop4::LayoutCommit(Box::new(args))).await.map(drop)
    }

    async fn get_device(&self) -> Result<GetDeviceInfoOk, Failure> {
        let args = GetDeviceInfoArgs {
            device_id: self.device,
            layout_type: Layouttype4::FLEX_FILES,
            maxcount: REPLY_MAX as u32,
            notify_types: Default::default(),
        };
        match self.session.ok([Argop4::GetDeviceInfo(args)]).await?.pop() {
            Some(Resop4::GetDeviceInfo(GetDeviceInfoRes::Ok(device))) => Ok(device),
            _ => Err(self.session.unexpected("GETDEVICEINFO")),
        }
    }

    /// Returns the result of an operation on the file.
    async fn on_file(&self, operation: Argop4) -> Result<Resop4, Failure> {
        let put = Argop4::PutFh(PutFhArgs { object: self.handle.clone() });
        let result = self.session.ok([put, operation]).await?.pop();
        result.ok_or_else(|| self.session.unexpected("PUTFH"))
    }

    /// Closes the file, and ends the session and the client.
    async fn close(self) -> Result<(), Failure> {
        self.on_file(Argop4::Close(CloseArgs { seqid: Seqid4(0), open_stateid: self.open })).await?;
        self.session.end().await
    }
}

/// A session with one slot.
struct Session {
    url: NfsUrl,
    rpc: Client,
    client: Clientid4,
    id: Sessionid4,
    /// The number of the last request.
    sequence: Cell<u32>,
}

impl Session {
    /// Connects, and creates a client and a session. Servers assume that only some clients can use stripes: this one says if it can.
    async fn new(url: &NfsUrl, with_stripes: bool) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("a connection to {url}: {error}"));
        let kind = transports::for_client().find(&url.options.proto).expect("transport must be known");
        let kind = kind.with_options(&url.options.transport).map_err(|error| failed(&error))?;
        let address = (url.host.parse().ok(), url.port);
        let (Some(host), Some(port)) = address else { return Err(failed(&"no address")) };
        let credential = Credential::Sys(AuthSys::of_process());
        let options = ClientOptions { credential, ..ClientOptions::new(NFS_PROGRAM, 4) };
        let connected = Client::connect(kind, SocketAddr::new(host, port), options).await;
        let rpc = connected.map_err(|error| failed(&error))?;
        let (client, id) = Default::default();
        let mut session = Self { url: url.clone(), rpc, client, id, sequence: Cell::new(0) };
        let unique: [u8; 16] = entropy::random();
        let name = Opaque(Bytes::from_static(b"slipway bench"));
        let software = NfsImplId4 { domain: Opaque::default(), name, date: Nfstime4::default() };
        let exchange = ExchangeIdArgs {
            clientowner: ClientOwner4 { verifier: [0; 8], ownerid: Opaque(Bytes::copy_from_slice(&unique)) },
            flags: EXCHGID4_FLAG_USE_PNFS_MDS,
            state_protect: StateProtect4A::None,
            client_impl_id: with_stripes.then_some(software),
        };
        let known = match session.alone(Argop4::ExchangeId(Box::new(exchange))).await? {
            Some(Resop4::ExchangeId(Res4::Ok(known))) => known,
            _ => return Err(session.unexpected("EXCHANGE_ID")),
        };
        session.client = known.clientid;
        let create = CreateSessionArgs {
            clientid: known.clientid,
            sequence: known.sequenceid,
            // Servers grant layouts only to clients that they can call. Nothing recalls these, so no callback needs an answer.
            flags: CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
            fore_chan_attrs: CHANNEL,
            back_chan_attrs: CHANNEL,
            cb_program: CALLBACK_PROGRAM,
            sec_parms: Array(vec![CallbackSecParms4::None]),
        };
        session.id = match session.alone(Argop4::CreateSession(Box::new(create))).await? {
            Some(Resop4::CreateSession(Res4::Ok(created))) => created.sessionid,
            _ => return Err(session.unexpected("CREATE_SESSION")),
        };
        session.ok([Argop4::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]).await?;
        Ok(session)
    }

    /// Returns the results after that of SEQUENCE. Executes the operations again if the server asks to come later.
    ///
    /// # Errors
    /// An operation fails, or the server has asked [`TRIES`] times to come later.
    async fn ok(&self, operations: impl IntoIterator<Item = Argop4>) -> Result<Vec<Resop4>, Failure> {
        let operations: Vec<_> = operations.into_iter().collect();
        let mut tries = 1;
        loop {
            self.sequence.set(self.sequence.get() + 1);
            let sequence = Argop4::Sequence(SequenceArgs {
                sessionid: self.id,
                sequenceid: Sequenceid4(self.sequence.get()),
                slotid: Slotid4(0),
                highest_slotid: Slotid4(0),
                cachethis: false,
            });
            let all = std::iter::once(sequence).chain(operations.iter().cloned()).collect();
            let CompoundRes { status, mut resarray, .. } = self.compound(all).await?;
            match status {
                Nfsstat4::Ok => {
                    resarray.remove(0);
                    return Ok(resarray);
                }
                Nfsstat4::Delay | Nfsstat4::LayoutTryLater | Nfsstat4::RecallConflict if tries < TRIES => {
                    tries += 1;
                    tokio::time::sleep(LATER).await;
                }
                status => return Err(Failure::failed(format!("{}: {status}", self.url))),
            }
        }
    }

    /// Returns the result of an operation outside of sessions.
    async fn alone(&self, operation: Argop4) -> Result<Option<Resop4>, Failure> {
        Ok(self.compound(vec![operation]).await?.resarray.pop())
    }

    async fn compound(&self, argarray: Vec<Argop4>) -> Result<CompoundRes, Failure> {
        let args = CompoundArgs { tag: "".into(), minorversion: 2, argarray };
        let is_long = |operation: &Argop4| matches!(operation, Argop4::LayoutGet(_) | Argop4::GetDeviceInfo(_));
        let inline_max = if args.argarray.iter().any(is_long) { REPLY_MAX } else { REPLY_SHORT };
        let plan = ReplyPlan { inline_max, ..ReplyPlan::default() };
        let answer = self.rpc.call::<CompoundRes>(PROC_COMPOUND, &args, plan, Default::default()).await;
        let answer = answer.map_err(|error| Failure::failed(format!("{}: {}", self.url, error.error)))?;
        Ok(answer.results)
    }

    async fn end(self) -> Result<(), Failure> {
        self.alone(Argop4::DestroySession(DestroySessionArgs { sessionid: self.id })).await?;
        self.alone(Argop4::DestroyClientId(ClientIdArgs { clientid: self.client })).await.map(drop)
    }

    fn unexpected(&self, operation: &str) -> Failure {
        Failure::failed(format!("{}: {operation} has an unexpected result", self.url))
    }
}

/// Returns the OPEN of a file in the current directory, which is created if it does not exist.
fn open(clientid: Clientid4, name: &str) -> Argop4 {
    let attrs = Attrs { mode: Some(0o600), ..Attrs::default() };
    Argop4::Open(Box::new(OpenArgs {
        seqid: Seqid4(0),
        share_access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
        share_deny: OPEN4_SHARE_DENY_NONE,
        owner: StateOwner4 { clientid, owner: "bench".into() },
        openhow: Openflag4::Create(Createhow4::Unchecked(attrs.into())),
        claim: OpenClaim4::Null(name.into()),
    }))
}

/// The numbers of copies, and of stripes of each copy, of the cluster with large layouts. It has as many data servers.
pub const WIDE: usize = 8;
/// The objects of a file that has one stripe, and of one that has all stripes.
pub const ONE_STRIPE: u32 = WIDE as u32;
pub const ALL_STRIPES: u32 = (WIDE * WIDE) as u32;
const NFS_PROGRAM: u32 = 100_003;
/// Maximum bytes of a reply with a layout or device, and of any other one. The client library has the same for layouts.
const REPLY_MAX: usize = 64 << 10;
const REPLY_SHORT: usize = 2 << 10;
const CALLBACK_PROGRAM: u32 = 0x4000_0000;
/// The number of times that a request is made, and the pause in between.
const TRIES: u32 = 200;
const LATER: Duration = Duration::from_millis(10);
/// The session.
const CHANNEL: ChannelAttrs4 = ChannelAttrs4 {
    headerpadsize: 0,
    maxrequestsize: 1 << 20,
    maxresponsesize: 1 << 20,
    maxresponsesize_cached: 4 << 10,
    maxoperations: 16,
    maxrequests: 1,
    rdma_ird: None,
};
