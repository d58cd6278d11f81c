"""Drives a running server with Ollama's own Python package and asserts what comes back.

Usage: python tests/clients/ollama_client.py http://127.0.0.1:8080 [API_KEY]

Needs the `ollama` package. Works with any model that has a chat template; nothing is asserted about what it says.
"""

import json
import sys

import ollama

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


MESSAGES = [{"role": "user", "content": "Count from one to ten."}]


def options(**more):
    return {"num_predict": 12, "temperature": 0, **more}


def refused(call, status):
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code == status, error
        assert error.error and not error.error.startswith("{"), error.error
        return error.error
    raise AssertionError(f"expected {status}")


@check
def models_are_listed_shown_and_running(client, model):
    listed = client.list().models
    assert model in [one.model for one in listed], listed
    assert listed[0].modified_at and len(listed[0].digest) == 64 and listed[0].size > 0
    assert listed[0].details.format == "gguf"
    for name in (model, f"{model}:latest"):
        shown = client.show(name)
        architecture = shown.modelinfo["general.architecture"]
        assert shown.modelinfo[f"{architecture}.context_length"] > 0
        assert "completion" in shown.capabilities
        assert shown.template
    running = client.ps().models
    assert [one.model for one in running] == [model]
    assert running[0].size > 0 and running[0].expires_at and running[0].context_length > 0


@check
def chat_answers_with_counts_and_durations(client, model):
    answer = client.chat(model=model, messages=MESSAGES, options=options())
    assert answer.model == model and answer.done and answer.done_reason in ("stop", "length")
    assert answer.message.role == "assistant" and answer.message.content
    assert answer.prompt_eval_count > 0 and 0 < answer.eval_count <= 12
    assert answer.total_duration >= answer.eval_duration > 0
    assert answer.created_at


@check
def a_stream_says_what_the_whole_answer_says(client, model):
    whole = client.chat(model=model, messages=MESSAGES, options=options())
    chunks = list(client.chat(model=model, messages=MESSAGES, options=options(), stream=True))
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert "".join(chunk.message.content or "" for chunk in chunks) == whole.message.content
    last = chunks[-1]
    assert (last.done_reason, last.eval_count) == (whole.done_reason, whole.eval_count)


@check
def generate_continues_a_prompt(client, model):
    whole = client.generate(model=model, prompt="Count from one to ten.", options=options())
    assert whole.response and whole.done and whole.eval_count > 0
    chunks = list(client.generate(model=model, prompt="Count from one to ten.", options=options(), stream=True))
    assert "".join(chunk.response for chunk in chunks) == whole.response
    chat = client.chat(model=model, messages=MESSAGES, options=options())
    assert chat.message.content == whole.response
    raw = client.generate(model=model, prompt="1, 2, 3, 4,", raw=True, options=options())
    assert raw.response and raw.prompt_eval_count < whole.prompt_eval_count


@check
def the_same_seed_gives_the_same_text(client, model):
    def answer(seed):
        sampled = options(temperature=1.5, top_k=0, top_p=1, seed=seed)
        return client.chat(model=model, messages=MESSAGES, options=sampled).message.content

    assert answer(7) == answer(7)
    assert len({answer(seed) for seed in range(1, 6)}) > 1


@check
def a_format_gives_json_of_the_schema(client, model):
    schema = {
        "type": "object",
        "properties": {"size": {"enum": ["small", "large"]}, "old": {"type": "boolean"}},
        "required": ["size", "old"],
        "additionalProperties": False,
    }
    answer = client.chat(model=model, messages=MESSAGES, format=schema, options=options(num_predict=200, seed=1))
    read = json.loads(answer.message.content)
    assert read["size"] in ("small", "large") and isinstance(read["old"], bool), read
    text = client.generate(model=model, prompt="Write JSON.", format="json", options=options()).response
    assert text.lstrip().startswith("{"), text


@check
def logprobs_have_their_alternatives(client, model):
    answer = client.chat(model=model, messages=MESSAGES, options=options(), logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) > 0
    for position in answer.logprobs:
        assert position.logprob <= 0 and len(position.top_logprobs) == 2
        assert position.token == position.top_logprobs[0].token


@check
def a_model_is_loaded_without_a_prompt(client, model):
    assert client.generate(model=model).done_reason == "load"
    assert client.chat(model=model, messages=[], keep_alive="5m").done_reason == "load"


@check
def a_model_that_is_here_is_pulled_at_once(client, model):
    assert client.pull(model).status == "success"
    assert [step.status for step in client.pull(model, stream=True)][-1] == "success"


@check
def errors_are_understood(client, model):
    message = refused(lambda: client.chat(model="nothing", messages=MESSAGES), 404)
    assert message == "model 'nothing' not found"
    refused(lambda: list(client.chat(model="nothing", messages=MESSAGES, stream=True)), 404)
    refused(lambda: client.show("nothing"), 404)
    refused(lambda: client.chat(model=model, messages=MESSAGES, options={"temperature": "hot"}), 400)
    refused(lambda: client.delete(model), 403)
    refused(lambda: client.pull("nothing"), 403)


@check
def texts_become_vectors(client, model):
    found = client.embed(model=model, input=["one text", "another text"])
    assert len(found.embeddings) == 2 and found.prompt_eval_count > 0 and found.total_duration > 0
    assert abs(sum(value * value for value in found.embeddings[0]) - 1) < 1e-4
    assert client.embed(model=model, input="one text").embeddings[0] == found.embeddings[0]
    assert len(client.embed(model=model, input="one text", dimensions=8).embeddings[0]) == 8
    assert len(client.embeddings(model=model, prompt="one text").embedding) == len(found.embeddings[0])


def main():
    url = sys.argv[1]
    key = sys.argv[2] if len(sys.argv) > 2 else None
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = ollama.Client(host=url, headers=headers)
    model = client.list().models[0].model
    for function in CHECKS:
        function(client, model)
        print(f"ok {function.__name__}")
    if key:
        wrong = ollama.Client(host=url, headers={"Authorization": "Bearer wrong"})
        refused(wrong.list, 401)
        print("ok a_wrong_key_is_refused")
    print(f"{len(CHECKS)} checks with ollama against {model}")


if __name__ == "__main__":
    main()
