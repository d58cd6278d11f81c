//! The tensors of a directory, before they get the names of GGUF files: as they are stored, or packed by a scheme.

use std::sync::Arc;

use cuelight_shaders::quant::Format;

use super::derived::Unpack;
use super::error::{HuggingFaceError, HuggingFaceFault};
use crate::format::safetensors::{Safetensors, Tensor};

/// How another tool packs the weights of a directory.
pub(super) trait Scheme {
    /// What scales must be to fit their codes, for messages.
    fn needed(&self) -> &'static str;

    /// Whether a tensor belongs to another one's codes, or is not needed.
    fn is_part(&self, files: &Safetensors, name: &str) -> bool;

    /// The matrix whose codes a tensor holds.
    fn codes(&self, tensor: &Tensor) -> Option<Codes>;

    /// The packed matrix; `None` when types or shapes do not fit one another.
    ///
    /// # Errors
    /// [`HuggingFaceFault`] for tensors that fit but are not supported.
    fn packed(&self, files: &Safetensors, codes: &Tensor, scales: &Tensor) -> Result<Option<Packed>, HuggingFaceFault>;
}

/// A matrix that is packed.
pub(super) struct Codes {
    /// The matrix.
    pub name: String,
    /// The names that the tensor of its scales can have.
    pub scales: Vec<String>,
}

/// A packed matrix.
#[derive(Clone)]
pub(super) struct Packed {
    /// The format that it becomes.
    pub format: Format,
    /// Its shape, outermost first.
    pub shape: Vec<usize>,
    /// The factor of all its values, if the format does not hold it.
    pub factor: Option<f32>,
    /// The inputs in the order of its columns, where it is not their own.
    pub order: Option<Arc<[usize]>>,
    pub source: Arc<dyn Unpack>,
}

impl Packed {
    /// A matrix with its inputs in their own order, and without a factor.
    pub(super) fn new(format: Format, shape: Vec<usize>, source: impl Unpack + 'static) -> Self {
        Packed { format, shape, factor: None, order: None, source: Arc::new(source) }
    }
}

/// A tensor of a directory.
pub(super) struct Stored<'a> {
    /// The name: that of the matrix if it is packed.
    pub name: String,
    /// Its shape, outermost first.
    pub shape: Vec<usize>,
    /// The stored tensor, or that of the codes.
    pub tensor: &'a Tensor,
    /// How it is unpacked.
    pub packed: Option<Packed>,
}

/// The tensors of a directory, in the order of the files.
pub(super) fn stored<'a>(
    files: &'a Safetensors,
    scheme: Option<&dyn Scheme>,
) -> Result<Vec<Stored<'a>>, HuggingFaceError> {
    let wanted =
        files.tensors().iter().filter(|tensor| !scheme.is_some_and(|scheme| scheme.is_part(files, &tensor.name)));
    let one = |tensor: &'a Tensor| match scheme.and_then(|scheme| Some((scheme, scheme.codes(tensor)?))) {
        None => Ok(Stored { name: tensor.name.clone(), shape: shape_of(tensor), tensor, packed: None }),
        Some((scheme, codes)) => unpacked(files, scheme, tensor, codes),
    };
    wanted.map(one).collect()
}

/// The shape of a tensor, where a single number is a vector of one.
fn shape_of(tensor: &Tensor) -> Vec<usize> {
    if tensor.shape.is_empty() { vec![1] } else { tensor.shape.clone() }
}

/// A tensor that holds the codes of a matrix.
fn unpacked<'a>(
    files: &Safetensors,
    scheme: &dyn Scheme,
    tensor: &'a Tensor,
    codes: Codes,
) -> Result<Stored<'a>, HuggingFaceError> {
    let scales = codes.scales.iter().find_map(|name| files.tensor(name));
    let packed = scales.map_or(Ok(None), |scales| scheme.packed(files, tensor, scales));
    let Some(packed) = packed.map_err(|fault| fault.in_file(files.path(tensor)))? else {
        let scales = scales.map_or(codes.scales.join("\" or \""), |scales| scales.name.clone());
        let fault = HuggingFaceFault::Packed { tensor: tensor.name.clone(), scales, needed: scheme.needed() };
        return Err(fault.in_file(files.path(tensor)));
    };
    Ok(Stored { name: codes.name, shape: packed.shape.clone(), tensor, packed: Some(packed) })
}
