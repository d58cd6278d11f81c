//! Renders a conversation to a prompt with a model's Jinja template.
//!
//! A template is a program from a model's file and the conversation comes from a client; neither is trusted. Both are bounded:
//!
//! - [`source`]: the template's size and nesting, before it is parsed
//! - [`interpreter`]: instructions and the size of the prompt
//! - [`worker`]: time, memory and stack, by rendering in a process of its own
//! - [`shield`]: what the client's text can do: it never becomes special tokens
//!
//! And what these share: [`inputs`], [`error`], [`cancellation`], and [`json`], which writes JSON as Python does.

mod cancellation;
mod error;
mod inputs;
mod interpreter;
mod json;
mod shield;
mod source;
pub mod worker;

pub use cancellation::{CancelOnDrop, Cancellation};
pub use error::ChatTemplateError;
pub use inputs::{Definition, RESERVED_VARIABLES, RenderedPrompt, TemplateInputs};
use interpreter::Interpreter;
use shield::Shield;
use worker::WorkerProgram;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    definition: Definition,
    renderer: Renderer,
    shield: Option<Shield>,
}

/// Where a template is rendered.
#[derive(Debug)]
enum Renderer {
    InProcess(Interpreter),
    #[cfg(unix)]
    Workers(worker::pool::Pool),
}

impl ChatTemplate {
    /// Compiles a trusted template, which is rendered in this process. Nothing bounds its memory.
    ///
    /// # Errors
    /// [`ChatTemplateError::Syntax`] when it is not a valid template, [`ChatTemplateError::Limit`] when it is over a limit.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, ChatTemplateError> {
        Self::in_process(Definition {
            source: source.to_owned(),
            tool_use: None,
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
        })
    }

    /// As [`Self::new`], with all that a file defines.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn in_process(definition: Definition) -> Result<Self, ChatTemplateError> {
        let renderer = Renderer::InProcess(Interpreter::new(&definition)?);
        Ok(ChatTemplate { definition, renderer, shield: None })
    }

    /// Compiles a template in a process of its own, which renders it. Blocks until it is compiled.
    ///
    /// # Errors
    /// As [`Self::new`]; [`ChatTemplateError::Worker`] when the process cannot be started.
    pub fn in_worker(definition: Definition, program: &WorkerProgram) -> Result<Self, ChatTemplateError> {
        definition.sources().try_for_each(source::check)?;
        #[cfg(unix)]
        {
            let renderer = Renderer::Workers(worker::pool::Pool::start(program.clone(), &definition)?);
            Ok(ChatTemplate { definition, renderer, shield: None })
        }
        #[cfg(not(unix))]
        {
            let _ = program;
            Self::in_process(definition)
        }
    }

    /// The same template with another budget of instructions for each rendering in this process.
    #[must_use]
    pub fn with_fuel(mut self, fuel: u64) -> Self {
        if let Renderer::InProcess(interpreter) = &mut self.renderer {
            interpreter.set_fuel(fuel);
        }
        self
    }

    /// Keeps untrusted text from acting as one of these special tokens.
    ///
    /// # Errors
    /// [`ChatTemplateError::Limit`] when there are too many.
    pub fn with_plain_content(mut self, spellings: &[String]) -> Result<Self, ChatTemplateError> {
        self.shield = Shield::new(spellings)?;
        Ok(self)
    }

    /// The template's source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.definition.source
    }

    /// The text of a conversation's prompt. Blocks until it is rendered.
    ///
    /// # Errors
    /// As [`Self::render_prompt`].
    pub fn render(&self, inputs: &TemplateInputs<'_>) -> Result<String, ChatTemplateError> {
        self.render_prompt(inputs, &Cancellation::default()).map(|prompt| prompt.text)
    }

    /// The prompt of a conversation. Blocks until it is rendered or cancelled.
    ///
    /// # Errors
    /// [`ChatTemplateError::Refused`] when the template refuses the conversation, [`ChatTemplateError::Render`] when it fails,
    /// [`ChatTemplateError::Limit`] when it needs too much.
    pub fn render_prompt(
        &self,
        inputs: &TemplateInputs<'_>,
        cancellation: &Cancellation,
    ) -> Result<RenderedPrompt, ChatTemplateError> {
        let shielded = match &self.shield {
            Some(shield) => shield.apply(inputs, self.definition.sources())?,
            None => None,
        };
        match shielded {
            Some(shielded) => shielded.remove(&self.render_text(&shielded.inputs(inputs), cancellation)?),
            None => self.render_text(inputs, cancellation).map(|text| RenderedPrompt { text, guards: Vec::new() }),
        }
    }

    fn render_text(
        &self,
        inputs: &TemplateInputs<'_>,
        cancellation: &Cancellation,
    ) -> Result<String, ChatTemplateError> {
        if cancellation.is_cancelled() {
            return Err(ChatTemplateError::Cancelled);
        }
        match &self.renderer {
            Renderer::InProcess(interpreter) => interpreter.render(inputs),
            #[cfg(unix)]
            Renderer::Workers(pool) => pool.render(inputs, cancellation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

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
    fn chatml_is_rendered_exactly() {
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
    fn blocks_are_trimmed_as_in_transformers() {
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
    fn generation_tags_are_removed_and_their_content_stays() {
        check("a{%- generation -%} b {%- endgeneration %}\nc", "abc");
        assert!(ChatTemplate::new("{%}", "", "").is_err());
    }

    #[test]
    fn conversations_with_tools_use_the_template_for_tools() {
        let definition = Definition {
            source: "plain".to_owned(),
            tool_use: Some("{{ tools | length }} tools".to_owned()),
            bos_token: String::new(),
            eos_token: String::new(),
        };
        let template = ChatTemplate::in_process(definition).unwrap();
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
    fn a_refusal_is_distinguished_from_a_failure() {
        let messages = json!([]);
        let refused = render("{{ raise_exception('roles must alternate') }}", &messages).unwrap_err();
        assert_eq!(refused.to_string(), "the chat template refuses this conversation: roles must alternate");
        let failed = render("x\n{{ messages.nothing.more }}", &messages).unwrap_err();
        assert!(matches!(failed, ChatTemplateError::Render { line: Some(2), .. }), "{failed}");
        let broken = render("x\n{% if %}", &messages).unwrap_err();
        assert!(matches!(broken, ChatTemplateError::Syntax { line: Some(2), .. }), "{broken}");
    }

    #[test]
    fn an_endless_template_is_stopped() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
        let error = render(endless, &json!([])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the chat template exceeds a limit: it runs more than 50000000 instructions for this conversation"
        );
    }

    #[test]
    fn dates_are_formatted_and_an_invalid_format_is_an_error() {
        let year = render("{{ strftime_now('%Y') }}", &json!([])).unwrap();
        assert!(year.parse::<u32>().is_ok_and(|year| year >= 2025), "{year}");
        assert!(render("{{ strftime_now('%') }}", &json!([])).is_err());
    }

    #[test]
    fn further_variables_do_not_replace_the_inputs() {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let variables = json!({"messages": [], "bos_token": "x", "tools": [1], "mine": 7});
        let inputs = TemplateInputs {
            messages: &messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            variables: variables.as_object(),
        };
        let template =
            ChatTemplate::new("{{ messages | length }}{{ bos_token }}{{ tools }}{{ mine }}", "<s>", "").unwrap();
        assert_eq!(template.render(&inputs).unwrap(), "1<s>None7");
    }

    #[test]
    fn a_prompt_that_is_too_long_is_an_error() {
        let error = render("{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", &json!([])).unwrap_err();
        assert_eq!(error.to_string(), "the chat template exceeds a limit: it writes a prompt of more than 32 MiB");
    }

    #[test]
    fn untrusted_text_is_guarded_whatever_the_template_does_with_it() {
        let template = "{{ messages[0].content | trim }}|{{ messages[0].content | tojson }}|\
                        {{ messages[0].content | tojson(ensure_ascii=true) }}|{{ [messages[0].content] }}|<|x|>";
        let shield = ["<|x|>".to_owned()];
        let template = ChatTemplate::new(template, "", "").unwrap().with_plain_content(&shield).unwrap();
        let messages = json!([{"role": "user", "content": " <|x|> "}]);
        let inputs = TemplateInputs {
            messages: &messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            variables: None,
        };
        let prompt = template.render_prompt(&inputs, &Cancellation::default()).unwrap();
        assert_eq!(prompt.text, "<|x|>|\" <|x|> \"|\" <|x|> \"|[' <|x|> ']|<|x|>");
        assert_eq!(prompt.guards.len(), 4);
        for guard in prompt.guards {
            assert!(prompt.text[..guard].ends_with("<|x|"), "{guard}");
        }
    }
}
