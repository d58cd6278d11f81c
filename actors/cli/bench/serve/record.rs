//! The result of one request.

use std::time::Duration;

use super::chunks::Usage;

/// The result of one request. Times count from the start of its round.
#[derive(Debug, Clone)]
pub struct Record {
    /// The request's number in the round.
    pub index: usize,
    /// The scheduled time; `None` in a closed loop.
    pub due: Option<Duration>,
    /// The time of sending.
    pub sent: Duration,
    /// The time at which the answer ended or the request failed.
    pub ended: Duration,
    /// The arrival time of each chunk with text. Empty without streaming.
    pub chunks: Vec<Duration>,
    /// The token counts that the server reports, if any.
    pub usage: Option<Usage>,
    /// Why there is no complete answer.
    pub failure: Option<Failure>,
}

impl Record {
    /// From sending to the first text.
    #[must_use]
    pub fn time_to_first_token(&self) -> Option<Duration> {
        self.chunks.first().map(|first| first.saturating_sub(self.sent))
    }

    /// The times between consecutive chunks of text.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> + '_ {
        self.chunks.windows(2).map(|pair| pair[1].saturating_sub(pair[0]))
    }

    /// From sending to the end.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.ended.saturating_sub(self.sent)
    }

    /// Tokens of the answer: the server's count, or else the number of chunks with text.
    #[must_use]
    pub fn output_tokens(&self) -> usize {
        let counted = self.usage.map(|usage| usage.completion_tokens).filter(|&tokens| tokens > 0);
        counted.unwrap_or(self.chunks.len())
    }

    /// Mean time per token after the first.
    #[must_use]
    pub fn time_per_output_token(&self) -> Option<Duration> {
        let (first, last) = (self.chunks.first()?, self.chunks.last()?);
        let later = u32::try_from(self.output_tokens().checked_sub(1)?).ok()?;
        last.saturating_sub(*first).checked_div(later)
    }

    /// The delay from the scheduled time to sending.
    #[must_use]
    pub fn schedule_delay(&self) -> Option<Duration> {
        self.due.map(|due| self.sent.saturating_sub(due))
    }
}

/// Why a request has no complete answer, with the explanation of the server or the system.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An HTTP status other than 2xx.
    #[error("HTTP {status}: {message}")]
    Refused {
        /// The status.
        status: u16,
        /// The server's `Retry-After`, if any.
        retry_after: Option<Duration>,
        /// The message in the body.
        message: String,
    },
    /// The connection failed.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// The client's time limit passed.
    #[error("no complete answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The connection ended before the answer did.
    #[error("the connection closed before the answer ended: {0}")]
    Disconnected(String),
    /// An error event in the stream.
    #[error("the server sent an error in the stream: {0}")]
    ErrorEvent(String),
    /// The response is not a chunk of an answer.
    #[error("invalid response: {0}")]
    Unreadable(String),
    /// The answer has no token.
    #[error("an answer without a token")]
    Empty,
}

impl Failure {
    /// The name under which the failure is counted.
    #[must_use]
    pub fn kind(&self) -> String {
        match self {
            Failure::Refused { status: status @ (429 | 503), retry_after, .. } => {
                format!("HTTP {status} {} Retry-After", if retry_after.is_some() { "with" } else { "without" })
            }
            Failure::Refused { status, .. } => format!("HTTP {status}"),
            Failure::Unreachable(_) => "no connection".to_owned(),
            Failure::TimedOut(_) => "timed out".to_owned(),
            Failure::Disconnected(_) => "disconnected".to_owned(),
            Failure::ErrorEvent(_) => "error in the stream".to_owned(),
            Failure::Unreadable(_) => "unreadable answer".to_owned(),
            Failure::Empty => "empty answer".to_owned(),
        }
    }

    /// How long a client waits after an overloaded or unreachable server.
    #[must_use]
    pub fn pause(&self) -> Duration {
        const DEFAULT: Duration = Duration::from_millis(100);
        const LONGEST: Duration = Duration::from_secs(10);
        match self {
            Failure::Refused { status: 429 | 503, retry_after, .. } => retry_after.unwrap_or(DEFAULT).min(LONGEST),
            Failure::Unreachable(_) => DEFAULT,
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
impl Record {
    /// A record sent at 100 ms whose text arrived at these milliseconds and that ended with the last of them.
    pub fn streamed(chunks: &[u64]) -> Self {
        let ended = Duration::from_millis(chunks.last().copied().unwrap_or(100));
        let chunks = chunks.iter().copied().map(Duration::from_millis).collect();
        let sent = Duration::from_millis(100);
        Record { index: 0, due: None, sent, ended, chunks, usage: None, failure: None }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn streamed(chunks: &[u64]) -> Record {
        Record::streamed(chunks)
    }

    #[test]
    fn latencies_are_computed_from_chunks_with_text() {
        let record = streamed(&[150, 160, 190, 200]);
        assert_eq!(record.time_to_first_token(), Some(ms(50)));
        assert_eq!(record.gaps().collect::<Vec<_>>(), [ms(10), ms(30), ms(10)]);
        assert_eq!(record.duration(), ms(100));
        assert_eq!(record.output_tokens(), 4, "chunks count as tokens if the server reports no count");
        assert_eq!(record.time_per_output_token(), Some(ms(50) / 3));
    }

    #[test]
    fn the_servers_count_is_used_when_chunks_hold_several_tokens() {
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
    fn refusals_are_counted_with_and_without_retry_after() {
        let refused = |status, retry_after| Failure::Refused { status, retry_after, message: String::new() };
        assert_eq!(refused(429, Some(ms(5))).kind(), "HTTP 429 with Retry-After");
        assert_eq!(refused(503, None).kind(), "HTTP 503 without Retry-After");
        assert_eq!(refused(404, None).kind(), "HTTP 404");
        assert_eq!(refused(429, Some(ms(5))).pause(), ms(5));
        assert_eq!(refused(429, Some(Duration::from_secs(3600))).pause(), Duration::from_secs(10));
        assert_eq!(Failure::Empty.pause(), Duration::ZERO);
    }
}
