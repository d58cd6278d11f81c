//! Renders a template in this process, with minijinja.
//!
//! Templates are written for Hugging Face transformers, so they get the same environment: trimmed blocks, Python's string, list and
//! dict methods, `tojson` as `json.dumps`, `raise_exception` and `strftime_now`.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value;

use super::error::ChatTemplateError;
use super::inputs::{Definition, TemplateInputs};
use super::json::JsonLayout;
use super::source;

/// Instructions of one rendering: a few seconds at most, and far more than any real conversation needs.
const FUEL: u64 = 50_000_000;
/// Most bytes of a prompt.
const MAX_OUTPUT_BYTES: usize = 32 << 20;
/// The stack of the thread that compiles.
const COMPILE_STACK_BYTES: usize = 16 << 20;

/// The template for conversations without tools.
const DEFAULT: &str = "chat template";
/// The template for conversations with tools.
const TOOL_USE: &str = "chat template for tools";

/// A compiled chat template.
#[derive(Debug)]
pub(super) struct Interpreter {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

impl Interpreter {
    /// Compiles a template, on a thread with a stack that is large enough for the limits of the source.
    ///
    /// # Errors
    /// [`ChatTemplateError::Syntax`] when it is not a valid template, [`ChatTemplateError::Limit`] when it is over a limit.
    pub(super) fn new(definition: &Definition) -> Result<Self, ChatTemplateError> {
        definition.sources().try_for_each(source::check)?;
        std::thread::scope(|scope| {
            let thread =
                std::thread::Builder::new().name("compile-template".to_owned()).stack_size(COMPILE_STACK_BYTES);
            let compiling = thread
                .spawn_scoped(scope, || Self::compile(definition))
                .map_err(|error| ChatTemplateError::Worker(format!("no thread to compile on: {error}")))?;
            compiling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn compile(definition: &Definition) -> Result<Self, ChatTemplateError> {
        let mut environment = environment();
        let named = [(DEFAULT, Some(&definition.source)), (TOOL_USE, definition.tool_use.as_ref())];
        for (name, source) in named.into_iter().filter_map(|(name, source)| Some((name, source?))) {
            environment.add_template_owned(name, source::without_generation_tags(source)).map_err(|error| {
                let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
                ChatTemplateError::Syntax { message, line: error.line() }
            })?;
        }
        let Definition { bos_token, eos_token, .. } = definition.clone();
        Ok(Interpreter { environment, bos_token, eos_token })
    }

    /// Sets the budget of instructions for each rendering.
    pub(super) fn set_fuel(&mut self, fuel: u64) {
        self.environment.set_fuel(Some(fuel));
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// [`ChatTemplateError`] when the template refuses the conversation, fails, or exceeds a limit.
    pub(super) fn render(&self, inputs: &TemplateInputs<'_>) -> Result<String, ChatTemplateError> {
        let given = context! {
            messages => Serde(inputs.messages),
            tools => Serde(inputs.tools),
            documents => Serde(inputs.documents),
            add_generation_prompt => inputs.add_generation_prompt,
            // The names in Firefunction's template for the tools as text and for the time.
            functions => inputs.tools.map_or_else(String::new, Value::to_string),
            datetime => strftime_now("%b %d %Y %H:%M:%S %Z").unwrap_or_default(),
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
        };
        let variables = minijinja::Value::from(Serde(inputs.variables));
        let has_tools = inputs.tools.and_then(Value::as_array).is_some_and(|tools| !tools.is_empty());
        let tool_use = self.environment.get_template(TOOL_USE).ok().filter(|_| has_tools);
        let template = tool_use.map_or_else(|| self.environment.get_template(DEFAULT), Ok);
        let mut output = Output::default();
        let rendered = template.and_then(|template| {
            // The first of two values for a name is used.
            template.render_captured_to(context! { ..given, ..variables }, &mut output).map(drop)
        });
        match rendered {
            _ if output.is_full => Err(too_long()),
            Ok(()) => String::from_utf8(output.bytes).map_err(|_| ChatTemplateError::Render {
                message: "it wrote text that is not UTF-8".to_owned(),
                line: None,
            }),
            Err(error) => Err(render_error(&error)),
        }
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let trimmed = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(trimmed.expect("the delimiters are the default ones"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", tojson);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// The text of a prompt, up to the longest one.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_full |= self.bytes.len() + bytes.len() > MAX_OUTPUT_BYTES;
        if self.is_full {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn too_long() -> ChatTemplateError {
    ChatTemplateError::Limit(format!("it writes a prompt of more than {} MiB", MAX_OUTPUT_BYTES >> 20))
}

fn render_error(error: &Error) -> ChatTemplateError {
    let detail = error.detail();
    if let Some(reason) = detail.and_then(|detail| detail.strip_prefix(REFUSAL)) {
        return ChatTemplateError::Refused(reason.to_owned());
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return ChatTemplateError::Limit(format!("it runs more than {FUEL} instructions for this conversation"));
    }
    let message = detail.map_or_else(|| error.kind().to_string(), str::to_owned);
    ChatTemplateError::Render { message, line: error.line() }
}

/// As in Python, `None` is not iterable. Templates test this before they iterate over absent tools.
fn is_iterable(value: &minijinja::Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Marks an error that the template raised itself.
const REFUSAL: &str = "refused: ";

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{message}")))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}")))
}

/// Python's `json.dumps` with transformers' default of not escaping non-ASCII characters.
fn tojson(value: &minijinja::Value, options: Kwargs) -> Result<String, Error> {
    let separators: Option<Vec<String>> = options.get("separators")?;
    let layout = JsonLayout {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent: options.get("indent")?,
        separators: separators.and_then(|both| both.try_into().ok()),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let value =
        serde_json::to_value(value).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(layout.write(&value))
}
