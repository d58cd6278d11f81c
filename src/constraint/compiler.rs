//! Compiles grammars for one model, and keeps what was compiled last.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::{Matcher, ParserFactory};

use super::error::GrammarError;
use super::free_text::FreeText;
use super::grammar::Grammar;
use super::prepared::Prepared;
use super::state::ConstraintState;
use super::{schema, structural_tag, vocabulary};
use crate::format::tokenizer::Tokenizer;

/// A compiled grammar. Clones share it.
#[derive(Clone)]
pub struct Constraint(Arc<Compiled>);

struct Compiled {
    key: String,
    grammar: Grammar,
    /// The state before the first token.
    start: Mutex<Matcher>,
    free: Option<FreeText>,
}

impl Constraint {
    /// Whether it is about parts of a text that is free otherwise.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.0.free.is_some()
    }

    /// What was compiled.
    #[must_use]
    pub fn grammar(&self) -> &Grammar {
        &self.0.grammar
    }

    /// The state of a new sequence, which shares no cache with others, so that sequences are computed in parallel.
    #[must_use]
    pub fn start(&self) -> ConstraintState {
        let start = self.0.start.lock().unwrap_or_else(PoisonError::into_inner);
        ConstraintState::new(start.deep_clone(), self.0.free.clone())
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Constraint").field(&self.0.key).finish()
    }
}

impl PartialEq for Constraint {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

/// Compiles grammars for the vocabulary of a model.
pub struct ConstraintCompiler {
    tokenizer: Arc<Tokenizer>,
    rows: usize,
    /// Made for the first grammar, because most models never see one.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    /// What was compiled last, the latest first.
    cache: Mutex<VecDeque<Constraint>>,
}

impl fmt::Debug for ConstraintCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintCompiler").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// Compiled grammars that are kept.
const CACHED: usize = 64;

/// Most states of the automaton of a sequence, each of which takes about half a kilobyte. Schemas need some thousands.
const MAX_STATES: usize = 50_000;

/// Bytes of a grammar that is kept. The keys alone are at most [`CACHED`] times as large.
const CACHED_BYTES: usize = 1 << 20;

impl ConstraintCompiler {
    /// A compiler for a tokenizer and a model with `rows` logits.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, rows: usize) -> Self {
        ConstraintCompiler { tokenizer, rows, factory: OnceLock::new(), cache: Mutex::default() }
    }

    /// The number of logits of the model. Tokens from this number on cannot stand in a grammar.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Compiles a grammar. Takes milliseconds, so call it on a thread that may block.
    ///
    /// # Errors
    /// [`GrammarError`] when the grammar is malformed, too large, or cannot be enforced.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        let key = grammar.key();
        if let Some(cached) = self.cached(&key) {
            return Ok(cached);
        }
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(Clone::clone)?;
        let Prepared { grammar: prepared, triggers } = grammar.prepare(&self.tokenizer, self.rows)?;
        let matcher = Matcher::new(factory.create_parser(prepared));
        let start = match matcher.get_error() {
            Some(error) => return Err(refusal(grammar, &error)),
            None => matcher,
        };
        // A grammar that allows no token at all is refused now.
        let first = ConstraintState::new(start.deep_clone(), None).mask();
        let first = first.map_err(|error| GrammarError::refused(error.to_string()))?;
        let free = (!triggers.is_empty()).then(|| FreeText::new(self.tokenizer.clone(), &triggers, first));
        let constraint =
            Constraint(Arc::new(Compiled { key, grammar: grammar.clone(), start: Mutex::new(start), free }));
        self.keep(&constraint);
        Ok(constraint)
    }

    fn factory(&self) -> Result<ParserFactory, GrammarError> {
        let environment = vocabulary::of(&self.tokenizer, self.rows)?;
        let factory = ParserFactory::new_simple(&environment);
        let mut factory = factory.map_err(|error| GrammarError::Vocabulary(error.to_string()))?;
        let limits = factory.quiet().limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = MAX_STATES;
        Ok(factory)
    }

    fn cached(&self, key: &str) -> Option<Constraint> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let index = cache.iter().position(|constraint| constraint.0.key == key)?;
        let constraint = cache.remove(index)?;
        cache.push_front(constraint.clone());
        Some(constraint)
    }

    fn keep(&self, constraint: &Constraint) {
        if constraint.0.key.len() > CACHED_BYTES {
            return;
        }
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.push_front(constraint.clone());
        cache.truncate(CACHED);
    }
}

/// The library's error for a client: the keyword and its place in a schema, in one line.
fn refusal(grammar: &Grammar, error: &str) -> GrammarError {
    let reason = one_line(error);
    let pointer = locate(grammar, error);
    let message = match &pointer {
        Some(pointer) => format!("{pointer}: {reason}"),
        None => reason,
    };
    GrammarError::Refused { pointer, message }
}

/// The place in a schema that an error is about.
fn locate(grammar: &Grammar, error: &str) -> Option<String> {
    match grammar {
        Grammar::JsonSchema(value) => schema::locate(value, error),
        Grammar::Around { answer, .. } => locate(answer, error),
        Grammar::StructuralTag(tag) => structural_tag::locate(tag, error),
        _ => None,
    }
}

/// The first line of an error, and the one that the parser of regular expressions ends with.
fn one_line(error: &str) -> String {
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("it is not valid").trim_end_matches(':');
    let cause = lines.find_map(|line| line.strip_prefix("error: "));
    let line = cause.map_or_else(|| first.to_owned(), |cause| format!("{first}: {cause}"));
    line.chars().take(300).collect()
}

#[cfg(test)]
mod tests;
