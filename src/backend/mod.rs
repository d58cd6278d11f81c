//! What runs a graph.

pub mod cpu;
mod ragged;
pub mod stage;
pub mod vulkan;
