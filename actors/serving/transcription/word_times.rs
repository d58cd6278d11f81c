//! When the words of a window are spoken: the times of their tokens, without what is implausible.
//!
//! Source: `timing.py` of Whisper's own program (github.com/openai/whisper), from which the limits are.

use cuelight_engine::format::tokenizer::Tokenizer;

use super::heard::{Heard, Segment, Word};
use super::words::{self, TokenGroup};

/// Joins the word after it. The Spanish marks are those of transformers.
const OPENING: &str = "\"'“¡¿([{-";
/// Joins the word before it.
const CLOSING: &str = "\"'.。,，!！?？:：”)]}、";
/// Ends a sentence.
const SENTENCE_ENDS: &str = ".。!！?？";

/// The longest time that counts as that of a usual word, in seconds.
const LONGEST_USUAL: f64 = 0.7;
/// By how much a word may reach beyond its segment, in seconds.
const BEYOND_SEGMENT: f64 = 0.5;

/// A word, or punctuation, that is being timed.
#[derive(Debug, Clone, PartialEq)]
struct Timed {
    text: String,
    tokens: usize,
    start: f64,
    end: f64,
}

impl Timed {
    fn seconds(&self) -> f64 {
        self.end - self.start
    }
}

/// Gives the segments of a window their words. `starts` is when each of their tokens starts, in seconds, and when the last one
/// ends.
pub(crate) fn set(heard: &mut Heard, starts: &[f64], tokenizer: &Tokenizer) {
    let tokens: Vec<_> = heard.segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect();
    let groups = words::of(&tokens, tokenizer, heard.language.as_deref());
    let mut words = timed(groups, starts);
    heard.word_seconds = usual_seconds(&words);
    shorten_at_sentences(&mut words, 2.0 * heard.word_seconds);
    join_opening(&mut words);
    join_closing(&mut words);
    let mut rest = words.into_iter();
    for segment in &mut heard.segments {
        let mut found = 0;
        while found < segment.tokens.len()
            && let Some(word) = rest.next()
        {
            found += word.tokens;
            segment.words.extend(finished(&word));
        }
    }
}

/// Words with the times of their first tokens and of the tokens after them.
fn timed(groups: Vec<TokenGroup>, starts: &[f64]) -> Vec<Timed> {
    let mut first = 0;
    let at = |index: usize| starts.get(index).or(starts.last()).copied().unwrap_or_default();
    let timed = groups.into_iter().map(|TokenGroup { text, tokens }| {
        let start = at(first);
        first += tokens;
        Timed { text, tokens, start, end: at(first) }
    });
    timed.collect()
}

/// The median of the times of words that take any, at most [`LONGEST_USUAL`].
fn usual_seconds(words: &[Timed]) -> f64 {
    let mut seconds: Vec<f64> = words.iter().map(Timed::seconds).filter(|seconds| *seconds > 0.0).collect();
    seconds.sort_by(f64::total_cmp);
    let middle = seconds.len() / 2;
    let median = match seconds.len() {
        0 => 0.0,
        len if len % 2 == 1 => seconds[middle],
        _ => seconds[middle - 1].midpoint(seconds[middle]),
    };
    median.min(LONGEST_USUAL)
}

/// A pause after a sentence counts neither as its last mark nor as the first word of the next one.
fn shorten_at_sentences(words: &mut [Timed], longest: f64) {
    for index in 1..words.len() {
        let (before, word) = words.split_at_mut(index);
        let (before, word) = (&before[index - 1], &mut word[0]);
        if word.seconds() <= longest || longest <= 0.0 {
            continue;
        }
        if SENTENCE_ENDS.contains(&word.text) {
            word.end = word.start + longest;
        } else if SENTENCE_ENDS.contains(&before.text) {
            word.start = word.end - longest;
        }
    }
}

/// Puts opening punctuation after a space in front of the next word, and leaves an empty word in its place.
fn join_opening(words: &mut [Timed]) {
    let mut next = words.len().saturating_sub(1);
    for index in (0..next).rev() {
        if !words[index].text.starts_with(' ') || !OPENING.contains(words[index].text.trim()) {
            next = index;
            continue;
        }
        let (text, tokens) = take(&mut words[index]);
        words[next].text.insert_str(0, &text);
        words[next].tokens += tokens;
    }
}

/// Puts closing punctuation behind the word before it, and leaves an empty word in its place.
fn join_closing(words: &mut [Timed]) {
    let mut before = 0;
    for index in 1..words.len() {
        if words[before].text.ends_with(' ') || !CLOSING.contains(&words[index].text) {
            before = index;
            continue;
        }
        let (text, tokens) = take(&mut words[index]);
        words[before].text.push_str(&text);
        words[before].tokens += tokens;
    }
}

fn take(word: &mut Timed) -> (String, usize) {
    (std::mem::take(&mut word.text), std::mem::take(&mut word.tokens))
}

/// The word as it is given to clients; `None` where another one has taken it in.
fn finished(word: &Timed) -> Option<Word> {
    let text = word.text.trim();
    let (start, end) = (hundredths(word.start), hundredths(word.end));
    (!text.is_empty()).then(|| Word { text: text.to_owned(), start, end })
}

fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

/// Where speech has ended so far, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct SpeechEnd {
    segment: f64,
    word: f64,
}

impl SpeechEnd {
    /// Limits the first and last words of the next segment, and the times of all to those after the words before it.
    pub fn limit(&mut self, segment: &mut Segment, word_seconds: f64) {
        let (start, end) = (segment.start, segment.end);
        let words = &mut segment.words;
        if words.is_empty() {
            return;
        }
        self.shorten_after_pause(words, word_seconds);
        limit_start(words, start, word_seconds);
        let end = limit_end(words, end, word_seconds);
        for word in words.iter_mut() {
            word.start = hundredths(word.start.max(self.word));
            word.end = hundredths(word.end.max(word.start));
            self.word = word.end;
        }
        self.segment = end;
    }

    /// A pause counts as no part of the first two words after it.
    fn shorten_after_pause(&self, words: &mut [Word], usual: f64) {
        let longest = 2.0 * usual;
        let seconds = words[0].end - words[0].start;
        let of_two = words.get(1).map_or(0.0, |second| second.end - words[0].start);
        if words[0].end - self.segment <= 2.0 * longest || (seconds <= longest && of_two <= 2.0 * longest) {
            return;
        }
        if let [first, second, ..] = words
            && second.end - second.start > longest
        {
            let border = (second.end / 2.0).max(second.end - longest);
            (first.end, second.start) = (border, border);
        }
        words[0].start = (words[0].end - longest).max(0.0);
    }
}

/// A first word that begins long before its segment begins with it.
fn limit_start(words: &mut [Word], start: f64, usual: f64) {
    let first = &mut words[0];
    if start < first.end && start - BEYOND_SEGMENT > first.start {
        first.start = (first.end - usual).min(start).max(0.0);
    }
}

/// A last word that ends long after its segment ends with it. Returns where speech ends.
fn limit_end(words: &mut [Word], end: f64, usual: f64) -> f64 {
    let Some(last) = words.last_mut() else { return end };
    if end > last.start && end + BEYOND_SEGMENT < last.end {
        last.end = (last.start + usual).max(end).min(last.end);
        return end;
    }
    last.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::simulation::marked_tokenizer;

    fn words(of: &[(&str, f64, f64)]) -> Vec<Timed> {
        let timed = |(text, start, end): &(&str, f64, f64)| Timed {
            text: (*text).to_owned(),
            tokens: 1,
            start: *start,
            end: *end,
        };
        of.iter().map(timed).collect()
    }

    fn texts(words: &[Timed]) -> Vec<&str> {
        words.iter().map(|word| word.text.as_str()).collect()
    }

    fn segment(start: f64, end: f64, words: &[(&str, f64, f64)]) -> Segment {
        let word = |(text, start, end): &(&str, f64, f64)| Word { text: (*text).to_owned(), start: *start, end: *end };
        Segment { start, end, words: words.iter().map(word).collect(), ..Segment::default() }
    }

    #[test]
    fn words_have_the_times_of_their_tokens_and_their_punctuation() {
        let tokenizer = marked_tokenizer();
        let segment = |text: &str| Segment {
            tokens: tokenizer.encode(text, false, false).expect("every byte is a token"),
            ..Segment::default()
        };
        let mut heard = Heard { segments: vec![segment(" ab (c)."), segment(" d")], ..Heard::default() };
        // A token each tenth of a second.
        let starts: Vec<f64> = (0..=10).map(|token| f64::from(token) / 10.0).collect();
        set(&mut heard, &starts, &tokenizer);
        let found: Vec<Vec<(&str, f64, f64)>> = heard
            .segments
            .iter()
            .map(|segment| segment.words.iter().map(|word| (&*word.text, word.start, word.end)).collect())
            .collect();
        // A space, brackets and a full stop give their time to no word.
        assert_eq!(found, [vec![("ab", 0.0, 0.3), ("(c).", 0.4, 0.6)], vec![("d", 0.8, 1.0)]]);
    }

    #[test]
    fn punctuation_joins_the_word_that_it_belongs_to() {
        let mut found =
            words(&[(" \"", 0.0, 0.1), ("Yes", 0.1, 0.2), (",", 0.2, 0.3), ("\"", 0.3, 0.4), (" no", 0.4, 0.5)]);
        join_opening(&mut found);
        join_closing(&mut found);
        assert_eq!(texts(&found), ["", " \"Yes,\"", "", "", " no"]);
        assert_eq!(found[1].tokens, 4);
        assert_eq!((found[1].start, found[1].end), (0.1, 0.2));
    }

    #[test]
    fn the_usual_time_is_a_median_and_pauses_after_sentences_are_cut() {
        let mut found =
            words(&[(" a", 0.0, 0.2), (" b", 0.2, 0.4), (".", 0.4, 2.0), (" c", 2.0, 4.0), (" d", 4.0, 4.0)]);
        assert_eq!(usual_seconds(&found), LONGEST_USUAL);
        assert_eq!(usual_seconds(&found[..2]), 0.2);
        assert_eq!(usual_seconds(&found[4..]), 0.0);
        shorten_at_sentences(&mut found, 0.5);
        assert_eq!((found[2].end, found[3].start, found[3].end), (0.9, 3.5, 4.0));
    }

    #[test]
    fn a_pause_belongs_to_no_word_and_times_increase() {
        let mut end = SpeechEnd::default();
        let mut first = segment(2.8, 4.45, &[("one", 0.5, 3.0), ("two", 3.0, 5.0)]);
        end.limit(&mut first, 0.3);
        // Both words are longer than twice the usual time, and the last one ends with its segment.
        assert_eq!(first, segment(2.8, 4.45, &[("one", 3.8, 4.4), ("two", 4.4, 4.7)]));
        let mut second = segment(4.0, 5.0, &[("three", 4.5, 4.9), ("four", 4.8, 5.0)]);
        end.limit(&mut second, 0.3);
        assert_eq!(second, segment(4.0, 5.0, &[("three", 4.7, 4.9), ("four", 4.9, 5.0)]));
        let mut silent = segment(5.0, 6.0, &[]);
        end.limit(&mut silent, 0.3);
        assert_eq!(end.word, 5.0);
    }

    #[test]
    fn the_first_word_begins_with_its_segment() {
        let mut end = SpeechEnd { segment: 9.0, word: 9.0 };
        let mut found = segment(10.4, 12.0, &[("one", 9.8, 10.6), ("two", 10.6, 11.0)]);
        end.limit(&mut found, 0.4);
        assert_eq!(found, segment(10.4, 12.0, &[("one", 10.2, 10.6), ("two", 10.6, 11.0)]));
        assert_eq!(end, SpeechEnd { segment: 11.0, word: 11.0 });
    }
}
