//! [`ObjectHandle`]: a file handle that the metadata server computes, and that a data server of kind `slipway` accepts.
//!
//! Both have the [`ClusterKey`]. So the metadata server can name an object before the data server knows it, and without a call.
//!
//! | bytes | contents |
//! |---|---|
//! | 0 | version of this layout: 1 |
//! | 1 | the right: see [`Right`] |
//! | 2–5 | the end of the time in which a WRITE may create the object, in seconds since 1970; 0 if the object must exist |
//! | 6–9 | the epoch |
//! | 10–25 | the object |
//! | 26–41 | the first 16 bytes of the HMAC with SHA-256 (RFC 2104) of a label, the store, and bytes 0–25 |
//!
//! Integers are big-endian. On error: bytes that are no such handle are `BadHandle`. A handle that was not computed with this key for
//! this store is `Stale`: the store may be another one than before.

use std::{
    fmt,
    io::{self, Read},
    num::NonZeroU32,
    path::Path,
};

use aws_lc_rs::{constant_time::verify_slices_are_equal, hmac};
use vfs::{VfsError, private};

/// The secret that the metadata server and the data servers of a cluster share.
#[derive(Clone)]
pub struct ClusterKey(hmac::Key);

/// The identity of a store of objects. It is random, and another one if the objects or the epochs were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

/// The contents of a file handle of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectHandle {
    /// The operations that the handle permits.
    pub right: Right,
    /// If the object may not exist yet: the end of the time in which a WRITE with this handle may create it, in seconds since 1970.
    pub create_until: Option<NonZeroU32>,
    /// The epoch of clients with this right, which a fence raises. It has no effect for [`Right::Control`] and [`Right::Store`].
    pub epoch: u32,
    /// The object.
    pub object: u128,
}

/// The operations that a handle permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    /// READ, for a client with a layout to read.
    Read = 1,
    /// READ, WRITE and COMMIT, for a client with a layout to write.
    Write = 2,
    /// Those, and SETATTR of the size and of the epochs, for the metadata server.
    Control = 3,
    /// READDIR of the store, and REMOVE of its objects, for the metadata server.
    Store = 4,
}

/// The number of bytes of a handle.
pub const HANDLE_LEN: usize = BODY_LEN + MAC_LEN;

impl ClusterKey {
    /// Creates a key of these bytes.
    pub fn new(bytes: &[u8; KEY_LEN]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Reads a key from a file: 64 hexadecimal digits, as `openssl rand -hex 32` prints them.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, has other contents, is not a regular file of this user, or is accessible to
    /// other users.
    pub fn load(path: &Path) -> io::Result<Self> {
        let located = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let opened = private::open(path, private::OTHERS_ANY).map_err(located)?;
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("it does not exist: {CREATE}"));
        let file = opened.ok_or_else(missing).map_err(located)?;
        let mut text = Vec::with_capacity(TEXT_MAX);
        file.take(TEXT_MAX as u64).read_to_end(&mut text).map_err(located)?;
        let wrong =
            || io::Error::new(io::ErrorKind::InvalidData, format!("it must be 64 hexadecimal digits: {CREATE}"));
        parse(text.trim_ascii()).map(|bytes| Self::new(&bytes)).ok_or_else(wrong).map_err(located)
    }

    /// Returns the bytes of a handle of an object in a store.
    pub fn seal(&self, store: StoreId, handle: &ObjectHandle) -> [u8; HANDLE_LEN] {
        let body = handle.body();
        let mut bytes = [0; HANDLE_LEN];
        bytes[..BODY_LEN].copy_from_slice(&body);
        bytes[BODY_LEN..].copy_from_slice(&self.mac(store, &body));
        bytes
    }

    /// Returns the contents of a handle that was computed with this key for this store.
    ///
    /// # Errors
    /// Returns `BadHandle` or `Stale`: see the module documentation.
    pub fn open(&self, store: StoreId, bytes: &[u8]) -> Result<ObjectHandle, VfsError> {
        let bytes: &[u8; HANDLE_LEN] = bytes.try_into().map_err(|_| VfsError::BadHandle)?;
        let (body, mac) = bytes.split_first_chunk::<BODY_LEN>().expect("a handle must be longer than its body");
        // Nothing of a forged handle is used.
        verify_slices_are_equal(&self.mac(store, body), mac).map_err(|_| VfsError::Stale)?;
        ObjectHandle::of_body(body)
    }

    fn mac(&self, store: StoreId, body: &[u8; BODY_LEN]) -> [u8; MAC_LEN] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(LABEL);
        context.update(&store.0);
        context.update(body);
        let tag = context.sign();
        std::array::from_fn(|at| tag.as_ref()[at])
    }
}

impl ObjectHandle {
    /// Returns the handle with which the metadata server uses an object. `creates` if the object may not exist yet.
    pub fn control(object: u128, creates: bool) -> Self {
        Self { right: Right::Control, create_until: creates.then_some(NonZeroU32::MAX), epoch: 0, object }
    }

    /// Returns the handle of the store itself.
    pub fn store() -> Self {
        Self { right: Right::Store, create_until: None, epoch: 0, object: 0 }
    }

    /// Returns the bytes without the MAC.
    pub fn body(&self) -> [u8; BODY_LEN] {
        let mut body = [0; BODY_LEN];
        body[..2].copy_from_slice(&[VERSION, self.right as u8]);
        body[2..6].copy_from_slice(&self.create_until.map_or(0, NonZeroU32::get).to_be_bytes());
        body[6..10].copy_from_slice(&self.epoch.to_be_bytes());
        body[10..].copy_from_slice(&self.object.to_be_bytes());
        body
    }

    /// Returns the contents of a handle whose MAC was verified.
    ///
    /// # Errors
    /// Returns `BadHandle` if the version or the right is unknown.
    pub fn of_body(body: &[u8; BODY_LEN]) -> Result<Self, VfsError> {
        let right = match body[..2] {
            [VERSION, 1] => Right::Read,
            [VERSION, 2] => Right::Write,
            [VERSION, 3] => Right::Control,
            [VERSION, 4] => Right::Store,
            _ => return Err(VfsError::BadHandle),
        };
        let four = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| body[at + byte]));
        let object = u128::from_be_bytes(std::array::from_fn(|byte| body[10 + byte]));
        Ok(Self { right, create_until: NonZeroU32::new(four(2)), epoch: four(6), object })
    }
}

/// Returns the bytes of hexadecimal digits.
fn parse(text: &[u8]) -> Option<[u8; KEY_LEN]> {
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16);
    if text.len() != 2 * KEY_LEN {
        return None;
    }
    let mut bytes = [0; KEY_LEN];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (digit(2 * at)? << 4 | digit(2 * at + 1)?) as u8;
    }
    Some(bytes)
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(secret)")
    }
}

/// The number of bytes of a handle before the MAC.
pub const BODY_LEN: usize = 26;
const MAC_LEN: usize = 16;
/// The number of bytes of a key.
pub const KEY_LEN: usize = 32;
/// More than the file of a key has.
const TEXT_MAX: usize = 2 * KEY_LEN + 16;
const VERSION: u8 = 1;
/// Keeps these MACs apart from all others that may be made with the same key.
const LABEL: &[u8] = b"slipway object handle\0";
const CREATE: &str = "make it by `(umask 077; openssl rand -hex 32 >FILE)`, and copy it to all servers of the cluster";
const _: () = assert!(BODY_LEN <= vfs::HANDLE_MAX);

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use proptest::prelude::*;

    use super::*;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::new(&[byte; KEY_LEN])
    }

    fn handles() -> impl Strategy<Value = ObjectHandle> {
        let right = prop::sample::select(vec![Right::Read, Right::Write, Right::Control, Right::Store]);
        (right, any::<u32>(), any::<u32>(), any::<u128>()).prop_map(|(right, until, epoch, object)| ObjectHandle {
            right,
            create_until: NonZeroU32::new(until),
            epoch,
            object,
        })
    }

    proptest! {
        #[test]
        fn handle_opens_with_its_key_in_its_store_only(handle in handles(), bit in 0..HANDLE_LEN * 8) {
            let store = StoreId([7; 16]);
            let bytes = key(1).seal(store, &handle);
            prop_assert_eq!(key(1).open(store, &bytes), Ok(handle));
            prop_assert_eq!(key(2).open(store, &bytes), Err(VfsError::Stale), "another cluster");
            prop_assert_eq!(key(1).open(StoreId([8; 16]), &bytes), Err(VfsError::Stale), "another data server");
            let mut forged = bytes;
            forged[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(key(1).open(store, &forged), Err(VfsError::Stale), "bit {}", bit);
        }

        #[test]
        fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let opened = key(1).open(StoreId([7; 16]), &bytes);
            prop_assert_eq!(opened, Err(if bytes.len() == HANDLE_LEN { VfsError::Stale } else { VfsError::BadHandle }));
        }

        #[test]
        fn body_with_another_encoding_is_refused(body in prop::array::uniform26(any::<u8>())) {
            match ObjectHandle::of_body(&body) {
                Ok(handle) => prop_assert_eq!(handle.body(), body),
                Err(error) => prop_assert_eq!(error, VfsError::BadHandle),
            }
        }
    }

    /// The MAC is that of another implementation: `printf … | openssl dgst -sha256 -mac hmac -macopt hexkey:…`.
    #[test]
    fn handle_has_the_documented_bytes() {
        let handle = ObjectHandle {
            right: Right::Write,
            create_until: NonZeroU32::new(0x0102_0304),
            epoch: 5,
            object: 0x10 << 120 | 0xff,
        };
        let bytes = ClusterKey::new(&[0x0b; KEY_LEN]).seal(StoreId([0xaa; 16]), &handle);
        let body = [[1, 2, 1, 2, 3, 4, 0, 0, 0, 5].as_slice(), &[0x10], &[0; 14], &[0xff]].concat();
        assert_eq!(bytes[..BODY_LEN], body);
        assert_eq!(bytes[BODY_LEN..], MAC);
    }

    const MAC: [u8; 16] =
        [0x18, 0xac, 0xdf, 0x00, 0x8a, 0x9e, 0x35, 0xd7, 0x97, 0xb9, 0xa1, 0x3b, 0xa5, 0x20, 0xe2, 0x14];

    #[test]
    fn key_file_must_be_private_and_have_64_digits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.key");
        let load = || ClusterKey::load(&path).map_err(|error| error.to_string());
        assert!(load().unwrap_err().contains("it does not exist: make it by"));
        let digits = "0B".repeat(KEY_LEN);
        private::replace(&path, format!("{digits}\n").as_bytes()).unwrap();
        let handle = ObjectHandle::store();
        let sealed = load().unwrap().seal(StoreId([1; 16]), &handle);
        assert_eq!(key(0x0b).open(StoreId([1; 16]), &sealed), Ok(handle));
        for wrong in ["", "0b", &digits[1..], &format!("{digits}0"), &format!("{}zz", &digits[2..]), &"é".repeat(32)] {
            private::replace(&path, wrong.as_bytes()).unwrap();
            let error = load().unwrap_err();
            assert!(error.contains("64 hexadecimal digits") && !error.contains("0B0B"), "{wrong}: {error}");
        }
        private::replace(&path, digits.as_bytes()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(load().unwrap_err().contains("chmod 600"));
        assert_eq!(format!("{:?}", key(3)), "ClusterKey(secret)");
    }
}
