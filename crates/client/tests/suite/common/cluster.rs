//! A metadata server and data servers in a simulation. Files have copies, which can be striped; the data servers are real servers
//! of NFS whose trees the metadata server also accesses, for data that pass through it.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use buf::Rope;
use bytes::Bytes;
use client::{CreateHow, Mount, SetAttr as Set3};
use nfs::v4::layout::stripe::{Packing, Striping};
use parking_lot::Mutex;
use rpc::{Service, rpcbind::to_universal};
use server::{DataHandle, Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings};
use simnet::Network;
use tokio::task::JoinSet;
use vfs::{
    layout::*,
    memory::{Memory, MemoryOptions},
    *,
};

use super::{
    faulty::Faulty,
    meeting::Meeting,
    moving::{Gone, MoveState, Moving},
    net::Net,
    recorder::Record,
    sim,
    wrapped::wrapped,
};

/// The servers. They run until it is dropped.
pub struct Cluster {
    net: Net,
    /// The address of the metadata server.
    address: SocketAddr,
    pub mds: Arc<Mds>,
    /// The requests that the metadata server has got.
    pub requests: Record,
    /// Holds back the replies of data servers until several have a request.
    pub meeting: Meeting,
    pub data: Vec<Arc<Faulty>>,
    key: HandleKey,
    process: JoinSet<()>,
    data_servers: Vec<DataProcess>,
}

/// The process of a data server, and what survives its restart.
struct DataProcess {
    address: SocketAddr,
    tasks: JoinSet<()>,
    nfs: NfsServer,
    key: HandleKey,
    export: ExportId,
}

/// The form of files.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub mirrors: usize,
    pub stripes: usize,
    pub unit: u64,
    /// The packing of files layouts. Without it, clients get flexible files layouts.
    pub files: Option<Packing>,
    pub flags: Flags,
    /// The numbers of the writes before which each data server loses its unstable data.
    pub restarts: &'static [u64],
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Flags {
    pub no_commit: bool,
    pub no_read: bool,
    pub return_on_close: bool,
    /// The interval of statistics in seconds.
    pub stats_s: u32,
}

pub const MIRRORED: Form = Form {
    mirrors: 2,
    stripes: 1,
    unit: 0,
    files: None,
    flags: Flags { no_commit: false, no_read: false, return_on_close: false, stats_s: 0 },
    restarts: &[],
};

/// The back end of the metadata server.
pub struct Mds {
    inner: Memory,
    data: Vec<Arc<Faulty>>,
    transport: DataTransport,
    form: Form,
    caps: LayoutCaps,
    pub state: Mutex<State>,
    /// The reads and writes of file data that passed through the metadata server.
    pub proxied: AtomicU64,
}

#[derive(Default)]
pub struct State {
    /// Objects that no file uses yet, by data server: the handle for clients, and that of the tree.
    unused: Vec<Vec<(Bytes, Handle)>>,
    /// The addresses of data servers.
    addresses: Vec<SocketAddr>,
    files: HashMap<Handle, Vec<Copy>>,
    pub holders: HashMap<LayoutHolder, LayoutModes>,
    pub granted: u64,
    pub commits: Vec<LayoutCommit>,
    pub reports: Vec<DataFailure>,
    /// The statistics of clients.
    pub usage: Vec<DataUsage>,
    pub releases: u64,
    /// The number of requests for devices of files layouts.
    pub devices: u64,
    pub fences: u64,
    /// No layout is granted.
    pub refuse: Option<VfsError>,
    /// Reports of clients are not acted on.
    pub is_deaf: bool,
    /// The version and minor version of NFS that devices have; version 3 if there is none.
    pub version: Option<(u32, u32)>,
    events: Option<Arc<dyn LayoutEvents>>,
}

/// A copy of a file: the data server and the object of each stripe.
struct Copy {
    objects: Vec<(usize, Bytes, Handle)>,
    stale: bool,
}

impl Cluster {
    pub async fn new(network: Network, servers: usize, form: Form) -> Self {
        Self::on(Net::Sim(network), servers, form).await
    }

    pub async fn on(net: Net, servers: usize, form: Form) -> Self {
        let data: Vec<_> = (0..servers).map(|_| Faulty::new(memory(), form.restarts.to_vec())).collect();
        let threshold = LayoutThreshold { read_size: Some(4096), write_size: Some(4096), ..Default::default() };
        let caps = LayoutCaps {
            kinds: vec![if form.files.is_some() { LayoutKind::Files } else { LayoutKind::Flexible }],
            block_size: 4096,
            alignment: 4096,
            threshold: Some(threshold),
            recalled_by_truncation: true,
        };
        let (state, proxied) = Default::default();
        let transport = net.data_transport();
        let mds = Mds { inner: memory(), data: data.clone(), transport, form, caps, state, proxied };
        let mut cluster = Self {
            net,
            address: sim::SERVER,
            mds: Arc::new(mds),
            requests: Record::default(),
            meeting: Meeting::default(),
            data,
            key: HandleKey::random(),
            process: JoinSet::new(),
            data_servers: Vec::new(),
        };
        for server in 0..servers {
            let objects = cluster.make_objects(server).await;
            let mut state = cluster.mds.state.lock();
            state.unused.push(objects);
            state.addresses.push(cluster.data_servers[server].address);
        }
        cluster.start().await;
        cluster
    }

    /// Starts a data server and makes objects, which belong to the users of layouts.
    async fn make_objects(&mut self, server: usize) -> Vec<(Bytes, Handle)> {
        let started = self.data_process(server, HandleKey::random(), ExportId::unique(), None);
        let url = format!("nfs://{}/m?proto={}&uid=0&gid=0", started.address, self.net.proto()).parse().unwrap();
        self.data_servers.push(started);
        let mount = Mount::connect(&url, &self.net.switch(200)).await.unwrap();
        let (mut objects, cred) = (Vec::new(), Cred::root());
        for number in 0..OBJECTS {
            let name = format!("object{number}");
            let set = Set3 { mode: Some(0o640), uid: Some(WRITER), gid: Some(READERS), ..Set3::default() };
            let how = CreateHow::Unchecked(set);
            let made = mount.protocol().create(mount.root(), name.as_bytes(), how).await.unwrap();
            let (tree, caller) = (&self.data[server].disk, Caller::blocking(&cred));
            let there = tree.lookup(&caller, &tree.root(), Name::new(name.as_bytes()).unwrap()).unwrap().0;
            objects.push((Bytes::copy_from_slice(&made.handle), there));
        }
        objects
    }

    /// Starts the process of a data server. By NFSv4, it says that its file system is `gone`.
    fn data_process(&self, server: usize, key: HandleKey, export: ExportId, gone: Option<Gone>) -> DataProcess {
        let options = ExportOptions { squash: Squash::None, ..Default::default() };
        let tree = Export::new("/m", export, self.data[server].clone(), options).unwrap();
        let settings = Settings {
            blocking: server::BlockingOptions { threads: 0, ..Default::default() },
            data_server: true,
            ..Settings::default()
        };
        let recovery = server::recovery::Recovery::in_memory();
        let nfs = NfsServer::recovering(tree, key.clone(), recovery, settings).unwrap();
        let services = match gone {
            None => nfs.services(),
            Some(gone) => {
                let move_state = MoveState { gone: Mutex::new(Some(gone)), ..MoveState::default() };
                vec![wrapped(Arc::new(nfs.nfs4()), Moving(Arc::new(move_state)))]
            }
        };
        let former = self.data_servers.get(server).map(|former| former.address);
        let at = former.unwrap_or_else(|| address(server));
        let (address, tasks) = self.net.start_at(at, former.is_some(), self.meeting.wrap(server, services));
        DataProcess { address, tasks, nfs, key, export }
    }

    /// Starts the metadata server.
    async fn start(&mut self) {
        let options = ExportOptions { squash: Squash::None, ..Default::default() };
        let export = Export::new("/m", ExportId::of(&[b"m"]), self.mds.clone(), options).unwrap();
        let settings = Settings {
            blocking: server::BlockingOptions { threads: 0, ..Default::default() },
            lease: Duration::from_secs(30),
            ..Settings::default()
        };
        let recovery = server::recovery::Recovery::in_memory();
        let nfs = NfsServer::recovering(export, self.key.clone(), recovery, settings).unwrap();
        (self.address, self.process) = self.net.start_at(sim::SERVER, false, self.requests.wrap(nfs.services()));
        self.process.spawn(nfs.upkeep());
        tokio::task::yield_now().await;
    }

    /// Kills the metadata server and starts another one, which does not know the clients and their layouts.
    pub async fn restart(&mut self) {
        self.net.crash(sim::SERVER);
        self.process = JoinSet::new();
        self.mds.state.lock().holders.clear();
        self.start().await;
    }

    /// Stops a data server.
    pub fn stop(&mut self, server: usize) {
        self.data_servers[server].tasks = JoinSet::new();
        self.net.crash(self.data_servers[server].address);
    }

    /// Kills a data server and starts it again. It does not know its clients any more.
    pub fn restart_data_server(&mut self, server: usize) {
        self.restart_as(server, None);
    }

    fn restart_as(&mut self, server: usize, gone: Option<Gone>) {
        self.stop(server);
        let DataProcess { key, export, .. } = &self.data_servers[server];
        self.data_servers[server] = self.data_process(server, key.clone(), *export, gone);
    }

    /// Starts a data server again that says by NFSv4 that its file system has moved to another one.
    pub fn move_away(&mut self, server: usize, to: usize) {
        let places = vec![(to_universal(self.data_servers[to].address), "/m")];
        let gone = Gone { fsid: 77, path: "/m", places, lease_moved: true };
        self.restart_as(server, Some(gone));
    }

    /// Returns the number of clients of NFSv4 that a data server knows, and of the files that they have open.
    pub fn clients_of(&self, server: usize) -> (usize, usize) {
        let mut answer = Vec::new();
        self.data_servers[server].nfs.admin().serve(&br#"{"list":{}}"#[..], &mut answer).unwrap();
        let records = String::from_utf8(answer).unwrap();
        let count = |kind: &str| records.matches(&format!("\"type\":\"{kind}\"")).count();
        assert_eq!((count("error"), count("end")), (0, 1), "{records}");
        (count("client"), count("open"))
    }

    pub async fn mount(&self, number: u8, query: &str) -> Mount {
        let version = if query.contains("&vers=") { "" } else { "&vers=4.2" };
        let timeo = if query.contains("&timeo=") { "" } else { "&timeo=2s" };
        let url =
            format!("nfs://{}/m?proto={}&uid=1000&gid=1000{timeo}{version}{query}", self.address, self.net.proto());
        Mount::connect(&url.parse().unwrap(), &self.net.switch(number)).await.unwrap()
    }
}

impl Mds {
    pub fn proxied(&self) -> u64 {
        self.proxied.load(SeqCst)
    }

    /// Returns the contents of each copy of a file, as the data servers have them.
    pub fn copies(&self, name: &str, len: usize) -> Vec<Vec<u8>> {
        let (cred, file) = (Cred::root(), self.file(name));
        let state = self.state.lock();
        let read = |copy: &Copy| {
            let mut bytes = vec![0; len];
            for piece in self.striping().pieces(0..len as u64) {
                let (server, _, object) = &copy.objects[piece.stripe as usize];
                let into = &mut bytes[piece.offset as usize..][..piece.len as usize];
                self.data[*server].disk.read_into(&Caller::blocking(&cred), object, piece.data_offset, into).unwrap();
            }
            bytes
        };
        state.files[&file].iter().map(read).collect()
    }

    pub fn file(&self, name: &str) -> Handle {
        let cred = Cred::root();
        let root = self.inner.root();
        self.inner.lookup(&Caller::blocking(&cred), &root, Name::new(name.as_bytes()).unwrap()).unwrap().0
    }

    /// Returns the data servers of a file.
    pub fn servers(&self, name: &str) -> Vec<usize> {
        let file = self.file(name);
        let state = self.state.lock();
        state.files[&file].iter().flat_map(|copy| copy.objects.iter().map(|(server, ..)| *server)).collect()
    }

    /// Returns the device of the files layouts of a file.
    pub fn device_of(&self, name: &str) -> LayoutDeviceId {
        device_of_files(self.form.files.unwrap(), &self.servers(name))
    }

    pub fn notify(&self, event: LayoutEvent) {
        let events = self.state.lock().events.clone().expect("the server must subscribe");
        events.notify(event);
    }

    /// Takes all copies of a file as repaired.
    pub fn heal(&self, name: &str) {
        let file = self.file(name);
        self.state.lock().files.get_mut(&file).into_iter().flatten().for_each(|copy| copy.stale = false);
    }

    pub fn recall(&self, name: &str) {
        self.notify(LayoutEvent::Recall { file: self.file(name), modes: LayoutModes::ALL, changed: false });
    }

    /// Changes the owner of all objects of a file, which locks out the clients with layouts.
    pub fn lock_out(&self, name: &str) {
        let (cred, file) = (Cred::root(), self.file(name));
        let set = SetAttr { uid: Some(77), gid: Some(77), ..SetAttr::default() };
        for copy in &self.state.lock().files[&file] {
            for (server, _, object) in &copy.objects {
                self.data[*server].disk.setattr(&Caller::blocking(&cred), object, &set, None).unwrap();
            }
        }
    }

    fn striping(&self) -> Striping {
        let packing = self.form.files.unwrap_or(Packing::Sparse);
        let striping = Striping::new(self.form.unit, self.form.stripes as u32, packing).unwrap();
        striping.with_pattern(self.first_stripe(), 0).unwrap()
    }

    /// Returns the stripe of the first unit. Only files layouts have another one than 0.
    fn first_stripe(&self) -> u32 {
        u32::from(self.form.files.is_some() && self.form.stripes > 1)
    }

    /// Returns a files layout of the first copy of a file.
    fn files_layout(&self, copy: &Copy, packing: Packing, user: u32) -> FilesLayout {
        let handle = |(_, shown, _): &(usize, Bytes, Handle)| {
            DataHandle { uid: user, gid: READERS, object: shown.clone() }.encode()
        };
        let servers: Vec<_> = copy.objects.iter().map(|(server, ..)| *server).collect();
        FilesLayout {
            device: device_of_files(packing, &servers),
            stripe_unit: self.form.unit as u32,
            dense: packing == Packing::Dense,
            first_stripe: self.first_stripe(),
            pattern_offset: 0,
            commit_through_server: false,
            handles: copy.objects.iter().map(handle).collect(),
            return_on_close: true,
        }
    }

    /// Gives a file objects, with the data that it has.
    fn spill(&self, caller: &Caller<'_>, file: &Handle) -> Result<()> {
        let size = self.inner.getattr(caller, file)?.size;
        let mut data = vec![0; size as usize];
        self.inner.read_into(caller, file, 0, &mut data)?;
        let copies = {
            let state: &mut State = &mut self.state.lock();
            let servers = self.data.len();
            let first = state.files.len();
            let stripes = self.form.stripes;
            let mut copy = |mirror: usize| {
                let mut object = |stripe: usize| {
                    let server = (first + mirror * stripes + stripe) % servers;
                    let (shown, object) = state.unused[server].pop().expect("the test needs more objects");
                    (server, shown, object)
                };
                Copy { objects: (0..stripes).map(&mut object).collect(), stale: false }
            };
            (0..self.form.mirrors).map(&mut copy).collect()
        };
        self.state.lock().files.insert(file.clone(), copies);
        self.write_copies(file, 0, &Rope::from(Bytes::from(data)))
    }

    fn write_copies(&self, file: &Handle, offset: u64, data: &Rope) -> Result<()> {
        let (cred, state) = (Cred::root(), self.state.lock());
        for copy in state.files[file].iter().filter(|copy| !copy.stale) {
            for piece in self.striping().pieces(offset..offset + data.len() as u64) {
                let (server, _, object) = &copy.objects[piece.stripe as usize];
                let data = data.slice((piece.offset - offset) as usize, piece.len as usize);
                let (caller, stable) = (Caller::blocking(&cred), Stability::FileSync);
                self.data[*server].disk.write(&caller, object, piece.data_offset, &data, stable, Report::Nothing)?;
            }
        }
        Ok(())
    }

    fn has_objects(&self, file: &Handle) -> bool {
        self.state.lock().files.contains_key(file)
    }

    fn remove(&self, holder: LayoutHolder, modes: LayoutModes) {
        let mut state = self.state.lock();
        if let Some(held) = state.holders.get_mut(&holder) {
            *held = held.without(modes);
            if held.is_empty() {
                state.holders.remove(&holder);
            }
        }
    }
}

impl Layouts for Mds {
    fn caps(&self) -> &LayoutCaps {
        &self.caps
    }

    fn subscribe(&self, events: Arc<dyn LayoutEvents>) {
        self.state.lock().events = Some(events);
    }

    fn grant(&self, caller: &Caller<'_>, file: &Handle, request: &LayoutRequest) -> Result<Layout> {
        if let Some(error) = self.state.lock().refuse {
            return Err(error);
        }
        if !self.has_objects(file) {
            if request.mode == LayoutMode::Read {
                return Err(VfsError::NotSupported);
            }
            self.spill(caller, file)?;
        }
        let mut state = self.state.lock();
        state.granted += 1;
        let held = state.holders.entry(request.holder).or_default();
        match request.mode {
            LayoutMode::Read => held.read = true,
            LayoutMode::Write => held.write = true,
        }
        let uid = if request.mode == LayoutMode::Write { WRITER } else { READERS };
        let data_file = |(server, shown, _): &(usize, Bytes, Handle)| DataFile {
            device: device(*server),
            efficiency: 1,
            handle: shown.clone(),
            uid,
            gid: READERS,
            stateid: None,
        };
        if let Some(packing) = self.form.files {
            return Ok(Layout::Files(self.files_layout(&state.files[file][0], packing, uid)));
        }
        let copies = state.files[file].iter().filter(|copy| !copy.stale);
        let Flags { no_commit, no_read, return_on_close, stats_s } = self.form.flags;
        Ok(Layout::Flexible(FlexibleLayout {
            mirrors: copies.map(|copy| Mirror { data_files: copy.objects.iter().map(data_file).collect() }).collect(),
            stripe_unit: self.form.unit,
            no_commit,
            no_io_through_server: false,
            no_read,
            stats_interval_s: stats_s,
            return_on_close,
        }))
    }

    fn device(&self, _: &Caller<'_>, id: LayoutDeviceId, _: LayoutKind) -> Result<LayoutDevice> {
        // A client tries the addresses in order, and has no shared memory in a simulation.
        let known = self.state.lock().addresses.clone();
        let at = |server: usize, transport| DataAddress { transport, address: known[server] };
        let addresses = |server| vec![at(server, DataTransport::Shm), at(server, self.transport)];
        if let Some(packing) = self.form.files {
            self.state.lock().devices += 1;
            let of: Vec<_> = id.0[1..].iter().take_while(|at| **at > 0).map(|at| usize::from(*at) - 1).collect();
            if device_of_files(packing, &of) != id {
                return Err(VfsError::NotFound);
            }
            // With dense packing, the device has each data server once.
            let (stripes, servers) = match packing {
                Packing::Sparse => ((0..of.len() as u32).collect(), of),
                Packing::Dense => (of.iter().map(|server| *server as u32).collect(), (0..self.data.len()).collect()),
            };
            return Ok(LayoutDevice::Files { stripes, servers: servers.into_iter().map(addresses).collect() });
        }
        let server = (0..self.data.len()).find(|server| device(*server) == id).ok_or(VfsError::NotFound)?;
        let (version, minor) = self.state.lock().version.unwrap_or((3, 0));
        Ok(LayoutDevice::Flexible {
            addresses: addresses(server),
            versions: vec![DataVersion { version, minor, read_max: 65536, write_max: 65536, tightly_coupled: false }],
        })
    }

    fn commit(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        _: Option<LayoutHolder>,
        commit: &LayoutCommit,
    ) -> Result<Change> {
        self.state.lock().commits.push(*commit);
        let known = self.inner.getattr(caller, file)?.size;
        let size = commit.size.filter(|size| *size > known);
        let set = SetAttr { size, mtime: Some(SetTime::Now), ..SetAttr::default() };
        self.inner.setattr(&Caller::blocking(&Cred::root()), file, &set, None)
    }

    fn report(&self, _: &Caller<'_>, file: &Handle, _: Option<LayoutHolder>, failures: &[DataFailure]) -> Result<()> {
        let mut state = self.state.lock();
        state.reports.extend(failures);
        if state.is_deaf {
            return Ok(());
        }
        let failed: HashSet<_> = failures
            .iter()
            .filter(|failure| failure.operation != DataOperation::Read)
            .map(|failure| failure.device)
            .collect();
        for copy in state.files.get_mut(file).into_iter().flatten() {
            copy.stale |= copy.objects.iter().any(|(server, ..)| failed.contains(&device(*server)));
        }
        Ok(())
    }

    fn count(&self, _: &Handle, _: LayoutHolder, usage: &DataUsage) {
        self.state.lock().usage.push(*usage);
    }

    fn release(&self, _: &Caller<'_>, _: &Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()> {
        self.remove(holder, modes);
        self.state.lock().releases += 1;
        Ok(())
    }

    fn fence(&self, _: &Caller<'_>, _: &Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()> {
        self.remove(holder, modes);
        self.state.lock().fences += 1;
        Ok(())
    }
}

macro_rules! delegate {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $($arg: $type),*) -> Result<$result> {
            self.inner.$name(caller, $($arg),*)
        }
    )*};
}

impl Vfs for Mds {
    fn caps(&self) -> &FsCaps {
        self.inner.caps()
    }

    fn root(&self) -> Handle {
        self.inner.root()
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.inner.write_verifier()
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        Some(self)
    }

    fn setattr(&self, caller: &Caller<'_>, object: &Handle, set: &SetAttr, guard: Option<Time>) -> Result<Change> {
        if let Some(size) = set.size
            && let Some(copies) = self.state.lock().files.get(object)
        {
            let (cred, striping) = (Cred::root(), self.striping());
            let objects = copies.iter().flat_map(|copy| (0..).zip(&copy.objects));
            for (stripe, (server, _, object)) in objects {
                let (disk, caller) = (&self.data[*server].disk, Caller::blocking(&cred));
                let size = striping.data_size(stripe, size);
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                // Objects are cut, and not extended: the clients must cope with holes at the end.
                if disk.getattr(&caller, object)?.size > size {
                    disk.setattr(&caller, object, &set, None)?;
                }
            }
        }
        self.inner.setattr(caller, object, set, guard)
    }

    fn read_into(&self, caller: &Caller<'_>, file: &Handle, offset: u64, into: &mut [u8]) -> Result<ReadInto> {
        self.proxied.fetch_add(1, SeqCst);
        let read = self.inner.read_into(caller, file, offset, into)?;
        let (cred, state) = (Cred::root(), self.state.lock());
        if let Some(copy) = state.files.get(file).and_then(|copies| copies.iter().find(|copy| !copy.stale)) {
            for piece in self.striping().pieces(offset..offset + read.len as u64) {
                let (server, _, object) = &copy.objects[piece.stripe as usize];
                let into = &mut into[(piece.offset - offset) as usize..][..piece.len as usize];
                self.data[*server].disk.read_into(&Caller::blocking(&cred), object, piece.data_offset, into)?;
            }
        }
        Ok(read)
    }

    fn write(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        offset: u64,
        data: &Rope,
        how: Stability,
        report: Report,
    ) -> Result<Written> {
        self.proxied.fetch_add(1, SeqCst);
        if self.has_objects(file) {
            self.write_copies(file, offset, data)?;
        }
        // As a server with a disk: the client must commit what it need not commit in memory.
        self.inner.write(caller, file, offset, data, how, report).map(|written| Written { stability: how, ..written })
    }

    delegate! {
        fn getattr(object: &Handle) -> Attr;
        fn lookup(dir: &Handle, name: &Name) -> (Handle, Attr);
        fn access(object: &Handle, wanted: Rights) -> (Rights, Attr);
        fn readlink(link: &Handle) -> (Bytes, Attr);
        fn commit(file: &Handle, offset: u64, len: u64) -> Change;
        fn create(dir: &Handle, name: &Name, mode: &CreateMode) -> Created;
        fn mkdir(dir: &Handle, name: &Name, set: &SetAttr) -> Created;
        fn symlink(dir: &Handle, name: &Name, target: &[u8], set: &SetAttr) -> Created;
        fn mknod(dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Created;
        fn remove(dir: &Handle, name: &Name) -> Change;
        fn rmdir(dir: &Handle, name: &Name) -> Change;
        fn rename(from_dir: &Handle, from: &Name, to_dir: &Handle, to: &Name) -> (Change, Change);
        fn link(object: &Handle, dir: &Handle, name: &Name) -> (Change, Attr);
        fn readdir(dir: &Handle, cookie: u64, verifier: [u8; 8], attrs: bool, each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> ReadDir;
        fn statfs(object: &Handle) -> StatFs;
    }
}

fn memory() -> Memory {
    Memory::new(MemoryOptions { mode: 0o777, ..MemoryOptions::default() })
}

fn address(server: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::from([127, 0, 2, server as u8 + 1]), 2049)
}

pub fn device(server: usize) -> LayoutDeviceId {
    LayoutDeviceId([server as u8 + 1; 16])
}

/// Returns the device of a file with stripes on these data servers.
fn device_of_files(packing: Packing, servers: &[usize]) -> LayoutDeviceId {
    let kind = if packing == Packing::Dense { 0xfd } else { 0xfe };
    let server = |at: usize| servers.get(at).map_or(0, |server| *server as u8 + 1);
    LayoutDeviceId(std::array::from_fn(|at| if at == 0 { kind } else { server(at - 1) }))
}

/// The users of layouts: the client itself is neither.
const WRITER: u32 = (1 << 30) + 1;
const READERS: u32 = (1 << 30) + 2;
/// The number of objects of each data server.
const OBJECTS: usize = 8;
