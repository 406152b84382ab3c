//! The conformance suite of back ends.

use std::{os::unix::fs::PermissionsExt, sync::Arc};

use conformance::backend::{Skipped, World, cred};
use pnfs::{DataServers, Earlier, Index, Options, Pnfs, Stripes};
use redb::backends::InMemoryBackend;
use vfs::{
    Vfs,
    memory::{Memory, MemoryOptions},
    posix::{Posix, PosixOptions},
};

use crate::{computed::Computed, servers::Servers};

conformance::backend_suite! {
    small_files = small_files;
    spilled = spilled;
    striped = striped;
    computed = computed;
    directory = directory;
}

fn world(inner: Arc<dyn Vfs>, threshold: u64, stripes: Stripes) -> World {
    world_over(Arc::new(Servers::new(4)), inner, threshold, stripes)
}

fn world_over(servers: Arc<dyn DataServers>, inner: Arc<dyn Vfs>, threshold: u64, stripes: Stripes) -> World {
    let index = Index::with_backend(InMemoryBackend::new()).unwrap();
    let mirrors = 2;
    let options = Options {
        threshold,
        mirrors,
        stripes,
        layouts: Some(vfs::layout::LayoutKind::Flexible),
        earlier: Earlier::NOTHING,
    };
    World::new(Arc::new(Pnfs::new(inner, servers, index, options).unwrap()))
}

fn memory() -> Arc<dyn Vfs> {
    Arc::new(Memory::new(MemoryOptions { capacity: 1 << 30, mode: 0o777, ..Default::default() }))
}

fn small_files() -> Result<World, Skipped> {
    Ok(world(memory(), u64::MAX, Stripes::ONE))
}

/// Every write goes to data servers.
fn spilled() -> Result<World, Skipped> {
    Ok(world(memory(), 0, Stripes::ONE).with_full_space())
}

/// Every write goes to data servers, and most writes to several objects.
fn striped() -> Result<World, Skipped> {
    Ok(world(memory(), 0, Stripes::new(1000, 3).unwrap()).with_full_space())
}

/// Every write goes to data servers of kind `slipway`, and most writes to several objects.
fn computed() -> Result<World, Skipped> {
    Ok(world_over(Arc::new(Computed::new(4)), memory(), 0, Stripes::new(1000, 3).unwrap()).with_full_space())
}

/// A directory, whose operations block. The files are small: the attribute of a spilled file takes a block, and the suite
/// expects that an empty file takes none.
fn directory() -> Result<World, Skipped> {
    let dir = tempfile::tempdir().unwrap();
    let (export, state) = (dir.path().join("export"), dir.path().join("state"));
    for path in [&export, &state] {
        std::fs::create_dir(path).unwrap();
    }
    std::fs::set_permissions(&export, PermissionsExt::from_mode(0o777)).unwrap();
    let options = PosixOptions { state_dir: Some(state), ..PosixOptions::default() };
    let posix = Posix::open(&export, options).unwrap();
    if !posix.caps().xattrs {
        return Err(Skipped("needs a temporary directory with extended attributes"));
    }
    let identities = posix.tells_callers_apart();
    let me = cred(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw(), &[]);
    Ok(world(Arc::new(posix), u64::MAX, Stripes::ONE).acting_as(me, identities).with_coarse_times().keeping(dir))
}
