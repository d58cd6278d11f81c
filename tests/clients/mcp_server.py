"""An MCP server with one tool, `write`, which writes a greeting to a file in the current directory. It speaks over stdin and stdout."""

import json
import pathlib
import sys

TOOL = {
    "name": "write",
    "description": "Writes a greeting to a file.",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


def result(method, params):
    """The result of a request; `None` for a method that this server does not have."""
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "disk", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        pathlib.Path(params["arguments"]["path"]).write_text("hello\n")
        return {"content": [{"type": "text", "text": "done"}]}
    return {} if method == "ping" else None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = result(message["method"], message.get("params"))
    error = {"error": {"code": -32601, "message": "no such method"}}
    outcome = error if answer is None else {"result": answer}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}), flush=True)
