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
use crate::serving::error::ApiError;

/// Seconds from the time of a token to that of the next one, and from a row of the encoder to the next one.
pub(super) const SECONDS: f64 = 0.02;
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
    no_speech: Option<TokenId>,
    /// Says that no times follow.
    without_times: TokenId,
    /// From 0 seconds to the end of a window.
    times: RangeInclusive<TokenId>,
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
            // The name in older vocabularies is the second.
            no_speech: token("<|nospeech|>").or_else(|| token("<|nocaptions|>")),
            without_times,
            times: first_time..=first_time + TokenId::try_from(times).ok()?,
        })
    }

    /// The tokens of times, which are weighed as one: the model is often sure that words end, and not when.
    pub fn joint_tokens(&self) -> JointTokens {
        JointTokens { first: *self.times.start(), last: *self.times.end() }
    }

    /// What the model writes of a clip: the language, the task, and words or words between times. With times it may write no words.
    ///
    /// # Errors
    /// [`ApiError`] for a language that the model does not know, or a task that it has not learnt.
    pub fn grammar(&self, language: Option<&str>, task: Task, has_times: bool) -> Result<Grammar, ApiError> {
        let (first, last) = (self.times.start(), self.times.end());
        let words = match has_times {
            false => format!("<[{}]> WORDS", self.without_times),
            true => format!("<[{first}-{}]> (WORDS <[{first}-{last}]> part*)?", (first + LATEST_START).min(*last)),
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

    /// The tokens before words in this language, without times. A model of English alone has no tokens of language and task.
    pub fn before_words_of(&self, language: Option<&str>, task: Task) -> Vec<TokenId> {
        let index = self.languages.iter().position(|known| Some(known.as_str()) == language);
        let task = if task == Task::Translate { self.translate } else { self.transcribe };
        let spoken = self.first_language + index.unwrap_or_default() as TokenId;
        let before = if self.languages.is_empty() { vec![] } else { vec![spoken, task] };
        before.into_iter().chain([self.without_times]).collect()
    }

    /// The time that a token stands for, in seconds from the start of the window.
    pub fn seconds(&self, token: TokenId) -> Option<f64> {
        self.times.contains(&token).then(|| f64::from(token - self.times.start()) * SECONDS)
    }

    /// The code of the language that a token stands for.
    pub fn language(&self, token: TokenId) -> Option<&str> {
        let index = token.checked_sub(self.first_language)? as usize;
        self.languages.get(index).map(String::as_str)
    }

    /// The token whose probability at the place of the language is that of silence.
    pub fn no_speech(&self) -> Option<TokenId> {
        self.no_speech
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::simulation::marked_tokenizer;

    /// Tokens of bytes, the end, and from 257 on the start, two languages, two tasks, silence, no times; then times.
    fn marks() -> Marks {
        Marks::of(&marked_tokenizer(), 100).unwrap()
    }

    fn lark(language: Option<&str>, task: Task, has_times: bool) -> String {
        let Grammar::Lark(lark) = marks().grammar(language, task, has_times).unwrap() else { panic!() };
        lark.lines().next().unwrap().to_owned()
    }

    #[test]
    fn an_answer_has_the_language_the_task_and_words() {
        assert_eq!(lark(None, Task::Transcribe, false), "start: <[258-259]> <[261]> <[263]> WORDS");
        assert_eq!(lark(Some("German"), Task::Translate, false), "start: <[259]> <[260]> <[263]> WORDS");
        let timed = "start: <[258]> <[261]> <[264-314]> (WORDS <[264-364]> part*)?";
        assert_eq!(lark(Some("en"), Task::Transcribe, true), timed);
        assert!(marks().grammar(Some("fr"), Task::Transcribe, false).is_err());
        assert_eq!(Marks::of(&crate::pipeline::simulation::tokenizer(), 100), None);
    }

    #[test]
    fn words_without_times_have_tokens_before_them() {
        assert_eq!(marks().before_words_of(Some("de"), Task::Transcribe), [259, 261, 263]);
        assert_eq!(marks().before_words_of(None, Task::Translate), [258, 260, 263]);
        let english = Marks { languages: Vec::new(), ..marks() };
        assert_eq!(english.before_words_of(Some("en"), Task::Transcribe), [263]);
    }

    #[test]
    fn tokens_stand_for_times_languages_and_silence() {
        let marks = marks();
        assert_eq!([263, 264, 314, 365].map(|token| marks.seconds(token)), [None, Some(0.0), Some(1.0), None]);
        assert_eq!([257, 258, 259, 260].map(|token| marks.language(token)), [None, Some("en"), Some("de"), None]);
        assert_eq!(marks.no_speech(), Some(262));
    }
}
