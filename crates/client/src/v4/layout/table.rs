//! [`Layouts`]: what a mount knows of layouts besides those of its files: the data servers, the file systems that have layouts,
//! and the counters of both ways of data.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use entropy::HashMap;
use futures_util::future::join_all;
use nfs::v4::{Deviceid4, Layouttype4};
use parking_lot::Mutex;
use rpc::BoxFuture;

use super::{
    device::{DataDialer, DataServerId, Device, DevicesInfo},
    held::OfServer,
};
use crate::model::{Handle, Verifier};

/// The data servers of a metadata server. It is not active if the server has no layouts, or the user does not want them.
#[derive(Default)]
pub(crate) struct Layouts {
    dialer: OnceLock<Arc<dyn DataDialer>>,
    devices: Mutex<HashMap<Deviceid4, Devices>>,
    /// Serializes requests for devices, so that tasks that begin at the same time ask once.
    pub asking: tokio::sync::Mutex<()>,
    /// The file systems by number: the type of their layouts, if they have layouts that this client can use.
    file_systems: Mutex<HashMap<u64, Option<Layouttype4>>>,
    /// Numbers that are combined with write verifiers of the metadata server, by the hash of a file: see [`Layouts::of_server`].
    masks: Mutex<HashMap<u8, u64>>,
    data_servers: Counter,
    server: Counter,
}

/// The data servers of a device.
#[derive(Clone, Debug)]
pub(crate) struct Devices {
    /// For each stripe of a files layout, the index of its data server.
    pub stripes: Arc<[u32]>,
    pub servers: Arc<[Arc<Device>]>,
}

/// The reads and writes of a mount by the way of their data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataWays {
    /// Directly between this client and data servers, by layouts of pNFS. A READ or WRITE that needs several data servers
    /// counts once.
    pub data_servers: DataCount,
    /// Through the server of the mount. Small files that are read by one request with their OPEN are not counted.
    pub server: DataCount,
}

/// A number of reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataCount {
    /// The number of READs.
    pub reads: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
    /// The number of WRITEs.
    pub writes: u64,
    /// The number of bytes written, without the copies on other mirrors.
    pub write_bytes: u64,
}

#[derive(Default)]
struct Counter {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
}

impl Counter {
    fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    fn wrote(&self, bytes: usize) {
        self.writes.fetch_add(1, Relaxed);
        self.write_bytes.fetch_add(bytes as u64, Relaxed);
    }

    fn count(&self) -> DataCount {
        let [reads, read_bytes, writes, write_bytes] =
            [&self.reads, &self.read_bytes, &self.writes, &self.write_bytes].map(|counter| counter.load(Relaxed));
        DataCount { reads, read_bytes, writes, write_bytes }
    }
}

impl Layouts {
    /// Uses layouts from now on.
    pub fn activate(&self, dialer: Arc<dyn DataDialer>) {
        assert!(self.dialer.set(dialer).is_ok(), "layouts must be activated only once");
    }

    /// Reports whether layouts are used.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.dialer.get().is_some()
    }

    /// Returns the dialer.
    ///
    /// # Panics
    /// If layouts are not used.
    pub fn dialer(&self) -> &dyn DataDialer {
        &**self.dialer.get().expect("layouts must be active")
    }

    /// Returns the data servers of a device, if it is known.
    pub fn devices(&self, id: &Deviceid4) -> Option<Devices> {
        self.devices.lock().get(id).cloned()
    }

    /// Returns a data server, if its device is known.
    pub fn device(&self, id: &DataServerId) -> Option<Arc<Device>> {
        self.devices.lock().get(&id.device)?.servers.get(id.index as usize).cloned()
    }

    /// Adds a device. Data servers that another device has, too, are shared: there is one connection to each. If there are too many
    /// devices, they are forgotten, and asked for again when they are used next.
    pub fn add_devices(&self, id: Deviceid4, info: DevicesInfo) -> Devices {
        let mut devices = self.devices.lock();
        if devices.len() >= DEVICES_MAX {
            devices.clear();
        }
        let mut servers: Vec<Arc<Device>> = Vec::new();
        for info in info.servers {
            let mut known = devices.values().flat_map(|devices| devices.servers.iter()).chain(&servers);
            let shared = known.find(|device| *device.info() == info).cloned();
            servers.push(shared.unwrap_or_else(|| Arc::new(Device::new(info))));
        }
        let added = Devices { stripes: info.stripes.into(), servers: servers.into() };
        devices.insert(id, added.clone());
        added
    }

    /// Removes a device. I/O in progress ends with the former connection.
    pub fn remove_device(&self, id: &Deviceid4) {
        self.devices.lock().remove(id);
    }

    /// Removes all devices, and ends the connections to them.
    pub fn disconnect(&self) -> BoxFuture<'_, ()> {
        let devices = std::mem::take(&mut *self.devices.lock());
        // Boxed, because a data server is disconnected as other servers are.
        Box::pin(async move {
            let servers = devices.values().flat_map(|devices| devices.servers.iter());
            join_all(servers.map(|device| device.disconnect())).await;
        })
    }

    /// Returns the type of the layouts of a file system, if that is known; `Some(None)` if this client can use none.
    pub fn layout_type(&self, file_system: u64) -> Option<Option<Layouttype4>> {
        self.file_systems.lock().get(&file_system).copied()
    }

    /// Takes note of the type of the layouts of a file system.
    pub fn file_system(&self, file_system: u64, layout_type: Option<Layouttype4>) {
        let mut file_systems = self.file_systems.lock();
        if file_systems.len() >= FILE_SYSTEMS_MAX {
            file_systems.clear();
        }
        file_systems.insert(file_system, layout_type);
    }

    /// Returns a write verifier of the metadata server, with the one for callers that follows from it.
    pub fn of_server(&self, file: &Handle, verifier: Verifier) -> OfServer {
        let mask = self.masks.lock().get(&hash(file)).copied().unwrap_or(0);
        OfServer { verifier, shown: (u64::from_be_bytes(verifier) ^ mask).to_be_bytes() }
    }

    /// Changes the verifiers for callers that follow from those of the metadata server, for one file and some others.
    pub fn change_shown(&self, file: &Handle) {
        self.masks.lock().insert(hash(file), entropy::random());
    }

    /// Counts a READ.
    pub fn count_read(&self, directly: bool, bytes: usize) {
        if directly { &self.data_servers } else { &self.server }.read(bytes);
    }

    /// Counts a WRITE.
    pub fn count_write(&self, directly: bool, bytes: usize) {
        if directly { &self.data_servers } else { &self.server }.wrote(bytes);
    }

    /// Returns the counters.
    pub fn ways(&self) -> DataWays {
        DataWays { data_servers: self.data_servers.count(), server: self.server.count() }
    }
}

impl fmt::Debug for Layouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layouts").field("active", &self.is_active()).field("ways", &self.ways()).finish_non_exhaustive()
    }
}

fn hash(file: &Handle) -> u8 {
    file.0.iter().fold(0, |hash: u8, byte| hash.wrapping_mul(31).wrapping_add(*byte))
}

/// Maximum number of devices that are known.
const DEVICES_MAX: usize = 1024;
/// Maximum number of file systems that are remembered.
const FILE_SYSTEMS_MAX: usize = 1024;
