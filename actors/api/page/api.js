/** Calls of the server's API: the models, and the stream of an answer. */

/** An answer of the server that is no success. `status` 0: there was no answer. `retryAfter` is in seconds. */
export class ApiError extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

async function call(path, key, init = {}) {
  const headers = new Headers(init.headers);
  if (key) headers.set("authorization", `Bearer ${key}`);
  let response;
  try {
    response = await fetch(path, { ...init, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(key && !isHeaderText(key) ? "The API key has characters that no key has." : "The server cannot be reached.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

const isHeaderText = (text) => /^[\x20-\x7e]*$/.test(text);

/** The error of a response: the server's own message if it has one. */
async function refusal(response) {
  const text = await response.text().catch(() => "");
  let message;
  try {
    message = messageOf(JSON.parse(text));
  } catch {
    message = text.trim().slice(0, 500);
  }
  const seconds = Number.parseFloat(response.headers.get("retry-after") ?? "");
  const retryAfter = Number.isFinite(seconds) ? seconds : null;
  return new ApiError(message || `The server answered with status ${response.status}.`, response.status, retryAfter);
}

function messageOf(body) {
  const error = body?.error ?? body;
  return typeof error === "string" ? error : String(error?.message ?? "");
}

/** The models in the order of the server, each as `/v1/models` describes it. */
export async function listModels(key) {
  const response = await call("v1/models", key);
  const body = await response.json();
  return Array.isArray(body?.data) ? body.data : [];
}

/** The chunks of a streamed answer. An error inside the stream is thrown as an `ApiError`. */
export async function* streamChat(body, key, signal) {
  const response = await call("v1/chat/completions", key, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const line of lines(response.body)) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(messageOf(chunk) || "The answer ended with an error.", Number(chunk.error.code) || 0);
    yield chunk;
  }
  throw new ApiError("The connection was closed before the answer was complete.");
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  try {
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
    if (rest) yield rest;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection was lost before the answer was complete.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
