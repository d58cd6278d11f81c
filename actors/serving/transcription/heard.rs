//! What a model hears in a window: its answer, read.

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;

use super::marks::Marks;
use super::quality::{Quality, compression_ratio};
use crate::core::request::PositionLogprobs;
use crate::serving::answers::Answer;

/// What a model hears in a window.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Heard {
    /// The code of the language.
    pub language: Option<String>,
    /// The parts of the text. Without times one.
    pub segments: Vec<Segment>,
    /// Without the temperature, which the answer does not say.
    pub quality: Quality,
    /// How long a word takes: the median in seconds, at most 0.7; 0 without times of words.
    pub word_seconds: f64,
}

/// Words between two times.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Segment {
    /// Seconds.
    pub start: f64,
    pub end: f64,
    pub text: String,
    pub tokens: Vec<TokenId>,
    /// The words of the text; empty if their times are not known.
    pub words: Vec<Word>,
}

/// A word of a text, with its punctuation.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Word {
    pub text: String,
    /// Seconds.
    pub start: f64,
    pub end: f64,
}

impl Heard {
    /// Reads the answer for a window of this many seconds. Its log-probabilities have those of [`Marks::no_speech`].
    pub fn read(answer: &Answer, seconds: f64, marks: &Marks, tokenizer: &Tokenizer) -> Self {
        let mut heard = Heard::default();
        let mut open = Open::default();
        for &token in &answer.tokens {
            if let Some(at) = marks.seconds(token) {
                heard.segments.extend(open.close(at.min(seconds), tokenizer));
                open.start = at.min(seconds);
            } else if let Some(code) = marks.language(token) {
                heard.language = Some(code.to_owned());
            } else if !tokenizer.is_special(token) {
                open.tokens.push(token);
            }
        }
        heard.segments.extend(open.close(seconds, tokenizer));
        heard.quality = Quality {
            logprob: mean_logprob(&answer.logprobs, marks, tokenizer),
            compression_ratio: compression_ratio(heard.text().trim()),
            no_speech: answer.logprobs.first().and_then(|first| no_speech(first, marks)),
            ..Quality::default()
        };
        heard
    }

    /// The words of all segments.
    pub fn text(&self) -> String {
        self.segments.iter().map(|segment| segment.text.as_str()).collect()
    }
}

/// The mean log-probability of the tokens of words. That of a mark says how sure a language or a time is.
fn mean_logprob(positions: &[PositionLogprobs], marks: &Marks, tokenizer: &Tokenizer) -> f64 {
    let is_word = |token: TokenId| !tokenizer.is_special(token) && marks.seconds(token).is_none();
    let words = positions.iter().map(|position| position.sampled).filter(|sampled| is_word(sampled.token));
    let logprobs: Vec<f64> = words.map(|sampled| f64::from(sampled.logprob)).collect();
    logprobs.iter().sum::<f64>() / logprobs.len().max(1) as f64
}

/// The probability that nothing is said, which Whisper gives at the first token after the start of a transcript.
fn no_speech(first: &PositionLogprobs, marks: &Marks) -> Option<f64> {
    let token = marks.no_speech()?;
    let found = first.top.iter().find(|alternative| alternative.token == token)?;
    Some(f64::from(found.logprob).exp())
}

/// Words whose end is not known yet.
#[derive(Default)]
struct Open {
    start: f64,
    tokens: Vec<TokenId>,
}

impl Open {
    /// The words up to a time, if there are some.
    fn close(&mut self, end: f64, tokenizer: &Tokenizer) -> Option<Segment> {
        let Open { start, tokens } = std::mem::take(self);
        let text = tokenizer.decode(&tokens, true);
        (!text.is_empty()).then_some(Segment { start, end: end.max(start), text, tokens, words: Vec::new() })
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use cuelight_engine::sample::TokenLogprob;

    use super::*;
    use crate::pipeline::simulation::marked_tokenizer;

    fn read(answer: &Answer) -> Heard {
        let tokenizer = marked_tokenizer();
        Heard::read(answer, 1.9, &Marks::of(&tokenizer, 100).unwrap(), &tokenizer)
    }

    fn heard(tokens: &[TokenId]) -> Heard {
        read(&Answer { tokens: tokens.to_vec(), ..Answer::default() })
    }

    #[test]
    fn words_are_between_times() {
        let [a, b] = [u32::from(b'a'), u32::from(b'b')];
        let found = heard(&[259, 261, 264, a, b, 314, 324, b, 364, 256]);
        assert_eq!(found.language.as_deref(), Some("de"));
        let segment = |start, end, tokens: &[TokenId], text: &str| Segment {
            start,
            end,
            text: text.to_owned(),
            tokens: tokens.to_vec(),
            words: Vec::new(),
        };
        // A time after the end of the window is its end.
        assert_eq!(found.segments, [segment(0.0, 1.0, &[a, b], "ab"), segment(1.2, 1.9, &[b], "b")]);
        assert_eq!(found.text(), "abb");
        let without = heard(&[258, 261, 263, a, b]);
        assert_eq!(without.segments, [segment(0.0, 1.9, &[a, b], "ab")]);
        assert_eq!(heard(&[258, 261, 264, 270]).segments, []);
    }

    #[test]
    fn the_tokens_of_words_have_a_mean_and_the_first_token_tells_whether_something_is_said() {
        let position = |token, logprob, no_speech: f32| PositionLogprobs {
            sampled: TokenLogprob { token, logprob },
            rank: 1,
            top: vec![TokenLogprob { token: 262, logprob: no_speech.ln() }],
        };
        let tokens = [258, 261, 264, 97, 98, 314, 256];
        let logprobs = [-9.0, 0.0, -7.0, -1.0, -0.5, -5.0, -3.0].into_iter().zip([0.25, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]);
        let positions = tokens.iter().zip(logprobs).map(|(&token, (logprob, silent))| position(token, logprob, silent));
        let answer = Answer { tokens: tokens.to_vec(), logprobs: positions.collect(), ..Answer::default() };
        let Quality { logprob, no_speech, .. } = read(&answer).quality;
        assert_eq!(logprob, -0.75);
        assert!((no_speech.unwrap() - 0.25).abs() < 1e-6);
        assert_eq!(heard(&[258, 261, 264, 97, 314]).quality.no_speech, None);
    }
}
