//! The integers of a block whose codes are cells of a grid: cells, signs, scales and the unit.
//!
//! For each group, several scales are tried. For each of them every cell is the best one (see [`cell_table`](super::cell_table)),
//! and the scale with the least weighted square error after it has been fitted to its cells is kept. Then the unit is chosen for
//! which the scales that the format has are nearest to those of the groups, and cells are searched again for the scales around. The
//! search works on values that are scaled to at most 1, so that squares neither overflow nor vanish.

use super::block::{half, weigh};
use super::cell_table::{CellTable, Costs, MAX_CELL_LEN};
use crate::quant::grid::Signs;
use crate::quant::integer::{IntegerBlock, IntegerLayout, MAX_BLOCK_LEN, MAX_CELLS, MAX_GROUPS};
use crate::quant::pack::{CellRules, SignBits};

/// The most cells of a group.
const MAX_GROUP_CELLS: usize = 8;

/// The largest value of a block that is not all zeros: no unit can represent smaller ones.
const SMALLEST: f32 = 1e-30;

/// The scales that are tried for a group at first: by what the largest value of the group exceeds the largest that
/// cells represent with each of them, as a factor. The error hardly falls with more scales or a wider range.
const OVERLOADS_OF_FOURS: &[f32] = &[0.8, 0.9, 1.0, 1.1, 1.2];

/// The same for cells of eight values.
const OVERLOADS_OF_EIGHTS: &[f32] = &[0.8, 1.0, 1.15, 1.3, 1.45, 1.6];

/// The same where cells have only integers around -1, 0 and 1.
const OVERLOADS_OF_TERNARY: &[f32] = &[0.78, 1.0, 1.3, 1.65, 2.0, 2.4];

/// The most searches with the scale that fits the cells of the search before.
const REFINEMENTS: usize = 4;

/// The step between the units that are tried: the number by which the largest scale of a block is divided grows by it.
const UNIT_STEP: f32 = 0.25;

/// The distances from the nearest scale to those that are tried, in each of two searches. The unit is fitted after each.
const PASSES: [&[f32]; 2] = [&[0.0, -2.0, 2.0], &[0.0]];

/// What a search reads.
pub struct CellSearch<'a> {
    /// The format's layout, which has a grid.
    pub layout: &'a IntegerLayout,
    /// What blocks of the format can store.
    pub rules: CellRules,
    /// The cells of the grid.
    pub table: &'a CellTable,
}

/// Values of a block without their signs, and how much the square of each error counts.
struct Targets {
    /// The values of each cell; zeros after the last.
    values: [[f32; MAX_CELL_LEN]; MAX_CELLS],
    weights: [[f32; MAX_CELL_LEN]; MAX_CELLS],
    signs: [u32; MAX_BLOCK_LEN / 32],
}

/// Cells of a group.
#[derive(Clone, Copy)]
struct Fit {
    cells: [u16; MAX_GROUP_CELLS],
    /// Whether the integers of each cell are 2 less.
    is_lower: [bool; MAX_GROUP_CELLS],
    /// The weighted square error at the scale of the search.
    error: f32,
    /// The weighted sum of the values times their integers.
    products: f32,
    /// The weighted sum of the squares of the integers.
    squares: f32,
}

impl Fit {
    const NONE: Fit = Fit {
        cells: [0; MAX_GROUP_CELLS],
        is_lower: [false; MAX_GROUP_CELLS],
        error: 0.0,
        products: 0.0,
        squares: 0.0,
    };

    /// The scale with the least error.
    fn scale(&self) -> f32 {
        if self.squares > 0.0 { (self.products / self.squares).max(0.0) } else { 0.0 }
    }

    /// By how much the scale with the least error reduces the error.
    fn gain(&self) -> f32 {
        self.scale() * self.products
    }

    /// The error at a scale, less the error of zeros.
    fn error_at(&self, scale: f32) -> f32 {
        scale * (scale * self.squares - 2.0 * self.products)
    }
}

impl CellSearch<'_> {
    /// Finds the integers of a block of `values`.
    #[inline(always)]
    pub fn find(&self, values: &[f32], importance: Option<&[f32]>, block: &mut IntegerBlock) {
        let largest = values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        *block = IntegerBlock::ZERO;
        block.scales = [1; MAX_GROUPS];
        if largest < SMALLEST {
            return;
        }
        let targets = self.targets(values, largest, importance);
        block.signs = targets.signs;
        let mut fits = [Fit::NONE; MAX_GROUPS];
        let fits = &mut fits[..self.groups()];
        for (group, fit) in fits.iter_mut().enumerate() {
            *fit = self.best_fit(&targets, group);
        }
        let factor = largest / self.layout.unit_factor();
        let mut unit = self.unit(fits);
        for steps in PASSES {
            unit = half(unit * factor).to_f32() / factor;
            unit = self.encode(&targets, fits, unit, steps, block);
            block.unit = half(unit * factor);
        }
    }

    fn groups(&self) -> usize {
        MAX_BLOCK_LEN / self.layout.group
    }

    fn cell_len(&self) -> usize {
        self.layout.grid.map_or(MAX_CELL_LEN, |grid| grid.cell_len)
    }

    fn group_cells(&self) -> usize {
        self.layout.group / self.cell_len()
    }

    #[inline(always)]
    fn targets(&self, values: &[f32], largest: f32, importance: Option<&[f32]>) -> Targets {
        let mut scaled = [0.0; MAX_BLOCK_LEN];
        scaled.iter_mut().zip(values).for_each(|(scaled, value)| *scaled = value / largest);
        let mut weights = [0.0; MAX_BLOCK_LEN];
        weigh(&scaled, self.layout.group, importance, &mut weights);
        usable(&mut weights);
        let mut signs = [0; MAX_BLOCK_LEN / 32];
        if self.rules.signs.is_stored() {
            self.split_signs(&mut scaled, &weights, &mut signs);
        }
        let (values, weights) = (self.by_cell(&scaled), self.by_cell(&weights));
        Targets { values, weights, signs }
    }

    fn by_cell(&self, values: &[f32]) -> [[f32; MAX_CELL_LEN]; MAX_CELLS] {
        let mut cells = [[0.0; MAX_CELL_LEN]; MAX_CELLS];
        for (cell, values) in cells.iter_mut().zip(values.chunks_exact(self.cell_len())) {
            cell[..values.len()].copy_from_slice(values);
        }
        cells
    }

    /// Makes values positive. Where the number of signs of eight values must be even, the value with the least influence gets
    /// the wrong sign: it stays negative.
    fn split_signs(&self, values: &mut [f32], weights: &[f32], signs: &mut [u32]) {
        let eights = values.as_chunks_mut::<8>().0.iter_mut().zip(weights.as_chunks::<8>().0);
        for (eight, (values, weights)) in eights.enumerate() {
            let mut bits = values.iter().rev().fold(0, |bits, value| bits << 1 | u32::from(*value < 0.0));
            if self.rules.signs == SignBits::Even && bits.count_ones() % 2 == 1 {
                let influence = |position: &usize| weights[*position] * values[*position].abs();
                let least = (0..8).min_by(|a, b| influence(a).total_cmp(&influence(b))).unwrap_or(0);
                bits ^= 1 << least;
            }
            for (position, value) in values.iter_mut().enumerate() {
                *value = if bits >> position & 1 == 1 { -*value } else { *value };
            }
            signs[eight / 4] |= bits << (eight % 4 * 8);
        }
    }

    /// The cells of a group for the best of several scales.
    #[inline(always)]
    fn best_fit(&self, targets: &Targets, group: usize) -> Fit {
        let cells = group * self.group_cells()..(group + 1) * self.group_cells();
        let extreme =
            targets.values[cells].as_flattened().iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        let mut best = Fit::NONE;
        if extreme == 0.0 {
            return best;
        }
        let largest = self.largest_integer();
        for overload in self.overloads() {
            let fit = self.fit(targets, group, extreme / (overload * largest), &best.cells);
            best = if fit.gain() > best.gain() { fit } else { best };
        }
        for _ in 0..REFINEMENTS {
            let again = self.fit(targets, group, best.scale(), &best.cells);
            if again.gain() <= best.gain() {
                break;
            }
            best = again;
        }
        best
    }

    fn overloads(&self) -> &'static [f32] {
        match (self.rules.signs.is_stored(), self.cell_len()) {
            (false, _) => OVERLOADS_OF_TERNARY,
            (true, MAX_CELL_LEN) => OVERLOADS_OF_EIGHTS,
            (true, _) => OVERLOADS_OF_FOURS,
        }
    }

    /// The largest integer of the codebook.
    fn largest_integer(&self) -> f32 {
        self.layout.codebook.iter().flatten().fold(0.0, |largest: f32, integer| largest.max(f32::from(*integer)))
    }

    /// The best cells of a group for a scale.
    #[inline(always)]
    fn fit(&self, targets: &Targets, group: usize, scale: f32, hints: &[u16; MAX_GROUP_CELLS]) -> Fit {
        match self.rules.signs {
            SignBits::Each | SignBits::Even => self.fit_shifts(targets, group, scale, hints, &[false]),
            SignBits::ShiftOfCell => self.fit_shifts(targets, group, scale, hints, &[false, true]),
            SignBits::ShiftOfGroup => {
                let higher = self.fit_shifts(targets, group, scale, hints, &[false]);
                let lower = self.fit_shifts(targets, group, scale, hints, &[true]);
                if lower.error < higher.error { lower } else { higher }
            }
        }
    }

    /// The best cells of a group for a scale; each is the best with one of the shifts.
    #[inline(always)]
    fn fit_shifts(
        &self,
        targets: &Targets,
        group: usize,
        scale: f32,
        hints: &[u16; MAX_GROUP_CELLS],
        shifts: &[bool],
    ) -> Fit {
        let mut fit = Fit::NONE;
        for (position, hint) in hints.iter().enumerate().take(self.group_cells()) {
            let index = group * self.group_cells() + position;
            let (values, weights) = (&targets.values[index], &targets.weights[index]);
            let mut best = (f32::INFINITY, 0, false);
            for &is_lower in shifts {
                let costs = self.costs(values, weights, scale, shift(is_lower));
                let (cell, cost) = self.table.cheapest(&costs, *hint);
                best = if cost < best.0 { (cost, cell, is_lower) } else { best };
            }
            let (cost, cell, is_lower) = best;
            let (products, squares) = sums(values, weights, self.table.integers(cell), shift(is_lower));
            (fit.cells[position], fit.is_lower[position]) = (cell, is_lower);
            (fit.error, fit.products, fit.squares) = (fit.error + cost, fit.products + products, fit.squares + squares);
        }
        fit
    }

    /// The weighted square error of each code of each value of a cell.
    #[inline(always)]
    fn costs(&self, values: &[f32; 8], weights: &[f32; 8], scale: f32, shift: f32) -> Costs {
        let mut costs = [[0.0; MAX_CELL_LEN]; 8];
        let codebook = self.layout.codebook.unwrap_or([0; 16]);
        for (costs, integer) in costs[..self.table.codes()].iter_mut().zip(codebook) {
            let level = scale * (f32::from(integer) - shift);
            for position in 0..MAX_CELL_LEN {
                let error = values[position] - level;
                costs[position] = weights[position] * error * error;
            }
        }
        costs
    }

    /// The unit whose odd multiples are nearest to the scales of the groups, by the errors that they cause.
    #[inline(always)]
    fn unit(&self, fits: &[Fit]) -> f32 {
        let mut largest = 0.0;
        for fit in fits {
            largest = fit.scale().max(largest);
        }
        let mut best = (f32::INFINITY, 0.0);
        let mut divisor = f32::from(self.rules.last_scale) + 1.0;
        while divisor >= 1.0 {
            let unit = largest / divisor;
            let mut error = 0.0;
            for fit in fits {
                error += fit.error_at(unit * self.odd(fit.scale(), unit));
            }
            best = if error < best.0 { (error, unit) } else { best };
            divisor -= UNIT_STEP;
        }
        best.1
    }

    /// The odd multiple of `unit` that is nearest to `scale`.
    #[inline(always)]
    fn odd(&self, scale: f32, unit: f32) -> f32 {
        let multiple = if unit > 0.0 { scale / unit } else { 0.0 };
        (2.0 * (0.5 * multiple - 0.5).round_ties_even() + 1.0).clamp(1.0, f32::from(self.rules.last_scale))
    }

    /// Sets scales and cells for a unit, and returns the unit that fits them best.
    #[inline(always)]
    fn encode(&self, targets: &Targets, fits: &[Fit], unit: f32, steps: &[f32], block: &mut IntegerBlock) -> f32 {
        let (mut products, mut squares) = (0.0, 0.0);
        for (group, first) in fits.iter().enumerate() {
            let middle = self.odd(first.scale(), unit);
            let mut best = (f32::INFINITY, 1.0, Fit::NONE);
            for step in steps {
                let scale = middle + step;
                if scale >= 1.0 && scale <= f32::from(self.rules.last_scale) {
                    let fit = self.fit(targets, group, unit * scale, &first.cells);
                    best = if fit.error < best.0 { (fit.error, scale, fit) } else { best };
                }
            }
            let (_, scale, fit) = best;
            products += scale * fit.products;
            squares += scale * scale * fit.squares;
            block.scales[group] = scale as i8;
            self.store(group, &fit, block);
        }
        if squares > 0.0 && products > 0.0 { products / squares } else { unit }
    }

    fn store(&self, group: usize, fit: &Fit, block: &mut IntegerBlock) {
        let count = self.group_cells();
        let lowered = self.layout.grid.map_or(0, |grid| match grid.signs {
            Signs::Lower => grid.cells.len() as u16,
            Signs::Negate => 0,
        });
        for (position, cell) in block.cells[group * count..][..count].iter_mut().enumerate() {
            *cell = fit.cells[position] | if fit.is_lower[position] { lowered } else { 0 };
        }
    }
}

/// What is subtracted from the integers of a cell.
#[inline(always)]
fn shift(is_lower: bool) -> f32 {
    if is_lower { 2.0 } else { 0.0 }
}

/// The weighted sums of values times integers, and of the squares of integers.
#[inline(always)]
fn sums(values: &[f32; 8], weights: &[f32; 8], integers: &[f32; 8], shift: f32) -> (f32, f32) {
    let (mut products, mut squares) = ([0.0; 8], [0.0; 8]);
    for position in 0..8 {
        let integer = integers[position] - shift;
        let weighted = weights[position] * integer;
        products[position] = weighted * values[position];
        squares[position] = weighted * integer;
    }
    (products.iter().sum(), squares.iter().sum())
}

/// Makes the largest weight 1. If all are 0, or one is infinite, all values count alike.
fn usable(weights: &mut [f32; MAX_BLOCK_LEN]) {
    let largest = weights.iter().copied().fold(0.0, f32::max);
    let is_usable = largest.is_normal();
    weights.iter_mut().for_each(|weight| *weight = if is_usable { *weight / largest } else { 1.0 });
}
