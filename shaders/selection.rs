//! How many positions, or pools of them, a row sees that sees only selected ones.

/// How many positions, or pools of them, a row sees that sees only selected ones. A pool has adjacent positions, of which the first
/// is a multiple of the pool's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// The most positions or pools of a row.
    pub most: usize,
    /// Positions of a pool; 1 if each is selected by itself.
    pub pool: usize,
    /// What is counted.
    pub unit: Unit,
}

/// What a selection counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Positions. Those of a selected pool are selected together, and those after the last whole pool of a row always.
    Positions,
    /// Whole pools, each of which has one entry. Nothing is selected of positions after the last one.
    Pools,
}

impl Selection {
    /// `count` positions, in pools of `pool` each, and as many as a pool that is not whole can have.
    #[must_use]
    pub fn new(count: usize, pool: usize) -> Self {
        Selection { most: count + pool - 1, pool, unit: Unit::Positions }
    }

    /// `count` pools of `pool` positions each.
    #[must_use]
    pub fn of_pools(count: usize, pool: usize) -> Self {
        Selection { most: count, pool, unit: Unit::Pools }
    }

    /// The number of pools that a row selects.
    #[must_use]
    pub fn pools(self) -> usize {
        match self.unit {
            Unit::Positions => (self.most + 1 - self.pool) / self.pool,
            Unit::Pools => self.most,
        }
    }

    /// Positions of a pool of which one entry is selected; 0 if positions are.
    #[must_use]
    pub fn entry_pool(self) -> usize {
        match self.unit {
            Unit::Positions => 0,
            Unit::Pools => self.pool,
        }
    }

    /// The most positions of a row that selects all.
    #[must_use]
    pub fn all_up_to(self) -> usize {
        match self.unit {
            Unit::Positions => self.most,
            Unit::Pools => (self.most + 1) * self.pool - 1,
        }
    }

    /// Whether a row that sees the first `seen` positions selects some of them, and not all.
    #[must_use]
    pub fn is_partial(self, seen: usize) -> bool {
        seen > self.all_up_to()
    }

    /// How many a row selects of the first `seen` positions.
    #[must_use]
    pub fn count(self, seen: usize) -> usize {
        match self.unit {
            Unit::Pools => self.most.min(seen / self.pool),
            Unit::Positions if self.is_partial(seen) => self.pools() * self.pool + seen % self.pool,
            Unit::Positions => seen,
        }
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
    fn a_row_selects_pools_themselves() {
        let pools = Selection::of_pools(3, 4);
        assert_eq!([3, 4, 15, 16, 90].map(|seen| pools.count(seen)), [0, 1, 3, 3, 3]);
        assert_eq!([15, 16, 90].map(|seen| pools.is_partial(seen)), [false, true, true]);
    }
}
