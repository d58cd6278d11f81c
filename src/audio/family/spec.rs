//! The options of audio encoders: what differs between projectors.

use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;

/// How the audio encoders of one projector are built.
#[derive(Debug)]
pub struct Family {
    /// The value of `clip.projector_type`.
    pub projector: &'static str,
    /// The encoder for people.
    pub tower: &'static str,
    /// What follows a clip that ends before its last window does.
    pub silence: Silence,
    /// Whether the norm `a.post_ln` is before the merging. Otherwise it is a part of the projector.
    pub norm_before_merging: bool,
    /// How neighbouring rows become one.
    pub merging: Merging,
    /// How many; `None` if the file says so.
    pub neighbours: Option<usize>,
    /// What turns merged rows into embedding rows.
    pub head: &'static [HeadOp],
    /// The epsilon of its root-mean-square norms.
    pub head_epsilon: f32,
    /// What the chat template writes for a clip.
    pub placeholder: &'static str,
    /// The token at the rows of a clip: the first of these that the vocabulary has.
    pub row_tokens: &'static [&'static str],
    /// The texts before and after the rows.
    pub around: [&'static str; 2],
}

/// What follows a clip that ends before its last window does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// Silence, of which rows are made, too.
    Heard,
    /// Silence in the spectrogram, of which no rows are made.
    Unheard,
    /// Nothing: the window is shorter.
    None,
}
