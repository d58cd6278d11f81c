"""Runs libraries that programs are built with against `cuelight serve`: text, streams, structured answers, calls of tools.

A library that is not installed is named and skipped. The model must know tools, and the answers are checked: serve Qwen2.5-Coder 1.5B with `CUELIGHT_TEMP=0`.

usage: libraries.py URL [KEY]      needs, as far as they fit together: pip install litellm instructor langchain-openai langchain-ollama
       langchain-anthropic pydantic-ai openai-agents smolagents[openai] llama-index-llms-openai-like llama-index-llms-ollama dspy guidance
"""

import asyncio
import os
import sys

from pydantic import BaseModel

# The SDK of OpenAI has a module with the name of a file next to this one.
sys.path.pop(0)
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
ROOT = sys.argv[1].rstrip("/")
KEY = sys.argv[2] if len(sys.argv) > 2 else "none"
V1, MODEL = f"{ROOT}/v1", "default"
SAY, BOB, WEATHER = "Say hi.", "Bob is 5 years old.", "What is the weather in Rome? Call the tool."
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": PARAMETERS}}


class Person(BaseModel):
    name: str
    age: int


def is_bob(person):
    assert (person.name, person.age) == ("Bob", 5), person


def weather(city: str) -> str:
    """Weather of a city."""
    assert city == "Rome", city
    return "sunny"


def litellm():
    from litellm import completion, responses

    message = [{"role": "user", "content": SAY}]
    openai = {"api_base": V1, "api_key": KEY, "max_tokens": 20}
    for provider, settings in [("openai", openai), ("hosted_vllm", openai), ("anthropic", {**openai, "api_base": ROOT}),
                               ("ollama_chat", {**openai, "api_base": ROOT})]:
        assert completion(model=f"{provider}/{MODEL}", messages=message, **settings).choices[0].message.content, provider
    stream = completion(model=f"openai/{MODEL}", messages=message, stream=True, **openai)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert responses(model=f"openai/{MODEL}", input=SAY, api_base=V1, api_key=KEY).output
    asked = [{"role": "user", "content": WEATHER}]
    call = completion(model=f"openai/{MODEL}", messages=asked, tools=[TOOL], **{**openai, "max_tokens": 100})
    assert call.choices[0].message.tool_calls[0].function.name == "weather"


def instructor():
    from instructor import Mode, from_openai
    from openai import OpenAI

    asked = {"model": MODEL, "messages": [{"role": "user", "content": BOB}], "response_model": Person, "max_tokens": 100}
    for mode in [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON, Mode.JSON_SCHEMA]:
        client = from_openai(OpenAI(base_url=V1, api_key=KEY), mode=mode)
        is_bob(client.chat.completions.create(**asked))
        *_, last = client.chat.completions.create_partial(**asked)
        is_bob(last)


def langchain():
    from langchain_anthropic import ChatAnthropic
    from langchain_ollama import ChatOllama
    from langchain_openai import ChatOpenAI

    headers = {"headers": {"authorization": f"Bearer {KEY}"}}
    for model in [ChatOpenAI(model=MODEL, base_url=V1, api_key=KEY, max_tokens=100),
                  ChatOpenAI(model=MODEL, base_url=V1, api_key=KEY, max_tokens=100, use_responses_api=True),
                  ChatAnthropic(model=MODEL, base_url=ROOT, api_key=KEY, max_tokens=100),
                  ChatOllama(model=MODEL, base_url=ROOT, num_predict=100, client_kwargs=headers)]:
        assert model.invoke(SAY).content
        assert [chunk for chunk in model.stream(SAY)]
        is_bob(model.with_structured_output(Person).invoke(BOB))
        assert model.bind_tools([TOOL]).invoke(WEATHER).tool_calls[0]["args"] == {"city": "Rome"}


def pydantic_ai():
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    for kind in [OpenAIChatModel, OpenAIResponsesModel]:
        model = kind(MODEL, provider=OpenAIProvider(base_url=V1, api_key=KEY))
        assert Agent(model).run_sync(SAY).output
        is_bob(Agent(model, output_type=Person).run_sync(BOB).output)
        is_bob(Agent(model, output_type=NativeOutput(Person)).run_sync(BOB).output)
        called = Agent(model, tools=[weather]).run_sync(WEATHER).all_messages()
        assert any(part.part_kind == "tool-return" for message in called for part in message.parts), called


def openai_agents():
    from agents import Agent, Runner, function_tool, set_default_openai_api, set_default_openai_client, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    set_default_openai_client(AsyncOpenAI(base_url=V1, api_key=KEY))

    async def run():
        for api in ["responses", "chat_completions"]:
            set_default_openai_api(api)
            is_bob((await Runner.run(Agent(name="a", model=MODEL, output_type=Person), BOB)).final_output)
            agent = Agent(name="a", model=MODEL, tools=[function_tool(weather)])
            assert len((await Runner.run(agent, WEATHER, max_turns=4)).raw_responses) > 1
            streamed = Runner.run_streamed(agent, WEATHER, max_turns=4)
            assert [event async for event in streamed.stream_events()]

    asyncio.run(run())


def smolagents():
    from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent

    model = OpenAIServerModel(MODEL, api_base=V1, api_key=KEY)
    for kind in [CodeAgent, ToolCallingAgent]:
        answer = kind(tools=[], model=model, max_steps=3, verbosity_level=0).run("What is 12 * 13? Give the final answer.")
        assert "156" in str(answer), answer


def llama_index():
    from llama_index.core.prompts import PromptTemplate
    from llama_index.llms.ollama import Ollama
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(model=MODEL, api_base=V1, api_key=KEY, context_window=32768, is_chat_model=True,
                       is_function_calling_model=True)
    assert model.complete(SAY).text and list(model.stream_complete(SAY))
    is_bob(model.structured_predict(Person, PromptTemplate(BOB)))
    assert OpenAILike(model=MODEL, api_base=V1, api_key=KEY, max_tokens=10).complete("def f(x):").text
    if KEY == "none":
        assert Ollama(model=MODEL, base_url=ROOT, request_timeout=120).complete(SAY).text


def dspy():
    from dspy import LM, ChainOfThought, JSONAdapter, Predict, ReAct, context

    with context(lm=LM(f"openai/{MODEL}", api_base=V1, api_key=KEY, cache=False)):
        assert Predict("question -> answer: int")(question="2 + 3?").answer == 5
        answered = ReAct("question -> answer", tools=[weather], max_iters=3)(question="What is the weather in Rome?")
        assert "sunny" in str(answered.trajectory), answered
        with context(adapter=JSONAdapter()):
            assert ChainOfThought("question -> answer: int")(question="2 + 3?").answer == 5


def guidance():
    from guidance import assistant, gen, user
    from guidance.models.experimental import VLLMModel

    model = VLLMModel(MODEL, base_url=V1, api_key=KEY)
    with user():
        model += "Say a number."
    with assistant():
        model += gen("number", regex="[0-9]+", max_tokens=5)
    assert model["number"].isdigit()


def main():
    failed = []
    for check in [litellm, instructor, langchain, pydantic_ai, openai_agents, smolagents, llama_index, dspy, guidance]:
        try:
            check()
            print("ok     ", check.__name__, flush=True)
        except ModuleNotFoundError as missing:
            print("skipped", check.__name__, missing, flush=True)
        except Exception as error:
            failed.append(check.__name__)
            print("FAIL   ", check.__name__, type(error).__name__, str(error)[:2000], flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
