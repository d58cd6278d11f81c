#!/usr/bin/env python3
"""Two servers behind the real frontend of NVIDIA Dynamo, one of which is killed in the middle.

    dynamo.py CUELIGHT MODEL TOKENIZER_DIR [STREAMS]

Needs the Python packages ai-dynamo and ai-dynamo-runtime (1.6) and what they need, about 700 MB; by hand, not in CI. Answers of
STREAMS conversations are asked for twice, 16 at a time. In the second round one server and its worker are killed. Every answer must
be complete and the same as in the first round.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

WORKER = pathlib.Path(__file__).parent.parent / "examples/dynamo/cuelight_worker.py"
FRONTEND = "http://127.0.0.1:8400"
TOKENS = 200
LOCAL = ["DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST"]


def start(folder, name, *command):
    environment = os.environ | {name: "127.0.0.1" for name in LOCAL}
    environment |= {"DYN_FILE_KV": f"{folder}/store", "HF_HUB_OFFLINE": "1"}
    log = open(f"{folder}/{name}.log", "w")
    return subprocess.Popen(list(map(str, command)), env=environment, stdout=log, stderr=log)


def pair(folder, program, model, tokenizer, index):
    """A server and its worker."""
    port, events = 8210 + index, f"tcp://127.0.0.1:{5510 + index}"
    server = start(folder, f"server{index}", program, "serve", f"m={model}", "--port", port, "--threads", 1, "--kv-events", events)
    worker = start(folder, f"worker{index}", sys.executable, WORKER, "--url", f"http://127.0.0.1:{port}", "--kv-events", events,
                   "--tokenizer", tokenizer)
    return [server, worker]


def ask(index):
    """The text of an answer, and how it ended."""
    body = {"model": "m", "messages": [{"role": "user", "content": f"{index} is my number. Write a long story about it."}],
            "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(f"{FRONTEND}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    text, tokens, end = "", None, "broken off"
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if line.strip() == b"data: [DONE]":
                end = "complete" if tokens == TOKENS else f"{tokens} tokens"
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                text += "".join(choice["delta"].get("content") or "" for choice in event.get("choices") or [])
    return text, end


def wait_for_workers(count):
    """Waits until the frontend has reached each worker."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{FRONTEND}/health", timeout=5) as answer:
                ready = [each for each in json.load(answer).get("instances", []) if each.get("endpoint") == "generate"]
            with urllib.request.urlopen(f"{FRONTEND}/v1/models", timeout=5) as answer:
                if len(ready) >= count and json.load(answer)["data"]:
                    return
        except OSError:
            pass
        time.sleep(0.5)
    sys.exit("the workers did not start; see the logs")


def main():
    program, model, tokenizer, *rest = sys.argv[1:]
    streams = int(rest[0]) if rest else 200
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(16) as clients:
        processes = [pair(folder, program, model, tokenizer, index) for index in (1, 2)]
        frontend = start(folder, "frontend", sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", 8400,
                         "--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq", "--router-mode", "kv",
                         "--kv-cache-block-size", 16, "--migration-limit", 3)
        try:
            wait_for_workers(2)
            whole = list(clients.map(ask, range(streams)))
            again = [clients.submit(ask, index) for index in range(streams)]
            while sum(each.done() for each in again) < streams // 4:
                time.sleep(0.01)
            [process.send_signal(signal.SIGKILL) for process in processes[0]]
            again = [each.result() for each in again]
        finally:
            [process.kill() for process in [frontend, *processes[0], *processes[1]]]
    print("before:", dict(collections.Counter(end for _, end in whole)))
    print("with a killed server:", dict(collections.Counter(end for _, end in again)))
    equal = sum(one == other for one, other in zip(whole, again))
    print(f"{equal} of {streams} answers are complete and the same")
    sys.exit(equal != streams or any(end != "complete" for _, end in whole))


if __name__ == "__main__":
    main()
