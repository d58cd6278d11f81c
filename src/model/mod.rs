//! A model file as a graph: hyperparameters from the metadata, a family that says how layers are built, and the ops of both.
//!
//! # Layout, in reading order
//!
//! - [`arch`]: the families, one declarative file each
//! - [`hyperparameters`]: the metadata, checked
//! - [`layer`]: how each layer is built, from both; [`describe`] says it in words
//! - [`rope`]: rotary frequencies and their scaling rules; [`alibi`]: scores that fall with distance
//! - [`weights`]: tensors by name, checked against the expected shape
//! - [`builder`]: the graph under construction
//! - [`mixer`] and [`ffn`]: the two halves of a layer
//! - `streams`: several residual streams, where a model has them; `low_rank`: a learnt residual
//! - `canvas`: the rows of blocks that are denoised together
//! - `prediction`: the input of a layer that predicts one more token; `drafter`: that of a draft model that reads residuals
//! - `encoder_rows`: what other rows read of the rows of an encoder
//! - `ngrams`: embeddings of n-grams of tokens, where a model has them
//! - `per_layer`: inputs of single layers, where a model has them
//! - [`norm_readers`]: the norms whose output only matrices read
//! - [`output`]: what follows the last layer; `classifier`: the head of rerankers and other classifiers
//! - `vocabulary`: adapters of the token embedding and the output head
//! - [`ModelGraph::build`]: embedding, layers, output

pub mod alibi;
pub mod arch;
pub mod builder;
mod canvas;
mod classifier;
pub mod describe;
mod drafter;
mod encoder_rows;
pub mod error;
pub mod ffn;
pub mod hyperparameters;
pub mod layer;
mod low_rank;
pub mod mixer;
mod ngrams;
pub mod norm_readers;
mod output;
mod per_layer;
mod prediction;
pub mod rope;
mod streams;
mod vocabulary;
pub mod weights;

use cuelight_shaders::add::Add;
use cuelight_shaders::embed::Embed;
use cuelight_shaders::given_rows::GivenRows;
use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::rms_norm::RmsNorm;
use cuelight_shaders::scale::Scale;

use crate::adapters::projections::Projection;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::drafter::is_drafter;
use crate::checkpoint::prediction::PredictionLayer;
use crate::embedding::EmbeddingSpec;
use crate::engine::AdapterLimits;
use crate::graph::{Graph, ValueId};
use arch::{EmbeddingNorm, Norms};
use builder::{BuildError, Builder, RowNorm};
use hyperparameters::{HyperParameters, POSITIONS};
use layer::{FeedForwardSpec, MixerSpec};
use streams::{Half, Reading};

pub use error::ModelError;

/// Which layers of a checkpoint are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Section {
    /// The model.
    #[default]
    Model,
    /// The layer with which the model predicts one more token. It computes with the hidden values of the model.
    Prediction,
    /// A draft model that computes with the residuals of another model.
    Drafter,
}

/// What is built of a checkpoint, and for what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BuildOptions {
    /// The layers.
    pub section: Section,
    /// The longest sequence in tokens; `None` for as long as in training. Some models rotate differently in short contexts.
    pub context_tokens: Option<usize>,
    /// The adapters that can change the model; `None` for a model without adapters.
    pub adapters: Option<AdapterLimits>,
    /// Whether a step may give the embeddings of rows.
    pub takes_embeddings: bool,
    /// The layers whose inputs follow the other hidden values of a row, in ascending order; the number of layers stands for the output
    /// of the last one.
    pub residuals: Vec<usize>,
}

/// A model as a graph that a backend can run.
#[derive(Debug)]
pub struct ModelGraph {
    /// The ops from token ids to hidden values and, unless the model makes embeddings only, logits.
    pub graph: Graph,
    /// What the rows of an encoder go through in the place of `graph`; `None` for a model without an encoder.
    pub encoder_rows: Option<Graph>,
    /// The file's metadata.
    pub hyperparameters: HyperParameters,
    /// What each layer stores of a sequence, and what is stored besides ([`HyperParameters::states`]).
    pub states: Vec<LayerState>,
    /// Bytes of the weights that the graph reads.
    pub weights_bytes: u64,
    /// The projections that adapters can change; none for a model without adapters.
    pub projections: Vec<Projection>,
    /// The norms over whole rows that have a weight.
    pub norms: Vec<RowNorm>,
    /// Its embeddings.
    pub embedding: EmbeddingSpec,
}

impl ModelGraph {
    /// Reads the hyperparameters, finds the family and builds its layers.
    ///
    /// # Errors
    /// [`ModelError`] when the architecture is unknown, or a key or tensor is missing or wrong.
    pub fn build(checkpoint: &dyn Checkpoint) -> Result<ModelGraph, ModelError> {
        ModelGraph::build_with(checkpoint, &BuildOptions::default())
    }

    /// As [`ModelGraph::build`], with options.
    ///
    /// # Errors
    /// As [`ModelGraph::build`]; [`ModelError::NoPrediction`] when the checkpoint does not have the section.
    pub fn build_with(checkpoint: &dyn Checkpoint, options: &BuildOptions) -> Result<ModelGraph, ModelError> {
        match options.section {
            Section::Model if is_drafter(checkpoint)? => {
                Err(ModelError::DrafterAlone { file: checkpoint.path().display().to_string() })
            }
            Section::Model | Section::Drafter => ModelGraph::build_section(checkpoint, options),
            Section::Prediction => match PredictionLayer::find(checkpoint)? {
                Some(layer) => ModelGraph::build_section(&layer, options),
                None => Err(ModelError::NoPrediction { file: checkpoint.path().display().to_string() }),
            },
        }
    }

    fn build_section(checkpoint: &dyn Checkpoint, options: &BuildOptions) -> Result<ModelGraph, ModelError> {
        let family = arch::of(checkpoint)?;
        let hyperparameters = HyperParameters::read(checkpoint, family, options.context_tokens)?;
        let mut builder = Builder::new(checkpoint, family, &hyperparameters, options.adapters);
        let embedding = build_ops(&mut builder, options).map_err(|error| error.in_file(checkpoint))?;
        let encoder_rows = encoder_rows::build(&mut builder).map_err(|error| error.in_file(checkpoint))?;
        builder.weights.check_all_layer_tensors_used(&hyperparameters.architecture, hyperparameters.layers.len())?;
        let weights_bytes = builder.weights.bytes();
        let Builder { graph, projections, norms, .. } = builder;
        let projections = projections.into_list();
        let states = hyperparameters.states();
        Ok(ModelGraph { graph, encoder_rows, states, weights_bytes, hyperparameters, projections, norms, embedding })
    }
}

/// Embedding, layers, output.
fn build_ops(builder: &mut Builder<'_>, options: &BuildOptions) -> Result<EmbeddingSpec, BuildError> {
    let h = builder.h;
    ngrams::embed(builder, options.takes_embeddings)?;
    let table = builder.weights.matrix("token_embd.weight", h.vocab_size, h.hidden_size)?;
    let table_factor = builder.weights.factor("token_embd")?;
    let embedded = Embed::new(table.clone(), h.embedding_scale * table_factor);
    let x = builder.graph.push_one(embedded, &[])?;
    let x = vocabulary::adapt_embedding(builder, x)?;
    // The rows of an encoder have a graph of their own.
    let takes_embeddings = options.takes_embeddings && h.encoder_rows() == 0;
    let (x, deep) = if takes_embeddings { take_embeddings(builder, x)? } else { (x, Vec::new()) };
    let mut x = add_positions_and_text(builder, x)?;
    match builder.family.embedding_norm {
        EmbeddingNorm::Never => {}
        EmbeddingNorm::Unweighted => x = builder.norm_by(vec![1.0; h.hidden_size].into(), x)?,
        EmbeddingNorm::Stored => x = builder.norm("token_embd_norm", x)?,
    }
    if options.section == Section::Prediction {
        x = prediction::join(builder, x)?;
    }
    if h.denoising.is_some() {
        x = canvas::input(builder, x)?;
    }
    let mut mixer_input = None;
    if let Some(spec) = &h.drafter {
        let [residual, both] = drafter::input(builder, spec, x)?;
        (x, mixer_input) = (residual, Some(both));
    }
    let per_layer = per_layer::inputs(builder, x)?;
    x = streams::split(builder, x)?;
    let mut residuals = Vec::new();
    for layer in 0..h.layers.len() {
        if options.residuals.contains(&layer) {
            residuals.push(x);
        }
        x = build_layer(builder, layer, (x, per_layer), mixer_input.take())?;
        if let Some(given) = deep.get(layer) {
            x = builder.graph.push_one(Add, &[x, *given])?;
        }
    }
    if options.residuals.contains(&h.layers.len()) {
        residuals.push(x);
    }
    x = streams::merge(builder, x)?;
    output::build(builder, (table, table_factor), x, &residuals)
}

/// The embeddings of rows, some of which a step gives, and what each of the first layers adds to its output for these rows.
fn take_embeddings(builder: &mut Builder<'_>, x: ValueId) -> Result<(ValueId, Vec<ValueId>), BuildError> {
    let width = builder.h.hidden_size;
    let given = builder.graph.take(width + 1);
    let x = builder.graph.push_one(GivenRows, &[x, given])?;
    Ok((x, (0..builder.h.deep_layers).map(|_| builder.graph.take(width)).collect()))
}

/// Adds the embeddings of positions and of the text that a row belongs to, where the file has them.
fn add_positions_and_text(builder: &mut Builder<'_>, mut x: ValueId) -> Result<ValueId, BuildError> {
    let h = builder.h;
    if let Some(table) = builder.weights.optional_matrix(POSITIONS, h.context_train, h.hidden_size)? {
        let position = builder.graph.push_one(Embed::of_positions(table), &[])?;
        x = builder.graph.push_one(Add, &[x, position])?;
    }
    if let Some(types) = builder.weights.rows("token_types.weight") {
        let table = builder.weights.matrix("token_types.weight", types, h.hidden_size)?;
        let of_text = builder.graph.push_one(Embed::of_texts(table), &[])?;
        x = builder.graph.push_one(Add, &[x, of_text])?;
    }
    Ok(x)
}

/// The value times a factor, if there is one.
fn scaled(builder: &mut Builder<'_>, factor: Option<f32>, x: ValueId) -> Result<ValueId, BuildError> {
    match factor {
        Some(factor) => Ok(builder.graph.push_one(Scale::new(factor), &[x])?),
        None => Ok(x),
    }
}

/// What the layer reads of the residual, its halves, what it writes; then the layer's own input and its scale.
fn build_layer(
    builder: &mut Builder<'_>,
    layer: usize,
    (x, per_layer): (ValueId, Option<ValueId>),
    mixer_input: Option<ValueId>,
) -> Result<ValueId, BuildError> {
    let x = ngrams::add(builder, layer, x)?;
    let reading = streams::read(builder, layer, x)?;
    let output = build_halves(builder, layer, reading.input, mixer_input)?;
    let x = streams::write(builder, layer, reading, output)?;
    let x = per_layer::add(builder, layer, per_layer, x)?;
    let [scale, causal] = ["layer_output_scale", "enc_layer_output_scale"]
        .map(|stem| builder.weights.optional_vector(&format!("blk.{layer}.{stem}.weight"), 1));
    match (scale?, causal?) {
        (Some(canvas), Some(causal)) => canvas::scaled(builder, causal[0], canvas[0], x),
        (one, other) => scaled(builder, one.or(other).map(|scale| scale[0]), x),
    }
}

/// Norm, mixer, residual; norm, feed-forward, residual. Some layers have only one of the halves. What the mixer reads may be given.
fn build_halves(
    builder: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    given: Option<ValueId>,
) -> Result<ValueId, BuildError> {
    let spec = &builder.h.layers[layer];
    let [before_mixer, after_mixer, before_ffn, after_ffn] = norm_names(spec.norms);
    let (sum, mixer_input) = match &spec.mixer {
        MixerSpec::None => (x, x),
        mixer => {
            let reading = streams::read_half(builder, layer, Half::Mixer, x)?;
            let normed = given.map_or_else(|| layer_norm(builder, layer, before_mixer, reading.input), Ok)?;
            let mixed = mixer::mix(builder, layer, mixer, normed)?;
            let sum = add_branch(builder, layer, (spec.norms, after_mixer), (reading, mixed))?;
            (low_rank::add(builder, layer, [sum, normed])?, normed)
        }
    };
    match &spec.feed_forward {
        FeedForwardSpec::None => Ok(sum),
        feed_forward => {
            let reading = streams::read_half(builder, layer, Half::FeedForward, sum)?;
            let (residual, normed) = if !spec.is_parallel {
                (reading.input, layer_norm(builder, layer, before_ffn, reading.input)?)
            } else if before_ffn.is_some_and(|stem| builder.weights.has(&format!("blk.{layer}.{stem}.weight"))) {
                (x, layer_norm(builder, layer, before_ffn, x)?)
            } else {
                (x, mixer_input)
            };
            let fed = ffn::feed_forward(builder, layer, feed_forward, [residual, normed])?;
            add_branch(builder, layer, (spec.norms, after_ffn), (reading, fed))
        }
    }
}

/// The residual stream plus the output of a mixer or feed-forward. The output or the sum is normalised if the layer has such a
/// norm.
fn add_branch(
    builder: &mut Builder<'_>,
    layer: usize,
    (norms, norm): (Norms, Option<&str>),
    (reading, branch): (Reading, ValueId),
) -> Result<ValueId, BuildError> {
    if norms == Norms::AfterSum {
        let scaled = scaled(builder, builder.h.residual_scale, branch)?;
        let sum = streams::add_half(builder, reading, scaled)?;
        return layer_norm(builder, layer, norm, sum);
    }
    let normed = match (norm, builder.family.epsilon_after) {
        (Some(stem), Some(epsilon)) => {
            let weight = builder.weights.vector(&format!("blk.{layer}.{stem}.weight"), builder.h.hidden_size)?;
            builder.graph.push_one(RmsNorm::new(weight, epsilon), &[branch])?
        }
        _ => layer_norm(builder, layer, norm, branch)?,
    };
    let scaled = scaled(builder, builder.h.residual_scale, normed)?;
    streams::add_half(builder, reading, scaled)
}

/// The tensors of the norms before and after the mixer, and before and after the feed-forward.
fn norm_names(norms: Norms) -> [Option<&'static str>; 4] {
    match norms {
        Norms::Before | Norms::BeforeEitherHalf => [Some("attn_norm"), None, Some("ffn_norm"), None],
        Norms::BeforeButFirstMixer => [None, None, Some("ffn_norm"), None],
        Norms::BeforeButNamedAfter => [Some("attn_norm"), None, Some("post_attention_norm"), None],
        Norms::BeforeButNamedOutput => [Some("attn_norm"), None, Some("attn_output_norm"), None],
        Norms::BeforeAndAfter => {
            [Some("attn_norm"), Some("post_attention_norm"), Some("ffn_norm"), Some("post_ffw_norm")]
        }
        Norms::After => [None, Some("post_attention_norm"), None, Some("post_ffw_norm")],
        Norms::AfterSum => [None, Some("attn_output_norm"), None, Some("layer_output_norm")],
        Norms::BeforeWithSecond => [Some("attn_norm_2"), None, Some("attn_norm"), None],
        Norms::BeforeOnlyHalf => [Some("attn_norm"), None, Some("attn_norm"), None],
        Norms::InStreams => [None; 4],
    }
}

/// One of the norms of a layer, if it has that one.
fn layer_norm(builder: &mut Builder<'_>, layer: usize, stem: Option<&str>, x: ValueId) -> Result<ValueId, BuildError> {
    match stem {
        Some(stem) => builder.norm(&format!("blk.{layer}.{stem}"), x),
        None => Ok(x),
    }
}
