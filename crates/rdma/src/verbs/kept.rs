//! [`Devices`]: adapters that stay open while there is no connection.
//!
//! Registrations with a device therefore remain when the last connection has closed after being idle, and the next
//! connection uses them. A [`Device`] requires an identifier of the connection manager that is bound to it
//! ([`Device::of`]). Every connection has one; the identifier of this module is bound to the connection's local address
//! and never connects. A device that has failed or was removed is dropped when the next connection is established.

use std::{fmt, io, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;

use super::{
    cm::{CmId, EventChannel},
    device::Device,
    queue::Queues,
};

/// The devices on which connections have been established, kept open until the last clone is dropped, together with
/// their permanent registrations.
#[derive(Clone, Default)]
pub struct Devices(Arc<Mutex<Vec<KeptDevice>>>);

struct KeptDevice {
    // Dropped in this order: the identifier keeps the device open.
    device: Arc<Device>,
    _id: CmId,
}

impl Devices {
    /// Keeps the device of a connection that was just established. If this is not possible, the device stays open only
    /// as long as its connections.
    pub(super) fn keep(&self, queues: &Queues) {
        let mut kept = self.0.lock();
        kept.retain(|kept| !kept.device.faults.has_failed());
        if kept.iter().any(|kept| Arc::ptr_eq(&kept.device, &queues.device)) {
            return;
        }
        match another_id(&queues.id, &queues.device) {
            Ok(id) => kept.push(KeptDevice { device: queues.device.clone(), _id: id }),
            Err(error) => {
                tracing::debug!(%error, "cannot keep the device open: its registrations end with its connections")
            }
        }
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registered = |kept: &KeptDevice| format!("{} slabs", kept.device.registered());
        f.debug_map().entries(self.0.lock().iter().map(|kept| (&kept.device.caps.name, registered(kept)))).finish()
    }
}

/// Creates an identifier on the device of `connection`.
fn another_id(connection: &CmId, device: &Arc<Device>) -> io::Result<CmId> {
    let id = CmId::create(&EventChannel::create(connection.library())?)?;
    let local = connection.local().ok_or(io::ErrorKind::AddrNotAvailable)?;
    id.bind(SocketAddr::new(local.ip(), 0))?;
    if !Arc::ptr_eq(&id.device()?, device) {
        return Err(io::Error::other("the local address belongs to another device"));
    }
    Ok(id)
}
