//! How many positions, or pools of them, a row sees that sees only selected ones.

use std::ops::Range;

/// How many positions, or pools of them, a row sees that sees only selected ones. A pool has adjacent positions, of which the first
/// is a multiple of the pool's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// The most positions or pools of a list.
    pub most: usize,
    /// Positions of a pool; 1 if each is selected by itself.
    pub pool: usize,
    /// What is counted.
    pub unit: Unit,
    /// Lists of a row: adjacent heads of attention share one, in as many groups.
    pub lists: usize,
}

/// What a selection counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Positions. Those of a selected pool are selected together, and those after the last whole pool of a row always.
    Positions,
    /// Positions. Those of a selected pool up to that of the row are selected together. A row selects as many of its last pools in
    /// any case, at least one; the very last need not be whole.
    LastPools(usize),
    /// Whole pools, each of which has one entry. Nothing is selected of positions after the last one.
    Pools,
}

impl Selection {
    /// `count` positions, in pools of `pool` each, and as many as a pool that is not whole can have.
    #[must_use]
    pub fn new(count: usize, pool: usize) -> Self {
        Selection { most: count + pool - 1, pool, unit: Unit::Positions, lists: 1 }
    }

    /// The positions of `count` pools of `pool` positions each, of which the last ones are always selected, in each of some lists.
    #[must_use]
    pub fn with_last(count: usize, pool: usize, last: usize, lists: usize) -> Self {
        Selection { most: count * pool, pool, unit: Unit::LastPools(last), lists }
    }

    /// `count` pools of `pool` positions each.
    #[must_use]
    pub fn of_pools(count: usize, pool: usize) -> Self {
        Selection { most: count, pool, unit: Unit::Pools, lists: 1 }
    }

    /// The number of pools that a row selects in a list.
    #[must_use]
    pub fn pools(self) -> usize {
        match self.unit {
            Unit::Positions => (self.most + 1 - self.pool) / self.pool,
            Unit::LastPools(_) => self.most / self.pool,
            Unit::Pools => self.most,
        }
    }

    /// The numbers of all lists of a row.
    #[must_use]
    pub fn width(self) -> usize {
        self.lists * self.most
    }

    /// Positions of a pool of which one entry is selected; 0 if positions are.
    #[must_use]
    pub fn entry_pool(self) -> usize {
        match self.unit {
            Unit::Positions | Unit::LastPools(_) => 0,
            Unit::Pools => self.pool,
        }
    }

    /// The most positions of a row that selects all.
    #[must_use]
    pub fn all_up_to(self) -> usize {
        match self.unit {
            Unit::Positions | Unit::LastPools(_) => self.most,
            Unit::Pools => (self.most + 1) * self.pool - 1,
        }
    }

    /// Whether a row that sees the first `seen` positions selects some of them, and not all.
    #[must_use]
    pub fn is_partial(self, seen: usize) -> bool {
        seen > self.all_up_to()
    }

    /// How many a row selects in a list of the first `seen` positions.
    #[must_use]
    pub fn count(self, seen: usize) -> usize {
        match self.unit {
            Unit::Pools => self.most.min(seen / self.pool),
            _ if !self.is_partial(seen) => seen,
            Unit::Positions => self.pools() * self.pool + seen % self.pool,
            Unit::LastPools(_) => (self.pools() - 1) * self.pool + (seen - 1) % self.pool + 1,
        }
    }

    /// What a row that sees the first `seen` positions selects with the pool of this number.
    #[must_use]
    pub fn of_pool(self, index: usize, seen: usize) -> Range<usize> {
        match self.unit {
            Unit::Positions | Unit::LastPools(_) => index * self.pool..seen.min((index + 1) * self.pool),
            Unit::Pools => index..index + 1,
        }
    }

    /// Whether a row selects the positions of a pool that is not whole by their scores.
    #[must_use]
    pub(crate) fn has_own_pool(self) -> bool {
        matches!(self.unit, Unit::LastPools(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_selects_whole_pools_and_what_is_after_the_last() {
        let single = Selection::new(7, 1);
        assert_eq!([1, 7, 8, 90].map(|seen| single.count(seen)), [1, 7, 7, 7]);
        let pools = Selection::new(8, 4);
        assert_eq!((pools.most, pools.pools()), (11, 2));
        assert_eq!([8, 11, 12, 13, 15, 16].map(|seen| pools.count(seen)), [8, 11, 8, 9, 11, 8]);
    }

    #[test]
    fn a_row_selects_pools_of_which_the_last_need_not_be_whole() {
        let pools = Selection::with_last(3, 4, 1, 2);
        assert_eq!((pools.most, pools.pools(), pools.width()), (12, 3, 24));
        assert_eq!([1, 12, 13, 15, 16, 17].map(|seen| pools.count(seen)), [1, 12, 9, 11, 12, 9]);
        assert_eq!([2, 3].map(|index| pools.of_pool(index, 14)), [8..12, 12..14]);
    }

    #[test]
    fn a_row_selects_pools_themselves() {
        let pools = Selection::of_pools(3, 4);
        assert_eq!([3, 4, 15, 16, 90].map(|seen| pools.count(seen)), [0, 1, 3, 3, 3]);
        assert_eq!([15, 16, 90].map(|seen| pools.is_partial(seen)), [false, true, true]);
    }
}
