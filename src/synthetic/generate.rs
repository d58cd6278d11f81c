//! Generates the bytes of a model: in memory, first without weights and then on several threads, or in a file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cuelight_shaders::pages::Pages;
use cuelight_shaders::quant::Format;
use cuelight_shaders::quant::random::{self, RandomBlocks};
use cuelight_shaders::weight::Bytes;
use memmap2::{MmapMut, MmapOptions};

use super::tensors::{Content, Tensor, tensors};
use super::{Synthetic, metadata};
use crate::format::gguf::write::FileHeader;
use crate::format::gguf::{Gguf, GgufError, GgufFault};

/// The seed of all models, so that two files of the same description are equal.
const SEED: u64 = 0x5eed;

/// Maximum bytes that a thread generates at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The progress of [`Synthetic::write`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteProgress {
    /// Bytes written so far.
    pub done_bytes: u64,
    /// Bytes of the whole file.
    pub total_bytes: u64,
}

impl Synthetic {
    /// The model as a file in memory with its metadata, tokenizer and vectors. Matrices are zero and use no memory until
    /// [`PendingWeights::make`] generates them.
    ///
    /// # Errors
    /// [`GgufError`] when the system cannot reserve the address space.
    pub fn outline(&self) -> Result<(Gguf, PendingWeights), GgufError> {
        let name = self.to_string();
        let layout = FileLayout::new(self);
        let file = DeferredFile::outline(&layout)
            .map(Arc::new)
            .map_err(|error| GgufFault::Unreadable(error).in_file(Path::new(&name)))?;
        let gguf = Gguf::from_shared(&name, Arc::<DeferredFile>::clone(&file))?;
        Ok((gguf, PendingWeights { file, layout }))
    }

    /// Writes the model to a new file without holding it in memory. Returns the size of the file in bytes.
    ///
    /// # Errors
    /// When the file exists or cannot be written. A partly written file is removed.
    pub fn write(&self, path: &Path, progress: &mut dyn FnMut(WriteProgress)) -> io::Result<u64> {
        let layout = FileLayout::new(self);
        let file = File::create_new(path)?;
        let mut buffered = BufWriter::with_capacity(CHUNK_BYTES, &file);
        // Synced, so that the system does not write to disk during later measurements.
        let written = layout.write(&mut buffered, progress).and_then(|()| file.sync_all());
        if written.is_err() {
            // The first error is the one to report.
            let _ = std::fs::remove_file(path);
        }
        written.map(|()| layout.header.file_bytes as u64)
    }
}

/// The weights of a model that have not been generated yet.
pub struct PendingWeights {
    file: Arc<DeferredFile>,
    layout: FileLayout,
}

impl PendingWeights {
    /// Generates the weights on `threads` threads. Then all holders of the model see them.
    pub fn make(self, threads: usize) {
        let mut bytes = Pages::zeroed_large(self.layout.header.file_bytes);
        self.layout.make(&mut bytes, threads);
        // It is not set yet, because there is one `PendingWeights` per file.
        let _ = self.file.generated.set(bytes);
    }
}

/// A file in memory whose matrices are generated after its other contents.
struct DeferredFile {
    /// As long as the file, but only metadata and vectors use memory.
    outline: MmapMut,
    generated: OnceLock<Pages<u8>>,
}

impl AsRef<[u8]> for DeferredFile {
    fn as_ref(&self) -> &[u8] {
        self.generated.get().map_or(&self.outline, |generated| generated)
    }
}

impl Bytes for DeferredFile {}

impl DeferredFile {
    fn outline(layout: &FileLayout) -> io::Result<Self> {
        // An anonymous map is zero and uses memory only for written pages; no swap space is reserved for it.
        let mut outline = MmapOptions::new().len(layout.header.file_bytes).no_reserve_swap().map_anon()?;
        outline[..layout.header.bytes.len()].copy_from_slice(&layout.header.bytes);
        for chunk in layout.chunks() {
            if let Some(values) = layout.vector(&chunk) {
                put(&values, &mut outline[chunk.range]);
            }
        }
        Ok(DeferredFile { outline, generated: OnceLock::new() })
    }
}

/// Everything that determines the bytes of a file.
struct FileLayout {
    header: FileHeader,
    /// The tensors and their formats, in the order of the file.
    tensors: Vec<(Tensor, Format)>,
}

/// A part of a tensor that is generated at once.
struct Chunk {
    tensor: usize,
    /// Its range in the file: a whole vector, or consecutive blocks of a matrix.
    range: Range<usize>,
    seed: u64,
}

impl FileLayout {
    fn new(synthetic: &Synthetic) -> Self {
        let mut file = metadata::describe(synthetic.shape, synthetic.recipe);
        let mut formatted = Vec::new();
        for tensor in tensors(synthetic.shape) {
            let format = synthetic.format(&tensor);
            let row_bytes = format.row_bytes(tensor.columns).expect("recipes choose formats that fit the row");
            let (columns, rows) = (tensor.columns as u64, tensor.rows as u64);
            let dims = match (rows, tensor.experts as u64) {
                (1, 1) => vec![columns],
                (rows, 1) => vec![columns, rows],
                (rows, experts) => vec![columns, rows, experts],
            };
            let bytes = tensor.experts * tensor.rows * row_bytes;
            file = file.space(&tensor.name, &dims, format.ggml_id(), bytes);
            formatted.push((tensor, format));
        }
        FileLayout { header: file.header(), tensors: formatted }
    }

    /// All chunks in the order of the file.
    fn chunks(&self) -> impl Iterator<Item = Chunk> {
        let of_tensor = |(tensor, range): (usize, &Range<usize>)| {
            let (content, format) = (&self.tensors[tensor].0.content, self.tensors[tensor].1);
            let chunk_bytes = match content {
                Content::Weights(_) => CHUNK_BYTES / format.block_bytes() * format.block_bytes(),
                Content::Norm | Content::Bias | Content::Decay | Content::Router | Content::Values(_) => {
                    range.len().max(1)
                }
            };
            let end = range.end;
            range.clone().step_by(chunk_bytes).enumerate().map(move |(index, start)| {
                let seed = SEED ^ ((tensor as u64) << 32 | index as u64);
                Chunk { tensor, range: start..end.min(start + chunk_bytes), seed }
            })
        };
        self.header.ranges.iter().enumerate().flat_map(of_tensor)
    }

    /// The values of a chunk in float32 (a vector or a router); `None` for other chunks.
    fn vector(&self, chunk: &Chunk) -> Option<Vec<f32>> {
        let (tensor, _) = &self.tensors[chunk.tensor];
        // The values differ, so that exchanged vectors change the result.
        let around = |middle: f32, distance: f32| -> Vec<f32> {
            let random = random::activations(tensor.len(), chunk.seed);
            random.into_iter().map(|value| middle + distance * value).collect()
        };
        match &tensor.content {
            Content::Weights(_) => None,
            Content::Norm => Some(around(1.0, 0.1)),
            Content::Bias => Some(around(0.0, *RandomBlocks::MAGNITUDE.end())),
            Content::Decay => Some(around(-1.0, 0.5)),
            Content::Router => Some(router(tensor, around(0.0, 1.0))),
            Content::Values(values) => Some(values.clone()),
        }
    }

    /// Generates a chunk.
    fn fill(&self, chunk: &Chunk, pools: &RandomBlockPools, out: &mut [u8]) {
        match self.vector(chunk) {
            Some(values) => put(&values, out),
            None => pools.of(self.tensors[chunk.tensor].1).fill(chunk.seed, out),
        }
    }

    /// Generates the whole file in zeroed memory.
    fn make(&self, mut bytes: &mut [u8], threads: usize) {
        bytes[..self.header.bytes.len()].copy_from_slice(&self.header.bytes);
        let pools = RandomBlockPools::new(self);
        let mut chunks = Vec::new();
        let mut position = 0;
        for chunk in self.chunks() {
            let (out, rest) = bytes[chunk.range.start - position..].split_at_mut(chunk.range.len());
            position = chunk.range.end;
            bytes = rest;
            chunks.push((chunk, out));
        }
        let next = Mutex::new(chunks.into_iter());
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    while let Some((chunk, out)) = take() {
                        self.fill(&chunk, &pools, out);
                    }
                });
            }
        });
    }

    /// Writes the whole file.
    fn write(&self, out: &mut impl Write, progress: &mut dyn FnMut(WriteProgress)) -> io::Result<()> {
        let total_bytes = self.header.file_bytes as u64;
        let pools = RandomBlockPools::new(self);
        out.write_all(&self.header.bytes)?;
        let mut position = self.header.bytes.len();
        let mut buffer = vec![0; CHUNK_BYTES];
        for chunk in self.chunks() {
            // Tensors are padded with zeros.
            out.write_all(&vec![0; chunk.range.start - position])?;
            position = chunk.range.end;
            buffer.resize(chunk.range.len(), 0);
            self.fill(&chunk, &pools, &mut buffer);
            out.write_all(&buffer)?;
            progress(WriteProgress { done_bytes: position as u64, total_bytes });
        }
        out.write_all(&vec![0; self.header.file_bytes - position])?;
        out.flush()
    }
}

/// Scales the rows of a router, whose values are random between -1 and 1. The rows, and with them the logits, decrease with the
/// expert's rank in its layer. So a few experts get most rows, as in trained models, and the experts of a row still depend on
/// the row.
fn router(tensor: &Tensor, mut values: Vec<f32>) -> Vec<f32> {
    // For inputs near 1 the logits of the first expert have a spread of about 4. They decrease with a power of the rank.
    const LARGEST: f32 = 7.0;
    const POWER: f32 = -0.4;
    let scale = |expert: usize| {
        let rank = (expert + 37 * tensor.layer) % tensor.rows;
        LARGEST * ((1 + rank) as f32).powf(POWER) / (tensor.columns as f32).sqrt()
    };
    for (expert, row) in values.chunks_exact_mut(tensor.columns).enumerate() {
        row.iter_mut().for_each(|value| *value *= scale(expert));
    }
    values
}

/// Random blocks of each format that the model uses.
struct RandomBlockPools(Vec<(Format, RandomBlocks)>);

impl RandomBlockPools {
    fn new(layout: &FileLayout) -> Self {
        let mut pools = RandomBlockPools(Vec::new());
        for (tensor, format) in &layout.tensors {
            let is_new = !pools.0.iter().any(|(other, _)| other == format);
            if is_new && matches!(tensor.content, Content::Weights(_)) {
                pools.0.push((*format, RandomBlocks::new(*format, SEED)));
            }
        }
        pools
    }

    fn of(&self, format: Format) -> &RandomBlocks {
        let pool = self.0.iter().find(|(other, _)| *other == format);
        &pool.expect("every format of a matrix has a pool").1
    }
}

/// Writes float32 values.
fn put(values: &[f32], out: &mut [u8]) {
    for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *out = value.to_le_bytes();
    }
}
