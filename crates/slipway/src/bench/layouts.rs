//! [`Layouts`]: LAYOUTGET, LAYOUTRETURN, LAYOUTCOMMIT and GETDEVICEINFO, one after the other. [`Caller`] sends them.
//!
//! The client library decides by itself when it sends these operations. So they are sent by [`V4::compound`], in the session of a mount.
//! Read RFC 8881 §18.40 to §18.44 first.
//!
//! The number of objects of a file determines the size of its layout. One cluster has files with one object. Another one has copies on all its
//! data servers: a file of one of its exports has an object for each copy, and a file of the other one has an object for each stripe of each
//! copy.
//!
//! Errors: a status other than NFS4_OK ends the measurement. Only NFS4ERR_DELAY and NFS4ERR_GRACE are obeyed.

use std::{collections::BTreeMap, time::Duration, time::Instant};

use client::{Handle, NfsUrl, V4};
use nfs::v4::{
    attr::{Attrs, Fattr4},
    layout::{
        encode_body,
        flex::{FfDataServer4, FfLayout4, FfLayoutReturn4},
    },
    *,
};
use parking_lot::Mutex;
use xdr::Opaque;

use super::{
    load::{self, Costs},
    meter::Meter,
    point::{Operation, Point},
    runner::{Measured, Subject},
    sample::Tally,
};
use crate::{
    cluster,
    exit::Failure,
    output,
    reach::{self, Reach},
};

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
        let path = if point.objects == ONE_STRIPE { cluster::ONE_STRIPE.into() } else { url.path.clone() };
        let url = url.with_path(path);
        let connect = |_| {
            let runtime = reach::runtime()?;
            let opened = runtime.block_on(Opened::new(&url, point, self.sizes))?;
            Ok((opened, runtime))
        };
        let drive = |(opened, runtime): &(Opened, tokio::runtime::Runtime), end| {
            runtime.block_on(opened.repeat(point.operation, end))
        };
        let finish = |(opened, runtime): (Opened, tokio::runtime::Runtime)| runtime.block_on(opened.close());
        let costs = Costs { servers: &[*pid], data_servers: &[], meter: self.meter };
        load::measure(1, self.limit, &costs, connect, drive, finish).map(Measured::Sample)
    }
}

/// A mount whose session sends compounds of this module's choice.
pub(super) struct Caller {
    url: NfsUrl,
    v4: V4,
    /// The root of the mount.
    pub(super) root: Handle,
}

impl Caller {
    pub(super) async fn connect(url: &NfsUrl) -> Result<Self, Failure> {
        let mount = Reach::new().mount(url).await?;
        let v4 = mount.v4().expect("mount must have version 4").clone();
        Ok(Self { url: url.clone(), v4, root: mount.root().clone() })
    }

    /// Sends operations. Returns the results.
    ///
    /// # Errors
    /// One of the operations fails.
    pub(super) async fn call(&self, operations: Vec<Argop4>) -> Result<Vec<Resop4>, Failure> {
        let has_layout = |operation: &Argop4| matches!(operation, Argop4::LayoutGet(_) | Argop4::GetDeviceInfo(_));
        let max = if operations.iter().any(has_layout) { LAYOUT_MAX } else { OTHER_MAX };
        self.v4.compound(operations, max).await.map_err(|error| reach::failure(&self.url, &error))
    }

    /// Returns the objects of the only layout of a reply to LAYOUTGET.
    ///
    /// # Errors
    /// There is another number of layouts or objects, or the layout is malformed.
    pub(super) fn objects(&self, granted: &LayoutGetOk, number: u32) -> Result<Vec<FfDataServer4>, Failure> {
        let [layout] = &granted.layout.0[..] else { return Err(self.unexpected("LAYOUTGET")) };
        let body: Result<FfLayout4, _> = layout.content.decode_as(Layouttype4::FLEX_FILES);
        let body = body.map_err(|_| self.unexpected("LAYOUTGET"))?;
        let objects: Vec<_> = body.mirrors.into_iter().flat_map(|mirror| mirror.data_servers).collect();
        if objects.len() != number as usize {
            let message = format!("{}: a layout has {} objects instead of {number}", self.url, objects.len());
            return Err(Failure::failed(message));
        }
        Ok(objects)
    }

    pub(super) fn unexpected(&self, operation: &str) -> Failure {
        Failure::failed(format!("{}: {operation} has an unexpected result", self.url))
    }
}

/// An open file whose objects exist.
struct Opened {
    caller: Caller,
    handle: Handle,
    open: Stateid4,
    device: Deviceid4,
}

impl Opened {
    /// Opens the file of a point. If this is the first use, its objects are made.
    async fn new(url: &NfsUrl, point: &Point, sizes: &Sizes) -> Result<Self, Failure> {
        let (handle, open, device) = Default::default();
        let mut file = Self { caller: Caller::connect(url).await?, handle, open, device };
        let name = format!("layout-{}", point.objects);
        let opening = vec![put(&file.caller.root), create(&name, Createhow4::Unchecked), Argop4::GetFh];
        let mut results = file.caller.call(opening).await?;
        let (Some(Resop4::GetFh(Res4::Ok(handle))), Some(Resop4::Open(Res4::Ok(opened)))) =
            (results.pop(), results.pop())
        else {
            return Err(file.caller.unexpected("OPEN"));
        };
        (file.handle, file.open) = (handle, opened.stateid);
        // A layout to read does not make objects.
        let granted = file.get(Layoutiomode4::Rw).await?;
        let objects = file.caller.objects(&granted, point.objects)?;
        file.device = objects[0].deviceid;
        let of = if point.objects == 1 { "one object".to_owned() } else { format!("{} objects", point.objects) };
        let bytes = granted.layout.0.iter().map(|layout| layout.content.body.0.len()).sum();
        sizes.note(format!("a layout of {of}"), bytes);
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
        match self.on_file(get_layout(iomode, self.open)).await? {
            Resop4::LayoutGet(LayoutGetRes::Ok(granted)) => Ok(granted),
            _ => Err(self.caller.unexpected("LAYOUTGET")),
        }
    }

    async fn return_layout(&self, stateid: Stateid4) -> Result<(), Failure> {
        self.on_file(return_layout(stateid)).await.map(drop)
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
            maxcount: LAYOUT_MAX as u32,
            notify_types: Default::default(),
        };
        match self.caller.call(vec![Argop4::GetDeviceInfo(args)]).await?.pop() {
            Some(Resop4::GetDeviceInfo(GetDeviceInfoRes::Ok(device))) => Ok(device),
            _ => Err(self.caller.unexpected("GETDEVICEINFO")),
        }
    }

    /// Returns the result of an operation on the file.
    async fn on_file(&self, operation: Argop4) -> Result<Resop4, Failure> {
        let result = self.caller.call(vec![put(&self.handle), operation]).await?.pop();
        result.ok_or_else(|| self.caller.unexpected("PUTFH"))
    }

    /// Closes the file, and ends the mount.
    async fn close(self) -> Result<(), Failure> {
        self.on_file(close(self.open)).await?;
        reach::unmount_all().await;
        Ok(())
    }
}

pub(super) fn put(object: &Handle) -> Argop4 {
    Argop4::PutFh(PutFhArgs { object: object.clone() })
}

/// Returns the OPEN that creates a file in the current directory in this way.
pub(super) fn create(name: &str, how: fn(Fattr4) -> Createhow4) -> Argop4 {
    let attrs = Attrs { mode: Some(0o600), ..Attrs::default() };
    Argop4::Open(Box::new(OpenArgs {
        seqid: Seqid4(0),
        share_access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
        share_deny: OPEN4_SHARE_DENY_NONE,
        // RFC 8881 §18.16.3: the client is that of the session.
        owner: StateOwner4 { clientid: Clientid4(0), owner: "bench".into() },
        openhow: Openflag4::Create(how(attrs.into())),
        claim: OpenClaim4::Null(name.into()),
    }))
}

/// Returns the LAYOUTGET of the whole current file.
pub(super) fn get_layout(iomode: Layoutiomode4, open: Stateid4) -> Argop4 {
    Argop4::LayoutGet(LayoutGetArgs {
        signal_layout_avail: false,
        layout_type: Layouttype4::FLEX_FILES,
        iomode,
        offset: 0,
        length: LENGTH_TO_EOF,
        minlength: 4096,
        stateid: open,
        maxcount: LAYOUT_MAX as u32,
    })
}

/// Returns the LAYOUTRETURN of all layouts of the current file.
pub(super) fn return_layout(stateid: Stateid4) -> Argop4 {
    let body = encode_body(&FfLayoutReturn4::default());
    Argop4::LayoutReturn(LayoutReturnArgs {
        reclaim: false,
        layout_type: Layouttype4::FLEX_FILES,
        iomode: Layoutiomode4::Any,
        layoutreturn: Layoutreturn4::File { offset: 0, length: LENGTH_TO_EOF, stateid, body },
    })
}

pub(super) fn close(open: Stateid4) -> Argop4 {
    Argop4::Close(CloseArgs { seqid: Seqid4(0), open_stateid: open })
}

/// The numbers of copies, and of stripes of each copy, of the cluster with large layouts. It has as many data servers.
pub const WIDE: usize = 8;
/// The objects of a file that has one stripe, and of one that has all stripes.
pub const ONE_STRIPE: u32 = WIDE as u32;
pub const ALL_STRIPES: u32 = (WIDE * WIDE) as u32;
/// Maximum bytes of a layout or device, and of other results. The client library has the same for layouts.
const LAYOUT_MAX: usize = 64 << 10;
const OTHER_MAX: usize = 2 << 10;
