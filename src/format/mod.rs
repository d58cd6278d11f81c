//! File formats: GGUF, safetensors, Hugging Face directories, tokenizer, chat template.

pub mod chat_template;
pub mod gguf;
pub mod hugging_face;
pub mod safetensors;
pub mod sampling;
pub mod tokenizer;
