//! The tokens around two texts in one sequence, for models that compare them.

use super::TokenizerError;
use crate::engine::TokenId;
use crate::format::gguf::{Gguf, Metadata};

/// The tokens around two texts in one sequence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PairLayout {
    /// Those before the first text.
    pub before: Vec<TokenId>,
    /// Those between the texts.
    pub between: Vec<TokenId>,
    /// Those after the second text.
    pub after: Vec<TokenId>,
    /// Whether the model is told to which text a token belongs.
    pub tells_apart: bool,
}

/// How a kind of GGUF tokenizer separates two texts, where the file does not say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Separation {
    /// As many tokens as after a text.
    Once,
    /// The same, whatever the file says.
    OnceAlways,
    /// As after a text, and one more separator.
    Twice,
    /// Once, and the model is told to which text a token belongs.
    OnceToldApart,
}

impl PairLayout {
    /// The layout of a GGUF file that puts `bos` before a text and `eos` after it.
    ///
    /// # Errors
    /// [`TokenizerError::Gguf`] for a key of a wrong type.
    pub(super) fn of_gguf(
        gguf: &Gguf,
        [bos, eos]: [Option<TokenId>; 2],
        separation: Separation,
    ) -> Result<Self, TokenizerError> {
        let stated = gguf.optional_bool("tokenizer.ggml.add_sep_token")?;
        let doubles = match separation {
            Separation::OnceAlways | Separation::OnceToldApart => false,
            Separation::Once => stated.unwrap_or(false),
            Separation::Twice => stated.unwrap_or(true),
        };
        let after: Vec<TokenId> = eos.into_iter().collect();
        let between = if doubles { after.repeat(2) } else { after.clone() };
        let tells_apart = separation == Separation::OnceToldApart;
        Ok(PairLayout { before: bos.into_iter().collect(), between, after, tells_apart })
    }

    /// The layout of a `tokenizer.json`: what it makes of two words.
    pub(super) fn of_json(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let encoding = tokenizer.encode(("a", "b"), true).ok()?;
        let (tokens, types) = (encoding.get_ids(), encoding.get_type_ids());
        let sequences = encoding.get_sequence_ids();
        let range_of = |text: usize| {
            let of_text = |sequence: &Option<usize>| *sequence == Some(text);
            Some(sequences.iter().position(of_text)?..sequences.iter().rposition(of_text)? + 1)
        };
        let (first, second) = (range_of(0)?, range_of(1)?);
        let is_in_order = first.end <= second.start;
        is_in_order.then(|| PairLayout {
            before: tokens[..first.start].to_vec(),
            between: tokens[first.end..second.start].to_vec(),
            after: tokens[second.end..].to_vec(),
            tells_apart: types.get(second.start) == Some(&1),
        })
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn layout(post_processor: serde_json::Value) -> Option<PairLayout> {
        let vocab = json!({ "a": 0, "b": 1, "[CLS]": 2, "[SEP]": 3 });
        let model = json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "a" });
        let text = json!({ "version": "1.0", "model": model, "post_processor": post_processor }).to_string();
        PairLayout::of_json(&text.parse().unwrap())
    }

    #[test]
    fn a_post_processor_says_what_is_around_two_texts() {
        let bert = layout(json!({ "type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2] })).unwrap();
        let expected = PairLayout { before: vec![2], between: vec![3], after: vec![3], tells_apart: true };
        assert_eq!(bert, expected);
        let roberta = json!({
            "type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": true,
            "add_prefix_space": false,
        });
        let expected = PairLayout { between: vec![3, 3], tells_apart: false, ..expected };
        assert_eq!(layout(roberta).unwrap(), expected);
    }

    #[test]
    fn without_a_post_processor_nothing_is_around_two_texts() {
        let found = layout(serde_json::Value::Null).unwrap();
        assert_eq!((found.before, found.between, found.after), (vec![], vec![], vec![]));
    }
}
