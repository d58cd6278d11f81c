//! The tokens for filling in the middle: they mark the text before a gap, the text after it, and the gap itself.

use super::error::TokenizerError;
use super::special::token_key;
use super::vocabulary::{Entry, TokenKind};
use crate::engine::TokenId;
use crate::format::gguf::Gguf;

/// The tokens that mark the parts of a text with a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfillTokens {
    /// Before the text before the gap.
    pub prefix: TokenId,
    /// Before the text after the gap.
    pub suffix: TokenId,
    /// Before the text in the gap, which the model writes.
    pub middle: TokenId,
    /// Before the name of a repository.
    pub repository: Option<TokenId>,
    /// Before the name of a file and its text.
    pub file: Option<TokenId>,
    /// Fills up a batch during training. It ends a generation.
    pub pad: Option<TokenId>,
    /// The model was trained on the suffix, then the prefix, which it continues: [`Self::middle`] is not part of the prompt.
    pub is_suffix_first: bool,
}

/// How families spell the tokens for prefix, suffix and middle.
const GAP_SPELLINGS: &[[&str; 3]] = &[
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
    [SUFFIX_FIRST_PREFIX, "[SUFFIX]", "[MIDDLE]"],
];

/// The token before the prefix of the family whose prompts begin with the suffix, Codestral's.
const SUFFIX_FIRST_PREFIX: &str = "[PREFIX]";

const REPOSITORY_SPELLINGS: &[&str] =
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<repo_name>", "<reponame>", "<REPO>"];
const FILE_SPELLINGS: &[&str] = &["<|file_sep|>", "<file_sep>"];
const PAD_SPELLINGS: &[&str] = &["<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<PAD>"];

/// The keys that name the tokens, in a newer and an older form.
const KEYS: [[&str; 2]; 3] = [["fim_pre", "prefix"], ["fim_suf", "suffix"], ["fim_mid", "middle"]];

impl InfillTokens {
    /// The tokens that a file's keys name, or those with a known spelling where there are no keys. `None` for a model without
    /// tokens for prefix, suffix and middle. Marks the tokens as control tokens, even if the file gives them another kind.
    pub(super) fn of_gguf(gguf: &Gguf, entries: &mut [Entry]) -> Result<Option<Self>, TokenizerError> {
        let n_tokens = entries.len();
        let key = |name: &str| token_key(gguf, &format!("tokenizer.ggml.{name}_token_id"), n_tokens);
        let mut gap = [None; 3];
        for (token, [new, old]) in gap.iter_mut().zip(KEYS) {
            *token = key(new)?.or(key(old)?);
        }
        let others = [key("fim_rep")?, key("fim_sep")?, key("fim_pad")?];
        Ok(Self::find(gap, others, entries))
    }

    /// As [`Self::of_gguf`], by the spellings alone.
    pub(super) fn of_spellings(entries: &mut [Entry]) -> Option<Self> {
        Self::find([None; 3], [None; 3], entries)
    }

    fn find(gap: [Option<TokenId>; 3], others: [Option<TokenId>; 3], entries: &mut [Entry]) -> Option<Self> {
        let spelled = |texts: &[&str]| find_all(texts, entries);
        let [prefix, suffix, middle] = match gap {
            [Some(prefix), Some(suffix), Some(middle)] => [prefix, suffix, middle],
            _ => {
                let found = spelled(GAP_SPELLINGS.as_flattened());
                let whole = found.chunks(3).find_map(|row| Some([row[0]?, row[1]?, row[2]?]))?;
                [gap[0].unwrap_or(whole[0]), gap[1].unwrap_or(whole[1]), gap[2].unwrap_or(whole[2])]
            }
        };
        let other = |token: Option<TokenId>, texts| token.or_else(|| spelled(texts).into_iter().flatten().next());
        let repository = other(others[0], REPOSITORY_SPELLINGS);
        let file = other(others[1], FILE_SPELLINGS);
        let pad = other(others[2], PAD_SPELLINGS);
        let is_suffix_first = entries[prefix as usize].0 == SUFFIX_FIRST_PREFIX;
        let tokens = InfillTokens { prefix, suffix, middle, repository, file, pad, is_suffix_first };
        tokens.all().for_each(|token| entries[token as usize].1 = TokenKind::Control);
        Some(tokens)
    }

    fn all(self) -> impl Iterator<Item = TokenId> {
        [self.prefix, self.suffix, self.middle].into_iter().chain(self.ends())
    }

    /// The tokens that end a generation: a model that writes one goes on to another file.
    pub(super) fn ends(self) -> impl Iterator<Item = TokenId> {
        [self.repository, self.file, self.pad].into_iter().flatten()
    }
}

/// The token of each of the texts; `None` for a text that is no token.
fn find_all(texts: &[&str], entries: &[Entry]) -> Vec<Option<TokenId>> {
    let mut found = vec![None; texts.len()];
    for (id, (spelling, _)) in (0..).zip(entries) {
        // Skips almost all tokens with one comparison.
        if !spelling.contains(['<', '[']) {
            continue;
        }
        if let Some(index) = texts.iter().position(|text| text == spelling) {
            found[index] = found[index].or(Some(id));
        }
    }
    found
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::gguf::write::GgufBuilder;

    fn entries(texts: &[&str]) -> Vec<Entry> {
        texts.iter().map(|text| ((*text).to_owned(), TokenKind::Normal)).collect()
    }

    fn of_keys(keys: &[(&str, u32)], texts: &[&str]) -> (Option<InfillTokens>, Vec<Entry>) {
        let name = |name: &str| format!("tokenizer.ggml.{name}_token_id");
        let file = keys.iter().fold(GgufBuilder::new(), |file, (key, id)| file.key(&name(key), *id));
        let gguf = Gguf::from_bytes("tiny.gguf", file.build()).unwrap();
        let mut entries = entries(texts);
        (InfillTokens::of_gguf(&gguf, &mut entries).unwrap(), entries)
    }

    #[test]
    fn every_spelling_of_a_family_is_found() {
        for [prefix, suffix, middle] in GAP_SPELLINGS {
            let mut entries = entries(&["a", middle, suffix, prefix]);
            let found = InfillTokens::of_spellings(&mut entries).unwrap();
            assert_eq!((found.prefix, found.suffix, found.middle), (3, 2, 1), "{prefix}");
            assert_eq!((found.repository, found.file, found.pad), (None, None, None));
            assert_eq!(found.is_suffix_first, *prefix == "[PREFIX]");
            let kinds: Vec<TokenKind> = entries.iter().map(|(_, kind)| *kind).collect();
            assert_eq!(kinds, [TokenKind::Normal, TokenKind::Control, TokenKind::Control, TokenKind::Control]);
        }
    }

    #[test]
    fn tokens_of_different_families_are_no_set() {
        let mut mixed = entries(&["<PRE>", "<fim_suffix>", "<|fim_middle|>", "<|file_sep|>"]);
        assert_eq!(InfillTokens::of_spellings(&mut mixed), None);
        assert!(mixed.iter().all(|(_, kind)| *kind == TokenKind::Normal));
    }

    #[test]
    fn keys_of_both_forms_go_before_spellings() {
        let texts = ["<PRE>", "<SUF>", "<MID>", "p", "s", "m", "r", "f", "<PAD>"];
        let (found, entries) = of_keys(&[("fim_pre", 3), ("suffix", 4), ("fim_mid", 5), ("fim_rep", 6)], &texts);
        let found = found.unwrap();
        assert_eq!((found.prefix, found.suffix, found.middle), (3, 4, 5));
        assert_eq!((found.repository, found.file, found.pad), (Some(6), None, Some(8)));
        assert_eq!((entries[3].1, entries[0].1), (TokenKind::Control, TokenKind::Normal));
        let (found, _) = of_keys(&[("middle", 5)], &texts);
        assert_eq!(found.map(|found| (found.prefix, found.middle)), Some((0, 5)));
    }

    #[test]
    fn keys_beyond_the_vocabulary_are_ignored() {
        let (found, _) = of_keys(&[("prefix", 90), ("suffix", 91), ("middle", 92)], &["a", "b"]);
        assert_eq!(found, None);
    }
}
