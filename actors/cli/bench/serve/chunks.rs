//! Reading an answer cheaply: server-sent events from bytes, and from each chunk only the measured fields.
//!
//! The client shares the machine with the server that it measures, so it does not store the text of chunks.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The bytes of a stream's incomplete last line.
#[derive(Debug, Default)]
pub struct EventBuffer {
    pending: Vec<u8>,
}

impl EventBuffer {
    /// Adds received bytes, and calls `each` with the text after `data:` of each complete line.
    ///
    /// The servers measured here put an event's data on one line, which the standard does not require.
    ///
    /// # Errors
    /// The first error of `each`; later lines of `bytes` are dropped.
    pub fn push<E>(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.pending.extend_from_slice(bytes);
        let mut consumed = 0;
        while let Some(length) = self.pending[consumed..].iter().position(|&byte| byte == b'\n') {
            let line = &self.pending[consumed..consumed + length];
            consumed += length + 1;
            if let Some(data) = line.strip_prefix(b"data:") {
                each(data.trim_ascii())?;
            }
        }
        self.pending.drain(..consumed);
        Ok(())
    }
}

/// The measured fields of a streamed chunk or of a whole answer, for chat and text completions.
#[derive(Debug, Default, Deserialize)]
pub struct Chunk {
    /// The answers with a piece in this chunk.
    #[serde(default)]
    pub choices: Vec<Choice>,
    /// The server's token counts, on the last chunk.
    pub usage: Option<Usage>,
    /// An error event.
    pub error: Option<ErrorText>,
}

/// A piece of an answer.
#[derive(Debug, Default, Deserialize)]
pub struct Choice {
    /// The piece of a streamed chat.
    delta: Option<Message>,
    /// The message of a chat without streaming.
    message: Option<Message>,
    /// The text of a text completion.
    #[serde(default)]
    text: HasText,
    /// Set on the last piece.
    #[serde(default)]
    finish_reason: HasText,
}

/// A chat message. Reasoning counts as text.
#[derive(Debug, Default, Deserialize)]
struct Message {
    #[serde(default)]
    content: HasText,
    #[serde(default)]
    reasoning_content: HasText,
    #[serde(default)]
    reasoning: HasText,
}

impl Chunk {
    /// Whether the chunk has text.
    #[must_use]
    pub fn has_text(&self) -> bool {
        self.choices.iter().any(|choice| {
            let message = choice.delta.as_ref().or(choice.message.as_ref());
            let has_text = |message: &Message| message.content.0 || message.reasoning_content.0 || message.reasoning.0;
            choice.text.0 || message.is_some_and(has_text)
        })
    }

    /// Whether an answer ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.choices.iter().any(|choice| choice.finish_reason.0)
    }
}

/// The token counts that a server reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    #[serde(default)]
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    #[serde(default)]
    pub completion_tokens: usize,
    /// Details of the prompt tokens.
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<usize>,
}

impl Usage {
    /// Prompt tokens from the cache; `None` if the server does not report them.
    #[must_use]
    pub fn cached_tokens(&self) -> Option<usize> {
        self.prompt_tokens_details?.cached_tokens
    }
}

/// Whether a string is not empty; the string itself is not stored. `null` counts as empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HasText(bool);

impl<'de> Deserialize<'de> for HasText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = HasText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }

            fn visit_str<E>(self, text: &str) -> Result<HasText, E> {
                Ok(HasText(!text.is_empty()))
            }

            fn visit_unit<E>(self) -> Result<HasText, E> {
                Ok(HasText(false))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}

/// An error message: `{"message": "…"}` in OpenAI's format, a plain string in others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorText(pub String);

impl<'de> Deserialize<'de> for ErrorText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ErrorVisitor;
        impl<'de> Visitor<'de> for ErrorVisitor {
            type Value = ErrorText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an error")
            }

            fn visit_str<E>(self, text: &str) -> Result<ErrorText, E> {
                Ok(ErrorText(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ErrorText, A::Error> {
                let mut message = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key == "message" {
                        message = map.next_value::<Option<String>>()?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(ErrorText(message.unwrap_or_default()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ErrorText, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(ErrorText(String::new()))
            }
        }
        deserializer.deserialize_any(ErrorVisitor)
    }
}

/// The message in the body of a refusal, cut to one line.
#[must_use]
pub fn refusal(body: &[u8]) -> String {
    /// OpenAI's `error`, FastAPI's `detail`, and a plain `message`.
    #[derive(Deserialize)]
    struct Body {
        error: Option<ErrorText>,
        message: Option<String>,
        detail: Option<ErrorText>,
    }
    const LONGEST: usize = 200;
    let message = serde_json::from_slice::<Body>(body).ok().and_then(|body| {
        let error = body.error.or(body.detail).map(|error| error.0).filter(|text| !text.is_empty());
        error.or(body.message)
    });
    let text = message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().take(LONGEST).collect()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(json: &str) -> Chunk {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn events_are_found_for_every_split_of_the_bytes() {
        let stream = "data: one\r\n\r\n: ping\n\nevent: x\ndata:two\n\ndata: [DONE]\n\n".as_bytes();
        for size in 1..=stream.len() {
            let (mut buffer, mut found) = (EventBuffer::default(), Vec::new());
            for bytes in stream.chunks(size) {
                let each = |data: &[u8]| -> Result<(), ()> {
                    found.push(String::from_utf8(data.to_vec()).unwrap());
                    Ok(())
                };
                buffer.push(bytes, each).unwrap();
            }
            assert_eq!(found, ["one", "two", "[DONE]"], "{size} bytes at a time");
        }
    }

    #[test]
    fn text_is_found_in_every_format() {
        for with_text in [
            r#"{"choices":[{"index":0,"delta":{"content":"a\n\u00e9"}}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","content":null,"reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"text":"a","logprobs":null,"finish_reason":null}]}"#,
            r#"{"choices":[{"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}"#,
        ] {
            assert!(chunk(with_text).has_text(), "{with_text}");
        }
        for without_text in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{"content":null}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#,
            r#"{"choices":[]}"#,
            "{}",
        ] {
            assert!(!chunk(without_text).has_text(), "{without_text}");
        }
        assert!(chunk(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#).is_finished());
        assert!(!chunk(r#"{"choices":[{"delta":{},"finish_reason":null}]}"#).is_finished());
    }

    #[test]
    fn cached_tokens_are_known_if_the_server_reports_them() {
        let usage = |json: &str| chunk(json).usage.unwrap();
        let reported =
            usage(r#"{"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}}"#);
        assert_eq!((reported.prompt_tokens, reported.completion_tokens, reported.cached_tokens()), (9, 4, Some(8)));
        let unreported = usage(r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}"#);
        assert_eq!((unreported.completion_tokens, unreported.cached_tokens()), (0, None));
    }

    #[test]
    fn a_refusal_of_any_server_is_one_line() {
        for (body, line) in [
            (r#"{"error":{"message":"no such model","code":404}}"#, "no such model"),
            (r#"{"error":"busy"}"#, "busy"),
            (r#"{"object":"error","message":"too long","type":"x"}"#, "too long"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            ("<html>\n<body>", "<html>"),
            ("", ""),
        ] {
            assert_eq!(refusal(body.as_bytes()), line);
        }
        assert_eq!(refusal("é".repeat(999).as_bytes()).chars().count(), 200);
        assert_eq!(chunk(r#"{"error":{"message":"lost","type":"server_error"}}"#).error.unwrap().0, "lost");
    }
}
