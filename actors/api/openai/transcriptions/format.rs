//! The forms of a transcript: JSON, text, subtitles.

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::api::fields::Fields;
use crate::serving::error::{ApiError, clip};
use crate::serving::transcription::heard::Segment;
use crate::serving::transcription::quality::Quality;

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

    /// Reads `response_format` and `timestamp_granularities`.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        for name in ["timestamp_granularities", "timestamp_granularities[]"] {
            if fields.string(name)?.is_some_and(|granularity| granularity == "word") {
                let message = format!("`{name}` must be \"segment\": words have no times of their own");
                return Err(ApiError::Unsupported { param: name.to_owned(), message });
            }
        }
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
    pub fn response(self, transcript: &Transcript) -> Response {
        match self {
            Format::Json | Format::Text => self.text(&transcript.text, &transcript.usage),
            Format::VerboseJson => Json(transcript.verbose()).into_response(),
            Format::Srt => plain("application/x-subrip", transcript.srt()),
            Format::Vtt => plain("text/vtt", transcript.vtt()),
        }
    }
}

fn plain(media_type: &str, text: String) -> Response {
    ([(header::CONTENT_TYPE, format!("{media_type}; charset=utf-8"))], text).into_response()
}

impl Transcript {
    fn verbose(&self) -> Value {
        json!({
            "task": self.task, "language": self.language, "duration": self.duration, "text": self.text,
            "segments": self.parts.iter().enumerate().map(|(id, part)| part.verbose(id)).collect::<Vec<_>>(),
            "usage": self.usage,
        })
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.parts.iter().map(|part| &part.segment)
    }

    fn srt(&self) -> String {
        let entry = |(index, Segment { start, end, text, .. }): (usize, &Segment)| {
            format!("{}\n{} --> {}\n{}\n\n", index + 1, time(*start, ','), time(*end, ','), text.trim())
        };
        self.segments().enumerate().map(entry).collect()
    }

    fn vtt(&self) -> String {
        let entry = |Segment { start, end, text, .. }: &Segment| {
            // An arrow would be read as times.
            format!("{} --> {}\n{}\n\n", time(*start, '.'), time(*end, '.'), text.trim().replace("-->", "->"))
        };
        "WEBVTT\n\n".to_owned() + &self.segments().map(entry).collect::<String>()
    }
}

impl Part {
    fn verbose(&self, id: usize) -> Value {
        let Part { window_start, segment: Segment { start, end, text, tokens }, quality } = self;
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

/// `00:01:02.345`.
fn time(seconds: f64, point: char) -> String {
    let all = (seconds * 1000.0).round() as u64;
    let (hours, minutes) = (all / 3_600_000, all / 60_000 % 60);
    format!("{hours:02}:{minutes:02}:{:02}{point}{:03}", all / 1000 % 60, all % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let part = |start, end, text: &str| Part {
            window_start: 28.305,
            segment: Segment { start, end, text: text.to_owned(), ..Segment::default() },
            quality: Quality { temperature: 0.2, logprob: -0.5, compression_ratio: 1.25, no_speech: Some(0.125) },
        };
        Transcript {
            parts: vec![part(0.0, 1.5, " One."), part(61.02, 3723.4, " Two --> three.")],
            ..Transcript::default()
        }
    }

    #[test]
    fn subtitles_have_numbers_and_times() {
        assert_eq!(
            transcript().srt(),
            "1\n00:00:00,000 --> 00:00:01,500\nOne.\n\n2\n00:01:01,020 --> 01:02:03,400\nTwo --> three.\n\n"
        );
        assert_eq!(
            transcript().vtt(),
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne.\n\n00:01:01.020 --> 01:02:03.400\nTwo -> three.\n\n"
        );
    }

    #[test]
    fn the_verbose_form_has_the_parts() {
        let segment = json!({
            "id": 1, "seek": 2831, "start": 61.02, "end": 3723.4, "text": " Two --> three.", "tokens": [],
            "temperature": 0.2, "avg_logprob": -0.5, "compression_ratio": 1.25, "no_speech_prob": 0.125,
        });
        assert_eq!(transcript().verbose()["segments"][1], segment);
    }
}
