//! The rows of recent images, the least recently used of which are dropped first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cuelight_engine::vision::ImagePart;
use sha2::{Digest, Sha256};

use crate::core::prompt_images::EncodedImage;

/// What identifies an image: the hash of its file and of the salt of its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageId([u8; 32]);

impl ImageId {
    /// The image of a file. Images with different salts are never the same, so that no tenant learns from the time of an answer
    /// that another one has sent an image.
    #[must_use]
    pub fn of_file(bytes: &[u8], salt: Option<&str>) -> Self {
        let mut hash = Sha256::new_with_prefix(b"cuelight image file");
        hash.update((salt.map_or(u64::MAX, |salt| salt.len() as u64)).to_le_bytes());
        hash.update(salt.unwrap_or_default());
        hash.update(bytes);
        ImageId(hash.finalize().into())
    }
}

/// An image that was encoded.
#[derive(Debug, Clone, PartialEq)]
pub struct CachedImage {
    /// What takes its place in the prompt.
    pub parts: Arc<[ImagePart]>,
    /// Its rows.
    pub image: EncodedImage,
}

impl CachedImage {
    fn bytes(&self) -> usize {
        const OVERHEAD: usize = 1024;
        self.image.bytes() + OVERHEAD
    }
}

/// Encoded images within a limit of bytes.
#[derive(Debug, Default)]
pub(super) struct ImageCache {
    limit: usize,
    bytes: usize,
    clock: u64,
    /// Each image with the time of its last use.
    images: HashMap<ImageId, (CachedImage, u64)>,
    /// The images by the time of their last use.
    by_use: BTreeMap<u64, ImageId>,
}

impl ImageCache {
    pub fn new(limit: usize) -> Self {
        ImageCache { limit, ..ImageCache::default() }
    }

    /// Bytes of all images.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn find(&mut self, id: &ImageId) -> Option<CachedImage> {
        let (image, used) = self.images.get_mut(id)?;
        self.clock += 1;
        self.by_use.remove(used);
        *used = self.clock;
        self.by_use.insert(self.clock, *id);
        Some(image.clone())
    }

    /// Keeps an image, unless it alone exceeds the limit.
    pub fn insert(&mut self, id: ImageId, image: CachedImage) {
        if image.bytes() > self.limit || self.find(&id).is_some() {
            return;
        }
        self.clock += 1;
        self.bytes += image.bytes();
        self.images.insert(id, (image, self.clock));
        self.by_use.insert(self.clock, id);
        while self.bytes > self.limit
            && let Some((_, oldest)) = self.by_use.pop_first()
            && let Some((image, _)) = self.images.remove(&oldest)
        {
            self.bytes -= image.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(rows: usize) -> CachedImage {
        let parts: Arc<[ImagePart]> = vec![ImagePart::Rows(rows)].into();
        CachedImage { parts, image: EncodedImage::new(vec![0.0; rows * 256].into(), 256) }
    }

    fn id(name: &str) -> ImageId {
        ImageId::of_file(name.as_bytes(), None)
    }

    #[test]
    fn the_least_recently_used_image_is_dropped_first() {
        let mut cache = ImageCache::new(3 * 2048);
        for name in ["a", "b", "c"] {
            cache.insert(id(name), image(1));
        }
        assert!(cache.find(&id("a")).is_some());
        cache.insert(id("d"), image(1));
        let kept: Vec<bool> = ["a", "b", "c", "d"].iter().map(|name| cache.find(&id(name)).is_some()).collect();
        assert_eq!((kept, cache.bytes()), (vec![true, false, true, true], 3 * 2048));
    }

    #[test]
    fn an_image_larger_than_the_cache_is_not_kept() {
        let mut cache = ImageCache::new(4096);
        cache.insert(id("small"), image(1));
        cache.insert(id("large"), image(100));
        assert!(cache.find(&id("large")).is_none() && cache.find(&id("small")).is_some());
        let mut none = ImageCache::new(0);
        none.insert(id("small"), image(1));
        assert!(none.find(&id("small")).is_none());
    }

    #[test]
    fn tenants_do_not_share_images() {
        let ids = [None, Some(""), Some("a"), Some("b")].map(|salt| ImageId::of_file(b"x", salt));
        assert!((0..4).all(|one| (0..one).all(|other| ids[one] != ids[other])));
        assert_eq!(ids[2], ImageId::of_file(b"x", Some("a")));
    }
}
