//! The stop strings of a request, searched for with one automaton (Aho and Corasick, "Efficient string matching", 1975).
//!
//! The time per byte of text does not depend on the number or the length of the strings. All choices of a request share
//! the automaton.

use std::collections::HashMap;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::noncontiguous::NFA;
use aho_corasick::{Anchored, BuildError};

/// A set of stop strings. The default is empty.
#[derive(Clone, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    automaton: Option<Prefixes>,
}

/// The automaton, and the length of the prefix that each of its states stands for.
#[derive(Clone)]
struct Prefixes {
    automaton: NFA,
    start: StateID,
    lengths: HashMap<StateID, usize>,
}

/// A position in a text: how much of which stop strings was seen last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopState(StateID);

impl StopStrings {
    /// Prepares the search. Empty strings are left out.
    ///
    /// # Errors
    /// When the strings are too long in total for an automaton, which needs more than a gigabyte of them.
    pub fn new(strings: Vec<String>) -> Result<Self, BuildError> {
        let strings: Vec<String> = strings.into_iter().filter(|string| !string.is_empty()).collect();
        let automaton = if strings.is_empty() { None } else { Some(Prefixes::new(&strings)?) };
        Ok(StopStrings { strings, automaton })
    }

    /// The strings.
    #[must_use]
    pub fn strings(&self) -> &[String] {
        &self.strings
    }

    /// The state before a text. `None` without strings.
    #[must_use]
    pub fn start(&self) -> Option<StopState> {
        self.automaton.as_ref().map(|prefixes| StopState(prefixes.start))
    }

    /// Moves `state` over one byte. Returns the longest stop string that ends with this byte, if any does.
    pub fn advance(&self, state: &mut StopState, byte: u8) -> Option<&str> {
        let Prefixes { automaton, .. } = self.automaton.as_ref()?;
        state.0 = automaton.next_state(Anchored::No, state.0, byte);
        if !automaton.is_match(state.0) {
            return None;
        }
        let found = (0..automaton.match_len(state.0)).map(|index| automaton.match_pattern(state.0, index));
        found.map(|pattern| self.strings[pattern.as_usize()].as_str()).max_by_key(|string| string.len())
    }

    /// Number of bytes at the end of the text that may be the beginning of a stop string.
    #[must_use]
    pub fn held(&self, state: StopState) -> usize {
        self.automaton.as_ref().and_then(|prefixes| prefixes.lengths.get(&state.0)).copied().unwrap_or(0)
    }
}

impl Prefixes {
    fn new(strings: &[String]) -> Result<Self, BuildError> {
        let automaton = NFA::new(strings)?;
        let start = automaton.start_state(Anchored::No).expect("an automaton without anchors has this start state");
        let mut lengths = HashMap::new();
        for string in strings {
            let mut state = start;
            for (index, &byte) in string.as_bytes().iter().enumerate() {
                state = automaton.next_state(Anchored::No, state, byte);
                lengths.insert(state, index + 1);
            }
        }
        Ok(Prefixes { automaton, start, lengths })
    }
}

impl PartialEq for StopStrings {
    fn eq(&self, other: &Self) -> bool {
        self.strings == other.strings
    }
}

impl std::fmt::Debug for StopStrings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.strings).finish()
    }
}
