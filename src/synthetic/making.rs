//! The bytes of a model: looked at before they are there, made on several threads, or written piece by piece.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cuelight_shaders::pages::Pages;
use cuelight_shaders::quant::Format;
use cuelight_shaders::quant::random::{self, Stock};
use cuelight_shaders::weight::Bytes;
use memmap2::{MmapMut, MmapOptions};

use super::tensors::{Content, Tensor, tensors};
use super::{Synthetic, metadata};
use crate::format::gguf::write::FileHeader;
use crate::format::gguf::{Gguf, GgufError, GgufFault};
use crate::load::LoadProgress;

/// Every model comes from this seed: two files of one description are equal.
const SEED: u64 = 0x5eed;

/// Bytes that a thread makes at once, at most.
const PIECE_BYTES: usize = 1 << 20;

impl Synthetic {
    /// The model as a file whose weights are zero and take no memory until [`Unmade::make`] makes them. Its metadata,
    /// its tokenizer and its vectors are there.
    ///
    /// # Errors
    /// [`GgufError`] when the system cannot give the addresses.
    pub fn outline(&self) -> Result<(Gguf, Unmade), GgufError> {
        let name = self.to_string();
        let recipe = Recipe::new(self);
        let file = LateFile::outline(&recipe)
            .map(Arc::new)
            .map_err(|error| GgufFault::Unreadable(error).in_file(Path::new(&name)))?;
        let gguf = Gguf::from_shared(&name, Arc::<LateFile>::clone(&file))?;
        Ok((gguf, Unmade { file, recipe }))
    }

    /// Writes the model to a file that is not there yet, without holding it in memory. Returns how many bytes it has.
    ///
    /// # Errors
    /// Those of the file. What was written of it is removed.
    pub fn write(&self, path: &Path, progress: &mut dyn FnMut(LoadProgress)) -> io::Result<u64> {
        let recipe = Recipe::new(self);
        let file = File::create_new(path)?;
        let mut buffered = BufWriter::with_capacity(PIECE_BYTES, &file);
        // The system must not be at its disk any more when somebody measures the model.
        let written = recipe.write(&mut buffered, progress).and_then(|()| file.sync_all());
        if written.is_err() {
            // The first error counts.
            let _ = std::fs::remove_file(path);
        }
        written.map(|()| recipe.header.file_bytes as u64)
    }
}

/// The weights of a model that was only looked at so far.
pub struct Unmade {
    file: Arc<LateFile>,
    recipe: Recipe,
}

impl Unmade {
    /// Makes the weights, on so many threads: from now on every holder of the model sees them.
    pub fn make(self, threads: usize) {
        let mut bytes = Pages::zeroed_large(self.recipe.header.file_bytes);
        self.recipe.make(&mut bytes, threads);
        // Nobody else makes them: there is one `Unmade` of each file.
        let _ = self.file.made.set(bytes);
    }
}

/// A file in memory whose large parts are made when somebody has looked at the small ones.
struct LateFile {
    /// As long as the file, but memory is taken for the metadata and vectors alone.
    outline: MmapMut,
    made: OnceLock<Pages<u8>>,
}

impl AsRef<[u8]> for LateFile {
    fn as_ref(&self) -> &[u8] {
        self.made.get().map_or(&self.outline, |made| made)
    }
}

impl Bytes for LateFile {}

impl LateFile {
    fn outline(recipe: &Recipe) -> io::Result<Self> {
        // A map is zero and takes memory page by page, where it is written; this one asks for no more in advance.
        let mut outline = MmapOptions::new().len(recipe.header.file_bytes).no_reserve_swap().map_anon()?;
        outline[..recipe.header.bytes.len()].copy_from_slice(&recipe.header.bytes);
        for piece in recipe.pieces() {
            if let Some(values) = recipe.vector(&piece) {
                put(&values, &mut outline[piece.place]);
            }
        }
        Ok(LateFile { outline, made: OnceLock::new() })
    }
}

/// Everything that decides the bytes of a file.
struct Recipe {
    header: FileHeader,
    /// In the order of the header's places.
    tensors: Vec<(Tensor, Format)>,
}

/// A part of a tensor that is made at once.
struct Piece {
    tensor: usize,
    /// Its place in the file: a whole vector, or a run of a matrix's blocks.
    place: Range<usize>,
    seed: u64,
}

impl Recipe {
    fn new(synthetic: &Synthetic) -> Self {
        let mut file = metadata::describe(synthetic);
        let mut formatted = Vec::new();
        for tensor in tensors(synthetic.shape) {
            let format = synthetic.mixture.format(&tensor, synthetic.shape);
            let row_bytes = format.row_bytes(tensor.columns).expect("mixtures choose formats that fit the row");
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
        Recipe { header: file.header(), tensors: formatted }
    }

    /// All pieces in the order of the file.
    fn pieces(&self) -> impl Iterator<Item = Piece> {
        let of_tensor = |(tensor, place): (usize, &Range<usize>)| {
            let (content, format) = (&self.tensors[tensor].0.content, self.tensors[tensor].1);
            let piece_bytes = match content {
                Content::Weights(_) => PIECE_BYTES / format.block_bytes() * format.block_bytes(),
                Content::Norm | Content::Bias | Content::Router | Content::Values(_) => place.len().max(1),
            };
            let end = place.end;
            place.clone().step_by(piece_bytes).enumerate().map(move |(index, start)| {
                let seed = SEED ^ ((tensor as u64) << 32 | index as u64);
                Piece { tensor, place: start..end.min(start + piece_bytes), seed }
            })
        };
        self.header.places.iter().enumerate().flat_map(of_tensor)
    }

    /// The values of a piece that is in float32: a vector, or a router.
    fn vector(&self, piece: &Piece) -> Option<Vec<f32>> {
        let (tensor, _) = &self.tensors[piece.tensor];
        // Different values, so that a mix-up of two vectors would show.
        let around = |middle: f32, distance: f32| -> Vec<f32> {
            let random = random::activations(tensor.len(), piece.seed);
            random.into_iter().map(|value| middle + distance * value).collect()
        };
        match &tensor.content {
            Content::Weights(_) => None,
            Content::Norm => Some(around(1.0, 0.1)),
            Content::Bias => Some(around(0.0, *Stock::MAGNITUDE.end())),
            Content::Router => Some(router(tensor, around(0.0, 1.0))),
            Content::Values(values) => Some(values.clone()),
        }
    }

    /// Makes a piece.
    fn fill(&self, piece: &Piece, stocks: &Stocks, out: &mut [u8]) {
        match self.vector(piece) {
            Some(values) => put(&values, out),
            None => stocks.of(self.tensors[piece.tensor].1).fill(piece.seed, out),
        }
    }

    /// Makes the whole file in memory that is zero.
    fn make(&self, mut bytes: &mut [u8], threads: usize) {
        bytes[..self.header.bytes.len()].copy_from_slice(&self.header.bytes);
        let stocks = Stocks::new(self);
        let mut pieces = Vec::new();
        let mut position = 0;
        for piece in self.pieces() {
            let (out, rest) = bytes[piece.place.start - position..].split_at_mut(piece.place.len());
            position = piece.place.end;
            bytes = rest;
            pieces.push((piece, out));
        }
        let next = Mutex::new(pieces.into_iter());
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    while let Some((piece, out)) = take() {
                        self.fill(&piece, &stocks, out);
                    }
                });
            }
        });
    }

    /// Writes the whole file.
    fn write(&self, out: &mut impl Write, progress: &mut dyn FnMut(LoadProgress)) -> io::Result<()> {
        let total_bytes = self.header.file_bytes as u64;
        let stocks = Stocks::new(self);
        out.write_all(&self.header.bytes)?;
        let mut position = self.header.bytes.len();
        let mut buffer = vec![0; PIECE_BYTES];
        for piece in self.pieces() {
            // Between tensors there are a few zeros.
            out.write_all(&vec![0; piece.place.start - position])?;
            position = piece.place.end;
            buffer.resize(piece.place.len(), 0);
            self.fill(&piece, &stocks, &mut buffer);
            out.write_all(&buffer)?;
            progress(LoadProgress { done_bytes: position as u64, total_bytes });
        }
        out.flush()
    }
}

/// A router's rows, of random values between -1 and 1: the further down an expert stands in its layer's order, the smaller
/// its row, and with it its logits. So a few experts get most rows, as in trained models, and which of them a row gets
/// depends on the row.
fn router(tensor: &Tensor, mut values: Vec<f32>) -> Vec<f32> {
    // Logits of the first expert spread by about 4 where the input's values are near 1, and fall with the power of the rank.
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

/// Random blocks of every format that a model has.
struct Stocks(Vec<(Format, Stock)>);

impl Stocks {
    fn new(recipe: &Recipe) -> Self {
        let mut stocks = Stocks(Vec::new());
        for (tensor, format) in &recipe.tensors {
            let is_new = !stocks.0.iter().any(|(other, _)| other == format);
            if is_new && matches!(tensor.content, Content::Weights(_)) {
                stocks.0.push((*format, Stock::new(*format, SEED)));
            }
        }
        stocks
    }

    fn of(&self, format: Format) -> &Stock {
        let stock = self.0.iter().find(|(other, _)| *other == format);
        &stock.expect("each format of a matrix was put in stock").1
    }
}

/// Writes float32 values.
fn put(values: &[f32], out: &mut [u8]) {
    for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *out = value.to_le_bytes();
    }
}
