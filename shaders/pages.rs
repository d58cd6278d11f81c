//! Large memory directly from the system: it is zero at first, uses physical memory only where it is written, and
//! returns to the system when it is dropped.
//!
//! An engine allocates hundreds of ranges of some megabytes, and frees them together when its model is unloaded or
//! reloaded. The heap would keep much of that memory, because smaller allocations between the ranges live longer.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::OnceLock;

use half::f16;
use memmap2::MmapMut;

/// Types for which any bytes are a valid value, and zero bytes are zero.
///
/// # Safety
/// The type has this property, no padding, and an alignment of at most a page.
pub unsafe trait Plain: Copy {}

// SAFETY: any bytes are a valid number.
unsafe impl Plain for u8 {}
// SAFETY: any bytes are a valid number.
unsafe impl Plain for i8 {}
// SAFETY: any bytes are a valid number.
unsafe impl Plain for f32 {}
// SAFETY: any bytes are a valid number.
unsafe impl Plain for f16 {}

/// A slice with its own pages, whose start is aligned to a page.
pub struct Pages<T> {
    map: MmapMut,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Plain> Pages<T> {
    /// `len` zeros.
    ///
    /// # Panics
    /// When the system has no memory left, as any allocation.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).expect("a length in memory");
        // An empty map is an error.
        let map = MmapMut::map_anon(bytes.max(1)).expect("the system has memory left");
        Pages { map, len, values: PhantomData }
    }

    /// `len` zeros in large pages, if the system has them, so that address translation costs nothing. Physical memory
    /// is then used in units of a large page, even if little of it is written.
    ///
    /// # Panics
    /// As [`Pages::zeroed`].
    #[must_use]
    pub fn zeroed_large(len: usize) -> Self {
        let pages = Self::zeroed(len);
        #[cfg(target_os = "linux")]
        {
            // If the system ignores the advice, the pages are small.
            let _ = pages.map.advise(memmap2::Advice::HugePage);
        }
        pages
    }

    /// The bytes of a range of values.
    ///
    /// # Panics
    /// When the range is out of bounds.
    #[must_use]
    pub fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        let values = &mut self[range];
        // SAFETY: the values have no padding, any bytes are valid values, and no other reference exists.
        unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
    }

    /// Gives the physical memory of a range back, in units of 64 KiB that lie in it as a whole. The values there are arbitrary
    /// afterwards. Without effect on systems other than Linux.
    ///
    /// # Safety
    /// No reference to values of the range exists.
    pub unsafe fn release(&self, range: Range<usize>) {
        const UNIT: usize = 64 << 10;
        let start = (range.start * size_of::<T>()).next_multiple_of(UNIT);
        let end = range.end.min(self.len) * size_of::<T>() / UNIT * UNIT;
        if start >= end {
            return;
        }
        #[cfg(target_os = "linux")]
        {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the range is inside the map, and by the caller's promise nothing refers to it. If the system refuses, the
            // memory stays.
            let _ = unsafe { self.map.unchecked_advise_range(advice, start, end - start) };
        }
    }

    /// The number of values, without creating a reference to them, unlike the length of the slice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A pointer to the values, for writing through shared references.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.map.as_ptr().cast_mut().cast()
    }
}

impl<T: Plain> Deref for Pages<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the map holds `len` values from the start of a page, and any bytes are valid values.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> AsRef<[T]> for Pages<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: Plain> DerefMut for Pages<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and no other reference exists.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), self.len) }
    }
}

/// Whether the system gives this many bytes. It takes them back at once.
///
/// # Errors
/// The system's reason: a limit of the process on its memory, or of all processes.
pub fn check_available(bytes: u64) -> std::io::Result<()> {
    let bytes = usize::try_from(bytes).map_err(std::io::Error::other)?;
    MmapMut::map_anon(bytes.max(1)).map(drop)
}

/// Whether memory of [`Pages::zeroed_large`] has large pages.
#[must_use]
pub fn are_large_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        setting.is_ok_and(|setting| !setting.contains("[never]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_system_does_not_have_is_refused() {
        assert!(check_available(0).is_ok() && check_available(1 << 20).is_ok());
        assert!(check_available(1 << 60).is_err() && check_available(u64::MAX).is_err());
    }

    #[test]
    fn pages_are_zero_and_hold_what_is_written() {
        let mut pages = Pages::<f32>::zeroed(5000);
        assert!(pages.len() == 5000 && pages.iter().all(|&value| value == 0.0));
        pages[4999] = 1.5;
        assert_eq!(pages.iter().sum::<f32>(), 1.5);
        assert!(Pages::<u8>::zeroed(0).is_empty());
        let mut large = Pages::<u8>::zeroed_large(5 << 20);
        large.fill(3);
        assert!(large.iter().all(|&value| value == 3));
    }

    #[test]
    fn released_memory_can_be_written_again_and_its_neighbours_stay() {
        let mut pages = Pages::<u8>::zeroed(1 << 20);
        pages.fill(3);
        // SAFETY: no reference exists.
        unsafe { pages.release(100_000..900_000) };
        let stays = |range: Range<usize>| pages[range].iter().all(|&value| value == 3);
        assert!(stays(0..100_000) && stays(900_000..1 << 20));
        pages.fill(4);
        assert!(pages.iter().all(|&value| value == 4));
        // SAFETY: as above.
        unsafe { pages.release(10..20) };
        assert!(pages.iter().all(|&value| value == 4), "less than a unit");
    }
}
