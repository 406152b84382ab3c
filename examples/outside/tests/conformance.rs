//! Runs the conformance suite on the back end of this crate.

use std::sync::Arc;

use conformance::backend::{Skipped, World};
use outside::Audited;
use vfs::memory::MemoryOptions;

fn audited() -> Result<World, Skipped> {
    let options = MemoryOptions { capacity: 1 << 30, mode: 0o777, ..Default::default() };
    Ok(World::new(Arc::new(Audited::new(options, Arc::default()))))
}

conformance::backend_suite! {
    audited = audited;
}
