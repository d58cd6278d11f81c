//! What MODEL may be on the command line, for the help of every command that has one.

/// The forms of MODEL.
pub const FORMS: &str = "a .gguf file, a Hugging Face directory, org/repo[:quant], ollama://name:tag, or demo";

/// The help of MODEL.
#[must_use]
pub fn model() -> String {
    format!("The model: {FORMS}")
}
