//! Conversations: each begins with one of some system prompts and comes back with all of its earlier messages.

use cuelight_engine::engine::TokenId;

use crate::random::Random;

/// What the clients do.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// New conversations per second.
    pub conversations_per_second: f64,
    pub turns: usize,
    /// Number of system prompts. The first ones are more frequent.
    pub system_prompts: u64,
    pub system_tokens: [usize; 2],
    pub message_tokens: [usize; 2],
    pub answer_tokens: [usize; 2],
    /// Seconds between an answer and the next message.
    pub thinking: [f64; 2],
}

/// A conversation. Its tokens follow from its number, so they are not stored.
#[derive(Debug, Clone)]
pub struct Conversation {
    pub number: u64,
    system: u64,
    system_tokens: usize,
    /// Tokens up to the end of the last answer, or of the system prompt.
    pub tokens: usize,
    pub turns_left: usize,
}

impl Workload {
    pub fn begin(&self, number: u64) -> Conversation {
        let mut random = Random(number);
        // The square makes some prompts frequent.
        let system = (random.unit().powi(2) * self.system_prompts as f64) as u64;
        let system_tokens = Random(system ^ 0x5eed).between(self.system_tokens);
        Conversation { number, system, system_tokens, tokens: system_tokens, turns_left: self.turns }
    }

    /// The lengths of the next message and of its answer.
    pub fn turn(&self, conversation: &Conversation) -> [usize; 2] {
        let mut random = Random(conversation.number ^ ((conversation.turns_left as u64) << 48));
        [random.between(self.message_tokens), random.between(self.answer_tokens)]
    }

    /// Seconds until the next message.
    pub fn thinks(&self, conversation: &Conversation) -> f64 {
        let mut random = Random(!conversation.number ^ ((conversation.turns_left as u64) << 40));
        self.thinking[0] + random.unit() * (self.thinking[1] - self.thinking[0])
    }
}

impl Conversation {
    /// The token at a position.
    pub fn token(&self, position: usize) -> TokenId {
        let text = if position < self.system_tokens { self.system } else { self.number + (1 << 32) };
        (Random(text.wrapping_mul(0x9e37_79b9).wrapping_add(position as u64)).next() % 50_000) as TokenId
    }

    /// Its first tokens.
    pub fn prompt(&self, tokens: usize) -> Vec<TokenId> {
        (0..tokens).map(|position| self.token(position)).collect()
    }
}
