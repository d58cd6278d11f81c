//! Bytes of memory, by what uses them.

use std::iter::Sum;
use std::ops::Add;

/// What a model uses memory for, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryBreakdown {
    /// Weights, mapped from the file or copied.
    pub weights: u64,
    /// The KV cache.
    pub kv: u64,
    /// The recurrent state of sequences, and its checkpoints.
    pub state: u64,
    /// Activations and logits of the largest step.
    pub scratch: u64,
    /// Copies of KV blocks in host memory.
    pub tiers: u64,
    /// The tokenizer.
    pub text: u64,
    /// Adapters.
    pub adapters: u64,
    /// The texts and results of requests.
    pub requests: u64,
    /// The draft model, whole.
    pub draft: u64,
    /// The encoders of images and audio, and the rows that are kept.
    pub media: u64,
}

impl MemoryBreakdown {
    /// Each use with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("weights", self.weights),
            ("KV cache", self.kv),
            ("state", self.state),
            ("scratch", self.scratch),
            ("KV tiers", self.tiers),
            ("text", self.text),
            ("adapters", self.adapters),
            ("requests", self.requests),
            ("draft", self.draft),
            ("media", self.media),
        ]
    }

    /// Bytes in total.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.named().iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Add for MemoryBreakdown {
    type Output = MemoryBreakdown;

    fn add(self, other: MemoryBreakdown) -> MemoryBreakdown {
        MemoryBreakdown {
            weights: self.weights + other.weights,
            kv: self.kv + other.kv,
            state: self.state + other.state,
            scratch: self.scratch + other.scratch,
            tiers: self.tiers + other.tiers,
            text: self.text + other.text,
            adapters: self.adapters + other.adapters,
            requests: self.requests + other.requests,
            draft: self.draft + other.draft,
            media: self.media + other.media,
        }
    }
}

impl Sum for MemoryBreakdown {
    fn sum<I: Iterator<Item = MemoryBreakdown>>(uses: I) -> MemoryBreakdown {
        uses.fold(MemoryBreakdown::default(), Add::add)
    }
}

/// Bytes for people, with one decimal: `1.5 GiB`, `97.3 MiB`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}
