//! A loaded model as the pipeline serves it.

use std::sync::Arc;

use cuelight_engine::engine::EngineLimits;
use cuelight_engine::format::chat_template::ChatTemplate;
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::load::{MemoryPlan, ModelCard};
use tokio::sync::Semaphore;

/// A loaded model, without its engine.
pub struct ServedModel {
    /// Description of the model, shown to users and by `/v1/models`.
    pub card: ModelCard,
    /// The memory that the model uses.
    pub memory: MemoryPlan,
    /// The limits of the engine.
    pub limits: EngineLimits,
    /// Converts text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Renders a conversation as a prompt. `None` when the file has no chat template.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// How many more conversations may be rendered now. A slow template delays only its own model.
    pub rendering_slots: Arc<Semaphore>,
}

impl ServedModel {
    /// Most conversations of one model that are rendered at the same time.
    pub const RENDERING_SLOTS: usize = 2;
}
