//! Products in small integers: weights as the codes they are stored in, activations rounded to 15 bits.
//!
//! - [`activations`]: a row of the input in blocks of 32 integers, each with a scale; rounded once for all weights
//! - [`packed`]: the weights, sixteen outputs side by side, arranged once at load
//! - `planes`: the same as a GPU has them
//! - [`registers`]: what an instruction set must be able to do
//! - [`avx512`], [`avx2`]: the instruction sets
//! - `tile`: the one loop that forms products, for every format and instruction set
//! - [`amx`]: another loop, for an instruction set that multiplies tiles; it unpacks and scales as `tile` does
//!
//! With `x = s q` in a block of activations and `w = d (c - offset) + m` in a group of weights (see
//! [`quant::integer`](crate::quant::integer)), a block of 32 columns adds
//!
//! `s * sum over its groups of (d * sum (c - offset) q + m * sum q)`
//!
//! to a result. The sums of integers are exact, in any order. The float32 operations on them are, for every result, the
//! same in the same order: blocks ascending, one fused multiply-add each. Since a register's lanes are different outputs,
//! not parts of a sum, that order does not depend on how wide a register is: every instruction set gives the same bits,
//! for any number of rows.

pub mod activations;
#[cfg(target_arch = "x86_64")]
pub mod amx;
#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
pub mod packed;
mod planes;
#[cfg(target_arch = "x86_64")]
pub mod registers;
#[cfg(target_arch = "x86_64")]
mod tile;
