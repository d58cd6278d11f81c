//! OpenAI's protocol: chat completions and legacy completions.
//!
//! A request passes through these files in order: [`unsupported`] refuses fields that are not supported, [`sampling`],
//! [`messages`] and [`prompt`] read the others, [`generation`] runs the sequences, and [`chat`] and [`completions`] encode
//! the answer, whole or as a stream ([`sse`]), with [`logprobs`] when requested.

pub(super) mod chat;
pub(super) mod completions;
mod generation;
mod logprobs;
mod messages;
pub(super) mod prompt;
mod sampling;
mod sse;
mod unsupported;
