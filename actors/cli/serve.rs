//! `cuelight serve`: models behind the OpenAI API.
//!
//! The port is bound first: a port in use is reported at once, and `/health` answers 503 while the models load. All
//! models are planned before any is loaded. SIGINT or SIGTERM drains the server: new requests are refused, running ones
//! may finish, and a second signal stops them.

use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::load::{LoadOptions, Source};
use futures_util::future::try_join_all;

use crate::api::{self, ConnectionOptions, LiveOptions, ServerOptions};
use crate::config::flags::{Flags, ServeFlags};
use crate::config::{Config, Given};
use crate::hub::HubStore;
use crate::logging::notice;
use crate::metrics::exposition::Exposition;
use crate::models::{Machine, ModelFactory, Models, ModelsDirectory, ModelsError, ModelsOptions};
use crate::pipeline::runtime::RuntimeOptions;
use crate::recording::Recorder;
use crate::trace::{self, Tracer};

use super::api_keys::api_keys;
use super::batches::batches;
use super::found_model::FoundModel;
use super::kv_options::{kv_events, kv_store};
use super::media::MediaSettings;
use super::model;
use super::named_models::{plan_all, split_name};
use super::server_options::server_options;
use super::{CliError, ConfigSource, Context, async_runtime, model_help, open_files, ready};

/// Serve models over HTTP with the APIs of OpenAI, Anthropic and Ollama.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight serve demo                                 on port 8080
  cuelight serve ./model.gguf --host 0.0.0.0 --api-key \"$KEY\"
  cuelight serve org/repo:Q8_0 --alias assistant --ctx-size 8192
  cuelight serve small=./a.gguf big=org/repo          two models with names
  cuelight serve --models-dir ./models --memory 8GiB  loaded on request

Then, from another terminal:
  curl http://127.0.0.1:8080/v1/chat/completions \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'
  cuelight ps    the loaded models and their requests
Or chat in a browser: http://127.0.0.1:8080

APIs: OpenAI's (/v1/chat/completions, /v1/responses, /v1/completions, /v1/embeddings, /v1/batches, /v1/models), Anthropic's (/v1/messages), Ollama's \
(/api), rerankers' and classifiers' (/v1/rerank, /v1/score, /classify, /predict), and llama.cpp's (/completion, /infill, /tokenize, /detokenize, /props, /slots). Also /models, /health, /ready and /metrics; \
/openapi.json describes all of them.")]
pub struct Args {
    #[arg(value_name = "[NAME=]MODEL", help = format!("The models to load at the start, each {}; NAME= sets the name that clients use", model_help::FORMS))]
    models: Vec<String>,
    #[command(flatten)]
    flags: Flags<ServeFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.flags.given()
    }
}

/// Serves until SIGINT or SIGTERM.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let config = &context.config;
    if args.models.is_empty() && config.models_dir.is_none() {
        return Err(CliError::Usage("no model: name one, or a directory of models with --models-dir".to_owned()));
    }
    if config.allow_pull && config.models_dir.is_none() {
        let advice = "--allow-pull needs --models-dir, the directory that models are downloaded into".to_owned();
        return Err(CliError::Usage(advice));
    }
    config.device.of_replicas(config.replicas.get()).map_err(|error| {
        CliError::Usage(format!("{error}; leave --replicas out, or name as many devices for each in --device"))
    })?;
    // Wrong keys are reported before anything else is done.
    api_keys(config)?;
    let listener = bind(&config.host, config.port)?;
    let recorder = recorder(config)?;
    let directory = config.models_dir.as_deref().map(|path| models_directory(path, args, context)).transpose()?;
    let named = plan_all(&args.models, context)?;
    let metrics = Exposition::install(config.metrics_compat).map_err(CliError::other)?;
    let connections = open_files::connections(config.max_connections.map(NonZeroUsize::get))?;
    let kv_store = kv_store(config)?;
    let process = ServerOptions {
        metrics: Some(metrics),
        connections: ConnectionOptions { max_connections: connections, ..ConnectionOptions::default() },
        shared_blocks: kv_store.shared.clone(),
        batches: batches(config)?,
        ..ServerOptions::default()
    };
    let options = LiveOptions::from(live_options(config, &process)?);
    let tracer = trace::start(config.trace_file.as_deref(), config.otlp_endpoint.as_ref().map(|url| url.0.as_str()))
        .map_err(CliError::other)?;
    let runtime = async_runtime::tokio_runtime()?;
    let served = runtime.block_on(async {
        let mut models = models_options(config, &tracer, &recorder);
        models.runtime.kv_store = kv_store;
        models.runtime.kv_events = kv_events(config).await?;
        let models = Models::start(models, named, directory).await.map_err(CliError::other)?;
        tokio::spawn(reload_on_hangup(options.clone(), context.source.clone()));
        serve(listener, models, options, config).await
    });
    // Work on blocking threads, like a model that is being loaded, must not delay the end.
    runtime.shutdown_timeout(Duration::from_millis(100));
    tracer.finish();
    recorder.finish();
    served
}

/// Reads the configuration again on every SIGHUP, and applies its keys and the limits of requests. A wrong configuration
/// is logged, and the server continues with the one that it has.
async fn reload_on_hangup(live: LiveOptions, source: ConfigSource) {
    while async_runtime::hangup().await.is_ok() {
        let read = source.resolve().map_err(CliError::from);
        match read.and_then(|read| live_options(&read.config, &live.get())) {
            Ok(options) => {
                live.replace(options);
                tracing::info!("the configuration was reloaded");
            }
            Err(error) => tracing::error!(%error, "the configuration was not reloaded"),
        }
    }
}

/// The options that the configuration sets. Those of the process stay as they are.
fn live_options(config: &Config, process: &ServerOptions) -> Result<ServerOptions, CliError> {
    let options = server_options(config)?;
    Ok(ServerOptions {
        connections: ConnectionOptions { max_connections: process.connections.max_connections, ..options.connections },
        shared_blocks: process.shared_blocks.clone(),
        batches: process.batches.clone(),
        metrics: process.metrics.clone(),
        ..options
    })
}

/// What records requests, if they are recorded.
fn recorder(config: &Config) -> Result<Recorder, CliError> {
    let Some(directory) = &config.record else {
        return match config.record_texts {
            true => Err(CliError::Usage("--record-texts needs --record, the directory of the recording".to_owned())),
            false => Ok(Recorder::default()),
        };
    };
    let started = Recorder::start(directory, config.record_texts);
    started.map_err(CliError::io(format!("record requests in {}", directory.display())))
}

fn models_options(config: &Config, tracer: &Tracer, recorder: &Recorder) -> ModelsOptions {
    let (tracer, recorder) = (tracer.clone(), recorder.clone());
    ModelsOptions {
        runtime: RuntimeOptions { tracer, recorder, ..model::runtime_options(config) },
        memory_bytes: config.memory.map(|size| size.0),
        max_loaded_models: config.max_loaded_models,
        keep_alive: config.keep_alive,
        autoload: !config.no_autoload,
        any_name: config.any_model_name,
        load_timeout: config.load_timeout,
        max_waiting_calls: config.max_queued_requests,
        machine: Machine::now,
    }
}

/// The models of `--models-dir`.
fn models_directory(path: &Path, args: &Args, context: &Context) -> Result<ModelsDirectory, CliError> {
    let config = &context.config;
    if config.quantize.is_some() {
        return Err(CliError::Usage(
            "--quantize applies to models that are named on the command line, not to those of --models-dir".to_owned(),
        ));
    }
    if config.mmproj.is_some() && args.models.is_empty() {
        return Err(CliError::Usage(
            "--mmproj is for a model that the command line names; a model of --models-dir has it in its own directory"
                .to_owned(),
        ));
    }
    // A wrong setting fails here, and not at the first request.
    let options = model::load_options(config, context.tuned(), Source::File(path.to_owned()))?;
    let options = model::with_windows(options, config);
    let (replicas, tiers) = (config.replicas, model::tier_memory(config));
    let named = args.models.iter().map(|argument| split_name(argument).1.to_owned());
    let store = Arc::new(HubStore::new(context.hub(), path.to_owned()).keeping(named));
    let known = store.clone();
    let media = MediaSettings::of_config(config).of_each_model();
    let make = move |file: &Path| -> Arc<dyn ModelFactory> {
        let options = LoadOptions { source: Source::File(file.to_owned()), tiers, ..options.clone() };
        let media = media.clone();
        Arc::new(FoundModel { link: file.to_owned(), options, media, replicas, store: known.clone() })
    };
    let opened = ModelsDirectory::open(path, make);
    let directory = opened.map_err(CliError::io(format!("read the models directory {}", path.display())))?;
    Ok(if config.allow_pull { directory.with_store(store) } else { directory })
}

async fn serve(listener: TcpListener, models: Models, options: LiveOptions, config: &Config) -> Result<(), CliError> {
    let address = listener.local_addr().map_err(CliError::io("listen"))?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(CliError::io("listen"))?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut wait = stopped.clone();
    let shutdown = async move {
        // An error means that the sender is gone: the server stops then, too.
        let _ = wait.wait_for(|stop| *stop).await;
    };
    let mut server = tokio::spawn(api::serve_models(listener, models.clone(), options, shutdown));
    let ended = tokio::select! {
        // The server ends by itself only after an error.
        ended = &mut server => Some(ended),
        error = load_all(&models, address, config) => return Err(error),
        signal = async_runtime::stop_signal() => { signal?; None }
    };
    if let Some(ended) = ended {
        return served(ended);
    }
    let seconds = config.drain_timeout.as_secs();
    notice(&format!("stopping: running requests have {seconds} s to finish; press Ctrl-C again to stop them now"));
    // The models drain and the API refuses new requests; the listener closes after the last answer.
    let drained = async {
        models.shutdown(config.drain_timeout).await;
        let _ = stop.send(true);
        // The remaining connections are idle, or their clients do not read.
        tokio::time::timeout(Duration::from_secs(5), &mut server).await.map_or(Ok(()), served)
    };
    tokio::select! {
        result = drained => result,
        signal = async_runtime::stop_signal() => signal.and(Err(CliError::Interrupted)),
    }
}

fn served(ended: Result<std::io::Result<()>, tokio::task::JoinError>) -> Result<(), CliError> {
    ended.map_err(CliError::other)?.map_err(CliError::io("serve"))
}

/// Loads the models of the command line, prints when each is ready, and how to try the server. Resolves only on failure:
/// one of them cannot be loaded, or later all of them have failed.
async fn load_all(models: &Models, address: SocketAddr, config: &Config) -> CliError {
    let named = models.named();
    let load = |id: &String| {
        let id = id.clone();
        async move {
            models.load(&id).await?;
            ready::print_model(models, &id, address).await
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
        notice(&format!(
            "ready: {found} models of {} on http://{address}, each loaded on its first request",
            directory.path().display()
        ));
    }
    ready::print_first_request(models, address, config).await;
    if models.directory().is_some() {
        // If the models of the command line fail, those of the directory remain.
        return std::future::pending().await;
    }
    CliError::Failed(models.all_failed().await)
}

fn bind(host: &str, port: u16) -> Result<TcpListener, CliError> {
    let listener = TcpListener::bind((host, port)).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => CliError::Failed(format!(
            "port {port} on {host} is in use; stop the program that listens there, or choose another port with --port"
        )),
        std::io::ErrorKind::PermissionDenied => {
            CliError::Failed(format!("this user may not listen on port {port}; choose a port above 1023 with --port"))
        }
        _ => CliError::Io { what: format!("listen on {host}:{port}"), source: error },
    })?;
    listener.set_nonblocking(true).map_err(CliError::io("listen"))?;
    Ok(listener)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_reported_in_one_sentence() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = bind("127.0.0.1", port).unwrap_err().to_string();
        assert!(error.starts_with(&format!("port {port} on 127.0.0.1 is in use")), "{error}");
    }
}
