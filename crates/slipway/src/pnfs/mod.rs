//! The back end `pnfs` of `slipway serve`: a directory whose file data are on data servers. [`objects`] is the back end of data servers.
//!
//! Each export has a thread with the connections to its data servers, which also executes the upkeep of the layer.

mod clusters;
mod growth;
pub mod objects;
mod orphans;
pub mod records;
pub mod servers;
pub mod versions;

use std::{
    io,
    net::ToSocketAddrs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use client::{NfsUrl, Version};
use pnfs::{Earlier, Index, Options, Pnfs, ServerId, Stripes, objects::handle::ClusterKey};
use server::config::{
    BackendKind, BackendSettings, Backends, DataAddressConfig, DataKindConfig, DataTransportConfig, DataVersionConfig,
    DirectoryKind, LayoutsMode, Opening, PnfsConfig, Tree,
};
use sha2::{Digest, Sha256};
use tokio::{runtime, sync::oneshot};
use vfs::layout::{DataAddress, DataTransport, LayoutKind};

use self::{
    objects::ObjectsKind,
    servers::{Endpoint, NfsServers},
};

pub use self::{clusters::Clusters, servers::Endpoint as DataServerEndpoint};

/// An export with `backend = "pnfs"`.
struct PnfsKind(Arc<Clusters>);

/// Returns the back ends that `slipway serve` has. Trees of `backend = "pnfs"` are added to `clusters` when they are opened.
pub fn backends(clusters: Arc<Clusters>) -> Backends {
    let mut backends = Backends::standard();
    backends.register("pnfs", PnfsKind(clusters));
    backends.register("objects", ObjectsKind);
    backends
}

impl BackendKind for PnfsKind {
    fn check(&self, settings: &mut BackendSettings) -> Result<(), String> {
        DirectoryKind.check(&mut inner(settings))?;
        if !settings.options.contains_key(CLUSTER) {
            return Err(format!(
                "`backend = \"pnfs\"` needs `options = {{ {CLUSTER} = NAME }}`, the name of a [[pnfs]] table"
            ));
        }
        let name = self.default_name(settings).unwrap_or_default();
        replace_options(&mut PnfsConfig::default(), settings).map_err(|error| format!("export '{name}': {error}"))
    }

    fn default_name(&self, settings: &BackendSettings) -> Option<String> {
        DirectoryKind.default_name(settings)
    }

    fn is_persistent(&self) -> bool {
        true
    }

    fn open(&self, settings: &BackendSettings, opening: &Opening<'_>) -> io::Result<Tree> {
        let name = cluster_of(settings);
        let cluster = &table_of(settings, opening.pnfs()).map_err(invalid)?;
        let located = |error: io::Error| io::Error::new(error.kind(), format!("pnfs '{name}': {error}"));
        let directory = directory_of(settings)?;
        // Without files, there are no layouts that an earlier process has granted.
        let lease = if is_empty(&directory).map_err(located)? { Duration::ZERO } else { opening.lease() };
        let (data_servers, options) =
            (data_servers(cluster).map_err(located)?, options(cluster, lease).map_err(located)?);
        let database = database(settings, opening).map_err(located)?;
        let index = Index::open(&database);
        let index = index.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", database.display())))?;
        DirectoryKind.open(&inner(settings), opening)?.layered(|inner| {
            let (runtime, upkeep) = start_thread()?;
            let servers = Arc::new(NfsServers::new(runtime, transports::for_client(), data_servers));
            let pnfs = Pnfs::new(inner, servers.clone(), index, options).map_err(located)?;
            self.0.add(settings, (directory, database), servers, pnfs.clone());
            // The thread waits for it.
            let _ = upkeep.send(pnfs.clone());
            Ok(Arc::new(pnfs))
        })
    }
}

/// Returns the settings of the directory below the layer.
fn inner(settings: &BackendSettings) -> BackendSettings {
    BackendSettings { options: Default::default(), ..settings.clone() }
}

/// Returns the name of the table of an export.
fn cluster_of(settings: &BackendSettings) -> &str {
    settings.options.get(CLUSTER).map(String::as_str).unwrap_or_default()
}

/// Returns the table of an export, with the options that the export replaces.
///
/// # Errors
/// Returns a message for the user if there is not one table with the name that the export gives.
pub fn table_of(settings: &BackendSettings, tables: &[PnfsConfig]) -> Result<PnfsConfig, String> {
    let name = cluster_of(settings);
    let mut named = tables.iter().filter(|table| table.name == name);
    let table = named.next().ok_or_else(|| format!("the configuration has no [[pnfs]] with the name '{name}'"))?;
    if named.next().is_some() {
        return Err(format!("the configuration has two [[pnfs]] with the name '{name}'"));
    }
    let mut table = table.clone();
    replace_options(&mut table, settings)?;
    Ok(table)
}

fn replace_options(table: &mut PnfsConfig, settings: &BackendSettings) -> Result<(), String> {
    let mut options = settings.options.iter().filter(|(option, _)| *option != CLUSTER);
    options.try_for_each(|(option, value)| table.replace(option, value))
}

fn options(cluster: &PnfsConfig, lease: Duration) -> io::Result<Options> {
    let &PnfsConfig { mirrors, stripes, stripe_unit, threshold, layouts, .. } = cluster;
    let wrong = || invalid(format!("stripes = {stripes} with stripe_unit = {stripe_unit} is impossible"));
    let stripes = Stripes::new(stripe_unit, stripes.into()).ok_or_else(wrong)?;
    let layouts = match layouts {
        LayoutsMode::Flexible => Some(LayoutKind::Flexible),
        LayoutsMode::Files => Some(LayoutKind::Files),
        LayoutsMode::None => None,
    };
    let earlier = Earlier { layouts: lease, requests: EARLIER_REQUESTS };
    Ok(Options { mirrors: mirrors.into(), stripes, threshold, layouts, earlier })
}

/// Returns the data servers of a table.
///
/// # Errors
/// Returns an error that names the wrong data server, or the setting that its layouts do not permit.
pub fn data_servers(cluster: &PnfsConfig) -> io::Result<Vec<(ServerId, Endpoint)>> {
    if cluster.layouts == LayoutsMode::Files && cluster.mirrors != 1 {
        let mirrors = cluster.mirrors;
        let message =
            "layouts = \"files\" needs mirrors = 1, because a files layout has no copies; stripes distribute a file";
        return Err(invalid(format!("mirrors = {mirrors}: {message}")));
    }
    let cluster_key = cluster_key(cluster)?;
    let mut servers: Vec<(ServerId, Endpoint)> = Vec::new();
    for server in &cluster.server {
        let id = ServerId(server.id.get());
        let located = |message: String| invalid(format!("server {}: {message}", id.0));
        if cluster.layouts == LayoutsMode::Files && server.version == DataVersionConfig::V3 {
            let message = "layouts = \"files\" needs version = \"4.1\" or \"4.2\" (slipway serve with --data-server)";
            return Err(located(message.to_owned()));
        }
        let mut url: NfsUrl = server.url.parse().map_err(|error| located(format!("url: {error}")))?;
        if !matches!(url.options.version, Version::Auto | Version::V3) {
            let message = "data servers are used by NFSv3; remove `vers` from the URL (`version` is that of clients)";
            return Err(located(message.to_owned()));
        }
        url.options.version = Version::V3;
        url.options.deadline = Duration::from_secs(cluster.timeout_s);
        // Objects belong to root, and only this server can use their directory.
        url.options.uid.get_or_insert(0);
        url.options.gid.get_or_insert(0);
        let addresses = match &server.address[..] {
            _ if cluster.layouts == LayoutsMode::None => Vec::new(),
            [] => vec![address_of(&url).map_err(located)?],
            addresses => addresses.iter().map(data_address).collect(),
        };
        if let Some((other, _)) = servers.iter().find(|(other, endpoint)| *other == id || endpoint.url == url) {
            return Err(located(format!("server {} has the same id or the same url", other.0)));
        }
        let same_name = |(_, other): &&(ServerId, Endpoint)| server.name.is_some() && other.name == server.name;
        if let Some((other, _)) = servers.iter().find(same_name) {
            return Err(located(format!("server {} has the same name", other.0)));
        }
        let key = cluster_key.clone().filter(|_| server.kind == DataKindConfig::Slipway);
        let name = server.name.clone();
        servers.push((id, Endpoint { name, url, addresses, version: server.version, key }));
    }
    Ok(servers)
}

/// Returns the key of a cluster that has data servers of kind `slipway`.
fn cluster_key(cluster: &PnfsConfig) -> io::Result<Option<ClusterKey>> {
    let mut servers = cluster.server.iter().filter(|server| server.kind == DataKindConfig::Slipway);
    match (servers.next(), &cluster.key_file) {
        (None, _) => Ok(None),
        (Some(_), Some(path)) => ClusterKey::load(path).map(Some),
        (Some(server), None) => Err(invalid(format!(
            "server {}: kind = \"slipway\" needs `key_file` in [[pnfs]], the file with the key that this data server has, too",
            server.id
        ))),
    }
}

fn data_address(config: &DataAddressConfig) -> DataAddress {
    let transport = match config.transport {
        DataTransportConfig::Tcp => DataTransport::Tcp,
        DataTransportConfig::Rdma => DataTransport::Rdma,
        DataTransportConfig::Shm => DataTransport::Shm,
    };
    DataAddress { transport, address: config.address }
}

/// Returns the address for clients that follows from the URL.
///
/// # Errors
/// Returns the reason why clients cannot use the transport of the URL, or why its host has no address.
pub fn address_of(url: &NfsUrl) -> Result<DataAddress, String> {
    let transport = match url.options.proto.as_str() {
        "tcp" => DataTransport::Tcp,
        "rdma" => DataTransport::Rdma,
        proto => return Err(format!("`address` is missing: few clients can use the transport {proto} of the URL")),
    };
    let port = url.port.unwrap_or(if transport == DataTransport::Rdma { nfs::NFS_RDMA_PORT } else { nfs::NFS_PORT });
    let resolved = (url.host.as_str(), port).to_socket_addrs();
    let address = resolved.map_err(|error| error.to_string()).and_then(|mut all| all.next().ok_or_else(String::new));
    let address = address.map_err(|error| format!("no address of '{}' is known: {error}", url.host))?;
    Ok(DataAddress { transport, address })
}

/// Returns the path of the database of an export.
fn database(settings: &BackendSettings, opening: &Opening<'_>) -> io::Result<PathBuf> {
    let dir = opening.state_dir().ok_or_else(|| invalid("it needs a state directory".to_owned()))?;
    Ok(state_file(dir, "pnfs", &directory_of(settings)?))
}

/// Returns the directory of an export.
fn directory_of(settings: &BackendSettings) -> io::Result<PathBuf> {
    settings.path.as_deref().unwrap_or(Path::new("/")).canonicalize()
}

fn is_empty(directory: &Path) -> io::Result<bool> {
    Ok(directory.read_dir()?.next().transpose()?.is_none())
}

/// Returns the path of the database of an export. Its name has a hash, because the path of the export can be longer than a
/// name.
fn state_file(state_dir: &Path, kind: &str, export: &Path) -> PathBuf {
    let hash = Sha256::digest(export.as_os_str().as_bytes());
    let hash: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    state_dir.join(format!("{kind}-{hash}.redb"))
}

/// Starts the thread that has the connections to the data servers. It executes the upkeep of the layer that it is sent until
/// the process ends, and ends if it is sent none.
fn start_thread() -> io::Result<(runtime::Handle, oneshot::Sender<Pnfs>)> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (sender, layer) = oneshot::channel::<Pnfs>();
    let upkeep = async move {
        let Ok(pnfs) = layer.await else { return };
        let repairs = async {
            loop {
                pnfs.upkeep().await;
                let _ = tokio::time::timeout(UPKEEP_INTERVAL, pnfs.woken()).await;
                // Many files can fail at the same time.
                tokio::time::sleep(UPKEEP_PAUSE).await;
            }
        };
        let rebalancing = async {
            loop {
                pnfs.rebalance_ordered().await;
                pnfs.rebalance().await;
            }
        };
        tokio::join!(repairs, rebalancing);
    };
    thread::Builder::new().name("data-servers".to_owned()).spawn(move || runtime.block_on(upkeep))?;
    Ok((handle, sender))
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// The option of an export that names its data servers.
const CLUSTER: &str = "cluster";
/// The time after which data servers that failed are tried again.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// The minimum time between two rounds.
const UPKEEP_PAUSE: Duration = Duration::from_millis(200);
/// The time for which requests of an earlier process may be on their way to data servers. A network or a data server that holds them
/// back for longer cannot be told from one that is away.
const EARLIER_REQUESTS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use pnfs::DataServers;
    use server::Config;
    use vfs::layout::LayoutDevice;

    use super::*;

    #[test]
    fn documented_examples_are_valid() {
        let text = include_str!("../../../../docs/pnfs.md");
        let examples: Vec<_> = text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        let parse = |text: &str| Config::parse_with(text, &backends(Arc::default())).unwrap();
        let [data_server, metadata_server, objects, computed, export, newer, by_version, files] = examples[..] else {
            panic!("there must be eight examples")
        };
        assert_eq!(parse(data_server).export[0].options.clients.len(), 2);
        let config = parse(metadata_server);
        let servers = data_servers(&config.pnfs[0]).unwrap();
        let addresses: Vec<_> = servers.iter().map(|(_, endpoint)| endpoint.addresses[0].address.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.2:2049", "10.0.0.3:2049"]);
        let archive = &parse(export).export[0].backend.settings;
        let table = table_of(archive, &config.pnfs).unwrap();
        assert_eq!((table.mirrors, table.threshold, table.stripes), (3, 1 << 20, 1));
        assert_eq!(parse(objects).export[0].backend.name(), "objects");
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("cluster.key");
        let computed = computed.replace("/etc/slipway/cluster.key", key.to_str().unwrap());
        let kinds = || {
            let servers = data_servers(&parse(&computed).pnfs[0]).map_err(|error| error.to_string())?;
            Ok::<_, String>(servers.iter().map(|(_, endpoint)| endpoint.key.is_some()).collect::<Vec<_>>())
        };
        assert!(kinds().unwrap_err().contains("cluster.key: it does not exist: make it by"));
        vfs::private::replace(&key, "01".repeat(32).as_bytes()).unwrap();
        assert_eq!(kinds(), Ok(vec![true, true]));
        let without = computed.replace("key_file", "# key_file");
        let error = data_servers(&parse(&without).pnfs[0]).map(drop).unwrap_err().to_string();
        assert!(error.contains("server 1: kind = \"slipway\" needs `key_file`"), "{error}");
        assert!(parse(newer).settings().unwrap().data_server);
        let config = parse(&format!("[[pnfs]]\nname = 'a'\n{by_version}"));
        assert_eq!(data_servers(&config.pnfs[0]).unwrap()[0].1.version, DataVersionConfig::V4_2);
        let config = parse(files);
        assert_eq!(data_servers(&config.pnfs[0]).unwrap().len(), 2);
        assert_eq!(options(&config.pnfs[0], Duration::ZERO).unwrap().layouts, Some(LayoutKind::Files));
    }

    #[test]
    fn clients_get_addresses_in_the_order_that_suits_them() {
        let table = |server: &str| {
            let text = format!("[[pnfs]]\nname = 'a'\n[[pnfs.server]]\nid = 1\nurl = 'nfs://10.0.0.2/a'\n{server}");
            let config = Config::parse(&text).unwrap();
            let switch = transports::for_client();
            NfsServers::new(runtime::Handle::current(), switch, data_servers(&config.pnfs[0]).unwrap())
        };
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let _guard = runtime.enter();
        let id = ServerId(1);
        let (tcp, rdma) = (DataTransport::Tcp, DataTransport::Rdma);
        let default = table("");
        assert_eq!(default.device_id(id, rdma), default.device_id(id, tcp), "there is no RDMA address");
        let both = table(
            "address = [{ transport = 'rdma', address = '10.1.0.2:20049' }, { transport = 'tcp', address = '10.0.0.2:2049' }]",
        );
        let (by_tcp, by_rdma) = (both.device_id(id, tcp).unwrap(), both.device_id(id, rdma).unwrap());
        assert_ne!(by_tcp, by_rdma);
        assert_ne!(Some(by_tcp), default.device_id(ServerId(2), tcp));
        assert_eq!((both.server_of(by_tcp), both.server_of(by_rdma)), (Some(id), Some(id)));
        assert_eq!(default.server_of(by_rdma), None);
        let shm = DataTransport::Shm;
        assert_eq!(both.device_id(id, shm), Some(by_tcp), "there is no address of shared memory");
        let local = table("address = [{ transport = 'shm', address = '127.0.0.1:1' }]");
        let by_shm = local.device_id(id, shm).unwrap();
        assert_eq!(
            (local.device_id(id, tcp), local.device_id(id, rdma), local.server_of(by_shm)),
            (None, None, Some(id))
        );
        let newer = table("version = '4.1'");
        let by_newer = newer.device_id(id, tcp).unwrap();
        assert_ne!(Some(by_newer), default.device_id(id, tcp), "clients cache the version with the device");
        assert_eq!(newer.server_of(by_newer), Some(id));
        let former = default.device_id(id, tcp).unwrap();
        assert_eq!(newer.server_of(former), Some(id), "a client can report errors of a device that it got as NFSv3");
    }

    #[test]
    fn layouts_of_an_export_replace_those_of_its_table() {
        let text = "[[export]]\npath = '/a'\nbackend = 'pnfs'\noptions = { cluster = 'a', layouts = 'none', mirrors = 1 }\n\
                    [[pnfs]]\nname = 'a'\n[[pnfs.server]]\nid = 1\nurl = 'nfs://10.0.0.2/a'";
        let config = Config::parse_with(text, &backends(Arc::default())).unwrap();
        let table = table_of(&config.export[0].backend.settings, &config.pnfs).unwrap();
        let has_addresses = |table: &PnfsConfig| !data_servers(table).unwrap()[0].1.addresses.is_empty();
        assert_eq!([has_addresses(&table), has_addresses(&config.pnfs[0])], [false, true]);
        let [own, common] = [&table, &config.pnfs[0]].map(|table| options(table, Duration::ZERO).unwrap());
        assert_eq!((own.layouts, own.mirrors), (None, 1));
        assert_eq!((common.layouts, common.mirrors), (Some(LayoutKind::Flexible), 2));
    }

    #[test]
    fn files_layouts_need_one_copy_and_data_servers_of_nfsv4() {
        let find = |mirrors: &str, version: &str| {
            let text = format!(
                "[[pnfs]]\nname = 'a'\nlayouts = 'files'\n{mirrors}\n[[pnfs.server]]\nid = 7\nurl = 'nfs://10.0.0.2/a'\n{version}"
            );
            data_servers(&Config::parse(&text).unwrap().pnfs[0]).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(find("mirrors = 1", "version = '4.1'"), Ok(()));
        assert_eq!(find("mirrors = 1", "version = '4.2'"), Ok(()));
        let error = find("", "version = '4.1'").unwrap_err();
        assert!(error.starts_with("mirrors = 2: layouts = \"files\" needs mirrors = 1"), "{error}");
        let error = find("mirrors = 1", "").unwrap_err();
        assert!(error.starts_with("server 7: layouts = \"files\" needs version = \"4.1\" or \"4.2\""), "{error}");
    }

    #[test]
    fn devices_of_files_layouts_have_the_data_servers_of_the_stripes() {
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let table = |port: u16| {
            let server = |id: u16, rdma: &str| {
                let tcp = format!("{{ transport = 'tcp', address = '10.0.0.{id}:{port}' }}");
                format!(
                    "[[pnfs.server]]\nid = {id}\nurl = 'nfs://10.0.0.{id}/a'\nversion = '4.1'\naddress = [{rdma}{tcp}]\n"
                )
            };
            let rdma = "{ transport = 'rdma', address = '10.1.0.1:20049' }, ";
            let servers = server(1, rdma) + &server(2, "");
            let text = format!("[[pnfs]]\nname = 'a'\nlayouts = 'files'\nmirrors = 1\n{servers}");
            let config = Config::parse(&text).unwrap();
            let switch = transports::for_client();
            NfsServers::new(runtime.handle().clone(), switch, data_servers(&config.pnfs[0]).unwrap())
        };
        let (servers, moved) = (table(2049), table(2050));
        let (tcp, rdma) = (DataTransport::Tcp, DataTransport::Rdma);
        let [one, two] = [ServerId(1), ServerId(2)];
        let device = servers.striped_device_id(&[two, one, two], rdma).unwrap();
        let found = runtime.block_on(servers.device(device)).unwrap();
        let LayoutDevice::Files { stripes, servers: lists } = found else { panic!("a device of a files layout") };
        let text =
            |list: &Vec<DataAddress>| list.iter().map(|one| one.address.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(stripes, [0, 1, 2]);
        let addresses: Vec<_> = lists.iter().map(text).collect();
        assert_eq!(addresses, ["10.0.0.2:2049", "10.1.0.1:20049 10.0.0.1:2049", "10.0.0.2:2049"]);
        let others = [
            servers.striped_device_id(&[two, one], rdma),
            servers.striped_device_id(&[one, two, two], rdma),
            servers.striped_device_id(&[two, one, two], tcp),
            moved.striped_device_id(&[two, one, two], rdma),
        ];
        assert!(others.iter().all(|other| other.is_some_and(|other| other != device)), "{others:?}");
        assert_eq!(servers.striped_device_id(&[one, ServerId(3)], tcp), None);
        assert_eq!(servers.server_of(device), None);
        assert_eq!(runtime.block_on(moved.device(device)), Err(::pnfs::ServerError::Missing));
    }
}
