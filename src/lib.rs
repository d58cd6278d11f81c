//! A model: from a file on disk to logits.
//!
//! This crate knows no async, no HTTP and no command line; `cuelight`'s actors drive it through [`engine::Engine`].
//!
//! # Layout, in the order data flows
//!
//! - [`mod@format`]: GGUF, tokenizer, chat template
//! - [`model`]: hyperparameters and one declarative file per family, wired into a graph
//! - [`graph`]: ops over named values, and the memory plan
//! - [`placement`]: which layers are computed where
//! - [`backend`]: what runs a graph, or a part of one: the CPU, a Vulkan device
//! - [`engine`]: the door: steps in, logits or chosen tokens out
//! - [`experts`]: experts that the processor computes for a device
//! - [`profile`]: what each op of a step took
//! - [`roofline`]: what the machine can do at most
//! - [`sample`]: logits to a token
//! - [`perplexity`]: logits of a text to how likely it was
//! - [`memory`]: the plan of what a model takes
//! - [`load`]: a path in, a ready model out
//! - [`synthetic`]: models of random weights in a real one's shapes
//! - [`threads`]: cores for threads that feed a device

pub mod backend;
pub mod device;
pub mod engine;
pub mod experts;
pub mod format;
pub mod graph;
pub mod load;
pub mod memory;
pub mod model;
pub mod perplexity;
pub mod placement;
pub mod profile;
pub mod roofline;
pub mod sample;
pub mod synthetic;
pub mod threads;
