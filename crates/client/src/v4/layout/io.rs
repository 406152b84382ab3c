//! The way of a READ, WRITE or COMMIT to data servers: the layout, the connections, and what happens on errors.
//!
//! Read RFC 8435 §7 and §8.2.3 first. If a data server fails, the layout is returned with a report of the error. Then the client asks
//! for another layout once. If there is none, or it fails too, the data pass through the metadata server, and no layout is asked for
//! for some time: a server that does not act on the report would grant the same layout for each I/O.

use std::{ops::Range, sync::Arc};

use nfs::v4::{
    DeviceError4, Layoutiomode4, Layouttype4, Nfsstat4, OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE, Opnum4,
    Stateid4,
};
use tokio::time::{Instant, sleep};

use super::{
    super::{
        opens::{InUse, Opens},
        protocol::V4,
    },
    data_server::DataServer,
    grant::LayoutUse,
    held::{DataFileId, IoError, PAUSE_LONG},
    segment::DataFile,
};
use crate::{
    call::Deadline,
    model::{Caller, Error, ErrorKind, Handle, Result, Status},
};

/// A file that is open, with a layout that is in use.
pub(super) struct Direct {
    pub file: InUse,
    pub layout: LayoutUse,
    pub access: Access,
    mode: Layoutiomode4,
}

/// The identity of I/O at a data server of a files layout: the caller, and the stateid of the open at the metadata server.
pub(super) struct Access {
    caller: Option<Caller>,
    stateid: Stateid4,
}

/// A data file, ready for I/O.
pub(super) struct Target {
    pub server: Arc<dyn DataServer>,
    /// Maximum bytes of a READ.
    pub read_max: usize,
    /// Maximum bytes of a WRITE.
    pub write_max: usize,
    pub handle: Handle,
    pub id: DataFileId,
}

impl V4 {
    /// Opens a file, and returns its layout for a range. Returns `None` if data pass through the server. Errors of OPEN are left to
    /// the request that does that.
    pub(super) async fn direct(&self, handle: &Handle, mode: Layoutiomode4, range: &Range<u64>) -> Option<Direct> {
        // The layouts of a file system that has moved are not used.
        if !self.server.opens.layouts.is_active() || self.server.moves.any() {
            return None;
        }
        let access = match mode {
            Layoutiomode4::Rw => OPEN4_SHARE_ACCESS_WRITE,
            _ => OPEN4_SHARE_ACCESS_READ,
        };
        let (opens, deadline, caller) = (&self.server.opens, self.deadline(), self.caller.as_ref());
        let file = opens.file(handle);
        // The server checks each caller's access when it opens the file for it.
        let stateid = file.0.stateid(opens, (caller, access), &deadline).await.ok()?;
        for _ in 0..WAITS_MAX {
            if let Some(layout) = opens.layout(&file.0, (caller, stateid), (mode, range), &deadline).await {
                // RFC 8881 §13.9.1: at a data server, the seqid is 0.
                let access = Access { caller: self.caller.clone(), stateid: Stateid4 { seqid: 0, ..stateid } };
                return Some(Direct { file, layout, access, mode });
            }
            // RFC 8435 §5.1.2: the flag of the server is a hint, so the wait is bounded.
            let wait = file.0.layouts.held.lock().wait(mode, Instant::now());
            sleep(wait?).await;
        }
        None
    }

    /// Reports whether the server may not know the size of a file, because this client has written to data servers.
    pub(in crate::v4) fn is_unpublished(&self, object: &Handle) -> bool {
        let opens = &self.server.opens;
        opens.layouts.is_active() && opens.known(object).is_some_and(|file| !file.is_published())
    }

    /// Tells the server about data that this client has written to data servers, so that it knows the size of the file.
    pub(crate) async fn publish(&self, object: &Handle) {
        let opens = &self.server.opens;
        if !opens.layouts.is_active() || self.server.moves.any() {
            return;
        }
        if let Some(file) = opens.known(object) {
            // If this fails, the layout is lost, and the server asks the data servers for the size.
            let _ = Box::pin(opens.commit_layout(&file, &self.deadline())).await;
        }
    }
}

impl Direct {
    /// Ends the use of the layout, and returns the layout to the server with a report of the errors. After the last of the
    /// [`TRIES`], no other layout is asked for for some time.
    pub async fn fail(self, opens: &Arc<Opens>, errors: Vec<IoError>, attempt: usize) {
        let Direct { file, layout, mode, .. } = self;
        let segment = layout.segment.clone();
        for error in &errors {
            tracing::warn!(error = ?error.error, range = ?error.range, "I/O at a data server failed; the layout is returned");
        }
        {
            let mut held = file.0.layouts.held.lock();
            if held.holds(&segment) {
                held.failed(errors);
            }
        }
        drop(layout);
        opens.end_layouts(&file.0, Some(segment)).await;
        if attempt + 1 == TRIES {
            file.0.layouts.held.lock().deny(mode, Instant::now(), PAUSE_LONG);
        }
    }
}

/// Connects to the data server of a data file.
///
/// # Errors
/// The data server cannot be found or reached.
pub(super) async fn target(opens: &Opens, file: &DataFile, access: &Access, deadline: &Deadline) -> Result<Target> {
    let layout_type = if file.user.is_some() { Layouttype4::FLEX_FILES } else { Layouttype4::NFSV4_1_FILES };
    let device = opens.device(&file.server, layout_type, deadline).await?;
    let info = device.info();
    let handle = file.handle(info.version.1).ok_or_else(|| {
        let problem = "the layout has no handle for the version of the data server".to_owned();
        Error::new(ErrorKind::Protocol(problem), "LAYOUTGET")
    })?;
    let (caller, stateid) = match &file.user {
        // RFC 8435 §2.2, §5.1: the user and the group of the layout, and not those of the caller.
        Some(user) => (Some(user), Stateid4::ANONYMOUS),
        None => (access.caller.as_ref(), access.stateid),
    };
    let server = device.connect(opens.layouts.dialer(), caller, stateid).await?;
    let (read_max, write_max) = server.transfer_max();
    let (read_max, write_max) = (read_max.min(info.read_max), write_max.min(info.write_max));
    let (handle, id) = (handle.clone(), (file.server, handle.clone()));
    Ok(Target { server, read_max, write_max, handle, id })
}

/// Takes note of the failure of an operation on a data file, and returns the report.
pub(super) fn failure(opens: &Opens, file: &DataFile, opnum: Opnum4, range: Range<u64>, error: &Error) -> IoError {
    tracing::debug!(%error, "an operation on a data server failed");
    let status = match error.status() {
        // RFC 8435 §9.1.1: the data server did not answer.
        None => Nfsstat4::NxIo,
        Some(Status::NoSpace) => Nfsstat4::NoSpc,
        Some(Status::QuotaExceeded) => Nfsstat4::DQuot,
        Some(Status::AccessDenied | Status::NotPermitted) => Nfsstat4::Access,
        Some(Status::StaleHandle | Status::BadHandle) => Nfsstat4::Stale,
        Some(_) => Nfsstat4::Io,
    };
    if status == Nfsstat4::NxIo
        && let Some(device) = opens.layouts.device(&file.server)
    {
        device.fail();
    }
    IoError { range, error: DeviceError4 { deviceid: file.server.device, status, opnum } }
}

/// The number of times that an I/O waits for a layout, if the server prefers that.
const WAITS_MAX: usize = 6;
/// The number of layouts that an I/O tries before it goes through the server.
pub(super) const TRIES: usize = 2;
