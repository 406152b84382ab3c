//! [`Region`]: host or device memory that an operation fills.

use std::{io, sync::Arc};

use bytes::Bytes;

use crate::{Buffer, DeviceRange, Piece, Rope};

/// Contiguous memory with one owner. It moves into the operation that fills it and returns with its completion.
///
/// This process may be unable to reference the memory, so there is no `Deref` to bytes. [`as_host`](Self::as_host)
/// returns the buffer of host memory; [`copy_in`](Self::copy_in) and [`copy_out`](Self::copy_out) work for both kinds.
/// Code that only passes a region on need not know its kind.
///
/// ```
/// # use buf::{Buffer, Region};
/// let mut region = Region::from(Buffer::zeroed(8));
/// region.copy_in(2, b"data")?;
/// let buffer = Buffer::try_from(region).expect("host memory");
/// assert_eq!(&buffer[..], b"\0\0data\0\0");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Region(Kind);

#[derive(Debug)]
pub(crate) enum Kind {
    Host(Buffer),
    /// The range, and the number of its bytes that are visible.
    Device(DeviceRange, usize),
}

impl Region {
    /// Returns the number of visible bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Host(buffer) => buffer.len(),
            Kind::Device(_, len) => *len,
        }
    }

    /// Returns `true` if no bytes are visible.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes exactly the first `len` bytes visible.
    ///
    /// # Panics
    /// If the memory has fewer bytes.
    pub fn set_len(&mut self, len: usize) {
        match &mut self.0 {
            Kind::Host(buffer) => buffer.set_len(len),
            Kind::Device(range, visible) => {
                assert!(len <= range.len(), "set_len {len} beyond {} bytes", range.len());
                *visible = len;
            }
        }
    }

    /// Returns the buffer, if this is host memory.
    pub fn as_host(&self) -> Option<&Buffer> {
        match &self.0 {
            Kind::Host(buffer) => Some(buffer),
            Kind::Device(..) => None,
        }
    }

    /// Returns the buffer, if this is host memory.
    pub fn as_host_mut(&mut self) -> Option<&mut Buffer> {
        match &mut self.0 {
            Kind::Host(buffer) => Some(buffer),
            Kind::Device(..) => None,
        }
    }

    /// Returns the range, if this is device memory.
    pub(crate) fn as_device(&self) -> Option<&DeviceRange> {
        match &self.0 {
            Kind::Host(_) => None,
            Kind::Device(range, _) => Some(range),
        }
    }

    pub(crate) fn into_kind(self) -> Kind {
        self.0
    }

    /// Copies `from` to the visible bytes from `at` on.
    ///
    /// # Errors
    /// The device fails. Host memory does not fail.
    ///
    /// # Panics
    /// If the bytes are not all visible.
    pub fn copy_in(&mut self, at: usize, from: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            Kind::Host(buffer) => buffer[at..][..from.len()].copy_from_slice(from),
            Kind::Device(range, len) => visible(range, *len).copy_in(at, from)?,
        }
        Ok(())
    }

    /// Copies the visible bytes from `at` on to `into`.
    ///
    /// # Errors
    /// The device fails. Host memory does not fail.
    ///
    /// # Panics
    /// If the bytes are not all visible.
    pub fn copy_out(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        match &self.0 {
            Kind::Host(buffer) => into.copy_from_slice(&buffer[at..][..into.len()]),
            Kind::Device(range, len) => visible(range, *len).copy_out(at, into)?,
        }
        Ok(())
    }
}

impl From<Buffer> for Region {
    fn from(buffer: Buffer) -> Self {
        Self(Kind::Host(buffer))
    }
}

/// Converts the whole range. Its clones must not be used while an operation fills it.
impl From<DeviceRange> for Region {
    fn from(range: DeviceRange) -> Self {
        let len = range.len();
        Self(Kind::Device(range, len))
    }
}

/// Converts the visible bytes without a copy, to send them.
impl From<Region> for Rope {
    fn from(region: Region) -> Self {
        match region.0 {
            Kind::Host(buffer) => buffer.freeze().into(),
            Kind::Device(range, len) => visible(&range, len).into(),
        }
    }
}

/// Returns the buffer of host memory; returns the region as the error if it is device memory.
impl TryFrom<Region> for Buffer {
    type Error = Region;

    fn try_from(region: Region) -> Result<Self, Region> {
        match region.0 {
            Kind::Host(buffer) => Ok(buffer),
            device @ Kind::Device(..) => Err(Region(device)),
        }
    }
}

/// A filled [`Region`] whose bytes can be read as a [`Piece`], and which can be converted back.
///
/// A transport that has placed the payload of a reply in the caller's region returns the data in the message as such a
/// piece. The caller gets the region back when the message has been decoded.
#[derive(Clone, Debug)]
pub struct SharedRegion(Shared);

#[derive(Clone, Debug)]
enum Shared {
    Host(Arc<Buffer>),
    Device(DeviceRange, usize),
}

impl SharedRegion {
    /// Returns the first `len` bytes without a copy.
    ///
    /// # Panics
    /// If fewer bytes are visible.
    pub fn piece(&self, len: usize) -> Piece {
        match &self.0 {
            Shared::Host(buffer) if buffer.is_empty() => Piece::Memory(Bytes::new().slice(..len)),
            Shared::Host(buffer) => Piece::Memory(Bytes::from_owner(HostBytes(buffer.clone())).slice(..len)),
            Shared::Device(range, shown) => Piece::Device(visible(&visible(range, *shown), len)),
        }
    }

    /// Returns `true` if `data` starts with the first byte of this region itself, so a transport has placed the data
    /// there.
    pub fn holds(&self, data: &Rope) -> bool {
        match (&self.0, data.pieces()) {
            (Shared::Host(buffer), [Piece::Memory(bytes)]) => bytes.as_ptr() == buffer.as_ptr(),
            (Shared::Device(range, _), [Piece::Device(data)]) => data.starts_with(range),
            _ => false,
        }
    }

    /// Converts back to the region, if nothing else refers to its bytes.
    ///
    /// # Errors
    /// Returns itself if pieces of its bytes exist.
    pub fn into_region(self) -> Result<Region, Self> {
        match self.0 {
            Shared::Host(buffer) => {
                let unshared = Arc::try_unwrap(buffer);
                unshared.map(Region::from).map_err(|buffer| Self(Shared::Host(buffer)))
            }
            // Pieces of device memory are not references, so they do not prevent this.
            Shared::Device(range, len) => Ok(Region(Kind::Device(range, len))),
        }
    }

    /// Converts back to the region, or copies it if pieces of its bytes exist.
    pub fn into_region_or_copy(self) -> Region {
        self.into_region().unwrap_or_else(|shared| match shared.0 {
            Shared::Host(buffer) => Buffer::from(buffer.to_vec()).into(),
            Shared::Device(..) => unreachable!("device memory must always be convertible"),
        })
    }
}

impl From<Region> for SharedRegion {
    fn from(region: Region) -> Self {
        Self(match region.0 {
            Kind::Host(buffer) => Shared::Host(Arc::new(buffer)),
            Kind::Device(range, len) => Shared::Device(range, len),
        })
    }
}

/// The owner of the memory to which [`Bytes`] refer.
struct HostBytes(Arc<Buffer>);

impl AsRef<[u8]> for HostBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn visible(range: &DeviceRange, len: usize) -> DeviceRange {
    range.clone().split_to(len)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::DeviceMemory;

    #[derive(Default)]
    struct Device(Mutex<Vec<u8>>);

    impl DeviceMemory for Device {
        fn copy_in(&self, offset: usize, from: &[u8]) -> io::Result<()> {
            self.0.lock()[offset..][..from.len()].copy_from_slice(from);
            Ok(())
        }

        fn copy_out(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
            into.copy_from_slice(&self.0.lock()[offset..][..into.len()]);
            Ok(())
        }
    }

    /// Returns a region of each kind with ten bytes, of which eight are visible.
    fn regions() -> [Region; 2] {
        let device = Arc::new(Device(Mutex::new(vec![0; 12])));
        [Region::from(Buffer::zeroed(10)), DeviceRange::new(device, 2, 10).into()].map(|mut region| {
            region.set_len(8);
            region
        })
    }

    fn content(region: &Region) -> Vec<u8> {
        let mut content = vec![0; region.len()];
        region.copy_out(0, &mut content).unwrap();
        content
    }

    #[test]
    fn visible_bytes_are_copied_in_and_out() {
        for mut region in regions() {
            region.copy_in(3, b"data").unwrap();
            assert_eq!(content(&region), b"\0\0\0data\0");
            region.set_len(10);
            region.copy_in(8, b"!!").unwrap();
            region.set_len(9);
            assert_eq!(content(&region), b"\0\0\0data\0!");
            assert_eq!(Rope::from(region).to_bytes().unwrap(), b"\0\0\0data\0!"[..]);
        }
    }

    #[test]
    fn copies_beyond_the_visible_bytes_panic() {
        let panics =
            |attempt: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)).is_err();
        for mut region in regions() {
            for (at, len) in [(1, 8), (9, 0), (usize::MAX, 2)] {
                assert!(panics(&mut || region.copy_in(at, &vec![1; len]).unwrap()), "{at}, {len}");
                assert!(panics(&mut || region.copy_out(at, &mut vec![1; len]).unwrap()), "{at}, {len}");
            }
            assert!(panics(&mut || region.set_len(11)));
            assert_eq!(content(&region), [0; 8]);
        }
    }

    #[test]
    fn shared_region_recognizes_its_bytes_and_is_converted_back() {
        for region in regions() {
            let len = region.len();
            let shared = SharedRegion::from(region);
            let data = Rope::from(shared.piece(5));
            assert!(shared.holds(&data) && shared.holds(&data.slice(0, 1)));
            assert!(!shared.holds(&data.slice(1, 2)), "bytes that are not the first must not match");
            let mut others = regions().into_iter().map(SharedRegion::from);
            assert!(others.all(|other| !other.holds(&data)) && !shared.holds(&Rope::new()));
            drop(data);
            assert_eq!(shared.into_region().unwrap().len(), len);
        }
    }

    #[test]
    fn host_memory_with_pieces_is_copied() {
        let [host, _] = regions();
        let at = host.as_host().unwrap().as_ptr();
        let shared = SharedRegion::from(host);
        let piece = shared.piece(8);
        let shared = shared.into_region().expect_err("conversion must fail while a piece exists");
        assert_ne!(shared.clone().into_region_or_copy().as_host().unwrap().as_ptr(), at);
        drop(piece);
        assert_eq!(shared.into_region_or_copy().as_host().unwrap().as_ptr(), at);
    }

    #[test]
    fn device_memory_is_copied_for_a_socket() {
        let [_, mut device] = regions();
        device.copy_in(0, b"on a GPU").unwrap();
        let (tx, rx) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut queue = crate::SendQueue::new();
        queue.append(Bytes::from_static(b"data ").into());
        queue.append(device.into());
        queue.write_to(&tx).unwrap();
        let mut got = [0; 13];
        io::Read::read_exact(&mut &rx, &mut got).unwrap();
        assert_eq!(&got, b"data on a GPU");
    }
}
