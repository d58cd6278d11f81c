//! Formats whose codes are stored as indices of *cells*: a cell has the codes of four or eight consecutive values.
//!
//! The cells are a table of the format, its *grid*. Codes index the codebook of the format. A cell does not determine
//! the signs of its values; they are stored separately, in one of two ways (see [`Signs`]).
//!
//! In memory, 32 columns have one or two words with the low 8 bits of the indices of their cells, and a word of signs. A
//! block then has the remaining bits of all its indices.

/// Values in a run.
const RUN_LEN: usize = 32;
/// The most words of a run: two of indices, one of signs.
pub const MAX_RUN_WORDS: usize = 3;
/// The most words of a block after its runs.
pub const MAX_BLOCK_WORDS: usize = 4;

/// How the values of a cell get their signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signs {
    /// There is a bit for each value: 1 negates it.
    Negate,
    /// The highest bit of an index is not part of the index: 1 subtracts 2 from each value of the cell.
    Lower,
}

/// The table of a format's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The codes of each cell, the first value in the lowest bits. A code has 2 bits in cells of eight values, and 3 bits in
    /// cells of four.
    pub cells: &'static [u16],
    /// The integers of four codes in a word, for each half of each cell of eight values, or for each cell of four. With
    /// [`Signs::Lower`] the offset of the layout is added to them.
    pub quads: &'static [u32],
    /// Values of a cell: 4 or 8.
    pub cell_len: usize,
    /// Bits of an index beyond eight, with the bit of [`Signs::Lower`].
    pub high_bits: usize,
    /// How values get their signs.
    pub signs: Signs,
}

impl Grid {
    /// Bits of a code in an entry of `cells`.
    #[must_use]
    pub const fn code_bits(&self) -> usize {
        if self.cell_len == 8 { 2 } else { 3 }
    }

    /// Words of 32 columns: of the low bits of indices, and of signs.
    #[must_use]
    pub const fn words_of_run(&self) -> (usize, usize) {
        (RUN_LEN / self.cell_len / 4, matches!(self.signs, Signs::Negate) as usize)
    }

    /// Words of the high bits of the indices of `runs` runs.
    #[must_use]
    pub const fn words_of_runs(&self, runs: usize) -> usize {
        runs * RUN_LEN / self.cell_len * self.high_bits / 32
    }

    /// The words of run `run` of a block with these indices and signs: low bits of indices, then signs.
    #[must_use]
    pub fn run_words(&self, cells: &[u16], signs: &[u32], run: usize) -> [u32; MAX_RUN_WORDS] {
        let (low, _) = self.words_of_run();
        let mut words = [0; MAX_RUN_WORDS];
        let cells = &cells[run * RUN_LEN / self.cell_len..][..RUN_LEN / self.cell_len];
        for (position, cell) in cells.iter().enumerate() {
            words[position / 4] |= u32::from(cell & 255) << (position % 4 * 8);
        }
        words[low] = signs[run];
        words
    }

    /// The words of a block of `runs` runs after those of its runs.
    #[must_use]
    pub fn block_words(&self, cells: &[u16], runs: usize) -> [u32; MAX_BLOCK_WORDS] {
        let mut words = [0; MAX_BLOCK_WORDS];
        if self.high_bits > 0 {
            for (position, cell) in cells[..runs * RUN_LEN / self.cell_len].iter().enumerate() {
                let first = position * self.high_bits;
                words[first / 32] |= u32::from(cell >> 8) << (first % 32);
            }
        }
        words
    }

    /// The integer of value `index` of a block with these indices and signs. Codes index `codebook`.
    #[must_use]
    pub const fn integer_at(&self, codebook: &[i8; 16], cells: &[u16], signs: &[u32], index: usize) -> i16 {
        let cell = cells[index / self.cell_len];
        let codes = self.cells[cell as usize % self.cells.len()];
        let bits = self.code_bits();
        let integer = codebook[(codes >> (index % self.cell_len * bits)) as usize & ((1 << bits) - 1)] as i16;
        match self.signs {
            Signs::Negate if signs[index / RUN_LEN] >> (index % RUN_LEN) & 1 == 1 => -integer,
            Signs::Lower if cell as usize >= self.cells.len() => integer - 2,
            _ => integer,
        }
    }
}

/// The entries of a table in a file.
pub(super) const fn read<const CELLS: usize>(bytes: &[u8]) -> [u16; CELLS] {
    assert!(bytes.len() == 2 * CELLS);
    let mut cells = [0; CELLS];
    let mut index = 0;
    while index < CELLS {
        cells[index] = u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
        index += 1;
    }
    cells
}

/// The words of [`Grid::quads`]: the codebook entries of four codes, plus `added`.
pub(super) const fn quads<const QUADS: usize>(cells: &[u16], codebook: &[i8; 16], added: u8) -> [u32; QUADS] {
    let bits = 2 + (QUADS == cells.len()) as usize;
    let mut quads = [0; QUADS];
    let mut index = 0;
    while index < 4 * QUADS {
        let position = index % (4 * QUADS / cells.len());
        let code = cells[index * cells.len() / (4 * QUADS)] >> (position * bits) & ((1 << bits) - 1);
        let operand = (codebook[code as usize] as u8).wrapping_add(added);
        quads[index / 4] |= (operand as u32) << (index % 4 * 8);
        index += 1;
    }
    quads
}
