//! What a line of the chat means: text for the model, or a command that begins with a slash.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::serving::thinking::Thinking;
use cuelight_engine::media::MediaKind;

/// A message or command that the user entered.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// Nothing.
    Empty,
    /// Text for the model.
    Text(String),
    /// A command.
    Command(Command),
    /// An invalid command; a sentence explains what is valid.
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
    /// `/set ctx N`, which loads the model again.
    SetContext(NonZeroUsize),
    /// `/set` alone, or `/show parameters`
    ShowParameters,
    /// `/show info`
    ShowInfo,
    /// `/show license`
    ShowLicense,
    /// `/show system`, or `/set system` alone
    ShowSystem,
    /// `/show template`
    ShowTemplate,
    /// `/tools`
    ShowTools,
    /// `/save FILE`
    Save(String),
    /// `/load FILE`
    Load(String),
    /// `/image FILE`, `/audio FILE`
    Attach(MediaKind, String),
    /// `/exit`
    Exit,
}

/// What `/set` changes in a running session.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Divides the logits; 0 always takes the most likely token.
    Temperature(f32),
    /// 0: all tokens.
    TopK(usize),
    /// 1: all tokens.
    TopP(f32),
    /// 0: all tokens.
    MinP(f32),
    /// 1: off.
    RepetitionPenalty(f32),
    /// `None`: a random seed for each answer.
    Seed(Option<u64>),
    /// `None`: until the model ends the answer.
    MaxTokens(Option<usize>),
    /// `None`: no system prompt.
    System(Option<String>),
    /// Statistics after each answer.
    Verbose(bool),
    /// Markdown is rendered.
    Markdown(bool),
    /// Whether the model reasons before it answers.
    Think(Thinking),
}

/// What `/help` prints.
pub const HELP: &str = "\
/set                show the parameters
/set NAME VALUE     change temperature, top_k, top_p, min_p, repetition_penalty, seed, max_tokens, system, think, verbose
                    or markdown
/set ctx TOKENS     change the context length; loads the model again and keeps the conversation
/show WHAT          info, license, parameters, system or template
/tools              list the tools that the model may call
/clear              forget the conversation
/save FILE          write the conversation to a file
/load FILE          continue a conversation from a file
/image FILE         add an image to the next message; a message may also name the file
/audio FILE         add audio to the next message; a message may also name the file
/help, /?           show this list
/exit, /bye         end the chat (also Ctrl-D)

Tab completes commands. Begin and end a message of several lines with \"\"\".
Ctrl-C stops the answer and keeps the conversation.
";

/// The commands, for completion.
pub const COMMANDS: &[&str] =
    &["/audio", "/bye", "/clear", "/exit", "/help", "/image", "/load", "/save", "/set", "/show", "/tools"];

/// The names that `/show` knows.
pub const SHOWABLE: &[&str] = &["info", "license", "parameters", "system", "template"];

/// The names that `/set` knows.
pub const SETTABLE: &[&str] = &[
    "ctx",
    "markdown",
    "max_tokens",
    "min_p",
    "repetition_penalty",
    "seed",
    "system",
    "temperature",
    "think",
    "top_k",
    "top_p",
    "verbose",
];

/// Parses a line, or several between `"""`.
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
    // A pasted path at the start of a line is text: commands are single words.
    let is_command = |rest: &str| rest.starts_with('?') || rest.starts_with(|c: char| c.is_ascii_alphabetic());
    match trimmed.strip_prefix('/') {
        Some(rest) if is_command(rest) && !rest.split_whitespace().next().unwrap_or(rest).contains('/') => {
            command(rest).map_or_else(Line::Wrong, Line::Command)
        }
        _ => Line::Text(trimmed.to_owned()),
    }
}

/// The files of images and audio that a message names. Terminals quote the path of a file that is dropped on them, or escape its spaces.
#[must_use]
pub fn media_in(text: &str) -> Vec<(MediaKind, PathBuf)> {
    const ENDS: [(MediaKind, &[&str]); 2] = [
        (MediaKind::Image, &[".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"]),
        (MediaKind::Audio, &[".wav", ".mp3", ".flac", ".ogg", ".opus", ".webm", ".aac", ".m4a"]),
    ];
    let kind_of = |path: PathBuf| {
        let name = path.to_string_lossy().to_ascii_lowercase();
        let (kind, _) = ENDS.into_iter().find(|(_, ends)| ends.iter().any(|end| name.ends_with(end)))?;
        path.is_file().then_some((kind, path))
    };
    // An apostrophe of a sentence is no quote.
    let all = words(text).into_iter().chain(text.split_whitespace().map(str::to_owned)).map(PathBuf::from);
    let mut found: Vec<(MediaKind, PathBuf)> = Vec::new();
    for item in all.filter_map(kind_of) {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}

/// The words of a text, as a shell divides them.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut quote, mut is_escaped) = (vec![String::new()], None, false);
    for character in text.chars() {
        let last = words.len() - 1;
        match (character, quote) {
            _ if std::mem::take(&mut is_escaped) => words[last].push(character),
            ('\\', None) => is_escaped = true,
            ('\'' | '"', None) => quote = Some(character),
            (_, Some(open)) if character == open => quote = None,
            (_, None) if character.is_whitespace() => words.push(String::new()),
            _ => words[last].push(character),
        }
    }
    words
}

/// Whether a message that begins with `"""` still lacks the closing `"""`.
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
        "tools" => Ok(Command::ShowTools),
        "bye" | "exit" | "quit" => Ok(Command::Exit),
        "save" => file(Command::Save),
        "load" => file(Command::Load),
        "image" => file(|path| Command::Attach(MediaKind::Image, unquoted(&path).to_owned())),
        "audio" => file(|path| Command::Attach(MediaKind::Audio, unquoted(&path).to_owned())),
        "show" => show(rest),
        "set" => set(rest),
        _ => Err(format!("unknown command /{name}; /help lists the commands")),
    }
}

fn show(what: &str) -> Result<Command, String> {
    match what {
        "info" | "" => Ok(Command::ShowInfo),
        "license" => Ok(Command::ShowLicense),
        "parameters" => Ok(Command::ShowParameters),
        "system" => Ok(Command::ShowSystem),
        "template" => Ok(Command::ShowTemplate),
        _ => Err(format!("/show knows {}, not {what:?}", SHOWABLE.join(", "))),
    }
}

fn set(text: &str) -> Result<Command, String> {
    // Ollama's form is "/set parameter temperature 0.5".
    let text = text.strip_prefix("parameter ").map_or(text, str::trim);
    let (name, value) = text.split_once([' ', '=', '\t']).unwrap_or((text, ""));
    let value = value.trim().trim_start_matches('=').trim();
    match (name, value) {
        ("system", "") => return Ok(Command::ShowSystem),
        ("verbose" | "markdown" | "think" | "nothink", "") => {}
        (name, "") if name.is_empty() || SETTABLE.contains(&name) => return Ok(Command::ShowParameters),
        _ => {}
    }
    let change = match name {
        "ctx" | "ctx_size" | "num_ctx" => return count(name, value).map(Command::SetContext),
        "temperature" | "temp" => Change::Temperature(number(name, value, 0.0, f32::MAX)?),
        "top_k" => Change::TopK(integer(name, value)?),
        "top_p" => Change::TopP(number(name, value, 0.0, 1.0)?),
        "min_p" => Change::MinP(number(name, value, 0.0, 1.0)?),
        "repetition_penalty" | "repeat_penalty" => {
            Change::RepetitionPenalty(number(name, value, f32::MIN_POSITIVE, f32::MAX)?)
        }
        "seed" => Change::Seed(optional(name, value)?),
        "max_tokens" | "num_predict" => Change::MaxTokens(optional(name, value)?.filter(|count| *count > 0)),
        "system" => Change::System(Some(unquoted(value)).filter(|text| !text.is_empty()).map(str::to_owned)),
        "verbose" => Change::Verbose(switch(name, value)?),
        "markdown" => Change::Markdown(switch(name, value)?),
        "think" => Change::Think(thinking(value)?),
        // Ollama's name.
        "nothink" => Change::Think(Thinking::switched(false)),
        _ => return Err(format!("/set knows {}, not {name:?}", SETTABLE.join(", "))),
    };
    Ok(Command::Set(change))
}

fn number(name: &str, text: &str, min: f32, max: f32) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite() && (min..=max).contains(number));
    number.ok_or_else(|| match max {
        f32::MAX => {
            format!("{name} must be a number {}, not {text:?}", if min > 0.0 { "above 0" } else { "of at least 0" })
        }
        _ => format!("{name} must be a number from {min} to {max}, not {text:?}"),
    })
}

fn integer<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name} must be a whole number, not {text:?}"))
}

fn count(name: &str, text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| format!("{name} must be a whole number from 1 up, not {text:?}"))
}

fn optional<T: std::str::FromStr>(name: &str, text: &str) -> Result<Option<T>, String> {
    match text {
        "none" | "auto" | "random" | "-1" => Ok(None),
        _ => integer(name, text).map(Some).map_err(|reason| format!("{reason} (or none)")),
    }
}

fn switch(name: &str, text: &str) -> Result<bool, String> {
    match text {
        "" | "on" | "true" | "1" | "yes" => Ok(true),
        "off" | "false" | "0" | "no" => Ok(false),
        _ => Err(format!("{name} must be on or off, not {text:?}")),
    }
}

fn thinking(text: &str) -> Result<Thinking, String> {
    match text {
        "" => Ok(Thinking::switched(true)),
        "default" => Ok(Thinking::default()),
        word => Thinking::of_word(word).map_err(|expected| format!("think: {expected} (or default), not {word:?}")),
    }
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_may_name_images_and_audio() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["a cat.PNG", "dog.wav", "notes.txt"] {
            std::fs::write(path(name), "").unwrap();
        }
        let (cat, dog) = (path("a cat.PNG"), path("dog.wav"));
        let escaped = cat.to_string_lossy().replace(' ', "\\ ");
        let (of_cat, of_dog) = ((MediaKind::Image, cat.clone()), (MediaKind::Audio, dog.clone()));
        assert_eq!(
            media_in(&format!("What's in {}?  {}", path("no.png").display(), dog.display())),
            std::slice::from_ref(&of_dog)
        );
        assert_eq!(
            media_in(&format!("{escaped} and '{}' {}", dog.display(), path("notes.txt").display())),
            [of_cat.clone(), of_dog]
        );
        assert_eq!(media_in(&format!("\"{}\"", cat.display())), [of_cat]);
        assert!(media_in("see cat.png").is_empty());
        let attach = |kind, name: &str| Line::Command(Command::Attach(kind, name.to_owned()));
        assert_eq!(parse("/image cat.png"), attach(MediaKind::Image, "cat.png"));
        assert_eq!(parse("/audio \"a b.wav\""), attach(MediaKind::Audio, "a b.wav"));
    }

    fn set_to(text: &str) -> Line {
        parse(&format!("/set {text}"))
    }

    #[test]
    fn a_line_is_text_unless_it_begins_with_a_command() {
        assert_eq!(parse("  hello "), Line::Text("hello".into()));
        assert_eq!(parse("   "), Line::Empty);
        assert_eq!(parse("/usr/bin/env is a path"), Line::Text("/usr/bin/env is a path".into()));
        assert_eq!(parse("/?"), Line::Command(Command::Help));
        assert_eq!(parse("/bye"), Line::Command(Command::Exit));
        assert_eq!(parse("/tools"), Line::Command(Command::ShowTools));
        assert!(matches!(parse("/nonsense"), Line::Wrong(_)));
    }

    #[test]
    fn three_quotes_enclose_a_message_of_several_lines() {
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
        assert_eq!(changed("system \"\""), Some(Change::System(None)));
        assert_eq!(changed("verbose off"), Some(Change::Verbose(false)));
        assert_eq!(changed("markdown"), Some(Change::Markdown(true)));
        assert_eq!(changed("think"), Some(Change::Think(Thinking::switched(true))));
        assert_eq!(changed("nothink"), Some(Change::Think(Thinking::switched(false))));
        assert_eq!(changed("think low"), Some(Change::Think(Thinking::of_word("low").unwrap())));
        assert_eq!(changed("think default"), Some(Change::Think(Thinking::default())));
    }

    #[test]
    fn set_without_a_value_shows_and_changes_nothing() {
        assert_eq!(set_to("system"), Line::Command(Command::ShowSystem));
        assert_eq!(parse("/set"), Line::Command(Command::ShowParameters));
        assert_eq!(set_to("temperature"), Line::Command(Command::ShowParameters));
    }

    #[test]
    fn the_context_length_has_the_names_of_other_programs() {
        let expected = Line::Command(Command::SetContext(NonZeroUsize::new(4096).unwrap()));
        for name in ["ctx", "ctx_size", "num_ctx", "parameter num_ctx"] {
            assert_eq!(set_to(&format!("{name} 4096")), expected, "{name}");
        }
        assert_eq!(set_to("ctx 0"), Line::Wrong("ctx must be a whole number from 1 up, not \"0\"".to_owned()));
    }

    #[test]
    fn a_wrong_value_is_answered_with_the_valid_range() {
        for (text, expected) in [
            ("temperature -1", "temperature must be a number of at least 0, not \"-1\""),
            ("temperature NaN", "temperature must be a number of at least 0, not \"NaN\""),
            ("top_p 2", "top_p must be a number from 0 to 1, not \"2\""),
            ("top_k many", "top_k must be a whole number, not \"many\""),
            (
                "think hard",
                "think: expected on, off or one of none, minimal, low, medium, high, xhigh, max (or default), not \"hard\"",
            ),
        ] {
            assert_eq!(set_to(text), Line::Wrong(expected.into()), "{text}");
        }
        assert!(matches!(set_to("colour blue"), Line::Wrong(_)));
        assert!(matches!(parse("/show nothing"), Line::Wrong(_)));
        assert!(matches!(parse("/save"), Line::Wrong(_)));
    }

    #[test]
    fn the_help_names_every_command_and_parameter() {
        for name in COMMANDS.iter().chain(SETTABLE).chain(SHOWABLE) {
            assert!(HELP.contains(name), "{name}");
        }
    }
}
