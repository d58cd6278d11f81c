//! The cast: actors that stream tokens out of a model, the APIs and the command line on top of them.
pub mod config;
pub mod hub;
pub mod request;
pub mod runtime;
