//! A Hugging Face `tokenizer.json`, run with the `tokenizers` crate.

use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use super::error::TokenizerError;
use super::infill::InfillTokens;
use super::normalization::check_table;
use super::pair::PairLayout;
use super::special::{Fragment, SpecialTokens, mark_ends};
use super::vocabulary::{Entry, Spelling, TokenKind, Vocabulary, byte_of};
use crate::engine::TokenId;

/// Two copies of the tokenizer: in the crate, parsing special tokens is a setting of the tokenizer, not an argument.
pub(super) struct JsonTokenizer {
    parses_special: tokenizers::Tokenizer,
    spells_special: tokenizers::Tokenizer,
    special: SpecialTokens,
    /// The token before a text.
    bos: Option<TokenId>,
    /// Whether that token has to be added to what the crate gives.
    prepends_bos: bool,
}

/// What the other files of a directory state about its tokenizer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JsonSettings {
    /// The spelling of the token before a text.
    pub bos: Option<String>,
    /// The spelling of the token after a text.
    pub eos: Option<String>,
    /// The tokens that end a generation.
    pub ends: Vec<TokenId>,
    /// Whether encoding adds the token before a text, even if `tokenizer.json` does not say so.
    pub adds_bos: bool,
}

impl JsonTokenizer {
    pub(super) fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let tokenizer = if parse_special { &self.parses_special } else { &self.spells_special };
        let encoding =
            tokenizer.encode_fast(text, add_special).map_err(|error| TokenizerError::Pattern(error.to_string()))?;
        let bos = self.bos.filter(|_| add_special && self.prepends_bos);
        Ok(bos.into_iter().chain(encoding.get_ids().iter().copied()).collect())
    }

    /// The token that is added before a text.
    pub(super) fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The crate cannot ignore single occurrences of special tokens. The text around guards is encoded apart from the rest, so
    /// its first token may differ from that of one text where the tokenizer adds a space before texts.
    pub(super) fn encode_guarded(
        &self,
        text: &str,
        guards: &[usize],
        add_special: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        if guards.is_empty() {
            return self.encode(text, add_special, true);
        }
        let mut tokens: Vec<TokenId> = self.bos.filter(|_| add_special).into_iter().collect();
        for fragment in self.special.split_guarded(text, guards) {
            match fragment {
                Fragment::Token(token) => tokens.push(token),
                Fragment::Text(text) => tokens.extend(self.encode(text, false, false)?),
            }
        }
        Ok(tokens)
    }
}

/// The content of a `tokenizer.json`.
pub(super) struct Loaded {
    pub(super) tokenizer: JsonTokenizer,
    pub(super) vocabulary: Vocabulary,
    pub(super) bos: Option<TokenId>,
    pub(super) eos: Option<TokenId>,
    pub(super) end_of_generation: Vec<TokenId>,
    pub(super) infill: Option<InfillTokens>,
    pub(super) pair: Option<PairLayout>,
    pub(super) adds_space: bool,
}

/// Reads a `tokenizer.json`.
pub(super) fn load(path: &Path) -> Result<Loaded, TokenizerError> {
    let unreadable = |error: std::io::Error| TokenizerError::Json { path: path.to_owned(), reason: error.to_string() };
    parse(path, &std::fs::read_to_string(path).map_err(unreadable)?, &JsonSettings::default())
}

/// Reads the text of a `tokenizer.json`. Errors show `path` as the file.
pub(super) fn parse(path: &Path, text: &str, settings: &JsonSettings) -> Result<Loaded, TokenizerError> {
    let fault = |reason: String| TokenizerError::Json { path: path.to_owned(), reason };
    let mut description: Value = serde_json::from_str(text).map_err(|error| fault(error.to_string()))?;
    check_tables(&description["normalizer"]).map_err(fault)?;
    let marked = mark_infill_tokens(&mut description).then(|| description.to_string());
    let mut parses_special: tokenizers::Tokenizer =
        marked.as_deref().unwrap_or(text).parse().map_err(|error: tokenizers::Error| fault(error.to_string()))?;
    // These settings are for batches of a training run. A prompt is never cut or filled up.
    parses_special.with_truncation(None).map_err(|error| fault(error.to_string()))?;
    parses_special.with_padding(None);
    let mut spells_special = parses_special.clone();
    spells_special.set_encode_special_tokens(true);

    let decoder = description["decoder"].to_string();
    let spelling = if decoder.contains("ByteLevel") { Spelling::ByteLevel } else { Spelling::SpaceMark };
    // The two kinds of decoder that remove a leading space.
    let adds_space = decoder.contains("\"Strip\"") || decoder.contains("\"Metaspace\"");
    let mut entries = entries(&parses_special);
    let infill = InfillTokens::of_spellings(&mut entries);
    let find = |names: &[&str]| {
        let index = names.iter().find_map(|name| entries.iter().position(|(text, _)| text == name))?;
        TokenId::try_from(index).ok()
    };
    let stated = |spelling: &Option<String>| find(&[spelling.as_deref()?]);
    let added = first_added(&parses_special);
    let bos = added.or_else(|| stated(&settings.bos)).or_else(|| find(&["<|begin_of_text|>", "<bos>", "<s>"]));
    let usual_eos =
        || find(&["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>"]);
    let eos = stated(&settings.eos).or_else(usual_eos);
    let known = settings.ends.iter().copied().filter(|&token| (token as usize) < entries.len());
    let ends = known.chain(stated(&settings.eos)).chain(infill.into_iter().flat_map(InfillTokens::ends)).collect();
    let end_of_generation = mark_ends(&mut entries, ends);
    let pair = PairLayout::of_json(&parses_special);
    let special = SpecialTokens::new(&entries, |_| false)?;
    let vocabulary = Vocabulary::new(entries, spelling)?;
    let prepends_bos = settings.adds_bos && added.is_none();
    let before = if prepends_bos { bos } else { added };
    let tokenizer = JsonTokenizer { bos: before, prepends_bos, parses_special, spells_special, special };
    Ok(Loaded { tokenizer, vocabulary, bos, eos, end_of_generation, infill, pair, adds_space })
}

/// Checks the tables of characters of a normalizer and of those inside it. The crate that searches them trusts them.
fn check_tables(normalizer: &Value) -> Result<(), String> {
    if let Some(table) = normalizer["precompiled_charsmap"].as_str().filter(|table| !table.is_empty()) {
        let table =
            BASE64_STANDARD.decode(table).map_err(|error| format!("\"precompiled_charsmap\" is no base64: {error}"))?;
        check_table(&table).map_err(|error| error.to_string())?;
    }
    normalizer["normalizers"].as_array().into_iter().flatten().try_for_each(check_tables)
}

/// Makes the tokens for filling in the middle special, because some files have them as text that is always encoded as these
/// tokens. Whether there was one.
fn mark_infill_tokens(description: &mut Value) -> bool {
    let Some(added) = description.get_mut("added_tokens").and_then(Value::as_array_mut) else { return false };
    let spelling = |token: &Value| token["content"].as_str().unwrap_or_default().to_owned();
    let mut entries: Vec<Entry> = added.iter().map(|token| (spelling(token), TokenKind::Normal)).collect();
    if InfillTokens::of_spellings(&mut entries).is_none() {
        return false;
    }
    let mut is_changed = false;
    for (token, (_, kind)) in added.iter_mut().zip(entries) {
        if kind == TokenKind::Control && token["special"] == false {
            token["special"] = true.into();
            is_changed = true;
        }
    }
    is_changed
}

/// The token that the tokenizer adds before a text. Others are added only behind it.
fn first_added(tokenizer: &tokenizers::Tokenizer) -> Option<TokenId> {
    let ids = |adds| Some(tokenizer.encode_fast("a", adds).ok()?.get_ids().to_vec());
    let (plain, whole) = (ids(false)?, ids(true)?);
    let is_behind = !plain.is_empty() && whole.starts_with(&plain);
    if is_behind { None } else { whole.first().copied() }
}

/// All tokens by id. Unused ids get a placeholder.
pub(super) fn entries(tokenizer: &tokenizers::Tokenizer) -> Vec<Entry> {
    let vocab = tokenizer.get_vocab(true);
    let n_tokens = vocab.values().max().map_or(0, |&last| last as usize + 1);
    // A hostile file may give a token the id four billion. No real vocabulary has more unused ids than tokens.
    let n_tokens = n_tokens.min(2 * vocab.len() + 1024);
    let mut entries: Vec<Entry> = (0..n_tokens).map(|id| (format!("[UNUSED_{id}]"), TokenKind::Unused)).collect();
    let added = tokenizer.get_added_tokens_decoder();
    for (text, id) in vocab {
        let kind = match added.get(&id) {
            Some(token) if token.special => TokenKind::Control,
            Some(_) => TokenKind::UserDefined,
            None if byte_of(&text).is_some() => TokenKind::Byte,
            None => TokenKind::Normal,
        };
        if let Some(entry) = entries.get_mut(id as usize) {
            *entry = (text, kind);
        }
    }
    entries
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_damaged_table_of_characters_is_named_before_it_is_searched() {
        // A trie of 4 GiB, one without a root, and no base64.
        for (table, reason) in [("/////w==", "is damaged"), ("AAAAAA==", "is damaged"), ("?", "no base64")] {
            let normalizer = json!({ "type": "Precompiled", "precompiled_charsmap": table });
            for normalizer in [normalizer.clone(), json!({ "type": "Sequence", "normalizers": [normalizer] })] {
                let text = json!({ "normalizer": normalizer, "model": { "type": "Unigram", "vocab": [["a", 0.0]] } });
                let error =
                    parse(Path::new("t.json"), &text.to_string(), &JsonSettings::default()).map(drop).unwrap_err();
                assert!(error.to_string().contains(reason), "{error}");
            }
        }
    }
}
