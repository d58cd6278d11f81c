//! Finds earlier occurrences of the last tokens of a text, for drafts that continue as the text did there.
//!
//! Prompt lookup: the runs of [`GRAM`] tokens are chained by their last position, as in LZ77 compression.

use std::collections::HashMap;

use cuelight_engine::engine::TokenId;

/// Length of the runs that are indexed: the shortest match.
pub(super) const GRAM: usize = 3;

/// Maximum number of occurrences that are compared.
const MAX_OCCURRENCES: usize = 16;

/// Longest match that is told apart from longer ones.
pub(super) const MAX_MATCH: usize = 32;

/// The end of a chain.
const NONE: u32 = u32::MAX;

/// The runs of [`GRAM`] tokens of a text that may grow at its end.
#[derive(Debug, Default)]
pub(super) struct LookupIndex {
    /// The last end of each run.
    ends: HashMap<[TokenId; GRAM], u32>,
    /// For each end, the end before it of the same run.
    earlier: Vec<u32>,
}

/// An earlier occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pipeline::policy) struct Match {
    /// Position of the token after it.
    pub next: usize,
    /// Number of tokens that are equal, at least [`GRAM`], at most [`MAX_MATCH`].
    pub length: usize,
}

impl LookupIndex {
    /// Adds the tokens of a text behind those that were added before.
    pub fn extend(&mut self, text: &[TokenId]) {
        for end in self.earlier.len()..=text.len() {
            let before = end.checked_sub(GRAM).and_then(|start| {
                let run = text[start..end].try_into().ok()?;
                self.ends.insert(run, u32::try_from(end).ok()?)
            });
            self.earlier.push(before.unwrap_or(NONE));
        }
    }

    /// The occurrence in `text` that has most tokens in common with the end of `suffix`; of equal ones the last. Only one
    /// that is followed by a token counts. `text` is what was added, `suffix` may be the same text.
    pub fn find(&self, text: &[TokenId], suffix: &[TokenId]) -> Option<Match> {
        let run: [TokenId; GRAM] = suffix.last_chunk().copied()?;
        let first = self.ends.get(&run).copied()?;
        let ends = std::iter::successors(Some(first), |&end| self.earlier.get(end as usize).copied())
            .take_while(|&end| end != NONE)
            .map(|end| end as usize);
        let followed = ends.filter(|&end| end < text.len()).take(MAX_OCCURRENCES);
        let mut best: Option<Match> = None;
        for next in followed {
            let length = common_suffix(&text[..next], suffix);
            if best.is_none_or(|best| length > best.length) {
                best = Some(Match { next, length });
            }
            if length == MAX_MATCH {
                break;
            }
        }
        best
    }
}

/// Number of equal tokens at the ends of two texts, at most [`MAX_MATCH`].
fn common_suffix(one: &[TokenId], other: &[TokenId]) -> usize {
    one.iter().rev().zip(other.iter().rev()).take(MAX_MATCH).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find(text: &[TokenId], suffix: &[TokenId]) -> Option<Match> {
        let mut index = LookupIndex::default();
        index.extend(text);
        index.find(text, suffix)
    }

    #[test]
    fn the_longest_match_is_found_and_of_equal_ones_the_last() {
        let text = [9, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3];
        assert_eq!(find(&text, &text), Some(Match { next: 9, length: 3 }));
        assert_eq!(find(&text, &[9, 1, 2, 3]), Some(Match { next: 4, length: 4 }));
        assert_eq!(find(&text, &[2, 3]), None);
        assert_eq!(find(&[1, 2, 3], &[1, 2, 3]), None, "nothing follows it");
    }

    proptest! {
        #[test]
        fn a_match_is_the_best_of_all(text in prop::collection::vec(0u32..3, 0..30), cuts in prop::collection::vec(0usize..30, 0..3)) {
            let mut index = LookupIndex::default();
            for cut in cuts {
                index.extend(&text[..cut.min(text.len())]);
            }
            index.extend(&text);
            let found = index.find(&text, &text);
            let all = (GRAM..text.len()).map(|next| (common_suffix(&text[..next], &text), next));
            let best = all.filter(|&(length, _)| length >= GRAM).max();
            prop_assert_eq!(found.map(|found| (found.length, found.next)), best);
        }
    }
}
