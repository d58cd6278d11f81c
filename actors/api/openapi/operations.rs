//! The routes that the document describes. Routes without `/v1` that clients with another base URL use are left out.

use utoipa::openapi::HttpMethod;
use utoipa::openapi::HttpMethod::{Delete, Get, Post};

use super::bodies::{
    ANTHROPIC, ANTHROPIC_BATCH, ANTHROPIC_COUNT, BATCH, CHAT, CLASSIFY, COMPLETION, DETOKENIZE, EMBEDDING, FILE,
    INFILL, LLAMA_COMPLETION, LORA, LORA_NAME, MODEL_NAME, OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE, OLLAMA_PULL, RERANK, RESPONSE, SCORE, TEI_EMBED, TEI_PREDICT, TOKENIZE, TRANSCRIPTION,
};

/// The form of a successful answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Json,
    /// Server-sent events with `stream`.
    JsonOrEvents,
    /// Lines of JSON unless `stream` is false.
    JsonOrLines,
    Text,
}

/// A route and its method.
pub(super) struct Route {
    pub method: HttpMethod,
    pub path: &'static str,
    pub tag: &'static str,
    pub summary: &'static str,
    /// The name of the schema of its request.
    pub body: Option<&'static str>,
    /// The content type of its request.
    pub content: &'static str,
    pub answer: Answer,
    /// Whether a server with keys requires one.
    pub needs_key: bool,
}

impl Route {
    /// A name that no other route has: "post_v1_responses_id_cancel".
    pub fn id(&self) -> String {
        let method = match self.method {
            Post => "post",
            Delete => "delete",
            _ => "get",
        };
        let words = self.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
    }

    /// The names in braces of the path.
    pub fn path_parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name)
    }
}

const fn get(path: &'static str, tag: &'static str, summary: &'static str) -> Route {
    Route { method: Get, path, tag, summary, body: None, content: JSON, answer: Json, needs_key: true }
}

const fn post(
    path: &'static str,
    tag: &'static str,
    body: &'static str,
    answer: Answer,
    summary: &'static str,
) -> Route {
    Route { method: Post, path, tag, summary, body: Some(body), content: JSON, answer, needs_key: true }
}

const fn open(path: &'static str, answer: Answer, summary: &'static str) -> Route {
    Route { method: Get, path, tag: OPERATION, summary, body: None, content: JSON, answer, needs_key: false }
}

const JSON: &str = "application/json";
const FORM: &str = "multipart/form-data";

const OPENAI: &str = "OpenAI";
const ANTHROPICS: &str = "Anthropic";
const OLLAMA: &str = "Ollama";
const LLAMA_CPP: &str = "llama.cpp";
const RERANKING: &str = "Reranking";
const MODELS: &str = "Models";
const OPERATION: &str = "Operation";

use Answer::{Json, JsonOrEvents, JsonOrLines, Text};

/// All routes.
pub(super) const OPERATIONS: &[Route] = &[
    post("/v1/chat/completions", OPENAI, CHAT, JsonOrEvents, "Answers a conversation."),
    post("/v1/chat/completions/input_tokens", OPENAI, CHAT, Json, "Counts the tokens of a conversation's prompt."),
    post("/v1/chat/completions/render", OPENAI, CHAT, Json, "Renders the prompt of a conversation as token ids."),
    post("/v1/completions", OPENAI, COMPLETION, JsonOrEvents, "Continues a text, or scores a prompt."),
    post("/v1/embeddings", OPENAI, EMBEDDING, Json, "Returns a vector for each text."),
    Route {
        content: FORM,
        ..post("/v1/audio/transcriptions", OPENAI, TRANSCRIPTION, JsonOrEvents, "Writes what is said in an audio file.")
    },
    Route {
        content: FORM,
        ..post("/v1/audio/translations", OPENAI, TRANSCRIPTION, JsonOrEvents, "Writes the same in English.")
    },
    post("/v1/rerank", RERANKING, RERANK, Json, "Orders documents by relevance; with texts as in TEI."),
    post("/rerank", RERANKING, RERANK, Json, "The same."),
    post("/v1/reranking", RERANKING, RERANK, Json, "The same."),
    post("/v2/rerank", RERANKING, RERANK, Json, "The same, with Cohere's defaults."),
    post("/v1/score", RERANKING, SCORE, Json, "Rates how relevant or similar texts are, pair by pair."),
    post("/score", RERANKING, SCORE, Json, "The same."),
    post("/embed", RERANKING, TEI_EMBED, Json, "Returns a vector for each text, as in Text Embeddings Inference."),
    post("/classify", RERANKING, CLASSIFY, Json, "Tells the class of each text, as in vLLM."),
    post("/v1/classify", RERANKING, CLASSIFY, Json, "The same."),
    post("/predict", RERANKING, TEI_PREDICT, Json, "Tells the classes of texts, as in Text Embeddings Inference."),
    post("/v1/responses", OPENAI, RESPONSE, JsonOrEvents, "Answers a conversation with the Responses API."),
    post("/v1/responses/input_tokens", OPENAI, RESPONSE, Json, "Counts the tokens of such a request's prompt."),
    get("/v1/responses/{id}", OPENAI, "Returns a stored response."),
    Route { method: Delete, ..get("/v1/responses/{id}", OPENAI, "Deletes a stored response.") },
    get("/v1/responses/{id}/input_items", OPENAI, "Returns the input items of a stored response."),
    Route {
        method: Post,
        ..get("/v1/responses/{id}/cancel", OPENAI, "Is refused, because no response runs in the background.")
    },
    get("/v1/files", OPENAI, "Lists the files of requests and answers."),
    Route { content: FORM, ..post("/v1/files", OPENAI, FILE, Json, "Keeps a file of requests.") },
    get("/v1/files/{id}", OPENAI, "Describes a file."),
    Route { method: Delete, ..get("/v1/files/{id}", OPENAI, "Deletes a file.") },
    Route { answer: Text, ..get("/v1/files/{id}/content", OPENAI, "Returns the content of a file.") },
    get("/v1/batches", OPENAI, "Lists the batches."),
    post("/v1/batches", OPENAI, BATCH, Json, "Answers the requests of a file, after those of other clients."),
    get("/v1/batches/{id}", OPENAI, "Describes a batch."),
    Route { method: Post, ..get("/v1/batches/{id}/cancel", OPENAI, "Cancels a batch.") },
    get("/v1/models", OPENAI, "Lists the models."),
    get("/v1/models/{id}", OPENAI, "Describes a model."),
    post("/v1/messages", ANTHROPICS, ANTHROPIC, JsonOrEvents, "Answers a conversation in Anthropic's protocol."),
    post("/v1/messages/count_tokens", ANTHROPICS, ANTHROPIC_COUNT, Json, "Counts the tokens of such a conversation."),
    get("/v1/messages/batches", ANTHROPICS, "Lists the batches."),
    post(
        "/v1/messages/batches",
        ANTHROPICS,
        ANTHROPIC_BATCH,
        Json,
        "Answers many conversations, after those of others.",
    ),
    get("/v1/messages/batches/{id}", ANTHROPICS, "Describes a batch."),
    Route { method: Delete, ..get("/v1/messages/batches/{id}", ANTHROPICS, "Deletes a batch and its answers.") },
    Route { method: Post, ..get("/v1/messages/batches/{id}/cancel", ANTHROPICS, "Cancels a batch.") },
    Route {
        answer: Text,
        ..get("/v1/messages/batches/{id}/results", ANTHROPICS, "Returns the answers, one per line.")
    },
    get("/api/version", OLLAMA, "Returns a version of Ollama that has this protocol."),
    get("/api/tags", OLLAMA, "Lists the models."),
    get("/api/ps", OLLAMA, "Lists the loaded models."),
    post("/api/show", OLLAMA, MODEL_NAME, Json, "Describes a model."),
    post("/api/chat", OLLAMA, OLLAMA_CHAT, JsonOrLines, "Answers a conversation."),
    post("/api/generate", OLLAMA, OLLAMA_GENERATE, JsonOrLines, "Continues a text."),
    post("/api/embed", OLLAMA, OLLAMA_EMBED, Json, "Returns a vector for each text."),
    post("/api/embeddings", OLLAMA, OLLAMA_EMBEDDINGS, Json, "Returns the vector of a text, not normalized."),
    post("/api/pull", OLLAMA, OLLAMA_PULL, JsonOrLines, "Downloads a model."),
    Route { method: Delete, ..post("/api/delete", OLLAMA, MODEL_NAME, Json, "Deletes a model.") },
    post("/completion", LLAMA_CPP, LLAMA_COMPLETION, JsonOrEvents, "Continues a text."),
    post("/infill", LLAMA_CPP, INFILL, JsonOrEvents, "Fills a gap in a text."),
    get("/props", LLAMA_CPP, "Returns the properties of a loaded model."),
    get("/slots", LLAMA_CPP, "Lists the sequences that may run."),
    post("/apply-template", LLAMA_CPP, CHAT, Json, "Renders the prompt of a conversation."),
    post("/tokenize", LLAMA_CPP, TOKENIZE, Json, "Converts text to token ids."),
    post("/detokenize", LLAMA_CPP, DETOKENIZE, Json, "Converts token ids to text."),
    get("/tokenizer_info", LLAMA_CPP, "Returns special tokens and the chat template, as in vLLM."),
    get("/models", MODELS, "Returns state and memory of each model."),
    post("/models/load", MODELS, MODEL_NAME, Json, "Loads a model."),
    post("/models/unload", MODELS, MODEL_NAME, Json, "Unloads a model."),
    post("/v1/load_lora_adapter", MODELS, LORA, Text, "Loads an adapter of the model."),
    post("/v1/unload_lora_adapter", MODELS, LORA_NAME, Text, "Unloads an adapter."),
    get("/lora-adapters", MODELS, "Lists the loaded adapters."),
    open("/health", Json, "Says whether the process works."),
    open("/ping", Json, "Says whether the process works."),
    open("/ready", Json, "Says whether the server should receive requests."),
    open("/version", Json, "Returns the server's version."),
    open("/metrics", Text, "Returns the metrics for Prometheus."),
    open("/openapi.json", Json, "Returns this document."),
];
