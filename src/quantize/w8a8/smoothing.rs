//! Between which norms and matrices of a directory factors can move.
//!
//! What reads a norm is taken from the model's graph, so a norm that anything else than matrices reads, or whose matrices are
//! stored in another order of inputs, is found whatever the family. It is left as it is, with the reason.

use std::collections::HashMap;

use crate::format::hugging_face::{Change, Origin, Origins};
use crate::model::ModelGraph;
use crate::model::builder::RowNorm;
use crate::model::norm_readers::{NormReaders, NotMovable};

/// A norm and the matrices that read it, as tensors of the directory by their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmoothedGroup {
    /// The weight of the norm.
    pub norm: usize,
    /// Its bias.
    pub bias: Option<usize>,
    /// Whether its stored weight lacks 1.
    pub lacks_one: bool,
    /// The matrices, quantized or not.
    pub matrices: Vec<usize>,
    /// The tensors of the model that they become, under the names of GGUF files.
    pub tensors: Vec<String>,
}

/// What a tensor is in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    Norm,
    Bias,
    Matrix,
}

impl SmoothedGroup {
    /// Its tensors.
    pub(super) fn members(&self) -> impl Iterator<Item = (usize, Member)> {
        let matrices = self.matrices.iter().map(|matrix| (*matrix, Member::Matrix));
        let bias = self.bias.map(|bias| (bias, Member::Bias));
        [(self.norm, Member::Norm)].into_iter().chain(bias).chain(matrices)
    }
}

/// A norm that is left as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsmoothed {
    /// The tensor of the norm's weight, under the name of GGUF files.
    pub norm: String,
    /// Why.
    pub reason: NotSmoothed,
}

/// Why a norm is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSmoothed {
    /// No factor can move in the model.
    #[error(transparent)]
    NotMovable(#[from] NotMovable),
    /// The norm is not one tensor that is only renamed.
    #[error("its tensor {tensor:?} is stored in another form")]
    NormForm {
        /// The norm, under the name of GGUF files.
        tensor: String,
    },
    /// A matrix is stored with its inputs in another order, or along another axis.
    #[error("the matrix {tensor:?} that reads it is stored in another form")]
    MatrixForm {
        /// The matrix, under the name of GGUF files.
        tensor: String,
    },
}

/// The groups of a model, and the norms of layers that quantized matrices read but that are left as they are. `quantized` tells for
/// each tensor of the directory whether it is quantized.
pub(super) fn groups(
    model: &ModelGraph,
    origins: &Origins,
    quantized: &[bool],
) -> (Vec<SmoothedGroup>, Vec<Unsmoothed>) {
    let stored = Stored::new(origins.tensors());
    let (mut groups, mut unsmoothed) = (Vec::new(), Vec::new());
    let of_layers = model.norm_readers().into_iter().filter(|readers| readers.norm.weight.starts_with("blk."));
    for NormReaders { norm, matrices } in of_layers {
        match matrices.map_err(NotSmoothed::from).and_then(|matrices| stored.group(norm, matrices)) {
            Ok(Some(group)) if group.matrices.iter().any(|matrix| quantized[*matrix]) => groups.push(group),
            Ok(_) => {}
            Err(reason) => unsmoothed.push(Unsmoothed { norm: norm.weight.clone(), reason }),
        }
    }
    (groups, unsmoothed)
}

/// The tensors of a directory by what they become.
struct Stored<'a> {
    origins: &'a [Origin],
    by_use: HashMap<&'a str, Vec<usize>>,
}

impl<'a> Stored<'a> {
    fn new(origins: &'a [Origin]) -> Self {
        let mut by_use: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, origin) in origins.iter().enumerate() {
            for used in &origin.uses {
                by_use.entry(&used.tensor).or_default().push(index);
            }
        }
        Stored { origins, by_use }
    }

    /// The group of a norm and its matrices; `None` if it has none.
    fn group(&self, norm: &RowNorm, tensors: Vec<String>) -> Result<Option<SmoothedGroup>, NotSmoothed> {
        if tensors.is_empty() {
            return Ok(None);
        }
        let (weight, change) = self.vector(&norm.weight, &[Change::Rows, Change::AddOne])?;
        let bias = norm.bias.as_deref().map(|bias| self.vector(bias, &[Change::Rows])).transpose()?;
        let width = self.origins[weight].tensor.shape[0];
        let mut matrices = Vec::new();
        for tensor in &tensors {
            let sources = self.by_use.get(&**tensor).map_or(&[][..], Vec::as_slice);
            if sources.is_empty() || !sources.iter().all(|source| self.is_scalable(*source, width, &tensors)) {
                return Err(NotSmoothed::MatrixForm { tensor: tensor.clone() });
            }
            matrices.extend(sources);
        }
        matrices.sort_unstable();
        matrices.dedup();
        let (bias, lacks_one) = (bias.map(|(bias, _)| bias), change == Change::AddOne);
        Ok(Some(SmoothedGroup { norm: weight, bias, lacks_one, matrices, tensors }))
    }

    /// The only tensor that becomes `name` and nothing else, with one of these changes.
    fn vector(&self, name: &str, changes: &[Change]) -> Result<(usize, Change), NotSmoothed> {
        let form = || NotSmoothed::NormForm { tensor: name.to_owned() };
        let [index] = self.by_use.get(name).map_or(&[][..], Vec::as_slice) else { return Err(form()) };
        let origin = &self.origins[*index];
        let [used] = &origin.uses[..] else { return Err(form()) };
        let is_plain = origin.tensor.shape.len() == 1 && origin.format().is_some() && changes.contains(&used.change);
        if is_plain { Ok((*index, used.change)) } else { Err(form()) }
    }

    /// Whether the innermost axis of a tensor are `width` inputs, and all that it becomes is among `tensors`.
    fn is_scalable(&self, index: usize, width: usize, tensors: &[String]) -> bool {
        let origin = &self.origins[index];
        let shape = &origin.tensor.shape;
        let in_group = origin.uses.iter().all(|used| used.change == Change::Rows && tensors.contains(&used.tensor));
        in_group && shape.len() > 1 && shape.last() == Some(&width) && origin.format().is_some()
    }
}
