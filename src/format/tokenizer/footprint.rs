//! The memory of a tokenizer, known from the lengths of its lists before it is built.
//!
//! Counted is the largest amount during the build: the lists that are dropped afterwards leave gaps on the heap, which the
//! system does not get back.

use super::error::TokenizerError;
use super::limits;
use crate::format::gguf::{Gguf, Metadata};

/// Bytes of a string on the heap in addition to its text: the allocator's header and rounding.
const STRING_OVERHEAD: usize = 24;
/// Bytes of a `String` itself.
const STRING: usize = size_of::<String>();

/// A list of strings: their number and the bytes of their texts.
#[derive(Debug, Clone, Copy, Default)]
struct Texts {
    count: usize,
    bytes: usize,
}

impl Texts {
    fn of(gguf: &Gguf, key: &str) -> Self {
        let Ok(strings) = gguf.strings(key) else { return Texts::default() };
        Texts { count: strings.len(), bytes: strings.text_bytes() }
    }

    /// The texts on the heap.
    fn heap(self) -> usize {
        self.bytes + self.count * STRING_OVERHEAD
    }

    /// A map with a string and a number in each entry.
    fn map(self) -> usize {
        self.heap() + map_bytes(self.count, STRING + 8)
    }
}

/// Bytes of a hash map: a power of two of slots, of which at most seven of eight are used, and a byte for each slot.
fn map_bytes(count: usize, entry_bytes: usize) -> usize {
    (count * 8 / 7 + 1).next_power_of_two() * (entry_bytes + 1)
}

/// The memory of the tokenizer that a file describes; 0 without one. Checks the limits on vocabularies, so that a file which
/// exceeds them is refused with its reason and not for its memory.
pub(super) fn memory_bytes(gguf: &Gguf) -> Result<u64, TokenizerError> {
    let (tokens, merges) = (Texts::of(gguf, "tokenizer.ggml.tokens"), Texts::of(gguf, "tokenizer.ggml.merges"));
    // Models of the `tokenizers` crate, as opposed to our own.
    let is_of_crate = gguf.optional_str("tokenizer.ggml.model").ok().flatten() != Some("llama");
    // The map of spellings, the bytes of each token and their ends, and the list from which they are built.
    let vocabulary = tokens.map() + tokens.bytes + tokens.count * (2 * size_of::<usize>() + STRING + 8);
    let model = if is_of_crate {
        // The model has its own maps of tokens in both directions, and is built from a list of pairs.
        2 * tokens.map() + map_bytes(merges.count, 16) + 2 * merges.heap() + merges.count * 2 * STRING
    } else {
        tokens.count * size_of::<f32>()
    };
    // The numbers of the file, in 64 bits while they are read.
    let kinds = tokens.count * size_of::<i64>();
    Ok((vocabulary + model + kinds + searched_bytes(gguf)?) as u64)
}

/// The two automata that find special tokens: up to a hundred patterns have a table with an entry for each byte in each state.
fn searched_bytes(gguf: &Gguf) -> Result<usize, TokenizerError> {
    const DENSE_PATTERNS: usize = 100;
    const DENSE_STATE: usize = 256 * size_of::<u32>();
    const SPARSE_STATE: usize = 64;
    let kinds = gguf.optional_integers("tokenizer.ggml.token_type").ok().flatten().unwrap_or_default();
    let Ok(tokens) = gguf.strings("tokenizer.ggml.tokens") else { return Ok(0) };
    limits::check_count(tokens.len())?;
    tokens.clone().enumerate().try_for_each(|(id, text)| limits::check_token(id, text))?;
    // Normal, unused and byte tokens are not searched for.
    let searched = tokens.zip(kinds).enumerate().filter(|(_, (_, kind))| (2..=4).contains(kind));
    limits::check_searched(searched.clone().map(|(id, (text, _))| (id, text)))?;
    let (count, states) = searched.fold((0, 0), |(count, states), (_, (text, _))| (count + 1, states + text.len()));
    Ok(2 * states * if count <= DENSE_PATTERNS { DENSE_STATE } else { SPARSE_STATE })
}
