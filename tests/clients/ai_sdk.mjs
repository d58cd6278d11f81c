// Runs the AI SDK against `cuelight serve`: text, streams, structured answers, calls of tools, in each protocol that it speaks.
//
// usage: node ai_sdk.mjs URL [KEY]      needs: npm install ai @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic zod

import assert from "node:assert";
import { generateText, Output, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const [url, apiKey = "none"] = process.argv.slice(2);
const server = { baseURL: `${url}/v1`, apiKey };
const openai = createOpenAI(server);
const models = {
  "chat completions": openai.chat("default"),
  responses: openai("default"),
  compatible: createOpenAICompatible({ ...server, name: "cuelight", includeUsage: true, supportsStructuredOutputs: true })("default"),
  anthropic: createAnthropic(server)("default"),
};
const person = Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) });
const weather = tool({
  description: "Weather of a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
});
const asksForWeather = { tools: { weather }, prompt: "What is the weather in Rome? Call the tool.", maxOutputTokens: 100 };

async function all(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

async function check(model) {
  const said = await generateText({ model, prompt: "Say hi.", maxOutputTokens: 20 });
  assert(said.text && said.usage.outputTokens > 0);
  const counted = streamText({ model, prompt: "Count to five.", maxOutputTokens: 40 });
  assert((await all(counted.textStream)).length > 1);
  assert((await counted.usage).outputTokens > 1);
  const bob = { model, output: person, prompt: "Bob is 5 years old.", maxOutputTokens: 100 };
  assert.deepEqual((await generateText(bob)).output, { name: "Bob", age: 5 });
  assert.deepEqual((await all(streamText(bob).partialOutputStream)).at(-1), { name: "Bob", age: 5 });
  for (const toolChoice of ["auto", "required"]) {
    const called = await generateText({ model, toolChoice, ...asksForWeather });
    assert.equal(called.toolResults[0].output, "sunny in Rome");
    const kinds = (await all(streamText({ model, toolChoice, ...asksForWeather }).fullStream)).map((part) => part.type);
    assert(kinds.includes("tool-result") && kinds.at(-1) === "finish", kinds);
  }
}

let failed = false;
for (const [name, model] of Object.entries(models)) {
  try {
    await check(model);
    console.log("ok  ", name);
  } catch (error) {
    failed = true;
    console.log("FAIL", name, error);
  }
}
process.exit(failed ? 1 : 0);
