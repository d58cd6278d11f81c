//! The load of a sequence's prefix from lower tiers.

use std::collections::VecDeque;
use std::time::Duration;

use crate::core::cached_unit::UnitContent;
use crate::core::tier::{FetchId, Tier, TierLimits};

/// Units that a sequence waits for. They are read in pieces, one after the other.
#[derive(Debug)]
pub(in crate::pipeline::policy) struct Loading {
    /// The units that are not on the device yet, and where they are: the recurrent state, if the model has one, then the blocks in
    /// order.
    pub units: VecDeque<(UnitContent, Tier)>,
    /// Number of leading blocks of the sequence that need not be computed when all units are there.
    pub until: usize,
    /// The read of the first of the units that is under way, and their number.
    pub fetch: Option<(FetchId, usize)>,
    /// How long a read may take before the sequence computes the blocks instead.
    pub time_limit: Duration,
}

impl Loading {
    /// The next piece: units of the kind and from the tier of the first one, as many as are read at once.
    pub fn next_piece(&self, limits: &TierLimits) -> Vec<UnitContent> {
        let Some((first, tier)) = self.units.front() else { return Vec::new() };
        let most = limits.piece / limits.of(first.kind).max(1);
        let is_like_first = |(unit, other): &&(UnitContent, Tier)| unit.kind == first.kind && other == tier;
        self.units.iter().take(most.max(1) as usize).take_while(is_like_first).map(|(unit, _)| *unit).collect()
    }
}
