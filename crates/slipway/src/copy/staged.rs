//! [`Staged`]: a regular file on a server with a temporary name until it is complete.

use std::hash::{BuildHasher, Hasher, RandomState};

use bytes::Bytes;

use super::{
    Error, Result,
    meta::{Kind, Meta},
    remote::Remote,
};
use crate::output;

/// A file that is being written on a server.
#[derive(Debug)]
pub struct Staged {
    dir: Remote,
    temporary: Bytes,
    name: Bytes,
    file: Remote,
    replaced: Option<Meta>,
}

impl Staged {
    /// Makes an empty file that will become `name` in `dir`. If it replaces no file, it gets `mode`. With `resumed`, the
    /// temporary name and an offset, uses the file of an interrupted copy, or makes one of this name if the offset is 0.
    ///
    /// # Errors
    /// LOOKUP or CREATE failed, or an object of another type has the name.
    pub async fn create(dir: &Remote, name: &[u8], mode: u32, resumed: Option<(&Bytes, u64)>) -> Result<Self> {
        let replaced = dir.child(name).await?.map(|(_, meta)| meta);
        if let Some(meta) = replaced.as_ref().filter(|meta| meta.kind != Kind::File) {
            let (path, kind) = (output::name(&dir.path_of(name)), meta.kind.name());
            return Err(Error(format!("{path}: cannot replace a {kind} with a regular file")));
        }
        let temporary = resumed.map_or_else(|| temporary_name(name), |(temporary, _)| temporary.clone());
        // No other user can read the file before it has the owner and mode of the file that it replaces.
        let mode = if replaced.is_some() { 0o600 } else { mode };
        let interrupted = match resumed {
            Some((_, at)) if at > 0 => dir.child(&temporary).await?.map(|(file, _)| file),
            _ => None,
        };
        let file = match interrupted {
            Some(file) => file,
            None => dir.create(&temporary, mode).await?,
        };
        // Messages contain the name that the user knows.
        let file = Remote::new(file.mount().clone(), file.handle().clone(), dir.path_of(name));
        Ok(Self { dir: dir.clone(), temporary, name: Bytes::copy_from_slice(name), file, replaced })
    }

    /// Returns the file for writing.
    pub fn file(&self) -> &Remote {
        &self.file
    }

    /// Sets the attributes of `preserve`, or if it is `None` the owner and mode of the replaced file, and renames the
    /// file to its final name.
    ///
    /// # Errors
    /// SETATTR or RENAME failed.
    pub async fn publish(&self, preserve: Option<&Meta>) -> Result<()> {
        match (preserve, &self.replaced) {
            (Some(meta), _) => self.file.preserve(meta).await?,
            (None, Some(replaced)) => self.file.set_owner_and_mode(replaced).await?,
            (None, None) => {}
        }
        self.dir.rename(&self.temporary, &self.name, &self.file).await
    }

    /// Removes the file, which must not be published.
    pub async fn discard(self) {
        if let Err(error) = self.dir.remove(&self.temporary).await {
            tracing::debug!(%error, "cannot remove a temporary file");
        }
    }
}

/// Returns a temporary name for a file. No other copy uses it, and it cannot be predicted.
pub fn temporary_name(name: &[u8]) -> Bytes {
    numbered(name, RandomState::new().build_hasher().finish(), b"")
}

/// Returns the temporary name for a copy to `name` that can be continued: always the same for a name.
pub fn stable_name(name: &[u8], suffix: &[u8]) -> Bytes {
    numbered(name, stable_hash(name), suffix)
}

/// Returns a hash that is the same in all versions of this program (FNV-1a).
pub fn stable_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn numbered(name: &[u8], number: u64, suffix: &[u8]) -> Bytes {
    let mut end = name.len().min(NAME_MAX - b"..slipway-0123456789abcdef".len() - suffix.len());
    // Keep UTF-8 names valid, because NFSv4 servers can require that.
    while end < name.len() && name[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    [b".", &name[..end], format!(".slipway-{number:016x}").as_bytes(), suffix].concat().into()
}

/// The maximum length of a name on Linux file systems.
const NAME_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_differ_and_are_short_enough() {
        let name = temporary_name(b"name");
        assert!(name.starts_with(b".name.slipway-") && name != temporary_name(b"name"));
        let long = "\u{20ac}".repeat(85);
        let name = temporary_name(long.as_bytes());
        assert!(name.len() <= NAME_MAX && name.len() > NAME_MAX - 3);
        assert!(std::str::from_utf8(&name).is_ok());
        let long = [b'n'; 255];
        let other = [&long[..254], b"m"].concat();
        assert!(
            stable_name(&long, b"") == stable_name(&long, b"") && stable_name(&long, b"") != stable_name(&other, b"")
        );
        assert!(stable_name(&long, b".record").len() <= NAME_MAX);
    }
}
