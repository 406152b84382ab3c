//! [`Staged`]: a regular file on a server that has a temporary name until it is complete.

use std::hash::{BuildHasher, Hasher, RandomState};

use bytes::Bytes;

use super::{
    Error, Result,
    meta::{Kind, Meta},
    remote::Remote,
};
use crate::output;

/// A file being made on a server.
#[derive(Debug)]
pub struct Staged {
    dir: Remote,
    temporary: Bytes,
    name: Bytes,
    file: Remote,
    replaced: Option<Meta>,
}

impl Staged {
    /// Makes an empty file that is to become `name` in `dir`; one that replaces none has `mode`.
    ///
    /// # Errors
    /// LOOKUP or CREATE failed, or something other than a regular file has the name.
    pub async fn create(dir: &Remote, name: &[u8], mode: u32) -> Result<Self> {
        let replaced = dir.child(name).await?.map(|(_, meta)| meta);
        if let Some(meta) = replaced.as_ref().filter(|meta| meta.kind != Kind::File) {
            let (path, kind) = (output::name(&dir.path_of(name)), meta.kind.name());
            return Err(Error(format!("{path}: a {kind} is not replaced by a regular file")));
        }
        let temporary = temporary_name(name);
        // Nobody else reads it before it has the owner and mode of what it replaces.
        let mode = if replaced.is_some() { 0o600 } else { mode };
        let file = dir.create(&temporary, mode).await?;
        // Messages say the name that the user knows.
        let file = Remote::new(file.mount().clone(), file.handle().clone(), dir.path_of(name));
        Ok(Self { dir: dir.clone(), temporary, name: Bytes::copy_from_slice(name), file, replaced })
    }

    /// The file, to be written.
    pub fn file(&self) -> &Remote {
        &self.file
    }

    /// Preserves `meta` if it is given, else owner and mode of the file that it replaces, and gives the file its name.
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

    /// Removes the file, which has not been published.
    pub async fn discard(self) {
        if let Err(error) = self.dir.remove(&self.temporary).await {
            tracing::debug!(%error, "a temporary file cannot be removed");
        }
    }
}

/// The name that a file has until it is complete: no other copy takes it, and nobody can tell it beforehand.
pub fn temporary_name(name: &[u8]) -> Bytes {
    let mut end = name.len().min(NAME_MAX - b"..slipway-0123456789abcdef".len());
    // A name in UTF-8 stays one: servers of NFSv4 may insist on it.
    while end < name.len() && name[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    let random = RandomState::new().build_hasher().finish();
    [b".", &name[..end], format!(".slipway-{random:016x}").as_bytes()].concat().into()
}

/// Longest name on Linux file systems.
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
    }
}
