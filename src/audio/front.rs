//! How the frames of a spectrogram become rows of an encoder: which convolutions are before its layers.

use super::grid::{Joining, Taps};

/// The convolutions before the layers.
#[derive(Debug, Clone, Copy)]
pub enum Front {
    /// Two over time, of which the second has a stride of 2. A window has this many rows, or as many as the table of positions.
    OverTime(Option<usize>),
    /// Several over squares of times and bins, each with a stride of 2, and a matrix.
    OverSquares(&'static Squares),
}

/// Convolutions over squares. Tensors are named without `.weight` and `.bias`.
#[derive(Debug)]
pub struct Squares {
    /// Most frames of a window.
    pub window: usize,
    /// Frames that are convolved on their own, with zeros after the last of them; `None`: all of a window.
    pub chunk: Option<usize>,
    /// The kernels.
    pub stems: &'static [&'static str],
    /// The order of the taps of a kernel.
    pub taps: Taps,
    /// What follows each convolution.
    pub then: AfterConvolution,
    /// The order of the values of a time after the last convolution.
    pub joining: Joining,
    /// The matrix after them.
    pub output: &'static str,
}

/// What follows a convolution over squares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterConvolution {
    /// The exact GELU.
    Gelu,
    /// A layer norm of the channels, whose tensor follows the name of the kernel, and what is below zero becomes zero.
    NormAndRelu,
}

impl Squares {
    /// The rows of frames that are convolved together.
    fn halved(&self, frames: usize) -> usize {
        self.stems.iter().fold(frames, |frames, _| frames.div_ceil(2))
    }

    /// Frames that are convolved together.
    #[must_use]
    pub fn frames_at_once(&self) -> usize {
        self.chunk.unwrap_or(self.window)
    }

    /// The rows of as many frames as are convolved together.
    #[must_use]
    pub fn rows_at_once(&self) -> usize {
        self.halved(self.frames_at_once())
    }

    /// The rows of the frames of a window.
    #[must_use]
    pub fn rows(&self, frames: usize) -> usize {
        let chunk = self.frames_at_once();
        frames / chunk * self.halved(chunk) + self.halved(frames % chunk)
    }
}

impl Front {
    /// The rows of the frames of a window.
    #[must_use]
    pub fn rows(self, frames: usize) -> usize {
        match self {
            Front::OverTime(_) => frames.div_ceil(2),
            Front::OverSquares(squares) => squares.rows(frames),
        }
    }

    /// The number of graphs before that of the layers: of the convolutions, without the last one over time.
    #[must_use]
    pub fn graphs(self) -> usize {
        match self {
            Front::OverTime(_) => 1,
            Front::OverSquares(squares) => squares.stems.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_whole_chunks_and_of_the_rest_are_counted() {
        let chunks = Squares {
            window: 800,
            chunk: Some(100),
            stems: &["1", "2", "3"],
            taps: Taps::BinByBin,
            then: AfterConvolution::Gelu,
            joining: Joining::BinByBin,
            output: "",
        };
        let expected = [(0, 0), (1, 1), (8, 1), (9, 2), (50, 7), (99, 13), (100, 13), (101, 14), (800, 104)];
        assert_eq!(expected.map(|(frames, _)| chunks.rows(frames)), expected.map(|(_, rows)| rows));
        let whole = Squares { window: 3000, chunk: None, stems: &["1", "2"], ..chunks };
        assert_eq!([0, 1, 4, 5, 2999, 3000].map(|frames| whole.rows(frames)), [0, 1, 1, 2, 750, 750]);
        assert_eq!([1, 2, 3].map(|frames| Front::OverTime(None).rows(frames)), [1, 1, 2]);
    }
}
