//! Shapes, formats and files of every model in the table, and what the made ones compute.

use std::collections::HashSet;

use super::models::ExpertShape;
use super::tensors::{parameters, tensors};
use super::*;
use crate::engine::{Engine, EngineLimits, LogitsWanted, Progress, SequenceRows, Step, StepId};
use crate::format::gguf::Gguf;
use crate::format::tokenizer::Tokenizer;
use crate::load::{self, LoadError, LoadOptions, Source};
use crate::model::Model;

/// The model of a name with few and narrow layers and a small vocabulary, and everything else as in the table.
fn shrunk(shape: &Shape) -> &'static Shape {
    leaked(Shape {
        n_layers: 3,
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

/// A shape of a test's own; tables live as long as the program.
fn leaked(shape: Shape) -> &'static Shape {
    Box::leak(Box::new(shape))
}

fn mixture(name: &str) -> &'static Mixture {
    MIXTURES.iter().find(|mixture| mixture.name == name).unwrap()
}

fn shape(name: &str) -> &'static Shape {
    MODELS.iter().find(|shape| shape.name == name).unwrap()
}

#[test]
fn every_shape_has_the_published_number_of_parameters() {
    for shape in MODELS {
        assert_eq!(parameters(shape), shape.parameters, "{}", shape.name);
    }
}

#[test]
fn every_name_is_there_once() {
    let names: HashSet<&str> = MODELS.iter().map(|shape| shape.name).collect();
    assert_eq!(names.len(), MODELS.len());
    let names: HashSet<&str> = MIXTURES.iter().map(|mixture| mixture.name).collect();
    assert_eq!(names.len(), MIXTURES.len());
}

#[test]
fn every_model_builds_before_its_weights_are_there() {
    for shape in MODELS {
        let synthetic = Synthetic { shape, mixture: mixture("q4_k_m") };
        let (gguf, _unmade) = synthetic.outline().unwrap();
        let model = Model::build(&gguf).unwrap();
        let h = &model.hyperparameters;
        assert_eq!((h.vocab_size, h.context_train), (shape.vocab_size, shape.context_train), "{}", shape.name);
        assert_eq!(gguf.strings("tokenizer.ggml.tokens").unwrap().count(), shape.vocab_size, "{}", shape.name);
        let windows = h.windows.iter().flatten().count();
        assert_eq!(windows > 0, shape.window.is_some(), "{}", shape.name);
    }
}

#[test]
fn names_are_read_in_either_case_and_what_is_unknown_is_told_with_what_is_known() {
    let text = "llama-8b:q4_k_m";
    assert_eq!(text.parse::<Synthetic>().unwrap().to_string(), text);
    assert_eq!("Qwen3-8B:Q8_0".parse::<Synthetic>().unwrap().to_string(), "qwen3-8b:q8_0");
    let error = |text: &str| text.parse::<Synthetic>().unwrap_err().to_string();
    assert!(error("llama-9b:q8_0").contains("llama-1b, llama-3b, llama-8b, mistral-7b"));
    assert!(error("llama-8b:q9").contains("f32, f16, bf16, q8_0, q4_0"));
    assert!(error("llama-8b").contains("like llama-8b:q4_k_m"));
}

/// The formats of some tensors, by name.
fn formats(model: &str, format: &str, names: &[&str]) -> Vec<String> {
    let (shape, mixture) = (shape(model), mixture(format));
    let all = tensors(shape);
    let of = |name: &&str| {
        let tensor = all.iter().find(|tensor| tensor.name == format!("{name}.weight")).unwrap();
        mixture.format(tensor, shape).to_string()
    };
    names.iter().map(of).collect()
}

#[test]
fn a_mixture_gives_more_bits_to_some_tensors() {
    let names = ["token_embd", "output", "blk.0.attn_v", "blk.4.attn_v", "blk.6.ffn_down", "blk.0.ffn_up"];
    assert_eq!(formats("llama-8b", "q4_k_m", &names), ["Q4_K", "Q6_K", "Q6_K", "Q4_K", "Q6_K", "Q4_K"]);
    assert_eq!(formats("llama-8b", "q5_k_m", &names), ["Q5_K", "Q6_K", "Q6_K", "Q5_K", "Q6_K", "Q5_K"]);
    assert_eq!(formats("llama-8b", "q8_0", &names[..2]), ["Q8_0", "Q8_0"]);
    assert_eq!(formats("llama-8b", "q4_0", &names[..3]), ["Q4_0", "Q6_K", "Q4_0"]);
    let unequal = ["token_embd", "output", "blk.0.attn_v", "blk.0.ffn_down", "blk.9.ffn_down"];
    assert_eq!(formats("llama-8b", "iq4_xs", &unequal), ["IQ4_XS", "Q6_K", "Q5_K", "Q5_K", "IQ4_XS"]);
    let experts = ["token_embd", "output", "blk.3.attn_v", "blk.3.ffn_down_exps"];
    assert_eq!(formats("gpt-oss-20b", "mxfp4_moe", &experts), ["Q8_0", "Q8_0", "Q8_0", "MXFP4"]);
    assert_eq!(formats("llama-8b", "f16", &["output", "blk.0.attn_norm"]), ["F16", "F32"]);
}

#[test]
fn rows_that_are_no_whole_super_blocks_get_a_format_of_shorter_blocks() {
    let names = ["token_embd", "blk.0.attn_q", "blk.0.attn_v", "blk.0.ffn_down"];
    assert_eq!(formats("qwen2.5-0.5b", "q4_k_m", &names), ["Q8_0", "Q5_0", "Q8_0", "Q6_K"]);
    assert_eq!(formats("qwen2.5-0.5b", "q5_k_m", &names), ["Q8_0", "Q5_1", "Q8_0", "Q6_K"]);
}

#[test]
fn the_tokenizer_reads_text_and_gives_it_back() {
    for name in ["llama-8b", "smollm2-135m", "qwen3-8b", "gemma2-2b", "gemma3-1b", "mistral-7b"] {
        let shape = leaked(Shape { n_layers: 1, ..*shape(name) });
        let (gguf, _unmade) = Synthetic { shape, mixture: mixture("q4_0") }.outline().unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        assert_eq!(tokenizer.vocab_size(), shape.vocab_size);
        let text = "the quick brown fox, größer than 12 & more\n";
        let tokens = tokenizer.encode(text, false, false).unwrap();
        assert!(tokens.len() < text.len(), "{name}: {tokens:?}");
        assert_eq!(tokenizer.decode(&tokens, true), text, "{name}");
    }
}

#[test]
fn a_vocabulary_may_be_smaller_than_its_first_words() {
    let shape = leaked(Shape { vocab_size: 300, ..*shrunk(shape("llama-8b")) });
    let (gguf, _unmade) = Synthetic { shape, mixture: mixture("q8_0") }.outline().unwrap();
    assert_eq!(Tokenizer::from_gguf(&gguf).unwrap().vocab_size(), 300);
}

#[test]
fn the_file_holds_what_is_made_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (name, format) in [("gemma3-1b", "q4_k_m"), ("qwen2.5-7b", "f16"), ("llama-8b", "q5_0")] {
        let synthetic = Synthetic { shape: shrunk(shape(name)), mixture: mixture(format) };
        let path = folder.path().join(name);
        let bytes = synthetic.write(&path, &mut |_| {}).unwrap();
        let written = Gguf::open(&path).unwrap();
        let (made, unmade) = synthetic.outline().unwrap();
        assert!(made.weight("blk.0.attn_q.weight").unwrap().bytes().iter().all(|byte| *byte == 0));
        unmade.make(3);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes);
        for tensor in written.tensors() {
            let (ours, theirs) = (made.weight(&tensor.name).unwrap(), written.weight(&tensor.name).unwrap());
            assert_eq!(ours.bytes(), theirs.bytes(), "{}", tensor.name);
            assert!(ours.bytes().iter().any(|byte| *byte != 0), "{}", tensor.name);
        }
    }
}

#[test]
fn a_file_that_is_there_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious.gguf");
    std::fs::write(&path, "mine").unwrap();
    let synthetic = Synthetic { shape: shrunk(shape("llama-8b")), mixture: mixture("q4_0") };
    assert_eq!(synthetic.write(&path, &mut |_| {}).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

/// A model and how it is loaded for a short test.
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
    let tokens = (0..rows as u32).map(|row| row * 37 % vocab_size as u32).collect();
    let block_table = (0..kv_blocks as u32).collect();
    let rows = SequenceRows { tokens, first_position: 0, block_table, logits: LogitsWanted::Last };
    let Progress::Done(output) = engine.begin(Step { id: StepId(0), sequences: vec![rows] }).unwrap() else {
        panic!("no experts here")
    };
    output.logits
}

/// Logits that a real model could have.
fn assert_usual(logits: &[f32], name: &str) {
    let largest = logits.iter().fold(0.0, |largest: f32, logit| largest.max(logit.abs()));
    assert!(logits.iter().all(|logit| logit.is_finite()), "{name}");
    assert!((0.01..100.0).contains(&largest), "{name}: {largest}");
}

#[test]
fn every_model_and_every_format_gives_finite_logits() {
    for model in MODELS {
        let synthetic = Synthetic { shape: shrunk(model), mixture: mixture("q4_k_m") };
        assert_usual(&logits(synthetic, 20), model.name);
    }
    for mixture in MIXTURES {
        let synthetic = Synthetic { shape: shrunk(shape("qwen3-8b")), mixture };
        assert_usual(&logits(synthetic, 20), mixture.name);
    }
}

/// Whole models of each architecture, for a machine with time: the depth is what could let values grow.
#[test]
#[ignore = "takes a minute and 3 GiB"]
fn whole_models_give_finite_logits() {
    for name in ["smollm2-135m", "qwen2.5-0.5b", "qwen3-0.6b", "gemma2-2b", "gemma3-270m", "llama-1b"] {
        let synthetic = Synthetic { shape: shape(name), mixture: mixture("q4_k_m") };
        assert_usual(&logits(synthetic, 20), name);
    }
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_numbers_before_it_is_made() {
    let synthetic = Synthetic { shape: shape("qwen3-32b"), mixture: mixture("f16") };
    let options = LoadOptions { memory_bytes: Some(16 << 30), ..options(synthetic) };
    let error = load::plan(&options).err().unwrap();
    assert!(matches!(error, LoadError::TooLarge { .. }));
    let sentence = error.to_string();
    assert!(sentence.starts_with("qwen3-32b:f16: the model takes 61.1 GiB (weights 61.0 GiB,"), "{sentence}");
    assert!(sentence.contains("only 16.0 GiB of memory is available"), "{sentence}");
}
