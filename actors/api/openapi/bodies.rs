//! The fields of requests.

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Integer,
    Number,
    Boolean,
    Object,
    List,
    /// A value of several types.
    Any,
}

/// A field of a request.
pub(super) struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub meaning: &'static str,
}

/// A request: its fields in groups that several requests have.
pub(super) struct Body {
    pub name: &'static str,
    groups: &'static [&'static [Field]],
    pub required: &'static [&'static str],
}

impl Body {
    /// All fields.
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.groups.iter().flat_map(|group| group.iter())
    }
}

const fn field(name: &'static str, kind: Kind, meaning: &'static str) -> Field {
    Field { name, kind, meaning }
}

use Kind::{Any, Boolean, Integer, List, Number, Object, Text};

pub(super) const CHAT: &str = "ChatCompletionRequest";
pub(super) const COMPLETION: &str = "CompletionRequest";
pub(super) const EMBEDDING: &str = "EmbeddingRequest";
pub(super) const TRANSCRIPTION: &str = "TranscriptionRequest";
pub(super) const FILE: &str = "FileRequest";
pub(super) const BATCH: &str = "BatchRequest";
pub(super) const RERANK: &str = "RerankRequest";
pub(super) const SCORE: &str = "ScoreRequest";
pub(super) const TEI_EMBED: &str = "TeiEmbedRequest";
pub(super) const CLASSIFY: &str = "ClassifyRequest";
pub(super) const TEI_PREDICT: &str = "TeiPredictRequest";
pub(super) const RESPONSE: &str = "ResponseRequest";
pub(super) const ANTHROPIC: &str = "MessageRequest";
pub(super) const ANTHROPIC_COUNT: &str = "CountTokensRequest";
pub(super) const ANTHROPIC_BATCH: &str = "MessageBatchRequest";
pub(super) const OLLAMA_CHAT: &str = "OllamaChatRequest";
pub(super) const OLLAMA_GENERATE: &str = "OllamaGenerateRequest";
pub(super) const OLLAMA_EMBED: &str = "OllamaEmbedRequest";
pub(super) const OLLAMA_EMBEDDINGS: &str = "OllamaEmbeddingsRequest";
pub(super) const OLLAMA_PULL: &str = "OllamaPullRequest";
pub(super) const INFILL: &str = "InfillRequest";
pub(super) const LLAMA_COMPLETION: &str = "LlamaCompletionRequest";
pub(super) const TOKENIZE: &str = "TokenizeRequest";
pub(super) const DETOKENIZE: &str = "DetokenizeRequest";
pub(super) const MODEL_NAME: &str = "ModelRequest";
pub(super) const LORA: &str = "LoadAdapterRequest";
pub(super) const LORA_NAME: &str = "AdapterRequest";

/// The schemas of all requests.
pub(super) const BODIES: &[Body] = &[
    Body {
        name: CHAT,
        groups: &[MODEL, CONVERSATION, CHAT_ONLY, LIMITS, SAMPLING, EXTRA_SAMPLERS, REQUEST],
        required: &["messages"],
    },
    Body { name: COMPLETION, groups: &[MODEL, TEXT, LIMITS, SAMPLING, EXTRA_SAMPLERS, REQUEST], required: &["prompt"] },
    Body { name: EMBEDDING, groups: &[MODEL, TO_VECTORS], required: &["input"] },
    Body { name: TRANSCRIPTION, groups: &[MODEL, AUDIO_FILE], required: &["file"] },
    Body { name: FILE, groups: &[REQUESTS_FILE], required: &["file", "purpose"] },
    Body { name: BATCH, groups: &[BATCHED], required: &["input_file_id", "endpoint", "completion_window"] },
    Body { name: RERANK, groups: &[MODEL, TO_ORDER, SCORING], required: &["query"] },
    Body { name: SCORE, groups: &[MODEL, TO_SCORES, SCORING], required: &["text_1", "text_2"] },
    Body { name: TEI_EMBED, groups: &[MODEL, TEI_TO_VECTORS], required: &["inputs"] },
    Body { name: CLASSIFY, groups: &[MODEL, TO_CLASSES, SCORING], required: &["input"] },
    Body { name: TEI_PREDICT, groups: &[MODEL, TEI_TO_CLASSES], required: &["inputs"] },
    Body { name: RESPONSE, groups: &[MODEL, RESPONSES, NUCLEUS], required: &["input"] },
    Body {
        name: ANTHROPIC,
        groups: &[MODEL, ANTHROPIC_CONVERSATION, ANTHROPIC_ONLY, NUCLEUS],
        required: &["messages", "max_tokens"],
    },
    Body { name: ANTHROPIC_COUNT, groups: &[MODEL, ANTHROPIC_CONVERSATION], required: &["messages"] },
    Body { name: ANTHROPIC_BATCH, groups: &[MESSAGE_BATCH], required: &["requests"] },
    Body { name: OLLAMA_CHAT, groups: &[MODEL, OLLAMA, OLLAMA_CONVERSATION], required: &["model", "messages"] },
    Body { name: OLLAMA_GENERATE, groups: &[MODEL, OLLAMA, OLLAMA_TEXT], required: &["model"] },
    Body { name: OLLAMA_EMBED, groups: &[MODEL, OLLAMA_TO_VECTORS, KEEP], required: &["model", "input"] },
    Body { name: OLLAMA_EMBEDDINGS, groups: &[MODEL, OLLAMA_TO_VECTOR, KEEP], required: &["model", "prompt"] },
    Body { name: OLLAMA_PULL, groups: &[MODEL, PULL], required: &["model"] },
    Body {
        name: INFILL,
        groups: &[MODEL, GAP, EXTRA_SAMPLERS, LLAMA_CPP],
        required: &["input_prefix", "input_suffix"],
    },
    Body { name: LLAMA_COMPLETION, groups: &[MODEL, PLAIN, EXTRA_SAMPLERS, LLAMA_CPP], required: &["prompt"] },
    Body { name: TOKENIZE, groups: &[MODEL, TO_TOKENS], required: &[] },
    Body { name: DETOKENIZE, groups: &[MODEL, FROM_TOKENS], required: &["tokens"] },
    Body { name: MODEL_NAME, groups: &[MODEL], required: &["model"] },
    Body { name: LORA, groups: &[ADAPTER_NAME, ADAPTER_PATH], required: &["lora_name", "lora_path"] },
    Body { name: LORA_NAME, groups: &[ADAPTER_NAME], required: &["lora_name"] },
];

const MODEL: &[Field] = &[field("model", Text, "The name of the model; default: the first one of the server.")];

const ADAPTER_NAME: &[Field] = &[field("lora_name", Text, "The name of the adapter.")];

const ADAPTER_PATH: &[Field] = &[field("lora_path", Text, "Its GGUF file or PEFT directory on the server.")];

const CONVERSATION: &[Field] = &[
    field(
        "messages",
        List,
        "The conversation, with roles system, developer, user, assistant and tool; content may have parts of type image_url, input_audio and audio_url.",
    ),
    field("tools", List, "The functions and custom tools that the model may call."),
    field("tool_choice", Any, "auto, none, required, a named tool, or allowed_tools."),
    field("parallel_tool_calls", Boolean, "Whether an answer may have several calls; default true."),
    field("documents", List, "Documents for the chat template."),
    field("chat_template_kwargs", Object, "Variables of the chat template."),
    field("reasoning_effort", Text, "How much the model reasons; none turns it off."),
    field("add_generation_prompt", Boolean, "Whether the prompt ends with the start of an answer; default true."),
    field("continue_final_message", Boolean, "Whether the model continues the last message; default false."),
];

const LISTED_LOGPROBS: Field =
    field("logprob_token_ids", List, "1 to 128 token ids that are the alternatives for each token; needs logprobs.");

const CHAT_ONLY: &[Field] = &[
    field("max_completion_tokens", Integer, "Most tokens to generate, reasoning included."),
    field("thinking_token_budget", Integer, "Most tokens of reasoning."),
    field("include_reasoning", Boolean, "Whether the answer contains the reasoning; default true."),
    field("top_logprobs", Integer, "Number of alternatives for each token, 0 to 20; needs logprobs."),
    field("logprobs", Boolean, "Whether to return log-probabilities."),
    LISTED_LOGPROBS,
];

const TEXT: &[Field] = &[
    field("prompt", Any, "A text, a list of texts, a list of token ids, or a list of such lists."),
    field("suffix", Text, "The text after a gap; the prompt is the text before it."),
    field("echo", Boolean, "Whether the prompt comes before the answer."),
    field("logprobs", Integer, "Number of alternatives for each token, 0 to 20."),
    LISTED_LOGPROBS,
    field("best_of", Integer, "Number of answers of which the n most likely are returned."),
];

const AUDIO_FILE: &[Field] = &[
    field("file", Text, "The audio file: WAV, MP3, FLAC, Ogg Vorbis, Opus, WebM or AAC."),
    field("language", Text, "The language that is spoken."),
    field("prompt", Text, "Text before it, for spelling and style."),
    field("response_format", Text, "json, text, verbose_json, srt or vtt."),
    field("timestamp_granularities[]", List, "With verbose_json: segment, which is the default, word, or both."),
    field(
        "temperature",
        Number,
        "0 for the most likely words, which is the default; Whisper decodes unusable text again at higher ones.",
    ),
    field("max_tokens", Integer, "Most tokens of the transcript."),
    field("stream", Boolean, "Send events while the transcript is written."),
];

const REQUESTS_FILE: &[Field] = &[
    field("file", Text, "The requests: a JSON object per line, with custom_id, method, url and body."),
    field("purpose", Text, "batch."),
    field("expires_after[anchor]", Text, "created_at."),
    field("expires_after[seconds]", Integer, "How long the file is kept, 3600 to 2592000; default 2592000."),
];

const BATCHED: &[Field] = &[
    field("input_file_id", Text, "The file of requests."),
    field("endpoint", Text, "The route of all its requests."),
    field("completion_window", Text, "24h."),
    field("metadata", Object, "Repeated in the batch."),
];

const MESSAGE_BATCH: &[Field] =
    &[field("requests", List, "Objects with custom_id and params, the fields of a request to /v1/messages.")];

const TO_VECTORS: &[Field] = &[
    field("input", Any, "A text, a list of texts, a list of token ids, or a list of such lists."),
    field("encoding_format", Text, "float, or base64 of float32 values in little-endian order; default float."),
    field("dimensions", Integer, "Number of leading values to keep; the vector is scaled to length 1 again."),
    field("truncate_prompt_tokens", Integer, "Cuts texts after this many tokens; -1 cuts at the context length."),
    field("priority", Integer, "Lower goes first."),
    field(
        "kv_transfer_params",
        Object,
        "Lets one server compute the prompt and another the answer, with vLLM's names.",
    ),
    field("user", Text, "The end user."),
    field("safety_identifier", Text, "The end user."),
];

const TO_ORDER: &[Field] = &[
    field("query", Text, "The text that documents are compared with."),
    field("documents", List, "Texts, or objects with a text."),
    field("top_n", Integer, "Return this many of the most relevant documents; 0, the default, returns all."),
    field("return_documents", Boolean, "Whether results have their documents; default true, false at /v2/rerank."),
    field("max_tokens_per_doc", Integer, "Documents are cut after this many tokens; default 4096 at /v2/rerank."),
    field("texts", List, "The documents in the protocol of Text Embeddings Inference, whose answer is a bare list."),
    field("raw_scores", Boolean, "With texts: whether scores are logits; default false."),
    field("return_text", Boolean, "With texts: whether results have their texts; default false."),
    field("truncate", Boolean, "With texts: whether those that do not fit the context are cut; default false."),
];

const TO_SCORES: &[Field] = &[
    field("text_1", Any, "A text, or a list of texts; also named queries."),
    field("text_2", Any, "A text, or a list of texts; also named documents."),
];

const SCORING: &[Field] = &[
    field("truncate_prompt_tokens", Integer, "Cuts texts after this many tokens; -1 cuts at the context length."),
    field(
        "use_activation",
        Boolean,
        "Whether scores of rerankers and classifiers are from 0 to 1, and not logits; default true.",
    ),
    field("priority", Integer, "Lower goes first."),
    field("user", Text, "The end user."),
    field("safety_identifier", Text, "The end user."),
];

const TO_CLASSES: &[Field] = &[field("input", Any, "A text, a list of texts, or token ids.")];

const TEI_TO_CLASSES: &[Field] = &[
    field("inputs", Any, "A text, a list of two texts, or a list of lists of one or two texts."),
    field("raw_scores", Boolean, "Whether scores are logits; default false."),
    field("truncate", Boolean, "Whether texts that do not fit the context are cut; default false."),
];

const TEI_TO_VECTORS: &[Field] = &[
    field("inputs", Any, "A text, or a list of texts."),
    field("normalize", Boolean, "Whether vectors have length 1; default true."),
    field("truncate", Boolean, "Whether texts that do not fit the context are cut; default false."),
    field("dimensions", Integer, "Number of leading values to keep."),
];

const OLLAMA_TO_VECTORS: &[Field] = &[
    field("input", Any, "A text, or a list of texts."),
    field("truncate", Boolean, "Whether texts are cut at the context length; default true."),
    field("dimensions", Integer, "Number of leading values to keep; the vector is scaled to length 1 again."),
];

const OLLAMA_TO_VECTOR: &[Field] = &[field("prompt", Text, "The text.")];

const KEEP: &[Field] = &[
    field("keep_alive", Any, "Seconds, or a duration such as 5m, until the model is unloaded."),
    field("options", Object, "Accepted without effect."),
];

const LIMITS: &[Field] = &[
    field("max_tokens", Integer, "Most tokens to generate."),
    field("n_predict", Integer, "llama.cpp's name of max_tokens; -1 is the rest of the context."),
    field("n", Integer, "Number of answers, 1 to 128."),
    field("stop", Any, "A text, or a list of texts, before which the answer ends."),
    field("stop_token_ids", List, "Token ids that end the answer."),
    field("bad_words", Any, "A text, or a list of texts, that never appear in the answer."),
    field("allowed_token_ids", List, "The only token ids that the answer may have."),
    field("include_stop_str_in_output", Boolean, "Whether the answer contains the text that ended it."),
    field("ignore_eos", Boolean, "Whether to continue after the end-of-sequence token."),
    field("timeout", Number, "Seconds for the whole request."),
];

const NUCLEUS: &[Field] = &[
    field("temperature", Number, "0 to 2; 0 always picks the most likely token."),
    field("top_p", Number, "Keep the most likely tokens that have this probability together; 0 to 1."),
    field("stream", Boolean, "Whether to send the answer while it is generated."),
];

const SAMPLING: &[Field] = &[
    field("temperature", Number, "0 to 2; 0 always picks the most likely token."),
    field("top_p", Number, "Keep the most likely tokens that have this probability together; 0 to 1."),
    field("top_k", Integer, "Keep this many of the most likely tokens; 0 and -1 turn it off."),
    field("min_p", Number, "Drop tokens below this part of the highest probability; 0 to 1."),
    field("typical_p", Number, "Keep the most typical tokens that have this probability together; above 0, up to 1."),
    field("presence_penalty", Number, "-2 to 2."),
    field("frequency_penalty", Number, "-2 to 2."),
    field("repetition_penalty", Number, "0.01 to 100; 1 turns it off."),
    field("repeat_penalty", Number, "llama.cpp's name of repetition_penalty; repeat_last_n: 0 turns it off."),
    field("logit_bias", Object, "Token ids with a bias of -100 to 100."),
    field("seed", Integer, "The same seed gives the same text."),
];

const EXTRA_SAMPLERS: &[Field] = &[
    field(
        "dynatemp_range",
        Number,
        "How far the temperature may move from the stated one, by the entropy; 0 turns it off.",
    ),
    field("dynatemp_exponent", Number, "The power of the entropy's share of its maximum; default 1."),
    field("top_n_sigma", Number, "Keep tokens within this many standard deviations of the largest logit."),
    field("xtc_probability", Number, "How often the most likely tokens are removed, except the least likely of them."),
    field(
        "xtc_threshold",
        Number,
        "The probability of a token from which on xtc_probability may remove it; default 0.1.",
    ),
    field("dry_multiplier", Number, "The penalty on a token that would continue a repetition; 0 turns it off."),
    field("dry_base", Number, "The factor of the penalty for each further token of a repetition; default 1.75."),
    field("dry_allowed_length", Integer, "Shorter repetitions are not penalised; default 2."),
    field("dry_penalty_last_n", Integer, "The last tokens in which repetitions are searched for; -1 for all."),
    field("dry_sequence_breakers", List, "Texts at which repetitions end."),
];

const REQUEST: &[Field] = &[
    field("response_format", Object, "text, json_object or json_schema; the answer matches it."),
    field("structured_outputs", Object, "One of json, regex, choice, grammar, json_object; the answer matches it."),
    field("grammar", Text, "A grammar in llama.cpp's notation that the answer matches."),
    field("json_schema", Object, "A JSON schema that the answer matches."),
    field("stream", Boolean, "Whether to send the answer while it is generated."),
    field("stream_options", Object, "include_usage and continuous_usage_stats."),
    field("return_progress", Boolean, "Whether a stream reports how much of the prompt is computed."),
    field("timings_per_token", Boolean, "Whether to add the times of the answer, in a stream to every chunk."),
    field("skip_special_tokens", Boolean, "Whether to leave special tokens out of the text; default true."),
    field("add_special_tokens", Boolean, "Whether to add the special tokens that the model expects to the prompt."),
    field("truncate_prompt_tokens", Integer, "Keeps this many tokens from the end of a prompt; -1: as many as fit."),
    field("return_token_ids", Boolean, "Whether to return the token ids of prompt and answer."),
    field("return_tokens_as_token_ids", Boolean, "Whether log-probabilities name tokens as token_id:123."),
    field("speculation", Boolean, "Whether several tokens may be computed in one step; the text is the same."),
    field("prediction", Object, "content: the expected answer; where it is right, several tokens take one step."),
    field("priority", Integer, "Lower goes first."),
    field("user", Text, "The end user."),
    field("safety_identifier", Text, "The end user."),
    field("cache_salt", Text, "Cached prefixes are shared only between requests with the same salt."),
    field("metadata", Object, "Accepted without effect."),
    field("store", Boolean, "Accepted without effect."),
];

const RESPONSES: &[Field] = &[
    field("input", Any, "A text, or a list of items."),
    field("instructions", Text, "The first system message."),
    field("max_output_tokens", Integer, "Most tokens to generate, reasoning included."),
    field("tools", List, "The functions and custom tools that the model may call."),
    field("tool_choice", Any, "auto, none, required, a named tool, or allowed_tools."),
    field("parallel_tool_calls", Boolean, "Whether an answer may have several calls; default true."),
    field("text", Object, "format: text, json_object or json_schema; the answer matches it."),
    field("reasoning", Object, "effort: how much the model reasons; none turns it off."),
    field("include", List, "message.output_text.logprobs and reasoning.encrypted_content."),
    field("top_logprobs", Integer, "Number of alternatives for each token, 0 to 20."),
    field("store", Boolean, "Whether the response is stored; default true."),
    field("previous_response_id", Text, "The stored response that this one continues."),
    field("metadata", Object, "Repeated in the response."),
    field("user", Text, "The end user."),
];

const ANTHROPIC_CONVERSATION: &[Field] = &[
    field("messages", List, "The conversation, with roles user and assistant; content may have blocks of type image."),
    field("system", Any, "A text, or a list of text blocks."),
    field("tools", List, "Tools with a name and an input_schema."),
    field("tool_choice", Object, "auto, any, tool or none; with disable_parallel_tool_use at most one call."),
    field("thinking", Object, "enabled with budget_tokens, adaptive, or disabled."),
];

const ANTHROPIC_ONLY: &[Field] = &[
    field("max_tokens", Integer, "Most tokens to generate."),
    field("stop_sequences", List, "Texts before which the answer ends."),
    field("top_k", Integer, "Keep this many of the most likely tokens."),
    field("output_config", Object, "effort, and format: a JSON schema that the answer matches."),
    field("metadata", Object, "user_id: the end user."),
    field("cache_salt", Text, "Cached prefixes are shared only between requests with the same salt."),
];

const OLLAMA: &[Field] = &[
    field("format", Any, "json, or a JSON schema that the answer matches."),
    field("think", Any, "true, false, or how much the model reasons."),
    field("keep_alive", Any, "Seconds, or a duration such as 5m, until the model is unloaded."),
    field("logprobs", Boolean, "Whether to return log-probabilities."),
    field("top_logprobs", Integer, "Number of alternatives for each token, 0 to 20."),
    field("stream", Boolean, "Whether to send the answer while it is generated; default true."),
    field("options", Object, "num_predict, temperature, top_k, top_p, min_p, seed, stop, and the penalties."),
];

const OLLAMA_CONVERSATION: &[Field] = &[
    field(
        "messages",
        List,
        "The conversation, with roles system, user, assistant and tool; a message may have images in base64.",
    ),
    field("tools", List, "The functions that the model may call."),
];

const OLLAMA_TEXT: &[Field] = &[
    field("prompt", Text, "The message of the user; with raw, the text to continue."),
    field("images", List, "Images before the prompt, in base64."),
    field("suffix", Text, "The text after a gap; the prompt is the text before it."),
    field("system", Text, "The system message."),
    field("raw", Boolean, "Whether to continue the prompt as it is, without the chat template."),
];

const PULL: &[Field] = &[field("stream", Boolean, "Whether to report the progress; default true.")];

const GAP: &[Field] = &[
    field("input_prefix", Text, "The text before the gap."),
    field("input_suffix", Text, "The text after the gap."),
    field("prompt", Text, "The end of the text before the gap."),
    field("input_extra", List, "Parts of other files, with filename and text."),
];

const PLAIN: &[Field] = &[
    field("prompt", Any, "A text, a list of token ids and texts, or a list of such prompts."),
    field("n_probs", Integer, "Number of alternatives for each token, 1 to 20."),
];

const LLAMA_CPP: &[Field] = &[
    field("n_predict", Integer, "Most tokens to generate; -1 is the rest of the context."),
    field("temperature", Number, "0 always picks the most likely token; default 0.8."),
    field("top_k", Integer, "Keep this many of the most likely tokens; default 40."),
    field("top_p", Number, "Keep the most likely tokens that have this probability together; default 0.95."),
    field("min_p", Number, "Drop tokens below this part of the highest probability; default 0.05."),
    field("typical_p", Number, "Keep the most typical tokens that have this probability together; default 1."),
    field("repeat_penalty", Number, "1 turns it off."),
    field("presence_penalty", Number, "-2 to 2."),
    field("frequency_penalty", Number, "-2 to 2."),
    field("seed", Integer, "The same seed gives the same text."),
    field("stop", List, "Texts before which the answer ends."),
    field("ignore_eos", Boolean, "Whether to continue after the end-of-sequence token."),
    field("logit_bias", Any, "Token ids with a bias of -10000 to 10000; false forbids the token."),
    field("grammar", Text, "A grammar in llama.cpp's notation that the answer matches."),
    field("json_schema", Object, "A JSON schema that the answer matches."),
    field("cache_salt", Text, "Cached prefixes are shared only between requests with the same salt."),
    field("stream", Boolean, "Whether to send the answer while it is generated."),
    field("return_tokens", Boolean, "Whether to return the token ids."),
    field("response_fields", List, "The fields of the answer to return."),
];

const TO_TOKENS: &[Field] = &[
    field("prompt", Text, "A text; special tokens are added by default."),
    field("content", Text, "A text; no special tokens are added by default."),
    field("messages", List, "A conversation, which the chat template renders."),
    field("add_special_tokens", Boolean, "Whether to add special tokens to prompt or messages."),
    field("add_special", Boolean, "Whether to add special tokens to content."),
    field("parse_special", Boolean, "Whether text that looks like a special token becomes one."),
    field("with_pieces", Boolean, "Whether each token has its text."),
    field("return_token_strs", Boolean, "Whether to add the names of the tokens."),
];

const FROM_TOKENS: &[Field] = &[field("tokens", List, "Token ids.")];
