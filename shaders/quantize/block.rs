//! The integers of a block: scales and minima as the format stores them, and the codes that fit them.

use half::f16;

use super::group::{Group, Integers, inverse};
use crate::quant::integer::{
    FLOAT8_UNIT, IntegerBlock, IntegerLayout, LAST_FLOAT8, MAX_BLOCK_LEN, MAX_GROUPS, Scale, Unit, float8,
    nearest_float8, power_of_two,
};
use crate::quant::pack::Ranges;

/// Finds the integers of a block of `values`.
pub fn find(
    layout: &IntegerLayout,
    ranges: &Ranges,
    values: &[f32],
    importance: Option<&[f32]>,
    block: &mut IntegerBlock,
) {
    let mut weights = [0.0; MAX_BLOCK_LEN];
    let weights = &mut weights[..values.len()];
    weigh(values, layout.group, importance, weights);
    let search = Search { layout, ranges, integers: Integers::new(layout, ranges), values, weights };
    match (layout.group_scales, layout.minimum, layout.unit) {
        (true, true, _) => search.groups_with_minima(block),
        (true, false, _) if layout.scale == Scale::Float8 => search.groups_with_float8(block),
        (true, false, _) => search.groups(block),
        (false, _, Unit::PowerOfTwo) => search.power_of_two(block),
        (false, true, Unit::Half) => search.one_minimum(block),
        (false, false, Unit::Half) => search.one_scale(block),
    }
}

/// How much errors count: in proportion to the importance, and more for larger values.
pub(super) fn weigh(values: &[f32], group_len: usize, importance: Option<&[f32]>, weights: &mut [f32]) {
    let mean_square = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
    match importance {
        Some(importance) => {
            let mean = mean_square(values);
            for ((weight, value), importance) in weights.iter_mut().zip(values).zip(importance) {
                *weight = importance * (mean + value * value).sqrt();
            }
        }
        None => {
            for (weights, values) in weights.chunks_mut(group_len).zip(values.chunks(group_len)) {
                let mean = mean_square(values).sqrt();
                weights.iter_mut().zip(values).for_each(|(weight, value)| *weight = mean + value.abs());
            }
        }
    }
}

/// What a search reads.
struct Search<'a> {
    layout: &'a IntegerLayout,
    ranges: &'a Ranges,
    integers: Integers,
    values: &'a [f32],
    weights: &'a [f32],
}

impl Search<'_> {
    fn whole(&self) -> Group<'_> {
        Group { values: self.values, weights: self.weights }
    }

    fn group_list(&self) -> impl Iterator<Item = Group<'_>> {
        let groups = self.values.chunks_exact(self.layout.group).zip(self.weights.chunks_exact(self.layout.group));
        groups.map(|(values, weights)| Group { values, weights })
    }

    /// A block that is one group with a float16 scale.
    fn one_scale(&self, block: &mut IntegerBlock) {
        block.unit = half(self.whole().scale(&self.integers));
        self.encode(0, self.whole(), block.unit.to_f32(), 0.0, block);
    }

    /// A block that is one group with a float16 scale and a float16 minimum.
    fn one_minimum(&self, block: &mut IntegerBlock) {
        let (scale, minimum) = self.whole().scale_and_minimum(f32::from(self.ranges.codes.1), f32::INFINITY);
        (block.unit, block.minimum_unit) = (half(scale), half(minimum));
        self.encode(0, self.whole(), block.unit.to_f32(), block.minimum_unit.to_f32(), block);
    }

    /// A block that is one group whose scale is a power of two: the best of those around the scale that fits the largest value.
    fn power_of_two(&self, block: &mut IntegerBlock) {
        let exponents = self.exponents();
        let error = |exponent: &u8| self.whole().error(&self.integers, power_of_two(*exponent), 0.0);
        block.unit_exponent = exponents.min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or(0);
        self.encode(0, self.whole(), power_of_two(block.unit_exponent), 0.0, block);
    }

    fn exponents(&self) -> impl Iterator<Item = u8> {
        let scale = self.whole().scale(&self.integers).abs();
        // 2^(e - 128) has the biased exponent e - 1.
        let middle = (scale.to_bits() >> 23) as u8;
        middle.max(1)..=middle.saturating_add(3).min(254)
    }

    /// Groups with integer scales.
    fn groups(&self, block: &mut IntegerBlock) {
        let mut scales = [0.0_f32; MAX_GROUPS];
        for (scale, group) in scales.iter_mut().zip(self.group_list()) {
            *scale = group.scale(&self.integers);
        }
        let (first, last) = (f32::from(self.ranges.scales.0), f32::from(self.ranges.scales.1));
        let extreme =
            scales.iter().fold(0.0, |extreme: f32, scale| if scale.abs() > extreme.abs() { *scale } else { extreme });
        // The range has one negative scale more than positive ones.
        block.unit = half(extreme / if first < 0.0 { first } else { last });
        let unit = block.unit.to_f32();
        for (index, group) in self.group_list().enumerate() {
            let middle = (scales[index] * inverse(unit)).round();
            let around = [-1.0, 0.0, 1.0].map(|step| (middle + step).clamp(first, last));
            let error = |scale: &f32| group.error(&self.integers, unit * scale, 0.0);
            let scale = around.into_iter().min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or(0.0);
            block.scales[index] = scale as i8;
            self.encode(index, group, unit * scale, 0.0, block);
        }
    }

    /// Groups whose scales are 8-bit floating-point numbers, with the unit that all blocks of the format have.
    fn groups_with_float8(&self, block: &mut IntegerBlock) {
        block.unit = FLOAT8_UNIT;
        let unit = block.unit.to_f32();
        for (index, group) in self.group_list().enumerate() {
            // The codebook has the negative of each of its integers, so a negative scale is never better.
            let middle = nearest_float8(group.scale(&self.integers).abs() / unit);
            let around = middle.saturating_sub(2)..=middle.saturating_add(2).min(LAST_FLOAT8);
            let error = |byte: &u8| group.error(&self.integers, unit * float8(*byte), 0.0);
            let byte = around.min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or(0);
            block.scales[index] = byte as i8;
            self.encode(index, group, unit * float8(byte), 0.0, block);
        }
    }

    /// Groups with integer scales and minima.
    fn groups_with_minima(&self, block: &mut IntegerBlock) {
        let last_code = f32::from(self.ranges.codes.1);
        let (last_scale, last_minimum) = (f32::from(self.ranges.scales.1), f32::from(self.ranges.minima));
        let mut fits = [(0.0_f32, 0.0_f32); MAX_GROUPS];
        for (fit, group) in fits.iter_mut().zip(self.group_list()) {
            *fit = group.scale_and_minimum(last_code, 0.0);
        }
        block.unit = half(fits.iter().map(|fit| fit.0).fold(0.0, f32::max) / last_scale);
        block.minimum_unit = half(fits.iter().map(|fit| fit.1).fold(0.0, f32::min) / last_minimum);
        let (unit, minimum_unit) = (block.unit.to_f32(), block.minimum_unit.to_f32());
        for (index, group) in self.group_list().enumerate() {
            let around = |fit: f32, unit: f32, last: f32| {
                [-1.0, 0.0, 1.0].map(|step| ((fit * inverse(unit)).round() + step).clamp(0.0, last))
            };
            let mut best = (f32::INFINITY, 0.0, 0.0);
            for scale in around(fits[index].0, unit, last_scale) {
                for minimum in around(fits[index].1, minimum_unit, last_minimum) {
                    let error = group.error(&self.integers, unit * scale, minimum_unit * minimum);
                    if error < best.0 {
                        best = (error, scale, minimum);
                    }
                }
            }
            let (_, scale, minimum) = best;
            (block.scales[index], block.minima[index]) = (scale as i8, minimum as i8);
            self.encode(index, group, unit * scale, minimum_unit * minimum, block);
        }
    }

    /// Sets the codes of a group.
    fn encode(&self, index: usize, group: Group<'_>, scale: f32, minimum: f32, block: &mut IntegerBlock) {
        let inverse = inverse(scale);
        let codes = &mut block.codes[index * self.layout.group..];
        for (code, value) in codes.iter_mut().zip(group.values) {
            *code = self.integers.code(self.layout, inverse * (value - minimum));
        }
    }
}

/// The nearest finite float16.
pub(super) fn half(value: f32) -> f16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}
