//! Low-rank adapters of a loaded model: which projections they can change, and their matrices as steps use them.
//!
//! - [`projections`]: the projections of a model, as its graph is built
//! - [`AdapterModel`]: what an adapter must fit, and how it is loaded
//!
//! Steps carry the adapter of each sequence itself ([`AdapterUse`](crate::engine::AdapterUse)), not the number of a slot. So an
//! adapter stays in memory as long as a request uses it, an engine that is loaded again after a fault needs no table, and
//! replicas share adapters.

pub mod projections;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use cuelight_shaders::lora::{Adapter, LowRank};
use cuelight_shaders::weight::Weight;

use crate::engine::AdapterLimits;
use crate::format::hugging_face::{HeadCounts, NoPlace, Place, layer_of, place};
use crate::format::lora::{LoraFile, LoraPair, WeightName};
use projections::{OUTPUT_HEAD, Projection, TOKEN_EMBEDDING};

pub use crate::format::lora::{AdapterError, AdapterFault};

/// The tensors with a row for each token.
const VOCABULARY: [&str; 2] = [TOKEN_EMBEDDING, OUTPUT_HEAD];

/// What an adapter must fit: the projections of a model.
#[derive(Debug)]
pub struct AdapterModel {
    architecture: String,
    projections: Vec<Projection>,
    /// The numbers of the projections of each tensor.
    by_tensor: HashMap<String, Vec<usize>>,
    /// The heads of each layer.
    heads: Vec<HeadCounts>,
    limits: AdapterLimits,
}

/// Two matrices in the order of GGUF files.
struct Matrices {
    tensor: String,
    /// The expert whose matrices they are, of a tensor with a matrix for each expert.
    expert: Option<usize>,
    /// [rank, columns]
    a: Arc<[f32]>,
    /// [outputs, rank]
    b: Vec<f32>,
}

impl AdapterModel {
    /// The model with these projections and the heads of each layer.
    #[must_use]
    pub fn new(
        architecture: &str,
        projections: Vec<Projection>,
        heads: Vec<HeadCounts>,
        limits: AdapterLimits,
    ) -> Self {
        let mut by_tensor: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, projection) in projections.iter().enumerate() {
            by_tensor.entry(projection.tensor.clone()).or_default().push(index);
        }
        AdapterModel { architecture: architecture.to_owned(), projections, by_tensor, heads, limits }
    }

    /// How many adapters the model may have, and how large they may be.
    #[must_use]
    pub fn limits(&self) -> AdapterLimits {
        self.limits
    }

    /// Bytes of all adapters at their largest.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        let of_one: u64 = self.projections.iter().map(|one| LowRank::bytes(one.shape(), self.limits.max_rank)).sum();
        of_one * self.limits.slots as u64
    }

    /// Loads an adapter. `scale` is a factor on its changes. Blocks.
    ///
    /// # Errors
    /// [`AdapterError`] naming the file, and the tensor that is damaged, not supported or does not fit.
    pub fn load(&self, path: &Path, scale: f32) -> Result<Adapter, AdapterError> {
        let file = LoraFile::open(path)?;
        self.bind(&file, scale).map_err(|fault| fault.in_file(path))
    }

    fn bind(&self, file: &LoraFile, scale: f32) -> Result<Adapter, AdapterFault> {
        if let Some(found) = file.architecture.as_ref().filter(|found| **found != self.architecture) {
            return Err(AdapterFault::Architecture { found: found.clone(), expected: self.architecture.clone() });
        }
        let mut changes: Vec<Option<LowRank>> = self.projections.iter().map(|_| None).collect();
        for pair in &file.pairs {
            self.check_rank(pair)?;
            let matrices = self.in_order(pair)?;
            self.add(&mut changes, pair, &matrices, scale)?;
        }
        Ok(Adapter::new(changes))
    }

    fn check_rank(&self, pair: &LoraPair) -> Result<(), AdapterFault> {
        let (found, most) = (pair.rank(), self.limits.max_rank);
        if found == 0 || pair.columns() == 0 {
            return Err(AdapterFault::EmptyTensor { tensor: pair.a.name.to_string() });
        }
        if found > most {
            return Err(AdapterFault::RankTooLarge { tensor: pair.a.name.to_string(), found, most });
        }
        check_shape(&pair.b, pair.b.rows, found)
    }

    /// The matrices in the order of GGUF files.
    fn in_order(&self, pair: &LoraPair) -> Result<Matrices, AdapterFault> {
        let (a, b) = (finite(&pair.a)?, finite(&pair.b)?);
        let (columns, rank) = (pair.columns(), pair.rank());
        let a = if pair.is_transposed { transposed(&a, rank) } else { a };
        let name = match &pair.weight {
            WeightName::Gguf(name) => return Ok(Matrices { tensor: name.clone(), expert: None, a: a.into(), b }),
            WeightName::HuggingFace(name) => name,
        };
        let placed = self.place(name, pair)?;
        let b = match placed.rows {
            Some(rows) => rows.iter().flat_map(|row| &b[row * rank..(row + 1) * rank]).copied().collect(),
            None => b,
        };
        let a = match placed.columns {
            Some(order) => {
                a.chunks_exact(columns).flat_map(|row| order.iter().map(move |column| row[*column])).collect()
            }
            None => a.into(),
        };
        Ok(Matrices { tensor: placed.tensor, expert: placed.expert, a, b })
    }

    /// Where the weight of a module is in GGUF files. Outside of layers only those of the vocabulary have a place.
    fn place(&self, name: &str, pair: &LoraPair) -> Result<Place, AdapterFault> {
        let no_target = || AdapterFault::NoTarget { tensor: pair.a.name.to_string() };
        let outside = HeadCounts::default();
        let layer = layer_of(name);
        let heads = layer.map_or(Some(&outside), |layer| self.heads.get(layer)).ok_or_else(no_target)?;
        let found = place(&self.architecture, self.heads.len(), heads, (name, [pair.b.rows, pair.columns()]));
        let placed = found.map_err(|reason| match reason {
            NoPlace::Architecture => AdapterFault::UnknownArchitecture(self.architecture.clone()),
            NoPlace::Weight => no_target(),
        })?;
        let has_place = layer.is_some() || VOCABULARY.contains(&&*placed.tensor);
        if has_place { Ok(placed) } else { Err(no_target()) }
    }

    /// Adds the change of one tensor to the projections that are parts of it.
    fn add(
        &self,
        changes: &mut [Option<LowRank>],
        pair: &LoraPair,
        matrices: &Matrices,
        scale: f32,
    ) -> Result<(), AdapterFault> {
        let rank = pair.rank();
        let parts = self.parts(pair, matrices);
        let name = || pair.a.name.to_string();
        let Some(first) = parts.first().map(|index| &self.projections[*index]) else {
            return Err(self.no_target(name(), &matrices.tensor));
        };
        let experts = pair.experts.unwrap_or(1);
        // The parts are those of one matrix, or a matrix of each expert.
        let all: usize = parts.iter().map(|index| self.projections[*index].rows.len()).sum();
        let columns = first.columns;
        let [rows, width] = if pair.is_transposed { [columns, rank] } else { [experts * rank, columns] };
        check_shape(&pair.a, rows, width)?;
        check_shape(&pair.b, all, rank)?;
        for index in parts {
            let part = &self.projections[index];
            // Where the matrices of this expert begin.
            let expert = part.expert.filter(|_| pair.experts.is_some()).unwrap_or(0);
            let a = match pair.experts {
                Some(_) => matrices.a[expert * rank * columns..][..rank * columns].into(),
                None => Arc::clone(&matrices.a),
            };
            let start = expert * part.rows.len() + part.rows.start;
            let b = &matrices.b[start * rank..][..part.rows.len() * rank];
            let change = LowRank::new(a, b, part.shape(), pair.scale * scale * part.factor);
            if changes[index].is_some() {
                return Err(AdapterFault::SameTarget { tensor: name() });
            }
            changes[index] = change;
        }
        Ok(())
    }

    /// The numbers of the projections that a pair changes.
    fn parts(&self, pair: &LoraPair, matrices: &Matrices) -> Vec<usize> {
        let is_meant = |index: &&usize| match (pair.experts, matrices.expert) {
            (Some(_), _) => self.projections[**index].expert.is_some(),
            (None, expert) => self.projections[**index].expert == expert,
        };
        self.by_tensor.get(&matrices.tensor).into_iter().flatten().filter(is_meant).copied().collect()
    }

    /// Why a tensor has no projection.
    fn no_target(&self, tensor: String, target: &str) -> AdapterFault {
        if VOCABULARY.contains(&target) && !self.limits.vocabulary {
            return AdapterFault::NoVocabulary { tensor };
        }
        if target.ends_with("_exps.weight") && !self.limits.experts {
            return AdapterFault::NoExperts { tensor };
        }
        AdapterFault::NoTarget { tensor }
    }
}

fn check_shape(weight: &Weight, rows: usize, columns: usize) -> Result<(), AdapterFault> {
    if (weight.rows, weight.columns) == (rows, columns) {
        return Ok(());
    }
    let expected = format!("[{rows}, {columns}]");
    Err(AdapterFault::Shape { tensor: weight.name.to_string(), rows: weight.rows, columns: weight.columns, expected })
}

/// The transpose of a matrix with this many columns.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let column = |column: usize| values.iter().skip(column).step_by(columns.max(1)).copied();
    (0..columns).flat_map(column).collect()
}

/// The values of a matrix, all of them numbers.
fn finite(weight: &Weight) -> Result<Vec<f32>, AdapterFault> {
    let values = weight.to_f32();
    if values.iter().all(|value| value.is_finite()) {
        return Ok(values);
    }
    Err(AdapterFault::NotFinite { tensor: weight.name.to_string() })
}
