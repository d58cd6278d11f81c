"""Drives a running server with Anthropic's own Python package and asserts what comes back.

Usage: python tests/clients/anthropic_client.py http://127.0.0.1:8080 [API_KEY]

Needs the `anthropic` package. Works with any model that has a chat template; nothing is asserted about what it says.
"""

import json
import sys
import time

import anthropic
from anthropic import Anthropic

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


# The package has no argument for it.
GREEDY = {"temperature": 0}

MESSAGES = [{"role": "user", "content": "Count from one to ten."}]
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def refusal(client, kind, **arguments):
    """The error that a request gets."""
    try:
        client.messages.create(**arguments)
    except kind as error:
        assert error.body["type"] == "error" and error.body["request_id"] == error.request_id, error.body
        return error
    raise AssertionError(f"no error for {arguments}")


@check
def models_are_listed(client, model):
    listed = list(client.models.list())
    assert model in [one.id for one in listed], listed
    assert client.models.retrieve(model).type == "model"


@check
def a_message_has_content_and_usage(client, model):
    answer = client.messages.create(model=model, messages=MESSAGES, max_tokens=12, extra_body=GREEDY)
    assert answer.type == "message" and answer.role == "assistant" and answer.id.startswith("msg_")
    assert answer._request_id
    assert answer.content and all(block.type in ("text", "thinking") for block in answer.content)
    assert answer.stop_reason in ("end_turn", "max_tokens") and answer.stop_sequence is None
    usage = answer.usage
    assert usage.input_tokens > 0 and 0 < usage.output_tokens <= 12
    assert usage.cache_read_input_tokens >= 0 and usage.cache_creation_input_tokens == 0


@check
def a_stream_makes_the_same_message(client, model):
    arguments = {"model": model, "messages": MESSAGES, "max_tokens": 16, "extra_body": GREEDY}
    whole = client.messages.create(**arguments)
    with client.messages.stream(**arguments) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
    assert "content_block_start" in kinds and "content_block_stop" in kinds
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


@check
def raw_events_are_in_order(client, model):
    events = list(client.messages.create(model=model, messages=MESSAGES, max_tokens=8, stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    assert events[-2].usage.output_tokens > 0 and events[-2].delta.stop_reason


@check
def a_stop_sequence_ends_the_text_before_it(client, model):
    arguments = {"model": model, "messages": MESSAGES, "max_tokens": 24, "extra_body": GREEDY}
    text = client.messages.create(**arguments).content[0].text
    stop = text[3:6]
    stopped = client.messages.create(**arguments, stop_sequences=[stop])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == stop
    assert "".join(block.text for block in stopped.content) == text[: text.index(stop)]


@check
def the_count_of_tokens_is_that_of_the_prompt(client, model):
    arguments = {"model": model, "messages": MESSAGES, "system": "Be brief."}
    count = client.messages.count_tokens(**arguments).input_tokens
    usage = client.messages.create(**arguments, max_tokens=1).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens > 0


@check
def text_of_the_assistant_is_continued(client, model):
    messages = [*MESSAGES, {"role": "assistant", "content": "One, two,"}]
    whole = client.messages.count_tokens(model=model, messages=messages).input_tokens
    assert whole > client.messages.count_tokens(model=model, messages=MESSAGES).input_tokens
    assert client.messages.create(model=model, messages=messages, max_tokens=4).usage.output_tokens > 0


@check
def a_tool_that_must_be_called_gets_an_input_of_its_schema(client, model):
    arguments = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [TOOL],
        "tool_choice": {"type": "tool", "name": "get_weather"},
        "max_tokens": 256,
    }
    try:
        answer = client.messages.create(**arguments)
    except anthropic.BadRequestError as error:
        # The model's template has no tools, or its calls cannot be required.
        assert "tool" in error.message, error.message
        return
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == "tool_use" and calls
    for call in calls:
        assert call.name == "get_weather" and call.id and call.input["city"] in ("Paris", "Rome")
    with client.messages.stream(**arguments) as stream:
        streamed = stream.get_final_message()
    assert any(block.type == "tool_use" and isinstance(block.input, dict) for block in streamed.content)
    result = {"type": "tool_result", "tool_use_id": calls[0].id, "content": "Rain."}
    arguments["messages"] += [
        {"role": "assistant", "content": [block.to_dict() for block in answer.content]},
        {"role": "user", "content": [result]},
    ]
    arguments["tool_choice"] = {"type": "none"}
    assert client.messages.create(**arguments).stop_reason in ("end_turn", "max_tokens")


@check
def an_answer_matches_its_schema(client, model):
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    answer = client.messages.create(
        model=model,
        messages=MESSAGES,
        max_tokens=256,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    text = "".join(block.text for block in answer.content if block.type == "text")
    assert json.loads(text)["answer"] in ("yes", "no"), text


@check
def errors_have_their_class_and_name_the_field(client, model):
    arguments = {"model": model, "messages": MESSAGES, "max_tokens": 4}
    error = refusal(client, anthropic.BadRequestError, **arguments, extra_body={"temperature": -1})
    assert "`temperature`" in error.message and error.body["error"]["type"] == "invalid_request_error"
    image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]
    error = refusal(client, anthropic.BadRequestError, **(arguments | {"messages": [{"role": "user", "content": image}]}))
    assert "messages[0].content[0].type" in error.message
    refusal(client, anthropic.NotFoundError, **(arguments | {"model": "some-other-model"}))
    long = [{"role": "user", "content": "one two " * 90_000}]
    error = refusal(client, anthropic.BadRequestError, **(arguments | {"messages": long}))
    assert "prompt is too long" in error.message
    if client.api_key != "none":
        stranger = Anthropic(base_url=client.base_url, api_key="wrong", max_retries=0)
        error = refusal(stranger, anthropic.AuthenticationError, **arguments)
        assert error.body["error"]["type"] == "authentication_error"


@check
def an_abandoned_stream_leaves_room(client, model):
    for _ in range(8):
        stream = client.messages.create(model=model, messages=MESSAGES, max_tokens=400, stream=True)
        next(iter(stream))
        stream.close()
    a_message_has_content_and_usage(client, model)


@check
def messages_are_answered_in_a_batch(client, model):
    params = {"model": model, "max_tokens": 6, "messages": MESSAGES}
    requests = [{"custom_id": "good", "params": params}, {"custom_id": "bad", "params": params | {"temperature": -1}}]
    try:
        batch = client.messages.batches.create(requests=requests)
    except anthropic.PermissionDeniedError as error:
        assert "--batches" in error.message, error
        return
    for _ in range(600):
        batch = client.messages.batches.retrieve(batch.id)
        if batch.processing_status == "ended":
            break
        time.sleep(0.1)
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 1), batch
    results = {line.custom_id: line.result for line in client.messages.batches.results(batch.id)}
    assert results["good"].message.usage.output_tokens > 0 and results["good"].message.content
    assert results["bad"].error.error.type == "invalid_request_error"
    assert batch.id in [one.id for one in client.messages.batches.list()]
    assert client.messages.batches.delete(batch.id).id == batch.id


def main():
    base_url = sys.argv[1]
    api_key = sys.argv[2] if len(sys.argv) > 2 else "none"
    client = Anthropic(base_url=base_url, api_key=api_key, max_retries=0, timeout=300)
    model = next(iter(client.models.list())).id
    failures = 0
    for function in CHECKS:
        try:
            function(client, model)
            print(f"ok    {function.__name__}")
        except Exception as error:  # noqa: BLE001: every failure is reported, then the next check runs
            failures += 1
            print(f"FAIL  {function.__name__}: {type(error).__name__}: {error}")
    print(f"{len(CHECKS) - failures} of {len(CHECKS)} checks passed against {model} with anthropic {anthropic.__version__}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
