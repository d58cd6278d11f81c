//! The dispatches of the changes of adapters to experts.

use super::Experts;
use crate::gpu::{Dispatch, GpuArgs, Module, Push, Region, word};
use crate::lora::target::Target;

/// Rows of A of a workgroup, as in `lora/shrink.glsl`.
const TILE: usize = 4;

/// More invocations than this would only wait for each other.
const MOST_INVOCATIONS: u32 = 256;

/// What the dispatches of some rows of a step have in common.
pub(super) struct Adapted<'a> {
    pub experts: &'a Experts,
    pub args: &'a GpuArgs<'a>,
    /// The first row, and the number of rows.
    pub rows: [usize; 2],
    pub routes: Region,
    /// The constants of `routes.glsl`.
    pub route_constants: [(u32, u32); 3],
}

/// What a matrix multiplies.
#[derive(Clone, Copy)]
pub(super) struct RoutedInput {
    pub values: Region,
    /// Whether it has a row for each route.
    pub of_routes: bool,
    /// Whether it is multiplied by the weights of routes.
    pub weighted: bool,
}

impl Adapted<'_> {
    /// Adds the changes of a matrix to its products `y`, [routes, outputs]. `h` is scratch memory, [routes, max_rank].
    pub fn change(&self, target: &Target, x: RoutedInput, [y, h]: [Region; 2]) -> [Dispatch; 2] {
        [self.shrink(target, x, h), self.expand(target, y, h)]
    }

    fn shrink(&self, target: &Target, x: RoutedInput, h: Region) -> Dispatch {
        let lanes = self.args.workgroup_size_for(target.columns).min(MOST_INVOCATIONS);
        let constants = [(0, lanes), (25, u32::from(x.of_routes)), (26, u32::from(x.weighted))];
        Dispatch {
            module: Module::ExpertsShrink,
            constants: constants.into_iter().chain(self.route_constants).collect(),
            push: self.push(target, [x.values, h]),
            groups: [target.max_rank.div_ceil(TILE), self.n_routes(), 1].map(word),
            reads: vec![x.values, self.routes],
            writes: vec![h],
        }
    }

    fn expand(&self, target: &Target, y: Region, h: Region) -> Dispatch {
        Dispatch {
            module: Module::ExpertsExpand,
            push: self.push(target, [y, h]).size(target.outputs),
            reads: vec![y, h, self.routes],
            ..self.each_column(y, target.outputs)
        }
    }

    /// Applies the activation to the products of gate, or of up where there is no gate, [routes, intermediate_size].
    pub fn activate(&self, variant: u32, [hidden, up]: [Region; 2]) -> Dispatch {
        let width = self.experts.intermediate_size();
        let is_gated = self.experts.gate.is_some();
        // Without a gate the second address is not used.
        let second = if is_gated { up } else { hidden };
        let push = Push::new().address(hidden.address).address(second.address).address(self.args.step);
        let mut dispatch = self.each_column(hidden, width);
        dispatch.constants.extend([(27, variant), (37, u32::from(is_gated))]);
        let reads = vec![hidden, second];
        Dispatch { module: Module::ExpertsActivate, push: self.rows_of(push).size(width), reads, ..dispatch }
    }

    /// A dispatch with an invocation for each of `width` values of each route. The caller completes it.
    fn each_column(&self, writes: Region, width: usize) -> Dispatch {
        let lanes = self.args.workgroup_size();
        Dispatch {
            module: Module::ExpertsExpand,
            constants: [(0, lanes)].into_iter().chain(self.route_constants).collect(),
            push: Push::new(),
            groups: [word(width).div_ceil(lanes), word(self.n_routes()), 1],
            reads: Vec::new(),
            writes: vec![writes],
        }
    }

    fn n_routes(&self) -> usize {
        self.rows[1] * self.experts.top_k
    }

    fn push(&self, target: &Target, [values, h]: [Region; 2]) -> Push {
        let push = Push::new()
            .address(self.args.adapters.of(target).address)
            .address(values.address)
            .address(h.address)
            .address(self.routes.address)
            .address(self.args.step);
        let bytes = [target.slot_bytes(), target.change_bytes()].map(|bytes| bytes as usize);
        let push = self.rows_of(push).size(bytes[0]).size(bytes[1]);
        push.size(target.columns).size(target.max_rank)
    }

    fn rows_of(&self, push: Push) -> Push {
        push.word(self.args.rows.kind()).size(self.rows[0]).size(self.rows[1])
    }
}
