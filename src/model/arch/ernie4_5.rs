//! ERNIE 4.5 (dense): Llama's layers.
//!
//! Source: Baidu 2025, "ERNIE 4.5 Technical Report".

use super::family::{AttentionSpec, Family, RopePairs};

pub(super) const FAMILY: Family = Family {
    architecture: "ernie4_5",
    models: "ERNIE 4.5 (dense)",
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
