//! Where the weight of a directory's module is in GGUF files, for adapters that change it.
//!
//! A change `B A` of a matrix follows the changes of the matrix itself: what reorders its rows reorders those of B, and what
//! reorders its columns reorders those of A.

use super::families::FAMILIES;
use super::family::PLAIN;
use super::names::{Fate, Layers, Target, fate};
use super::steps::{HeadCounts, step};
use super::transform::Step;

/// Why the weight of a module has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPlace {
    /// The names of this architecture's modules are not known.
    Architecture,
    /// The architecture has no such weight, or one that an adapter cannot change.
    Weight,
}

/// The place of a weight in GGUF files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The name of the tensor.
    pub tensor: String,
    /// The expert whose matrix it is, of a tensor with a matrix for each expert.
    pub expert: Option<usize>,
    /// The order of its rows, where it differs: for each row the row of the directory's matrix.
    pub rows: Option<Vec<usize>>,
    /// The order of its columns, where it differs.
    pub columns: Option<Vec<usize>>,
}

/// The layer that the weight of a module belongs to; `None` outside of layers.
#[must_use]
pub fn layer_of(name: &str) -> Option<usize> {
    let (_, rest) = name.split_once("layers.")?;
    rest.split_once('.')?.0.parse().ok()
}

/// The place of the weight `name`, a matrix of [rows, columns], in a model of `architecture` with `n_layers` layers. `heads` are
/// those of its layer.
///
/// # Errors
/// [`NoPlace`].
pub fn place(
    architecture: &str,
    n_layers: usize,
    heads: &HeadCounts,
    (name, shape): (&str, [usize; 2]),
) -> Result<Place, NoPlace> {
    let mut families = FAMILIES.iter().filter(|family| family.architecture == architecture).peekable();
    if families.peek().is_none() {
        return Err(NoPlace::Architecture);
    }
    let placed = |target: &Target| placed(target, heads, shape);
    // A layer that attends has heads of queries.
    let layers = Layers { count: n_layers, is_recurrent: &|_| heads.query == 0 };
    let found = families.find_map(|family| match fate(family, layers, name) {
        // A weight that is divided among several tensors is none of those that adapters change.
        Fate::Targets(targets) => <[Target; 1]>::try_from(targets).ok(),
        Fate::Ignored | Fate::Prediction(_) => None,
    });
    found.and_then(|[target]| placed(&target)).ok_or(NoPlace::Weight)
}

fn placed(target: &Target, heads: &HeadCounts, shape: [usize; 2]) -> Option<Place> {
    let mut place = Place { tensor: target.name.clone(), expert: target.expert, rows: None, columns: None };
    for op in target.ops {
        match step(*op, &shape, &PLAIN, heads) {
            None => {}
            Some(Ok(Step::Take { axis: 0, indices })) if place.rows.is_none() => place.rows = Some(indices),
            Some(Ok(Step::Take { axis: 1, indices })) if place.columns.is_none() => place.columns = Some(indices),
            Some(_) => return None,
        }
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(architecture: &str, name: &str) -> Result<Place, NoPlace> {
        let heads = HeadCounts { query: 2, key: 1, delta: [1, 2, 2], ..HeadCounts::default() };
        place(architecture, 2, &heads, (name, [8, 4]))
    }

    fn plain(tensor: &str) -> Place {
        Place { tensor: tensor.to_owned(), expert: None, rows: None, columns: None }
    }

    #[test]
    fn weights_are_placed_with_the_order_of_their_rows_and_columns() {
        assert_eq!(of("qwen3", "model.layers.1.self_attn.q_proj.weight"), Ok(plain("blk.1.attn_q.weight")));
        assert_eq!(of("phi3", "model.layers.0.mlp.gate_up_proj.weight"), Ok(plain("blk.0.ffn_up.weight")));
        let rotated = Place { rows: Some(vec![0, 2, 1, 3, 4, 6, 5, 7]), ..plain("blk.0.attn_q.weight") };
        assert_eq!(of("llama", "model.layers.0.self_attn.q_proj.weight"), Ok(rotated));
        let columns = of("qwen35", "model.layers.0.linear_attn.out_proj.weight").map(|place| place.columns);
        assert_eq!(columns, Ok(Some(vec![0, 1, 2, 3])));
        let of_expert = Place { expert: Some(3), ..plain("blk.0.ffn_up_exps.weight") };
        assert_eq!(of("qwen3moe", "model.layers.0.mlp.experts.3.up_proj.weight"), Ok(of_expert));
    }

    #[test]
    fn other_names_have_no_place() {
        assert_eq!(of("t5", "model.layers.0.self_attn.q_proj.weight"), Err(NoPlace::Architecture));
        for name in
            ["model.layers.0.mlp.experts.up_proj.weight", "model.layers.2.mlp.up_proj.weight", "value_head.weight"]
        {
            assert_eq!(of("qwen3moe", name), Err(NoPlace::Weight), "{name}");
        }
        assert_eq!(layer_of("model.language_model.layers.12.mlp.up_proj.weight"), Some(12));
        assert_eq!(layer_of("lm_head.weight"), None);
    }
}
