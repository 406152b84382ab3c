//! [`Clusters`]: the trees of the running server whose data are on data servers, and the answers about them to an administrator.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use pnfs::{DataServers, FileStatus, Pnfs, ServerId, ServerStatus};
use serde_json::json;
use server::{
    admin,
    config::{BackendSettings, ExportConfig},
};
use vfs::VfsError;

use super::{
    cluster_of, growth, orphans,
    records::{
        CopyRecord, CopyState, DataRecord, DataServerRecord, DataServerState, LayoutRecord, LostFile, OrphanRecord,
        RepairRecord, Request, ScanRecord, ServerRef, Service, label,
    },
    servers::NfsServers,
};

/// The trees with data servers.
#[derive(Default)]
pub struct Clusters {
    members: Mutex<Vec<Member>>,
    /// The configuration file of the server.
    config: Mutex<Option<PathBuf>>,
    /// Held during a search for orphans.
    searching: Mutex<()>,
}

/// A tree.
#[derive(Clone)]
pub struct Member {
    /// The name of the cluster.
    pub cluster: String,
    /// The settings of the export.
    pub settings: BackendSettings,
    /// The name of the export.
    export: String,
    /// The directory of the export, which is canonical.
    directory: PathBuf,
    /// The database of the layer.
    pub database: PathBuf,
    pub servers: Arc<NfsServers>,
    pub pnfs: Pnfs,
}

impl Clusters {
    /// Adds a tree. The data servers of a cluster have the same states for all its trees.
    pub fn add(
        &self,
        settings: &BackendSettings,
        (directory, database): (PathBuf, PathBuf),
        servers: Arc<NfsServers>,
        pnfs: Pnfs,
    ) {
        let (cluster, settings) = (cluster_of(settings), settings.clone());
        let mut members = self.members.lock();
        for other in members.iter().filter(|member| member.cluster == cluster) {
            for id in servers.servers() {
                let (one, two) = (pnfs.service(id), other.pnfs.service(id));
                let set = [&pnfs, &other.pnfs].map(|pnfs| pnfs.set_service(id, one.max(two)));
                if let Some(error) = set.into_iter().find_map(Result::err) {
                    let server = label(id.0, servers.name(id).as_deref());
                    tracing::error!(cluster, server, %error, "cannot set the state of a data server");
                }
            }
        }
        let (cluster, export) = (cluster.to_owned(), directory.display().to_string());
        members.push(Member { cluster, settings, export, directory, database, servers, pnfs });
    }

    /// Takes the path of the configuration file, from which data servers can be added.
    pub fn configured_by(&self, path: PathBuf) {
        *self.config.lock() = Some(path);
    }

    /// Takes the names of the exports.
    pub fn name(&self, exports: &[ExportConfig]) {
        for member in self.members.lock().iter_mut() {
            let of = |export: &&ExportConfig| {
                let path = export.backend.settings.path.as_ref();
                path.and_then(|path| path.canonicalize().ok()).as_ref() == Some(&member.directory)
            };
            if let Some(export) = exports.iter().find(of) {
                member.export.clone_from(&export.name);
            }
        }
    }

    /// Answers a request.
    ///
    /// # Errors
    /// Returns an error if `output` cannot be written.
    pub fn answer(&self, request: &Request, output: &mut impl Write) -> io::Result<()> {
        let members = self.members.lock().clone();
        let answered = match request {
            Request::DataServers {} => data_servers(&members),
            Request::SetService { cluster, server, service } => {
                set_service(&members, cluster.as_deref(), server, *service).map(|()| Vec::new())
            }
            Request::Layout { path } => layout(&members, path).map(|record| vec![json!(record)]),
            Request::Repairs {} => repairs(&members),
            Request::AddServers {} => {
                let config = self.config.lock().clone();
                growth::add(&members, config.as_deref()).map(|added| added.iter().map(|record| json!(record)).collect())
            }
            Request::PlanRebalance { cluster } => {
                growth::plan(&members, cluster.as_deref()).map(|record| vec![json!(record)])
            }
            Request::Rebalance { cluster, rate } => {
                growth::rebalance(&members, cluster.as_deref(), *rate).map(|()| Vec::new())
            }
            Request::Rebalances {} => Ok(growth::progress(by_cluster(&members))),
            Request::Orphans { cluster, remove } => {
                let Some(_one) = self.searching.try_lock() else { return end(Err(SEARCHING.to_owned()), output) };
                let mut each = |record: OrphanRecord| writeln!(output, "{}", json!(record));
                let searched = orphans::search(&members, (cluster.as_deref(), *remove), &mut each);
                return end(searched, output);
            }
        };
        for record in answered.iter().flatten() {
            writeln!(output, "{record}")?;
        }
        end(answered.map(drop), output)
    }
}

/// Ends an answer.
fn end(answered: Answer<()>, output: &mut impl Write) -> io::Result<()> {
    let end = match answered {
        Ok(()) => admin::Record::End,
        Err(message) => admin::Record::Error { message },
    };
    writeln!(output, "{}", json!(end))?;
    output.flush()
}

/// An answer, or a message for the administrator.
pub type Answer<T> = Result<T, String>;

/// Returns the trees by cluster, in the order of the configuration.
pub fn by_cluster(members: &[Member]) -> Vec<Vec<&Member>> {
    let mut clusters: Vec<Vec<&Member>> = Vec::new();
    for member in members {
        match clusters.iter_mut().find(|cluster| cluster[0].cluster == member.cluster) {
            Some(cluster) => cluster.push(member),
            None => clusters.push(vec![member]),
        }
    }
    clusters
}

fn data_servers(members: &[Member]) -> Answer<Vec<serde_json::Value>> {
    let mut records: Vec<DataServerRecord> = Vec::new();
    for cluster in by_cluster(members) {
        let first = records.len();
        for member in cluster {
            for status in member.pnfs.server_list().map_err(|error| failed(member, error))? {
                let record = data_server(member, &status);
                match records[first..].iter_mut().find(|other| other.id == record.id) {
                    Some(other) => add(other, record),
                    None => records.push(record),
                }
            }
        }
    }
    Ok(records.iter().map(|record| json!(record)).collect())
}

fn data_server(member: &Member, status: &ServerStatus) -> DataServerRecord {
    let directory = member.directory.display().to_string();
    let scan = member.pnfs.scan_status();
    let state = match status.service {
        pnfs::Service::Active if status.failing_s.is_some() => DataServerState::Failing,
        pnfs::Service::Active => DataServerState::InService,
        pnfs::Service::Draining if status.objects > 0 || scan.is_some() => DataServerState::Draining,
        pnfs::Service::Draining => DataServerState::Drained,
        pnfs::Service::Lost => DataServerState::Lost,
    };
    let lost_file = |fileid: &u64| LostFile { directory: directory.clone(), fileid: *fileid };
    DataServerRecord {
        cluster: member.cluster.clone(),
        id: status.id.0,
        name: member.servers.name(status.id),
        url: member.url(status.id),
        state,
        failing_s: status.failing_s,
        objects: status.objects,
        stale: status.stale,
        examined: status.examined,
        unmovable: status.unmovable.map_or(0, |(copies, _)| copies),
        reason: status.unmovable.map(|(_, error)| reason(error)),
        lost: status.lost,
        lost_files: status.lost_files.iter().map(lost_file).collect(),
        scan: scan.map(|scan| ScanRecord { files: scan.files, unreadable: scan.failed.map_or(0, |(count, _)| count) }),
    }
}

/// Adds what another tree of the cluster knows about a data server.
fn add(record: &mut DataServerRecord, other: DataServerRecord) {
    let worse = [DataServerState::Failing, DataServerState::Draining].contains(&other.state);
    if worse || record.state == DataServerState::InService {
        record.state = other.state;
    }
    record.failing_s = record.failing_s.max(other.failing_s);
    record.objects += other.objects;
    record.stale += other.stale;
    record.examined &= other.examined;
    record.unmovable += other.unmovable;
    record.reason = record.reason.take().or(other.reason);
    record.lost += other.lost;
    record.lost_files.extend(other.lost_files);
    if let Some(ScanRecord { files, unreadable }) = other.scan {
        let scan = record.scan.get_or_insert_default();
        (scan.files, scan.unreadable) = (scan.files + files, scan.unreadable + unreadable);
    }
}

/// Returns the trees of the cluster with this name, or of the only one.
pub fn choose<'a>(members: &'a [Member], cluster: Option<&str>) -> Answer<Vec<&'a Member>> {
    let mut clusters = by_cluster(members);
    let names = clusters.iter().map(|cluster| cluster[0].cluster.as_str()).collect::<Vec<_>>().join(", ");
    match (cluster, clusters.len()) {
        (_, 0) => Err(NO_CLUSTER.to_owned()),
        (None, 1) => Ok(clusters.remove(0)),
        (None, _) => Err(format!("there are several clusters, so --cluster is needed: {names}")),
        (Some(name), _) => {
            let found = clusters.into_iter().find(|cluster| cluster[0].cluster == name);
            found.ok_or_else(|| format!("no export has the cluster '{name}'; there are {names}"))
        }
    }
}

fn set_service(members: &[Member], cluster: Option<&str>, server: &ServerRef, service: Service) -> Answer<()> {
    let chosen = choose(members, cluster)?;
    let (server, service) = (resolve(chosen[0], server)?, state(service));
    let label = label(server.0, chosen[0].servers.name(server).as_deref());
    let located = |error| format!("data server {label} of cluster '{}': {error}", chosen[0].cluster);
    // Either all trees take the state, or none does, unless a database fails.
    for member in &chosen {
        member.pnfs.check_service(server, service).map_err(located)?;
    }
    chosen.iter().try_for_each(|member| member.pnfs.set_service(server, service)).map_err(located)
}

/// Returns the number of the data server that an administrator means.
fn resolve(member: &Member, wanted: &ServerRef) -> Answer<ServerId> {
    if let ServerRef::Id(id) = wanted {
        return Ok(ServerId(id.get()));
    }
    let servers = member.servers.servers();
    let found = servers.iter().find(|id| wanted.is(id.0, member.servers.name(**id).as_deref()));
    found.copied().ok_or_else(|| {
        let labels: Vec<_> = servers.iter().map(|id| label(id.0, member.servers.name(*id).as_deref())).collect();
        format!("cluster '{}' has no data server {wanted}; there are {}", member.cluster, labels.join(", "))
    })
}

fn state(service: Service) -> pnfs::Service {
    match service {
        Service::Active => pnfs::Service::Active,
        Service::Draining => pnfs::Service::Draining,
        Service::Lost => pnfs::Service::Lost,
    }
}

fn layout(members: &[Member], path: &str) -> Answer<LayoutRecord> {
    let of = |member: &&Member| Path::new(path).starts_with(&member.directory);
    let member = members.iter().filter(of).max_by_key(|member| member.directory.as_os_str().len());
    let member = member.ok_or_else(|| match members {
        [] => NO_CLUSTER.to_owned(),
        _ => {
            let directories: Vec<_> = members.iter().map(|member| member.directory.display().to_string()).collect();
            format!(
                "{path}: it is in no export with data servers; those have the directories {}",
                directories.join(", ")
            )
        }
    })?;
    let below = Path::new(path).strip_prefix(&member.directory).expect("the path must begin with the directory");
    let status = member.pnfs.file_status(below.as_os_str().as_encoded_bytes());
    let status = status.map_err(|error| match error {
        VfsError::Invalid => format!("{path}: it is no regular file"),
        error => format!("{path}: {error}"),
    })?;
    let FileStatus { fileid, size, record, unequal, layouts } = status;
    let data = record.map(|record| DataRecord {
        cluster: member.cluster.clone(),
        generation: record.generation,
        write_epoch: record.epochs.writers,
        read_epoch: record.epochs.readers,
        compared: unequal,
        stripes: record.stripes.count(),
        stripe_unit: record.stripes.unit(),
        copies: (0..record.copies.len()).map(|copy| member.copy(&record, copy)).collect(),
    });
    Ok(LayoutRecord { export: member.export.clone(), fileid, size, data, layouts: layouts.0 })
}

impl Member {
    /// Returns the directory of the export.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the URL of a data server, if the configuration has it.
    pub fn url(&self, server: ServerId) -> Option<String> {
        self.servers.url(server)
    }

    fn copy(&self, record: &pnfs::Record, index: usize) -> CopyRecord {
        let (stripe, copy) = (record.stripe_of(index), &record.copies[index]);
        let state = match copy.state {
            pnfs::record::CopyState::InSync => CopyState::InSync,
            pnfs::record::CopyState::Stale => CopyState::Stale,
            pnfs::record::CopyState::Copying => CopyState::Copying,
        };
        let (server, object) = (copy.object.server, super::servers::name(copy.object.id));
        CopyRecord {
            stripe,
            server: server.0,
            server_name: self.servers.name(server),
            url: self.url(server),
            object,
            state,
        }
    }
}

fn repairs(members: &[Member]) -> Answer<Vec<serde_json::Value>> {
    let mut records = Vec::new();
    for cluster in by_cluster(members) {
        let name = cluster[0].cluster.clone();
        let mut sum = RepairRecord { cluster: name, bytes: Some(0), ..RepairRecord::default() };
        for member in cluster {
            let repairs = member.pnfs.repairs().map_err(|error| failed(member, error))?;
            sum.files += repairs.files;
            sum.copies += repairs.copies;
            sum.moves += repairs.moves;
            sum.compared += repairs.compared;
            sum.unexamined += repairs.unexamined;
            sum.scanning |= repairs.scanning;
            sum.lost += repairs.lost;
            sum.removals += repairs.removals;
            sum.bytes = sum.bytes.zip(repairs.bytes).map(|(one, other)| one + other);
            sum.copied += repairs.copied;
        }
        records.push(json!(sum));
    }
    Ok(records)
}

/// Returns the text of an error of a tree.
pub fn failed(member: &Member, error: VfsError) -> String {
    format!("{}: {error}", member.directory.display())
}

/// Returns the reason why copies cannot be moved.
pub fn reason(error: VfsError) -> String {
    match error {
        VfsError::NoSpace => "no other data server is left for them, or those are full".to_owned(),
        VfsError::Delay => "their copies are being compared or made again".to_owned(),
        VfsError::NotSupported => "their files have as many objects as possible".to_owned(),
        VfsError::Io => "no copy in sync can be read, or the new data server fails".to_owned(),
        error => error.to_string(),
    }
}

const SEARCHING: &str = "another search for orphans is in progress";
pub const NO_CLUSTER: &str = "no export of this server has data servers (backend = \"pnfs\")";
