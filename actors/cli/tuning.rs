//! The tuning of CPU kernels: stored from an earlier start, measured now, or the default.

use std::path::{Path, PathBuf};

use cuelight_engine::backend::cpu;
use cuelight_engine::load::{ComputeDevice, CpuExperts, Kernel};
use cuelight_engine::machine::Machine;
use cuelight_engine::tuning::{Calibration, Limits, Subject, calibrate, store};

use super::terminal::Terminal;
use crate::config::{CalibrateMode, Config};

/// Where a tuning comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TuningSource {
    /// Nothing was measured.
    Default,
    /// The file of an earlier measurement.
    Stored(PathBuf),
    /// Measured now, and kept in the file.
    Measured(PathBuf),
    /// Measured now, but not kept, for this reason.
    NotKept(String),
}

/// A tuning and its source.
#[derive(Debug, Clone)]
pub struct Tuned {
    /// The choices.
    pub calibration: Calibration,
    /// Where they come from.
    pub source: TuningSource,
}

impl Tuned {
    /// The stored tuning, or the default. Measures nothing.
    #[must_use]
    pub fn known(config: &Config) -> Self {
        let machine = Machine::of(Path::new("/"));
        let (folder, subject) = (folder(config), subject(config, &machine));
        match store::read(&folder, &subject) {
            Some(calibration) => {
                let source = TuningSource::Stored(store::path(&folder, &subject));
                Tuned { calibration, source }
            }
            None => Tuned { calibration: Calibration::unmeasured(&machine, subject), source: TuningSource::Default },
        }
    }

    /// The stored tuning. If there is none, measures and stores it, unless the configuration turns that off or the CPU
    /// computes nothing.
    #[must_use]
    pub fn for_engine(config: &Config, terminal: &Terminal) -> Self {
        let known = Self::known(config);
        if known.source != TuningSource::Default || config.calibrate == CalibrateMode::Off || !uses_cpu(config) {
            return known;
        }
        let measured = Self::measure(config);
        let Calibration { subject, measured: times, .. } = &measured.calibration;
        terminal.notice(&format!(
            "calibrated for {} in {:.1} s; `cuelight doctor` shows the choices",
            subject.cpu, times.seconds
        ));
        measured
    }

    /// Measures, and stores the result if no other program disturbed the measurement.
    #[must_use]
    pub fn measure(config: &Config) -> Self {
        let machine = Machine::of(Path::new("/"));
        let calibration = calibrate(&machine, kernel(config), cpu::default_threads(), Limits::of(&machine));
        let source = if calibration.was_disturbed() {
            TuningSource::NotKept("other programs used the CPU meanwhile, so the defaults apply".to_owned())
        } else {
            let folder = folder(config);
            match store::write(&folder, &calibration) {
                Ok(file) => TuningSource::Measured(file),
                Err(error) => TuningSource::NotKept(format!("{} cannot be written: {error}", folder.display())),
            }
        };
        Tuned { calibration, source }
    }
}

fn kernel(config: &Config) -> Kernel {
    config.kernel.filter(|kernel| kernel.is_supported()).unwrap_or_else(Kernel::detect)
}

fn subject(config: &Config, machine: &Machine) -> Subject {
    Subject::new(machine, kernel(config), cpu::default_threads())
}

fn folder(config: &Config) -> PathBuf {
    config.cache_dir.join("calibration")
}

/// Whether the CPU computes a part of every model. A device that leaves it only the experts that do not fit uses what is
/// stored.
fn uses_cpu(config: &Config) -> bool {
    config.device.0.contains(&ComputeDevice::Cpu)
        || config.gpu_layers.is_some()
        || config.cpu_experts != CpuExperts::Auto
}
