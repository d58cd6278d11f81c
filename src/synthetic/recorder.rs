//! A checkpoint without a file. It has every tensor that a graph asks for and keeps a list of them.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::{Bytes, SharedBytes, Weight};
use memmap2::{MmapMut, MmapOptions};

use super::metadata;
use super::shape::{OptionalTensor, Shape};
use crate::cancel::LoadCancel;
use crate::checkpoint::{Checkpoint, Metadata, TensorInfo};
use crate::format::gguf::{Gguf, GgufError, GgufFault, Value};
use crate::format::tokenizer::{Tokenizer, TokenizerError};
use crate::mapped_file::ModelFiles;

/// Tensors for which files of few architectures have others, which hold several matrices.
const SEPARATE: [OptionalTensor; 2] =
    [OptionalTensor::new("ffn_gate.weight"), OptionalTensor::new("ffn_gate_shexp.weight")];

/// The tensor that only layers with experts have.
const ROUTER: &str = "ffn_gate_inp.weight";

/// A tensor that a graph has asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// The name.
    pub(super) name: String,
    /// Output dimension; 1 for a vector.
    pub(super) rows: usize,
    /// Input dimension.
    pub(super) columns: usize,
}

/// The checkpoint. All values are zero.
pub(super) struct Recorder {
    metadata: Gguf,
    files: ModelFiles,
    optional: HashMap<String, TensorInfo>,
    requests: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    list: Vec<Request>,
    names: HashSet<String>,
    /// The longest tensor so far, whose bytes all shorter ones share.
    zeros: Option<Arc<Zeros>>,
}

/// Zeros that use address space and no memory.
struct Zeros(MmapMut);

impl AsRef<[u8]> for Zeros {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Bytes for Zeros {}

impl Recorder {
    /// A checkpoint with the keys of a shape, its optional tensors and any other.
    pub(super) fn new(shape: &Shape) -> Self {
        let bytes = metadata::hyperparameters(shape).build();
        let metadata = Gguf::from_bytes(shape.name, bytes).expect("a file that was just made can be read");
        let (files, requests) = (ModelFiles::default(), Mutex::default());
        Recorder { metadata, files, optional: optional_tensors(shape), requests }
    }

    /// The tensors that were asked for, each once, in order.
    pub(super) fn into_requests(self) -> Vec<Request> {
        self.requests.into_inner().unwrap_or_else(PoisonError::into_inner).list
    }
}

impl Requests {
    /// A matrix of zeros with the name and shape of a request, which is added to the list.
    fn answer(&mut self, request: Request) -> Result<Weight, GgufFault> {
        let Request { name, rows, columns } = request.clone();
        let bytes = rows * columns * size_of::<f32>();
        let zeros = self.zeros(bytes)?;
        if self.names.insert(name.clone()) {
            self.list.push(request);
        }
        let shared = SharedBytes::new(zeros, 0..bytes).expect("the zeros are at least as long");
        Ok(Weight::new(&name, Format::F32, rows, columns, shared).expect("the bytes are those of the shape"))
    }

    fn zeros(&mut self, bytes: usize) -> Result<Arc<Zeros>, GgufFault> {
        if let Some(zeros) = self.zeros.as_ref().filter(|zeros| zeros.0.len() >= bytes) {
            return Ok(Arc::clone(zeros));
        }
        let map = MmapOptions::new().len(bytes.max(1)).no_reserve_swap().map_anon();
        let zeros = Arc::new(Zeros(map.map_err(GgufFault::Unreadable)?));
        self.zeros = Some(Arc::clone(&zeros));
        Ok(zeros)
    }
}

/// The tensors that a graph looks up before it asks for them, by name: those of the shape that files may lack, and those that
/// follow from its fields.
fn optional_tensors(shape: &Shape) -> HashMap<String, TensorInfo> {
    let shared = shape.experts.map_or(0, |experts| experts.shared_size);
    let of_shared = OptionalTensor { rows: shared, ..OptionalTensor::new("ffn_up_shexp.weight") };
    let embedding = OptionalTensor { rows: shape.vocab_size, ..OptionalTensor::new("token_embd.weight") };
    let of_fields = [
        Some(embedding),
        (!shape.tied).then_some(OptionalTensor::new("output.weight")),
        super::shape::rope_factors(shape).map(|_| OptionalTensor::new("rope_freqs.weight")),
        (shared > 0).then_some(of_shared),
        (shape.experts.is_some() && !shape.optional.iter().any(|tensor| tensor.name == ROUTER))
            .then_some(OptionalTensor::new(ROUTER)),
    ];
    let all = of_fields.into_iter().flatten().chain(SEPARATE).chain(shape.optional.iter().copied());
    let mut tensors = HashMap::new();
    for tensor in all {
        let name_in = |layer: usize| format!("blk.{layer}.{}", tensor.name);
        let names = (0..shape.n_layers).filter(|layer| tensor.is_in(*layer)).map(name_in);
        for name in names.chain([tensor.name.to_owned()]) {
            // Only the rows are read of one that was not asked for yet.
            let (dims, ggml_type) = (vec![1, tensor.rows as u64], Format::F32.ggml_id());
            tensors.insert(name.clone(), TensorInfo { name, dims, ggml_type, shard: 0, start: 0, n_bytes: None });
        }
    }
    tensors
}

impl Metadata for Recorder {
    fn path(&self) -> &Path {
        self.metadata.path()
    }

    fn metadata(&self) -> &[(String, Value)] {
        self.metadata.metadata()
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.value(key)
    }
}

impl Checkpoint for Recorder {
    fn files(&self) -> &ModelFiles {
        &self.files
    }

    fn file_format(&self) -> &'static str {
        "gguf"
    }

    fn tensors(&self) -> &[TensorInfo] {
        &[]
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.optional.get(name)
    }

    /// The tensor with its number of rows and one column. This is not a request: no op uses it.
    fn weight(&self, name: &str) -> Result<Weight, GgufError> {
        let rows = self.tensor(name).map_or(1, |tensor| usize::try_from(tensor.n_rows()).unwrap_or(1));
        Ok(Weight::from_f32(name, rows, 1, &vec![0.0; rows]))
    }

    fn weight_of_shape(&self, name: &str, [rows, columns]: [usize; 2]) -> Result<Weight, GgufError> {
        let request = Request { name: name.to_owned(), rows, columns };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.answer(request).map_err(|fault| fault.in_file(self.path()))
    }

    fn tokenizer(&self, _cancel: &LoadCancel) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_gguf(&self.metadata)
    }

    fn tokenizer_bytes(&self) -> Result<u64, TokenizerError> {
        Ok(0)
    }

    fn release_header(&self) {}
}
