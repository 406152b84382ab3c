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
use nfs::v4::Deviceid4;
use parking_lot::Mutex;
use rpc::BoxFuture;

use super::device::{DataDialer, Device};

/// The data servers of a metadata server. It is not active if the server has no layouts, or the user does not want them.
#[derive(Default)]
pub(crate) struct Layouts {
    dialer: OnceLock<Arc<dyn DataDialer>>,
    devices: Mutex<HashMap<Deviceid4, Arc<Device>>>,
    /// Serializes requests for devices, so that tasks that begin at the same time ask once.
    pub asking: tokio::sync::Mutex<()>,
    /// The file systems by number: whether they have flexible files layouts.
    file_systems: Mutex<HashMap<u64, bool>>,
    data_servers: Counter,
    server: Counter,
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

    /// Returns a device, if it is known.
    pub fn device(&self, id: &Deviceid4) -> Option<Arc<Device>> {
        self.devices.lock().get(id).cloned()
    }

    /// Adds a device. If there are too many, those that are not in use are removed.
    pub fn add_device(&self, id: Deviceid4, device: Arc<Device>) {
        let mut devices = self.devices.lock();
        if devices.len() >= DEVICES_MAX {
            devices.retain(|_, device| Arc::strong_count(device) > 1);
        }
        devices.insert(id, device);
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
            join_all(devices.values().map(|device| device.disconnect())).await;
        })
    }

    /// Returns whether a file system has layouts, if that is known.
    pub fn has_layouts(&self, file_system: u64) -> Option<bool> {
        self.file_systems.lock().get(&file_system).copied()
    }

    /// Takes note of whether a file system has layouts.
    pub fn file_system(&self, file_system: u64, has_layouts: bool) {
        let mut file_systems = self.file_systems.lock();
        if file_systems.len() >= FILE_SYSTEMS_MAX {
            file_systems.clear();
        }
        file_systems.insert(file_system, has_layouts);
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

/// Maximum number of devices that are kept while they are not in use.
const DEVICES_MAX: usize = 1024;
/// Maximum number of file systems that are remembered.
const FILE_SYSTEMS_MAX: usize = 1024;
