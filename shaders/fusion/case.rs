//! The case of a pair of ops.

use super::pair::{FusesWith, pair};
use crate::cases::{Case, CaseCache, CaseStep};
use crate::op::Op;

/// Two ops, and the expected results of both together.
#[derive(Debug)]
pub struct FusedCase {
    /// The first.
    pub first: Box<dyn Op>,
    /// The second.
    pub second: Box<dyn Op>,
    /// The case of the two as one op.
    pub case: Case,
}

impl FusedCase {
    /// The case of a pair.
    ///
    /// # Panics
    /// When the two do not fuse.
    pub(crate) fn new<First, Second>(
        name: &str,
        first: First,
        second: Second,
        cache: Option<CaseCache>,
        steps: Vec<CaseStep>,
    ) -> Self
    where
        First: FusesWith<Second> + Clone,
        Second: Op + Clone,
    {
        let op = pair::<First, Second>(&first, &second).expect("a pair of the table fuses").op;
        let case = Case { name: name.to_owned(), op, cache, steps };
        FusedCase { first: Box::new(first), second: Box::new(second), case }
    }
}
