//! Keys and values stored as they are, in half or single precision.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::cells::{SharedCells, prefetch};
use super::shape::{BLOCK_TOKENS, MAX_HEAD_DIM};
use crate::pages::Plain;
use crate::vector::Vector;

/// A way to store keys and values.
pub(crate) trait Storage {
    /// One head of one block.
    type Head: StoredHead;

    /// The head with this index (see `Layer::head_index`): pointers that are valid as long as the cache lives.
    ///
    /// # Panics
    /// When the cache does not have the head.
    fn head(&self, index: usize) -> Self::Head;
}

/// One head of one block: keys `[key_dim, 16 positions]`, values `[16 positions, value_dim]`.
///
/// Every function requires the instruction set of its vectors, coordinates inside the head, and that no thread writes
/// the head at the same time.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait StoredHead: Copy {
    /// The scale of the keys of all positions in 32 dimensions, from `32 * group` on.
    unsafe fn key_scales<V: Vector>(self, group: usize) -> V;
    /// Dimension `dim` of the keys of all positions, where `scales` are those of its group.
    unsafe fn keys<V: Vector>(self, dim: usize, scales: V) -> V;
    /// Sixteen dimensions, from `dim` on, of the value of one position.
    unsafe fn value<V: Vector>(self, slot: usize, dim: usize) -> V;
    /// Prefetches the head into the cache.
    fn prefetch(self);
}

/// Values as they are, in half or single precision.
pub(crate) struct Planes<T> {
    pub(super) keys: SharedCells<T>,
    pub(super) values: SharedCells<T>,
    /// Of a key and of a value.
    pub(super) strides: [usize; 2],
    /// Slots of a head for keys and for values.
    slots: [usize; 2],
}

/// A number that vectors are loaded from.
pub(crate) trait Number: Plain + Default {
    fn from_single(values: &[f32], out: &mut [Self]);
    /// A vector of sixteen numbers.
    ///
    /// # Safety
    /// As [`Vector`].
    unsafe fn load<V: Vector>(numbers: *const Self) -> V;
}

impl Number for f16 {
    fn from_single(values: &[f32], out: &mut [f16]) {
        out.convert_from_f32_slice(values);
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(numbers: *const f16) -> V {
        // SAFETY: the caller fulfils the same conditions.
        unsafe { V::load_halves(numbers) }
    }
}

impl Number for f32 {
    fn from_single(values: &[f32], out: &mut [f32]) {
        out.copy_from_slice(values);
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(numbers: *const f32) -> V {
        // SAFETY: the caller fulfils the same conditions.
        unsafe { V::load(numbers) }
    }
}

impl<T: Plain> Planes<T> {
    /// Memory for some heads, with this many slots of each for values.
    pub(super) fn new(heads: usize, strides: [usize; 2], value_slots: usize) -> Self {
        let slots = [BLOCK_TOKENS, value_slots];
        let [keys, values] = [0, 1].map(|of| SharedCells::new(heads * slots[of] * strides[of]));
        Planes { keys, values, strides, slots }
    }

    /// The lengths of the keys and of the values of a head.
    pub(super) fn lengths(&self) -> [usize; 2] {
        [0, 1].map(|of| self.slots[of] * self.strides[of])
    }

    /// The bytes of the keys and of the values of some heads.
    pub(super) fn bytes(&mut self, heads: Range<usize>) -> [&mut [u8]; 2] {
        let [keys, values] = self.lengths().map(|len| heads.start * len..heads.end * len);
        [self.keys.bytes(keys), self.values.bytes(values)]
    }

    pub(super) fn head_at(&self, index: usize) -> PlainHead<T> {
        let [key_len, value_len] = self.lengths();
        let (keys, values) =
            (self.keys.range(index * key_len, key_len), self.values.range(index * value_len, value_len));
        PlainHead { keys, values, strides: self.strides }
    }
}

impl<T: Number> Planes<T> {
    /// # Safety
    /// No other thread may use these slots of the key and of the value at the same time.
    pub(super) unsafe fn write(&self, index: usize, [slot, value_slot]: [usize; 2], key: &[f32], value: &[f32]) {
        let [first_key, first_value] = self.lengths().map(|len| index * len);
        let mut numbers = [T::default(); MAX_HEAD_DIM];
        let numbers = &mut numbers[..key.len()];
        T::from_single(key, numbers);
        // SAFETY: the caller promises that no other thread uses these slots.
        unsafe {
            self.keys.write_column(first_key + slot, numbers);
            T::from_single(value, self.values.get_mut(first_value + value_slot * self.strides[1], value.len()));
        }
    }
}

impl<T: Number> Storage for Planes<T> {
    type Head = PlainHead<T>;

    fn head(&self, index: usize) -> PlainHead<T> {
        self.head_at(index)
    }
}

/// One head of one block in half or single precision.
pub(crate) struct PlainHead<T> {
    pub(super) keys: *const T,
    pub(super) values: *const T,
    pub(super) strides: [usize; 2],
}

impl<T> PlainHead<T> {
    /// A head whose keys and values are in the caller's own memory, 16 times their stride each.
    pub(crate) fn of(keys: *const T, values: *const T, strides: [usize; 2]) -> Self {
        PlainHead { keys, values, strides }
    }
}

impl<T> Clone for PlainHead<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PlainHead<T> {}

impl<T: Number> StoredHead for PlainHead<T> {
    #[inline(always)]
    unsafe fn key_scales<V: Vector>(self, _: usize) -> V {
        // SAFETY: the caller has the instruction set.
        unsafe { V::splat(1.0) }
    }

    #[inline(always)]
    unsafe fn keys<V: Vector>(self, dim: usize, _: V) -> V {
        // SAFETY: the caller's dimension is one of the head's.
        unsafe { T::load(self.keys.add(dim * BLOCK_TOKENS)) }
    }

    #[inline(always)]
    unsafe fn value<V: Vector>(self, slot: usize, dim: usize) -> V {
        // SAFETY: the caller's coordinates are inside the head.
        unsafe { T::load(self.values.add(slot * self.strides[1] + dim)) }
    }

    #[inline(always)]
    fn prefetch(self) {
        let [key_bytes, value_bytes] = self.strides.map(|stride| BLOCK_TOKENS * stride * size_of::<T>());
        prefetch(self.keys.cast(), key_bytes);
        prefetch(self.values.cast(), value_bytes);
    }
}
