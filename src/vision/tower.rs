//! The ops of a vision tower: from patches to rows, one for each patch and one for the class token where there is one.
//!
//! Rows are the patches of one tile, and each sees all of them, or those of its window. The token of a row is its row in the table
//! of positions. Layers that see alike are a segment, which also ends after a layer whose rows leave the tower, and before a convolution
//! over the grid of patches.
//!
//! Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words"; Zhai et al. 2023, "Sigmoid Loss for Language Image
//! Pre-Training".

use std::sync::Arc;

use cuelight_shaders::add::Add;
use cuelight_shaders::embed::Embed;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::layer_norm::LayerNorm;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::op::ShapeError;
use cuelight_shaders::weight::Weight;

use super::family::Family;
use super::grid_convolution::GridConvolution;
use super::place_tables::{AxisTables, Fit, PlaceTable, PositionTable};
use super::positions::Encoding;
use super::sizes::TowerSizes;
use crate::graph::{Graph, ValueId};
use crate::model::builder::BuildError;
use crate::model::weights::Weights;
use crate::tower::blocks::{BlockBuilder, BlockSizes};

/// The tensor of the table of positions.
const TABLE: &str = "v.position_embd.weight";
/// The tensor of the class token.
const CLASS: &str = "v.class_embd";

/// A graph of a vision tower under construction.
pub struct TowerBuilder<'a, 'b> {
    /// Its layers, with the ops so far.
    blocks: BlockBuilder<'a, 'b>,
    sizes: &'a TowerSizes,
    family: &'static Family,
}

/// The sizes of the layers of a tower.
///
/// # Errors
/// [`ShapeError`] when the heads cannot be rotated.
pub fn block_sizes(sizes: &TowerSizes, family: &Family) -> Result<BlockSizes, ShapeError> {
    let TowerSizes { hidden, heads, kv_heads, epsilon, activation, .. } = *sizes;
    let rotation = family.positions.turns().map(|turns| turns.op(hidden / heads)).transpose()?;
    Ok(BlockSizes { hidden, heads, kv_heads, epsilon, activation, rotation, heads_form: family.heads_form })
}

/// Consecutive layers of a tower. The output of one segment is the input of the next.
pub struct Segment {
    /// The ops.
    pub graph: Graph,
    /// How the tower runs them.
    pub kind: SegmentKind,
}

/// How a tower runs a segment.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentKind {
    /// Whether rows see those of their window only.
    pub is_windowed: bool,
    /// Whether its output is also turned into values for a layer of the text model.
    pub is_deep: bool,
    /// The convolution of its output, which becomes the second input of the next segment. The first one is the hidden values.
    pub convolution: Option<GridConvolution>,
}

/// Whether the first row of a tile is that of a class token, which has no patch.
#[must_use]
pub fn has_class_token(weights: &Weights<'_>) -> bool {
    weights.has(CLASS)
}

/// The table that is stretched or resized to tiles, or the tables of both axes for tiles of up to `longest` patches a side, if the family has
/// them.
///
/// # Errors
/// [`BuildError`] when the tensor is missing or has the wrong shape.
pub fn place_table(
    weights: &mut Weights<'_>,
    family: &Family,
    sizes: &TowerSizes,
    longest: usize,
) -> Result<Option<PlaceTable>, BuildError> {
    let TowerSizes { grid: side, hidden, .. } = *sizes;
    match family.positions {
        Encoding::Table | Encoding::Rotation(_) => Ok(None),
        Encoding::Fitted(Fit::Cubic, _) if !weights.has(TABLE) => Ok(None),
        Encoding::Fitted(fit, _) => {
            // A table of another size than the key says is one of as many patches as it has rows.
            let side = weights.rows(TABLE).map_or(side, usize::isqrt);
            let values = weights.flattened(TABLE, side * side, hidden)?.to_f32().into();
            Ok(Some(PlaceTable::Square(PositionTable { values, side }, fit)))
        }
        Encoding::Axes(_) => {
            let places = (weights.rows(TABLE).unwrap_or(0) / 2).max(longest);
            let both = weights.flattened(TABLE, 2 * places, hidden)?;
            let of_axis = |first: usize| both.part(first..first + longest).to_f32().into();
            Ok(Some(PlaceTable::ByAxis(AxisTables { columns_and_rows: [0, places].map(of_axis), width: hidden })))
        }
    }
}

impl<'a, 'b> TowerBuilder<'a, 'b> {
    /// A tower without ops.
    ///
    /// # Errors
    /// As [`block_sizes`].
    pub fn new(
        weights: &'a mut Weights<'b>,
        sizes: &'a TowerSizes,
        family: &'static Family,
    ) -> Result<Self, ShapeError> {
        let blocks = BlockBuilder { weights, graph: Graph::default(), sizes: block_sizes(sizes, family)? };
        Ok(TowerBuilder { blocks, sizes, family })
    }

    /// All segments of the tower, from the patches, [rows, values of a patch], to the rows, [rows, hidden].
    ///
    /// # Errors
    /// [`BuildError`] when a tensor is missing or has the wrong shape.
    pub fn build(mut self) -> Result<Vec<Segment>, BuildError> {
        let (mut segments, layers) = (Vec::new(), self.sizes.layers);
        let mut x = self.embed_patches()?;
        x = self.blocks.optional_norm("v.pre_ln", x)?;
        for layer in 0..layers {
            let stem = format!("v.blk.{layer}");
            x = match self.blocks.weights.has(&format!("{stem}.conv2d_in_proj.weight")) {
                true => self.convolved_layer(layer, x, &mut segments)?,
                false => self.blocks.layer(&stem, x)?,
            };
            let kind = self.kind(layer);
            if layer + 1 < layers && (kind.is_deep || kind.is_windowed != self.kind(layer + 1).is_windowed) {
                segments.push(Segment { graph: std::mem::take(&mut self.blocks.graph), kind });
                x = self.blocks.graph.take(self.sizes.hidden);
            }
        }
        if self.sizes.has_last_layer {
            x = self.blocks.optional_norm("v.post_ln", x)?;
        }
        if let Some((stem, epsilon)) = self.family.norm_before_merging {
            self.blocks.sizes.epsilon = epsilon.unwrap_or(self.sizes.epsilon);
            self.blocks.optional_norm(stem, x)?;
        }
        segments.push(Segment { kind: self.kind(layers.saturating_sub(1)), graph: self.blocks.graph });
        Ok(segments)
    }

    /// How the segment of a layer is run, if it ends with this one.
    fn kind(&self, layer: usize) -> SegmentKind {
        let is_windowed = self.sizes.windows.is_some_and(|windows| !(layer + 1).is_multiple_of(windows.every));
        SegmentKind { is_windowed, is_deep: self.sizes.deep_layers.contains(&layer), convolution: None }
    }

    /// A layer with a gated convolution over the grid of patches instead of attention. A segment ends before the convolution, with its
    /// input and with that of the layer.
    fn convolved_layer(
        &mut self,
        layer: usize,
        x: ValueId,
        segments: &mut Vec<Segment>,
    ) -> Result<ValueId, BuildError> {
        let (stem, hidden) = (format!("v.blk.{layer}"), self.sizes.hidden);
        let matrix = self.blocks.weights.matrix(&format!("{stem}.conv2d_in_proj.weight"), 3 * hidden, hidden)?;
        let part = |index: usize| matrix.part(index * hidden..(index + 1) * hidden);
        let normed = self.blocks.norm(&format!("{stem}.ln1"), x)?;
        let projected = self.blocks.graph.push(Linear::new(vec![part(0), part(2)], vec![None, None])?, &[normed])?;
        self.blocks.graph.push_one(Glu::new(Activation::Bilinear), &projected)?;
        self.blocks.graph.return_hidden(x);
        let convolution =
            Some(GridConvolution::read(self.blocks.weights, &format!("{stem}.conv2d_spatial.weight"), hidden)?);
        let kind = SegmentKind { is_deep: false, convolution, ..self.kind(layer) };
        segments.push(Segment { graph: std::mem::take(&mut self.blocks.graph), kind });
        let [x, convolved] = [(); 2].map(|()| self.blocks.graph.take(hidden));
        let normed = self.blocks.norm(&format!("{stem}.ln1"), x)?;
        let gate = self.blocks.graph.push_one(Linear::new(vec![part(1)], vec![None])?, &[normed])?;
        let gated = self.blocks.graph.push_one(Glu::new(Activation::Bilinear), &[gate, convolved])?;
        let mixed = self.blocks.linear(&[(format!("{stem}.conv2d_out_proj"), hidden)], gated)?[0];
        self.blocks.after_mixer(&stem, x, mixed)
    }

    /// The patches times the kernel of the convolution, plus the embeddings of their positions. Some files have norms between these.
    fn embed_patches(&mut self) -> Result<ValueId, BuildError> {
        let TowerSizes { patches, hidden, .. } = self.sizes;
        let pixels = self.blocks.graph.take(patches.width());
        let positions = match self.family.positions {
            Encoding::Fitted(Fit::Cubic, _) if !self.blocks.weights.has(TABLE) => None,
            Encoding::Fitted(..) | Encoding::Axes(_) => Some(self.blocks.graph.take(*hidden)),
            Encoding::Table | Encoding::Rotation(_) => None,
        };
        let pixels = self.patch_norm(1, pixels)?;
        let kernel = self.patch_kernel()?;
        let bias = self.blocks.weights.optional_vector("v.patch_embd.bias", *hidden)?;
        let x = self.blocks.graph.push_one(Linear::new(vec![kernel], vec![bias.clone()])?, &[pixels])?;
        let x = self.patch_norm(2, x)?;
        let x = self.blocks.optional_norm("v.norm_embd", x)?;
        let x = self.blocks.optional_norm("v.embedding_norm", x)?;
        let positions = match (self.family.positions, positions) {
            (Encoding::Table, _) => {
                let table = self.position_table(bias)?;
                self.blocks.graph.push_one(Embed::new(table, 1.0), &[])?
            }
            (_, Some(positions)) => positions,
            (_, None) => return Ok(x),
        };
        let x = self.blocks.graph.push_one(Add, &[x, positions])?;
        self.patch_norm(3, x)
    }

    /// The norm of patches with this number, if the file has it.
    fn patch_norm(&mut self, number: usize, x: ValueId) -> Result<ValueId, BuildError> {
        const EPSILON: f32 = 1e-5;
        let (stem, width) = (format!("v.patch_norm.{number}"), self.blocks.graph.width(x));
        let weights = &mut *self.blocks.weights;
        let Some(weight) = weights.optional_vector(&format!("{stem}.weight"), width)? else { return Ok(x) };
        let bias = weights.optional_vector(&format!("{stem}.bias"), width)?;
        Ok(self.blocks.graph.push_one(LayerNorm::new(weight, bias, EPSILON)?, &[x])?)
    }

    /// The kernel of patches. Towers for videos have one for each of two frames, which are alike in an image.
    fn patch_kernel(&mut self) -> Result<Weight, BuildError> {
        const KERNELS: [&str; 2] = ["v.patch_embd.weight", "v.patch_embd.weight.1"];
        let (hidden, width) = (self.sizes.hidden, self.sizes.patches.width());
        let first = self.blocks.weights.flattened(KERNELS[0], hidden, width)?;
        if !self.blocks.weights.has(KERNELS[1]) {
            return Ok(first);
        }
        let mut values = first.to_f32();
        let second = self.blocks.weights.flattened(KERNELS[1], hidden, width)?.to_f32();
        values.iter_mut().zip(second).for_each(|(value, second)| *value += second);
        Ok(Weight::from_f32(KERNELS[0], hidden, width, &values))
    }

    /// The embeddings of positions. That of the class token is added to its own, without the bias of patches, as its patch is 0.
    fn position_table(&mut self, bias: Option<Arc<[f32]>>) -> Result<Weight, BuildError> {
        let TowerSizes { grid, hidden, .. } = *self.sizes;
        if !has_class_token(self.blocks.weights) {
            return Ok(self.blocks.weights.flattened(TABLE, grid * grid, hidden)?);
        }
        let table = self.blocks.weights.flattened(TABLE, grid * grid + 1, hidden)?;
        let class = self.blocks.weights.flattened(CLASS, 1, hidden)?.to_f32();
        let mut values = table.to_f32();
        for (index, (value, class)) in values.iter_mut().zip(class).enumerate() {
            *value += class - bias.as_ref().map_or(0.0, |bias| bias[index]);
        }
        Ok(Weight::from_f32(TABLE, table.rows, hidden, &values))
    }
}
