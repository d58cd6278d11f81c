//! The blocks of layers that keep windows: which are free, and which hold the positions of a KV block.
//!
//! In layers with a window, rows read the last positions only. There a KV block has a *window block* as long as a running sequence
//! may read it. Afterwards it keeps the window block, for a prompt that continues after these tokens, until its memory is needed.
//! Window blocks that no prompt is expected to read again are taken first, then the least recently used ones.

use std::collections::{BTreeMap, VecDeque};

use cuelight_engine::engine::{BlockId, StepId};

/// When a KV block that nothing uses was used last, and whether it is expected to be used again. The smallest is taken first.
type LastUse = (bool, u64);

/// Manages the window blocks of one engine. KV blocks are named by their ids.
#[derive(Debug)]
pub struct WindowBlocks {
    /// Of each KV block. Empty for a model whose layers all keep everything.
    of_blocks: Vec<Option<Held>>,
    /// Number of all window blocks.
    total: usize,
    free: Vec<BlockId>,
    /// The KV blocks that have a window block and no use.
    unused: BTreeMap<LastUse, BlockId>,
    /// Uses to give up once a step is done, because the device may read the window block until then.
    retired: VecDeque<(StepId, BlockId)>,
    clock: u64,
    evictions: u64,
}

/// The window block of a KV block.
#[derive(Debug, Clone, Copy)]
struct Held {
    id: BlockId,
    /// Number of sequences and steps that may read it.
    uses: u32,
    /// Its key in `unused`, if it is there.
    last_use: LastUse,
}

impl WindowBlocks {
    /// A manager with `windows` free window blocks for the KV blocks below `blocks`; `None` if all layers keep everything.
    #[must_use]
    pub fn new(blocks: usize, windows: Option<usize>) -> Self {
        let total = windows.unwrap_or(0);
        WindowBlocks {
            of_blocks: if windows.is_some() { vec![None; blocks] } else { Vec::new() },
            total,
            free: (0..BlockId::try_from(total).unwrap_or(BlockId::MAX)).rev().collect(),
            unused: BTreeMap::new(),
            retired: VecDeque::new(),
            clock: 0,
            evictions: 0,
        }
    }

    /// Whether some layers keep windows.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.total > 0
    }

    /// Number of all window blocks.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }

    /// Number of window blocks that [`attach`](Self::attach) can still give away.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len() + self.unused.len()
    }

    /// Number of window blocks that nothing uses and whose content is kept.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.unused.len()
    }

    /// Number of window blocks that were taken from KV blocks that kept them.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The window block of a KV block.
    #[must_use]
    pub fn of(&self, block: BlockId) -> Option<BlockId> {
        self.held(block).map(|held| held.id)
    }

    /// Whether rows can read the positions of a KV block in every layer.
    #[must_use]
    pub fn has(&self, block: BlockId) -> bool {
        !self.is_used() || self.held(block).is_some()
    }

    fn held(&self, block: BlockId) -> Option<&Held> {
        self.of_blocks.get(block as usize)?.as_ref()
    }

    /// Uses a KV block, which gets a window block if it has none. Returns whether there is one.
    pub fn attach(&mut self, block: BlockId) -> bool {
        if let Some(held) = &mut self.of_blocks[block as usize] {
            if held.uses == 0 {
                self.unused.remove(&held.last_use);
            }
            held.uses += 1;
            return true;
        }
        let Some(id) = self.free.pop().or_else(|| self.take_unused()) else { return false };
        self.of_blocks[block as usize] = Some(Held { id, uses: 1, last_use: (false, 0) });
        true
    }

    /// Takes the window block of a KV block that nothing uses.
    fn take_unused(&mut self) -> Option<BlockId> {
        let (_, block) = self.unused.pop_first()?;
        self.evictions += 1;
        self.of_blocks[block as usize].take().map(|held| held.id)
    }

    /// Gives up a use of a KV block. `is_expected`: a later prompt may read it.
    pub fn release(&mut self, block: BlockId, is_expected: bool) {
        let Some(held) = &mut self.of_blocks[block as usize] else { return };
        debug_assert!(held.uses > 0, "block {block} is used less often than it was released");
        held.uses -= 1;
        if held.uses == 0 {
            self.clock += 1;
            held.last_use = (is_expected, self.clock);
            self.unused.insert(held.last_use, block);
        }
    }

    /// Gives up a use of a KV block when `step` is done.
    pub fn retire(&mut self, block: BlockId, step: StepId) {
        self.retired.push_back((step, block));
    }

    /// Gives up the uses that were retired until `step` or an earlier step.
    pub fn step_is_done(&mut self, step: StepId) {
        for _ in 0..self.retired.len() {
            let Some((until, block)) = self.retired.pop_front() else { return };
            if until <= step {
                self.release(block, true);
            } else {
                self.retired.push_back((until, block));
            }
        }
    }

    /// A KV block that nothing uses gets another content.
    pub fn detach(&mut self, block: BlockId) {
        let Some(held) = self.of_blocks.get_mut(block as usize).and_then(Option::take) else { return };
        debug_assert_eq!(held.uses, 0, "block {block} gets another content while it is read");
        self.unused.remove(&held.last_use);
        self.free.push(held.id);
    }

    /// A sequence that uses `own` continues with `known`, which has the same content. The device reads the window block of `own`
    /// until `step` is done.
    pub fn replace(&mut self, own: BlockId, known: BlockId, step: StepId) {
        if self.held(known).is_some() {
            self.attach(known);
            self.retire(own, step);
        } else {
            self.of_blocks[known as usize] = self.of_blocks[own as usize].take();
        }
    }

    /// Panics unless the uses are those of `uses` and of the retired ones, and every window block is free or of one KV block.
    pub fn check(&self, uses: impl Iterator<Item = BlockId>) {
        let mut seen = vec![0u32; self.of_blocks.len()];
        for block in uses.chain(self.retired.iter().map(|(_, block)| *block)) {
            seen[block as usize] += 1;
        }
        let mut times = vec![0u32; self.total];
        self.free.iter().for_each(|id| times[*id as usize] += 1);
        for ((held, seen), block) in self.of_blocks.iter().zip(seen).zip(0..) {
            let Some(held) = held else {
                assert_eq!(seen, 0, "block {block} is used without a window block");
                continue;
            };
            times[held.id as usize] += 1;
            assert_eq!(held.uses, seen, "uses of block {block} are lost or duplicated");
            let is_unused = self.unused.get(&held.last_use) == Some(&block);
            assert_eq!(is_unused, seen == 0, "block {block} has {seen} uses");
        }
        assert!(times.iter().all(|times| *times == 1), "a window block is lost or used twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: StepId = StepId(3);

    #[test]
    fn a_window_block_is_kept_until_another_block_needs_it() {
        let mut windows = WindowBlocks::new(9, Some(2));
        assert!(windows.attach(7) && windows.attach(8) && !windows.attach(1));
        let (seventh, eighth) = (windows.of(7), windows.of(8));
        windows.release(7, true);
        windows.release(8, false);
        windows.check([].into_iter());
        assert!(windows.attach(1), "a block that is not expected to be read again loses its window block first");
        assert_eq!((windows.of(1), windows.of(8), windows.of(7)), (eighth, None, seventh));
        assert!(windows.attach(7), "its content is there");
        windows.check([1, 7].into_iter());
        assert_eq!((windows.available(), windows.evictions()), (0, 1));
    }

    #[test]
    fn a_block_with_another_content_has_no_window_block() {
        let mut windows = WindowBlocks::new(4, Some(1));
        assert!(windows.attach(2));
        windows.release(2, true);
        windows.detach(2);
        assert!(!windows.has(2) && windows.attach(3));
        windows.check([3].into_iter());
    }

    #[test]
    fn a_block_with_the_same_content_takes_the_window_block_or_has_its_own() {
        let mut windows = WindowBlocks::new(4, Some(2));
        assert!(windows.attach(0));
        let id = windows.of(0);
        windows.replace(0, 1, STEP);
        assert_eq!((windows.of(0), windows.of(1)), (None, id));
        assert!(windows.attach(2));
        windows.replace(2, 1, STEP);
        windows.check([1, 1].into_iter());
        assert_eq!(windows.available(), 0, "the device reads it");
        windows.step_is_done(STEP);
        assert_eq!(windows.available(), 1);
        windows.check([1, 1].into_iter());
    }

    #[test]
    fn without_windows_every_block_has_all_positions() {
        let mut windows = WindowBlocks::new(4, None);
        windows.detach(3);
        assert!(windows.has(3) && !windows.is_used());
    }
}
