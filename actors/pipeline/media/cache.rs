//! The rows of recent media, the least recently used of which are dropped first.

use std::collections::{BTreeMap, HashMap};

use cuelight_engine::media::MediaKind;
use sha2::{Digest, Sha256};

use crate::core::prompt_media::{EncodedMedia, MediaParts};

/// What identifies a media item: the hash of its kind, of its file and of the salt of its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MediaId([u8; 32]);

impl MediaId {
    /// The media item of a file. Media with different salts are never the same, so that no tenant learns from the time of an answer
    /// that another one has sent a media item.
    #[must_use]
    pub fn of_file(kind: MediaKind, bytes: &[u8], salt: Option<&str>) -> Self {
        let mut hash = Sha256::new_with_prefix(b"cuelight media file");
        hash.update(kind.part_type());
        hash.update((salt.map_or(u64::MAX, |salt| salt.len() as u64)).to_le_bytes());
        hash.update(salt.unwrap_or_default());
        hash.update(bytes);
        MediaId(hash.finalize().into())
    }
}

/// A media item that was encoded.
#[derive(Debug, Clone, PartialEq)]
pub struct CachedMedia {
    /// What takes its place in the prompt.
    pub parts: MediaParts,
    /// Its rows.
    pub media: EncodedMedia,
}

impl CachedMedia {
    fn bytes(&self) -> usize {
        const OVERHEAD: usize = 1024;
        self.media.bytes() + OVERHEAD
    }
}

/// Encoded media within a limit of bytes.
#[derive(Debug, Default)]
pub(super) struct MediaCache {
    limit: usize,
    bytes: usize,
    clock: u64,
    /// Each media item with the time of its last use.
    media: HashMap<MediaId, (CachedMedia, u64)>,
    /// The media by the time of their last use.
    by_use: BTreeMap<u64, MediaId>,
}

impl MediaCache {
    pub fn new(limit: usize) -> Self {
        MediaCache { limit, ..MediaCache::default() }
    }

    /// Bytes of all media.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn find(&mut self, id: &MediaId) -> Option<CachedMedia> {
        let (media, used) = self.media.get_mut(id)?;
        self.clock += 1;
        self.by_use.remove(used);
        *used = self.clock;
        self.by_use.insert(self.clock, *id);
        Some(media.clone())
    }

    /// Keeps a media item, unless it alone exceeds the limit.
    pub fn insert(&mut self, id: MediaId, media: CachedMedia) {
        if media.bytes() > self.limit || self.find(&id).is_some() {
            return;
        }
        self.clock += 1;
        self.bytes += media.bytes();
        self.media.insert(id, (media, self.clock));
        self.by_use.insert(self.clock, id);
        while self.bytes > self.limit
            && let Some((_, oldest)) = self.by_use.pop_first()
            && let Some((media, _)) = self.media.remove(&oldest)
        {
            self.bytes -= media.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use cuelight_engine::media::MediaPart;

    use super::*;

    fn media(rows: usize) -> CachedMedia {
        let parts = MediaParts { kind: MediaKind::Image, parts: vec![MediaPart::Rows(rows)].into() };
        CachedMedia { parts, media: EncodedMedia::new(vec![0.0; rows * 256].into(), 256) }
    }

    fn id(name: &str) -> MediaId {
        MediaId::of_file(MediaKind::Image, name.as_bytes(), None)
    }

    #[test]
    fn the_least_recently_used_media_is_dropped_first() {
        let mut cache = MediaCache::new(3 * 2048);
        for name in ["a", "b", "c"] {
            cache.insert(id(name), media(1));
        }
        assert!(cache.find(&id("a")).is_some());
        cache.insert(id("d"), media(1));
        let kept: Vec<bool> = ["a", "b", "c", "d"].iter().map(|name| cache.find(&id(name)).is_some()).collect();
        assert_eq!((kept, cache.bytes()), (vec![true, false, true, true], 3 * 2048));
    }

    #[test]
    fn a_media_item_larger_than_the_cache_is_not_kept() {
        let mut cache = MediaCache::new(4096);
        cache.insert(id("small"), media(1));
        cache.insert(id("large"), media(100));
        assert!(cache.find(&id("large")).is_none() && cache.find(&id("small")).is_some());
        let mut none = MediaCache::new(0);
        none.insert(id("small"), media(1));
        assert!(none.find(&id("small")).is_none());
    }

    #[test]
    fn tenants_and_kinds_do_not_share_media() {
        let of = |kind, salt| MediaId::of_file(kind, b"x", salt);
        let mut ids = [None, Some(""), Some("a"), Some("b")].map(|salt| of(MediaKind::Image, salt)).to_vec();
        ids.push(of(MediaKind::Audio, None));
        assert!((0..5).all(|one| (0..one).all(|other| ids[one] != ids[other])));
        assert_eq!(ids[2], of(MediaKind::Image, Some("a")));
    }
}
