//! How a model is asked to write what is said in audio, and how its answer is read.
//!
//! - [`request`]: what a client asks for, and the conversation that asks a model; [`task`]: what it writes
//! - [`form`]: how a model answers; [`languages`]: their codes and names; `tag`: what stands before the words of some models
//! - [`reader`]: the words of an answer
//! - [`marks`]: the tokens around the words of models that hear a window at a time; [`heard`]: their answers, read
//! - [`quality`]: which answers are usable
//! - [`aligner`]: asks a model when tokens are spoken; `words`: words of tokens; [`word_times`]: when they are spoken
//! - [`subtitles`]: texts with times as files
//! - [`recording`]: the windows of a recording; `windows`: where they end

pub(crate) mod aligner;
pub(crate) mod form;
pub(crate) mod heard;
pub(crate) mod languages;
pub(crate) mod marks;
pub(crate) mod quality;
pub(crate) mod reader;
pub(crate) mod recording;
pub(crate) mod request;
pub(crate) mod subtitles;
mod tag;
pub(crate) mod task;
mod windows;
pub(crate) mod word_times;
mod words;
