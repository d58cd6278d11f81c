//! Baichuan 1 and 2: the layers of Llama. The deeper models do not rotate; their scores fall with distance.
//!
//! Source: Yang et al. 2023, "Baichuan 2: Open Large-scale Language Models".

use super::family::{Alibi, AttentionSpec, Family, RopePairs, Rotation};

pub(super) const FAMILY: Family = Family {
    architecture: "baichuan",
    models: "Baichuan 1, 2",
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        rotation: Rotation::WithoutAlibi,
        alibi: Alibi::InDepth { layers: 40, bias: 8.0 },
        ..AttentionSpec::PLAIN
    },
    ..Family::PLAIN
};
