//! The answers to a request: the events of its sequences, with their text taken apart into typed deltas.

use cuelight_engine::engine::TokenId;

use super::error::ApiError;
use super::generations::Generations;
use crate::core::request::{BlockToken, Event, FinishReason, PositionLogprobs, PromptProgress, Usage};
use crate::output::{Delta, OutputParser};

/// What a protocol encodes, in this order for each choice: any number of `Progress` if asked for, at most one `Prompt`, any
/// number of `Token`s or `Block`s, one `Finished`.
#[derive(Debug)]
pub(crate) enum AnswerEvent {
    /// A part of the prompt was computed.
    Progress(PromptProgress),
    /// The log-probabilities of the prompt's tokens.
    Prompt(Vec<Option<PositionLogprobs>>),
    /// One generated token, and the deltas that it completes.
    Token { token: TokenId, logprobs: Option<PositionLogprobs>, deltas: Vec<Delta> },
    /// Tokens that were generated together, and the deltas that they complete.
    Block { tokens: Vec<TokenId>, deltas: Vec<Delta> },
    /// The end of the choice, and the deltas that were held back.
    Finished { finish: Finish, deltas: Vec<Delta> },
}

/// How an answer ended, and what it took.
#[derive(Debug, Clone)]
pub(crate) struct Finish {
    pub reason: FinishReason,
    /// The answer has tool calls.
    pub calls_tools: bool,
    pub usage: Usage,
    /// Generated tokens that are reasoning.
    pub reasoning_tokens: usize,
}

/// The running answers of one request.
pub(crate) struct Answers {
    generations: Generations,
    choices: Vec<Choice>,
}

/// Takes the text of one choice apart.
pub(crate) struct Choice {
    /// `None`: all text is text.
    parser: Option<OutputParser>,
    shown: Shown,
    reasoning_tokens: usize,
}

/// What a client gets to see of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shown {
    pub reasoning: bool,
    /// The calls after the first.
    pub more_calls: bool,
}

impl Shown {
    fn has(self, delta: &Delta) -> bool {
        match delta {
            Delta::Text(_) => true,
            Delta::Reasoning(_) => self.reasoning,
            Delta::ToolCallStart { index, .. } | Delta::ToolCallArguments { index, .. } => {
                self.more_calls || *index == 0
            }
        }
    }
}

impl Choice {
    pub fn new(parser: Option<OutputParser>, shown: Shown) -> Self {
        Choice { parser, shown, reasoning_tokens: 0 }
    }

    fn push(&mut self, text: String, deltas: &mut Vec<Delta>) {
        match &mut self.parser {
            Some(parser) => parser.push(&text, deltas),
            None if text.is_empty() => {}
            None => deltas.push(Delta::Text(text)),
        }
    }

    fn push_token(&mut self, text: String, deltas: &mut Vec<Delta>) {
        self.push(text, deltas);
        let is_reasoning = self.parser.as_ref().is_some_and(OutputParser::is_reasoning);
        self.reasoning_tokens += usize::from(is_reasoning);
    }

    fn finish(&mut self, deltas: &mut Vec<Delta>) {
        if let Some(parser) = &mut self.parser {
            parser.finish(deltas);
        }
    }

    /// Removes what the client does not want.
    fn filter(&self, deltas: &mut Vec<Delta>) {
        deltas.retain(|delta| self.shown.has(delta));
    }

    fn on(&mut self, event: Event) -> Option<AnswerEvent> {
        let mut deltas = Vec::new();
        match event {
            Event::Progress(progress) => Some(AnswerEvent::Progress(progress)),
            Event::Prompt { logprobs } => Some(AnswerEvent::Prompt(logprobs)),
            Event::Token { token, text, logprobs } => {
                self.push_token(text, &mut deltas);
                self.filter(&mut deltas);
                Some(AnswerEvent::Token { token, logprobs, deltas })
            }
            Event::Block { tokens } => {
                let tokens = tokens.into_iter().map(|BlockToken { token, text }| {
                    self.push_token(text, &mut deltas);
                    token
                });
                let tokens = tokens.collect();
                self.filter(&mut deltas);
                Some(AnswerEvent::Block { tokens, deltas: joined(deltas) })
            }
            Event::Finished { reason, text, usage } => {
                self.push(text, &mut deltas);
                self.finish(&mut deltas);
                self.filter(&mut deltas);
                let calls_tools = self.parser.as_ref().is_some_and(OutputParser::has_called);
                let finish = Finish { reason, calls_tools, usage, reasoning_tokens: self.reasoning_tokens };
                Some(AnswerEvent::Finished { finish, deltas })
            }
            Event::Embedded { .. } | Event::Failed(_) => None,
        }
    }
}

/// The deltas with neighbours of one kind as one.
fn joined(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut joined: Vec<Delta> = Vec::with_capacity(deltas.len());
    for delta in deltas {
        match (joined.last_mut(), delta) {
            (Some(Delta::Text(before)), Delta::Text(text))
            | (Some(Delta::Reasoning(before)), Delta::Reasoning(text)) => {
                before.push_str(&text);
            }
            (_, delta) => joined.push(delta),
        }
    }
    joined
}

impl Answers {
    /// The answers of sequences, one for each choice.
    pub fn new(generations: Generations, choices: Vec<Choice>) -> Self {
        Answers { generations, choices }
    }

    /// The next event of any choice, with its number. `None` when all have finished.
    ///
    /// Cancel-safe: an event is never lost by dropping the future.
    ///
    /// # Errors
    /// As [`Generations::next`].
    pub async fn next(&mut self) -> Option<Result<(usize, AnswerEvent), ApiError>> {
        loop {
            let (index, event) = match self.generations.next().await? {
                Ok(next) => next,
                Err(error) => return Some(Err(error)),
            };
            let event = self.choices.get_mut(index).and_then(|choice| choice.on(event));
            if let Some(event) = event {
                return Some(Ok((index, event)));
            }
        }
    }

    /// Every choice's whole answer.
    ///
    /// # Errors
    /// As [`Generations::next`].
    pub async fn collect(mut self) -> Result<Vec<Answer>, ApiError> {
        let mut answers: Vec<Answer> = self.choices.iter().map(|_| Answer::default()).collect();
        while let Some(next) = self.next().await {
            let (choice, event) = next?;
            answers[choice].add(event);
        }
        Ok(answers)
    }
}

/// One whole answer.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub text: String,
    pub reasoning: String,
    pub calls: Vec<ToolCall>,
    pub tokens: Vec<TokenId>,
    /// One for each token, when requested.
    pub logprobs: Vec<PositionLogprobs>,
    /// One for each token of the prompt, when requested.
    pub prompt_logprobs: Vec<Option<PositionLogprobs>>,
    pub finish: Option<Finish>,
}

/// A call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub id: String,
    pub name: String,
    /// A JSON object, unless the answer was cut off.
    pub arguments: String,
}

impl Answer {
    /// The mean log-probability of its tokens; 0 without tokens.
    pub fn mean_logprob(&self) -> f32 {
        let sum: f32 = self.logprobs.iter().map(|position| position.sampled.logprob).sum();
        sum / self.logprobs.len().max(1) as f32
    }

    fn add(&mut self, event: AnswerEvent) {
        match event {
            AnswerEvent::Progress(_) => {}
            AnswerEvent::Prompt(logprobs) => self.prompt_logprobs = logprobs,
            AnswerEvent::Token { token, logprobs, deltas } => {
                self.tokens.push(token);
                self.logprobs.extend(logprobs);
                deltas.into_iter().for_each(|delta| self.add_delta(delta));
            }
            AnswerEvent::Block { tokens, deltas } => {
                self.tokens.extend(tokens);
                deltas.into_iter().for_each(|delta| self.add_delta(delta));
            }
            AnswerEvent::Finished { finish, deltas } => {
                deltas.into_iter().for_each(|delta| self.add_delta(delta));
                self.finish = Some(finish);
            }
        }
    }

    fn add_delta(&mut self, delta: Delta) {
        match delta {
            Delta::Text(text) => self.text.push_str(&text),
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::ToolCallStart { id, name, .. } => self.calls.push(ToolCall { id, name, arguments: String::new() }),
            Delta::ToolCallArguments { index, fragment } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&fragment);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_one_event_with_all_of_its_text() {
        let block = |texts: &[&str]| {
            let tokens = texts.iter().zip(1..).map(|(text, token)| BlockToken { token, text: (*text).to_owned() });
            Event::Block { tokens: tokens.collect() }
        };
        let shown = Shown { reasoning: true, more_calls: true };
        let Some(AnswerEvent::Block { tokens, deltas }) = Choice::new(None, shown).on(block(&["a", "", "bc"])) else {
            panic!("a block is a block")
        };
        assert_eq!((tokens, deltas), (vec![1, 2, 3], vec![Delta::Text("abc".to_owned())]));
        let deltas = [Delta::Reasoning("a".into()), Delta::Reasoning("b".into()), Delta::Text("c".into())];
        assert_eq!(joined(deltas.into()), [Delta::Reasoning("ab".into()), Delta::Text("c".into())]);
    }
}
