//! The scale, and the minimum, of a group of values: the pair with the smallest weighted square error among candidates.

use crate::quant::integer::{Codebook, IntegerLayout};
use crate::quant::pack::Ranges;

/// Candidates on each side of the first.
const CANDIDATES: i32 = 9;

/// The distance of candidates, in steps between neighbouring integers at the end of their range.
const CANDIDATE_STEP: f32 = 0.1;

/// Values, and how much the square of each error counts.
#[derive(Clone, Copy)]
pub struct Group<'a> {
    /// The values.
    pub values: &'a [f32],
    /// A weight for each.
    pub weights: &'a [f32],
}

/// The integers that codes represent.
#[derive(Clone, Copy)]
pub enum Integers {
    /// All from the first to the last.
    Range(f32, f32),
    /// The first of a codebook, this many.
    Codebook(Codebook, usize),
}

impl Integers {
    /// The integers of a format.
    #[must_use]
    pub fn new(layout: &IntegerLayout, ranges: &Ranges) -> Self {
        let integer = |code| f32::from(layout.integer(code));
        match layout.codebook {
            Some(codebook) => Integers::Codebook(codebook, 1 << layout.bits),
            None => Integers::Range(integer(ranges.codes.0), integer(ranges.codes.1)),
        }
    }

    /// The integer nearest to `target`.
    #[inline(always)]
    fn nearest(&self, target: f32) -> f32 {
        match self {
            Integers::Range(first, last) => round(target).clamp(*first, *last),
            Integers::Codebook(codebook, len) => f32::from(codebook[nearest_code(&codebook[..*len], target)]),
        }
    }

    /// The code of the integer nearest to `target`.
    #[inline(always)]
    #[must_use]
    pub fn code(&self, layout: &IntegerLayout, target: f32) -> u8 {
        match self {
            Integers::Range(..) => (self.nearest(target) + f32::from(layout.offset)) as u8,
            Integers::Codebook(codebook, len) => nearest_code(&codebook[..*len], target) as u8,
        }
    }

    /// The smallest and the largest, and the step to each from its neighbour.
    fn ends(&self) -> [(f32, f32); 2] {
        match self {
            Integers::Range(first, last) => [(*first, 1.0), (*last, 1.0)],
            Integers::Codebook(codebook, len) => {
                let mut sorted = *codebook;
                let sorted = &mut sorted[..*len];
                sorted.sort_unstable();
                let (first, last) = (f32::from(sorted[0]), f32::from(sorted[len - 1]));
                [(first, f32::from(sorted[1]) - first), (last, last - f32::from(sorted[len - 2]))]
            }
        }
    }
}

/// The nearest integer to `value`, which is small, without a branch; ties to even.
#[inline(always)]
fn round(value: f32) -> f32 {
    const WHOLE: f32 = 12_582_912.0;
    value.clamp(-4e6, 4e6) + WHOLE - WHOLE
}

#[inline(always)]
fn nearest_code(codebook: &[i8], target: f32) -> usize {
    let mut best = (f32::INFINITY, 0);
    for (code, integer) in codebook.iter().enumerate() {
        let distance = (target - f32::from(*integer)).abs();
        if distance < best.0 {
            best = (distance, code);
        }
    }
    best.1
}

impl Group<'_> {
    /// The value with the largest magnitude.
    fn extreme(&self) -> f32 {
        self.values.iter().fold(0.0, |extreme: f32, value| if value.abs() > extreme.abs() { *value } else { extreme })
    }

    /// The scale of integers without a minimum. It is negative where that is better, and 0 when all values are.
    #[must_use]
    pub fn scale(&self, integers: &Integers) -> f32 {
        let extreme = self.extreme();
        if extreme == 0.0 {
            return 0.0;
        }
        let mut best = (0.0, 0.0);
        for (end, step) in integers.ends() {
            for candidate in -CANDIDATES..=CANDIDATES {
                let wanted = end + end.signum() * step * CANDIDATE_STEP * candidate as f32;
                let (gain, scale) = self.least_squares_scale(integers, wanted / extreme);
                if gain > best.0 {
                    best = (gain, scale);
                }
            }
        }
        best.1
    }

    /// By how much the scale that fits the integers nearest to `inverse` times the values reduces the error, and that scale.
    fn least_squares_scale(&self, integers: &Integers, inverse: f32) -> (f32, f32) {
        let (mut with_values, mut squares) = (0.0, 0.0);
        for (value, weight) in self.values.iter().zip(self.weights) {
            let integer = integers.nearest(inverse * value);
            with_values += weight * value * integer;
            squares += weight * integer * integer;
        }
        if squares > 0.0 { (with_values * with_values / squares, with_values / squares) } else { (0.0, 0.0) }
    }

    /// The scale and the minimum of integers from 0 to `last`. `minimum_limit` is the largest minimum.
    #[must_use]
    pub fn scale_and_minimum(&self, last: f32, minimum_limit: f32) -> (f32, f32) {
        let smallest = self.values.iter().copied().fold(f32::INFINITY, f32::min).min(minimum_limit);
        let largest = self.values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if largest <= smallest {
            return (0.0, smallest);
        }
        let mut best = (f32::INFINITY, (0.0, smallest));
        for candidate in -CANDIDATES..=CANDIDATES {
            let inverse = (last + CANDIDATE_STEP * candidate as f32) / (largest - smallest);
            let found = self.least_squares(last, inverse, smallest, minimum_limit);
            let error = self.error(&Integers::Range(0.0, last), found.0, found.1);
            if error < best.0 {
                best = (error, found);
            }
        }
        best.1
    }

    /// The scale and the minimum that fit the integers nearest to `inverse` times the values above `smallest`.
    fn least_squares(&self, last: f32, inverse: f32, smallest: f32, minimum_limit: f32) -> (f32, f32) {
        let (mut weights, mut integers, mut squares, mut values, mut products) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (value, weight) in self.values.iter().zip(self.weights) {
            let integer = round(inverse * (value - smallest)).clamp(0.0, last);
            weights += weight;
            integers += weight * integer;
            squares += weight * integer * integer;
            values += weight * value;
            products += weight * value * integer;
        }
        let determinant = weights * squares - integers * integers;
        if determinant <= 0.0 {
            return (1.0 / inverse, smallest);
        }
        let minimum = (squares * values - integers * products) / determinant;
        if minimum > minimum_limit {
            let scale = (products - minimum_limit * integers) / squares;
            return (scale, minimum_limit);
        }
        ((weights * products - values * integers) / determinant, minimum)
    }

    /// The weighted square error with the best integers for a scale and a minimum.
    #[must_use]
    pub fn error(&self, integers: &Integers, scale: f32, minimum: f32) -> f32 {
        let inverse = inverse(scale);
        let mut sum = 0.0;
        for (value, weight) in self.values.iter().zip(self.weights) {
            let error = scale * integers.nearest(inverse * (value - minimum)) + minimum - value;
            sum += weight * error * error;
        }
        sum
    }
}

/// The inverse, or 0 for 0.
#[must_use]
pub fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
