//! The inference engine: a model file on disk in, logits or sampled tokens out.
//!
//! This crate has no async code, no HTTP and no command line. The actors of `cuelight` drive it through [`engine::Engine`].
//!
//! # Layout, in the order of data flow
//!
//! - [`checkpoint`]: what a model is loaded from
//! - [`mod@format`]: GGUF, safetensors, Hugging Face directories, tokenizer, chat template
//! - [`model`]: hyperparameters and one declarative file per family, built into a graph
//! - [`adapters`]: low-rank adapters of a model
//! - [`media`]: images and audio in prompts; [`vision`], [`audio`]: their encoders, which are [`tower`]s; [`projector`]: the encoders
//!   of a file
//! - [`graph`]: ops over values, and their memory layout
//! - [`placement`]: which device computes which layers
//! - [`backend`]: runs graphs on the CPU or a Vulkan device
//! - [`engine`]: the interface for actors: steps in, logits or sampled tokens out
//! - [`embedding`]: hidden values to one vector for a text, or to how relevant a document is; [`rerank`]: a query and a document
//!   as tokens
//! - [`experts`]: experts that the CPU computes for a device
//! - [`profile`]: the time of each op of a step
//! - [`roofline`]: the machine's peak throughput
//! - [`machine`]: what the system reports about the CPU and the memory
//! - [`tuning`]: adapts CPU kernels to the CPU
//! - [`sample`]: logits to a token
//! - [`constraint`]: which tokens a schema or grammar allows next
//! - [`perplexity`]: the likelihood of a text
//! - [`memory`]: the memory plan of a model
//! - [`cache_unit`]: KV blocks and recurrent states, as what is copied of a cache; [`host_memory`]: host memory for copies
//! - [`load`]: plans and loads a model
//! - [`quantization_recipe`]: the format of each tensor of a quantized model
//! - [`importance`]: measures which columns of matrices matter, for [`quantize`]
//! - [`quantize`]: writes a model with quantized weights
//! - [`synthetic`]: models with random weights and the shapes of real models
//! - [`threads`]: CPU time for threads that feed a device
//! - [`mapped_file`]: files mapped read-only, and whether they still are what was mapped
//! - [`cancel`]: ends a load early
//! - [`cgroup`]: the limits of a container or service

pub mod adapters;
pub mod audio;
pub mod backend;
pub mod cache_unit;
pub mod cancel;
pub mod cgroup;
pub mod checkpoint;
pub mod constraint;
pub mod device;
pub mod embedding;
pub mod engine;
pub mod experts;
pub mod format;
pub mod graph;
pub mod heap;
pub mod host_memory;
pub mod importance;
pub mod load;
pub mod machine;
pub mod mapped_file;
pub mod media;
pub mod memory;
pub mod model;
pub mod perplexity;
pub mod placement;
pub mod profile;
pub mod projector;
pub mod quantization_recipe;
pub mod quantize;
pub mod rerank;
pub mod roofline;
pub mod sample;
pub mod synthetic;
pub mod threads;
pub mod tower;
pub mod tuning;
pub mod vision;
