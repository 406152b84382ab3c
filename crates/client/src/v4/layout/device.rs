//! [`Device`]: a data server, its addresses, and the connection to it.
//!
//! Read RFC 8435 §4.1 and RFC 5665 §5.2.3 first. The client uses the first version that it has in the list of the metadata server:
//! NFSv3, 4.1 or 4.2. It tries the addresses in the order of the metadata server, which puts those first that fit the client's
//! transport, and skips transports that it does not have.
//! Errors: a device that cannot be used is not tried again for [`PAUSE`].

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use entropy::HashMap;
use nfs::v4::{
    Deviceid4, GetDeviceInfoOk, Layouttype4, Netaddr4, Stateid4,
    layout::{
        MultipathList4,
        files::FileLayoutDsAddr4,
        flex::{FfDeviceAddr4, FfDeviceVersions4},
    },
};
use parking_lot::Mutex;
use rpc::{BoxFuture, rpcbind};
use tokio::time::Instant;

use super::{data_server::DataServer, segment::STRIPES_MAX};
use crate::model::{Caller, Error, ErrorKind, Result};

/// Connects to data servers.
pub(crate) trait DataDialer: Send + Sync {
    /// Reports whether this client has the transport.
    fn has(&self, transport: &str) -> bool;

    /// Connects to an address by a version of NFS.
    fn dial<'a>(
        &'a self,
        transport: &'a str,
        address: SocketAddr,
        version: DataVersion,
    ) -> BoxFuture<'a, Result<Arc<dyn DataServer>>>;
}

/// A version of NFS that this client has at data servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataVersion {
    V3,
    /// NFSv4 with this minor version: 1 or 2.
    V4(u32),
}

impl DataVersion {
    /// Returns a version of a device. `None` means that this client does not have it. It does not use the stateids and the users of
    /// tight coupling.
    fn new(version: &FfDeviceVersions4) -> Option<Self> {
        match (version.version, version.minorversion) {
            _ if version.tightly_coupled => None,
            (3, _) => Some(Self::V3),
            (4, minor @ 1..=2) => Some(Self::V4(minor)),
            _ => None,
        }
    }
}

/// A data server of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DataServerId {
    pub device: Deviceid4,
    /// The index in the list of the device; 0 for flexible files.
    pub index: u32,
}

/// The data servers of a device, without connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DevicesInfo {
    /// For each stripe of a files layout, the index of its data server.
    pub stripes: Vec<u32>,
    pub servers: Vec<DeviceInfo>,
}

/// A data server.
pub(crate) struct Device {
    info: DeviceInfo,
    connection: tokio::sync::Mutex<Option<Connection>>,
    /// The index of the address of the last connection.
    connected: AtomicUsize,
    /// The time until which the device is not used, because it has failed.
    failed: Mutex<Option<Instant>>,
}

/// A connection to a data server.
struct Connection {
    server: Arc<dyn DataServer>,
    /// The same connection for the users and stateids of recent I/O, at most [`USERS_MAX`].
    users: HashMap<(Option<Caller>, Stateid4), Arc<dyn DataServer>>,
}

/// The addresses and properties of a data server, from GETDEVICEINFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    /// The transports and addresses, the preferred one first.
    addresses: Vec<(String, SocketAddr)>,
    /// The version, and its index in the list of versions.
    pub version: (DataVersion, usize),
    /// Maximum bytes of a READ.
    pub read_max: usize,
    /// Maximum bytes of a WRITE.
    pub write_max: usize,
}

impl DevicesInfo {
    /// Checks the result of GETDEVICEINFO. Data servers of a files layout are used by this minor version of NFSv4.
    ///
    /// # Errors
    /// The reason why this client cannot use a data server.
    pub fn new(
        ok: &GetDeviceInfoOk,
        layout_type: Layouttype4,
        minor: u32,
        has: impl Fn(&str) -> bool,
    ) -> std::result::Result<Self, String> {
        if layout_type == Layouttype4::FLEX_FILES {
            return Ok(Self { stripes: vec![0], servers: vec![DeviceInfo::flexible(ok, has)?] });
        }
        let body: FileLayoutDsAddr4 = ok.device_addr.decode_as(layout_type).map_err(|error| error.to_string())?;
        let (stripes, count) = (body.stripe_indices, body.multipath_ds_list.len());
        if stripes.is_empty() || stripes.len() > STRIPES_MAX || count > STRIPES_MAX {
            let stripes = stripes.len();
            return Err(format!("{stripes} stripes on {count} data servers; from 1 to {STRIPES_MAX} can be used"));
        }
        if let Some(index) = stripes.iter().find(|index| **index as usize >= count) {
            return Err(format!("a stripe is on data server {index} of {count}"));
        }
        let server = |addresses: &MultipathList4| {
            let addresses = addresses_of(addresses, &has)?;
            let max = nfs::v3::DATA_BOUND;
            Ok(DeviceInfo { addresses, version: (DataVersion::V4(minor), 0), read_max: max, write_max: max })
        };
        let servers = body.multipath_ds_list.iter().map(server).collect::<std::result::Result<_, String>>()?;
        Ok(Self { stripes, servers })
    }
}

impl DeviceInfo {
    /// Checks the result of GETDEVICEINFO for flexible files.
    ///
    /// # Errors
    /// The reason why this client cannot use the data server.
    fn flexible(ok: &GetDeviceInfoOk, has: impl Fn(&str) -> bool) -> std::result::Result<Self, String> {
        let body: FfDeviceAddr4 =
            ok.device_addr.decode_as(Layouttype4::FLEX_FILES).map_err(|error| error.to_string())?;
        let usable = |(at, version)| Some((DataVersion::new(version)?, at, version));
        let Some((known, at, version)) = body.versions.iter().enumerate().find_map(usable) else {
            return Err("the data server does not have NFSv3, 4.1 or 4.2 without tight coupling".to_owned());
        };
        let addresses = addresses_of(&body.netaddrs, has)?;
        let size = |max: u32| if max == 0 { SIZE_DEFAULT } else { max as usize }.min(nfs::v3::DATA_BOUND);
        Ok(Self { addresses, version: (known, at), read_max: size(version.rsize), write_max: size(version.wsize) })
    }
}

impl Device {
    /// Makes the data server, without a connection.
    pub fn new(info: DeviceInfo) -> Self {
        Self { info, connection: Default::default(), connected: AtomicUsize::new(0), failed: Mutex::default() }
    }

    /// Returns the address of the last connection.
    pub fn address(&self) -> Netaddr4 {
        let (transport, address) = &self.info.addresses[self.connected.load(Relaxed)];
        let netid = match transport.as_str() {
            "shm" => transport.clone(),
            _ => format!("{transport}{}", if address.is_ipv6() { "6" } else { "" }),
        };
        let bytes = |text: String| bytes::Bytes::from(text).into();
        Netaddr4 { netid: bytes(netid), addr: bytes(rpcbind::to_universal(*address)) }
    }

    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Reports whether the device is to be used now.
    pub fn is_available(&self) -> bool {
        self.failed.lock().is_none_or(|until| Instant::now() >= until)
    }

    /// Returns the connection for a user, or for that of the mount. Connects if there is none. By NFSv4, READ and WRITE have this stateid.
    ///
    /// # Errors
    /// No address answers, or the device has failed and is not to be used now.
    pub async fn connect(
        &self,
        dialer: &dyn DataDialer,
        caller: Option<&Caller>,
        stateid: Stateid4,
    ) -> Result<Arc<dyn DataServer>> {
        let mut connection = self.connection.lock().await;
        if !self.is_available() {
            let problem = "the data server has failed and is not tried again yet".to_owned();
            return Err(Error::new(ErrorKind::Resolve(problem), "connect"));
        }
        let connection = match &mut *connection {
            Some(connection) => connection,
            none => none.insert(Connection { server: self.dial(dialer).await?, users: HashMap::default() }),
        };
        Ok(connection.with_access(caller, stateid))
    }

    /// Connects to the first address that answers.
    async fn dial(&self, dialer: &dyn DataDialer) -> Result<Arc<dyn DataServer>> {
        let mut last = None;
        for (at, (transport, address)) in self.info.addresses.iter().enumerate() {
            match dialer.dial(transport, *address, self.info.version.0).await {
                Ok(server) => {
                    self.connected.store(at, Relaxed);
                    return Ok(server);
                }
                Err(error) => {
                    tracing::debug!(%error, %transport, %address, "connecting to a data server failed");
                    last = Some(error);
                }
            }
        }
        self.fail();
        Err(last.expect("a device must have an address"))
    }

    /// Ends the connection, unless the device has failed.
    pub async fn disconnect(&self) {
        let connection = self.connection.lock().await.take();
        if let Some(Connection { server, .. }) = connection.filter(|_| self.is_available()) {
            server.disconnect().await;
        }
    }

    /// Takes note that the device did not answer. The next connection can be to another address.
    pub fn fail(&self) {
        *self.failed.lock() = Some(Instant::now() + PAUSE);
        if let Ok(mut connection) = self.connection.try_lock() {
            *connection = None;
        }
    }
}

impl Connection {
    fn with_access(&mut self, caller: Option<&Caller>, stateid: Stateid4) -> Arc<dyn DataServer> {
        let user = (caller.cloned(), stateid);
        if let Some(server) = self.users.get(&user) {
            return server.clone();
        }
        if self.users.len() >= USERS_MAX {
            self.users.clear();
        }
        let server = self.server.with_access(caller, stateid);
        self.users.insert(user, server.clone());
        server
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Returns the transports and addresses of a data server that this client can use.
///
/// # Errors
/// There is none.
fn addresses_of(
    all: &MultipathList4,
    has: impl Fn(&str) -> bool,
) -> std::result::Result<Vec<(String, SocketAddr)>, String> {
    let addresses: Vec<_> = all.iter().filter_map(address).filter(|(name, _)| has(name)).collect();
    match addresses.is_empty() {
        true => Err("the data server has no address that this client can use".to_owned()),
        false => Ok(addresses),
    }
}

/// Returns the transport and the address of a universal address, if this client knows its netid.
fn address(from: &Netaddr4) -> Option<(String, SocketAddr)> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    let (netid, universal) = (text(&from.netid.0)?, text(&from.addr.0)?);
    let address = rpcbind::from_universal(&universal)?;
    let transport = match netid.as_str() {
        "tcp" | "tcp6" => "tcp",
        "rdma" | "rdma6" => "rdma",
        // A netid of this project: shared memory on one host.
        "shm" => "shm",
        _ => return None,
    };
    Some((transport.to_owned(), address))
}

/// The time for which a device that has failed is not used.
const PAUSE: Duration = Duration::from_secs(15);
/// The maximum number of users and stateids for which a connection is kept.
const USERS_MAX: usize = 64;
/// The bytes of a READ or WRITE if the server sends no maximum.
const SIZE_DEFAULT: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use buf::{Region, Rope};
    use nfs::v4::{Bitmap4, LayoutBody4};
    use rpc::AuthSys;

    use super::*;
    use crate::model::{Handle, ReadInfo, StableHow, Verifier, Written};

    fn info(addresses: &[(&str, &str)], versions: &[(u32, u32, bool)]) -> std::result::Result<DeviceInfo, String> {
        let netaddr = |(netid, addr): &(&str, &str)| Netaddr4 { netid: (*netid).into(), addr: (*addr).into() };
        let version = |&(version, minorversion, tightly_coupled): &_| FfDeviceVersions4 {
            version,
            minorversion,
            rsize: 1 << 20,
            wsize: 0,
            tightly_coupled,
        };
        let body = FfDeviceAddr4 {
            netaddrs: addresses.iter().map(netaddr).collect(),
            versions: versions.iter().map(version).collect(),
        };
        let device_addr = LayoutBody4::new(Layouttype4::FLEX_FILES, &body);
        DeviceInfo::flexible(&GetDeviceInfoOk { device_addr, notification: Bitmap4::new() }, |name| name != "shm")
    }

    #[test]
    fn devices_of_files_layouts_have_a_data_server_for_each_stripe() {
        let info = |stripes: &[u32], servers: &[&[(&str, &str)]]| {
            let netaddr = |(netid, addr): &(&str, &str)| Netaddr4 { netid: (*netid).into(), addr: (*addr).into() };
            let multipath_ds_list = servers.iter().map(|list| list.iter().map(netaddr).collect()).collect();
            let body = FileLayoutDsAddr4 { stripe_indices: stripes.to_vec(), multipath_ds_list };
            let device_addr = LayoutBody4::new(Layouttype4::NFSV4_1_FILES, &body);
            let ok = GetDeviceInfoOk { device_addr, notification: Bitmap4::new() };
            DevicesInfo::new(&ok, Layouttype4::NFSV4_1_FILES, 2, |name| name != "shm")
        };
        let (tcp, rdma) = (("tcp", "192.0.2.1.8.1"), ("rdma", "192.0.2.2.8.1"));
        let found = info(&[1, 0, 1], &[&[tcp], &[rdma, tcp]]).unwrap();
        assert_eq!(found.stripes, [1, 0, 1]);
        let counts: Vec<_> = found.servers.iter().map(|server| (server.addresses.len(), server.version)).collect();
        assert_eq!(counts, [(1, (DataVersion::V4(2), 0)), (2, (DataVersion::V4(2), 0))]);
        assert!(info(&[], &[&[tcp]]).unwrap_err().contains("0 stripes"));
        assert!(info(&[0, 1], &[&[tcp]]).unwrap_err().contains("data server 1 of 1"));
        assert!(info(&[0; STRIPES_MAX + 1], &[&[tcp]]).unwrap_err().contains("4097 stripes"));
        assert!(info(&[0], &[&[tcp], &[("shm", "127.0.0.1.8.1")]]).unwrap_err().contains("no address"));
    }

    #[test]
    fn addresses_keep_their_order_and_unknown_ones_are_skipped() {
        let all = [
            ("rdma6", "::1.78.81"),
            ("udp", "192.0.2.1.8.1"),
            ("shm", "127.0.0.1.8.1"),
            ("tcp", "no address"),
            ("tcp", "192.0.2.1.8.1"),
        ];
        let info = info(&all, &[V4_0, V3]).unwrap();
        let expected = [("rdma", "[::1]:20049"), ("tcp", "192.0.2.1:2049")];
        assert_eq!(info.addresses, expected.map(|(name, at)| (name.to_owned(), at.parse().unwrap())));
        assert_eq!((info.version, info.read_max, info.write_max), ((DataVersion::V3, 1), 1 << 20, SIZE_DEFAULT));
    }

    const V3: (u32, u32, bool) = (3, 0, false);
    const V4_0: (u32, u32, bool) = (4, 0, false);

    #[test]
    fn first_version_that_the_client_has_is_used() {
        let version = |versions: &[_]| info(&[("tcp", "192.0.2.1.8.1")], versions).map(|info| info.version);
        assert_eq!(version(&[(4, 1, true), (4, 1, false), V3]), Ok((DataVersion::V4(1), 1)));
        assert_eq!(version(&[V3, (4, 2, false)]), Ok((DataVersion::V3, 0)));
        assert_eq!(version(&[(4, 3, false), (4, 2, false)]), Ok((DataVersion::V4(2), 1)));
        assert!(version(&[(4, 2, true)]).unwrap_err().contains("tight coupling"));
    }

    #[test]
    fn address_of_a_report_is_that_of_the_connection() {
        let device = Device::new(info(&[("rdma6", "::1.78.81"), ("tcp", "192.0.2.1.8.1")], &[V3]).unwrap());
        let address = |netid: &str, addr: &str| Netaddr4 { netid: netid.into(), addr: addr.into() };
        assert_eq!(device.address(), address("rdma6", "::1.78.81"));
        device.connected.store(1, Relaxed);
        assert_eq!(device.address(), address("tcp", "192.0.2.1.8.1"));
    }

    #[test]
    fn unusable_devices_are_refused_with_the_reason() {
        assert!(info(&[("tcp", "192.0.2.1.8.1")], &[V4_0]).unwrap_err().contains("NFSv3"));
        assert!(info(&[("shm", "127.0.0.1.8.1")], &[V3]).unwrap_err().contains("no address"));
    }

    /// A data server that counts the users of its connections.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl DataDialer for Arc<Counting> {
        fn has(&self, _: &str) -> bool {
            true
        }

        fn dial<'a>(&'a self, _: &'a str, _: SocketAddr, _: DataVersion) -> BoxFuture<'a, Result<Arc<dyn DataServer>>> {
            Box::pin(async { Ok(self.clone() as Arc<dyn DataServer>) })
        }
    }

    impl DataServer for Counting {
        fn with_access(&self, _: Option<&Caller>, _: Stateid4) -> Arc<dyn DataServer> {
            self.0.fetch_add(1, Relaxed);
            Arc::new(Self::default())
        }

        fn transfer_max(&self) -> (usize, usize) {
            unreachable!()
        }

        fn read_into<'a>(&'a self, _: &'a Handle, _: u64, _: Region) -> BoxFuture<'a, (Result<ReadInfo>, Region)> {
            unreachable!()
        }

        fn write<'a>(&'a self, _: &'a Handle, _: u64, _: Rope, _: StableHow) -> BoxFuture<'a, Result<Written>> {
            unreachable!()
        }

        fn commit<'a>(&'a self, _: &'a Handle) -> BoxFuture<'a, Result<Verifier>> {
            unreachable!()
        }

        fn disconnect(&self) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_for_a_user_is_kept_as_long_as_the_connection() {
        let device = Device::new(info(&[("tcp", "192.0.2.1.8.1")], &[V3]).unwrap());
        let server = Arc::new(Counting::default());
        let users: Vec<_> = (0..=USERS_MAX).map(|_| Caller::new(AuthSys::of_process())).collect();
        let open = Stateid4 { seqid: 0, other: [1; 12] };
        let connect =
            async |user: Option<&Caller>, stateid| device.connect(&server, user, stateid).await.map(drop).unwrap();
        let count = || server.0.load(Relaxed);
        for _ in 0..2 {
            connect(Some(&users[0]), Stateid4::ANONYMOUS).await;
            connect(Some(&users[0]), open).await;
            connect(None, open).await;
        }
        assert_eq!(count(), 3);
        for user in &users[1..] {
            connect(Some(user), open).await;
        }
        assert_eq!(count(), 3 + USERS_MAX);
        connect(Some(&users[0]), open).await;
        assert_eq!(count(), 4 + USERS_MAX, "the connections of earlier users must be dropped");
        device.fail();
        tokio::time::advance(PAUSE).await;
        connect(Some(&users[0]), open).await;
        assert_eq!(count(), 5 + USERS_MAX, "another connection has no users yet");
    }
}
