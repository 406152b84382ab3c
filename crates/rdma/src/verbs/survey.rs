//! The list of the adapters of this machine, for display and to determine the capabilities that all of them share.

#![expect(unsafe_code, reason = "calls of C")]

use std::ptr::NonNull;

use super::{
    domain::DeviceCaps,
    ffi::*,
    library::{Library, Unavailable},
};

/// The description of one device.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// The name in the kernel, for example `mlx5_0` or `rxe0`.
    pub name: String,
    /// The device uses iWARP; otherwise it is InfiniBand or RoCE.
    pub iwarp: bool,
    /// Regions are exposed by memory windows, which peers can invalidate.
    pub windows: bool,
    /// The ports, starting with number 1.
    pub ports: Vec<PortReport>,
}

/// The description of one port.
#[derive(Clone, Debug)]
pub struct PortReport {
    /// The port can carry traffic.
    pub active: bool,
    /// The link layer is Ethernet.
    pub ethernet: bool,
}

/// Opens every device and queries its properties.
///
/// # Errors
/// Returns an error if the libraries are missing.
pub fn survey() -> Result<Vec<DeviceReport>, Unavailable> {
    let library = Library::load()?;
    let functions = &library.functions;
    let mut count = 0;
    // SAFETY: the result is checked; the list is freed below.
    let list = unsafe { (functions.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        return Ok(Vec::new());
    }
    let mut devices = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: within the list, whose devices are valid until it is freed.
        let context = unsafe { (functions.ibv_open_device)(*list.add(index)) };
        let Some(context) = NonNull::new(context) else { continue };
        // SAFETY: just opened, and closed after use.
        unsafe {
            devices.extend(report(library, context));
            (functions.ibv_close_device)(context.as_ptr());
        }
    }
    // SAFETY: obtained above, freed once.
    unsafe { (functions.ibv_free_device_list)(list) };
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(devices)
}

/// : Returns the description of an open device, unless it does not answer.
/// # Safety
/// `context` is an open context.
unsafe fn report(library: &'static Library, context: NonNull<ibv_context>) -> Option<DeviceReport> {
    // SAFETY: guaranteed by the caller.
    let caps = unsafe { DeviceCaps::query(library, context) }.ok()?;
    let ports = (1..=caps.ports).map(|port| {
        let mut attr = ibv_port_attr::default();
        // SAFETY: guaranteed by the caller; `attr` has room for more than this function fills in.
        let queried = unsafe { (library.functions.ibv_query_port)(context.as_ptr(), port, &mut attr) };
        PortReport {
            active: queried == 0 && attr.state == IBV_PORT_ACTIVE,
            ethernet: attr.link_layer == IBV_LINK_LAYER_ETHERNET,
        }
    });
    let ports = ports.collect();
    Some(DeviceReport { name: caps.name, iwarp: caps.iwarp, windows: caps.windows, ports })
}
