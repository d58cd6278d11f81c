/** One answer: the request for it, and the message that its chunks become. */

import { ApiError, streamChat } from "./api.js";

/** The body of the request for an answer to `messages`. Settings that are empty are left to the server. */
export function requestBody(model, messages, settings) {
  const body = { model, messages: history(messages, settings.system), stream: true };
  body.stream_options = { include_usage: true, continuous_usage_stats: true };
  body.return_progress = true;
  for (const name of ["temperature", "top_p", "max_tokens"]) {
    const number = Number.parseFloat(settings[name]);
    if (Number.isFinite(number)) body[name] = number;
  }
  if (settings.reasoning_effort) body.reasoning_effort = settings.reasoning_effort;
  return body;
}

/** What the model sees. Answers without text are left out, and roles alternate, as many chat templates require. */
function history(messages, system) {
  const seen = system?.trim() ? [{ role: "system", content: system }] : [];
  for (const message of messages) {
    const last = seen.at(-1);
    const content = parts(message);
    if (!content.length) continue;
    if (last?.role === message.role) last.content = joined(last.content, content);
    else seen.push({ role: message.role, content });
  }
  return seen;
}

/** A text, or a list of images, audio and a text. */
function parts({ content, images = [], audio = [] }) {
  const shown = images.map((url) => ({ type: "image_url", image_url: { url } }));
  const heard = audio.map((url) => ({ type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format: "wav" } }));
  const media = [...shown, ...heard];
  if (!media.length) return content ?? "";
  return content ? [...media, { type: "text", text: content }] : media;
}

function joined(one, other) {
  if (typeof one === "string" && typeof other === "string") return `${one}\n\n${other}`;
  const list = (content) => (typeof content === "string" ? [{ type: "text", text: content }] : content);
  return [...list(one), ...list(other)];
}

export function emptyAnswer(model) {
  const made = { role: "assistant", content: "", reasoning: "", toolCalls: [], model };
  return { ...made, finish: null, stats: null, error: null, progress: null };
}

/** Fills `message` from the stream and calls `onChange` after each chunk. Throws for a missing key only. */
export async function generate(message, body, key, signal, onChange) {
  const clock = { start: performance.now(), first: null, last: null, thoughtUntil: null };
  try {
    for await (const chunk of streamChat(body, key, signal)) {
      apply(message, chunk, clock);
      onChange();
    }
  } catch (error) {
    if (error.status === 401) throw error;
    if (error.name === "AbortError") message.finish = "stopped";
    else message.error = describe(error);
  } finally {
    message.progress = null;
    message.stats = { ...message.stats, ...times(message, clock) };
  }
}

function describe(error) {
  const message = error instanceof ApiError ? error.message : `The answer could not be read: ${error.message}`;
  return { message, status: error.status ?? 0, retryAfter: error.retryAfter ?? null };
}

function apply(message, chunk, clock) {
  if (chunk.usage) message.stats = { ...message.stats, ...counts(chunk.usage) };
  const choice = chunk.choices?.[0];
  if (!choice) return;
  message.progress = chunk.prompt_progress ?? null;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
  if (reasoning) message.reasoning += reasoning;
  if (content) message.content += content;
  for (const call of calls ?? []) addToolCall(message.toolCalls, call);
  if (choice.finish_reason) message.finish = choice.finish_reason;
  if (reasoning || content || calls?.length) {
    clock.last = performance.now();
    clock.first ??= clock.last;
    if (!reasoning) clock.thoughtUntil ??= clock.last;
    message.reasoningSeconds = ((clock.thoughtUntil ?? clock.last) - clock.start) / 1000;
  }
}

/** A call arrives in fragments: first its name, then its arguments piece by piece. */
function addToolCall(calls, { index = calls.length, id, function: fragment }) {
  let call = calls.find((known) => known.index === index);
  if (!call) calls.push((call = { index, id: "", name: "", arguments: "" }));
  call.id ||= id ?? "";
  call.name += fragment?.name ?? "";
  call.arguments += fragment?.arguments ?? "";
}

function counts(usage) {
  return {
    promptTokens: usage.prompt_tokens,
    cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
    answerTokens: usage.completion_tokens,
  };
}

/** Seconds to the first token, and tokens per second after it. */
function times(message, { start, first, last }) {
  if (first === null) return {};
  const tokens = (message.stats?.answerTokens ?? 0) - 1;
  const seconds = (last - first) / 1000;
  return {
    firstTokenSeconds: (first - start) / 1000,
    tokensPerSecond: tokens > 0 && seconds > 0 ? tokens / seconds : null,
  };
}
