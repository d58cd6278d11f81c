//! Tokens that are more than text: which ones they are, and finding them in text.

use aho_corasick::{AhoCorasick, Input, MatchKind};

use super::TokenizerError;
use super::vocabulary::{Entry, TokenKind};
use crate::engine::TokenId;
use crate::format::gguf::Gguf;

/// Spellings that end a turn or a text in one family or another; files often forget to say so.
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

/// Spellings that end what was filled into the middle of a text.
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

/// Spellings that must stay visible in the text: the channels of a harmony answer.
const VISIBLE_SPELLINGS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The tokens that end a generation, sorted. Marks them as control tokens, whatever the file says of them.
pub(super) fn end_of_generation(
    gguf: &Gguf,
    entries: &mut [Entry],
    eos: Option<TokenId>,
) -> Result<Vec<TokenId>, TokenizerError> {
    let mut ends: Vec<TokenId> = eos.into_iter().collect();
    for name in ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
        ends.extend(token_key(gguf, &format!("tokenizer.ggml.{name}_token_id"), entries.len())?);
    }
    let has = |text: &str| entries.iter().any(|(spelling, _)| spelling == text);
    // In harmony `<|end|>` ends a message of several, and `<|return|>` or `<|call|>` the answer.
    let end_is_inner = (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>"));

    for (id, (text, kind)) in (0..).zip(entries.iter_mut()) {
        let text = text.as_str();
        // Hundreds of thousands of tokens are none of these.
        if !text.starts_with(['<', '[', '_']) {
            continue;
        }
        if (text == "<|end|>" && end_is_inner) || VISIBLE_SPELLINGS.contains(&text) {
            *kind = TokenKind::UserDefined;
        } else if text == "</s>" && *kind != TokenKind::Control {
            // Text after all: Gemma has it as a piece of HTML.
        } else if END_SPELLINGS.contains(&text) {
            *kind = TokenKind::Control;
            ends.push(id);
        } else if INFILL_END_SPELLINGS.contains(&text) && *kind == TokenKind::Control {
            ends.push(id);
        }
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

/// The tokens that end a generation by their spelling alone, sorted.
pub(super) fn end_spellings(entries: &[Entry]) -> Vec<TokenId> {
    (0..).zip(entries).filter(|(_, (text, _))| END_SPELLINGS.contains(&text.as_str())).map(|(id, _)| id).collect()
}

/// The token that a key names; files name tokens that do not exist, which is the same as naming none.
pub(super) fn token_key(gguf: &Gguf, key: &str, n_tokens: usize) -> Result<Option<TokenId>, TokenizerError> {
    Ok(gguf.optional_u32(key)?.filter(|&token| (token as usize) < n_tokens))
}

/// A stretch of text, or a token that was found in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    /// Text without special tokens; never empty.
    Text(&'a str),
    /// A special token.
    Token(TokenId),
}

/// Finds special tokens in text.
pub(super) struct SpecialTokens {
    /// Those found in any text.
    user_defined: Finder,
    /// Those, and control tokens: for text that may contain structure.
    all: Finder,
}

struct Finder {
    /// `None` when there is nothing to find.
    patterns: Option<AhoCorasick>,
    /// For each pattern its token and whether it takes the white space after it.
    tokens: Vec<(TokenId, bool)>,
}

impl SpecialTokens {
    /// `takes_space`: whether a token's text takes the white space after it.
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

    /// Cuts text at its special tokens; `parse_special`: at control tokens too. At each place the longest one counts.
    pub(super) fn cut<'a>(&self, text: &'a str, parse_special: bool) -> Vec<Fragment<'a>> {
        if parse_special { self.all.cut(text) } else { self.user_defined.cut(text) }
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

    fn cut<'a>(&self, text: &'a str) -> Vec<Fragment<'a>> {
        let mut fragments = Vec::new();
        let mut from = 0;
        let find = |from| self.patterns.as_ref()?.find(Input::new(text).range(from..));
        while let Some(found) = find(from) {
            if from < found.start() {
                fragments.push(Fragment::Text(&text[from..found.start()]));
            }
            let (token, takes_space) = self.tokens[found.pattern().as_usize()];
            fragments.push(Fragment::Token(token));
            from = found.end();
            if takes_space {
                let rest = &text[from..];
                from += rest.len() - rest.trim_start_matches(is_c_space).len();
            }
        }
        if from < text.len() {
            fragments.push(Fragment::Text(&text[from..]));
        }
        fragments
    }
}

/// White space as C's locale has it.
fn is_c_space(character: char) -> bool {
    matches!(character, ' ' | '\t'..='\r')
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
    fn control_tokens_are_found_only_when_asked_for() {
        use Fragment::{Text, Token};
        let text = "x<a> y  z<a><a>";
        assert_eq!(tokens().cut(text, false), [Text("x<a> y"), Token(2), Text("z<a><a>")]);
        assert_eq!(tokens().cut(text, true), [Text("x"), Token(0), Text("y"), Token(2), Text("z"), Token(1)]);
    }

    #[test]
    fn empty_text_has_no_fragments() {
        assert!(tokens().cut("", true).is_empty());
    }
}
