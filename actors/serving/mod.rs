//! What all protocols share between a request's body and the actors of a model.

pub mod output;
