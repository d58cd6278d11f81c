//! What runs a graph.

pub mod cpu;
mod ragged;
pub mod vulkan;
