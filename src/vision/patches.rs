//! Patches of a tile: their order and their normalized colors.
//!
//! Patches that become one embedding row are consecutive. So what follows the tower can read them as one longer row, or take
//! the mean of consecutive rows.

use super::{RgbImage, Tile};

/// How an image becomes patches.
#[derive(Debug, Clone, PartialEq)]
pub struct Patches {
    /// Pixels of a side.
    pub side: usize,
    /// Patches of a side of the square that becomes one embedding row.
    pub merge: usize,
    /// The mean of each color, from 0 to 1.
    pub mean: [f32; 3],
    /// The deviation of each color.
    pub deviation: [f32; 3],
}

/// The range of colors that a tower takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorRange {
    /// That of the mean and the deviation of its file.
    OfFile,
    /// That from -1 to 1, where that of the file is from 0 to 1.
    Doubled,
}

impl ColorRange {
    /// The mean and the deviation of colors from 0 to 1, of those of a file.
    #[must_use]
    pub fn normalized(self, [mean, deviation]: [[f32; 3]; 2]) -> [[f32; 3]; 2] {
        match self {
            ColorRange::OfFile => [mean, deviation],
            ColorRange::Doubled => {
                let middle = std::array::from_fn(|color| mean[color] + deviation[color] / 2.0);
                [middle, deviation.map(|deviation| deviation / 2.0)]
            }
        }
    }
}

/// Column and row of each patch of a grid of `[columns, rows]`, whole squares of `merge` patches a side one after the other.
fn in_order([columns, rows]: [usize; 2], merge: usize) -> impl Iterator<Item = [usize; 2]> {
    let squares = (0..rows / merge).flat_map(move |y| (0..columns / merge).map(move |x| [x, y]));
    squares.flat_map(move |[x, y]| {
        (0..merge).flat_map(move |down| (0..merge).map(move |right| [x * merge + right, y * merge + down]))
    })
}

impl Patches {
    /// Values of a patch.
    #[must_use]
    pub fn width(&self) -> usize {
        3 * self.side * self.side
    }

    /// The patches of an image whose sides are multiples of the side of a merged square.
    #[must_use]
    pub fn tile(&self, image: &RgbImage) -> Tile {
        let grid = image.size().map(|length| length / self.side);
        let normalized = self.normalized_colors();
        let mut patches = Vec::with_capacity(grid[0] * grid[1] * self.width());
        for [column, row] in in_order(grid, self.merge) {
            for (color, normalized) in normalized.iter().enumerate() {
                for y in row * self.side..(row + 1) * self.side {
                    let first = 3 * (y * image.width as usize + column * self.side);
                    let pixels = image.pixels[first..][..3 * self.side].chunks_exact(3);
                    patches.extend(pixels.map(|pixel| normalized[usize::from(pixel[color])]));
                }
            }
        }
        Tile { grid, patches }
    }

    /// For each of red, green and blue the value of each 8-bit color.
    fn normalized_colors(&self) -> [[f32; 256]; 3] {
        let value = |color: usize, level: usize| (level as f32 / 255.0 - self.mean[color]) / self.deviation[color];
        std::array::from_fn(|color| std::array::from_fn(|level| value(color, level)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_that_are_merged_follow_one_another() {
        let order: Vec<_> = in_order([4, 2], 2).collect();
        assert_eq!(order, [[0, 0], [1, 0], [0, 1], [1, 1], [2, 0], [3, 0], [2, 1], [3, 1]]);
        assert_eq!(in_order([2, 2], 1).collect::<Vec<_>>(), [[0, 0], [1, 0], [0, 1], [1, 1]]);
    }

    #[test]
    fn doubled_colors_are_from_minus_1_to_1() {
        let [mean, deviation] = ColorRange::Doubled.normalized([[0.0, 0.2, 0.0], [1.0, 0.5, 1.0]]);
        assert_eq!(([mean[0], mean[2]], deviation), ([0.5, 0.5], [0.5, 0.25, 0.5]));
        let value = |color: usize, level: f32| (level - mean[color]) / deviation[color];
        assert_eq!([value(0, 0.0), value(0, 1.0)], [-1.0, 1.0]);
        assert!((value(1, 0.7) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_patch_has_its_red_then_its_green_then_its_blue_values() {
        let patches = Patches { side: 2, merge: 1, mean: [0.0, 0.5, 0.0], deviation: [1.0, 0.5, 1.0] };
        let pixels: Vec<u8> = (0..8).flat_map(|pixel| [pixel, 255, 100 + pixel]).collect();
        let tile = patches.tile(&RgbImage { width: 4, height: 2, pixels });
        assert_eq!(tile.grid, [2, 1]);
        let of = |levels: [u8; 4]| levels.map(|level| f32::from(level) / 255.0);
        let expected = [of([2, 3, 6, 7]), [1.0; 4], of([102, 103, 106, 107])].concat();
        assert_eq!(tile.patches[12..], expected);
    }
}
