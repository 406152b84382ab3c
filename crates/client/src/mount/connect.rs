//! From a URL to a mount: which addresses, ports and transports, and which part of the path is the export.
//!
//! - **Ports.** A port in the URL is that of NFS. Without one it is 20049 for `rdma` (RFC 8267 §4.4); for `tcp` and `udp` what
//!   rpcbind says; else 2049.
//! - **MOUNT** is where `mountport` says. Otherwise it is tried on the connection of NFS, where Slipway's server answers it,
//!   and then where rpcbind says; the other way round if rpcbind has been asked already. So a server that has no MOUNT on RDMA
//!   is asked by TCP.
//! - **The export** is the longest part of the path that the server mounts; the rest is walked.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use entropy::Sequence;
use nfs::{MOUNT_PROGRAM, NFS_PORT, NFS_PROGRAM, NFS_RDMA_PORT, mount::MountOk, v3::DATA_BOUND};
use rpc::{
    AcceptStat, AuthStat, BoxFuture, ClientError, RawOptions, RejectStat, Switch, TransportKind,
    rpcbind::{self, Netid},
};
use tokio::time::timeout;

use super::{
    Inner, Mount, MountClient, Protocol,
    mountd::{self, Mountd, MountdAddress},
    referral::{Referred, url_of},
};
use crate::{
    call::{Link, Program},
    model::{Error, ErrorKind, MountOptions, NfsUrl, Result, Status, UrlError, Version},
    v3::{self, V3},
    v4::{
        V4,
        connect::{Callbacks, is_another_version},
        location::Location,
        migration::{Dialed, Dialer, MigrationIdentity},
    },
};

/// A server, as a URL names it.
#[derive(Clone)]
pub(crate) struct Site {
    server: Arc<str>,
    url: NfsUrl,
    switch: Switch,
    /// Referrals that have led here.
    hops: u32,
    /// The client's identity at the server from which a file system has moved there.
    identity: Option<MigrationIdentity>,
}

/// Something to be done at an address of a server.
type Attempt<T> = for<'a> fn(&'a Site, IpAddr) -> BoxFuture<'a, Result<T>>;

/// Something to be asked of what may be a MOUNT service.
type Probe<T> = for<'a> fn(&'a Site, MountClient) -> BoxFuture<'a, Result<T>>;

impl Mount {
    /// Mounts what `url` names: connects by the transport that it asks for, finds MOUNT, and mounts the URL's path or, where
    /// the server refuses that, the longest part of it that it will mount.
    ///
    /// # Errors
    /// The host or transport is not known, no server answers, or it does not export the path to this client.
    pub async fn connect(url: &NfsUrl, switch: &Switch) -> Result<Self> {
        mount(url, switch, 0, None).await
    }
}

impl MountClient {
    /// Finds the MOUNT service of the URL's server and connects to it.
    ///
    /// # Errors
    /// The host is not known, or no MOUNT service answers there.
    pub async fn connect(url: &NfsUrl, switch: &Switch) -> Result<Self> {
        Site::new(url, switch).each_address(|site, ip| Box::pin(site.mountd_at(ip))).await
    }
}

/// Mounts what a URL names, after this number of referrals; as a client that another server knows, if it has an identity there.
async fn mount(url: &NfsUrl, switch: &Switch, hops: u32, identity: Option<MigrationIdentity>) -> Result<Mount> {
    Site { hops, identity, ..Site::new(url, switch) }.each_address(|site, ip| Box::pin(site.mount_at(ip))).await
}

/// Mounts the places to which file systems move, with the options of the URL of their former server.
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
                let problem = "its root is not there, or not by version 4";
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

/// What is known of ports before anything is connected.
struct Ports {
    nfs: u16,
    /// Of MOUNT, by rpcbind; `None` if it was not asked or does not know.
    mount: Option<u16>,
    /// rpcbind has been asked.
    asked: bool,
}

impl Site {
    fn new(url: &NfsUrl, switch: &Switch) -> Self {
        Self { server: url.authority().into(), url: url.clone(), switch: switch.clone(), hops: 0, identity: None }
    }

    fn options(&self) -> &MountOptions {
        &self.url.options
    }

    fn referred(&self) -> Referred {
        let (switch, hops) = (self.switch.clone(), self.hops);
        let dial = move |url: NfsUrl| -> BoxFuture<'static, Result<Mount>> {
            let switch = switch.clone();
            Box::pin(async move { mount(&url, &switch, hops + 1, None).await })
        };
        Referred::new(Box::new(dial), hops)
    }

    /// Tries the addresses of the host in turn while there is no connection to be had.
    async fn each_address<T>(&self, attempt: Attempt<T>) -> Result<T> {
        let mut last = None;
        for ip in self.resolve().await? {
            match attempt(self, ip).await {
                Err(error) if matches!(error.kind(), ErrorKind::Rpc(_) | ErrorKind::Timeout { .. }) => {
                    last = Some(error)
                }
                result => return result.map_err(|error| error.on(&self.server)),
            }
        }
        Err(last.expect("a host has addresses").on(&self.server))
    }

    async fn resolve(&self) -> Result<Vec<IpAddr>> {
        let failed = |problem: String| Error::new(ErrorKind::Resolve(problem), "connect").on(&self.server);
        let found = timeout(self.options().deadline, tokio::net::lookup_host((self.url.host.as_str(), 0)));
        let found = found.await.map_err(|_| failed("the name service does not answer".to_owned()))?;
        let mut addresses = Vec::new();
        for address in found.map_err(|error| failed(error.to_string()))? {
            if !addresses.contains(&address.ip()) {
                addresses.push(address.ip());
            }
        }
        if addresses.is_empty() { Err(failed("it has no address".to_owned())) } else { Ok(addresses) }
    }

    async fn mount_at(&self, ip: IpAddr) -> Result<Mount> {
        let version = self.options().version;
        if version == Version::V3 {
            return self.mount3_at(ip).await;
        }
        match self.mount4_at(ip).await {
            Err(error) if version == Version::Auto && is_no_v4(&error) => {
                tracing::debug!(%error, "the server has no version 4");
                self.mount3_at(ip).await
            }
            result => result,
        }
    }

    /// By version 4: one port, and no other protocol.
    async fn mount4_at(&self, ip: IpAddr) -> Result<Mount> {
        let callbacks = Callbacks::new();
        let options = self.options();
        let known = self.identity.as_ref().map(|identity| identity.owner.clone());
        let mut ends = self.ends(ip).await?.into_iter();
        let first = ends.next().expect("there is the host of the URL");
        let program = self.program4(&first, &callbacks).await?;
        let (v4, exchanged) = V4::connect(program, options.version.minors(), &callbacks, known).await?;
        for _ in 1..options.nconnect {
            v4.add_connection(self.program4(&first, &callbacks).await?, exchanged.as_ref(), false).await?;
        }
        for end in ends {
            for turn in 0..options.nconnect {
                let program = self.program4(&end, &callbacks).await?;
                v4.add_connection(program, exchanged.as_ref(), turn == 0).await?;
            }
        }
        let moves = self.identity.as_ref().map_or(0, |identity| identity.moves);
        let dialer = SiteDialer { url: self.url.clone(), switch: self.switch.clone(), hops: self.hops };
        v4.set_dialer(Arc::new(dialer), moves);
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

    /// Where version 4 is reached: by each transport at the URL's host, and at further addresses.
    async fn ends(&self, ip: IpAddr) -> Result<Vec<(Arc<dyn TransportKind>, SocketAddr)>> {
        let mut ends = Vec::new();
        let protos = || self.options().proto.split('+');
        for (at, proto) in protos().enumerate() {
            // A port of the URL is that of the first transport: no two share one.
            let port = self.url.port.filter(|_| at == 0).unwrap_or(default_port(proto));
            ends.push((self.kind(proto, &self.options().transport)?, SocketAddr::new(ip, port)));
        }
        for address in &self.options().addresses {
            let (proto, host) = address.split_once('@').unwrap_or((protos().next().unwrap_or("tcp"), address));
            let kind = self.kind(proto, &self.options().transport)?;
            let has_port = host.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
            let host = if has_port { host.to_owned() } else { format!("{host}:{}", default_port(proto)) };
            let failed = |problem: String| Error::new(ErrorKind::Resolve(format!("{address}: {problem}")), "connect");
            let found = timeout(self.options().deadline, tokio::net::lookup_host(host)).await;
            let found = found.map_err(|_| failed("the name service does not answer".to_owned()))?;
            let found = found.map_err(|error| failed(error.to_string()))?.next();
            ends.push((kind, found.ok_or_else(|| failed("it has no address".to_owned()))?));
        }
        Ok(ends)
    }

    async fn program4(&self, end: &(Arc<dyn TransportKind>, SocketAddr), callbacks: &Callbacks) -> Result<Program> {
        let (kind, address) = end.clone();
        let link = Link::connect(kind, address, self.options(), Some(callbacks.server.clone())).await?;
        let (server, deadline) = (self.server.clone(), self.options().deadline);
        Program::new(link, NFS_PROGRAM, nfs::v4::VERSION, server, deadline).greeted().await
    }

    async fn mount3_at(&self, ip: IpAddr) -> Result<Mount> {
        let ports = self.ports(ip).await?;
        let link = self.nfs_link(ip, &ports).await?;
        let program =
            Program::new(link.clone(), NFS_PROGRAM, nfs::v3::VERSION, self.server.clone(), self.options().deadline);
        let program = program.greeted().await?;
        let export: Probe<_> = |site, client| Box::pin(site.longest_export(client));
        let (mountd, (mounted, ok)) = self.find_mountd(ip, &ports, Some(&link), export).await?;
        let path = clean(&self.url.path);
        let v3 = V3::new(program);
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

    async fn mountd_at(&self, ip: IpAddr) -> Result<MountClient> {
        let ports = self.ports(ip).await?;
        let nfs = self.nfs_link(ip, &ports).await;
        let null: Probe<()> = |_, client| Box::pin(async move { client.null().await });
        match self.find_mountd(ip, &ports, nfs.as_ref().ok(), null).await {
            Ok((mountd, ())) => mountd.client().await,
            Err(error) => Err(nfs.err().unwrap_or(error)),
        }
    }

    /// Mounts the URL's path or the longest part of it that the server will mount; returns that part.
    async fn longest_export(&self, client: MountClient) -> Result<(Bytes, MountOk)> {
        let path = clean(&self.url.path);
        let mut refused = None;
        let mut len = path.len();
        loop {
            let part = path.slice(..len.max(1));
            match client.mnt(&part).await {
                Ok(ok) if !takes_auth_sys(&ok.auth_flavors) => {
                    let denied = RejectStat::AuthError(AuthStat::TooWeak);
                    return Err(Error::new(ErrorKind::Rpc(ClientError::Denied(denied)), "MNT").at(&part));
                }
                Ok(ok) => return Ok((part, ok)),
                Err(error) if len > 1 && is_below_an_export(&error) => {
                    len = path[..len].iter().rposition(|&byte| byte == b'/').expect("a path starts with a slash");
                    refused.get_or_insert(error);
                }
                Err(error) => return Err(refused.unwrap_or(error)),
            }
        }
    }

    async fn ports(&self, ip: IpAddr) -> Result<Ports> {
        if let Some(nfs) = self.url.port {
            return Ok(Ports { nfs, mount: None, asked: false });
        }
        match self.options().proto.as_str() {
            "tcp" | "udp" => {}
            "rdma" => return Ok(Ports { nfs: NFS_RDMA_PORT, mount: None, asked: false }),
            // rpcbind knows nothing of it.
            _ => return Ok(Ports { nfs: NFS_PORT, mount: None, asked: false }),
        }
        let nfs = self.ask_rpcbind(ip, NFS_PROGRAM, nfs::v3::VERSION, &self.options().proto).await;
        let mount = match self.options().mount_port {
            None => self.ask_rpcbind(ip, MOUNT_PROGRAM, nfs::mount::VERSION, self.mount_proto()).await,
            given => given,
        };
        Ok(Ports { nfs: nfs.unwrap_or(NFS_PORT), mount, asked: true })
    }

    async fn nfs_link(&self, ip: IpAddr, ports: &Ports) -> Result<Link> {
        let kind = self.kind(&self.options().proto, &self.options().transport)?;
        Link::connect(kind, SocketAddr::new(ip, ports.nfs), self.options(), None).await
    }

    /// Runs `first` against each place where MOUNT can be, until one of them speaks MOUNT.
    async fn find_mountd<T>(
        &self,
        ip: IpAddr,
        ports: &Ports,
        nfs: Option<&Link>,
        first: Probe<T>,
    ) -> Result<(Mountd, T)> {
        let given = self.options().mount_port;
        if given.is_none()
            && !(ports.asked && ports.mount.is_some())
            && let Some(link) = nfs
        {
            let client = MountClient::new(mountd::program(link.clone(), self.server.clone(), self.options()));
            match first(self, client.clone()).await {
                Err(error) if elsewhere(&error) => tracing::debug!(%error, "MOUNT is not where NFS is"),
                result => return result.map(|value| (Mountd::Shared(client), value)),
            }
        }
        let found = match given.or(ports.mount) {
            None if !ports.asked => self.ask_rpcbind(ip, MOUNT_PROGRAM, nfs::mount::VERSION, self.mount_proto()).await,
            port => port,
        };
        let Some(port) = found else {
            let problem = format!(
                "no MOUNT service found: not on the connection of NFS, and rpcbind on {ip} names none; \
                 give its port as mountport=…"
            );
            return Err(Error::new(ErrorKind::Resolve(problem), "MOUNT"));
        };
        let kind = self.kind(self.mount_proto(), &RawOptions::new())?;
        let (address, options) = (SocketAddr::new(ip, port), self.options().clone());
        let mountd = Mountd::At(Box::new(MountdAddress { kind, address, options, server: self.server.clone() }));
        let value = first(self, mountd.client().await?).await?;
        Ok((mountd, value))
    }

    /// The transport of MOUNT: a server on RDMA has it on TCP.
    fn mount_proto(&self) -> &str {
        match (&self.options().mount_proto, self.options().proto.as_str()) {
            (Some(proto), _) => proto,
            (None, "udp") => "udp",
            (None, _) => "tcp",
        }
    }

    async fn ask_rpcbind(&self, ip: IpAddr, program: u32, version: u32, proto: &str) -> Option<u16> {
        let kind = self.switch.find("tcp")?;
        let address = SocketAddr::new(ip, rpcbind::PORT);
        let netid = Netid::new(proto, address);
        let lookup = rpcbind::lookup(kind, address, program, version, &netid);
        match timeout(self.options().deadline.min(RPCBIND_PATIENCE), lookup).await {
            Ok(Ok(found)) => Some(found.port()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "rpcbind does not help");
                None
            }
            Err(_) => {
                tracing::debug!(%address, "rpcbind does not answer");
                None
            }
        }
    }

    fn kind(&self, proto: &str, transport: &RawOptions) -> Result<Arc<dyn TransportKind>> {
        let wrong = |problem| UrlError { url: self.url.to_string(), problem };
        let Some(kind) = self.switch.find(proto) else {
            let names: Vec<_> = self.switch.names().collect();
            return Err(wrong(format!("no transport '{proto}'; possible: {}", names.join(", "))).into());
        };
        kind.with_options(transport).map_err(|error| {
            let ours = MountOptions::KEYS.join(", ");
            wrong(format!("{error}; options that are not the transport's: {ours}")).into()
        })
    }
}

/// RFC 8881 §2.9.3: version 4 is at its well-known port, without rpcbind.
fn default_port(proto: &str) -> u16 {
    if proto == "rdma" { NFS_RDMA_PORT } else { NFS_PORT }
}

fn next_number() -> u64 {
    static SERVERS: Sequence = Sequence::new();
    SERVERS.next()
}

/// Whether an error says that version 3 is worth trying: the server has no other, or nobody is at version 4's port.
fn is_no_v4(error: &Error) -> bool {
    is_another_version(error) || matches!(error.kind(), ErrorKind::Rpc(ClientError::Transport(_)))
}

/// RFC 1813 appendix I: the flavours that the export takes; some servers name none.
fn takes_auth_sys(flavors: &[u32]) -> bool {
    flavors.is_empty() || flavors.iter().any(|flavor| [AUTH_NONE, AUTH_SYS].contains(flavor))
}

/// Whether a refused path can still lie in an export: it may be a file, be yet to be made, or be hidden.
fn is_below_an_export(error: &Error) -> bool {
    use Status as S;
    let hides = matches!(error.status(), Some(S::NotFound | S::NotADirectory | S::AccessDenied | S::InvalidArgument));
    hides && error.operation() == "MNT"
}

/// Whether an error says that MOUNT is not served here.
fn elsewhere(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Rpc(ClientError::NotExecuted(AcceptStat::ProgUnavail | AcceptStat::ProgMismatch { .. }))
    )
}

/// The path with one slash before each name and none at the end; the root is one slash.
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
    // A server that says nothing gets what every server takes.
    let server_max = if server_max == 0 { TRANSFER_SAFE } else { server_max as usize };
    wanted.min(server_max).min(message_max.saturating_sub(HEADERS_MAX)).clamp(TRANSFER_MIN, DATA_BOUND)
}

fn page_size(preferred: u32, message_max: usize) -> u32 {
    let most = message_max.saturating_sub(HEADERS_MAX).min(PAGE_MAX);
    (preferred as usize).max(PAGE_MIN).min(most) as u32
}

/// A firewall that drops packets to rpcbind must not cost the whole deadline.
const RPCBIND_PATIENCE: Duration = Duration::from_secs(5);
// RFC 5531 §8.2.
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
const TRANSFER_DEFAULT: usize = 1 << 20;
const TRANSFER_SAFE: usize = 8 << 10;
const TRANSFER_MIN: usize = 512;
const PAGE_MIN: usize = 32 << 10;
const PAGE_MAX: usize = 256 << 10;
/// Bytes of a READ's reply or a WRITE's call that are not data.
const HEADERS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned() {
        for (path, expected) in [("/", "/"), ("", "/"), ("//a//b/", "/a/b"), ("/a", "/a")] {
            assert_eq!(clean(path.as_bytes()), expected);
        }
    }

    #[test]
    fn sizes_respect_the_server_the_transport_and_the_user() {
        assert_eq!(transfer_size(None, 1 << 20, 2 << 20), 1 << 20);
        assert_eq!(transfer_size(None, 65536, 2 << 20), 65536);
        assert_eq!(transfer_size(Some(4096), 65536, 2 << 20), 4096);
        assert_eq!(transfer_size(None, 1 << 20, 65_000), 65_000 - 1024);
        assert_eq!(transfer_size(None, 0, 2 << 20), 8192);
        assert_eq!(transfer_size(Some(4 << 20), u32::MAX, usize::MAX), 4 << 20);
    }
}
