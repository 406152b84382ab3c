//! NFS file handles: opaque to clients, authenticated, and valid across restarts.
//!
//! A handle names an object of an export and proves that this server has made it: without the key, which never leaves
//! the state directory, nobody can name an object that was not shown to them. Read RFC 1813 §2.3.3 first.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version of this layout: 1 |
//! | 1–7 | [`ExportId`], big-endian |
//! | 8–23 | SipHash-2-4-128 of bytes 0–7 and 24–end, little-endian |
//! | 24–end | the [`vfs::Handle`], 0 to 40 bytes |
//!
//! On error: what no server of this layout can have made is `BadHandle`; what this server has not made, or made with a
//! key that it no longer has, is `Stale`, so that a client looks the path up again.

use std::{
    io::{self, Read},
    path::Path,
};

use bytes::BufMut;
use siphasher::sip128::{Hasher128, SipHasher24};
use smallvec::SmallVec;
use vfs::{VfsError, private};

use crate::recovery::state_dir::{OnLoss, StateDir, Unusable, located};

/// Names an export in file handles: 56 bits.
///
/// It follows from what is exported under which name, so it survives a restart and a change of the other exports; it
/// differs as soon as the name leads elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExportId(u64);

impl ExportId {
    /// The id of an export that is described by `parts`: its name, its backend, where its data is.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = SipHasher24::new();
        for part in parts {
            std::hash::Hasher::write_u64(&mut hasher, part.len() as u64);
            std::hash::Hasher::write(&mut hasher, part);
        }
        Self(hasher.finish128().h1 & ID_MASK)
    }

    /// An id that no other start of a server has: for data that does not outlive the process.
    pub fn unique() -> Self {
        Self(entropy::random::<u64>() & ID_MASK)
    }

    /// The number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Names a file in all protocols.
pub(crate) type FileId = (ExportId, vfs::Handle);

/// The secret that authenticates file handles.
#[derive(Clone)]
pub struct HandleKey([u8; KEY_LEN]);

impl HandleKey {
    /// A new key. Handles made with it are stale when it is gone.
    pub fn random() -> Self {
        Self(entropy::random())
    }

    /// The key kept in a state directory. If there is none, one is created; but not where `was_used` says that there was one.
    ///
    /// # Errors
    /// It cannot be read or written, is damaged or missing, is no regular file, or is not the server's alone.
    pub fn load_or_create(state_dir: &StateDir, was_used: bool, on_loss: OnLoss) -> io::Result<Self> {
        let path = state_dir.file(KEY_FILE);
        match Self::load(&path) {
            Ok(Some(key)) => return Ok(key),
            Ok(None) if !was_used => {}
            Ok(None) => Unusable::lost(&path, "it is missing, and file handles were made with it").accept(on_loss)?,
            Err(unusable) => unusable.accept(on_loss)?,
        }
        let key = Self::random();
        private::replace(&path, &key.0).map_err(|error| located(&path, error))?;
        Ok(key)
    }

    /// Whether there is anything where a state directory keeps its key.
    pub(crate) fn exists_in(state_dir: &StateDir) -> bool {
        std::fs::symlink_metadata(state_dir.file(KEY_FILE)).is_ok()
    }

    fn load(path: &Path) -> Result<Option<Self>, Unusable> {
        let opened = private::open(path, private::OTHERS_ANY).map_err(|error| Unusable::io(path, error))?;
        let Some(file) = opened else { return Ok(None) };
        // One byte more than it may have.
        let mut bytes = Vec::with_capacity(KEY_LEN + 1);
        file.take(KEY_LEN as u64 + 1).read_to_end(&mut bytes).map_err(|error| Unusable::io(path, error))?;
        let key = bytes.try_into().map_err(|_| Unusable::lost(path, format!("it is not a key of {KEY_LEN} bytes")))?;
        Ok(Some(Self(key)))
    }

    /// The file handle of an object.
    pub fn seal(&self, export: ExportId, object: &vfs::Handle) -> SmallVec<[u8; SEALED_MAX]> {
        let head = (u64::from(VERSION) << 56) | export.0;
        let mut bytes = SmallVec::from_buf_and_len([0; SEALED_MAX], HEADER_LEN + object.as_bytes().len());
        let mut header = &mut bytes[..HEADER_LEN];
        header.put_u64(head);
        header.put_u128_le(self.mac(head, object.as_bytes()));
        bytes[HEADER_LEN..].copy_from_slice(object.as_bytes());
        bytes
    }

    /// What a file handle names.
    ///
    /// # Errors
    /// `BadHandle` or `Stale`; see above.
    pub fn open(&self, handle: &[u8]) -> Result<(ExportId, vfs::Handle), VfsError> {
        let (header, object) = handle.split_first_chunk::<HEADER_LEN>().ok_or(VfsError::BadHandle)?;
        let (head, mac) = header.split_first_chunk::<8>().expect("a header has more");
        if head[0] != VERSION || object.len() > vfs::HANDLE_MAX {
            return Err(VfsError::BadHandle);
        }
        let head = u64::from_be_bytes(*head);
        let mac = u128::from_le_bytes(mac.try_into().expect("the rest of a header is the MAC"));
        // The difference is one number that is compared as a whole: time says nothing of where it is.
        if self.mac(head, object) ^ mac != 0 {
            return Err(VfsError::Stale);
        }
        Ok((ExportId(head & ID_MASK), vfs::Handle::new(object)))
    }

    /// A number for the server that has this key, which says nothing of the key.
    pub(crate) fn server_id(&self) -> u128 {
        self.mac(SERVER_HEAD, b"server")
    }

    fn mac(&self, head: u64, object: &[u8]) -> u128 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        std::hash::Hasher::write_u64(&mut hasher, head);
        std::hash::Hasher::write(&mut hasher, object);
        hasher.finish128().as_u128()
    }
}

impl std::fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandleKey(secret)")
    }
}

/// Most bytes of a file handle; every version of NFS can carry that many.
pub const SEALED_MAX: usize = 64;
const VERSION: u8 = 1;
/// In the place of version and export: no file handle has such a version.
const SERVER_HEAD: u64 = u64::MAX;
const KEY_LEN: usize = 16;
const KEY_FILE: &str = "handle.key";
const HEADER_LEN: usize = 24;
const ID_MASK: u64 = (1 << 56) - 1;
const _: () = assert!(HEADER_LEN + vfs::HANDLE_MAX <= SEALED_MAX);

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    use super::*;

    #[test]
    fn a_handle_opens_to_what_it_was_made_of() {
        let key = HandleKey::random();
        for len in 0..=vfs::HANDLE_MAX {
            let object = vfs::Handle::new(&vec![len as u8; len]);
            let id = ExportId::of(&[b"/a", b"posix"]);
            let sealed = key.seal(id, &object);
            assert_eq!(sealed.len(), 24 + len);
            assert_eq!(key.open(&sealed), Ok((id, object)));
        }
    }

    #[test]
    fn every_changed_bit_and_every_other_length_is_refused() {
        let key = HandleKey::random();
        let sealed = key.seal(ExportId::of(&[b"/a"]), &vfs::Handle::new(b"an object of 20 bytes"));
        for bit in 0..sealed.len() * 8 {
            let mut altered = sealed.to_vec();
            altered[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 8 { VfsError::BadHandle } else { VfsError::Stale };
            assert_eq!(key.open(&altered), Err(expected), "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert!(key.open(&sealed[..len]).is_err(), "the first {len} bytes");
        }
        for extra in 1..=64 {
            let longer = [&sealed[..], &vec![0; extra]].concat();
            assert!(key.open(&longer).is_err(), "{extra} bytes more");
        }
        assert_eq!(HandleKey::random().open(&sealed), Err(VfsError::Stale), "another server's key");
    }

    #[test]
    fn ids_tell_apart_where_parts_end() {
        assert_ne!(ExportId::of(&[b"ab", b"c"]), ExportId::of(&[b"a", b"bc"]));
        assert_eq!(ExportId::of(&[b"ab", b"c"]), ExportId::of(&[b"ab", b"c"]));
        assert_ne!(ExportId::unique(), ExportId::unique());
    }

    #[test]
    fn the_key_is_made_once_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let load = |was_used| HandleKey::load_or_create(&state, was_used, OnLoss::Refuse);
        assert!(load(true).unwrap_err().to_string().contains("--recovery=reset"), "it was used, and has no key");
        let first = load(false).unwrap();
        assert_eq!(load(true).unwrap().0, first.0);
        let path = state.file(KEY_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(load(true).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn a_key_of_another_length_is_refused_and_kept_when_the_loss_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let path = state.file(KEY_FILE);
        for len in (0..KEY_LEN).chain(KEY_LEN + 1..3 * KEY_LEN) {
            private::replace(&path, &vec![1; len]).unwrap();
            let error = HandleKey::load_or_create(&state, true, OnLoss::Refuse).unwrap_err().to_string();
            assert!(error.contains("not a key") && error.contains("handle.key"), "{len} bytes: {error}");
        }
        let new = HandleKey::load_or_create(&state, true, OnLoss::Reset).unwrap();
        assert_eq!(HandleKey::load_or_create(&state, true, OnLoss::Refuse).unwrap().0, new.0);
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.filter(|name| name.starts_with("handle.key.bad-")).count(), 1);
    }

    #[test]
    fn a_key_that_is_no_regular_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let path = state.file(KEY_FILE);
        fs::create_dir(&path).unwrap();
        let load = || HandleKey::load_or_create(&state, true, OnLoss::Refuse).unwrap_err().to_string();
        assert!(load().contains("a directory"));
        fs::remove_dir(&path).unwrap();
        private::replace(&dir.path().join("elsewhere"), &[1; KEY_LEN]).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(load().contains("a symbolic link"));
    }
}
