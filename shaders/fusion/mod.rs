//! Neighbouring ops as one, where a GPU computes both in fewer passes than one after the other.
//!
//! - `pair`: the trait [`FusesWith`], by which an op says with which next op it fuses and what then runs, and two ops
//!   as one
//! - `case`: the case of a pair
//! - `cases`: the expected results
//! - this file: [`fuse`], the list of all pairs
//!
//! A pair gives the same bits as its ops one after the other. On the CPU it runs the two ops in order. On a GPU the
//! shader of one op includes the computation of the other.
//!
//! | pair | dispatches of a decode step, apart and fused |
//! |---|---|
//! | [`Add`], [`RmsNorm`]: the residual stream and its norm | 2, 1 |
//! | [`Linear`] of two weights, [`Glu`]: the first half of a feed-forward | 3, 1 |
//! | [`Rope`], [`Attention`]: queries and keys are rotated while they are stored | 3 and those of the attention, 1 and those |

mod case;
mod cases;
mod pair;

use crate::add::Add;
use crate::attention::Attention;
use crate::glu::Glu;
use crate::matmul::Linear;
use crate::op::Op;
use crate::rms_norm::RmsNorm;
use crate::rope::Rope;
use pair::pair;

pub use case::FusedCase;
pub use cases::{cases, fused_cases};
pub use pair::{Fused, FusesWith};

/// Both ops as one, if they are a pair that fuses. The outputs of the first op must be the first inputs of the second.
/// The ops must not be prepared yet.
#[must_use]
pub fn fuse(first: &dyn Op, second: &dyn Op) -> Option<Fused> {
    pair::<Add, RmsNorm>(first, second)
        .or_else(|| pair::<Linear, Glu>(first, second))
        .or_else(|| pair::<Rope, Attention>(first, second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_every_pair_of_the_case_table() {
        for fused in fused_cases() {
            let op = fuse(&*fused.first, &*fused.second).map(|fused| fused.op.name());
            assert_eq!(op, Some(fused.case.op.name()), "{}", fused.case.name);
        }
    }
}
