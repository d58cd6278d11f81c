//! Experts that the CPU computes for a model whose other parts are on a device.

use cuelight_shaders::cpu::{ActivationBits, Kernel, Team};
use cuelight_shaders::experts::{ExpertRows, Experts};
use cuelight_shaders::op::Op;
use cuelight_shaders::tuning::Tuning;
use cuelight_shaders::weight::Weight;

use crate::backend::cpu::team::ThreadTeam;
use crate::cancel::LoadCancelled;
use crate::engine::{ExpertJob, ExpertResult};
use crate::threads::YieldHint;

/// Why an expert job cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpertJobError {
    /// The layer has no experts on the host.
    #[error("a step needs the host's experts of layer {layer}, but only {layers} layers have experts on the host")]
    NoSuchLayer {
        /// The layer, counted among those with experts on the host.
        layer: usize,
        /// The number of layers with experts on the host.
        layers: usize,
    },
    /// The job's rows do not have the widths of the layer.
    #[error(
        "a step passes {hidden} hidden values and {routes} route values to the host's experts of layer {layer}, whose rows have \
         other widths"
    )]
    NotRows {
        /// The layer.
        layer: usize,
        /// Number of values of the hidden rows.
        hidden: usize,
        /// Number of values of the routes.
        routes: usize,
    },
}

/// The routed experts of some layers, prepared for the CPU, and the threads that compute them.
pub struct HostExperts {
    layers: Vec<Experts>,
    kernel: Kernel,
    activation_bits: ActivationBits,
    tuning: Tuning,
    team: ThreadTeam,
    scratch: Vec<f32>,
    /// Dropped after the experts.
    _guard: Option<Box<dyn Send>>,
}

impl HostExperts {
    /// Prepares the experts of these layers for steps of up to `max_rows` rows. Calls `progress` for each weight that is ready.
    ///
    /// # Errors
    /// [`LoadCancelled`] when `progress` returns it.
    pub fn new(
        mut layers: Vec<Experts>,
        kernel: Kernel,
        threads: usize,
        max_rows: usize,
        progress: &mut dyn FnMut(&dyn Op, &Weight) -> Result<(), LoadCancelled>,
    ) -> Result<Self, LoadCancelled> {
        let team = ThreadTeam::new(threads);
        for layer in &mut layers {
            layer.prepare_cpu(kernel, &team);
            layer.weights().into_iter().try_for_each(|weight| progress(layer, weight))?;
        }
        let scratch = layers.iter().map(|layer| layer.scratch_len(kernel, max_rows, 0)).max().unwrap_or(0);
        let (activation_bits, tuning) = (ActivationBits::default(), Tuning::default());
        Ok(HostExperts { layers, kernel, activation_bits, tuning, team, scratch: vec![0.0; scratch], _guard: None })
    }

    /// Sets the number of bits to which inputs of products are rounded.
    #[must_use]
    pub fn with_activation_bits(self, activation_bits: ActivationBits) -> Self {
        HostExperts { activation_bits, ..self }
    }

    /// Sets what the kernels adapt to the CPU.
    #[must_use]
    pub fn with_tuning(self, tuning: Tuning) -> Self {
        HostExperts { tuning, ..self }
    }

    /// The prepared experts of each layer.
    #[must_use]
    pub fn layers(&self) -> &[Experts] {
        &self.layers
    }

    /// Computes a job on the threads of the team and on the calling thread.
    ///
    /// # Errors
    /// [`ExpertJobError`] when the job does not fit these experts.
    ///
    /// # Panics
    /// When it has more than `max_rows` rows, which no step within the engine's limits has.
    pub fn compute(&mut self, job: &ExpertJob) -> Result<ExpertResult, ExpertJobError> {
        self.compute_yielding(job, &YieldHint::default())
    }

    /// Computes a job like [`HostExperts::compute`]. Between two tasks its threads yield if `yield_hint` asks for it.
    ///
    /// # Errors
    /// [`ExpertJobError`] when the job does not fit these experts.
    ///
    /// # Panics
    /// As [`HostExperts::compute`].
    pub fn compute_yielding(
        &mut self,
        job: &ExpertJob,
        yield_hint: &YieldHint,
    ) -> Result<ExpertResult, ExpertJobError> {
        let layers = self.layers.len();
        let missing = ExpertJobError::NoSuchLayer { layer: job.layer, layers };
        let experts = self.layers.get(job.layer).ok_or(missing)?;
        let rows = job.hidden.len() / experts.hidden_size();
        let is_rows = job.hidden.len() == rows * experts.hidden_size();
        if !is_rows || job.routes.len() != rows * 2 * experts.top_k() {
            let (hidden, routes) = (job.hidden.len(), job.routes.len());
            return Err(ExpertJobError::NotRows { layer: job.layer, hidden, routes });
        }
        let mut output = vec![0.0; job.hidden.len()];
        let expert_rows = ExpertRows { x: &job.hidden, routes: &job.routes, rows, adapters: &[] };
        let team = Yielding { team: &self.team, yield_hint };
        let settings = (self.kernel, self.activation_bits, self.tuning);
        if experts.is_left_in_file() {
            experts.ask_for(&experts.used_by(&job.routes), &team);
        }
        experts.compute(settings, &team, expert_rows, &mut self.scratch, &mut output);
        Ok(ExpertResult { step: job.step, layer: job.layer, output })
    }

    /// Keeps `guard` alive as long as the experts use memory.
    #[must_use]
    pub fn guarded_by(self, guard: impl Send + 'static) -> Self {
        HostExperts { _guard: Some(Box::new(guard)), ..self }
    }
}

/// A team whose threads yield between two tasks if the hint asks for it.
struct Yielding<'a> {
    team: &'a ThreadTeam,
    yield_hint: &'a YieldHint,
}

impl Team for Yielding<'_> {
    fn threads(&self) -> usize {
        self.team.threads()
    }

    fn for_each(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        self.team.for_each(tasks, &|task| {
            if self.yield_hint.is_wanted() {
                std::thread::yield_now();
            }
            body(task);
        });
    }
}
