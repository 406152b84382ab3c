//! The checks of the data servers of a pNFS metadata server. They run on that server's host. Each check creates an object
//! on a data server, and removes it.
//!
//! RFC 8435 §2.2: only the metadata server's root is not squashed, and clients act as users that only own their objects.

use std::{collections::HashSet, io, net::SocketAddr};

use buf::Rope;
use client::{Caller, CreateHow, FsStat, Handle, Mount, Protocol, SetAttr, StableHow, Status, V4};
use futures_util::future::join_all;
use nfs::v4::Stateid4;
use rpc::{AuthSys, CallOptions, Client, ClientOptions, ReplyPlan, Switch};
use server::{
    Config, DataHandle,
    config::{DataVersionConfig, LayoutsMode, PnfsConfig},
};
use vfs::{
    Time,
    layout::{DataAddress, DataTransport},
};

use super::{
    Finding,
    clashes::{self, Present},
    clocks, computed,
    kernel::STRIPED_SINCE,
};
use crate::{
    commands::serve::listen,
    output,
    pnfs::{self, DataServerEndpoint, records::label, versions},
};

/// Checks all data servers of a configuration.
///
/// # Errors
/// The checks cannot be started.
pub fn all(config: &Config) -> io::Result<Vec<Finding>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let switch = transports::for_client();
    let mut findings: Vec<Finding> = Vec::new();
    let mut checked = Vec::new();
    for (name, table) in tables(config) {
        let servers = table.and_then(|table| {
            let servers = pnfs::data_servers(&table).map_err(|error| error.to_string())?;
            Ok((table, servers))
        });
        match servers {
            Ok((table, servers)) => {
                findings.extend(stripes(&name, &table));
                let kind = (table.name.clone(), table.layouts);
                if !checked.contains(&kind) {
                    checked.push(kind);
                    findings.extend(runtime.block_on(cluster_findings(config, &table, servers, &switch)));
                }
            }
            Err(error) => findings.push(Finding::bad(
                name,
                error,
                "correct the [[pnfs]] table, its [[pnfs.server]] tables, and the `options` of the export",
            )),
        }
    }
    runtime.shutdown_background();
    // Exports with other layouts can have the same data servers, and the same findings.
    let mut known = HashSet::new();
    findings.retain(|finding| known.insert((finding.check.clone(), finding.found.clone())));
    Ok(findings)
}

/// Returns the tables with the options that exports replace, and those that no export uses. Each has the name of its findings.
fn tables(config: &Config) -> Vec<(String, Result<PnfsConfig, String>)> {
    let of_cluster = |table: &PnfsConfig| format!("cluster {}", table.name);
    let exports = config.export.iter().filter(|export| export.backend.name() == "pnfs");
    let mut tables: Vec<_> = exports
        .map(|export| match pnfs::table_of(&export.backend.settings, &config.pnfs) {
            Ok(table) if config.pnfs.contains(&table) => (of_cluster(&table), Ok(table)),
            table => (format!("export {}", export.name), table),
        })
        .collect();
    for table in &config.pnfs {
        let is_used = tables.iter().any(|(_, used)| used.as_ref().is_ok_and(|used| used.name == table.name));
        if !is_used {
            tables.push((of_cluster(table), Ok(table.clone())));
        }
    }
    tables
}

/// Reports which clients do not use the data servers of striped files.
fn stripes(name: &str, table: &PnfsConfig) -> Option<Finding> {
    let (major, minor) = STRIPED_SINCE;
    (table.layouts == LayoutsMode::Flexible && table.stripes > 1).then(|| {
        Finding::note(
            name.to_owned(),
            format!("stripes = {}: Linux before {major}.{minor} sends the data of striped files through the metadata server", table.stripes),
            format!("layouts = \"files\" with mirrors = 1, Linux {major}.{minor} on clients, or stripes = 1"),
        )
    })
}

async fn cluster_findings(
    config: &Config,
    cluster: &PnfsConfig,
    servers: Vec<(::pnfs::ServerId, DataServerEndpoint)>,
    switch: &Switch,
) -> Vec<Finding> {
    let by_handle = cluster.layouts == LayoutsMode::Files;
    let listen = if config.listen.is_empty() { listen::defaults().to_vec() } else { config.listen.clone() };
    let checks = servers.into_iter().map(|(id, endpoint)| {
        let name = format!("data server {}/{}", cluster.name, label(id.0, endpoint.name.as_deref()));
        let is_own = clashes::is_own(&endpoint, &listen);
        Check { name, endpoint, switch, by_handle, is_own }
    });
    let checks: Vec<_> = checks.collect();
    let others = checks.iter().filter(|check| !check.is_own);
    let mut findings: Vec<_> =
        others.flat_map(|check| clashes::addresses(&check.name, &check.endpoint, &listen)).collect();
    let mut present = Vec::new();
    for (found, one) in join_all(checks.iter().map(Check::run)).await {
        findings.extend(found);
        present.extend(one);
    }
    findings.extend(clashes::directories(&present).await);
    if present.iter().any(|one| one.owner().is_some()) {
        let (own, unknown) = clashes::own_owners(config, &listen, switch).await;
        findings.extend(clashes::owners(&present, &own));
        findings.extend(unknown);
    }
    for one in present {
        one.end().await;
    }
    findings
}

/// The check of one data server.
pub struct Check<'a> {
    pub name: String,
    endpoint: DataServerEndpoint,
    switch: &'a Switch,
    /// `true` if the file handles of clients name their users, as those of files layouts do.
    pub by_handle: bool,
    /// `true` if the data server is the process of the metadata server.
    is_own: bool,
}

/// The users of the test object. No person and no system has these numbers.
pub const OWNER: u32 = (1 << 31) - 1;
pub const GROUP: u32 = (1 << 31) - 2;
const STRANGER: u32 = (1 << 31) - 3;

impl Check<'_> {
    /// Runs the check. Returns what it finds, and the data server if it answers.
    async fn run(&self) -> (Vec<Finding>, Option<Present>) {
        let mount = Mount::connect(&self.endpoint.url, self.switch).await;
        // An address that follows from a URL without an answer would be the same finding.
        let known = mount.is_err().then(|| pnfs::address_of(&self.endpoint.url).ok()).flatten();
        let mut findings = Vec::new();
        for address in self.endpoint.addresses.iter().filter(|address| Some(**address) != known) {
            findings.extend(self.address(address).await);
        }
        let mount = match mount {
            Ok(mount) => mount,
            Err(error) => {
                findings.push(self.bad(
                    format!("{}: {error}", self.endpoint.url),
                    "start it; check the address and path of `url`, the firewall, and that it exports the directory to this host by NFSv3 \
                     (`mountport=2049` if it is slipway serve)",
                ));
                return (findings, None);
            }
        };
        let newer = match self.newer().await {
            Ok(newer) => newer,
            Err(finding) => {
                findings.push(finding);
                None
            }
        };
        findings.extend(match &self.endpoint.key {
            Some(key) => computed::check(self, key, (&mount, newer.as_ref())).await,
            None => self.object(&mount, newer.as_ref()).await,
        });
        let space = mount.statfs("").await.map(|space| (self.space(&space), output::size(space.abytes)));
        let free = match space {
            Ok((finding, free)) => {
                findings.extend(finding);
                format!("{free} free")
            }
            Err(error) => format!("free space unknown: {error}"),
        };
        if findings.is_empty() {
            let found = format!("{}: it answers, and the rights are as they must be; {free}", self.endpoint.url);
            findings.push(Finding::ok(self.name.clone(), found));
        }
        (findings, Some(Present { name: self.name.clone(), mount, newer, is_own: self.is_own }))
    }

    pub fn bad(&self, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::bad(self.name.clone(), found, fix)
    }

    /// Connects by the version of clients, if that is not NFSv3.
    ///
    /// # Errors
    /// The data server does not answer, or does not say to clients that it is one, by their version.
    async fn newer(&self) -> Result<Option<Mount>, Finding> {
        let version = self.endpoint.version;
        if self.endpoint.addresses.is_empty() || version == DataVersionConfig::V3 {
            return Ok(None);
        }
        match versions::connect(&self.endpoint.url, version, self.switch).await {
            Ok(Some(mount)) if mount.v4().is_some_and(V4::is_data_server) => Ok(Some(mount)),
            Ok(_) => Err(self.bad(
                format!("it does not say that it is a data server by version {}, so clients use NFSv3 (with layouts = \"files\": they get no layouts)", versions::name(version)),
                "start slipway serve with --data-server there (`data_server = true` in [server]), or remove `version` of the \
                 [[pnfs.server]]; the kernel's server is a data server by NFSv3 only",
            )),
            Err(error) => Err(self.bad(
                format!("{}: no answer by NFSv4: {error}", self.endpoint.url),
                "make it listen at the port of `url` for NFSv4, too, or remove `version` of the [[pnfs.server]]",
            )),
        }
    }

    /// Checks that NFS answers at an address for clients.
    async fn address(&self, address: &DataAddress) -> Option<Finding> {
        let transport = transport_name(address.transport);
        let null = self.null(transport, address.address).await;
        null.err().map(|error| {
            self.bad(
                format!("clients get the address {transport}://{}, which does not answer: {error}", address.address),
                "correct `address` of the [[pnfs.server]], or make the data server listen there",
            )
        })
    }

    async fn null(&self, transport: &str, address: SocketAddr) -> Result<(), String> {
        let kind = self.switch.find(transport).ok_or("this program lacks the transport")?;
        let deadline = self.endpoint.url.options.deadline;
        let (version, _) = versions::numbers(self.endpoint.version);
        let options = ClientOptions { deadline, ..ClientOptions::new(nfs::NFS_PROGRAM, version) };
        let connected = tokio::time::timeout(deadline, Client::connect(kind, address, options)).await;
        let client =
            connected.map_err(|_| format!("no answer for {deadline:?}"))?.map_err(|error| error.to_string())?;
        let null = client.call::<()>(0, &(), ReplyPlan::default(), CallOptions::default()).await;
        null.map(drop).map_err(|failed| failed.error.to_string())
    }

    /// Creates an object as the metadata server does, uses it as clients do, and removes it.
    async fn object(&self, mount: &Mount, newer: Option<&Mount>) -> Vec<Finding> {
        let name = test_name();
        let shared = !self.endpoint.addresses.is_empty();
        let (uid, gid) = (shared.then_some(OWNER), shared.then_some(GROUP));
        let how = CreateHow::Unchecked(SetAttr { mode: Some(0o640), uid, gid, ..SetAttr::default() });
        let before = Time::now();
        let node = match mount.protocol().create(mount.root(), name.as_bytes(), how).await {
            Ok(node) => node,
            Err(error) => return vec![self.refused(&error, shared)],
        };
        let after = Time::now();
        let (mut findings, mut clock) = (Vec::new(), None);
        match mount.protocol().getattr(&node.handle).await {
            Ok(attr) => {
                if shared && (attr.uid, attr.gid) != (OWNER, GROUP) {
                    findings.push(self.bad(
                        format!(
                            "a new object belongs to user {} and group {}, not to {OWNER} and {GROUP}",
                            attr.uid, attr.gid
                        ),
                        SQUASH_FIX,
                    ));
                }
                clock = clocks::finding(&self.name, attr.mtime, (before, after));
            }
            Err(error) => findings.push(self.bad(format!("the attributes of an object: {error}"), SQUASH_FIX)),
        }
        if shared && findings.is_empty() {
            findings.extend(self.clients(mount.protocol(), &node.handle, false).await);
            if let Some(v4) = newer.and_then(Mount::v4) {
                let stateid = if self.by_handle { OPEN_ELSEWHERE } else { Stateid4::ANONYMOUS };
                let protocol = Protocol::V4(v4.clone().with_stateid(stateid));
                findings.extend(self.clients(&protocol, &node.handle, self.by_handle).await);
            }
        }
        if let Err(error) = mount.protocol().remove(mount.root(), name.as_bytes()).await {
            findings.push(self.bad(format!("the test object {name} cannot be removed: {error}"), "remove it"));
        }
        findings.extend(clock);
        findings
    }

    fn refused(&self, error: &client::Error, shared: bool) -> Finding {
        let found = format!("{}: this host cannot create an object: {error}", self.endpoint.url);
        let fix = match error.status() {
            Some(Status::NotPermitted | Status::AccessDenied) if shared => SQUASH_FIX,
            Some(Status::NotPermitted | Status::AccessDenied) => {
                "let the user of the URL (`uid`, `gid`; root by default) write to the directory"
            }
            Some(Status::ReadOnly) => "export the directory for writing (rw)",
            Some(Status::NoSpace | Status::QuotaExceeded) => {
                "free space on the data server, or drain it (`slipway ds drain`)"
            }
            _ => "look into the log of the data server",
        };
        self.bad(found, fix)
    }

    /// Checks that the owner of an object can write, its group can read, and others can do neither. `by_handle` if the file handles
    /// of clients name their users.
    async fn clients(&self, protocol: &Protocol, object: &Handle, by_handle: bool) -> Vec<Finding> {
        let user = |uid, gid| {
            if by_handle {
                let handle = DataHandle { uid, gid, object: bytes::Bytes::copy_from_slice(object) }.encode();
                return (protocol.clone(), Handle::from(handle));
            }
            let gids = std::iter::empty().collect();
            let caller = Caller::new(AuthSys { uid, gid, gids, ..AuthSys::of_process() });
            (protocol.with_caller(Some(&caller)), object.clone())
        };
        let write = async |uid, gid| {
            let data = Rope::from(bytes::Bytes::from_static(b"slipway doctor"));
            let (protocol, object) = user(uid, gid);
            protocol.write(&object, 0, data, StableHow::FileSync).await
        };
        let mut findings = Vec::new();
        let written = write(OWNER, GROUP).await.map(drop);
        let (reader, handle) = user(GROUP, GROUP);
        let read = reader.read(&handle, 0, 14).await.map(drop);
        if let Err(error) = written.and(read) {
            let version = protocol.version();
            findings.push(self.bad(
                format!("a user with a layout cannot use its object by version {version}: {error}"),
                "do not map the users of clients to another one (all_squash, squash = \"all\"), and run slipway serve as root",
            ));
        }
        if write(STRANGER, STRANGER).await.is_ok() {
            findings.push(self.bad(
                "a user without a layout can write to an object, so clients cannot be fenced",
                "export with a server that checks the permissions of files for each user",
            ));
        }
        findings
    }

    fn space(&self, space: &FsStat) -> Option<Finding> {
        let low = space.abytes < SPACE_MIN || space.abytes < space.tbytes / 20;
        low.then(|| {
            let (free, total) = (output::size(space.abytes), output::size(space.tbytes));
            let found = format!("only {free} of {total} are free");
            Finding::note(self.name.clone(), found, "add a data server, and drain this one (`slipway ds drain`)")
        })
    }
}

/// Returns the name of a transport for clients.
pub fn transport_name(transport: DataTransport) -> &'static str {
    match transport {
        DataTransport::Tcp => "tcp",
        DataTransport::Rdma => "rdma",
        DataTransport::Shm => "shm",
    }
}

/// Returns a new name of an object that only a check has.
pub fn test_name() -> String {
    format!(".slipway-doctor-{:016x}", entropy::random::<u64>())
}

/// A stateid as of an open at the metadata server, which a data server cannot know.
pub const OPEN_ELSEWHERE: Stateid4 = Stateid4 { seqid: 1, other: *b"from doctor." };
const SQUASH_FIX: &str = "do not squash root of this host there: no_root_squash in exports(5), { host = …, squash = \"none\" } \
                          in `clients` of slipway serve, which must run as root, and CLIENT { Clients = …; Squash = None; } of \
                          NFS-Ganesha";
/// Less free space than this is reported.
const SPACE_MIN: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::State;

    #[test]
    fn tables_are_those_that_exports_use() {
        let export = |path: &str, options: &str| {
            format!("[[export]]\npath = '{path}'\nbackend = 'pnfs'\noptions = {{ cluster = {options} }}\n")
        };
        let text = [
            "[[export]]\npath = '/plain'\n".to_owned(),
            export("/a", "'fast'"),
            export("/b", "'fast', stripes = 2, layouts = 'none'"),
            export("/c", "'fast', stripes = 4"),
            export("/d", "'gone'"),
            "[[pnfs]]\nname = 'fast'\n[[pnfs]]\nname = 'spare'\nstripes = 2\n".to_owned(),
        ];
        let config = Config::parse_with(&text.concat(), &pnfs::backends(Default::default())).unwrap();
        let tables = tables(&config);
        let found: Vec<_> = tables
            .iter()
            .map(|(name, table)| (name.as_str(), table.as_ref().map(|table| (table.stripes, table.layouts))))
            .collect();
        let gone = "the configuration has no [[pnfs]] with the name 'gone'".to_owned();
        assert_eq!(
            found,
            [
                ("cluster fast", Ok((1, LayoutsMode::Flexible))),
                ("export /b", Ok((2, LayoutsMode::None))),
                ("export /c", Ok((4, LayoutsMode::Flexible))),
                ("export /d", Err(&gone)),
                ("cluster spare", Ok((2, LayoutsMode::Flexible))),
            ]
        );
        let striped = tables.iter().filter_map(|(name, table)| stripes(name, table.as_ref().ok()?));
        let striped: Vec<_> = striped.map(|finding| (finding.check, finding.state)).collect();
        assert_eq!(striped, [("export /c".into(), State::Note), ("cluster spare".into(), State::Note)]);
    }
}
