//! What a family says of its directories.

use super::rules::{Literal, Rule};

const SILU: &[&str] = &["silu", "swish"];

/// A family of models as directories store it.
pub(super) struct Family {
    /// The values of `model_type` in `config.json`, for models of text only and for those that also see or hear.
    pub model_types: &'static [&'static str],
    /// Its `general.architecture` in GGUF files.
    pub architecture: &'static str,
    /// The activations that the architecture computes, as configs name them.
    pub activations: &'static [&'static str],
    /// Those that it computes instead where the key `hidden_activation` says so.
    pub other_activations: &'static [&'static str],
    /// Whether weights of norms are stored without the 1 that is added to them.
    pub norms_lack_one: bool,
    /// Rules that come before the common ones.
    pub names: &'static [&'static [Rule]],
    /// Rules that come before these in layers that the config calls recurrent.
    pub recurrent_names: &'static [Rule],
    /// Rules for tensors outside of layers that come before the common ones.
    pub outside: &'static [Rule],
    /// The rules of each of the layers that one layer of its directories becomes. None if it becomes one layer.
    pub parts_of_layer: &'static [&'static [Rule]],
    /// How the names of tensors start that belong to another part of the model.
    pub other_parts: &'static [&'static str],
    /// The chat template of directories without one.
    pub chat_template: Option<&'static str>,
    /// The prompt of its rerankers, with the places `{query}` and `{document}`, which directories do not state in this form.
    pub rerank_template: Option<&'static str>,
    /// Names of values in its configs that most families have under the first name.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Values that published configs leave out.
    pub defaults: &'static [(&'static str, Literal)],
    /// Values that published configs of models that also see or hear leave out of their text models.
    pub nested_defaults: &'static [(&'static str, Literal)],
    /// Keys of its configs with the values that the architecture computes.
    pub requires: &'static [(&'static str, &'static [Literal])],
    /// Tensors of layers with one value, and the keys that GGUF files have for all layers.
    pub scalars: &'static [(&'static str, &'static str)],
    /// Matrices of layers, and the keys of the config whose product is the factor of each.
    pub factors: &'static [(&'static str, &'static [&'static str])],
    /// Matrices of layers, and for each a norm of heads that directories do not store: its name and the key of all its values.
    pub head_norms: &'static [(&'static str, &'static str, &'static str)],
    /// The key of the config that is true, or above 0, for this family and for no other with the same `model_type`.
    pub flag: Option<&'static str>,
    /// The key of the config that is `vision` if rows of images see each other, where models differ in that.
    pub media_sight: Option<&'static str>,
    /// The row of the first position in the table of positions.
    pub first_position: usize,
    /// The parts of heads that rotate in layers without and with a window, where files do not state them.
    pub rotated_parts: Option<[f32; 2]>,
    /// Whether the rotated section of latent attention rotates as a whole, whatever the config says of parts.
    pub rotates_section: bool,
    /// Whether files have 0 heads of keys in recurrent layers.
    pub lists_recurrent_heads: bool,
    /// Matrices whose rows have the length 1, for configs that have this value for a key: directories store other lengths.
    pub unit_rows: &'static [(&'static str, &'static str, Literal)],
}

/// A family without rules of its own.
pub(super) const PLAIN: Family = Family {
    model_types: &[],
    architecture: "",
    activations: SILU,
    other_activations: &[],
    norms_lack_one: false,
    names: &[],
    recurrent_names: &[],
    outside: &[],
    parts_of_layer: &[],
    other_parts: &[],
    chat_template: None,
    rerank_template: None,
    aliases: &[],
    defaults: &[],
    nested_defaults: &[],
    requires: &[],
    scalars: &[],
    factors: &[],
    head_norms: &[],
    flag: None,
    media_sight: None,
    first_position: 0,
    rotated_parts: None,
    rotates_section: false,
    lists_recurrent_heads: false,
    unit_rows: &[],
};
