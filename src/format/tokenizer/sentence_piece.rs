//! SentencePiece's byte-pair encoding: the neighbours whose union has the highest score merge first.
//!
//! Scores order merges here, not ranks of pairs, which a list of merges cannot express exactly; hence a loop of our own.
//! Source: Kudo & Richardson 2018, `bpe_model.cc`.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::TokenizerError;
use super::vocabulary::Vocabulary;
use crate::engine::TokenId;

/// Text without special tokens to tokens.
pub(super) struct SentencePiece {
    scores: Vec<f32>,
    /// The token of each byte, for characters that are no token.
    byte_tokens: Box<[Option<TokenId>; 256]>,
    unknown: Option<TokenId>,
    /// Whether text at the start, or after a special token, is read as if a space came before it.
    pub(super) adds_space: bool,
}

impl SentencePiece {
    /// `scores`: one for each token.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        scores: Vec<f32>,
        unknown: Option<TokenId>,
        adds_space: bool,
    ) -> Result<Self, TokenizerError> {
        if scores.len() < vocabulary.len() {
            let (n_scores, n_tokens) = (scores.len(), vocabulary.len());
            return Err(TokenizerError::Vocabulary(format!("there are {n_scores} scores for {n_tokens} tokens")));
        }
        let byte_token = |byte: usize| vocabulary.id(&format!("<0x{byte:02X}>"));
        let byte_tokens = Box::new(std::array::from_fn(byte_token));
        Ok(SentencePiece { scores, byte_tokens, unknown, adds_space })
    }

    /// Appends the tokens of `text`; `at_start`: nothing or a special token came before it.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, at_start: bool, out: &mut Vec<TokenId>) {
        let space = if self.adds_space && at_start { "▁" } else { "" };
        let text = [space, &text.replace(' ', "▁")].concat();
        let mut merging = Merging::new(self, vocabulary, &text);
        merging.run();
        for symbol in merging.symbols.iter().filter(|symbol| symbol.length > 0) {
            let symbol_text = &text[symbol.start..symbol.start + symbol.length];
            match vocabulary.id(symbol_text) {
                Some(token) => out.push(token),
                None => out.extend(
                    symbol_text.bytes().filter_map(|byte| self.byte_tokens[usize::from(byte)].or(self.unknown)),
                ),
            }
        }
    }
}

/// A run of characters that has merged; its length is 0 once it became part of its left neighbour.
struct Symbol {
    start: usize,
    length: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// A merge that may happen, if both symbols are still as they were.
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    length: usize,
}

impl Ord for Candidate {
    /// The highest score is the greatest; of equal ones, the leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// The merging of one text.
struct Merging<'a> {
    pieces: &'a SentencePiece,
    vocabulary: &'a Vocabulary,
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
}

impl<'a> Merging<'a> {
    /// Starts with a symbol for each character.
    fn new(pieces: &'a SentencePiece, vocabulary: &'a Vocabulary, text: &'a str) -> Self {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, character))| Symbol {
                start,
                length: character.len_utf8(),
                previous: index.checked_sub(1),
                next: Some(index + 1),
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        Merging { pieces, vocabulary, text, symbols, queue: BinaryHeap::new() }
    }

    fn run(&mut self) {
        for right in 1..self.symbols.len() {
            self.consider(Some(right - 1), Some(right));
        }
        while let Some(Candidate { left, right, length, .. }) = self.queue.pop() {
            let (left_length, right_length) = (self.symbols[left].length, self.symbols[right].length);
            if left_length == 0 || right_length == 0 || left_length + right_length != length {
                continue; // One of them has merged since.
            }
            let next = self.symbols[right].next;
            self.symbols[right].length = 0;
            self.symbols[left].length = length;
            self.symbols[left].next = next;
            if let Some(next) = next {
                self.symbols[next].previous = Some(left);
            }
            self.consider(self.symbols[left].previous, Some(left));
            self.consider(Some(left), next);
        }
    }

    /// Queues the merge of two neighbours when their union is a token.
    fn consider(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let start = self.symbols[left].start;
        let length = self.symbols[left].length + self.symbols[right].length;
        if let Some(token) = self.vocabulary.id(&self.text[start..start + length]) {
            self.queue.push(Candidate { score: self.pieces.scores[token as usize], left, right, length });
        }
    }
}
