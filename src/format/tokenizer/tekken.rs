//! A `tekken.json`, the vocabulary of Mistral's own programs, as a `tokenizer.json`.
//!
//! It has the bytes of each token in the order of ranks. Two neighbouring parts of a word become one where they make a token
//! together, that of the lowest rank first. So each way to divide a token into two others is a merge, in the order of ranks. The
//! special tokens have the first ids.

use std::collections::HashMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::error::TokenizerError;
use super::{byte_level, limits};

/// The token before a text.
const BEGIN: &str = "<s>";

#[derive(Deserialize)]
struct File {
    config: Settings,
    vocab: Vec<Ranked>,
    special_tokens: Vec<Special>,
}

#[derive(Deserialize)]
struct Settings {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

/// A token; its place in the list is its rank.
#[derive(Deserialize)]
struct Ranked {
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

/// The content of a `tokenizer.json` with the same tokens.
pub(super) fn to_json(text: &str) -> Result<String, Fault> {
    let file: File = serde_json::from_str(text).map_err(|error| Fault::Content(error.to_string()))?;
    let special = special(&file)?;
    let ranked = ranked(&file, special.len())?;
    limits::check_divisions(ranked.iter().map(Vec::len))?;
    let known: Ranks<'_> = ranked.iter().map(Vec::as_slice).zip(0..).collect();
    let merges: Vec<[String; 2]> = ranked.iter().flat_map(|token| divisions(token, &known)).collect();
    limits::check_merges(merges.len())?;
    let tokens = special.iter().cloned().chain(ranked.iter().map(|token| spelled(token)));
    let vocabulary: Map<String, Json> = tokens.zip(0u32..).map(|(token, id)| (token, id.into())).collect();
    if vocabulary.len() != special.len() + ranked.len() {
        return Err(Fault::Content("two of its tokens are the same".to_owned()));
    }
    let split = json!({ "type": "Split", "pattern": { "Regex": file.config.pattern }, "behavior": "Isolated", "invert": false });
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": false, "byte_fallback": false, "ignore_merges": true, "vocab": vocabulary, "merges": merges,
    });
    let description = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": added(&special),
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [split, bytes()] },
        "post_processor": after_begin(&special), "decoder": bytes(), "model": model,
    });
    Ok(description.to_string())
}

/// Why a file cannot be used.
#[derive(Debug)]
pub(super) enum Fault {
    /// What is wrong with its content.
    Content(String),
    /// It is longer than any real one.
    Long(TokenizerError),
}

impl From<TokenizerError> for Fault {
    fn from(error: TokenizerError) -> Self {
        Fault::Long(error)
    }
}

/// The special tokens in the order of their ids. Ids without one have a name by their number.
fn special(file: &File) -> Result<Vec<String>, Fault> {
    let count = file.config.default_num_special_tokens;
    limits::check_count(count)?;
    let mut tokens: Vec<String> = (0..count).map(|id| format!("<SPECIAL_{id}>")).collect();
    for Special { rank, token_str } in &file.special_tokens {
        let place = tokens.get_mut(*rank);
        let outside = || Fault::Content(format!("special token {token_str:?} has rank {rank} of {count}"));
        place.ok_or_else(outside)?.clone_from(token_str);
    }
    Ok(tokens)
}

/// The bytes of the other tokens that are used: as many as the vocabulary has space for.
fn ranked(file: &File, special: usize) -> Result<Vec<Vec<u8>>, Fault> {
    let count = file.config.default_vocab_size.saturating_sub(special);
    limits::check_count(count)?;
    let used = file.vocab.iter().take(count).enumerate();
    used.map(|(rank, Ranked { token_bytes })| {
        limits::check_token(rank, token_bytes)?;
        let decoded = BASE64_STANDARD.decode(token_bytes);
        decoded.map_err(|error| Fault::Content(format!("the bytes of rank {rank} are no base64: {error}")))
    })
    .collect()
}

/// The rank of each token.
type Ranks<'a> = HashMap<&'a [u8], usize>;

/// The ways to divide a token into two others, in the order of their ranks.
fn divisions(token: &[u8], known: &Ranks<'_>) -> Vec<[String; 2]> {
    let parts = (1..token.len()).map(|at| token.split_at(at));
    let mut both: Vec<_> =
        parts.filter_map(|(left, right)| Some((known.get(left)?, known.get(right)?, left, right))).collect();
    both.sort_unstable();
    both.into_iter().map(|(_, _, left, right)| [spelled(left), spelled(right)]).collect()
}

fn spelled(bytes: &[u8]) -> String {
    let mut text = String::new();
    byte_level::encode(bytes, &mut text);
    text
}

fn bytes() -> Json {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false })
}

fn added(special: &[String]) -> Vec<Json> {
    let token = |(id, content): (usize, &String)| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
    };
    special.iter().enumerate().map(token).collect()
}

/// A text follows the token that begins it, where there is one.
fn after_begin(special: &[String]) -> Json {
    let Some(id) = special.iter().position(|token| token == BEGIN) else { return Json::Null };
    let begin = json!({ "SpecialToken": { "id": BEGIN, "type_id": 0 } });
    let text = |id: &str, type_id: u32| json!({ "Sequence": { "id": id, "type_id": type_id } });
    json!({
        "type": "TemplateProcessing", "single": [begin, text("A", 0)], "pair": [begin, text("A", 0), text("B", 1)],
        "special_tokens": { BEGIN: { "id": BEGIN, "ids": [id], "tokens": [BEGIN] } },
    })
}
