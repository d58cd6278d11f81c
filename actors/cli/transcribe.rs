//! `cuelight transcribe`: what is said in recordings, without a server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use futures_util::StreamExt;
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use super::local_routes::local_routes;
use super::model::PlanDetail;
use super::run::start;
use super::server_options::server_options;
use super::terminal::print;
use super::{CliError, Context, async_runtime, model_help};
use crate::api::ServerOptions;
use crate::config::Given;
use crate::config::flags::{Flags, ModelFlags};
use crate::serving::media_limits::MediaLimits;
use crate::serving::transcription::subtitles::{self, Cue};

/// The form of a transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// The words.
    Text,
    /// SubRip subtitles.
    Srt,
    /// Subtitles for the web.
    Vtt,
    /// A JSON object with the parts of the text and their times.
    Json,
}

/// Write what is said in recordings, as text or subtitles.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight transcribe ./whisper-base talk.mp3
  cuelight transcribe openai/whisper-large-v3-turbo talk.mp3 --format srt
  cuelight transcribe ./whisper-base *.wav --format vtt --output subtitles
  cuelight transcribe ./whisper-base talk.mp3 --format json --words

Times need a model of the family Whisper. Another model with an audio encoder writes text.")]
pub struct Args {
    #[arg(value_name = "MODEL", help = model_help::model())]
    model: String,
    /// The recordings: WAV, MP3, FLAC, Ogg Vorbis, Opus, WebM or AAC files.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The form of the transcript.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Give each word its time: in the list `words` of JSON, or a subtitle for each.
    #[arg(long, conflicts_with = "translate")]
    words: bool,
    /// The language that is spoken, such as en or German; without it, the model finds it.
    #[arg(long, value_name = "LANGUAGE")]
    language: Option<String>,
    /// Write in English, whatever language is spoken.
    #[arg(long)]
    translate: bool,
    /// Text that comes before, for the spelling of names and terms.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Write a file into this directory for each recording, and not to standard output.
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags<ModelFlags>,
}

impl Format {
    /// The value of `response_format`.
    fn field(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::Srt => "srt",
            Format::Vtt => "vtt",
            Format::Json => "verbose_json",
        }
    }

    /// The ending of a file.
    fn ending(self) -> &'static str {
        match self {
            Format::Text => "txt",
            Format::Srt => "srt",
            Format::Vtt => "vtt",
            Format::Json => "json",
        }
    }
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.flags.given()
    }

    /// The form of the answers of which transcripts are made.
    fn answer_format(&self) -> Format {
        if self.words { Format::Json } else { self.format }
    }

    /// The fields of a request.
    fn fields(&self, is_streamed: bool) -> Vec<(&'static str, &str)> {
        let mut fields = vec![("response_format", self.answer_format().field())];
        let granularities = ["segment", "word"].into_iter().take(if self.words { 2 } else { 0 });
        fields.extend(granularities.map(|granularity| ("timestamp_granularities[]", granularity)));
        fields.extend(self.language.as_deref().map(|language| ("language", language)));
        fields.extend(self.prompt.as_deref().map(|prompt| ("prompt", prompt)));
        fields.extend(is_streamed.then_some(("stream", "true")));
        fields
    }

    fn route(&self) -> &'static str {
        if self.translate { "/v1/audio/translations" } else { "/v1/audio/transcriptions" }
    }
}

/// Writes the transcripts.
///
/// # Errors
/// [`CliError`] when a file or the model cannot be read, or a transcript cannot be written.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    if args.words && args.format == Format::Text {
        let message = "--words needs a form with times; use --format json, srt or vtt";
        return Err(CliError::Failed(message.to_owned()));
    }
    for file in &args.files {
        std::fs::metadata(file).map_err(CliError::io(format!("read {}", file.display())))?;
    }
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder).map_err(CliError::io(format!("create {}", folder.display())))?;
    }
    let tokio = async_runtime::tokio_runtime()?;
    let started = start::start(&args.model, PlanDetail::Line, context, &tokio)?;
    let options = of_own_files(server_options(&context.config)?);
    let router = local_routes(&args.model, &started, options, &context.config)?;
    let ended = tokio.block_on(async {
        let ended = tokio::select! {
            ended = transcribe_all(args, &router, context) => ended,
            signal = async_runtime::stop_signal() => signal.and(Err(CliError::Interrupted)),
        };
        started.runtime.shutdown(Duration::from_secs(1)).await;
        ended
    });
    tokio.shutdown_background();
    ended
}

/// The options without limits that protect a server from its clients.
fn of_own_files(options: ServerOptions) -> ServerOptions {
    const DAY: usize = 24 * 60 * 60;
    ServerOptions {
        max_body_bytes: usize::MAX,
        request_memory_bytes: usize::MAX,
        request_timeout: None,
        media: MediaLimits { audio_bytes: usize::MAX, audio_seconds: DAY, ..options.media },
        ..options
    }
}

async fn transcribe_all(args: &Args, router: &Router, context: &Context) -> Result<(), CliError> {
    for file in &args.files {
        if args.files.len() > 1 {
            context.terminal.notice(&file.display().to_string());
        }
        match &args.output {
            None if args.format == Format::Text => print_as_heard(send(args, router, file, true).await?).await?,
            None => print(&transcript(args, router, file).await?)?,
            Some(folder) => {
                let path = named_after(file, folder, args.format);
                let text = transcript(args, router, file).await?;
                std::fs::write(&path, text).map_err(CliError::io(format!("write {}", path.display())))?;
                context.terminal.notice(&format!("wrote {}", path.display()));
            }
        }
    }
    Ok(())
}

/// The transcript of a file.
async fn transcript(args: &Args, router: &Router, file: &Path) -> Result<String, CliError> {
    let text = text_of(send(args, router, file, false).await?).await?;
    let write: fn(Vec<Cue>) -> String = match args.format {
        Format::Srt if args.words => subtitles::srt,
        Format::Vtt if args.words => subtitles::vtt,
        Format::Json => return Ok(text + "\n"),
        _ => return Ok(text),
    };
    Ok(write(cues_of_words(&serde_json::from_str(&text).map_err(CliError::other)?)))
}

/// A cue for each word of a transcript.
fn cues_of_words(transcript: &Value) -> Vec<Cue> {
    let cue = |word: &Value| {
        let seconds = |name: &str| word[name].as_f64().unwrap_or_default();
        let text = word["word"].as_str().unwrap_or_default().to_owned();
        Cue { start: seconds("start"), end: seconds("end"), text }
    };
    transcript["words"].as_array().into_iter().flatten().map(cue).collect()
}

/// The file of a transcript.
fn named_after(file: &Path, folder: &Path, format: Format) -> PathBuf {
    folder.join(file.file_stem().unwrap_or_default()).with_added_extension(format.ending())
}

/// Sends a file, and returns the body of the answer.
async fn send(args: &Args, router: &Router, file: &Path, is_streamed: bool) -> Result<Body, CliError> {
    let bytes = std::fs::read(file).map_err(CliError::io(format!("read {}", file.display())))?;
    let border = uuid::Uuid::new_v4().simple().to_string();
    let content_type = format!("multipart/form-data; boundary={border}");
    let body = form(&border, &args.fields(is_streamed), &bytes);
    let request = Request::post(args.route()).header(CONTENT_TYPE, content_type).body(Body::from(body));
    let request = request.expect("the route and the header are valid");
    let Ok(response) = router.clone().oneshot(request).await;
    if response.status().is_success() {
        return Ok(response.into_body());
    }
    let error: Value = serde_json::from_str(&text_of(response.into_body()).await?).unwrap_or_default();
    Err(failure(&error, Some(file)))
}

/// The body of a form.
fn form(border: &str, fields: &[(&str, &str)], file: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(file.len() + 1024);
    for (name, value) in fields {
        let part = format!("--{border}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend(part.into_bytes());
    }
    let start = format!("--{border}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"audio\"\r\n\r\n");
    body.extend(start.into_bytes());
    body.extend(file);
    body.extend(format!("\r\n--{border}--\r\n").into_bytes());
    body
}

async fn text_of(body: Body) -> Result<String, CliError> {
    let bytes = body.collect().await.map_err(CliError::other)?.to_bytes();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Prints the words of a stream as they are heard.
async fn print_as_heard(body: Body) -> Result<(), CliError> {
    let mut lines = Lines { stream: body.into_data_stream(), rest: Vec::new() };
    while let Some(line) = lines.next().await? {
        let Some(event) = line.strip_prefix("data: ") else { continue };
        let event: Value = serde_json::from_str(event).map_err(CliError::other)?;
        match (event["type"].as_str(), event["delta"].as_str()) {
            (Some("transcript.text.delta"), Some(delta)) => print(delta)?,
            (Some(_), _) => {}
            (None, _) => return Err(failure(&event, None)),
        }
    }
    print("\n")
}

/// The lines of a body.
struct Lines {
    stream: BodyDataStream,
    rest: Vec<u8>,
}

impl Lines {
    async fn next(&mut self) -> Result<Option<String>, CliError> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()));
            }
            match self.stream.next().await {
                Some(bytes) => self.rest.extend(bytes.map_err(CliError::other)?),
                None => return Ok(None),
            }
        }
    }
}

/// The error of an answer.
fn failure(error: &Value, file: Option<&Path>) -> CliError {
    let message = error["error"]["message"].as_str().unwrap_or("the transcript was broken off");
    CliError::Failed(match file {
        Some(file) => format!("{}: {message}", file.display()),
        None => message.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_has_a_cue() {
        let words = serde_json::json!({ "words": [{ "word": "One.", "start": 0.5, "end": 1.25 }] });
        assert_eq!(subtitles::srt(cues_of_words(&words)), "1\n00:00:00,500 --> 00:00:01,250\nOne.\n\n");
        assert_eq!(cues_of_words(&Value::Null), []);
    }

    #[test]
    fn a_transcript_is_named_after_its_recording() {
        let named = |file: &str| named_after(Path::new(file), Path::new("out"), Format::Srt);
        assert_eq!(named("a/talk.mp3"), Path::new("out/talk.srt"));
        assert_eq!(named("talk.2026.wav"), Path::new("out/talk.2026.srt"));
    }
}
