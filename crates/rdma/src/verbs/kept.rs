//! [`Devices`]: adapters that stay open while there is no connection.
//!
//! What is registered with a device is not given up when the last connection has been idle for too long, and is there when the
//! next is made. A [`Device`] needs an identifier of the connection manager that is bound to it ([`Device::of`]). A
//! connection has one; the one here is bound to the connection's own address and never connects. A device that is broken, or
//! removed, is let go when the next connection is made.

use std::{fmt, io, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;

use super::{
    cm::{CmId, EventChannel},
    device::Device,
    queue::Queues,
};

/// The devices that connections have been made on, open until the last clone is dropped, with all that has been registered
/// with them for good.
#[derive(Clone, Default)]
pub struct Devices(Arc<Mutex<Vec<Kept>>>);

struct Kept {
    // In this order: the identifier keeps the device open.
    device: Arc<Device>,
    _id: CmId,
}

impl Devices {
    /// Keeps the device of a connection just made. Where that is not possible, it lasts as long as its connections.
    pub(super) fn keep(&self, queues: &Queues) {
        let mut kept = self.0.lock();
        kept.retain(|kept| !kept.device.faults.is_broken());
        if kept.iter().any(|kept| Arc::ptr_eq(&kept.device, &queues.device)) {
            return;
        }
        match another_id(&queues.id, &queues.device) {
            Ok(id) => kept.push(Kept { device: queues.device.clone(), _id: id }),
            Err(error) => tracing::debug!(%error, "what is registered lasts as long as there are connections"),
        }
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registered = |kept: &Kept| format!("{} slabs", kept.device.registered());
        f.debug_map().entries(self.0.lock().iter().map(|kept| (&kept.device.caps.name, registered(kept)))).finish()
    }
}

/// An identifier on the device of `connection`.
fn another_id(connection: &CmId, device: &Arc<Device>) -> io::Result<CmId> {
    let id = CmId::create(&EventChannel::create(connection.library())?)?;
    let local = connection.local().ok_or(io::ErrorKind::AddrNotAvailable)?;
    id.bind(SocketAddr::new(local.ip(), 0))?;
    if !Arc::ptr_eq(&id.device()?, device) {
        return Err(io::Error::other("its address leads to another device"));
    }
    Ok(id)
}
