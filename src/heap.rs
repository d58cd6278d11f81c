//! The heap of the process.

/// Gives memory that was freed back to the system, where the system's allocator keeps it otherwise. Takes milliseconds.
pub fn release_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function has no preconditions and may be called from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
