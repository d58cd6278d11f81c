//! The chat on a pseudo-terminal: what a user types, and what the terminal shows.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

#[path = "support/pty.rs"]
mod pty;

use std::path::Path;
use std::process::Command;

use pty::{END, ENTER, Pty};

/// The end of the notice before the first prompt. The notice is broken between words, depending on the model's path.
const READY: &str = "chat\n>>> ";
const PROMPT: &str = "\n>>> ";

/// Sampling with which the random model hardly ever ends its answer.
const LONG_ANSWER: [&str; 8] = ["--temp", "3", "--top-k", "0", "--min-p", "0", "--top-p", "1"];

/// A home directory with a chat of a tiny random model in it.
struct Chat {
    home: tempfile::TempDir,
    pty: Pty,
}

impl Chat {
    fn start(arguments: &[&str]) -> Self {
        Self::start_on(80, arguments)
    }

    fn start_on(columns: u16, arguments: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let model = format!("{}/tests/fixtures/families/llama.gguf", env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.args(["run", &model, "--threads", "1", "--seed", "3"]).args(arguments);
        command.env_clear().env("HOME", home.path()).env("TERM", "xterm").current_dir(home.path());
        command.env("CUELIGHT_CALIBRATE", "off");
        Chat { home, pty: Pty::start(command, columns) }
    }

    /// Starts a chat and waits for its first prompt.
    fn ready(arguments: &[&str]) -> Self {
        let mut chat = Self::start(arguments);
        chat.pty.wait_for(READY);
        chat
    }

    /// Enters a line and returns what is shown up to the next prompt.
    #[track_caller]
    fn enter(&mut self, line: &str) -> String {
        self.pty.enter(line, PROMPT)
    }
}

/// A notice without its line ends.
fn unbroken(shown: &str) -> String {
    shown.replace('\n', " ")
}

#[test]
fn help_lists_exit_and_exit_ends_the_chat() {
    let mut chat = Chat::ready(&[]);
    let help = chat.enter("/help");
    for word in ["/exit", "/bye", "/set ctx TOKENS", "Ctrl-D"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    chat.pty.send("/exit");
    chat.pty.send(ENTER);
    assert_eq!(chat.pty.exit_code(), 0);
}

#[test]
fn the_memory_plan_is_one_line_unless_verbose() {
    let mut chat = Chat::start(&["--max-tokens", "4"]);
    let shown = unbroken(&chat.pty.wait_for(READY));
    assert!(shown.contains("of memory (weights") && !shown.contains("memory plan"), "{shown}");
    chat.pty.send(END);
    assert_eq!(chat.pty.exit_code(), 0);
    let mut verbose = Chat::start(&["--verbose"]);
    assert!(verbose.pty.wait_for(READY).contains("memory plan"));
}

#[test]
fn one_user_gets_the_kv_cache_of_one_sequence() {
    // The model was trained with 512 tokens: 32 blocks of 16 tokens.
    let kv_line = |arguments: &[&str]| {
        let mut chat = Chat::start(&[&["--verbose"], arguments].concat());
        let shown = chat.pty.wait_for(READY);
        shown.lines().find(|line| line.contains("KV cache")).unwrap().to_owned()
    };
    let line = kv_line(&[]);
    assert!(line.contains("512 tokens in 32 blocks"), "{line}");
    let line = kv_line(&["--max-seqs", "2"]);
    assert!(line.contains("1024 tokens in 64 blocks"), "{line}");
}

#[test]
fn a_full_context_offers_to_drop_the_oldest_turns() {
    let mut chat = Chat::ready(&["--ctx-size", "128", "--max-tokens", "8"]);
    let question = "the old one on the other hand";
    let mut shown = chat.enter(question);
    for _ in 0..20 {
        assert!(!shown.contains("error"), "{shown}");
        chat.pty.send(question);
        chat.pty.wait_for(question);
        chat.pty.send(ENTER);
        shown = chat.pty.wait_for_either(PROMPT, "[Y/n] ");
        if shown.ends_with("[Y/n] ") {
            break;
        }
    }
    assert!(shown.contains("the context is full") && shown.contains("drop the oldest"), "{shown}");
    chat.pty.send("n");
    chat.pty.send(ENTER);
    let refused = chat.pty.wait_for(PROMPT);
    assert!(refused.contains("nothing was sent; /set ctx TOKENS enlarges the context"), "{refused}");

    chat.pty.enter(question, "[Y/n] ");
    chat.pty.send(ENTER);
    let answered = unbroken(&chat.pty.wait_for(PROMPT));
    assert!(answered.contains("of 128"), "the question is answered: {answered}");

    // The terminal breaks this line, so its echo is not searched for.
    chat.pty.send(&"word ".repeat(60));
    chat.pty.send(ENTER);
    chat.pty.wait_for("error: ");
    let error = chat.pty.wait_for(PROMPT);
    assert!(error.contains("does not fit the context of 128 tokens") && error.contains("/set ctx"), "{error}");
}

#[test]
fn set_ctx_loads_the_model_again_and_keeps_the_conversation() {
    let mut chat = Chat::ready(&["--ctx-size", "128", "--max-tokens", "4"]);
    chat.enter("hello");
    // The progress bar is cleared in place, so no line end precedes the prompt.
    let reloaded = unbroken(&chat.pty.enter("/set num_ctx 256", ">>> "));
    assert!(reloaded.contains("for 256 tokens"), "{reloaded}");
    assert!(chat.enter("/set").contains("ctx                 256"));
    let saved = chat.enter("/save chat.json");
    assert!(saved.contains("saved 2 messages to"), "{saved}");
}

#[test]
fn keys_typed_during_an_answer_are_not_echoed_into_it() {
    let mut chat = Chat::ready(&[&LONG_ANSWER[..], &["--max-tokens", "400"]].concat());
    chat.pty.send("hello");
    chat.pty.wait_for("hello");
    chat.pty.send(ENTER);
    // The echo is off once the answer has begun.
    chat.pty.wait_for_output();
    chat.pty.send("QWXZ");
    let answer = chat.pty.wait_for(" tok/s");
    assert!(!answer.contains("QWXZ"), "{answer}");
    // They are in the line of the next message.
    chat.pty.wait_for("QWXZ");
}

#[test]
fn words_wrap_at_the_terminals_width() {
    let mut chat = Chat::start_on(30, &[&LONG_ANSWER[..], &["--max-tokens", "200"]].concat());
    chat.pty.wait_for(READY);
    chat.pty.send("hello");
    chat.pty.wait_for("hello");
    chat.pty.send(ENTER);
    let answer = chat.pty.wait_for(" prompt tokens");
    let lines: Vec<&str> = answer.lines().collect();
    assert!(lines.len() > 10, "{answer}");
    for line in lines {
        // The terminal itself breaks a word that is wider than it is.
        let is_wide = |text: &str| text.chars().count() > 30;
        assert!(!is_wide(line) || line.split(' ').any(is_wide), "{line:?} is wider than the terminal");
    }
}

#[test]
fn tab_completes_commands_and_their_names() {
    let mut chat = Chat::ready(&[]);
    chat.pty.send("/sh\t");
    chat.pty.wait_for("/show ");
    chat.pty.send("li\t");
    chat.pty.wait_for("license ");
    chat.pty.send(ENTER);
    assert!(chat.pty.wait_for(PROMPT).contains("mit"));
}

#[test]
fn save_prints_the_path_and_load_continues() {
    let mut chat = Chat::ready(&["--max-tokens", "4"]);
    chat.enter("hello");
    let saved = chat.enter("/save notes.json");
    let path = std::fs::canonicalize(chat.home.path()).unwrap().join("notes.json");
    assert!(path.is_file());
    assert!(saved.replace('\n', "").contains(path.to_str().unwrap()), "{saved}");
    assert!(chat.enter("/load notes.json").contains("continuing after 2 messages"));
}

#[test]
fn lines_between_quotes_have_their_own_prompt() {
    let mut chat = Chat::ready(&["--max-tokens", "4"]);
    chat.pty.enter("\"\"\"one", "\n... ");
    chat.pty.enter("two", "\n... ");
    let answered = chat.enter("three\"\"\"");
    assert!(answered.contains("prompt tokens"), "{answered}");
}

#[test]
fn set_system_alone_shows_the_system_prompt() {
    let mut chat = Chat::ready(&["--system", "Be brief."]);
    assert!(chat.enter("/set system").contains("Be brief."));
    assert!(chat.enter("/show system").contains("Be brief."));
    chat.enter("/set system \"\"");
    assert!(chat.enter("/set system").contains("there is no system prompt"));
}

#[test]
fn a_prompt_of_several_words_needs_no_quotes() {
    let mut once = Chat::start(&["hello", "there", "--max-tokens", "4"]);
    let shown = unbroken(&once.pty.wait_for("]\n"));
    assert_eq!(once.pty.exit_code(), 0);
    // Two lines at most besides the answer: the model with its memory, and the statistics.
    assert!(shown.contains("of memory (weights") && shown.contains("prompt tokens"), "{shown}");
    assert!(!shown.contains(">>>") && !shown.contains("memory plan"), "{shown}");
}

/// A run of one answer that can only be this text.
fn saying(text: &str, more: &[&str]) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let grammar = folder.path().join("grammar.gbnf");
    std::fs::write(&grammar, format!("root ::= {}", serde_json::to_string(text).unwrap())).unwrap();
    let mut run =
        Chat::start(&[&["hello", "--max-tokens", "200", "--grammar", grammar.to_str().unwrap()], more].concat());
    let shown = run.pty.wait_for("]\n");
    assert_eq!(run.pty.exit_code(), 0);
    (shown, run.pty.written())
}

#[test]
fn markdown_is_rendered_unless_it_is_turned_off() {
    let text = "# Top\n- **bold** `code`\n";
    let (shown, written) = saying(text, &[]);
    assert!(shown.contains("Top\n• bold code") && !shown.contains("**"), "{shown}");
    assert!(written.contains("\u{1b}[0;1mbold\u{1b}[0m \u{1b}[0;36mcode\u{1b}[0m"), "{written:?}");
    for plain in [&["--no-markdown"], &["--color=never"]] {
        let (shown, _) = saying(text, plain);
        assert!(shown.contains("# Top\n- **bold** `code`"), "{shown}");
    }
}

#[test]
fn control_characters_of_an_answer_reach_no_terminal() {
    let (shown, written) = saying("a\u{1b}[2Jb", &[]);
    assert!(shown.contains("a␛[2Jb") && !written.contains("\u{1b}[2J"), "{written:?}");
}

/// Writes a chat template whose prompts end inside of the reasoning, unless thinking is off.
fn reasoning_template(folder: &Path) -> String {
    let template = folder.join("template.jinja");
    let source = "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' and m.reasoning_content %}<think>\n\
                  {{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}\n{% endfor %}\
                  {% if add_generation_prompt %}assistant: <think>\n\
                  {% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}";
    std::fs::write(&template, source).unwrap();
    template.to_str().unwrap().to_owned()
}

/// What begins text that is dimmed.
const DIMMED: &str = "\u{1b}[0;2m";

#[test]
fn reasoning_is_dimmed() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Chat::start(&["hello", "--max-tokens", "8", "--chat-template", &reasoning_template(folder.path())]);
    let shown = run.pty.wait_for("]\n");
    assert!(!shown.contains('␛'), "{shown}");
    assert!(run.pty.written().contains(DIMMED), "{:?}", run.pty.written());
}

#[test]
fn think_switches_the_reasoning_of_a_chat() {
    let folder = tempfile::tempdir().unwrap();
    let mut chat = Chat::ready(&["--max-tokens", "8", "--chat-template", &reasoning_template(folder.path())]);
    assert!(chat.enter("/show parameters").contains("think               default"));
    let mut dimmed = |setting: &str| {
        chat.enter(setting);
        let before = chat.pty.written().matches(DIMMED).count();
        chat.enter("hello");
        chat.pty.written().matches(DIMMED).count() - before
    };
    assert!(dimmed("/set think") > 0);
    assert_eq!(dimmed("/set nothink"), 0);
    assert!(dimmed("/set think low") > 0);
    assert!(dimmed("/set think default") > 0);
    let mut without = Chat::ready(&[]);
    let refused = unbroken(&without.enter("/set think on"));
    assert!(refused.contains("this model does not reason"), "{refused}");
    assert!(without.enter("/show parameters").contains("think               default"));
}
