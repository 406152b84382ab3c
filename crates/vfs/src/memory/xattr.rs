//! Extended attributes of objects in memory.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{
    inode::State,
    space::{Charge, Space},
};
use crate::{
    Cred, Kind, Result, VfsError, XATTR_MAX, XattrMode,
    permission::{READ, WRITE},
};

/// The extended attributes of one object, by name.
pub(super) type Xattrs = BTreeMap<Bytes, Xattr>;

/// A value and the space that it takes.
#[derive(Debug)]
pub(super) struct Xattr {
    value: Bytes,
    _charge: Charge,
}

impl State {
    pub(super) fn xattr(&self, cred: &Cred, name: &[u8]) -> Result<Bytes> {
        self.check_xattrs(cred, READ)?;
        self.xattrs.get(name).map(|kept| kept.value.clone()).ok_or(VfsError::NoXattr)
    }

    pub(super) fn xattr_names(&self, cred: &Cred) -> Result<Vec<Bytes>> {
        self.check_xattrs(cred, READ)?;
        Ok(self.xattrs.keys().cloned().collect())
    }

    pub(super) fn set_xattr(
        &mut self,
        cred: &Cred,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        space: &Arc<Space>,
    ) -> Result<()> {
        self.check_xattrs(cred, WRITE)?;
        match (how, self.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(VfsError::Exists),
            (XattrMode::Replace, false) => return Err(VfsError::NoXattr),
            _ if value.len() > XATTR_MAX => return Err(VfsError::XattrTooBig),
            _ => {}
        }
        let charge = Charge::new(space, (ENTRY_BYTES + name.len() + value.len()) as u64)?;
        let kept = Xattr { value: Bytes::copy_from_slice(value), _charge: charge };
        self.xattrs.insert(Bytes::copy_from_slice(name), kept);
        self.changed();
        Ok(())
    }

    pub(super) fn remove_xattr(&mut self, cred: &Cred, name: &[u8]) -> Result<()> {
        self.check_xattrs(cred, WRITE)?;
        self.xattrs.remove(name).ok_or(VfsError::NoXattr)?;
        self.changed();
        Ok(())
    }

    /// Checks the rules of xattr(7) for the class `user`: only files and directories have such attributes, and their
    /// mode decides.
    fn check_xattrs(&self, cred: &Cred, rights: u32) -> Result<()> {
        if !matches!(self.kind, Kind::File | Kind::Dir) {
            return Err(VfsError::Perm);
        }
        self.guarded().check(cred, rights)
    }
}

/// Approximate bytes that an attribute takes beside its name and value.
const ENTRY_BYTES: usize = 128;
