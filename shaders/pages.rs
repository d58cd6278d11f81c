//! Large memory straight from the system: zero at first, taken only where it is written, and given back when dropped.
//!
//! An engine allocates hundreds of pieces of some megabytes, and frees them together when its model is unloaded or
//! rebuilt. The heap would keep much of that between smaller things that live on.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use half::f16;
use memmap2::MmapMut;

/// Values for which any bytes are one, and zero bytes are zero.
///
/// # Safety
/// Just that, without padding and with an alignment no larger than a page's.
pub unsafe trait Plain: Copy {}

// SAFETY: any bytes are such a number.
unsafe impl Plain for u8 {}
// SAFETY: any bytes are such a number.
unsafe impl Plain for i8 {}
// SAFETY: any bytes are such a number.
unsafe impl Plain for f32 {}
// SAFETY: any bytes are such a number.
unsafe impl Plain for f16 {}

/// A slice with pages of its own; its start is aligned to a page.
pub struct Pages<T> {
    map: MmapMut,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Plain> Pages<T> {
    /// So many zeros.
    ///
    /// # Panics
    /// When the system has no more memory, as any allocation.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).expect("a length in memory");
        // A map of nothing is an error.
        let map = MmapMut::map_anon(bytes.max(1)).expect("the system has memory left");
        Pages { map, len, values: PhantomData }
    }

    /// Values; asks nothing of them, as the slice's own length would.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the values start, for writing through shared references.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.map.as_ptr().cast_mut().cast()
    }
}

impl<T: Plain> Deref for Pages<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the map holds `len` values from a page's start on, and any bytes are values.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for Pages<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and nobody else has a reference.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_and_hold_what_is_written() {
        let mut pages = Pages::<f32>::zeroed(5000);
        assert!(pages.len() == 5000 && pages.iter().all(|&value| value == 0.0));
        pages[4999] = 1.5;
        assert_eq!(pages.iter().sum::<f32>(), 1.5);
        assert!(Pages::<u8>::zeroed(0).is_empty());
    }
}
