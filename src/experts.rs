//! Experts that the processor computes for a model whose other parts are on a device.

use cuelight_shaders::cpu::{ActivationBits, Kernel, Team};
use cuelight_shaders::experts::{ExpertRows, Experts};
use cuelight_shaders::op::Op;
use cuelight_shaders::weight::Weight;

use crate::backend::cpu::team::ThreadTeam;
use crate::engine::{ExpertJob, ExpertResult};
use crate::threads::RightOfWay;

/// Why a job cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpertJobError {
    /// The experts of that layer are not here.
    #[error("a step asks for the host's experts of layer {layer}, but only {layers} layers have experts there")]
    NoSuchLayer {
        /// The layer, counted among those with experts on the host.
        layer: usize,
        /// How many there are.
        layers: usize,
    },
    /// The job's rows are not what the layer takes.
    #[error(
        "a step hands {hidden} values and {routes} of routes to the host's experts of layer {layer}, which are no rows"
    )]
    NotRows {
        /// The layer.
        layer: usize,
        /// Values of hidden rows.
        hidden: usize,
        /// Values of routes.
        routes: usize,
    },
}

/// The routed experts of some layers, arranged for the processor, and the threads that compute them.
pub struct HostExperts {
    layers: Vec<Experts>,
    kernel: Kernel,
    activation_bits: ActivationBits,
    team: ThreadTeam,
    scratch: Vec<f32>,
    /// Dropped with the experts, and after them.
    _guard: Option<Box<dyn Send>>,
}

impl HostExperts {
    /// Arranges the experts of these layers for steps of up to `max_rows` rows; `progress` hears of each weight when it is
    /// ready.
    #[must_use]
    pub fn new(
        mut layers: Vec<Experts>,
        kernel: Kernel,
        threads: usize,
        max_rows: usize,
        progress: &mut dyn FnMut(&dyn Op, &Weight),
    ) -> Self {
        let team = ThreadTeam::new(threads);
        for layer in &mut layers {
            layer.prepare_cpu(kernel, &team);
            layer.weights().into_iter().for_each(|weight| progress(layer, weight));
        }
        let scratch = layers.iter().map(|layer| layer.scratch_len(kernel, max_rows, 0)).max().unwrap_or(0);
        let activation_bits = ActivationBits::default();
        HostExperts { layers, kernel, activation_bits, team, scratch: vec![0.0; scratch], _guard: None }
    }

    /// The same experts, which round inputs of products to so many bits.
    #[must_use]
    pub fn with_activation_bits(self, activation_bits: ActivationBits) -> Self {
        HostExperts { activation_bits, ..self }
    }

    /// The experts of each layer, as they were arranged.
    #[must_use]
    pub fn layers(&self) -> &[Experts] {
        &self.layers
    }

    /// Computes a job on the team's threads, the caller's included.
    ///
    /// # Errors
    /// [`ExpertJobError`] when the job is none of these experts'.
    ///
    /// # Panics
    /// When it has more rows than was planned for, which no step of the engine's limits has.
    pub fn compute(&mut self, job: &ExpertJob) -> Result<ExpertResult, ExpertJobError> {
        self.compute_giving_way(job, &RightOfWay::default())
    }

    /// Computes a job as [`HostExperts::compute`] does, but makes room, between two tasks, for a thread that has the right
    /// of way.
    ///
    /// # Errors
    /// [`ExpertJobError`] when the job is none of these experts'.
    ///
    /// # Panics
    /// As [`HostExperts::compute`].
    pub fn compute_giving_way(&mut self, job: &ExpertJob, way: &RightOfWay) -> Result<ExpertResult, ExpertJobError> {
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
        let expert_rows = ExpertRows { x: &job.hidden, routes: &job.routes, rows };
        let (team, how) = (GivesWay { team: &self.team, way }, (self.kernel, self.activation_bits));
        if experts.is_left_in_file() {
            experts.ask_for(&experts.used_by(&job.routes), &team);
        }
        experts.compute(how, &team, expert_rows, &mut self.scratch, &mut output);
        Ok(ExpertResult { step: job.step, layer: job.layer, output })
    }

    /// Keeps something as long as the experts take memory.
    #[must_use]
    pub fn guarded_by(self, guard: impl Send + 'static) -> Self {
        HostExperts { _guard: Some(Box::new(guard)), ..self }
    }
}

/// A team whose threads make room between two tasks.
struct GivesWay<'a> {
    team: &'a ThreadTeam,
    way: &'a RightOfWay,
}

impl Team for GivesWay<'_> {
    fn threads(&self) -> usize {
        self.team.threads()
    }

    fn for_each(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        self.team.for_each(tasks, &|task| {
            if self.way.is_wanted() {
                std::thread::yield_now();
            }
            body(task);
        });
    }
}
