//! [`trim_heap`]: free memory of the heap, given back to the system.

/// Gives the whole pages of the heap that are free back to the system.
///
/// glibc does so by itself only at the end of the heap, so that one object there keeps all that was freed before it: after
/// 200,000 small files have been removed from the memory backend, 200 MiB. Allocation waits meanwhile, some tens of
/// milliseconds if there is very much to give back. This is for the time after a burst. With another C library it does
/// nothing.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no memory that is allocated, and locks the heap by itself.
    #[expect(unsafe_code)]
    unsafe {
        libc::malloc_trim(0);
    }
}
