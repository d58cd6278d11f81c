//! Every operation and quantisation format of Cuelight, each next to its reference.
//!
//! This crate computes *an op*: it knows nothing of models, files, actors or requests.
//!
//! # Layout, in reading order
//!
//! - [`quant`]: block formats, one file each: layout and reference dequantisation
//! - [`quantize`]: the search for the best blocks of given values
//! - [`weight`]: a matrix that stays quantised in memory
//! - [`op`]: the contract of an operation and what it sees when it runs
//! - [`kv`]: the storage of keys and values
//! - [`recurrent`]: the storage of recurrent state
//! - [`layer_state`]: what a layer stores of a sequence
//! - [`cost`]: the least work that an op does
//! - [`cpu`]: instruction sets and the thread team that kernels run on
//! - [`tuning`]: what the kernels adapt to a CPU
//! - [`gpu`]: how an op describes its work on a GPU, and the layout of weights there
//! - [`pages`]: memory for weights and keys
//! - [`prefetch`], `neon`: instructions that several CPU kernels use
//! - [`vector`], [`lanes`]: the arithmetic that CPU kernels share
//! - [`roofline`]: the peak speed of the machine
//! - the operations themselves, one file or folder each
//! - [`lora`]: adapters, and the op that applies them
//! - [`canvas_rows`], [`denoise`]: canvases, whose rows are denoised together
//! - [`fusion`]: neighbouring ops that a GPU computes together
//! - [`cases`]: the expected results of an op, for the tests of every backend
//! - [`ops`]: the registry of all ops and their cases

pub mod cases;
pub mod cost;
pub mod cpu;
mod elementwise;
pub mod gpu;
pub mod kv;
pub mod lanes;
pub mod layer_state;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod op;
pub mod ops;
pub mod pages;
pub mod prefetch;
pub mod quant;
pub mod quantize;
pub mod recurrent;
pub mod roofline;
pub mod selection;
pub mod tuning;
pub mod vector;
pub mod weight;

// Ops: one line for each. `build.rs` reads this list up to the next empty line and makes the registry (`ops.rs`) of it:
// the module's `cases()`. The shaders of an op are NAME.comp, or all .comp files of the folder NAME.
pub mod activate;
pub mod add;
pub mod attention;
pub mod attention_weights;
pub mod canvas_rows;
pub mod causal_conv;
pub mod clamp;
pub mod cutoff;
pub mod denoise;
pub mod embed;
pub mod embed_ngrams;
pub mod experts;
pub mod fusion;
pub mod gate_rows;
pub mod gated_delta;
pub mod given_rows;
pub mod glu;
pub mod heads;
pub mod layer_norm;
pub mod lora;
pub mod match_magnitude;
pub mod matmul;
pub mod mix_residuals;
pub mod mix_streams;
pub mod pool_rows;
pub mod reorder_columns;
pub mod rms_norm;
pub mod rope;
pub mod sample_token;
pub mod scale;
pub mod scale_by_position;
pub mod scale_columns;
pub mod select_positions;
pub mod select_rows;
pub mod selective_scan;
pub mod similarity_gates;
pub mod softcap;
pub mod state_space;
pub mod stream_gates;
pub mod xielu;

#[cfg(test)]
mod testing;
