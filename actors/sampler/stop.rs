//! Stop strings across token borders.

/// Looks for stop strings in text that arrives in pieces, and holds back what may be the begin of one.
#[derive(Debug, Default)]
pub(super) struct StopMatcher {
    strings: Vec<String>,
    /// Text that is a proper prefix of some stop string.
    held: String,
}

/// What a piece of text led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scan {
    /// Text that is certain: no stop string begins in it, whatever comes next.
    pub text: String,
    /// The stop string that was found right after `text`.
    pub matched: Option<String>,
}

impl StopMatcher {
    pub fn new(strings: &[String]) -> Self {
        StopMatcher { strings: strings.iter().filter(|s| !s.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Scan {
        self.held.push_str(text);
        let found = self.strings.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        // The earliest match ends the text; of several at one place the longest.
        if let Some((at, stop)) = found.min_by_key(|&(at, stop)| (at, std::cmp::Reverse(stop.len()))) {
            let matched = Some(stop.clone());
            self.held.truncate(at);
            return Scan { text: std::mem::take(&mut self.held), matched };
        }
        let held = self.strings.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - held);
        Scan { text: std::mem::replace(&mut self.held, rest), matched: None }
    }

    /// The text that was held back, when nothing follows it.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that begin `stop`, short of all of it.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest).rev().find(|&n| stop.is_char_boundary(n) && text.ends_with(&stop[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stop_string_is_found_across_pieces_and_its_begin_is_held_back() {
        let mut stop = StopMatcher::new(&["END".into(), "é!".into(), String::new()]);
        assert_eq!(stop.push("some E"), Scan { text: "some ".into(), matched: None });
        assert_eq!(stop.push("N"), Scan { text: String::new(), matched: None });
        assert_eq!(stop.push("JOY é"), Scan { text: "ENJOY ".into(), matched: None });
        assert_eq!(stop.push("!END"), Scan { text: String::new(), matched: Some("é!".into()) });
        assert_eq!(stop.push("E"), Scan { text: String::new(), matched: None });
        assert_eq!(stop.finish(), "E");
    }

    #[test]
    fn of_two_that_match_at_one_place_the_longer_counts() {
        let mut stop = StopMatcher::new(&["a".into(), "ab".into()]);
        assert_eq!(stop.push("xab"), Scan { text: "x".into(), matched: Some("ab".into()) });
    }

    proptest! {
        #[test]
        fn however_text_is_cut_the_result_is_that_of_the_whole(
            pieces in prop::collection::vec("[abé]{0,4}", 0..12),
            strings in prop::collection::vec("[abé]{1,4}", 0..3),
        ) {
            let whole: String = pieces.concat();
            let mut stop = StopMatcher::new(&strings);
            let mut text = String::new();
            let mut matched = None;
            for piece in &pieces {
                let scan = stop.push(piece);
                text.push_str(&scan.text);
                matched = scan.matched;
                if matched.is_some() {
                    break;
                }
            }
            if matched.is_none() {
                text.push_str(&stop.finish());
            }
            // The string that is complete first ends the text, so look at ever longer begins of the whole.
            let ends = (0..=whole.len()).filter(|&end| whole.is_char_boundary(end));
            let first = ends.map(|end| &whole[..end]).find(|begin| strings.iter().any(|s| begin.contains(s.as_str())));
            match (first, matched) {
                (None, None) => prop_assert_eq!(text, whole),
                (Some(_), Some(matched)) => {
                    let begin = text.clone() + &matched;
                    prop_assert!(whole.starts_with(&begin));
                    prop_assert!(strings.iter().all(|s| !text.contains(s.as_str())));
                }
                (first, matched) => prop_assert!(false, "expected {first:?}, found {matched:?}"),
            }
        }
    }
}
