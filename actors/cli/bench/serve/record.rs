//! What is known of one request after it ended.

use std::time::Duration;

use super::chunks::Usage;

/// One request. Times count from the start of its round.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its number in the round.
    pub index: usize,
    /// When it should have been sent; `None` in a closed loop.
    pub due: Option<Duration>,
    /// When it was sent.
    pub sent: Duration,
    /// When the last of its answer came, or it failed.
    pub ended: Duration,
    /// When text came, a time for each chunk that had any. Empty when the answer came in one piece.
    pub chunks: Vec<Duration>,
    /// The server's count of tokens, where it counts.
    pub usage: Option<Usage>,
    /// Why there is no answer.
    pub failure: Option<Failure>,
}

impl Record {
    /// From sending to the first text.
    #[must_use]
    pub fn time_to_first_token(&self) -> Option<Duration> {
        self.chunks.first().map(|first| first.saturating_sub(self.sent))
    }

    /// From each chunk of text to the next.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> + '_ {
        self.chunks.windows(2).map(|pair| pair[1].saturating_sub(pair[0]))
    }

    /// From sending to the end.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.ended.saturating_sub(self.sent)
    }

    /// Tokens of the answer: the server's count, or else the chunks that had text.
    #[must_use]
    pub fn output_tokens(&self) -> usize {
        let counted = self.usage.map(|usage| usage.completion_tokens).filter(|&tokens| tokens > 0);
        counted.unwrap_or(self.chunks.len())
    }

    /// Mean time of a token after the first.
    #[must_use]
    pub fn time_per_output_token(&self) -> Option<Duration> {
        let (first, last) = (self.chunks.first()?, self.chunks.last()?);
        let later = u32::try_from(self.output_tokens().checked_sub(1)?).ok()?;
        last.saturating_sub(*first).checked_div(later)
    }

    /// How late it was sent.
    #[must_use]
    pub fn schedule_delay(&self) -> Option<Duration> {
        self.due.map(|due| self.sent.saturating_sub(due))
    }
}

/// Why a request has no answer, or half of one. The text is the server's or the system's own explanation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An HTTP status other than 2xx.
    #[error("HTTP {status}: {message}")]
    Refused {
        /// The status.
        status: u16,
        /// When to come back, if it was said.
        retry_after: Option<Duration>,
        /// The body's sentence.
        message: String,
    },
    /// No connection.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// Not done within the client's limit.
    #[error("no end within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The connection ended before the answer did.
    #[error("the answer broke off: {0}")]
    BrokeOff(String),
    /// An error event in the stream.
    #[error("the server gave up: {0}")]
    GaveUp(String),
    /// Something that is no chunk of an answer.
    #[error("an answer that cannot be read: {0}")]
    Unreadable(String),
    /// An answer without a token.
    #[error("an answer without a token")]
    Empty,
}

impl Failure {
    /// Under which name it is counted.
    #[must_use]
    pub fn kind(&self) -> String {
        match self {
            Failure::Refused { status: status @ (429 | 503), retry_after, .. } => {
                format!("HTTP {status} {} Retry-After", if retry_after.is_some() { "with" } else { "without" })
            }
            Failure::Refused { status, .. } => format!("HTTP {status}"),
            Failure::Unreachable(_) => "no connection".to_owned(),
            Failure::TimedOut(_) => "timed out".to_owned(),
            Failure::BrokeOff(_) => "broke off".to_owned(),
            Failure::GaveUp(_) => "error in the stream".to_owned(),
            Failure::Unreadable(_) => "unreadable answer".to_owned(),
            Failure::Empty => "empty answer".to_owned(),
        }
    }

    /// How long a client that was refused for want of room, or found nobody, stays away.
    #[must_use]
    pub fn pause(&self) -> Duration {
        const UNSAID: Duration = Duration::from_millis(100);
        const LONGEST: Duration = Duration::from_secs(10);
        match self {
            Failure::Refused { status: 429 | 503, retry_after, .. } => retry_after.unwrap_or(UNSAID).min(LONGEST),
            Failure::Unreachable(_) => UNSAID,
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Sent at 100 ms, with text at these times and an end with the last of them.
    pub fn streamed(chunks: &[u64]) -> Record {
        let ended = ms(chunks.last().copied().unwrap_or(100));
        let chunks = chunks.iter().copied().map(ms).collect();
        Record { index: 0, due: None, sent: ms(100), ended, chunks, usage: None, failure: None }
    }

    #[test]
    fn latencies_are_taken_from_when_text_came() {
        let record = streamed(&[150, 160, 190, 200]);
        assert_eq!(record.time_to_first_token(), Some(ms(50)));
        assert_eq!(record.gaps().collect::<Vec<_>>(), [ms(10), ms(30), ms(10)]);
        assert_eq!(record.duration(), ms(100));
        assert_eq!(record.output_tokens(), 4, "without a count of the server's, chunks stand for tokens");
        assert_eq!(record.time_per_output_token(), Some(ms(50) / 3));
    }

    #[test]
    fn the_servers_count_wins_over_chunks_that_hold_several_tokens() {
        let usage = serde_json::from_str(r#"{"completion_tokens": 11}"#).unwrap();
        let record = Record { usage: Some(usage), ..streamed(&[150, 250]) };
        assert_eq!((record.output_tokens(), record.time_per_output_token()), (11, Some(ms(10))));
    }

    #[test]
    fn an_answer_of_one_token_has_no_time_per_token() {
        assert_eq!(streamed(&[150]).time_per_output_token(), None);
        assert_eq!(streamed(&[]).time_to_first_token(), None);
    }

    #[test]
    fn refusals_are_counted_by_whether_they_say_when_to_come_back() {
        let refused = |status, retry_after| Failure::Refused { status, retry_after, message: String::new() };
        assert_eq!(refused(429, Some(ms(5))).kind(), "HTTP 429 with Retry-After");
        assert_eq!(refused(503, None).kind(), "HTTP 503 without Retry-After");
        assert_eq!(refused(404, None).kind(), "HTTP 404");
        assert_eq!(refused(429, Some(ms(5))).pause(), ms(5));
        assert_eq!(refused(429, Some(Duration::from_secs(3600))).pause(), Duration::from_secs(10));
        assert_eq!(Failure::Empty.pause(), Duration::ZERO);
    }
}
