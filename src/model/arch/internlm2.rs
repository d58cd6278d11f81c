//! InternLM 2 and 2.5: the layers of Llama.
//!
//! Source: Cai et al. 2024, "InternLM2 Technical Report".

use super::family::{AttentionSpec, Family, RopePairs};

pub(super) const FAMILY: Family = Family {
    architecture: "internlm2",
    models: "InternLM 2, 2.5",
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
