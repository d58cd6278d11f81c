//! The keys of a vision tower, from `config.json` and `preprocessor_config.json`.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::super::error::{HuggingFaceError, HuggingFaceFault};
use super::super::small_files::SmallFiles;
use super::families::{MergeKey, TowerFamily};
use crate::format::gguf::Value;

/// What a directory states of its tower.
pub(super) struct TowerConfig {
    folder: PathBuf,
    root: Json,
    vision: Json,
    preprocessor: Json,
}

impl TowerConfig {
    pub(super) fn read(folder: &Path, small: &mut SmallFiles) -> Result<Self, HuggingFaceError> {
        let root = small.json("config.json")?.unwrap_or_default();
        let vision = root.get("vision_config").cloned().unwrap_or_default();
        let mut preprocessor = small.json("preprocessor_config.json")?;
        if preprocessor.is_none() {
            let whole = small.json("processor_config.json")?.unwrap_or_default();
            preprocessor = whole.get("image_processor").cloned();
        }
        Ok(TowerConfig { folder: folder.to_owned(), root, vision, preprocessor: preprocessor.unwrap_or_default() })
    }

    pub(super) fn fault(&self, fault: HuggingFaceFault) -> HuggingFaceError {
        fault.in_file(&self.folder.join("config.json"))
    }

    /// The `model_type` of the whole model.
    pub(super) fn model_type(&self) -> Result<&str, HuggingFaceError> {
        let found = self.root.get("model_type").and_then(Json::as_str);
        found.ok_or_else(|| self.fault(HuggingFaceFault::MissingKey { key: "model_type".to_owned() }))
    }

    fn wrong(&self, key: &str, found: &Json, wanted: &str) -> HuggingFaceError {
        let (key, found) = (format!("vision_config.{key}"), found.to_string());
        self.fault(HuggingFaceFault::WrongValue { key, found, wanted: wanted.to_owned() })
    }

    /// A number of the tower. Some configs have the same number twice, for both directions.
    fn number(&self, family: &TowerFamily, key: &str) -> Result<f64, HuggingFaceError> {
        let default = || family.defaults.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        let missing = || self.fault(HuggingFaceFault::MissingKey { key: format!("vision_config.{key}") });
        match self.vision.get(key) {
            None | Some(Json::Null) => default().ok_or_else(missing),
            Some(found) => {
                let equal = found.as_array().filter(|all| all.iter().all(|one| Some(one) == all.first()));
                let one = equal.map_or(Some(found), |all| all.first());
                one.and_then(Json::as_f64).ok_or_else(|| self.wrong(key, found, "a number"))
            }
        }
    }

    /// A size of the tower.
    fn size(&self, family: &TowerFamily, key: &str) -> Result<u32, HuggingFaceError> {
        let found = self.number(family, key)?;
        if found >= 1.0 && found <= f64::from(u32::MAX) && found.fract() == 0.0 {
            Ok(found as u32)
        } else {
            Err(self.wrong(key, &found.into(), "a whole number above 0"))
        }
    }

    /// Three numbers for the colors.
    fn colors(&self, key: &str) -> Result<Vec<f32>, HuggingFaceError> {
        let file = || self.folder.join("preprocessor_config.json");
        let found = self.preprocessor.get(key);
        let missing = || HuggingFaceFault::MissingKey { key: key.to_owned() }.in_file(&file());
        let values: Option<Vec<f32>> = found
            .ok_or_else(missing)?
            .as_array()
            .and_then(|all| all.iter().map(|one| Some(one.as_f64()? as f32)).collect());
        values.filter(|values| values.len() == 3).ok_or_else(|| {
            let (key, found) = (key.to_owned(), found.map(Json::to_string).unwrap_or_default());
            HuggingFaceFault::WrongValue { key, found, wanted: "three numbers".to_owned() }.in_file(&file())
        })
    }

    /// Patches of a side of the square that becomes one row.
    fn merge(&self, family: &TowerFamily, patches: u32) -> u32 {
        let of_root = |key: &str, default: f64| self.root.get(key).and_then(Json::as_f64).unwrap_or(default);
        match family.merge {
            MergeKey::Factor(key) => of_root(key, 2.0) as u32,
            MergeKey::Ratio(key) => (1.0 / of_root(key, 0.5)) as u32,
            MergeKey::Rows(key) => (f64::from(patches) / of_root(key, 256.0).sqrt()) as u32,
            MergeKey::Never => 1,
        }
    }

    /// The key of the activation, if GGUF files have one.
    fn activation(&self, family: &TowerFamily) -> Result<Option<&'static str>, HuggingFaceError> {
        let default = family.activations.first().map_or("", |(name, _)| name);
        let found = self.vision.get("hidden_act").and_then(Json::as_str).unwrap_or(default);
        let known = family.activations.iter().find(|(name, _)| *name == found);
        let names = || family.activations.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" or ");
        known.map(|(_, key)| *key).ok_or_else(|| self.wrong("hidden_act", &found.into(), &names()))
    }

    /// The layer whose rows the projector reads, where it is not the last. Negative numbers count from the end, and -1 is the last.
    fn feature_layer(&self, layers: u32) -> Option<u32> {
        let stated = self.root.get("vision_feature_layer").and_then(Json::as_i64)?;
        let layer = if stated < 0 { i64::from(layers) + stated + 1 } else { stated };
        u32::try_from(layer).ok().filter(|layer| (1..layers).contains(layer))
    }
}

/// The keys that a GGUF file of the tower has.
pub(super) fn keys(config: &TowerConfig, family: &TowerFamily) -> Result<Vec<(String, Value)>, HuggingFaceError> {
    let size = |key: &str| config.size(family, key);
    let (image, patch, layers) = (size("image_size")?, size("patch_size")?, size("num_hidden_layers")?);
    let mut keys: Vec<(String, Value)> = vec![
        ("general.architecture".to_owned(), "clip".into()),
        ("clip.projector_type".to_owned(), family.projector.into()),
    ];
    let mut add = |key: &str, value: Value| keys.push((format!("clip.vision.{key}"), value));
    add("image_size", image.into());
    add("patch_size", patch.into());
    add("block_count", layers.into());
    add("embedding_length", size("hidden_size")?.into());
    add("feed_forward_length", size("intermediate_size")?.into());
    add("attention.head_count", size("num_attention_heads")?.into());
    add("attention.layer_norm_epsilon", (config.number(family, "layer_norm_eps")? as f32).into());
    add("projector.scale_factor", config.merge(family, image / patch).into());
    add("image_mean", config.colors("image_mean")?[..].into());
    add("image_std", config.colors("image_std")?[..].into());
    if let Some(layer) = config.feature_layer(layers) {
        add("feature_layer", [layer][..].into());
    }
    let of_preprocessor = [("preproc_image_size", "/size/longest_edge"), ("preproc_max_tiles", "/max_patches")];
    for (key, pointer) in of_preprocessor {
        let stated = config.preprocessor.pointer(pointer).and_then(Json::as_u64);
        if let Some(value) = stated.and_then(|value| u32::try_from(value).ok()) {
            add(key, value.into());
        }
    }
    if config.preprocessor.get("do_center_crop") == Some(&Json::Bool(true)) {
        let is_padded = config.preprocessor.get("do_pad") == Some(&Json::Bool(true));
        add("image_aspect_ratio", if is_padded { "pad" } else { "square" }.into());
    }
    if let Some(key) = config.activation(family)? {
        keys.push((key.to_owned(), true.into()));
    }
    Ok(keys)
}
