//! Phi 3, 3.5 and 4: one tensor for query, key and value, one for gate and up; two sets of rotary divisors, for contexts up to
//! those of training and for longer ones.
//!
//! Sources: Abdin et al. 2024, "Phi-3 Technical Report"; Ding et al. 2024, "LongRoPE".

use super::family::{AttentionSpec, Family, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "phi3",
    models: "Phi 3, 3.5, 4",
    attention: AttentionSpec { windows: Windows::EveryLayer, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
