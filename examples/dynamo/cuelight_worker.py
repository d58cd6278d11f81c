#!/usr/bin/env python3
"""Makes a running Cuelight server a worker of NVIDIA Dynamo.

    cuelight serve MODEL --port 8081 --kv-events tcp://127.0.0.1:5557
    cuelight_worker.py --url http://127.0.0.1:8081 --kv-events tcp://127.0.0.1:5557 --tokenizer DIR

Dynamo's frontend renders the chat template, makes tokens of it, and chooses a worker. The worker sends the tokens to its server as
a completion, and the tokens of the answer back. DIR has the model's Hugging Face files for the frontend: `config.json`,
`tokenizer.json`, `tokenizer_config.json`.

When its server is lost or shuts down, the worker ends, so that the frontend continues its requests on other workers.
"""

import argparse
import asyncio
import json
import logging
import os

import aiohttp
from dynamo.common.backend import run as backend
from dynamo.common.backend.engine import EngineConfig, LLMEngine, LlmRegistration
from dynamo.common.backend.publisher import ComponentSnapshot, ZmqSource
from dynamo.common.backend.worker import WorkerConfig

log = logging.getLogger("cuelight")

BLOCK_TOKENS = 16
# Fields of Dynamo's sampling options that a completion has under the same name.
SAMPLING = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed"]
# Fields of its stop conditions. Stop strings are the frontend's.
STOP = ["max_tokens", "min_tokens", "ignore_eos"]
CONSTRAINTS = ["json", "regex", "choice", "grammar", "structural_tag"]
SNAPSHOT_SECONDS = 0.25
# A line of a stream has the log-probabilities of many tokens.
LINE_BYTES = 16 << 20


class ServerLost(Exception):
    """The server does not answer, shuts down, or a stream broke off."""


def completion(request, model, context_tokens):
    """The body of a completion for a request of the frontend. Without a limit, an answer may fill the context."""
    sampling = request.get("sampling_options") or {}
    stop = request.get("stop_conditions") or {}
    output = request.get("output_options") or {}
    body = {"model": model, "prompt": request["token_ids"], "stream": True, "return_token_ids": True}
    body["stream_options"] = {"include_usage": True}
    body |= {name: sampling[name] for name in SAMPLING if sampling.get(name) is not None}
    body |= {name: stop[name] for name in STOP if stop.get(name) is not None}
    if "max_tokens" not in body and context_tokens:
        # The default of the route is 16 tokens.
        body["max_tokens"] = max(1, context_tokens - len(request["token_ids"]))
    ends = (stop.get("stop_token_ids") or []) + (stop.get("stop_token_ids_hidden") or [])
    if ends and not stop.get("ignore_eos"):
        body["stop_token_ids"] = ends
    guided = sampling.get("guided_decoding") or {}
    constraint = {name: guided[name] for name in CONSTRAINTS if guided.get(name) is not None}
    if constraint:
        body["structured_outputs"] = constraint
    if output.get("logprobs") is not None:
        body["logprobs"] = output["logprobs"]
    return body


def chunk_of(event):
    """A chunk for the frontend, or None for an event without tokens and end."""
    chunk = {"token_ids": [], "index": 0}
    for choice in event["choices"]:
        chunk["token_ids"] += choice.get("token_ids") or []
        if choice.get("finish_reason"):
            chunk["finish_reason"] = choice["finish_reason"]
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        if logprobs:
            chunk["log_probs"] = logprobs
    return chunk if chunk["token_ids"] or "finish_reason" in chunk else None


def gauges(text):
    """The gauges of the metrics page that Dynamo wants to know, by name."""
    found = {}
    for line in text.splitlines():
        name = line.split("{", 1)[0]
        if name in ("cuelight_kv_blocks_used", "cuelight_kv_blocks_total", "cuelight_sequences_capacity"):
            found[name] = found.get(name, 0) + float(line.rsplit(" ", 1)[1])
    return found


def end(error):
    """Ends the worker at once. The frontend then continues its requests on other workers."""
    log.error("the server is lost: %s", error)
    os._exit(1)


class CuelightEngine(LLMEngine):
    """The engine that Dynamo sees: a server, reached over HTTP."""

    def __init__(self, options):
        self.options = options
        self.http = None
        self.publisher = None
        self.watcher = None

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--url", default="http://127.0.0.1:8080", help="address of the server")
        parser.add_argument("--tokenizer", required=True, help="directory with the model's Hugging Face files")
        parser.add_argument("--model-name", help="name for clients of the frontend; if not set, that of the server")
        parser.add_argument("--kv-events", help="the address after --kv-events of the server")
        parser.add_argument("--kv-topic", help="the topic of the model's events; if not set, all, for a server with one model")
        parser.add_argument("--api-key", default=os.environ.get("CUELIGHT_CLIENT_KEY"), help="key of the server")
        parser.add_argument("--namespace", default="dynamo")
        parser.add_argument("--component", default="cuelight")
        parser.add_argument("--endpoint", default="generate")
        parser.add_argument("--discovery-backend", default="file", help="kubernetes, etcd, file or mem")
        parser.add_argument("--request-plane", default="tcp")
        parser.add_argument("--event-plane", default="zmq")
        options = parser.parse_args(argv)
        engine = cls(options)
        engine.served, models = await engine.served_model()
        if options.kv_events and options.kv_topic is None and models > 1:
            parser.error("the server has several models: give the topic of this one with --kv-topic")
        name = options.model_name or engine.served
        config = WorkerConfig(
            namespace=options.namespace,
            component=options.component,
            endpoint=options.endpoint,
            model_name=options.tokenizer,
            served_model_name=name,
            discovery_backend=options.discovery_backend,
            request_plane=options.request_plane,
            event_plane=options.event_plane,
            use_kv_events=options.kv_events is not None,
            enable_kv_routing=True,
        )
        return engine, config

    def session(self):
        if self.http is None:
            headers = {"Authorization": f"Bearer {self.options.api_key}"} if self.options.api_key else {}
            no_limit = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=None)
            self.http = aiohttp.ClientSession(
                self.options.url, headers=headers, connector=no_limit, timeout=timeout, read_bufsize=LINE_BYTES
            )
        return self.http

    async def served_model(self):
        """Waits until the server is ready. Returns the name of its first model, and the number of its models."""
        while True:
            try:
                async with self.session().get("/ready") as answer:
                    if answer.status == 200:
                        break
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
        async with self.session().get("/v1/models") as answer:
            answer.raise_for_status()
            cards = (await answer.json())["data"]
        self.card = cards[0]
        return self.card["id"], len(cards)

    async def metrics(self):
        async with self.session().get("/metrics") as answer:
            return gauges(await answer.text())

    async def start(self, worker_id):
        found = await self.metrics()
        # Dynamo attaches the publisher from a thread without an event loop.
        self.watcher = asyncio.create_task(self.watch())
        return EngineConfig(
            model=self.options.tokenizer,
            served_model_name=self.options.model_name or self.served,
            llm=LlmRegistration(
                context_length=self.card.get("max_model_len"),
                kv_cache_block_size=BLOCK_TOKENS,
                total_kv_blocks=int(found["cuelight_kv_blocks_total"]),
                max_num_seqs=int(found["cuelight_sequences_capacity"]),
            ),
        )

    async def kv_event_sources(self):
        topic = "kv@" if self.options.kv_topic is None else self.options.kv_topic
        return [ZmqSource(self.options.kv_events, topic)] if self.options.kv_events else []

    def component_metrics_dp_ranks(self):
        return [0]

    def attach_snapshot_publisher(self, publisher):
        self.publisher = publisher

    async def check_ready(self):
        """Raises ServerLost when the server shuts down or has failed."""
        async with self.session().get("/ready") as answer:
            status = None if answer.status == 200 else (await answer.json()).get("status")
        if status in ("draining", "failed"):
            raise ServerLost(f"it is {status}")

    async def watch(self):
        """Tells the router how full the KV cache is. Ends the worker when its server shuts down."""
        while True:
            try:
                await self.check_ready()
                found = await self.metrics()
                used, total = (int(found[f"cuelight_kv_blocks_{kind}"]) for kind in ("used", "total"))
                if self.publisher is not None:
                    self.publisher.publish(0, ComponentSnapshot(used, total, used / max(total, 1), 0))
            except ServerLost as error:
                end(error)
            except (aiohttp.ClientError, KeyError, ValueError) as error:
                log.warning("the metrics of the server cannot be read: %s", error)
            await asyncio.sleep(SNAPSHOT_SECONDS)

    async def generate(self, request, context):
        try:
            body = completion(request, self.served, self.card.get("max_model_len"))
            async for chunk in self.stream(body, context):
                yield chunk
        except (aiohttp.ClientError, ServerLost, ConnectionError) as error:
            end(error)

    async def stream(self, body, context):
        """The chunks of a completion. Leaving the block closes the connection, which cancels the request at the server."""
        async with self.session().post("/v1/completions", json=body) as answer:
            if answer.status == 503:
                # Unless it only has too many connections.
                await self.check_ready()
            if answer.status != 200:
                raise ValueError((await answer.json())["error"]["message"])
            last = None
            async for line in answer.content:
                if context.is_stopped():
                    yield {"token_ids": [], "index": 0, "finish_reason": "cancelled"}
                    return
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    yield last
                    return
                event = json.loads(line[6:])
                if "error" in event:
                    raise ValueError(event["error"]["message"])
                chunk = chunk_of(event)
                # The usage comes after the last chunk of tokens, and belongs to it.
                if last is not None and event.get("usage"):
                    last["completion_usage"] = event["usage"]
                elif chunk is not None and "finish_reason" in chunk:
                    last = chunk
                elif chunk is not None:
                    yield chunk
            raise ServerLost("a stream broke off")

    async def cleanup(self):
        if self.watcher is not None:
            self.watcher.cancel()
        if self.http is not None:
            await self.http.close()


if __name__ == "__main__":
    backend.run(CuelightEngine)
