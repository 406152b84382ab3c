//! NFS file handles: opaque to clients, authenticated, and valid across restarts.
//!
//! A handle names an object of an export and proves that this server made it. The key never leaves the state directory,
//! and without it nobody can make a handle for an object that the server has not shown to them. Read RFC 1813 §2.3.3
//! first.
//!
//! | bytes | contents |
//! |---|---|
//! | 0 | version of this layout: 1 |
//! | 1–7 | [`ExportId`], big-endian |
//! | 8–23 | SipHash-2-4-128 of bytes 0–7 and 24–end, little-endian |
//! | 24–end | the [`vfs::Handle`], 0 to 40 bytes |
//!
//! A handle with the version 3 was computed by another program ([`AdoptedHandle`]). It has no MAC of this layout: the export verifies it.
//!
//! A thread remembers the handles that it has [verified](verified) most recently.
//!
//! On error: a handle that no server with this layout can have made is `BadHandle`. A handle that this server did not
//! make, or made with a key that it no longer has, is `Stale`, so that the client looks up the path again.

mod verified;

use std::{
    io::{self, Read},
    path::Path,
};

use bytes::BufMut;
use siphasher::sip128::{Hasher128, SipHasher24};
use smallvec::SmallVec;
use vfs::{VfsError, private};

use crate::recovery::state_dir::{OnLoss, StateDir, Unusable, located};

/// The ID of an export in file handles: 56 bits.
///
/// It is a hash of the name, the back end and the location of the export. So it survives a restart and changes of other
/// exports, and it changes when the name is given to another tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExportId(u64);

impl ExportId {
    /// Returns the ID of an export that is described by `parts`: its name, its back end, and the location of its data.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = SipHasher24::new();
        for part in parts {
            std::hash::Hasher::write_u64(&mut hasher, part.len() as u64);
            std::hash::Hasher::write(&mut hasher, part);
        }
        Self(hasher.finish128().h1 & ID_MASK)
    }

    /// Returns a random ID, for an export whose objects do not outlive the process.
    pub fn unique() -> Self {
        Self(entropy::random::<u64>() & ID_MASK)
    }

    /// Returns the ID as a number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The ID of a file in all protocols.
pub(crate) type FileId = (ExportId, vfs::Handle);

/// A file handle that another program has computed for an object of an export, such as the metadata server of a pNFS cluster for an
/// object of a data server. The back end of the export verifies it ([`vfs::Vfs::adopt`]).
///
/// | bytes | contents |
/// |---|---|
/// | 0 | version of this layout: 3 |
/// | 1–7 | [`ExportId`], big-endian |
/// | 8–end | the handle for the back end |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptedHandle<'a> {
    /// The export.
    pub export: ExportId,
    /// The handle for the back end, which verifies it.
    pub object: &'a [u8],
}

impl<'a> AdoptedHandle<'a> {
    /// Returns the bytes of the handle.
    pub fn encode(&self) -> bytes::Bytes {
        let mut bytes = bytes::BytesMut::with_capacity(8 + self.object.len());
        bytes.put_u64(u64::from(ADOPTED) << 56 | self.export.0);
        bytes.put_slice(self.object);
        bytes.freeze()
    }

    /// Returns the parts of a handle. Returns `None` if it has another version. The object is not verified.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, object) = bytes.split_first_chunk::<8>().filter(|(head, _)| head[0] == ADOPTED)?;
        Some(Self { export: ExportId(u64::from_be_bytes(*head) & ID_MASK), object })
    }
}

/// The secret that authenticates file handles.
#[derive(Clone)]
pub struct HandleKey([u8; KEY_LEN]);

impl HandleKey {
    /// Creates a random key. Handles made with it are stale after the key is lost.
    pub fn random() -> Self {
        Self(entropy::random())
    }

    /// Loads the key from a state directory. If there is none, creates one, unless `was_used` says that the directory
    /// had a key before.
    ///
    /// # Errors
    /// Returns an error if the key cannot be read or written, is damaged or missing, is not a regular file, or is
    /// accessible to other users.
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

    /// Returns the key in the state directory at this path, which a running server can have locked. Returns `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if the key cannot be read, is damaged, is not a regular file, belongs to another user, or is accessible to
    /// others.
    pub fn find(state_dir: &Path) -> io::Result<Option<Self>> {
        Ok(Self::load(&state_dir.join(KEY_FILE))?)
    }

    /// Returns `true` if a state directory has a file, of any type, in the place of the key.
    pub(crate) fn exists_in(state_dir: &StateDir) -> bool {
        std::fs::symlink_metadata(state_dir.file(KEY_FILE)).is_ok()
    }

    fn load(path: &Path) -> Result<Option<Self>, Unusable> {
        let opened = private::open(path, private::OTHERS_ANY).map_err(|error| Unusable::io(path, error))?;
        let Some(file) = opened else { return Ok(None) };
        // Read one byte more than a key has, to detect a file that is too long.
        let mut bytes = Vec::with_capacity(KEY_LEN + 1);
        file.take(KEY_LEN as u64 + 1).read_to_end(&mut bytes).map_err(|error| Unusable::io(path, error))?;
        let key = bytes.try_into().map_err(|_| Unusable::lost(path, format!("it is not a key of {KEY_LEN} bytes")))?;
        Ok(Some(Self(key)))
    }

    /// Returns the file handle of an object.
    pub fn seal(&self, export: ExportId, object: &vfs::Handle) -> SmallVec<[u8; SEALED_MAX]> {
        let head = (u64::from(VERSION) << 56) | export.0;
        let mut bytes = SmallVec::from_buf_and_len([0; SEALED_MAX], HEADER_LEN + object.as_bytes().len());
        let mut header = &mut bytes[..HEADER_LEN];
        header.put_u64(head);
        header.put_u128_le(self.mac(head, object.as_bytes()));
        bytes[HEADER_LEN..].copy_from_slice(object.as_bytes());
        bytes
    }

    /// Returns the export and the object of a file handle.
    ///
    /// # Errors
    /// Returns `BadHandle` or `Stale`; see the module documentation.
    pub fn open(&self, handle: &[u8]) -> Result<(ExportId, vfs::Handle), VfsError> {
        let (header, object) = handle.split_first_chunk::<HEADER_LEN>().ok_or(VfsError::BadHandle)?;
        let (head, mac) = header.split_first_chunk::<8>().expect("header must be longer than its head");
        if head[0] != VERSION || object.len() > vfs::HANDLE_MAX {
            return Err(VfsError::BadHandle);
        }
        let head = u64::from_be_bytes(*head);
        let mac = u128::from_le_bytes(mac.try_into().expect("header must end with the MAC"));
        // The comparison of one number takes the same time wherever the first difference is.
        if !verified::or_verify(self.0, mac, handle, || self.mac(head, object) ^ mac == 0) {
            return Err(VfsError::Stale);
        }
        Ok((ExportId(head & ID_MASK), vfs::Handle::new(object)))
    }

    /// Returns the export and the object of a file handle without a check, for a program that has got it from the server itself. Returns
    /// `None` if it has another layout.
    pub fn parts(handle: &[u8]) -> Option<(ExportId, &[u8])> {
        let (header, object) = handle.split_first_chunk::<HEADER_LEN>()?;
        let head = header.first_chunk::<8>().filter(|head| head[0] == VERSION)?;
        Some((ExportId(u64::from_be_bytes(*head) & ID_MASK), object))
    }

    /// Returns a number that identifies the server with this key and reveals nothing about the key.
    fn server_id(&self) -> u128 {
        self.mac(SERVER_HEAD, b"server")
    }

    /// Returns the owner and the scope that the server with this key tells clients of NFSv4 (RFC 8881 §2.10.4). Servers with the same key
    /// issue the same file handles, so they have the same owner.
    pub fn server_owner(&self) -> bytes::Bytes {
        format!("slipway {:032x}", self.server_id()).into()
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

/// Maximum bytes of a file handle. Every version of NFS can carry that many.
pub const SEALED_MAX: usize = 64;
const VERSION: u8 = 1;
/// The version of [`AdoptedHandle`]. Version 2 is that of [`DataHandle`](crate::DataHandle).
const ADOPTED: u8 = 3;
/// Takes the place of version and export in the input of [`HandleKey::server_id`]. No file handle has this version.
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
    fn sealed_handle_opens_to_its_export_and_object() {
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
    fn handle_is_verified_once_by_a_thread() {
        let key = HandleKey::random();
        let sealed = key.seal(ExportId::of(&[b"/a"]), &vfs::Handle::new(b"root"));
        let mac = u128::from_le_bytes(sealed[8..HEADER_LEN].try_into().unwrap());
        let is_known = || verified::or_verify(key.0, mac, &sealed, || false);
        assert!(!is_known());
        assert!(key.open(&sealed).is_ok());
        assert!(is_known());
        std::thread::scope(|scope| assert!(!scope.spawn(is_known).join().unwrap(), "another thread has verified it"));
    }

    #[test]
    fn owner_of_a_server_is_known_from_its_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert!(HandleKey::find(dir.path()).unwrap().is_none());
        let state = StateDir::open(dir.path()).unwrap();
        let key = HandleKey::load_or_create(&state, false, OnLoss::Refuse).unwrap();
        let found = HandleKey::find(dir.path()).unwrap().unwrap();
        assert_eq!(found.server_owner(), key.server_owner());
        assert_ne!(found.server_owner(), HandleKey::random().server_owner());
        fs::set_permissions(dir.path().join(KEY_FILE), Permissions::from_mode(0o644)).unwrap();
        assert!(HandleKey::find(dir.path()).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn altered_truncated_or_extended_handle_is_rejected() {
        let key = HandleKey::random();
        let sealed = key.seal(ExportId::of(&[b"/a"]), &vfs::Handle::new(b"an object of 20 bytes"));
        // The thread remembers that it has verified the handle.
        assert!(key.open(&sealed).is_ok());
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
    fn parts_of_a_handle_are_known_without_its_key() {
        let id = ExportId::of(&[b"/a"]);
        let sealed = HandleKey::random().seal(id, &vfs::Handle::new(b"root"));
        assert_eq!(HandleKey::parts(&sealed), Some((id, &b"root"[..])));
        assert_eq!(HandleKey::parts(&sealed[..HEADER_LEN - 1]), None);
        let adopted = AdoptedHandle { export: id, object: b"an object" };
        let bytes = adopted.encode();
        assert_eq!((HandleKey::parts(&bytes.repeat(2)), AdoptedHandle::decode(&bytes)), (None, Some(adopted)));
        assert_eq!((AdoptedHandle::decode(&bytes[..7]), AdoptedHandle::decode(&sealed)), (None, None));
        assert_eq!(HandleKey::random().open(&bytes.repeat(2)), Err(VfsError::BadHandle), "this server did not make it");
    }

    #[test]
    fn export_id_depends_on_boundaries_between_parts() {
        assert_ne!(ExportId::of(&[b"ab", b"c"]), ExportId::of(&[b"a", b"bc"]));
        assert_eq!(ExportId::of(&[b"ab", b"c"]), ExportId::of(&[b"ab", b"c"]));
        assert_ne!(ExportId::unique(), ExportId::unique());
    }

    #[test]
    fn key_is_created_once_and_must_be_private() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let load = |was_used| HandleKey::load_or_create(&state, was_used, OnLoss::Refuse);
        assert!(
            load(true).unwrap_err().to_string().contains("--recovery=reset"),
            "the directory was used but has no key"
        );
        let first = load(false).unwrap();
        assert_eq!(load(true).unwrap().0, first.0);
        let path = state.file(KEY_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(load(true).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn key_of_wrong_length_is_refused_and_set_aside_after_reset() {
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
    fn key_that_is_not_a_regular_file_is_refused() {
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
