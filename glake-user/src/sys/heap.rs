//! The process's heap.

/// Makes glibc keep little of what is given back to it. A reading of thousands of workloads is made anew every interval:
/// in one arena its memory is used again, and its large tables, mapped by themselves, go back to the kernel at once.
/// Left to itself, glibc gives each thread an arena and learns from large tables to keep them (mallopt(3)).
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 128 << 10), (libc::M_TRIM_THRESHOLD, 256 << 10)]
    {
        // SAFETY: mallopt(3) takes two numbers, and the allocator's own locks.
        unsafe { libc::mallopt(setting, value) };
    }
}

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
