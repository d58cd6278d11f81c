//! Experts that are left in their file are asked for before they are computed: a layer's own, and those of the next layer.

use super::{Experts, Route};
use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, Team};
use crate::gpu::{Dispatch, GpuArgs};
use crate::matmul::Linear;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::rms_norm::RmsNorm;
use crate::weight::Weight;

/// Asks for the weights of the experts that rows are routed to, and then for those that they will probably be routed to in the
/// next layer with experts, so that these are read while this layer's are computed.
///
/// - Inputs: x [rows, hidden_size], the residual stream before this layer's experts, and the routes to them
///   [rows, 2 top_k]; no output: it changes when weights are read, and never what is computed with them.
/// - The next layer's routes are foreseen by its own norm and router, applied to x: a layer adds little to the residual
///   stream, so that most routes are right. What was not foreseen is asked for when that layer has been routed.
/// - So many rows that they use nearly all experts anyway are not routed: all are asked for.
/// - Cost: that router, and a call of the system for each matrix of an expert.
/// - Source: Eliseev & Mazur 2023, "Fast Inference of Mixture-of-Experts Language Models with Offloading", 3.2.
#[derive(Debug)]
pub struct ReadAhead {
    own: Option<Experts>,
    next: Option<NextLayer>,
}

/// The experts of the next layer, and how it chooses among them.
#[derive(Debug)]
pub struct NextLayer {
    /// Over the residual stream.
    pub norm: RmsNorm,
    /// From what was normed to logits.
    pub router: Linear,
    /// From these to routes.
    pub route: Route,
    /// The experts, left in their file.
    pub experts: Experts,
}

impl ReadAhead {
    /// Asks for experts of this layer, where they are left in their file, and of the next one.
    #[must_use]
    pub fn new(own: Option<Experts>, next: Option<NextLayer>) -> Self {
        ReadAhead { own, next }
    }
}

impl Op for ReadAhead {
    fn name(&self) -> &'static str {
        "read_ahead"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        if let Some(own) = &self.own {
            ShapeError::check(self.name(), "width of the routes", inputs[1], own.routes_width())?;
        }
        if let Some(NextLayer { norm, router, route, experts }) = &self.next {
            let normed = norm.output_widths(&inputs[..1])?;
            let logits = router.output_widths(&normed)?;
            let routes = route.output_widths(&logits)?;
            ShapeError::check(self.name(), "width of the next layer's routes", routes[0], experts.routes_width())?;
        }
        Ok(Vec::new())
    }

    fn weights(&self) -> Vec<&Weight> {
        self.next.iter().flat_map(|next| next.router.weights()).collect()
    }

    fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        if let Some(next) = &mut self.next {
            next.router.prepare_cpu(kernel, team);
        }
    }

    fn replaces(&self, kernel: Kernel, weight: &Weight) -> bool {
        self.next.as_ref().is_some_and(|next| next.router.replaces(kernel, weight))
    }

    fn growth(&self, kernel: Kernel) -> u64 {
        self.next.as_ref().map_or(0, |next| next.router.growth(kernel))
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize, _: usize) -> usize {
        self.next.as_ref().map_or(0, |next| next.scratch_len(kernel, rows))
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let routed = self.next.as_ref().filter(|next| args.rows <= next.most_rows());
        routed.map_or_else(Cost::default, |next| next.router.cost(args))
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        if let Some(own) = &self.own {
            own.ask_for(&own.used_by(args.inputs[1]), args.team);
        }
        if let Some(next) = &self.next {
            let foreseen = next.foresee(args);
            next.experts.ask_for(&foreseen, args.team);
        }
    }

    /// Nothing: experts that are left in a file are the processor's.
    fn dispatches(&self, _: &GpuArgs<'_>) -> Vec<Dispatch> {
        Vec::new()
    }
}

impl NextLayer {
    /// Rows that leave one expert in fifty unused, if each chooses evenly and by itself.
    fn most_rows(&self) -> usize {
        const ROUTES_FOR_EACH_EXPERT: usize = 4;
        ROUTES_FOR_EACH_EXPERT * self.experts.n_experts() / self.experts.top_k()
    }

    /// Values in a row of what is normed, of logits and of routes.
    fn widths(&self) -> [usize; 3] {
        [self.experts.hidden_size(), self.experts.n_experts(), self.experts.routes_width()]
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize) -> usize {
        let rows = rows.min(self.most_rows());
        rows * self.widths().iter().sum::<usize>() + self.router.scratch_len(kernel, rows, 0)
    }

    /// The experts that the rows will probably use, ascending.
    fn foresee(&self, args: &mut CpuArgs<'_>) -> Vec<usize> {
        if args.rows > self.most_rows() {
            return (0..self.experts.n_experts()).collect();
        }
        let [normed, logits, routes] = self.widths().map(|width| args.rows * width);
        let (normed, rest) = args.scratch.split_at_mut(normed);
        let (logits, rest) = rest.split_at_mut(logits);
        let (routes, scratch) = rest.split_at_mut(routes);
        let mut run = |op: &dyn Op, input: &[f32], output: &mut [f32]| {
            op.run_cpu(&mut CpuArgs {
                scratch: &mut *scratch,
                inputs: &[input],
                outputs: &mut [output],
                ..*args
            });
        };
        run(&self.norm, args.inputs[0], normed);
        run(&self.router, normed, logits);
        run(&self.route, logits, routes);
        self.experts.used_by(routes)
    }
}
