//! Tests of the shapes, formats and files of all models in the table, and of the logits of generated models.

use std::collections::HashSet;

use super::shape::{ExpertShape, Key, OptionalTensor};
use super::tensors::{parameters, tensors};
use super::*;
use crate::engine::{Engine, EngineLimits, LogitsWanted, Progress, SequenceRows, SequenceState, Step, StepId};
use crate::format::gguf::{Gguf, Metadata};
use crate::format::tokenizer::Tokenizer;
use crate::load::{self, LoadError, LoadOptions, Source};
use crate::model::ModelGraph;

/// The shape with few and narrow layers and a small vocabulary; everything else as in the table.
fn shrunk(shape: &Shape) -> &'static Shape {
    let keys: Vec<(&str, Key)> = shape.keys.iter().map(|(name, key)| (*name, shrunk_key(name, *key))).collect();
    leaked(Shape {
        n_layers: layers_of_every_kind(shape).max(3),
        keys: keys.leak(),
        optional: shape
            .optional
            .iter()
            .map(|tensor| OptionalTensor { rows: tensor.rows.min(1 << 14), ..*tensor })
            .collect::<Vec<_>>()
            .leak(),
        hidden_size: 256,
        intermediate_size: 512,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        vocab_size: 1000,
        window: shape.window.map(|_| 8),
        experts: shape.experts.map(|experts| ExpertShape {
            count: 6,
            used: 2,
            intermediate_size: 256,
            shared_size: experts.shared_size.min(256),
        }),
        ..*shape
    })
}

/// Layers up to the first of the last kind.
fn layers_of_every_kind(shape: &Shape) -> usize {
    let letters = shape.keys.iter().filter_map(|(_, key)| match key {
        Key::Sizes(letters, _) | Key::Flags(letters, _) => Some(*letters),
        _ => None,
    });
    let firsts = letters.flat_map(|letters| letters.chars().filter_map(|letter| letters.find(letter)).max());
    firsts.max().map_or(0, |last| last + 1)
}

fn shrunk_key(name: &str, key: Key) -> Key {
    match (name, key) {
        ("attention.head_count_kv", Key::Sizes(letters, sizes)) => {
            Key::Sizes(letters, sizes.map(|(letter, size)| (letter, size.min(2))))
        }
        ("attention.shared_kv_layers", _) => Key::Size(1),
        ("attention.output_group_count" | "attention.indexer.head_count", _) => Key::Size(2),
        ("expert_latent_length", _) => Key::Size(256),
        // The heads share the first rows of the table.
        ("ple.head_offsets", Key::Longs(heads)) => Key::Longs(vec![0; heads.len()].leak()),
        ("ple.head_vocab_sizes", Key::Longs(heads)) => Key::Longs(vec![997; heads.len()].leak()),
        ("ple.eos_token_id", _) => Key::Size(2),
        ("expert_group_count", _) => Key::Size(3),
        ("expert_group_used_count", _) => Key::Size(2),
        (_, key) => key,
    }
}

/// A shape of a test as `&'static`, like the shapes in the table.
fn leaked(shape: Shape) -> &'static Shape {
    Box::leak(Box::new(shape))
}

fn recipe(name: &str) -> &'static QuantizationRecipe {
    QUANTIZATION_RECIPES.iter().find(|recipe| recipe.name == name).unwrap()
}

fn shape(name: &str) -> &'static Shape {
    MODELS.iter().find(|shape| shape.name == name).unwrap()
}

#[test]
fn every_shape_has_the_published_number_of_parameters() {
    let wrong = MODELS.iter().map(|shape| (shape.name, parameters(shape), shape.parameters));
    assert_eq!(wrong.filter(|(_, ours, published)| ours != published).collect::<Vec<_>>(), []);
}

#[test]
fn every_name_is_unique() {
    let names: HashSet<&str> = MODELS.iter().map(|shape| shape.name).collect();
    assert_eq!(names.len(), MODELS.len());
    let names: HashSet<&str> = QUANTIZATION_RECIPES.iter().map(|recipe| recipe.name).collect();
    assert_eq!(names.len(), QUANTIZATION_RECIPES.len());
}

#[test]
fn every_model_builds_before_its_weights_are_generated() {
    for shape in MODELS {
        let synthetic = Synthetic { shape, recipe: recipe("q4_k_m") };
        let (gguf, _pending) = synthetic.outline().unwrap();
        let model = ModelGraph::build(&gguf).unwrap();
        let h = &model.hyperparameters;
        assert_eq!((h.vocab_size, h.context_train), (shape.vocab_size, shape.context_train), "{}", shape.name);
        assert_eq!(gguf.strings("tokenizer.ggml.tokens").unwrap().count(), shape.vocab_size, "{}", shape.name);
        let has_windows =
            h.layers.iter().filter_map(|layer| layer.mixer.attention()).any(|attention| attention.window.is_some());
        assert_eq!(has_windows, shape.window.is_some(), "{}", shape.name);
    }
}

#[test]
fn names_parse_in_either_case_and_errors_list_the_known_names() {
    let text = "llama-8b:q4_k_m";
    assert_eq!(text.parse::<Synthetic>().unwrap().to_string(), text);
    assert_eq!("Qwen3-8B:Q8_0".parse::<Synthetic>().unwrap().to_string(), "qwen3-8b:q8_0");
    let error = |text: &str| text.parse::<Synthetic>().unwrap_err().to_string();
    assert!(error("llama-9b:q8_0").contains("llama-1b, llama-3b, llama-8b, mistral-7b"));
    assert!(error("llama-8b:q9").contains("f32, f16, bf16, q8_0, q4_0"));
    assert!(error("llama-8b").contains("like llama-8b:q4_k_m"));
}

/// The formats of the named tensors.
fn formats(model: &str, format: &str, names: &[&str]) -> Vec<String> {
    let (shape, recipe) = (shape(model), recipe(format));
    let all = tensors(shape);
    let of = |name: &&str| {
        let tensor = all.iter().find(|tensor| tensor.name == format!("{name}.weight")).unwrap();
        Synthetic { shape, recipe }.format(tensor).to_string()
    };
    names.iter().map(of).collect()
}

#[test]
fn a_recipe_gives_more_bits_to_some_tensors() {
    let names = ["token_embd", "output", "blk.0.attn_v", "blk.4.attn_v", "blk.6.ffn_down", "blk.0.ffn_up"];
    assert_eq!(formats("llama-8b", "q4_k_m", &names), ["Q4_K", "Q6_K", "Q6_K", "Q4_K", "Q6_K", "Q4_K"]);
    assert_eq!(formats("llama-8b", "q5_k_m", &names), ["Q5_K", "Q6_K", "Q6_K", "Q5_K", "Q6_K", "Q5_K"]);
    assert_eq!(formats("llama-8b", "q8_0", &names[..2]), ["Q8_0", "Q8_0"]);
    assert_eq!(formats("llama-8b", "q4_0", &names[..3]), ["Q4_0", "Q6_K", "Q4_0"]);
    let unequal = ["token_embd", "output", "blk.0.attn_v", "blk.0.ffn_down", "blk.9.ffn_down"];
    assert_eq!(formats("llama-8b", "iq4_xs", &unequal), ["IQ4_XS", "Q6_K", "Q5_K", "Q5_K", "IQ4_XS"]);
    let experts = ["token_embd", "output", "blk.3.attn_v", "blk.3.ffn_down_exps"];
    assert_eq!(formats("gpt-oss-20b", "mxfp4_moe", &experts), ["Q8_0", "Q8_0", "Q8_0", "MXFP4"]);
    assert_eq!(formats("llama-8b", "iq2_xxs", &unequal), ["Q2_K", "Q5_K", "Q4_K", "Q2_K", "IQ2_XXS"]);
    assert_eq!(formats("llama-8b", "iq3_xxs", &unequal), ["IQ3_S", "Q5_K", "Q4_K", "Q4_K", "Q3_K"]);
    let middle = ["blk.0.ffn_up", "blk.9.ffn_up", "blk.9.ffn_gate", "blk.31.ffn_gate", "blk.0.attn_q", "blk.0.attn_k"];
    assert_eq!(formats("llama-8b", "iq3_xs", &middle), ["IQ3_S", "IQ3_XXS", "IQ3_XXS", "IQ3_S", "IQ3_XXS", "IQ3_XXS"]);
    assert_eq!(formats("llama-8b", "iq3_xxs", &middle[3..]), ["IQ3_XXS", "IQ2_S", "IQ2_S"]);
    assert_eq!(formats("llama-8b", "iq1_m", &["blk.3.attn_output", "blk.3.attn_q"]), ["IQ2_XXS", "IQ1_M"]);
    assert_eq!(formats("llama-8b", "f16", &["output", "blk.0.attn_norm"]), ["F16", "F32"]);
}

#[test]
fn rows_that_do_not_fit_the_super_block_get_a_format_with_shorter_blocks() {
    let names = ["token_embd", "blk.0.attn_q", "blk.0.attn_v", "blk.0.ffn_down"];
    assert_eq!(formats("qwen2.5-0.5b", "q4_k_m", &names), ["Q8_0", "Q5_0", "Q8_0", "Q6_K"]);
    assert_eq!(formats("qwen2.5-0.5b", "q5_k_m", &names), ["Q8_0", "Q5_1", "Q8_0", "Q6_K"]);
}

#[test]
fn the_tokenizer_encodes_and_decodes_text() {
    for name in ["llama-8b", "smollm2-135m", "qwen3-8b", "gemma2-2b", "gemma3-1b", "mistral-7b"] {
        let shape = leaked(Shape { n_layers: 1, ..*shape(name) });
        let (gguf, _pending) = Synthetic { shape, recipe: recipe("q4_0") }.outline().unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        assert_eq!(tokenizer.vocab_size(), shape.vocab_size);
        let text = "the quick brown fox, größer than 12 & more\n";
        let tokens = tokenizer.encode(text, false, false).unwrap();
        assert!(tokens.len() < text.len(), "{name}: {tokens:?}");
        assert_eq!(tokenizer.decode(&tokens, true), text, "{name}");
    }
}

#[test]
fn a_vocabulary_can_be_smaller_than_the_two_letter_words() {
    let shape = leaked(Shape { vocab_size: 300, ..*shrunk(shape("llama-8b")) });
    let (gguf, _pending) = Synthetic { shape, recipe: recipe("q8_0") }.outline().unwrap();
    assert_eq!(Tokenizer::from_gguf(&gguf).unwrap().vocab_size(), 300);
}

#[test]
fn the_written_file_equals_the_model_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (name, format) in [("gemma3-1b", "q4_k_m"), ("qwen2.5-7b", "f16"), ("llama-8b", "q5_0")] {
        let synthetic = Synthetic { shape: shrunk(shape(name)), recipe: recipe(format) };
        let path = folder.path().join(name);
        let bytes = synthetic.write(&path, &mut |_| {}).unwrap();
        let written = Gguf::open(&path).unwrap();
        let (generated, pending_weights) = synthetic.outline().unwrap();
        assert!(generated.weight("blk.0.attn_q.weight").unwrap().bytes().iter().all(|byte| *byte == 0));
        pending_weights.make(3);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes);
        for tensor in written.tensors() {
            let (ours, theirs) = (generated.weight(&tensor.name).unwrap(), written.weight(&tensor.name).unwrap());
            assert_eq!(ours.bytes(), theirs.bytes(), "{}", tensor.name);
            assert!(ours.bytes().iter().any(|byte| *byte != 0), "{}", tensor.name);
        }
    }
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious.gguf");
    std::fs::write(&path, "mine").unwrap();
    let synthetic = Synthetic { shape: shrunk(shape("llama-8b")), recipe: recipe("q4_0") };
    assert_eq!(synthetic.write(&path, &mut |_| {}).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

/// Options to load a model for a short test.
fn options(synthetic: Synthetic) -> LoadOptions {
    let source = Source::Synthetic(synthetic);
    LoadOptions {
        source,
        context_tokens: Some(64),
        max_sequences: 1,
        max_batched_tokens: 32,
        threads: 2,
        ..LoadOptions::new("")
    }
}

/// The logits after a prompt of `rows` tokens.
fn logits(synthetic: Synthetic, rows: usize) -> Vec<f32> {
    let mut engine = load::plan(&options(synthetic)).unwrap().load_engine(&mut |_| {}).unwrap();
    let EngineLimits { vocab_size, kv_blocks, .. } = *engine.limits();
    let state = SequenceState::in_place(engine.limits(), 0, 0, rows);
    let tokens = (0..rows as u32).map(|row| row * 37 % vocab_size as u32).collect();
    let block_table = (0..kv_blocks as u32).collect();
    let rows = SequenceRows {
        tokens,
        first_position: 0,
        block_table,
        state,
        logits: LogitsWanted::Last,
        ..SequenceRows::default()
    };
    let Progress::Done(output) = engine.begin(Step { id: StepId(0), sequences: vec![rows] }).unwrap() else {
        panic!("no experts here")
    };
    output.logits
}

/// Asserts that the logits are finite and of a plausible magnitude.
fn assert_plausible(logits: &[f32], name: &str) {
    let largest = logits.iter().fold(0.0, |largest: f32, logit| largest.max(logit.abs()));
    assert!(logits.iter().all(|logit| logit.is_finite()), "{name}");
    assert!((0.01..100.0).contains(&largest), "{name}: {largest}");
}

#[test]
fn every_model_and_every_format_gives_finite_logits() {
    for model in MODELS {
        let synthetic = Synthetic { shape: shrunk(model), recipe: recipe("q4_k_m") };
        assert_plausible(&logits(synthetic, 20), model.name);
    }
    for recipe in QUANTIZATION_RECIPES {
        let synthetic = Synthetic { shape: shrunk(shape("qwen3-8b")), recipe };
        assert_plausible(&logits(synthetic, 20), recipe.name);
    }
}

/// Full-depth models of each architecture. Values could grow with the number of layers.
#[test]
#[ignore = "takes a minute and 3 GiB"]
fn full_models_give_finite_logits() {
    for name in ["smollm2-135m", "qwen2.5-0.5b", "qwen3-0.6b", "gemma2-2b", "gemma3-270m", "llama-1b"] {
        let synthetic = Synthetic { shape: shape(name), recipe: recipe("q4_k_m") };
        assert_plausible(&logits(synthetic, 20), name);
    }
}

#[test]
fn a_model_that_does_not_fit_is_refused_before_it_is_generated() {
    let synthetic = Synthetic { shape: shape("qwen3-32b"), recipe: recipe("f16") };
    let options = LoadOptions { memory_bytes: Some(16 << 30), ..options(synthetic) };
    let error = load::plan(&options).err().unwrap();
    assert!(matches!(error, LoadError::TooLarge { .. }));
    let sentence = error.to_string();
    assert!(sentence.starts_with("qwen3-32b:f16: the model needs at least 61.2 GiB (weights 61.0 GiB,"), "{sentence}");
    assert!(sentence.contains("only 16.0 GiB of memory is available"), "{sentence}");
}
