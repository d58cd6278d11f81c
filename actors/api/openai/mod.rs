//! OpenAI's protocol: chat completions, legacy completions, [`responses`], [`embeddings`], [`transcriptions`], and [`batches`] of
//! requests in [`files`].
//!
//! A request passes through these files in order: [`unsupported`] refuses fields that are not supported, [`sampling`],
//! [`constraint`], [`tools`], [`messages`], [`kv_transfer`] and [`prompt`] read the others, [`serving`](crate::serving) runs the
//! sequences, and [`chat`] (with [`chat_delta`]) and [`completions`] encode the answer, whole or as a stream ([`sse`]), with
//! [`logprobs`] when requested and with [`usage`].

pub(super) mod batches;
pub(super) mod chat;
mod chat_delta;
pub(super) mod completions;
pub(super) mod constraint;
mod custom_tool;
pub(super) mod embeddings;
pub(super) mod files;
mod kv_transfer;
pub(super) mod logprobs;
pub(super) mod messages;
pub(super) mod prompt;
pub(super) mod responses;
mod sampling;
mod speculation;
mod sse;
mod tool_name;
pub(super) mod tools;
pub(super) mod transcriptions;
pub(super) mod unsupported;
mod usage;
