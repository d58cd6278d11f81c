//! `cuelight serve`: models behind the OpenAI API.
//!
//! The port is bound before anything else, so that a taken port is known at once and `/health` can answer 503 while the
//! models load. All of them are planned before any is loaded. SIGINT or SIGTERM drains: no new requests, running ones may
//! end, a second signal ends them.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::load::{LoadOptions, Source};
use futures_util::future::try_join_all;

use crate::api::{self, ServerOptions};
use crate::config::flags::{Flags, HubFlags, ModelFlags, ServerFlags};
use crate::config::{Config, Given};
use crate::metrics::exposition::Exposition;
use crate::models::{Machine, ModelFactory, Models, ModelsDirectory, ModelsError, ModelsOptions, NamedModel};
use crate::runtime::RuntimeOptions;
use crate::trace::{self, Tracer};

use super::model::{self, GgufModel};
use super::{CliError, Context};

/// Serve models over HTTP, as the OpenAI API.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight serve demo                              on http://127.0.0.1:8080
  cuelight serve ./model.gguf --host 0.0.0.0 --port 80 --api-key \"$KEY\"
  cuelight serve org/repo:Q8_0 --alias assistant --ctx-size 8192 --max-seqs 32 --kv-memory 4GiB
  cuelight serve small=./a.gguf big=org/repo       two models, called small and big
  cuelight serve --models-dir ./models --memory 8GiB --keep-alive 10m
                                                   each file there, loaded when it is called

Then, from another terminal:
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"model\": \"default\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"stream\": true}'
  cuelight ps                                      what is loaded, and what it does

Answers /v1/chat/completions, /v1/completions, /v1/models, /models, /tokenize, /detokenize, /health, /ready and /metrics.")]
pub struct Args {
    /// The models, all loaded at the start; NAME= gives one the name that clients use.
    #[arg(value_name = "[NAME=]MODEL")]
    models: Vec<String>,
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
    if args.models.is_empty() && config.models_dir.is_none() {
        return Err(CliError::Usage("name a model, or a directory of models with --models-dir".to_owned()));
    }
    config.device.of_replicas(config.replicas.get()).map_err(|error| CliError::Usage(error.to_string()))?;
    let api_keys = api_keys(config)?;
    let listener = bind(&config.host, config.port)?;
    let directory = config.models_dir.as_deref().map(|path| models_directory(path, config)).transpose()?;
    let named = plan_all(&args.models, context)?;
    let metrics = Exposition::install(config.metrics_compat).map_err(CliError::other)?;
    let options = ServerOptions {
        api_keys,
        cors_origins: config.cors_origin.clone(),
        max_body_bytes: usize::try_from(config.max_body_size.0).unwrap_or(usize::MAX),
        tenant_isolation: config.tenant_isolation,
        request_timeout: config.request_timeout,
        drain_timeout: config.drain_timeout,
        metrics: Some(metrics),
        ..ServerOptions::default()
    };
    let tracer =
        trace::start(config.trace_file.as_deref(), config.otlp_endpoint.as_deref()).map_err(CliError::other)?;
    let served = model::tokio_runtime()?.block_on(async {
        let models = models_options(config, &tracer);
        let models = Models::start(models, named, directory).await.map_err(CliError::other)?;
        serve(listener, models, options, config).await
    });
    tracer.finish();
    served
}

fn models_options(config: &Config, tracer: &Tracer) -> ModelsOptions {
    ModelsOptions {
        runtime: RuntimeOptions { tracer: tracer.clone(), ..model::runtime_options(config) },
        memory_bytes: config.memory.map(|size| size.0),
        max_loaded_models: config.max_loaded_models,
        keep_alive: config.keep_alive,
        autoload: !config.no_autoload,
        load_timeout: config.load_timeout,
        max_waiting_calls: config.max_queued_requests,
        machine: Machine::now,
    }
}

/// The models of `--models-dir`.
fn models_directory(path: &Path, config: &Config) -> Result<ModelsDirectory, CliError> {
    // Settings that are wrong for one file are wrong for all, and better known now.
    let options = model::load_options(config, Source::File(path.to_owned()))?;
    let replicas = config.replicas;
    let make = move |file: &Path| -> Arc<dyn ModelFactory> {
        let options = LoadOptions { source: Source::File(file.to_owned()), ..options.clone() };
        Arc::new(GgufModel::new(options, replicas))
    };
    ModelsDirectory::open(path, make).map_err(CliError::io(format!("read the models directory {}", path.display())))
}

/// Plans the models of the command line, each beside those before it, so that nothing is loaded that will not fit.
fn plan_all(models: &[String], context: &Context) -> Result<Vec<NamedModel>, CliError> {
    let config = &context.config;
    if models.len() > 1 && config.alias.is_some() {
        let advice = "--alias names one model; with several, write NAME=MODEL for each".to_owned();
        return Err(CliError::Usage(advice));
    }
    if config.max_loaded_models.is_some_and(|most| most.get() < models.len()) {
        return Err(CliError::Usage(format!(
            "{} models are named, more than --max-loaded-models allows",
            models.len()
        )));
    }
    let budget = config.memory.map(|size| size.0);
    let mut held_bytes = 0;
    let mut named: Vec<NamedModel> = Vec::new();
    for argument in models {
        let (name, model) = split_name(argument);
        let id = name.or(config.alias.as_deref()).map_or_else(|| model_id(model), str::to_owned);
        if named.iter().any(|other| other.id == id) {
            let advice = format!("two models would be called {id}; write NAME=MODEL to tell them apart");
            return Err(CliError::Usage(advice));
        }
        let limit = Machine::now().limit(budget, held_bytes);
        let (factory, planned) = model::plan_beside(model, limit, context)?;
        held_bytes += planned.memory().host_bytes();
        named.push(NamedModel { id, aliases: Vec::new(), factory: Arc::new(factory), planned: Some(planned) });
    }
    Ok(named)
}

/// `NAME=MODEL` taken apart. A file that has such a name is meant as it stands.
fn split_name(argument: &str) -> (Option<&str>, &str) {
    match argument.split_once('=') {
        Some((name, model)) if !name.is_empty() && !model.is_empty() && !Path::new(argument).exists() => {
            (Some(name), model)
        }
        _ => (None, argument),
    }
}

async fn serve(listener: TcpListener, models: Models, options: ServerOptions, config: &Config) -> Result<(), CliError> {
    let address = listener.local_addr().map_err(CliError::io("listen"))?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(CliError::io("listen"))?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut wait = stopped.clone();
    let shutdown = async move {
        // An error means that nobody can say "stop" any more, which is as good as having said it.
        let _ = wait.wait_for(|stop| *stop).await;
    };
    let url = format!("http://{address}");
    let mut server = tokio::spawn(api::serve_models(listener, models.clone(), options, shutdown));
    let ended = tokio::select! {
        // Only an error ends it before anybody asked.
        ended = &mut server => Some(ended),
        error = announce(&models, &url) => return Err(error),
        signal = model::stop_signal() => { signal?; None }
    };
    if let Some(ended) = ended {
        return served(ended);
    }
    eprintln!(
        "stopping: running requests have {} s to finish; press Ctrl-C again to end them now",
        config.drain_timeout.as_secs()
    );
    // From here on the API refuses, as the models drain; the listener closes when the last answer is out.
    let drained = async {
        models.shutdown(config.drain_timeout).await;
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

/// Loads the models of the command line and says when each is ready. Resolves only when the server is of no use: one of
/// them cannot be loaded, or later all of them have failed.
async fn announce(models: &Models, url: &str) -> CliError {
    let named = models.named();
    let load = |id: &String| {
        let id = id.clone();
        async move {
            models.load(&id).await?;
            say_ready(models, &id, url).await
        }
    };
    if let Err(error) = try_join_all(named.iter().map(load)).await {
        return CliError::Failed(match error {
            ModelsError::Failed { reason, .. } => reason,
            error => error.to_string(),
        });
    }
    if let Some(directory) = models.directory() {
        let found = models.list().await.len() - named.len();
        eprintln!("ready: {found} models of {} on {url}, each loaded when it is called", directory.path().display());
        // Without those of the command line there are still these.
        return std::future::pending().await;
    }
    CliError::Failed(models.all_failed().await)
}

async fn say_ready(models: &Models, id: &str, url: &str) -> Result<(), ModelsError> {
    // It may have been unloaded meanwhile, by somebody quick.
    if let Some(model) = models.show(id).await?.model {
        let limits = &model.limits;
        eprintln!("ready: {id} ({}) on {url}", limits.device);
        let (context_tokens, kv_blocks) = (limits.context_tokens, limits.kv_blocks);
        tracing::info!(url, model = id, context_tokens, kv_blocks, "ready");
    }
    Ok(())
}

/// What clients call the model when no alias is given: the reference, or a file's name without its ending.
fn model_id(model: &str) -> String {
    let is_path = Path::new(model).is_file();
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
pub(super) fn api_keys(config: &Config) -> Result<Vec<String>, CliError> {
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
    fn a_name_goes_before_its_model_unless_a_file_is_called_so() {
        assert_eq!(split_name("small=org/repo:Q8_0"), (Some("small"), "org/repo:Q8_0"));
        assert_eq!(split_name("org/repo"), (None, "org/repo"));
        for odd in ["=demo", "demo="] {
            assert_eq!(split_name(odd), (None, odd));
        }
        let file = tempfile::Builder::new().prefix("a=b").tempfile().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(split_name(path), (None, path));
    }

    #[test]
    fn a_port_in_use_is_one_clear_sentence() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = bind("127.0.0.1", port).unwrap_err().to_string();
        assert!(error.starts_with(&format!("port {port} on 127.0.0.1 is in use")), "{error}");
    }
}
