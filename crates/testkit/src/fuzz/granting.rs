//! A memory file system whose files have layouts.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use vfs::{
    Caller, Change, Handle, Layouts, Result, SetAttr, Vfs, VfsError,
    interpose::{Interpose, Operation},
    layout::{
        DataAddress, DataFailure, DataFile, DataTransport, DataUsage, DataVersion, FlexibleLayout, Layout, LayoutCaps,
        LayoutCommit, LayoutDevice, LayoutDeviceId, LayoutEvents, LayoutHolder, LayoutKind, LayoutMode, LayoutModes,
        LayoutRequest, Mirror,
    },
    memory::{Memory, MemoryOptions},
};

/// The file system. It notes if the server names a holder that has no layout of the file: the layout is forged, of another file, or was
/// returned before. (The server would catch a panic.)
pub struct Granting {
    memory: Memory,
    caps: LayoutCaps,
    holders: Mutex<HashMap<LayoutHolder, Held>>,
    violation: Mutex<Option<String>>,
}

struct Held {
    file: Handle,
    modes: LayoutModes,
}

const DEVICE: LayoutDeviceId = LayoutDeviceId([7; 16]);

impl Granting {
    pub fn new() -> Self {
        let caps = LayoutCaps {
            kinds: vec![LayoutKind::Flexible],
            block_size: 4096,
            alignment: 1,
            threshold: None,
            recalled_by_truncation: true,
        };
        let memory = Memory::new(MemoryOptions { capacity: 1 << 20, mode: 0o777, ..Default::default() });
        Self { memory, caps, holders: Mutex::default(), violation: Mutex::default() }
    }

    /// Returns what the server has done wrong.
    pub fn violation(&self) -> Option<String> {
        self.violation.lock().clone()
    }

    fn check(&self, file: &Handle, holder: Option<LayoutHolder>) {
        let holders = self.holders.lock();
        let held = holder.and_then(|holder| holders.get(&holder));
        if held.is_none_or(|held| held.file != *file) {
            *self.violation.lock() = Some(format!("{holder:?} has no layout of {file:?}"));
        }
    }

    fn remove(&self, file: &Handle, holder: LayoutHolder, modes: LayoutModes) {
        self.check(file, Some(holder));
        let mut holders = self.holders.lock();
        if let Some(held) = holders.get_mut(&holder) {
            held.modes = held.modes.without(modes);
            if held.modes.is_empty() {
                holders.remove(&holder);
            }
        }
    }
}

impl Interpose for Granting {
    fn inner(&self) -> &dyn Vfs {
        &self.memory
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        Some(self)
    }

    fn operation<T: Clone + Send + 'static>(
        &self,
        caller: &Caller<'_>,
        _: Operation,
        run: &mut dyn FnMut(&Caller<'_>) -> Result<T>,
    ) -> Result<T> {
        run(caller)
    }
}

impl Layouts for Granting {
    fn caps(&self) -> &LayoutCaps {
        &self.caps
    }

    fn subscribe(&self, _: Arc<dyn LayoutEvents>) {}

    fn grant(&self, caller: &Caller<'_>, file: &Handle, request: &LayoutRequest) -> Result<Layout> {
        self.memory.getattr(caller, file)?;
        let mut holders = self.holders.lock();
        let new = Held { file: file.clone(), modes: LayoutModes::default() };
        let held = holders.entry(request.holder).or_insert(new);
        if held.file != *file {
            *self.violation.lock() = Some(format!("{:?} has layouts of two files", request.holder));
        }
        match request.mode {
            LayoutMode::Read => held.modes.read = true,
            LayoutMode::Write => held.modes.write = true,
        }
        let handle = Bytes::copy_from_slice(file.as_bytes());
        let data_file = DataFile { device: DEVICE, efficiency: 1, handle, uid: 17, gid: 18, stateid: None };
        Ok(Layout::Flexible(FlexibleLayout {
            mirrors: vec![Mirror { data_files: vec![data_file] }],
            stripe_unit: 0,
            no_commit: false,
            no_io_through_server: false,
            no_read: false,
            stats_interval_s: 60,
            return_on_close: false,
        }))
    }

    fn device(&self, _: &Caller<'_>, id: LayoutDeviceId, kind: LayoutKind) -> Result<LayoutDevice> {
        if (id, kind) != (DEVICE, LayoutKind::Flexible) {
            return Err(VfsError::NotFound);
        }
        let address = "192.0.2.9:2049".parse().expect("address must be valid");
        Ok(LayoutDevice::Flexible {
            addresses: vec![DataAddress { transport: DataTransport::Tcp, address }],
            versions: vec![DataVersion { version: 3, minor: 0, read_max: 1, write_max: 2, tightly_coupled: false }],
        })
    }

    fn commit(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        holder: Option<LayoutHolder>,
        commit: &LayoutCommit,
    ) -> Result<Change> {
        self.check(file, holder);
        let known = self.memory.getattr(caller, file)?.size;
        let size = commit.size.filter(|size| *size > known);
        self.memory.setattr(caller, file, &SetAttr { size, ..SetAttr::default() }, None)
    }

    fn report(&self, _: &Caller<'_>, file: &Handle, holder: Option<LayoutHolder>, _: &[DataFailure]) -> Result<()> {
        self.check(file, holder);
        Ok(())
    }

    fn count(&self, file: &Handle, holder: LayoutHolder, _: &DataUsage) {
        self.check(file, Some(holder));
    }

    fn release(&self, _: &Caller<'_>, file: &Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()> {
        self.remove(file, holder, modes);
        Ok(())
    }

    fn fence(&self, _: &Caller<'_>, file: &Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()> {
        self.remove(file, holder, modes);
        Ok(())
    }
}
