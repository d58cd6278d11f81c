//! LFM 3: gated convolutions over seven rows; layers of attention with norms and a gate on the heads, of which half have a window;
//! norms before and after each half of a layer. Layers without a window rotate the first half of the pairs.
//!
//! Source: the reference code of LFM 3 in transformers. The keys are those of `lfm2` and `gemma4`.

use super::family::{
    Activation, AttentionSpec, Family, Gate, Norms, QkNorm, QkNormKind, Recurrent, WindowedRope, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "lfm3",
    models: "LFM 3",
    norms: Norms::BeforeAndAfter,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        windows: Windows::EveryLayer,
        windowed_rope: WindowedRope::Unscaled(Some(10_000.0)),
        gate: Gate::Projected(Activation::Sigmoid),
        ..AttentionSpec::PLAIN
    },
    recurrent: Recurrent::ShortConv,
    ..Family::PLAIN
};
