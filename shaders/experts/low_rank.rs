//! The changes of adapters to experts, on the CPU.

use super::grouping::Grouping;
use crate::cpu::{Kernel, SharedMut, Team};
use crate::lora::adapter::AdapterUse;
use crate::lora::division::{ChangedRow, Division};
use crate::lora::products::{Outputs, expand_all, shrink_all};

/// The numbers of the matrices of a layer's experts among the projections that adapters change: those of the gates if there are
/// some, then those of up and of down, each of all experts in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertTargets {
    /// The number of the first expert's first matrix.
    pub first: usize,
    /// The largest rank of a change.
    pub max_rank: usize,
}

/// The changes of the pairs of a chunk.
pub(super) struct Changes<'a> {
    pub kernel: Kernel,
    pub team: &'a dyn Team,
    pub grouping: &'a Grouping,
    pub top_k: usize,
    /// The adapter of each row.
    pub adapters: &'a [Option<&'a AdapterUse>],
    pub max_rank: usize,
}

/// What one of the matrices of all experts multiplies.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    /// The rows of the step.
    Rows(&'a [f32]),
    /// A row for each pair.
    Pairs(&'a [f32]),
}

impl Changes<'_> {
    /// Adds the changes of the matrices whose numbers start with `first` to their products `y`, [pairs, outputs]. `h` is scratch
    /// memory, [pairs, max_rank].
    pub fn add(&self, first: usize, input: Input<'_>, (y, outputs): (&mut [f32], usize), h: &mut [f32]) {
        let (x, is_of_pairs) = match input {
            Input::Rows(x) => (x, false),
            Input::Pairs(x) => (x, true),
        };
        let pairs =
            self.grouping.groups.iter().flat_map(|group| group.pairs.clone().map(move |pair| (pair, group.expert)));
        let changed = pairs.map(|(pair, expert)| {
            let row = self.grouping.routes[pair] / self.top_k;
            let used = self.adapters[row]?;
            let change = used.adapter.change(first + expert)?;
            Some(ChangedRow { used, change, x_row: if is_of_pairs { pair } else { row } })
        });
        let mut division = Division::default();
        division.add(0, changed);
        let on = (self.kernel, self.team);
        shrink_all(on, &division, x, &[SharedMut::new(&mut *h)], self.max_rank);
        let parts = [Outputs { y: None, h, z: SharedMut::new(y), outputs }];
        expand_all(on, &division, &[], &parts, self.max_rank);
    }
}
