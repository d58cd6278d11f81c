//! Starts reading experts from their file before they are computed: those of the current layer and those of the next
//! one.

use std::sync::Arc;

use super::{Experts, Reader, Route};
use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, Team};
use crate::gpu::{Dispatch, GpuArgs};
use crate::matmul::Linear;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::rms_norm::RmsNorm;
use crate::weight::Weight;

/// Starts reading the weights of the experts that the rows are routed to. Then, while these experts are computed, a
/// reader thread reads the experts that the rows will probably use in the next layer with experts, the most likely
/// first.
///
/// - Inputs: x [rows, hidden_size], the residual stream before this layer's experts, and the routes to them
///   [rows, 2 top_k]; no output. The op changes when weights are read, never the results.
/// - The routes of the next layer are predicted by its own norm and router, applied to x. A trained layer adds little
///   to the residual stream, so most predicted routes are right. When that layer has been routed, predicted experts
///   that are not read yet are dropped, and the experts in use are requested.
/// - If there are many rows, the prediction uses a sample of evenly spaced rows.
/// - Cost: the router of the next layer, and one system call for each matrix of an expert.
/// - Source: Eliseev & Mazur 2023, "Fast Inference of Mixture-of-Experts Language Models with Offloading", 3.2.
#[derive(Debug)]
pub struct ReadAhead {
    own: Option<Experts>,
    next: Option<NextLayer>,
    reader: Arc<Reader>,
}

/// The experts of the next layer and its router.
#[derive(Debug)]
pub struct NextLayer {
    /// The norm of the residual stream.
    pub norm: RmsNorm,
    /// From the normalised row to logits.
    pub router: Linear,
    /// From logits to routes.
    pub route: Route,
    /// The experts, left in their file.
    pub experts: Experts,
}

/// The most rows that a prediction uses. Their cost is small compared with reading an expert, and they use most of the
/// experts that a prompt uses.
const MAX_ROWS: usize = 64;

impl ReadAhead {
    /// Requests the experts `own` of this layer, if they are left in their file, and reads those of the next one ahead.
    #[must_use]
    pub fn new(own: Option<Experts>, next: Option<NextLayer>, reader: Arc<Reader>) -> Self {
        ReadAhead { own, next, reader }
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

    fn repacks(&self, kernel: Kernel, weight: &Weight) -> bool {
        self.next.as_ref().is_some_and(|next| next.router.repacks(kernel, weight))
    }

    fn repack_overhead_bytes(&self, kernel: Kernel) -> u64 {
        self.next.as_ref().map_or(0, |next| next.router.repack_overhead_bytes(kernel))
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize, _: usize) -> usize {
        self.next.as_ref().map_or(0, |next| next.scratch_len(kernel, rows))
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let args = CostArgs { rows: args.rows.min(MAX_ROWS), ..*args };
        self.next.as_ref().map_or_else(Cost::default, |next| next.router.cost(&args))
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        // Drop what was predicted for this layer: its routes are known now.
        self.reader.read(Vec::new());
        if let Some(own) = &self.own {
            own.ask_for(&own.used_by(args.inputs[1]), args.team);
        }
        if let Some(next) = &self.next {
            let predicted = next.predict(args);
            self.reader.read(next.experts.weights_of(&predicted));
        }
    }

    /// Empty: experts that are left in their file are computed on the CPU.
    fn dispatches(&self, _: &GpuArgs<'_>) -> Vec<Dispatch> {
        Vec::new()
    }
}

impl NextLayer {
    /// Values in a row of the residual stream, of its norm, of the logits and of the routes.
    fn widths(&self) -> [usize; 4] {
        let hidden_size = self.experts.hidden_size();
        [hidden_size, hidden_size, self.experts.n_experts(), self.experts.routes_width()]
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize) -> usize {
        let rows = rows.min(MAX_ROWS);
        rows * self.widths().iter().sum::<usize>() + self.router.scratch_len(kernel, rows, 0)
    }

    /// The experts that the rows will probably use, the most likely first.
    fn predict(&self, args: &mut CpuArgs<'_>) -> Vec<usize> {
        let rows = args.rows.min(MAX_ROWS);
        let [x, normed, logits, routes] = self.widths().map(|width| rows * width);
        let (x, rest) = args.scratch.split_at_mut(x);
        let (normed, rest) = rest.split_at_mut(normed);
        let (logits, rest) = rest.split_at_mut(logits);
        let (routes, scratch) = rest.split_at_mut(routes);
        let width = self.experts.hidden_size();
        for (row, x) in x.chunks_exact_mut(width).enumerate() {
            x.copy_from_slice(&args.inputs[0][row * args.rows / rows * width..][..width]);
        }
        let mut run = |op: &dyn Op, input: &[f32], output: &mut [f32]| {
            op.run_cpu(&mut CpuArgs {
                rows,
                scratch: &mut *scratch,
                inputs: &[input],
                outputs: &mut [output],
                ..*args
            });
        };
        run(&self.norm, x, normed);
        run(&self.router, normed, logits);
        run(&self.route, logits, routes);
        self.by_likelihood(routes)
    }

    /// The experts of some routes, sorted by the sum of their weights over all rows, largest first.
    fn by_likelihood(&self, routes: &[f32]) -> Vec<usize> {
        let mut totals = vec![0.0; self.experts.n_experts()];
        for row in routes.chunks_exact(self.experts.routes_width()) {
            let (experts, weights) = row.split_at(self.experts.top_k());
            experts.iter().zip(weights).for_each(|(expert, weight)| totals[*expert as usize] += weight);
        }
        let mut experts = self.experts.used_by(routes);
        experts.sort_by(|a, b| totals[*b].total_cmp(&totals[*a]));
        experts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experts::{ExpertMatrix, RouteWeighting, Scoring};
    use crate::glu::Activation;
    use crate::quant::{Format, random};
    use crate::testing::{run, supported_kernels};
    use crate::weight::{Bytes, SharedBytes};
    use std::ops::Range;
    use std::sync::Mutex;

    const HIDDEN: usize = 32;
    const EXPERTS: usize = 8;

    /// Bytes that record the index of each prefetched expert.
    struct Recording(Vec<u8>, Arc<Mutex<Vec<usize>>>);

    impl AsRef<[u8]> for Recording {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Bytes for Recording {
        fn prefetch(&self, range: Range<usize>) {
            self.1.lock().unwrap().push(range.start / range.len());
        }
    }

    /// Eight experts in a file, of which rows use two, and the experts requested so far, three times each.
    fn experts_in_file() -> (Experts, Arc<Mutex<Vec<usize>>>) {
        let requested = Arc::new(Mutex::new(Vec::new()));
        let matrix = |name: &str, seed| {
            let weight = random::weight(name, Format::F32, EXPERTS * HIDDEN, HIDDEN, seed);
            let owner: Arc<dyn Bytes> = Arc::new(Recording(weight.bytes().to_vec(), Arc::clone(&requested)));
            let bytes = SharedBytes::new(owner, 0..weight.bytes().len()).unwrap();
            let weight = Weight::new(name, Format::F32, EXPERTS * HIDDEN, HIDDEN, bytes).unwrap();
            ExpertMatrix::new(weight, EXPERTS, None).unwrap()
        };
        let matrices = [matrix("gate", 1), matrix("up", 2), matrix("down", 3)];
        let mut experts = Experts::new(matrices, Activation::Silu, RouteWeighting::Output, 2).unwrap();
        experts.leave_in_file();
        (experts, requested)
    }

    fn next_layer(experts: Experts) -> NextLayer {
        let router = random::weight("router", Format::F32, EXPERTS, HIDDEN, 4);
        NextLayer {
            norm: RmsNorm::new(vec![1.0; HIDDEN].into(), 1e-5),
            router: Linear::new(vec![router], vec![None]).unwrap(),
            route: Route::new(Scoring::Softmax, EXPERTS, 2).unwrap(),
            experts,
        }
    }

    /// Waits for the requests of `matrices` matrices; returns their experts, sorted and without duplicates.
    fn requested(of: &Mutex<Vec<usize>>, matrices: usize) -> Vec<usize> {
        let began = std::time::Instant::now();
        while of.lock().unwrap().len() < matrices && began.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
        let mut requested = of.lock().unwrap().clone();
        assert_eq!(requested.len(), matrices, "{requested:?}");
        requested.sort_unstable();
        requested.dedup();
        requested
    }

    #[test]
    fn own_experts_are_requested_and_predicted_ones_of_the_next_layer_are_read() {
        for kernel in supported_kernels() {
            let ((own, of_own), (next, of_next)) = (experts_in_file(), experts_in_file());
            let mut next = next_layer(next);
            next.router.prepare_cpu(kernel, &crate::cpu::Solo);
            let x = random::activations(HIDDEN, 5);
            let run_one = |op: &dyn Op, input: &[f32]| run(op, kernel, 1, &[(input, input.len())]).remove(0);
            let routes = run_one(&next.route, &run_one(&next.router, &run_one(&next.norm, &x)));
            let mut expected = next.experts.used_by(&routes);
            expected.sort_unstable();
            let op = ReadAhead::new(Some(own), Some(next), Arc::new(Reader::start().unwrap()));
            let outputs = run(&op, kernel, 1, &[(&x, HIDDEN), (&[6.0, 3.0, 0.7, 0.3], 4)]);
            assert!(outputs.is_empty());
            assert_eq!(requested(&of_own, 2 * 3), [3, 6]);
            assert_eq!(requested(&of_next, 2 * 3), expected, "{kernel}");
        }
    }

    #[test]
    fn the_most_likely_expert_has_the_largest_total_weight() {
        let (experts, _) = experts_in_file();
        let routes = [[1.0, 5.0, 0.6, 0.4], [5.0, 2.0, 0.5, 0.5], [5.0, 1.0, 0.7, 0.3]].concat();
        assert_eq!(next_layer(experts).by_likelihood(&routes), [5, 1, 2]);
    }

    #[test]
    fn only_a_sample_of_many_rows_is_used() {
        let (experts, of_next) = experts_in_file();
        let rows = 5 * MAX_ROWS + 1;
        let x = random::activations(rows * HIDDEN, 6);
        let op = ReadAhead::new(None, Some(next_layer(experts)), Arc::new(Reader::start().unwrap()));
        run(&op, Kernel::Scalar, rows, &[(&x, HIDDEN), (&vec![0.0; rows * 4], 4)]);
        assert_eq!(requested(&of_next, EXPERTS * 3), (0..EXPERTS).collect::<Vec<_>>());
    }

    #[test]
    fn a_router_that_does_not_match_the_experts_is_refused() {
        let (experts, _) = experts_in_file();
        let route = Route::new(Scoring::Softmax, EXPERTS, 3).unwrap();
        let next = NextLayer { route, ..next_layer(experts) };
        let op = ReadAhead::new(None, Some(next), Arc::new(Reader::start().unwrap()));
        let error = op.output_widths(&[HIDDEN, 4]).unwrap_err().to_string();
        assert_eq!(error, "read_ahead: width of the next layer's routes is 6, but must be 4");
    }
}
