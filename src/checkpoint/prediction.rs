//! The layer with which a model predicts one more token, as a checkpoint with this layer only.
//!
//! Files count such layers at the end of their layers (`nextn_predict_layers`). The layer has a norm and, in some files, an
//! embedding and an output matrix of its own; it uses the others of the model. Source: DeepSeek-V3 (arXiv:2412.19437, section
//! 2.2), names of tensors as llama.cpp writes them.

use std::collections::HashMap;
use std::path::Path;

use cuelight_shaders::weight::Weight;

use super::{Checkpoint, Metadata, TensorInfo};
use crate::cancel::LoadCancel;
use crate::format::gguf::{GgufError, Value};
use crate::format::tokenizer::{Tokenizer, TokenizerError};
use crate::mapped_file::ModelFiles;

/// The tensors of the layer that replace tensors of the model, with the names that those have.
const REPLACES: [(&str, &str); 4] = [
    ("nextn.embed_tokens.weight", "token_embd.weight"),
    ("nextn.shared_head_norm.weight", "output_norm.weight"),
    ("nextn.shared_head_head.weight", "output.weight"),
    // The norm of Ling 2 and 3.
    ("layer_output_norm.weight", "output_norm.weight"),
];

/// The tensor that joins the embedding of a token and the hidden values before it.
const JOINS: &str = "nextn.eh_proj.weight";

/// The first layer of a checkpoint that predicts one more token, as a checkpoint with one layer.
pub struct PredictionLayer<'a> {
    whole: &'a dyn Checkpoint,
    /// The layer's number in the whole checkpoint.
    layer: usize,
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorInfo>,
    /// The names of tensors in the whole checkpoint, by their names here.
    stored: HashMap<String, String>,
}

impl<'a> PredictionLayer<'a> {
    /// The layer of a checkpoint; `None` if it has none, or has several residual streams: the layer would be the only one with one.
    ///
    /// # Errors
    /// [`GgufError`] when a key is missing or of the wrong type.
    pub fn find(whole: &'a dyn Checkpoint) -> Result<Option<Self>, GgufError> {
        let architecture = whole.str("general.architecture")?.to_owned();
        let key = |name: &str| format!("{architecture}.{name}");
        let extra = whole.optional_u32(&key("nextn_predict_layers"))?.unwrap_or(0) as usize;
        let layer = (whole.u32(&key("block_count"))? as usize).saturating_sub(extra);
        let has_streams = whole.value(&key("hyper_connection.count")).is_some();
        if extra == 0 || has_streams || whole.tensor(&format!("blk.{layer}.{JOINS}")).is_none() {
            return Ok(None);
        }
        let metadata = whole.metadata().iter().map(|(name, value)| {
            let value = match name.strip_prefix(&architecture).and_then(|name| name.strip_prefix('.')) {
                Some("block_count") => Value::U32(1),
                Some("nextn_predict_layers") => Value::U32(0),
                // Other arrays of the architecture have a value for each layer.
                Some(name) if !name.starts_with("rope.") => value.element(layer),
                _ => value.clone(),
            };
            (name.clone(), value)
        });
        let metadata = metadata.collect();
        let (mut tensors, mut stored) = (Vec::new(), HashMap::new());
        for tensor in whole.tensors() {
            let Some(name) = name_here(whole, &tensor.name, layer) else { continue };
            tensors.push(TensorInfo { name: name.clone(), ..tensor.clone() });
            stored.insert(name, tensor.name.clone());
        }
        Ok(Some(PredictionLayer { whole, layer, metadata, tensors, stored }))
    }

    /// The name in the whole checkpoint.
    fn stored_name(&self, name: &str) -> String {
        let of_layer = || name.strip_prefix("blk.0.").map(|tensor| format!("blk.{}.{tensor}", self.layer));
        self.stored.get(name).cloned().or_else(of_layer).unwrap_or_else(|| name.to_owned())
    }
}

/// The name of a tensor of the whole checkpoint in the one of layer number `layer`; `None` if it does not belong to it.
fn name_here(whole: &dyn Checkpoint, name: &str, layer: usize) -> Option<String> {
    let prefix = format!("blk.{layer}.");
    if let Some(tensor) = name.strip_prefix(&prefix) {
        let replaced = REPLACES.iter().find(|(own, _)| *own == tensor);
        return Some(replaced.map_or_else(|| format!("blk.0.{tensor}"), |(_, of_model)| (*of_model).to_owned()));
    }
    let is_replaced =
        REPLACES.iter().any(|(own, of_model)| *of_model == name && whole.tensor(&format!("{prefix}{own}")).is_some());
    (!name.starts_with("blk.") && !is_replaced).then(|| name.to_owned())
}

impl Metadata for PredictionLayer<'_> {
    fn path(&self) -> &Path {
        self.whole.path()
    }

    fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

impl Checkpoint for PredictionLayer<'_> {
    fn files(&self) -> &ModelFiles {
        self.whole.files()
    }

    fn file_format(&self) -> &'static str {
        self.whole.file_format()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn weight(&self, name: &str) -> Result<Weight, GgufError> {
        self.whole.weight(&self.stored_name(name))
    }

    fn tokenizer(&self, cancel: &LoadCancel) -> Result<Tokenizer, TokenizerError> {
        self.whole.tokenizer(cancel)
    }

    fn tokenizer_bytes(&self) -> Result<u64, TokenizerError> {
        self.whole.tokenizer_bytes()
    }

    fn release_header(&self) {
        self.whole.release_header();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::gguf::Gguf;
    use crate::format::gguf::write::GgufBuilder;

    fn file(extra: u32, tensors: &[&str]) -> Gguf {
        let builder = GgufBuilder::new()
            .key("general.architecture", "arch")
            .key("arch.block_count", 3u32)
            .key("arch.nextn_predict_layers", extra)
            .key("arch.attention.head_count_kv", &[1i32, 2, 4][..])
            .key("arch.rope.dimension_sections", &[5i32, 6, 7][..]);
        let add = |builder: GgufBuilder, name: &&str| builder.tensor(name, &[32], 0, vec![0; 128]);
        Gguf::from_bytes("tiny.gguf", tensors.iter().fold(builder, add).build()).unwrap()
    }

    #[test]
    fn the_layer_has_its_own_tensors_and_those_of_the_model_that_it_lacks() {
        let names = [
            "token_embd.weight",
            "output_norm.weight",
            "output.weight",
            "blk.1.attn_q.weight",
            "blk.2.attn_q.weight",
            "blk.2.nextn.eh_proj.weight",
            "blk.2.nextn.shared_head_norm.weight",
        ];
        let whole = file(1, &names);
        let layer = PredictionLayer::find(&whole).unwrap().unwrap();
        let found: Vec<&str> = layer.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        let expected = [
            "token_embd.weight",
            "output.weight",
            "blk.0.attn_q.weight",
            "blk.0.nextn.eh_proj.weight",
            "output_norm.weight",
        ];
        assert_eq!(found, expected);
        assert_eq!(&*layer.weight("output_norm.weight").unwrap().name, names[6]);
        assert_eq!(&*layer.weight("blk.0.attn_q.weight").unwrap().name, names[4]);
        let error = layer.weight("blk.0.attn_k.weight").unwrap_err().to_string();
        assert!(error.contains("blk.2.attn_k.weight"), "{error}");
    }

    #[test]
    fn values_of_layers_are_those_of_the_layer() {
        let whole = file(1, &["blk.2.nextn.eh_proj.weight"]);
        let layer = PredictionLayer::find(&whole).unwrap().unwrap();
        assert_eq!(layer.integers("arch.attention.head_count_kv").unwrap(), [4]);
        assert_eq!(layer.integers("arch.rope.dimension_sections").unwrap(), [5, 6, 7]);
        let count = |key| layer.u32(key).unwrap();
        assert_eq!([count("arch.block_count"), count("arch.nextn_predict_layers")], [1, 0]);
    }

    #[test]
    fn a_checkpoint_may_have_no_such_layer() {
        for (extra, tensors) in [(0, &["blk.2.nextn.eh_proj.weight"][..]), (1, &["blk.2.attn_q.weight"][..])] {
            assert!(PredictionLayer::find(&file(extra, tensors)).unwrap().is_none());
        }
    }
}
