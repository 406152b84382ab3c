//! LAYOUTGET, GETDEVICEINFO, LAYOUTCOMMIT and LAYOUTRETURN: the requests to the metadata server about the layouts of a file.
//!
//! Read RFC 8881 §12.5.2 to §12.5.5 and §18.40 to §18.44 first. LAYOUTGET is a request of its own, sent when a file that is large
//! enough is first read or written, so a small file costs no more than without layouts. A layout is returned when
//! the file is closed, when the server recalls it, and when a data server fails. So the number of layouts is bounded by that of
//! open files.
//!
//! Errors: without a layout, data pass through the metadata server. If LAYOUTCOMMIT fails, the layouts are given up, and data
//! that are not committed get another verifier, so that their writer writes them again.

use std::{collections::hash_map::Entry, ops::Range, sync::Arc, time::Duration};

use entropy::HashMap;
use nfs::v4::{
    attr::Attr4,
    layout::{
        encode_body,
        files::FileLayout4,
        flex::{FfIoerr4, FfLayoutReturn4},
    },
    *,
};
use tokio::time::Instant;
use xdr::Opaque;

use super::{
    super::{
        attr,
        opens::{OpenFile, Opens},
    },
    device::{DataServerId, Device, DevicesInfo},
    held::{IoError, LAYOUT_TYPES, PAUSE_LONG, PAUSE_SHORT, Way},
    segment::{DataFile, Mirror, Segment},
    table::Devices,
};
use crate::{
    call::Deadline,
    model::{Caller, Error, ErrorKind, Result},
    session::compound::{Compound, value},
};

/// A use of a layout by one READ or WRITE. The layout is not returned before its end.
#[derive(Debug)]
pub(crate) struct LayoutUse {
    file: Arc<OpenFile>,
    pub segment: Arc<Segment>,
}

impl Drop for LayoutUse {
    fn drop(&mut self) {
        let was_last = self.file.layouts.held.lock().done();
        if was_last {
            self.file.layouts.drained.notify_waiters();
        }
    }
}

/// Marks that a LAYOUTGET is outstanding, also if its caller gives up.
struct Outstanding<'a>(&'a OpenFile);

impl<'a> Outstanding<'a> {
    fn new(file: &'a OpenFile) -> Self {
        file.layouts.held.lock().is_asking = true;
        Self(file)
    }
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        self.0.layouts.held.lock().is_asking = false;
    }
}

impl Opens {
    /// Returns a layout for a range of a file, if there is one or the server grants one. `open` is the stateid of the caller's
    /// open.
    pub async fn layout(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        (caller, open): (Option<&Caller>, Stateid4),
        (mode, range): (Layoutiomode4, &Range<u64>),
        deadline: &Deadline,
    ) -> Option<LayoutUse> {
        // RFC 8881 §12.7.2: after the lease has expired, the layouts may be those of another client.
        self.client.link.lease_left()?;
        let layouts = &file.layouts;
        let way = || layouts.held.lock().way(mode, range, Instant::now());
        let used = |segment| Some(LayoutUse { file: file.clone(), segment });
        match way() {
            Way::Layout(segment) => return used(segment),
            Way::Server => return None,
            Way::Ask => {}
        }
        // §18.43.3: LAYOUTGETs with a stateid that is not of a layout must not run at the same time.
        let _one = layouts.changes.lock().await;
        match way() {
            Way::Layout(segment) => return used(segment),
            Way::Server => return None,
            Way::Ask => {}
        }
        // Boxed, because this is rare and would enlarge the future of every READ and WRITE.
        let denied = Box::pin(self.layoutget(file, caller, open, (mode, range), deadline)).await;
        if let Some(pause) = denied {
            layouts.held.lock().deny(mode, Instant::now(), pause);
            return None;
        }
        match way() {
            Way::Layout(segment) => used(segment),
            _ => None,
        }
    }

    /// Sends LAYOUTGET. Returns the time for which no other is to be sent, or `None` if the layout was granted.
    async fn layoutget(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        caller: Option<&Caller>,
        open: Stateid4,
        (mode, range): (Layoutiomode4, &Range<u64>),
        deadline: &Deadline,
    ) -> Option<Duration> {
        let Some(layout_type) = self.layout_type(file, deadline).await else { return Some(PAUSE_LONG) };
        let _outstanding = Outstanding::new(file);
        let known = file.layouts.held.lock().stateid;
        let args = LayoutGetArgs {
            signal_layout_avail: false,
            layout_type,
            iomode: mode,
            offset: 0,
            length: LENGTH_TO_EOF,
            // As Linux's client: a layout for less than a page is of no use.
            minlength: 4096,
            //= rfc8881-18.43.3-13
            stateid: known.unwrap_or(open),
            maxcount: LAYOUT_MAX as u32,
        };
        // The reply can be too long for the server to cache. Executing the request twice does no harm.
        let compound = Compound::on("LAYOUTGET", &file.handle).op(Argop4::LayoutGet(args), LAYOUT_MAX).by(caller);
        let res = match self.client.run_once(&compound, deadline).await {
            Ok(res) => res,
            Err(error) => {
                tracing::debug!(%error, "LAYOUTGET failed");
                return Some(PAUSE_SHORT);
            }
        };
        match res.status {
            Nfsstat4::Ok => {}
            // RFC 8435 §5.1.1 and RFC 8881 §18.43.3: transient reasons.
            Nfsstat4::LayoutTryLater | Nfsstat4::RecallConflict | Nfsstat4::Delay | Nfsstat4::Grace => {
                return Some(PAUSE_SHORT);
            }
            Nfsstat4::BadStateid | Nfsstat4::OldStateid | Nfsstat4::Expired | Nfsstat4::AdminRevoked => {
                // The server has revoked the layouts, or has forgotten them. The next request finds out about the open.
                file.layouts.held.lock().end();
                return Some(PAUSE_SHORT);
            }
            status => {
                tracing::debug!(%status, "the server grants no layout");
                return Some(PAUSE_LONG);
            }
        }
        let Some(Resop4::LayoutGet(LayoutGetRes::Ok(ok))) = res.resarray.into_iter().next_back() else {
            return Some(PAUSE_LONG);
        };
        {
            let mut held = file.layouts.held.lock();
            (held.stateid, held.layout_type) = (Some(ok.stateid), Some(layout_type));
        }
        let usable = match self.usable(file, &ok, deadline).await {
            Ok(segments) => {
                let covers = segments.iter().any(|segment| segment.admits(mode, range));
                file.layouts.held.lock().granted(ok.stateid, segments);
                covers
            }
            Err(problem) => {
                tracing::warn!(%problem, "the layout cannot be used; data pass through the metadata server");
                // This waits for the lock that the caller holds.
                let (opens, file) = (self.clone(), file.clone());
                self.client.link.runtime.spawn(async move { opens.end_layouts(&file, None).await });
                false
            }
        };
        (!usable).then_some(PAUSE_LONG)
    }

    /// Checks the layouts of a LAYOUTGET, and asks for their devices.
    ///
    /// # Errors
    /// The reason why this client cannot use a layout. That is no failure of a data server, so it is not reported as one.
    async fn usable(
        &self,
        file: &OpenFile,
        ok: &LayoutGetOk,
        deadline: &Deadline,
    ) -> std::result::Result<Vec<Segment>, String> {
        let mut segments = Vec::with_capacity(ok.layout.0.len());
        for granted in &ok.layout.0 {
            segments.push(self.segment(file, granted, deadline).await?);
        }
        let mut problems: HashMap<Deviceid4, Option<String>> = HashMap::default();
        for segment in &segments {
            for file in segment.mirrors.iter().flat_map(|mirror| &mirror.files) {
                if let Entry::Vacant(entry) = problems.entry(file.server.device) {
                    let found = self.devices(&file.server.device, segment.layout_type, deadline).await;
                    entry.insert(found.err().map(|error| error.to_string()));
                }
            }
        }
        for segment in &segments {
            let problem = |mirror: &Mirror| mirror.files.iter().find_map(|file| problems[&file.server.device].clone());
            let found: Vec<_> = segment.mirrors.iter().filter_map(problem).collect();
            // One mirror is enough for reading.
            let is_enough = segment.mode == Layoutiomode4::Read && found.len() < segment.mirrors.len();
            if let Some(problem) = found.into_iter().next().filter(|_| !is_enough) {
                return Err(problem);
            }
            // The server may have repaired the copy meanwhile. To report it without another attempt would make it stale again.
            let mut files = segment.mirrors.iter().flat_map(|mirror| &mirror.files);
            let is_failed =
                |file: &DataFile| self.layouts.device(&file.server).is_some_and(|device| !device.is_available());
            if segment.mode == Layoutiomode4::Rw && files.any(is_failed) {
                return Err("a data server has failed for this client a short time ago".to_owned());
            }
        }
        Ok(segments)
    }

    /// Checks a layout. The stripes of a files layout are in its device.
    ///
    /// # Errors
    /// The reason why this client cannot use it.
    async fn segment(
        &self,
        file: &OpenFile,
        granted: &Layout4,
        deadline: &Deadline,
    ) -> std::result::Result<Segment, String> {
        let layout_type = granted.content.layout_type;
        if layout_type != Layouttype4::NFSV4_1_FILES {
            return Segment::flexible(granted);
        }
        let body: FileLayout4 = granted.content.decode_as(layout_type).map_err(|error| error.to_string())?;
        let devices = self.devices(&body.deviceid, layout_type, deadline).await.map_err(|error| error.to_string())?;
        Segment::files(granted, &body, &devices, &file.handle)
    }

    /// Returns the type of the layouts of the file system of a file, if this client can use them (RFC 8881 §5.12.1). Asks once for each
    /// file system.
    async fn layout_type(&self, file: &OpenFile, deadline: &Deadline) -> Option<Layouttype4> {
        let id = self.names.lock().id(&file.handle).map(|id| id.fsid);
        if let Some(known) = id.and_then(|id| self.layouts.layout_type(id)) {
            return known;
        }
        let wanted = [Attr4::Fsid, Attr4::FsLayoutTypes].into_iter().collect();
        let ask = async {
            let compound = Compound::on("GETATTR", &file.handle).get_attr(&wanted);
            let mut results = self.client.run(&compound, deadline).await?;
            results.skip(&[Opnum4::PutFh])?;
            attr::values(&value!(results, GetAttr)?)
        };
        let attrs = ask.await.ok()?;
        let offered = attrs.fs_layout_types.unwrap_or_default();
        let found = LAYOUT_TYPES.into_iter().find(|layout_type| offered.contains(layout_type));
        if let Some(fsid) = attrs.fsid {
            self.layouts.file_system(attr::fsid(fsid), found);
        }
        found
    }

    /// Returns a data server of a layout.
    ///
    /// # Errors
    /// GETDEVICEINFO failed, or this client cannot use a data server of the device.
    pub async fn device(
        &self,
        id: &DataServerId,
        layout_type: Layouttype4,
        deadline: &Deadline,
    ) -> Result<Arc<Device>> {
        let devices = self.devices(&id.device, layout_type, deadline).await?;
        let found = devices.servers.get(id.index as usize).cloned();
        found.ok_or_else(|| Error::new(ErrorKind::Protocol("the device has changed".to_owned()), "GETDEVICEINFO"))
    }

    /// Returns the data servers of a device.
    ///
    /// # Errors
    /// GETDEVICEINFO failed, or this client cannot use a data server.
    async fn devices(&self, id: &Deviceid4, layout_type: Layouttype4, deadline: &Deadline) -> Result<Devices> {
        if let Some(devices) = self.layouts.devices(id) {
            return Ok(devices);
        }
        let _one = self.layouts.asking.lock().await;
        if let Some(devices) = self.layouts.devices(id) {
            return Ok(devices);
        }
        let args = GetDeviceInfoArgs {
            device_id: *id,
            layout_type,
            maxcount: DEVICE_MAX as u32,
            notify_types: [NOTIFY_DEVICEID4_CHANGE, NOTIFY_DEVICEID4_DELETE].into_iter().collect(),
        };
        let compound = Compound::new("GETDEVICEINFO").op(Argop4::GetDeviceInfo(args), DEVICE_MAX);
        let mut results = self.client.run(&compound, deadline).await?;
        let Resop4::GetDeviceInfo(GetDeviceInfoRes::Ok(ok)) = results.next()? else {
            return Err(results.protocol_error("GETDEVICEINFO succeeded without a device"));
        };
        let has = |transport: &str| self.layouts.dialer().has(transport);
        let info = DevicesInfo::new(&ok, layout_type, self.client.minor(), has);
        let info = info.map_err(|problem| Error::new(ErrorKind::Resolve(problem), "GETDEVICEINFO"))?;
        Ok(self.layouts.add_devices(*id, info))
    }

    /// Tells the metadata server about writes to data servers, if there are any that it does not know.
    ///
    /// # Errors
    /// LAYOUTCOMMIT failed. The layouts are given up.
    pub async fn commit_layout(&self, file: &Arc<OpenFile>, deadline: &Deadline) -> Result<()> {
        if file.layouts.held.lock().uncommitted().is_none() {
            return Ok(());
        }
        let _one = file.layouts.changes.lock().await;
        self.commit_now(file, deadline).await
    }

    async fn commit_now(&self, file: &OpenFile, deadline: &Deadline) -> Result<()> {
        let (stateid, layout_type, uncommitted) = {
            let held = file.layouts.held.lock();
            let (Some(stateid), Some(layout_type), Some(uncommitted)) =
                (held.stateid, held.layout_type, held.uncommitted())
            else {
                return Ok(());
            };
            (stateid, layout_type, uncommitted)
        };
        let args = LayoutCommitArgs {
            offset: 0,
            length: LENGTH_TO_EOF,
            reclaim: false,
            stateid,
            //= rfc8881-18.42.3-7 rfc8881-18.42.3-8
            last_write_offset: Some(uncommitted.end - 1),
            time_modify: None,
            // RFC 8435 §5.2, RFC 8881 §13.3: the body is empty.
            layoutupdate: LayoutBody4 { layout_type, body: Opaque::default() },
        };
        let compound = Compound::on("LAYOUTCOMMIT", &file.handle).op(Argop4::LayoutCommit(Box::new(args)), 16).once();
        let done = self.client.run(&compound, deadline).await;
        let mut held = file.layouts.held.lock();
        match &done {
            Ok(_) => {
                held.told(uncommitted);
                drop(held);
                self.changed(&file.handle);
            }
            Err(error) => {
                tracing::debug!(%error, "LAYOUTCOMMIT failed");
                held.end();
            }
        }
        done.map(drop)
    }

    /// Returns the layouts of a file, after the I/O in progress. With `only`, does nothing if another task has returned this
    /// layout meanwhile. It runs in a task of its own, so it ends even if the caller gives up.
    pub async fn end_layouts(self: &Arc<Self>, file: &Arc<OpenFile>, only: Option<Arc<Segment>>) {
        let (opens, file) = (self.clone(), file.clone());
        let ended = self.client.link.runtime.spawn(async move {
            {
                let mut held = file.layouts.held.lock();
                if held.stateid.is_none() || only.is_some_and(|only| !held.holds(&only)) {
                    return;
                }
                held.is_ending = true;
            }
            // I/O in progress can need the lock for LAYOUTCOMMIT, so it ends first.
            loop {
                let drained = file.layouts.drained.notified();
                if file.layouts.held.lock().uses == 0 {
                    break;
                }
                drained.await;
            }
            let _one = file.layouts.changes.lock().await;
            if !file.layouts.held.lock().is_ending {
                // Another task has returned them.
                return;
            }
            let deadline = &Deadline::strict(opens.client.link.lease());
            // If this fails, the layouts are given up already.
            let _ = opens.commit_now(&file, deadline).await;
            opens.return_now(&file, deadline).await;
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "returning a layout was interrupted");
        }
    }

    /// Sends LAYOUTRETURN with the errors of data servers. RFC 8435 §8.2.3: a LAYOUTRETURN with errors asks the server for
    /// repair; LAYOUTERROR is only a hint.
    async fn return_now(&self, file: &OpenFile, deadline: &Deadline) {
        let (stateid, layout_type, errors) = {
            let mut held = file.layouts.held.lock();
            let (Some(stateid), Some(layout_type)) = (held.stateid, held.layout_type) else {
                // LAYOUTCOMMIT has found that the layouts are lost.
                held.end();
                return;
            };
            (stateid, layout_type, held.take_errors())
        };
        let report = |IoError { range, error }| FfIoerr4 {
            offset: range.start,
            length: range.end - range.start,
            stateid,
            errors: vec![error],
        };
        let body = match layout_type {
            // RFC 8881 §13.3: the body is empty, so the server finds out about failures by itself.
            Layouttype4::NFSV4_1_FILES => Opaque::default(),
            _ => encode_body(&FfLayoutReturn4 {
                ioerr_report: errors.into_iter().map(report).collect(),
                iostats_report: self.last_stats(file, stateid),
            }),
        };
        let layoutreturn = Layoutreturn4::File { offset: 0, length: LENGTH_TO_EOF, stateid, body };
        let layoutreturn = layout_return(layout_type, layoutreturn);
        let compound = Compound::on("LAYOUTRETURN", &file.handle).op(layoutreturn, 24).once();
        if let Err(error) = self.client.run(&compound, deadline).await {
            tracing::debug!(%error, "LAYOUTRETURN failed");
        }
        file.layouts.held.lock().end();
    }
}

/// Returns a LAYOUTRETURN of layouts of both modes.
pub(super) fn layout_return(layout_type: Layouttype4, layoutreturn: Layoutreturn4) -> Argop4 {
    Argop4::LayoutReturn(LayoutReturnArgs { reclaim: false, layout_type, iomode: Layoutiomode4::Any, layoutreturn })
}

/// The notification types of devices (RFC 8881 §20.12).
pub(super) const NOTIFY_DEVICEID4_CHANGE: u32 = 1;
pub(super) const NOTIFY_DEVICEID4_DELETE: u32 = 2;
/// Maximum bytes of the layouts of one LAYOUTGET.
const LAYOUT_MAX: usize = 64 << 10;
/// Maximum bytes of a device.
const DEVICE_MAX: usize = 8 << 10;
