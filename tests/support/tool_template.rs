//! A chat template that knows tools.

/// Tools and calls as Hermes and Qwen write them.
pub const TOOL_TEMPLATE: &str = r#"{%- if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>
{% endif -%}
{%- for message in messages %}{{ message.role }}:{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{% endfor %}
{%- if add_generation_prompt %}assistant:{% endif %}"#;
