//! Finds stop strings across token boundaries.

use std::sync::Arc;

use crate::core::stop_strings::{StopState, StopStrings};

/// Searches text that arrives in chunks for stop strings, and holds back what may be the beginning of one.
#[derive(Debug)]
pub(super) struct StopMatcher {
    strings: Arc<StopStrings>,
    /// `None` without stop strings.
    state: Option<StopState>,
    /// Text that is a proper prefix of some stop string.
    held: String,
}

/// The result of adding a chunk of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scan {
    /// Text that is certain: no stop string can begin in it.
    pub text: String,
    /// The stop string that follows `text`, if one was found.
    pub matched: Option<String>,
}

impl StopMatcher {
    pub fn new(strings: &Arc<StopStrings>) -> Self {
        StopMatcher { strings: strings.clone(), state: strings.start(), held: String::new() }
    }

    /// Adds the next chunk of text. The stop string that is complete first ends the text; of several that end at the same
    /// position, the longest counts. So the result does not depend on how the text is split into chunks.
    pub fn push(&mut self, text: &str) -> Scan {
        let Some(state) = &mut self.state else { return Scan { text: text.to_owned(), matched: None } };
        let found = text.bytes().enumerate().find_map(|(index, byte)| {
            let stop = self.strings.advance(state, byte)?;
            Some((index + 1, stop.to_owned()))
        });
        if let Some((end, stop)) = found {
            self.held.push_str(&text[..end]);
            self.held.truncate(self.held.len() - stop.len());
            self.state = self.strings.start();
            return Scan { text: std::mem::take(&mut self.held), matched: Some(stop) };
        }
        self.held.push_str(text);
        let rest = self.held.split_off(self.held.len() - self.strings.held(*state));
        Scan { text: std::mem::replace(&mut self.held, rest), matched: None }
    }

    /// The text that was held back, when no text follows.
    pub fn finish(&mut self) -> String {
        self.state = self.strings.start();
        std::mem::take(&mut self.held)
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matcher(strings: &[String]) -> StopMatcher {
        StopMatcher::new(&Arc::new(StopStrings::new(strings.to_vec()).unwrap()))
    }

    #[test]
    fn a_stop_string_is_found_across_chunks_and_its_beginning_is_held_back() {
        let mut stop = matcher(&["END".into(), "é!".into(), String::new()]);
        assert_eq!(stop.push("some E"), Scan { text: "some ".into(), matched: None });
        assert_eq!(stop.push("N"), Scan { text: String::new(), matched: None });
        assert_eq!(stop.push("JOY é"), Scan { text: "ENJOY ".into(), matched: None });
        assert_eq!(stop.push("!END"), Scan { text: String::new(), matched: Some("é!".into()) });
        assert_eq!(stop.push("E"), Scan { text: String::new(), matched: None });
        assert_eq!(stop.finish(), "E");
    }

    #[test]
    fn of_two_matches_that_end_together_the_longer_counts() {
        let mut stop = matcher(&["b".into(), "ab".into()]);
        assert_eq!(stop.push("xab"), Scan { text: "x".into(), matched: Some("ab".into()) });
    }

    #[test]
    fn the_match_that_is_complete_first_counts() {
        let mut stop = matcher(&["abcd".into(), "bc".into()]);
        assert_eq!(stop.push("xabcd"), Scan { text: "xa".into(), matched: Some("bc".into()) });
    }

    /// With a search per string, this took the product of text and strings: minutes.
    #[test]
    fn long_stop_strings_do_not_slow_the_search() {
        let strings: Vec<String> = (0..256).map(|index| format!("{index}{}", "a".repeat(2000))).collect();
        let mut stop = matcher(&strings);
        let began = std::time::Instant::now();
        for _ in 0..20_000 {
            assert_eq!(stop.push("bcd").matched, None);
        }
        assert!(began.elapsed().as_secs_f64() < 1.0, "{:?}", began.elapsed());
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_how_the_text_is_split(
            chunks in prop::collection::vec("[abé]{0,4}", 0..12),
            strings in prop::collection::vec("[abé]{1,4}", 0..3),
        ) {
            let whole: String = chunks.concat();
            let mut stop = matcher(&strings);
            let mut text = String::new();
            let mut matched = None;
            for chunk in &chunks {
                let scan = stop.push(chunk);
                text.push_str(&scan.text);
                matched = scan.matched;
                if matched.is_some() {
                    break;
                }
            }
            if matched.is_none() {
                text.push_str(&stop.finish());
            }
            // The stop string that is complete first ends the text, so prefixes of increasing length are searched.
            let ends = (0..=whole.len()).filter(|&end| whole.is_char_boundary(end));
            let first = ends.map(|end| &whole[..end]).find(|prefix| strings.iter().any(|s| prefix.contains(s.as_str())));
            match (first, matched) {
                (None, None) => prop_assert_eq!(text, whole),
                (Some(first), Some(matched)) => {
                    prop_assert_eq!(text + &matched, first);
                    let longest = strings.iter().filter(|s| first.ends_with(s.as_str())).map(String::len).max();
                    prop_assert_eq!(Some(matched.len()), longest);
                }
                (first, matched) => prop_assert!(false, "expected {first:?}, found {matched:?}"),
            }
        }
    }
}
