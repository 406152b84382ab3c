//! LAYOUTERROR and LAYOUTSTATS: what this client tells the metadata server about data servers while it keeps a layout.
//!
//! Read RFC 7862 §15.6 and §15.7, and RFC 8435 §9, §10 and §11 first. Both operations are of NFSv4.2; over NFSv4.1 the same is in
//! LAYOUTRETURN. A READ that another mirror has answered is reported by LAYOUTERROR at once. A failed WRITE needs another layout, so
//! LAYOUTRETURN reports it. Statistics are sent at the interval that the layout asks for, while the file is used, and with LAYOUTRETURN.
//!
//! Errors: reports are hints. One that fails is not repeated.

use std::{sync::Arc, time::Duration};

use nfs::v4::{
    layout::flex::{FfIostats4, FfLayoutUpdate4},
    *,
};
use tokio::time::Instant;

use super::{
    super::opens::{OpenFile, Opens},
    held::{DataFileId, IoError},
    usage::{Begun, Direction, Flow, time},
};
use crate::{call::Deadline, session::compound::Compound};

/// An operation at a data server that is counted. It counts as failed if it is dropped before [`done`](Self::done).
pub(super) struct Counted<'a> {
    opens: &'a Arc<Opens>,
    file: &'a Arc<OpenFile>,
    data_file: &'a DataFileId,
    begun: Begun,
    moved: Option<usize>,
}

impl<'a> Counted<'a> {
    /// Begins an operation of this many bytes.
    pub fn new(
        (opens, file): (&'a Arc<Opens>, &'a Arc<OpenFile>),
        data_file: &'a DataFileId,
        direction: Direction,
        bytes: usize,
    ) -> Self {
        let begun = file.layouts.held.lock().usage.begin(data_file, direction, bytes, Instant::now());
        Self { opens, file, data_file, begun, moved: None }
    }

    /// Ends an operation that has moved this many bytes.
    pub fn done(mut self, moved: usize) {
        self.moved = Some(moved);
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let due = {
            let mut held = self.file.layouts.held.lock();
            let now = Instant::now();
            held.usage.end(self.data_file, self.begun, self.moved, now);
            let interval = held.stats_interval();
            interval.is_some_and(|interval| held.usage.is_due(interval, now))
        };
        if due && self.opens.client.minor() >= 2 {
            let (opens, file) = (self.opens.clone(), self.file.clone());
            self.opens.client.link.runtime.spawn(async move { opens.send_stats(&file).await });
        }
    }
}

impl Opens {
    /// Takes note of failed READs that another mirror has answered, and reports them.
    pub(super) fn report_errors(self: &Arc<Self>, file: &Arc<OpenFile>, errors: Vec<IoError>) {
        if errors.is_empty() {
            return;
        }
        {
            let mut held = file.layouts.held.lock();
            // A files layout has no body for reports.
            if held.layout_type != Some(Layouttype4::FLEX_FILES) {
                return;
            }
            held.failed(errors);
        }
        // Before NFSv4.2, the next LAYOUTRETURN has them.
        if self.client.minor() >= 2 {
            let (opens, file) = (self.clone(), file.clone());
            self.client.link.runtime.spawn(async move { opens.send_errors(&file).await });
        }
    }

    /// Sends LAYOUTERROR with the errors that were not reported yet.
    async fn send_errors(self: &Arc<Self>, file: &Arc<OpenFile>) {
        let (stateid, errors) = {
            let mut held = file.layouts.held.lock();
            let Some(stateid) = held.stateid.filter(|_| !held.is_ending) else { return };
            (stateid, held.take_errors())
        };
        let error = |compound: Compound, IoError { range, error }| {
            let (offset, length) = (range.start, range.end - range.start);
            compound.op(Argop4::LayoutError(LayoutErrorArgs { offset, length, stateid, errors: vec![error] }), 0)
        };
        let compound = errors.into_iter().fold(Compound::on("LAYOUTERROR", &file.handle), error);
        self.send_report(&compound).await;
    }

    /// Sends LAYOUTSTATS for the data files of a file.
    async fn send_stats(self: &Arc<Self>, file: &Arc<OpenFile>) {
        let stats = {
            let held = file.layouts.held.lock();
            let Some(stateid) = held.stateid.filter(|_| !held.is_ending) else { return };
            let (covers, files) = held.usage.report(Instant::now());
            self.stats(stateid, covers, files)
        };
        let add = |compound: Compound, stats: FfIostats4| {
            let FfIostats4 { offset, length, stateid, read, write, deviceid, layoutupdate } = stats;
            let layoutupdate = LayoutBody4::new(Layouttype4::FLEX_FILES, &layoutupdate);
            let args = LayoutStatsArgs { offset, length, stateid, read, write, deviceid, layoutupdate };
            compound.op(Argop4::LayoutStats(Box::new(args)), 0)
        };
        let compound = stats.into_iter().fold(Compound::on("LAYOUTSTATS", &file.handle), add);
        self.send_report(&compound).await;
    }

    async fn send_report(&self, compound: &Compound) {
        match self.client.run_once(compound, &Deadline::strict(self.client.link.lease())).await {
            Ok(res) if res.status == Nfsstat4::Ok => {}
            Ok(res) => tracing::debug!(status = %res.status, "the server does not take a report about data servers"),
            Err(error) => tracing::debug!(%error, "a report about data servers failed"),
        }
    }

    /// Returns the statistics of a LAYOUTRETURN: those of data files that were used.
    pub(super) fn last_stats(&self, file: &OpenFile, stateid: Stateid4) -> Vec<FfIostats4> {
        let (covers, files) = {
            let held = file.layouts.held.lock();
            if held.stats_interval().is_none() {
                return Vec::new();
            }
            held.usage.report(Instant::now())
        };
        self.stats(stateid, covers, files)
    }

    fn stats(&self, stateid: Stateid4, covers: Duration, files: Vec<(DataFileId, [Flow; 2])>) -> Vec<FfIostats4> {
        let now = Instant::now();
        let info = |flow: &Flow| {
            let (count, bytes) = flow.completed();
            IoInfo4 { count, bytes }
        };
        let stats = |((server, handle), [read, write]): (DataFileId, [Flow; 2])| {
            let addr = self.layouts.device(&server)?.address();
            let update = FfLayoutUpdate4 {
                addr,
                fhandle: handle,
                read: read.latency(now),
                write: write.latency(now),
                duration: time(covers),
                local: false,
            };
            Some(FfIostats4 {
                offset: 0,
                length: LENGTH_TO_EOF,
                stateid,
                read: info(&read),
                write: info(&write),
                deviceid: server.device,
                layoutupdate: update,
            })
        };
        files.into_iter().filter_map(stats).take(STATS_MAX).collect()
    }
}

/// Maximum number of data files in one report.
const STATS_MAX: usize = 16;
