//! What a draft model computes with, for architectures that draft.

use super::keys::Keys;
use crate::checkpoint::drafter::{LAYERS, TOKENS};
use crate::engine::TokenId;
use crate::model::arch::Generation;
use crate::model::error::ModelError;
use crate::model::layer::DrafterSpec;

impl Keys<'_> {
    /// What it computes with, given its hidden size and the tokens of the model; `None` for other models.
    pub(super) fn drafter(
        &self,
        generation: Generation,
        hidden_size: usize,
        vocab_size: usize,
    ) -> Result<Option<DrafterSpec>, ModelError> {
        if generation != Generation::Drafts {
            return Ok(None);
        }
        self.refuse("norm_before_fc")?;
        let key = self.name("norm_before_residual");
        let layers = self.checkpoint.integers(&self.name(LAYERS))?;
        Ok(Some(DrafterSpec {
            layers: layers.into_iter().filter_map(|layer| usize::try_from(layer).ok()).collect(),
            model_hidden_size: self.optional_size("target_hidden_size")?.unwrap_or(hidden_size),
            norm_before_residual: self.checkpoint.optional_bool(&key)?.unwrap_or(false),
            tokens: self.draft_tokens(vocab_size)?.map(Into::into),
        }))
    }

    /// Refuses a file with a variant that is not computed.
    fn refuse(&self, key: &str) -> Result<(), ModelError> {
        match self.checkpoint.optional_bool(&self.name(key))? {
            Some(true) => Err(self.invalid(key, true, "false: other variants of the draft model are not supported")),
            _ => Ok(()),
        }
    }

    /// The token of each logit.
    fn draft_tokens(&self, vocab_size: usize) -> Result<Option<Vec<TokenId>>, ModelError> {
        let Some(tokens) = self.checkpoint.optional_integers(&self.name(TOKENS))? else { return Ok(None) };
        let token = |found: i64| {
            let token = TokenId::try_from(found).ok().filter(|token| (*token as usize) < vocab_size);
            token.ok_or_else(|| self.invalid(TOKENS, found, format!("tokens below {vocab_size}")))
        };
        tokens.into_iter().map(token).collect::<Result<_, _>>().map(Some)
    }
}
