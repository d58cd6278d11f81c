//! Which vision towers load from a directory, as data.

/// The towers of some values of `model_type`.
pub(super) struct TowerFamily {
    /// The values of `model_type` of the whole model.
    pub model_types: &'static [&'static str],
    /// The value of `clip.projector_type`.
    pub projector: &'static str,
    /// The values of `hidden_act`, each with the key that a GGUF file has for it, if any.
    pub activations: &'static [(&'static str, Option<&'static str>)],
    /// Sizes that configs leave out.
    pub defaults: &'static [(&'static str, f64)],
    /// The tensors of the projector, and their names in a GGUF file.
    pub head: &'static [(&'static str, &'static str)],
    /// Norms, by their names in a GGUF file, that multiply by 1 + weight.
    pub one_added: &'static [&'static str],
    /// How the config states how many patches of a side become one row.
    pub merge: MergeKey,
}

/// How the config states how many patches of a side become one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MergeKey {
    /// By this number, 2 if it is left out.
    Factor(&'static str),
    /// By one divided by this number, 0.5 if it is left out.
    Ratio(&'static str),
    /// By the number of rows of an image, 256 if it is left out.
    Rows(&'static str),
    /// One patch is one row.
    Never,
}

const GELU: Option<&str> = Some("clip.use_gelu");

const SIGLIP_SIZES: &[(&str, f64)] = &[
    ("hidden_size", 1152.0),
    ("intermediate_size", 3072.0),
    ("num_hidden_layers", 12.0),
    ("num_attention_heads", 16.0),
    ("patch_size", 32.0),
    ("layer_norm_eps", 1e-6),
];

const FAMILIES: &[TowerFamily] = &[
    TowerFamily {
        model_types: &["idefics3", "smolvlm"],
        projector: "idefics3",
        activations: &[("gelu_pytorch_tanh", GELU)],
        defaults: SIGLIP_SIZES,
        head: &[("modality_projection.proj", "mm.model.fc")],
        one_added: &[],
        merge: MergeKey::Factor("scale_factor"),
    },
    TowerFamily {
        model_types: &["gemma3"],
        projector: "gemma3",
        activations: &[("gelu_pytorch_tanh", GELU)],
        defaults: &[("layer_norm_eps", 1e-6)],
        head: &[("mm_soft_emb_norm", "mm.soft_emb_norm"), ("mm_input_projection_weight", "mm.input_projection.weight")],
        one_added: &["mm.soft_emb_norm.weight"],
        merge: MergeKey::Rows("mm_tokens_per_image"),
    },
    TowerFamily {
        model_types: &["internvl"],
        projector: "internvl",
        activations: &[("gelu", GELU)],
        defaults: &[
            ("hidden_size", 1024.0),
            ("intermediate_size", 4096.0),
            ("num_hidden_layers", 24.0),
            ("num_attention_heads", 16.0),
            ("image_size", 448.0),
            ("patch_size", 14.0),
            ("layer_norm_eps", 1e-6),
        ],
        head: &[("layer_norm", "mm.model.mlp.0"), ("linear_1", "mm.model.mlp.1"), ("linear_2", "mm.model.mlp.3")],
        one_added: &[],
        merge: MergeKey::Ratio("downsample_ratio"),
    },
    TowerFamily {
        model_types: &["llava"],
        projector: "mlp",
        activations: &[("quick_gelu", None), ("gelu", GELU)],
        defaults: &[
            ("hidden_size", 1024.0),
            ("intermediate_size", 4096.0),
            ("num_hidden_layers", 24.0),
            ("num_attention_heads", 16.0),
            ("image_size", 336.0),
            ("patch_size", 14.0),
            ("layer_norm_eps", 1e-5),
        ],
        head: &[("linear_1", "mm.0"), ("linear_2", "mm.2")],
        one_added: &[],
        merge: MergeKey::Never,
    },
];

/// The family of a value of `model_type`.
pub(super) fn of(model_type: &str) -> Option<&'static TowerFamily> {
    FAMILIES.iter().find(|family| family.model_types.contains(&model_type))
}

/// All values of `model_type`, separated by commas.
pub(super) fn known() -> String {
    FAMILIES.iter().flat_map(|family| family.model_types).copied().collect::<Vec<_>>().join(", ")
}

/// The family of a projector.
#[cfg(test)]
pub(super) fn of_projector(projector: &str) -> Option<&'static TowerFamily> {
    FAMILIES.iter().find(|family| family.projector == projector)
}
