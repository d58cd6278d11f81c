//! The path that the requests of all protocols take: from a checked request to the events of its answers.
//!
//! A protocol reads a body into a [`ServingRequest`](request::ServingRequest). [`accept`] leases the model, takes the permit,
//! compiles the constraint, makes the tokens of the prompt and submits the sequences. The protocol encodes the events of
//! [`answers`], or the whole answers.
//!
//! - [`request`], [`options`], [`tenancy`], [`prompt`], [`infill`], [`chat_prompt`], [`thinking`]: what a client asks for
//! - [`media`]: the images and audio of a request to embedding rows; [`media_source`], [`media_fetch`], [`media_host`]: where they
//!   are; [`media_preparation`], [`image_file`], [`audio_file`], [`opus`]: how their files are read, within [`media_limits`];
//!   [`media_insertion`]: their places in the prompt
//! - [`accept`], [`constraint`], `bad_words`, `prompt_limit`, [`generations`], [`answers`]: the sequences and what they generate
//! - [`embed`]: texts to vectors; [`score`]: texts to how relevant or similar they are; [`classify`]: texts to classes; `vectors`:
//!   what all three compute
//! - [`batch`]: many requests from a file, which are sent to the routes of the API like those of clients
//! - [`error`], [`blocking`], [`memory`]: leaves

pub(crate) mod accept;
pub(crate) mod answers;
mod audio_file;
mod bad_words;
pub mod batch;
pub(crate) mod blocking;
mod blocks;
pub(crate) mod chat_prompt;
pub(crate) mod classify;
mod constraint;
pub(crate) mod embed;
pub(crate) mod error;
pub(crate) mod generations;
mod image_file;
pub(crate) mod infill;
pub mod media;
mod media_fetch;
pub mod media_host;
mod media_insertion;
pub mod media_limits;
mod media_preparation;
pub(crate) mod media_source;
pub(crate) mod memory;
pub(crate) mod options;
mod opus;
pub(crate) mod prompt;
mod prompt_limit;
pub(crate) mod request;
pub(crate) mod score;
pub(crate) mod served;
pub(crate) mod tenancy;
pub(crate) mod thinking;
pub(crate) mod transcription;
mod vectors;
