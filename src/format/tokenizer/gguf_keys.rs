//! Writes the tokenizer of a `tokenizer.json` as the keys of a GGUF file.
//!
//! A `tokenizer.json` states its rules; a GGUF file only names them. So each known name that may fit is tried. The first that
//! gives the same tokens for all samples is written, and none is written if no name does.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value as Json;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

use super::Tokenizer;
use super::error::TokenizerError;
use super::infill::InfillTokens;
use super::json::{JsonSettings, entries};
use super::pre_tokenizer::{GEMMA4, PreTokenizer, Row, rows};
use super::special::mark_ends;
use super::vocabulary::{Entry, Spelling, TokenKind};
use crate::engine::TokenId;
use crate::format::gguf::Gguf;
use crate::format::gguf::write::GgufBuilder;

/// Texts that the known rules split in different ways. None changes by Unicode normalization, which a GGUF file cannot state.
const SAMPLES: &[&str] = &[
    "Hello, world! It's 2024, I'LL pay $1234567.89 for 3 apples; they'd cost 42%?",
    "  two spaces\n\n\ttabs\t and \r\n line breaks \n \n  end   ",
    "fn main() { let x_1 = vec![0u8; 16]; println!(\"{x:?}\\n\"); } // -->/** a/b **/",
    "Grüße, naïve café: ÀÉÎ ñandú Straße ǅungla ЖИЗНЬ жизнь Ελληνικά",
    "你好，世界！日本語のテスト。カタカナ 한국어 텍스트 ไทยภาษา हिन्दी में नमस्ते العربية עברית",
    "CamelCaseWORDS mixedCASE abcDEFghi x'S y'Re don't STOP…—“quoted” ‘single’ 100€ 5½ ²³",
    "🙂👍🏽👨‍👩‍👧 a1b2c3 1 12 123 1234 12345 !!! ??? ... ### +++\n\n\n\n- item\n* item\n",
    "x  12   345\n  6\t 78 \r\n9  %  ( a )  'll  're",
    " .hidden ,comma /path/to\\file.txt:80 user@example.org https://example.org/?q=1&r=2#top  `code`",
];

/// Adds the keys of the tokenizer in `text`, the content of a `tokenizer.json` at `path`. The list of tokens is filled up to
/// `n_tokens`, the rows of the embedding.
///
/// # Errors
/// [`TokenizerError::Json`] when the text cannot be used, or no rules that a GGUF file can name give the same tokens.
pub(crate) fn add(
    path: &Path,
    text: &str,
    settings: &JsonSettings,
    n_tokens: usize,
    file: GgufBuilder,
) -> Result<GgufBuilder, TokenizerError> {
    let fault = |reason: String| TokenizerError::Json { path: path.to_owned(), reason };
    let source = Source::read(path, text, settings, n_tokens)?;
    for naming in source.namings()? {
        let keys = source.keys(&naming, GgufBuilder::new());
        let gguf = Gguf::from_bytes(&path.to_string_lossy(), keys.build())?;
        if source.equals(&Tokenizer::from_gguf(&gguf)?) {
            return Ok(source.keys(&naming, file));
        }
    }
    Err(fault("a GGUF file cannot state its rules: no known pre-tokenizer gives the same tokens".to_owned()))
}

/// The rules of a tokenizer by the names that GGUF files give them.
#[derive(Debug, Clone, Copy)]
struct Naming {
    model: &'static str,
    pre: &'static str,
}

/// A tokenizer to convert.
struct Source {
    tokenizer: Tokenizer,
    /// The same tokenizer with access to its parts.
    parts: tokenizers::Tokenizer,
    entries: Vec<Entry>,
    /// In order of rank.
    merges: Vec<[String; 2]>,
    /// Whether a word that is a token is not merged from smaller ones.
    whole_pieces: bool,
    unknown: Option<String>,
    spelling: Spelling,
}

impl Source {
    fn read(path: &Path, text: &str, settings: &JsonSettings, n_tokens: usize) -> Result<Self, TokenizerError> {
        let fault = |reason: String| TokenizerError::Json { path: path.to_owned(), reason };
        let tokenizer = Tokenizer::from_json_with(path, text, settings)?;
        let parts: tokenizers::Tokenizer = text.parse().map_err(|error: tokenizers::Error| fault(error.to_string()))?;
        let description: Json = serde_json::from_str(text).map_err(|error| fault(error.to_string()))?;
        let model = &description["model"];
        let merges = merges(model).ok_or_else(|| {
            let kind = model["type"].as_str().unwrap_or("unknown").to_owned();
            fault(format!(
                "its model is of the type {kind:?}, but only that of a BPE model can be written to a GGUF file"
            ))
        })?;
        let mut entries = entries(&parts);
        entries.extend((entries.len()..n_tokens).map(|id| (format!("[UNUSED_{id}]"), TokenKind::Unused)));
        let is_byte_level = description["decoder"].to_string().contains("ByteLevel");
        Ok(Source {
            spelling: if is_byte_level { Spelling::ByteLevel } else { Spelling::SpaceMark },
            whole_pieces: model["ignore_merges"] == true,
            unknown: model["unk_token"].as_str().map(str::to_owned),
            tokenizer,
            parts,
            entries,
            merges,
        })
    }

    /// The namings that may fit.
    fn namings(&self) -> Result<Vec<Naming>, TokenizerError> {
        if self.spelling == Spelling::SpaceMark {
            let scored = Naming { model: "llama", pre: "default" };
            let ranked = Naming { model: GEMMA4, pre: GEMMA4 };
            return Ok(if self.ranks_are_scores() { vec![scored, ranked] } else { vec![ranked] });
        }
        let mut namings = Vec::new();
        for row in rows().iter().filter(|row| row.rules.whole_pieces == self.whole_pieces) {
            if self.splits_like(row)? {
                namings.push(Naming { model: "gpt2", pre: row.name() });
            }
        }
        Ok(namings)
    }

    /// Whether the pre-tokenizer of a row splits the samples in the same way.
    fn splits_like(&self, row: &Row) -> Result<bool, TokenizerError> {
        let Some(own) = self.parts.get_pre_tokenizer() else { return Ok(false) };
        let other = PreTokenizer::new(row)?;
        for sample in SAMPLES {
            let mut text = PreTokenizedString::from(*sample);
            own.pre_tokenize(&mut text).map_err(|error| TokenizerError::Pattern(error.to_string()))?;
            let splits = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let pieces = other.split(sample)?;
            if !splits.iter().map(|(_, offsets, _)| *offsets).eq(pieces.iter().map(|piece| (piece.start, piece.end))) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds the keys with the rules of `naming`.
    fn keys(&self, naming: &Naming, file: GgufBuilder) -> GgufBuilder {
        let tokens: Vec<&str> = self.entries.iter().map(|(text, _)| text.as_str()).collect();
        let kinds: Vec<i32> = self.entries.iter().map(|(text, kind)| self.kind(text, *kind).number()).collect();
        let file = file
            .key("tokenizer.ggml.model", naming.model)
            .key("tokenizer.ggml.pre", naming.pre)
            .key("tokenizer.ggml.tokens", tokens)
            .key("tokenizer.ggml.token_type", kinds);
        let file = if naming.model == "llama" {
            let adds_space = self.tokenizer.adds_space;
            file.key("tokenizer.ggml.scores", self.scores()).key("tokenizer.ggml.add_space_prefix", adds_space)
        } else {
            let merges: Vec<String> = self.merges.iter().map(|pair| pair.join(" ")).collect();
            file.key("tokenizer.ggml.merges", merges)
        };
        self.special_keys(file)
    }

    /// Adds the keys of single tokens, and whether texts begin and end with one.
    fn special_keys(&self, file: GgufBuilder) -> GgufBuilder {
        let unknown = self.unknown.as_deref().and_then(|text| self.id(text));
        let eos = self.tokenizer.eos();
        let spelled = self.ends_by_spelling();
        let mut others = self.tokenizer.end_of_generation().iter().copied();
        let mut other = || others.by_ref().find(|end| Some(*end) != eos && !spelled.contains(end));
        let named = [
            ("bos", self.tokenizer.added_bos().or(self.tokenizer.bos())),
            ("eos", eos),
            ("unknown", unknown),
            ("eot", other()),
            ("eom", other()),
        ];
        let file = named.into_iter().fold(file, |file, (name, token)| match token {
            Some(token) => file.key(&format!("tokenizer.ggml.{name}_token_id"), token),
            None => file,
        });
        file.key("tokenizer.ggml.add_bos_token", self.tokenizer.added_bos().is_some())
            .key("tokenizer.ggml.add_eos_token", self.adds_eos())
    }

    /// The tokens that end a generation even if no key names them.
    fn ends_by_spelling(&self) -> Vec<TokenId> {
        let mut entries = self.entries.clone();
        let infill = InfillTokens::of_spellings(&mut entries).into_iter().flat_map(InfillTokens::ends).collect();
        mark_ends(&mut entries, infill)
    }

    fn adds_eos(&self) -> bool {
        let around_nothing = self.tokenizer.encode("", true, true).unwrap_or_default();
        self.tokenizer.eos().is_some_and(|eos| around_nothing.last() == Some(&eos))
    }

    fn kind(&self, text: &str, kind: TokenKind) -> TokenKind {
        if self.unknown.as_deref() == Some(text) { TokenKind::Unknown } else { kind }
    }

    fn id(&self, text: &str) -> Option<TokenId> {
        self.parts.token_to_id(text)
    }

    /// A score for each token, by which SentencePiece merges in the order of the ranks.
    fn scores(&self) -> Vec<f32> {
        let mut scores = vec![0.0; self.entries.len()];
        for (rank, pair) in self.merges.iter().enumerate().rev() {
            let id = self.id(&pair.concat()).map(|id| id as usize);
            if let Some(score) = id.and_then(|id| scores.get_mut(id)) {
                // A vocabulary has less than 2^24 tokens, so ranks are exact.
                *score = -(rank as f32);
            }
        }
        scores
    }

    /// Whether merging by the score of the union is the same as merging by the rank of the pair: every pair of tokens whose
    /// union is a token is a merge, and the merges with the same union follow one another. Tokens that are found before words
    /// are merged do not count.
    fn ranks_are_scores(&self) -> bool {
        let added = self.parts.get_added_vocabulary().get_vocab();
        let unions = self.merges.iter().map(|pair| pair.concat()).filter(|union| !added.contains_key(union));
        let unions: Vec<String> = unions.collect();
        let mut merges: HashMap<&str, usize> = HashMap::new();
        let is_in_order = unions.chunk_by(|a, b| a == b).all(|same| merges.insert(&same[0], same.len()).is_none());
        let mut texts = self.entries.iter().filter(|(_, kind)| *kind == TokenKind::Normal);
        let n_merges = |text: &str| merges.get(text).copied().unwrap_or(0);
        is_in_order && texts.all(|(text, _)| n_merges(text) == self.splits_of(text))
    }

    /// In how many ways a text is the union of two tokens.
    fn splits_of(&self, text: &str) -> usize {
        let halves = text.char_indices().skip(1).map(|(middle, _)| text.split_at(middle));
        halves.filter(|(left, right)| self.id(left).is_some() && self.id(right).is_some()).count()
    }

    /// Whether another tokenizer gives the same tokens for all samples.
    fn equals(&self, other: &Tokenizer) -> bool {
        let own = &self.tokenizer;
        let same = |text: &str| {
            [(true, true), (false, false)].into_iter().all(|(add_special, parse_special)| {
                let tokens = own.encode(text, add_special, parse_special);
                matches!((tokens, other.encode(text, add_special, parse_special)), (Ok(a), Ok(b)) if a == b)
            })
        };
        let ends = own.end_of_generation() == other.end_of_generation();
        ends && own.eos() == other.eos() && SAMPLES.iter().copied().chain([""]).all(same)
    }
}

/// The merges of a BPE model: pairs, or texts with a space between; `None` for another model.
fn merges(model: &Json) -> Option<Vec<[String; 2]>> {
    let pair = |merge: &Json| match merge {
        Json::String(text) => text.split_once(' ').map(|(left, right)| [left.to_owned(), right.to_owned()]),
        pair => Some([pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned()]),
    };
    model.get("merges")?.as_array()?.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::format::gguf::Metadata;

    const BYTE_LEVEL: &str = include_str!("../../../tests/fixtures/tokenizer/tokenizer.json");

    fn convert(text: &str, settings: &JsonSettings) -> Result<Gguf, TokenizerError> {
        let file = add(Path::new("m/tokenizer.json"), text, settings, 512, GgufBuilder::new())?;
        Ok(Gguf::from_bytes("m.gguf", file.build()).unwrap())
    }

    #[track_caller]
    fn assert_same(text: &str, settings: &JsonSettings, samples: &[&str]) -> Gguf {
        let gguf = convert(text, settings).unwrap_or_else(|error| panic!("{error}"));
        let (before, after) =
            (Tokenizer::from_json_with("m", text, settings).unwrap(), Tokenizer::from_gguf(&gguf).unwrap());
        for sample in samples {
            let [expected, found] = [&before, &after].map(|tokenizer| tokenizer.encode(sample, true, true).unwrap());
            assert_eq!(found, expected, "{sample:?}");
        }
        assert_eq!((after.bos(), after.eos(), after.vocab_size()), (before.bos(), before.eos(), 512));
        gguf
    }

    /// A tokenizer with `▁` for spaces, some merges, and bytes for all characters that are not letters.
    fn space_marked(adds_space: bool) -> Json {
        let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
        let letters = "▁abcdehilnorst".chars().map(String::from);
        let words = ["th", "the", "▁the", "an", "▁an", "in", "▁in", "er", "ther", "ll", "▁a"].map(String::from);
        let texts = ["<unk>", "<s>", "</s>"].map(String::from).into_iter().chain(bytes).chain(letters).chain(words);
        let vocab: serde_json::Map<String, Json> = texts.zip(0_u32..).map(|(text, id)| (text, id.into())).collect();
        let merges =
            ["t h", "th e", "▁ the", "a n", "▁ an", "▁a n", "i n", "▁ in", "e r", "th er", "the r", "l l", "▁ a"];
        let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
        let prepend = json!({ "type": "Prepend", "prepend": "▁" });
        let special = |id: u32, content: &str| {
            json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
        };
        let strip = json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 });
        let mut decoders = vec![
            json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
        ];
        let mut normalizers = vec![replace];
        if adds_space {
            decoders.push(strip);
            normalizers.insert(0, prepend);
        }
        json!({
            "version": "1.0", "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
            "normalizer": { "type": "Sequence", "normalizers": normalizers },
            "decoder": { "type": "Sequence", "decoders": decoders },
            "post_processor": { "type": "TemplateProcessing",
                "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
                "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
                "special_tokens": { "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } } },
            "model": { "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges }
        })
    }

    #[test]
    fn a_byte_level_tokenizer_gets_the_name_of_its_pre_tokenizer() {
        let settings = JsonSettings { eos: Some("<|end|>".to_owned()), ends: vec![0, 7], ..JsonSettings::default() };
        let gguf = assert_same(BYTE_LEVEL, &settings, &["the 1234 hats <|end|>\n\n  of it's", "", "é日"]);
        assert_eq!(gguf.str("tokenizer.ggml.model").unwrap(), "gpt2");
        assert_eq!(gguf.str("tokenizer.ggml.pre").unwrap(), "starcoder");
        assert_eq!(gguf.u32("tokenizer.ggml.eot_token_id").unwrap(), 7);
        assert_eq!(Tokenizer::from_gguf(&gguf).unwrap().end_of_generation(), [0, 7]);
    }

    #[test]
    fn a_tokenizer_with_marked_spaces_gets_scores() {
        for adds_space in [false, true] {
            let text = space_marked(adds_space).to_string();
            let samples = ["the hen in another bell", "  a  an </s> x1é\n", "", "thehenathinather"];
            let gguf = assert_same(&text, &JsonSettings::default(), &samples);
            assert_eq!(gguf.str("tokenizer.ggml.model").unwrap(), "llama");
            assert_eq!(gguf.bool("tokenizer.ggml.add_space_prefix").unwrap(), adds_space);
            assert!(gguf.bool("tokenizer.ggml.add_bos_token").unwrap());
        }
    }

    #[test]
    fn what_a_gguf_file_cannot_state_is_refused() {
        let error = |change: &dyn Fn(&mut Json)| {
            let mut description: Json = serde_json::from_str(BYTE_LEVEL).unwrap();
            change(&mut description);
            convert(&description.to_string(), &JsonSettings::default()).map(drop).unwrap_err().to_string()
        };
        let pattern =
            json!({ "type": "Split", "pattern": { "Regex": "[aeiou]" }, "behavior": "Isolated", "invert": false });
        let unknown = error(&|json| json["pre_tokenizer"]["pretokenizers"][0] = pattern.clone());
        assert!(unknown.contains("m/tokenizer.json") && unknown.contains("no known pre-tokenizer"), "{unknown}");
        let lower = error(&|json| json["normalizer"] = json!({ "type": "Lowercase" }));
        assert!(lower.contains("no known pre-tokenizer"), "{lower}");
        let mut ranked = space_marked(true);
        ranked["model"]["merges"].as_array_mut().unwrap().retain(|merge| merge != "the r");
        let ranked = convert(&ranked.to_string(), &JsonSettings::default()).map(drop).unwrap_err().to_string();
        assert!(ranked.contains("no known pre-tokenizer"), "{ranked}");
        let unigram = error(&|json| {
            json["model"] = json!({ "type": "Unigram", "unk_id": 0, "vocab": [["<|end|>", 0.0], ["a", -1.0]], "byte_fallback": false });
        });
        assert!(unigram.contains("\"Unigram\""), "{unigram}");
    }

    #[test]
    fn the_samples_tell_all_rows_apart() {
        let splits = |row: &Row| {
            let rules = PreTokenizer::new(row).unwrap();
            SAMPLES.iter().map(|sample| rules.split(sample).unwrap()).collect::<Vec<_>>()
        };
        let all: Vec<_> = rows().iter().map(|row| (row.name(), row.rules.whole_pieces, splits(row))).collect();
        let mut same = Vec::new();
        for (index, (name, whole, split)) in all.iter().enumerate() {
            let equal = all[..index].iter().filter(|(_, other, other_split)| (whole, split) == (other, other_split));
            same.extend(equal.map(|(other, ..)| (*other, *name)));
        }
        // These mean the same: most differ only in the tokens around texts, the last two in how they are written.
        let encoders = [("gpt-2", "roberta-bpe"), ("gpt-2", "modern-bert"), ("roberta-bpe", "modern-bert")];
        assert_eq!(same, [&encoders[..], &[("llama-bpe", "glm4"), ("qwen2", "bailingmoe")]].concat());
    }
}
