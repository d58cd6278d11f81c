//! The reasoning before an answer: where it begins and ends, and the end of its budget.
//!
//! Stop strings and the constraint apply to the answer, not to the reasoning.

use cuelight_engine::engine::TokenId;

use crate::core::request::ReasoningOptions;

/// Where in its reasoning a sequence is.
#[derive(Debug)]
pub(super) struct Reasoning {
    options: ReasoningOptions,
    phase: Phase,
    /// Tokens of reasoning so far.
    tokens: usize,
    /// Tokens of the end marker that were forced.
    forced: usize,
}

#[derive(Debug)]
enum Phase {
    /// The text so far is the beginning of the start marker, or empty. Reasoning or an answer follows.
    Beginning {
        text: String,
        /// Tokens of the start marker so far. `None` when other tokens than its own spell it.
        matched: Option<usize>,
        /// No answer begins like this.
        is_marker: bool,
    },
    /// In the reasoning, with the last characters of its text.
    Inside { tail: String },
    /// In the answer.
    Over,
}

/// What a token has turned out to be. The text is its own, with the text that was held back before.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It may belong to the start marker or to an answer. Its text is held back.
    Undecided,
    /// The start marker is complete. `is_certain`: no answer begins like this.
    Begins { text: String, is_certain: bool },
    /// Reasoning, or its end.
    Reasoning(String),
    /// The end of the reasoning, and the beginning of the answer.
    Ends { reasoning: String, answer: String },
    /// The answer.
    Answer(String),
}

impl Reasoning {
    pub fn new(options: &ReasoningOptions) -> Self {
        let phase = if options.is_open { Phase::Inside { tail: String::new() } } else { Phase::beginning() };
        Reasoning { options: options.clone(), phase, tokens: 0, forced: 0 }
    }

    /// Whether the next token is part of the reasoning.
    pub fn is_inside(&self) -> bool {
        matches!(self.phase, Phase::Inside { .. })
    }

    /// The token that may continue the start marker now.
    pub fn may_begin_with(&self) -> Option<TokenId> {
        match &self.phase {
            Phase::Beginning { matched, .. } => self.options.start.tokens.get((*matched)?).copied(),
            Phase::Inside { .. } | Phase::Over => None,
        }
    }

    /// The token that would begin reasoning again after its budget was spent.
    pub fn barred(&self) -> Option<TokenId> {
        match &self.phase {
            Phase::Beginning { matched, .. } if *matched == Some(self.options.distinct) && self.tokens > 0 => {
                self.may_begin_with().filter(|_| self.options.budget.is_some_and(|budget| self.tokens >= budget))
            }
            _ => None,
        }
    }

    /// The token that has to come next, because the budget is spent or only the start marker begins like this.
    pub fn forced(&self) -> Option<TokenId> {
        match &self.phase {
            Phase::Beginning { is_marker: true, .. } => self.may_begin_with(),
            Phase::Inside { .. } => {
                let is_spent = self.options.budget.is_some_and(|budget| self.tokens >= budget + self.forced);
                self.options.end.tokens.get(self.forced).copied().filter(|_| is_spent)
            }
            _ => None,
        }
    }

    /// Whether a token with this text would end the reasoning and begin the answer.
    pub fn runs_over(&self, text: &str) -> bool {
        let Phase::Inside { tail } = &self.phase else { return false };
        let after = after_marker(tail, text, &self.options.end.text);
        after.is_some_and(|at| !text[at..].trim().is_empty())
    }

    /// The constraint allows no answer that begins like this.
    pub fn rule_out_answer(&mut self) {
        if let Phase::Beginning { is_marker, .. } = &mut self.phase {
            *is_marker = true;
        }
    }

    /// The answer begins with the text of the start marker.
    pub fn answer(&mut self) {
        self.phase = Phase::Over;
    }

    /// The text that is held back.
    pub fn take_held(&mut self) -> String {
        match &mut self.phase {
            Phase::Beginning { text, .. } => std::mem::take(text),
            Phase::Inside { .. } | Phase::Over => String::new(),
        }
    }

    /// Adds a token with its text.
    pub fn accept(&mut self, token: TokenId, text: String) -> Part {
        match &self.phase {
            Phase::Beginning { .. } => self.begin(token, &text),
            Phase::Inside { .. } => self.reason(token, text),
            Phase::Over => Part::Answer(text),
        }
    }

    fn begin(&mut self, token: TokenId, added: &str) -> Part {
        let next = self.may_begin_with();
        let Phase::Beginning { text, matched, is_marker } = &mut self.phase else {
            return Part::Answer(added.to_owned());
        };
        text.push_str(added);
        match matched {
            Some(count) if next == Some(token) => *count += 1,
            // White space may come before.
            _ if text.trim().is_empty() => {}
            _ => *matched = None,
        }
        let start = self.options.start.text.as_str();
        // A line break may come first.
        let begun = if start.starts_with(char::is_whitespace) { text.as_str() } else { text.trim_start() };
        if begun.starts_with(start) {
            let (text, is_certain) = (std::mem::take(text), *is_marker);
            self.phase = Phase::Inside { tail: String::new() };
            return Part::Begins { text, is_certain };
        }
        if start.starts_with(begun) {
            return Part::Undecided;
        }
        let text = std::mem::take(text);
        self.phase = Phase::Over;
        Part::Answer(text)
    }

    fn reason(&mut self, token: TokenId, text: String) -> Part {
        self.forced += usize::from(self.forced() == Some(token));
        self.tokens += 1;
        let Phase::Inside { tail } = &mut self.phase else { return Part::Answer(text) };
        let end = self.options.end.text.as_str();
        let Some(at) = after_marker(tail, &text, end) else {
            tail.push_str(&text);
            let kept = tail.len().saturating_sub(end.len());
            tail.drain(..tail.floor_char_boundary(kept));
            return Part::Reasoning(text);
        };
        self.forced = 0;
        self.phase = if self.options.repeats { Phase::beginning() } else { Phase::Over };
        if self.options.repeats || at == text.len() {
            return Part::Reasoning(text);
        }
        let (reasoning, answer) = text.split_at(at);
        Part::Ends { reasoning: reasoning.to_owned(), answer: answer.to_owned() }
    }
}

/// Where in the newest text a marker ends that may have begun before it.
fn after_marker(before: &str, newest: &str, marker: &str) -> Option<usize> {
    let whole = format!("{before}{newest}");
    let end = whole.find(marker)? + marker.len();
    Some(end.saturating_sub(before.len()))
}

impl Phase {
    fn beginning() -> Self {
        Phase::Beginning { text: String::new(), matched: Some(0), is_marker: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::request::Marker;

    fn marker(text: &str, tokens: &[TokenId]) -> Marker {
        Marker { text: text.into(), tokens: tokens.into() }
    }

    fn reasoning(is_open: bool, budget: Option<usize>) -> Reasoning {
        let (start, end) = (marker("<think>", &[5]), marker("</think>", &[7, 8]));
        Reasoning::new(&ReasoningOptions { is_open, start, end, distinct: 0, repeats: false, budget })
    }

    /// Reasoning and answers are messages of their own.
    fn channels(budget: Option<usize>) -> Reasoning {
        let (start, end) = (marker("<c>analysis<m>", &[1, 2, 3]), marker("<end><start>", &[4, 5]));
        Reasoning::new(&ReasoningOptions { is_open: false, start, end, distinct: 1, repeats: true, budget })
    }

    fn accept(reasoning: &mut Reasoning, token: TokenId, text: &str) -> Part {
        reasoning.accept(token, text.to_owned())
    }

    fn answer(text: &str) -> Part {
        Part::Answer(text.to_owned())
    }

    fn begun(text: &str, is_certain: bool) -> Part {
        Part::Begins { text: text.to_owned(), is_certain }
    }

    fn thought(text: &str) -> Part {
        Part::Reasoning(text.to_owned())
    }

    #[test]
    fn the_answer_begins_after_the_end_marker() {
        let mut reasoning = reasoning(true, None);
        assert_eq!(accept(&mut reasoning, 1, "hm </th"), thought("hm </th"));
        assert!(reasoning.is_inside());
        assert_eq!(accept(&mut reasoning, 2, "ink>"), thought("ink>"));
        assert!(!reasoning.is_inside());
        assert_eq!(accept(&mut reasoning, 3, "yes"), answer("yes"));
    }

    #[test]
    fn a_token_may_end_the_reasoning_and_begin_the_answer() {
        let mut reasoning = reasoning(true, None);
        accept(&mut reasoning, 1, "hm </think");
        for (text, runs_over) in [(">{", true), (">\n\n", false), (">", false), ("> {", true), ("{>", false)] {
            assert_eq!(reasoning.runs_over(text), runs_over, "{text:?}");
        }
        let ends = Part::Ends { reasoning: ">".to_owned(), answer: "{".to_owned() };
        assert_eq!(accept(&mut reasoning, 2, ">{"), ends);
        assert!(!reasoning.is_inside());
    }

    #[test]
    fn reasoning_begins_with_its_marker_or_not_at_all() {
        let mut begins = reasoning(false, None);
        assert_eq!(begins.may_begin_with(), Some(5));
        assert_eq!(accept(&mut begins, 5, "<think>"), begun("<think>", false));
        assert!(begins.is_inside());
        let mut answers = reasoning(false, None);
        assert_eq!(accept(&mut answers, 9, "yes"), answer("yes"));
        assert_eq!(answers.may_begin_with(), None);
        assert_eq!(accept(&mut answers, 5, "<think>"), answer("<think>"), "later it is text");
    }

    #[test]
    fn a_marker_of_several_tokens_is_held_back_until_it_is_certain() {
        let mut begins = channels(None);
        assert_eq!(accept(&mut begins, 1, "<c>"), Part::Undecided);
        assert_eq!(accept(&mut begins, 2, "analysis"), Part::Undecided);
        assert_eq!((begins.may_begin_with(), begins.forced()), (Some(3), None));
        begins.rule_out_answer();
        assert_eq!(begins.forced(), Some(3));
        assert_eq!(accept(&mut begins, 3, "<m>"), begun("<c>analysis<m>", true));
        let mut answers = channels(None);
        assert_eq!(accept(&mut answers, 1, "<c>"), Part::Undecided);
        assert_eq!(accept(&mut answers, 9, "final"), answer("<c>final"));
        let mut ends = channels(None);
        assert_eq!(accept(&mut ends, 1, "<c>"), Part::Undecided);
        assert_eq!(ends.take_held(), "<c>");
    }

    #[test]
    fn other_tokens_may_spell_the_marker() {
        let mut begins = reasoning(false, None);
        assert_eq!(accept(&mut begins, 10, "\n"), Part::Undecided);
        assert_eq!(begins.may_begin_with(), Some(5));
        assert_eq!(accept(&mut begins, 11, "<thi"), Part::Undecided);
        assert_eq!(begins.may_begin_with(), None, "the rest of the marker is no token of it");
        assert_eq!(accept(&mut begins, 12, "nk>\n"), begun("\n<think>\n", false));
    }

    #[test]
    fn a_spent_budget_forces_the_end() {
        let mut reasoning = reasoning(true, Some(2));
        assert_eq!(reasoning.forced(), None);
        accept(&mut reasoning, 1, "a");
        assert_eq!(reasoning.forced(), None);
        accept(&mut reasoning, 2, "b");
        assert_eq!(reasoning.forced(), Some(7));
        accept(&mut reasoning, 7, "</");
        assert_eq!(reasoning.forced(), Some(8));
        accept(&mut reasoning, 8, "think>");
        assert!(reasoning.forced().is_none() && !reasoning.is_inside());
    }

    #[test]
    fn messages_with_reasoning_may_come_again_until_the_budget_is_spent() {
        let mut reasoning = channels(Some(4));
        let message = |reasoning: &mut Reasoning| {
            for (token, text) in [(1, "<c>"), (2, "analysis"), (3, "<m>")] {
                assert_eq!((reasoning.forced(), reasoning.barred()), (None, None));
                accept(reasoning, token, text);
            }
            assert!(reasoning.is_inside());
        };
        message(&mut reasoning);
        for (token, text) in [(9, "a"), (4, "<end>"), (5, "<start>")] {
            assert_eq!(accept(&mut reasoning, token, text), thought(text));
        }
        message(&mut reasoning);
        accept(&mut reasoning, 9, "b");
        for (token, text) in [(4, "<end>"), (5, "<start>")] {
            assert_eq!(reasoning.forced(), Some(token));
            accept(&mut reasoning, token, text);
        }
        assert_eq!((reasoning.forced(), reasoning.barred()), (None, None));
        accept(&mut reasoning, 1, "<c>");
        assert_eq!(reasoning.barred(), Some(2), "an answer has to follow");
        assert_eq!(accept(&mut reasoning, 9, "final"), answer("<c>final"));
    }
}
