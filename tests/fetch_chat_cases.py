#!/usr/bin/env python3
"""Writes llama.cpp's cases of parsed answers as JSON, with its chat templates, from the source package of llama-cpp-python.

usage: fetch_chat_cases.py FOLDER

The folder gets `templates/*.jinja` and `cases.json`: a list of {line, template, input, expect, tools, ...}. The package is
fetched as the package index of this machine's pip has it; nothing is built. The cases are read from the C++ of
tests/test-chat.cpp by a reader of the few kinds of expressions that stand there; a case that it cannot read is counted.
"""

import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.3.36"
PREFIX = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/"
TOKEN = re.compile(
    r'''(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |R"(?P<delimiter>[^\s()\\]*)\((?P<raw>.*?)\)(?P=delimiter)"
    |"(?P<string>(?:[^"\\]|\\.)*)"
    |(?P<number>\d+)
    |(?P<name>[A-Za-z_][A-Za-z_0-9]*(?:::[A-Za-z_0-9]+)*)
    |(?P<other>.)''',
    re.S | re.X,
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
MESSAGE = ["role", "content", "content_parts", "tool_calls", "reasoning_content", "tool_name", "tool_call_id"]


class Unreadable(Exception):
    """An expression of a kind that the reader does not know."""


def unescape(text):
    text = re.sub(r"\\x([0-9a-fA-F]{2})", lambda found: chr(int(found[1], 16)), text)
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    text = re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text, flags=re.S)
    # Bytes that were written one by one are UTF-8.
    try:
        return text.encode("latin-1").decode("utf-8") if any("\x7f" < c < "\u0100" for c in text) else text
    except (UnicodeEncodeError, UnicodeDecodeError):
        return text


def tokens(source):
    """The tokens of C++ as (kind, text, line)."""
    line, found = 1, []
    for match in TOKEN.finditer(source):
        kind = match.lastgroup
        if match["raw"] is not None:
            found.append(("string", match["raw"], line))
        elif match["string"] is not None:
            found.append(("string", unescape(match["string"]), line))
        elif kind != "space":
            found.append((kind, match[0], line))
        line += match[0].count("\n")
    return found


def assistant(content, reasoning="", name="", arguments="", identifier=""):
    calls = [[name, arguments, identifier]] if name or identifier else []
    return {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls}


def several(reasoning, content, calls):
    return assistant(content, reasoning) | {"tool_calls": [[name, arguments, ""] for name, arguments in calls]}


FUNCTIONS = {
    "simple_assist_msg": assistant,
    "message_with_tool_calls": lambda name, arguments: assistant("", "", name, arguments),
    "message_with_tool_calls_and_reasoning": lambda name, arguments, thought: assistant("", thought, name, arguments),
    "message_with_reasoning_and_tool_call": lambda thought, name, arguments: assistant("", thought, name, arguments),
    "message_with_content_and_tool_call": lambda content, name, arguments: assistant(content, "", name, arguments),
    "message_with_reasoning_content_and_multiple_tool_calls": several,
    "std::string": lambda text="": text,
}


class Reader:
    """Reads expressions from tokens, with the values of names."""

    def __init__(self, all_tokens, names):
        self.tokens, self.names, self.at = all_tokens, names, 0

    def peek(self, ahead=0):
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def take(self, expected=None):
        kind, text, line = self.tokens[self.at]
        if expected is not None and text != expected:
            raise Unreadable(f"line {line}: {text!r} where {expected!r} was expected")
        self.at += 1
        return kind, text

    def items(self, end):
        values = []
        while self.peek() != end:
            if self.peek() == ".":
                raise Unreadable("named fields")
            values.append(self.expression())
            if self.peek() == ",":
                self.take(",")
        self.take(end)
        return values

    def expression(self):
        value = self.term()
        while self.peek() == "+":
            self.take()
            value = value + self.term()
        return value

    def term(self):
        kind, text = self.take()
        if kind == "string":
            while self.tokens[self.at][0] == "string":
                text += self.take()[1]
            return text
        if text == "{":
            return self.items("}")
        if text == "(":
            value = self.expression()
            self.take(")")
            return value
        if kind == "number":
            return int(text)
        if text in ("true", "false"):
            return text == "true"
        if self.peek() == "(" and text in FUNCTIONS:
            self.take("(")
            return FUNCTIONS[text](*self.items(")"))
        if text in self.names:
            return self.names[text]
        if text.isupper():
            return text
        raise Unreadable(f"line {self.tokens[self.at - 1][2]}: the name {text!r}")

    def chain(self):
        """The calls `.name(arguments)` up to the semicolon."""
        calls = []
        while self.peek() == ".":
            self.take(".")
            name = self.take()[1]
            self.take("(")
            calls.append((name, self.items(")")))
        self.take(";")
        return calls


def message(value):
    """A message of the conversation, as the chat template gets it."""
    value = dict(zip(MESSAGE, value)) if isinstance(value, list) else value
    return {key: part for key, part in value.items() if part not in ("", [])} | {"content": value.get("content", "")}


def case_of(template, line, text, calls):
    case = {"line": line, "template": template, "input": text, "tools": [], "options": {}, "messages": []}
    expect = assistant("")
    for name, arguments in calls:
        first = arguments[0] if arguments else True
        if name == "expect":
            expect = dict(first)
        elif name in ("expect_content", "expect_reasoning", "expect_tool_calls"):
            field = {"expect_reasoning": "reasoning_content"}.get(name, name.removeprefix("expect_"))
            expect[field] = first
        elif name == "tools":
            case["tools"] = [{"name": tool[0], "parameters": json.loads(tool[2] or "{}")} for tool in first]
        elif name == "messages":
            case["messages"] = [message(value) for value in first]
        elif name != "run":
            case["options"][name] = first
    expect["tool_calls"] = [[part or "" for part in (list(call) + ["", ""])[:3]] for call in expect["tool_calls"]]
    case["expect"] = expect
    return case


class Cases:
    """All cases of the file, in order."""

    def __init__(self, source):
        self.reader = Reader(tokens(source), {})
        self.cases, self.failed, self.testers, self.loop = [], [], {}, []

    def read(self):
        while self.reader.at < len(self.reader.tokens):
            start = self.reader.at
            try:
                self.statement()
            except (Unreadable, TypeError, IndexError, KeyError) as error:
                if self.is_case(start):
                    self.failed.append(str(error))
                self.reader.at = start
            self.reader.at = max(self.reader.at, start + 1)

    def is_case(self, at):
        return [token[1] for token in self.reader.tokens[at + 1 : at + 4]] == [".", "test", "("]

    def statement(self):
        reader = self.reader
        kind, first = reader.take()
        if first in ("common_chat_tool", "common_chat_msg") or (first == "std::string" and reader.peek(1) == "="):
            self.definition()
        elif first == "char" and reader.peek() == "*":
            reader.take()
            self.definition()
        elif first == "for":
            self.for_loop()
        elif reader.peek() == "=" and reader.peek(1) == "peg_tester":
            reader.at += 2
            reader.take("(")
            path = reader.names if reader.peek() in ("path", "template_path") else None
            self.testers[first] = self.loop if path is not None else [reader.expression()]
        elif kind == "name" and self.is_case(reader.at - 1):
            self.case(first)

    def definition(self):
        reader = self.reader
        name = reader.take()[1]
        if reader.peek() == "=":
            reader.take()
        value = reader.expression()
        reader.take(";")
        reader.names[name] = value

    def for_loop(self):
        """Remembers the paths of `for (x : { ... })`."""
        reader = self.reader
        while reader.peek() != ":":
            if reader.peek() in (";", ")"):
                raise Unreadable("a loop over numbers")
            reader.take()
        reader.take(":")
        while reader.peek() != "{":
            reader.take()
        paths = reader.expression()
        self.loop = [path for path in paths if isinstance(path, str)]

    def case(self, tester):
        reader = self.reader
        line = reader.tokens[reader.at][2]
        reader.at += 3
        text = reader.expression()
        reader.take(")")
        calls = reader.chain()
        for template in self.testers.get(tester, []):
            self.cases.append(case_of(template.removeprefix("models/templates/"), line, text, calls))


def loops_over_functions(source):
    """The templates that a function with a template's path is called for."""
    found = re.search(r"for \(const char \* tmpl : \{(.*?)\}\)", source, re.S)
    return re.findall(r'"([^"]*\.jinja)"', found[1]) if found else []


def fetch(folder):
    with tempfile.TemporaryDirectory() as work:
        package = f"llama-cpp-python=={VERSION}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python"]
        subprocess.run([*command, "--dest", work, package], check=True)
        with tarfile.open(Path(work, f"llama_cpp_python-{VERSION}.tar.gz")) as archive:
            for member in archive:
                name = member.name.removeprefix(PREFIX)
                if name == "tests/test-chat.cpp":
                    (folder / "test-chat.cpp").write_bytes(archive.extractfile(member).read())
                elif name.startswith("models/templates/") and name.endswith(".jinja"):
                    (folder / "templates" / Path(name).name).write_bytes(archive.extractfile(member).read())


def main():
    folder = Path(sys.argv[1])
    (folder / "templates").mkdir(parents=True, exist_ok=True)
    if not (folder / "test-chat.cpp").exists():
        fetch(folder)
    source = (folder / "test-chat.cpp").read_text(encoding="utf-8")
    cases = Cases(source)
    cases.loop = loops_over_functions(source)
    cases.read()
    (folder / "cases.json").write_text(json.dumps(cases.cases, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(cases.cases)} cases, {len(cases.failed)} cannot be read")
    for reason in cases.failed:
        print(f"  {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
