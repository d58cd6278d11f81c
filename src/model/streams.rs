//! Several residual streams, of which a layer reads a combination and updates all.
//!
//! Between layers the graph has one value with all streams of a row, one after the other: [rows, streams * hidden_size]. Reading
//! and writing are linear combinations with coefficients of each row
//! ([`MixStreams`]). A model with one stream needs none. Earlier residuals, where they are kept, are one more value.
//!
//! - `alternating`: a whole layer reads and writes the streams
//! - `hyper`: each half of a layer does
//! - `independent`: the same, but streams are not mixed
//! - `gated`: each half of a layer does, by gates for each value
//! - `kept`: each half of a layer reads one stream and earlier residuals

mod alternating;
mod gated;
mod hyper;
mod independent;
mod kept;

use cuelight_shaders::add::Add;
use cuelight_shaders::mix_streams::MixStreams;

use super::builder::{BuildError, Builder};
use super::layer::{StreamConnections, StreamSizes};
use crate::graph::ValueId;

/// What a layer, or a half of one, reads of the residual.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    /// The residual that is updated: of a whole layer, of several streams the predicted ones.
    residual: ValueId,
    /// The input, [rows, hidden_size].
    pub input: ValueId,
    /// How the output of a half of a layer joins it.
    update: Update,
}

/// How the output of a half of a layer joins the residual.
#[derive(Clone, Copy)]
enum Update {
    /// It is added.
    Added,
    /// The streams and the output are mixed by these coefficients.
    Mixed(ValueId),
    /// The residual restarts from it.
    Restart,
}

impl Reading {
    /// The only stream.
    fn of_one(x: ValueId) -> Self {
        Reading { residual: x, input: x, update: Update::Added }
    }
}

/// A half of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    /// The mixer.
    Mixer,
    /// The feed-forward.
    FeedForward,
}

impl Half {
    /// How the names of the tensors start with which it reads and writes several streams.
    fn stem(self) -> &'static str {
        match self {
            Half::Mixer => "hc_attn",
            Half::FeedForward => "hc_ffn",
        }
    }

    /// The tensor with which it reads earlier residuals.
    fn scores(self) -> &'static str {
        match self {
            Half::Mixer => "attn_res_score.weight",
            Half::FeedForward => "ffn_res_score.weight",
        }
    }
}

/// The residual of the first layer from the embedding `x`.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub(super) fn split(builder: &mut Builder<'_>, x: ValueId) -> Result<ValueId, BuildError> {
    match builder.h.streams {
        Some(StreamSizes { count, connections: StreamConnections::Alternating { .. } }) => {
            alternating::split(builder, count, x)
        }
        Some(StreamSizes { connections: StreamConnections::Kept { .. }, .. }) | None => Ok(x),
        // Copies of it.
        Some(StreamSizes { count, .. }) => {
            Ok(builder.graph.push_one(MixStreams::new(1, vec![1.0; count].into())?, &[x])?)
        }
    }
}

/// What a layer reads.
///
/// # Errors
/// As [`split`].
pub(super) fn read(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<Reading, BuildError> {
    match builder.h.streams {
        Some(StreamSizes { count, connections: StreamConnections::Alternating { active } }) => {
            let [residual, input] = alternating::read(builder, layer, (count, active), x)?;
            Ok(Reading { residual, input, update: Update::Added })
        }
        _ => Ok(Reading::of_one(x)),
    }
}

/// The residual after a layer whose output is `output`.
///
/// # Errors
/// As [`split`].
pub(super) fn write(
    builder: &mut Builder<'_>,
    layer: usize,
    reading: Reading,
    output: ValueId,
) -> Result<ValueId, BuildError> {
    match builder.h.streams {
        Some(StreamSizes { count, connections: StreamConnections::Alternating { .. } }) => {
            alternating::write(builder, layer, count, [reading.residual, reading.input, output])
        }
        _ => Ok(output),
    }
}

/// What a half of a layer reads.
///
/// # Errors
/// As [`split`].
pub(super) fn read_half(
    builder: &mut Builder<'_>,
    layer: usize,
    half: Half,
    x: ValueId,
) -> Result<Reading, BuildError> {
    match builder.h.streams {
        Some(StreamSizes { count, connections: StreamConnections::Hyper(sizes) }) => {
            let [input, update] = hyper::read(builder, layer, (count, sizes, half.stem()), x)?;
            Ok(Reading { residual: x, input, update: Update::Mixed(update) })
        }
        Some(StreamSizes { count, connections: StreamConnections::Independent { magnitude, epsilon } }) => {
            let [input, update] = independent::read(builder, layer, (count, magnitude, epsilon, half.stem()), x)?;
            Ok(Reading { residual: x, input, update: Update::Mixed(update) })
        }
        Some(StreamSizes { count, connections: StreamConnections::Gated { low_rank } }) => {
            let [input, update] = gated::read(builder, layer, (count, low_rank, half.stem()), x)?;
            Ok(Reading { residual: x, input, update: Update::Mixed(update) })
        }
        Some(StreamSizes { connections: StreamConnections::Kept { every }, .. }) => {
            let input = kept::read(builder, &format!("blk.{layer}.{}", half.scores()), x)?;
            if half == Half::FeedForward || !layer.is_multiple_of(every) {
                return Ok(Reading { residual: x, input, update: Update::Added });
            }
            kept::keep(builder, x)?;
            Ok(Reading { residual: x, input, update: Update::Restart })
        }
        _ => Ok(Reading::of_one(x)),
    }
}

/// The residual after a half of a layer whose output is `output`.
///
/// # Errors
/// As [`split`].
pub(super) fn add_half(builder: &mut Builder<'_>, reading: Reading, output: ValueId) -> Result<ValueId, BuildError> {
    match (builder.h.streams, reading.update) {
        (Some(StreamSizes { count, connections: StreamConnections::Hyper(_) }), Update::Mixed(update)) => {
            hyper::write(builder, count, [reading.residual, update, output])
        }
        (Some(StreamSizes { count, .. }), Update::Mixed(update)) => {
            gated::write(builder, count, [reading.residual, update, output])
        }
        (_, Update::Restart) => Ok(output),
        _ => Ok(builder.graph.push_one(Add, &[reading.residual, output])?),
    }
}

/// The stream that a layer's own input is gated by: the residual, or the active stream, scaled.
///
/// # Errors
/// As [`split`].
pub(super) fn active(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, BuildError> {
    match builder.h.streams {
        Some(StreamSizes { connections: StreamConnections::Alternating { active }, .. }) => {
            alternating::active(builder, layer, active, x)
        }
        _ => Ok(x),
    }
}

/// The residual `x` plus `y`, [rows, hidden_size], in all streams but the first.
///
/// # Errors
/// As [`split`].
pub(super) fn add_to_others(builder: &mut Builder<'_>, [x, y]: [ValueId; 2]) -> Result<ValueId, BuildError> {
    let added = match builder.h.streams {
        Some(StreamSizes { count, .. }) => {
            let spread = (0..count).map(|stream| f32::from(u8::from(stream > 0))).collect();
            builder.graph.push_one(MixStreams::new(1, spread)?, &[y])?
        }
        None => y,
    };
    Ok(builder.graph.push_one(Add, &[x, added])?)
}

/// One stream of the residual of the last layer, or its mean with earlier residuals.
///
/// # Errors
/// As [`split`].
pub(super) fn merge(builder: &mut Builder<'_>, x: ValueId) -> Result<ValueId, BuildError> {
    match builder.h.streams {
        Some(StreamSizes { count, connections: StreamConnections::Alternating { .. } }) => {
            alternating::merge(builder, count, x)
        }
        Some(StreamSizes { count, connections: StreamConnections::Hyper(sizes) }) => {
            hyper::merge(builder, (count, sizes.epsilon), x)
        }
        Some(StreamSizes { count, connections: StreamConnections::Independent { epsilon, .. } }) => {
            hyper::merge(builder, (count, epsilon), x)
        }
        Some(StreamSizes { count, connections: StreamConnections::Gated { low_rank } }) => {
            gated::merge(builder, (count, low_rank), x)
        }
        Some(StreamSizes { connections: StreamConnections::Kept { .. }, .. }) => {
            kept::read(builder, "output_res_score.weight", x)
        }
        None => Ok(x),
    }
}

/// Whether [`merge`] is also the last norm.
pub(super) fn merge_norms(builder: &Builder<'_>) -> bool {
    matches!(builder.h.streams, Some(StreamSizes { connections: StreamConnections::Gated { .. }, .. }))
}

/// Each stream of `x`, normed, times its own weights in `tensor`.
///
/// # Errors
/// As [`split`].
pub(super) fn norm(builder: &mut Builder<'_>, tensor: &str, x: ValueId) -> Result<ValueId, BuildError> {
    gated::norm(builder, tensor, x)
}
