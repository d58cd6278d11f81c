//! The rounds of a question: the model answers, the tools that it calls run, until it answers without a call.
//!
//! It knows neither the model nor the tools, so that tests can take their place.

use super::answer_stream::{Ended, Round};
use super::session::AnswerError;
use super::turn::{ToolCall, Turn};
use crate::cli::error::CliError;

/// Most answers with calls to one question.
pub const MAX_ROUNDS: usize = 32;

/// What the user is told when there are more.
pub const TOO_MANY: &str = "the model called tools 32 times in a row and has not answered; the question ends here";

/// What answers.
pub trait Answers {
    /// The model's next message.
    ///
    /// # Errors
    /// [`AnswerError`] when there is none.
    fn answer(&mut self, exchange: &[Turn]) -> Result<Round, AnswerError>;
}

/// What runs calls.
pub trait RunsCalls {
    /// Runs the calls of one answer, as far as that is allowed. There is a result for each of them.
    ///
    /// # Errors
    /// [`CliError`] when the terminal cannot be read or written. A call that fails has a result that says so.
    fn run(&mut self, calls: &[ToolCall]) -> Result<Results, CliError>;
}

/// What became of the calls of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    /// The message for each call.
    pub turns: Vec<Turn>,
    /// Whether the user stopped them.
    pub is_interrupted: bool,
}

/// Answers the question that is the only message of `exchange`, and adds all messages up to the answer to it. The last is always an
/// answer without calls, so that the conversation can continue.
///
/// # Errors
/// [`AnswerError`] when a message of the model fails. What was added until then is no complete exchange.
pub fn answer(
    model: &mut impl Answers,
    tools: &mut impl RunsCalls,
    exchange: &mut Vec<Turn>,
) -> Result<Ended, AnswerError> {
    for _ in 0..MAX_ROUNDS {
        let Round { turn, ended } = model.answer(exchange).map_err(|error| about_results(error, exchange))?;
        let calls = turn.calls.clone();
        exchange.push(turn);
        if calls.is_empty() {
            return Ok(ended);
        }
        let results = tools.run(&calls)?;
        exchange.extend(results.turns);
        if results.is_interrupted {
            exchange.push(Turn::assistant(""));
            return Ok(Ended::Interrupted);
        }
    }
    exchange.push(Turn::assistant(""));
    Ok(Ended::TooManyRounds)
}

/// A context that the results have filled is not that of a long question.
fn about_results(error: AnswerError, exchange: &[Turn]) -> AnswerError {
    match error {
        AnswerError::ContextFull { prompt_tokens, context_tokens } if exchange.len() > 1 => {
            AnswerError::Other(CliError::Failed(format!(
                "with the results of the tools the prompt has {prompt_tokens} tokens, but the context holds {context_tokens}; \
                 ask for less, or set a larger --ctx-size"
            )))
        }
        error => error,
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::run::turn::{Role, are_complete};
    use crate::core::request::{FinishReason, Usage};

    /// Calls tools in the first answers.
    struct Scripted {
        rounds_with_calls: usize,
        context_is_full: bool,
    }

    impl Answers for Scripted {
        fn answer(&mut self, exchange: &[Turn]) -> Result<Round, AnswerError> {
            let before = exchange.iter().filter(|turn| turn.role == Role::Assistant).count();
            if before > 0 && self.context_is_full {
                return Err(AnswerError::ContextFull { prompt_tokens: 9, context_tokens: 8 });
            }
            let call = |index: usize| ToolCall { id: format!("{before}.{index}"), ..ToolCall::default() };
            let calls = if before < self.rounds_with_calls { vec![call(0), call(1)] } else { Vec::new() };
            let ended = Ended::Finished { reason: FinishReason::StopToken(0), usage: Usage::default() };
            Ok(Round { turn: Turn { calls, ..Turn::assistant("text") }, ended })
        }
    }

    struct Tools {
        is_interrupted: bool,
    }

    impl RunsCalls for Tools {
        fn run(&mut self, calls: &[ToolCall]) -> Result<Results, CliError> {
            let turns = calls.iter().map(|call| Turn::result(call, "done", Vec::new())).collect();
            Ok(Results { turns, is_interrupted: self.is_interrupted })
        }
    }

    fn run(rounds_with_calls: usize, is_interrupted: bool) -> (Ended, Vec<Turn>) {
        let mut exchange = vec![Turn::user("question", Vec::new())];
        let mut model = Scripted { rounds_with_calls, context_is_full: false };
        let ended = answer(&mut model, &mut Tools { is_interrupted }, &mut exchange).unwrap();
        assert!(are_complete(&exchange), "{exchange:?}");
        (ended, exchange)
    }

    #[test]
    fn tools_run_until_an_answer_has_no_calls() {
        for (rounds, messages) in [(0, 2), (1, 5), (3, 11)] {
            let (ended, exchange) = run(rounds, false);
            assert!(matches!(ended, Ended::Finished { .. }));
            assert_eq!(exchange.len(), messages);
            assert_eq!(exchange.last().unwrap().content, "text");
        }
    }

    #[test]
    fn rounds_are_limited() {
        let (ended, exchange) = run(usize::MAX, false);
        assert_eq!(ended, Ended::TooManyRounds);
        assert!(TOO_MANY.contains(&MAX_ROUNDS.to_string()));
        assert_eq!(exchange.len(), 1 + 3 * MAX_ROUNDS + 1);
    }

    #[test]
    fn an_interrupted_call_ends_the_question_and_keeps_its_results() {
        let (ended, exchange) = run(5, true);
        assert_eq!((ended, exchange.len()), (Ended::Interrupted, 5));
    }

    #[test]
    fn results_that_fill_the_context_are_named_as_the_cause() {
        let mut exchange = vec![Turn::user("question", Vec::new())];
        let mut model = Scripted { rounds_with_calls: 1, context_is_full: true };
        let error = answer(&mut model, &mut Tools { is_interrupted: false }, &mut exchange).unwrap_err();
        assert!(error.to_string().starts_with("with the results of the tools"), "{error}");
    }
}
