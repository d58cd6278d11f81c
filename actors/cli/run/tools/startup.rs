//! Starting the servers of `--mcp`, and ending them with this process.

use std::path::Path;

use crate::cli::async_runtime;
use crate::cli::error::CliError;
use crate::config::environment::Environment;
use crate::mcp::config_file;
use crate::mcp::process_group::ProcessGroups;
use crate::mcp::servers::{START_LIMIT, Servers, StartOptions};

/// Reads the file and starts its servers, until all are ready or the user presses Ctrl-C.
///
/// # Errors
/// [`CliError`] about the file or a server.
pub fn start(file: &Path, tokio: &tokio::runtime::Runtime) -> Result<Servers, CliError> {
    let environment = Environment::of_process();
    let variable = |name: &str| environment.variable(name).map(str::to_owned);
    let specs = config_file::read(file, &variable).map_err(CliError::other)?;
    let groups = ProcessGroups::default();
    end_with_this_process(groups.clone(), tokio);
    let options = StartOptions { limit: START_LIMIT, hidden: environment.secrets(), groups };
    tokio.block_on(async {
        tokio::select! {
            servers = Servers::start(specs, options) => servers.map_err(CliError::other),
            signal = async_runtime::interrupt() => { signal?; Err(CliError::Interrupted) }
        }
    })
}

/// A signal that ends this process ends the servers first: they are not in the group of the terminal.
fn end_with_this_process(groups: ProcessGroups, tokio: &tokio::runtime::Runtime) {
    tokio.spawn(async move {
        if let Ok(code) = async_runtime::end_signal().await {
            groups.end_all();
            std::process::exit(code);
        }
    });
}
