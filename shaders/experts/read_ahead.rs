//! Experts that are left in their file are asked for before they are computed: a layer's own, and those of the next layer.

use std::sync::Arc;

use super::{Experts, Reader, Route};
use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, Team};
use crate::gpu::{Dispatch, GpuArgs};
use crate::matmul::Linear;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::rms_norm::RmsNorm;
use crate::weight::Weight;

/// Asks for the weights of the experts that rows are routed to, and then has those read to which they will probably be routed
/// in the next layer with experts, likeliest first, while this layer's are computed.
///
/// - Inputs: x [rows, hidden_size], the residual stream before this layer's experts, and the routes to them
///   [rows, 2 top_k]; no output: it changes when weights are read, and never what is computed with them.
/// - The next layer's routes are foreseen by its own norm and router, applied to x: a trained layer adds little to the
///   residual stream, so that most routes are right. When that layer has been routed, what was foreseen and not read
///   yet is left, and what it really uses is asked for.
/// - Of many rows only some are looked at, evenly spaced.
/// - Cost: that router, and a call of the system for each matrix of an expert.
/// - Source: Eliseev & Mazur 2023, "Fast Inference of Mixture-of-Experts Language Models with Offloading", 3.2.
#[derive(Debug)]
pub struct ReadAhead {
    own: Option<Experts>,
    next: Option<NextLayer>,
    reader: Arc<Reader>,
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

/// So many rows are looked at: they cost little beside what reading an expert takes, and use most of what a prompt uses.
const MAX_ROWS: usize = 64;

impl ReadAhead {
    /// Asks for experts of this layer, where they are left in their file, and has those of the next one read.
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
        let args = CostArgs { rows: args.rows.min(MAX_ROWS), ..*args };
        self.next.as_ref().map_or_else(Cost::default, |next| next.router.cost(&args))
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        // What was foreseen for this layer gives way to what it uses.
        self.reader.read(Vec::new());
        if let Some(own) = &self.own {
            own.ask_for(&own.used_by(args.inputs[1]), args.team);
        }
        if let Some(next) = &self.next {
            let foreseen = next.foresee(args);
            self.reader.read(next.experts.weights_of(&foreseen));
        }
    }

    /// Nothing: experts that are left in a file are the processor's.
    fn dispatches(&self, _: &GpuArgs<'_>) -> Vec<Dispatch> {
        Vec::new()
    }
}

impl NextLayer {
    /// Values in a row of the residual stream, of what is normed, of logits and of routes.
    fn widths(&self) -> [usize; 4] {
        let hidden_size = self.experts.hidden_size();
        [hidden_size, hidden_size, self.experts.n_experts(), self.experts.routes_width()]
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize) -> usize {
        let rows = rows.min(MAX_ROWS);
        rows * self.widths().iter().sum::<usize>() + self.router.scratch_len(kernel, rows, 0)
    }

    /// The experts that the rows will probably use, likeliest first.
    fn foresee(&self, args: &mut CpuArgs<'_>) -> Vec<usize> {
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
        self.likeliest(routes)
    }

    /// The experts of some routes, those first that count most for all rows together.
    fn likeliest(&self, routes: &[f32]) -> Vec<usize> {
        let mut counts = vec![0.0; self.experts.n_experts()];
        for row in routes.chunks_exact(self.experts.routes_width()) {
            let (experts, weights) = row.split_at(self.experts.top_k());
            experts.iter().zip(weights).for_each(|(expert, weight)| counts[*expert as usize] += weight);
        }
        let mut experts = self.experts.used_by(routes);
        experts.sort_by(|a, b| counts[*b].total_cmp(&counts[*a]));
        experts
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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

    /// Bytes that note where they are asked for.
    struct Noting(Vec<u8>, Arc<Mutex<Vec<usize>>>);

    impl AsRef<[u8]> for Noting {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Bytes for Noting {
        fn prefetch(&self, range: Range<usize>) {
            self.1.lock().unwrap().push(range.start / range.len());
        }
    }

    /// Eight experts in a file of which rows use two, and which of them are asked for, three times each.
    fn experts_in_file() -> (Experts, Arc<Mutex<Vec<usize>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let matrix = |name: &str, seed| {
            let weight = random::weight(name, Format::F32, EXPERTS * HIDDEN, HIDDEN, seed);
            let owner: Arc<dyn Bytes> = Arc::new(Noting(weight.bytes().to_vec(), Arc::clone(&asked)));
            let bytes = SharedBytes::new(owner, 0..weight.bytes().len()).unwrap();
            let weight = Weight::new(name, Format::F32, EXPERTS * HIDDEN, HIDDEN, bytes).unwrap();
            ExpertMatrix::new(weight, EXPERTS, None).unwrap()
        };
        let matrices = [matrix("gate", 1), matrix("up", 2), matrix("down", 3)];
        let mut experts = Experts::new(matrices, Activation::Silu, RouteWeighting::Output, 2).unwrap();
        experts.leave_in_file();
        (experts, asked)
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

    /// What is asked for after a while, sorted, each once.
    fn asked(of: &Mutex<Vec<usize>>, matrices: usize) -> Vec<usize> {
        let began = std::time::Instant::now();
        while of.lock().unwrap().len() < matrices && began.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
        let mut asked = of.lock().unwrap().clone();
        assert_eq!(asked.len(), matrices, "{asked:?}");
        asked.sort_unstable();
        asked.dedup();
        asked
    }

    #[test]
    fn a_layers_own_experts_are_asked_for_and_those_read_that_its_input_leads_to_in_the_next() {
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
            assert_eq!(asked(&of_own, 2 * 3), [3, 6]);
            assert_eq!(asked(&of_next, 2 * 3), expected, "{kernel}");
        }
    }

    #[test]
    fn likeliest_is_what_counts_most_for_all_rows() {
        let (experts, _) = experts_in_file();
        let routes = [[1.0, 5.0, 0.6, 0.4], [5.0, 2.0, 0.5, 0.5], [5.0, 1.0, 0.7, 0.3]].concat();
        assert_eq!(next_layer(experts).likeliest(&routes), [5, 1, 2]);
    }

    #[test]
    fn of_many_rows_some_are_looked_at() {
        let (experts, of_next) = experts_in_file();
        let rows = 5 * MAX_ROWS + 1;
        let x = random::activations(rows * HIDDEN, 6);
        let op = ReadAhead::new(None, Some(next_layer(experts)), Arc::new(Reader::start().unwrap()));
        run(&op, Kernel::Scalar, rows, &[(&x, HIDDEN), (&vec![0.0; rows * 4], 4)]);
        assert_eq!(asked(&of_next, EXPERTS * 3), (0..EXPERTS).collect::<Vec<_>>());
    }

    #[test]
    fn a_router_of_other_experts_is_refused() {
        let (experts, _) = experts_in_file();
        let route = Route::new(Scoring::Softmax, EXPERTS, 3).unwrap();
        let next = NextLayer { route, ..next_layer(experts) };
        let op = ReadAhead::new(None, Some(next), Arc::new(Reader::start().unwrap()));
        let error = op.output_widths(&[HIDDEN, 4]).unwrap_err().to_string();
        assert_eq!(error, "read_ahead: width of the next layer's routes is 6, but must be 4");
    }
}
