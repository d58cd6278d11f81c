//! The cell of a grid with the least cost, where each code of each value has a cost of its own.
//!
//! A cell has two halves: four codes out of three, or two out of eight. The costs of all combinations of a half are tabulated,
//! so the cost of a cell is the sum of two entries. Cells are sorted by their first half. Those of a combination that is too
//! costly even with the cheapest second half are skipped. The result is exact: no neighbour is missed.

use crate::quant::grid::Grid;
use crate::quant::integer::Codebook;

/// The most values of a cell.
pub const MAX_CELL_LEN: usize = 8;

/// The most codes of a value in a cell.
pub const MAX_CODES: usize = 8;

/// Codes of a value in a cell of eight values. Such cells have two bits for a code, but grids use three of the four codes.
const CODES_OF_EIGHTS: usize = 3;

/// Combinations of codes in the half of a cell: the larger of `3 * 3 * 3 * 3` and `8 * 8`.
const COMBINATIONS: usize = 81;

/// Combinations that are dismissed at once.
const CHUNK: usize = 8;

/// The number of combinations up to the next multiple of a chunk.
const PADDED: usize = COMBINATIONS.next_multiple_of(CHUNK);

/// The cost of each code of each value, `[codes, values]`.
pub type Costs = [[f32; MAX_CELL_LEN]; MAX_CODES];

/// The costs of all combinations of codes of a half.
type Half = [f32; PADDED];

/// The cells of a grid, sorted for the search.
pub struct CellTable {
    cell_len: usize,
    /// Where the cells of each combination of the first half begin in `sorted`.
    starts: [u16; COMBINATIONS + 1],
    /// The combination of the second half, and the cell.
    sorted: Vec<(u8, u16)>,
    /// The combinations of both halves of each cell.
    halves: Vec<[u8; 2]>,
    /// The cell of each pair of combinations, or [`NO_CELL`].
    of_halves: Vec<u16>,
    /// The integers of each cell; zeros after the last.
    integers: Vec<[f32; MAX_CELL_LEN]>,
}

/// Stands for a pair of combinations that is not in the grid.
const NO_CELL: u16 = u16::MAX;

impl CellTable {
    /// Sorts the cells of a grid.
    #[must_use]
    pub fn new(grid: &Grid, codebook: &Codebook) -> Self {
        let halves: Vec<[u8; 2]> = grid.cells.iter().map(|cell| halves(grid, *cell)).collect();
        let mut sorted: Vec<u16> = (0..grid.cells.len()).map(|cell| cell as u16).collect();
        sorted.sort_by_key(|cell| halves[usize::from(*cell)]);
        let mut of_halves = vec![NO_CELL; COMBINATIONS * COMBINATIONS];
        for (cell, halves) in halves.iter().enumerate() {
            of_halves[place(halves.map(u32::from))] = cell as u16;
        }
        let before = |first: usize| halves.iter().filter(|halves| usize::from(halves[0]) < first).count() as u16;
        CellTable {
            cell_len: grid.cell_len,
            starts: std::array::from_fn(before),
            sorted: sorted.into_iter().map(|cell| (halves[usize::from(cell)][1], cell)).collect(),
            integers: grid.cells.iter().map(|cell| integers(grid, codebook, *cell)).collect(),
            of_halves,
            halves,
        }
    }

    /// Codes of a value.
    #[must_use]
    pub fn codes(&self) -> usize {
        if self.cell_len == 8 { CODES_OF_EIGHTS } else { MAX_CODES }
    }

    /// The integers of a cell; zeros after the last.
    #[inline(always)]
    #[must_use]
    pub fn integers(&self, cell: u16) -> &[f32; MAX_CELL_LEN] {
        &self.integers[usize::from(cell)]
    }

    /// The cell with the least cost, and that cost. The search is faster if `hint` is a cell of low cost.
    #[inline(always)]
    #[must_use]
    pub fn cheapest(&self, costs: &Costs, hint: u16) -> (u16, f32) {
        let (best_codes, least) = if self.cell_len == 8 {
            cheapest_codes::<CODES_OF_EIGHTS>(costs)
        } else {
            cheapest_codes::<MAX_CODES>(costs)
        };
        let (halves, least) = if self.cell_len == 8 {
            (combinations_of_eight(&best_codes), [sum_of_four(&least, 0), sum_of_four(&least, 4)])
        } else {
            (combinations_of_four(&best_codes), [least[0] + least[1], least[2] + least[3]])
        };
        let cell = self.of_halves[place(halves)];
        if cell != NO_CELL {
            return (cell, least[0] + least[1]);
        }
        self.cheapest_in_grid(costs, least[1], hint)
    }

    /// The same where the cheapest codes of all values are not a cell. `least` is the least cost of a second half.
    #[inline(always)]
    fn cheapest_in_grid(&self, costs: &Costs, least: f32, hint: u16) -> (u16, f32) {
        let (first, second) = if self.cell_len == 8 {
            (half_of_eight(costs, 0), half_of_eight(costs, 4))
        } else {
            (half_of_four(costs, 0), half_of_four(costs, 2))
        };
        let [of_first, of_second] = self.halves[usize::from(hint)];
        let mut best = (hint, first[usize::from(of_first)] + second[usize::from(of_second)]);
        for (chunk, chunk_costs) in first.as_chunks::<CHUNK>().0.iter().enumerate() {
            // Most combinations are too costly: many are dismissed at once.
            let limit = best.1 - least;
            if any_below(chunk_costs, limit) {
                for (position, cost) in chunk_costs.iter().enumerate() {
                    if *cost < limit {
                        best = self.cheapest_with(chunk * CHUNK + position, *cost, &second, best);
                    }
                }
            }
        }
        best
    }

    /// The cheaper of `best` and the cells of a combination of the first half.
    #[inline(always)]
    fn cheapest_with(&self, combination: usize, cost: f32, second: &Half, mut best: (u16, f32)) -> (u16, f32) {
        let range = usize::from(self.starts[combination])..usize::from(self.starts[combination + 1]);
        for (of_second, cell) in &self.sorted[range] {
            let cost = cost + second[usize::from(*of_second)];
            best = if cost < best.1 { (*cell, cost) } else { best };
        }
        best
    }
}

#[inline(always)]
fn any_below(costs: &[f32; CHUNK], limit: f32) -> bool {
    let mut signs = 0;
    for cost in costs {
        signs |= (*cost - limit).to_bits();
    }
    signs >> 31 == 1
}

/// The code of a value of a cell.
fn code(grid: &Grid, cell: u16, position: usize) -> usize {
    let bits = grid.code_bits();
    usize::from(cell >> (position * bits)) & ((1 << bits) - 1)
}

fn integers(grid: &Grid, codebook: &Codebook, cell: u16) -> [f32; MAX_CELL_LEN] {
    let integer = |position| f32::from(codebook[code(grid, cell, position)]);
    std::array::from_fn(|position| if position < grid.cell_len { integer(position) } else { 0.0 })
}

/// The combinations of both halves of a cell: numbers whose digits are codes, the code of the first value first.
fn halves(grid: &Grid, cell: u16) -> [u8; 2] {
    let (half, base) = if grid.cell_len == 8 { (4, CODES_OF_EIGHTS) } else { (2, MAX_CODES) };
    let number =
        |first: usize| (first..first + half).fold(0, |number, position| number * base + code(grid, cell, position));
    [number(0) as u8, number(half) as u8]
}

// The functions below have loops instead of closures: the compiler does not move closures into a function with other vectors.

/// The place of a pair of combinations in [`CellTable::of_halves`].
#[inline(always)]
fn place(halves: [u32; 2]) -> usize {
    halves[0] as usize * COMBINATIONS + halves[1] as usize
}

/// The cheapest code of each value, and its cost.
#[inline(always)]
fn cheapest_codes<const CODES: usize>(costs: &Costs) -> ([u32; MAX_CELL_LEN], [f32; MAX_CELL_LEN]) {
    let (mut codes, mut cheapest) = ([0; MAX_CELL_LEN], costs[0]);
    for (code, costs) in costs[..CODES].iter().enumerate().skip(1) {
        for position in 0..MAX_CELL_LEN {
            let is_cheaper = costs[position] < cheapest[position];
            codes[position] = if is_cheaper { code as u32 } else { codes[position] };
            cheapest[position] = if is_cheaper { costs[position] } else { cheapest[position] };
        }
    }
    (codes, cheapest)
}

#[inline(always)]
fn combinations_of_eight(codes: &[u32; MAX_CELL_LEN]) -> [u32; 2] {
    let half = |first: usize| 27 * codes[first] + 9 * codes[first + 1] + 3 * codes[first + 2] + codes[first + 3];
    [half(0), half(4)]
}

#[inline(always)]
fn combinations_of_four(codes: &[u32; MAX_CELL_LEN]) -> [u32; 2] {
    [8 * codes[0] + codes[1], 8 * codes[2] + codes[3]]
}

/// The sum of four costs in the order of the combinations' costs.
#[inline(always)]
fn sum_of_four(costs: &[f32; MAX_CELL_LEN], first: usize) -> f32 {
    costs[first] + costs[first + 1] + (costs[first + 2] + costs[first + 3])
}

#[inline(always)]
fn half_of_eight(costs: &Costs, first: usize) -> Half {
    let (high, low) = (pair_of_eight(costs, first), pair_of_eight(costs, first + 2));
    let mut half = [f32::INFINITY; PADDED];
    for (half, high) in half.as_chunks_mut::<9>().0.iter_mut().zip(high) {
        for (half, low) in half.iter_mut().zip(low) {
            *half = high + low;
        }
    }
    half
}

#[inline(always)]
fn pair_of_eight(costs: &Costs, first: usize) -> [f32; 9] {
    let mut pair = [0.0; 9];
    for (pair, high) in pair.as_chunks_mut::<CODES_OF_EIGHTS>().0.iter_mut().zip(costs) {
        for (pair, low) in pair.iter_mut().zip(costs) {
            *pair = high[first] + low[first + 1];
        }
    }
    pair
}

#[inline(always)]
fn half_of_four(costs: &Costs, first: usize) -> Half {
    let mut low = [0.0; MAX_CODES];
    for (low, costs) in low.iter_mut().zip(costs) {
        *low = costs[first + 1];
    }
    let mut half = [f32::INFINITY; PADDED];
    for (half, high) in half.as_chunks_mut::<MAX_CODES>().0.iter_mut().zip(costs) {
        for (half, low) in half.iter_mut().zip(low) {
            *half = high[first] + low;
        }
    }
    half
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{Format, random};

    #[test]
    fn no_cell_of_any_grid_is_cheaper_than_the_one_found() {
        for format in Format::ALL.iter().copied() {
            let Some((grid, codebook)) = format.integers().and_then(|layout| layout.grid.zip(layout.codebook)) else {
                continue;
            };
            let table = CellTable::new(&grid, &codebook);
            for seed in 0..50 {
                let random = random::activations(MAX_CODES * MAX_CELL_LEN, seed);
                let costs: Costs =
                    std::array::from_fn(|code| std::array::from_fn(|position| random[code * 8 + position].powi(2)));
                let cost = |cell: usize| -> f32 {
                    (0..grid.cell_len).map(|position| costs[code(&grid, grid.cells[cell], position)][position]).sum()
                };
                let expected = (0..grid.cells.len()).map(cost).fold(f32::INFINITY, f32::min);
                let (cell, found) = table.cheapest(&costs, (seed % 200) as u16);
                assert!((found - expected).abs() < 1e-5, "{format}: {found}, expected {expected}");
                assert!((cost(usize::from(cell)) - expected).abs() < 1e-5, "{format}");
            }
        }
    }

    #[test]
    fn cells_of_eight_values_use_three_codes() {
        for format in [Format::IQ1_S, Format::IQ2_XXS, Format::IQ2_XS, Format::IQ2_S] {
            let grid = format.integers().and_then(|layout| layout.grid);
            let mut cells = grid.iter().flat_map(|grid| grid.cells.iter().map(move |cell| (grid, *cell)));
            assert!(cells.all(|(grid, cell)| (0..8).all(|position| code(grid, cell, position) < CODES_OF_EIGHTS)));
        }
    }
}
