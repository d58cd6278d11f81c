//! What is written of audio.

/// What is written of audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Task {
    /// What is said.
    #[default]
    Transcribe,
    /// The same in English.
    Translate,
}
