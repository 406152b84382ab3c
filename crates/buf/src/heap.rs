//! [`trim_heap`]: returns free memory of the heap to the system.

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
