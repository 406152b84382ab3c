//! Translates layouts, devices and reports between [`vfs::layout`] and the layout types of NFS (RFC 8881 §13, RFC 8435).

use std::{fmt::Write as _, net::SocketAddr};

use bytes::BytesMut;
use nfs::v4::{
    DeviceError4, Deviceid4, LayoutBody4, Layoutiomode4, Layouttype4, Netaddr4, NfsFh4, Nfsstat4, Opnum4, Stateid4,
    Utf8str,
    layout::{
        files::{FileLayout4, FileLayoutDsAddr4, FileLayoutUtil4},
        flex::{
            FF_FLAGS_NO_IO_THRU_MDS, FF_FLAGS_NO_LAYOUTCOMMIT, FF_FLAGS_NO_READ_IO, FfDataServer4, FfDeviceAddr4,
            FfDeviceVersions4, FfIostats4, FfLayout4, FfMirror4,
        },
    },
};
use vfs::{
    VfsError,
    layout::{
        DataAddress, DataError, DataFailure, DataFile, DataOperation, DataTransport, DataUsage, FilesLayout,
        FlexibleLayout, Layout, LayoutDevice, LayoutDeviceId, LayoutKind, LayoutMode, LayoutModes, LayoutRange, Mirror,
    },
};

/// Returns the number of a layout type.
pub(in crate::v4) fn layout_type(kind: LayoutKind) -> Layouttype4 {
    match kind {
        LayoutKind::Flexible => Layouttype4::FLEX_FILES,
        LayoutKind::Files => Layouttype4::NFSV4_1_FILES,
    }
}

/// Returns the kind of a layout type, if this server knows it.
pub(in crate::v4) fn kind(layout_type: Layouttype4) -> Option<LayoutKind> {
    [LayoutKind::Flexible, LayoutKind::Files].into_iter().find(|kind| self::layout_type(*kind) == layout_type)
}

/// Returns the mode of a LAYOUTGET.
///
/// # Errors
/// BADIOMODE.
pub(in crate::v4) fn mode(iomode: Layoutiomode4) -> Result<LayoutMode, Nfsstat4> {
    match iomode {
        Layoutiomode4::Read => Ok(LayoutMode::Read),
        Layoutiomode4::Rw => Ok(LayoutMode::Write),
        //= rfc8881-18.43.3-27
        Layoutiomode4::Any => Err(Nfsstat4::BadIomode),
    }
}

/// Returns the modes of a LAYOUTRETURN.
pub(in crate::v4) fn modes(iomode: Layoutiomode4) -> LayoutModes {
    match iomode {
        Layoutiomode4::Read => LayoutModes::READ,
        Layoutiomode4::Rw => LayoutModes::WRITE,
        Layoutiomode4::Any => LayoutModes::ALL,
    }
}

/// Returns the contents of a layout.
///
/// # Errors
/// `Io` if the back end has made a layout that the layout type cannot express.
pub(in crate::v4) fn layout(layout: Layout) -> Result<LayoutBody4, VfsError> {
    let kind = layout_type(layout.kind());
    match layout {
        Layout::Flexible(layout) => Ok(LayoutBody4::new(kind, &flexible(layout))),
        Layout::Files(layout) => Ok(LayoutBody4::new(kind, &files(layout).ok_or(VfsError::Io)?)),
    }
}

fn flexible(layout: FlexibleLayout) -> FfLayout4 {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let mut digits = Digits::new(layout.mirrors.iter().map(|mirror| mirror.data_files.len()).sum());
    let mut data_file = |file: DataFile| FfDataServer4 {
        deviceid: Deviceid4(file.device.0),
        efficiency: file.efficiency,
        stateid: file.stateid.map_or(Stateid4::ANONYMOUS, stateid),
        fh_vers: vec![NfsFh4::from(file.handle)],
        user: digits.of(file.uid),
        group: digits.of(file.gid),
    };
    let mirror =
        |mirror: Mirror| FfMirror4 { data_servers: mirror.data_files.into_iter().map(&mut data_file).collect() };
    FfLayout4 {
        stripe_unit: layout.stripe_unit,
        mirrors: layout.mirrors.into_iter().map(mirror).collect(),
        flags: flag(layout.no_commit, FF_FLAGS_NO_LAYOUTCOMMIT)
            | flag(layout.no_io_through_server, FF_FLAGS_NO_IO_THRU_MDS)
            | flag(layout.no_read, FF_FLAGS_NO_READ_IO),
        stats_collect_hint: layout.stats_interval_s,
    }
}

/// Writes users and groups as digits, the only form that Linux accepts (RFC 8435 §5.1). Those of a layout share one allocation.
struct Digits(BytesMut);

impl Digits {
    /// Makes one for this many objects, each with a user and a group.
    fn new(objects: usize) -> Self {
        Self(BytesMut::with_capacity(objects * 2 * DIGITS_MAX))
    }

    fn of(&mut self, number: u32) -> Utf8str {
        write!(self.0, "{number}").expect("memory must take digits");
        self.0.split().freeze().into()
    }
}

fn files(layout: FilesLayout) -> Option<FileLayout4> {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let flags = flag(layout.dense, FileLayoutUtil4::DENSE)
        | flag(layout.commit_through_server, FileLayoutUtil4::COMMIT_THRU_MDS);
    Some(FileLayout4 {
        deviceid: Deviceid4(layout.device.0),
        util: FileLayoutUtil4::new(layout.stripe_unit, flags)?,
        first_stripe_index: layout.first_stripe,
        pattern_offset: layout.pattern_offset,
        fh_list: layout.handles.into_iter().map(NfsFh4::from).collect(),
    })
}

fn stateid(bytes: [u8; 16]) -> Stateid4 {
    let [a, b, c, d, other @ ..] = bytes;
    Stateid4 { seqid: u32::from_be_bytes([a, b, c, d]), other }
}

/// Returns the address of a device.
pub(in crate::v4) fn device(device: &LayoutDevice) -> LayoutBody4 {
    let addresses = |list: &Vec<DataAddress>| list.iter().map(netaddr).collect();
    match device {
        LayoutDevice::Flexible { addresses: list, versions } => {
            let versions = versions.iter().map(|version| FfDeviceVersions4 {
                version: version.version,
                minorversion: version.minor,
                rsize: version.read_max,
                wsize: version.write_max,
                tightly_coupled: version.tightly_coupled,
            });
            let device = FfDeviceAddr4 { netaddrs: addresses(list), versions: versions.collect() };
            LayoutBody4::new(Layouttype4::FLEX_FILES, &device)
        }
        LayoutDevice::Files { stripes, servers } => {
            let multipath_ds_list = servers.iter().map(addresses).collect();
            let device = FileLayoutDsAddr4 { stripe_indices: stripes.clone(), multipath_ds_list };
            LayoutBody4::new(Layouttype4::NFSV4_1_FILES, &device)
        }
    }
}

/// Returns an address in the universal format (RFC 5665 §5.2.3). `shm` is a netid of this project.
fn netaddr(DataAddress { transport, address }: &DataAddress) -> Netaddr4 {
    let six = address.is_ipv6();
    let netid: &str = match (transport, six) {
        (DataTransport::Tcp, false) => "tcp",
        (DataTransport::Tcp, true) => "tcp6",
        (DataTransport::Rdma, false) => "rdma",
        (DataTransport::Rdma, true) => "rdma6",
        (DataTransport::Shm, _) => "shm",
    };
    let port = address.port();
    let host = match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => address.ip().to_string(),
    };
    let addr = format!("{host}.{}.{}", port >> 8, port & 0xff);
    Netaddr4 { netid: netid.into(), addr: addr.as_str().into() }
}

/// Returns the transport that a client uses, by the name of this server's transport.
pub(in crate::v4) fn transport(name: &str) -> DataTransport {
    match name {
        "rdma" => DataTransport::Rdma,
        "shm" => DataTransport::Shm,
        _ => DataTransport::Tcp,
    }
}

/// Returns a failure that a client reports.
pub(in crate::v4) fn failure(range: LayoutRange, error: &DeviceError4) -> DataFailure {
    let operation = match error.opnum {
        Opnum4::Read => DataOperation::Read,
        Opnum4::Write => DataOperation::Write,
        Opnum4::Commit => DataOperation::Commit,
        _ => DataOperation::Other,
    };
    let kind = match error.status {
        // RFC 8435 §9.1.1, RFC 7862 §15.6.3: the device did not answer.
        Nfsstat4::NxIo => DataError::Unreachable,
        Nfsstat4::NoSpc | Nfsstat4::DQuot => DataError::NoSpace,
        Nfsstat4::Access | Nfsstat4::Perm => DataError::Denied,
        Nfsstat4::Stale | Nfsstat4::BadHandle => DataError::Stale,
        Nfsstat4::Io => DataError::Io,
        other => DataError::Other(other as u32),
    };
    DataFailure { range, device: LayoutDeviceId(error.deviceid.0), operation, error: kind }
}

/// Returns the use of a data server that a client reports with LAYOUTRETURN.
pub(in crate::v4) fn usage(stats: &FfIostats4) -> DataUsage {
    DataUsage {
        device: LayoutDeviceId(stats.deviceid.0),
        reads: stats.read.count,
        read_bytes: stats.read.bytes,
        writes: stats.write.count,
        write_bytes: stats.write.bytes,
    }
}

/// The number of digits of the largest user.
const DIGITS_MAX: usize = 10;
/// The notification types of devices (RFC 8881 §20.12).
pub(in crate::v4) const NOTIFY_DEVICEID4_CHANGE: u32 = 1;
pub(in crate::v4) const NOTIFY_DEVICEID4_DELETE: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_netids_of_their_transports() {
        let text = |transport, address: &str| {
            let Netaddr4 { netid, addr } = netaddr(&DataAddress { transport, address: address.parse().unwrap() });
            format!("{} {}", String::from_utf8_lossy(&netid.0), String::from_utf8_lossy(&addr.0))
        };
        assert_eq!(text(DataTransport::Tcp, "192.0.2.1:2049"), "tcp 192.0.2.1.8.1");
        assert_eq!(text(DataTransport::Tcp, "[2001:db8::1]:2049"), "tcp6 2001:db8::1.8.1");
        assert_eq!(text(DataTransport::Rdma, "192.0.2.1:20049"), "rdma 192.0.2.1.78.81");
        assert_eq!(text(DataTransport::Rdma, "[2001:db8::1]:20049"), "rdma6 2001:db8::1.78.81");
        assert_eq!(text(DataTransport::Shm, "127.0.0.1:2049"), "shm 127.0.0.1.8.1");
    }

    #[test]
    fn stripe_unit_that_cannot_be_expressed_is_an_error() {
        let layout = |stripe_unit| {
            super::layout(Layout::Files(FilesLayout {
                device: LayoutDeviceId([1; 16]),
                stripe_unit,
                dense: false,
                first_stripe: 0,
                pattern_offset: 0,
                commit_through_server: false,
                handles: Vec::new(),
                return_on_close: false,
            }))
        };
        assert!(layout(4096).is_ok());
        assert_eq!(layout(100).unwrap_err(), VfsError::Io);
    }
}
