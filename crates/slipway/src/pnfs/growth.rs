//! Growth of a cluster: data servers are added while the server runs, and copies are moved to those with fewer bytes.

use std::{fmt::Display, path::Path};

use pnfs::ServerId;
use serde_json::{Value, json};
use server::Config;
use vfs::VfsError;

use super::{
    clusters::{Answer, Member, choose, failed, reason},
    data_servers,
    records::{AddedRecord, PlanRecord, PlannedServer, RebalanceRecord},
    table_of,
};

/// Adds the data servers of the configuration file that the running server does not have yet.
pub fn add(members: &[Member], config: Option<&Path>) -> Answer<Vec<AddedRecord>> {
    let path = config.ok_or_else(|| {
        "this server has no configuration file: data servers are added in its [[pnfs]] table".to_owned()
    })?;
    let config = Config::load_with(path, &super::backends(Default::default())).map_err(|error| error.to_string())?;
    let mut added: Vec<AddedRecord> = Vec::new();
    for member in members {
        let located = |error: &dyn Display| format!("{}: pnfs '{}': {error}", path.display(), member.cluster);
        let table = table_of(&member.settings, &config.pnfs).map_err(|error| located(&error))?;
        let servers = data_servers(&table).map_err(|error| located(&error))?;
        for (id, endpoint) in servers {
            let configured = table.server.iter().find(|server| server.id.get() == id.0);
            let url = configured.map(|server| server.url.clone()).unwrap_or_default();
            let (cluster, name) = (member.cluster.clone(), endpoint.name.clone());
            let known = added.iter().any(|record| record.cluster == cluster && record.id == id.0);
            if member.servers.add(id, endpoint) && !known {
                added.push(AddedRecord { cluster, id: id.0, name, url });
            }
        }
    }
    Ok(added)
}

/// Returns what a rebalancing would do.
pub fn plan(members: &[Member], cluster: Option<&str>) -> Answer<PlanRecord> {
    let chosen = choose(members, cluster)?;
    let mut record = PlanRecord { cluster: chosen[0].cluster.clone(), ..PlanRecord::default() };
    for member in chosen {
        let plan = member.pnfs.plan_rebalance().map_err(|error| match error {
            VfsError::Delay => SCANNING.to_owned(),
            error => failed(member, error),
        })?;
        record.copies += plan.copies;
        record.bytes += plan.bytes;
        for (ServerId(id), before, after) in plan.servers {
            match record.servers.iter_mut().find(|server| server.id == id) {
                Some(server) => (server.before, server.after) = (server.before + before, server.after + after),
                None => {
                    let (name, url) = (member.servers.name(ServerId(id)), member.url(ServerId(id)));
                    record.servers.push(PlannedServer { id, name, url, before, after });
                }
            }
        }
    }
    Ok(record)
}

/// Orders a rebalancing, or ends it.
pub fn rebalance(members: &[Member], cluster: Option<&str>, rate: Option<u64>) -> Answer<()> {
    let chosen = choose(members, cluster)?;
    chosen.iter().try_for_each(|member| member.pnfs.order_rebalance(rate).map_err(|error| failed(member, error)))
}

/// Returns the progress of the rebalancing of each cluster.
pub fn progress(clusters: Vec<Vec<&Member>>) -> Vec<Value> {
    let progress = |cluster: Vec<&Member>| {
        let mut record = RebalanceRecord { cluster: cluster[0].cluster.clone(), ..RebalanceRecord::default() };
        for member in cluster {
            let status = member.pnfs.rebalance_status();
            record.running |= status.ordered.is_some();
            record.rate = status.ordered.filter(|rate| *rate > 0).or(record.rate);
            record.copies += status.copies;
            record.bytes += status.bytes;
            record.left += status.left;
            record.failed += status.failed.map_or(0, |(count, _)| count);
            record.reason = status.failed.map(|(_, error)| reason(error)).or(record.reason);
        }
        json!(record)
    };
    clusters.into_iter().map(progress).collect()
}

const SCANNING: &str =
    "the database of the export was lost, and the layouts of all files are being read: see `slipway ds list`";
