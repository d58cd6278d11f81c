//! `cuelight serve`: a model behind the OpenAI API.
//!
//! The port is bound before anything else, so that a taken port is known at once and `/health` can answer 503 while the
//! model loads. SIGINT or SIGTERM drains: no new requests, running ones may end, a second signal ends them.

use std::net::TcpListener;
use std::time::Duration;

use crate::api::{self, ServerOptions};
use crate::config::flags::{Flags, HubFlags, ModelFlags, ServerFlags};
use crate::config::{Config, Given};
use crate::metrics::exposition::Exposition;
use crate::runtime::{Runtime, RuntimeOptions, Status};
use crate::trace::{self, Tracer};

use super::model::{self, GgufSource};
use super::{CliError, Context};

/// Serve a model over HTTP, as the OpenAI API.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight serve demo                              on http://127.0.0.1:8080
  cuelight serve ./model.gguf --host 0.0.0.0 --port 80 --api-key \"$KEY\"
  cuelight serve org/repo:Q8_0 --alias assistant --ctx-size 8192 --max-seqs 32 --kv-memory 4GiB

Then, from another terminal:
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"model\": \"default\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"stream\": true}'

Answers /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /health, /ready and /metrics.")]
pub struct Args {
    /// The model.
    #[arg(value_name = "MODEL")]
    model: String,
    #[command(flatten)]
    server: Flags<ServerFlags>,
    #[command(flatten)]
    model_flags: Flags<ModelFlags>,
    #[command(flatten)]
    hub: Flags<HubFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        [self.server.given(), self.model_flags.given(), self.hub.given()].into_iter().flatten().collect()
    }
}

/// Serves until a signal comes.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let config = &context.config;
    let api_keys = api_keys(config)?;
    let listener = bind(&config.host, config.port)?;
    let source = model::plan(&args.model, context)?;
    let model_id = config.alias.clone().unwrap_or_else(|| model_id(&args.model));
    let metrics = Exposition::install(config.metrics_compat).map_err(CliError::other)?;
    let options = ServerOptions {
        api_keys,
        cors_origins: config.cors_origin.clone(),
        max_body_bytes: usize::try_from(config.max_body_size.0).unwrap_or(usize::MAX),
        metrics: Some(metrics),
        ..ServerOptions::new(model_id)
    };
    let tracer =
        trace::start(config.trace_file.as_deref(), config.otlp_endpoint.as_deref()).map_err(CliError::other)?;
    let served = model::tokio_runtime()?.block_on(serve(listener, source, options, config, &tracer));
    tracer.finish();
    served
}

async fn serve(
    listener: TcpListener,
    source: GgufSource,
    options: ServerOptions,
    config: &Config,
    tracer: &Tracer,
) -> Result<(), CliError> {
    let address = listener.local_addr().map_err(CliError::io("listen"))?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(CliError::io("listen"))?;
    let runtime_options = RuntimeOptions {
        model_id: options.model_id.as_str().into(),
        tracer: tracer.clone(),
        ..model::runtime_options(config)
    };
    let runtime = Runtime::start(source, runtime_options).await.map_err(CliError::other)?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut wait = stopped.clone();
    let shutdown = async move {
        // An error means that nobody can say "stop" any more, which is as good as having said it.
        let _ = wait.wait_for(|stop| *stop).await;
    };
    let (url, model_id) = (format!("http://{address}"), options.model_id.clone());
    let mut server = tokio::spawn(api::serve(listener, runtime.clone(), options, shutdown));
    let ended = tokio::select! {
        // Only an error ends it before anybody asked.
        ended = &mut server => Some(ended),
        error = announce(runtime.clone(), &url, &model_id) => return Err(error),
        signal = model::stop_signal() => { signal?; None }
    };
    if let Some(ended) = ended {
        return served(ended);
    }
    eprintln!(
        "stopping: running requests have {} s to finish; press Ctrl-C again to end them now",
        config.drain_timeout.as_secs()
    );
    // From here on the API refuses, as the runtime drains; the listener closes when the last answer is out.
    let drained = async {
        runtime.shutdown(config.drain_timeout).await;
        let _ = stop.send(true);
        // What is left is an idle connection, or a client that does not read.
        tokio::time::timeout(Duration::from_secs(5), &mut server).await.map_or(Ok(()), served)
    };
    tokio::select! {
        result = drained => result,
        signal = model::stop_signal() => signal.and(Err(CliError::Interrupted)),
    }
}

fn served(ended: Result<std::io::Result<()>, tokio::task::JoinError>) -> Result<(), CliError> {
    ended.map_err(CliError::other)?.map_err(CliError::io("serve"))
}

/// Says when the model is ready; resolves only when it cannot be.
async fn announce(runtime: Runtime, url: &str, model_id: &str) -> CliError {
    match runtime.wait_ready().await {
        Ok(model) => {
            eprintln!("ready: {model_id} ({}) on {url}", model.limits.device);
            let limits = &model.limits;
            tracing::info!(
                url,
                model = model_id,
                context_tokens = limits.context_tokens,
                kv_blocks = limits.kv_blocks,
                "ready"
            );
        }
        Err(Status::Failed(reason)) => return CliError::Failed(reason),
        // A signal came first, and somebody else hears it.
        Err(_) => return std::future::pending().await,
    }
    // Later faults are the supervisor's; only one that it gives up on ends the program.
    let mut runtime = runtime;
    loop {
        if let Status::Failed(reason) = runtime.status_changed().await {
            return CliError::Failed(reason);
        }
    }
}

/// What clients call the model when no alias is given: the reference, or a file's name without its ending.
fn model_id(model: &str) -> String {
    let is_path = std::path::Path::new(model).is_file();
    let name = if is_path { model.rsplit(['/', '\\']).next().unwrap_or(model) } else { model };
    name.strip_suffix(".gguf").unwrap_or(name).to_owned()
}

fn bind(host: &str, port: u16) -> Result<TcpListener, CliError> {
    let listener = TcpListener::bind((host, port)).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => CliError::Failed(format!(
            "port {port} on {host} is in use; stop what listens there, or choose another with --port"
        )),
        std::io::ErrorKind::PermissionDenied => {
            CliError::Failed(format!("this user may not listen on port {port}; choose one above 1023 with --port"))
        }
        _ => CliError::Io { what: format!("listen on {host}:{port}"), source: error },
    })?;
    listener.set_nonblocking(true).map_err(CliError::io("listen"))?;
    Ok(listener)
}

/// The keys of the configuration and those of the key file.
fn api_keys(config: &Config) -> Result<Vec<String>, CliError> {
    let mut keys: Vec<String> = config.api_key.0.iter().map(|key| key.0.clone()).collect();
    if let Some(path) = &config.api_key_file {
        let text =
            std::fs::read_to_string(path).map_err(CliError::io(format!("read the key file {}", path.display())))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = keys.len();
        keys.extend(lines.map(str::to_owned));
        if keys.len() == before {
            return Err(CliError::Failed(format!("the key file {} has no keys", path.display())));
        }
    }
    if keys.iter().any(String::is_empty) {
        return Err(CliError::Usage("an empty --api-key would let everybody in; leave it out for that".to_owned()));
    }
    Ok(keys)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_its_own_name() {
        assert_eq!(model_id("demo"), "demo");
        assert_eq!(model_id("org/repo:Q8_0"), "org/repo:Q8_0");
        let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
        let stem = file.path().file_stem().unwrap().to_str().unwrap();
        assert_eq!(model_id(file.path().to_str().unwrap()), stem);
    }

    #[test]
    fn a_port_in_use_is_one_clear_sentence() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = bind("127.0.0.1", port).unwrap_err().to_string();
        assert!(error.starts_with(&format!("port {port} on 127.0.0.1 is in use")), "{error}");
    }
}
