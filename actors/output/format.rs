//! How a model writes reasoning and tool calls, as data.

use super::ids::IdStyle;

/// All that a parser must know of a chat template.
#[derive(Debug, Clone, Default)]
pub(super) struct Format {
    pub reasoning: Option<Reasoning>,
    pub tools: Option<ToolFormat>,
    /// Markers around the text for the reader. They are no content.
    pub content_marks: Vec<String>,
    /// The answer is a sequence of messages with headers.
    pub channels: Option<Channels>,
    /// The text before the answer, as the template writes it after the last message of the user.
    pub answer_header: String,
}

/// How reasoning stands apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Reasoning {
    pub start: String,
    pub end: String,
    /// Reasoning may also begin in the middle of the text.
    pub anywhere: bool,
    /// Parts of the markers that stand alone by mistake.
    pub stray: Vec<String>,
}

/// The texts around reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningMarks {
    /// Begins reasoning.
    pub start: String,
    /// Ends reasoning.
    pub end: String,
    /// Begins the answer. It is the end of reasoning, unless the answer is a message of its own.
    pub answer: String,
    /// More reasoning may come after its end.
    pub repeats: bool,
}

/// Texts that small models write around a call instead of the markers that their template shows them.
pub(super) const UNMARKED: [(&str, &str); 5] = [
    ("```json", "```"),
    ("```", "```"),
    ("<tools>", "</tools>"),
    ("<tool>", "</tool>"),
    ("<function_call>", "</function_call>"),
];

/// How calls are written.
#[derive(Debug, Clone, Default)]
pub(super) struct ToolFormat {
    /// The markers before and after all calls, where they have them.
    pub section: Option<(String, String)>,
    /// Each call has a section of its own.
    pub section_per_call: bool,
    /// The marker before each call.
    pub call_begin: String,
    /// Markers that may stand after a call.
    pub call_end: Vec<String>,
    /// Calls may begin with this character at the start of the text, without a marker.
    pub bare: Option<char>,
    /// Models of the format also write calls as JSON objects without its markers: alone, or within texts of [`UNMARKED`].
    pub unmarked: bool,
    pub body: Body,
    pub ids: IdStyle,
}

/// What stands between the markers.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// A JSON object, or an array of objects.
    Json(JsonKeys),
    /// A name, and then arguments.
    Named(Named),
    /// `[f(a=1), g(b="x")]`.
    Python,
}

/// The keys of a call that is a JSON object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonKeys {
    pub name: String,
    pub arguments: String,
    pub id: Option<String>,
    /// The id comes after the arguments, which must wait for it.
    pub id_last: bool,
    /// The model writes an array of objects, even for one call.
    pub array: bool,
    /// The object has one key, which is the name, and its value is the arguments.
    pub name_is_key: bool,
}

/// A call whose name stands outside of the arguments.
#[derive(Debug, Clone, Default)]
pub(super) struct Named {
    /// Markers that end the name.
    pub name_end: Vec<String>,
    /// Ends the name, and an id follows up to a marker of `name_end`.
    pub id_begin: Option<String>,
    /// An id stands before the name, up to this marker.
    pub id_end: Option<String>,
    /// Attributes stand between the name and this marker.
    pub head_end: Option<String>,
    /// The name has the form `functions.f:0` and is also the id.
    pub name_is_id: bool,
    pub arguments: Arguments,
}

/// How arguments are written.
#[derive(Debug, Clone, Default)]
pub(super) enum Arguments {
    #[default]
    Json,
    /// Like JSON, with strings between two of this marker and bare keys.
    Quoted(String),
    Tagged(Tagged),
}

/// Arguments as elements with text.
#[derive(Debug, Clone, Default)]
pub(super) struct Tagged {
    /// The marker before the key.
    pub begin: String,
    /// The marker after the key.
    pub key_end: String,
    /// Attributes stand between the key and this marker.
    pub head_end: Option<String>,
    pub attribute: Attribute,
    /// The marker before the value, where the key's end is not it.
    pub value_begin: Option<String>,
    /// The marker after the value; `{key}` stands for the key.
    pub end: String,
    /// The template writes a line break on both sides of the value.
    pub lines: bool,
    /// The value may stand between `<![CDATA[` and `]]>`.
    pub cdata: bool,
    /// Objects and arrays are elements within the value.
    pub nested: bool,
}

/// What an attribute says about a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Attribute {
    #[default]
    None,
    /// `string="true"` or `string="false"`.
    IsString,
    /// `type="number"`.
    Type,
}

/// Messages with headers that say for whom they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Channels {
    /// Begins a header.
    pub begin: String,
    /// Ends a header; the message follows.
    pub header_end: String,
    /// Markers that end a message.
    pub ends: Vec<String>,
    /// The marker before the name of a channel.
    pub channel: String,
    /// Recipients and channels whose messages are reasoning.
    pub reasoning: Vec<String>,
    /// Recipients whose messages are text for the reader.
    pub text: Vec<String>,
    /// The recipient is a word after this, or the whole header if it is empty.
    pub recipient: String,
    /// Stands before the name of a tool.
    pub tool_prefix: String,
    /// Where reasoning and then the text begin, if there is reasoning.
    pub beginnings: Option<(String, String)>,
}

impl Default for Body {
    fn default() -> Self {
        Body::Json(JsonKeys::default())
    }
}

impl Default for JsonKeys {
    fn default() -> Self {
        JsonKeys {
            name: "name".to_owned(),
            arguments: "arguments".to_owned(),
            id: None,
            id_last: false,
            array: false,
            name_is_key: false,
        }
    }
}

impl Channels {
    /// What begins the message for the reader, where an answer begins.
    pub(super) fn text_header(&self) -> String {
        match (&self.beginnings, self.text.first()) {
            (Some((_, text)), _) => text.clone(),
            (None, recipient) => format!("{}{}", recipient.map_or("", String::as_str), self.header_end),
        }
    }

    /// The texts around a message with reasoning.
    fn reasoning_marks(&self) -> Option<ReasoningMarks> {
        let (start, answer) = self.beginnings.clone()?;
        let end = format!("{}{}assistant", self.ends.first()?, self.begin);
        Some(ReasoningMarks { start, end, answer, repeats: true })
    }
}

impl Format {
    /// Models of the format also write calls without its markers.
    pub(super) fn writes_unmarked(&self) -> bool {
        self.tools.as_ref().is_some_and(|tools| tools.unmarked)
    }

    /// The texts around reasoning.
    pub(super) fn reasoning_marks(&self) -> Option<ReasoningMarks> {
        let marks = self.reasoning.as_ref().map(|Reasoning { start, end, .. }| ReasoningMarks {
            start: start.clone(),
            end: end.clone(),
            answer: end.clone(),
            repeats: false,
        });
        marks.or_else(|| self.channels.as_ref()?.reasoning_marks())
    }

    /// Every marker, for the tokenizer.
    pub(super) fn markers(&self) -> Vec<&str> {
        let mut markers: Vec<&str> = self.content_marks.iter().map(String::as_str).collect();
        if let Some(reasoning) = &self.reasoning {
            markers.extend([reasoning.start.as_str(), &reasoning.end]);
            markers.extend(reasoning.stray.iter().map(String::as_str));
        }
        markers.extend(self.tools.iter().flat_map(ToolFormat::markers));
        if let Some(channels) = &self.channels {
            markers.extend([channels.begin.as_str(), &channels.header_end, &channels.channel]);
            markers.extend(channels.ends.iter().map(String::as_str));
        }
        markers.retain(|marker| !marker.is_empty());
        markers.sort_unstable();
        markers.dedup();
        markers
    }
}

impl ToolFormat {
    /// The same with other markers before and after all calls.
    pub(super) fn with_section(self, begin: &str, end: &str) -> Self {
        ToolFormat { section: Some((begin.to_owned(), end.to_owned())), ..self }
    }

    /// Every text that begins calls, apart from a bare beginning.
    pub(super) fn triggers(&self) -> impl Iterator<Item = &str> {
        let section = self.section.as_ref().map(|(begin, _)| begin.as_str());
        section.into_iter().chain([self.call_begin.as_str()]).filter(|marker| !marker.is_empty())
    }

    /// Every marker, for the tokenizer.
    pub(super) fn markers(&self) -> Vec<&str> {
        let mut markers: Vec<&str> = self.triggers().collect();
        markers.extend(self.section.iter().map(|(_, end)| end.as_str()));
        markers.extend(self.call_end.iter().map(String::as_str));
        if let Body::Named(named) = &self.body {
            markers.extend(named.markers());
        }
        markers
    }
}

impl Named {
    fn markers(&self) -> Vec<&str> {
        let mut markers: Vec<&str> = self.name_end.iter().map(String::as_str).collect();
        markers.extend(self.id_begin.as_deref());
        markers.extend(self.id_end.as_deref());
        markers.extend(self.head_end.as_deref());
        match &self.arguments {
            Arguments::Json => {}
            Arguments::Quoted(marker) => markers.push(marker),
            Arguments::Tagged(tagged) => {
                markers.extend([tagged.begin.as_str(), &tagged.key_end, &tagged.end]);
                markers.extend(tagged.head_end.as_deref());
                markers.extend(tagged.value_begin.as_deref());
            }
        }
        markers
    }
}
