//! The shaders that `build.rs` compiles: data, read by it and by nobody else.
//!
//! What differs by number (tile sizes, the bits of a format, the length of a head) is a specialization constant, so that one
//! module makes many pipelines. A module is compiled twice only where a variant needs something of the device that others lack.

/// One module: its name in Rust, its file, and what is defined while it is compiled.
pub struct Permutation {
    /// The variant of `Module`.
    pub name: &'static str,
    /// Where its `main` is, under `shaders/`.
    pub file: &'static str,
    /// Preprocessor symbols and their values.
    pub defines: &'static [(&'static str, &'static str)],
}

const fn plain(name: &'static str, file: &'static str) -> Permutation {
    Permutation { name, file, defines: &[] }
}

/// Every module.
pub const PERMUTATIONS: &[Permutation] = &[
    plain("Embed", "embed.comp"),
    plain("RmsNorm", "rms_norm.comp"),
    plain("Rope", "rope.comp"),
    plain("Glu", "glu.comp"),
    plain("Add", "add.comp"),
    plain("GateRows", "gate_rows.comp"),
    plain("Softcap", "softcap.comp"),
    plain("Scale", "scale.comp"),
    plain("ScaleByPosition", "scale_by_position.comp"),
    plain("Heads", "heads.comp"),
    plain("SelectRows", "select_rows.comp"),
    plain("ChooseLargest", "choose_token/largest.comp"),
    plain("ChooseTruncate", "choose_token/truncate.comp"),
    plain("ChooseWeigh", "choose_token/weigh.comp"),
    plain("ChooseDraw", "choose_token/draw.comp"),
    plain("MatVec", "matmul/mat_vec.comp"),
    plain("MatMulTile", "matmul/tile.comp"),
    plain("MatMulHalves", "matmul/halves.comp"),
    plain("MatMulCooperative", "matmul/cooperative.comp"),
    plain("Route", "experts/route.comp"),
    plain("ExpertsGroup", "experts/group.comp"),
    plain("ExpertsMatVec", "experts/mat_vec.comp"),
    plain("ExpertsTile", "experts/tile.comp"),
    plain("ExpertsAddUp", "experts/add_up.comp"),
    plain("ReadMemory", "roofline/read.comp"),
    plain("MultiplyAdds", "roofline/multiply_adds.comp"),
    plain("MultiplyMatrices", "roofline/matrices.comp"),
    plain("KvStore", "attention/kv_store.comp"),
    plain("Attend", "attention/attend.comp"),
    plain("AttendTile", "attention/attend_tile.comp"),
    plain("AttentionMerge", "attention/merge.comp"),
];
