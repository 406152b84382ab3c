//! [`Machine`]: a server that is restarted, over the same file system, handle key and disk.
#![allow(dead_code)] // Each test file uses its part.

use std::{sync::Arc, time::Duration};

use rand::{SeedableRng, rngs::StdRng};
use server::{Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings, recovery::Recovery};
use testkit::disk::Disk;
use tokio::task::JoinSet;
use vfs::Vfs;

use super::{memory, on_one_thread};

/// A machine with a memory export `/m`, whose processes serve one after another.
pub struct Machine {
    tree: Arc<dyn Vfs>,
    key: HandleKey,
    disk: Disk,
}

impl Machine {
    pub fn new() -> Self {
        Self::of(memory())
    }

    /// Creates a machine that serves this tree.
    pub fn of(tree: Arc<dyn Vfs>) -> Self {
        Self { tree, key: HandleKey::random(), disk: Disk::default() }
    }

    /// Kills the former process and starts another one.
    pub fn start(&self, grace: Duration) -> NfsServer {
        // A process that is killed leaves its unsynced data in the cache of the system, and so does one that crashes.
        self.disk.crash();
        self.disk.restart(&mut StdRng::seed_from_u64(0));
        let options = ExportOptions { squash: Squash::None, ..Default::default() };
        let export = Export::new("/m", ExportId::of(&[b"m"]), self.tree.clone(), options).unwrap();
        let recovery = Recovery::on(self.disk.open()).unwrap();
        let settings = on_one_thread(Settings { grace, ..Settings::default() });
        NfsServer::recovering(export, self.key.clone(), recovery, settings).unwrap()
    }
}

/// Runs the background work of a server until the result is dropped.
pub fn background_work(server: &NfsServer) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(server.upkeep());
    tasks
}
