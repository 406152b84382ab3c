//! [`Holders`]: who holds which layout, and which layouts are being recalled.

use std::sync::Arc;

use entropy::{HashMap, HashSet};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use vfs::{
    Handle, Time,
    layout::{LayoutCaps, LayoutDeviceId, LayoutEvent, LayoutEvents, LayoutHolder, LayoutModes, LayoutThreshold},
};

use crate::core::Options;

/// The layouts of a tree that are granted.
pub struct Holders {
    pub caps: LayoutCaps,
    files: Mutex<HashMap<Handle, Held>>,
    events: Mutex<Option<Arc<dyn LayoutEvents>>>,
    removed: Notify,
    former: Mutex<Former>,
}

/// The layouts that an earlier process has granted for reading. Their holders are not known.
struct Former {
    /// The time at which the leases of their clients have ended, or `None` after it.
    until: Option<Instant>,
    /// Files with a copy that may be in such a layout and must not be read any more.
    files: HashSet<Handle>,
}

/// The layouts of a file that are granted.
#[derive(Default)]
struct Held {
    holders: HashMap<LayoutHolder, Holding>,
    /// The modes that are being recalled.
    recalled: LayoutModes,
    /// `true` if the file was truncated while a holder had a layout to write.
    cut: bool,
    /// The time of the first of the layouts to write, or of a later change of the modification time by a caller.
    written_since: Option<Time>,
}

/// The layout of one holder.
#[derive(Default)]
struct Holding {
    modes: LayoutModes,
    /// The devices of all its layouts of the file, also of those that others have replaced.
    devices: Vec<LayoutDeviceId>,
    /// Its writes, if it has a layout to write.
    writing: Option<Writing>,
}

/// The writes of a holder of a layout to write.
#[derive(Clone, Copy)]
pub struct Writing {
    /// The time of the grant.
    pub granted: Instant,
    /// The time of day of the grant, in nanoseconds. The clocks of data servers may be slow by [`CLOCK_DIFFERENCE`].
    begun: u64,
    commits: Commits,
}

impl Writing {
    /// The writes with a layout that is granted now.
    fn begin() -> Self {
        let begun = Time::now().as_nanoseconds().saturating_sub(CLOCK_DIFFERENCE);
        Self { granted: Instant::now(), begun, commits: Commits::None }
    }

    /// Reports whether a write to an object at this time may be one that the holder has not committed.
    pub fn may_lack(&self, written: Time) -> bool {
        written.as_nanoseconds() > if let Commits::Executed(last) = self.commits { last } else { self.begun }
    }
}

/// The results of the LAYOUTCOMMITs of a holder.
#[derive(Clone, Copy)]
enum Commits {
    /// It has sent none.
    None,
    /// All were executed. The last one has arrived at this time of day, in nanoseconds.
    Executed(u64),
    /// One failed, or the holder had an error at a data server. It may have written more than it has committed.
    Failed,
}

impl Held {
    fn modes(&self) -> LayoutModes {
        self.holders.values().fold(LayoutModes::NONE, |all, Holding { modes, .. }| LayoutModes {
            read: all.read || modes.read,
            write: all.write || modes.write,
        })
    }
}

impl Holders {
    pub fn new(options: &Options) -> Self {
        let size = Some(options.threshold);
        let block = options.stripes.unit().try_into().ok().filter(|unit| *unit > 0).unwrap_or(BLOCK);
        let caps = LayoutCaps {
            kinds: options.layouts.into_iter().collect(),
            block_size: block,
            alignment: block,
            threshold: Some(LayoutThreshold { read_size: size, write_size: size, ..LayoutThreshold::default() }),
            recalled_by_truncation: true,
        };
        let lasts = options.layouts.is_some() && !options.earlier.layouts.is_zero();
        let until = lasts.then(|| Instant::now() + options.earlier.layouts);
        let former = Mutex::new(Former { until, files: HashSet::default() });
        Self { caps, files: Mutex::default(), events: Mutex::default(), removed: Notify::new(), former }
    }

    /// Returns the time at which clients do not use layouts of an earlier process any more, or `None` after it.
    pub fn former(&self) -> Option<Instant> {
        self.former.lock().until
    }

    /// Makes recalls of the layouts of a file wait until clients do not use layouts of an earlier process any more.
    pub fn await_former(&self, file: &Handle) {
        let mut former = self.former.lock();
        if former.until.is_some() {
            former.files.insert(file.clone());
        }
    }

    /// Ends the time in which clients may use layouts of an earlier process.
    pub fn end_former(&self) {
        *self.former.lock() = Former { until: None, files: HashSet::default() };
        self.removed.notify_waiters();
    }

    pub fn subscribe(&self, events: Arc<dyn LayoutEvents>) {
        *self.events.lock() = Some(events);
    }

    /// Adds a mode to a holder. Returns `false` without an effect while layouts of this mode are being recalled, or any layouts if the
    /// new one is for writing: its holder would write while others still read a stale copy.
    pub fn add(&self, file: &Handle, holder: LayoutHolder, modes: LayoutModes, devices: &[LayoutDeviceId]) -> bool {
        let former = self.former.lock().files.contains(file);
        let mut files = self.files.lock();
        let held = files.entry(file.clone()).or_default();
        let free = match modes.write {
            true => held.recalled.is_empty() && !former,
            false => held.recalled.intersect(modes).is_empty(),
        };
        if free {
            if modes.write {
                held.written_since.get_or_insert_with(Time::now);
            }
            let of = held.holders.entry(holder).or_default();
            if modes.write {
                of.writing.get_or_insert_with(Writing::begin);
            }
            of.modes = LayoutModes { read: of.modes.read || modes.read, write: of.modes.write || modes.write };
            for device in devices {
                if !of.devices.contains(device) {
                    of.devices.push(*device);
                }
            }
        }
        free
    }

    /// Removes modes of a holder. Returns the modes that the other holders of the file have.
    pub fn remove(&self, file: &Handle, holder: LayoutHolder, modes: LayoutModes) -> LayoutModes {
        let mut files = self.files.lock();
        let Some(held) = files.get_mut(file) else { return LayoutModes::NONE };
        if let Some(of) = held.holders.get_mut(&holder) {
            of.modes = of.modes.without(modes);
            of.writing = of.writing.filter(|_| of.modes.write);
        }
        held.holders.retain(|_, of| !of.modes.is_empty());
        let rest = held.modes();
        held.recalled = held.recalled.intersect(rest);
        held.cut &= rest.write;
        held.written_since = held.written_since.filter(|_| rest.write);
        if held.holders.is_empty() {
            files.remove(file);
        }
        drop(files);
        self.removed.notify_waiters();
        rest
    }

    /// Returns the modes that a holder has.
    pub fn of(&self, file: &Handle, holder: LayoutHolder) -> LayoutModes {
        let files = self.files.lock();
        files.get(file).and_then(|held| held.holders.get(&holder)).map(|of| of.modes).unwrap_or_default()
    }

    /// Notes a LAYOUTCOMMIT of a holder, which has arrived at the time `executed`. That is `None` if it failed, or if the holder had an error at
    /// a data server.
    pub fn note_commit(&self, file: &Handle, holder: LayoutHolder, executed: Option<Time>) {
        let mut files = self.files.lock();
        let of = files.get_mut(file).and_then(|held| held.holders.get_mut(&holder));
        let Some(writing) = of.and_then(|of| of.writing.as_mut()) else { return };
        writing.commits = match (executed, writing.commits) {
            (None, _) | (Some(_), Commits::Failed) => Commits::Failed,
            (Some(time), Commits::None | Commits::Executed(_)) => Commits::Executed(time.as_nanoseconds()),
        };
    }

    /// Returns the writes of a holder, if it has a layout to write.
    pub fn writing(&self, file: &Handle, holder: LayoutHolder) -> Option<Writing> {
        self.files.lock().get(file).and_then(|held| held.holders.get(&holder)).and_then(|of| of.writing)
    }

    /// Reports whether a holder that returns a layout to write has committed writes, and so normally all of them: Linux's client and ours
    /// execute LAYOUTCOMMIT before they return a layout by themselves. One whose layout is recalled may not have had time for that.
    pub fn has_committed(&self, file: &Handle, holder: LayoutHolder) -> bool {
        let files = self.files.lock();
        let Some(held) = files.get(file).filter(|held| !held.recalled.write) else { return false };
        held.holders
            .get(&holder)
            .is_some_and(|of| of.writing.is_some_and(|writing| matches!(writing.commits, Commits::Executed(_))))
    }

    /// Reports whether a layout has a device.
    pub fn has_device(&self, device: &LayoutDeviceId) -> bool {
        let files = self.files.lock();
        files.values().flat_map(|held| held.holders.values()).any(|of| of.devices.contains(device))
    }

    /// Returns the files with a layout that has one of these devices.
    pub fn with_devices(&self, devices: &[LayoutDeviceId]) -> Vec<Handle> {
        let files = self.files.lock();
        let has_one = |held: &Held| held.holders.values().flat_map(|of| &of.devices).any(|id| devices.contains(id));
        files.iter().filter(|(_, held)| has_one(held)).map(|(file, _)| file.clone()).collect()
    }

    /// Passes an event on.
    pub fn notify(&self, event: LayoutEvent) {
        if let Some(events) = &*self.events.lock() {
            events.notify(event);
        }
    }

    /// Returns the number of holders of a file, and the modes that they have.
    pub fn count(&self, file: &Handle) -> (usize, LayoutModes) {
        let files = self.files.lock();
        files.get(file).map_or((0, LayoutModes::NONE), |held| (held.holders.len(), held.modes()))
    }

    /// Notes that a file is truncated by the only client that has a layout to write.
    pub fn note_cut(&self, file: &Handle) {
        if let Some(held) = self.files.lock().get_mut(file) {
            held.cut |= held.modes().write;
        }
    }

    /// Reports whether a file was truncated by a client that has kept its layout to write. Such a client can commit a size of before.
    pub fn is_cut(&self, file: &Handle) -> bool {
        self.files.lock().get(file).is_some_and(|held| held.cut)
    }

    /// Notes that a caller sets the modification time of a file.
    pub fn note_time(&self, file: &Handle) {
        if let Some(since) = self.files.lock().get_mut(file).and_then(|held| held.written_since.as_mut()) {
            *since = Time::now();
        }
    }

    /// Returns the time from which on clients that write directly set the modification time of a file, if one has a layout to write.
    pub fn written_since(&self, file: &Handle) -> Option<Time> {
        self.files.lock().get(file).and_then(|held| held.written_since)
    }

    /// Recalls the layouts of a file that have one of these modes. Returns `false` if there are none, or all were recalled before.
    pub fn recall(&self, file: &Handle, modes: LayoutModes, changed: bool) -> bool {
        let mut files = self.files.lock();
        let Some(held) = files.get_mut(file) else { return false };
        let modes = held.modes().intersect(modes).without(held.recalled);
        if modes.is_empty() {
            return false;
        }
        held.recalled =
            LayoutModes { read: held.recalled.read || modes.read, write: held.recalled.write || modes.write };
        drop(files);
        self.notify(LayoutEvent::Recall { file: file.clone(), modes, changed });
        true
    }

    /// Waits until no layout of a file is being recalled, also of an earlier process.
    pub async fn recalled(&self, file: &Handle) {
        loop {
            let mut removed = std::pin::pin!(self.removed.notified());
            removed.as_mut().enable();
            let former = self.former.lock().files.contains(file);
            if !former && self.files.lock().get(file).is_none_or(|held| held.recalled.is_empty()) {
                return;
            }
            removed.await;
        }
    }
}

/// The nanoseconds by which the clocks of a data server and of this server may differ.
pub const CLOCK_DIFFERENCE: u64 = 100_000_000;
/// The preferred bytes and alignment of an access to a file that is not striped.
const BLOCK: u32 = 1 << 20;
