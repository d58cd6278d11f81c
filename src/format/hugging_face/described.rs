//! The config of a directory, its family, and the values that the family adds.

use std::path::Path;

use serde_json::Value;

use super::config::Config;
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::families;
use super::family::Family;
use super::small_files::SmallFiles;
use super::{classifier, drafter, encoder_decoder, half_layers, layer_sizes, layout};

/// The sizes of latent attention. Configs of some models without it have them too.
const LATENT_SIZES: [&str; 5] = ["kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"];

/// A config with the values that its family adds.
pub(super) struct Described {
    pub config: Config,
    pub family: &'static Family,
    pub model_type: String,
}

impl Described {
    /// Reads `config.json` of a directory.
    pub(super) fn read(path: &Path, small: &mut SmallFiles) -> Result<Self, HuggingFaceError> {
        let mut config = Config::parse(&path.join("config.json"), &layout::config(path, small)?)?;
        layout::check(path, &config, &layout::TEXT)?;
        drafter::describe(&mut config)?;
        encoder_decoder::describe(&mut config)?;
        half_layers::describe(&mut config);
        classifier::describe(&mut config)?;
        if config.get("use_mla") == Some(&Value::Bool(false)) {
            LATENT_SIZES.iter().for_each(|key| config.set(key, Value::Null));
        }
        let (family, model_type) = family(&config)?;
        config.add_aliases(family.aliases);
        config.add_defaults(family.defaults);
        if config.is_nested() {
            config.add_defaults(family.nested_defaults);
        }
        layer_sizes::describe(&mut config)?;
        Ok(Described { config, family, model_type })
    }
}

/// The family of a model and its `model_type`.
fn family(config: &Config) -> Result<(&'static Family, String), HuggingFaceError> {
    let of_type = |name: &str| families::of_type(name, |key| config.is_set(key));
    let known = config.model_types().find_map(|name| Some((of_type(name)?, name.to_owned())));
    known.ok_or_else(|| match config.model_types().next() {
        None => config.missing("model_type"),
        Some(found) => {
            let (found, known) = (found.to_owned(), families::known());
            config.fault(HuggingFaceFault::UnknownModelType { found, known })
        }
    })
}
