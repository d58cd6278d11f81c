"""Drives a running server with OpenAI's own Python package and asserts what comes back.

Usage: python tests/clients/openai_client.py http://127.0.0.1:8080/v1 [API_KEY]

Needs the `openai` package. Works with any model that has a chat template; nothing is asserted about what it says.
"""

import json
import sys
import threading
import time
from typing import Literal

import openai
import pydantic
from openai import OpenAI

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


MESSAGES = [{"role": "user", "content": "Count from one to ten."}]


@check
def models_are_listed_and_shown(client, model):
    listed = client.models.list().data
    assert model in [one.id for one in listed], listed
    shown = client.models.retrieve(model)
    assert shown.id == model and shown.object == "model"
    assert shown.max_model_len > 0


@check
def chat_answers_with_usage(client, model):
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, temperature=0)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 12
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0


@check
def a_stream_says_what_the_whole_answer_says(client, model):
    whole = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=16, temperature=0)
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=16,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )
    finish = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
    assert finish[-1] == whole.choices[0].finish_reason and not any(finish[:-1])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content


@check
def two_answers_stream_side_by_side(client, model):
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=8, n=2, seed=1, temperature=1, stream=True
    )
    texts, finished = {0: "", 1: ""}, set()
    for chunk in stream:
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            finished.add(choice.index)
    assert finished == {0, 1}
    whole = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=8, n=2, seed=1, temperature=1
    )
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert [choice.message.content for choice in whole.choices] == [texts[0], texts[1]]


@check
def the_same_seed_gives_the_same_text(client, model):
    def answer(seed):
        return client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=16, temperature=1.5, seed=seed
        ).choices[0].message.content

    assert answer(7) == answer(7)
    assert len({answer(seed) for seed in range(1, 6)}) > 1


@check
def a_stop_string_ends_the_text_before_it(client, model):
    plain = client.completions.create(model=model, prompt="1, 2, 3, 4,", max_tokens=16, temperature=0)
    text = plain.choices[0].text
    stop = text[3:6]
    stopped = client.completions.create(model=model, prompt="1, 2, 3, 4,", max_tokens=16, temperature=0, stop=[stop])
    assert stopped.choices[0].text == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].stop_reason == stop


@check
def chat_logprobs_have_their_alternatives(client, model):
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert content
    for position in content:
        assert position.logprob <= 0 and len(position.top_logprobs) == 3
        assert position.top_logprobs[0].logprob == max(top.logprob for top in position.top_logprobs)
        # Greedy takes the most likely.
        assert position.token == position.top_logprobs[0].token
    spelled = b"".join(bytes(position.bytes) for position in content)
    assert answer.choices[0].message.content.encode() in spelled


@check
def a_prompt_can_be_scored_without_generating(client, model):
    scored = client.completions.create(
        model=model, prompt="The sky is blue.", max_tokens=0, echo=True, logprobs=1, temperature=0
    )
    choice = scored.choices[0]
    assert choice.text == "The sky is blue." and choice.finish_reason == "length"
    logprobs = choice.logprobs
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert all(one <= 0 for one in logprobs.token_logprobs[1:])
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == scored.usage.prompt_tokens
    assert scored.usage.completion_tokens == 0


@check
def several_prompts_of_text_or_tokens(client, model):
    texts = ["The sky is", "Grass is"]
    by_text = client.completions.create(
        model=model, prompt=texts, max_tokens=4, temperature=0, extra_body={"return_token_ids": True}
    )
    assert [choice.index for choice in by_text.choices] == [0, 1]
    ids = [choice.prompt_token_ids for choice in by_text.choices]
    by_ids = client.completions.create(model=model, prompt=ids, max_tokens=4, temperature=0)
    assert [choice.text for choice in by_ids.choices] == [choice.text for choice in by_text.choices]
    assert by_text.usage.prompt_tokens == sum(map(len, ids))


@check
def completions_stream(client, model):
    whole = client.completions.create(model=model, prompt="Once upon a time", max_tokens=12, temperature=0)
    chunks = list(client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=12, temperature=0, stream=True,
        stream_options={"include_usage": True},
    ))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@check
def responses_answer_text_and_items(client, model):
    whole = client.responses.create(model=model, input="Count from one to ten.", max_output_tokens=12, temperature=0)
    assert whole.object == "response" and whole.id.startswith("resp_")
    assert whole.status in ("completed", "incomplete") and whole.output_text
    assert 0 < whole.usage.output_tokens <= 12
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Count from one to ten."}]},
        *[item.model_dump(exclude_none=True) for item in whole.output],
        {"role": "user", "content": "And now backwards."},
    ]
    longer = client.responses.create(
        model=model, input=items, instructions="Be brief.", max_output_tokens=4, temperature=0
    )
    assert longer.instructions == "Be brief." and longer.usage.input_tokens > whole.usage.input_tokens


@check
def a_response_streams_what_it_says_whole(client, model):
    asked = dict(model=model, input="Count from one to ten.", max_output_tokens=12, temperature=0)
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{whole.status}", kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text


@check
def a_response_is_kept_and_continued(client, model):
    asked = dict(model=model, max_output_tokens=8, temperature=0)
    first = client.responses.create(input="Count from one to ten.", **asked)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(input="And backwards.", previous_response_id=first.id, **asked)
    assert second.previous_response_id == first.id and second.usage.input_tokens > first.usage.input_tokens
    counted = client.responses.input_tokens.count(model=model, input="And backwards.", previous_response_id=first.id)
    assert counted.input_tokens == second.usage.input_tokens
    [item] = client.responses.input_items.list(second.id)
    assert item.content[0].text == "And backwards."
    parts = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    listed = client.responses.create(input=parts, **asked).id
    texts = [item.content[0].text for item in client.responses.input_items.list(listed, limit=1, order="asc")]
    assert texts == ["one", "two", "three"], texts
    client.responses.delete(first.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        try:
            call(first.id)
        except openai.NotFoundError as error:
            assert error.code == "response_not_found", error
        else:
            raise AssertionError("a deleted response is found")
    try:
        client.responses.create(input="go on", previous_response_id=second.id, **asked)
    except openai.BadRequestError as error:
        assert (error.code, error.param) == ("previous_response_not_found", "previous_response_id"), error
    else:
        raise AssertionError("a conversation continues without its start")


class Answer(pydantic.BaseModel):
    kind: Literal["even", "odd"]
    is_prime: bool


@check
def a_response_is_parsed_into_a_class(client, model):
    asked = dict(model=model, input="Is 7 even?", text_format=Answer, max_output_tokens=200, temperature=0)
    assert isinstance(client.responses.parse(**asked).output_parsed, Answer)
    with client.responses.stream(**asked) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Answer)


@check
def errors_have_their_class_and_name_the_field(client, model):
    def fails(kind, param=None, code=None, **arguments):
        request = {"model": model, "messages": MESSAGES, "max_tokens": 4} | arguments
        try:
            client.chat.completions.create(**request)
        except kind as error:
            assert error.param == param, (error.param, param)
            assert code is None or error.code == code, error.code
            assert error.response.headers["x-request-id"]
            return error
        raise AssertionError(f"no error for {arguments}")

    fails(openai.BadRequestError, "temperature", "invalid_value", temperature=-1)
    fails(openai.BadRequestError, "messages[0].role", messages=[{"role": "wizard", "content": "hi"}])
    fails(openai.BadRequestError, "messages", messages=[])
    fails(openai.NotFoundError, "model", "model_not_found", model="some-other-model")
    fails(openai.BadRequestError, "echo", "unsupported_value", extra_body={"echo": True})
    long = fails(
        openai.BadRequestError, None, "context_length_exceeded", messages=[{"role": "user", "content": "one two " * 90_000}]
    )
    assert long.body["n_prompt_tokens"] > long.body["n_ctx"] > 0
    assert "maximum context length is" in long.message and "exceeds the available context size" in long.message
    stranger = OpenAI(base_url=client.base_url, api_key="wrong", max_retries=0)
    if client.api_key != "none":
        try:
            stranger.models.list()
        except openai.AuthenticationError as error:
            assert error.code == "invalid_api_key"
        else:
            raise AssertionError("a wrong key was let in")


@check
def an_abandoned_stream_leaves_room(client, model):
    for _ in range(8):
        stream = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=400, stream=True)
        next(iter(stream))
        stream.close()
    chat_answers_with_usage(client, model)


@check
def two_clients_stream_at_once(client, model):
    def run(results, index):
        stream = client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=24, temperature=0, stream=True
        )
        results[index] = "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    results = [None, None, None]
    run(results, 2)
    threads = [threading.Thread(target=run, args=(results, index)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1] == results[2] and results[0]


@check
def texts_become_vectors(client, model):
    # The client asks for base64 unless a format is named.
    found = client.embeddings.create(model=model, input=["one text", "another text"])
    assert [item.index for item in found.data] == [0, 1] and found.usage.prompt_tokens > 0
    plain = client.embeddings.create(model=model, input="one text", encoding_format="float")
    assert len(plain.data[0].embedding) == len(found.data[0].embedding)
    assert all(abs(a - b) < 1e-6 for a, b in zip(plain.data[0].embedding, found.data[0].embedding))
    assert len(client.embeddings.create(model=model, input="one text", dimensions=8).data[0].embedding) == 8


@check
def a_file_of_requests_is_answered(client, model):
    requests = [
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": model, "messages": MESSAGES, "max_tokens": 4 + number, "temperature": 0},
        }
        for number in range(2)
    ]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    try:
        file = client.files.create(file=("requests.jsonl", lines.encode()), purpose="batch")
    except openai.PermissionDeniedError as error:
        assert error.code == "batches_not_allowed", error
        return
    assert file.purpose == "batch" and file.filename == "requests.jsonl" and file.bytes == len(lines)
    assert file.id in [one.id for one in client.files.list()]
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    for _ in range(600):
        batch = client.batches.retrieve(batch.id)
        if batch.status in ("completed", "failed"):
            break
        time.sleep(0.1)
    assert batch.status == "completed" and batch.metadata == {"a": "b"}, batch
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (2, 2, 0)
    assert batch.usage.output_tokens > 0 and batch.error_file_id is None
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == ["request-0", "request-1"]
    assert all(answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers)
    assert batch.id in [one.id for one in client.batches.list()]
    for id in (file.id, batch.output_file_id):
        assert client.files.delete(id).deleted


def main():
    base_url = sys.argv[1]
    api_key = sys.argv[2] if len(sys.argv) > 2 else "none"
    client = OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=300)
    model = client.models.list().data[0].id
    failures = 0
    for function in CHECKS:
        try:
            function(client, model)
            print(f"ok    {function.__name__}")
        except Exception as error:  # noqa: BLE001: every failure is reported, then the next check runs
            failures += 1
            print(f"FAIL  {function.__name__}: {type(error).__name__}: {error}")
    print(f"{len(CHECKS) - failures} of {len(CHECKS)} checks passed against {model} with openai {openai.__version__}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
