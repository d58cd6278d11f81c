//! The options of audio encoders: what differs between projectors.

use crate::audio::conformer::Conformer;
use crate::audio::front::Front;
use crate::audio::mel::Spectrogram;
use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;

/// How the audio encoders of one projector are built.
#[derive(Debug)]
pub struct Family {
    /// The value of `clip.projector_type`.
    pub projector: &'static str,
    /// The encoder for people.
    pub tower: &'static str,
    /// How spectrograms are made.
    pub spectrogram: Spectrogram,
    /// What follows a clip that ends before its last window does.
    pub silence: Silence,
    /// The longest clip.
    pub longest: Longest,
    /// The convolutions before the layers.
    pub front: Front,
    /// The layers.
    pub layers: Layers,
    /// The epsilon of their norms; `None` if the file says it.
    pub epsilon: Option<f32>,
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
    /// As [`Silence::Unheard`], up to this number of samples. The last frames of the clip are convolved without it.
    UnheardUpTo(usize),
    /// Nothing: the window is shorter.
    None,
    /// Silence up to this number of samples, of which rows are made, too. What is left of a frame is not heard.
    UpTo(usize),
}

/// The longest clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Longest {
    /// It is not limited.
    Any,
    /// This number of samples.
    Samples(usize),
    /// One window.
    Window,
}

/// The layers of an encoder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Layers {
    /// Those of a transformer, each row of which sees all others of its window.
    Transformer(Positions),
    /// Those of a conformer.
    Conformer(&'static Conformer),
}

/// The positions of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// A learnt table, with a row for each row of a window.
    Table,
    /// Sinusoids of the rows of frames that are convolved together, or of a window.
    Sinusoids,
}
