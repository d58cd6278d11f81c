//! Tokenizers, compared with the token ids of other implementations.
//!
//! The vocabularies of llama.cpp (`ggml-vocab-*.gguf` with `.inp` and `.out` files) are too large for this repository. Set
//! `CUELIGHT_TEST_VOCABS` to their folder, `models/` in llama.cpp's sources. The small vocabularies of this repository always run.

use std::fs;
use std::path::{Path, PathBuf};

use cuelight_engine::format::gguf::Gguf;
use cuelight_engine::format::tokenizer::piece_keys::{PieceFile, PieceSettings};
use cuelight_engine::format::tokenizer::{StreamDecoder, Tokenizer, TokenizerError};

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// The vocabularies that must agree.
const EXPECTED: &[&str] = &[
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];
/// The vocabulary of whole words and their pieces.
const WORD_PIECE: &str = "bert-bge";

/// Vocabularies that `tests/generate/tokenizer_fixtures.py` writes with the ids of the libraries that trained them.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer");

fn vocabulary_folder() -> Option<PathBuf> {
    let folder = std::env::var_os("CUELIGHT_TEST_VOCABS");
    if folder.is_none() {
        eprintln!("SKIPPED: CUELIGHT_TEST_VOCABS is not set, llama.cpp's vocabularies were not compared");
    }
    folder.map(PathBuf::from)
}

fn load(path: &Path) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&Gguf::open(path)?)
}

/// The texts and their tokens, from the files next to a vocabulary.
fn vectors(vocabulary: &Path) -> Vec<(String, Vec<u32>)> {
    let read = |ending: &str| {
        let path = PathBuf::from(format!("{}{ending}", vocabulary.display()));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let ids = |line: &str| line.split_whitespace().map(|id| id.parse().expect("a token id")).collect();
    let (inputs, outputs) = (read(".inp"), read(".out"));
    // The separator ends each text, including the last.
    let inputs: Vec<&str> = inputs.split_terminator(SEPARATOR).collect();
    let outputs: Vec<Vec<u32>> = outputs.lines().map(ids).collect();
    assert_eq!(inputs.len(), outputs.len(), "{}", vocabulary.display());
    inputs.into_iter().map(str::to_owned).zip(outputs).collect()
}

/// Checks that every text gives the expected tokens, and that the tokens decode to the text, at once and streamed. Returns the
/// differences.
fn disagreements(path: &Path, tokenizer: &Tokenizer) -> Vec<String> {
    let mut found = Vec::new();
    for (text, expected) in vectors(path) {
        let tokens = tokenizer.encode(&text, false, false).expect("encodes");
        if tokens != expected {
            found.push(format!("{}: {text:?} gives {tokens:?}, not {expected:?}", path.display()));
        }
        let decoded = tokenizer.decode(&tokens, false);
        let mut decoder = StreamDecoder::default();
        let mut streamed: String = tokens.iter().map(|&token| decoder.push(tokenizer, token, false)).collect();
        streamed += &decoder.finish();
        if decoded != text || streamed != text {
            found.push(format!("{}: {text:?} decodes to {decoded:?}, streamed {streamed:?}", path.display()));
        }
    }
    found
}

#[track_caller]
fn assert_agrees(path: &Path) {
    let tokenizer = load(path).unwrap_or_else(|error| panic!("{error}"));
    let found = disagreements(path, &tokenizer);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_byte_level_vocabulary_agrees_with_the_library_that_trained_it() {
    assert_agrees(&Path::new(FIXTURES).join("byte-level.gguf"));
}

#[test]
fn a_sentence_piece_vocabulary_agrees_with_the_library_that_trained_it() {
    assert_agrees(&Path::new(FIXTURES).join("sentence-piece.gguf"));
}

#[test]
fn a_tokenizer_json_agrees_with_the_same_vocabulary_as_gguf() {
    let folder = Path::new(FIXTURES);
    let tokenizer = Tokenizer::from_json(folder.join("tokenizer.json")).unwrap_or_else(|error| panic!("{error}"));
    let found = disagreements(&folder.join("byte-level.gguf"), &tokenizer);
    assert!(found.is_empty(), "{}", found.join("\n"));
    let of_gguf = load(&folder.join("byte-level.gguf")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(tokenizer.vocab_size(), of_gguf.vocab_size());
    for parse_special in [false, true] {
        let text = "light<|end|>";
        let encode = |tokenizer: &Tokenizer| tokenizer.encode(text, true, parse_special).expect("encodes");
        assert_eq!(encode(&tokenizer), encode(&of_gguf), "parse_special: {parse_special}");
    }
}

/// The tokenizer of a `tekken.json`.
fn of_tekken(path: &Path, text: &str) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_json_text(path, &Tokenizer::json_of_tekken(path, text)?)
}

#[test]
fn a_tekken_json_agrees_with_the_library_of_mistral() {
    let path = Path::new(FIXTURES).join("tekken.json");
    let text = fs::read_to_string(&path).expect("the file is read");
    let tokenizer = of_tekken(&path, &text).unwrap_or_else(|error| panic!("{error}"));
    let found = disagreements(&path, &tokenizer);
    assert!(found.is_empty(), "{}", found.join("\n"));
    let encode = |text: &str, parse_special| tokenizer.encode(text, true, parse_special).expect("encodes");
    // Ten special tokens, of which three have no name, come before the others.
    assert_eq!(encode("[INST]!<SPECIAL_9>", true), [1, 3, 10 + u32::from(b'!'), 9]);
    assert_eq!(encode("[INST]", false).len(), 7);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
}

#[test]
fn a_tekken_json_that_cannot_be_used_is_refused_with_the_reason() {
    let path = Path::new("tekken.json");
    let text = fs::read_to_string(Path::new(FIXTURES).join("tekken.json")).expect("the file is read");
    for (from, to, expected) in [
        (
            "\"special_tokens\"",
            "\"other_tokens\"",
            "tekken.json: not a usable tekken.json: missing field `special_tokens`",
        ),
        ("\"AA==\"", "\"AA\"", "the bytes of rank 0 are no base64"),
        ("\"AA==\"", "\"AQ==\"", "two of its tokens are the same"),
        ("\"default_num_special_tokens\": 10", "\"default_num_special_tokens\": 6", "has rank 6 of 6"),
        (
            "\"default_num_special_tokens\": 10",
            "\"default_num_special_tokens\": 4194305",
            "at most 4194304 are allowed",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        let error = of_tekken(path, &text.replacen(from, to, 1)).map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// The models of SentencePiece of this repository: merges and likelihoods, with and without bytes, spaces and other characters.
const MODELS: [&str; 4] = ["bpe", "bpe-plain", "unigram", "unigram-bytes"];

#[test]
fn models_of_sentencepiece_agree_with_the_library_that_trained_them() {
    let settings = PieceSettings::default();
    let mut wrong = Vec::new();
    for name in MODELS {
        let path = Path::new(FIXTURES).join(format!("{name}.model"));
        let bytes = fs::read(&path).expect("the file is read");
        let tokenizer = PieceFile { path: &path, bytes: &bytes, settings: &settings }.tokenizer();
        let tokenizer = tokenizer.unwrap_or_else(|error| panic!("{error}"));
        for (text, expected) in vectors(&path) {
            let found = tokenizer.encode(&text, false, false).expect("encodes");
            if found != expected {
                wrong.push(format!("{name}: {text:?} gives {found:?}, not {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Damaged models end in an error or a tokenizer, never in a panic.
#[test]
fn damaged_models_of_sentencepiece_are_errors() {
    let path = Path::new(FIXTURES).join("bpe-plain.model");
    let (whole, settings) = (fs::read(&path).expect("the file is read"), PieceSettings::default());
    let built = |bytes: &[u8]| {
        let tokenizer = PieceFile { path: &path, bytes, settings: &settings }.tokenizer()?;
        tokenizer.encode("Ａ light ①  <tool> ü", true, true).map(drop)
    };
    assert!(built(&whole).is_ok());
    for end in (0..whole.len()).step_by(7) {
        let _ = built(&whole[..end]);
    }
    for at in (0..whole.len()).step_by(5) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        let _ = built(&bytes);
    }
    for bytes in [&b""[..], b"IQ== 0\nIg== 1\n", &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]] {
        let error = built(bytes).expect_err("it is refused").to_string();
        assert!(error.contains("bpe-plain.model: not a usable model of SentencePiece"), "{error}");
    }
}

#[test]
fn every_vocabulary_of_llama_cpp_agrees_token_for_token() {
    let Some(folder) = vocabulary_folder() else { return };
    for kind in EXPECTED {
        assert_agrees(&folder.join(format!("ggml-vocab-{kind}.gguf")));
    }
}

/// Without case and accents, tokens do not decode to the text.
#[test]
fn a_word_piece_vocabulary_of_llama_cpp_agrees_token_for_token() {
    let Some(folder) = vocabulary_folder() else { return };
    let path = folder.join(format!("ggml-vocab-{WORD_PIECE}.gguf"));
    let tokenizer = load(&path).unwrap_or_else(|error| panic!("{error}"));
    let encode = |text: &str| tokenizer.encode(text, false, false).expect("encodes");
    let wrong = vectors(&path).into_iter().filter(|(text, expected)| encode(text) != *expected);
    let wrong: Vec<String> =
        wrong.map(|(text, expected)| format!("{text:?} gives {:?}, not {expected:?}", encode(&text))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
