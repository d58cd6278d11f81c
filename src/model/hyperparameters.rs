//! The hyperparameters of a model, read from the file's metadata and checked.
//!
//! - `keys`: a key as a type
//! - `layers`: the layers
//! - `attention`, `windows`, `positions`: their mixers
//! - `alignment`: the heads that attend to an encoder where a token is spoken
//! - `selection`: the positions to which they attend
//! - `pools`: the pools of positions to whose entries they attend
//! - `recurrent`: the mixers of recurrent layers
//! - `experts`: their experts
//! - `classifier`: the head of a classifier
//! - `ngrams`: the embeddings of n-grams
//! - `denoising`: how blocks of tokens are denoised
//! - `drafter`: what draft models compute with

mod alignment;
mod attention;
mod classifier;
mod denoising;
mod drafter;
mod experts;
mod keys;
mod layers;
mod ngrams;
mod pools;
mod positions;
mod recurrent;
mod selection;
mod windows;

use cuelight_shaders::attention::{KvShape, Window};
use cuelight_shaders::lanes::softplus;
use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::mix_residuals::MOST_KEPT;
use cuelight_shaders::recurrent::StatePart;
use cuelight_shaders::stream_gates::MOST_STREAMS as MOST_HYPER_STREAMS;
use cuelight_shaders::xielu::Xielu;

use super::arch::{EmbeddingScale, Family, FeedForward, LogitScale, NormKind};
use super::error::ModelError;
use super::layer::{DrafterSpec, HyperSizes, LayerSpec, NgramSpec, StreamConnections, StreamSizes};
use crate::checkpoint::Checkpoint;
use crate::embedding::Pooling;
use crate::sample::DenoisingRule;
pub(super) use classifier::CLASSIFIER;
pub use classifier::ClassifierSpec;
use keys::Keys;

/// The tensor of learnt embeddings of positions, one row for each.
pub(super) const POSITIONS: &str = "position_embd.weight";

/// The key of how embeddings are pooled.
const POOLING: &str = "pooling_type";

/// Its value for models that classify texts, such as rerankers.
const RANK: u32 = 4;

/// Most residual streams. A larger number means a damaged file.
const MOST_STREAMS: usize = 64;

/// Most rounds that balance how hyper-connections mix streams. A larger number means a damaged file.
const MOST_ROUNDS: usize = 1000;

/// The sizes and constants of a model. Every value is within its allowed range.
#[derive(Debug, Clone, PartialEq)]
pub struct HyperParameters {
    /// The value of `general.architecture`.
    pub architecture: String,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// The longest sequence in training, in tokens.
    pub context_train: usize,
    /// Whether each position has a learnt embedding, so that no sequence can be longer than in training.
    pub learns_positions: bool,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// The layers.
    pub layers: Vec<LayerSpec>,
    /// Added to the mean square or the variance in every norm.
    pub norm_epsilon: f32,
    /// The factor on token embeddings.
    pub embedding_scale: f32,
    /// The factor on the outputs of mixers and feed-forwards.
    pub residual_scale: Option<f32>,
    /// The factor on logits.
    pub logit_scale: Option<f32>,
    /// Values of each layer's own input, for models that have such inputs.
    pub per_layer_input: Option<usize>,
    /// The residual streams, for models that have several, or one next to earlier residuals.
    pub streams: Option<StreamSizes>,
    /// The embeddings of n-grams, for models that have these.
    pub ngrams: Option<NgramSpec>,
    /// The parameters of each layer's xIELU, for models that have it.
    pub xielu: Vec<Xielu>,
    /// The largest magnitude of queries, keys and values before rotation.
    pub qkv_limit: Option<f32>,
    /// The factor on the outputs of attention.
    pub attention_value_scale: Option<f32>,
    /// Soft cap on attention scores.
    pub attention_softcap: Option<f32>,
    /// Soft cap on logits.
    pub logit_softcap: Option<f32>,
    /// How embeddings are pooled, if the file says so: then it is made for embeddings only.
    pub pooling: Option<Pooling>,
    /// What the model tells about a text, if it classifies texts.
    pub classifier: Option<ClassifierSpec>,
    /// How many of the first layers add values of an image to their output.
    pub deep_layers: usize,
    /// How blocks of tokens are denoised, for models that generate these.
    pub denoising: Option<DenoisingRule>,
    /// What it computes with, for draft models that compute with the residuals of another model.
    pub drafter: Option<DrafterSpec>,
}

impl HyperParameters {
    /// Reads the hyperparameters that the family needs, for sequences of up to `context_tokens` tokens or, without a
    /// number, as long as in training.
    ///
    /// # Errors
    /// [`ModelError`] when a key is missing, of a wrong type, or has an impossible value.
    pub fn read(
        checkpoint: &dyn Checkpoint,
        family: &Family,
        context_tokens: Option<usize>,
    ) -> Result<Self, ModelError> {
        let keys = Keys::new(checkpoint, family)?;
        let hidden_size = keys.size("embedding_length")?;
        let context_train = keys.size("context_length")?;
        let layers = keys.layer_specs(family, hidden_size, context_tokens.unwrap_or(context_train))?;
        let (vocab_size, streams) = (vocab_size(checkpoint)?, keys.streams(layers.len())?);
        Ok(HyperParameters {
            vocab_size,
            ngrams: keys.ngrams(&layers, vocab_size, streams)?,
            drafter: keys.drafter(family.generation, hidden_size, vocab_size)?,
            xielu: keys.xielu(family.feed_forward, layers.len())?,
            deep_layers: keys.deep_layers(layers.len())?,
            layers,
            norm_epsilon: keys.norm_epsilon(family.norm)?,
            embedding_scale: keys.embedding_scale(family.embedding_scale, hidden_size)?,
            residual_scale: keys.optional_positive("residual_scale")?,
            logit_scale: keys.logit_scale(family.logit_scale)?,
            per_layer_input: keys.per_layer_input()?,
            streams,
            qkv_limit: keys.optional_positive("attention.clamp_kqv")?,
            attention_value_scale: keys.optional_positive("attention.value_scale")?,
            attention_softcap: keys.optional_positive("attn_logit_softcapping")?,
            logit_softcap: keys.optional_positive("final_logit_softcapping")?,
            pooling: keys.pooling()?,
            classifier: keys.classifier(family)?,
            denoising: keys.denoising(family.generation)?,
            architecture: keys.architecture,
            context_train,
            learns_positions: checkpoint.tensor(POSITIONS).is_some(),
            hidden_size,
        })
    }
}

impl HyperParameters {
    /// Number of logits of a row.
    #[must_use]
    pub fn n_logits(&self) -> usize {
        let tokens = self.drafter.as_ref().and_then(|spec| spec.tokens.as_ref());
        tokens.map_or(self.vocab_size, |tokens| tokens.len())
    }

    /// What each layer stores of a sequence; then what the head of a classifier stores, if it reads the mean of all tokens, and the
    /// last tokens, if n-grams have embeddings.
    #[must_use]
    pub fn states(&self) -> Vec<LayerState> {
        let of_mean = self.mean_of_tokens().map(LayerState::of_kv);
        let mut states: Vec<LayerState> = self.layers.iter().map(|layer| layer.mixer.state()).chain(of_mean).collect();
        if let Some(ngrams) = &self.ngrams {
            let [conv, context] = self.ngram_parts(ngrams);
            states[ngrams.layer].recurrent_len = conv.start + conv.len;
            states.push(LayerState::recurrent(context.len));
        }
        states
    }

    /// The state of the convolution of the embeddings of n-grams, and that of their context.
    #[must_use]
    pub fn ngram_parts(&self, ngrams: &NgramSpec) -> [StatePart; 2] {
        let channels = self.streams.map_or(1, |streams| streams.count) * self.hidden_size;
        let own = self.layers[ngrams.layer].mixer.state().recurrent_len;
        let last = self.layers.len() + usize::from(self.mean_of_tokens().is_some());
        [ngrams.conv_part(own, channels), ngrams.context_part(last)]
    }

    /// The keys and values with which the head of a classifier computes the mean of all tokens; `None` if it reads one token.
    #[must_use]
    pub fn mean_of_tokens(&self) -> Option<KvShape> {
        self.classifier.as_ref().filter(|spec| spec.reads_mean)?;
        let heads = self.layers.first()?.mixer.attention()?.heads.n_heads;
        Some(KvShape::grouped(heads, self.hidden_size / heads))
    }

    /// The rows of an encoder with which every sequence starts; 0 if layers do not attend to any.
    #[must_use]
    pub fn encoder_rows(&self) -> usize {
        let rows = |layer: &LayerSpec| match layer.mixer.attention()?.window {
            Some(Window::Before(rows)) => Some(rows),
            _ => None,
        };
        self.layers.iter().find_map(rows).unwrap_or(0)
    }
}

/// The vocabulary's size: the number of rows of the embedding.
fn vocab_size(checkpoint: &dyn Checkpoint) -> Result<usize, ModelError> {
    Ok(checkpoint.weight("token_embd.weight")?.rows)
}

impl Keys<'_> {
    fn deep_layers(&self, n_layers: usize) -> Result<usize, ModelError> {
        const KEY: &str = "n_deepstack_layers";
        match self.checkpoint.optional_u32(&self.name(KEY))?.unwrap_or(0) as usize {
            deep if deep <= n_layers => Ok(deep),
            deep => Err(self.invalid(KEY, deep, format!("at most the number of layers, {n_layers}"))),
        }
    }

    fn pooling(&self) -> Result<Option<Pooling>, ModelError> {
        match self.checkpoint.optional_u32(&self.name(POOLING))? {
            None | Some(0 | RANK) => Ok(None),
            Some(1) => Ok(Some(Pooling::Mean)),
            Some(2) => Ok(Some(Pooling::First)),
            Some(3) => Ok(Some(Pooling::Last)),
            Some(other) => Err(self.invalid(POOLING, other, "1 (mean), 2 (first token), 3 (last token) or 4 (rank)")),
        }
    }

    fn per_layer_input(&self) -> Result<Option<usize>, ModelError> {
        if self.has_ngrams()? {
            return Ok(None);
        }
        let key = "embedding_length_per_layer_input";
        let size = self.checkpoint.optional_u32(&self.name(key))?.filter(|size| *size > 0);
        size.map(|size| self.checked_size(key, size as usize)).transpose()
    }

    fn streams(&self, n_layers: usize) -> Result<Option<StreamSizes>, ModelError> {
        if let Some(streams) = self.alternating_streams()? {
            return Ok(Some(streams));
        }
        match self.kept_residuals(n_layers)? {
            Some(streams) => Ok(Some(streams)),
            None => self.hyper_connected_streams(),
        }
    }

    fn kept_residuals(&self, n_layers: usize) -> Result<Option<StreamSizes>, ModelError> {
        const EVERY: &str = "attn_res.block_size";
        let every = self.checkpoint.optional_u32(&self.name(EVERY))?.filter(|every| *every > 0);
        let Some(every) = every.map(|every| every as usize) else { return Ok(None) };
        if n_layers.div_ceil(every) > MOST_KEPT {
            let expected =
                format!("at least {}, so that at most {MOST_KEPT} residuals are kept", n_layers.div_ceil(MOST_KEPT));
            return Err(self.invalid(EVERY, every, expected));
        }
        Ok(Some(StreamSizes { count: 1, connections: StreamConnections::Kept { every } }))
    }

    fn alternating_streams(&self) -> Result<Option<StreamSizes>, ModelError> {
        const COUNT: &str = "altup.num_inputs";
        const ACTIVE: &str = "altup.active_idx";
        let Some(count) = self.optional_size(COUNT)?.filter(|count| *count > 1) else { return Ok(None) };
        if count > MOST_STREAMS {
            return Err(self.invalid(COUNT, count, format!("at most {MOST_STREAMS}")));
        }
        let active = self.checkpoint.optional_u32(&self.name(ACTIVE))?.unwrap_or(0) as usize;
        if active >= count {
            return Err(self.invalid(ACTIVE, active, format!("below {count}")));
        }
        Ok(Some(StreamSizes { count, connections: StreamConnections::Alternating { active } }))
    }

    fn hyper_connected_streams(&self) -> Result<Option<StreamSizes>, ModelError> {
        const COUNT: &str = "hyper_connection.count";
        const ROUNDS: &str = "hyper_connection.sinkhorn_iterations";
        let Some(count) = self.optional_size(COUNT)? else { return Ok(None) };
        if !(2..=MOST_HYPER_STREAMS).contains(&count) {
            return Err(self.invalid(COUNT, count, format!("between 2 and {MOST_HYPER_STREAMS}")));
        }
        if let Some(low_rank) = self.optional_size("hyper_connection.low_rank")? {
            return Ok(Some(StreamSizes { count, connections: StreamConnections::Gated { low_rank } }));
        }
        let epsilon = self.positive("hyper_connection.epsilon")?;
        if let Some(magnitude) = self.optional_positive("hyper_connection.magnitude")? {
            return Ok(Some(StreamSizes { count, connections: StreamConnections::Independent { magnitude, epsilon } }));
        }
        let rounds = self.size(ROUNDS)?;
        if rounds > MOST_ROUNDS {
            return Err(self.invalid(ROUNDS, rounds, format!("at most {MOST_ROUNDS}")));
        }
        Ok(Some(StreamSizes { count, connections: StreamConnections::Hyper(HyperSizes { rounds, epsilon }) }))
    }

    /// The parameters of xIELU, of which each key has one for each layer.
    fn xielu(&self, form: FeedForward, n_layers: usize) -> Result<Vec<Xielu>, ModelError> {
        if form != FeedForward::UngatedXielu {
            return Ok(Vec::new());
        }
        let of_layers = |key: &str| match self.checkpoint.floats(key)? {
            values if values.len() == n_layers => Ok(values),
            values => Err(ModelError::Hyperparameter {
                file: self.file(),
                key: key.to_owned(),
                found: values.len().to_string(),
                expected: format!("one number for each of {n_layers} layers"),
            }),
        };
        // These keys do not start with the architecture.
        let [alpha_p, alpha_n] = [of_layers("xielu.alpha_p")?, of_layers("xielu.alpha_n")?];
        let [beta, epsilon] = [of_layers("xielu.beta")?, of_layers("xielu.eps")?];
        let of_layer = |layer: usize| {
            // Files have both factors as they were learnt: positive by a softplus, and above beta.
            let [positive, negative] = [alpha_p[layer], alpha_n[layer]].map(softplus);
            Xielu::new([positive, beta[layer] + negative, beta[layer], epsilon[layer]])
        };
        Ok((0..n_layers).map(of_layer).collect())
    }

    fn norm_epsilon(&self, norm: NormKind) -> Result<f32, ModelError> {
        const OF_ROOT: &str = "attention.layer_norm_rms_epsilon";
        const OF_LAYER: &str = "attention.layer_norm_epsilon";
        // Files of one family have the key of the other kind.
        let has_root = self.checkpoint.value(&self.name(OF_ROOT)).is_some();
        let is_other = !has_root && self.checkpoint.value(&self.name(OF_LAYER)).is_some();
        self.positive(if norm == NormKind::Rms && !is_other { OF_ROOT } else { OF_LAYER })
    }

    fn embedding_scale(&self, scale: EmbeddingScale, hidden_size: usize) -> Result<f32, ModelError> {
        let of_family = match scale {
            EmbeddingScale::One => 1.0,
            EmbeddingScale::SqrtHiddenSize => (hidden_size as f32).sqrt(),
            EmbeddingScale::ByKey => self.positive("embedding_scale")?,
        };
        Ok(self.optional_positive("embedding_scale")?.unwrap_or(of_family))
    }

    fn logit_scale(&self, scale: LogitScale) -> Result<Option<f32>, ModelError> {
        let stored = self.optional_positive("logit_scale")?;
        Ok(match scale {
            LogitScale::Unused => None,
            LogitScale::Multiplies => stored,
            LogitScale::Divides => stored.map(|scale| 1.0 / scale),
        })
    }
}

#[cfg(test)]
mod tests;
