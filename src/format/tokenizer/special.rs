//! Special tokens: which tokens are special, and finding them in text.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, Match, MatchKind};

use super::error::TokenizerError;
use super::vocabulary::{Entry, TokenKind};
use crate::engine::TokenId;
use crate::format::gguf::{Gguf, Metadata};

/// Spellings that end a turn or a text in some family. Files often lack the keys for them.
const END_SPELLINGS: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
];

/// Spellings that end a fill-in-the-middle completion.
const INFILL_END_SPELLINGS: &[&str] = &[
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Spellings that must stay visible in the text: the markup of the harmony format's channels.
const VISIBLE_SPELLINGS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The tokens that end a generation, sorted. Marks them as control tokens, even if the file gives them another kind.
pub(super) fn end_of_generation(
    gguf: &Gguf,
    entries: &mut [Entry],
    eos: Option<TokenId>,
) -> Result<Vec<TokenId>, TokenizerError> {
    let mut ends: Vec<TokenId> = eos.into_iter().collect();
    for name in ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
        ends.extend(token_key(gguf, &format!("tokenizer.ggml.{name}_token_id"), entries.len())?);
    }
    Ok(mark_ends(entries, ends))
}

/// The given tokens and those that end a generation by their spelling, sorted. Marks them as control tokens.
pub(super) fn mark_ends(entries: &mut [Entry], mut ends: Vec<TokenId>) -> Vec<TokenId> {
    let has = |text: &str| entries.iter().any(|(spelling, _)| spelling == text);
    // In the harmony format `<|end|>` ends one of several messages; `<|return|>` or `<|call|>` ends the answer.
    let end_is_inner = (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>"));

    for (id, (text, kind)) in (0..).zip(entries.iter_mut()) {
        let text = text.as_str();
        // Skips almost all tokens with one comparison.
        if !text.starts_with(['<', '[', '_']) {
            continue;
        }
        if (text == "<|end|>" && end_is_inner) || VISIBLE_SPELLINGS.contains(&text) {
            *kind = TokenKind::UserDefined;
        } else if text == "</s>" && *kind != TokenKind::Control {
            // Text: Gemma's vocabulary has it as a piece of HTML.
        } else if END_SPELLINGS.contains(&text) {
            *kind = TokenKind::Control;
            ends.push(id);
        } else if INFILL_END_SPELLINGS.contains(&text) && *kind == TokenKind::Control {
            ends.push(id);
        }
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// The token that a key names. Some files name ids beyond the vocabulary, which are ignored.
pub(super) fn token_key(gguf: &Gguf, key: &str, n_tokens: usize) -> Result<Option<TokenId>, TokenizerError> {
    Ok(gguf.optional_u32(key)?.filter(|&token| (token as usize) < n_tokens))
}

/// A run of text without special tokens, or a special token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    /// Text; never empty.
    Text(&'a str),
    /// A special token.
    Token(TokenId),
}

/// Finds special tokens in text.
pub(super) struct SpecialTokens {
    /// Finds user-defined tokens: for text that cannot contain structure.
    user_defined: Finder,
    /// Finds user-defined and control tokens: for text that may contain structure.
    all: Finder,
}

struct Finder {
    /// `None` when there is nothing to find.
    patterns: Option<AhoCorasick>,
    /// For each pattern: its token, and whether it absorbs the white space after it.
    tokens: Vec<(TokenId, bool)>,
}

impl SpecialTokens {
    /// `takes_space` says whether a token with this spelling absorbs the white space after it.
    pub(super) fn new(entries: &[Entry], takes_space: impl Fn(&str) -> bool) -> Result<Self, TokenizerError> {
        let finder = |wanted: fn(TokenKind) -> bool| {
            let found = (0..).zip(entries).filter(|(_, (text, kind))| wanted(*kind) && !text.is_empty());
            let (texts, tokens) = found.map(|(id, (text, _))| (text, (id, takes_space(text)))).unzip();
            Finder::new(texts, tokens)
        };
        Ok(SpecialTokens {
            user_defined: finder(|kind| kind == TokenKind::UserDefined)?,
            all: finder(|kind| kind == TokenKind::UserDefined || kind.is_special())?,
        })
    }

    /// Splits text at user-defined tokens, and with `parse_special` at control tokens too. The longest match wins.
    pub(super) fn split<'a>(&self, text: &'a str, parse_special: bool) -> Vec<Fragment<'a>> {
        if parse_special { self.all.split(text, &[]) } else { self.user_defined.split(text, &[]) }
    }

    /// Splits text at all special tokens that have none of the `guards` inside. A character between two guards is text.
    pub(super) fn split_guarded<'a>(&self, text: &'a str, guards: &[usize]) -> Vec<Fragment<'a>> {
        self.all.split(text, guards)
    }
}

impl Finder {
    fn new(texts: Vec<&String>, tokens: Vec<(TokenId, bool)>) -> Result<Self, TokenizerError> {
        if texts.is_empty() {
            return Ok(Finder { patterns: None, tokens });
        }
        let patterns = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .map_err(|error| TokenizerError::Vocabulary(error.to_string()))?;
        Ok(Finder { patterns: Some(patterns), tokens })
    }

    fn split<'a>(&self, text: &'a str, guards: &[usize]) -> Vec<Fragment<'a>> {
        let mut fragments = Vec::new();
        // `from` is where the search continues, `copied` the end of the last fragment.
        let (mut from, mut copied) = (0, 0);
        for (index, &end) in guards.iter().chain([&text.len()]).enumerate() {
            let is_between_guards = index > 0 && index < guards.len();
            let is_guarded = is_between_guards && text[guards[index - 1]..end].chars().nth(1).is_none();
            while let Some(found) = self.find(text, from..end).filter(|_| !is_guarded) {
                if copied < found.start() {
                    fragments.push(Fragment::Text(&text[copied..found.start()]));
                }
                let (token, takes_space) = self.tokens[found.pattern().as_usize()];
                fragments.push(Fragment::Token(token));
                from = found.end();
                if takes_space {
                    let rest = &text[from..];
                    from += rest.len() - rest.trim_start_matches(is_c_space).len();
                }
                copied = from;
            }
            from = from.max(end);
        }
        if copied < text.len() {
            fragments.push(Fragment::Text(&text[copied..]));
        }
        fragments
    }

    fn find(&self, text: &str, range: Range<usize>) -> Option<Match> {
        let patterns = self.patterns.as_ref().filter(|_| range.start < range.end)?;
        patterns.find(Input::new(text).range(range))
    }
}

/// White space in the C locale.
fn is_c_space(character: char) -> bool {
    matches!(character, ' ' | '\t'..='\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> SpecialTokens {
        let entry = |text: &str, kind| (text.to_owned(), kind);
        let entries = [
            entry("<a>", TokenKind::Control),
            entry("<a><a>", TokenKind::Control),
            entry("  ", TokenKind::UserDefined),
            entry("x", TokenKind::Normal),
        ];
        SpecialTokens::new(&entries, |text| text == "<a>").unwrap()
    }

    #[test]
    fn control_tokens_are_found_only_with_parse_special() {
        use Fragment::{Text, Token};
        let text = "x<a> y  z<a><a>";
        assert_eq!(tokens().split(text, false), [Text("x<a> y"), Token(2), Text("z<a><a>")]);
        assert_eq!(tokens().split(text, true), [Text("x"), Token(0), Text("y"), Token(2), Text("z"), Token(1)]);
    }

    #[test]
    fn no_token_is_found_across_a_guard() {
        use Fragment::{Text, Token};
        let split = |text, guards: &[usize]| tokens().split_guarded(text, guards);
        assert_eq!(split("x<a> <a>y", &[3]), [Text("x<a> "), Token(0), Text("y")]);
        assert_eq!(split("<a><a>", &[1, 4]), [Text("<a><a>")]);
        assert_eq!(split("<a><a>", &[2]), [Text("<a>"), Token(0)]);
        assert_eq!(split("<a><a>", &[3]), [Token(0), Token(0)]);
        // The white space that a token absorbs may reach beyond a guard.
        assert_eq!(split("<a>   <a>", &[4]), [Token(0), Token(0)]);
    }

    #[test]
    fn a_character_between_guards_is_text() {
        let tokens = SpecialTokens::new(&[("€".to_owned(), TokenKind::Control)], |_| false).unwrap();
        use Fragment::{Text, Token};
        assert_eq!(tokens.split_guarded("€a€€", &[0, 3, 4, 7]), [Text("€a€"), Token(0)]);
    }

    #[test]
    fn empty_text_has_no_fragments() {
        assert!(tokens().split("", true).is_empty());
    }
}
