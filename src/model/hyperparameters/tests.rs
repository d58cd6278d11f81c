//! How each family reads the keys of a file, and which files are refused.

use cuelight_shaders::activate::Pointwise;
use cuelight_shaders::attention::{KvShape, Window};
use cuelight_shaders::experts::Scoring;
use cuelight_shaders::glu::Activation;

use super::*;
use crate::format::gguf::Gguf;
use crate::format::gguf::write::GgufBuilder;
use crate::model::arch::{self, ActivationLimit, QkNormKind, RopePairs};
use crate::model::layer::{
    AttentionLayer, ExpertSizes, FeedForwardSpec, GroupIndexer, HeadIndexer, Heads, HyperSizes, Indexer, LatentSizes,
    LayerSpec, MixerSpec, PositionScale, PositionSelection, RopeSpec, StreamConnections, StreamSizes,
};
use crate::model::rope::RopeScaling;

/// The value of a key.
#[derive(Clone)]
enum Stored {
    Size(u32),
    Sizes(Vec<u32>),
    Flag(bool),
    Flags(Vec<bool>),
    Number(f32),
    Numbers(Vec<f32>),
    Text(&'static str),
    /// The file does not have the key.
    Absent,
}
use Stored::{Absent, Flag, Flags, Number, Numbers, Size, Sizes, Text};

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

/// A file with the usual keys, some of them replaced by `keys`.
fn file(architecture: &str, keys: &[(&str, Stored)]) -> GgufBuilder {
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
    if keys.iter().any(|(key, _)| *key == "expert_count") {
        let router = |layer: u32| format!("blk.{layer}.ffn_gate_inp.weight");
        file = (0..4).fold(file, |file, layer| file.tensor_f32(&router(layer), &[64, 8], &[0.0; 512]));
    }
    if keys.iter().any(|(key, _)| *key == "ple.conv_kernel") {
        let conv = |layer: u32| format!("blk.{layer}.ssm_conv1d.weight");
        file = [0, 2].iter().fold(file, |file, layer| file.tensor_f32(&conv(*layer), &[4, 8], &[0.0; 32]));
        file = file.tensor_f32("blk.3.indexer.q_proj.weight", &[64, 1], &[0.0; 64]);
    }
    for (key, value) in all {
        let key = format!("{architecture}.{key}");
        file = match value {
            Size(size) => file.key(&key, size),
            Sizes(sizes) => file.key(&key, sizes),
            Flag(flag) => file.key(&key, flag),
            Flags(flags) => file.key(&key, flags),
            Number(number) => file.key(&key, number),
            Numbers(numbers) => file.key(&key, numbers),
            Text(text) => file.key(&key, text),
            Absent => file,
        };
    }
    file
}

/// The hyperparameters of a file with the usual keys, some of them replaced by `keys`.
fn read(architecture: &str, keys: &[(&str, Stored)]) -> Result<HyperParameters, String> {
    let gguf = Gguf::from_bytes("model.gguf", file(architecture, keys).build()).unwrap();
    HyperParameters::read(&gguf, arch::of(&gguf).unwrap(), None).map_err(|error| error.to_string())
}

impl HyperParameters {
    fn attention(&self, layer: usize) -> &AttentionLayer {
        self.layers[layer].mixer.attention().unwrap()
    }

    /// A fact of the attention of every layer.
    fn each<T>(&self, fact: impl Fn(&AttentionLayer) -> T) -> Vec<T> {
        self.layers.iter().map(|layer| fact(layer.mixer.attention().unwrap())).collect()
    }
}

/// The experts of the first layer.
fn experts(h: &HyperParameters) -> ExpertSizes {
    match h.layers[0].feed_forward {
        FeedForwardSpec::Experts(sizes) | FeedForwardSpec::ExpertsNextToDense(sizes, _) => sizes,
        FeedForwardSpec::Dense(_) | FeedForwardSpec::None => panic!("the layer has experts"),
    }
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

/// The keys of latent attention with an indexer.
fn indexed() -> Vec<(&'static str, Stored)> {
    let mut keys = latent();
    keys.extend([
        ("attention.indexer.head_count", Size(6)),
        ("attention.indexer.key_length", Size(20)),
        ("attention.indexer.top_k", Size(9)),
        ("attention.indexer.types", Flags(vec![true, false, true, true])),
    ]);
    keys
}

#[test]
fn layers_select_positions_or_attend_to_those_of_an_earlier_layer() {
    for (architecture, rope_pairs) in [("deepseek32", RopePairs::Halves), ("glm-dsa", RopePairs::Interleaved)] {
        let h = read(architecture, &indexed()).unwrap();
        let own = PositionSelection::Own(Indexer { n_heads: 6, head_dim: 20, top_k: 9, pool: 1, rope_pairs });
        let selection = |layer: usize| match h.layers[layer].mixer {
            MixerSpec::LatentAttention(_, _, selection) => selection,
            _ => panic!("the layer attends"),
        };
        assert_eq!([0, 1, 2, 3].map(selection), [own, PositionSelection::OfEarlierLayer, own, own].map(Some));
        let index = |layer: usize| h.layers[layer].mixer.state().index;
        assert_eq!([index(0), index(1)], [KvShape::index(20), KvShape::NONE]);
    }
}

/// A file whose layers but the first have an indexer for each head of keys, with these keys.
fn read_indexed_heads(changes: &[(&'static str, Stored)]) -> Result<HyperParameters, String> {
    let mut keys = vec![
        ("attention.indexer.head_count", Size(2)),
        ("attention.indexer.key_length", Size(20)),
        ("attention.indexer.top_k", Size(4)),
        ("attention.indexer.block_size", Size(16)),
        ("attention.indexer.local_blocks", Size(1)),
        ("rope.dimension_count", Size(12)),
    ];
    keys.retain(|(key, _)| changes.iter().all(|(other, _)| other != key));
    keys.extend(changes.iter().cloned());
    let projection = |layer: u32| format!("blk.{layer}.indexer.q_proj.weight");
    let file = (1..4)
        .fold(file("minimax-m3", &keys), |file, layer| file.tensor_f32(&projection(layer), &[64, 40], &[0.0; 64 * 40]));
    let gguf = Gguf::from_bytes("model.gguf", file.build()).unwrap();
    HyperParameters::read(&gguf, arch::of(&gguf).unwrap(), None).map_err(|error| error.to_string())
}

#[test]
fn layers_with_an_indexer_select_pools_for_each_head_of_keys() {
    let h = read_indexed_heads(&[]).unwrap();
    assert!(matches!(h.layers[0].mixer, MixerSpec::Attention(_)));
    let MixerSpec::SelectiveAttention(attention, indexer) = &h.layers[1].mixer else { panic!("it selects") };
    assert_eq!((attention.heads.n_kv_heads, attention.heads.rotary_dim), (2, 12));
    assert_eq!(*indexer, GroupIndexer::OfEach(HeadIndexer { head_dim: 20, top_k: 4, pool: 16, last: 1 }));
    let index = |layer: usize| h.layers[layer].mixer.state().index;
    assert_eq!([index(0), index(1)], [KvShape::NONE, KvShape::index(20)]);
    let shown = "attention, 4 heads of 24, 2 of keys and values, each selects 4 pools of 16 positions";
    assert_eq!(h.layers[1].mixer.to_string(), shown);
}

#[test]
fn impossible_indexers_of_heads_are_refused() {
    for (name, value, expected) in [
        ("head_count", Size(3), "must be 2 (the heads of keys)"),
        ("key_length", Size(10), "at least 12 (the rotated values)"),
        ("top_k", Size(0), "between 1 and"),
        ("block_size", Size(1 << 23), "at most 4194304"),
        ("block_size", Absent, "lacks the key"),
        ("local_blocks", Size(5), "at most 4 (the selected blocks)"),
        ("local_blocks", Size(0), "between 1 and"),
    ] {
        let key: &'static str = Box::leak(format!("attention.indexer.{name}").into_boxed_str());
        let error = read_indexed_heads(&[(key, value)]).unwrap_err();
        assert!(error.contains(key) && error.contains(expected), "{error}");
    }
}

#[test]
fn a_layer_alone_without_an_indexer_attends_to_all_positions() {
    let mut keys = indexed();
    keys.push(("block_count", Size(1)));
    let h = read("glm-dsa", &keys).unwrap();
    assert!(matches!(h.layers[0].mixer, MixerSpec::LatentAttention(_, _, None)));
}

/// The keys of latent attention without rotation to pools of positions, and of several residual streams.
fn pooled() -> Vec<(&'static str, Stored)> {
    let mut keys = indexed();
    keys.retain(|(key, _)| {
        !matches!(*key, "attention.key_length" | "rope.dimension_count" | "attention.indexer.top_k")
    });
    keys.extend([
        ("attention.key_length", Size(40)),
        ("rope.dimension_count", Size(0)),
        ("attention.indexer.top_k", Size(12)),
        ("attention.indexer.kpool", Size(4)),
        ("hyper_connection.count", Size(4)),
        ("hyper_connection.sinkhorn_iterations", Size(20)),
        ("hyper_connection.epsilon", Number(1e-6)),
    ]);
    keys
}

#[test]
fn layers_select_pools_and_keep_the_newest_as_state() {
    let h = read("glm5-next", &pooled()).unwrap();
    let MixerSpec::LatentAttention(attention, sizes, Some(selection)) = &h.layers[0].mixer else {
        panic!("it selects")
    };
    assert_eq!((attention.heads.rotary_dim, attention.rope, sizes.key_dim), (0, None, 24));
    assert_eq!(selection.pool_state(0).len, 3 * 20);
    let [own, other] = [0, 1].map(|layer: usize| h.layers[layer].mixer.state());
    assert_eq!((own.recurrent_len, own.index), (60, KvShape::index(20)));
    assert_eq!((other.recurrent_len, other.index, own.kv), (0, KvShape::NONE, other.kv));
    let connections = StreamConnections::Hyper(HyperSizes { rounds: 20, epsilon: 1e-6 });
    assert_eq!(h.streams, Some(StreamSizes { count: 4, connections }));
    // Some converters have another name.
    let other = read("glm5next", &pooled()).unwrap();
    assert_eq!(HyperParameters { architecture: h.architecture.clone(), ..other }, h);
}

#[test]
fn streams_with_a_magnitude_are_not_mixed() {
    let mut keys = indexed();
    keys.extend([
        ("hyper_connection.count", Size(4)),
        ("hyper_connection.epsilon", Number(1e-6)),
        ("hyper_connection.magnitude", Number(2.0)),
    ]);
    let connections = StreamConnections::Independent { magnitude: 2.0, epsilon: 1e-6 };
    assert_eq!(read("hy_v4", &keys).unwrap().streams, Some(StreamSizes { count: 4, connections }));
    keys.pop();
    assert_refused("hy_v4", &keys, &["hyper_connection.sinkhorn_iterations"]);
    keys.push(("hyper_connection.magnitude", Number(-1.0)));
    assert_refused("hy_v4", &keys, &["hyper_connection.magnitude", "above 0"]);
}

/// The keys of gated streams, of attention to pools, and of n-grams. Every second layer is recurrent, as one of n-grams is.
fn ngrams() -> Vec<(&'static str, Stored)> {
    vec![
        ("ssm.conv_kernel", Size(4)),
        ("ssm.state_size", Size(8)),
        ("ssm.inner_size", Size(32)),
        ("ssm.group_count", Size(2)),
        ("ssm.time_step_rank", Size(4)),
        ("rope.dimension_count", Size(8)),
        ("rope.dimension_sections", Sizes(vec![2, 1, 1, 0])),
        ("hyper_connection.count", Size(4)),
        ("hyper_connection.low_rank", Size(12)),
        ("attention.compress_ratios", Sizes(vec![0, 4, 0, 4])),
        ("attention.indexer.head_count", Size(2)),
        ("attention.indexer.key_length", Size(20)),
        ("attention.indexer.top_k", Size(16)),
        ("embedding_length_per_layer_input", Size(6)),
        ("ple.layers", Sizes(vec![2])),
        ("ple.ngram_size", Size(3)),
        ("ple.heads_per_ngram", Size(2)),
        ("ple.conv_kernel", Size(4)),
        ("ple.eos_token_id", Size(9)),
        ("ple.layer_multipliers", Sizes(vec![11, 13, 17])),
        ("ple.head_offsets", Sizes(vec![0, 5, 10, 15])),
        ("ple.head_vocab_sizes", Sizes(vec![5, 5, 5, 5])),
    ]
}

#[test]
fn one_layer_adds_ngrams_whose_last_tokens_are_state() {
    let h = read("qwen4exp", &ngrams()).unwrap();
    let spec = h.ngrams.as_ref().unwrap();
    assert_eq!((spec.layer, spec.columns, spec.conv(), &*spec.hash.multipliers), (2, 6, (4, 3), &[11, 13, 17][..]));
    assert_eq!(spec.hash.heads, [(5, 0), (5, 5), (5, 10), (5, 15)]);
    assert_eq!(h.streams.unwrap().connections, StreamConnections::Gated { low_rank: 12 });
    // The table is that of n-grams.
    assert_eq!(h.per_layer_input, None);
    let MixerSpec::SelectiveAttention(_, GroupIndexer::Shared(indexer)) = &h.layers[1].mixer else {
        panic!("it selects")
    };
    assert_eq!((indexer.pool, indexer.top_k, indexer.rope_pairs), (4, 16, RopePairs::Halves));
    let states = h.states();
    // The convolution spans ten rows of all streams.
    assert_eq!(states[2].recurrent_len - states[0].recurrent_len, 9 * 4 * 64);
    assert_eq!((states[1].index, states[1].recurrent_len), (KvShape::index(20), 3 * 20));
    assert_eq!((states.len(), states[4].recurrent_len), (5, 2));
}

#[test]
fn impossible_ngrams_are_refused() {
    for (name, value, expected) in [
        ("ple.layers", Sizes(vec![1]), "one layer with the gated delta rule"),
        ("ple.layers", Sizes(vec![0, 2]), "one layer with the gated delta rule"),
        ("ple.layers", Sizes(vec![7]), "one layer with the gated delta rule"),
        ("ple.ngram_size", Size(1), "between 2 and 16"),
        ("ple.ngram_size", Size(17), "between 2 and 16"),
        ("ple.heads_per_ngram", Size(4000), "at most 2048"),
        ("ple.heads_per_ngram", Size(3), "6 numbers"),
        ("ple.conv_kernel", Size(30), "at most 64"),
        ("ple.eos_token_id", Size(10), "below 10"),
        ("ple.layer_multipliers", Sizes(vec![11, 13]), "3 numbers"),
        ("ple.head_vocab_sizes", Sizes(vec![5, 0, 5, 5]), "none below 1"),
        ("ple.head_offsets", Absent, "ple.head_offsets"),
        ("hyper_connection.count", Size(1), "between 2 and 8"),
        ("hyper_connection.count", Absent, "hyper_connection.count"),
        ("attention.compress_ratios", Sizes(vec![0, 5, 0, 5]), "a divisor of 16"),
        ("attention.compress_ratios", Sizes(vec![0, 4, 0, 0]), "above 0 for layer 3"),
        ("attention.compress_ratios", Absent, "attention.compress_ratios"),
        ("attention.indexer.key_length", Size(6), "at least 8"),
    ] {
        let mut keys = ngrams();
        keys.retain(|(other, _)| *other != name);
        keys.push((name, value));
        assert_refused("qwen4exp", &keys, &[expected]);
    }
}

/// The keys of attention to entries of pools, in two of four layers.
fn entries() -> Vec<(&'static str, Stored)> {
    vec![
        ("attention.head_count_kv", Size(1)),
        ("attention.value_length", Size(24)),
        ("rope.dimension_count", Size(8)),
        ("attention.sliding_window", Size(20)),
        ("attention.q_lora_rank", Size(12)),
        ("attention.output_group_count", Size(2)),
        ("attention.output_lora_rank", Size(10)),
        // The last is that of a layer for multi-token prediction.
        ("attention.compress_ratios", Sizes(vec![0, 4, 128, 0, 0])),
        ("attention.compress_rope_freq_base", Number(160_000.0)),
        ("rope.freq_base", Number(10_000.0)),
        ("rope.scaling.type", Text("yarn")),
        ("rope.scaling.factor", Number(4.0)),
        ("rope.scaling.original_context_length", Size(1024)),
    ]
}

#[test]
fn layers_attend_to_entries_of_their_pools() {
    let h = read("deepseek4", &entries()).unwrap();
    let mixer = |layer: usize| &h.layers[layer].mixer;
    let pools = [0, 1, 2, 3].map(|layer| mixer(layer).state().kv.pool);
    assert_eq!(pools, [0, 4, 128, 0]);
    // Three values of a running mean for each value of an entry.
    assert_eq!([0, 1, 2].map(|layer| mixer(layer).state().recurrent_len), [0, 72, 72]);
    assert_eq!(h.each(|attention| attention.window), vec![Some(Window::Last(20)); 4]);
    let ropes = h.each(|attention| attention.rope.unwrap());
    assert_eq!([ropes[0].base, ropes[1].base], [10_000.0, 160_000.0]);
    assert_eq!([ropes[0].magnitude, ropes[1].magnitude], [1.0, 1.0]);
    assert_eq!(ropes[0].scaling, RopeScaling::None);
    assert!(matches!(ropes[1].scaling, RopeScaling::Yarn { .. }));
}

#[test]
fn impossible_pools_with_entries_are_refused() {
    for (name, value, expected) in [
        ("attention.compress_ratios", Sizes(vec![0, 6, 128, 0]), "a divisor of 16 or a multiple of 16"),
        ("attention.compress_ratios", Sizes(vec![0, 4]), "one size for each of 4 layers"),
        ("attention.compress_ratios", Absent, "present"),
        ("attention.head_count_kv", Size(2), "must be 1"),
        ("attention.value_length", Size(16), "must be 24"),
        ("attention.output_group_count", Size(3), "a divisor of 4 heads"),
        ("attention.compress_rope_freq_base", Number(0.0), "above 0"),
    ] {
        let mut keys = entries();
        keys.retain(|(other, _)| *other != name);
        keys.push((name, value));
        assert_refused("deepseek4", &keys, &[name, expected]);
    }
}

#[test]
fn impossible_pools_and_streams_are_refused() {
    for (name, value, expected) in [
        ("attention.indexer.kpool", Size(5), "a divisor of 12"),
        (
            "attention.indexer.kpool_select_tail",
            Flag(false),
            "\"glm5-next.attention.indexer.kpool_select_tail\" is false",
        ),
        ("hyper_connection.count", Size(1), "between 2 and 8"),
        ("hyper_connection.count", Size(9), "between 2 and 8"),
        ("hyper_connection.sinkhorn_iterations", Size(4000), "at most 1000"),
        ("hyper_connection.epsilon", Number(-1.0), "above 0"),
    ] {
        let mut keys = pooled();
        keys.retain(|(other, _)| *other != name);
        keys.push((name, value));
        assert_refused("glm5-next", &keys, &[name, expected]);
    }
    // Only latent attention may rotate nothing.
    assert_refused("llama", &[("rope.dimension_count", Size(0))], &["rope.dimension_count", "between 1"]);
}

#[test]
fn impossible_indexers_are_refused() {
    let with = |key: &'static str, value: Stored| {
        let mut keys = indexed();
        keys.retain(|(other, _)| *other != key);
        keys.push((key, value));
        keys
    };
    let key = |name: &str| format!("deepseek32.attention.indexer.{name}");
    for (name, value, expected) in [
        ("attention.indexer.top_k", Size(0), "between 1 and"),
        ("attention.indexer.key_length", Size(6), "at least 8 (the rotated values)"),
        ("attention.indexer.types", Flags(vec![false, true, true, true]), "no indexer in the first layer"),
        ("attention.indexer.types", Flags(vec![true]), "one truth value for each of 4 layers"),
    ] {
        let short = name.rsplit('.').next().unwrap();
        assert_refused("deepseek32", &with(name, value), &[&key(short), expected]);
    }
    // Without the key, a layer has an indexer if it has its tensors; these files have none.
    let mut keys = indexed();
    keys.retain(|(key, _)| *key != "attention.indexer.types");
    assert_refused("deepseek32", &keys, &["no indexer in the first layer"]);
}

#[test]
fn latent_attention_reads_its_sizes_and_scales_scores_for_long_contexts() {
    let h = read("deepseek2", &latent()).unwrap();
    let sizes = LatentSizes { rank: 40, key_dim: 16, value_dim: 20 };
    assert!(matches!(&h.layers[0].mixer, MixerSpec::LatentAttention(_, found, None) if *found == sizes));
    let scale = |h: &HyperParameters| h.attention(0).scale;
    assert_eq!(scale(&h), 1.0 / 24_f32.sqrt());
    let mut keys = latent();
    keys.extend([
        ("rope.scaling.type", Text("yarn")),
        ("rope.scaling.factor", Number(40.0)),
        ("rope.scaling.original_context_length", Size(4096)),
        ("rope.scaling.yarn_log_multiplier", Number(0.1)),
    ]);
    let stretched = read("deepseek2", &keys).unwrap();
    let magnitude = 0.1 * 40_f32.ln() + 1.0;
    assert!((scale(&stretched) / scale(&h) - magnitude * magnitude).abs() < 1e-5);
    let rope = stretched.attention(0).rope.unwrap();
    assert!(matches!(rope.scaling, RopeScaling::Yarn { .. }) && rope.magnitude == 1.0, "{rope:?}");
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
    let windowed = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 16, value_dim: 16, rotary_dim: 16 };
    let global = Heads { n_heads: 4, n_kv_heads: 1, head_dim: 32, value_dim: 32, rotary_dim: 32 };
    assert_eq!(h.each(|attention| attention.heads), [windowed, global, windowed, global]);
    let window = Some(Window::Last(16));
    assert_eq!(h.each(|attention| attention.window), [window, None, window, None]);
    assert_eq!(h.attention(0).scale, 1.0);
    let few = [("attention.head_count_kv", Sizes(vec![2, 1]))];
    assert_refused("gemma4", &few, &["head_count_kv\" is 2", "each of 4 layers"]);
    let none = [("attention.head_count_kv", Sizes(vec![2, 0, 2, 1]))];
    assert_refused("gemma4", &none, &["head_count_kv\" is 0", "above 0"]);
    let odd = [("attention.head_count_kv", Sizes(vec![2, 3, 2, 1]))];
    assert_refused("gemma4", &odd, &["head_count_kv\" is 3", "a divisor of 4"]);
    assert_refused("gemma4", &[("attention.shared_kv_layers", Size(4))], &["shared_kv_layers\" is 4", "below 4"]);
}

#[test]
fn chunk_length_comes_from_the_file_else_the_family_and_a_window_of_zero_disables_chunks() {
    let h = read("llama4", &[]).unwrap();
    assert_eq!(h.attention(1).window, Some(Window::Chunk(8192)));
    assert_eq!(h.attention(3).window, None);
    assert_eq!((h.attention(1).position_scale, h.attention(3).rope), (None, None));
    assert_eq!(h.attention(3).position_scale, Some(PositionScale { step: 8192, strength: 0.1, first: 1 }));
    let keys = [("attention.chunk_size", Size(32)), ("attention.temperature_length", Size(16))];
    let h = read("llama4", &keys).unwrap();
    assert_eq!(h.attention(0).window, Some(Window::Chunk(32)));
    assert_eq!(h.attention(3).position_scale, Some(PositionScale { step: 16, strength: 0.1, first: 1 }));
    let h = read("llama4", &[("attention.sliding_window", Size(0))]).unwrap();
    assert!(
        h.each(|attention| (attention.window, attention.position_scale)).iter().all(|facts| *facts == (None, None))
    );
}

#[test]
fn a_softmax_over_the_chosen_experts_is_read_as_a_renormalised_softmax() {
    let keys = [("expert_count", Size(8)), ("expert_used_count", Size(2)), ("expert_gating_func", Size(3))];
    let sizes = experts(&read("gpt-oss", &keys).unwrap());
    assert_eq!((sizes.scoring, sizes.renormalise), (Scoring::Softmax, true));
    assert_refused("deepseek2", &[latent(), keys.to_vec()].concat(), &["expert_gating_func\" is 3"]);
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
        read(architecture, &keys).unwrap().attention(0).scale.powi(-2).round() as u32
    };
    let gemma2 = [[2304, 8, 256], [3584, 16, 256], [4608, 32, 128]].map(|sizes| width("gemma2", sizes));
    assert_eq!(gemma2, [256, 256, 144], "2B, 9B and 27B");
    let gemma3 = [[640, 4, 256], [1152, 4, 256], [2560, 8, 256], [3840, 16, 256], [5376, 32, 128]];
    assert_eq!(gemma3.map(|sizes| width("gemma3", sizes)), [256, 256, 256, 256, 168], "270M to 27B");
}

#[test]
fn llama_4_normalises_rotated_heads_unless_dense_layers_alternate_with_experts() {
    let norms = |keys: &[(&str, Stored)]| {
        read("llama4", keys).unwrap().attention(0).qk_norm == Some(QkNormKind::RotatedUnweighted)
    };
    let step = |step| ("interleave_moe_layer_step", Size(step));
    assert!(norms(&[]) && norms(&[step(0)]) && norms(&[step(1)]));
    assert!(!norms(&[step(2)]));
    let stored = |value| ("use_qk_norm", Flag(value));
    assert!(norms(&[step(2), stored(true)]) && !norms(&[step(1), stored(false)]));
    assert_eq!(read("llama", &[stored(true)]).unwrap().attention(0).qk_norm, None);
}

/// The keys of a file of an extended context, with tensors of divisors for it.
fn extended(architecture: &str, context: u32, tensors: &[&str], context_tokens: usize) -> Result<RopeSpec, String> {
    let mut file = file(architecture, &[("rope.scaling.original_context_length", Size(context))]);
    for tensor in tensors {
        file = file.tensor_f32(tensor, &[12], &[1.0; 12]);
    }
    let gguf = Gguf::from_bytes("model.gguf", file.build()).unwrap();
    let h = HyperParameters::read(&gguf, arch::of(&gguf).unwrap(), Some(context_tokens));
    h.map(|h| h.attention(0).rope.unwrap()).map_err(|error| error.to_string())
}

#[test]
fn divisors_of_frequencies_are_chosen_by_the_context() {
    let both = ["rope_factors_long.weight", "rope_factors_short.weight"];
    let chosen = |context_tokens| extended("phi3", 4096, &both, context_tokens).unwrap().factors;
    assert_eq!([4096, 4097].map(chosen), [Some(both[1]), Some(both[0])]);
    assert_eq!(extended("phi3", 4096, &[], 8192).unwrap().factors, None);
    let error = extended("phi3", 4096, &both[..1], 8192).unwrap_err();
    assert!(error.contains("rope_factors_short") && error.contains("one is missing"), "{error}");
}

#[test]
fn layers_without_rotation_come_from_the_file_else_from_the_family() {
    let rotates = |architecture, keys: &[(&str, Stored)]| {
        read(architecture, keys).unwrap().each(|attention| attention.rope.is_some())
    };
    assert_eq!(rotates("smollm3", &[]), [true, true, true, false]);
    let pattern = ("attention.rope_pattern", Flags(vec![false, true, false, true]));
    assert_eq!(rotates("smollm3", std::slice::from_ref(&pattern)), [false, true, false, true]);
    let window = ("attention.sliding_window", Size(16));
    assert_eq!(rotates("exaone4", std::slice::from_ref(&window)), [true, true, true, false]);
    assert_eq!(rotates("exaone4", &[]), [true; 4], "without a window all layers rotate");
    assert_eq!(rotates("granite", &[("rope.scaling.finetuned", Flag(false))]), [false; 4]);
    let short = ("attention.rope_pattern", Flags(vec![true]));
    assert_refused("smollm3", &[short], &["attention.rope_pattern\" is 1", "each of 4 layers"]);
}

#[test]
fn layers_may_have_their_own_sizes() {
    let keys = [
        ("feed_forward_length", Sizes(vec![96, 48, 96, 48])),
        ("attention.head_count", Sizes(vec![4, 8, 4, 8])),
        ("attention.head_count_kv", Sizes(vec![2, 4, 1, 8])),
    ];
    let h = read("llama", &keys).unwrap();
    let widths = h.layers.iter().map(|layer| match layer.feed_forward {
        FeedForwardSpec::Dense(sizes) | FeedForwardSpec::ExpertsNextToDense(_, sizes) => sizes.intermediate_size,
        FeedForwardSpec::Experts(sizes) => sizes.intermediate_size,
        FeedForwardSpec::None => 0,
    });
    assert_eq!(widths.collect::<Vec<_>>(), [96, 48, 96, 48]);
    assert_eq!(h.each(|attention| attention.heads.n_heads), [4, 8, 4, 8]);
    assert_refused("llama", &[("feed_forward_length", Sizes(vec![96]))], &["feed_forward_length\" is 1", "each of 4"]);
}

#[test]
fn scales_are_read_where_the_family_uses_them() {
    let keys = [("logit_scale", Number(8.0)), ("embedding_scale", Number(12.0)), ("residual_scale", Number(0.25))];
    let h = read("granite", &keys).unwrap();
    assert_eq!((h.embedding_scale, h.residual_scale, h.logit_scale), (12.0, Some(0.25), Some(0.125)));
    assert_eq!(read("llama", &keys).unwrap().logit_scale, None);
    let multiplied = [("logit_scale", Number(0.5)), ("attention.layer_norm_epsilon", Number(1e-5))];
    assert_eq!(read("cohere2", &multiplied).unwrap().logit_scale, Some(0.5));
    assert_refused("granite", &[("logit_scale", Number(-1.0))], &["logit_scale\" is -1", "above 0"]);
    assert_refused("cohere2", &multiplied[..1], &["layer_norm_epsilon"]);
}

#[test]
fn queries_grow_with_their_position_where_the_file_has_a_strength() {
    let strength = ("attention.temperature_scale", Number(0.1));
    let original = ("rope.scaling.original_context_length", Size(2048));
    let h = read("mistral3", &[strength.clone(), original]).unwrap();
    assert_eq!(h.attention(3).position_scale, Some(PositionScale { step: 2048, strength: 0.1, first: 0 }));
    assert_eq!(read("mistral3", &[]).unwrap().attention(0).position_scale, None);
    // Mistral Large 3, whose files have the step.
    let step = ("attention.temperature_length", Size(8192));
    let h = read("deepseek2", &[latent(), vec![strength.clone(), step]].concat()).unwrap();
    assert_eq!(h.attention(0).position_scale, Some(PositionScale { step: 8192, strength: 0.1, first: 0 }));
    assert_refused("mistral3", &[strength], &["rope.scaling.original_context_length"]);
}

#[test]
fn the_first_of_four_layers_can_be_the_one_without_a_window() {
    let h = read("laguna", &[("attention.sliding_window", Size(8)), ("block_count", Size(6))]).unwrap();
    let windowed = h.each(|attention| attention.window.is_some());
    assert_eq!(windowed, [false, true, true, true, false, true]);
    let h = read("laguna", &[("attention.sliding_window", Size(8)), ("attention.sliding_window_pattern", Size(1))]);
    assert_eq!(h.unwrap().each(|attention| attention.window), [None; 4]);
}

#[test]
fn a_model_that_needs_the_factor_of_embeddings_is_refused_without_it() {
    assert_refused("minicpm", &[], &["minicpm.embedding_scale"]);
    assert_eq!(read("minicpm", &[("embedding_scale", Number(12.0))]).unwrap().embedding_scale, 12.0);
}

#[test]
fn layers_are_sequential_where_the_key_says_so() {
    let epsilon = ("attention.layer_norm_epsilon", Number(1e-5));
    let is_parallel = |value: bool| {
        let h = read("gptneox", &[epsilon.clone(), ("use_parallel_residual", Flag(value))]).unwrap();
        h.layers[0].is_parallel
    };
    assert_eq!([true, false].map(is_parallel), [true, false]);
}

#[test]
fn models_that_make_embeddings_may_see_later_tokens() {
    let directions = |keys: &[(&str, Stored)]| read("qwen2", keys).unwrap().each(|attention| attention.sees_later);
    let [causal, both] = [true, false].map(|value| ("attention.causal", Flag(value)));
    let pooling = ("pooling_type", Size(3));
    assert_eq!(directions(&[both.clone(), pooling.clone()]), [true; 4]);
    assert_eq!(directions(&[causal, pooling]), [false; 4]);
    assert_refused("qwen2", std::slice::from_ref(&both), &["qwen2.attention.causal\" is false", "pooling_type"]);
    let encoder = [both, ("attention.layer_norm_epsilon", Number(1e-5))];
    assert_eq!(read("bert", &encoder).unwrap().each(|attention| attention.sees_later), [true; 4]);
}

#[test]
fn attention_next_to_state_spaces_does_not_rotate_without_a_key_that_says_so() {
    for architecture in ["nemotron_h", "nemotron_h_moe"] {
        assert_eq!(read(architecture, &[]).unwrap().each(|attention| attention.rope), [None; 4]);
    }
}

#[test]
fn a_file_may_state_the_form_of_gelu() {
    let epsilon = ("attention.layer_norm_epsilon", Number(1e-5));
    let form = |architecture: &str, name: &'static str| {
        let h = read(architecture, &[epsilon.clone(), ("hidden_activation", Text(name))])?;
        match h.layers[0].feed_forward {
            FeedForwardSpec::Dense(sizes) => Ok(sizes.form),
            _ => Err("not dense".to_owned()),
        }
    };
    let [exact, tanh] = [Pointwise::Gelu, Pointwise::GeluTanh].map(|gelu| Ok::<_, String>(FeedForward::Ungated(gelu)));
    assert_eq!([form("gptneox", "gelu"), form("starcoder", "gelu")], [exact.clone(), exact]);
    assert_eq!([form("gptneox", "gelu_fast"), form("starcoder", "gelu_new")], [tanh.clone(), tanh]);
    assert!(form("gptneox", "relu").unwrap_err().contains("hidden_activation\" is \"relu\""));
}

/// Ollama's converter has its own names for some keys.
#[test]
fn keys_of_other_converters_mean_the_same() {
    let facts = |keys: Vec<(&str, Stored)>| {
        let yarn = [
            ("rope.scaling.type", Text("yarn")),
            ("rope.scaling.factor", Number(16.0)),
            ("rope.scaling.original_context_length", Size(2048)),
        ];
        let h = read("mistral3", &[&yarn[..], &keys].concat()).unwrap();
        (h.attention(0).rope, h.attention(0).position_scale)
    };
    let usual = facts(vec![
        ("rope.scaling.yarn_beta_fast", Number(20.0)),
        ("rope.scaling.yarn_beta_slow", Number(2.0)),
        ("rope.scaling.yarn_log_multiplier", Number(0.5)),
        ("attention.temperature_scale", Number(0.1)),
    ]);
    let others = facts(vec![
        ("rope.scaling.beta_fast", Number(20.0)),
        ("rope.scaling.beta_slow", Number(2.0)),
        ("rope.scaling.mscale", Number(1.0)),
        ("rope.scaling.mscale_all_dim", Number(0.5)),
        ("rope.scaling_beta", Number(0.1)),
    ]);
    assert_eq!(others, usual);
    let unscaled = [("rope.scaling.type", Text("")), ("rope.scaling.factor", Number(0.0))];
    assert_eq!(read("mistral3", &unscaled).unwrap().attention(0).rope.unwrap().scaling, RopeScaling::None);
    let window = ("attention.sliding_window", Size(16));
    let bases = [window, ("rope.global.freq_base", Number(7.0)), ("rope.local.freq_base", Number(5.0))];
    let h = read("gemma3", &bases).unwrap();
    assert_eq!(h.each(|attention| attention.rope.unwrap().base), [5.0; 4]);
    let h = read("gemma3", &bases[1..]).unwrap();
    assert_eq!(h.each(|attention| attention.rope.unwrap().base), [7.0; 4]);
}

#[test]
fn files_with_parts_for_images_may_leave_out_keys() {
    let without = [("attention.layer_norm_rms_epsilon", Absent), ("vision.block_count", Size(27))];
    let h = read("gemma3", &without).unwrap();
    let rope = h.attention(0).rope.unwrap();
    assert_eq!((h.norm_epsilon, rope.base, rope.scaling), (1e-6, 1e6, RopeScaling::Linear { factor: 8.0 }));
    let stated = [("rope.freq_base", Number(5.0)), ("rope.scaling.factor", Number(2.0))];
    let rope = read("gemma3", &[&without[..], &stated].concat()).unwrap().attention(0).rope.unwrap();
    assert_eq!((rope.base, rope.scaling), (5.0, RopeScaling::Linear { factor: 2.0 }));
    assert_refused("gemma3", &without[..1], &["layer_norm_rms_epsilon"]);
    assert_refused("gemma2", &without, &["layer_norm_rms_epsilon"]);
}

#[test]
fn experts_may_work_on_shorter_rows() {
    let lengths = Sizes(vec![32, 32, 32, 32]);
    let keys = [
        ("expert_count", Size(8)),
        ("expert_used_count", Size(2)),
        ("feed_forward_length", lengths),
        ("moe_latent_size", Size(16)),
    ];
    let sizes = experts(&read("nemotron_h_moe", &keys).unwrap());
    assert_eq!((sizes.latent_size, sizes.scoring, sizes.intermediate_size), (Some(16), Scoring::Sigmoid, 32));
}

#[test]
fn scores_fall_with_distance_by_the_key_else_by_the_family() {
    let epsilon = ("attention.layer_norm_epsilon", Number(1e-5));
    let bias = |architecture: &str, bias: Option<f32>| {
        let stored = bias.map(|bias| ("attention.max_alibi_bias", Number(bias)));
        let keys: Vec<_> = [epsilon.clone()].into_iter().chain(stored).collect();
        read(architecture, &keys).unwrap().attention(0).max_alibi_bias
    };
    assert_eq!([bias("bloom", None), bias("bloom", Some(0.0))], [Some(8.0), None]);
    assert_eq!([bias("mpt", None), bias("mpt", Some(4.0))], [None, Some(4.0)]);
    assert_refused(
        "mpt",
        &[("attention.max_alibi_bias", Number(-1.0)), epsilon],
        &["max_alibi_bias\" is -1", "above 0"],
    );
}

#[test]
fn deep_models_of_one_family_have_distances_instead_of_rotation() {
    for (layers, bias) in [(4, None), (40, Some(8.0))] {
        let h = read("baichuan", &[("block_count", Size(layers))]).unwrap();
        let attention = h.attention(0);
        assert_eq!((attention.max_alibi_bias, attention.rope.is_some()), (bias, bias.is_none()));
    }
}

#[test]
fn streams_and_cutoffs_are_those_of_the_keys() {
    let deviations = |values: [f32; 4]| ("activation_sparsity_scale", Numbers(values.to_vec()));
    let streams = |count, active| [("altup.num_inputs", Size(count)), ("altup.active_idx", Size(active))];
    let [count, active] = streams(4, 1);
    let h = read("gemma3n", &[count, active, deviations([1.5, 0.0, f32::NEG_INFINITY, -1.0])]).unwrap();
    assert_eq!(h.streams, Some(StreamSizes { count: 4, connections: StreamConnections::Alternating { active: 1 } }));
    let cutoff = |layer: &LayerSpec| match layer.feed_forward {
        FeedForwardSpec::Dense(sizes) => sizes.cutoff,
        _ => None,
    };
    assert_eq!(h.layers.iter().map(cutoff).collect::<Vec<_>>(), [Some(1.5), Some(0.0), None, Some(-1.0)]);
    assert_eq!(read("gemma3n", &[]).unwrap().streams, None);
    assert_refused("gemma3n", &streams(4, 4), &["altup.active_idx\" is 4", "below 4"]);
    assert_refused("gemma3n", &streams(65, 0), &["altup.num_inputs\" is 65", "at most 64"]);
    assert_refused("gemma3n", &[deviations([f32::NAN; 4])], &["activation_sparsity_scale", "finite"]);
    let short = ("activation_sparsity_scale", Numbers(vec![1.0]));
    assert_refused("gemma3n", &[short], &["activation_sparsity_scale", "4 layers"]);
}

/// The keys of latent attention, of bounded activations, and of earlier residuals, some replaced by `changes`.
fn kept(changes: &[(&'static str, Stored)]) -> Vec<(&'static str, Stored)> {
    let mut keys = latent();
    keys.extend([
        ("attn_res.block_size", Size(3)),
        ("activation.situ_beta", Number(4.0)),
        ("activation.situ_linear_beta", Number(25.0)),
        ("expert_count", Size(8)),
        ("expert_used_count", Size(2)),
        ("expert_latent_length", Size(20)),
    ]);
    keys.retain(|(key, _)| changes.iter().all(|(other, _)| other != key));
    keys.extend(changes.iter().cloned());
    keys
}

#[test]
fn residuals_are_kept_and_activations_bounded_by_the_keys() {
    let h = read("kimi-k3", &kept(&[])).unwrap();
    assert_eq!(h.streams, Some(StreamSizes { count: 1, connections: StreamConnections::Kept { every: 3 } }));
    let form = FeedForward::Gated(Activation::Situ { beta: 4, linear: 25 });
    let sizes = experts(&h);
    assert_eq!((sizes.form, sizes.shared_form, sizes.latent_size), (form, form, Some(20)));
    assert!(h.each(|attention| attention.rope.is_none()).into_iter().all(|is_unrotated| is_unrotated));
    for unbounded in [Number(0.0), Number(-1.0), Absent] {
        let h = read("kimi-k3", &kept(&[("activation.situ_linear_beta", unbounded)])).unwrap();
        assert_eq!(experts(&h).form, FeedForward::Gated(Activation::Situ { beta: 4, linear: 0 }));
    }
    assert_eq!(read("kimi-k3", &kept(&[("attn_res.block_size", Size(0))])).unwrap().streams, None);
    for (key, value, expected) in [
        ("activation.situ_beta", Number(0.5), "a whole number from 1 to 4095"),
        ("activation.situ_beta", Absent, "lacks the key"),
        ("activation.situ_linear_beta", Number(4096.0), "a whole number from 1 to 4095"),
    ] {
        assert_refused("kimi-k3", &kept(&[(key, value)]), &[key, expected]);
    }
    let deep = [("block_count", Size(256)), ("attn_res.block_size", Size(2))];
    assert_refused("kimi-k3", &kept(&deep), &["attn_res.block_size\" is 2", "at least 3", "at most 127"]);
}

#[test]
fn models_may_have_no_heads_where_no_layer_attends() {
    let keys = [
        ("attention.head_count", Size(0)),
        ("attention.head_count_kv", Size(0)),
        ("feed_forward_length", Size(0)),
        ("ssm.inner_size", Size(128)),
    ];
    let h = read("mamba", &keys).unwrap();
    assert!(h.layers.iter().all(|layer| layer.mixer == MixerSpec::None));
    assert_refused("llama", &keys[..2], &["attention.head_count_kv\" is 0", "above 0 for layer 0"]);
    assert_refused("llama", &keys[..1], &["attention.head_count\" is 0", "layers with heads of keys"]);
}

#[test]
fn layers_may_lack_a_half_or_both() {
    let keys = [
        ("attention.head_count", Sizes(vec![4, 0, 4, 0])),
        ("attention.head_count_kv", Sizes(vec![2, 0, 1, 0])),
        ("attention.key_length", Size(16)),
        ("feed_forward_length", Sizes(vec![64, 32, 0, 0])),
    ];
    let h = read("deci", &keys).unwrap();
    let halves = |layer: &LayerSpec| (layer.mixer != MixerSpec::None, layer.feed_forward != FeedForwardSpec::None);
    assert_eq!(
        h.layers.iter().map(halves).collect::<Vec<_>>(),
        [(true, true), (false, true), (true, false), (false, false)]
    );
    assert_eq!([0, 2].map(|layer| h.attention(layer).heads.n_kv_heads), [2, 1]);
    assert_refused("llama", &keys, &["attention.head_count_kv\" is 0", "above 0 for layer 1"]);
}

#[test]
fn values_may_be_shorter_than_keys_and_patterns_may_have_numbers() {
    let keys = [
        ("attention.value_length", Size(16)),
        ("attention.sliding_window", Size(8)),
        ("attention.sliding_window_pattern", Sizes(vec![0, 1, 1, 0, 1])),
    ];
    let h = read("mimo2", &keys).unwrap();
    assert_eq!(h.attention(0).kv_shape(), KvShape { value_dim: 16, ..KvShape::grouped(2, 24) });
    assert_eq!(h.each(|attention| attention.window.is_some()), [false, true, true, false]);
}

#[test]
fn layers_without_a_window_may_rotate_half_of_a_head() {
    let window = ("attention.sliding_window", Size(8));
    let pattern = ("attention.sliding_window_pattern", Flags(vec![false, true, false, true]));
    let h = read("step35", &[window, pattern]).unwrap();
    assert_eq!(h.each(|attention| attention.heads.rotary_dim), [12, 24, 12, 24]);
}

#[test]
fn activations_may_have_a_limit_in_some_layers() {
    let keys = [
        ("expert_count", Size(8)),
        ("expert_used_count", Size(2)),
        ("swiglu_clamp_exp", Numbers(vec![7.0, 0.0, 0.0, 0.0])),
        ("swiglu_clamp_shexp", Numbers(vec![0.0, 16.0, 0.0, 0.0])),
    ];
    let sizes = experts(&read("step35", &keys).unwrap());
    let [limited, plain] = [Activation::LimitedSilu(7), Activation::Silu].map(FeedForward::Gated);
    assert_eq!([sizes.form, sizes.shared_form], [limited, plain]);
    let short = ("swiglu_clamp_exp", Numbers(vec![7.0]));
    assert_refused("step35", &[short], &["swiglu_clamp_exp\" is 1", "each of 4 layers"]);
    let uneven = ("swiglu_clamp_exp", Numbers(vec![0.5; 4]));
    assert_refused("step35", &[uneven], &["swiglu_clamp_exp\" is 0.5", "whole numbers"]);
    // The limit of the other form is that of the gate before its activation.
    let gate = FeedForward::Gated(Activation::Silu).limited(ActivationLimit::Gate, 7);
    assert_eq!(gate, FeedForward::Gated(Activation::ClampedSilu(7)));
}
