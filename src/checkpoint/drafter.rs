//! A draft model that computes with the residuals of the model whose tokens it drafts, together with what it uses of that model:
//! the tokenizer, and the token embedding and the output matrix that it does not have itself.
//!
//! Source: EAGLE-3 (arXiv:2503.01840). Keys and tensors have the names that llama.cpp writes for the architecture `eagle3`.

use std::path::Path;

use cuelight_shaders::weight::Weight;

use super::{Checkpoint, Metadata, TensorInfo};
use crate::cancel::LoadCancel;
use crate::format::gguf::{GgufError, Value};
use crate::format::tokenizer::{Tokenizer, TokenizerError};
use crate::mapped_file::ModelFiles;

/// The architecture of such draft models.
pub const ARCHITECTURE: &str = "eagle3";

/// The key, without the architecture, of the layers whose inputs the draft model computes with. That of the first layer is the
/// embedding; the number of layers stands for the output of the last one.
pub const LAYERS: &str = "target_layers";

/// Its name in older files.
const OLDER_LAYERS: &str = "extract_layers";

/// The key, without the architecture, of the token of each logit.
pub const TOKENS: &str = "draft_tokens";

/// The tensor of a file that has the token of each logit.
const TOKENS_TENSOR: &str = "d2t";

/// The matrices that may be those of the model, each with its factor.
const SHARED: [[&str; 2]; 2] = [["token_embd.weight", "token_embd.scale"], ["output.weight", "output.scale"]];

/// Draft models may have a few tokens more or less than the model: one in this number.
const OTHER_TOKENS: usize = 100;

/// Why a draft model cannot draft for a model.
#[derive(Debug, thiserror::Error)]
pub enum DrafterError {
    /// A file is damaged, or lacks a key.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// It was made for a model of another size.
    #[error(
        "{drafter}: it drafts for a model with a hidden size of {expected}, but that of {model} is {found}; use the draft model \
         that was made for it"
    )]
    HiddenSize {
        /// The draft model.
        drafter: String,
        /// The model.
        model: String,
        /// The model's size.
        found: usize,
        /// What the draft model needs.
        expected: usize,
    },
    /// It was made for another vocabulary.
    #[error(
        "{drafter}: it drafts for a vocabulary of {expected} tokens, but that of {model} has {found}; use the draft model that was \
         made for it"
    )]
    Vocabulary {
        /// The draft model.
        drafter: String,
        /// The model.
        model: String,
        /// Tokens of the model.
        found: usize,
        /// Tokens of the draft model.
        expected: usize,
    },
    /// It reads a layer that the model does not have, or the same one twice.
    #[error("{drafter}: it reads what enters the layers {layers:?} of the model, but {model} has {count} layers")]
    Layers {
        /// The draft model.
        drafter: String,
        /// The model.
        model: String,
        /// The layers.
        layers: Vec<i64>,
        /// The model's layers.
        count: usize,
    },
}

/// Whether a checkpoint is such a draft model, which cannot run alone.
///
/// # Errors
/// [`GgufError`] when the checkpoint has no architecture.
pub fn is_drafter(checkpoint: &dyn Checkpoint) -> Result<bool, GgufError> {
    Ok(checkpoint.str("general.architecture")? == ARCHITECTURE)
}

/// A draft model and the model whose tokens it drafts.
pub struct Drafter {
    own: Box<dyn Checkpoint>,
    model: Box<dyn Checkpoint>,
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorInfo>,
    /// The names of the tensors that are those of the model.
    shared: Vec<&'static str>,
    files: ModelFiles,
}

impl Drafter {
    /// Joins a draft model and the model.
    ///
    /// # Errors
    /// [`DrafterError`] when the draft model was made for another model, or a key is missing or of the wrong type.
    pub fn new(own: Box<dyn Checkpoint>, model: Box<dyn Checkpoint>) -> Result<Self, DrafterError> {
        let is_missing = |pair: &&[&str; 2]| own.tensor(pair[0]).is_none();
        let shared: Vec<&'static str> = SHARED.iter().filter(is_missing).flatten().copied().collect();
        let borrowed = shared.iter().filter_map(|name| model.tensor(name)).cloned();
        let is_kept = |tensor: &&TensorInfo| tensor.name != TOKENS_TENSOR;
        let tensors: Vec<TensorInfo> = own.tensors().iter().filter(is_kept).cloned().chain(borrowed).collect();
        let files = own.files().with(model.files());
        let mut drafter = Drafter { metadata: own.metadata().to_vec(), own, model, tensors, shared, files };
        drafter.check_sizes()?;
        drafter.set_layers()?;
        drafter.set_context()?;
        if let Some(tokens) = drafter.own.integers_of(TOKENS_TENSOR) {
            // Numbers that are no tokens stay so.
            let tokens: Vec<u32> = tokens.into_iter().map(|token| u32::try_from(token).unwrap_or(u32::MAX)).collect();
            drafter.set(TOKENS, tokens[..].into());
        }
        Ok(drafter)
    }

    /// Checks that the model has the size and the vocabulary that the draft model was made for.
    fn check_sizes(&self) -> Result<(), DrafterError> {
        let names = || (self.own.path().display().to_string(), self.model.path().display().to_string());
        let found = size_of(&*self.model, "embedding_length")?.unwrap_or(0);
        let own = size_of(&*self.own, "embedding_length")?.unwrap_or(0);
        let expected = size_of(&*self.own, "target_hidden_size")?.unwrap_or(own);
        // The embedding of the model has its size.
        let shares_embedding = self.own.tensor(SHARED[0][0]).is_none();
        if expected != found || (shares_embedding && own != found) {
            let (drafter, model) = names();
            let expected = if expected == found { own } else { expected };
            return Err(DrafterError::HiddenSize { drafter, model, found, expected });
        }
        let rows = |of: &dyn Checkpoint| of.tensor(SHARED[0][0]).and_then(|of| usize::try_from(of.n_rows()).ok());
        let (found, stated) = (rows(&*self.model).unwrap_or(0), size_of(&*self.own, "vocab_size")?);
        let expected = rows(&*self.own).or(stated).unwrap_or(found);
        if expected.abs_diff(found) * OTHER_TOKENS > expected.max(found) {
            let (drafter, model) = names();
            return Err(DrafterError::Vocabulary { drafter, model, found, expected });
        }
        Ok(())
    }

    /// Sets the layers: those of the draft model's file, or the second, the middle and the third from the end, as vLLM does.
    fn set_layers(&mut self) -> Result<(), DrafterError> {
        let extra = size_of(&*self.model, "nextn_predict_layers")?.unwrap_or(0);
        let count = size_of(&*self.model, "block_count")?.unwrap_or(0).saturating_sub(extra);
        let stated = |key| self.own.optional_integers(&format!("{ARCHITECTURE}.{key}"));
        let n = i64::try_from(count).unwrap_or(0);
        let mut layers = stated(LAYERS)?.or(stated(OLDER_LAYERS)?).filter(|layers| !layers.is_empty());
        let layers = layers.get_or_insert_with(|| vec![2, n / 2, n - 3]);
        layers.sort_unstable();
        let checked: Vec<u32> = layers.iter().filter_map(|layer| u32::try_from(*layer).ok()).collect();
        let is_wrong = layers.windows(2).any(|pair| pair[0] == pair[1]) || layers.iter().any(|layer| *layer > n);
        if is_wrong || checked.len() < layers.len() {
            let (drafter, model) = (self.own.path().display().to_string(), self.model.path().display().to_string());
            return Err(DrafterError::Layers { drafter, model, layers: layers.clone(), count });
        }
        self.set(LAYERS, checked[..].into());
        Ok(())
    }

    /// Lets it draft in texts as long as those of the model: published configs state the length of the texts it was trained with.
    fn set_context(&mut self) -> Result<(), DrafterError> {
        const KEY: &str = "context_length";
        let longest = size_of(&*self.model, KEY)?.max(size_of(&*self.own, KEY)?).unwrap_or(0);
        self.set(KEY, u32::try_from(longest).unwrap_or(u32::MAX).into());
        Ok(())
    }

    /// Sets a key of the draft model's architecture.
    fn set(&mut self, key: &str, value: Value) {
        let name = format!("{ARCHITECTURE}.{key}");
        self.metadata.retain(|(key, _)| *key != name);
        self.metadata.push((name, value));
    }
}

/// A size in the keys of a checkpoint's architecture.
fn size_of(checkpoint: &dyn Checkpoint, key: &str) -> Result<Option<usize>, GgufError> {
    let architecture = checkpoint.str("general.architecture")?;
    Ok(checkpoint.optional_u32(&format!("{architecture}.{key}"))?.map(|size| size as usize))
}

impl Metadata for Drafter {
    fn path(&self) -> &Path {
        self.own.path()
    }

    fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

impl Checkpoint for Drafter {
    fn files(&self) -> &ModelFiles {
        &self.files
    }

    fn file_format(&self) -> &'static str {
        self.own.file_format()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn weight(&self, name: &str) -> Result<Weight, GgufError> {
        if self.shared.contains(&name) { self.model.weight(name) } else { self.own.weight(name) }
    }

    fn tokenizer(&self, cancel: &LoadCancel) -> Result<Tokenizer, TokenizerError> {
        self.model.tokenizer(cancel)
    }

    fn tokenizer_bytes(&self) -> Result<u64, TokenizerError> {
        self.model.tokenizer_bytes()
    }

    fn release_header(&self) {
        self.own.release_header();
        self.model.release_header();
    }
}
