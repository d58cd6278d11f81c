//! Keys and values stored in eight bits with scales.

use std::ops::Range;

use half::f16;

use super::cells::{SharedCells, prefetch};
use super::planes::{PlainHead, Planes, Storage, StoredHead};
use super::shape::{BLOCK_TOKENS, SCALE_GROUP};
use crate::vector::Vector;

/// Eight bits for each value, and scales.
///
/// The scales of keys are `[block, kv head, group, position]`, those of values `[block, kv head, position, group]`.
pub(crate) struct ScaledPlanes {
    codes: Planes<i8>,
    key_scales: SharedCells<f16>,
    value_scales: SharedCells<f16>,
    /// Of a key and of a value.
    groups: [usize; 2],
    /// Slots of a head for keys and for values.
    slots: [usize; 2],
}

impl ScaledPlanes {
    /// Memory for some heads, with this many slots of each for values.
    pub(super) fn new(heads: usize, strides: [usize; 2], value_slots: usize) -> Self {
        let groups = strides.map(|stride| stride.div_ceil(SCALE_GROUP));
        let slots = [BLOCK_TOKENS, value_slots];
        let [key_scales, value_scales] = [0, 1].map(|of| SharedCells::new(heads * slots[of] * groups[of]));
        ScaledPlanes { codes: Planes::new(heads, strides, value_slots), key_scales, value_scales, groups, slots }
    }

    /// The numbers of scales of the keys and of the values of a head.
    fn scales(&self) -> [usize; 2] {
        [0, 1].map(|of| self.slots[of] * self.groups[of])
    }

    /// The bytes of the keys and of the values of some heads, then of their scales.
    pub(super) fn bytes(&mut self, heads: Range<usize>) -> [&mut [u8]; 4] {
        let [key_scales, value_scales] = self.scales().map(|len| heads.start * len..heads.end * len);
        let [keys, values] = self.codes.bytes(heads);
        [keys, values, self.key_scales.bytes(key_scales), self.value_scales.bytes(value_scales)]
    }

    /// # Safety
    /// No other thread may use these slots of the key and of the value at the same time.
    pub(super) unsafe fn write(&self, index: usize, [slot, value_slot]: [usize; 2], key: &[f32], value: &[f32]) {
        let value_groups = self.groups[1];
        let [first_key, first_value] = self.codes.lengths().map(|len| index * len);
        let [first_key_scale, first_value_scale] = self.scales().map(|len| index * len);
        let mut codes = [0; SCALE_GROUP];
        for (group, values) in key.chunks(SCALE_GROUP).enumerate() {
            let codes = &mut codes[..values.len()];
            let scale = round_to_bytes(values, codes);
            // SAFETY: the caller promises that no other thread uses these slots.
            unsafe {
                self.key_scales.get_mut(first_key_scale + group * BLOCK_TOKENS + slot, 1)[0] = scale;
                self.codes.keys.write_column(first_key + group * SCALE_GROUP * BLOCK_TOKENS + slot, codes);
            }
        }
        for (group, values) in value.chunks(SCALE_GROUP).enumerate() {
            // SAFETY: the caller promises that no other thread uses these slots.
            unsafe {
                let start = first_value + value_slot * self.codes.strides[1] + group * SCALE_GROUP;
                let codes = self.codes.values.get_mut(start, values.len());
                let scale = round_to_bytes(values, codes);
                self.value_scales.get_mut(first_value_scale + value_slot * value_groups + group, 1)[0] = scale;
            }
        }
    }
}

/// Rounds values to integers from -127 to 127 and returns the scale. The scale is not finite if a value is not.
fn round_to_bytes(values: &[f32], codes: &mut [i8]) -> f16 {
    let largest = values.iter().fold(0, |largest: u32, value| largest.max(value.to_bits() & 0x7fff_ffff));
    let scale = f16::from_f32(f32::from_bits(largest) / 127.0);
    // The inverse of the stored scale, which half precision may have rounded.
    let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
    // Adding and subtracting this rounds to the nearest integer on every machine.
    const ROUND: f32 = 12_582_912.0;
    for (code, value) in codes.iter_mut().zip(values) {
        *code = ((value * inverse).clamp(-127.0, 127.0) + ROUND - ROUND) as i8;
    }
    scale
}

impl Storage for ScaledPlanes {
    type Head = ScaledHead;

    fn head(&self, index: usize) -> ScaledHead {
        let [key_scales, value_scales] = self.scales();
        let PlainHead { keys, values, strides } = self.codes.head_at(index);
        ScaledHead {
            keys,
            values,
            key_scales: self.key_scales.range(index * key_scales, key_scales),
            value_scales: self.value_scales.range(index * value_scales, value_scales),
            strides,
            groups: self.groups,
        }
    }
}

/// One head of one block in eight bits.
#[derive(Clone, Copy)]
pub(crate) struct ScaledHead {
    keys: *const i8,
    values: *const i8,
    key_scales: *const f16,
    value_scales: *const f16,
    strides: [usize; 2],
    groups: [usize; 2],
}

impl StoredHead for ScaledHead {
    #[inline(always)]
    unsafe fn key_scales<V: Vector>(self, group: usize) -> V {
        // SAFETY: the caller's group is one of the head's.
        unsafe { V::load_halves(self.key_scales.add(group * BLOCK_TOKENS)) }
    }

    #[inline(always)]
    unsafe fn keys<V: Vector>(self, dim: usize, scales: V) -> V {
        // SAFETY: the caller's dimension is one of the head's.
        unsafe { V::load_bytes(self.keys.add(dim * BLOCK_TOKENS)).multiply(scales) }
    }

    #[inline(always)]
    unsafe fn value<V: Vector>(self, slot: usize, dim: usize) -> V {
        // SAFETY: the caller's coordinates are inside the head.
        unsafe {
            let scale = *self.value_scales.add(slot * self.groups[1] + dim / SCALE_GROUP);
            V::load_bytes(self.values.add(slot * self.strides[1] + dim)).multiply(V::splat_half(scale))
        }
    }

    #[inline(always)]
    fn prefetch(self) {
        let ([key_stride, value_stride], [key_groups, value_groups]) = (self.strides, self.groups);
        prefetch(self.keys.cast(), BLOCK_TOKENS * key_stride);
        prefetch(self.values.cast(), BLOCK_TOKENS * value_stride);
        prefetch(self.key_scales.cast(), BLOCK_TOKENS * key_groups * size_of::<f16>());
        prefetch(self.value_scales.cast(), BLOCK_TOKENS * value_groups * size_of::<f16>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_within_half_a_step_and_preserve_non_finite_values() {
        let values = crate::testing::values(7, SCALE_GROUP);
        let mut codes = [0; SCALE_GROUP];
        let scale = round_to_bytes(&values, &mut codes).to_f32();
        for (value, code) in values.iter().zip(codes) {
            assert!((value - scale * f32::from(code)).abs() <= 0.51 * scale, "{value} became {code} of {scale}");
        }
        assert_eq!(round_to_bytes(&[0.0; 4], &mut codes[..4]), f16::ZERO);
        assert_eq!(codes[..4], [0; 4]);
        assert!(!round_to_bytes(&[1.0, f32::NAN], &mut codes[..2]).is_finite());
        assert!(!round_to_bytes(&[1.0, f32::INFINITY], &mut codes[..2]).is_finite());
    }
}
