//! Backends that run a graph: the CPU, Vulkan devices, and combinations of them.

pub mod cpu;
mod encoder_rows;
pub mod host_ops;
pub mod offload;
mod ragged;
pub mod stage;
pub mod vulkan;
