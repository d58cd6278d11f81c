//! The models that the command line names, as `MODEL` or `NAME=MODEL`.

use std::path::Path;
use std::sync::Arc;

use super::hints::over_budget;
use super::served_name::served_name;
use super::server_memory::{request_memory, response_store};
use super::{CliError, Context, model};
use crate::config::Config;
use crate::models::{Machine, NamedModel};

/// Checks the settings that depend on the number of models that the command line names.
fn check_number(models: &[String], config: &Config) -> Result<(), CliError> {
    let refuse = |advice: &str| Err(CliError::Usage(advice.to_owned()));
    if models.len() > 1 && config.alias.is_some() {
        return refuse("--alias names one model; with several, write NAME=MODEL for each");
    }
    if config.max_loaded_models.is_some_and(|most| most.get() < models.len()) {
        return refuse(&format!("{} models are named, more than --max-loaded-models allows", models.len()));
    }
    if models.len() == 1 {
        return Ok(());
    }
    if !config.lora.is_empty() || config.allow_lora_loading {
        return refuse("adapters belong to one model: with --lora or --allow-lora-loading, name exactly one");
    }
    if config.draft.is_some() {
        return refuse("a draft model belongs to one model: with --draft, name exactly one");
    }
    Ok(())
}

/// The names for clients of the models on the command line, with the models.
fn names<'a>(models: &'a [String], config: &Config) -> Result<Vec<(String, &'a str)>, CliError> {
    let mut named: Vec<(String, &str)> = Vec::new();
    for argument in models {
        let (name, model) = split_name(argument);
        let id = name.or(config.alias.as_deref()).map_or_else(|| served_name(model), str::to_owned);
        if named.iter().any(|(other, _)| *other == id) {
            let advice = format!("two models would have the name {id}; write NAME=MODEL for a distinct name");
            return Err(CliError::Usage(advice));
        }
        named.push((id, model));
    }
    Ok(named)
}

/// Plans the models of the command line one after the other, each in the memory that the ones before it leave free.
///
/// # Errors
/// [`CliError`] when settings do not fit the number of models, two have one name, or one cannot be loaded.
pub fn plan_all(models: &[String], context: &Context) -> Result<Vec<NamedModel>, CliError> {
    let config = &context.config;
    check_number(models, config)?;
    let budget = config.memory.map(|size| size.0);
    let mut held_bytes = 0;
    let mut named: Vec<NamedModel> = Vec::new();
    for (id, model) in names(models, config)? {
        let machine = Machine::now();
        let limit = machine.limit(budget, held_bytes);
        let is_by_budget = budget.is_some() && limit != machine.limit(None, held_bytes);
        // The plan of the first model includes it, so that the others leave it free.
        let request_bytes =
            if named.is_empty() { request_memory(config).saturating_add(response_store(config)) } else { 0 };
        let planned = model::plan_within(model, limit, request_bytes, context);
        let (factory, planned) = planned.map_err(|error| if is_by_budget { over_budget(error) } else { error })?;
        held_bytes += planned.memory().host_bytes();
        if factory.adapter_names().contains(&id) {
            return Err(CliError::Usage(format!("the model and an adapter would have the name {id}")));
        }
        named.push(NamedModel {
            id,
            adapters: factory.adapter_names(),
            aliases: Vec::new(),
            factory: Arc::new(factory),
            planned: Some(planned),
        });
    }
    Ok(named)
}

/// Splits `NAME=MODEL`. An existing file with an equals sign in its name is a model without NAME.
#[must_use]
pub fn split_name(argument: &str) -> (Option<&str>, &str) {
    match argument.split_once('=') {
        Some((name, model)) if !name.is_empty() && !model.is_empty() && !Path::new(argument).exists() => {
            (Some(name), model)
        }
        _ => (None, argument),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_before_the_model_is_split_off_unless_such_a_file_exists() {
        assert_eq!(split_name("small=org/repo:Q8_0"), (Some("small"), "org/repo:Q8_0"));
        assert_eq!(split_name("org/repo"), (None, "org/repo"));
        for odd in ["=demo", "demo="] {
            assert_eq!(split_name(odd), (None, odd));
        }
        let file = tempfile::Builder::new().prefix("a=b").tempfile().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(split_name(path), (None, path));
    }
}
