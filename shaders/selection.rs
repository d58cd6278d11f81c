//! How many positions a row sees that sees only selected ones.

/// How many positions a row sees that sees only selected ones. Positions may be selected in pools of adjacent ones, of which the
/// first is a multiple of the pool's length; then those after the last whole pool of a row are always selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// The most positions of a row.
    pub most: usize,
    /// Positions of a pool; 1 if each is selected by itself.
    pub pool: usize,
}

impl Selection {
    /// `count` positions, in pools of `pool` each, and as many as a pool that is not whole can have.
    #[must_use]
    pub fn new(count: usize, pool: usize) -> Self {
        Selection { most: count + pool - 1, pool }
    }

    /// The number of pools that a row selects.
    #[must_use]
    pub fn pools(self) -> usize {
        (self.most + 1 - self.pool) / self.pool
    }

    /// The number of positions that a row selects of the first `seen` ones.
    #[must_use]
    pub fn count(self, seen: usize) -> usize {
        if seen <= self.most { seen } else { self.pools() * self.pool + seen % self.pool }
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
}
