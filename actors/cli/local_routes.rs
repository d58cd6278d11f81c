//! The routes of the API over a model in this process, for commands that have requests of their own.

use axum::Router;

use super::CliError;
use super::run::start::Started;
use super::served_name::served_name;
use crate::api::{self, ServerOptions};
use crate::config::Config;
use crate::models::Models;

/// The routes of a started model. Requests do not come from other programs, so they need no key, and may name any model.
///
/// # Errors
/// [`CliError`] when the options are not valid.
pub fn local_routes(
    model: &str,
    started: &Started,
    options: ServerOptions,
    config: &Config,
) -> Result<Router, CliError> {
    let id = config.alias.clone().unwrap_or_else(|| served_name(model));
    let models = Models::of_any_name(started.runtime.clone(), &id);
    api::models_router(models, ServerOptions { api_keys: Vec::new(), ..options }).map_err(CliError::other)
}
