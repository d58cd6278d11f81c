//! Integer products: weights as their stored codes, activations rounded to 15 bits.
//!
//! - [`activations`]: the input in blocks of 32 integers, each with a scale; rounded once for all weights
//! - [`packed`]: the weights with sixteen outputs interleaved, packed once at load
//! - `planes`: conversion of packed weights to the GPU layout
//! - [`registers`]: the operations that an instruction set must provide
//! - `avx512`, `avx2`, `neon`: the instruction sets
//! - `quads`: the dot products of instruction sets that multiply one quad at a time
//! - `grid`: how the operands of a format with a grid are unpacked
//! - `products`: the products of unpacked codes, and their scaling
//! - `terms`: what products depend on; formats with equal terms share compiled loops
//! - `tile`: the loop that computes the products of a few rows, for every format and instruction set
//! - `span`: the loop for many rows, which share unpacked weights
//! - `rows`: the choice between these two
//! - `amx`: a separate loop for tile instructions; it unpacks and scales like `tile`
//!
//! With `x = s q` in a block of activations and `w = d (c - offset) + m` in a group of weights (see
//! [`quant::integer`](crate::quant::integer)), a block of 32 columns adds
//!
//! `s * sum over its groups of (d * sum (c - offset) q + m * sum q)`
//!
//! to a result. Integer sums are exact in any order. The float32 operations are the same for every result and in the
//! same order: blocks ascending, one fused multiply-add per block. The lanes of a register are different outputs, not
//! partial sums of one output, so the order does not depend on the width of a register. Every instruction set gives the
//! same bits for any number of rows.

pub mod activations;
#[cfg(target_arch = "x86_64")]
pub mod amx;
#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
mod grid;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod packed;
mod planes;
mod products;
#[cfg(target_arch = "x86_64")]
mod quads;
pub mod registers;
mod rows;
mod span;
mod terms;
mod tile;
