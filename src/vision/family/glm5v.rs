//! GLM 5.3 Flash: the tower of GLM 4.1V with norms of queries and keys, limits in gated feed-forwards, and no table of positions. An
//! image keeps its size in a tile with borders. The model does not rotate its rows.
//!
//! Source: transformers' `Glm5NextVisionModel` and its image processor.

use super::spec::Family;
use super::{glm4v, llava};
use crate::vision::division::Division;
use crate::vision::positions::{Encoding, Turns};

pub(super) const FAMILY: Family = Family {
    projector: "glm5v",
    positions: Encoding::Rotation(Turns::Alike),
    division: |keys| Division::bordered(keys, [16, 8000]),
    parts: llava::parts,
    ..glm4v::FAMILY
};
