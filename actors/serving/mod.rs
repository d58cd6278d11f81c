//! The path that the requests of all protocols take: from a checked request to the events of its answers.
//!
//! A protocol reads a body into a [`ServingRequest`](request::ServingRequest). [`accept`] leases the model, takes the permit,
//! compiles the constraint, makes the tokens of the prompt and submits the sequences. The protocol encodes the events of
//! [`answers`], or the whole answers.
//!
//! - [`request`], [`options`], [`tenancy`], [`prompt`], [`infill`], [`chat_prompt`], [`thinking`]: what a client asks for
//! - [`images`]: the images of a request to embedding rows; [`image_source`], [`image_fetch`], [`image_file`]: where they are and
//!   how their files are read; [`image_insertion`]: their places in the prompt
//! - [`accept`], [`constraint`], [`generations`], [`answers`]: the sequences and what they generate
//! - [`embed`]: texts to vectors; [`score`]: texts to how relevant or similar they are; `vectors`: what both compute
//! - [`error`], [`blocking`], [`memory`]: leaves

pub(crate) mod accept;
pub(crate) mod answers;
pub(crate) mod blocking;
mod blocks;
pub(crate) mod chat_prompt;
mod constraint;
pub(crate) mod embed;
pub(crate) mod error;
pub(crate) mod generations;
pub mod image_fetch;
mod image_file;
mod image_insertion;
pub(crate) mod image_source;
pub mod images;
pub(crate) mod infill;
pub(crate) mod memory;
pub(crate) mod options;
pub(crate) mod prompt;
pub(crate) mod request;
pub(crate) mod score;
pub(crate) mod served;
pub(crate) mod tenancy;
pub(crate) mod thinking;
mod vectors;
