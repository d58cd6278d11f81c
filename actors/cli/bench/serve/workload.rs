//! What is sent, and when: prompts and answers of the wanted lengths, and their arrivals.
//!
//! Everything follows from the seed, so that a second server, or a second run, is asked the very same.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Words of four letters that byte-pair vocabularies hold whole, with a space before them and without: a text of n of
/// them is n tokens, or n times the same number of them.
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
    /// The largest, which is drawn too.
    pub max: usize,
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        match (min.trim().parse(), max.trim().parse()) {
            (Ok(min), Ok(max)) if 1 <= min && min <= max => Ok(Span { min, max }),
            _ => {
                Err("write a number of tokens from 1, or a range from the smallest to the largest, like 64-512".into())
            }
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
    /// Closed loop: each of so many clients sends its next request when it has the answer to the last.
    Closed {
        /// Clients.
        concurrency: usize,
    },
    /// Open loop: requests come when they come, whether earlier ones are answered or not.
    Poisson {
        /// Requests a second, on average.
        per_second: f64,
        /// Those that come while so many are unanswered wait here, and are counted as delayed.
        max_concurrency: Option<usize>,
    },
}

impl Arrivals {
    /// Most requests that may be unanswered at a time.
    #[must_use]
    pub fn limit(&self) -> usize {
        match *self {
            Arrivals::Closed { concurrency } => concurrency,
            Arrivals::Poisson { max_concurrency, .. } => max_concurrency.unwrap_or(usize::MAX),
        }
    }
}

/// What is asked of a server.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Everything random follows from it.
    pub seed: u64,
    /// Lengths of prompts, with what the chat template adds.
    pub prompt_tokens: Span,
    /// Lengths of answers.
    pub output_tokens: Span,
    /// How much of each prompt is the same in all, from 0 to 1.
    pub shared_prefix: f64,
    /// When requests are sent.
    pub arrivals: Arrivals,
    /// How many; without a number as many as `duration` has room for.
    pub requests: Option<usize>,
    /// No request is sent later than this after the first.
    pub duration: Option<Duration>,
}

/// One request to send.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// Its number in the round, from 0.
    pub index: usize,
    /// When it is due, counted from the start of the round; in a closed loop at once.
    pub due: Duration,
    /// What to say.
    pub prompt: Prompt,
    /// Most tokens to answer with.
    pub output_tokens: usize,
}

/// A text that becomes words when the server's tokenizer is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prompt {
    /// Tokens it should be.
    pub tokens: usize,
    /// How much of it is the same in all, from 0 to 1.
    pub shared_prefix: f64,
    seed: u64,
    shared_seed: u64,
}

/// How words become tokens on a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Tokens that a word of a prompt becomes.
    pub per_word: f64,
    /// Tokens that the server puts around a prompt: its chat template, the beginning of the text.
    pub overhead: f64,
}

impl Scale {
    /// A guess, for a server that does not count.
    pub const GUESS: Scale = Scale { per_word: 1.0, overhead: 0.0 };

    /// The line through two prompts that the server counted, each as (words, tokens); `None` if it is no line upwards.
    #[must_use]
    pub fn through(short: (usize, usize), long: (usize, usize)) -> Option<Self> {
        let per_word = (long.1 as f64 - short.1 as f64) / (long.0 as f64 - short.0 as f64);
        let scale = Scale { per_word, overhead: short.1 as f64 - per_word * short.0 as f64 };
        (per_word.is_finite() && per_word > 0.0).then_some(scale)
    }

    /// Words for a prompt of about so many tokens; at least one.
    #[must_use]
    pub fn words(&self, tokens: usize) -> usize {
        // A float that is negative or no number becomes 0 here.
        (((tokens as f64 - self.overhead) / self.per_word).round() as usize).max(1)
    }
}

impl Workload {
    /// The requests of a round in the order of their arrival, as many as were asked for or without end.
    pub fn asks(&self, round: usize) -> impl Iterator<Item = Ask> + '_ {
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
            Ask { index, due, prompt: self.prompt(tokens, random.next()), output_tokens }
        })
    }

    /// A prompt of the longest length for warming up, the like of which is not measured.
    #[must_use]
    pub fn warm_up(&self, index: usize) -> Ask {
        let seed = Random::new(&[self.seed, u64::MAX, index as u64]).next();
        let prompt = self.prompt(self.prompt_tokens.max, seed);
        Ask { index, due: Duration::ZERO, prompt, output_tokens: self.output_tokens.max }
    }

    fn prompt(&self, tokens: usize, seed: u64) -> Prompt {
        Prompt { tokens, shared_prefix: self.shared_prefix, seed, shared_seed: self.seed }
    }
}

impl Prompt {
    /// The words: those that all prompts begin with, then its own.
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

/// So many words of no meaning.
#[must_use]
pub fn words(count: usize, seed: u64) -> String {
    Prompt { tokens: count, shared_prefix: 0.0, seed, shared_seed: 0 }.text(Scale::GUESS)
}

/// SplitMix64 (Steele et al. 2014): the same numbers on every machine and in every version.
struct Random(u64);

impl Random {
    /// A stream of its own for each list of numbers.
    fn new(place: &[u64]) -> Self {
        let mut random = Random(0);
        for number in place {
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

    /// Uniform over the span.
    fn within(&mut self, span: Span) -> usize {
        let choices = (span.max - span.min) as u64 + 1;
        span.min + (self.next() % choices) as usize
    }

    /// The time to the next of events that come at this rate, independent of each other.
    fn exponential(&mut self, per_second: f64) -> Duration {
        Duration::try_from_secs_f64(-self.uniform().ln() / per_second).unwrap_or(Duration::MAX)
    }

    fn words(mut self) -> impl Iterator<Item = &'static str> {
        std::iter::repeat_with(move || WORDS[self.next() as usize % WORDS.len()])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
    fn a_seed_gives_the_same_requests_again_and_another_round_others() {
        let asks = |round| workload().asks(round).take(20).collect::<Vec<_>>();
        assert_eq!(asks(0), asks(0));
        assert_ne!(asks(0), asks(1));
    }

    #[test]
    fn arrivals_have_the_mean_and_the_spread_of_a_poisson_process() {
        let due: Vec<f64> = workload().asks(0).map(|ask| ask.due.as_secs_f64()).collect();
        assert_eq!(due[0], 0.0);
        let gaps: Vec<f64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 0.01).abs() < 0.001, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.1, "an exponential's deviation is its mean");
    }

    #[test]
    fn lengths_are_drawn_from_the_whole_range() {
        let lengths: Vec<usize> = workload().asks(0).map(|ask| ask.prompt.tokens).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&10), Some(&30)));
    }

    #[test]
    fn prompts_share_their_beginning_and_nothing_else() {
        let workload = Workload { prompt_tokens: Span { min: 40, max: 40 }, ..workload() };
        let texts: Vec<String> = workload.asks(0).take(2).map(|ask| ask.prompt.text(Scale::GUESS)).collect();
        let words: Vec<Vec<&str>> = texts.iter().map(|text| text.split(' ').collect()).collect();
        assert_eq!((words[0].len(), words[1].len()), (40, 40));
        assert_eq!(words[0][..20], words[1][..20]);
        assert_ne!(words[0][20..], words[1][20..]);
        let whole = Workload { shared_prefix: 1.0, ..workload };
        let texts: Vec<String> = whole.asks(0).take(2).map(|ask| ask.prompt.text(Scale::GUESS)).collect();
        assert_eq!(texts[0], texts[1]);
    }

    #[test]
    fn two_counted_prompts_tell_what_a_word_costs() {
        let scale = Scale::through((8, 52), (72, 372)).unwrap();
        assert_eq!(scale, Scale { per_word: 5.0, overhead: 12.0 });
        assert_eq!((scale.words(112), scale.words(3)), (20, 1));
        assert_eq!(Scale::through((8, 52), (72, 52)), None, "a server that counts nothing");
    }
}
