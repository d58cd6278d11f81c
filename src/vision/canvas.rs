//! An image as it is read for resizing: as it is, or in the middle of a larger area of one color, which takes no memory.

use std::borrow::Cow;

use super::RgbImage;
use super::error::ImageError;

/// An image on an area of one color.
#[derive(Debug, Clone, Copy)]
pub struct Canvas<'a> {
    image: &'a RgbImage,
    size: [usize; 2],
    /// Where the image is.
    offset: [usize; 2],
    color: [u8; 3],
}

impl<'a> Canvas<'a> {
    /// The image alone.
    #[must_use]
    pub fn of(image: &'a RgbImage) -> Self {
        Canvas { image, size: image.size(), offset: [0, 0], color: [0; 3] }
    }

    /// The image in the middle of a square of its longest side.
    #[must_use]
    pub fn square(image: &'a RgbImage, color: [u8; 3]) -> Self {
        let side = image.size()[0].max(image.size()[1]);
        Canvas { image, size: [side; 2], offset: image.size().map(|length| (side - length) / 2), color }
    }

    /// The image at the top left of an area of this size, which is at least as large.
    #[must_use]
    pub fn corner(image: &'a RgbImage, size: [usize; 2], color: [u8; 3]) -> Self {
        Canvas { image, size, offset: [0, 0], color }
    }

    /// Width and height.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// The area as an image.
    #[must_use]
    pub fn whole(&self) -> RgbImage {
        let [width, height] = self.size;
        let pixels = (0..height).flat_map(|y| self.row(y).into_owned()).collect();
        RgbImage { width: width as u32, height: height as u32, pixels }
    }

    /// Where the pixels of rows begin.
    #[must_use]
    pub fn left(&self) -> usize {
        self.offset[0]
    }

    /// The color around the image.
    #[must_use]
    pub fn color(&self) -> [u8; 3] {
        self.color
    }

    /// The pixels of the image in a row; `None` above and below it.
    #[must_use]
    pub fn pixels(&self, y: usize) -> Option<&'a [u8]> {
        let [width, height] = self.image.size();
        let y = y.checked_sub(self.offset[1]).filter(|y| *y < height)?;
        Some(&self.image.pixels[3 * y * width..][..3 * width])
    }

    /// A whole row of pixels, `[3 width]`.
    #[must_use]
    pub fn row(&self, y: usize) -> Cow<'a, [u8]> {
        match self.pixels(y) {
            Some(row) if row.len() == 3 * self.size[0] => Cow::Borrowed(row),
            row => {
                let mut whole = self.color.repeat(self.size[0]);
                if let Some(row) = row {
                    whole[3 * self.left()..][..row.len()].copy_from_slice(row);
                }
                Cow::Owned(whole)
            }
        }
    }
}

impl RgbImage {
    /// Width and height.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        [self.width as usize, self.height as usize]
    }

    /// Checks that it has pixels, and the colors of all of them.
    ///
    /// # Errors
    /// [`ImageError::Empty`] and [`ImageError::WrongLength`].
    pub fn check(&self) -> Result<(), ImageError> {
        let RgbImage { width, height, pixels } = self;
        let (width, height) = (*width, *height);
        let expected = (u64::from(width) * u64::from(height)).saturating_mul(3);
        match pixels.len() {
            _ if expected == 0 => Err(ImageError::Empty { width, height }),
            found if found as u64 != expected => Err(ImageError::WrongLength { width, height, found, expected }),
            _ => Ok(()),
        }
    }

    /// The part of this size whose corner at the top left is at `[left, top]`.
    ///
    /// # Panics
    /// When the part is not within the image.
    #[must_use]
    pub fn part(&self, [left, top]: [usize; 2], [width, height]: [usize; 2]) -> RgbImage {
        let row = |y: usize| &self.pixels[3 * (y * self.width as usize + left)..][..3 * width];
        let pixels = (top..top + height).flat_map(row).copied().collect();
        RgbImage { width: width as u32, height: height as u32, pixels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(width: u32, height: u32) -> RgbImage {
        RgbImage { width, height, pixels: (0..3 * width * height).map(|value| value as u8).collect() }
    }

    #[test]
    fn an_image_has_the_colors_of_its_size() {
        assert_eq!(image(2, 3).check(), Ok(()));
        assert_eq!(image(0, 3).check(), Err(ImageError::Empty { width: 0, height: 3 }));
        let short = RgbImage { width: u32::MAX, height: u32::MAX, pixels: vec![0; 9] };
        let expected = u64::MAX;
        let wrong = ImageError::WrongLength { width: u32::MAX, height: u32::MAX, found: 9, expected };
        assert_eq!(short.check(), Err(wrong));
    }

    #[test]
    fn a_square_has_the_image_in_the_middle() {
        let image = image(1, 3);
        let canvas = Canvas::square(&image, [7, 8, 9]);
        assert_eq!(canvas.size(), [3, 3]);
        assert_eq!(*canvas.row(1), [7, 8, 9, 3, 4, 5, 7, 8, 9]);
        let wide = RgbImage { width: 3, height: 1, ..image };
        let canvas = Canvas::square(&wide, [7, 8, 9]);
        assert_eq!(*canvas.row(0), [7, 8, 9].repeat(3));
        assert_eq!(*canvas.row(1), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn an_image_in_a_corner_has_borders_at_the_right_and_below() {
        let image = image(1, 2);
        let whole = Canvas::corner(&image, [2, 3], [9; 3]).whole();
        assert_eq!(whole.size(), [2, 3]);
        assert_eq!(whole.pixels, [[0, 1, 2], [9; 3], [3, 4, 5], [9; 3], [9; 3], [9; 3]].concat());
    }

    #[test]
    fn a_part_has_its_own_rows() {
        assert_eq!(image(3, 2).part([1, 1], [2, 1]).pixels, [12, 13, 14, 15, 16, 17]);
    }
}
