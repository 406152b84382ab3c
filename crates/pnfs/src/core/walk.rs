//! [`Walk`]: the regular files of a tree, directory by directory.

use std::ops::ControlFlow;

use vfs::{Caller, Cred, DirEntry, Handle, Kind, Name, Result, VfsError};

use super::{Core, ignore_removed};

/// A walk over a tree. Entries that are added, removed or moved meanwhile can be missing.
pub struct Walk {
    directories: Vec<Handle>,
    current: Option<(Handle, Position)>,
}

/// The place in a directory up to which it was listed.
#[derive(Default)]
struct Position {
    cookie: u64,
    verifier: [u8; 8],
    eof: bool,
}

impl Walk {
    /// Begins a walk over the tree below a directory.
    pub fn new(directory: Handle) -> Self {
        Self { directories: vec![directory], current: None }
    }

    /// Adds the tree below a directory.
    pub fn add(&mut self, directory: Handle) {
        self.directories.push(directory);
    }

    /// Returns the next files, which can be none, or `None` at the end.
    ///
    /// # Errors
    /// Returns the errors of the inner file system.
    pub fn next(&mut self, core: &Core) -> Result<Option<Vec<Handle>>> {
        let Some((directory, mut from)) =
            self.current.take().or_else(|| self.directories.pop().map(|directory| (directory, Position::default())))
        else {
            return Ok(None);
        };
        let mut page = Vec::new();
        // If the directory has been removed, the page is empty.
        ignore_removed(list(core, &directory, &mut from, &mut page))?;
        if !from.eof && !page.is_empty() {
            self.current = Some((directory, from));
        }
        let mut files = Vec::new();
        for (object, kind) in page {
            match kind {
                Kind::Dir => self.directories.push(object),
                Kind::File => files.push(object),
                _ => {}
            }
        }
        Ok(Some(files))
    }
}

/// Adds the next objects of a directory to a page.
fn list(core: &Core, directory: &Handle, from: &mut Position, page: &mut Vec<(Handle, Kind)>) -> Result<()> {
    let root = Cred::root();
    let caller = Caller::blocking(&root);
    let (start, verifier) = (from.cookie, from.verifier);
    let (mut names, mut entries) = (Vec::new(), 0);
    let mut each = |entry: DirEntry<'_>| {
        from.cookie = entry.cookie;
        entries += 1;
        match entry.object {
            _ if matches!(entry.name, b"." | b"..") => {}
            Some((object, attr)) => page.push((object, attr.kind)),
            None => names.push(Box::<[u8]>::from(entry.name)),
        }
        if entries < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let read = core.inner.readdir(&caller, directory, start, verifier, true, &mut each)?;
    (from.verifier, from.eof) = (read.verifier, read.eof);
    for name in names {
        match core.inner.find(&caller, directory, Name::new(&name)?) {
            Err(VfsError::NotFound) => {}
            found => page.push(found?),
        }
    }
    Ok(())
}

/// The number of entries that are listed at a time.
const BATCH: usize = 1000;
