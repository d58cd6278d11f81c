//! The forms of a transcript: JSON, text, subtitles.

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::granularity::Granularity;
use crate::api::fields::Fields;
use crate::serving::error::{ApiError, clip};
use crate::serving::transcription::heard::{Segment, Word};
use crate::serving::transcription::quality::Quality;
use crate::serving::transcription::subtitles::{self, Cue};
use crate::serving::transcription::word_times::SpeechEnd;

/// The field with the form.
const FIELD: &str = "response_format";

/// Frames of the spectrogram in a second, in which `seek` is counted.
const FRAMES_PER_SECOND: f64 = 100.0;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// An object with the text and the usage.
    Json,
    /// The text alone.
    Text,
    /// An object with the text, its parts and their times.
    VerboseJson,
    /// Subtitles of SubRip.
    Srt,
    /// Subtitles of the web (WebVTT).
    Vtt,
}

/// A transcript with times.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    pub text: String,
    /// The name of the language.
    pub language: String,
    /// `transcribe` or `translate`.
    pub task: &'static str,
    /// Seconds.
    pub duration: f64,
    pub parts: Vec<Part>,
    pub usage: Value,
    /// Where speech has ended in the parts so far.
    pub speech_end: SpeechEnd,
}

/// A segment and the window that it is from.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Where the window starts, in seconds.
    pub window_start: f64,
    pub segment: Segment,
    /// That of the words of the whole window.
    pub quality: Quality,
}

impl Format {
    const ALL: [(&str, Format); 5] = [
        ("json", Format::Json),
        ("text", Format::Text),
        ("verbose_json", Format::VerboseJson),
        ("srt", Format::Srt),
        ("vtt", Format::Vtt),
    ];

    /// Reads `response_format`.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let Some(asked) = fields.string(FIELD)? else { return Ok(Format::Json) };
        let known = Self::ALL.iter().find(|(name, _)| *name == asked).map(|(_, format)| *format);
        known.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            let message = format!("`{FIELD}` must be {}, not {}", names.join(", "), clip(asked));
            ApiError::Unsupported { param: FIELD.to_owned(), message }
        })
    }

    pub fn has_times(self) -> bool {
        matches!(self, Format::VerboseJson | Format::Srt | Format::Vtt)
    }

    /// Refuses forms with times.
    pub fn check_without_times(self) -> Result<(), ApiError> {
        if !self.has_times() {
            return Ok(());
        }
        let message = format!("`{FIELD}` must be \"json\" or \"text\": this model writes no times");
        Err(ApiError::Unsupported { param: FIELD.to_owned(), message })
    }

    /// A transcript without times.
    pub fn text(self, text: &str, usage: &Value) -> Response {
        match self {
            Format::Text => plain("text/plain", text.to_owned()),
            _ => Json(json!({ "text": text, "usage": usage })).into_response(),
        }
    }

    /// A transcript with times, if the form has some.
    pub fn response(self, transcript: &Transcript, granularity: Granularity) -> Response {
        match self {
            Format::Json | Format::Text => self.text(&transcript.text, &transcript.usage),
            Format::VerboseJson => Json(transcript.verbose(granularity)).into_response(),
            Format::Srt => plain("application/x-subrip", subtitles::srt(transcript.cues())),
            Format::Vtt => plain("text/vtt", subtitles::vtt(transcript.cues())),
        }
    }
}

fn plain(media_type: &str, text: String) -> Response {
    ([(header::CONTENT_TYPE, format!("{media_type}; charset=utf-8"))], text).into_response()
}

impl Transcript {
    fn verbose(&self, granularity: Granularity) -> Value {
        let mut verbose = json!({
            "task": self.task, "language": self.language, "duration": self.duration, "text": self.text,
            "usage": self.usage,
        });
        if granularity.segments {
            let segments = self.parts.iter().enumerate().map(|(id, part)| part.verbose(id));
            verbose["segments"] = segments.collect();
        }
        if granularity.words {
            let words = self.segments().flat_map(|segment| &segment.words);
            let word = |Word { text, start, end }: &Word| json!({ "word": text, "start": start, "end": end });
            verbose["words"] = words.map(word).collect();
        }
        verbose
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.parts.iter().map(|part| &part.segment)
    }

    fn cues(&self) -> impl Iterator<Item = Cue> {
        let cue = |Segment { start, end, text, .. }: &Segment| Cue { start: *start, end: *end, text: text.clone() };
        self.segments().map(cue)
    }
}

impl Part {
    fn verbose(&self, id: usize) -> Value {
        let Part { window_start, segment: Segment { start, end, text, tokens, .. }, quality } = self;
        json!({
            "id": id, "seek": (window_start * FRAMES_PER_SECOND).round() as u64, "start": start, "end": end, "text": text,
            "tokens": tokens, "temperature": decimal(quality.temperature), "avg_logprob": quality.logprob,
            "compression_ratio": quality.compression_ratio, "no_speech_prob": quality.no_speech,
        })
    }
}

/// The number as it is written in decimals: 0.2, not 0.20000000298.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| number.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let part = |start, end, text: &str| Part {
            window_start: 28.305,
            segment: Segment {
                start,
                end,
                text: text.to_owned(),
                words: vec![Word { text: "One.".to_owned(), start: 0.5, end: 1.5 }],
                ..Segment::default()
            },
            quality: Quality { temperature: 0.2, logprob: -0.5, compression_ratio: 1.25, no_speech: Some(0.125) },
        };
        Transcript {
            parts: vec![part(0.0, 1.5, " One."), part(61.02, 3723.4, " Two --> three.")],
            ..Transcript::default()
        }
    }

    #[test]
    fn the_verbose_form_has_the_parts() {
        let segment = json!({
            "id": 1, "seek": 2831, "start": 61.02, "end": 3723.4, "text": " Two --> three.", "tokens": [],
            "temperature": 0.2, "avg_logprob": -0.5, "compression_ratio": 1.25, "no_speech_prob": 0.125,
        });
        let verbose = |segments, words| transcript().verbose(Granularity { segments, words });
        assert_eq!(verbose(true, false)["segments"][1], segment);
        assert_eq!(verbose(true, false).get("words"), None);
        assert_eq!(verbose(false, true).get("segments"), None);
        let words = json!([{ "word": "One.", "start": 0.5, "end": 1.5 }, { "word": "One.", "start": 0.5, "end": 1.5 }]);
        assert_eq!(verbose(false, true)["words"], words);
    }
}
