//! The answers of models that only transcribe: `language English<asr_text>`, then the words (Qwen 3 ASR).

/// What stands between the language and the words.
pub(super) const TAG: &str = "<asr_text>";
/// What an answer begins with.
pub(super) const LANGUAGE: &str = "language ";
