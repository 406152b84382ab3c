//! The C library's heap: what it returns to the system, and when.

/// Returns the free whole pages of the heap to the system.
///
/// glibc by itself returns only memory at the end of the heap, so that one object there keeps all memory that was freed
/// before it: 200 MiB after 200,000 small files were removed from the memory back end. Allocations block during the
/// call, for some tens of milliseconds if there is much memory to return. Call this after a burst of load. With another
/// C library it does nothing.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no memory that is allocated, and locks the heap itself.
    #[expect(unsafe_code)]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets the heap keep up to 8 MiB of free memory at its end.
///
/// glibc keeps 128 KiB. A process that works on 16 requests at a time allocates and frees more than that for each batch: each time, glibc
/// returned the memory to the system, and the kernel cleared it again. With another C library it does nothing.
pub fn keep_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: these change only parameters of the heap, which locks itself. The second one is the largest allocation on the heap: to
    // set the first one also ends its automatic adjustment.
    #[expect(unsafe_code)]
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT / 2);
    }
}

/// The bytes that the heap keeps.
#[cfg(target_env = "gnu")]
const KEPT: i32 = 8 << 20;

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Returns the number of pages that this thread has touched for the first time (field 10 of proc(5)'s `stat`).
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn heap_keeps_the_memory_of_a_batch() {
        let batch = || std::hint::black_box((0..64).map(|_| vec![1_u8; 16 << 10]).collect::<Vec<_>>()).len();
        keep_heap();
        batch();
        let before = faults();
        let batches: usize = (0..20).map(|_| batch()).sum();
        let faults = faults() - before;
        assert!(faults < 256, "{faults} page faults for {batches} allocations of 4 pages");
    }
}
