//! [`Device`]: a data server, its addresses, and the connection to it.
//!
//! Read RFC 8435 §4.1 and RFC 5665 §5.2.3 first. The client uses NFSv3 at data servers. It tries the addresses in the order of the
//! metadata server, which puts those first that fit the client's transport, and skips transports that it does not have.
//! Errors: a device that cannot be used is not tried again for [`PAUSE`].

use std::{
    fmt,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use nfs::v4::{GetDeviceInfoOk, Layouttype4, Netaddr4, layout::flex::FfDeviceAddr4};
use parking_lot::Mutex;
use rpc::{BoxFuture, rpcbind};
use tokio::time::Instant;

use crate::{
    model::{Error, ErrorKind, Result},
    v3::V3,
};

/// Connects to data servers.
pub(crate) trait DataDialer: Send + Sync {
    /// Reports whether this client has the transport.
    fn has(&self, transport: &str) -> bool;

    /// Connects to NFSv3 at an address.
    fn dial<'a>(&'a self, transport: &'a str, address: SocketAddr) -> BoxFuture<'a, Result<V3>>;
}

/// A data server.
pub(crate) struct Device {
    info: DeviceInfo,
    connection: tokio::sync::Mutex<Option<V3>>,
    /// The index of the address of the last connection.
    connected: AtomicUsize,
    /// The time until which the device is not used, because it has failed.
    failed: Mutex<Option<Instant>>,
}

/// What the metadata server tells about a data server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    /// The transports and addresses, the preferred one first.
    addresses: Vec<(String, SocketAddr)>,
    /// The index of NFSv3 in the list of versions.
    pub version: usize,
    /// Maximum bytes of a READ.
    pub read_max: usize,
    /// Maximum bytes of a WRITE.
    pub write_max: usize,
}

impl DeviceInfo {
    /// Checks the result of GETDEVICEINFO.
    ///
    /// # Errors
    /// The reason why this client cannot use the data server.
    pub fn new(ok: &GetDeviceInfoOk, has: impl Fn(&str) -> bool) -> std::result::Result<Self, String> {
        let body: FfDeviceAddr4 =
            ok.device_addr.decode_as(Layouttype4::FLEX_FILES).map_err(|error| error.to_string())?;
        let is_usable = |version: &&(usize, _)| {
            let (_, version): &&(usize, nfs::v4::layout::flex::FfDeviceVersions4) = version;
            version.version == 3 && !version.tightly_coupled
        };
        let versions: Vec<_> = body.versions.iter().copied().enumerate().collect();
        let Some((at, version)) = versions.iter().find(is_usable) else {
            return Err("the data server does not have NFSv3".to_owned());
        };
        let addresses: Vec<_> = body.netaddrs.iter().filter_map(address).filter(|(name, _)| has(name)).collect();
        if addresses.is_empty() {
            return Err("the data server has no address that this client can use".to_owned());
        }
        let size = |max: u32| if max == 0 { SIZE_DEFAULT } else { max as usize }.min(nfs::v3::DATA_BOUND);
        Ok(Self { addresses, version: *at, read_max: size(version.rsize), write_max: size(version.wsize) })
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

    /// Returns the connection. Connects if there is none.
    ///
    /// # Errors
    /// No address answers, or the device has failed and is not to be used now.
    pub async fn connect(&self, dialer: &dyn DataDialer) -> Result<V3> {
        let mut connection = self.connection.lock().await;
        if !self.is_available() {
            let problem = "the data server has failed and is not tried again yet".to_owned();
            return Err(Error::new(ErrorKind::Resolve(problem), "connect"));
        }
        if let Some(v3) = &*connection {
            return Ok(v3.clone());
        }
        let mut last = None;
        for (at, (transport, address)) in self.info.addresses.iter().enumerate() {
            match dialer.dial(transport, *address).await {
                Ok(v3) => {
                    self.connected.store(at, Relaxed);
                    return Ok(connection.insert(v3).clone());
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

    /// Takes note that the device did not answer. The next connection can be to another address.
    pub fn fail(&self) {
        *self.failed.lock() = Some(Instant::now() + PAUSE);
        if let Ok(mut connection) = self.connection.try_lock() {
            *connection = None;
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("info", &self.info).finish_non_exhaustive()
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
/// The bytes of a READ or WRITE if the server sends no maximum.
const SIZE_DEFAULT: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use nfs::v4::{Bitmap4, LayoutBody4, layout::flex::FfDeviceVersions4};

    use super::*;

    fn info(addresses: &[(&str, &str)], versions: &[u32]) -> std::result::Result<DeviceInfo, String> {
        let netaddr = |(netid, addr): &(&str, &str)| Netaddr4 { netid: (*netid).into(), addr: (*addr).into() };
        let version = |version: &u32| FfDeviceVersions4 {
            version: *version,
            minorversion: 0,
            rsize: 1 << 20,
            wsize: 0,
            tightly_coupled: false,
        };
        let body = FfDeviceAddr4 {
            netaddrs: addresses.iter().map(netaddr).collect(),
            versions: versions.iter().map(version).collect(),
        };
        let device_addr = LayoutBody4::new(Layouttype4::FLEX_FILES, &body);
        DeviceInfo::new(&GetDeviceInfoOk { device_addr, notification: Bitmap4::new() }, |name| name != "shm")
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
        let info = info(&all, &[4, 3]).unwrap();
        let expected = [("rdma", "[::1]:20049"), ("tcp", "192.0.2.1:2049")];
        assert_eq!(info.addresses, expected.map(|(name, at)| (name.to_owned(), at.parse().unwrap())));
        assert_eq!((info.version, info.read_max, info.write_max), (1, 1 << 20, SIZE_DEFAULT));
    }

    #[test]
    fn address_of_a_report_is_that_of_the_connection() {
        let device = Device::new(info(&[("rdma6", "::1.78.81"), ("tcp", "192.0.2.1.8.1")], &[3]).unwrap());
        let address = |netid: &str, addr: &str| Netaddr4 { netid: netid.into(), addr: addr.into() };
        assert_eq!(device.address(), address("rdma6", "::1.78.81"));
        device.connected.store(1, Relaxed);
        assert_eq!(device.address(), address("tcp", "192.0.2.1.8.1"));
    }

    #[test]
    fn unusable_devices_are_refused_with_the_reason() {
        assert!(info(&[("tcp", "192.0.2.1.8.1")], &[4]).unwrap_err().contains("NFSv3"));
        assert!(info(&[("shm", "127.0.0.1.8.1")], &[3]).unwrap_err().contains("no address"));
    }
}
