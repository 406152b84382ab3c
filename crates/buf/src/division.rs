//! [`Division`]: a [`Region`] whose parts several operations fill at the same time.
//!
//! A READ of a striped file goes to several data servers, and each places its bytes in its part of the caller's region. [`Region::divide`]
//! makes the parts. Each is a region of its own, which moves into one operation and returns with its completion. [`Division::join`]
//! makes the region again from all parts.
//!
//! **Ownership.** Parts do not overlap, and each byte belongs to one part. A part of host memory holds a reference to the memory that was
//! divided, and nothing accesses that memory in any other way while a part exists. So the memory is not freed or used again before each operation
//! has ended, also if the caller has given up and dropped the division.
//!
//! **Errors.** An operation that cannot return its part (at a deadline, a transport still holds it) returns other memory of the same
//! length. Then the parts are copied to new memory, and the divided memory is freed with the last part.

use std::{io, ptr::NonNull, sync::Arc};

use crate::{Buffer, DeviceRange, Region, region::Kind};

/// The rest of a [`Region`] that was [divided](Region::divide): its length and the claim to its memory, without access to the bytes.
#[derive(Debug)]
pub struct Division {
    whole: Whole,
    /// The end of each part, from the first byte of the region.
    ends: Vec<usize>,
}

#[derive(Debug)]
enum Whole {
    /// There is one part: the region itself.
    Undivided,
    Host(Arc<Buffer>),
    Device(DeviceRange),
}

/// The memory of a [`Buffer`] that is a part of another one.
pub(crate) struct Part {
    start: NonNull<u8>,
    len: usize,
    /// The first byte, counted from that of `whole`.
    offset: usize,
    /// The buffer that was divided. It keeps the memory allocated. Its bytes are accessed through its parts only.
    whole: Arc<Buffer>,
}

// SAFETY: a `Part` is the only reference to its bytes, as a `Chunk` is to its block, and plain memory has no thread affinity.
#[expect(unsafe_code)]
unsafe impl Send for Part {}
// SAFETY: `&Part` only reads, `&mut Part` is exclusive.
#[expect(unsafe_code)]
unsafe impl Sync for Part {}

impl Part {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `divide` made this from initialized memory that `whole` keeps allocated, and no other part has these bytes. The buffer in
        // `whole` is not dereferenced while a part exists: only `Division::join` takes it out of its `Arc`, after it has dropped all parts.
        #[expect(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.len)
        }
    }

    /// Returns the bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        #[expect(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len)
        }
    }
}

impl Region {
    /// Divides the visible bytes into parts of these lengths, in order, without a copy.
    ///
    /// ```
    /// # use buf::{Buffer, Region};
    /// let region = Region::from(Buffer::zeroed(8));
    /// let (mut parts, division) = region.divide([3, 5]);
    /// parts[0].copy_in(0, b"one")?;
    /// parts[1].copy_in(0, b"other")?;
    /// let (joined, region) = division.join(parts);
    /// joined?;
    /// assert_eq!(&Buffer::try_from(region).expect("host memory")[..], b"oneother");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the sum of the lengths is not [`len`](Self::len).
    pub fn divide(self, lens: impl IntoIterator<Item = usize>) -> (Vec<Self>, Division) {
        let mut end = 0_usize;
        let ends: Vec<usize> = lens
            .into_iter()
            .map(|len| {
                end = end.checked_add(len).expect("the lengths must not overflow");
                end
            })
            .collect();
        assert_eq!(end, self.len(), "the parts must be all visible bytes");
        if ends.len() == 1 {
            return (vec![self], Division { whole: Whole::Undivided, ends });
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        match self.into_kind() {
            Kind::Host(mut buffer) => {
                let first = NonNull::from(&mut buffer[..]).cast::<u8>();
                let whole = Arc::new(buffer);
                let part = |(start, end): (usize, &usize)| {
                    // SAFETY: start <= end <= the length of the buffer, so the address is inside of its memory or at its end.
                    #[expect(unsafe_code)]
                    let at = unsafe { first.add(start) };
                    Region::from(Buffer::from_part(Part {
                        start: at,
                        len: end - start,
                        offset: start,
                        whole: whole.clone(),
                    }))
                };
                let parts = starts.zip(&ends).map(part).collect();
                (parts, Division { whole: Whole::Host(whole), ends })
            }
            Kind::Device(mut range, len) => {
                let whole = range.clone();
                let mut rest = range.split_to(len);
                let parts = starts.zip(&ends).map(|(start, end)| rest.split_to(end - start).into()).collect();
                (parts, Division { whole: Whole::Device(whole), ends })
            }
        }
    }
}

impl Division {
    /// Makes the region again from its parts, in their order. If an operation has returned other memory instead of its part, the
    /// bytes of all parts are copied to a new region of host memory.
    ///
    /// # Errors
    /// Such a copy from device memory fails. The bytes of this part are zeros then.
    ///
    /// # Panics
    /// If the number of parts or the length of one is another one than before.
    pub fn join(self, parts: Vec<Region>) -> (io::Result<()>, Region) {
        assert_eq!(parts.len(), self.ends.len(), "all parts must have returned");
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let places = starts.zip(&self.ends).map(|(start, end)| start..*end);
        for (part, place) in parts.iter().zip(places.clone()) {
            assert_eq!(part.len(), place.len(), "a part must have its length");
        }
        let len = self.ends.last().copied().unwrap_or(0);
        match self.whole {
            Whole::Undivided => (Ok(()), parts.into_iter().next().expect("there is one part")),
            Whole::Host(whole)
                if parts.iter().zip(places.clone()).all(|(part, place)| is_of(part, &whole, place.start)) =>
            {
                drop(parts);
                // Each part was the only one with its bytes, and none is left.
                (Ok(()), Arc::into_inner(whole).expect("a returned part must not be referenced").into())
            }
            Whole::Device(whole)
                if parts.iter().zip(places.clone()).all(|(part, place)| is_at(part, &whole, place.start)) =>
            {
                let mut region = Region::from(whole);
                region.set_len(len);
                (Ok(()), region)
            }
            Whole::Host(_) | Whole::Device(_) => {
                let mut buffer = Buffer::zeroed(len);
                let mut copied = Ok(());
                for (part, place) in parts.iter().zip(places) {
                    copied = copied.and(part.copy_out(0, &mut buffer[place]));
                }
                (copied, buffer.into())
            }
        }
    }
}

/// Reports whether a region is the part of `whole` that begins at `start`.
fn is_of(region: &Region, whole: &Arc<Buffer>, start: usize) -> bool {
    let part = region.as_host().and_then(Buffer::part);
    part.is_some_and(|part| Arc::ptr_eq(&part.whole, whole) && part.offset == start)
}

/// Reports whether a region is the device memory from byte `start` of `whole` on.
fn is_at(region: &Region, whole: &DeviceRange, start: usize) -> bool {
    let mut from = whole.clone();
    from.split_to(start);
    region.as_device().is_some_and(|range| range.starts_with(&from))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::{Account, DeviceMemory, Pool, Rope, SharedRegion, Slab};

    struct Device(Mutex<Vec<u8>>);

    impl DeviceMemory for Device {
        fn copy_in(&self, offset: usize, from: &[u8]) -> io::Result<()> {
            self.0.lock()[offset..][..from.len()].copy_from_slice(from);
            Ok(())
        }

        fn copy_out(&self, _: usize, _: &mut [u8]) -> io::Result<()> {
            Err(io::Error::other("the device has failed"))
        }
    }

    fn device(len: usize) -> (Arc<Device>, Region) {
        let device = Arc::new(Device(Mutex::new(vec![0; len])));
        (device.clone(), DeviceRange::new(device, 0, len).into())
    }

    fn host(region: Region) -> Buffer {
        Buffer::try_from(region).expect("host memory")
    }

    fn fill(parts: &mut [Region]) {
        for (part, byte) in parts.iter_mut().zip(1..) {
            part.copy_in(0, &vec![byte; part.len()]).unwrap();
        }
    }

    #[test]
    fn parts_are_the_bytes_of_the_region_and_it_comes_back() {
        let pool = Pool::default();
        for mut buffer in [Buffer::zeroed(12), pool.take(12)] {
            let start = buffer.as_ptr();
            buffer.set_len(10);
            let (mut parts, division) = Region::from(buffer).divide([3, 0, 7]);
            let starts: Vec<_> = parts.iter().map(|part| part.as_host().unwrap().as_ptr()).collect();
            assert_eq!(starts, [start, start.wrapping_add(3), start.wrapping_add(3)]);
            fill(&mut parts);
            // A transport can show fewer bytes, and never those of the next part.
            parts[0].set_len(1);
            assert_eq!(parts[0].as_host().unwrap().capacity(), 3);
            parts[0].set_len(3);
            let (joined, region) = division.join(parts);
            joined.unwrap();
            let mut buffer = host(region);
            assert_eq!((buffer.as_ptr(), &buffer[..]), (start, &[1, 1, 1, 3, 3, 3, 3, 3, 3, 3][..]));
            buffer.set_len(12);
        }
        let (one, division) = Region::from(Buffer::zeroed(4)).divide([4]);
        let start = one[0].as_host().unwrap().as_ptr();
        assert_eq!(division.join(one).1.as_host().unwrap().as_ptr(), start);
    }

    #[test]
    fn parts_are_filled_on_several_threads_and_divided_again() {
        let buffer = Buffer::zeroed(4000);
        let start = buffer.as_ptr();
        let (parts, division) = Region::from(buffer).divide([1000; 4]);
        let fill = |(part, byte): (Region, u8)| {
            std::thread::spawn(move || {
                let (mut halves, division) = part.divide([400, 600]);
                for (half, more) in halves.iter_mut().zip([0, 100]) {
                    half.as_host_mut().unwrap().fill(byte + more);
                }
                division.join(halves).1
            })
        };
        let threads: Vec<_> = parts.into_iter().zip(1..).map(fill).collect();
        let parts = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let buffer = host(division.join(parts).1);
        assert_eq!(buffer.as_ptr(), start);
        let expected: Vec<u8> = (1..=4).flat_map(|byte| [vec![byte; 400], vec![byte + 100; 600]].concat()).collect();
        assert_eq!(buffer[..], expected);
    }

    struct Freed(Mutex<bool>);

    impl Account for Freed {
        fn returned(&self) {
            *self.0.lock() = true;
        }
    }

    /// A transport that still holds a part can write to it until it drops it.
    #[test]
    fn memory_stays_allocated_until_the_last_part_was_dropped() {
        let pool = Pool::default();
        let freed = Arc::new(Freed(Mutex::new(false)));
        let mut buffer = pool.take(8192);
        buffer.charge(freed.clone());
        let (slab, at) = Slab::of(&buffer).unwrap();
        let (mut parts, division) = Region::from(buffer).divide([5000, 3192]);
        let mut kept = parts.pop().unwrap();
        assert_eq!(slab.offset_of(kept.as_host().unwrap()), Some(at + 5000), "a provider must find a part in its slab");
        drop((parts, division));
        kept.as_host_mut().unwrap().fill(9);
        assert!(!*freed.0.lock());
        let next = pool.take(8192);
        assert_ne!(Slab::of(&next).unwrap().1, at, "the memory must not be used again");
        let frozen = Rope::from(kept).to_bytes().unwrap();
        assert!(!*freed.0.lock() && frozen[..] == [9; 3192]);
        drop(frozen);
        assert!(*freed.0.lock());
        assert_eq!(Slab::of(&pool.take(8192)).unwrap().1, at);
    }

    #[test]
    fn part_that_does_not_return_makes_a_copy_of_the_others() {
        let buffer = Buffer::zeroed(6);
        let start = buffer.as_ptr();
        let (mut parts, division) = Region::from(buffer).divide([2, 4]);
        fill(&mut parts);
        let kept = std::mem::replace(&mut parts[1], Buffer::from(vec![7; 4]).into());
        let (joined, region) = division.join(parts);
        joined.unwrap();
        assert_eq!(region.as_host().unwrap()[..], [1, 1, 7, 7, 7, 7]);
        assert_ne!(region.as_host().unwrap().as_ptr(), start);
        assert_eq!(kept.as_host().unwrap()[..], [2; 4]);
        // Parts of other divisions are no parts of this one, and neither are those in another order.
        let (mut one, division) = Region::from(Buffer::from(vec![1; 4])).divide([2, 2]);
        let (mut other, _) = Region::from(Buffer::from(vec![2; 4])).divide([2, 2]);
        std::mem::swap(&mut one[0], &mut other[0]);
        one.swap(0, 1);
        assert_eq!(host(division.join(one).1)[..], [1, 1, 2, 2]);
    }

    #[test]
    fn shared_part_is_converted_back() {
        let (mut parts, division) = Region::from(Buffer::zeroed(6)).divide([2, 4]);
        let shared = SharedRegion::from(parts.pop().unwrap());
        let data = Rope::from(shared.piece(4));
        assert!(shared.holds(&data));
        drop(data);
        parts.push(shared.into_region().unwrap());
        let start = parts[0].as_host().unwrap().as_ptr();
        assert_eq!(division.join(parts).1.as_host().unwrap().as_ptr(), start);
    }

    #[test]
    fn device_memory_is_divided() {
        let (memory, mut region) = device(12);
        region.set_len(10);
        let (mut parts, division) = region.divide([3, 7]);
        fill(&mut parts);
        let (joined, mut region) = division.join(parts);
        joined.unwrap();
        assert!(region.len() == 10 && region.as_host().is_none());
        region.set_len(12);
        assert_eq!(*memory.0.lock(), [1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 0, 0]);
        let (mut parts, division) = region.divide([6, 6]);
        parts[0] = Buffer::from(vec![5; 6]).into();
        let (joined, region) = division.join(parts);
        assert!(joined.is_err(), "the bytes of the second part cannot be copied");
        assert_eq!(host(region)[..], [5, 5, 5, 5, 5, 5, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn parts_must_be_all_bytes() {
        let panics =
            |attempt: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)).is_err();
        for lens in [[3, 4], [3, 6], [usize::MAX, 9]] {
            assert!(panics(&mut || _ = Region::from(Buffer::zeroed(8)).divide(lens)), "{lens:?}");
        }
        let (mut parts, division) = Region::from(Buffer::zeroed(8)).divide([4, 4]);
        parts.pop();
        let mut both = Some((parts, division));
        assert!(panics(&mut || both.take().into_iter().for_each(|(parts, division)| _ = division.join(parts))));
    }
}
