//! Runs the conformance suite on the back ends of this crate.

use std::{os::unix::fs::PermissionsExt, sync::Arc};

use conformance::backend::{Skipped, World, cred};
use tempfile::TempDir;
use vfs::{
    memory::{Memory, MemoryOptions},
    posix::{Handles, Posix, PosixOptions},
};

conformance::backend_suite! {
    memory = memory;
    posix_kernel = posix_kernel;
    posix_database = posix_database;
    posix_tmpfs = posix_tmpfs;
}

/// The suite skips the cases of copies for a back end without copies. The back ends of this crate support them.
#[test]
fn all_back_ends_copy() {
    for world in [memory, posix_kernel, posix_database, posix_tmpfs] {
        let Ok(world) = world() else { continue };
        let (from, to) = (world.file(&world.root(), "from"), world.file(&world.root(), "to"));
        world.write(&from, 0, b"data").unwrap();
        assert_eq!(world.fs.copy(&world.me(), (&from, 0), (&to, 0), 4), Ok(4));
    }
}

fn memory() -> Result<World, Skipped> {
    let options = MemoryOptions { capacity: 1 << 30, mode: 0o777, ..Default::default() };
    Ok(World::new(Arc::new(Memory::new(options))))
}

/// A directory of the default file system, whose objects are opened by the kernel's handles.
fn posix_kernel() -> Result<World, Skipped> {
    posix(tempfile::tempdir().unwrap(), Handles::Kernel)
}

/// The same directory, whose objects are found by a database, as for an ordinary user.
fn posix_database() -> Result<World, Skipped> {
    posix(tempfile::tempdir().unwrap(), Handles::Database)
}

/// A directory of a file system that never blocks.
fn posix_tmpfs() -> Result<World, Skipped> {
    let dir = tempfile::tempdir_in("/dev/shm").map_err(|_| Skipped("needs a writable /dev/shm"))?;
    posix(dir, Handles::Auto)
}

fn posix(dir: TempDir, handles: Handles) -> Result<World, Skipped> {
    let (export, state) = (dir.path().join("export"), dir.path().join("state"));
    for path in [&export, &state] {
        std::fs::create_dir(path).unwrap();
    }
    std::fs::set_permissions(&export, PermissionsExt::from_mode(0o777)).unwrap();
    let options = PosixOptions { state_dir: Some(state), handles, ..PosixOptions::default() };
    let fs = match Posix::open(&export, options) {
        Ok(fs) => fs,
        Err(error) if handles == Handles::Kernel && error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Skipped("needs root: opening by handle"));
        }
        Err(error) => panic!("cannot serve {}: {error}", export.display()),
    };
    let identities = fs.tells_callers_apart();
    let me = cred(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw(), &[]);
    Ok(World::new(Arc::new(fs)).acting_as(me, identities).with_coarse_times().keeping(dir))
}
