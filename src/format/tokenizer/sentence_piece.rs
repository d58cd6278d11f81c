//! SentencePiece's byte-pair encoding: the two neighbours whose union has the highest score merge first.
//!
//! Merges are ordered by score, which a list of ranked merges cannot express exactly, so this module has its own merge loop.
//! Source: Kudo & Richardson 2018, `bpe_model.cc`.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::error::TokenizerError;
use super::normalization::{Ends, Normalization};
use super::vocabulary::{TokenKind, Vocabulary};
use crate::engine::TokenId;

/// Encodes text that has no special tokens.
pub(super) struct SentencePiece {
    scores: Vec<f32>,
    /// The token of each byte, for characters that are not in the vocabulary.
    byte_tokens: Box<[Option<TokenId>; 256]>,
    unknown: Option<TokenId>,
    /// Whether a space is added at the start of the text and after each special token.
    pub(super) adds_space: bool,
    /// What changes a text before it is merged.
    normalization: Normalization,
}

impl SentencePiece {
    /// `scores` has one score per token. The rules are whether a space is added before a text, and what changes it.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        scores: Vec<f32>,
        unknown: Option<TokenId>,
        (adds_space, normalization): (bool, Normalization),
    ) -> Result<Self, TokenizerError> {
        if scores.len() < vocabulary.len() {
            let (n_scores, n_tokens) = (scores.len(), vocabulary.len());
            return Err(TokenizerError::Vocabulary(format!("there are {n_scores} scores for {n_tokens} tokens")));
        }
        let byte_token = |byte: usize| vocabulary.id(&format!("<0x{byte:02X}>"));
        let byte_tokens = Box::new(std::array::from_fn(byte_token));
        Ok(SentencePiece { scores, byte_tokens, unknown, adds_space, normalization })
    }

    /// Appends the tokens of `text`, which has these ends.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        ends: Ends,
        out: &mut Vec<TokenId>,
    ) -> Result<(), TokenizerError> {
        let text = self.normalization.apply(text, ends)?;
        let space = if self.adds_space && ends.start && !text.is_empty() { "▁" } else { "" };
        let text = [space, &text.replace(' ', "▁")].concat();
        let mut merging = Merging::new(self, vocabulary, &text);
        merging.run();
        for symbol in merging.symbols.iter().filter(|symbol| symbol.length > 0) {
            let symbol_text = &text[symbol.start..symbol.start + symbol.length];
            match vocabulary.id(symbol_text) {
                Some(token) => out.push(token),
                None => self.push_unknown(symbol_text, out),
            }
        }
        Ok(())
    }

    /// Appends the tokens of the bytes of a text that is no token. Without them, texts that follow one another share the token for
    /// unknown text.
    fn push_unknown(&self, text: &str, out: &mut Vec<TokenId>) {
        let bytes: Option<Vec<TokenId>> = text.bytes().map(|byte| self.byte_tokens[usize::from(byte)]).collect();
        match (bytes, self.unknown) {
            (Some(bytes), _) => out.extend(bytes),
            (None, Some(unknown)) if out.last() == Some(&unknown) => {}
            (None, unknown) => out.extend(unknown),
        }
    }
}

/// A run of merged characters. Its length is 0 once it has merged into its left neighbour.
struct Symbol {
    start: usize,
    length: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// A possible merge. It is stale if one of its symbols has changed since.
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    length: usize,
}

impl Ord for Candidate {
    /// By score; of equal scores, the leftmost is the greatest.
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

/// The state of merging one text.
struct Merging<'a> {
    pieces: &'a SentencePiece,
    vocabulary: &'a Vocabulary,
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
}

impl<'a> Merging<'a> {
    /// Starts with one symbol per character.
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
                continue; // Stale: one of the symbols has merged since.
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

    /// Queues the merge of two neighbours if their union is a token.
    fn consider(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let start = self.symbols[left].start;
        let length = self.symbols[left].length + self.symbols[right].length;
        // As in SentencePiece, control tokens are never merged from text.
        let token = self.vocabulary.id(&self.text[start..start + length]);
        if let Some(token) = token.filter(|&token| self.vocabulary.kind(token) != Some(TokenKind::Control)) {
            self.queue.push(Candidate { score: self.pieces.scores[token as usize], left, right, length });
        }
    }
}
