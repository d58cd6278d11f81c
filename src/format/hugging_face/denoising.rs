//! How models denoise blocks of tokens: the size of a block in `config.json`, the rest in `generation_config.json`.

use serde_json::Value as Json;

use super::error::HuggingFaceError;
use super::keys::Keys;

/// The key of the config that says how many tokens a block has.
const CANVAS: &str = "canvas_length";

/// Whole numbers of `generation_config.json`, and their keys in GGUF files.
const SIZES: [(&str, &str); 2] =
    [("/max_denoising_steps", "diffusion.eb_max_steps"), ("/stability_threshold", "diffusion.eb_stability_threshold")];

const NUMBERS: [(&str, &str); 4] = [
    ("/t_min", "diffusion.eb_t_min"),
    ("/t_max", "diffusion.eb_t_max"),
    ("/sampler_config/entropy_bound", "diffusion.eb_entropy_bound"),
    ("/confidence_threshold", "diffusion.eb_confidence_threshold"),
];

/// Adds the keys of a model that generates blocks. What is not stated has its usual value.
///
/// # Errors
/// [`HuggingFaceError`] when a value is not a number.
pub(super) fn add_keys(keys: &mut Keys<'_>, generation: &Json) -> Result<(), HuggingFaceError> {
    let config = keys.config;
    let Some(tokens) = config.u32(CANVAS)? else { return Ok(()) };
    keys.add_whole("diffusion.canvas_length", tokens);
    let stated = |path: &str| generation.pointer(path).filter(|value| !value.is_null());
    for (path, key) in SIZES {
        if let Some(value) = stated(path) {
            keys.add_whole(key, config.as_u32(path, value)?);
        }
    }
    for (path, key) in NUMBERS {
        if let Some(value) = stated(path) {
            keys.add_whole(key, config.as_f32(path, value)?);
        }
    }
    Ok(())
}
