//! A tokenizer from the vocabulary of a GGUF file, and a text.
//!
//! The input is text: a line of options, a token per line with the digit of its kind before it, `--`, a merge per line, `--`, and
//! the text to encode. Every input is valid, so mutations reach the tokenizer and not only the parser of files.

use cuelight_engine::format::gguf::Gguf;
use cuelight_engine::format::gguf::write::GgufBuilder;
use cuelight_engine::format::tokenizer::{StreamDecoder, Tokenizer};

/// The kinds of tokens, as numbers in the file.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// What the input describes.
struct Case<'a> {
    model: &'a str,
    options: Vec<&'a str>,
    tokens: Vec<(String, i32)>,
    merges: Vec<&'a str>,
    text: &'a str,
}

/// A text is encoded to tokens of the vocabulary; if the vocabulary can spell every text, they decode to it.
pub fn run(data: &[u8]) {
    let data = String::from_utf8_lossy(data);
    let case = Case::parse(&data);
    let gguf = Gguf::from_bytes("fuzz.gguf", case.file()).expect("the builder writes valid files");
    let tokenizer = match Tokenizer::from_gguf(&gguf) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for (add_special, parse_special) in [(false, false), (false, true), (true, true)] {
        let Ok(tokens) = tokenizer.encode(case.text, add_special, parse_special) else { continue };
        assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocab_size()), "{tokens:?}");
        assert!(tokens.len() <= 6 * case.text.len() + 8, "{} tokens for {} bytes", tokens.len(), case.text.len());
        let decoded = tokenizer.decode(&tokens, false);
        if case.is_reversible() && !add_special {
            assert_eq!(decoded, case.text, "{tokens:?}");
        }
        check_stream(&tokenizer, &tokens);
    }
}

/// The text of a token does not depend on the tokens after it.
fn check_stream(tokenizer: &Tokenizer, tokens: &[u32]) {
    let mut decoder = StreamDecoder::continuing();
    let mut text = String::new();
    for &token in tokens {
        text.push_str(&decoder.push(tokenizer, token, true));
    }
    text.push_str(&decoder.finish());
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| tokenizer.token_bytes(token, true)).copied().collect();
    assert_eq!(text, String::from_utf8_lossy(&bytes));
}

impl<'a> Case<'a> {
    fn parse(data: &'a str) -> Self {
        let (head, rest) = data.split_once('\n').unwrap_or((data, ""));
        let (tokens, rest) = rest.split_once("--\n").unwrap_or((rest, ""));
        let (merges, text) = rest.split_once("--\n").unwrap_or(("", rest));
        let mut options = head.split(' ');
        let model = options.next().unwrap_or_default();
        let options: Vec<&str> = options.collect();
        let mut case = Case { model, options, tokens: Vec::new(), merges: merges.lines().collect(), text };
        if case.has("bytes") {
            case.tokens = case.byte_tokens();
        }
        case.tokens.extend(tokens.lines().map(token));
        case
    }

    fn has(&self, option: &str) -> bool {
        self.options.contains(&option)
    }

    /// The value of an option `name=value`.
    fn value(&self, name: &str) -> Option<&'a str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// A token for each byte, and for the space.
    fn byte_tokens(&self) -> Vec<(String, i32)> {
        if self.model == "gpt2" {
            return byte_spellings().map(|character| (character.to_string(), NORMAL)).collect();
        }
        let bytes = (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), BYTE));
        bytes.chain([("▁".to_owned(), NORMAL)]).collect()
    }

    /// Whether the tokenizer must reproduce every text.
    fn is_reversible(&self) -> bool {
        let marks_text = |kind: i32| kind == CONTROL || kind == USER_DEFINED;
        let is_plain = |(text, kind): &(String, i32)| {
            let is_word = text.bytes().all(|byte| byte.is_ascii_graphic());
            *kind == NORMAL || *kind == BYTE && self.model != "gpt2" || marks_text(*kind) && is_word
        };
        let adds_space = self.model == "llama" && !self.has("noprefix");
        let own = if self.has("bytes") { &self.tokens[self.byte_tokens().len()..] } else { &self.tokens };
        let has_marks = own.iter().any(|(_, kind)| marks_text(*kind));
        let has_bytes = own.iter().any(|(_, kind)| *kind == BYTE);
        self.has("bytes")
            && self.tokens.iter().all(is_plain)
            && !has_bytes
            && !(has_marks && (adds_space || self.value("name").is_some()))
            && (self.model == "gpt2" || !self.text.contains('▁'))
    }

    fn file(&self) -> Vec<u8> {
        let texts: Vec<&str> = self.tokens.iter().map(|(text, _)| text.as_str()).collect();
        let kinds: Vec<i32> = self.tokens.iter().map(|(_, kind)| *kind).collect();
        // Longer tokens are better, as in real vocabularies; equal lengths differ.
        let score = |(index, text): (usize, &&str)| text.len() as f32 - index as f32 / 1024.0;
        let scores: Vec<f32> = texts.iter().enumerate().map(score).collect();
        let mut builder = GgufBuilder::new()
            .key("tokenizer.ggml.model", self.model)
            .key("tokenizer.ggml.tokens", &texts[..])
            .key("tokenizer.ggml.token_type", &kinds[..])
            .key("tokenizer.ggml.scores", &scores[..])
            .key("tokenizer.ggml.merges", &self.merges[..])
            .key("tokenizer.ggml.add_space_prefix", !self.has("noprefix"))
            .key("tokenizer.ggml.add_bos_token", self.has("addbos"))
            .key("tokenizer.ggml.add_eos_token", self.has("addeos"))
            .key("general.name", self.value("name").unwrap_or_default());
        if let Some(pre) = self.value("pre") {
            builder = builder.key("tokenizer.ggml.pre", pre);
        }
        for (name, key) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("eot", "eot")] {
            if let Some(token) = self.value(name).and_then(|text| text.parse::<u32>().ok()) {
                builder = builder.key(&format!("tokenizer.ggml.{key}_token_id"), token);
            }
        }
        builder.build()
    }
}

/// A line of the vocabulary: the digit of the kind, and the spelling with `\n` for a line break.
fn token(line: &str) -> (String, i32) {
    let kind = line.bytes().next().filter(u8::is_ascii_digit);
    let text = if kind.is_some() { &line[1..] } else { line };
    (text.replace("\\n", "\n"), kind.map_or(NORMAL, |digit| i32::from(digit - b'0')))
}

/// The characters that represent bytes in byte-level vocabularies, in some order.
fn byte_spellings() -> impl Iterator<Item = char> {
    let printable = ('!'..='~').chain('\u{A1}'..='\u{AC}').chain('\u{AE}'..='\u{FF}');
    printable.chain('\u{100}'..='\u{143}')
}
