//! The devices that clients know from layouts, and their removal (CB_NOTIFY_DEVICEID).
//!
//! Clients cache devices (RFC 8881 §12.2.10), and keep sessions and connections for them. A device is *retired* when no other layout will have
//! it: its data server was drained or lost, or the addresses or the version for clients have changed, so that the data server has another
//! device. The clients are told to forget it when no layout has it any more: §20.12.3 forbids it before.

use std::sync::Arc;

use entropy::HashMap;
use vfs::{
    Result,
    layout::{DataTransport, LayoutDeviceId, LayoutEvent, LayoutKind},
};

use super::Core;
use crate::{record::ServerId, services::Service};

/// The devices of the layouts that were granted.
pub type Devices = HashMap<LayoutDeviceId, Device>;

/// A device.
#[derive(Clone)]
pub struct Device {
    kind: LayoutKind,
    transport: DataTransport,
    /// The data server, or those of the stripes of a files layout.
    servers: Vec<ServerId>,
}

impl Core {
    /// Takes note of the devices of a new layout, each with its data servers, for clients that prefer this transport. Returns the devices.
    pub fn note_devices<'a>(
        &self,
        (kind, transport): (LayoutKind, DataTransport),
        used: impl IntoIterator<Item = (LayoutDeviceId, &'a [ServerId])>,
    ) -> Vec<LayoutDeviceId> {
        let mut devices = self.devices.lock();
        if devices.len() >= DEVICES_MAX {
            // Clients ask for devices by themselves if they fail.
            devices.clear();
        }
        let note = |(id, servers): (_, &[ServerId])| {
            devices.entry(id).or_insert_with(|| Device { kind, transport, servers: servers.to_vec() });
            id
        };
        used.into_iter().map(note).collect()
    }

    /// Returns the devices with a data server that clients know.
    pub fn devices_of(&self, server: ServerId) -> Vec<LayoutDeviceId> {
        let devices = self.devices.lock();
        devices.iter().filter(|(_, device)| device.servers.contains(&server)).map(|(id, _)| *id).collect()
    }

    /// Tells clients to forget the devices that no layout has or will have.
    pub async fn remove_devices(self: &Arc<Self>) {
        let known: Vec<_> = self.devices.lock().iter().map(|(id, device)| (*id, device.clone())).collect();
        if known.is_empty() {
            return;
        }
        let retired = self.run(move |core| {
            let mut retired = Vec::new();
            for (id, device) in known {
                if core.is_retired(id, &device)? {
                    retired.push((id, device.kind));
                }
            }
            Ok(retired)
        });
        for (device, kind) in retired.await.unwrap_or_default() {
            if !self.holders.has_device(&device) && self.devices.lock().remove(&device).is_some() {
                tracing::info!(?device, "no layout has this device any more");
                self.holders.notify(LayoutEvent::DeviceRemoved { device, kind });
            }
        }
    }

    /// Reports whether no other layout will have a device.
    ///
    /// # Errors
    /// Returns `Io`.
    fn is_retired(&self, id: LayoutDeviceId, device: &Device) -> Result<bool> {
        for server in &device.servers {
            let unused = match self.services.of(*server) {
                Service::Active => false,
                // Until its last copy was moved, clients use it.
                Service::Draining => !self.scan.is_running() && self.index.count_on(*server)? == 0,
                Service::Lost => true,
            };
            if unused {
                return Ok(true);
            }
        }
        let now = match device.kind {
            LayoutKind::Flexible => self.servers.device_id(device.servers[0], device.transport),
            LayoutKind::Files => self.servers.striped_device_id(&device.servers, device.transport),
        };
        Ok(now != Some(id))
    }
}

/// The number of devices after which all are forgotten. A files layout has one for each list of data servers.
const DEVICES_MAX: usize = 4096;
