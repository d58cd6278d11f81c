//! How each family reads the keys of a file, and which files are refused.

use super::*;
use crate::format::gguf::write::GgufBuilder;
use crate::model::arch;

/// The value of a key.
#[derive(Clone)]
enum Stored {
    Size(u32),
    Sizes(Vec<u32>),
    Flag(bool),
    Flags(Vec<bool>),
    Number(f32),
    Text(&'static str),
}
use Stored::{Flag, Flags, Number, Size, Sizes, Text};

/// The keys that every model has.
const USUAL: [(&str, u32); 7] = [
    ("block_count", 4),
    ("context_length", 4096),
    ("embedding_length", 64),
    ("feed_forward_length", 96),
    ("attention.head_count", 4),
    ("attention.head_count_kv", 2),
    ("attention.key_length", 24),
];

/// The hyperparameters of a file with the usual keys, some of them replaced by `keys`.
fn read(architecture: &str, keys: &[(&str, Stored)]) -> Result<HyperParameters, String> {
    let mut all = vec![("attention.layer_norm_rms_epsilon", Number(1e-6))];
    all.extend(USUAL.map(|(key, size)| (key, Size(size))));
    for (key, value) in keys {
        all.retain(|(other, _)| other != key);
        all.push((key, value.clone()));
    }
    let mut file = GgufBuilder::new().key("general.architecture", architecture).tensor_f32(
        "token_embd.weight",
        &[64, 10],
        &[0.0; 640],
    );
    for (key, value) in all {
        let key = format!("{architecture}.{key}");
        file = match value {
            Size(size) => file.key(&key, size),
            Sizes(sizes) => file.key(&key, sizes),
            Flag(flag) => file.key(&key, flag),
            Flags(flags) => file.key(&key, flags),
            Number(number) => file.key(&key, number),
            Text(text) => file.key(&key, text),
        };
    }
    let gguf = Gguf::from_bytes("model.gguf", file.build()).unwrap();
    HyperParameters::read(&gguf, arch::of(&gguf).unwrap()).map_err(|error| error.to_string())
}

#[track_caller]
fn assert_refused(architecture: &str, keys: &[(&str, Stored)], parts: &[&str]) {
    let message = read(architecture, keys).unwrap_err();
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

fn latent() -> Vec<(&'static str, Stored)> {
    vec![
        ("attention.head_count_kv", Size(1)),
        ("attention.kv_lora_rank", Size(40)),
        ("attention.key_length", Size(48)),
        ("attention.value_length", Size(40)),
        ("attention.key_length_mla", Size(24)),
        ("attention.value_length_mla", Size(20)),
        ("rope.dimension_count", Size(8)),
    ]
}

#[test]
fn latent_attention_reads_its_sizes_and_scales_scores_for_long_contexts() {
    let h = read("deepseek2", &latent()).unwrap();
    assert_eq!(h.latent, Some(LatentSizes { rank: 40, key_dim: 16, value_dim: 20 }));
    assert_eq!(h.attention_scale, 1.0 / 24_f32.sqrt());
    let mut keys = latent();
    keys.extend([
        ("rope.scaling.type", Text("yarn")),
        ("rope.scaling.factor", Number(40.0)),
        ("rope.scaling.original_context_length", Size(4096)),
        ("rope.scaling.yarn_log_multiplier", Number(0.1)),
    ]);
    let stretched = read("deepseek2", &keys).unwrap();
    let magnitude = 0.1 * 40_f32.ln() + 1.0;
    assert!((stretched.attention_scale / h.attention_scale - magnitude * magnitude).abs() < 1e-5);
    assert!(matches!(stretched.rope_scaling, RopeScaling::Yarn { magnitude: 1.0, .. }), "{:?}", stretched.rope_scaling);
}

#[test]
fn latent_attention_with_inconsistent_sizes_is_refused() {
    let with = |key: &'static str, value: u32| {
        let mut keys = latent();
        keys.push((key, Size(value)));
        keys
    };
    assert_refused("deepseek2", &with("attention.key_length", 47), &["attention.key_length\" is 47", "40", "8"]);
    assert_refused("deepseek2", &with("attention.key_length_mla", 8), &["key_length_mla\" is 8", "above 8"]);
    let mut older = latent();
    older.retain(|(key, _)| *key != "attention.key_length_mla");
    assert_refused("deepseek2", &older, &["key_length_mla", "older converter", "convert the model again"]);
}

#[test]
fn windowed_layers_may_have_other_heads() {
    let keys = [
        ("attention.sliding_window", Size(16)),
        ("attention.sliding_window_pattern", Flags(vec![true, false, true, false])),
        ("attention.head_count_kv", Sizes(vec![2, 1, 2, 1])),
        ("attention.key_length", Size(32)),
        ("attention.key_length_swa", Size(16)),
        ("rope.dimension_count", Size(32)),
        ("rope.dimension_count_swa", Size(16)),
    ];
    let h = read("gemma4", &keys).unwrap();
    let windowed = Heads { n_kv_heads: 2, head_dim: 16, rotary_dim: 16 };
    let global = Heads { n_kv_heads: 1, head_dim: 32, rotary_dim: 32 };
    assert_eq!(h.heads, [windowed, global, windowed, global]);
    assert_eq!(h.windows, [Some(Window::Last(16)), None, Some(Window::Last(16)), None]);
    assert_eq!(h.attention_scale, 1.0);
    let few = [("attention.head_count_kv", Sizes(vec![2, 1]))];
    assert_refused("gemma4", &few, &["head_count_kv\" is 2", "each of 4 layers"]);
    let none = [("attention.head_count_kv", Sizes(vec![2, 0, 2, 1]))];
    assert_refused("gemma4", &none, &["head_count_kv\" is 0", "between 1"]);
    let odd = [("attention.head_count_kv", Sizes(vec![2, 3, 2, 1]))];
    assert_refused("gemma4", &odd, &["head_count_kv\" is 3", "a divisor of 4"]);
    assert_refused("gemma4", &[("attention.shared_kv_layers", Size(2))], &["shared_kv_layers\" is 2", "not supported"]);
}

#[test]
fn chunk_length_comes_from_the_file_else_the_family_and_a_window_of_zero_disables_chunks() {
    let h = read("llama4", &[]).unwrap();
    assert_eq!(h.windows[..2], [Some(Window::Chunk(8192)); 2]);
    assert_eq!(h.windows[3], None);
    assert_eq!(h.position_scale, Some(PositionScale { step: 8192, strength: 0.1 }));
    let keys = [("attention.chunk_size", Size(32)), ("attention.temperature_length", Size(16))];
    let h = read("llama4", &keys).unwrap();
    assert_eq!(h.windows[0], Some(Window::Chunk(32)));
    assert_eq!(h.position_scale, Some(PositionScale { step: 16, strength: 0.1 }));
    let h = read("llama4", &[("attention.sliding_window", Size(0))]).unwrap();
    assert_eq!((h.windows, h.position_scale), (vec![None; 4], None));
}

#[test]
fn a_softmax_over_the_chosen_experts_is_read_as_a_renormalised_softmax() {
    let experts = [("expert_count", Size(8)), ("expert_used_count", Size(2)), ("expert_gating_func", Size(3))];
    let sizes = read("gpt-oss", &experts).unwrap().experts.unwrap();
    assert_eq!((sizes.scoring, sizes.renormalise), (Scoring::Softmax, true));
    assert_refused("deepseek2", &[latent(), experts.to_vec()].concat(), &["expert_gating_func\" is 3"]);
    let many = [("expert_count", Size(8)), ("expert_used_count", Size(9))];
    assert_refused("gpt-oss", &many, &["expert_used_count\" is 9", "at most 8"]);
}

#[test]
fn gemma_scales_scores_by_hidden_size_per_head_where_heads_are_small() {
    let width = |architecture: &str, sizes: [u32; 3]| {
        let [hidden_size, n_heads, head_dim] = sizes.map(Size);
        let keys = [
            ("attention.head_count", n_heads),
            ("attention.head_count_kv", Size(1)),
            ("attention.key_length", head_dim),
            ("embedding_length", hidden_size),
        ];
        read(architecture, &keys).unwrap().attention_scale.powi(-2).round() as u32
    };
    let gemma2 = [[2304, 8, 256], [3584, 16, 256], [4608, 32, 128]].map(|sizes| width("gemma2", sizes));
    assert_eq!(gemma2, [256, 256, 144], "2B, 9B and 27B");
    let gemma3 = [[640, 4, 256], [1152, 4, 256], [2560, 8, 256], [3840, 16, 256], [5376, 32, 128]];
    assert_eq!(gemma3.map(|sizes| width("gemma3", sizes)), [256, 256, 256, 256, 168], "270M to 27B");
}

#[test]
fn llama_4_normalises_rotated_heads_unless_dense_layers_alternate_with_experts() {
    let norms = |keys: &[(&str, Stored)]| read("llama4", keys).unwrap().norms_rotated_heads;
    let step = |step| ("interleave_moe_layer_step", Size(step));
    assert!(norms(&[]) && norms(&[step(0)]) && norms(&[step(1)]));
    assert!(!norms(&[step(2)]));
    let stored = |value| ("use_qk_norm", Flag(value));
    assert!(norms(&[step(2), stored(true)]) && !norms(&[step(1), stored(false)]));
    assert!(!read("llama", &[stored(true)]).unwrap().norms_rotated_heads);
}
