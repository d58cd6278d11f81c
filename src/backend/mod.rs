//! What runs a graph.

pub mod cpu;
