//! Reading an answer cheaply: server-sent events out of bytes, and of each chunk only what is measured.
//!
//! The client shares the machine with the server it measures, so a chunk's text is looked at and not kept.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Bytes of a stream that are not a whole line yet.
#[derive(Debug, Default)]
pub struct EventBuffer {
    pending: Vec<u8>,
}

impl EventBuffer {
    /// Takes what arrived, and passes on what stands after `data:` in each line that is now whole.
    ///
    /// The servers measured here put an event's data on one line, which the standard does not require.
    ///
    /// # Errors
    /// The first error of `each`; what came after it is lost.
    pub fn push<E>(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.pending.extend_from_slice(bytes);
        let mut taken = 0;
        while let Some(length) = self.pending[taken..].iter().position(|&byte| byte == b'\n') {
            let line = &self.pending[taken..taken + length];
            taken += length + 1;
            if let Some(data) = line.strip_prefix(b"data:") {
                each(data.trim_ascii())?;
            }
        }
        self.pending.drain(..taken);
        Ok(())
    }
}

/// Of a streamed chunk, or of a whole answer, what is measured. Chat and text completions alike.
#[derive(Debug, Default, Deserialize)]
pub struct Chunk {
    /// The answers that it carries a piece of.
    #[serde(default)]
    pub choices: Vec<Choice>,
    /// The server's count, on the last chunk.
    pub usage: Option<Usage>,
    /// What went wrong in the middle.
    pub error: Option<ErrorText>,
}

/// A piece of an answer.
#[derive(Debug, Default, Deserialize)]
pub struct Choice {
    /// Of a streamed chat.
    delta: Option<Words>,
    /// Of a chat in one piece.
    message: Option<Words>,
    /// Of a text completion.
    #[serde(default)]
    text: HasText,
    /// Set on the last piece.
    #[serde(default)]
    finish_reason: HasText,
}

/// What a chat message says; thoughts are tokens too.
#[derive(Debug, Default, Deserialize)]
struct Words {
    #[serde(default)]
    content: HasText,
    #[serde(default)]
    reasoning_content: HasText,
    #[serde(default)]
    reasoning: HasText,
}

impl Chunk {
    /// Whether anything was said.
    #[must_use]
    pub fn has_text(&self) -> bool {
        self.choices.iter().any(|choice| {
            let said = choice.delta.as_ref().or(choice.message.as_ref());
            let said = said.is_some_and(|words| words.content.0 || words.reasoning_content.0 || words.reasoning.0);
            said || choice.text.0
        })
    }

    /// Whether an answer ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.choices.iter().any(|choice| choice.finish_reason.0)
    }
}

/// The server's count of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    #[serde(default)]
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    #[serde(default)]
    pub completion_tokens: usize,
    /// Where those of the prompt came from.
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<usize>,
}

impl Usage {
    /// Tokens of the prompt that were not computed; `None` where the server does not tell.
    #[must_use]
    pub fn cached_tokens(&self) -> Option<usize> {
        self.prompt_tokens_details?.cached_tokens
    }
}

/// Whether a string has any characters; the string itself is not kept. `null` has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HasText(bool);

impl<'de> Deserialize<'de> for HasText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Look;
        impl<'de> Visitor<'de> for Look {
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
        deserializer.deserialize_any(Look)
    }
}

/// What a server says of an error: `{"message": "…"}` in OpenAI's words, a bare string in others'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorText(pub String);

impl<'de> Deserialize<'de> for ErrorText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Look;
        impl<'de> Visitor<'de> for Look {
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
        deserializer.deserialize_any(Look)
    }
}

/// The sentence in the body of a refusal, cut to a line.
#[must_use]
pub fn refusal(body: &[u8]) -> String {
    /// OpenAI's `error`, FastAPI's `detail`, and a bare `message`.
    #[derive(Deserialize)]
    struct Body {
        error: Option<ErrorText>,
        message: Option<String>,
        detail: Option<ErrorText>,
    }
    const LONGEST: usize = 200;
    let told = serde_json::from_slice::<Body>(body).ok().and_then(|body| {
        let told = body.error.or(body.detail).map(|error| error.0).filter(|text| !text.is_empty());
        told.or(body.message)
    });
    let text = told.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().take(LONGEST).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn chunk(json: &str) -> Chunk {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
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
    fn text_is_seen_in_every_dialect() {
        for said in [
            r#"{"choices":[{"index":0,"delta":{"content":"a\n\u00e9"}}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","content":null,"reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"text":"a","logprobs":null,"finish_reason":null}]}"#,
            r#"{"choices":[{"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}"#,
        ] {
            assert!(chunk(said).has_text(), "{said}");
        }
        for silent in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{"content":null}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#,
            r#"{"choices":[]}"#,
            "{}",
        ] {
            assert!(!chunk(silent).has_text(), "{silent}");
        }
        assert!(chunk(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#).is_finished());
        assert!(!chunk(r#"{"choices":[{"delta":{},"finish_reason":null}]}"#).is_finished());
    }

    #[test]
    fn usage_tells_what_came_from_the_cache_when_the_server_does() {
        let usage = |json: &str| chunk(json).usage.unwrap();
        let told =
            usage(r#"{"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}}"#);
        assert_eq!((told.prompt_tokens, told.completion_tokens, told.cached_tokens()), (9, 4, Some(8)));
        let untold = usage(r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}"#);
        assert_eq!((untold.completion_tokens, untold.cached_tokens()), (0, None));
    }

    #[test]
    fn a_refusal_is_one_line_whoever_says_it() {
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
