//! The programs of a server, and the lookup of the procedure of a call.

use std::{sync::Arc, time::Duration};

use crate::{
    AcceptStat, CallHeader, ConnectionId, Procedure, Reverse, Service,
    counters::{Bytes, Counters, ProcedureStats},
};

/// A table of services and their procedures.
pub(crate) struct Programs {
    entries: Vec<Entry>,
    /// The counters, with one row for each element of `rows`.
    counters: Counters,
    rows: Vec<Row>,
}

struct Entry {
    service: Arc<dyn Service>,
    program: u32,
    low: u32,
    high: u32,
    /// The procedures by version, then by number.
    procedures: Vec<Vec<Option<Target>>>,
}

struct Row {
    name: &'static str,
    number: (u32, u32, u32),
}

/// A procedure that a call can execute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub procedure: Procedure,
    row: usize,
}

impl Programs {
    pub fn new(services: Vec<Arc<dyn Service>>) -> Self {
        let mut rows = Vec::new();
        let entries: Vec<_> = services.into_iter().map(|service| Entry::new(service, &mut rows)).collect();
        Self { entries, counters: Counters::new(rows.len()), rows }
    }

    /// Finds the service and procedure of a call. `lossy` tells that it came over a transport that loses messages.
    ///
    /// # Errors
    /// Returns the `accept_stat` for the caller if there is no such program, version or procedure.
    pub fn find(&self, call: &CallHeader, lossy: bool) -> Result<(&dyn Service, Target), AcceptStat> {
        let (mut low, mut high) = (u32::MAX, 0);
        let is_served = |entry: &&Entry| entry.program == call.program && !(lossy && entry.service.needs_reliability());
        for entry in self.entries.iter().filter(is_served) {
            if (entry.low..=entry.high).contains(&call.version) {
                let procedures = &entry.procedures[(call.version - entry.low) as usize];
                let target = procedures.get(call.procedure as usize).copied().flatten();
                return target.map(|target| (&*entry.service, target)).ok_or(AcceptStat::ProcUnavail);
            }
            (low, high) = (low.min(entry.low), high.max(entry.high));
        }
        Err(if low <= high { AcceptStat::ProgMismatch { low, high } } else { AcceptStat::ProgUnavail })
    }

    /// Tells every service that a connection was opened.
    pub fn connected(&self, peer: &Reverse) {
        self.entries.iter().for_each(|entry| entry.service.connected(peer));
    }

    /// Tells every service that a connection was closed.
    pub fn disconnected(&self, connection: ConnectionId) {
        self.entries.iter().for_each(|entry| entry.service.disconnected(connection));
    }

    pub fn count(&self, target: Target, took: Duration, bytes: Bytes, ok: bool) {
        self.counters.count(target.row, took, bytes, ok);
    }

    /// Returns the statistics of every procedure.
    pub fn stats(&self) -> Vec<ProcedureStats> {
        self.rows.iter().enumerate().map(|(at, row)| self.counters.read(at, row.name, row.number)).collect()
    }

    /// Returns the numbers and versions of all programs.
    pub fn list(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.entries.iter().flat_map(|entry| (entry.low..=entry.high).map(|version| (entry.program, version)))
    }
}

impl Entry {
    fn new(service: Arc<dyn Service>, rows: &mut Vec<Row>) -> Self {
        let (program, versions) = (service.program(), service.versions());
        let (low, high) = versions.into_inner();
        assert!(low <= high && high - low < VERSIONS_MAX, "program {program} has versions {low} to {high}");
        let mut target = |version, number| {
            let procedure = service.procedure(version, number)?;
            rows.push(Row { name: procedure.name, number: (program, version, number) });
            Some(Target { procedure, row: rows.len() - 1 })
        };
        let procedures =
            (low..=high).map(|version| (0..PROCEDURES_MAX).map(|number| target(version, number)).collect()).collect();
        Self { program, low, high, procedures, service }
    }
}

const VERSIONS_MAX: u32 = 64;
/// Maximum number of procedures of a version. They are numbered from zero; no known program has more.
const PROCEDURES_MAX: u32 = 256;
