//! Recurrent state on the CPU.

use super::part::StatePart;
use crate::pages::Pages;

/// The slots of all layers.
///
/// A layer is laid out `[slot, value]`.
pub struct StateCache {
    layers: Vec<Layer>,
}

struct Layer {
    slot_len: usize,
    values: Pages<f32>,
}

// SAFETY: values are only reached through `get` and `get_mut`, whose callers promise that no other thread writes them.
unsafe impl Sync for StateCache {}

impl StateCache {
    /// A cache of `slots` slots with the given number of values in each layer. The system provides the memory zeroed.
    #[must_use]
    pub fn new(slot_lens: impl IntoIterator<Item = usize>, slots: usize) -> Self {
        let layer = |slot_len: usize| Layer { slot_len, values: Pages::zeroed(slot_len * slots) };
        StateCache { layers: slot_lens.into_iter().map(layer).collect() }
    }

    /// A cache without layers, for ops that have no state.
    #[must_use]
    pub fn empty() -> Self {
        StateCache { layers: Vec::new() }
    }

    /// The bytes of a slot in each layer.
    #[must_use]
    pub fn slot_bytes(&self) -> Vec<u64> {
        self.layers.iter().map(|layer| (layer.slot_len * size_of::<f32>()) as u64).collect()
    }

    /// `len` values of an op from `offset` on, in a slot.
    ///
    /// # Panics
    /// When the values are not inside the part or the slot does not exist.
    ///
    /// # Safety
    /// No other thread may write these values while the slice lives.
    #[must_use]
    pub unsafe fn get(&self, part: StatePart, slot: u32, offset: usize, len: usize) -> &[f32] {
        // SAFETY: inside the pages by the check in `pointer`; not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.pointer(part, slot, offset, len), len) }
    }

    /// As [`StateCache::get`], to be written.
    ///
    /// # Panics
    /// As [`StateCache::get`].
    ///
    /// # Safety
    /// No other thread may use these values while the slice lives.
    #[allow(clippy::mut_from_ref)]
    #[must_use]
    pub unsafe fn get_mut(&self, part: StatePart, slot: u32, offset: usize, len: usize) -> &mut [f32] {
        // SAFETY: inside the pages by the check in `pointer`; not used elsewhere by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(part, slot, offset, len), len) }
    }

    /// Copies the state in a slot, of all layers, to `out`, which has as many bytes as [`StateCache::slot_bytes`] together.
    ///
    /// # Panics
    /// When the slot does not exist or `out` has another length.
    pub fn read_slot(&mut self, slot: u32, out: &mut [u8]) {
        let mut rest = out;
        for state in self.slot_parts(slot) {
            let (here, later) = rest.split_at_mut(state.len());
            here.copy_from_slice(state);
            rest = later;
        }
        assert!(rest.is_empty(), "a copy has the length of a state");
    }

    /// Replaces the state in a slot by what [`StateCache::read_slot`] has copied from another cache of the same layers.
    ///
    /// # Panics
    /// As [`StateCache::read_slot`].
    pub fn write_slot(&mut self, slot: u32, content: &[u8]) {
        let mut rest = content;
        for state in self.slot_parts(slot) {
            let (here, later) = rest.split_at(state.len());
            state.copy_from_slice(here);
            rest = later;
        }
        assert!(rest.is_empty(), "a copy has the length of a state");
    }

    /// The bytes of a slot in each layer.
    fn slot_parts(&mut self, slot: u32) -> impl Iterator<Item = &mut [u8]> {
        self.layers.iter_mut().map(move |Layer { slot_len, values }| {
            let start = slot as usize * *slot_len;
            values.bytes(start..start + *slot_len)
        })
    }

    fn pointer(&self, part: StatePart, slot: u32, offset: usize, len: usize) -> *mut f32 {
        let Layer { slot_len, values } = &self.layers[part.layer];
        assert!(offset <= part.len && len <= part.len - offset, "the values are inside the op's part");
        assert!(part.start + part.len <= *slot_len, "the op's part is inside the slot");
        let start = slot as usize * slot_len + part.start + offset;
        assert!(start + len <= values.len(), "the slot exists");
        // SAFETY: inside the pages, by the line above.
        unsafe { values.as_ptr().add(start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_parts_do_not_overlap() {
        let cache = StateCache::new([0, 6], 3);
        let parts = [StatePart { layer: 1, start: 0, len: 2 }, StatePart { layer: 1, start: 2, len: 4 }];
        for slot in 0..3 {
            for part in parts {
                // SAFETY: one thread.
                unsafe { cache.get_mut(part, slot, 0, part.len) }.fill((slot * 10) as f32 + part.start as f32);
            }
        }
        for slot in 0..3 {
            for part in parts {
                // SAFETY: one thread.
                let found = unsafe { cache.get(part, slot, 0, part.len) };
                assert_eq!(found, vec![(slot * 10) as f32 + part.start as f32; part.len]);
            }
        }
        assert_eq!(cache.slot_bytes(), [0, 24]);
    }

    #[test]
    fn a_copied_state_is_the_same_in_another_slot_and_cache() {
        let part = |layer, len| StatePart { layer, start: 0, len };
        let mut cache = StateCache::new([2, 0, 5], 3);
        for (layer, len) in [(0, 2), (2, 5)] {
            // SAFETY: one thread.
            let state = unsafe { cache.get_mut(part(layer, len), 1, 0, len) };
            state.iter_mut().zip(1..).for_each(|(value, number)| *value = number as f32 + layer as f32 / 8.0);
        }
        let mut copy = vec![0; 28];
        cache.read_slot(1, &mut copy);
        let mut other = StateCache::new([2, 0, 5], 2);
        other.write_slot(0, &copy);
        for (layer, len) in [(0, 2), (2, 5)] {
            // SAFETY: one thread.
            let (found, expected) =
                unsafe { (other.get(part(layer, len), 0, 0, len), cache.get(part(layer, len), 1, 0, len)) };
            assert_eq!(found, expected);
        }
    }

    #[test]
    #[should_panic(expected = "the slot exists")]
    fn a_slot_that_does_not_exist_is_refused() {
        let cache = StateCache::new([4], 2);
        // SAFETY: one thread.
        let _ = unsafe { cache.get(StatePart { layer: 0, start: 0, len: 4 }, 2, 0, 4) };
    }
}
