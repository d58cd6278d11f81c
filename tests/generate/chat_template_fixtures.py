"""Writes transformers' renderings of chat templates, for a comparison byte by byte.

Writes FOLDER/NAME.json for every NAME.jinja in FOLDER: a list of {conversation, expected} or {conversation, error}.
tests/chat_templates.rs compares every template that has such a file. Those in tests/fixtures/chat_templates have one. Run this
script on llama.cpp's models/templates (CUELIGHT_TEST_TEMPLATES) too, to compare that collection.

Needs: transformers, jinja2.
usage: python tests/generate/chat_template_fixtures.py FOLDER
"""

import json
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

USER = {"role": "user", "content": "What is 6 × 7?\n"}
ANSWER = {"role": "assistant", "content": " It's **42**. "}
AGAIN = {"role": "user", "content": "And \"8 × 7\" <now>?"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather — today's & tomorrow's.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where <b>"},
                "days": {"type": "integer", "minimum": 1, "default": 1},
                "exact": {"type": "boolean", "default": False},
                "unit": {"type": "string", "enum": ["°C", "K"]},
            },
            "required": ["city"],
        },
    },
}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": '{"temperature": 21.5}'}

CONVERSATIONS = [
    {"messages": [USER], "add_generation_prompt": True},
    {"messages": [SYSTEM, USER], "add_generation_prompt": True},
    {"messages": [SYSTEM, USER, ANSWER, AGAIN], "add_generation_prompt": True},
    {"messages": [USER, ANSWER], "add_generation_prompt": False},
    {"messages": [USER], "tools": [TOOL], "add_generation_prompt": True},
    {"messages": [USER, CALL, RESULT], "tools": [TOOL], "add_generation_prompt": True},
    {"messages": [USER], "add_generation_prompt": True, "variables": {"enable_thinking": False}},
]


def render(template, conversation):
    try:
        rendered, _ = render_jinja_template(
            conversations=[conversation["messages"]],
            tools=conversation.get("tools"),
            chat_template=template,
            add_generation_prompt=conversation["add_generation_prompt"],
            bos_token="<s>",
            eos_token="</s>",
            **conversation.get("variables", {}),
        )
        return {"conversation": conversation, "expected": rendered[0]}
    except Exception as error:  # Whatever a template raises is its answer.
        return {"conversation": conversation, "error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("*.jinja")):
        cases = [render(path.read_text(), conversation) for conversation in CONVERSATIONS]
        path.with_suffix(".json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")
        print(path.name, "".join("e" if "error" in case else "." for case in cases))
