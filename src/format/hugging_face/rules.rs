//! What a rule for the name of a tensor is made of.

/// A tensor of a directory and the tensor of a GGUF file that holds it.
///
/// A name without an ending stands for the names with `.weight` and `.bias`, which stay. `*` is the number of an expert; the
/// tensors of all experts are joined. Names of tensors in layers are those after `layers.N.`. A tensor with several rules is
/// divided among several tensors.
pub(super) type Rule = (&'static str, &'static str, &'static [Op]);

/// How a tensor changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// The weight of a norm, to which some families add 1.
    Norm,
    /// The rows of rotated heads: pairs of rows are neighbours in GGUF files, and in the two halves of a head here.
    RotaryRows(Heads),
    /// Minus the exponential.
    NegExp,
    /// Exchanges the two innermost axes.
    Transpose,
    /// One of two equal parts of an axis, which is counted from the innermost.
    Half { part: usize, axis: usize },
    /// Every second index of an axis, which is counted from the innermost.
    EverySecond { first: usize, axis: usize },
    /// The value heads of the gated delta rule along an axis, which is counted from the outermost: in GGUF files their key head
    /// changes fastest. Queries and keys may come before them.
    ValueHeads { axis: usize, after_keys: bool },
    /// The rows from that of the first position on.
    FromFirstPosition,
}

/// Heads whose number the config has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heads {
    /// Those of queries.
    Query,
    /// Those of keys.
    Key,
}
