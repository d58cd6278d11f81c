//! Every operation and quantisation format of Cuelight, each beside its reference.
//!
//! This crate computes *an op*: it knows nothing of models, files, actors or requests.
//!
//! # Layout, in reading order
//!
//! - [`quant`]: block formats, one file each: layout and reference dequantisation
//! - [`weight`]: a matrix that stays quantised in memory
//! - [`op`]: the contract of an operation and what it sees when it runs
//! - [`cost`]: what an op must do at least
//! - [`cpu`]: instruction sets and the thread team that kernels run on
//! - [`gpu`]: what an op tells a GPU, and how weights lie there
//! - [`pages`]: memory for weights and keys
//! - [`roofline`]: how fast the machine can be at most
//! - the operations themselves, one file or folder each
//! - [`fusion`]: neighbours among them that a GPU computes together
//! - [`cases`]: what each of them must compute, for the tests of every backend

pub mod cost;
pub mod cpu;
pub mod gpu;
pub mod op;
pub mod pages;
pub mod quant;
pub mod roofline;
pub mod weight;

pub mod attention;
pub mod cases;
pub mod choose_token;
pub mod elementwise;
pub mod embed;
pub mod experts;
pub mod fusion;
pub mod glu;
pub mod heads;
pub mod lanes;
pub mod matmul;
pub mod rms_norm;
pub mod rope;
pub mod select_rows;
pub mod vector;

#[cfg(test)]
mod testing;
