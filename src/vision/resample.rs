//! Resizes images as Pillow does: a separable filter, which reaches further where the image becomes smaller, in fixed-point numbers
//! of 22 bits.
//!
//! Rows are read once, from the top to the bottom, and only as many are kept as one row of the result needs.

use std::collections::VecDeque;
use std::ops::Range;

use super::RgbImage;
use super::canvas::Canvas;

/// The weights of source pixels by their distance from the center of a pixel of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// A triangle.
    Bilinear,
    /// Keys 1981 with a = -0.5.
    Bicubic,
    /// A sinc with a window of three lobes.
    Lanczos,
}

/// Fractional bits of weights.
const WEIGHT_BITS: u32 = 22;
/// Colors of a pixel.
const COLORS: usize = 3;

impl Filter {
    /// The distance beyond which weights are 0.
    #[must_use]
    pub fn support(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    /// The weight at a distance in source pixels, where the image does not become smaller.
    #[must_use]
    pub fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            _ if x >= self.support() => 0.0,
            Filter::Bilinear => 1.0 - x,
            Filter::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Filter::Bicubic => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            Filter::Lanczos => sinc(x) * sinc(x / 3.0),
        }
    }
}

fn sinc(x: f64) -> f64 {
    let x = x * std::f64::consts::PI;
    if x == 0.0 { 1.0 } else { x.sin() / x }
}

/// The source pixels that make one pixel of the result, in one direction.
struct Span {
    first: usize,
    /// In units of 2^-22.
    weights: Vec<i32>,
    /// The sum of the weights.
    total: i32,
}

/// The spans of some of `to` pixels made of `from` pixels.
fn spans(from: usize, to: usize, some: Range<usize>, filter: Filter) -> Vec<Span> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let reach = filter.support() * stretch;
    let span = |index: usize| {
        let center = (index as f64 + 0.5) * scale;
        let first = (center - reach + 0.5).max(0.0) as usize;
        let end = ((center + reach + 0.5) as usize).min(from);
        let weights: Vec<f64> = (first..end).map(|at| filter.weight((at as f64 - center + 0.5) / stretch)).collect();
        let sum: f64 = weights.iter().sum();
        let weights: Vec<i32> = weights.iter().map(|weight| fixed(weight / sum)).collect();
        Span { first, total: weights.iter().sum(), weights }
    };
    some.map(span).collect()
}

/// The nearest fixed-point number.
fn fixed(weight: f64) -> i32 {
    (weight * f64::from(1 << WEIGHT_BITS)).round() as i32
}

/// The color of a sum of weighted colors.
fn color(sum: i32) -> u8 {
    ((sum + (1 << (WEIGHT_BITS - 1))) >> WEIGHT_BITS).clamp(0, 255) as u8
}

/// The canvas in the size `[width, height]`, which must not be 0.
#[must_use]
pub fn resized(canvas: &Canvas<'_>, size: [usize; 2], filter: Filter) -> RgbImage {
    resized_part(canvas, size, [0..size[0], 0..size[1]], filter)
}

/// Some columns and rows of the canvas in the size `[width, height]`, which must not be 0. The other pixels take neither time nor
/// memory.
#[must_use]
pub fn resized_part(canvas: &Canvas<'_>, size: [usize; 2], part: [Range<usize>; 2], filter: Filter) -> RgbImage {
    let [from_width, from_height] = canvas.size();
    let ([width, height], [columns, rows]) = (size, part);
    let part_size = [columns.len(), rows.len()];
    let across = (from_width != width).then(|| spans(from_width, width, columns.clone(), filter));
    let narrow = |y: usize| match (&across, canvas.pixels(y)) {
        (Some(across), Some(row)) => resized_row(row, canvas, across),
        (Some(_), None) => canvas.color().repeat(columns.len()),
        (None, _) => canvas.row(y)[COLORS * columns.start..COLORS * columns.end].to_vec(),
    };
    let pixels = if from_height == height {
        rows.flat_map(narrow).collect()
    } else {
        resized_down(&spans(from_height, height, rows, filter), narrow)
    };
    RgbImage { width: part_size[0] as u32, height: part_size[1] as u32, pixels }
}

/// The rows of the result, from those of the source.
fn resized_down(spans: &[Span], source: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let (mut kept, mut first, mut pixels) = (VecDeque::new(), 0, Vec::new());
    for span in spans {
        while first < span.first {
            kept.pop_front();
            first += 1;
        }
        while kept.len() < span.weights.len() {
            kept.push_back(source(first + kept.len()));
        }
        add_row(&kept, &span.weights, &mut pixels);
    }
    pixels
}

/// A row of the image in another width. What is around it counts as a whole, so that the time is that of its own pixels.
fn resized_row(row: &[u8], canvas: &Canvas<'_>, spans: &[Span]) -> Vec<u8> {
    spans.iter().flat_map(|span| span.color(row, canvas.left(), canvas.color())).collect()
}

impl Span {
    /// The pixel that a span makes of a row that begins at `left` and has pixels of the color `around` on both sides.
    fn color(&self, row: &[u8], left: usize, around: [u8; COLORS]) -> [u8; COLORS] {
        let end = (self.first + self.weights.len()).min(left + row.len() / COLORS);
        let first = self.first.max(left).min(end);
        let weights = self.weights[first - self.first.min(first)..].iter().take(end - first);
        let pixels = row[COLORS * first.saturating_sub(left)..].chunks_exact(COLORS);
        let (mut sums, mut outside) = ([0; COLORS], self.total);
        for (pixel, weight) in pixels.zip(weights) {
            outside -= weight;
            add(&mut sums, pixel, *weight);
        }
        add(&mut sums, &around, outside);
        sums.map(color)
    }
}

/// Adds a weighted pixel.
fn add(sums: &mut [i32; COLORS], pixel: &[u8], weight: i32) {
    for (sum, color) in sums.iter_mut().zip(pixel) {
        *sum += i32::from(*color) * weight;
    }
}

/// Appends the weighted sum of rows.
fn add_row(rows: &VecDeque<Vec<u8>>, weights: &[i32], pixels: &mut Vec<u8>) {
    let mut sums = vec![0; rows.front().map_or(0, Vec::len)];
    for (row, weight) in rows.iter().zip(weights) {
        for (sum, color) in sums.iter_mut().zip(row) {
            *sum += i32::from(*color) * weight;
        }
    }
    pixels.extend(sums.into_iter().map(color));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILTERS: [Filter; 3] = [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos];

    /// One color of a pixel of the result, from the definition in float64, with the intermediate rounding.
    fn expected(source: &RgbImage, [width, height]: [usize; 2], filter: Filter, [x, y, color]: [usize; 3]) -> f64 {
        let [from_width, from_height] = [source.width as usize, source.height as usize];
        let weights = |from: usize, to: usize, index: usize| -> Vec<f64> {
            let scale = from as f64 / to as f64;
            let center = (index as f64 + 0.5) * scale;
            let of = |at: usize| filter.weight((at as f64 + 0.5 - center) / scale.max(1.0));
            let all: Vec<f64> = (0..from).map(of).collect();
            let sum: f64 = all.iter().sum();
            all.iter().map(|weight| weight / sum).collect()
        };
        let (across, down) = (weights(from_width, width, x), weights(from_height, height, y));
        let value = |row: usize, column: usize| f64::from(source.pixels[(row * from_width + column) * 3 + color]);
        let of_row =
            |row: usize| across.iter().enumerate().map(|(column, weight)| weight * value(row, column)).sum::<f64>();
        let narrowed = |row: usize| of_row(row).round().clamp(0.0, 255.0);
        down.iter().enumerate().map(|(row, weight)| weight * narrowed(row)).sum::<f64>().clamp(0.0, 255.0)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn every_color_is_within_one_step_of_the_definition(
            from in (1usize..40, 1usize..40), to in (1usize..40, 1usize..40), seed in any::<u64>(), filter in 0usize..3,
        ) {
            let mut state = seed | 1;
            let mut random = || { state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1); (state >> 56) as u8 };
            let pixels = (0..from.0 * from.1 * 3).map(|_| random()).collect();
            let source = RgbImage { width: from.0 as u32, height: from.1 as u32, pixels };
            let filter = FILTERS[filter];
            let found = resized(&Canvas::of(&source), [to.0, to.1], filter);
            prop_assert_eq!([found.width as usize, found.height as usize], [to.0, to.1]);
            for y in 0..to.1 {
                for x in 0..to.0 {
                    for color in 0..3 {
                        let found = f64::from(found.pixels[(y * to.0 + x) * 3 + color]);
                        let expected = expected(&source, [to.0, to.1], filter, [x, y, color]);
                        // Half a step of the result, and of each rounded row as often as its weights add up to.
                        prop_assert!((found - expected).abs() <= 1.6, "{x} {y}: {found} {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_part_has_the_pixels_of_the_whole() {
        let source =
            RgbImage { width: 9, height: 7, pixels: (0..9 * 7 * 3).map(|value| (value * 37 % 251) as u8).collect() };
        for size in [[20, 15], [4, 3], [9, 15], [20, 7]] {
            let whole = resized(&Canvas::of(&source), size, Filter::Bicubic);
            let part = resized_part(&Canvas::of(&source), size, [1..4, 1..3], Filter::Bicubic);
            assert_eq!(part, whole.part([1, 1], [3, 2]), "{size:?}");
        }
    }

    #[test]
    fn the_area_around_an_image_has_its_color() {
        let image = RgbImage { width: 3, height: 9, pixels: (0..81).map(|value| (value * 59 % 256) as u8).collect() };
        let canvas = Canvas::square(&image, [1, 2, 3]);
        let whole = RgbImage { width: 9, height: 9, pixels: (0..9).flat_map(|y| canvas.row(y).to_vec()).collect() };
        for size in [[4, 4], [30, 20], [2, 9], [9, 2]] {
            for filter in FILTERS {
                assert_eq!(resized(&canvas, size, filter), resized(&Canvas::of(&whole), size, filter), "{size:?}");
            }
        }
    }

    #[test]
    fn an_image_of_one_color_keeps_it() {
        let source = RgbImage { width: 7, height: 5, pixels: [200, 100, 50].repeat(35) };
        for filter in FILTERS {
            for size in [[3, 11], [20, 2], [7, 5], [1, 1]] {
                let found = resized(&Canvas::of(&source), size, filter);
                assert!(found.pixels.chunks(3).all(|pixel| pixel == [200, 100, 50]), "{filter:?} {size:?}");
            }
        }
    }
}
