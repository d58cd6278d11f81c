//! Small vocabularies of every kind, and streamed text.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::format::gguf::write::GgufBuilder;

const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// SentencePiece: `<unk> <s> </s>`, 256 bytes, some words, then `extra`.
fn sentence_piece_file(extra: &[(&str, f32, i32)]) -> GgufBuilder {
    let mut tokens: Vec<(String, f32, i32)> =
        vec![("<unk>".into(), 0.0, 2), ("<s>".into(), 0.0, CONTROL), ("</s>".into(), 0.0, CONTROL)];
    tokens.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 0.0, BYTE)));
    let words = ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc"];
    tokens.extend(words.iter().zip(0u8..).map(|(word, rank)| ((*word).to_owned(), -f32::from(rank), 1)));
    tokens.extend(extra.iter().map(|&(text, score, kind)| (text.to_owned(), score, kind)));
    GgufBuilder::new()
        .key("tokenizer.ggml.model", "llama")
        .key("tokenizer.ggml.tokens", tokens.iter().map(|(text, _, _)| text.as_str()).collect::<Vec<_>>())
        .key("tokenizer.ggml.scores", tokens.iter().map(|(_, score, _)| *score).collect::<Vec<_>>())
        .key("tokenizer.ggml.token_type", tokens.iter().map(|(_, _, kind)| *kind).collect::<Vec<_>>())
}

/// Byte-level: all 256 bytes, `ab`, `Ġa`, a control token and a user-defined token.
fn byte_level_file() -> GgufBuilder {
    byte_level_file_of("gpt-2")
}

/// [`byte_level_file`] with this pre-tokenizer.
fn byte_level_file_of(pre: &str) -> GgufBuilder {
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|byte| {
            let mut text = String::new();
            byte_level::encode(&[byte], &mut text);
            text
        })
        .collect();
    tokens.extend(["ab", "Ġa", "<|im_end|>", "<tool>"].map(str::to_owned));
    let mut kinds = vec![1; tokens.len()];
    kinds[258] = CONTROL;
    kinds[259] = USER_DEFINED;
    GgufBuilder::new()
        .key("tokenizer.ggml.model", "gpt2")
        .key("tokenizer.ggml.pre", pre)
        .key("tokenizer.ggml.tokens", tokens)
        .key("tokenizer.ggml.token_type", kinds)
        .key("tokenizer.ggml.merges", vec!["a b", "Ġ a", "no such"])
        .key("tokenizer.ggml.eos_token_id", 258u32)
}

fn tokenizer(file: GgufBuilder) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&Gguf::from_bytes("tiny.gguf", file.build())?)
}

fn message(file: GgufBuilder) -> String {
    tokenizer(file).err().unwrap().to_string()
}

fn texts(tokenizer: &Tokenizer, tokens: &[TokenId]) -> Vec<String> {
    tokens.iter().map(|&token| tokenizer.token_text(token)).collect()
}

#[track_caller]
fn assert_encodes(tokenizer: &Tokenizer, text: &str, expected: &[&str]) {
    let tokens = tokenizer.encode(text, false, true).unwrap();
    assert_eq!(texts(tokenizer, &tokens), expected, "{text:?}");
}

#[test]
fn the_highest_score_merges_first_not_the_longest_piece() {
    let tokenizer = tokenizer(sentence_piece_file(&[])).unwrap();
    assert_encodes(&tokenizer, "abc", &[" ", "abc"]);
    assert_encodes(&tokenizer, "bbc", &[" ", "b", "bc"]);
    assert_encodes(&tokenizer, "ac a", &[" a", "c", " a"]);
}

#[test]
fn characters_outside_the_vocabulary_become_bytes() {
    let tokenizer = tokenizer(sentence_piece_file(&[])).unwrap();
    let tokens = tokenizer.encode("aß", false, true).unwrap();
    assert_eq!(tokens[1..], [3 + 0xC3, 3 + 0x9F]);
    assert_eq!(tokenizer.decode(&tokens, true), "aß");
}

#[test]
fn the_space_added_by_encoding_is_removed_by_decoding() {
    let with = tokenizer(sentence_piece_file(&[])).unwrap();
    let without = tokenizer(sentence_piece_file(&[]).key("tokenizer.ggml.add_space_prefix", false)).unwrap();
    assert_encodes(&with, "a", &[" a"]);
    assert_encodes(&without, "a", &["a"]);
    assert_encodes(&with, "a</s>a", &[" a", "</s>", " a"]);
    for tokenizer in [with, without] {
        for text in ["", " ", "a", " a", "  a b"] {
            let tokens = tokenizer.encode(text, true, false).unwrap();
            assert_eq!(tokenizer.decode(&tokens, true), text);
        }
    }
}

#[test]
fn a_continued_text_keeps_its_leading_space() {
    let tokenizer = tokenizer(sentence_piece_file(&[])).unwrap();
    let token = tokenizer.encode("a", false, false).unwrap()[0];
    assert_eq!(StreamDecoder::default().push(&tokenizer, token, true), "a");
    assert_eq!(StreamDecoder::continuing().push(&tokenizer, token, true), " a");
}

#[test]
fn bos_and_eos_follow_the_file_else_the_kind_of_tokenizer() {
    let encode = |file: GgufBuilder| tokenizer(file).unwrap().encode("", true, false).unwrap();
    assert_eq!(encode(sentence_piece_file(&[])), [1]);
    assert_eq!(encode(sentence_piece_file(&[]).key("tokenizer.ggml.add_bos_token", false)), [0; 0]);
    assert_eq!(encode(sentence_piece_file(&[]).key("tokenizer.ggml.add_eos_token", true)), [1, 2]);
    assert_eq!(encode(byte_level_file()), [0; 0]);
    let with_bos =
        byte_level_file().key("tokenizer.ggml.bos_token_id", 257u32).key("tokenizer.ggml.add_bos_token", true);
    assert_eq!(encode(with_bos), [257]);
    let encoder = || byte_level_file_of("roberta-bpe").key("tokenizer.ggml.bos_token_id", 257u32);
    assert_eq!(encode(encoder()), [257, 258]);
    assert_eq!(encode(encoder().key("tokenizer.ggml.add_eos_token", false)), [257]);
}

#[test]
fn control_tokens_are_text_unless_parsed_and_user_defined_tokens_never_are() {
    let tokenizer = tokenizer(byte_level_file()).unwrap();
    let encode = |parse_special| tokenizer.encode("ab<|im_end|><tool>", false, parse_special).unwrap();
    assert_eq!(encode(true), [256, 258, 259]);
    let spelled = encode(false);
    assert!(spelled.len() > 10 && spelled.ends_with(&[259]) && !spelled.contains(&258), "{spelled:?}");
    assert_eq!(tokenizer.decode(&spelled, true), "ab<|im_end|><tool>");
}

#[test]
fn special_tokens_have_no_text_when_skipped() {
    let tokenizer = tokenizer(byte_level_file()).unwrap();
    assert!(tokenizer.is_special(258) && !tokenizer.is_special(259));
    assert_eq!(tokenizer.decode(&[256, 258, 259], true), "ab<tool>");
    assert_eq!(tokenizer.decode(&[256, 258, 259], false), "ab<|im_end|><tool>");
    assert_eq!(tokenizer.token_bytes(258, true), b"");
    assert_eq!(tokenizer.token_text(258), "<|im_end|>");
}

#[test]
fn ids_beyond_the_vocabulary_have_no_text() {
    let tokenizer = tokenizer(byte_level_file()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 260);
    assert_eq!(tokenizer.decode(&[260, u32::MAX], false), "");
    assert!(!tokenizer.is_special(u32::MAX));
}

#[test]
fn generation_ends_at_tokens_of_keys_and_well_known_spellings() {
    let file = sentence_piece_file(&[("<end_of_turn>", 0.0, 1), ("stop", 0.0, 1)]);
    let stop = 3 + 256 + 8 + 1;
    let tokenizer = tokenizer(file.key("tokenizer.ggml.eot_token_id", stop)).unwrap();
    assert_eq!(tokenizer.end_of_generation(), [2, u32::try_from(stop).unwrap() - 1, u32::try_from(stop).unwrap()]);
    assert!(tokenizer.is_special(u32::try_from(stop).unwrap() - 1), "a well-known spelling is a control token");
    assert_eq!(tokenizer.eos(), Some(2));
}

#[test]
fn in_the_harmony_format_the_end_of_a_message_does_not_end_generation() {
    let names = ["<|end|>", "<|return|>", "<|call|>", "<|channel|>"];
    let extra = names.map(|name| (name, 0.0, CONTROL));
    let tokenizer = tokenizer(sentence_piece_file(&extra)).unwrap();
    let first = 3 + 256 + 8;
    assert_eq!(tokenizer.end_of_generation(), [2, first + 1, first + 2]);
    assert!(!tokenizer.is_special(first) && !tokenizer.is_special(first + 3), "structure that must stay visible");
}

#[test]
fn an_html_tag_that_looks_like_the_end_is_text() {
    let html = GgufBuilder::new()
        .key("tokenizer.ggml.model", "llama")
        .key("tokenizer.ggml.tokens", vec!["<unk>", "<s>", "<eos>", "</s>"])
        .key("tokenizer.ggml.token_type", vec![2, CONTROL, CONTROL, USER_DEFINED])
        .key("tokenizer.ggml.scores", vec![0.0f32; 4]);
    let html = tokenizer(html).unwrap();
    assert_eq!(html.end_of_generation(), [2]);
    assert_eq!(html.encode("</s>", false, false).unwrap(), [3]);
}

#[test]
fn phi_3_absorbs_the_space_after_a_special_token() {
    let file = |name: &str| sentence_piece_file(&[("<|user|>", 0.0, CONTROL)]).key("general.name", name);
    assert_encodes(&tokenizer(file("Phi-3 mini")).unwrap(), "<|user|> \na", &["<|user|>", " a"]);
    assert_encodes(&tokenizer(file("other")).unwrap(), "<|user|> a", &["<|user|>", " ", " a"]);
}

#[test]
fn unusable_tokenizers_are_refused_with_the_reason() {
    let missing = message(GgufBuilder::new());
    assert!(missing.contains("\"tokenizer.ggml.model\""), "{missing}");
    let model = message(GgufBuilder::new().key("tokenizer.ggml.model", "rwkv"));
    assert!(model.contains("\"rwkv\"") && model.contains("gpt2, llama"), "{model}");
    let pre = GgufBuilder::new().key("tokenizer.ggml.model", "gpt2").key("tokenizer.ggml.pre", "odd");
    assert!(message(pre).contains("pre-tokenizer \"odd\""));
    let few = GgufBuilder::new()
        .key("tokenizer.ggml.model", "llama")
        .key("tokenizer.ggml.tokens", vec!["a", "b"])
        .key("tokenizer.ggml.scores", vec![0.0f32]);
    assert!(message(few).contains("1 scores for 2 tokens"));
    let empty = GgufBuilder::new()
        .key("tokenizer.ggml.model", "llama")
        .key("tokenizer.ggml.tokens", vec![""; 0])
        .key("tokenizer.ggml.scores", vec![0.0f32]);
    assert!(message(empty).contains("empty"));
    let json = Tokenizer::from_json("/no/such/tokenizer.json").err().unwrap().to_string();
    assert!(json.contains("/no/such/tokenizer.json"), "{json}");
}

#[test]
fn text_crafted_to_exhaust_patterns_terminates() {
    let tokenizer = tokenizer(byte_level_file()).unwrap();
    let text = " ".repeat(1 << 20) + "x";
    match tokenizer.encode(&text, false, true) {
        Ok(tokens) => assert_eq!(tokenizer.decode(&tokens, false), text),
        Err(error) => assert!(matches!(error, TokenizerError::Pattern(_)), "{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_damaged_vocabulary_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        byte_level: bool,
    ) {
        let mut bytes = if byte_level { byte_level_file() } else { sentence_piece_file(&[]) }.build();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let tokenizer = Gguf::from_bytes("damaged.gguf", bytes).map(|gguf| Tokenizer::from_gguf(&gguf));
        if let Ok(Ok(tokenizer)) = tokenizer {
            let tokens = tokenizer.encode("ab c<|im_end|>ß<tool>", true, true).unwrap();
            let _ = tokenizer.decode(&tokens, false);
        }
    }
}

static SENTENCE_PIECE: LazyLock<Tokenizer> = LazyLock::new(|| tokenizer(sentence_piece_file(&[])).unwrap());
static BYTE_LEVEL: LazyLock<Tokenizer> = LazyLock::new(|| tokenizer(byte_level_file()).unwrap());

fn assert_streams(tokenizer: &Tokenizer, tokens: &[TokenId], skip_special: bool) -> Result<(), TestCaseError> {
    let mut decoder = StreamDecoder::default();
    let mut streamed: String = tokens.iter().map(|&token| decoder.push(tokenizer, token, skip_special)).collect();
    streamed += &decoder.finish();
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| tokenizer.token_bytes(token, skip_special).to_vec()).collect();
    let whole = String::from_utf8_lossy(&bytes).into_owned();
    let stripped = whole.strip_prefix(' ').unwrap_or(&whole);
    prop_assert!(streamed == whole || (tokenizer.adds_space && streamed == stripped), "{streamed:?} of {whole:?}");
    prop_assert_eq!(tokenizer.decode(tokens, skip_special), streamed);
    Ok(())
}

proptest! {
    #[test]
    fn any_text_round_trips(text in "\\PC{0,40}|[ab cß日😀\\n]{0,40}") {
        for tokenizer in [&*SENTENCE_PIECE, &*BYTE_LEVEL] {
            let tokens = tokenizer.encode(&text, false, false).unwrap();
            // A space mark in the text cannot be distinguished from a space.
            prop_assert_eq!(tokenizer.decode(&tokens, false), if tokenizer.adds_space { text.replace('▁', " ") } else { text.clone() });
        }
    }

    #[test]
    fn streamed_tokens_join_to_the_text_of_decoding_them_at_once(
        tokens in prop::collection::vec(0u32..270, 0..30),
        skip_special: bool,
    ) {
        assert_streams(&SENTENCE_PIECE, &tokens, skip_special)?;
        assert_streams(&BYTE_LEVEL, &tokens, skip_special)?;
    }

    #[test]
    fn streaming_never_splits_a_character(text in "[aß日😀]{0,20}") {
        let tokens = BYTE_LEVEL.encode(&text, false, false).unwrap();
        let mut decoder = StreamDecoder::default();
        for token in tokens {
            let pushed = decoder.push(&BYTE_LEVEL, token, false);
            prop_assert!(!pushed.contains(char::REPLACEMENT_CHARACTER), "{pushed:?}");
        }
        prop_assert_eq!(decoder.finish(), "");
    }
}

#[test]
fn a_vocabulary_longer_than_any_real_one_is_refused_at_once() {
    let began = std::time::Instant::now();
    let huge = "x".repeat(8 << 20);
    for kind in [1, CONTROL, USER_DEFINED] {
        let refusal = message(sentence_piece_file(&[(&huge, 0.0, kind)]));
        assert!(refusal.contains("token 267 has 8388608 bytes; at most 4096 are allowed"), "{refusal}");
    }
    let refusal = message(sentence_piece_file(&[(&huge[..2000], 0.0, CONTROL)]));
    assert!(refusal.contains("special token 267 has 2000 bytes; at most 1024 are allowed"), "{refusal}");
    assert!(tokenizer(sentence_piece_file(&[(&huge[..2000], 0.0, 1), (&huge[..1000], 0.0, CONTROL)])).is_ok());

    let names: Vec<String> = (0..5000).map(|index| format!("{index}{}", &huge[..1000])).collect();
    let many: Vec<(&str, f32, i32)> = names.iter().map(|name| (name.as_str(), 0.0, CONTROL)).collect();
    let refusal = message(sentence_piece_file(&many));
    assert!(refusal.contains("the list of special tokens has 5"), "{refusal}");
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn building_a_tokenizer_can_be_cancelled() {
    let cancel = LoadCancel::default();
    let file = || Gguf::from_bytes("tiny.gguf", byte_level_file().build()).unwrap();
    assert!(Tokenizer::build(&file(), &cancel).is_ok());
    cancel.cancel();
    assert!(matches!(Tokenizer::build(&file(), &cancel), Err(TokenizerError::Cancelled(_))));
}

#[test]
fn the_memory_of_a_tokenizer_grows_with_its_lists() {
    let bytes =
        |file: GgufBuilder| Tokenizer::memory_bytes(&Gguf::from_bytes("tiny.gguf", file.build()).unwrap()).unwrap();
    let (small, large) = (bytes(sentence_piece_file(&[])), bytes(sentence_piece_file(&[("one more token", 0.0, 1)])));
    assert!(small > 267 * 32 && large > small, "{small} {large}");
    assert_eq!(bytes(GgufBuilder::new()), bytes(GgufBuilder::new().key("general.name", "no tokenizer")));
}

#[test]
fn guarded_text_is_encoded_as_without_special_tokens() {
    for file in [sentence_piece_file(&[("<|im_end|>", 0.0, CONTROL)]), byte_level_file()] {
        let tokenizer = tokenizer(file).unwrap();
        let guarded = |text: &str, guards: &[usize]| tokenizer.encode_guarded(text, guards, true).unwrap();
        for text in ["", "ab<|im_end|>ab a", "<|im_end|>", "a<|im_end|><|im_end|> b"] {
            let guards: Vec<usize> = text.match_indices("<|im_end|>").map(|(start, _)| start + 3).collect();
            assert_eq!(guarded(text, &guards), tokenizer.encode(text, true, false).unwrap(), "{text}");
            assert_eq!(guarded(text, &[]), tokenizer.encode(text, true, true).unwrap(), "{text}");
        }
        let ends = |tokens: Vec<TokenId>| tokens.iter().filter(|token| tokenizer.is_special(**token)).count();
        assert_eq!(ends(guarded("a<|im_end|>b<|im_end|>", &[4])), ends(guarded("a", &[])) + 1);
    }
}

#[test]
fn control_tokens_are_never_merged_from_text() {
    let piece = sentence_piece_file(&[("s>", -1.0, 1), ("<", -1.0, 1), ("s", -1.0, 1), (">", -1.0, 1)]);
    let tokenizer_of_pieces = tokenizer(piece).unwrap();
    let tokens = tokenizer_of_pieces.encode("<s>", false, false).unwrap();
    assert_eq!(texts(&tokenizer_of_pieces, &tokens), [" ", "<", "s>"]);
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|byte| {
            let mut text = String::new();
            byte_level::encode(&[byte], &mut text);
            text
        })
        .collect();
    tokens.extend(["<|", "<|>"].map(str::to_owned));
    let mut kinds = vec![1; tokens.len()];
    kinds[257] = CONTROL;
    let merging = GgufBuilder::new()
        .key("tokenizer.ggml.model", "gpt2")
        .key("tokenizer.ggml.pre", "gpt-2")
        .key("tokenizer.ggml.tokens", tokens)
        .key("tokenizer.ggml.token_type", kinds)
        .key("tokenizer.ggml.merges", vec!["< |", "<| >"]);
    let merging = tokenizer(merging).unwrap();
    assert_eq!(texts(&merging, &merging.encode("<|>", false, false).unwrap()), ["<|", ">"]);
    assert_eq!(texts(&merging, &merging.encode("<|>", false, true).unwrap()), ["<|>"]);
}

#[test]
fn markers_are_control_tokens_and_what_the_template_writes() {
    let tokenizer = tokenizer(byte_level_file()).unwrap();
    assert_eq!(tokenizer.markers(&["no markers"]), ["<|im_end|>"]);
    assert_eq!(tokenizer.markers(&["", "{{ '<tool>' }}"]), ["<|im_end|>", "<tool>"]);
}

/// The tokens for filling in the middle, as files of code models have them, and the text of one inside a text.
#[test]
fn text_never_becomes_a_token_for_filling_in_the_middle() {
    let spellings = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"];
    let text = "a<|fim_middle|>b";
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|byte| {
            let mut text = String::new();
            byte_level::encode(&[byte], &mut text);
            text
        })
        .collect();
    let vocabulary: serde_json::Map<_, _> =
        (0..).zip(&tokens).map(|(id, text): (u32, _)| (text.clone(), id.into())).collect();
    tokens.extend(spellings.map(str::to_owned));
    let mut kinds = vec![1; tokens.len()];
    kinds[256..].fill(USER_DEFINED);
    let of_file = GgufBuilder::new()
        .key("tokenizer.ggml.model", "gpt2")
        .key("tokenizer.ggml.pre", "gpt-2")
        .key("tokenizer.ggml.tokens", tokens)
        .key("tokenizer.ggml.token_type", kinds)
        .key("tokenizer.ggml.merges", Vec::<&str>::new());
    let added = |(id, content): (u32, &str)| serde_json::json!({ "id": id, "content": content, "special": false, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false });
    let of_json = serde_json::json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": (256..).zip(spellings).map(added).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    });
    let of_json = Tokenizer::from_json_text("tokenizer.json", &of_json.to_string()).unwrap();
    for tokenizer in [tokenizer(of_file).unwrap(), of_json] {
        let infill = tokenizer.infill().unwrap();
        assert_eq!((infill.prefix, infill.suffix, infill.middle, infill.pad), (256, 257, 258, Some(259)));
        assert_eq!(tokenizer.encode(text, false, false).unwrap().len(), text.len());
        assert_eq!(tokenizer.encode(text, false, true).unwrap(), [97, 258, 98]);
        assert_eq!((tokenizer.end_of_generation(), tokenizer.added_bos()), (&[259][..], None));
        assert!(tokenizer.is_special(258));
    }
}

/// How SentencePiece writes a space.
const SPACE_MARK: char = '▁';

/// Pieces of [`unigram_file`], all with different scores.
const PIECES: [(&str, f32); 12] = [
    ("▁", -2.5),
    ("a", -3.1),
    ("b", -3.7),
    ("c", -4.3),
    ("▁a", -3.3),
    ("ab", -4.9),
    ("bc", -5.2),
    ("abc", -6.05),
    ("▁ab", -5.7),
    ("ca", -4.1),
    ("cab", -8.9),
    ("▁c", -5.9),
];

/// Unigram: `<s> <pad> </s> <unk>`, then the pieces.
fn unigram_file() -> GgufBuilder {
    let special = [("<s>", CONTROL), ("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", 2)];
    let tokens: Vec<&str> = special.iter().map(|(text, _)| *text).chain(PIECES.iter().map(|(text, _)| *text)).collect();
    let scores: Vec<f32> = [0.0; 4].into_iter().chain(PIECES.iter().map(|(_, score)| *score)).collect();
    let kinds: Vec<i32> = special.iter().map(|(_, kind)| *kind).chain([1; PIECES.len()]).collect();
    GgufBuilder::new()
        .key("tokenizer.ggml.model", "t5")
        .key("tokenizer.ggml.tokens", tokens)
        .key("tokenizer.ggml.scores", scores)
        .key("tokenizer.ggml.token_type", kinds)
        .key("tokenizer.ggml.remove_extra_whitespaces", true)
}

/// The best division of a text, found by trying all: its score and its pieces.
fn best_division(text: &str) -> Option<(f32, Vec<String>)> {
    if text.is_empty() {
        return Some((0.0, Vec::new()));
    }
    let divisions = PIECES.iter().filter_map(|(piece, score)| {
        let (rest, mut pieces) = best_division(text.strip_prefix(piece)?)?;
        pieces.insert(0, (*piece).to_owned());
        Some((score + rest, pieces))
    });
    divisions.max_by(|a, b| a.0.total_cmp(&b.0))
}

proptest! {
    #[test]
    fn unigram_finds_the_most_likely_division(text in "[abc]{1,6}( [abc]{1,4}){0,2}") {
        let tokenizer = tokenizer(unigram_file()).unwrap();
        let words = text.split(' ').map(|word| best_division(&format!("▁{word}")).unwrap().1);
        let expected: Vec<String> = words.flatten().map(|piece| piece.replace(SPACE_MARK, " ")).collect();
        let tokens = tokenizer.encode(&text, false, false).unwrap();
        prop_assert_eq!(texts(&tokenizer, &tokens), expected);
        let spaced = format!(" {} ", text.replace(' ', "   "));
        prop_assert_eq!(tokenizer.encode(&spaced, false, false).unwrap(), tokens.clone());
        let whole = tokenizer.encode(&text, true, false).unwrap();
        prop_assert_eq!((whole[0], whole[whole.len() - 1], &whole[1..whole.len() - 1]), (0, 2, &tokens[..]));
    }
}

#[test]
fn unigram_has_one_token_for_unknown_characters() {
    let tokenizer = tokenizer(unigram_file()).unwrap();
    let tokens = tokenizer.encode("aé", false, false).unwrap();
    assert_eq!(texts(&tokenizer, &tokens), [" a", "<unk>"]);
}
