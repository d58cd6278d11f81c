//! A query and a document as the tokens of one sequence, for models that rate how relevant the document is.
//!
//! Most models get both texts with the tokenizer's own tokens around them. Others get a prompt that their file has as a template.
//! Either way, the texts are no more than text: special tokens are not looked for in them.

use crate::engine::TokenId;
use crate::format::tokenizer::{PairLayout, Tokenizer, TokenizerError};

/// The places of the texts in a template.
const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";

/// How a query and a document become one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PairPrompt {
    /// With the tokenizer's own tokens around the texts.
    Layout(PairLayout),
    /// As a prompt: what is before the document and after it.
    Template {
        /// Before the document.
        head: String,
        /// After the document.
        tail: String,
    },
}

/// How long a sequence may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairLimits {
    /// Tokens of the sequence.
    pub tokens: usize,
    /// Tokens of the document; longer ones are cut.
    pub document_tokens: usize,
    /// Whether a document is cut if the sequence would be too long.
    pub truncates: bool,
}

/// A query and a document as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The tokens.
    pub tokens: Vec<TokenId>,
    /// The index of the first token of the document, if the model is told to which text a token belongs.
    pub second_text: Option<usize>,
}

/// Why a query and a document do not become a sequence.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// The template has no place for a text.
    #[error("the template for reranking lacks {0}")]
    Template(&'static str),
    /// The tokenizer has no rule for two texts.
    #[error("the tokenizer has no rule for two texts in one sequence")]
    NoLayout,
    /// A text cannot be tokenised.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The sequence is too long, or would be without any token of the document.
    #[error("the query and the document have {tokens} tokens, but at most {limit} are allowed")]
    TooLong {
        /// Tokens of the sequence.
        tokens: usize,
        /// The limit.
        limit: usize,
    },
}

impl PairPrompt {
    /// The prompt of a model with this tokenizer and, if it has one, template.
    ///
    /// # Errors
    /// [`PairError::Template`] and [`PairError::NoLayout`].
    pub fn new(tokenizer: &Tokenizer, template: Option<&str>) -> Result<Self, PairError> {
        let Some(template) = template else {
            return tokenizer.pair().cloned().map(PairPrompt::Layout).ok_or(PairError::NoLayout);
        };
        if !template.contains(QUERY) {
            return Err(PairError::Template(QUERY));
        }
        let (head, tail) = template.split_once(DOCUMENT).ok_or(PairError::Template(DOCUMENT))?;
        Ok(PairPrompt::Template { head: head.to_owned(), tail: tail.to_owned() })
    }
}

/// Makes the sequences of one query and several documents.
pub struct QueryEncoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The tokens before the document. Those of a template may continue otherwise into the document.
    head: Vec<TokenId>,
    /// The tokens after the document.
    tail: Vec<TokenId>,
    rest: Rest,
}

/// What the two kinds of prompts do not share.
enum Rest {
    Layout { tells_apart: bool },
    Template { head: GuardedText, tail: GuardedText },
}

impl<'a> QueryEncoder<'a> {
    /// The encoder of a query.
    ///
    /// # Errors
    /// [`PairError::Tokenizer`].
    pub fn new(prompt: &PairPrompt, tokenizer: &'a Tokenizer, query: &str) -> Result<Self, PairError> {
        Ok(match prompt {
            PairPrompt::Layout(PairLayout { before, between, after, tells_apart }) => {
                let query = tokenizer.encode(query, false, false)?;
                let head = [&before[..], &query, between].concat();
                QueryEncoder { tokenizer, head, tail: after.clone(), rest: Rest::Layout { tells_apart: *tells_apart } }
            }
            PairPrompt::Template { head, tail } => {
                let [head, tail] = [head, tail].map(|text| GuardedText::of_template(text, query));
                let (head_tokens, tail_tokens) = (head.tokens(tokenizer)?, tail.tokens(tokenizer)?);
                let rest = Rest::Template { head, tail };
                QueryEncoder { tokenizer, head: head_tokens, tail: tail_tokens, rest }
            }
        })
    }

    /// The tokens with which most of its sequences begin.
    #[must_use]
    pub fn head(&self) -> &[TokenId] {
        &self.head
    }

    /// The sequence of a document.
    ///
    /// # Errors
    /// [`PairError::Tokenizer`] and [`PairError::TooLong`].
    pub fn pair(&self, document: &str, limits: PairLimits) -> Result<Pair, PairError> {
        let least = self.head.len() + self.tail.len() + usize::from(!document.is_empty());
        if least > limits.tokens {
            return Err(PairError::TooLong { tokens: least, limit: limits.tokens });
        }
        let (tokens, second_text) = match &self.rest {
            Rest::Layout { tells_apart } => {
                let document = self.tokenizer.encode(document, false, false)?;
                (self.cut([&self.head[..], &document].concat(), limits), tells_apart.then_some(self.head.len()))
            }
            Rest::Template { head, tail } => (self.of_template((head, tail), document, limits)?, None),
        };
        if tokens.len() > limits.tokens {
            return Err(PairError::TooLong { tokens: tokens.len(), limit: limits.tokens });
        }
        Ok(Pair { tokens, second_text })
    }

    /// The whole prompt is tokenised as one text, unless it has to be cut.
    fn of_template(
        &self,
        (head, tail): (&GuardedText, &GuardedText),
        document: &str,
        limits: PairLimits,
    ) -> Result<Vec<TokenId>, PairError> {
        let with_document = head.then_plain(document);
        let whole = with_document.then(tail).tokens(self.tokenizer)?;
        let of_document = whole.len().saturating_sub(self.head.len() + self.tail.len());
        if of_document > limits.document_tokens || (limits.truncates && whole.len() > limits.tokens) {
            return Ok(self.cut(with_document.tokens(self.tokenizer)?, limits));
        }
        Ok(whole)
    }

    /// `tokens` without the end of the document that is beyond the limits, and what follows it.
    fn cut(&self, mut tokens: Vec<TokenId>, limits: PairLimits) -> Vec<TokenId> {
        tokens.truncate(self.head.len().saturating_add(limits.document_tokens));
        if limits.truncates {
            tokens.truncate(limits.tokens.saturating_sub(self.tail.len()));
        }
        tokens.extend(&self.tail);
        tokens
    }
}

/// A text of which parts are no more than text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct GuardedText {
    text: String,
    /// Byte positions that no special token may span.
    guards: Vec<usize>,
}

impl GuardedText {
    /// Part of a template with the query in its place.
    fn of_template(template: &str, query: &str) -> Self {
        let mut parts = template.split(QUERY);
        let first = GuardedText { text: parts.next().unwrap_or_default().to_owned(), guards: Vec::new() };
        parts.fold(first, |before, part| {
            let part = GuardedText { text: part.to_owned(), guards: Vec::new() };
            before.then_plain(query).then(&part)
        })
    }

    /// With a text after it that is no more than text: no special token spans any of its characters.
    fn then_plain(&self, text: &str) -> Self {
        let ends = text.char_indices().map(|(index, _)| index).chain([text.len()]);
        self.then(&GuardedText { text: text.to_owned(), guards: ends.collect() })
    }

    fn then(&self, other: &GuardedText) -> Self {
        let start = self.text.len();
        let mut guards = self.guards.clone();
        guards.extend(other.guards.iter().map(|guard| start + guard));
        guards.dedup();
        GuardedText { text: [&*self.text, &other.text].concat(), guards }
    }

    fn tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<TokenId>, TokenizerError> {
        tokenizer.encode_guarded(&self.text, &self.guards, false)
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// One token for each word; `<s>` and `</s>` are special.
    fn tokenizer() -> Tokenizer {
        let words = ["<unk>", "<s>", "</s>", "q", "d", "e", "is", "?"];
        let vocab: serde_json::Map<String, serde_json::Value> =
            words.iter().map(|word| (*word).to_owned()).zip((0..).map(|id: u32| json!(id))).collect();
        let special = |id: u32, content: &str| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": true,
            })
        };
        let text = json!({
            "version": "1.0",
            "added_tokens": [special(1, "<s>"), special(2, "</s>")],
            "pre_tokenizer": { "type": "BertPreTokenizer" },
            "post_processor": { "type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1] },
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" },
        });
        Tokenizer::from_json_text("t.json", &text.to_string()).unwrap()
    }

    const LIMITS: PairLimits = PairLimits { tokens: 20, document_tokens: usize::MAX, truncates: false };

    fn tokens(template: Option<&str>, document: &str, limits: PairLimits) -> Result<Pair, PairError> {
        let tokenizer = tokenizer();
        let prompt = PairPrompt::new(&tokenizer, template)?;
        QueryEncoder::new(&prompt, &tokenizer, "q ?")?.pair(document, limits)
    }

    #[test]
    fn the_tokenizers_own_tokens_are_around_the_texts() {
        let pair = tokens(None, "d e", LIMITS).unwrap();
        assert_eq!(pair, Pair { tokens: vec![1, 3, 7, 2, 4, 5, 2], second_text: Some(4) });
        assert_eq!(tokens(None, "", LIMITS).unwrap().tokens, [1, 3, 7, 2, 2]);
    }

    #[test]
    fn a_template_has_places_for_both_texts() {
        let pair = tokens(Some("<s> {query} is {document} </s>"), "d e", LIMITS).unwrap();
        assert_eq!(pair, Pair { tokens: vec![1, 3, 7, 6, 4, 5, 2], second_text: None });
        for (template, lacking) in [("{query}", DOCUMENT), ("{document}", QUERY)] {
            let error = tokens(Some(template), "d", LIMITS).unwrap_err();
            assert!(error.to_string().contains(lacking), "{error}");
        }
    }

    #[test]
    fn texts_spell_no_special_tokens() {
        for template in [None, Some("<s> {query} </s> {document} </s>")] {
            let pair = tokens(template, "d </s>", LIMITS).unwrap();
            assert_eq!(pair.tokens, [1, 3, 7, 2, 4, 0, 0, 0, 0, 2], "four unknown characters");
        }
    }

    #[test]
    fn documents_are_cut_and_nothing_else() {
        for template in [None, Some("<s> {query} </s> {document} </s>")] {
            let cut = PairLimits { tokens: 6, truncates: true, ..LIMITS };
            assert_eq!(tokens(template, "d e d e", cut).unwrap().tokens, [1, 3, 7, 2, 4, 2]);
            let short = PairLimits { document_tokens: 2, ..LIMITS };
            assert_eq!(tokens(template, "d e d e", short).unwrap().tokens, [1, 3, 7, 2, 4, 5, 2]);
            let refused = |limits| match tokens(template, "d e d e", limits) {
                Err(PairError::TooLong { tokens, limit }) => (tokens, limit),
                other => panic!("{other:?}"),
            };
            assert_eq!(refused(PairLimits { tokens: 6, ..LIMITS }), (9, 6));
            assert_eq!(refused(PairLimits { tokens: 5, truncates: true, ..LIMITS }), (6, 5), "the query alone");
        }
    }
}
