//! Reads image files: PNG, JPEG, WebP, GIF (its first frame) and BMP.
//!
//! The header says how much memory a file needs, before anything is decoded. The orientation that a camera notes in a JPEG is not
//! applied, as the models' own preprocessing does not apply it, and transparency is left out.

use std::io::Cursor;

use cuelight_engine::vision::RgbImage;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

/// The formats that are read.
const FORMATS: [ImageFormat; 5] =
    [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Bmp];

/// Bytes that a decoder may use in addition to the pixels.
const SLACK: u64 = 64 << 20;

/// Why a file is not read as an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ImageFileError {
    /// Its first bytes are those of no format that is read.
    #[error("it is not a PNG, JPEG, WebP, GIF or BMP file")]
    UnknownFormat,
    /// It has more pixels than are accepted.
    #[error("it has {width} x {height} pixels, more than the {most} that this server accepts (--max-image-pixels)")]
    TooManyPixels {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
        /// The limit.
        most: u64,
    },
    /// It is damaged, or uses what the decoder does not know.
    #[error("it cannot be decoded: {0}")]
    Damaged(String),
}

/// An image file whose header was read.
pub(crate) struct ImageFile<'a> {
    decoder: Box<dyn ImageDecoder + 'a>,
}

impl<'a> ImageFile<'a> {
    /// Reads the header of a file with at most `most_pixels` pixels.
    ///
    /// # Errors
    /// [`ImageFileError`].
    pub fn open(bytes: &'a [u8], most_pixels: u64) -> Result<Self, ImageFileError> {
        let format = image::guess_format(bytes).ok().filter(|format| FORMATS.contains(format));
        let format = format.ok_or(ImageFileError::UnknownFormat)?;
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        // Until the size is known, the decoder gets what it needs to find it.
        reader.limits(limits(SLACK));
        let mut decoder = reader.into_decoder().map_err(damaged)?;
        let (width, height) = decoder.dimensions();
        if u64::from(width) * u64::from(height) > most_pixels {
            return Err(ImageFileError::TooManyPixels { width, height, most: most_pixels });
        }
        decoder.set_limits(limits(decoder.total_bytes().saturating_mul(2).saturating_add(SLACK))).map_err(damaged)?;
        Ok(ImageFile { decoder: Box::new(decoder) })
    }

    /// The number of pixels.
    pub fn pixels(&self) -> usize {
        let (width, height) = self.decoder.dimensions();
        usize::try_from(u64::from(width) * u64::from(height)).unwrap_or(usize::MAX)
    }

    /// Bytes of memory that decoding needs: the pixels as the file has them, and as colors.
    pub fn bytes(&self) -> usize {
        let (width, height) = self.decoder.dimensions();
        let colors = u64::from(width) * u64::from(height) * 3;
        usize::try_from(self.decoder.total_bytes().saturating_add(colors)).unwrap_or(usize::MAX)
    }

    /// The colors of the image.
    ///
    /// # Errors
    /// [`ImageFileError::Damaged`].
    pub fn decode(self) -> Result<RgbImage, ImageFileError> {
        let image = DynamicImage::from_decoder(self.decoder).map_err(damaged)?.into_rgb8();
        Ok(RgbImage { width: image.width(), height: image.height(), pixels: image.into_raw() })
    }
}

fn limits(bytes: u64) -> Limits {
    let mut limits = Limits::default();
    limits.max_alloc = Some(bytes);
    limits
}

fn damaged(error: impl std::fmt::Display) -> ImageFileError {
    ImageFileError::Damaged(error.to_string())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
pub(crate) mod tests {
    use image::{Rgba, RgbaImage};
    use proptest::prelude::*;

    use super::*;

    const MOST: u64 = 1 << 20;

    /// An image of a few colors, as a file.
    pub(crate) fn file(width: u32, height: u32, format: ImageFormat) -> Vec<u8> {
        let pixel = |x: u32, y: u32| Rgba([(x * 40) as u8, (y * 40) as u8, 7, if x == 0 { 0 } else { 255 }]);
        let image = DynamicImage::from(RgbaImage::from_fn(width, height, pixel));
        let mut bytes = Cursor::new(Vec::new());
        let image = if format == ImageFormat::Jpeg { image.to_rgb8().into() } else { image };
        image.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    fn read(bytes: &[u8]) -> Result<RgbImage, ImageFileError> {
        ImageFile::open(bytes, MOST)?.decode()
    }

    #[test]
    fn each_format_is_read_without_transparency() {
        for format in FORMATS {
            let read = read(&file(4, 3, format)).unwrap();
            assert_eq!((read.width, read.height, read.pixels.len()), (4, 3, 36), "{format:?}");
            if !matches!(format, ImageFormat::Jpeg | ImageFormat::Gif) {
                assert_eq!(read.pixels[..6], [0, 0, 7, 40, 0, 7], "{format:?}");
            }
        }
    }

    #[test]
    fn a_header_with_too_many_pixels_is_refused_before_decoding() {
        let mut png = file(4, 3, ImageFormat::Png);
        // The size is in the first chunk, whose checksum is over its kind and content.
        png[16..20].copy_from_slice(&60_000u32.to_be_bytes());
        png[20..24].copy_from_slice(&60_000u32.to_be_bytes());
        let crc = crc32(&png[12..29]);
        png[29..33].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(
            ImageFile::open(&png, MOST).err(),
            Some(ImageFileError::TooManyPixels { width: 60_000, height: 60_000, most: MOST })
        );
    }

    fn crc32(bytes: &[u8]) -> u32 {
        let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
        !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        for bytes in [&b""[..], b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"GGUF\x03\0\0\0"] {
            assert_eq!(read(bytes).unwrap_err(), ImageFileError::UnknownFormat);
        }
        for format in FORMATS {
            let whole = file(40, 30, format);
            let cut = &whole[..whole.len() / 2];
            // A decoder may make do with what there is of a JPEG.
            assert!(read(cut).is_err() || format == ImageFormat::Jpeg, "{format:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damaged_files_give_an_image_or_an_error(
            format in prop::sample::select(FORMATS.to_vec()), at in any::<prop::sample::Index>(), value in any::<u8>()
        ) {
            let mut bytes = file(9, 7, format);
            let at = at.index(bytes.len());
            bytes[at] = value;
            if let Ok(image) = read(&bytes) {
                prop_assert_eq!(image.pixels.len() as u64, u64::from(image.width) * u64::from(image.height) * 3);
            }
        }
    }
}
