//! The bytes of storage that files take, as clients see them.
//!
//! The inner file of a file with data on data servers is sparse. If clients saw that it takes no storage, programs would believe that the
//! file has no data: GNU tar archives a file with `st_blocks == 0` as one hole, without reading it. So such a file is reported to take
//! at least as many bytes as it is long.
//!
//! Only the extended attribute with the record tells such files from those that are sparse and have all their data in the inner file. The
//! size does not: a file that is truncated below the threshold stays on data servers. To read the attribute at each GETATTR would be
//! expensive, so it is read only if the inner file is sparse, and the result is remembered: a file never returns from the data servers.
//! Most files that have their data in the inner file are not sparse, so their attribute is never read.
//!
//! Each operation of [`Vfs`](vfs::Vfs) with attributes passes its result through one of the two functions here. The other parts of this
//! crate see the inner file system as it is.

use std::sync::atomic::Ordering::Relaxed;

use vfs::{Acl, Attr, Caller, Change, Created, Cred, Handle, Kind, Read, Result, Rights, StatFs, VfsError, Written};

use crate::{
    core::{Core, attribute, has_no_record},
    files::Place,
};

/// A result of an operation on an object, with attributes of the object.
pub trait Attributed {
    /// Returns the attributes, if the result has them.
    fn attr(&mut self) -> Option<&mut Attr>;

    /// Returns the object that the attributes describe. `argument` is that on which the operation was executed.
    fn object<'a>(&'a self, argument: &'a Handle) -> &'a Handle {
        argument
    }
}

macro_rules! attributed {
    ($($type:ty, $result:ident => $attr:expr;)*) => {$(
        impl Attributed for $type {
            fn attr(&mut self) -> Option<&mut Attr> {
                let $result = self;
                $attr
            }
        }
    )*};
}

attributed! {
    Attr, attr => Some(attr);
    (Rights, Attr), result => Some(&mut result.1);
    (Option<Acl>, Attr), result => Some(&mut result.1);
    (Change, Attr), result => Some(&mut result.1);
    Change, change => Some(&mut change.after);
    Read, read => Some(&mut read.attr);
    Written, written => written.after.as_mut();
    StatFs, statfs => Some(&mut statfs.attr);
    // SEEK has no attributes.
    Option<u64>, _offset => None;
}

impl Attributed for (Handle, Attr) {
    fn attr(&mut self) -> Option<&mut Attr> {
        Some(&mut self.1)
    }

    fn object<'a>(&'a self, _: &'a Handle) -> &'a Handle {
        &self.0
    }
}

impl Attributed for Created {
    fn attr(&mut self) -> Option<&mut Attr> {
        Some(&mut self.attr)
    }

    fn object<'a>(&'a self, _: &'a Handle) -> &'a Handle {
        &self.handle
    }
}

impl Core {
    /// Returns a result of an operation that has changed nothing, with the bytes of storage that clients see.
    ///
    /// # Errors
    /// Returns `WouldBlock`.
    pub fn with_space<T: Attributed>(&self, may_block: bool, argument: &Handle, mut result: T) -> Result<T> {
        if is_sparse(&mut result) && self.is_spilled(may_block, result.object(argument))? {
            fill(&mut result);
        }
        Ok(result)
    }

    /// Returns a result of an operation that may have changed something, with the bytes of storage that clients see. If it is not known
    /// where the data are, they may be on data servers: a number that is too large is harmless.
    pub fn with_space_after<T: Attributed>(&self, may_block: bool, argument: &Handle, mut result: T) -> T {
        if is_sparse(&mut result) && self.is_spilled(may_block, result.object(argument)).unwrap_or(true) {
            fill(&mut result);
        }
        result
    }

    /// Reports whether a file has its data on data servers. If that cannot be found out, it may have.
    ///
    /// # Errors
    /// Returns `WouldBlock`.
    fn is_spilled(&self, may_block: bool, file: &Handle) -> Result<bool> {
        let file = self.files.get(file);
        if file.spilled.load(Relaxed) {
            return Ok(true);
        }
        if let Some(Place::Inner) = *file.place.lock() {
            return Ok(false);
        }
        let root = Cred::root();
        let caller = Caller { cred: &root, may_block, completion: None };
        match self.inner.xattr(&caller, &file.handle, attribute()) {
            Ok(_) => file.spilled.store(true, Relaxed),
            Err(VfsError::WouldBlock) => return Err(VfsError::WouldBlock),
            Err(error) if has_no_record(error) => return Ok(false),
            Err(_) => {}
        }
        Ok(true)
    }
}

/// Reports whether a result has the attributes of a file that takes fewer bytes than it is long.
fn is_sparse(result: &mut impl Attributed) -> bool {
    result.attr().is_some_and(|attr| attr.kind == Kind::File && attr.used < attr.size)
}

/// Makes a file take as many bytes as it is long.
fn fill(result: &mut impl Attributed) {
    if let Some(attr) = result.attr() {
        attr.used = attr.size;
    }
}
