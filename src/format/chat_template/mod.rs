//! A conversation to a prompt: the Jinja template that a model brings with it.
//!
//! Templates are written for Hugging Face transformers, so the environment here is theirs: trimmed blocks, Python's string,
//! list and dict methods, its `json.dumps` behind `tojson`, `raise_exception` and `strftime_now`. They come from strangers, so
//! a rendering has a budget of instructions.

mod json;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value};

use json::JsonLayout;

/// Instructions for one rendering: seconds at most, and far more than any real conversation takes.
const FUEL: u64 = 50_000_000;

/// The names of templates in an environment.
const DEFAULT: &str = "chat template";
const TOOL_USE: &str = "chat template for tools";

/// A chat template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_token: String,
    eos_token: String,
}

/// Why a template does not compile or render.
#[derive(Debug, thiserror::Error)]
pub enum ChatTemplateError {
    /// It is not a template.
    #[error("{message}{}", at_line(*line))]
    Syntax {
        /// What is wrong.
        message: String,
        /// Where.
        line: Option<usize>,
    },
    /// It called `raise_exception`: it does not take such a conversation.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// It failed on this conversation.
    #[error("the chat template failed on this conversation: {message}{}", at_line(*line))]
    Render {
        /// What went wrong.
        message: String,
        /// Where.
        line: Option<usize>,
    },
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(" (line {line} of the template)")).unwrap_or_default()
}

/// What a template sees.
#[derive(Debug, Clone, Copy)]
pub struct TemplateInputs<'a> {
    /// A JSON list of messages, as the OpenAI API takes them.
    pub messages: &'a Value,
    /// A JSON list of tools.
    pub tools: Option<&'a Value>,
    /// A JSON list of documents.
    pub documents: Option<&'a Value>,
    /// End with the begin of an answer.
    pub add_generation_prompt: bool,
    /// More variables (`chat_template_kwargs`); they win over the ones above.
    pub variables: Option<&'a Map<String, Value>>,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`ChatTemplateError::Syntax`] when it is not one.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, ChatTemplateError> {
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
        let mut template = ChatTemplate {
            environment,
            source: source.to_owned(),
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
        };
        template.add(DEFAULT, source)?;
        Ok(template)
    }

    /// Adds the template that some models have besides, for conversations with tools
    /// (`tokenizer.chat_template.tool_use`).
    ///
    /// # Errors
    /// [`ChatTemplateError::Syntax`] when it is not one.
    pub fn with_tool_use(mut self, source: &str) -> Result<Self, ChatTemplateError> {
        self.add(TOOL_USE, source)?;
        Ok(self)
    }

    fn add(&mut self, name: &'static str, source: &str) -> Result<(), ChatTemplateError> {
        self.environment.add_template_owned(name, without_generation_tags(source)).map_err(|error| {
            let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
            ChatTemplateError::Syntax { message, line: error.line() }
        })
    }

    /// As the file has it.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// [`ChatTemplateError::Refused`] when the template itself says no, [`ChatTemplateError::Render`] when it fails.
    pub fn render(&self, inputs: &TemplateInputs<'_>) -> Result<String, ChatTemplateError> {
        let given = context! {
            messages => Serde(inputs.messages),
            tools => Serde(inputs.tools),
            documents => Serde(inputs.documents),
            add_generation_prompt => inputs.add_generation_prompt,
            // Firefunction's names for the tools, as text, and the time.
            functions => inputs.tools.map_or_else(String::new, Value::to_string),
            datetime => strftime_now("%b %d %Y %H:%M:%S %Z").unwrap_or_default(),
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
        };
        let variables = minijinja::Value::from(Serde(inputs.variables));
        let render = |template: minijinja::Template<'_, '_>| template.render(context! { ..variables, ..given });
        let has_tools = inputs.tools.and_then(Value::as_array).is_some_and(|tools| !tools.is_empty());
        let tool_use = self.environment.get_template(TOOL_USE).ok().filter(|_| has_tools);
        let template = tool_use.map_or_else(|| self.environment.get_template(DEFAULT), Ok);
        template.and_then(render).map_err(render_error)
    }
}

fn render_error(error: Error) -> ChatTemplateError {
    let detail = error.detail().map(str::to_owned);
    match detail.as_deref().and_then(|detail| detail.strip_prefix(REFUSAL)) {
        Some(reason) => ChatTemplateError::Refused(reason.to_owned()),
        None => {
            let message = match error.kind() {
                ErrorKind::OutOfFuel => "it takes too long".to_owned(),
                kind => detail.unwrap_or_else(|| kind.to_string()),
            };
            ChatTemplateError::Render { message, line: error.line() }
        }
    }
}

/// As in Python, where `None` is not iterable; templates ask this before they look at absent tools.
fn is_iterable(value: &minijinja::Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Marks an error as the template's own.
const REFUSAL: &str = "refused: ";

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{message}")))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}")))
}

/// Python's `json.dumps`, with transformers' default of leaving non-ASCII characters as they are.
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

/// Templates may mark the model's own words with `{% generation %}` for training. The tag means nothing when prompting; it
/// becomes a block that is always rendered, so that its white space is treated as any block's.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (tag, after) = rest[start..].split_at(length + 2);
        result.push_str(&rest[..start]);
        let inner = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        match inner {
            "generation" => result.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => result.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => result.push_str(tag),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + \
                          '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                          {% endif %}";

    fn render(source: &str, messages: &Value) -> Result<String, ChatTemplateError> {
        let inputs =
            TemplateInputs { messages, tools: None, documents: None, add_generation_prompt: true, variables: None };
        ChatTemplate::new(source, "<s>", "</s>")?.render(&inputs)
    }

    #[track_caller]
    fn check(source: &str, expected: &str) {
        assert_eq!(render(source, &json!([{"role": "user", "content": " Hi "}])).unwrap(), expected);
    }

    #[test]
    fn chatml_is_rendered_to_the_letter() {
        check(CHATML, "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n");
    }

    #[test]
    fn python_methods_slices_and_namespaces_work() {
        check("{{ messages[0].content.strip() }}|{{ messages[0]['role'].upper() }}|{{ bos_token }}", "Hi|USER|<s>");
        check(
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        );
        check("{{ tools is iterable }}{{ messages is iterable }}{{ nothing is iterable }}", "FalseTrueTrue");
        check("{{ messages[1:] | length }}{% for k, v in messages[0].items() %} {{ k }}{% endfor %}", "0 role content");
        check("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13");
    }

    #[test]
    fn blocks_are_trimmed_as_transformers_does_it() {
        check("  {% if true %}\nx\n  {% endif %}\ny", "x\ny");
    }

    #[test]
    fn tojson_writes_what_python_writes() {
        check("{{ {'a': [1, 'ü<&'], 'b': none} | tojson }}", r#"{"a": [1, "ü<&"], "b": null}"#);
        check("{{ {'a': []} | tojson(indent=2) }}", "{\n  \"a\": []\n}");
        check("{{ {'b': 1, 'a': 'ü'} | tojson(sort_keys=true, ensure_ascii=true) }}", r#"{"a": "\u00fc", "b": 1}"#);
        check("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]");
    }

    #[test]
    fn generation_tags_leave_their_content() {
        check("a{%- generation -%} b {%- endgeneration %}\nc", "abc");
    }

    #[test]
    fn conversations_with_tools_use_the_template_for_them() {
        let template = ChatTemplate::new("plain", "", "").unwrap().with_tool_use("{{ tools | length }} tools").unwrap();
        let messages = json!([]);
        let render = |tools: Option<&Value>| {
            let messages = &messages;
            let inputs =
                TemplateInputs { messages, tools, documents: None, add_generation_prompt: true, variables: None };
            template.render(&inputs).unwrap()
        };
        assert_eq!(render(None), "plain");
        assert_eq!(render(Some(&json!([]))), "plain");
        assert_eq!(render(Some(&json!([1]))), "1 tools");
        assert_eq!(template.source(), "plain");
    }

    #[test]
    fn a_refusal_is_told_apart_from_a_fault() {
        let messages = json!([]);
        let refused = render("{{ raise_exception('roles must alternate') }}", &messages).unwrap_err();
        assert_eq!(refused.to_string(), "the chat template refuses this conversation: roles must alternate");
        let failed = render("x\n{{ messages.nothing.more }}", &messages).unwrap_err();
        assert!(matches!(failed, ChatTemplateError::Render { line: Some(2), .. }), "{failed}");
        let broken = render("x\n{% if %}", &messages).unwrap_err();
        assert!(matches!(broken, ChatTemplateError::Syntax { line: Some(2), .. }), "{broken}");
    }

    #[test]
    fn a_template_that_never_ends_is_stopped() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
        let error = render(endless, &json!([])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the chat template failed on this conversation: it takes too long (line 1 of the template)"
        );
    }

    #[test]
    fn the_date_follows_the_format_and_a_wrong_format_is_an_error() {
        let year = render("{{ strftime_now('%Y') }}", &json!([])).unwrap();
        assert!(year.parse::<u32>().is_ok_and(|year| year >= 2025), "{year}");
        assert!(render("{{ strftime_now('%') }}", &json!([])).is_err());
    }
}
