//! The headers of messages in an answer that is a sequence of messages.

use super::format::Channels;

/// What a message is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Text,
    Reasoning,
    /// A call of this tool, or several calls in the tool format.
    Call(String),
}

impl Channels {
    /// What the message after this header is.
    pub(super) fn message(&self, header: &str) -> Message {
        let recipient = self.recipient_of(header);
        if let Some(recipient) = recipient.filter(|recipient| !self.text.contains(recipient)) {
            return match self.reasoning.contains(&recipient) {
                true => Message::Reasoning,
                false => Message::Call(self.tool_of(&recipient).to_owned()),
            };
        }
        let is_reasoning = self.channel_of(header).is_some_and(|channel| self.reasoning.contains(&channel));
        if is_reasoning { Message::Reasoning } else { Message::Text }
    }

    /// Whether a text can be the beginning of a header, after the marker that begins it.
    pub(super) fn may_be_header(&self, beginning: &str) -> bool {
        let text = beginning.trim_start();
        if self.recipient.is_empty() {
            return text.chars().all(|character| !character.is_whitespace() && character != '{');
        }
        let text = text.strip_prefix("assistant").unwrap_or(text).trim_start();
        let begins = |mark: &str| text.starts_with(mark) || mark.starts_with(text);
        begins(self.recipient.trim_start()) || begins(&self.channel) || "assistant".starts_with(text)
    }

    fn tool_of<'a>(&self, recipient: &'a str) -> &'a str {
        recipient.strip_prefix(&self.tool_prefix).unwrap_or(recipient)
    }

    fn recipient_of(&self, header: &str) -> Option<String> {
        if self.recipient.is_empty() {
            return Some(header.trim().to_owned());
        }
        let (_, rest) = header.split_once(&self.recipient)?;
        Some(word(rest).to_owned())
    }

    /// The channel named last.
    fn channel_of(&self, header: &str) -> Option<String> {
        if self.channel.is_empty() {
            return None;
        }
        let (_, rest) = header.rsplit_once(&self.channel)?;
        Some(word(rest).to_owned())
    }
}

fn word(text: &str) -> &str {
    let text = text.trim_start();
    let end = text.find(|character: char| character.is_whitespace() || character == '<').unwrap_or(text.len());
    &text[..end]
}
