//! A tree over memory, data servers in memory, and clients that use them directly.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use buf::{Pool, Rope};
use nfs::v4::layout::stripe::{Packing, Piece, Striping};
use parking_lot::Mutex;
use pnfs::{DataServers, Earlier, Index, Options, Pnfs, Record, ServerId, Stripes, record::Object};
use vfs::{
    Attr, Caller, CompletionSlot, CreateMode, Cred, Handle, Layouts, Name, Report, Result, SetAttr, Stability, Vfs,
    VfsError,
    interpose::{Interpose, Interposed, Operation},
    layout::*,
    memory::{Memory, MemoryOptions},
    pending::drive,
};

use crate::servers::{Servers, Storage};

/// The tree.
pub struct World {
    pub pnfs: Pnfs,
    pub servers: Servers,
    pub events: Arc<Events>,
    pub disk: Arc<Disk>,
    inner: Arc<dyn Vfs>,
    pub index: Storage,
    stripes: Stripes,
    layouts: Option<LayoutKind>,
}

/// The disk of the metadata server, which can fail.
pub struct Disk {
    memory: Memory,
    /// The number of the next COMMITs that fail.
    pub failing: AtomicU32,
    /// The number of the next changes of extended attributes that fail.
    pub refusing: AtomicU32,
    /// The number of the next changes of attributes that fail.
    pub refusing_attributes: AtomicU32,
    /// Set when an attribute was set since the last COMMIT.
    pub unsynced: AtomicBool,
    before: Mutex<Option<Before>>,
}

/// Something that runs once: before an operation with this name, after so many others with this name.
type Before = (&'static str, u32, Box<dyn FnOnce() + Send>);

impl Disk {
    /// Runs something once, before the operation with this name that comes after `others` with this name.
    pub fn before(&self, operation: &'static str, others: u32, run: impl FnOnce() + Send + 'static) {
        *self.before.lock() = Some((operation, others, Box::new(run)));
    }

    /// Reports whether that has run.
    pub fn has_run(&self) -> bool {
        self.before.lock().is_none()
    }

    fn begin(&self, operation: &str) {
        let due = {
            let mut before = self.before.lock();
            match &mut *before {
                Some((name, 0, _)) if *name == operation => before.take(),
                Some((name, others, _)) if *name == operation => {
                    *others -= 1;
                    None
                }
                _ => None,
            }
        };
        due.into_iter().for_each(|(_, _, run)| run());
    }
}

struct Mounted(Arc<Disk>);

impl Interpose for Mounted {
    fn inner(&self) -> &dyn Vfs {
        &self.0.memory
    }

    fn operation<T: Clone + Send + 'static>(
        &self,
        caller: &Caller<'_>,
        operation: Operation,
        run: &mut dyn FnMut(&Caller<'_>) -> Result<T>,
    ) -> Result<T> {
        self.0.begin(operation.name);
        let fails = |count: &AtomicU32| count.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1)).is_ok();
        match operation.name {
            "commit" if fails(&self.0.failing) => return Err(VfsError::Io),
            "set_xattr" if fails(&self.0.refusing) => return Err(VfsError::Io),
            "setattr" if fails(&self.0.refusing_attributes) => return Err(VfsError::Io),
            "commit" => self.0.unsynced.store(false, Relaxed),
            "setattr" | "set_xattr" => self.0.unsynced.store(true, Relaxed),
            _ => {}
        }
        run(caller)
    }
}

/// The events of the tree.
#[derive(Default)]
pub struct Events(Mutex<Vec<LayoutEvent>>);

impl LayoutEvents for Events {
    fn notify(&self, event: LayoutEvent) {
        self.0.lock().push(event);
    }
}

impl Events {
    /// Returns the modes of the recalls since the last call.
    pub fn recalls(&self) -> Vec<LayoutModes> {
        self.take(|event| match event {
            LayoutEvent::Recall { modes, .. } => Some(*modes),
            _ => None,
        })
    }

    /// Returns the devices that were removed since the last call.
    pub fn removed_devices(&self) -> Vec<LayoutDeviceId> {
        self.take(|event| match event {
            LayoutEvent::DeviceRemoved { device, .. } => Some(*device),
            _ => None,
        })
    }

    fn take<T>(&self, of: impl Fn(&LayoutEvent) -> Option<T>) -> Vec<T> {
        let mut events = self.0.lock();
        let taken = events.iter().filter_map(&of).collect();
        events.retain(|event| of(event).is_none());
        taken
    }
}

/// A layout.
#[derive(Debug, PartialEq, Eq)]
pub struct Striped {
    pub unit: u64,
    /// The copies of the stripes in each mirror.
    pub mirrors: Vec<Vec<Copy>>,
}

/// A copy in a layout: the object, and the user as whom the client writes.
pub type Copy = (Object, u32);

impl World {
    /// A tree whose files have one stripe, with three data servers.
    pub fn new() -> Self {
        Self::with(Stripes::ONE, 3)
    }

    /// A tree whose files have two copies with these stripes.
    pub fn with(stripes: Stripes, servers: u32) -> Self {
        Self::of(LayoutKind::Flexible, stripes, servers)
    }

    /// A tree that grants layouts of this kind. Its files have two copies if such layouts have copies.
    pub fn of(layouts: LayoutKind, stripes: Stripes, servers: u32) -> Self {
        let memory = Memory::new(MemoryOptions { mode: 0o777, ..Default::default() });
        let (failing, refusing, refusing_attributes, unsynced, before) = Default::default();
        let disk = Arc::new(Disk { memory, failing, refusing, refusing_attributes, unsynced, before });
        Self::open(disk, Servers::new(servers), Storage::default(), (stripes, Some(layouts)), Earlier::NOTHING)
    }

    /// Trees with and without stripes. In one, a data server has copies of two stripes of a file, and in another one not.
    pub fn each() -> impl Iterator<Item = Self> {
        let stripes = |count| Stripes::new(700, count).unwrap();
        [(Stripes::ONE, 3), (stripes(2), 4), (stripes(3), 3)]
            .into_iter()
            .map(|(stripes, servers)| Self::with(stripes, servers))
    }

    fn open(
        disk: Arc<Disk>,
        servers: Servers,
        index: Storage,
        (stripes, layouts): (Stripes, Option<LayoutKind>),
        earlier: Earlier,
    ) -> Self {
        let mirrors = if layouts == Some(LayoutKind::Files) { 1 } else { 2 };
        let threshold = 1000;
        let options = Options { mirrors, stripes, threshold, layouts, earlier };
        let inner: Arc<dyn Vfs> = Arc::new(Interposed(Mounted(disk.clone())));
        let opened = Index::with_backend(index.clone()).unwrap();
        let pnfs = Pnfs::new(inner.clone(), Arc::new(servers.clone()), opened, options).unwrap();
        let events = Arc::new(Events::default());
        pnfs.subscribe(events.clone());
        Self { pnfs, servers, events, disk, inner, index, stripes, layouts }
    }

    /// Ends the tree without warning, and opens it again.
    pub fn crash(self) -> Self {
        self.crash_before(Earlier::NOTHING)
    }

    /// Ends the tree without warning, and opens it again while this may be left of the process.
    pub fn crash_before(self, earlier: Earlier) -> Self {
        let layouts = self.layouts;
        self.crash_with(layouts, earlier)
    }

    /// Ends the tree without warning, and opens it again as one that grants layouts of this kind, or none.
    pub fn crash_to(self, layouts: Option<LayoutKind>) -> Self {
        self.crash_with(layouts, Earlier::NOTHING)
    }

    fn crash_with(self, layouts: Option<LayoutKind>, earlier: Earlier) -> Self {
        let Self { pnfs, servers, disk, mut index, stripes, .. } = self;
        index.crash();
        drop(pnfs);
        Self::open(disk, servers, index, (stripes, layouts), earlier)
    }

    /// Ends the tree without warning, and opens it again with an empty index.
    pub fn crash_without_index(self) -> Self {
        let Self { pnfs, servers, disk, stripes, layouts, .. } = self;
        drop(pnfs);
        Self::open(disk, servers, Storage::default(), (stripes, layouts), Earlier::NOTHING)
    }

    /// Removes a name in the directory of the tree, as a program on the metadata server does.
    pub fn remove_below(&self, dir: &Handle, name: &str) {
        let name = Name::new(name.as_bytes()).unwrap();
        self.run(|caller| self.inner.remove(caller, dir, name)).unwrap();
    }

    /// Damages the record of a file.
    pub fn damage(&self, file: &Handle) {
        let name = Name::new(b"slipway.layout").unwrap();
        self.run(|caller| self.inner.set_xattr(caller, file, name, b"damaged", vfs::XattrMode::Either)).unwrap();
    }

    /// Returns the attributes of an object in the inner file system.
    pub fn inner_attr(&self, object: &Handle) -> Attr {
        self.run(|caller| self.inner.getattr(caller, object)).unwrap()
    }

    /// Gives a file in the inner file system a size, as a power failure does that undoes a change of it.
    pub fn set_inner_size(&self, file: &Handle, size: u64) {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.run(|caller| self.inner.setattr(caller, file, &set, None)).unwrap();
    }

    /// Runs an operation to its end.
    pub fn run<T>(&self, operation: impl FnMut(&Caller<'_>) -> Result<T>) -> Result<T> {
        let root = Cred::root();
        drive(&Caller::blocking(&root), operation)
    }

    /// Starts a pending operation.
    pub fn start<T>(&self, operation: impl Fn(&Caller<'_>) -> Result<T>) -> impl FnMut() -> Poll<Result<T>> {
        let slot = CompletionSlot::default();
        let mut future = None;
        move || loop {
            let root = Cred::root();
            let Some(waiting) = &mut future else {
                match operation(&Caller { completion: Some(&slot), ..Caller::nonblocking(&root) }) {
                    Err(VfsError::Pending) => future = slot.take_future(),
                    done => return Poll::Ready(done),
                }
                continue;
            };
            match pin!(waiting).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(completion) => {
                    slot.complete(completion);
                    future = None;
                }
            }
        }
    }

    pub fn create(&self, name: &str) -> Handle {
        let (root, mode) = (self.pnfs.root(), CreateMode::Unchecked(SetAttr::default()));
        let name = Name::new(name.as_bytes()).unwrap();
        self.run(|caller| self.pnfs.create(caller, &root, name, &mode)).unwrap().handle
    }

    pub fn write(&self, file: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        self.write_with(file, offset, data, Stability::FileSync)
    }

    pub fn write_with(&self, file: &Handle, offset: u64, data: &[u8], stability: Stability) -> Result<()> {
        let data = Rope::from(bytes::Bytes::copy_from_slice(data));
        self.run(|caller| self.pnfs.write(caller, file, offset, &data, stability, Report::Nothing)).map(drop)
    }

    pub fn read(&self, file: &Handle) -> Result<Vec<u8>> {
        let pool = Pool::default();
        let read = self.run(|caller| self.pnfs.read(caller, file, 0, 1 << 20, &pool, false))?;
        Ok(read.data.to_bytes().unwrap().to_vec())
    }

    pub fn attr(&self, file: &Handle) -> Attr {
        self.run(|caller| self.pnfs.getattr(caller, file)).unwrap()
    }

    pub fn size(&self, file: &Handle) -> u64 {
        self.attr(file).size
    }

    pub fn truncate(&self, file: &Handle, size: u64) -> Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.run(|caller| self.pnfs.setattr(caller, file, &set, None)).map(drop)
    }

    /// Returns the record, which is durable.
    pub fn record(&self, file: &Handle) -> Record {
        let name = Name::new(b"slipway.layout").unwrap();
        Record::decode(&self.run(|caller| self.inner.xattr(caller, file, name)).unwrap()).unwrap()
    }

    pub fn request(holder: u64, mode: LayoutMode) -> LayoutRequest {
        LayoutRequest {
            holder: LayoutHolder(holder),
            kind: LayoutKind::Flexible,
            mode,
            range: LayoutRange::ALL,
            transport: DataTransport::Tcp,
            with_open: false,
            striped_copies: false,
        }
    }

    /// Returns the copies of a new layout for a client that does not accept stripes.
    pub fn grant(&self, file: &Handle, holder: u64, mode: LayoutMode) -> Result<Vec<Copy>> {
        let layout = self.grant_request(file, &Self::request(holder, mode))?;
        assert!(layout.unit == 0 && layout.mirrors.iter().all(|mirror| mirror.len() == 1));
        Ok(layout.mirrors.into_iter().flatten().collect())
    }

    /// Returns a new layout for a client that accepts stripes.
    pub fn grant_striped(&self, file: &Handle, holder: u64, mode: LayoutMode) -> Result<Striped> {
        self.grant_request(file, &LayoutRequest { striped_copies: true, ..Self::request(holder, mode) })
    }

    /// Returns a new files layout.
    pub fn grant_files(&self, file: &Handle, holder: u64, mode: LayoutMode) -> Result<FilesLayout> {
        let request = LayoutRequest { kind: LayoutKind::Files, ..Self::request(holder, mode) };
        match self.run(|caller| self.pnfs.grant(caller, file, &request))? {
            Layout::Files(layout) => Ok(layout),
            layout => panic!("a files layout was asked for: {layout:?}"),
        }
    }

    /// Writes as a client of NFS does that has a files layout. Returns the number of writes that failed.
    pub fn client_write_files(&self, layout: &FilesLayout, offset: u64, data: &[u8]) -> usize {
        let packing = if layout.dense { Packing::Dense } else { Packing::Sparse };
        let places = Striping::new(layout.stripe_unit.into(), layout.handles.len() as u32, packing).unwrap();
        let places = places.with_pattern(layout.first_stripe, layout.pattern_offset).unwrap();
        let write = |piece: &Piece| {
            let (object, user) = layout.handles[piece.stripe as usize].split_at(16);
            // The device names the data server of each stripe.
            let server = ServerId(layout.device.0[piece.stripe as usize].into());
            let object = Object { server, id: u128::from_be_bytes(object.try_into().unwrap()) };
            let from = (piece.offset - offset) as usize;
            let data = &data[from..from + piece.len as usize];
            self.servers.client_write(object, u32::from_be_bytes(user.try_into().unwrap()), piece.data_offset, data)
        };
        places.pieces(offset..offset + data.len() as u64).filter(|piece| write(piece).is_err()).count()
    }

    fn grant_request(&self, file: &Handle, request: &LayoutRequest) -> Result<Striped> {
        let Layout::Flexible(layout) = self.run(|caller| self.pnfs.grant(caller, file, request))? else {
            panic!("the layout must be flexible")
        };
        let copy = |data_file: &DataFile| {
            let id = u128::from_be_bytes(data_file.handle[..].try_into().unwrap());
            (Object { server: self.servers.server_of(data_file.device).unwrap(), id }, data_file.uid)
        };
        let mirrors = layout.mirrors.iter().map(|mirror| mirror.data_files.iter().map(copy).collect());
        Ok(Striped { unit: layout.stripe_unit, mirrors: mirrors.collect() })
    }

    /// Writes as a client of NFS does that has a layout: to all mirrors. Returns the number of writes that failed.
    pub fn client_write(&self, layout: &Striped, offset: u64, data: &[u8]) -> usize {
        let writes = layout.mirrors.iter().map(|mirror| self.client_write_mirror(layout.unit, mirror, offset, data));
        writes.sum()
    }

    /// Writes to all mirrors, but not durably.
    pub fn client_write_unstable(&self, layout: &Striped, offset: u64, data: &[u8]) {
        for mirror in &layout.mirrors {
            assert_eq!(self.write_mirror((layout.unit, mirror), offset, data, Stability::Unstable), 0);
        }
    }

    pub fn client_write_mirror(&self, unit: u64, mirror: &[Copy], offset: u64, data: &[u8]) -> usize {
        self.write_mirror((unit, mirror), offset, data, Stability::FileSync)
    }

    fn write_mirror(&self, (unit, mirror): (u64, &[Copy]), offset: u64, data: &[u8], stability: Stability) -> usize {
        let places = Striping::new(unit, mirror.len() as u32, Packing::Sparse).unwrap();
        let pieces = places.pieces(offset..offset + data.len() as u64);
        let write = |piece: &Piece| {
            let from = (piece.offset - offset) as usize;
            let data = &data[from..from + piece.len as usize];
            self.servers.client_write_with(mirror[piece.stripe as usize], piece.data_offset, data, stability)
        };
        pieces.filter(|piece| write(piece).is_err()).count()
    }

    pub fn release(&self, file: &Handle, holder: u64, modes: LayoutModes) {
        self.run(|caller| self.pnfs.release(caller, file, LayoutHolder(holder), modes)).unwrap();
    }

    pub fn fence(&self, file: &Handle, holder: u64, modes: LayoutModes) -> Result<()> {
        self.run(|caller| self.pnfs.fence(caller, file, LayoutHolder(holder), modes))
    }

    pub fn report(&self, file: &Handle, holder: u64, object: Object, error: DataError) {
        self.try_report(file, holder, object, error).unwrap();
    }

    pub fn try_report(&self, file: &Handle, holder: u64, object: Object, error: DataError) -> Result<()> {
        let failure = DataFailure {
            range: LayoutRange::ALL,
            device: self.servers.device_id(object.server, DataTransport::Tcp).unwrap(),
            operation: DataOperation::Write,
            error,
        };
        self.run(|caller| self.pnfs.report(caller, file, Some(LayoutHolder(holder)), &[failure]))
    }

    pub fn commit(&self, file: &Handle, holder: u64, size: u64) {
        self.try_commit(file, holder, size).unwrap();
    }

    pub fn try_commit(&self, file: &Handle, holder: u64, size: u64) -> Result<()> {
        let commit = LayoutCommit { range: LayoutRange::ALL, size: Some(size), mtime: None };
        let holder = Some(LayoutHolder(holder));
        self.run(|caller| Layouts::commit(&self.pnfs, caller, file, holder, &commit)).map(drop)
    }

    /// Executes the upkeep until nothing is left, or nothing more can be done.
    pub fn upkeep(&self) {
        (0..3).for_each(|_| self.upkeep_once());
    }

    /// Executes one round of the upkeep.
    pub fn upkeep_once(&self) {
        assert!(step(pin!(self.pnfs.upkeep())), "the upkeep must not wait");
    }
}

/// Polls once. Returns `true` at the end of the future.
pub fn step(future: Pin<&mut impl Future<Output = ()>>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Unstable writes of callers, which run while copies are moved.
#[derive(Default)]
pub struct Writes<'a>(Vec<Box<dyn FnMut() -> bool + 'a>>);

impl<'a> Writes<'a> {
    /// Begins a write of 100,000 bytes at an offset that depends on `round`. Changes `contents` in the same way.
    pub fn begin(&mut self, world: &'a World, file: &Handle, contents: &mut [u8], round: usize) {
        self.begin_at(world, file, contents, (round * 777_777 % (contents.len() - 100_000), round as u8 + 1));
    }

    /// Begins a write of 100,000 bytes with this value at an offset. Changes `contents` in the same way.
    pub fn begin_at(&mut self, world: &'a World, file: &Handle, contents: &mut [u8], (offset, value): (usize, u8)) {
        let data = vec![value; 100_000];
        contents[offset..offset + data.len()].copy_from_slice(&data);
        let rope = Rope::from(bytes::Bytes::from(data));
        let (file, tree) = (file.clone(), world.pnfs.clone());
        let mut write = world
            .start(move |caller| tree.write(caller, &file, offset as u64, &rope, Stability::Unstable, Report::Nothing));
        if write().is_pending() {
            self.0.push(Box::new(move || write().is_pending()));
        }
    }

    /// Continues all writes. Returns the number of those that have no result yet.
    pub fn advance(&mut self) -> usize {
        self.0.retain_mut(|is_pending| is_pending());
        self.0.len()
    }
}
