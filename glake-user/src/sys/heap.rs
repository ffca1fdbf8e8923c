//! The process's heap.

/// Gives memory that is free in the heap back to the kernel: reading the kernel's types while probes are attached takes
/// some 20 MiB for a moment, and glibc would keep them.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) only returns pages that hold no allocation; it takes the allocator's own locks, so any
    // thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
