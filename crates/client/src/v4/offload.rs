//! Copies that a server continues after its reply, and how the client learns of their ends (RFC 7862 §4.8, §15.8,
//! §15.9, §16.1).
//!
//! The server reports the end of a copy by CB_OFFLOAD, which can arrive before the reply with the stateid of the copy.
//! In case that no CB_OFFLOAD arrives, the client polls with OFFLOAD_STATUS. A copy for which no task waits any more is
//! cancelled.

use std::{sync::Arc, time::Duration};

use nfs::v4::{callback::*, *};
use tokio::time::Instant;

use super::{protocol::V4, server::Server};
use crate::{
    call::Deadline,
    model::{Handle, Result, StableHow, Written},
    session::compound::{Compound, failure, value},
};

/// A copy for which a task waits. If it is dropped before the copy has ended, the copy is cancelled.
struct Waiting {
    server: Arc<Server>,
    file: Handle,
    name: Stateid4,
    ended: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.server.callbacks.offloads.forget(&self.name);
        if self.ended {
            return;
        }
        let (server, file, stateid) = (self.server.clone(), self.file.clone(), self.name);
        self.server.client.link.runtime.clone().spawn(async move {
            let cancel = Argop4::OffloadCancel(OffloadArgs { stateid });
            let compound = Compound::on("OFFLOAD_CANCEL", &file).op(cancel, 0);
            let deadline = &Deadline::strict(server.client.link.lease());
            if let Err(error) = server.client.run(&compound, deadline).await {
                tracing::debug!(%error, "cancelling a copy failed");
            }
        });
    }
}

impl V4 {
    /// Waits for the end of a copy into a file, as long as it makes progress.
    ///
    /// # Errors
    /// The copy failed, made no progress until the deadline, or is unknown to the server.
    pub(super) async fn wait_for_copy(&self, file: &Handle, name: Stateid4, verf: [u8; 8]) -> Result<(u64, Written)> {
        let mut end = self.server.callbacks.offloads.wait(name);
        let mut waiting = Waiting { server: self.server.clone(), file: file.clone(), name, ended: false };
        let (mut seen, mut deadline) = (0, self.deadline());
        loop {
            let status = tokio::select! {
                biased;
                info = &mut end => match info.expect("the copy must be in the table") {
                    OffloadInfo4::Ok(response) => {
                        waiting.ended = true;
                        return Ok(written(&response));
                    }
                    OffloadInfo4::Fail(status, _) => OffloadStatusOk { count: seen, complete: Some(status) },
                },
                () = tokio::time::sleep(STATUS_EVERY) => {
                    let args = Argop4::OffloadStatus(OffloadArgs { stateid: name });
                    let mut results = self.run(&Compound::on("OFFLOAD_STATUS", file).op(args, 16)).await?;
                    results.skip(&[Opnum4::PutFh])?;
                    value!(results, OffloadStatus)?
                }
            };
            match status.complete {
                Some(Nfsstat4::Ok) => {
                    waiting.ended = true;
                    let (count, committed) = (status.count, StableHow4::Unstable);
                    return Ok(written(&WriteResponse4 { callback_id: None, count, committed, writeverf: verf }));
                }
                Some(status) => {
                    waiting.ended = true;
                    return Err(failure(status, "COPY"));
                }
                None if status.count > seen => (seen, deadline) = (status.count, self.deadline()),
                None if Instant::now() >= deadline.at() => return Err(self.program().timeout_error("COPY")),
                None => {}
            }
        }
    }
}

/// Returns the number of bytes that a copy has written, and their durability.
pub(super) fn written(response: &WriteResponse4) -> (u64, Written) {
    let committed = match response.committed {
        StableHow4::Unstable => StableHow::Unstable,
        StableHow4::DataSync => StableHow::DataSync,
        StableHow4::FileSync => StableHow::FileSync,
    };
    let count = response.count.min(u32::MAX.into()) as u32;
    (response.count, Written { count, committed, verf: response.writeverf })
}

/// The time between polls for the status of a copy.
const STATUS_EVERY: Duration = Duration::from_secs(5);
