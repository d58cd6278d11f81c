//! Which layers attend within a window only, and in which direction.

use cuelight_shaders::attention::{EachOther, Window};

use super::keys::Keys;
use crate::format::gguf::Value;
use crate::model::arch::{Direction, Family, Generation, MediaRows, Windows};
use crate::model::error::ModelError;

impl Keys<'_> {
    /// Which rows of its sequence a row sees.
    pub(super) fn direction(&self, family: &Family) -> Result<Direction, ModelError> {
        const KEY: &str = "attention.causal";
        let of_family = family.attention.direction;
        let sees_back = self.checkpoint.optional_bool(&self.name(KEY))?.unwrap_or(true);
        if sees_back || of_family == Direction::BothWays || family.generation == Generation::Blocks {
            return Ok(of_family);
        }
        if self.pooling()?.is_none() {
            let expected = "true: a model that sees later tokens generates no text; for embeddings it needs \
                            the key pooling_type, or 1_Pooling/config.json in a directory";
            return Err(self.invalid(KEY, false, expected));
        }
        Ok(Direction::BothWays)
    }

    /// What rows of media see in a layer with this window.
    pub(super) fn each_other(&self, rows: MediaRows, window: Option<Window>) -> Result<EachOther, ModelError> {
        const KEY: &str = "attention.causal_media";
        if rows == MediaRows::SeeEachOther {
            return Ok(EachOther::All);
        }
        let are_causal = match self.checkpoint.optional_bool(&self.name(KEY))? {
            Some(are_causal) => are_causal,
            // GGUF files do not say so. It is so in all models with inputs of single layers, and in no other.
            None => self.per_layer_input()?.is_some(),
        };
        Ok(if are_causal || window.is_none() { EachOther::Before } else { EachOther::FromWindow })
    }

    /// Which layers have a window: the file's pattern where it has one, else the family's.
    pub(super) fn windows(
        &self,
        windows: Windows,
        direction: Direction,
        n_layers: usize,
    ) -> Result<Vec<Option<Window>>, ModelError> {
        if windows == Windows::EncoderOrText {
            return self.encoder_windows(n_layers);
        }
        let stored = self.checkpoint.optional_u32(&self.name("attention.sliding_window"))?;
        let window = match windows {
            Windows::ChunksButEvery { .. } if stored == Some(0) => None,
            Windows::ChunksButEvery { positions, .. } => {
                let stored = self.optional_size("attention.chunk_size")?;
                Some(Window::Chunk(stored.unwrap_or(positions as usize)))
            }
            _ => stored.filter(|window| *window > 0).map(|window| Window::Last(direction.reach(window as usize))),
        };
        let (Some(window), Some((mut global_every, place))) = (window, windows.global_every()) else {
            return Ok(vec![None; n_layers]);
        };
        let pattern = self.name("attention.sliding_window_pattern");
        match self.checkpoint.value(&pattern) {
            Some(Value::Array(_)) => {
                let windowed = self.bool_of_layers("attention.sliding_window_pattern", n_layers)?;
                return Ok(windowed.into_iter().map(|windowed| windowed.then_some(window)).collect());
            }
            Some(_) => global_every = self.checkpoint.u32(&pattern)? as usize,
            None => {}
        }
        let is_global = |layer: usize| global_every > 0 && layer % global_every == place.min(global_every - 1);
        Ok((0..n_layers).map(|layer| (!is_global(layer)).then_some(window)).collect())
    }

    /// The rows of the encoder in layers of cross-attention, those after them in the others.
    fn encoder_windows(&self, n_layers: usize) -> Result<Vec<Option<Window>>, ModelError> {
        let rows = self.size("attention.encoder_rows")?;
        let are_cross = self.bool_of_layers("attention.cross_attention", n_layers)?;
        let window = |is_cross| if is_cross { Window::Before(rows) } else { Window::From(rows) };
        Ok(are_cross.into_iter().map(|is_cross| Some(window(is_cross))).collect())
    }
}

impl Direction {
    /// How many positions up to its own a row sees in a window of this many positions.
    fn reach(self, window: usize) -> usize {
        match self {
            Direction::Back => window,
            Direction::BothWays => window / 2 + 1,
        }
    }
}

impl Windows {
    /// Every how many layers one has full attention, 0 when none has, and which of them: the first or the last. `None` when the
    /// family has no windows.
    fn global_every(self) -> Option<(usize, usize)> {
        const LAST: usize = usize::MAX;
        match self {
            Windows::Never | Windows::EncoderOrText => None,
            Windows::EveryLayer => Some((0, LAST)),
            Windows::AllButEvery(layers) | Windows::ChunksButEvery { layers, .. } => Some((layers, LAST)),
            Windows::AllButFirstOf(layers) => Some((layers, 0)),
        }
    }
}
