//! [`Region`]: memory that an operation fills, of the host or of a device.

use std::{io, sync::Arc};

use bytes::Bytes;

use crate::{Buffer, DeviceRange, Piece, Rope};

/// Contiguous memory with one owner, which moves into the operation that fills it and returns with its completion.
///
/// It need not be memory that this process can look at, so there is no `Deref` to bytes: [`as_host`](Self::as_host)
/// yields them where it is, and [`copy_in`](Self::copy_in) and [`copy_out`](Self::copy_out) work in any case. What only
/// passes a region on does not ask for its kind.
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
enum Kind {
    Host(Buffer),
    /// The range, and how many of its bytes are visible.
    Device(DeviceRange, usize),
}

impl Region {
    /// Visible bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Host(buffer) => buffer.len(),
            Kind::Device(_, len) => *len,
        }
    }

    /// Whether no bytes are visible.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes exactly the first `len` bytes visible.
    ///
    /// # Panics
    /// If the memory has fewer.
    pub fn set_len(&mut self, len: usize) {
        match &mut self.0 {
            Kind::Host(buffer) => buffer.set_len(len),
            Kind::Device(range, visible) => {
                assert!(len <= range.len(), "set_len {len} beyond {} bytes", range.len());
                *visible = len;
            }
        }
    }

    /// The buffer, if it is host memory.
    pub fn as_host(&self) -> Option<&Buffer> {
        match &self.0 {
            Kind::Host(buffer) => Some(buffer),
            Kind::Device(..) => None,
        }
    }

    /// The buffer, if it is host memory.
    pub fn as_host_mut(&mut self) -> Option<&mut Buffer> {
        match &mut self.0 {
            Kind::Host(buffer) => Some(buffer),
            Kind::Device(..) => None,
        }
    }

    /// Copies `from` to the visible bytes from `at` on.
    ///
    /// # Errors
    /// The device fails; never for host memory.
    ///
    /// # Panics
    /// If not all of them are visible.
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
    /// The device fails; never for host memory.
    ///
    /// # Panics
    /// If not all of them are visible.
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

/// All of the range. Its clones are not to be used while an operation fills it.
impl From<DeviceRange> for Region {
    fn from(range: DeviceRange) -> Self {
        let len = range.len();
        Self(Kind::Device(range, len))
    }
}

/// The visible bytes, to be sent. Nothing is copied.
impl From<Region> for Rope {
    fn from(region: Region) -> Self {
        match region.0 {
            Kind::Host(buffer) => buffer.freeze().into(),
            Kind::Device(range, len) => visible(&range, len).into(),
        }
    }
}

/// The buffer, if it is host memory; else the region comes back.
impl TryFrom<Region> for Buffer {
    type Error = Region;

    fn try_from(region: Region) -> Result<Self, Region> {
        match region.0 {
            Kind::Host(buffer) => Ok(buffer),
            device @ Kind::Device(..) => Err(Region(device)),
        }
    }
}

/// A filled [`Region`] that is read as a [`Piece`] and can become a `Region` again.
///
/// A transport that has placed a reply's payload in the caller's own region shows it in the message this way, and the
/// caller takes the region back when the message has been read.
#[derive(Clone, Debug)]
pub struct SharedRegion(Shared);

#[derive(Clone, Debug)]
enum Shared {
    Host(Arc<Buffer>),
    Device(DeviceRange, usize),
}

impl SharedRegion {
    /// The first `len` bytes. Nothing is copied.
    ///
    /// # Panics
    /// If fewer are visible.
    pub fn piece(&self, len: usize) -> Piece {
        match &self.0 {
            Shared::Host(buffer) if buffer.is_empty() => Piece::Memory(Bytes::new().slice(..len)),
            Shared::Host(buffer) => Piece::Memory(Bytes::from_owner(HostBytes(buffer.clone())).slice(..len)),
            Shared::Device(range, shown) => Piece::Device(visible(&visible(range, *shown), len)),
        }
    }

    /// Whether `data` are the first bytes of it themselves, so that a transport has placed them.
    pub fn holds(&self, data: &Rope) -> bool {
        match (&self.0, data.pieces()) {
            (Shared::Host(buffer), [Piece::Memory(bytes)]) => bytes.as_ptr() == buffer.as_ptr(),
            (Shared::Device(range, _), [Piece::Device(data)]) => data.starts_with(range),
            _ => false,
        }
    }

    /// The region, once nothing else refers to it.
    ///
    /// # Errors
    /// Bytes of it are still held.
    pub fn into_region(self) -> Result<Region, Self> {
        match self.0 {
            Shared::Host(buffer) => {
                let unshared = Arc::try_unwrap(buffer);
                unshared.map(Region::from).map_err(|buffer| Self(Shared::Host(buffer)))
            }
            // Whoever holds a piece of it holds a name, no reference.
            Shared::Device(range, len) => Ok(Region(Kind::Device(range, len))),
        }
    }

    /// The region, or a copy of it while bytes of it are held.
    pub fn into_region_or_copy(self) -> Region {
        self.into_region().unwrap_or_else(|shared| match shared.0 {
            Shared::Host(buffer) => Buffer::from(buffer.to_vec()).into(),
            Shared::Device(..) => unreachable!("it is never held"),
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

/// What [`Bytes`] refer to.
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

    /// A region of each kind, of ten bytes of which eight are visible.
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
    fn bytes_are_copied_in_and_out_of_what_is_visible() {
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
    fn nothing_that_is_not_visible_is_reached() {
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
    fn a_shared_region_knows_its_own_bytes_and_comes_back() {
        for region in regions() {
            let len = region.len();
            let shared = SharedRegion::from(region);
            let data = Rope::from(shared.piece(5));
            assert!(shared.holds(&data) && shared.holds(&data.slice(0, 1)));
            assert!(!shared.holds(&data.slice(1, 2)), "not its first bytes");
            let mut others = regions().into_iter().map(SharedRegion::from);
            assert!(others.all(|other| !other.holds(&data)) && !shared.holds(&Rope::new()));
            drop(data);
            assert_eq!(shared.into_region().unwrap().len(), len);
        }
    }

    #[test]
    fn host_memory_of_which_bytes_are_held_is_copied() {
        let [host, _] = regions();
        let at = host.as_host().unwrap().as_ptr();
        let shared = SharedRegion::from(host);
        let piece = shared.piece(8);
        let shared = shared.into_region().expect_err("its bytes are held");
        assert_ne!(shared.clone().into_region_or_copy().as_host().unwrap().as_ptr(), at);
        drop(piece);
        assert_eq!(shared.into_region_or_copy().as_host().unwrap().as_ptr(), at);
    }

    #[test]
    fn a_socket_takes_a_copy_of_device_memory() {
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
