//! File formats: GGUF, tokenizer, chat template.

pub mod chat_template;
pub mod gguf;
pub mod tokenizer;
