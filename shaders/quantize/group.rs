//! The scale, and the minimum, of a group of values: the pair with the smallest weighted square error among candidates.

use crate::quant::integer::{Codebook, IntegerLayout};
use crate::quant::pack::Ranges;

/// Candidates on each side of the first.
const CANDIDATES: i32 = 9;

/// The distance of candidates, in steps between neighbouring integers at the end of their range.
const CANDIDATE_STEP: f32 = 0.1;

/// Integers from which on the first candidate is good enough: other scales change the error by less than a hundredth.
const MANY_INTEGERS: f32 = 100.0;

/// Values that are summed next to one another, so that the compiler can use vector registers.
const LANES: usize = 8;

/// Values, and how much the square of each error counts. Their number is a multiple of 8.
#[derive(Clone, Copy)]
pub struct Group<'a> {
    /// The values.
    pub values: &'a [f32],
    /// A weight for each.
    pub weights: &'a [f32],
}

/// The integers that codes represent.
pub enum Integers {
    /// All from the first to the last.
    Range(f32, f32),
    /// Those of a codebook.
    Codebook(SortedCodebook),
}

/// A codebook in ascending order.
pub struct SortedCodebook {
    integers: [f32; 16],
    codes: [u8; 16],
    /// The middle between each integer and the one before it; the first has none.
    limits: [f32; 16],
    len: usize,
}

impl SortedCodebook {
    fn new(codebook: &Codebook, len: usize) -> Self {
        let mut codes: [u8; 16] = std::array::from_fn(|code| code as u8);
        codes[..len].sort_by_key(|code| codebook[usize::from(*code)]);
        let integers = codes.map(|code| f32::from(codebook[usize::from(code)]));
        let limits = std::array::from_fn(|place| 0.5 * (integers[place.max(1) - 1] + integers[place]));
        SortedCodebook { integers, codes, limits, len }
    }

    #[inline(always)]
    fn nearest(&self, target: f32) -> f32 {
        let mut nearest = self.integers[0];
        for place in 1..self.len {
            nearest = if target > self.limits[place] { self.integers[place] } else { nearest };
        }
        nearest
    }

    fn code(&self, target: f32) -> u8 {
        self.codes[(1..self.len).filter(|place| target > self.limits[*place]).count()]
    }
}

impl Integers {
    /// The integers of a format.
    #[must_use]
    pub fn new(layout: &IntegerLayout, ranges: &Ranges) -> Self {
        let integer = |code| f32::from(layout.integer(code));
        match layout.codebook {
            Some(codebook) => Integers::Codebook(SortedCodebook::new(&codebook, 1 << layout.bits)),
            None => Integers::Range(integer(ranges.codes.0), integer(ranges.codes.1)),
        }
    }

    /// The code of the integer nearest to `target`.
    #[must_use]
    pub fn code(&self, layout: &IntegerLayout, target: f32) -> u8 {
        match self {
            Integers::Range(first, last) => (within(target, *first, *last) + f32::from(layout.offset)) as u8,
            Integers::Codebook(codebook) => codebook.code(target),
        }
    }

    /// The smallest and the largest, and the step to each from its neighbour.
    fn ends(&self) -> [(f32, f32); 2] {
        match self {
            Integers::Range(first, last) => [(*first, 1.0), (*last, 1.0)],
            Integers::Codebook(SortedCodebook { integers, len, .. }) => {
                let (first, last) = (integers[0], integers[len - 1]);
                [(first, integers[1] - first), (last, last - integers[len - 2])]
            }
        }
    }
}

/// The nearest integer to `value` between `first` and `last`, which are small. Has no branch; ties to even.
#[inline(always)]
fn within(value: f32, first: f32, last: f32) -> f32 {
    const WHOLE: f32 = 12_582_912.0;
    let value = if value > first { value } else { first };
    let value = if value < last { value } else { last };
    value + WHOLE - WHOLE
}

impl Group<'_> {
    /// Sums of the terms of all values with their weights.
    #[inline(always)]
    fn sum<const TERMS: usize>(&self, terms: impl Fn(f32, f32) -> [f32; TERMS]) -> [f32; TERMS] {
        let mut sums = [[0.0_f32; LANES]; TERMS];
        let values = self.values.as_chunks::<LANES>().0;
        for (values, weights) in values.iter().zip(self.weights.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                let terms = terms(values[lane], weights[lane]);
                for (sums, term) in sums.iter_mut().zip(terms) {
                    sums[lane] += term;
                }
            }
        }
        sums.map(|lanes| lanes.iter().sum())
    }

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
            let candidates = if end.abs() < MANY_INTEGERS * step { CANDIDATES } else { 0 };
            for candidate in -candidates..=candidates {
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
        let terms = |value: f32, weight: f32, integer: f32| [weight * value * integer, weight * integer * integer];
        let [with_values, squares] = match integers {
            Integers::Range(first, last) => {
                self.sum(|value, weight| terms(value, weight, within(inverse * value, *first, *last)))
            }
            Integers::Codebook(codebook) => {
                self.sum(|value, weight| terms(value, weight, codebook.nearest(inverse * value)))
            }
        };
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
        let integers = Integers::Range(0.0, last);
        let mut best = (f32::INFINITY, (0.0, smallest));
        for candidate in -CANDIDATES..=CANDIDATES {
            let inverse = (last + CANDIDATE_STEP * candidate as f32) / (largest - smallest);
            let found = self.least_squares(last, inverse, smallest, minimum_limit);
            let error = self.error(&integers, found.0, found.1);
            if error < best.0 {
                best = (error, found);
            }
        }
        best.1
    }

    /// The scale and the minimum that fit the integers nearest to `inverse` times the values above `smallest`.
    fn least_squares(&self, last: f32, inverse: f32, smallest: f32, minimum_limit: f32) -> (f32, f32) {
        let [weights, integers, squares, values, products] = self.sum(|value, weight| {
            let integer = within(inverse * (value - smallest), 0.0, last);
            let (weighted, product) = (weight * integer, weight * value);
            [weight, weighted, weighted * integer, product, product * integer]
        });
        let determinant = weights * squares - integers * integers;
        if determinant <= 0.0 {
            return (1.0 / inverse, smallest);
        }
        let minimum = (squares * values - integers * products) / determinant;
        if minimum > minimum_limit {
            return ((products - minimum_limit * integers) / squares, minimum_limit);
        }
        ((weights * products - values * integers) / determinant, minimum)
    }

    /// The weighted square error with the best integers for a scale and a minimum.
    #[must_use]
    pub fn error(&self, integers: &Integers, scale: f32, minimum: f32) -> f32 {
        let inverse = inverse(scale);
        let term = |value: f32, weight: f32, integer: f32| {
            let error = scale * integer + minimum - value;
            [weight * error * error]
        };
        let [error] = match integers {
            Integers::Range(first, last) => {
                self.sum(|value, weight| term(value, weight, within(inverse * (value - minimum), *first, *last)))
            }
            Integers::Codebook(codebook) => {
                self.sum(|value, weight| term(value, weight, codebook.nearest(inverse * (value - minimum))))
            }
        };
        error
    }
}

/// The inverse, or 0 for 0.
#[must_use]
pub fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
