//! The connection manager: event channels, identifiers, events.
//!
//! See rdma_cm(7). An identifier is bound to a device when its address is resolved or its request arrives, and its
//! events arrive on the channel that it was created on or migrated to. Every event is acknowledged as soon as it has
//! been read, because the destruction of an identifier waits for that.

#![expect(unsafe_code, reason = "calls of C")]

use std::{
    ffi::{c_int, c_void},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    ptr::NonNull,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use socket2::SockAddr;
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    device::Device,
    domain::unblock,
    ffi::*,
    library::{Library, check, last_error},
};

/// A nonblocking channel on which events arrive.
pub(super) struct EventChannel {
    library: &'static Library,
    ptr: NonNull<rdma_event_channel>,
}

// SAFETY: librdmacm locks its objects; the pointer is valid until `Drop`.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// A channel with its registration in the runtime, so that a task can wait for events.
pub(super) struct Events {
    // In this order: the descriptor leaves the runtime before it is closed.
    ready: AsyncFd<Descriptor>,
    channel: Arc<EventChannel>,
}

/// A descriptor that another owner closes.
pub(super) struct Descriptor(RawFd);

/// An identifier: one end of a connection that is being established, or a listener.
pub(super) struct CmId {
    ptr: NonNull<rdma_cm_id>,
    // Dropped after the identifier has been destroyed.
    channel: Arc<EventChannel>,
}

// SAFETY: as for `EventChannel`.
unsafe impl Send for CmId {}
// SAFETY: as above; the fields of the identifier that are read change only in calls by its owner.
unsafe impl Sync for CmId {}

/// An event of the connection manager.
pub(super) struct Event {
    pub(super) kind: c_int,
    /// Zero, a negative errno, or the reason of a rejection in the numbering of the fabric.
    pub(super) status: c_int,
    /// The new identifier, if the event is a connection request.
    pub(super) request: Option<CmId>,
    pub(super) private_data: Bytes,
    /// The numbers of RDMA Reads that the recipient of the event may have outstanding as initiator, and must be able to
    /// answer as responder.
    pub(super) reads: (u8, u8),
}

/// The parameters that are sent to the peer in a connection request or its acceptance.
pub(super) struct Offer<'a> {
    pub(super) private_data: &'a [u8],
    pub(super) outbound_reads: u8,
    pub(super) inbound_reads: u8,
    /// The peer retries if it finds no receive. Otherwise, a Send that finds no receive ends the connection; upper
    /// layers prevent this with credits.
    pub(super) waits_for_receives: bool,
}

impl EventChannel {
    pub(super) fn create(library: &'static Library) -> io::Result<Arc<Self>> {
        // SAFETY: the function has no arguments; the result is checked.
        let ptr = unsafe { (library.functions.rdma_create_event_channel)() };
        let ptr = NonNull::new(ptr).ok_or_else(|| {
            last_error("opening /dev/infiniband/rdma_cm (`modprobe rdma_ucm` where there is an adapter)")
        })?;
        let channel = Self { library, ptr };
        // SAFETY: the descriptor is open as long as the channel.
        unblock(unsafe { BorrowedFd::borrow_raw(channel.fd()) })?;
        Ok(Arc::new(channel))
    }

    fn fd(&self) -> RawFd {
        // SAFETY: valid until drop.
        unsafe { self.ptr.as_ref().fd }
    }

    /// Returns the next event, if one has arrived.
    fn next(self: &Arc<Self>) -> io::Result<Option<Event>> {
        let mut event = std::ptr::null_mut();
        // SAFETY: a valid channel; the result is checked.
        if unsafe { (self.library.functions.rdma_get_cm_event)(self.ptr.as_ptr(), &mut event) } != 0 {
            let error = last_error("reading an event of the connection manager");
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: an event that was just read and not yet acknowledged; a connection's events have `conn` as
        // parameters.
        let read = unsafe {
            let rdma_cm_event { id, event: kind, status, conn, .. } = &*event;
            let request = (*kind == RDMA_CM_EVENT_CONNECT_REQUEST)
                .then(|| CmId { ptr: NonNull::new(*id).expect("a request has an id"), channel: self.clone() });
            let private_data = match conn.private_data_len {
                0 => Bytes::new(),
                _ if conn.private_data.is_null() => Bytes::new(),
                len => Bytes::copy_from_slice(std::slice::from_raw_parts(conn.private_data.cast(), usize::from(len))),
            };
            let reads = (conn.initiator_depth, conn.responder_resources);
            Event { kind: *kind, status: *status, request, private_data, reads }
        };
        // SAFETY: as above; the contents of the event have been copied.
        unsafe { (self.library.functions.rdma_ack_cm_event)(event) };
        tracing::trace!(kind = read.kind, status = read.status, "connection manager");
        Ok(Some(read))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every identifier on it held an `Arc` of it and is gone; every event was acknowledged.
        unsafe { (self.library.functions.rdma_destroy_event_channel)(self.ptr.as_ptr()) };
    }
}

impl Events {
    /// Registers a channel with the current runtime.
    pub(super) fn new(channel: Arc<EventChannel>) -> io::Result<Self> {
        // SAFETY: the descriptor belongs to the channel, which is dropped later.
        let ready = unsafe { Descriptor(channel.fd()).register()? };
        Ok(Self { ready, channel })
    }

    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<io::Result<Event>> {
        loop {
            let mut ready = match self.ready.poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready?,
            };
            match self.channel.next()? {
                Some(event) => return Poll::Ready(Ok(event)),
                None => ready.clear_ready(),
            }
        }
    }

    pub(super) async fn next(&self) -> io::Result<Event> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits until a step has succeeded or failed.
    pub(super) async fn expect(&self, kind: c_int) -> io::Result<Event> {
        loop {
            let event = self.next().await?;
            if event.kind == kind {
                return Ok(event);
            }
            event.passes()?;
        }
    }
}

impl Event {
    /// Returns an error if the event means that the connection cannot be established.
    fn passes(&self) -> io::Result<()> {
        let failed = |what| Err(io::Error::new(self.error_kind(), format!("{what} (status {})", self.status)));
        match self.kind {
            RDMA_CM_EVENT_ADDR_ERROR => failed("no RDMA device reaches the address"),
            RDMA_CM_EVENT_ROUTE_ERROR => failed("there is no route over RDMA"),
            RDMA_CM_EVENT_CONNECT_ERROR => failed("the connection could not be established"),
            RDMA_CM_EVENT_UNREACHABLE => failed("there is no answer over RDMA"),
            RDMA_CM_EVENT_REJECTED => failed("the peer rejected the connection"),
            RDMA_CM_EVENT_DISCONNECTED => failed("the peer closed the connection immediately"),
            RDMA_CM_EVENT_DEVICE_REMOVAL => failed("the adapter is being removed"),
            _ => Ok(()),
        }
    }

    fn error_kind(&self) -> io::ErrorKind {
        let system = || io::Error::from_raw_os_error(-self.status).kind();
        match self.kind {
            _ if self.kind == RDMA_CM_EVENT_REJECTED => io::ErrorKind::ConnectionRefused,
            RDMA_CM_EVENT_DISCONNECTED => io::ErrorKind::ConnectionAborted,
            RDMA_CM_EVENT_DEVICE_REMOVAL => io::ErrorKind::NetworkDown,
            RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR if self.status == 0 => io::ErrorKind::HostUnreachable,
            _ if self.status < 0 => system(),
            RDMA_CM_EVENT_UNREACHABLE => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::ConnectionReset,
        }
    }
}

impl CmId {
    pub(super) fn create(channel: &Arc<EventChannel>) -> io::Result<Self> {
        let mut ptr = std::ptr::null_mut();
        let functions = &channel.library.functions;
        // SAFETY: a valid channel; the result is checked.
        let created =
            unsafe { (functions.rdma_create_id)(channel.ptr.as_ptr(), &mut ptr, std::ptr::null_mut(), RDMA_PS_TCP) };
        check(created, "creating a connection identifier")?;
        Ok(Self { ptr: NonNull::new(ptr).expect("created"), channel: channel.clone() })
    }

    /// Listens for connection requests at `local`.
    pub(super) fn listen(&self, local: SocketAddr, backlog: c_int) -> io::Result<()> {
        self.set_option(RDMA_OPTION_ID_REUSEADDR)?;
        if local.is_ipv6() {
            // The IPv4 address with the same port is a separate listener.
            self.set_option(RDMA_OPTION_ID_AFONLY)?;
        }
        self.bind(local)?;
        // SAFETY: a bound identifier.
        check(unsafe { (self.channel.library.functions.rdma_listen)(self.as_ptr(), backlog) }, "listening")
    }

    /// Binds the identifier to `local`, and to the device that has this address, if one does.
    pub(super) fn bind(&self, local: SocketAddr) -> io::Result<()> {
        let address = SockAddr::from(local);
        let address = address.as_ptr().cast_mut().cast();
        // SAFETY: a valid identifier and a socket address, which is only read.
        check(unsafe { (self.channel.library.functions.rdma_bind_addr)(self.as_ptr(), address) }, "binding")
    }

    fn set_option(&self, option: c_int) -> io::Result<()> {
        let mut on: c_int = 1;
        let (value, len) = ((&raw mut on).cast::<c_void>(), size_of::<c_int>());
        let functions = &self.channel.library.functions;
        // SAFETY: a valid identifier; the value is an int, as both options require.
        let set = unsafe { (functions.rdma_set_option)(self.as_ptr(), RDMA_OPTION_ID, option, value, len) };
        check(set, "setting an option of a connection identifier")
    }

    /// Starts the resolution of `remote` to a device and an address.
    pub(super) fn resolve_address(&self, remote: SocketAddr, timeout_ms: c_int) -> io::Result<()> {
        let address = SockAddr::from(remote);
        let to = address.as_ptr().cast_mut().cast();
        let functions = &self.channel.library.functions;
        // SAFETY: a valid identifier and a socket address, which is only read.
        let started = unsafe { (functions.rdma_resolve_addr)(self.as_ptr(), std::ptr::null_mut(), to, timeout_ms) };
        check(started, "no RDMA device reaches the address")
    }

    pub(super) fn resolve_route(&self, timeout_ms: c_int) -> io::Result<()> {
        // SAFETY: an identifier whose address is resolved.
        check(
            unsafe { (self.channel.library.functions.rdma_resolve_route)(self.as_ptr(), timeout_ms) },
            "finding a route",
        )
    }

    /// Returns the device that the identifier is bound to.
    pub(super) fn device(&self) -> io::Result<Arc<Device>> {
        // SAFETY: a valid identifier.
        let context = unsafe { self.ptr.as_ref().verbs };
        let context = NonNull::new(context).ok_or_else(|| io::Error::other("the identifier has no device"))?;
        // SAFETY: the context belongs to librdmacm; the owner of the device drops this identifier later.
        unsafe { Device::of(self.channel.library, context) }
    }

    /// Returns the port of the device.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: a valid identifier.
        unsafe { self.ptr.as_ref().port_num }
    }

    pub(super) fn connect(&self, offer: &Offer<'_>) -> io::Result<()> {
        // SAFETY: an identifier with a route and a queue pair; the parameters are only read.
        let started = unsafe { (self.channel.library.functions.rdma_connect)(self.as_ptr(), &mut offer.parameters()) };
        check(started, "connecting")
    }

    pub(super) fn accept(&self, offer: &Offer<'_>) -> io::Result<()> {
        // SAFETY: a request's identifier, with a queue pair; the parameters are only read.
        let started = unsafe { (self.channel.library.functions.rdma_accept)(self.as_ptr(), &mut offer.parameters()) };
        check(started, "accepting")
    }

    pub(super) fn reject(&self) {
        // SAFETY: a request's identifier.
        let rejected = unsafe { (self.channel.library.functions.rdma_reject)(self.as_ptr(), std::ptr::null(), 0) };
        if let Err(error) = check(rejected, "rejecting a connection") {
            tracing::debug!(%error);
        }
    }

    /// Starts to disconnect; the peer is notified.
    pub(super) fn disconnect(&self) {
        // SAFETY: a connected identifier, or one whose connection has ended, for which the call only returns an error.
        let started = unsafe { (self.channel.library.functions.rdma_disconnect)(self.as_ptr()) };
        if let Err(error) = check(started, "disconnecting") {
            tracing::trace!(%error);
        }
    }

    /// Moves the identifier to `channel`, on which its events arrive from now on.
    pub(super) fn migrate(&mut self, channel: &Arc<EventChannel>) -> io::Result<()> {
        let functions = &self.channel.library.functions;
        // SAFETY: a valid identifier and channel; events on the old channel are acknowledged as they are read.
        let migrated = unsafe { (functions.rdma_migrate_id)(self.as_ptr(), channel.ptr.as_ptr()) };
        check(migrated, "moving a connection to its event channel")?;
        self.channel = channel.clone();
        Ok(())
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: a valid identifier.
        unsafe { self.ptr.as_ref() }.route.src_addr.parse()
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: a valid identifier.
        unsafe { self.ptr.as_ref() }.route.dst_addr.parse()
    }

    pub(super) fn library(&self) -> &'static Library {
        self.channel.library
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.ptr.as_ptr()
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: created by the library, owned by this value; its queue pair, if it had one, has been destroyed.
        let destroyed = unsafe { (self.channel.library.functions.rdma_destroy_id)(self.as_ptr()) };
        if let Err(error) = check(destroyed, "destroying a connection identifier") {
            tracing::debug!(%error);
        }
    }
}

impl Offer<'_> {
    fn parameters(&self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len()).expect("checked against private_data_max"),
            responder_resources: self.inbound_reads,
            initiator_depth: self.outbound_reads,
            flow_control: 0,
            retry_count: RETRIES,
            rnr_retry_count: if self.waits_for_receives { RETRY_FOREVER } else { 0 },
            srq: 0,
            qp_num: 0,
        }
    }
}

impl Descriptor {
    pub(super) fn new(fd: RawFd) -> Self {
        Self(fd)
    }

    /// Registers the descriptor with the current runtime.
    ///
    /// # Safety
    /// The descriptor stays open until the result is dropped.
    pub(super) unsafe fn register(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: guaranteed by the caller.
        Ok(unsafe { AsyncFd::register_with_interest(self, Interest::READABLE)? })
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl sockaddr_storage {
    /// Returns the address, if it is an IP address.
    fn parse(&self) -> Option<SocketAddr> {
        let [f0, f1, p0, p1, rest @ ..] = self.bytes;
        let port = u16::from_be_bytes([p0, p1]);
        match i32::from(u16::from_ne_bytes([f0, f1])) {
            AF_INET => Some((Ipv4Addr::from(*rest.first_chunk::<4>()?), port).into()),
            AF_INET6 => {
                let (flow, rest) = rest.split_first_chunk::<4>()?;
                let (ip, rest) = rest.split_first_chunk::<16>()?;
                let scope = u32::from_ne_bytes(*rest.first_chunk()?);
                Some(SocketAddrV6::new(Ipv6Addr::from(*ip), port, u32::from_be_bytes(*flow), scope).into())
            }
            _ => None,
        }
    }
}

/// Returns the address with an IPv4-mapped IPv6 address converted to IPv4.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(address, |ip| (ip, address.port()).into()),
        IpAddr::V4(_) => address,
    }
}

const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;
/// The maximum that the connection manager accepts.
const RETRIES: u8 = 7;
/// The value that means an unlimited number of retries.
const RETRY_FOREVER: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_from_their_c_representation() {
        for text in ["10.1.2.3:20049", "[fe80::1%7]:5", "[2001:db8::2]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = SockAddr::from(address);
            let mut storage = sockaddr_storage { bytes: [0xff; 128] };
            // SAFETY: the bytes of a socket address.
            let bytes = unsafe { std::slice::from_raw_parts(c.as_ptr().cast::<u8>(), c.len() as usize) };
            storage.bytes[..bytes.len()].copy_from_slice(bytes);
            assert_eq!(storage.parse(), Some(address));
        }
        assert_eq!(sockaddr_storage { bytes: [0; 128] }.parse(), None);
        assert_eq!(canonical("[::ffff:10.0.0.1]:7".parse().unwrap()), "10.0.0.1:7".parse().unwrap());
    }
}
