//! Which tensors of a directory are quantized, and which are smoothed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::error::W8a8Error;
use super::options::W8a8Options;
use super::smoothing::{Member, SmoothedGroup, Unsmoothed, groups};
use crate::checkpoint;
use crate::format::hugging_face::{Change, Origin, Origins};
use crate::model::ModelGraph;
use crate::quantization_recipe::keeps_format;

/// The values of a row are a multiple of this many, so that every program can read them in blocks.
const BLOCK: usize = 32;

/// Parts of the names of matrices that are not quantized, besides those that keep their format in GGUF files: few outputs, or
/// inputs that other programs multiply without the quantized product.
const KEPT: [&str; 6] = [".ssm_x.", ".ssm_dt.", ".ssm_alpha.", ".ssm_beta.", ".ssm_ba.", ".indexer."];

/// A tensor of the directory and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Its name in the directory.
    pub name: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The type of its values.
    pub from: &'static str,
    /// Whether it is quantized.
    pub is_quantized: bool,
    /// Whether factors move from or to it.
    pub is_smoothed: bool,
    /// Its bytes.
    pub from_bytes: u64,
    /// The bytes that replace them, scales included.
    pub to_bytes: u64,
}

/// What a quantization writes.
pub struct W8a8Plan<'a> {
    pub(super) folder: PathBuf,
    pub(super) origins: &'a Origins,
    pub(super) options: W8a8Options,
    /// The tensors of the directory, in the order of its files.
    pub tensors: Vec<PlannedTensor>,
    /// The norms and matrices between which factors move.
    pub groups: Vec<SmoothedGroup>,
    /// The tensors of groups, each with the number of its group.
    pub(super) members: HashMap<usize, (usize, Member)>,
    /// The norms that are left as they are although they could matter, with the reason.
    pub unsmoothed: Vec<Unsmoothed>,
}

/// Opens a directory to be quantized.
///
/// # Errors
/// [`W8a8Error`] when it is no directory, or is damaged, incomplete or not supported.
pub fn open(folder: &Path) -> Result<Origins, W8a8Error> {
    if folder.is_dir() { Ok(Origins::open(folder)?) } else { Err(W8a8Error::NotADirectory { path: folder.to_owned() }) }
}

impl<'a> W8a8Plan<'a> {
    /// Chooses the tensors of the directory `folder`.
    ///
    /// # Errors
    /// [`W8a8Error`] when the directory is quantized already, nothing in it can be quantized, or nothing can be smoothed.
    pub fn new(folder: &Path, origins: &'a Origins, options: W8a8Options) -> Result<Self, W8a8Error> {
        let path = || folder.to_owned();
        if origins.is_quantized() {
            return Err(W8a8Error::AlreadyQuantized { path: path() });
        }
        let quantized: Vec<bool> = origins.tensors().iter().map(is_quantizable).collect();
        if !quantized.contains(&true) {
            return Err(W8a8Error::NothingToQuantize { path: path() });
        }
        let (groups, unsmoothed) = match options.smoothing {
            Some(_) => groups(&ModelGraph::build(&*checkpoint::open(folder)?)?, origins, &quantized),
            None => Default::default(),
        };
        if options.smoothing.is_some() && groups.is_empty() {
            return Err(W8a8Error::NothingToSmooth { path: path(), reasons: reasons(&unsmoothed) });
        }
        let numbered = groups.iter().enumerate();
        let members: HashMap<usize, (usize, Member)> = numbered
            .flat_map(|(number, group)| group.members().map(move |(tensor, member)| (tensor, (number, member))))
            .collect();
        let numbered = origins.tensors().iter().zip(&quantized).enumerate();
        let tensors =
            numbered.map(|(index, (origin, quantized))| planned(origin, *quantized, members.contains_key(&index)));
        Ok(W8a8Plan { folder: path(), origins, options, tensors: tensors.collect(), groups, members, unsmoothed })
    }

    /// Bytes of all tensors: at present, and after.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        self.tensors.iter().fold((0, 0), |(from, to), tensor| (from + tensor.from_bytes, to + tensor.to_bytes))
    }

    /// Number of values.
    #[must_use]
    pub fn values(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum()
    }
}

/// The first reasons why norms are left as they are.
fn reasons(unsmoothed: &[Unsmoothed]) -> String {
    let one = |one: &Unsmoothed| format!("{}: {}", one.norm, one.reason);
    match &unsmoothed.iter().take(2).map(one).collect::<Vec<_>>()[..] {
        [] => ", because none is read by matrices that are quantized".to_owned(),
        some => format!(" ({})", some.join("; ")),
    }
}

/// Whether a tensor is the matrix of a linear layer that every reader of the format can multiply.
fn is_quantizable(origin: &Origin) -> bool {
    let of_layer = |name: &str| name.starts_with("blk.") && !KEPT.iter().any(|kept| name.contains(kept));
    let is_matrix = matches!(origin.tensor.shape[..], [_, columns] if columns > 0 && columns.is_multiple_of(BLOCK));
    let is_linear = origin.uses.iter().all(|used| {
        of_layer(&used.tensor) && !keeps_format(&used.tensor) && matches!(used.change, Change::Rows | Change::Columns)
    });
    let is_module = origin.tensor.name.ends_with(".weight") && !origin.uses.is_empty();
    is_matrix && is_module && is_linear && origin.format().is_some()
}

fn planned(origin: &Origin, is_quantized: bool, is_smoothed: bool) -> PlannedTensor {
    let tensor = &origin.tensor;
    let from_bytes = tensor.range.len() as u64;
    let scale_bytes = tensor.shape.first().copied().unwrap_or(0) * usize::from(tensor.dtype.bits) / 8;
    let values = tensor.shape.iter().product::<usize>();
    PlannedTensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        from: tensor.dtype.name,
        is_quantized,
        is_smoothed,
        from_bytes,
        to_bytes: if is_quantized { (values + scale_bytes) as u64 } else { from_bytes },
    }
}
