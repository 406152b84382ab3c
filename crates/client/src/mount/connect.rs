//! Makes a mount from a URL: chooses addresses, ports and transports, and finds the export in the path.
//!
//! - **Ports.** A port in the URL is that of NFS. Without one, the port is 20049 for `rdma` (RFC 8267 §4.4). For `tcp`
//!   and `udp` it is the port that rpcbind returns, or else 2049.
//! - **MOUNT** is at the port `mountport`. Without this option, MOUNT is tried first on the connection of NFS, where
//!   Slipway's server answers it, and then at the port that rpcbind returns; in the other order if rpcbind has already
//!   been asked. So a server without MOUNT on RDMA is asked over TCP.
//! - **The export** is the longest part of the path that the server mounts. The names in the rest are looked up.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use entropy::Sequence;
use nfs::{MOUNT_PROGRAM, NFS_PORT, NFS_PROGRAM, NFS_RDMA_PORT, mount::MountOk, v3::DATA_BOUND};
use rpc::{
    AcceptStat, BoxFuture, ClientError, RawOptions, Switch, TransportKind, Xprtsec,
    rpcbind::{self, Netid},
};
use tokio::time::timeout;

use super::{
    Inner, Mount, MountClient, Protocol,
    lock_manager::LockManager,
    mountd::{self, Mountd, MountdAddress},
    referral::{Referred, url_of},
};
use crate::{
    call::{Link, Program},
    model::{Error, ErrorKind, MountOptions, NfsUrl, Pnfs, Result, Security, Status, UrlError, Version},
    v3::{self, V3},
    v4::{
        V4,
        connect::{Callbacks, is_another_version},
        layout::{
            data_server::DataServer,
            device::{DataDialer, DataVersion},
            session::DataSession,
        },
        location::Location,
        migration::{Dialed, Dialer, MigrationIdentity},
    },
};

/// A server that a URL names.
#[derive(Clone)]
pub(crate) struct Site {
    server: Arc<str>,
    url: NfsUrl,
    switch: Switch,
    /// The number of referrals that have led to this server.
    hops: u32,
    /// The client's identity at the server from which a file system has moved to this one.
    identity: Option<MigrationIdentity>,
}

/// A step that is attempted at an address of a server.
type Attempt<T> = for<'a> fn(&'a Site, IpAddr) -> BoxFuture<'a, Result<T>>;

/// A call to a service that may be MOUNT.
type Probe<T> = for<'a> fn(&'a Site, MountClient) -> BoxFuture<'a, Result<T>>;

impl Mount {
    /// Mounts the tree that `url` names: connects over its transport, finds MOUNT, and mounts the URL's path. If the
    /// server refuses that path, mounts the longest part of it that the server mounts.
    ///
    /// # Errors
    /// The host or transport is unknown, no server answers, or the server does not export the path to this client.
    pub async fn connect(url: &NfsUrl, switch: &Switch) -> Result<Self> {
        mount(url, switch, 0, None).await
    }
}

impl MountClient {
    /// Connects to the MOUNT service of the URL's server.
    ///
    /// # Errors
    /// The host is unknown, or no MOUNT service answers there.
    pub async fn connect(url: &NfsUrl, switch: &Switch) -> Result<Self> {
        Site::new(url, switch).try_addresses(|site, ip| Box::pin(site.mountd_at(ip))).await
    }
}

/// Mounts the tree that a URL names, after `hops` referrals. `identity` is the client's identity at another server, if
/// the file system has moved from there.
async fn mount(url: &NfsUrl, switch: &Switch, hops: u32, identity: Option<MigrationIdentity>) -> Result<Mount> {
    Site { hops, identity, ..Site::new(url, switch) }.try_addresses(|site, ip| Box::pin(site.mount_at(ip))).await
}

/// Mounts file systems at the servers to which they have moved, with the options of the URL of their former server.
struct SiteDialer {
    url: NfsUrl,
    switch: Switch,
    hops: u32,
}

impl Dialer for SiteDialer {
    fn dial<'a>(&'a self, place: &'a Location, identity: MigrationIdentity) -> BoxFuture<'a, Result<Dialed>> {
        Box::pin(async move {
            let url = url_of(place, &self.url)?;
            let mount = mount(&url, &self.switch, self.hops, Some(identity)).await?;
            let Some(v4) = mount.v4().filter(|_| mount.start().is_empty()) else {
                let problem = "the root of the file system is not found there, or not over NFSv4";
                return Err(Error::new(ErrorKind::Protocol(problem.to_owned()), "LOOKUP"));
            };
            Ok(Dialed {
                v4: v4.clone(),
                number: mount.number(),
                root: mount.root().clone(),
                read_size: mount.read_size(),
                write_size: mount.write_size(),
            })
        })
    }
}

/// Connects to data servers, with the options of the URL of the metadata server.
struct DataSites {
    url: NfsUrl,
    switch: Switch,
}

impl DataDialer for DataSites {
    fn has(&self, transport: &str) -> bool {
        self.switch.find(transport).is_some()
    }

    fn dial<'a>(
        &'a self,
        transport: &'a str,
        address: SocketAddr,
        version: DataVersion,
    ) -> BoxFuture<'a, Result<Arc<dyn DataServer>>> {
        Box::pin(async move {
            let mut url = NfsUrl { host: address.ip().to_string(), port: Some(address.port()), ..self.url.clone() };
            // A data server that is silent for longer counts as failed. The data then go through the metadata server.
            url.options.deadline = url.options.deadline.min(DATA_TIMEOUT);
            if transport != url.options.proto {
                url.options.transport = RawOptions::new();
            }
            let (site, refused) = (Site::new(&url, &self.switch), url.options.data_refused);
            match version {
                DataVersion::V3 => {
                    let kind = site.kind(transport, &url.options.transport, NFS3)?;
                    let link = Link::connect(kind, (address, &url.host), &url.options, None).await?;
                    let program = Program::new(link, NFS_PROGRAM, nfs::v3::VERSION, site.server, url.options.deadline);
                    let program = program.pinged().await?.unless_refused(refused);
                    let connected: Arc<dyn DataServer> = Arc::new(V3::new(program));
                    Ok(connected)
                }
                DataVersion::V4(minor) => {
                    let kind = site.kind(transport, &url.options.transport, NFS4)?;
                    let callbacks = Callbacks::new();
                    let program = site.program4(&(kind, address), &callbacks).await?.unless_refused(refused);
                    let (v4, _) = V4::connect(program, &[minor], &callbacks, None).await?;
                    let connected: Arc<dyn DataServer> = Arc::new(DataSession::new(v4));
                    Ok(connected)
                }
            }
        })
    }
}

/// The ports of a server that are known before a connection is made.
struct Ports {
    nfs: u16,
    /// The port of MOUNT from rpcbind; `None` if rpcbind was not asked or has no such port.
    mount: Option<u16>,
    /// Set if rpcbind has been asked.
    rpcbind_asked: bool,
}

impl Site {
    fn new(url: &NfsUrl, switch: &Switch) -> Self {
        Self { server: url.authority().into(), url: url.clone(), switch: switch.clone(), hops: 0, identity: None }
    }

    pub fn options(&self) -> &MountOptions {
        &self.url.options
    }

    /// Returns the server's name, for messages.
    pub fn server(&self) -> &Arc<str> {
        &self.server
    }

    pub fn host(&self) -> &str {
        &self.url.host
    }

    /// Reports whether the transport of NFS can lose messages.
    pub fn is_lossy(&self) -> bool {
        self.switch.find(&self.options().proto).is_some_and(|kind| kind.is_lossy())
    }

    fn referred(&self) -> Referred {
        let (switch, hops) = (self.switch.clone(), self.hops);
        let dial = move |url: NfsUrl| -> BoxFuture<'static, Result<Mount>> {
            let switch = switch.clone();
            Box::pin(async move { mount(&url, &switch, hops + 1, None).await })
        };
        Referred::new(Box::new(dial), hops)
    }

    /// Attempts a step at the addresses of the host one after the other, until one answers.
    async fn try_addresses<T>(&self, attempt: Attempt<T>) -> Result<T> {
        let mut last = None;
        for ip in self.resolve().await? {
            match attempt(self, ip).await {
                Err(error) if matches!(error.kind(), ErrorKind::Rpc(_) | ErrorKind::Timeout { .. }) => {
                    last = Some(error)
                }
                result => return result.map_err(|error| error.on(&self.server)),
            }
        }
        Err(last.expect("a host must have an address").on(&self.server))
    }

    async fn resolve(&self) -> Result<Vec<IpAddr>> {
        let failed = |problem: String| Error::new(ErrorKind::Resolve(problem), "connect").on(&self.server);
        let found = timeout(self.options().deadline, tokio::net::lookup_host((self.url.host.as_str(), 0)));
        let found = found.await.map_err(|_| failed("name resolution timed out".to_owned()))?;
        let mut addresses = Vec::new();
        for address in found.map_err(|error| failed(error.to_string()))? {
            if !addresses.contains(&address.ip()) {
                addresses.push(address.ip());
            }
        }
        if addresses.is_empty() { Err(failed("the name has no address".to_owned())) } else { Ok(addresses) }
    }

    async fn mount_at(&self, ip: IpAddr) -> Result<Mount> {
        let (version, proto, is_lossy) = (self.options().version, &self.options().proto, self.is_lossy());
        if version == Version::V3 || version == Version::Auto && is_lossy {
            return self.mount3_at(ip).await;
        }
        //= rfc8881-2.9.1-3 rfc8881-2.9.1-4
        if is_lossy {
            let problem =
                format!("NFSv4 is not used over {proto}, which can lose messages: use vers=3 or another proto");
            return Err(UrlError { url: self.url.to_string(), problem }.into());
        }
        match self.mount4_at(ip).await {
            Err(error) if version == Version::Auto && is_no_v4(&error) => {
                tracing::debug!(%error, "the server does not support NFSv4");
                self.mount3_at(ip).await
            }
            result => result,
        }
    }

    /// Mounts over NFSv4, which needs one port and no other protocol.
    async fn mount4_at(&self, ip: IpAddr) -> Result<Mount> {
        let callbacks = Callbacks::new();
        let options = self.options();
        let known = self.identity.as_ref().map(|identity| identity.owner.clone());
        let mut endpoints = self.endpoints(ip).await?.into_iter();
        let first = endpoints.next().expect("the host of the URL must be among the endpoints");
        let program = self.program4(&first, &callbacks).await?;
        let (v4, exchanged) = V4::connect(program, options.version.minors(), &callbacks, known).await?;
        for _ in 1..options.nconnect {
            v4.add_connection(self.program4(&first, &callbacks).await?, exchanged.as_ref(), false).await?;
        }
        for endpoint in endpoints {
            for turn in 0..options.nconnect {
                let program = self.program4(&endpoint, &callbacks).await?;
                v4.add_connection(program, exchanged.as_ref(), turn == 0).await?;
            }
        }
        let moves = self.identity.as_ref().map_or(0, |identity| identity.moves);
        let dialer = SiteDialer { url: self.url.clone(), switch: self.switch.clone(), hops: self.hops };
        v4.set_dialer(Arc::new(dialer), moves);
        // RFC 8435 §2.2: data servers know the client by AUTH_SYS, and their certificates cannot be checked by an address.
        let is_plain = options.security == Security::Sys && options.tls.xprtsec == Xprtsec::None;
        if v4.is_metadata_server() && options.pnfs == Pnfs::Auto && is_plain {
            v4.use_layouts(Arc::new(DataSites { url: self.url.clone(), switch: self.switch.clone() }));
        }
        let path = clean(&self.url.path);
        let names: Vec<Bytes> =
            path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).map(Bytes::copy_from_slice).collect();
        let root = v4.root(&names).await.map_err(|error| error.at(&path))?;
        let (mounted, start) = names.split_at(root.names);
        let slash = |names: &[Bytes]| Bytes::from(names.join(&b'/'));
        let message_max = v4.message_max();
        let limit = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let inner = Inner {
            number: next_number(),
            url: self.url.clone(),
            start: slash(start),
            root: root.handle,
            read_size: transfer_size(options.read_size, limit(root.maxread), message_max),
            write_size: transfer_size(options.write_size, limit(root.maxwrite), message_max),
            page_size: page_size(0, message_max.min(limit(root.maxread) as usize)),
            mounted: slash(mounted),
            mountd: None,
            referred: self.referred(),
        };
        Ok(Mount::new(Protocol::V4(v4), inner))
    }

    /// Returns the endpoints of NFSv4: each transport at the URL's host, and the further addresses.
    async fn endpoints(&self, ip: IpAddr) -> Result<Vec<(Arc<dyn TransportKind>, SocketAddr)>> {
        let mut endpoints = Vec::new();
        let protos = || self.options().proto.split('+');
        for (at, proto) in protos().enumerate() {
            // The port of the URL is that of the first transport, because two transports cannot share one.
            let port = self.url.port.filter(|_| at == 0).unwrap_or(default_port(proto));
            endpoints.push((self.kind(proto, &self.options().transport, NFS4)?, SocketAddr::new(ip, port)));
        }
        for address in &self.options().addresses {
            let (proto, host) = address.split_once('@').unwrap_or((protos().next().unwrap_or("tcp"), address));
            let kind = self.kind(proto, &self.options().transport, NFS4)?;
            let has_port = host.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
            let host = if has_port { host.to_owned() } else { format!("{host}:{}", default_port(proto)) };
            let failed = |problem: String| Error::new(ErrorKind::Resolve(format!("{address}: {problem}")), "connect");
            let found = timeout(self.options().deadline, tokio::net::lookup_host(host)).await;
            let found = found.map_err(|_| failed("name resolution timed out".to_owned()))?;
            let found = found.map_err(|error| failed(error.to_string()))?.next();
            endpoints.push((kind, found.ok_or_else(|| failed("the name has no address".to_owned()))?));
        }
        Ok(endpoints)
    }

    async fn program4(
        &self,
        endpoint: &(Arc<dyn TransportKind>, SocketAddr),
        callbacks: &Callbacks,
    ) -> Result<Program> {
        let (kind, address) = endpoint.clone();
        let link =
            Link::connect(kind, (address, &self.url.host), self.options(), Some(callbacks.server.clone())).await?;
        let (server, deadline) = (self.server.clone(), self.options().deadline);
        Program::new(link, NFS_PROGRAM, nfs::v4::VERSION, server, deadline).pinged().await
    }

    async fn mount3_at(&self, ip: IpAddr) -> Result<Mount> {
        let ports = self.ports(ip).await?;
        let link = self.nfs_link(ip, &ports).await?;
        let program =
            Program::new(link.clone(), NFS_PROGRAM, nfs::v3::VERSION, self.server.clone(), self.options().deadline);
        let program = program.pinged().await?;
        let export: Probe<_> = |site, client| Box::pin(site.longest_export(client));
        let (mountd, (mounted, ok)) = self.find_mountd(ip, &ports, Some(&link), export).await?;
        let path = clean(&self.url.path);
        let v3 = self.with_locks(ip, V3::new(program));
        let v3 = if self.options().acl { v3 } else { v3.without_acls() };
        let info = v3.fsinfo(&ok.fhandle).await.map_err(|error| error.at(&path))?;
        let message_max = v3.program().message_max();
        let start = path.slice(mounted.len()..);
        let start = start.slice(start.iter().take_while(|&&byte| byte == b'/').count()..);
        let inner = Inner {
            number: next_number(),
            url: self.url.clone(),
            start,
            root: v3::handle(ok.fhandle),
            read_size: transfer_size(self.options().read_size, info.rtmax, message_max),
            write_size: transfer_size(self.options().write_size, info.wtmax, message_max),
            page_size: page_size(info.dtpref, message_max),
            mounted,
            mountd: Some(mountd),
            referred: self.referred(),
        };
        Ok(Mount::new(Protocol::V3(v3), inner))
    }

    /// Adds the locks of the mount, unless it has the option `nolock`.
    fn with_locks(&self, ip: IpAddr, v3: V3) -> V3 {
        if !self.options().lock {
            return v3;
        }
        let nfs = v3.program().clone();
        v3.with_locks(Box::new(LockManager { site: self.clone(), ip, nfs }))
    }

    async fn mountd_at(&self, ip: IpAddr) -> Result<MountClient> {
        let ports = self.ports(ip).await?;
        let nfs = self.nfs_link(ip, &ports).await;
        let null: Probe<()> = |_, client| Box::pin(async move { client.null().await });
        match self.find_mountd(ip, &ports, nfs.as_ref().ok(), null).await {
            Ok((mountd, ())) => mountd.client().await,
            Err(error) => Err(nfs.err().unwrap_or(error)),
        }
    }

    /// Mounts the URL's path, or the longest part of it that the server mounts. Returns that part.
    async fn longest_export(&self, client: MountClient) -> Result<(Bytes, MountOk)> {
        let path = clean(&self.url.path);
        let mut refused = None;
        let mut len = path.len();
        loop {
            let part = path.slice(..len.max(1));
            match client.mnt(&part).await {
                Ok(ok) if !accepts(&ok.auth_flavors, self.options().security) => {
                    let names: Vec<_> = ok.auth_flavors.iter().map(|&number| Security::name_of(number)).collect();
                    let own = Security::name_of(self.options().security.number());
                    let problem = format!("the export accepts sec={}, and this mount has sec={own}", names.join(", "));
                    return Err(Error::new(ErrorKind::Flavor(problem), "MNT").at(&part));
                }
                Ok(ok) => return Ok((part, ok)),
                Err(error) if len > 1 && is_below_an_export(&error) => {
                    len = path[..len].iter().rposition(|&byte| byte == b'/').expect("a path must start with a slash");
                    refused.get_or_insert(error);
                }
                Err(error) => return Err(refused.unwrap_or(error)),
            }
        }
    }

    async fn ports(&self, ip: IpAddr) -> Result<Ports> {
        if let Some(nfs) = self.url.port {
            return Ok(Ports { nfs, mount: None, rpcbind_asked: false });
        }
        match self.options().proto.as_str() {
            "tcp" | "udp" => {}
            "rdma" => return Ok(Ports { nfs: NFS_RDMA_PORT, mount: None, rpcbind_asked: false }),
            // rpcbind has no entries for other transports.
            _ => return Ok(Ports { nfs: NFS_PORT, mount: None, rpcbind_asked: false }),
        }
        let nfs = self.ask_rpcbind(ip, NFS_PROGRAM, nfs::v3::VERSION, &self.options().proto).await;
        let mount = match self.options().mount_port {
            None => self.ask_rpcbind(ip, MOUNT_PROGRAM, nfs::mount::VERSION, self.mount_proto()).await,
            given => given,
        };
        Ok(Ports { nfs: nfs.unwrap_or(NFS_PORT), mount, rpcbind_asked: true })
    }

    async fn nfs_link(&self, ip: IpAddr, ports: &Ports) -> Result<Link> {
        let kind = self.kind(&self.options().proto, &self.options().transport, NFS3)?;
        Link::connect(kind, (SocketAddr::new(ip, ports.nfs), &self.url.host), self.options(), None).await
    }

    /// Calls `first` at each location where MOUNT can be, until one of them serves MOUNT.
    async fn find_mountd<T>(
        &self,
        ip: IpAddr,
        ports: &Ports,
        nfs: Option<&Link>,
        first: Probe<T>,
    ) -> Result<(Mountd, T)> {
        let given = self.options().mount_port;
        if given.is_none()
            && !(ports.rpcbind_asked && ports.mount.is_some())
            && let Some(link) = nfs
        {
            let client = MountClient::new(mountd::program(link.clone(), self.server.clone(), self.options()));
            match first(self, client.clone()).await {
                Err(error) if lacks_mount(&error) => {
                    tracing::debug!(%error, "the connection of NFS does not serve MOUNT")
                }
                result => return result.map(|value| (Mountd::Shared(client), value)),
            }
        }
        let found = match given.or(ports.mount) {
            None if !ports.rpcbind_asked => {
                self.ask_rpcbind(ip, MOUNT_PROGRAM, nfs::mount::VERSION, self.mount_proto()).await
            }
            port => port,
        };
        let Some(port) = found else {
            let problem = format!(
                "no MOUNT service found: the connection of NFS does not serve it, and rpcbind on {ip} has no port of it; \
                 give its port as mountport=…"
            );
            return Err(Error::new(ErrorKind::Resolve(problem), "MOUNT"));
        };
        let kind = self.kind(self.mount_proto(), &RawOptions::new(), MOUNT3)?;
        let (address, options) = (SocketAddr::new(ip, port), self.options().clone());
        let mountd = Mountd::At(Box::new(MountdAddress {
            kind,
            address,
            options,
            host: self.url.host.clone(),
            server: self.server.clone(),
        }));
        let value = first(self, mountd.client().await?).await?;
        Ok((mountd, value))
    }

    /// Returns the transport of MOUNT, which is TCP for a server on RDMA.
    fn mount_proto(&self) -> &str {
        match (&self.options().mount_proto, self.options().proto.as_str()) {
            (Some(proto), _) => proto,
            (None, "udp") => "udp",
            (None, _) => "tcp",
        }
    }

    /// Returns the port that rpcbind has for a program.
    pub async fn ask_rpcbind(&self, ip: IpAddr, program: u32, version: u32, proto: &str) -> Option<u16> {
        let kind = self.switch.find("tcp")?;
        let address = SocketAddr::new(ip, rpcbind::PORT);
        let netid = Netid::new(proto, address);
        let lookup = rpcbind::lookup(kind, address, program, version, &netid);
        match timeout(self.options().deadline.min(RPCBIND_TIMEOUT), lookup).await {
            Ok(Ok(found)) => Some(found.port()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "rpcbind has no port of the program");
                None
            }
            Err(_) => {
                tracing::debug!(%address, "rpcbind timed out");
                None
            }
        }
    }

    /// Returns a transport with its options, for connections that are first used for this program and version. All of them
    /// have the URL's TLS.
    pub fn kind(&self, proto: &str, transport: &RawOptions, program: (u32, u32)) -> Result<Arc<dyn TransportKind>> {
        let wrong = |problem| UrlError { url: self.url.to_string(), problem };
        let tls = &self.options().tls;
        tls.check().map_err(wrong)?;
        if tls.xprtsec != Xprtsec::None && proto != "tcp" {
            return Err(wrong(format!("xprtsec is for proto=tcp; TLS does not protect '{proto}'")).into());
        }
        let mut transport = transport.clone();
        tls.add_to(&mut transport, &self.url.host, program);
        let Some(kind) = self.switch.find(proto) else {
            let names: Vec<_> = self.switch.names().collect();
            return Err(wrong(format!("no transport '{proto}'; available: {}", names.join(", "))).into());
        };
        kind.with_options(&transport).map_err(|error| {
            let ours = MountOptions::KEYS.join(", ");
            wrong(format!("{error}; options of the mount: {ours}")).into()
        })
    }
}

/// Returns the well-known port of NFSv4, which is used without rpcbind (RFC 8881 §2.9.3).
fn default_port(proto: &str) -> u16 {
    if proto == "rdma" { NFS_RDMA_PORT } else { NFS_PORT }
}

fn next_number() -> u64 {
    static SERVERS: Sequence = Sequence::new();
    SERVERS.next()
}

/// Returns `true` if NFSv3 is worth an attempt: the server does not support NFSv4, or there is no connection to its
/// port.
fn is_no_v4(error: &Error) -> bool {
    is_another_version(error) || matches!(error.kind(), ErrorKind::Rpc(ClientError::Transport(_)))
}

/// Returns `true` if the export accepts a flavour. A server that lists AUTH_NONE ignores who calls, so it accepts every
/// flavour. Some servers list no flavours (RFC 1813 appendix I).
fn accepts(flavors: &[u32], security: Security) -> bool {
    flavors.is_empty() || [AUTH_NONE, security.number()].iter().any(|accepted| flavors.contains(accepted))
}

/// Returns `true` if a refused path can be inside an export: it can be a file, not exist yet, or be hidden.
fn is_below_an_export(error: &Error) -> bool {
    use Status as S;
    let hides = matches!(error.status(), Some(S::NotFound | S::NotADirectory | S::AccessDenied | S::InvalidArgument));
    hides && error.operation() == "MNT"
}

/// Returns `true` if an error means that the connection does not serve MOUNT.
fn lacks_mount(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Rpc(ClientError::NotExecuted(AcceptStat::ProgUnavail | AcceptStat::ProgMismatch { .. }))
    )
}

/// Returns the path with one slash before each name and none at the end. The root is one slash.
fn clean(path: &[u8]) -> Bytes {
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    let clean = names.fold(Vec::new(), |mut clean, name| {
        clean.push(b'/');
        clean.extend_from_slice(name);
        clean
    });
    if clean.is_empty() { Bytes::from_static(b"/") } else { clean.into() }
}

fn transfer_size(wanted: Option<u32>, server_max: u32, message_max: usize) -> usize {
    let wanted = wanted.map_or(TRANSFER_DEFAULT, |wanted| wanted as usize);
    // If the server sends no limit, use a size that every server accepts.
    let server_max = if server_max == 0 { TRANSFER_SAFE } else { server_max as usize };
    wanted.min(server_max).min(message_max.saturating_sub(HEADERS_MAX)).clamp(TRANSFER_MIN, DATA_BOUND)
}

fn page_size(preferred: u32, message_max: usize) -> u32 {
    let most = message_max.saturating_sub(HEADERS_MAX).min(PAGE_MAX);
    (preferred as usize).max(PAGE_MIN).min(most) as u32
}

/// Maximum time for which a data server may be silent.
const DATA_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time to wait for rpcbind, so that a firewall that drops packets to it does not use up the whole deadline.
const RPCBIND_TIMEOUT: Duration = Duration::from_secs(5);
// Authentication flavours, RFC 5531 §8.2.
const AUTH_NONE: u32 = 0;
/// The programs and versions of connections.
const NFS3: (u32, u32) = (NFS_PROGRAM, nfs::v3::VERSION);
const NFS4: (u32, u32) = (NFS_PROGRAM, nfs::v4::VERSION);
const MOUNT3: (u32, u32) = (MOUNT_PROGRAM, nfs::mount::VERSION);
const TRANSFER_DEFAULT: usize = 1 << 20;
const TRANSFER_SAFE: usize = 8 << 10;
const TRANSFER_MIN: usize = 512;
const PAGE_MIN: usize = 32 << 10;
const PAGE_MAX: usize = 256 << 10;
/// Maximum bytes of a READ's reply or a WRITE's call without its data.
const HEADERS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_normalizes_slashes() {
        for (path, expected) in [("/", "/"), ("", "/"), ("//a//b/", "/a/b"), ("/a", "/a")] {
            assert_eq!(clean(path.as_bytes()), expected);
        }
    }

    #[test]
    fn transfer_size_respects_limits_of_server_transport_and_user() {
        assert_eq!(transfer_size(None, 1 << 20, 2 << 20), 1 << 20);
        assert_eq!(transfer_size(None, 65536, 2 << 20), 65536);
        assert_eq!(transfer_size(Some(4096), 65536, 2 << 20), 4096);
        assert_eq!(transfer_size(None, 1 << 20, 65_000), 65_000 - 1024);
        assert_eq!(transfer_size(None, 0, 2 << 20), 8192);
        assert_eq!(transfer_size(Some(4 << 20), u32::MAX, usize::MAX), 4 << 20);
    }
}
