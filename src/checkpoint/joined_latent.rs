//! A GGUF file of an older converter with the keys and tensors of newer ones: in the file, one tensor of a layer computes the keys
//! and the values of all heads from the latent vector.
//!
//! Newer files have two, of which that of the keys is transposed, so that it applies to queries. Both are made when they are first
//! read and then stay in memory.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::{Bytes, SharedBytes, Weight};

use super::{Checkpoint, Metadata, TensorInfo};
use crate::cancel::LoadCancel;
use crate::format::gguf::{Gguf, GgufError, GgufFault, Value};
use crate::format::tokenizer::{Tokenizer, TokenizerError};
use crate::mapped_file::ModelFiles;
use crate::sample::RecommendedSampling;

/// The end of the name of a tensor that is divided.
const JOINED: &str = "attn_kv_b.weight";

/// What a tensor becomes.
const PARTS: [(&str, Part); 2] = [("attn_k_b.weight", Part::Keys), ("attn_v_b.weight", Part::Values)];

/// The file as a checkpoint, with the keys and tensors of newer files.
///
/// # Errors
/// [`GgufError`] when a key of its latent attention is missing or of the wrong type.
pub(super) fn checkpoint(file: Gguf) -> Result<Box<dyn Checkpoint>, GgufError> {
    match Sizes::read(&file)? {
        Some(sizes) => Ok(Box::new(JoinedLatent::new(file, sizes)?)),
        None => Ok(Box::new(file)),
    }
}

/// The sizes of the heads, as older files state them.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    heads: usize,
    /// The length of a key without its rotated section.
    key: usize,
    value: usize,
    /// The length of the latent vector.
    rank: usize,
    rotated: usize,
}

impl Sizes {
    /// Those of a file whose tensors are joined; `None` for other files, and where the tensors do not have these sizes.
    fn read(file: &Gguf) -> Result<Option<Self>, GgufError> {
        let joined: Vec<&TensorInfo> = file.tensors().iter().filter(|tensor| tensor.name.ends_with(JOINED)).collect();
        let architecture = file.optional_str("general.architecture")?.unwrap_or_default();
        let size =
            |key: &str| file.optional_u32(&format!("{architecture}.{key}")).map(|size| size.unwrap_or(0) as usize);
        if joined.is_empty() || size("attention.key_length_mla")? > 0 {
            return Ok(None);
        }
        let rotated = size("rope.dimension_count")?;
        let sizes = Sizes {
            heads: size("attention.head_count")?,
            key: size("attention.key_length")?.saturating_sub(rotated),
            value: size("attention.value_length")?,
            rank: size("attention.kv_lora_rank")?,
            rotated,
        };
        Ok(joined.iter().all(|tensor| sizes.fit(tensor)).then_some(sizes))
    }

    fn fit(&self, tensor: &TensorInfo) -> bool {
        let rows = self.heads.saturating_mul(self.key.saturating_add(self.value));
        let is_whole = [self.heads, self.key, self.value, self.rank].iter().all(|size| *size > 0);
        is_whole && tensor.format().is_some() && tensor.dims == [self.rank as u64, rows as u64]
    }

    /// The keys of newer files, without the architecture.
    fn keys(&self) -> [(&'static str, usize); 5] {
        [
            ("head_count_kv", 1),
            ("key_length", self.rank.saturating_add(self.rotated)),
            ("value_length", self.rank),
            ("key_length_mla", self.key.saturating_add(self.rotated)),
            ("value_length_mla", self.value),
        ]
    }
}

/// A file whose tensors are divided.
struct JoinedLatent {
    file: Gguf,
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorInfo>,
    /// The tensors that the file does not have.
    made: HashMap<String, SharedBytes>,
}

impl JoinedLatent {
    fn new(file: Gguf, sizes: Sizes) -> Result<Self, GgufError> {
        let (mut tensors, mut made) = (Vec::new(), HashMap::new());
        for tensor in file.tensors() {
            let Some(layer) = tensor.name.strip_suffix(JOINED) else {
                tensors.push(tensor.clone());
                continue;
            };
            let joined = file.weight(&tensor.name)?;
            for (end, part) in PARTS {
                let divided = Divided { joined: joined.clone(), sizes, part, made: OnceLock::new() };
                let (name, n_bytes) = (format!("{layer}{end}"), divided.byte_len());
                let (dims, ggml_type) = (divided.dims(), divided.format().ggml_id());
                tensors.push(TensorInfo {
                    name: name.clone(),
                    dims,
                    ggml_type,
                    n_bytes: Some(n_bytes as u64),
                    ..tensor.clone()
                });
                made.extend(SharedBytes::new(Arc::new(divided), 0..n_bytes).map(|bytes| (name, bytes)));
            }
        }
        let metadata = newer_metadata(&file, sizes)?;
        Ok(JoinedLatent { file, metadata, tensors, made })
    }
}

/// The keys of the file with those of newer ones.
fn newer_metadata(file: &Gguf, sizes: Sizes) -> Result<Vec<(String, Value)>, GgufError> {
    let architecture = file.str("general.architecture")?;
    let changed = sizes.keys().map(|(key, size)| {
        (format!("{architecture}.attention.{key}"), Value::U32(u32::try_from(size).unwrap_or(u32::MAX)))
    });
    let is_kept = |(name, _): &&(String, Value)| changed.iter().all(|(other, _)| other != name);
    let kept: Vec<(String, Value)> = file.metadata().iter().filter(is_kept).cloned().collect();
    Ok(kept.into_iter().chain(changed).collect())
}

/// One of the two tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Those of the keys, transposed.
    Keys,
    Values,
}

/// The rows of a joined tensor that belong to a part, head after head.
struct Divided {
    joined: Weight,
    sizes: Sizes,
    part: Part,
    made: OnceLock<Vec<u8>>,
}

impl Divided {
    /// The dimensions, innermost first.
    fn dims(&self) -> Vec<u64> {
        let Sizes { heads, key, value, rank, .. } = self.sizes;
        let dims = match self.part {
            Part::Keys => [key, rank, heads],
            Part::Values => [rank, value, heads],
        };
        dims.map(|size| size as u64).to_vec()
    }

    /// Blocks of values cannot be transposed.
    fn format(&self) -> Format {
        match self.part {
            Part::Keys => Format::F32,
            Part::Values => self.joined.format,
        }
    }

    fn make(&self) -> Vec<u8> {
        let Sizes { heads, key, value, rank, .. } = self.sizes;
        let mut made = Vec::with_capacity(self.byte_len());
        for start in (0..heads).map(|head| head * (key + value)) {
            match self.part {
                Part::Keys => made.extend(transposed(&self.joined.part(start..start + key).to_f32(), rank)),
                Part::Values => made.extend_from_slice(self.joined.part(start + key..start + key + value).bytes()),
            }
        }
        self.joined.release();
        made
    }
}

/// The bytes of a matrix with rows of this length, transposed.
fn transposed(matrix: &[f32], columns: usize) -> impl Iterator<Item = u8> {
    let column = move |column| matrix.iter().skip(column).step_by(columns);
    (0..columns).flat_map(column).flat_map(|value| value.to_le_bytes())
}

impl AsRef<[u8]> for Divided {
    fn as_ref(&self) -> &[u8] {
        self.made.get_or_init(|| self.make())
    }
}

impl Bytes for Divided {
    fn byte_len(&self) -> usize {
        let Sizes { heads, key, value, rank, .. } = self.sizes;
        match self.part {
            Part::Keys => heads * key * rank * size_of::<f32>(),
            Part::Values => heads * value * self.joined.format.row_bytes(rank).unwrap_or(0),
        }
    }
}

impl Metadata for JoinedLatent {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

impl Checkpoint for JoinedLatent {
    fn files(&self) -> &ModelFiles {
        self.file.files()
    }

    fn file_format(&self) -> &'static str {
        Checkpoint::file_format(&self.file)
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn weight(&self, name: &str) -> Result<Weight, GgufError> {
        let (Some(bytes), Some(tensor)) = (self.made.get(name), self.tensor(name)) else {
            return self.file.weight(name);
        };
        let format = tensor.format().unwrap_or(Format::F32);
        let [rows, columns] = [tensor.n_rows(), tensor.n_columns()].map(|size| size as usize);
        let weight = Weight::new(name, format, rows, columns, bytes.clone());
        weight.map_err(|error| self.fault(GgufFault::Weight(error)))
    }

    fn tokenizer(&self, cancel: &LoadCancel) -> Result<Tokenizer, TokenizerError> {
        self.file.tokenizer(cancel)
    }

    fn tokenizer_bytes(&self) -> Result<u64, TokenizerError> {
        self.file.tokenizer_bytes()
    }

    fn sampling(&self) -> RecommendedSampling {
        Checkpoint::sampling(&self.file)
    }

    fn release_header(&self) {
        self.file.release_header();
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::gguf::write::GgufBuilder;

    const HEADS: usize = 2;
    const KEY: usize = 3;
    const VALUE: usize = 2;
    const RANK: usize = 32;

    /// A value that is exact in BF16.
    fn stored(row: usize, column: usize) -> f32 {
        (row * 8 + column % 8) as f32
    }

    /// A file with a joined tensor in each of two layers.
    fn file(rows: usize) -> Gguf {
        let sizes = [
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", HEADS),
            ("attention.key_length", KEY + 4),
            ("attention.value_length", VALUE),
            ("attention.kv_lora_rank", RANK),
            ("rope.dimension_count", 4),
        ];
        let keys = GgufBuilder::new().key("general.architecture", "deepseek2");
        let keys = sizes.iter().fold(keys, |file, (key, size)| file.key(&format!("deepseek2.{key}"), *size as u32));
        let values: Vec<f32> = (0..rows * RANK).map(|index| stored(index / RANK, index % RANK)).collect();
        let dims = [RANK as u64, rows as u64];
        let upper_half = |value: &f32| u16::try_from(value.to_bits() >> 16).unwrap().to_le_bytes();
        let halves: Vec<u8> = values.iter().flat_map(upper_half).collect();
        let tensors = keys
            .tensor_f32("blk.0.attn_kv_b.weight", &dims, &values)
            .tensor_f32("blk.0.attn_norm.weight", &[1], &[1.0])
            .tensor("blk.1.attn_kv_b.weight", &dims, Format::BF16.ggml_id(), halves);
        Gguf::from_bytes("old.gguf", tensors.build()).unwrap()
    }

    #[test]
    fn an_older_file_has_the_keys_and_tensors_of_a_newer_one() {
        let file = checkpoint(file(HEADS * (KEY + VALUE))).unwrap();
        let size = |key: &str| file.u32(&format!("deepseek2.attention.{key}")).unwrap() as usize;
        let sizes = ["head_count_kv", "key_length", "value_length", "key_length_mla", "value_length_mla"].map(size);
        assert_eq!(sizes, [1, RANK + 4, RANK, KEY + 4, VALUE]);
        let names: Vec<&str> = file.tensors().iter().map(|tensor| &*tensor.name).collect();
        let parts =
            ["blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight", "blk.1.attn_k_b.weight", "blk.1.attn_v_b.weight"];
        assert_eq!(names, [parts[0], parts[1], "blk.0.attn_norm.weight", parts[2], parts[3]]);
        for (layer, format) in [(0, Format::F32), (1, Format::BF16)] {
            let keys = file.weight(parts[2 * layer]).unwrap();
            assert_eq!((keys.rows, keys.columns, keys.format), (HEADS * RANK, KEY, Format::F32));
            // Row 5 of the keys of the second head is the sixth value of each of its rows.
            let row = &keys.to_f32()[(RANK + 5) * KEY..][..KEY];
            assert_eq!(row, [5, 6, 7].map(|row| stored(row, 5)));
            let values = file.weight(parts[2 * layer + 1]).unwrap();
            assert_eq!((values.rows, values.columns, values.format), (HEADS * VALUE, RANK, format));
            assert_eq!(values.to_f32()[2 * RANK..][..2], [stored(8, 0), stored(8, 1)]);
        }
        assert_eq!(file.weight("blk.0.attn_norm.weight").unwrap().to_f32(), [1.0]);
    }

    #[test]
    fn tensors_of_other_shapes_stay_as_they_are() {
        let file = checkpoint(file(HEADS * (KEY + VALUE) + 1)).unwrap();
        assert!(file.tensor("blk.0.attn_kv_b.weight").is_some());
        assert!(file.optional_u32("deepseek2.attention.key_length_mla").unwrap().is_none());
    }
}
