//! The pipeline: the actors that run one model, from a request to the tokens that its client reads.
//!
//! - [`runtime`]: the entry point: permits, requests, replicas
//! - [`supervisor`], [`loader`]: start the actors and restart them after a fault
//! - [`file_watch`]: notices changes of the model's files
//! - [`scheduler`] and its pure core [`policy`]: decide what runs next
//! - [`executor`], [`experts`]: compute the steps
//! - [`drafter`]: the draft model, which guesses tokens for a step to verify
//! - [`media`]: the media of prompts, images and audio, and the encoder that computes their rows
//! - [`companion_thread`], [`watchdog`]: the thread of a draft model or media encoder, and whether it makes progress
//! - [`sampler`]: turns logits into text and sends it through the channel in [`client`]
//! - [`kv_store`]: copies of KV blocks in host memory and on disk
//! - [`journal`]: what is needed to continue the requests after an actor died
//! - [`messages`]: what the actors send each other
//! - [`served_model`]: the model and what is derived from it once
//! - [`options`], [`restart`], [`model_source`], [`planned_file`]: settings, and where a model comes from
//! - [`simulation`], [`simulated_media`]: an engine and a media encoder without a model, for tests

pub mod adapters;
pub mod client;
mod companion_thread;
pub mod drafter;
pub mod executor;
pub mod experts;
#[cfg(debug_assertions)]
pub mod faults;
mod file_watch;
pub mod journal;
pub mod kv_store;
pub mod loader;
pub mod media;
pub mod messages;
pub mod model_source;
pub mod options;
pub mod planned_file;
pub mod policy;
pub mod restart;
pub mod runtime;
pub mod sampler;
pub mod scheduler;
pub mod served_model;
pub mod simulated_media;
pub mod simulation;
pub mod supervisor;
mod watchdog;
