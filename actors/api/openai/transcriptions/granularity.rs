//! What has times in a transcript.

use serde_json::Value;

use crate::api::fields::{Fields, wrong_type};
use crate::serving::error::{ApiError, clip};
use crate::serving::transcription::task::Task;

/// The names of the field: that of lists in forms, and the plain one.
const FIELDS: [&str; 2] = ["timestamp_granularities[]", "timestamp_granularities"];

/// What has times in an object with times (`verbose_json`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Granularity {
    pub segments: bool,
    pub words: bool,
}

impl Granularity {
    /// Without a field, segments have times.
    const DEFAULT: Granularity = Granularity { segments: true, words: false };

    /// Reads the field. `is_verbose` says that the form is an object with times.
    ///
    /// # Errors
    /// [`ApiError`] for other values, and for words where they have no times.
    pub fn read(fields: &Fields<'_>, is_verbose: bool, task: Task, is_streamed: bool) -> Result<Self, ApiError> {
        let Some(name) = FIELDS.into_iter().find(|name| fields.get(name).is_some()) else { return Ok(Self::DEFAULT) };
        let found = Self::of(fields.get(name).unwrap_or(&Value::Null), name)?;
        let refuse = |message: &str| {
            let message = format!("`{name}` \"word\" {message}");
            Err(ApiError::Unsupported { param: name.to_owned(), message })
        };
        match (is_verbose, task) {
            _ if !found.words => Ok(found),
            (_, Task::Translate) => {
                refuse("is not supported: the words of a translation are not those that are spoken")
            }
            _ if is_streamed => refuse("is not supported in a stream, whose events have no times; leave `stream` out"),
            (true, _) => Ok(found),
            (false, _) => refuse("needs `response_format` \"verbose_json\""),
        }
    }

    /// A value, or a list of some.
    fn of(value: &Value, name: &str) -> Result<Self, ApiError> {
        let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let mut found = Granularity { segments: false, words: false };
        for value in listed {
            match value.as_str().ok_or_else(|| wrong_type(name, "\"segment\" or \"word\"", value))? {
                "segment" => found.segments = true,
                "word" => found.words = true,
                other => {
                    let message = format!("`{name}` must be \"segment\" or \"word\", not {}", clip(other));
                    return Err(ApiError::invalid(name, message));
                }
            }
        }
        Ok(if listed.is_empty() { Self::DEFAULT } else { found })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value, is_verbose: bool, task: Task, is_streamed: bool) -> Result<(bool, bool), String> {
        let body = json!({ "timestamp_granularities[]": value });
        let fields = Fields::of_body(&body).expect("an object");
        let found = Granularity::read(&fields, is_verbose, task, is_streamed).map_err(|error| error.to_string())?;
        Ok((found.segments, found.words))
    }

    #[test]
    fn segments_words_or_both_have_times() {
        let verbose = |value| read(value, true, Task::Transcribe, false);
        assert_eq!(verbose(Value::Null), Ok((true, false)));
        assert_eq!(verbose(json!([])), Ok((true, false)));
        assert_eq!(verbose(json!(["word"])), Ok((false, true)));
        assert_eq!(verbose(json!("word")), Ok((false, true)));
        assert_eq!(verbose(json!(["segment", "word"])), Ok((true, true)));
        assert!(verbose(json!(["letter"])).is_err_and(|error| error.contains("not letter")));
        assert!(verbose(json!([7])).is_err());
    }

    #[test]
    fn words_need_the_form_with_times_and_a_transcript() {
        for (is_verbose, task, is_streamed, reason) in [
            (false, Task::Transcribe, false, "needs `response_format` \"verbose_json\""),
            (true, Task::Translate, false, "translation"),
            (true, Task::Transcribe, true, "stream"),
        ] {
            let error = read(json!(["word"]), is_verbose, task, is_streamed).expect_err("it is refused");
            assert!(error.contains(reason), "{error}");
            assert_eq!(read(json!(["segment"]), is_verbose, task, is_streamed), Ok((true, false)));
        }
    }
}
