//! [`Segment`]: a layout as it was granted, checked once. It maps byte ranges to data files and orders the mirrors. No I/O.
//!
//! Read RFC 8435 §5.1 (the layout), §6 (stripes) and §8.1 (selecting a mirror) first, and RFC 8881 §13.3 and §13.4 (files layouts, which
//! are here segments of one mirror). A layout that this client cannot use is an error with the reason; the caller returns it.

use std::{ops::Range, time::Duration};

use nfs::v4::{
    Layout4, Layoutiomode4, Layouttype4,
    layout::{
        files::FileLayout4,
        flex::{
            FF_FLAGS_NO_IO_THRU_MDS, FF_FLAGS_NO_LAYOUTCOMMIT, FF_FLAGS_NO_READ_IO, FF_FLAGS_WRITE_ONE_MIRROR,
            FfDataServer4, FfLayout4, FfMirror4,
        },
        stripe::{Packing, Piece, Striping},
    },
};
use rpc::AuthSys;

use super::{device::DataServerId, table::Devices};
use crate::model::{Caller, Handle};

/// A layout for a range of a file.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The range in which the layout can be used.
    pub range: Range<u64>,
    pub mode: Layoutiomode4,
    pub layout_type: Layouttype4,
    pub mirrors: Vec<Mirror>,
    flags: u32,
    stats_s: u32,
    /// The offset in the turn of mirrors, so that clients begin with different ones.
    turn: u64,
}

/// A copy of the file.
#[derive(Debug)]
pub(crate) struct Mirror {
    striping: Striping,
    /// The data files, one for each stripe.
    pub files: Vec<DataFile>,
    efficiency: u32,
}

/// A data file on a data server.
#[derive(Debug)]
pub(crate) struct DataFile {
    pub server: DataServerId,
    /// The handles, one for each version of the device, or one for all of them.
    handles: Vec<Handle>,
    /// The user as whom a loosely coupled data server admits I/O. `None` with a files layout: the caller.
    pub user: Option<Caller>,
}

impl Segment {
    /// Checks a flexible files layout.
    ///
    /// # Errors
    /// The reason why this client cannot use it.
    pub fn flexible(granted: &Layout4) -> Result<Self, String> {
        let body: FfLayout4 = granted.content.decode_as(Layouttype4::FLEX_FILES).map_err(|error| error.to_string())?;
        check_mode(granted)?;
        if body.mirrors.is_empty() || body.mirrors.len() > MIRRORS_MAX {
            return Err(format!("{} mirrors; from 1 to {MIRRORS_MAX} can be used", body.mirrors.len()));
        }
        let own = AuthSys::of_process();
        let mirrors = body.mirrors.iter().map(|mirror| Mirror::new(mirror, body.stripe_unit, &own));
        let mirrors = mirrors.collect::<Result<_, _>>()?;
        let range = granted.offset..granted.offset.saturating_add(granted.length);
        Ok(Self {
            range,
            mode: granted.iomode,
            layout_type: Layouttype4::FLEX_FILES,
            mirrors,
            flags: body.flags,
            stats_s: body.stats_collect_hint,
            turn: entropy::random(),
        })
    }

    /// Checks a files layout with its device. `file` is the handle at the metadata server.
    ///
    /// # Errors
    /// The reason why this client cannot use it.
    pub fn files(granted: &Layout4, body: &FileLayout4, devices: &Devices, file: &Handle) -> Result<Self, String> {
        check_mode(granted)?;
        if body.util.commits_through_mds() {
            return Err("COMMIT must be sent to the metadata server, which this client does not do".to_owned());
        }
        let (count, servers) = (devices.stripes.len(), devices.servers.len());
        let (unit, handles) = (body.util.stripe_unit(), &body.fh_list);
        if count > 1 && u64::from(unit) < UNIT_MIN {
            return Err(format!("{count} stripes of {unit} bytes; at least {UNIT_MIN} are needed"));
        }
        // RFC 8881 §13.4.4: dense data files differ for each stripe, and sparse ones for each data server.
        let handle = |stripe: usize, server: u32| match (body.util.is_dense(), handles.len()) {
            (true, len) if len == count => Some(&handles[stripe]),
            (true, _) => None,
            (false, 0) => Some(file),
            (false, 1) => handles.first(),
            (false, len) if len == servers => handles.get(server as usize),
            (false, _) => None,
        };
        let data_file = |(stripe, &index): (usize, &u32)| {
            let handle = handle(stripe, index).ok_or_else(|| {
                format!("{} file handles for {count} stripes on {servers} data servers", handles.len())
            })?;
            let server = DataServerId { device: body.deviceid, index };
            Ok(DataFile { server, handles: vec![handle.clone()], user: None })
        };
        let data_files = devices.stripes.iter().enumerate().map(data_file).collect::<Result<Vec<_>, String>>()?;
        let packing = if body.util.is_dense() { Packing::Dense } else { Packing::Sparse };
        let striping = Striping::new(unit.into(), count as u32, packing);
        let striping = striping.and_then(|all| all.with_pattern(body.first_stripe_index, body.pattern_offset));
        let striping = striping.ok_or_else(|| {
            format!("{count} stripes of {unit} bytes, beginning with stripe {}", body.first_stripe_index)
        })?;
        // No data server has the bytes before the pattern.
        let range = granted.offset.max(body.pattern_offset)..granted.offset.saturating_add(granted.length);
        let mirrors = vec![Mirror { striping, files: data_files, efficiency: 0 }];
        let (mode, layout_type) = (granted.iomode, Layouttype4::NFSV4_1_FILES);
        Ok(Self { range, mode, layout_type, mirrors, flags: 0, stats_s: 0, turn: 0 })
    }

    /// Reports whether the layout can be used to access a range in a mode.
    pub fn admits(&self, mode: Layoutiomode4, range: &Range<u64>) -> bool {
        let covers = self.range.start <= range.start && range.end <= self.range.end;
        let allows = match mode {
            Layoutiomode4::Rw => self.mode == Layoutiomode4::Rw,
            // RFC 8435 §5.1: a layout for writing is then not used for reading.
            _ => self.mode == Layoutiomode4::Read || self.flags & FF_FLAGS_NO_READ_IO == 0,
        };
        covers && allows
    }

    /// Returns the indices of the mirrors for a READ at `offset`, the best first. Mirrors of equal efficiency take turns,
    /// each for [`TURN`] bytes, so that the data servers share the load and each still sees reads in order. Mirrors that are
    /// not `available` come last.
    pub fn order(&self, offset: u64, available: impl Fn(&Mirror) -> bool) -> Vec<usize> {
        let count = self.mirrors.len();
        let first = ((offset / TURN).wrapping_add(self.turn) % count as u64) as usize;
        let mut order: Vec<usize> = (first..count).chain(0..first).collect();
        // The sort is stable, so that equal mirrors keep their turn.
        order.sort_by_key(|index| {
            let mirror = &self.mirrors[*index];
            (!available(mirror), std::cmp::Reverse(mirror.efficiency))
        });
        order
    }

    /// Returns the indices of the mirrors that a WRITE at `offset` must reach.
    pub fn written(&self, offset: u64) -> Range<usize> {
        if self.flags & FF_FLAGS_WRITE_ONE_MIRROR == 0 {
            return 0..self.mirrors.len();
        }
        // RFC 8435 §8.2.1: the data server updates the other mirrors.
        let best = self.order(offset, |_| true)[0];
        best..best + 1
    }

    /// Reports whether the client must send LAYOUTCOMMIT after it has written.
    pub fn needs_commit(&self) -> bool {
        self.flags & FF_FLAGS_NO_LAYOUTCOMMIT == 0
    }

    /// Returns the interval at which the server wants statistics, if it wants any.
    pub fn stats_interval(&self) -> Option<Duration> {
        (self.stats_s > 0).then(|| Duration::from_secs(self.stats_s.into()))
    }

    /// Reports whether the server prefers that the client does not send I/O to it.
    pub fn avoids_server(&self) -> bool {
        self.flags & FF_FLAGS_NO_IO_THRU_MDS != 0
    }
}

impl Mirror {
    fn new(mirror: &FfMirror4, unit: u64, own: &AuthSys) -> Result<Self, String> {
        let count = mirror.data_servers.len();
        // RFC 8435 §6: the mapping is sparse. The unit means nothing without several stripes.
        let unit = if count == 1 { 0 } else { unit };
        if count > 1 && unit < UNIT_MIN || count > STRIPES_MAX {
            return Err(format!("{count} stripes of {unit} bytes; at most {STRIPES_MAX} of {UNIT_MIN} bytes or more"));
        }
        let striping = Striping::new(unit, count as u32, Packing::Sparse).ok_or("a mirror without data files")?;
        let files = mirror.data_servers.iter().map(|file| DataFile::new(file, own)).collect::<Result<_, _>>()?;
        let efficiency = mirror.data_servers.iter().map(|file| file.efficiency).min().unwrap_or(0);
        Ok(Self { striping, files, efficiency })
    }

    /// Divides a range of the file into pieces, each in one data file. The range must end before `u64::MAX`.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (Piece, &DataFile)> {
        self.striping.pieces(range).map(|piece| (piece, &self.files[piece.stripe as usize]))
    }
}

impl DataFile {
    fn new(file: &FfDataServer4, own: &AuthSys) -> Result<Self, String> {
        let number = |name: &[u8]| {
            let digits = std::str::from_utf8(name).ok().and_then(|digits| digits.parse::<u32>().ok());
            // RFC 8435 §5.1: NFSv3 needs numbers.
            digits.ok_or_else(|| format!("the user or group '{}' is not a number", name.escape_ascii()))
        };
        let (uid, gid) = (number(&file.user.0)?, number(&file.group.0)?);
        let user = AuthSys { uid, gid, gids: Default::default(), machine: own.machine.clone(), stamp: own.stamp };
        if file.fh_vers.is_empty() {
            return Err("a data file without a handle".to_owned());
        }
        let server = DataServerId { device: file.deviceid, index: 0 };
        Ok(Self { server, handles: file.fh_vers.clone(), user: Some(Caller::new(user)) })
    }

    /// Reports whether this is one of the handles.
    pub fn has(&self, handle: &Handle) -> bool {
        self.handles.contains(handle)
    }

    /// Returns the handle for the version with this index in the list of the device.
    pub fn handle(&self, version: usize) -> Option<&Handle> {
        // Linux's server and others send one handle for all versions.
        if self.handles.len() == 1 { self.handles.first() } else { self.handles.get(version) }
    }
}

fn check_mode(granted: &Layout4) -> Result<(), String> {
    //= rfc8881-18.43.3-18
    if granted.iomode == Layoutiomode4::Any { Err("the layout has no I/O mode".to_owned()) } else { Ok(()) }
}

/// The bytes for which one of several equal mirrors is read.
const TURN: u64 = 4 << 20;
/// Maximum number of mirrors of a layout.
const MIRRORS_MAX: usize = 16;
/// Maximum number of stripes of a mirror.
pub(super) const STRIPES_MAX: usize = 4096;
/// Minimum bytes of a stripe unit. It bounds the number of calls for one READ or WRITE.
const UNIT_MIN: u64 = 4096;

#[cfg(test)]
pub(super) mod tests {
    use nfs::v4::{
        Deviceid4, GetDeviceInfoOk, LENGTH_TO_EOF, LayoutBody4, Netaddr4, NfsFh4, Stateid4,
        layout::files::{FileLayoutDsAddr4, FileLayoutUtil4},
    };

    use super::{
        super::{device::DevicesInfo, table::Layouts},
        *,
    };

    /// Returns a layout with these data files: the mirrors, the stripes of each, and each one's device and efficiency.
    pub fn granted(iomode: Layoutiomode4, flags: u32, unit: u64, mirrors: &[&[(u8, u32)]]) -> Layout4 {
        let data_server = |&(device, efficiency): &(u8, u32)| FfDataServer4 {
            deviceid: Deviceid4([device; 16]),
            efficiency,
            stateid: Stateid4::ANONYMOUS,
            fh_vers: vec![NfsFh4::from(bytes::Bytes::from(vec![device; 4]))],
            user: "17".into(),
            group: "18".into(),
        };
        let mirror = |files: &&[(u8, u32)]| FfMirror4 { data_servers: files.iter().map(data_server).collect() };
        let body = FfLayout4 {
            stripe_unit: unit,
            mirrors: mirrors.iter().map(mirror).collect(),
            flags,
            stats_collect_hint: 0,
        };
        let content = LayoutBody4::new(Layouttype4::FLEX_FILES, &body);
        Layout4 { offset: 0, length: LENGTH_TO_EOF, iomode, content }
    }

    fn segment(flags: u32, unit: u64, mirrors: &[&[(u8, u32)]]) -> Result<Segment, String> {
        Segment::flexible(&granted(Layoutiomode4::Rw, flags, unit, mirrors))
    }

    #[test]
    fn best_mirror_is_read_first_and_unavailable_ones_last() {
        let segment = segment(0, 0, &[&[(1, 5)], &[(2, 9)], &[(3, 9)]]).unwrap();
        let order = segment.order(0, |_| true);
        assert_eq!(order[2], 0, "the mirror of lower efficiency is the last");
        let without_2 = segment.order(0, |mirror| mirror.files[0].server.device != Deviceid4([2; 16]));
        assert_eq!(without_2, [2, 0, 1]);
    }

    #[test]
    fn equal_mirrors_take_turns() {
        let segment = segment(0, 0, &[&[(1, 1)], &[(2, 1)]]).unwrap();
        let first = |offset| segment.order(offset, |_| true)[0];
        assert_eq!(first(0), first(TURN - 1));
        assert_ne!(first(0), first(TURN));
    }

    #[test]
    fn ranges_are_divided_into_stripes() {
        let segment = segment(0, 4096, &[&[(1, 1), (2, 1)]]).unwrap();
        let pieces: Vec<_> = segment.mirrors[0]
            .pieces(4000..8200)
            .map(|(piece, file)| (file.server.device.0[0], piece.data_offset, piece.len))
            .collect();
        assert_eq!(pieces, [(1, 4000, 96), (2, 4096, 4096), (1, 8192, 8)]);
    }

    #[test]
    fn flags_restrict_the_use() {
        let all = &[&[(1, 1)][..], &[(2, 1)][..]];
        let (plain, noread) = (segment(0, 0, all).unwrap(), segment(FF_FLAGS_NO_READ_IO, 0, all).unwrap());
        assert!(plain.admits(Layoutiomode4::Read, &(0..9)) && plain.admits(Layoutiomode4::Rw, &(0..9)));
        assert!(!noread.admits(Layoutiomode4::Read, &(0..9)) && noread.admits(Layoutiomode4::Rw, &(0..9)));
        assert_eq!(plain.written(1), 0..2);
        let one_mirror = segment(FF_FLAGS_WRITE_ONE_MIRROR, 0, all).unwrap();
        let best = one_mirror.order(1, |_| true)[0];
        assert_eq!(one_mirror.written(1), best..best + 1);
        assert!(plain.needs_commit() && !segment(FF_FLAGS_NO_LAYOUTCOMMIT, 0, all).unwrap().needs_commit());
        let part = Layout4 { offset: 10, length: 10, ..granted(Layoutiomode4::Read, 0, 0, all) };
        let part = Segment::flexible(&part).unwrap();
        assert!(part.admits(Layoutiomode4::Read, &(10..20)) && !part.admits(Layoutiomode4::Read, &(10..21)));
        assert!(!part.admits(Layoutiomode4::Rw, &(10..20)));
    }

    #[test]
    fn unusable_layouts_are_refused_with_the_reason() {
        let refused = |unit, mirrors: &[&[(u8, u32)]]| segment(0, unit, mirrors).unwrap_err();
        assert!(refused(0, &[]).contains("0 mirrors"));
        assert!(refused(0, &[&[]]).contains("without data files"));
        assert!(refused(64, &[&[(1, 1), (2, 1)]]).contains("stripes of 64 bytes"));
        let mut named = granted(Layoutiomode4::Rw, 0, 0, &[&[(1, 1)]]);
        let mut body: FfLayout4 = named.content.decode_as(Layouttype4::FLEX_FILES).unwrap();
        body.mirrors[0].data_servers[0].user = "root".into();
        named.content = LayoutBody4::new(Layouttype4::FLEX_FILES, &body);
        assert!(Segment::flexible(&named).unwrap_err().contains("'root' is not a number"));
    }

    #[test]
    fn handle_is_that_of_the_version() {
        let mut file = segment(0, 0, &[&[(1, 1)]]).unwrap().mirrors.remove(0).files.remove(0);
        assert_eq!(file.handle(3), file.handles.first());
        file.handles.push(Handle::from("other"));
        assert_eq!(file.handle(1), Some(&Handle::from("other")));
        assert_eq!(file.handle(2), None);
    }

    /// Returns the segment of a files layout, whose device has these stripes on two data servers.
    fn files(util: (u32, u32), first: u32, pattern: u64, stripes: &[u32], handles: &[&str]) -> Result<Segment, String> {
        let body = FileLayout4 {
            deviceid: Deviceid4([5; 16]),
            util: FileLayoutUtil4(util.0 | util.1),
            first_stripe_index: first,
            pattern_offset: pattern,
            fh_list: handles.iter().map(|handle| NfsFh4::from(*handle)).collect(),
        };
        let address = Netaddr4 { netid: "tcp".into(), addr: "192.0.2.1.8.1".into() };
        let device = FileLayoutDsAddr4 { stripe_indices: stripes.to_vec(), multipath_ds_list: vec![vec![address]; 2] };
        let device_addr = LayoutBody4::new(Layouttype4::NFSV4_1_FILES, &device);
        let ok = GetDeviceInfoOk { device_addr, notification: Default::default() };
        let info = DevicesInfo::new(&ok, Layouttype4::NFSV4_1_FILES, 1, |_| true).unwrap();
        let devices = Layouts::default().add_devices(body.deviceid, info);
        let content = LayoutBody4::new(Layouttype4::NFSV4_1_FILES, &body);
        let granted = Layout4 { offset: 0, length: LENGTH_TO_EOF, iomode: Layoutiomode4::Rw, content };
        Segment::files(&granted, &body, &devices, &Handle::from("mds"))
    }

    const DENSE: u32 = FileLayoutUtil4::DENSE;

    fn places(segment: &Segment, range: Range<u64>) -> Vec<(u32, &str, u64, u64)> {
        let place = |(piece, file): (Piece, &'_ DataFile)| {
            let handle = ["mds", "a", "b", "c"].into_iter().find(|name| file.has(&Handle::from(*name)));
            (file.server.index, handle.unwrap(), piece.data_offset, piece.len)
        };
        segment.mirrors[0].pieces(range).map(place).collect()
    }

    /// RFC 8881 §13.4.4.
    #[test]
    fn handles_of_a_files_layout_are_those_of_the_packing() {
        let each = files((4096, 0), 0, 0, &[1, 0, 1], &["a", "b"]).unwrap();
        let expected = [(1, "b", 0, 4096), (0, "a", 4096, 4096), (1, "b", 8192, 4096), (1, "b", 12_288, 1)];
        assert_eq!(places(&each, 0..12_289), expected);
        let one = files((4096, 0), 0, 0, &[0, 1], &["a"]).unwrap();
        assert_eq!(places(&one, 4095..4097), [(0, "a", 4095, 1), (1, "a", 4096, 1)]);
        let none = files((4096, 0), 1, 0, &[0, 1], &[]).unwrap();
        assert_eq!(places(&none, 4095..4097), [(1, "mds", 4095, 1), (0, "mds", 4096, 1)]);
        let dense = files((4096, DENSE), 0, 0, &[1, 0, 1], &["a", "b", "c"]).unwrap();
        let expected = [(1, "a", 0, 4096), (0, "b", 0, 4096), (1, "c", 0, 4096), (1, "a", 4096, 1)];
        assert_eq!(places(&dense, 0..12_289), expected);
        assert!(dense.needs_commit() && dense.stats_interval().is_none() && !dense.avoids_server());
        assert!(dense.mirrors[0].files.iter().all(|file| file.user.is_none()), "the caller's own user is used");
    }

    #[test]
    fn files_layout_is_not_used_before_its_pattern() {
        let segment = files((4096, 0), 0, 8192, &[0, 1], &["a"]).unwrap();
        assert!(!segment.admits(Layoutiomode4::Read, &(8191..9000)));
        assert!(segment.admits(Layoutiomode4::Read, &(8192..9000)));
    }

    #[test]
    fn unusable_files_layouts_are_refused_with_the_reason() {
        let refused =
            |util, first, stripes: &[u32], handles: &[&str]| files(util, first, 0, stripes, handles).unwrap_err();
        let through_mds = FileLayoutUtil4::COMMIT_THRU_MDS;
        assert!(refused((4096, through_mds), 0, &[0], &["a"]).contains("COMMIT must be sent to the metadata server"));
        assert!(refused((64, 0), 0, &[0, 1], &["a"]).contains("2 stripes of 64 bytes"));
        assert!(refused((0, 0), 0, &[0, 1], &["a"]).contains("2 stripes of 0 bytes"));
        assert!(refused((4096, 0), 2, &[0, 1], &["a"]).contains("beginning with stripe 2"));
        assert!(refused((4096, 0), 0, &[0, 1, 0], &["a", "b", "c"]).contains("3 file handles for 3 stripes on 2"));
        for handles in [&[][..], &["a"], &["a", "b"]] {
            assert!(refused((4096, DENSE), 0, &[0, 1, 0], handles).contains("file handles for 3 stripes"));
        }
    }
}
