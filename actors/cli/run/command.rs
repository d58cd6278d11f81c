//! What a line of the chat means: text for the model, or a command that begins with a slash.

/// A line the person entered.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// Nothing.
    Empty,
    /// Text for the model.
    Text(String),
    /// A command.
    Command(Command),
    /// A command that is not one; a sentence says what would be.
    Wrong(String),
}

/// A chat command.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// `/help`
    Help,
    /// `/clear`
    Clear,
    /// `/set NAME VALUE`
    Set(Change),
    /// `/set` alone, or `/show parameters`
    ShowParameters,
    /// `/show info`
    ShowInfo,
    /// `/show license`
    ShowLicense,
    /// `/show system`
    ShowSystem,
    /// `/show template`
    ShowTemplate,
    /// `/save FILE`
    Save(String),
    /// `/load FILE`
    Load(String),
    /// `/bye`
    Bye,
}

/// What `/set` changes.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Divides the logits; 0 is greedy.
    Temperature(f32),
    /// 0: all.
    TopK(usize),
    /// 1: all.
    TopP(f32),
    /// 0: all.
    MinP(f32),
    /// 1: off.
    RepetitionPenalty(f32),
    /// `None`: a fresh one each time.
    Seed(Option<u64>),
    /// `None`: until the model ends.
    MaxTokens(Option<usize>),
    /// `None`: no system prompt.
    System(Option<String>),
    /// Statistics after each turn.
    Verbose(bool),
}

/// What `/help` prints.
pub const HELP: &str = "\
/set NAME VALUE     change temperature, top_k, top_p, min_p, repetition_penalty, seed, max_tokens, system or verbose
/show WHAT          info, license, parameters, system or template
/clear              forget the conversation
/save FILE          write the conversation to a file
/load FILE          go on with a conversation from a file
/help, /?           this list
/bye                end (Ctrl-D does too)

Begin and end a message of several lines with \"\"\".
Ctrl-C stops the answer and keeps the conversation.
";

const SHOWN: &str = "info, license, parameters, system or template";
const SETTABLE: &[&str] =
    &["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "max_tokens", "system", "verbose"];

/// Reads a line (or several, between `"""`).
#[must_use]
pub fn parse(entered: &str) -> Line {
    let trimmed = entered.trim();
    if trimmed.is_empty() {
        return Line::Empty;
    }
    if let Some(text) = trimmed.strip_prefix("\"\"\"") {
        let text = text.strip_suffix("\"\"\"").unwrap_or(text).trim_matches('\n');
        return if text.trim().is_empty() { Line::Empty } else { Line::Text(text.to_owned()) };
    }
    // A path that is pasted first in a line is text: commands are words.
    let is_command = |rest: &str| rest.starts_with('?') || rest.starts_with(|c: char| c.is_ascii_alphabetic());
    match trimmed.strip_prefix('/') {
        Some(rest) if is_command(rest) && !rest.split_whitespace().next().unwrap_or(rest).contains('/') => {
            command(rest).map_or_else(Line::Wrong, Line::Command)
        }
        _ => Line::Text(trimmed.to_owned()),
    }
}

/// Whether a message that begins with `"""` still lacks its end.
#[must_use]
pub fn is_unfinished(entered: &str) -> bool {
    let trimmed = entered.trim();
    trimmed.strip_prefix("\"\"\"").is_some_and(|rest| !rest.ends_with("\"\"\""))
}

fn command(text: &str) -> Result<Command, String> {
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let file = |command: fn(String) -> Command| match rest {
        "" => Err(format!("/{name} needs the name of a file")),
        _ => Ok(command(rest.to_owned())),
    };
    match name {
        "help" | "?" => Ok(Command::Help),
        "clear" => Ok(Command::Clear),
        "bye" | "exit" | "quit" => Ok(Command::Bye),
        "save" => file(Command::Save),
        "load" => file(Command::Load),
        "show" => show(rest),
        "set" => set(rest),
        _ => Err(format!("there is no command /{name}; /help lists those there are")),
    }
}

fn show(what: &str) -> Result<Command, String> {
    match what {
        "info" | "" => Ok(Command::ShowInfo),
        "license" => Ok(Command::ShowLicense),
        "parameters" => Ok(Command::ShowParameters),
        "system" => Ok(Command::ShowSystem),
        "template" => Ok(Command::ShowTemplate),
        _ => Err(format!("/show shows {SHOWN}, not {what:?}")),
    }
}

fn set(text: &str) -> Result<Command, String> {
    // People who come from Ollama write "/set parameter temperature 0.5".
    let text = text.strip_prefix("parameter ").map_or(text, str::trim);
    if text.is_empty() {
        return Ok(Command::ShowParameters);
    }
    let (name, value) = text.split_once([' ', '=', '\t']).unwrap_or((text, ""));
    let value = value.trim().trim_start_matches('=').trim();
    let change = match name {
        "temperature" | "temp" => Change::Temperature(number(name, value, 0.0, f32::MAX)?),
        "top_k" => Change::TopK(integer(name, value)?),
        "top_p" => Change::TopP(number(name, value, 0.0, 1.0)?),
        "min_p" => Change::MinP(number(name, value, 0.0, 1.0)?),
        "repetition_penalty" => Change::RepetitionPenalty(number(name, value, f32::MIN_POSITIVE, f32::MAX)?),
        "seed" => Change::Seed(optional(name, value)?),
        "max_tokens" => Change::MaxTokens(optional(name, value)?.filter(|count| *count > 0)),
        "system" => Change::System(Some(unquoted(value)).filter(|text| !text.is_empty()).map(str::to_owned)),
        "verbose" => Change::Verbose(switch(value)?),
        _ => return Err(format!("/set changes {}, not {name:?}", SETTABLE.join(", "))),
    };
    Ok(Command::Set(change))
}

fn number(name: &str, text: &str, least: f32, most: f32) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite() && (least..=most).contains(number));
    number.ok_or_else(|| match most {
        f32::MAX => {
            format!("{name} takes a number {}, not {text:?}", if least > 0.0 { "above 0" } else { "from 0 up" })
        }
        _ => format!("{name} takes a number from {least} to {most}, not {text:?}"),
    })
}

fn integer<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name} takes a whole number, not {text:?}"))
}

fn optional<T: std::str::FromStr>(name: &str, text: &str) -> Result<Option<T>, String> {
    match text {
        "none" | "auto" | "random" | "-1" => Ok(None),
        _ => integer(name, text).map(Some).map_err(|reason| format!("{reason} (none takes it back)")),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "" | "on" | "true" | "1" | "yes" => Ok(true),
        "off" | "false" | "0" | "no" => Ok(false),
        _ => Err(format!("verbose takes on or off, not {text:?}")),
    }
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_to(text: &str) -> Line {
        parse(&format!("/set {text}"))
    }

    #[test]
    fn a_line_is_text_unless_it_begins_with_a_command() {
        assert_eq!(parse("  hello "), Line::Text("hello".into()));
        assert_eq!(parse("   "), Line::Empty);
        assert_eq!(parse("/usr/bin/env is a path"), Line::Text("/usr/bin/env is a path".into()));
        assert_eq!(parse("/?"), Line::Command(Command::Help));
        assert_eq!(parse("/bye"), Line::Command(Command::Bye));
        assert!(matches!(parse("/nonsense"), Line::Wrong(_)));
    }

    #[test]
    fn three_quotes_hold_several_lines_together() {
        assert!(is_unfinished("\"\"\"one"));
        assert!(is_unfinished("\"\"\""));
        assert!(!is_unfinished("\"\"\"one\ntwo\"\"\""));
        assert!(!is_unfinished("plain \"\"\""));
        assert_eq!(parse("\"\"\"\none\n  two\n\"\"\""), Line::Text("one\n  two".into()));
        assert_eq!(parse("\"\"\"/bye\"\"\""), Line::Text("/bye".into()));
    }

    #[test]
    fn set_reads_every_parameter() {
        let changed = |text| match set_to(text) {
            Line::Command(Command::Set(change)) => Some(change),
            _ => None,
        };
        assert_eq!(changed("temperature 0.5"), Some(Change::Temperature(0.5)));
        assert_eq!(changed("parameter temperature 0.5"), Some(Change::Temperature(0.5)));
        assert_eq!(changed("top_k=5"), Some(Change::TopK(5)));
        assert_eq!(changed("seed 7"), Some(Change::Seed(Some(7))));
        assert_eq!(changed("seed none"), Some(Change::Seed(None)));
        assert_eq!(changed("max_tokens 0"), Some(Change::MaxTokens(None)));
        assert_eq!(changed("system \"Be brief.\""), Some(Change::System(Some("Be brief.".into()))));
        assert_eq!(changed("system"), Some(Change::System(None)));
        assert_eq!(changed("verbose off"), Some(Change::Verbose(false)));
    }

    #[test]
    fn wrong_values_are_answered_with_what_is_right() {
        for (text, expected) in [
            ("temperature -1", "temperature takes a number from 0 up, not \"-1\""),
            ("temperature NaN", "temperature takes a number from 0 up, not \"NaN\""),
            ("top_p 2", "top_p takes a number from 0 to 1, not \"2\""),
            ("top_k many", "top_k takes a whole number, not \"many\""),
        ] {
            assert_eq!(set_to(text), Line::Wrong(expected.into()), "{text}");
        }
        assert!(matches!(set_to("colour blue"), Line::Wrong(_)));
        assert!(matches!(parse("/show nothing"), Line::Wrong(_)));
        assert!(matches!(parse("/save"), Line::Wrong(_)));
    }
}
