//! The known formats of tool calls, one entry each.

use super::format::{Arguments, Attribute, Body, Channels, JsonKeys, Named, Tagged, ToolFormat};
use super::ids::IdStyle;

/// A format, and how to tell from a chat template's source that a model writes it.
pub(super) struct Entry {
    /// The format's name, for tests.
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests look for a format by its name"))]
    pub name: &'static str,
    /// All of these stand in the template.
    pub signs: &'static [&'static str],
    /// None of these does.
    pub without: &'static [&'static str],
    pub tools: fn() -> Option<ToolFormat>,
    pub channels: fn() -> Option<Channels>,
    /// Markers of reasoning that the template need not show.
    pub reasoning: Option<(&'static str, &'static str)>,
    /// Markers of the text for the reader that the template need not show.
    pub content_marks: &'static [&'static str],
}

/// Markers around the text for the reader.
pub(super) const CONTENT_MARKS: &[&str] = &[
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    "<|CHATBOT_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
];

/// The same of Kimi K3, whose template puts them together.
const KIMI_K3_MARKS: &[&str] = &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"];
const KIMI_K3_THINK: (&str, &str) = ("<|open|>think<|sep|>", "<|close|>think<|sep|>");

const fn entry(name: &'static str, signs: &'static [&'static str], tools: fn() -> Option<ToolFormat>) -> Entry {
    Entry { name, signs, without: &[], tools, channels: || None, reasoning: None, content_marks: &[] }
}

/// The first entry whose signs a template shows is its format.
pub(super) const ENTRIES: &[Entry] = &[
    Entry { channels: || Some(harmony()), ..entry("gpt-oss", &["<|channel|>", "<|message|>"], || None) },
    Entry {
        channels: || Some(muse()),
        ..entry("muse-glimmer", &["<atem:function_calls>"], || Some(invoke("atem:", "function_calls")))
    },
    Entry { channels: || Some(functionary()), ..entry("functionary-v3.2", &[">>>all"], || None) },
    entry("functionary-v3.1", &["<function=example_function_name>{"], || Some(functionary_tags())),
    entry("minimax-m3", &["]<]minimax[>["], || Some(minimax_m3())),
    entry("minimax-m2", &["<minimax:tool_call>"], || Some(minimax_m2())),
    entry("deepseek-v3.2", &["DSML", "function_calls"], || Some(dsml("function_calls"))),
    entry("deepseek-v4", &["DSML", "tool_calls"], || Some(dsml("tool_calls"))),
    Entry {
        reasoning: Some(KIMI_K3_THINK),
        content_marks: KIMI_K3_MARKS,
        ..entry("kimi-k3", &["<|open|>", "<|sep|>"], || Some(kimi_k3()))
    },
    Entry {
        reasoning: Some(("<think>", "</think>")),
        ..entry("kimi-k2", &["<|tool_call_argument_begin|>"], || Some(kimi_k2()))
    },
    entry("deepseek-v3", &["<｜tool▁call▁begin｜>", "```json"], || Some(deepseek_v3())),
    entry("deepseek-v3.1", &["<｜tool▁call▁begin｜>"], || Some(deepseek_v3_1())),
    entry("seed-oss", &["<seed:tool_call>"], || Some(elements("<seed:tool_call>", "</seed:tool_call>", false))),
    entry("qwen3-coder", &["<function=", "<parameter="], || Some(elements("<tool_call>", "</tool_call>", true))),
    entry("minicpm5", &["<function name=", "<param name="], || Some(minicpm())),
    entry("glm", &["<arg_key>"], || Some(glm())),
    entry("mistral-small-3.2", &["[TOOL_CALLS]", "[CALL_ID]"], || Some(mistral_named(Some("[CALL_ID]")))),
    entry("ministral", &["[TOOL_CALLS]", "[ARGS]"], || Some(mistral_named(None))),
    entry("mistral-nemo", &["[TOOL_CALLS]"], || Some(mistral_json())),
    entry("solar", &["<|tool_call:begin|>"], || Some(solar())),
    entry("hunyuan-3", &["'<tool_sep{}>'", "':opensource'"], || Some(hunyuan())),
    Entry {
        without: &["<tool_call>"],
        ..entry("granite-3", &["<|tool_call|>"], || Some(listed("<|tool_call|>", &[])))
    },
    entry("phi-4-mini", &["<|tool|>", "<|/tool|>"], || Some(phi())),
    entry("gemma-4", &["<|tool_call>"], || Some(gemma("<|tool_call>", "<tool_call|>", "<|\"|>"))),
    entry("functiongemma", &["<start_function_call>"], || {
        Some(gemma("<start_function_call>", "<end_function_call>", "<escape>"))
    }),
    entry("lfm2", &["<|tool_call_start|>"], || Some(lfm2())),
    entry("lfm2", &["<|tool_list_start|>"], || Some(lfm2())),
    entry("lfm2.5", &["List of tools: [", "keep_past_thinking"], || Some(lfm2())),
    entry("command-r7b", &["<|START_ACTION|>"], || Some(command_r())),
    entry("command-r", &["Action:", "```json"], || Some(command_r_plus())),
    // This template's rendering is no JSON.
    entry("nemotron-v2", &["<TOOLCALL>"], || Some(listed("<TOOLCALL>", &["</TOOLCALL>"]))),
    Entry {
        without: &["<tool_call>"],
        ..entry("llama-json", &["<|python_tag|>", "\"parameters\""], || Some(llama_json()))
    },
    entry("llama-json", &["<|eot_id|>", "{\"name\": function name, \"parameters\":"], || Some(llama_json())),
    entry("llama-pythonic", &["[func_name1(params_name1=params_value1"], || Some(llama_pythonic())),
    entry("llama-4", &["<|python_start|>"], || Some(llama_4())),
];

fn text(text: &str) -> String {
    text.to_owned()
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().copied().map(text).collect()
}

/// Calls in a section, each with a marker before and after it.
fn named(section: Option<(&str, &str)>, call: (&str, &[&str]), named: Named) -> ToolFormat {
    ToolFormat {
        section: section.map(|(begin, end)| (text(begin), text(end))),
        call_begin: text(call.0),
        call_end: texts(call.1),
        body: Body::Named(named),
        ..ToolFormat::default()
    }
}

/// Calls that are JSON objects or an array of them, between two markers.
fn json(begin: &str, end: &[&str], keys: JsonKeys) -> ToolFormat {
    ToolFormat { call_begin: text(begin), call_end: texts(end), body: Body::Json(keys), ..ToolFormat::default() }
}

fn tagged(name_end: &str, tagged: Tagged) -> Named {
    Named { name_end: texts(&[name_end]), arguments: Arguments::Tagged(tagged), ..Named::default() }
}

/// `<function=f><parameter=k>v</parameter></function>`.
fn elements(begin: &str, end: &str, lines: bool) -> ToolFormat {
    let parameter = Tagged {
        begin: text("<parameter="),
        key_end: text(">"),
        end: text("</parameter>"),
        lines,
        ..Tagged::default()
    };
    let format = named(Some((begin, end)), ("<function=", &["</function>"]), tagged(">", parameter));
    ToolFormat { section_per_call: true, ..format }
}

/// `<invoke name="f"><parameter name="k">v</parameter></invoke>`, with a prefix of all tags.
fn invoke(prefix: &str, section: &str) -> ToolFormat {
    let parameter = Tagged {
        begin: format!("<{prefix}parameter name=\""),
        key_end: text("\""),
        head_end: Some(text(">")),
        end: format!("</{prefix}parameter>"),
        ..Tagged::default()
    };
    let (begin, end) = (format!("<{prefix}{section}>"), format!("</{prefix}{section}>"));
    let (call, call_end) = (format!("<{prefix}invoke name=\""), format!("</{prefix}invoke>"));
    named(Some((&begin, &end)), (&call, &[&call_end]), tagged("\">", parameter))
}

fn dsml(section: &str) -> ToolFormat {
    with_attribute(invoke("｜DSML｜", section), Attribute::IsString)
}

fn with_attribute(mut format: ToolFormat, attribute: Attribute) -> ToolFormat {
    if let Body::Named(Named { arguments: Arguments::Tagged(tagged), .. }) = &mut format.body {
        tagged.attribute = attribute;
    }
    format
}

fn minimax_m2() -> ToolFormat {
    invoke("", "minimax:tool_call").with_section("<minimax:tool_call>", "</minimax:tool_call>")
}

fn minimax_m3() -> ToolFormat {
    let tag = |name: &str| format!("]<]minimax[>[<{name}");
    let parameter =
        Tagged { begin: tag(""), key_end: text(">"), end: tag("/{key}>"), nested: true, ..Tagged::default() };
    let call = (tag("invoke name=\""), tag("/invoke>"));
    named(Some((&tag("tool_call>"), &tag("/tool_call>"))), (&call.0, &[&call.1]), tagged("\">", parameter))
}

fn minicpm() -> ToolFormat {
    let parameter = Tagged {
        begin: text("<param name=\""),
        key_end: text("\">"),
        end: text("</param>"),
        cdata: true,
        ..Tagged::default()
    };
    named(None, ("<function name=\"", &["</function>"]), tagged("\">", parameter))
}

fn glm() -> ToolFormat {
    let parameter = Tagged {
        begin: text("<arg_key>"),
        key_end: text("</arg_key>"),
        value_begin: Some(text("<arg_value>")),
        end: text("</arg_value>"),
        ..Tagged::default()
    };
    named(None, ("<tool_call>", &["</tool_call>"]), tagged("\n", parameter))
}

fn kimi_k3() -> ToolFormat {
    let parameter = Tagged {
        begin: text("<|open|>argument key=\""),
        key_end: text("\""),
        head_end: Some(text("<|sep|>")),
        attribute: Attribute::Type,
        end: text("<|close|>argument<|sep|>"),
        ..Tagged::default()
    };
    let call = Named { head_end: Some(text("<|sep|>")), ..tagged("\"", parameter) };
    let section = ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>");
    named(Some(section), ("<|open|>call tool=\"", &["<|close|>call<|sep|>"]), call)
}

fn kimi_k2() -> ToolFormat {
    let call = Named { name_end: texts(&["<|tool_call_argument_begin|>"]), name_is_id: true, ..Named::default() };
    let section = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>");
    named(Some(section), ("<|tool_call_begin|>", &["<|tool_call_end|>"]), call)
}

const DEEPSEEK_SECTION: (&str, &str) = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>");
const DEEPSEEK_CALL_END: &str = "<｜tool▁call▁end｜>";

fn deepseek_v3() -> ToolFormat {
    let call = Named { name_end: texts(&["\n```json\n", "```json", "\n"]), ..Named::default() };
    let begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>";
    named(Some(DEEPSEEK_SECTION), (begin, &["```", DEEPSEEK_CALL_END]), call)
}

fn deepseek_v3_1() -> ToolFormat {
    let call = Named { name_end: texts(&["<｜tool▁sep｜>"]), ..Named::default() };
    named(Some(DEEPSEEK_SECTION), ("<｜tool▁call▁begin｜>", &[DEEPSEEK_CALL_END]), call)
}

fn solar() -> ToolFormat {
    let (id_end, name_end) = (Some(text("<|tool_call:name|>")), texts(&["<|tool_call:args|>"]));
    let call = Named { id_end, name_end, ..Named::default() };
    ToolFormat {
        section: Some((text("<|tool_calls|>"), String::new())),
        ..named(None, ("<|tool_call:begin|>", &["<|tool_call:end|>"]), call)
    }
}

fn hunyuan() -> ToolFormat {
    let tag = |name: &str| format!("<{name}:opensource>");
    let parameter = Tagged {
        begin: tag("arg_key"),
        key_end: tag("/arg_key"),
        value_begin: Some(tag("arg_value")),
        end: tag("/arg_value"),
        ..Tagged::default()
    };
    let section = (tag("tool_calls"), tag("/tool_calls"));
    let call = (tag("tool_call"), tag("/tool_call"));
    named(Some((&section.0, &section.1)), (&call.0, &[&call.1]), tagged(&tag("tool_sep"), parameter))
}

/// An array of calls.
fn listed(begin: &str, end: &[&str]) -> ToolFormat {
    json(begin, end, JsonKeys { array: true, ..JsonKeys::default() })
}

/// The model writes one marker or the other.
fn phi() -> ToolFormat {
    listed("<|tool_call|>", &["<|/tool_call|>"]).with_section("functools", "")
}

fn functionary_tags() -> ToolFormat {
    named(None, ("<function=", &["</function>"]), Named { name_end: texts(&[">"]), ..Named::default() })
}

fn mistral_named(id_begin: Option<&str>) -> ToolFormat {
    let call = Named { name_end: texts(&["[ARGS]"]), id_begin: id_begin.map(text), ..Named::default() };
    ToolFormat { ids: IdStyle::Nine, ..named(None, ("[TOOL_CALLS]", &[]), call) }
}

fn mistral_json() -> ToolFormat {
    let keys = JsonKeys { id: Some(text("id")), id_last: true, array: true, ..JsonKeys::default() };
    ToolFormat { ids: IdStyle::Nine, ..json("[TOOL_CALLS]", &[], keys) }
}

fn gemma(begin: &str, end: &str, marker: &str) -> ToolFormat {
    let call = Named { arguments: Arguments::Quoted(text(marker)), ..Named::default() };
    ToolFormat { section_per_call: true, ..named(Some((begin, end)), ("call:", &[]), call) }
}

fn python(section: Option<(&str, &str)>, bare: Option<char>) -> ToolFormat {
    let section = section.map(|(begin, end)| (text(begin), text(end)));
    ToolFormat { section, bare, body: Body::Python, ..ToolFormat::default() }
}

fn lfm2() -> ToolFormat {
    python(Some(("<|tool_call_start|>", "<|tool_call_end|>")), None)
}

fn llama_pythonic() -> ToolFormat {
    python(None, Some('['))
}

fn llama_4() -> ToolFormat {
    python(Some(("<|python_start|>", "<|python_end|>")), Some('['))
}

fn llama_json() -> ToolFormat {
    let keys = JsonKeys { arguments: text("parameters"), ..JsonKeys::default() };
    ToolFormat { bare: Some('{'), ..json("<|python_tag|>", &[], keys) }
}

fn command_keys() -> JsonKeys {
    let (name, arguments) = (text("tool_name"), text("parameters"));
    JsonKeys { name, arguments, id: Some(text("tool_call_id")), array: true, ..JsonKeys::default() }
}

fn command_r() -> ToolFormat {
    json("<|START_ACTION|>", &["<|END_ACTION|>"], command_keys())
}

fn command_r_plus() -> ToolFormat {
    json("Action:\n```json", &["```"], JsonKeys { id: None, ..command_keys() })
}

fn harmony() -> Channels {
    Channels {
        begin: text("<|start|>"),
        header_end: text("<|message|>"),
        ends: texts(&["<|end|>", "<|return|>", "<|call|>"]),
        channel: text("<|channel|>"),
        reasoning: texts(&["analysis"]),
        text: texts(&["assistant", "user", "all"]),
        recipient: text("to="),
        tool_prefix: text("functions."),
        beginnings: Some((text("<|channel|>analysis<|message|>"), text("<|channel|>final<|message|>"))),
    }
}

fn muse() -> Channels {
    Channels {
        ends: texts(&["<|eom|>", "<|eot|>"]),
        channel: String::new(),
        reasoning: texts(&["self"]),
        text: texts(&["user"]),
        tool_prefix: String::new(),
        beginnings: Some((text(" to=self<|message|>"), text(" to=user<|message|>"))),
        ..harmony()
    }
}

fn functionary() -> Channels {
    Channels { begin: text(">>>"), header_end: text("\n"), text: texts(&["all", ""]), ..Channels::default() }
}
