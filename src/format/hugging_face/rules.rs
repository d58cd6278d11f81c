//! What a rule for the name of a tensor is made of, and the values of configs as data.

use serde_json::Value as Json;

/// A tensor of a directory and the tensor of a GGUF file that holds it.
///
/// The second name is that of a tensor outside of layers if it starts with a slash.
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
    /// The rows of heads of models that also rotate by the positions of images: pairs of neighbours in the rotated part of a head,
    /// and in GGUF files in the halves of this part.
    RotatedHalves(Heads),
    /// Adds 1.
    AddOne,
    /// Minus the exponential.
    NegExp,
    /// The exponential.
    Exp,
    /// The logarithm of 1 plus the exponential.
    Softplus,
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
    /// One row for each row of the encoder before the others. They are not used: these rows are given.
    AfterEncoderRows,
    /// The parts from `first` to before `end` of each group of rows, one part of all groups after the other.
    Ungroup { groups: Groups, first: usize, end: usize },
    /// Divides the outermost axis in two.
    Divide(Outer),
    /// Makes the two outermost axes one.
    JoinOuter,
    /// The outermost axis with every second index first, then the others.
    EvenFirst,
    /// The values of patches along the innermost axis: in GGUF files those of each color follow one another.
    ColorByColor,
    /// Integers, which stay as they are.
    Numbers,
    /// The values of patches of two frames along the innermost axis, for each color one frame after the other: those of one frame.
    Frame(usize),
    /// One of the two factors of a tensor, by its number: the tensor is their product, value by value.
    Factor(usize),
    /// Multiplies the sections of the rows of a state space's input by the factors of the config, if it has some.
    StateFactors,
}

/// Rows that directories store group by group, each group with the same parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Groups {
    /// Each head's rows for its key and for its value.
    Latent,
    /// For each head of keys, its query heads, the key and the value.
    Fused,
    /// The query heads of all, then the keys, then the values.
    InTurn,
    /// For each key head of the gated delta rule, a query, a key, its values and their gates.
    Delta,
    /// The queries of all heads of an indexer, then its key.
    Indexer,
}

/// The first of the two axes that an axis is divided in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outer {
    /// The heads of queries.
    QueryHeads,
    /// The groups of a state space.
    StateGroups,
    /// The experts.
    Experts,
    /// All of it, so the second has length 1.
    All,
}

/// A value of a config, as data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Literal {
    Bool(bool),
    Number(f64),
    Text(&'static str),
}

impl Literal {
    /// Whether a value of a config is this one.
    pub(super) fn is(self, found: &Json) -> bool {
        match self {
            Literal::Number(value) => found.as_f64() == Some(value),
            Literal::Bool(_) | Literal::Text(_) => *found == self.json(),
        }
    }

    /// The value as in a config.
    pub(super) fn json(self) -> Json {
        match self {
            Literal::Bool(value) => value.into(),
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A whole positive number.
            Literal::Number(value) if value.fract() == 0.0 && value > 0.0 => (value as u64).into(),
            Literal::Number(value) => value.into(),
            Literal::Text(value) => value.into(),
        }
    }
}

/// Heads whose number the config has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heads {
    /// Those of queries.
    Query,
    /// Those of keys.
    Key,
    /// As many as fit into the rows, where layers have different numbers.
    OfLength,
}
