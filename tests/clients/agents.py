"""Runs the agents Claude Code and Codex against `cuelight serve`, with a model that calls a tool or answers.

Each agent must execute the call, send its result back, and print the answer; every response must be accepted. The model
picks a call or the answer at random, so an agent is run until both were seen.

usage: agents.py CUELIGHT QWEN.gguf [claude] [codex] [codex-mcp]     needs: pip install gguf numpy, and the agents on PATH
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import scripted_model

ANSWER = "The answer is forty-two."
RUNS = 12


def call(tool, arguments):
    """A call whose tokens all differ."""
    return '<tool_call>\n\n{"name":"%s","arguments": {%s}}</tool_call>' % (tool, arguments)


# Codex with the tool of an MCP server, which it sends in a namespace.
MCP = "codex-mcp"

CALLS = {
    "claude": call("Bash", '"command" : "echo hello > made.txt"'),
    "codex": call("exec_command", '"cmd" : "echo hello > made.txt"'),
    MCP: call("mcp__disk__write", '"path" : "made.txt"'),
}

CODEX_CONFIG = """
model = "scripted"
model_provider = "cuelight"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.cuelight]
name = "cuelight"
base_url = "%s/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""

MCP_CONFIG = """
[mcp_servers.disk]
command = "%s"
args = ["%s"]
cwd = "%s"
default_tools_approval_mode = "approve"
"""


def environment(agent, home, project, url):
    """A home of its own, so that the user's settings do not matter."""
    own = {"HOME": str(home), "PATH": os.environ["PATH"]}
    if agent != "claude":
        config = CODEX_CONFIG % url
        if agent == MCP:
            config += MCP_CONFIG % (sys.executable, pathlib.Path(__file__).with_name("mcp_server.py").resolve(), project)
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_text(config)
        return own
    return own | {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "scripted",
        "ANTHROPIC_SMALL_FAST_MODEL": "scripted",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


COMMANDS = {
    "claude": ["claude", "-p", "make a file", "--output-format", "json", "--allowedTools", "Bash", "--max-turns", "8"],
    "codex": ["codex", "exec", "--skip-git-repo-check", "make a file"],
    MCP: ["codex", "exec", "--skip-git-repo-check", "make a file"],
}


def answered(agent, output):
    """Whether the agent printed the answer."""
    return json.loads(output).get("result") == ANSWER if agent == "claude" else ANSWER in output


def check(agent, url, folder):
    """Runs an agent until it has answered both with and without a call."""
    home, project = folder / "home", folder / "project"
    home.mkdir(), project.mkdir()
    made, seen = project / "made.txt", set()
    variables = environment(agent, home, project, url)
    for _ in range(RUNS):
        made.unlink(missing_ok=True)
        run = subprocess.run(COMMANDS[agent], cwd=project, env=variables, capture_output=True, text=True, timeout=300,
                             stdin=subprocess.DEVNULL)
        if answered(agent, run.stdout):
            seen.add(made.exists() and made.read_text() == "hello\n")
        elif "max_turns" not in run.stdout:
            sys.exit(f"FAIL  {agent} did not answer: {run.stdout[-2000:]}{run.stderr[-2000:]}")
        if seen == {True, False}:
            return
    sys.exit(f"FAIL  {agent}: in {RUNS} runs only {seen or 'nothing'} was seen")


def serve(program, model):
    """Starts a server. Returns it, its address, and its log."""
    log = open(f"{model}.log", "w+")
    server = subprocess.Popen([program, "serve", model, "--port", "0", "--log-level", "debug"], stderr=log, stdout=log)
    while server.poll() is None:
        log.flush()
        if ready := re.search(r"ready: .* on (http://\S+)", pathlib.Path(log.name).read_text()):
            return server, ready[1], pathlib.Path(log.name)
    sys.exit(pathlib.Path(log.name).read_text())


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    program, source, *agents = sys.argv[1:]
    for agent in agents or CALLS:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            model = str(folder / "scripted.gguf")
            scripted_model.write(source, model, [CALLS[agent], ANSWER])
            server, url, log = serve(program, model)
            try:
                check(agent, url, folder)
            finally:
                server.terminate()
                server.wait()
            refused = [line for line in log.read_text().splitlines() if re.search(r"status=[45]\d\d", line)]
            if refused:
                sys.exit(f"FAIL  {agent}: the server refused\n" + "\n".join(refused))
        print(f"ok    {agent} calls a tool and answers")


if __name__ == "__main__":
    main()
