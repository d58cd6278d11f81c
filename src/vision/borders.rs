//! The sizes of a tile of multiples around an image, and of the image within it, for a number of pixels between two limits.
//!
//! Source: transformers' image processor of GLM 5.3 Flash.

/// The sizes of the tile and of the image in it.
#[must_use]
pub fn sizes(image: [usize; 2], multiple: usize, pixels: [usize; 2]) -> ([usize; 2], [usize; 2]) {
    let tile = tile(image, multiple, pixels);
    (tile, content(image, tile, pixels[0]))
}

fn area([width, height]: [usize; 2]) -> usize {
    width * height
}

fn tile(image: [usize; 2], multiple: usize, [fewest, most]: [usize; 2]) -> [usize; 2] {
    let up = |size: [usize; 2]| size.map(|length| length.max(1).next_multiple_of(multiple));
    let mut tile = up(image);
    if area(tile) < fewest {
        let scale = (fewest as f64 / area(image) as f64).sqrt();
        tile = up(image.map(|length| (length as f64 * scale).ceil() as usize));
    }
    if area(tile) <= most {
        return tile;
    }
    let of_height = |height: usize| up([image[0] * height / image[1], height]);
    let height = last_up_to(image[1], |height| area(of_height(height)) <= most);
    height.map_or([multiple; 2], of_height)
}

/// The last number from 1 to `most` for which something holds that does not hold for any number after one for which it does not.
fn last_up_to(most: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut holding, mut failing) = (0, most + 1);
    while holding + 1 < failing {
        let middle = (holding + failing) / 2;
        if holds(middle) {
            holding = middle;
        } else {
            failing = middle;
        }
    }
    (holding > 0).then_some(holding)
}

/// As large as the tile allows, but larger than the image only if that has less than the fewest pixels.
fn content(image: [usize; 2], tile: [usize; 2], fewest: usize) -> [usize; 2] {
    let fitting = [0, 1].map(|axis| tile[axis] as f64 / image[axis] as f64);
    let scale = fitting[0].min(fitting[1]);
    let scale = if area(image) >= fewest { scale.min(1.0) } else { scale };
    [0, 1].map(|axis| ((image[axis] as f64 * scale) as usize).min(tile[axis]).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_multiples_around_an_image_of_a_fitting_size() {
        let sizes = |image| sizes(image, 14, [8 * 196, 40 * 196]);
        assert_eq!(sizes([61, 37]), ([70, 42], [61, 37]));
        // Less than the fewest pixels.
        assert_eq!(sizes([28, 28]), ([42, 42], [42, 42]));
        assert_eq!(sizes([9, 5]), ([56, 42], [56, 31]));
        // More than the most.
        assert_eq!(sizes([200, 120]), ([112, 70], [112, 67]));
        assert_eq!(sizes([1, 3000]), ([14, 560], [1, 560]));
        assert_eq!(sizes([1_000_000, 1]), ([14, 14], [14, 1]));
    }

    #[test]
    fn no_tile_exceeds_the_limits() {
        for image in [[1, 1], [1, 5000], [5000, 1], [97, 31], [640, 480], [4000, 3000]] {
            for pixels in [[196, 196], [196, 400], [1568, 7840], [100_000, 6_272_000]] {
                let (tile, content) = sizes(image, 14, pixels);
                assert!(
                    area(tile) <= pixels[1] && tile.iter().all(|length| length.is_multiple_of(14)),
                    "{image:?} {pixels:?}"
                );
                assert!((0..2).all(|axis| (1..=tile[axis]).contains(&content[axis])), "{image:?} {pixels:?}");
            }
        }
    }
}
