//! The requests of a measurement: prompts and answers of the requested lengths, and arrival times.
//!
//! Everything is derived from the seed: every server, and every run with that seed, receives the same requests.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Words of four letters that are single tokens in byte-pair vocabularies, with and without a leading space. In other
/// vocabularies each of them has about the same number of tokens.
const WORDS: [&str; 128] = [
    "able", "also", "area", "bank", "bill", "body", "book", "both", "call", "case", "city", "code", "cold", "come",
    "cost", "dark", "data", "date", "deep", "door", "each", "even", "face", "fact", "farm", "fast", "feel", "file",
    "film", "find", "fire", "food", "form", "free", "from", "full", "game", "give", "goal", "hand", "hard", "help",
    "high", "hold", "home", "idea", "into", "just", "keep", "kind", "know", "land", "late", "life", "like", "line",
    "list", "live", "long", "look", "love", "mail", "main", "make", "many", "more", "most", "move", "much", "name",
    "need", "news", "note", "only", "open", "over", "page", "park", "part", "plan", "play", "post", "rate", "read",
    "real", "road", "rock", "room", "rule", "safe", "sale", "same", "shop", "show", "side", "song", "star", "step",
    "stop", "such", "take", "talk", "task", "team", "tell", "test", "text", "than", "then", "time", "tool", "town",
    "tree", "true", "turn", "walk", "want", "warm", "week", "what", "when", "wide", "wind", "with", "wood", "word",
    "work", "year",
];

/// A number of tokens, or a range to draw from: `106`, `64-512`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The smallest; at least 1.
    pub min: usize,
    /// The largest, inclusive.
    pub max: usize,
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        match (min.trim().parse(), max.trim().parse()) {
            (Ok(min), Ok(max)) if 1 <= min && min <= max => Ok(Span { min, max }),
            _ => Err("write a number of tokens of at least 1, or a range, like 64-512".into()),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max { write!(f, "{}", self.min) } else { write!(f, "{}-{}", self.min, self.max) }
    }
}

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Closed loop: each client sends its next request after the answer to its last one.
    Closed {
        /// Number of clients.
        concurrency: usize,
    },
    /// Open loop: requests are sent at random times, independent of answers.
    Poisson {
        /// Mean requests per second.
        per_second: f64,
        /// Maximum requests in flight; later requests wait, and their delay is measured.
        max_concurrency: Option<usize>,
    },
}

impl Arrivals {
    /// Maximum requests in flight.
    #[must_use]
    pub fn limit(&self) -> usize {
        match *self {
            Arrivals::Closed { concurrency } => concurrency,
            Arrivals::Poisson { max_concurrency, .. } => max_concurrency.unwrap_or(usize::MAX),
        }
    }
}

/// The requests of a measurement.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Seed of everything random.
    pub seed: u64,
    /// Lengths of prompts, including the chat template.
    pub prompt_tokens: Span,
    /// Lengths of answers.
    pub output_tokens: Span,
    /// Share of each prompt that all prompts have in common, from 0 to 1.
    pub shared_prefix: f64,
    /// When requests are sent.
    pub arrivals: Arrivals,
    /// Number of requests; `None`: as many as fit into `duration`.
    pub requests: Option<usize>,
    /// Sending stops this long after the first request.
    pub duration: Option<Duration>,
}

/// One request to send.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedRequest {
    /// The number in the round, from 0.
    pub index: usize,
    /// The scheduled time from the start of the round; 0 in a closed loop.
    pub due: Duration,
    /// The prompt.
    pub prompt: Prompt,
    /// Maximum tokens of the answer.
    pub output_tokens: usize,
}

/// A prompt of a given length. Its words are chosen once the server's token counts are known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prompt {
    /// Requested length in tokens.
    pub tokens: usize,
    /// How much of it is the same in all, from 0 to 1.
    pub shared_prefix: f64,
    seed: u64,
    shared_seed: u64,
}

/// How a server counts the tokens of a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Tokens per word.
    pub per_word: f64,
    /// Tokens that the server adds to a prompt: the chat template and the BOS token.
    pub overhead: f64,
}

impl Scale {
    /// The assumption for a server that reports no counts.
    pub const GUESS: Scale = Scale { per_word: 1.0, overhead: 0.0 };

    /// The scale from two counted prompts, each as (words, tokens); `None` if tokens do not grow with words.
    #[must_use]
    pub fn through(short: (usize, usize), long: (usize, usize)) -> Option<Self> {
        let per_word = (long.1 as f64 - short.1 as f64) / (long.0 as f64 - short.0 as f64);
        let scale = Scale { per_word, overhead: short.1 as f64 - per_word * short.0 as f64 };
        (per_word.is_finite() && per_word > 0.0).then_some(scale)
    }

    /// The number of words for a prompt of about `tokens` tokens; at least 1.
    #[must_use]
    pub fn words(&self, tokens: usize) -> usize {
        // `as` converts a negative number or NaN to 0.
        (((tokens as f64 - self.overhead) / self.per_word).round() as usize).max(1)
    }
}

impl Workload {
    /// The requests of a round in the order of arrival: `requests` of them, or an endless sequence.
    pub fn requests_of(&self, round: usize) -> impl Iterator<Item = PlannedRequest> + '_ {
        let mut clock = Random::new(&[self.seed, round as u64, 0]);
        let mut due = Duration::ZERO;
        (0..self.requests.unwrap_or(usize::MAX)).map(move |index| {
            if let Arrivals::Poisson { per_second, .. } = self.arrivals
                && index > 0
            {
                due += clock.exponential(per_second);
            }
            let mut random = Random::new(&[self.seed, round as u64, 1 + index as u64]);
            let tokens = random.within(self.prompt_tokens);
            let output_tokens = random.within(self.output_tokens);
            PlannedRequest { index, due, prompt: self.prompt(tokens, random.next()), output_tokens }
        })
    }

    /// An unmeasured request of the maximum length, for warm-up.
    #[must_use]
    pub fn warm_up(&self, index: usize) -> PlannedRequest {
        let seed = Random::new(&[self.seed, u64::MAX, index as u64]).next();
        let prompt = self.prompt(self.prompt_tokens.max, seed);
        PlannedRequest { index, due: Duration::ZERO, prompt, output_tokens: self.output_tokens.max }
    }

    fn prompt(&self, tokens: usize, seed: u64) -> Prompt {
        Prompt { tokens, shared_prefix: self.shared_prefix, seed, shared_seed: self.seed }
    }
}

impl Prompt {
    /// The words: first those that all prompts share, then its own.
    #[must_use]
    pub fn text(&self, scale: Scale) -> String {
        let words = scale.words(self.tokens);
        let shared = (words as f64 * self.shared_prefix).round() as usize;
        let common = Random::new(&[self.shared_seed]).words().take(shared);
        let own = Random::new(&[self.seed]).words().take(words - shared.min(words));
        let words: Vec<&str> = common.chain(own).collect();
        words.join(" ")
    }
}

/// A text of `count` random words.
#[must_use]
pub fn words(count: usize, seed: u64) -> String {
    Prompt { tokens: count, shared_prefix: 0.0, seed, shared_seed: 0 }.text(Scale::GUESS)
}

/// SplitMix64 (Steele et al. 2014): the same numbers on every machine and in every version.
struct Random(u64);

impl Random {
    /// An independent stream for each list of numbers.
    fn new(key: &[u64]) -> Self {
        let mut random = Random(0);
        for number in key {
            random.0 ^= number;
            random.0 = random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// Uniform in (0, 1], so that its logarithm exists.
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 * (-53f64).exp2()
    }

    /// Uniform in the span.
    fn within(&mut self, span: Span) -> usize {
        let choices = (span.max - span.min) as u64 + 1;
        span.min + (self.next() % choices) as usize
    }

    /// The time to the next event of a Poisson process with this rate.
    fn exponential(&mut self, per_second: f64) -> Duration {
        Duration::try_from_secs_f64(-self.uniform().ln() / per_second).unwrap_or(Duration::MAX)
    }

    fn words(mut self) -> impl Iterator<Item = &'static str> {
        std::iter::repeat_with(move || WORDS[self.next() as usize % WORDS.len()])
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        Workload {
            seed: 7,
            prompt_tokens: Span { min: 10, max: 30 },
            output_tokens: Span { min: 4, max: 4 },
            shared_prefix: 0.5,
            arrivals: Arrivals::Poisson { per_second: 100.0, max_concurrency: None },
            requests: Some(2000),
            duration: None,
        }
    }

    #[test]
    fn lengths_are_a_number_or_a_range() {
        assert_eq!("106".parse(), Ok(Span { min: 106, max: 106 }));
        assert_eq!("64-512".parse(), Ok(Span { min: 64, max: 512 }));
        assert_eq!("64-512".parse::<Span>().unwrap().to_string(), "64-512");
        for wrong in ["0", "0-4", "9-3", "-", "a", "", "3-", "-3", "1-2-3", "1.5"] {
            assert!(wrong.parse::<Span>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn requests_depend_on_seed_and_round() {
        let requests = |round| workload().requests_of(round).take(20).collect::<Vec<_>>();
        assert_eq!(requests(0), requests(0));
        assert_ne!(requests(0), requests(1));
    }

    #[test]
    fn arrivals_have_mean_and_deviation_of_a_poisson_process() {
        let due: Vec<f64> = workload().requests_of(0).map(|request| request.due.as_secs_f64()).collect();
        assert_eq!(due[0], 0.0);
        let gaps: Vec<f64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 0.01).abs() < 0.001, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.1, "an exponential's deviation is its mean");
    }

    #[test]
    fn lengths_cover_the_whole_range() {
        let lengths: Vec<usize> = workload().requests_of(0).map(|request| request.prompt.tokens).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&10), Some(&30)));
    }

    #[test]
    fn prompts_share_only_their_beginning() {
        let workload = Workload { prompt_tokens: Span { min: 40, max: 40 }, ..workload() };
        let texts: Vec<String> =
            workload.requests_of(0).take(2).map(|request| request.prompt.text(Scale::GUESS)).collect();
        let words: Vec<Vec<&str>> = texts.iter().map(|text| text.split(' ').collect()).collect();
        assert_eq!((words[0].len(), words[1].len()), (40, 40));
        assert_eq!(words[0][..20], words[1][..20]);
        assert_ne!(words[0][20..], words[1][20..]);
        let whole = Workload { shared_prefix: 1.0, ..workload };
        let texts: Vec<String> =
            whole.requests_of(0).take(2).map(|request| request.prompt.text(Scale::GUESS)).collect();
        assert_eq!(texts[0], texts[1]);
    }

    #[test]
    fn two_counted_prompts_give_the_tokens_per_word() {
        let scale = Scale::through((8, 52), (72, 372)).unwrap();
        assert_eq!(scale, Scale { per_word: 5.0, overhead: 12.0 });
        assert_eq!((scale.words(112), scale.words(3)), (20, 1));
        assert_eq!(Scale::through((8, 52), (72, 52)), None, "a server without counts");
    }
}
