//! How an image becomes tiles of the size that a tower takes.

use super::RgbImage;
use super::borders;
use super::canvas::Canvas;
use super::resample::{Filter, resized, resized_part};

/// What a file says of the division of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DivisionKeys {
    /// Pixels of a side of a tile; of the longest side of one with the proportions of the image.
    pub side: usize,
    /// Pixels of a side of a patch.
    pub patch: usize,
    /// Pixels of a side of the square that becomes one row.
    pub multiple: usize,
    /// Pixels of the longest side before an image is divided.
    pub longest: Option<usize>,
    /// Fewest tiles.
    pub fewest_tiles: Option<usize>,
    /// Most tiles.
    pub most_tiles: Option<usize>,
    /// Fewest pixels of an image.
    pub fewest_pixels: Option<usize>,
    /// Most pixels of an image.
    pub most_pixels: Option<usize>,
    /// Whether the sides of an image that are longer than a tile are cut off. Otherwise the others are padded.
    pub is_cropped: bool,
}

/// How an image becomes tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Division {
    /// One tile that the image is stretched to.
    Stretched,
    /// One tile with the image in the middle, on a square of the mean color.
    Padded,
    /// One tile with the middle of the image.
    Cropped,
    /// The longest side is scaled to `longest` pixels, both sides are then stretched to whole tiles. An overview follows several
    /// tiles.
    ///
    /// Source: Laurençon et al. 2024, "Building and better understanding vision-language models" (Idefics3).
    LongestSide {
        /// Pixels.
        longest: usize,
    },
    /// One tile with the proportions of the image, which is made smaller if a side has more than `longest` pixels. Both sides are
    /// then stretched to multiples.
    Proportional {
        /// Pixels.
        longest: usize,
        /// Pixels.
        multiple: usize,
    },
    /// One tile with about the proportions of the image and a number of pixels between two limits. Both sides are multiples.
    ///
    /// Source: transformers' `smart_resize` of Qwen2-VL.
    WithinPixels {
        /// Pixels of a side.
        multiple: usize,
        /// Fewest pixels of the tile.
        fewest: usize,
        /// Most pixels of the tile.
        most: usize,
        /// Whether an image with a side below `multiple` is enlarged before its size is rounded.
        ///
        /// Source: transformers' `smart_resize` of GLM-4.1V.
        enlarges: bool,
    },
    /// One tile of multiples, with the image at the top left and black next to it and below. The image is made smaller if the tile would
    /// exceed its most pixels, and larger if both would have less than the fewest.
    ///
    /// Source: transformers' `smart_resize` of GLM 5.3 Flash.
    Bordered {
        /// Pixels of a side.
        multiple: usize,
        /// Fewest pixels of the tile.
        fewest: usize,
        /// Most pixels of the tile.
        most: usize,
    },
    /// One tile with about the proportions of the image and as many pixels as fit in `most`. Both sides are multiples.
    ///
    /// Source: transformers' `get_aspect_ratio_preserving_size` of Gemma 4.
    Filled {
        /// Pixels of a side.
        multiple: usize,
        /// Most pixels of the tile.
        most: usize,
    },
    /// One tile as [`Division::WithinPixels`]. An image with more than twice its most pixels becomes the grid of square tiles whose
    /// proportions are next to its own, and that tile is the overview.
    ///
    /// Source: transformers' image processor of LFM2-VL.
    TilesOfLarge {
        /// Pixels of a side of a patch.
        patch: usize,
        /// Pixels of a side.
        multiple: usize,
        /// Fewest and most pixels of the tile of the whole image.
        pixels: [usize; 2],
        /// Pixels of a side of the other tiles.
        side: usize,
        /// Fewest and most of these.
        tiles: [usize; 2],
    },
    /// The grid of tiles whose proportions are next to those of the image. With more than one tile an overview follows.
    /// Source: Chen et al. 2024, "How Far Are We to GPT-4V?" (InternVL 1.5).
    NearestGrid {
        /// Fewest tiles.
        fewest: usize,
        /// Most tiles.
        most: usize,
    },
}

/// Fewest and most embedding rows of an image whose tile has a number of pixels between two limits, where the file has none.
const FEWEST_ROWS: usize = 8;
const MOST_ROWS: usize = 1280;
/// Most pixels of a side of a tile, whatever the file says.
const MOST_SIDE: usize = 1024;
/// Most pixels of such a tile, whatever the file says.
const MOST_PIXELS: usize = 1 << 22;

/// Most pixels of the longest side of an image that is divided.
const LONGEST_SIDE: usize = 4096;

/// The tiles of an image.
#[derive(Debug, PartialEq)]
pub struct Divided {
    /// Columns and rows of tiles; 0 if the image is not divided. An overview follows the tiles of a divided image.
    pub tiles: [usize; 2],
    /// The tiles, row by row, then the overview.
    pub images: Vec<RgbImage>,
}

impl Divided {
    fn whole(image: RgbImage) -> Self {
        Divided { tiles: [0, 0], images: vec![image] }
    }
}

impl Division {
    /// One tile within the limits of a file on pixels. Where it has none, they are those of 8 and 1280 rows.
    #[must_use]
    pub fn within_pixels(keys: &DivisionKeys) -> Self {
        let [fewest, most] = limits(keys, [FEWEST_ROWS, MOST_ROWS]);
        Division::WithinPixels { multiple: keys.multiple, fewest, most, enlarges: false }
    }

    /// As [`Division::within_pixels`] after small images are enlarged. Where a file has no limits, they are those of this many rows.
    #[must_use]
    pub fn enlarged_within_rows(keys: &DivisionKeys, rows: [usize; 2]) -> Self {
        let [fewest, most] = limits(keys, rows);
        Division::WithinPixels { multiple: keys.multiple, fewest, most, enlarges: true }
    }

    /// As [`Division::Bordered`], with the limits of a file on pixels, else those of this many rows.
    #[must_use]
    pub fn bordered(keys: &DivisionKeys, rows: [usize; 2]) -> Self {
        let [fewest, most] = limits(keys, rows);
        Division::Bordered { multiple: keys.multiple, fewest, most }
    }

    /// One tile of as many pixels as a file allows, else as `rows` embedding rows have.
    #[must_use]
    pub fn filled(keys: &DivisionKeys, rows: usize) -> Self {
        let of_row = keys.multiple * keys.multiple;
        let most = keys.most_pixels.unwrap_or(rows * of_row).clamp(of_row, MOST_PIXELS.max(of_row));
        Division::Filled { multiple: keys.multiple, most }
    }

    /// As [`Division::TilesOfLarge`], with what a file says. Without it, the whole image has 64 to 256 rows, and there are up to 10
    /// tiles of 512 pixels a side.
    #[must_use]
    pub fn tiles_of_large(keys: &DivisionKeys) -> Self {
        const ROWS: [usize; 2] = [64, 256];
        const SIDE: usize = 512;
        let of_row = keys.multiple * keys.multiple;
        let most = keys.most_pixels.unwrap_or(ROWS[1] * of_row).clamp(of_row, MOST_PIXELS.max(of_row));
        let fewest = keys.fewest_pixels.unwrap_or(ROWS[0] * of_row).min(most);
        let side = keys.longest.unwrap_or(SIDE).clamp(1, MOST_SIDE).next_multiple_of(keys.multiple);
        let most_tiles = keys.most_tiles.unwrap_or(10).max(2);
        let tiles = [keys.fewest_tiles.unwrap_or(2).clamp(2, most_tiles), most_tiles];
        Division::TilesOfLarge { patch: keys.patch, multiple: keys.multiple, pixels: [fewest, most], side, tiles }
    }

    /// The most pixels of a tile, for tiles of `side` pixels where these are squares.
    #[must_use]
    pub fn largest_tile(self, side: usize) -> usize {
        match self {
            Division::WithinPixels { most, .. } | Division::Bordered { most, .. } | Division::Filled { most, .. } => {
                most
            }
            Division::TilesOfLarge { pixels: [_, most], side, .. } => most.max(side * side),
            _ => side * side,
        }
    }

    /// The most pixels of all tiles of an image, for tiles of `side` pixels.
    #[must_use]
    pub fn most_pixels(self, side: usize) -> usize {
        match self {
            Division::WithinPixels { most, .. } | Division::Bordered { most, .. } | Division::Filled { most, .. } => {
                most
            }
            Division::TilesOfLarge { pixels: [_, most], side, tiles: [_, tiles], .. } => most + tiles * side * side,
            other => other.most_tiles(side) * side * side,
        }
    }

    /// The most tiles of an image, with the overview, for tiles of `side` pixels.
    #[must_use]
    pub fn most_tiles(self, side: usize) -> usize {
        match self {
            Division::Stretched
            | Division::Padded
            | Division::Cropped
            | Division::Proportional { .. }
            | Division::WithinPixels { .. }
            | Division::Bordered { .. }
            | Division::Filled { .. } => 1,
            // The shorter side is rounded up to an even number.
            Division::LongestSide { longest } => {
                let longest = longest.min(LONGEST_SIDE);
                longest.div_ceil(side) * (longest + 1).div_ceil(side) + 1
            }
            Division::NearestGrid { most, .. } | Division::TilesOfLarge { tiles: [_, most], .. } => most + 1,
        }
    }

    /// The tiles of an image with pixels. `mean` is the mean color.
    #[must_use]
    pub fn divide(self, image: &RgbImage, side: usize, filter: Filter, mean: [u8; 3]) -> Divided {
        let to = |size: [usize; 2], image: &RgbImage| resized(&Canvas::of(image), size, filter);
        match self {
            Division::Stretched => Divided::whole(to([side; 2], image)),
            Division::Padded => Divided::whole(resized(&Canvas::square(image, mean), [side; 2], filter)),
            Division::Cropped => Divided::whole(cropped(image, side, filter)),
            Division::LongestSide { longest } => {
                let scaled = to(scaled_to_longest(image.size(), longest), image);
                let whole = to(whole_tiles(scaled.size(), side), &scaled);
                let overview = |whole: &RgbImage| to([side; 2], whole);
                cut(&whole, side, overview)
            }
            Division::Proportional { longest, multiple } => {
                Divided::whole(to(proportional(image.size(), longest, multiple), image))
            }
            Division::WithinPixels { multiple, fewest, most, enlarges } => {
                let size = if enlarges { at_least(image.size(), multiple) } else { image.size() };
                Divided::whole(to(within_pixels(size, multiple, 0, [fewest, most]), image))
            }
            Division::Bordered { multiple, fewest, most } => {
                let (tile, content) = borders::sizes(image.size(), multiple, [fewest, most]);
                Divided::whole(Canvas::corner(&to(content, image), tile, [0; 3]).whole())
            }
            Division::TilesOfLarge { patch, multiple, pixels, side, tiles } => {
                let whole = |image: &RgbImage| to(within_pixels(image.size(), multiple, 1, pixels), image);
                if !is_large(image.size(), patch, multiple, pixels[1]) {
                    return Divided::whole(whole(image));
                }
                let grid = nearest_grid(image.size(), side, tiles);
                cut(&to(grid.map(|count| count * side), image), side, |_| whole(image))
            }
            Division::Filled { multiple, most } => Divided::whole(to(filled(image.size(), multiple, most), image)),
            Division::NearestGrid { fewest, most } => {
                let grid = nearest_grid(image.size(), side, [fewest, most]);
                cut(&to(grid.map(|count| count * side), image), side, |_| to([side; 2], image))
            }
        }
    }
}

/// The fewest and the most pixels of a tile by the file, else those of this many rows.
fn limits(keys: &DivisionKeys, rows: [usize; 2]) -> [usize; 2] {
    let of_row = keys.multiple * keys.multiple;
    let most = keys.most_pixels.unwrap_or(rows[1] * of_row).clamp(of_row, MOST_PIXELS);
    [keys.fewest_pixels.unwrap_or(rows[0] * of_row).min(most), most]
}

/// The tiles of an image of whole tiles, and its overview if there is more than one.
fn cut(image: &RgbImage, side: usize, overview: impl Fn(&RgbImage) -> RgbImage) -> Divided {
    let tiles @ [columns, rows] = image.size().map(|length| length / side);
    if columns * rows == 1 {
        return Divided::whole(image.clone());
    }
    let corners = (0..rows).flat_map(|row| (0..columns).map(move |column| [column * side, row * side]));
    let images = corners.map(|corner| image.part(corner, [side; 2]));
    Divided { tiles, images: images.chain([overview(image)]).collect() }
}

/// The middle of an image whose shortest side becomes that of a tile.
fn cropped(image: &RgbImage, side: usize, filter: Filter) -> RgbImage {
    let shortest = image.size()[0].min(image.size()[1]);
    let size = image.size().map(|length| side * length / shortest);
    let middle = size.map(|length| (length - side) / 2..(length - side) / 2 + side);
    resized_part(&Canvas::of(image), size, middle, filter)
}

/// The size of an image whose longest side becomes `longest` pixels; the other is rounded down, then up to an even number.
fn scaled_to_longest([width, height]: [usize; 2], longest: usize) -> [usize; 2] {
    let proportion = width as f64 / height as f64;
    let even = |length: f64| (length as usize).next_multiple_of(2).max(1);
    let [width, height] = if width >= height {
        [longest, even(longest as f64 / proportion)]
    } else {
        [even(longest as f64 * proportion), longest]
    };
    limited([width, height])
}

/// The size with a longest side of at most [`LONGEST_SIDE`].
fn limited([width, height]: [usize; 2]) -> [usize; 2] {
    if width.max(height) <= LONGEST_SIDE {
        return [width, height];
    }
    let proportion = width as f64 / height as f64;
    if width >= height {
        [LONGEST_SIDE, ((LONGEST_SIDE as f64 / proportion) as usize).max(1)]
    } else {
        [((LONGEST_SIDE as f64 * proportion) as usize).max(1), LONGEST_SIDE]
    }
}

/// The size of whole tiles: the longest side rounded up, then the other in proportion and rounded up.
fn whole_tiles([width, height]: [usize; 2], side: usize) -> [usize; 2] {
    let proportion = width as f64 / height as f64;
    let up = |length: usize| length.max(1).next_multiple_of(side);
    if width >= height {
        [up(width), up((up(width) as f64 / proportion) as usize)]
    } else {
        [up((up(height) as f64 * proportion) as usize), up(height)]
    }
}

/// The size of a tile with the proportions of an image.
fn proportional(size: [usize; 2], longest: usize, multiple: usize) -> [usize; 2] {
    let ratio = size[0].max(size[1]) as f64 / longest as f64;
    let scaled = size.map(|length| if ratio > 1.0 { (length as f64 / ratio) as usize } else { length });
    // Rounding may not exceed the longest side.
    scaled.map(|length| length.clamp(1, longest).next_multiple_of(multiple))
}

/// Whether an image has more than twice as many pixels, once its sides are rounded to multiples.
fn is_large(size: [usize; 2], patch: usize, multiple: usize, most: usize) -> bool {
    let rounded = size.map(|length| to_nearest(length, multiple).max(patch));
    rounded[0] * rounded[1] > 2 * most
}

/// The size in the same proportions, of which no side is shorter than this.
fn at_least(size: [usize; 2], shortest: usize) -> [usize; 2] {
    let scale = size.map(|length| shortest as f64 / length as f64).into_iter().fold(1.0, f64::max);
    if scale > 1.0 { size.map(|length| (length as f64 * scale) as usize) } else { size }
}

/// The nearest multiple, of two the even one.
fn to_nearest(length: usize, multiple: usize) -> usize {
    (length as f64 / multiple as f64).round_ties_even() as usize * multiple
}

/// The size of a tile of multiples with a number of pixels between two limits. Sides are rounded to at least `least` multiples before
/// these are applied.
fn within_pixels(size: [usize; 2], multiple: usize, least: usize, [fewest, most]: [usize; 2]) -> [usize; 2] {
    let unit = multiple as f64;
    let scaled = |factor: f64, round: fn(f64) -> f64| {
        size.map(|length| (round(length as f64 * factor / unit) as usize).max(1) * multiple)
    };
    let area = |[width, height]: [usize; 2]| width * height;
    let pixels = area(size) as f64;
    let shrunk = || scaled((most as f64 / pixels).sqrt(), f64::floor);
    let rounded = size.map(|length| to_nearest(length, multiple).max(least * multiple));
    let found = match area(rounded) {
        pixels if pixels > most => shrunk(),
        rounded_pixels if rounded_pixels < fewest => scaled((fewest as f64 / pixels).sqrt(), f64::ceil),
        _ => rounded,
    };
    // What is much longer than wide may be larger after rounding up.
    let is_within = |size: &[usize; 2]| area(*size) <= most && area(*size) > 0;
    Some(found).filter(is_within).or(Some(shrunk()).filter(is_within)).unwrap_or([multiple; 2])
}

/// The size of the largest tile of multiples with at most `most` pixels and the proportions of an image, rounded down. Of what is
/// too thin one side is a multiple, and the other as many as the longer side has of the shorter one.
fn filled(size @ [width, height]: [usize; 2], multiple: usize, most: usize) -> [usize; 2] {
    let factor = (most as f64 / (width * height) as f64).sqrt();
    let longest = most / (multiple * multiple);
    match size.map(|length| (factor * length as f64 / multiple as f64) as usize) {
        [0, 0] => [multiple; 2],
        [_, 0] => [(width / height).clamp(1, longest) * multiple, multiple],
        [0, _] => [multiple, (height / width).clamp(1, longest) * multiple],
        squares => squares.map(|length| length * multiple),
    }
}

/// Columns and rows of the grid of `fewest` to `most` tiles whose proportions are next to those of an image. Of grids with the
/// same proportions the one with more tiles, as long as these are at most twice as large as the image.
fn nearest_grid([width, height]: [usize; 2], side: usize, [fewest, most]: [usize; 2]) -> [usize; 2] {
    let proportion = width as f64 / height as f64;
    let all = (1..=most).flat_map(|columns| (1..=most).map(move |rows| [columns, rows]));
    let mut grids: Vec<[usize; 2]> = all.filter(|[x, y]| (fewest..=most).contains(&(x * y))).collect();
    grids.sort_by_key(|[columns, rows]| columns * rows);
    let (mut best, mut least) = ([1, 1], f64::INFINITY);
    for grid @ [columns, rows] in grids {
        let distance = (proportion - columns as f64 / rows as f64).abs();
        let is_filled = (width * height) as f64 > 0.5 * (side * side * columns * rows) as f64;
        if distance < least || distance == least && is_filled {
            (best, least) = (grid, distance);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(width: u32, height: u32) -> RgbImage {
        RgbImage { width, height, pixels: vec![100; (3 * width * height) as usize] }
    }

    #[test]
    fn the_longest_side_gives_the_grid() {
        let divide = |width, height| {
            let divided =
                Division::LongestSide { longest: 40 }.divide(&image(width, height), 10, Filter::Lanczos, [0; 3]);
            let sizes = divided.images.iter().all(|image| image.size() == [10, 10]);
            assert!(sizes && divided.images.len() == divided.tiles[0] * divided.tiles[1] + 1);
            divided.tiles
        };
        assert_eq!(divide(100, 100), [4, 4]);
        assert_eq!(divide(3, 2), [4, 3]);
        assert_eq!(divide(20, 100), [1, 4]);
        assert_eq!(divide(1000, 1), [4, 1]);
        let one = Division::LongestSide { longest: 10 }.divide(&image(10, 10), 10, Filter::Lanczos, [0; 3]);
        assert_eq!((one.tiles, one.images.len()), ([0, 0], 1));
    }

    #[test]
    fn the_nearest_grid_has_the_proportions_of_the_image() {
        assert_eq!(nearest_grid([448, 448], 448, [1, 12]), [1, 1]);
        assert_eq!(nearest_grid([896, 448], 448, [1, 12]), [2, 1]);
        assert_eq!(nearest_grid([2000, 2000], 448, [1, 12]), [3, 3]);
        assert_eq!(nearest_grid([1, 5000], 448, [1, 12]), [1, 12]);
    }

    #[test]
    fn no_image_has_more_tiles_than_stated() {
        for (division, side) in [
            (Division::LongestSide { longest: 45 }, 10),
            (Division::LongestSide { longest: 40 }, 10),
            (Division::NearestGrid { fewest: 1, most: 6 }, 10),
        ] {
            for (width, height) in [(1, 1), (7, 90), (90, 7), (44, 45), (45, 45), (1, 300), (33, 31)] {
                let divided = division.divide(&image(width, height), side, Filter::Bilinear, [0; 3]);
                assert!(divided.images.len() <= division.most_tiles(side), "{division:?} {width} x {height}");
            }
        }
    }

    #[test]
    fn a_tile_has_a_number_of_pixels_between_two_limits() {
        let within = |size| within_pixels(size, 14, 0, [8 * 196, 100 * 196]);
        assert_eq!(within([61, 37]), [56, 42]);
        assert_eq!(within([20, 50]), [28, 70]);
        assert_eq!(within([1000, 500]), [196, 98]);
        assert_eq!(within([35, 49]), [28, 56]);
        for size in [[1, 1], [100_000, 1], [1, 100_000], [7, 3], [65_535, 65_535]] {
            let [width, height] = within(size);
            assert!(
                width * height <= 100 * 196 && width % 14 == 0 && height % 14 == 0 && width * height > 0,
                "{size:?}"
            );
        }
    }

    #[test]
    fn small_images_are_enlarged_in_proportion() {
        assert_eq!([[5, 9], [28, 14], [30, 7]].map(|size| at_least(size, 14)), [[14, 25], [28, 14], [60, 14]]);
    }

    #[test]
    fn large_images_become_tiles_and_an_overview() {
        let keys = DivisionKeys { patch: 4, multiple: 8, longest: Some(32), ..DivisionKeys::default() };
        let division = Division::tiles_of_large(&keys);
        let divide = |width, height| division.divide(&image(width, height), 8, Filter::Bilinear, [0; 3]);
        let small = divide(100, 60);
        assert_eq!((small.tiles, small.images[0].size()), ([0, 0], [96, 64]));
        let large = divide(300, 150);
        assert_eq!((large.tiles, large.images.len(), large.images[0].size()), ([4, 2], 9, [32, 32]));
        assert_eq!(large.images[8].size(), [176, 88]);
        assert_eq!((division.largest_tile(8), division.most_tiles(8)), (256 * 64, 11));
        assert_eq!(division.most_pixels(8), 256 * 64 + 10 * 1024);
        let pixels = |divided: &Divided| divided.images.iter().map(|image| image.pixels.len() / 3).sum::<usize>();
        for (width, height) in [(1, 1), (1, 5000), (5000, 1), (181, 181), (90, 2000)] {
            let divided = divide(width, height);
            assert!(pixels(&divided) <= division.most_pixels(8), "{width} x {height}");
        }
    }

    #[test]
    fn a_filled_tile_is_as_large_as_it_may_be() {
        let most = 280 * 48 * 48;
        let filled = |size| filled(size, 48, most);
        assert_eq!(filled([1000, 500]), [1104, 528]);
        assert_eq!(filled([50, 100]), [528, 1104]);
        assert_eq!(filled([48, 48]), [768, 768]);
        assert_eq!((filled([100_000, 1]), filled([1, 200])), ([280 * 48, 48], [48, 236 * 48]));
        for size in [[1, 1], [7, 90], [65_535, 65_535], [300, 1], [281, 1]] {
            let [width, height] = filled(size);
            assert!(width * height <= most && width * height > 0 && width % 48 == 0 && height % 48 == 0, "{size:?}");
        }
    }

    #[test]
    fn a_proportional_tile_is_within_the_longest_side() {
        assert_eq!(proportional([61, 37], 56, 14), [56, 42]);
        assert_eq!(proportional([20, 10], 56, 14), [28, 14]);
        assert_eq!(proportional([1_000_000, 1], 56, 14), [56, 14]);
        assert_eq!(proportional([56, 57], 56, 14), [56, 56]);
    }

    #[test]
    fn a_single_tile_has_the_size_of_the_tower() {
        for division in [Division::Stretched, Division::Padded, Division::Cropped] {
            for (width, height) in [(1, 1), (30, 7), (7, 30), (500, 2)] {
                let divided = division.divide(&image(width, height), 12, Filter::Bicubic, [100; 3]);
                assert_eq!(divided.images.len(), 1);
                assert_eq!(divided.images[0].size(), [12, 12], "{division:?} {width} x {height}");
                assert!(divided.images[0].pixels.iter().all(|color| *color == 100));
            }
        }
    }
}
