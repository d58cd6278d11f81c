//! Plans for several copies of a model, each on devices of its own, that are loaded side by side.

use super::engine::Sharers;
use super::{Draft, LoadError, LoadOptions, Plan, draft};
use crate::device::{ComputeDevice, Devices};

/// Plans `replicas` copies of a model: each on its share of the devices, in their order, and with an equal part of every
/// memory that several of them are in. All take the same longest sequence, as a request may go to any of them. Allocates
/// nothing of the model's size.
///
/// # Errors
/// [`LoadError`] when the devices cannot be shared out evenly, the file is not a model that can run here, or the copies do
/// not fit.
pub fn plan_replicas(options: &LoadOptions, replicas: usize) -> Result<Vec<Plan>, LoadError> {
    let mut each = options_of_replicas(options, replicas)?;
    let plans = plan_side_by_side(&each)?;
    let contexts = || plans.iter().map(|plan| plan.limits().context_tokens);
    if contexts().min() == contexts().max() {
        return Ok(plans);
    }
    let shortest = contexts().min();
    each.iter_mut().for_each(|options| options.context_tokens = shortest);
    plan_side_by_side(&each)
}

/// What each replica is loaded with: its devices, and its share of the threads. A replica that is computed on the processor
/// has them all beside others that are not.
fn options_of_replicas(options: &LoadOptions, replicas: usize) -> Result<Vec<LoadOptions>, LoadError> {
    let devices = options.device.of_replicas(replicas)?;
    let on_processor = options.device.0.contains(&ComputeDevice::Cpu);
    let threads = if on_processor { options.threads } else { options.threads.div_ceil(replicas) };
    let of_replica = |device: Devices| LoadOptions { device, threads, ..options.clone() };
    Ok(devices.into_iter().map(of_replica).collect())
}

fn plan_side_by_side(each: &[LoadOptions]) -> Result<Vec<Plan>, LoadError> {
    let drafts = each.iter().map(draft).collect::<Result<Vec<Draft>, _>>()?;
    let mut sharers = Sharers::default();
    for memory in drafts.iter().flat_map(|draft| draft.division.memories(&draft.options)) {
        *sharers.0.entry(memory).or_insert(0) += 1;
    }
    let most = sharers.0.values().copied().max().unwrap_or(1);
    let plan = |draft: Draft| {
        draft.plan(&sharers).map_err(|error| match error {
            LoadError::TooLarge { .. } if most > 1 => {
                LoadError::ReplicaTooLarge { source: Box::new(error), sharers: most }
            }
            error => error,
        })
    };
    drafts.into_iter().map(plan).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn options(device: &str) -> LoadOptions {
        LoadOptions { device: device.parse().unwrap(), threads: 8, ..LoadOptions::new("model.gguf") }
    }

    #[test]
    fn threads_are_shared_unless_one_replica_needs_them_all() {
        let of = |device: &str, replicas| -> Vec<(String, usize)> {
            let each = options_of_replicas(&options(device), replicas).unwrap();
            each.iter().map(|options| (options.device.to_string(), options.threads)).collect()
        };
        assert_eq!(of("cpu", 1), [("cpu".to_owned(), 8)]);
        assert_eq!(of("vulkan:0,vulkan:1", 2), [("vulkan:0".to_owned(), 4), ("vulkan:1".to_owned(), 4)]);
        assert_eq!(of("vulkan:0,cpu", 2), [("vulkan:0".to_owned(), 8), ("cpu".to_owned(), 8)]);
    }

    #[test]
    fn devices_that_cannot_be_shared_evenly_are_refused_before_the_file_is_looked_at() {
        let error = plan_replicas(&options("vulkan:0,vulkan:1,vulkan:2"), 2).map(drop).unwrap_err();
        assert!(matches!(error, LoadError::UnevenDevices(_)), "{error}");
    }
}
