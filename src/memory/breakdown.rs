//! Bytes of memory, by what they are used for.

use std::iter::Sum;
use std::ops::Add;

/// Generates [`MemoryBreakdown`] and [`MemoryPurpose`] from the table of purposes: a field, a variant, the name for programs
/// and the name for people.
macro_rules! purposes {
    ($($(#[$doc:meta])* $field:ident, $variant:ident, $name:literal, $title:literal;)+) => {
        /// What a model uses memory for, in bytes.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct MemoryBreakdown {
            $($(#[$doc])* pub $field: u64,)+
        }

        /// What memory is used for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum MemoryPurpose {
            $($(#[$doc])* $variant,)+
        }

        impl MemoryPurpose {
            /// Every purpose.
            pub const ALL: &[MemoryPurpose] = &[$(MemoryPurpose::$variant,)+];

            /// The name for programs, such as `kv`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(MemoryPurpose::$variant => $name,)+
                }
            }

            /// The name for people, such as `KV cache`.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self {
                    $(MemoryPurpose::$variant => $title,)+
                }
            }
        }

        impl MemoryBreakdown {
            /// The bytes of a purpose.
            #[must_use]
            pub const fn of(&self, purpose: MemoryPurpose) -> u64 {
                match purpose {
                    $(MemoryPurpose::$variant => self.$field,)+
                }
            }
        }

        impl Add for MemoryBreakdown {
            type Output = MemoryBreakdown;

            fn add(self, other: MemoryBreakdown) -> MemoryBreakdown {
                MemoryBreakdown { $($field: self.$field + other.$field,)+ }
            }
        }
    };
}
purposes! {
    /// Weights, mapped from the file or copied.
    weights, Weights, "weights", "weights";
    /// The KV cache.
    kv, Kv, "kv", "KV cache";
    /// The recurrent state of sequences, and its checkpoints.
    state, State, "state", "state";
    /// Activations and logits of the largest step.
    scratch, Scratch, "scratch", "scratch";
    /// Copies of KV blocks in host memory.
    tiers, Tiers, "tiers", "KV tiers";
    /// The tokenizer.
    text, Text, "text", "text";
    /// Adapters.
    adapters, Adapters, "adapters", "adapters";
    /// The texts and results of requests.
    requests, Requests, "requests", "requests";
    /// The draft model, whole.
    draft, Draft, "draft", "draft";
    /// The encoders of images and audio, and the rows that are kept.
    media, Media, "media", "media";
}

impl MemoryBreakdown {
    /// Each purpose with its bytes.
    pub fn by_purpose(&self) -> impl Iterator<Item = (MemoryPurpose, u64)> {
        MemoryPurpose::ALL.iter().map(|purpose| (*purpose, self.of(*purpose)))
    }

    /// Bytes in total.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_purpose().map(|(_, bytes)| bytes).sum()
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
