//! The tokens that a model puts around words: for the language, the task and times.
//!
//! Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", and the vocabulary of Whisper.

use std::ops::RangeInclusive;

use cuelight_engine::constraint::Grammar;
use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::sample::JointTokens;

use super::languages::code_of;
use super::task::Task;
use crate::serving::answers::Answer;
use crate::serving::error::ApiError;

/// Seconds from the time of a token to that of the next one.
const SECONDS: f64 = 0.02;
/// The first time of a clip is at most this many tokens after 0.
const LATEST_START: TokenId = 50;
/// The end of a text in the vocabulary of GPT-2, which only models of English alone have.
const END_IN_GPT2: TokenId = 50_256;

/// The tokens around words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marks {
    /// The codes of languages, in the order of their tokens. None of a model of English alone.
    languages: Vec<String>,
    first_language: TokenId,
    transcribe: TokenId,
    translate: TokenId,
    /// Says that no times follow.
    without_times: TokenId,
    /// From 0 seconds to the end of a window.
    times: RangeInclusive<TokenId>,
}

/// What a model hears in a window.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Heard {
    /// The code of the language.
    pub language: Option<String>,
    /// The parts of the text. Without times one.
    pub segments: Vec<Segment>,
}

/// Words between two times.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Segment {
    /// Seconds.
    pub start: f64,
    pub end: f64,
    pub text: String,
    pub tokens: Vec<TokenId>,
    /// The mean log-probability of the tokens, if there is one of each.
    pub logprob: Option<f64>,
}

impl Marks {
    /// Those of a vocabulary whose windows have this many times after 0; `None` if it has none.
    pub fn of(tokenizer: &Tokenizer, times: usize) -> Option<Self> {
        let token = |spelling: &str| match tokenizer.encode(spelling, false, true).as_deref() {
            Ok([token]) => Some(*token),
            _ => None,
        };
        let [start, translate, transcribe] = ["<|startoftranscript|>", "<|translate|>", "<|transcribe|>"].map(&token);
        let without_times = token("<|notimestamps|>")?;
        // Not every tokenizer has the tokens of times, which follow all others.
        let first_time = without_times + 1;
        let is_english = token("<|endoftext|>") == Some(END_IN_GPT2);
        let code = |token: TokenId| {
            let spelling = tokenizer.token_text(token);
            spelling.strip_prefix("<|").and_then(|rest| rest.strip_suffix("|>")).unwrap_or_default().to_owned()
        };
        let first_language = start? + 1;
        let languages = if is_english { Vec::new() } else { (first_language..translate?).map(code).collect() };
        Some(Marks {
            languages,
            first_language,
            transcribe: transcribe?,
            translate: translate?,
            without_times,
            times: first_time..=first_time + TokenId::try_from(times).ok()?,
        })
    }

    /// The tokens of times, which are weighed as one: the model is often sure that words end, and not when.
    pub fn joint_tokens(&self) -> JointTokens {
        JointTokens { first: *self.times.start(), last: *self.times.end() }
    }

    /// What the model writes of a clip: the language, the task, and words or words between times.
    ///
    /// # Errors
    /// [`ApiError`] for a language that the model does not know, or a task that it has not learnt.
    pub fn grammar(&self, language: Option<&str>, task: Task, has_times: bool) -> Result<Grammar, ApiError> {
        let (first, last) = (self.times.start(), self.times.end());
        let words = match has_times {
            false => format!("<[{}]> WORDS", self.without_times),
            true => format!("<[{first}-{}]> WORDS <[{first}-{last}]> part*", (first + LATEST_START).min(*last)),
        };
        let before = self.before_words(language, task)?;
        let part = format!("<[{first}-{last}]> WORDS <[{first}-{last}]>");
        // Some tokenizers have times as usual tokens, which are no words.
        let lark = format!("start: {before}{words}\npart: {part}\nWORDS: /([^<]|<[^|])+/\n");
        Ok(Grammar::Lark(lark))
    }

    /// The language and the task.
    fn before_words(&self, language: Option<&str>, task: Task) -> Result<String, ApiError> {
        let codes: Vec<&str> = self.languages.iter().map(String::as_str).collect();
        if codes.is_empty() {
            let is_english = language.is_none_or(|language| code_of(language, &["en"]).is_ok());
            if task == Task::Translate || !is_english {
                let message = "this model knows English only; use a model of several languages".to_owned();
                return Err(ApiError::Unsupported { param: "model".to_owned(), message });
            }
            return Ok(String::new());
        }
        let spoken = match language {
            None => format!("<[{}-{}]>", self.first_language, self.translate - 1),
            Some(language) => {
                let code = code_of(language, &codes)?;
                let index = codes.iter().position(|known| *known == code).unwrap_or_default();
                format!("<[{}]>", self.first_language as usize + index)
            }
        };
        let task = if task == Task::Translate { self.translate } else { self.transcribe };
        Ok(format!("{spoken} <[{task}]> "))
    }

    /// Reads the answer for a window of this many seconds.
    pub fn read(&self, answer: &Answer, seconds: f64, tokenizer: &Tokenizer) -> Heard {
        let mut heard = Heard::default();
        let mut open = Open::default();
        for (index, &token) in answer.tokens.iter().enumerate() {
            if self.times.contains(&token) {
                let at = f64::from(token - self.times.start()) * SECONDS;
                heard.segments.extend(open.close(at.min(seconds), tokenizer));
                open.start = at.min(seconds);
            } else if let Some(code) = self.language(token) {
                heard.language = Some(code.to_owned());
            } else if !tokenizer.is_special(token) {
                open.tokens.push(token);
                open.logprobs.extend(answer.logprobs.get(index).map(|logprobs| f64::from(logprobs.sampled.logprob)));
            }
        }
        heard.segments.extend(open.close(seconds, tokenizer));
        heard
    }

    fn language(&self, token: TokenId) -> Option<&str> {
        let index = token.checked_sub(self.first_language)? as usize;
        self.languages.get(index).map(String::as_str)
    }
}

/// Words whose end is not known yet.
#[derive(Default)]
struct Open {
    start: f64,
    tokens: Vec<TokenId>,
    logprobs: Vec<f64>,
}

impl Open {
    /// The words up to a time, if there are some.
    fn close(&mut self, end: f64, tokenizer: &Tokenizer) -> Option<Segment> {
        let Open { start, tokens, logprobs } = std::mem::take(self);
        let text = tokenizer.decode(&tokens, true);
        let is_complete = !tokens.is_empty() && logprobs.len() == tokens.len();
        let logprob = is_complete.then(|| logprobs.iter().sum::<f64>() / tokens.len() as f64);
        (!text.is_empty()).then_some(Segment { start, end: end.max(start), text, tokens, logprob })
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::simulation::marked_tokenizer;

    /// Tokens of bytes, the end, and from 257 on the start, two languages, two tasks, no times; then times.
    fn marks() -> Marks {
        Marks::of(&marked_tokenizer(), 100).unwrap()
    }

    fn heard(tokens: &[TokenId]) -> Heard {
        marks().read(&Answer { tokens: tokens.to_vec(), ..Answer::default() }, 1.9, &marked_tokenizer())
    }

    fn lark(language: Option<&str>, task: Task, has_times: bool) -> String {
        let Grammar::Lark(lark) = marks().grammar(language, task, has_times).unwrap() else { panic!() };
        lark.lines().next().unwrap().to_owned()
    }

    #[test]
    fn an_answer_has_the_language_the_task_and_words() {
        assert_eq!(lark(None, Task::Transcribe, false), "start: <[258-259]> <[261]> <[262]> WORDS");
        assert_eq!(lark(Some("German"), Task::Translate, false), "start: <[259]> <[260]> <[262]> WORDS");
        let timed = "start: <[258]> <[261]> <[263-313]> WORDS <[263-363]> part*";
        assert_eq!(lark(Some("en"), Task::Transcribe, true), timed);
        assert!(marks().grammar(Some("fr"), Task::Transcribe, false).is_err());
        assert_eq!(Marks::of(&crate::pipeline::simulation::tokenizer(), 100), None);
    }

    #[test]
    fn words_are_between_times() {
        let [a, b] = [u32::from(b'a'), u32::from(b'b')];
        let found = heard(&[259, 261, 263, a, b, 313, 323, b, 363, 256]);
        assert_eq!(found.language.as_deref(), Some("de"));
        let segment = |start, end, tokens: &[TokenId], text: &str| Segment {
            start,
            end,
            text: text.to_owned(),
            tokens: tokens.to_vec(),
            logprob: None,
        };
        // A time after the end of the window is its end.
        assert_eq!(found.segments, [segment(0.0, 1.0, &[a, b], "ab"), segment(1.2, 1.9, &[b], "b")]);
        let without = heard(&[258, 261, 262, a, b]);
        assert_eq!(without.segments, [segment(0.0, 1.9, &[a, b], "ab")]);
        assert_eq!(heard(&[258, 261, 263, 270]).segments, []);
    }
}
