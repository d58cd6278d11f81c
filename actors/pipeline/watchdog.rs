//! Finds work that takes too long.

/// Finds a piece of work that runs at two checks in a row.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    /// The piece that ran at the last check.
    seen: Option<u64>,
}

impl Watchdog {
    /// Checks the number of the piece that runs now, if one does. Returns whether it ran at the last check, too.
    pub fn finds_the_same(&mut self, piece: Option<u64>) -> bool {
        let is_same = piece.is_some() && piece == self.seen;
        self.seen = piece;
        is_same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_lost_when_two_checks_find_it() {
        let mut watchdog = Watchdog::default();
        assert!(![Some(0), None, None].into_iter().any(|piece| watchdog.finds_the_same(piece)));
        assert!(!watchdog.finds_the_same(Some(1)), "it may have begun a moment ago");
        assert!(!watchdog.finds_the_same(Some(2)));
        assert!(watchdog.finds_the_same(Some(2)));
    }
}
