//! Reads of a mapped file whose pages are gone.
//!
//! When a process truncates a mapped file, or the disk fails, the system sends SIGBUS to the thread that reads such a page, and
//! the default action ends the process. The handler here puts a page of zeros at the address of the missing one, marks the
//! [`Region`] as lost, and lets the thread continue. The owner of the region checks [`Region::is_lost`] before it uses anything
//! that was computed from the region. A SIGBUS outside of all regions goes to the handler that was installed before.

#[cfg(unix)]
pub(super) use unix::Region;

#[cfg(not(unix))]
pub(super) use elsewhere::Region;

#[cfg(unix)]
mod unix {
    use std::ffi::{c_int, c_void};
    use std::ops::Range;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

    /// A mapped range of addresses, and whether a page of it was missing.
    ///
    /// Nodes form a list that only grows, so that the handler can walk it at any time. A node without an owner is used for the
    /// next region.
    struct Node {
        start: AtomicUsize,
        /// 0 while the node has no range.
        end: AtomicUsize,
        lost: AtomicBool,
        is_owned: AtomicBool,
        next: *const Node,
    }

    static NODES: AtomicPtr<Node> = AtomicPtr::new(std::ptr::null_mut());
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
    static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

    /// A mapped range of addresses that the handler watches.
    pub struct Region(&'static Node);

    // SAFETY: the fields that change are atomic, and `next` points to a node that is never freed.
    unsafe impl Sync for Node {}
    // SAFETY: as above.
    unsafe impl Send for Node {}

    impl Region {
        /// Watches a range of mapped addresses, until [`Region::close`].
        pub fn watch(range: Range<usize>) -> Self {
            install();
            let node = Self::unowned().unwrap_or_else(Self::push);
            node.lost.store(false, Ordering::Relaxed);
            node.start.store(range.start, Ordering::Relaxed);
            node.end.store(range.end, Ordering::Release);
            Region(node)
        }

        /// Takes a node without an owner.
        fn unowned() -> Option<&'static Node> {
            let take = |node: &&Node| !node.is_owned.swap(true, Ordering::AcqRel);
            nodes().find(take)
        }

        /// Adds a node to the list.
        fn push() -> &'static Node {
            let node = Box::leak(Box::new(Node {
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                lost: AtomicBool::new(false),
                is_owned: AtomicBool::new(true),
                next: std::ptr::null(),
            }));
            let mut first = NODES.load(Ordering::Acquire);
            loop {
                node.next = first;
                match NODES.compare_exchange(first, node, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return node,
                    Err(other) => first = other,
                }
            }
        }

        /// Whether a page was missing when it was read.
        pub fn is_lost(&self) -> bool {
            self.0.lost.load(Ordering::Acquire)
        }

        /// Stops watching, before the range is unmapped.
        pub fn close(&self) {
            self.0.end.store(0, Ordering::Release);
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            self.close();
            self.0.is_owned.store(false, Ordering::Release);
        }
    }

    impl Node {
        /// Whether the address is in the range. The end is read twice, because another thread may be changing the node.
        fn contains(&self, address: usize) -> bool {
            let end = self.end.load(Ordering::Acquire);
            let is_inside = (self.start.load(Ordering::Acquire)..end).contains(&address);
            is_inside && self.end.load(Ordering::Acquire) == end
        }
    }

    /// All nodes.
    fn nodes() -> impl Iterator<Item = &'static Node> {
        let mut next = NODES.load(Ordering::Acquire).cast_const();
        std::iter::from_fn(move || {
            // SAFETY: null, or a node that was leaked and is never changed except in its atomic fields.
            let node: &'static Node = unsafe { next.as_ref() }?;
            next = node.next;
            Some(node)
        })
    }

    /// Installs the handler, once per process.
    fn install() {
        static INSTALLED: std::sync::Once = std::sync::Once::new();
        INSTALLED.call_once(|| {
            // SAFETY: asks for a number.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            PAGE_BYTES.store(usize::try_from(page).unwrap_or(4096), Ordering::Relaxed);
            // SAFETY: integers, pointers and a set of signals, for which zero is valid.
            let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: only reads the action of this signal.
            let known = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) };
            if known != 0 || PREVIOUS.set(previous).is_err() {
                return;
            }
            // SAFETY: as above.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_bus_error as *const () as usize;
            // On the alternate stack, where the thread has one: the standard library detects stack overflow in this way.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: the handler has the signature that SA_SIGINFO demands, and calls only what a handler may call. If the
            // system refuses it, a missing page ends the process as before.
            unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
        });
    }

    /// The handler. It allocates nothing and takes no lock.
    extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the system passes a valid pointer. The code is positive when the system itself sent the signal, and then the
        // address is that of the access.
        let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
        if code > 0 && mark_lost(address) && replace_page(address) {
            return;
        }
        pass_on(signal, info, context);
    }

    /// Marks the regions with this address; `false` if there is none.
    fn mark_lost(address: usize) -> bool {
        let mut is_mapped = false;
        for node in nodes().filter(|node| node.contains(address)) {
            node.lost.store(true, Ordering::Release);
            is_mapped = true;
        }
        is_mapped
    }

    /// Maps a page of zeros at this address.
    fn replace_page(address: usize) -> bool {
        let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
        let page = (address & !(page_bytes - 1)) as *mut c_void;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED;
        // SAFETY: the page belongs to a mapping that the faulting thread is reading, so it stays mapped; it is missing, so
        // nothing is lost by replacing it. The mapping is read-only, and so is this page.
        let mapped = unsafe {
            let errno = errno();
            let (before, mapped) = (*errno, libc::mmap(page, page_bytes, libc::PROT_READ, flags, -1, 0));
            *errno = before;
            mapped
        };
        mapped == page
    }

    #[cfg(any(target_os = "linux", target_os = "emscripten"))]
    unsafe fn errno() -> *mut c_int {
        // SAFETY: returns the address of this thread's error number.
        unsafe { libc::__errno_location() }
    }

    #[cfg(target_os = "android")]
    unsafe fn errno() -> *mut c_int {
        // SAFETY: returns the address of this thread's error number.
        unsafe { libc::__errno() }
    }

    #[cfg(not(any(target_os = "linux", target_os = "emscripten", target_os = "android")))]
    unsafe fn errno() -> *mut c_int {
        // SAFETY: returns the address of this thread's error number.
        unsafe { libc::__error() }
    }

    /// Does what the process did with this signal before.
    fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        let Some(previous) = PREVIOUS.get() else { return };
        if previous.sa_sigaction == libc::SIG_DFL || previous.sa_sigaction == libc::SIG_IGN {
            // SAFETY: restores the default and sends the signal again, which ends the process when this handler returns.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        } else if previous.sa_flags & libc::SA_SIGINFO != 0 {
            // SAFETY: with this flag, the address is that of a function with this signature.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(previous.sa_sigaction) };
            handler(signal, info, context);
        } else {
            // SAFETY: without the flag, the address is that of a function with this signature.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(previous.sa_sigaction) };
            handler(signal);
        }
    }
}

#[cfg(not(unix))]
mod elsewhere {
    /// A mapped range of addresses. Here the system does not let a mapped file be truncated.
    pub struct Region;

    impl Region {
        pub fn watch(_range: std::ops::Range<usize>) -> Self {
            Region
        }

        pub fn is_lost(&self) -> bool {
            false
        }

        pub fn close(&self) {}
    }
}
