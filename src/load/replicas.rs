//! Plans for several copies of a model, each on its own devices, that are loaded at the same time.

use super::division::Sharers;
use super::error::LoadError;
use super::options::LoadOptions;
use super::plan::{DividedModel, LoadPlan, divide};
use crate::device::{ComputeDevice, Devices};

/// Plans `replicas` copies of a model.
///
/// Each gets its share of the devices, in order, and an equal part of every memory that several of them use. All get the same
/// longest sequence, because a request may go to any of them. Allocates nothing of the model's size.
///
/// # Errors
/// [`LoadError`] when the devices cannot be divided evenly, the file is not a model that can run on them, or the copies do not
/// fit.
pub fn plan_replicas(options: &LoadOptions, replicas: usize) -> Result<Vec<LoadPlan>, LoadError> {
    let mut each = options_of_replicas(options, replicas)?;
    let plans = plan_together(&each)?;
    let contexts = || plans.iter().map(|plan| plan.limits().context_tokens);
    if contexts().min() == contexts().max() {
        return Ok(plans);
    }
    let shortest = contexts().min();
    each.iter_mut().for_each(|options| options.context_tokens = shortest);
    plan_together(&each)
}

/// The options of each replica: its devices and its share of the threads. If one replica runs on the CPU, every replica may use
/// all threads.
fn options_of_replicas(options: &LoadOptions, replicas: usize) -> Result<Vec<LoadOptions>, LoadError> {
    let devices = options.device.of_replicas(replicas)?;
    let uses_cpu = options.device.0.contains(&ComputeDevice::Cpu);
    let threads = if uses_cpu { options.threads } else { options.threads.div_ceil(replicas) };
    let of_replica = |device: Devices| LoadOptions { device, threads, ..options.clone() };
    Ok(devices.into_iter().map(of_replica).collect())
}

/// Plans all replicas, which share the memories that several of them use.
fn plan_together(each: &[LoadOptions]) -> Result<Vec<LoadPlan>, LoadError> {
    let models = each.iter().map(divide).collect::<Result<Vec<DividedModel>, _>>()?;
    let mut sharers = Sharers::default();
    for memory in models.iter().flat_map(|model| model.division.memories(&model.options)) {
        *sharers.0.entry(memory).or_insert(0) += 1;
    }
    let most = sharers.0.values().copied().max().unwrap_or(1);
    let plan = |model: DividedModel| {
        model.plan(&sharers).map_err(|error| match error {
            LoadError::TooLarge { .. } if most > 1 => {
                LoadError::ReplicaTooLarge { source: Box::new(error), sharers: most }
            }
            error => error,
        })
    };
    models.into_iter().map(plan).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(device: &str) -> LoadOptions {
        LoadOptions { device: device.parse().unwrap(), threads: 8, ..LoadOptions::new("model.gguf") }
    }

    #[test]
    fn threads_are_divided_unless_one_replica_runs_on_the_cpu() {
        let of = |device: &str, replicas| -> Vec<(String, usize)> {
            let each = options_of_replicas(&options(device), replicas).unwrap();
            each.iter().map(|options| (options.device.to_string(), options.threads)).collect()
        };
        assert_eq!(of("cpu", 1), [("cpu".to_owned(), 8)]);
        assert_eq!(of("vulkan:0,vulkan:1", 2), [("vulkan:0".to_owned(), 4), ("vulkan:1".to_owned(), 4)]);
        assert_eq!(of("vulkan:0,cpu", 2), [("vulkan:0".to_owned(), 8), ("cpu".to_owned(), 8)]);
    }

    #[test]
    fn devices_that_cannot_be_divided_evenly_are_refused_before_the_file_is_opened() {
        let error = plan_replicas(&options("vulkan:0,vulkan:1,vulkan:2"), 2).map(drop).unwrap_err();
        assert!(matches!(error, LoadError::UnevenDevices(_)), "{error}");
    }
}
