//! The changes of adapters to experts, on the CPU.

use super::grouping::Grouping;
use crate::cpu::{Kernel, SharedMut, Team};
use crate::lora::adapter::AdapterUse;
use crate::lora::division::{ChangedRow, Division};
use crate::lora::products::{Outputs, expand_all, shrink_all};
use crate::lora::target::Target;

/// The changes of the pairs of a chunk.
pub(super) struct Changes<'a> {
    pub kernel: Kernel,
    pub team: &'a dyn Team,
    pub grouping: &'a Grouping,
    pub top_k: usize,
    /// The adapter of each row.
    pub adapters: &'a [Option<&'a AdapterUse>],
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
    /// Adds the changes of a matrix of all experts to its products `y`, [pairs, outputs]. `h` is scratch memory, [pairs, max_rank].
    pub fn add(&self, target: &Target, input: Input<'_>, y: &mut [f32], h: &mut [f32]) {
        let (x, is_of_pairs) = match input {
            Input::Rows(x) => (x, false),
            Input::Pairs(x) => (x, true),
        };
        let pairs =
            self.grouping.groups.iter().flat_map(|group| group.pairs.clone().map(move |pair| (pair, group.expert)));
        let changed = pairs.map(|(pair, expert)| {
            let row = self.grouping.routes[pair] / self.top_k;
            let used = self.adapters[row]?;
            let change = used.adapter.change(target.index + expert)?;
            Some(ChangedRow { used, change, x_row: if is_of_pairs { pair } else { row } })
        });
        let mut division = Division::default();
        division.add(0, changed);
        let on = (self.kernel, self.team);
        shrink_all(on, &division, x, &[SharedMut::new(&mut *h)], target.max_rank);
        let parts = [Outputs { y: None, h, z: SharedMut::new(y), outputs: target.outputs }];
        expand_all(on, &division, &[], &parts, target.max_rank);
    }
}
