//! A question from its text to the printed answer, with the calls of tools between.

use super::answer_printer::AnswerPrinter;
use super::answer_stream::{Ended, Round};
use super::rounds::{self, Answers};
use super::session::{AnswerError, Session};
use super::tools::asker::Asks;
use super::tools::toolbox::Toolbox;
use super::turn::Turn;
use crate::cli::async_runtime;
use crate::cli::context::Context;
use crate::cli::echo::EchoOff;
use crate::cli::error::CliError;
use crate::cli::terminal::print;

/// Answers a question on standard output. The conversation keeps both, even if Ctrl-C cut the answer short.
///
/// # Errors
/// [`AnswerError`] when there is no answer; the conversation is unchanged.
pub fn answer<'a>(
    session: &mut Session,
    tools: Option<(&'a mut Toolbox, Option<&'a mut dyn Asks>)>,
    text: &str,
    context: &Context,
    tokio: &'a tokio::runtime::Runtime,
) -> Result<Ended, AnswerError> {
    let mut exchange = vec![session.question(text)];
    let ended = match tools {
        None => {
            let Round { turn, ended } = Printing { session, context, tokio }.answer(&exchange)?;
            exchange.push(turn);
            ended
        }
        Some((toolbox, asker)) => {
            tokio.block_on(async {
                tokio::select! {
                    // A server that is started again may take long.
                    offered = toolbox.offer(session) => offered,
                    signal = async_runtime::interrupt() => { signal?; Err(CliError::Interrupted) }
                }
            })?;
            let mut runner = toolbox.runner(session, asker, tokio);
            rounds::answer(&mut Printing { session, context, tokio }, &mut runner, &mut exchange)?
        }
    };
    session.keep(exchange);
    Ok(ended)
}

/// Prints what the model answers.
struct Printing<'a> {
    session: &'a Session,
    context: &'a Context,
    tokio: &'a tokio::runtime::Runtime,
}

impl Answers for Printing<'_> {
    /// Streams an answer to standard output: wrapped between words on a terminal, and without the echo of typed keys.
    fn answer(&mut self, exchange: &[Turn]) -> Result<Round, AnswerError> {
        let mut printer = AnswerPrinter::new(self.context.terminal, self.session.markdown);
        let _echo = EchoOff::new();
        let round = self.tokio.block_on(self.session.round(exchange, |piece| printer.push(piece)));
        printer.finish()?;
        let round = round?;
        // The next line is about a call, or begins the next answer.
        if !round.turn.calls.is_empty() && printer.has_printed() {
            print("\n")?;
        }
        Ok(round)
    }
}
