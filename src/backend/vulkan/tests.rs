#![allow(clippy::unwrap_used)]

mod matmul;
