//! The adapters of the configuration.

use std::num::NonZeroUsize;

use cuelight_engine::engine::AdapterLimits;
use cuelight_engine::format::lora::LoraFile;

use super::CliError;
use crate::config::Config;
use crate::pipeline::adapters::{AdapterSpec, parse_spec};

/// Slots for adapters, and their largest rank, where clients may load them and nothing else is set.
const SLOTS: usize = 8;
const RANK: usize = 64;

/// The adapters of a model, and how many it may have and how large; `None` for a model without adapters.
///
/// # Errors
/// [`CliError`] when an adapter is not written as it must be, or its file cannot be read.
pub fn of_config(config: &Config) -> Result<Option<(Vec<AdapterSpec>, AdapterLimits)>, CliError> {
    let specs =
        config.lora.iter().map(|text| parse_spec(text)).collect::<Result<Vec<_>, _>>().map_err(CliError::Usage)?;
    let doubled =
        specs.iter().enumerate().find(|(index, spec)| specs[..*index].iter().any(|one| one.name == spec.name));
    if let Some((_, spec)) = doubled {
        return Err(CliError::Usage(format!("two adapters have the name {}", spec.name)));
    }
    let (mut largest, mut vocabulary, mut experts) = (1, config.lora_vocabulary, config.lora_experts);
    for spec in &specs {
        let file = LoraFile::open(&spec.path).map_err(CliError::other)?;
        largest = largest.max(file.max_rank());
        vocabulary |= file.changes_vocabulary();
        experts |= file.changes_experts();
    }
    let may_load = config.allow_lora_loading;
    let slots = config.lora_slots.map(NonZeroUsize::get);
    let slots = slots.unwrap_or_else(|| if may_load { SLOTS.max(specs.len()) } else { specs.len() });
    if slots < specs.len() {
        return Err(CliError::Usage(format!("{} adapters need as many slots: raise --lora-slots", specs.len())));
    }
    let max_rank = config.lora_max_rank.map(NonZeroUsize::get);
    let max_rank = max_rank.unwrap_or(if may_load { largest.max(RANK) } else { largest });
    Ok((slots > 0).then_some((specs, AdapterLimits { slots, max_rank, vocabulary, experts })))
}
