"""A server that answers as a test needs it: the page and its headers come from a real server, the API is scripted.

The answer to a conversation is chosen by its last message, see `ANSWERS`.
"""

import http.server
import json
import threading
import time
import urllib.error
import urllib.request

from .webdriver import DIRECT

KEY = "right-key"

MARKDOWN = """# A heading

Some *italics*, **bold**, ~~struck~~ and `inline code`, snake_case_name, 2 * 3 * 4, and a [link](https://example.org/a_(b) "title").
A bare address: https://example.org/path?q=1, and <https://example.org/>.

## Lists

1. First
2. Second
   - nested **bold**
   - another

   ```python
   nested = True
   ```
3. Third

- [x] done
- [ ] open

> A quote with `code`.
> - and a list

| Model | Size | Speed |
|:------|-----:|:-----:|
| Small `a|b` | 1 GiB | **fast** |
| Large | 20 GiB | slow |

---

```rust
fn main() {
    println!("<b>Hello</b> & good day");
}
```

The end, with an unfinished **bold and ~~struck.
"""

HOSTILE = """<img src=x onerror="window.hacked=1"> <script>window.hacked=2</script> </script>

[a](javascript:window.hacked=3) [b](JaVaScRiPt:window.hacked=4) [c](data:text/html,<script>window.hacked=5</script>)
![i](javascript:window.hacked=6) ![remote](https://evil.example/pixel.png) <javascript:window.hacked=7>
[d](java\tscript:window.hacked=8) [e](&#106;avascript:window.hacked=9) [f](vbscript:x) [g](//evil.example/x)
[**safe** [nested](https://example.org/n)](https://example.org/safe)

```html"><img src=x onerror=window.hacked=10>
</code></pre><script>window.hacked=11</script>
```

| <svg onload=window.hacked=12> |
|---|
| <iframe src="javascript:window.hacked=13"></iframe> |

# <style>*{display:none}</style>
"""

TOOL_ARGUMENTS = ['{"city"', ': "Berlin",', ' "unit": "<b>celsius</b>"}']


def last_text(body):
    """The text of the last message, which may follow images."""
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else content[-1]["text"]


def text(content, size=7):
    return [{"content": content[at:at + size]} for at in range(0, len(content), size)]


def tool_call():
    start = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": piece}} for piece in TOOL_ARGUMENTS]
    return [{"tool_calls": [call]} for call in [start, *rest]]


ANSWERS = {
    "markdown": text(MARKDOWN),
    "hostile": text(HOSTILE, 3),
    "reason": [{"reasoning_content": piece} for piece in ["Let me ", "think **hard** ", "about it."]] + text("It is 42."),
    "tool": tool_call(),
    "long": text("\n\n".join(f"Paragraph {n} with **bold** text.\n\n- item `{n}`" for n in range(1500)), 400),
    "blank": [],
}
PAUSES = {"slow": 0.05, "reason": 0.15, "long": 0.001, "markdown": 0.001}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error_body(self, status, message, **headers):
        body = json.dumps({"error": {"message": message, "type": "error", "code": "code"}}).encode()
        self.send(status, body, {"content-type": "application/json", **headers})

    def is_refused(self):
        if not self.server.needs_key or self.headers.get("authorization") == f"Bearer {KEY}":
            return False
        self.send_error_body(401, "A valid API key is required.")
        return True

    def do_GET(self):
        if self.path == "/v1/models":
            if not self.is_refused():
                seeing = {"id": "org/seeing", "architecture": {"input_modalities": ["text", "image"]}}
                hearing = {"id": "org/hearing", "architecture": {"input_modalities": ["text", "image", "audio"]}}
                models = [{"id": "org/first"}, {"id": "org/second", "status": {"value": "unloaded"}}, seeing, hearing]
                self.send(200, json.dumps({"object": "list", "data": models}).encode(), {"content-type": "application/json"})
            return
        request = urllib.request.Request(self.server.real + self.path, headers={"accept": self.headers.get("accept", "*/*")})
        try:
            with DIRECT.open(request) as real:
                headers = {name: value for name, value in real.headers.items() if name.lower() not in HOP_BY_HOP}
                self.send(real.status, real.read(), headers)
        except urllib.error.HTTPError as error:
            self.send(error.code, error.read(), {"content-type": error.headers["content-type"]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.is_refused():
            return
        self.server.bodies.append(body)
        # Questions without an answer are joined by blank lines.
        question = last_text(body).split("\n\n")[-1].split()[0]
        if question == "busy":
            self.send_error_body(429, "The queue is full.", **{"retry-after": "7"})
        elif question == "wrong":
            self.send_error_body(400, "temperature must be at most 2")
        else:
            self.stream(question, body)

    def stream(self, question, body):
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            self.write_chunks(question, body)
        except (BrokenPipeError, ConnectionResetError):
            self.server.disconnected.append(question)

    def write_chunks(self, question, body):
        deltas = ANSWERS.get(question)
        if question == "slow":
            deltas = text("word " * 4000, 5)
        if deltas is None:
            last = last_text(body).split("\n\n")[-1]
            deltas = text(f"You said: {last} ({len(self.server.bodies)})")
        for count, delta in enumerate([{"role": "assistant", "content": ""}, *deltas]):
            self.write(delta, None, count)
            time.sleep(PAUSES.get(question, 0.01))
        if question == "fault":
            return self.write_data({"error": {"message": "The engine was restarted.", "code": 500}})
        self.write({}, "tool_calls" if question == "tool" else "stop", len(deltas))
        self.write_data("[DONE]")

    def write(self, delta, finish, tokens):
        usage = {"prompt_tokens": 20, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 16}}
        self.write_data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage})

    def write_data(self, data):
        line = data if isinstance(data, str) else json.dumps(data)
        self.wfile.write(f"data: {line}\n\n".encode())
        self.wfile.flush()


HOP_BY_HOP = {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}


class ScriptedServer(http.server.ThreadingHTTPServer):
    """Serves until the process ends. `bodies`: the requests for answers so far. `disconnected`: those that were given up."""

    daemon_threads = True

    def __init__(self, real):
        super().__init__(("127.0.0.1", 0), Handler)
        self.real = real.rstrip("/")
        self.needs_key = False
        self.bodies = []
        self.disconnected = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()
