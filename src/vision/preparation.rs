//! Turns an image into tiles of normalized patches, and says what stands for them in the prompt.

use super::division::{Divided, Division};
use super::family::Family;
use super::parts::Arrangement;
use super::patches::Patches;
use super::resample::Filter;
use super::sizes::TowerSizes;
use super::{ImageError, ImagePreparation, PreparedImage, RgbImage};
use crate::media::MediaSpec;

/// The preparation of images for a tower.
#[derive(Debug)]
pub struct Preparation {
    spec: MediaSpec,
    family: &'static Family,
    division: Division,
    filter: Filter,
    patches: Patches,
    /// Pixels of a side of a tile.
    side: usize,
}

impl Preparation {
    /// The preparation for a tower of these sizes and embedding rows of `width` values.
    #[must_use]
    pub fn new(family: &'static Family, sizes: &TowerSizes, width: usize) -> Self {
        let division = (family.division)(&sizes.division);
        let pixels_of_row = (sizes.patches.side * sizes.patches.merge).pow(2);
        let spec = MediaSpec {
            placeholder: family.placeholder.to_owned(),
            row_tokens: vec![family.row_token.to_owned()],
            rows_see_each_other: family.rows_see_each_other,
            width,
            max_rows: division.most_pixels(sizes.image()) / pixels_of_row,
        };
        let filter = sizes.filter.unwrap_or(family.filter);
        Preparation { spec, family, division, filter, patches: sizes.patches.clone(), side: sizes.image() }
    }

    /// The mean color in 8 bits.
    fn mean_color(&self) -> [u8; 3] {
        self.patches.mean.map(|mean| (mean * 255.0) as u8)
    }
}

impl ImagePreparation for Preparation {
    fn spec(&self) -> &MediaSpec {
        &self.spec
    }

    fn prepare(&self, image: &RgbImage) -> Result<PreparedImage, ImageError> {
        image.check()?;
        let Divided { tiles, images } = self.division.divide(image, self.side, self.filter, self.mean_color());
        let merged = self.patches.side * self.patches.merge;
        let rows_of =
            |image: Option<&RgbImage>| image.map_or([0, 0], |image| image.size().map(|length| length / merged));
        let (rows, overview) = (rows_of(images.first()), rows_of(images.last()));
        let parts = (self.family.parts)(&Arrangement { tiles, rows, overview });
        Ok(PreparedImage { parts, tiles: images.iter().map(|image| self.patches.tile(image)).collect() })
    }
}
