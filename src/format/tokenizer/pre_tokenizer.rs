//! Splits text into pieces before merging: one row for each value of the key `tokenizer.ggml.pre`.
//!
//! A row is a list of patterns, applied in order. Each pattern splits the pieces of the previous one into its matches and the
//! text between them. The patterns are those of the models' `tokenizer.json` files, or equivalent.

use std::ops::Range;

use onig::{MatchParam, Regex, Region, SearchOptions};

use super::error::TokenizerError;

/// How text is split for some names.
pub(super) struct Row {
    /// The values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Applied in order.
    patterns: &'static [&'static str],
    /// How the pieces are encoded.
    pub(super) rules: Rules,
}

/// Other rules that depend on the pre-tokenizer's name, because no key states them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    /// A piece that is a token is not merged from smaller ones.
    pub(super) whole_pieces: bool,
    /// BOS is added if the file lacks the key.
    pub(super) adds_bos: bool,
    /// EOS is added if the file lacks the key.
    pub(super) adds_eos: bool,
    /// Two texts have one separator between them, even if the file states a second one: llama.cpp's converter does so, but the
    /// models were trained without it.
    pub(super) one_separator: bool,
    /// The runs of digits that are split into groups of three from their end, before the patterns are applied.
    digit_runs: Option<&'static str>,
}

const PLAIN: Rules =
    Rules { whole_pieces: false, adds_bos: false, adds_eos: false, one_separator: false, digit_runs: None };
const WHOLE: Rules = Rules { whole_pieces: true, ..PLAIN };
const WHOLE_BOS: Rules = Rules { whole_pieces: true, adds_bos: true, ..PLAIN };

const DIGIT: &str = r"\p{N}";
const THREE_DIGITS: &str = r"\p{N}{1,3}";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// [`LLAMA3`] with runs of spaces that are split into powers of two.
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// [`O200K`] with single digits, after the scripts of [`YOUTU_SCRIPTS`].
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Korean, wide punctuation, Bopomofo, and Chinese with Japanese.
const YOUTU_SCRIPTS: &str = r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
/// [`O200K`] without Chinese characters, which an earlier pattern splits off.
const KIMI_K2: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const BLOOM: &str = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+";
/// Letters of scripts with upper and lower case, in Unicode order. Other patterns split the other scripts.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-z\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x{01BF}\x{01C4}-\x{0293}\x{0295}-\x{02AF}\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B}-\x{037D}\x{037F}\x{0386}\x{0388}-\x{038A}\x{038C}\x{038E}-\x{03A1}\x{03A3}-\x{03F5}\x{03F7}-\x{0481}\x{048A}-\x{052F}\x{0531}-\x{0556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";
const DEEPSEEK_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+";

/// All known names. The first row is for files without the key.
const ROWS: &[Row] = &[
    Row {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        rules: PLAIN,
    },
    Row {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "gpt-neox",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
        ],
        patterns: &[GPT2],
        rules: PLAIN,
    },
    // Encoders, whose texts are between `<s>` and `</s>`.
    Row { names: &["roberta-bpe"], patterns: &[GPT2], rules: Rules { adds_bos: true, adds_eos: true, ..PLAIN } },
    Row {
        names: &["modern-bert"],
        patterns: &[GPT2],
        rules: Rules { adds_bos: true, adds_eos: true, one_separator: true, ..PLAIN },
    },
    Row {
        names: &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        patterns: &[DIGIT, GPT2],
        rules: PLAIN,
    },
    Row {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        patterns: &[LLAMA3],
        rules: WHOLE_BOS,
    },
    Row { names: &["jais-2"], patterns: &[JAIS2], rules: PLAIN },
    Row { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], patterns: &[LLAMA3], rules: PLAIN },
    Row { names: &["glm4", "glm5"], patterns: &[LLAMA3], rules: WHOLE },
    Row {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "f2llmv2",
            "kormo",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        patterns: &[QWEN2],
        rules: PLAIN,
    },
    Row { names: &["qwen35"], patterns: &[QWEN35], rules: PLAIN },
    Row { names: &["laguna"], patterns: &[r"[^\n]+|\n+", QWEN2], rules: PLAIN },
    Row {
        names: &["minicpm5"],
        patterns: &[
            THREE_DIGITS,
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        rules: WHOLE,
    },
    Row {
        names: &["seed-coder"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        rules: PLAIN,
    },
    Row {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        patterns: &[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
        rules: PLAIN,
    },
    Row {
        names: &["exaone-moe"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
        rules: PLAIN,
    },
    Row {
        names: &["deepseek-llm"],
        patterns: &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
            r"\s+$",
            DEEPSEEK_CJK,
            r"\p{N}+",
        ],
        rules: PLAIN,
    },
    Row {
        names: &["deepseek-coder"],
        patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, DIGIT],
        rules: PLAIN,
    },
    Row {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        patterns: &[THREE_DIGITS, r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+", DEEPSEEK_V3],
        rules: PLAIN,
    },
    Row {
        names: &["afmoe"],
        patterns: &[
            r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+",
            DEEPSEEK_V3,
        ],
        rules: Rules { digit_runs: Some(r"\p{N}+"), ..PLAIN },
    },
    Row { names: &["falcon"], patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"], rules: PLAIN },
    Row { names: &["tekken"], patterns: &[TEKKEN], rules: WHOLE_BOS },
    Row { names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], patterns: &[O200K], rules: PLAIN },
    Row { names: &["youtu"], patterns: &[YOUTU_SCRIPTS, YOUTU], rules: WHOLE },
    Row { names: &["kimi-k2"], patterns: &[r"\p{Han}+", KIMI_K2], rules: PLAIN },
    Row {
        names: &["tiny_aya", "cohere2moe"],
        patterns: &[O200K],
        // Letters may not follow. The lookbehind keeps a search from starting at every digit of a run.
        rules: Rules { digit_runs: Some(r"(?<!\d)\d++\b"), ..PLAIN },
    },
    Row { names: &["poro-chat", "bloom", "gpt3-finnish"], patterns: &[BLOOM], rules: PLAIN },
    Row { names: &["viking"], patterns: &[BLOOM, DIGIT], rules: PLAIN },
    Row { names: &[GEMMA4, "sarvam-moe"], patterns: &[r"[^\n]+|\n+"], rules: PLAIN },
];

/// Not a value of `tokenizer.ggml.pre`: the same value of `tokenizer.ggml.model` implies it.
pub(super) const GEMMA4: &str = "gemma4";

impl Row {
    /// The first of its names.
    pub(super) fn name(&self) -> &'static str {
        self.names[0]
    }
}

/// All rows.
pub(super) fn rows() -> &'static [Row] {
    ROWS
}

/// The row of a name.
pub(super) fn row(name: &str) -> Result<&'static Row, TokenizerError> {
    ROWS.iter().find(|row| row.names.contains(&name)).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
        name: name.to_owned(),
        known: ROWS.iter().flat_map(|row| row.names).copied().collect::<Vec<_>>().join(", "),
    })
}

/// Splits text into pieces that are encoded separately.
pub(super) struct PreTokenizer {
    digit_runs: Option<Regex>,
    patterns: Vec<Regex>,
}

impl PreTokenizer {
    /// Compiles the patterns of a row.
    pub(super) fn new(row: &Row) -> Result<Self, TokenizerError> {
        let compile = |pattern: &&str| Regex::new(pattern).map_err(|error| TokenizerError::Pattern(error.to_string()));
        Ok(PreTokenizer {
            digit_runs: row.rules.digit_runs.as_ref().map(compile).transpose()?,
            patterns: row.patterns.iter().map(compile).collect::<Result<_, _>>()?,
        })
    }

    /// The pieces of `text`, in order and without gaps.
    ///
    /// # Errors
    /// [`TokenizerError::Pattern`] when a pattern exceeds its step limit, which only text crafted for it does.
    pub(super) fn split(&self, text: &str) -> Result<Vec<Range<usize>>, TokenizerError> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            pieces.push(0..text.len());
        }
        if let Some(runs) = &self.digit_runs {
            pieces = split_pieces(runs, text, pieces, |run, out| out.extend(threes_from_end(text, run)))?;
        }
        for pattern in &self.patterns {
            pieces = split_pieces(pattern, text, pieces, |found, out| out.push(found))?;
        }
        Ok(pieces)
    }
}

/// Groups of three characters, counted from the end of a range; the first may be shorter.
fn threes_from_end(text: &str, range: Range<usize>) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let mut end = range.end;
    while end > range.start {
        let start = text[range.start..end].char_indices().rev().nth(2).map_or(range.start, |(at, _)| range.start + at);
        groups.push(start..end);
        end = start;
    }
    groups.reverse();
    groups
}

/// Splits pieces as [`split_piece`] does.
fn split_pieces(
    pattern: &Regex,
    text: &str,
    pieces: Vec<Range<usize>>,
    mut take_match: impl FnMut(Range<usize>, &mut Vec<Range<usize>>),
) -> Result<Vec<Range<usize>>, TokenizerError> {
    let mut smaller = Vec::with_capacity(pieces.len());
    for piece in pieces {
        split_piece(pattern, text, piece, &mut smaller, &mut take_match)?;
    }
    Ok(smaller)
}

/// Splits one piece into a pattern's matches and the text between them. `take_match` adds a match to the pieces. The pattern does
/// not see text outside the piece.
fn split_piece(
    pattern: &Regex,
    text: &str,
    piece: Range<usize>,
    out: &mut Vec<Range<usize>>,
    take_match: &mut impl FnMut(Range<usize>, &mut Vec<Range<usize>>),
) -> Result<(), TokenizerError> {
    let inside = &text[piece.clone()];
    let mut region = Region::new();
    // `done` is the end of the last match; `from`, where the next search starts, is larger only after an empty match.
    let (mut done, mut from) = (0, 0);
    while from < inside.len() {
        let found = pattern
            .search_with_param(
                inside,
                from,
                inside.len(),
                SearchOptions::SEARCH_OPTION_NONE,
                Some(&mut region),
                MatchParam::default(),
            )
            .map_err(|error| TokenizerError::Pattern(error.to_string()))?;
        let Some((start, end)) = found.and_then(|_| region.pos(0)) else { break };
        if done < start {
            out.push(piece.start + done..piece.start + start);
        }
        if start < end {
            take_match(piece.start + start..piece.start + end, out);
        }
        done = end;
        let step_past_empty = if start == end { inside[end..].chars().next().map_or(1, char::len_utf8) } else { 0 };
        from = end + step_past_empty;
    }
    if done < inside.len() {
        out.push(piece.start + done..piece.end);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_splits(name: &str, text: &str, expected: &[&str]) {
        let pre_tokenizer = PreTokenizer::new(row(name).unwrap()).unwrap();
        let pieces: Vec<&str> = pre_tokenizer.split(text).unwrap().into_iter().map(|piece| &text[piece]).collect();
        assert_eq!(pieces, expected);
    }

    #[test]
    fn every_row_compiles_and_leaves_no_gap() {
        let text = "Hello,  wörld's 12345\r\n\n\t日本語 नमस्ते  😀 don't—STOP   ";
        for row in ROWS {
            let pieces = PreTokenizer::new(row).unwrap().split(text).unwrap();
            let joined: String = pieces.iter().map(|piece| &text[piece.clone()]).collect();
            assert_eq!(joined, text, "{:?}", row.names);
            assert!(pieces.iter().all(|piece| !piece.is_empty()), "{:?}", row.names);
        }
    }

    #[test]
    fn each_name_belongs_to_one_row() {
        let mut names: Vec<&str> = ROWS.iter().flat_map(|row| row.names).copied().collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn numbers_are_split_by_the_rules_of_each_model() {
        assert_splits("gpt-2", "a 1234", &["a", " 1234"]);
        assert_splits("smollm", "a 1234", &["a", " ", "1", "2", "3", "4"]);
        assert_splits("llama-bpe", "a 1234", &["a", " ", "123", "4"]);
        assert_splits("qwen2", "a 1234", &["a", " ", "1", "2", "3", "4"]);
        assert_splits("kimi-k2", "a 1234", &["a", " ", "123", "4"]);
        assert_splits("afmoe", "a 12345", &["a", " ", "12", "345"]);
        assert_splits("afmoe", "1234567b", &["1", "234", "567", "b"]);
        assert_splits("tiny_aya", "a 12345 6", &["a", " ", "12", "345", " ", "6"]);
        // Without a boundary behind the digits they are split from the start.
        assert_splits("tiny_aya", "12345b", &["123", "45", "b"]);
    }

    #[test]
    fn long_runs_of_digits_take_time_in_proportion_to_their_length() {
        for name in ["afmoe", "tiny_aya"] {
            for end in ["", "b"] {
                let text = "1".repeat(300_000) + end;
                let pieces = PreTokenizer::new(row(name).unwrap()).unwrap().split(&text).unwrap();
                assert!((100_000..=100_001).contains(&pieces.len()), "{name}: {}", pieces.len());
            }
        }
    }

    #[test]
    fn chinese_characters_are_separate_pieces_for_some_models() {
        assert_splits("kimi-k2", "It's 你好Wörld", &["It's", " ", "你好", "Wörld"]);
        assert_splits("gpt-4o", "It's 你好Wörld", &["It's", " 你好Wörld"]);
    }

    #[test]
    fn scripts_and_wide_punctuation_are_separate_pieces_for_one_model() {
        assert_splits("youtu", "한국어日本，ㄅA12", &["한국어", "日本", "，", "ㄅ", "A", "1", "2"]);
        assert_splits("youtu", "it's 30%/", &["it's", " ", "3", "0", "%/"]);
    }

    #[test]
    fn runs_of_spaces_are_split_into_powers_of_two() {
        let text = format!("a{}b", " ".repeat(16));
        assert_splits("jais-2", &text, &["a", &" ".repeat(8), &" ".repeat(4), "  ", " ", " b"]);
        assert_splits("jais-2", "a  1234\n", &["a", " ", " ", "123", "4", "\n"]);
    }

    #[test]
    fn the_last_space_belongs_to_the_next_word() {
        assert_splits("gpt-2", "a   b", &["a", "  ", " b"]);
        assert_splits("gpt-2", "a\nb  ", &["a", "\n", "b", "  "]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let message = row("no-such").err().unwrap().to_string();
        assert!(message.contains("\"no-such\"") && message.contains("llama-bpe"), "{message}");
    }
}
