//! The search for markers in a text that arrives one character at a time.

/// Texts to search for. At one place the longest wins.
#[derive(Debug, Clone, Default)]
pub(super) struct MarkerSet(Vec<String>);

/// The end of the text read so far that may be the beginning of a marker. It is never longer than the longest marker.
#[derive(Debug, Clone, Default)]
pub(super) struct Search {
    held: String,
}

/// What is known after a character.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// More text must be read.
    Nothing,
    /// A character that begins no marker. `rest` must be read again.
    Character(char, String),
    /// The marker at this position of the set. `rest` must be read again.
    Marker(usize, String),
}

impl MarkerSet {
    /// Leaves out empty markers; positions count those that are left.
    pub(super) fn new(markers: impl IntoIterator<Item = String>) -> Self {
        MarkerSet(markers.into_iter().filter(|marker| !marker.is_empty()).collect())
    }

    pub(super) fn get(&self, index: usize) -> &str {
        &self.0[index]
    }

    fn may_begin_with(&self, text: &str) -> bool {
        self.0.iter().any(|marker| marker.len() > text.len() && marker.starts_with(text))
    }

    fn longest_at_start(&self, text: &str) -> Option<usize> {
        let found = self.0.iter().enumerate().filter(|(_, marker)| text.starts_with(marker.as_str()));
        found.max_by_key(|(_, marker)| marker.len()).map(|(index, _)| index)
    }
}

impl Search {
    /// Reads one character.
    pub(super) fn read(&mut self, set: &MarkerSet, character: char) -> Found {
        self.held.push(character);
        if set.may_begin_with(&self.held) {
            return Found::Nothing;
        }
        self.decide(set)
    }

    /// No more text follows. `None` when nothing is held.
    pub(super) fn finish(&mut self, set: &MarkerSet) -> Option<Found> {
        (!self.held.is_empty()).then(|| self.decide(set))
    }

    fn decide(&mut self, set: &MarkerSet) -> Found {
        let held = std::mem::take(&mut self.held);
        if let Some(index) = set.longest_at_start(&held) {
            return Found::Marker(index, held[set.get(index).len()..].to_owned());
        }
        let mut characters = held.chars();
        let first = characters.next().unwrap_or_default();
        Found::Character(first, characters.as_str().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(markers: &[&str], text: &str) -> String {
        let set = MarkerSet::new(markers.iter().map(ToString::to_string));
        let (mut search, mut out) = (Search::default(), String::new());
        let mut queue: Vec<char> = text.chars().rev().collect();
        let handle = |found: Found, queue: &mut Vec<char>, out: &mut String| {
            let rest = match found {
                Found::Nothing => String::new(),
                Found::Character(character, rest) => {
                    out.push(character);
                    rest
                }
                Found::Marker(index, rest) => {
                    *out += &format!("[{index}]");
                    rest
                }
            };
            queue.extend(rest.chars().rev());
        };
        loop {
            while let Some(character) = queue.pop() {
                let found = search.read(&set, character);
                handle(found, &mut queue, &mut out);
            }
            let Some(found) = search.finish(&set) else { break };
            handle(found, &mut queue, &mut out);
        }
        out
    }

    #[test]
    fn the_first_and_longest_marker_is_found() {
        assert_eq!(find(&["<a>", "<a>b"], "x<a>y<a>b<a"), "x[0]y[1]<a");
        assert_eq!(find(&["abcd", "bc"], "abce abcd abc"), "a[1]e [0] a[1]");
        assert_eq!(find(&["<t>", "<|t|>"], "<<t><|<|t|>"), "<[0]<|[1]");
    }

    #[test]
    fn a_marker_that_ends_the_text_is_found() {
        assert_eq!(find(&["<a>", "<a>bc"], "1<a>b"), "1[0]b");
        assert_eq!(find(&["<a>", "<a>bc"], "1<a>"), "1[0]");
    }
}
