//! File formats: GGUF, safetensors, Hugging Face directories, low-rank adapters, tokenizer, chat template.

pub mod chat_template;
pub mod gguf;
pub mod hugging_face;
pub mod lora;
pub mod safetensors;
pub mod sampling;
pub mod tokenizer;
