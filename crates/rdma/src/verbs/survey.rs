//! What adapters there are, for a person to read and for a provider to know what all of them can do.

#![expect(unsafe_code, reason = "calls of C")]

use std::ptr::NonNull;

use super::{
    domain::DeviceCaps,
    ffi::*,
    library::{Library, Unavailable},
};

/// One device.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// Its name in the kernel: `mlx5_0`, `rxe0`.
    pub name: String,
    /// Whether it speaks iWARP; else it is InfiniBand or RoCE.
    pub iwarp: bool,
    /// Whether regions are exposed by memory windows, which peers may invalidate.
    pub windows: bool,
    /// Its ports, from number 1.
    pub ports: Vec<PortReport>,
}

/// One port.
#[derive(Clone, Debug)]
pub struct PortReport {
    /// Whether it can carry traffic.
    pub active: bool,
    /// Whether it is on Ethernet.
    pub ethernet: bool,
}

/// Opens every device and asks it.
///
/// # Errors
/// The libraries are missing.
pub fn survey() -> Result<Vec<DeviceReport>, Unavailable> {
    let library = Library::load()?;
    let functions = &library.functions;
    let mut count = 0;
    // SAFETY: the result is checked; the list is given back below.
    let list = unsafe { (functions.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        return Ok(Vec::new());
    }
    let mut devices = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: within the list, whose devices are valid until it is given back.
        let context = unsafe { (functions.ibv_open_device)(*list.add(index)) };
        let Some(context) = NonNull::new(context) else { continue };
        // SAFETY: opened just now, and closed behind it.
        unsafe {
            devices.extend(report(library, context));
            (functions.ibv_close_device)(context.as_ptr());
        }
    }
    // SAFETY: got above, given back once.
    unsafe { (functions.ibv_free_device_list)(list) };
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(devices)
}

/// # Safety
/// `context` is an open context.
unsafe fn report(library: &'static Library, context: NonNull<ibv_context>) -> Option<DeviceReport> {
    // SAFETY: by the caller.
    let caps = unsafe { DeviceCaps::query(library, context) }.ok()?;
    let ports = (1..=caps.ports).map(|port| {
        let mut attr = ibv_port_attr::default();
        // SAFETY: by the caller; `attr` has room for more than this entry point fills in.
        let queried = unsafe { (library.functions.ibv_query_port)(context.as_ptr(), port, &mut attr) };
        PortReport {
            active: queried == 0 && attr.state == IBV_PORT_ACTIVE,
            ethernet: attr.link_layer == IBV_LINK_LAYER_ETHERNET,
        }
    });
    let ports = ports.collect();
    Some(DeviceReport { name: caps.name, iwarp: caps.iwarp, windows: caps.windows, ports })
}
