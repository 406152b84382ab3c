//! [`Held`]: the layouts of a file and what the client has written with them. It decides which way an I/O takes. No I/O.
//!
//! Read RFC 8881 §12.5 (layouts), §12.5.4 (LAYOUTCOMMIT) and RFC 8435 §8.2.4 (COMMIT of mirrors) first.
//!
//! **Verifiers.** Data can pass to several data servers, and through the metadata server while there is no layout. Each of these servers
//! has a write verifier, and the caller knows one. So there is one verifier for all writes to a file, which stands for those of the
//! servers ([`Epoch`]). It changes when one of these changes, and when the layout ends after a write with it. A caller that
//! compares the verifiers of WRITE and COMMIT then writes again everything that can be lost.
//!
//! If all writes have passed through the metadata server, the verifier follows from that of the metadata server ([`OfServer`]), so
//! the client can forget about the file. The first write to data servers changes what follows from it: a client that has forgotten
//! that write must not return the same verifier for a COMMIT.

use std::{ops::Range, sync::Arc, time::Duration};

use entropy::HashMap;
use nfs::v4::{DeviceError4, Layoutiomode4, Layouttype4, Stateid4, location::Mdsthreshold4};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{device::DataServerId, segment::Segment, usage::Usage};
use crate::model::{Handle, Verifier};

/// The layouts of a file, with the locks of the tasks that use and change them.
#[derive(Debug, Default)]
pub(crate) struct FileLayouts {
    pub held: Mutex<Held>,
    /// Serializes LAYOUTGET, LAYOUTCOMMIT and LAYOUTRETURN.
    pub changes: tokio::sync::Mutex<()>,
    /// Notified when no I/O uses the layouts any more.
    pub drained: Notify,
}

/// The layouts of a file.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The stateid of the layouts, if there are any.
    pub stateid: Option<Stateid4>,
    /// The type of the last layouts, once there were some.
    pub layout_type: Option<Layouttype4>,
    segments: Vec<Arc<Segment>>,
    /// The number of reads and writes in progress at data servers.
    pub uses: usize,
    /// Set while a LAYOUTGET is outstanding.
    pub is_asking: bool,
    /// Set while the layouts are being returned. No I/O begins with them.
    pub is_ending: bool,
    /// The times until which no layout is asked for: for reading, and for writing.
    denied: [Option<Instant>; 2],
    /// Set if the server prefers that the client waits for a layout.
    avoids_server: bool,
    /// The size of the file when it was last known. It is a hint.
    pub size: u64,
    threshold: Threshold,
    epoch: Option<Epoch>,
    uncommitted: Option<Uncommitted>,
    errors: Vec<IoError>,
    /// The use of data files with these layouts.
    pub usage: Usage,
}

/// The sizes from which on a layout is worth asking for, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Threshold {
    /// The sizes of a file for reading, and for writing.
    file: [u64; 2],
    /// The sizes of one READ, and of one WRITE.
    io: [u64; 2],
}

/// The write verifiers of the servers, and the verifier that stands for them.
#[derive(Debug)]
struct Epoch {
    verifier: Verifier,
    /// `true` until data have passed to data servers.
    is_of_server: bool,
    /// The data files with unstable data: their verifiers, and the number of the last write.
    unstable: HashMap<DataFileId, (Verifier, u64)>,
    /// The same for unstable data that have passed through the metadata server, if there are some.
    server: Option<(Verifier, u64)>,
    /// The number of writes.
    writes: u64,
}

/// A write verifier of the metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfServer {
    pub verifier: Verifier,
    /// The verifier for callers if no data have passed to data servers.
    pub shown: Verifier,
}

/// The data that were not on stable storage at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unstable {
    /// The data files, and the number of the last write of each.
    pub files: Vec<(DataFileId, u64)>,
    /// The number of the last write through the metadata server.
    pub server: Option<u64>,
    /// Set if the metadata server does not know all writes to data servers.
    is_untold: bool,
}

/// Writes that the metadata server does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uncommitted {
    /// The offset behind the last byte.
    pub end: u64,
    /// The number of writes.
    writes: u64,
}

/// A data file: its data server and its handle.
pub(crate) type DataFileId = (DataServerId, Handle);

/// Failed I/O at a data server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IoError {
    pub range: Range<u64>,
    pub error: DeviceError4,
}

/// The way of an I/O.
#[derive(Debug)]
pub(crate) enum Way {
    /// By this layout. The use is counted.
    Layout(Arc<Segment>),
    /// Ask for a layout.
    Ask,
    /// Through the metadata server.
    Server,
}

impl Default for Threshold {
    fn default() -> Self {
        Self { file: [FILE_MIN; 2], io: [0; 2] }
    }
}

impl Threshold {
    /// Returns the threshold that a server has sent for the layouts that this client uses (RFC 8881 §5.12.4). Hints that are missing or malformed
    /// are those of the default.
    pub fn of(hints: &Mdsthreshold4) -> Self {
        let mut threshold = Self::default();
        let of = |layout_type: &Layouttype4| hints.hints.iter().find(|item| item.layout_type == *layout_type);
        let Some(item) = LAYOUT_TYPES.iter().find_map(of) else { return threshold };
        // The hints are 64-bit numbers in the order of their bits.
        let mut numbers =
            item.hintlist.0.chunks_exact(8).map(|bytes| u64::from_be_bytes(bytes.try_into().expect("8 bytes")));
        let [read, write] = &mut threshold.file;
        let [read_io, write_io] = &mut threshold.io;
        for (bit, hint) in (0..).zip([read, write, read_io, write_io]) {
            if item.hintset.contains(bit) {
                let Some(number) = numbers.next() else { break };
                *hint = number;
            }
        }
        threshold
    }
}

impl Held {
    /// Takes note of the size and the threshold of the file that its OPEN has returned.
    pub fn opened(&mut self, size: Option<u64>, threshold: Option<Threshold>) {
        self.size = size.unwrap_or(self.size);
        self.threshold = threshold.unwrap_or(self.threshold);
    }

    /// Decides the way of an I/O.
    pub fn way(&mut self, mode: Layoutiomode4, range: &Range<u64>, now: Instant) -> Way {
        if self.is_ending {
            return Way::Server;
        }
        // A layout for reading can also be used while there is one for writing.
        if let Some(segment) = self.segments.iter().find(|segment| segment.admits(mode, range)) {
            self.uses += 1;
            return Way::Layout(segment.clone());
        }
        let at = index(mode);
        let is_large = match mode {
            Layoutiomode4::Rw => self.size.max(range.end) > self.threshold.file[at],
            _ => self.size > self.threshold.file[at] || range.start > self.threshold.file[at],
        };
        let is_worth = is_large && range.end - range.start >= self.threshold.io[at];
        let is_denied = self.denied[at].is_some_and(|until| now < until);
        if is_worth && !is_denied { Way::Ask } else { Way::Server }
    }

    /// Ends a use. Returns `true` if it was the last one.
    pub fn done(&mut self) -> bool {
        self.uses -= 1;
        self.uses == 0
    }

    /// Adds the layouts of a LAYOUTGET.
    pub fn granted(&mut self, stateid: Stateid4, segments: impl IntoIterator<Item = Segment>) {
        self.stateid = Some(stateid);
        self.segments.extend(segments.into_iter().map(Arc::new));
        self.avoids_server = self.segments.iter().any(|segment| segment.avoids_server());
        self.segments.truncate(SEGMENTS_MAX);
    }

    /// Takes note that there is no layout for some time.
    pub fn deny(&mut self, mode: Layoutiomode4, now: Instant, pause: Duration) {
        self.denied[index(mode)] = Some(now + pause);
    }

    /// Reports whether this layout is still held.
    pub fn holds(&self, segment: &Arc<Segment>) -> bool {
        self.segments.iter().any(|held| Arc::ptr_eq(held, segment))
    }

    /// Reports whether a layout for this mode of a recall is held.
    pub fn holds_mode(&self, mode: Layoutiomode4) -> bool {
        self.segments.iter().any(|segment| mode == Layoutiomode4::Any || segment.mode == mode)
    }

    /// Adopts the seqid of a recall, which is newer than that of the last reply (RFC 8881 §12.5.3). Returns `false` if the
    /// recall is about other layouts.
    pub fn recalled(&mut self, stateid: &Stateid4) -> bool {
        match &mut self.stateid {
            Some(known) if known.other == stateid.other => {
                if stateid.seqid.wrapping_sub(known.seqid) < 1 << 31 {
                    known.seqid = stateid.seqid;
                }
                true
            }
            _ => false,
        }
    }

    /// Removes the layouts, because they were returned or lost. If data have passed to data servers, all data that are not yet on stable
    /// storage get another verifier.
    pub fn end(&mut self) {
        self.stateid = None;
        self.segments.clear();
        self.is_ending = false;
        self.epoch.take_if(|epoch| !epoch.is_of_server);
        self.uncommitted = None;
        self.errors.clear();
        self.usage = Usage::default();
    }

    /// Takes note of a WRITE of bytes up to `end` that all data servers have acknowledged, with the verifiers of data files
    /// whose data are not on stable storage. Returns the verifier for the caller. `needs_commit` tells whether the metadata
    /// server must be told. Calls `change_shown` if another verifier must follow from that of the metadata server from now on.
    pub fn wrote(
        &mut self,
        end: u64,
        unstable: Vec<(DataFileId, Verifier)>,
        needs_commit: bool,
        change_shown: impl FnOnce(),
    ) -> Verifier {
        self.size = self.size.max(end);
        if needs_commit {
            let before = self.uncommitted.unwrap_or(Uncommitted { end: 0, writes: 0 });
            self.uncommitted = Some(Uncommitted { end: before.end.max(end), writes: before.writes + 1 });
        }
        let epoch = self.epoch.get_or_insert_with(Epoch::of_data_servers);
        if epoch.differs(&unstable, None) {
            *epoch = Epoch::of_data_servers();
        }
        if std::mem::take(&mut epoch.is_of_server) {
            change_shown();
        }
        epoch.writes += 1;
        let writes = epoch.writes;
        epoch.unstable.extend(unstable.into_iter().map(|(file, verifier)| (file, (verifier, writes))));
        epoch.verifier
    }

    /// Takes note of a WRITE through the metadata server. Returns the verifier for the caller.
    pub fn wrote_through_server(&mut self, server: OfServer, is_unstable: bool) -> Verifier {
        self.epoch.take_if(|epoch| epoch.differs(&[], Some(server)));
        if !is_unstable {
            return self.epoch.as_ref().map_or(server.shown, |epoch| epoch.verifier);
        }
        let epoch = self.epoch.get_or_insert_with(|| Epoch::of_server(server));
        epoch.writes += 1;
        epoch.server = Some((server.verifier, epoch.writes));
        epoch.verifier
    }

    /// Returns the data that are not on stable storage.
    pub fn unstable(&self) -> Unstable {
        let is_untold = self.uncommitted.is_some();
        let Some(epoch) = &self.epoch else { return Unstable { is_untold, ..Unstable::default() } };
        let files = epoch.unstable.iter().map(|(file, (_, writes))| (file.clone(), *writes)).collect();
        Unstable { files, server: epoch.server.map(|(_, writes)| writes), is_untold }
    }

    /// Reports whether a writer can still hold data that have a verifier that the client would forget with this.
    pub fn has_unstable(&self) -> bool {
        let epoch = self.epoch.as_ref().filter(|epoch| !epoch.is_of_server);
        epoch.is_some_and(|epoch| !epoch.unstable.is_empty() || epoch.server.is_some())
    }

    /// Takes note of the verifiers that COMMIT has returned: those of data files, and that of the metadata server if there was a COMMIT
    /// to it, too. `before` is what was [`unstable`](Self::unstable) before. Returns the verifier for the caller, or `None` if the
    /// layouts have ended meanwhile.
    pub fn committed(
        &mut self,
        verifiers: &[(DataFileId, Verifier)],
        server: Option<OfServer>,
        before: &Unstable,
    ) -> Option<Verifier> {
        let epoch = self.epoch.as_mut()?;
        if epoch.differs(verifiers, server) {
            *epoch = match server {
                Some(server) if epoch.is_of_server => Epoch::of_server(server),
                _ => Epoch::of_data_servers(),
            };
        }
        // A write since then can be later than the COMMIT.
        for (file, writes) in &before.files {
            if epoch.unstable.get(file).is_some_and(|(_, last)| last == writes) {
                epoch.unstable.remove(file);
            }
        }
        if server.is_some() {
            epoch.server.take_if(|(_, last)| before.server == Some(*last));
        }
        Some(epoch.verifier)
    }

    /// Returns how long an I/O that has no layout should wait for one, if it should: the server prefers that, and has a
    /// transient reason for the refusal.
    pub fn wait(&self, mode: Layoutiomode4, now: Instant) -> Option<Duration> {
        let denied = self.denied[index(mode)].map(|until| until.saturating_duration_since(now));
        let wait = if self.is_ending { Some(PAUSE_SHORT) } else { denied.filter(|left| !left.is_zero()) };
        wait.filter(|left| self.avoids_server && *left <= PAUSE_SHORT)
    }

    /// Returns what a LAYOUTCOMMIT must tell the metadata server.
    pub fn uncommitted(&self) -> Option<Uncommitted> {
        self.uncommitted
    }

    /// Takes note that a LAYOUTCOMMIT has told it. Later writes need another one.
    pub fn told(&mut self, told: Uncommitted) {
        self.uncommitted.take_if(|now| *now == told);
    }

    /// Returns the interval at which the server wants statistics, if it wants any.
    pub fn stats_interval(&self) -> Option<Duration> {
        self.segments.iter().filter_map(|segment| segment.stats_interval()).min()
    }

    /// Stores an error for the report to the server.
    pub fn failed(&mut self, errors: impl IntoIterator<Item = IoError>) {
        let room = ERRORS_MAX.saturating_sub(self.errors.len());
        self.errors.extend(errors.into_iter().take(room));
    }

    /// Returns the errors to report.
    pub fn take_errors(&mut self) -> Vec<IoError> {
        std::mem::take(&mut self.errors)
    }
}

impl Unstable {
    /// Reports whether COMMIT at data servers, or LAYOUTCOMMIT, is needed.
    pub fn is_at_data_servers(&self) -> bool {
        !self.files.is_empty() || self.is_untold
    }
}

impl Epoch {
    /// Begins with a write to data servers.
    fn of_data_servers() -> Self {
        let (unstable, server) = Default::default();
        Self { verifier: entropy::random(), is_of_server: false, unstable, server, writes: 0 }
    }

    /// Begins with a write through the metadata server.
    fn of_server(server: OfServer) -> Self {
        Self { verifier: server.shown, is_of_server: true, ..Self::of_data_servers() }
    }

    /// Reports whether one of these verifiers is not that of an earlier write to the same data file, or through the metadata server.
    fn differs(&self, verifiers: &[(DataFileId, Verifier)], server: Option<OfServer>) -> bool {
        let differs = |(file, verifier): &(DataFileId, Verifier)| {
            self.unstable.get(file).is_some_and(|(known, _)| known != verifier)
        };
        let server_differs = server.zip(self.server).is_some_and(|(now, (known, _))| now.verifier != known);
        server_differs || verifiers.iter().any(differs)
    }
}

fn index(mode: Layoutiomode4) -> usize {
    usize::from(mode == Layoutiomode4::Rw)
}

/// The types of layouts that this client uses, the preferred one first.
pub(super) const LAYOUT_TYPES: [Layouttype4; 2] = [Layouttype4::FLEX_FILES, Layouttype4::NFSV4_1_FILES];
/// The time without a LAYOUTGET after a transient refusal.
pub(super) const PAUSE_SHORT: Duration = Duration::from_millis(500);
/// The time without a LAYOUTGET after another refusal, or after layouts whose data servers have failed.
pub(super) const PAUSE_LONG: Duration = Duration::from_secs(30);
/// The size from which on a layout is worth asking for, if the server has not sent a threshold.
const FILE_MIN: u64 = 64 << 10;
/// Maximum number of layouts of a file that are used.
const SEGMENTS_MAX: usize = 64;
/// Maximum number of errors that are reported together.
const ERRORS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use nfs::v4::{Deviceid4, location::ThresholdItem4};

    use super::{super::segment::tests::granted, *};

    const STATEID: Stateid4 = Stateid4 { seqid: 1, other: [1; 12] };
    const READ: Layoutiomode4 = Layoutiomode4::Read;
    const RW: Layoutiomode4 = Layoutiomode4::Rw;

    fn segment(mode: Layoutiomode4) -> Segment {
        Segment::flexible(&granted(mode, 0, 0, &[&[(1, 1)]])).unwrap()
    }

    fn large() -> Held {
        let mut held = Held::default();
        held.opened(Some(1 << 20), None);
        held
    }

    fn file(number: u8) -> DataFileId {
        (DataServerId { device: Deviceid4([number; 16]), index: 0 }, Handle::from("object"))
    }

    #[test]
    fn small_files_and_small_accesses_go_through_the_server() {
        let now = Instant::now();
        let mut held = Held::default();
        held.opened(Some(FILE_MIN), None);
        assert!(matches!(held.way(READ, &(0..1 << 20), now), Way::Server));
        assert!(matches!(held.way(RW, &(0..FILE_MIN), now), Way::Server));
        assert!(matches!(held.way(RW, &(0..FILE_MIN + 1), now), Way::Ask), "the file becomes large");
        assert!(matches!(held.way(READ, &(FILE_MIN + 1..FILE_MIN + 2), now), Way::Ask), "the file has grown");
        let hintlist = [100_u64, 4096].map(u64::to_be_bytes).concat();
        let item = ThresholdItem4 {
            layout_type: Layouttype4::FLEX_FILES,
            hintset: [0, 3].into_iter().collect(),
            hintlist: bytes::Bytes::from(hintlist).into(),
        };
        held.opened(Some(101), Some(Threshold::of(&Mdsthreshold4 { hints: vec![item] })));
        assert!(matches!(held.way(READ, &(0..10), now), Way::Ask));
        assert!(matches!(held.way(RW, &(1 << 20..(1 << 20) + 4095), now), Way::Server));
        assert!(matches!(held.way(RW, &(1 << 20..(1 << 20) + 4096), now), Way::Ask));
    }

    #[test]
    fn layout_is_used_until_it_is_being_returned() {
        let (mut held, now) = (large(), Instant::now());
        held.granted(STATEID, [segment(RW)]);
        let Way::Layout(used) = held.way(READ, &(0..1), now) else { panic!() };
        assert!(
            held.holds(&used) && held.holds_mode(RW) && held.holds_mode(Layoutiomode4::Any) && !held.holds_mode(READ)
        );
        held.is_ending = true;
        assert!(matches!(held.way(READ, &(0..1), now), Way::Server));
        assert!(held.done());
        held.end();
        assert!(!held.holds(&used) && held.stateid.is_none());
        assert!(matches!(held.way(READ, &(0..1), now), Way::Ask));
    }

    #[test]
    fn refusal_counts_for_its_mode_and_time() {
        let (mut held, now) = (large(), Instant::now());
        held.deny(RW, now, Duration::from_secs(1));
        assert!(matches!(held.way(RW, &(0..1), now), Way::Server));
        assert!(matches!(held.way(READ, &(0..1), now), Way::Ask));
        assert!(matches!(held.way(RW, &(0..1), now + Duration::from_secs(1)), Way::Ask));
    }

    fn wrote(held: &mut Held, end: u64, unstable: Vec<(DataFileId, Verifier)>) -> Verifier {
        held.wrote(end, unstable, true, || panic!("no data have passed through the metadata server"))
    }

    fn of_server(byte: u8) -> OfServer {
        OfServer { verifier: [byte; 8], shown: [byte ^ 0xf0; 8] }
    }

    #[test]
    fn verifier_changes_with_that_of_a_data_server_and_with_the_layout() {
        let mut held = large();
        held.granted(STATEID, [segment(RW)]);
        let first = wrote(&mut held, 10, vec![(file(1), [1; 8]), (file(2), [2; 8])]);
        assert_eq!(wrote(&mut held, 20, vec![(file(1), [1; 8])]), first);
        let before = held.unstable();
        wrote(&mut held, 30, vec![(file(2), [2; 8])]);
        assert_eq!(held.committed(&[(file(1), [1; 8]), (file(2), [2; 8])], None, &before), Some(first));
        let left: Vec<_> = held.unstable().files.into_iter().map(|(file, _)| file).collect();
        assert_eq!(left, [file(2)], "the last write may be later than the COMMIT");
        let before = held.unstable();
        let restarted = held.committed(&[(file(2), [3; 8])], None, &before).unwrap();
        assert_ne!(restarted, first);
        assert!(held.unstable().files.is_empty(), "everything is written again");
        assert_eq!(wrote(&mut held, 20, vec![(file(2), [3; 8])]), restarted);
        assert_ne!(wrote(&mut held, 30, vec![(file(2), [4; 8])]), restarted);
        held.end();
        assert_eq!(held.committed(&[], None, &Unstable::default()), None);
    }

    #[test]
    fn data_of_both_ways_have_one_verifier() {
        let mut held = large();
        let first = held.wrote_through_server(of_server(1), true);
        assert_eq!(first, of_server(1).shown);
        held.granted(STATEID, [segment(RW)]);
        let mut changes = 0;
        assert_eq!(held.wrote(10, vec![(file(1), [1; 8])], true, || changes += 1), first);
        assert_eq!(held.wrote(20, vec![(file(1), [1; 8])], true, || changes += 1), first);
        assert_eq!(changes, 1, "what follows from the verifier of the server changes with the first write");
        let now = OfServer { shown: [9; 8], ..of_server(1) };
        assert_eq!(held.wrote_through_server(now, false), first, "the layout is recalled, for example");
        let before = held.unstable();
        assert!(before.is_at_data_servers() && before.server.is_some());
        held.wrote_through_server(now, true);
        assert_eq!(held.committed(&[(file(1), [1; 8])], Some(now), &before), Some(first));
        let left = held.unstable();
        assert!(left.files.is_empty() && left.server.is_some(), "the last write may be later than the COMMIT");
        assert!(held.has_unstable());
        held.end();
        assert_eq!(held.wrote_through_server(now, true), [9; 8], "the data at the data servers may be lost");
    }

    #[test]
    fn verifier_changes_with_that_of_the_metadata_server() {
        let mut held = large();
        let first = held.wrote_through_server(of_server(1), true);
        let before = held.unstable();
        assert!(!before.is_at_data_servers() && !held.has_unstable(), "the client can forget it");
        held.end();
        assert_eq!(held.committed(&[], Some(of_server(1)), &before), Some(first), "there was no layout");
        held.wrote_through_server(of_server(1), true);
        let before = held.unstable();
        assert_eq!(held.committed(&[], Some(of_server(2)), &before), Some(of_server(2).shown));
        assert_eq!(held.wrote_through_server(of_server(2), true), of_server(2).shown);
        assert_eq!(held.wrote_through_server(of_server(3), true), of_server(3).shown);
        held.granted(STATEID, [segment(RW)]);
        assert_eq!(held.wrote(10, vec![(file(1), [1; 8])], true, || ()), of_server(3).shown);
        let before = held.unstable();
        let lost = held.committed(&[(file(1), [1; 8])], Some(of_server(4)), &before).unwrap();
        assert!(lost != of_server(3).shown && lost != of_server(4).shown, "all data are written again");
    }

    #[test]
    fn writes_after_a_layoutcommit_need_another_one() {
        let mut held = large();
        held.granted(STATEID, [segment(RW)]);
        held.wrote(5, Vec::new(), false, || ());
        assert_eq!(held.uncommitted(), None);
        wrote(&mut held, 9, Vec::new());
        wrote(&mut held, 7, Vec::new());
        let told = held.uncommitted().unwrap();
        assert_eq!(told.end, 9);
        wrote(&mut held, 3, Vec::new());
        held.told(told);
        let told = held.uncommitted().expect("the last write was not told");
        held.told(told);
        assert_eq!(held.uncommitted(), None);
    }

    #[test]
    fn newest_seqid_is_used() {
        let mut held = large();
        held.granted(Stateid4 { seqid: 5, ..STATEID }, [segment(READ)]);
        assert!(held.recalled(&Stateid4 { seqid: 6, ..STATEID }));
        assert!(held.recalled(&Stateid4 { seqid: 4, ..STATEID }));
        assert_eq!(held.stateid.unwrap().seqid, 6);
        assert!(!held.recalled(&Stateid4 { seqid: 7, other: [9; 12] }));
    }

    #[test]
    fn server_that_avoids_io_is_asked_again_after_a_transient_refusal() {
        let (mut held, now) = (large(), Instant::now());
        let avoiding = granted(RW, nfs::v4::layout::flex::FF_FLAGS_NO_IO_THRU_MDS, 0, &[&[(1, 1)]]);
        held.granted(STATEID, [Segment::flexible(&avoiding).unwrap()]);
        held.end();
        assert_eq!(held.wait(RW, now), None);
        held.deny(RW, now, PAUSE_SHORT);
        assert_eq!((held.wait(RW, now), held.wait(READ, now)), (Some(PAUSE_SHORT), None));
        held.deny(RW, now, PAUSE_SHORT * 2);
        assert_eq!(held.wait(RW, now), None, "the refusal lasts");
        held.granted(STATEID, [segment(RW)]);
        held.deny(RW, now, PAUSE_SHORT);
        assert_eq!(held.wait(RW, now), None, "the server does not ask for it any more");
    }

    #[test]
    fn errors_are_bounded() {
        let mut held = large();
        let error = DeviceError4 {
            deviceid: Deviceid4([1; 16]),
            status: nfs::v4::Nfsstat4::NxIo,
            opnum: nfs::v4::Opnum4::Write,
        };
        held.failed((0..100).map(|at| IoError { range: at..at + 1, error }));
        assert_eq!((held.take_errors().len(), held.take_errors().len()), (ERRORS_MAX, 0));
    }
}
