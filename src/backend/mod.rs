//! What runs a graph.

pub mod cpu;
pub mod offload;
mod ragged;
pub mod stage;
pub mod vulkan;
