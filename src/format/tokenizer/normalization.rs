//! What SentencePiece changes in a text before it is divided: characters, by the table of a file, and superfluous spaces.
//!
//! The table is searched with the `tokenizers` crate. Source: SentencePiece's `normalizer.cc`.

use std::borrow::Cow;

use tokenizers::normalizers::Precompiled;
use tokenizers::{NormalizedString, Normalizer as _};

use super::error::TokenizerError;
use crate::format::gguf::{Gguf, Metadata};

/// What changes a text.
pub(super) struct Normalization {
    table: Option<Precompiled>,
    removes_spaces: bool,
}

/// Where a run of text between special tokens lies: at the start of a text or after a special token, and at the end or before one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    /// Whether it is at a start.
    pub start: bool,
    /// Whether it is at an end.
    pub end: bool,
}

/// Checks a table that normalizes characters, before it is searched.
///
/// # Errors
/// [`DamagedTable`].
pub(super) fn check_table(bytes: &[u8]) -> Result<(), DamagedTable> {
    Table::check(bytes).ok_or(DamagedTable)
}

/// A search in the table could leave it.
#[derive(Debug, thiserror::Error)]
#[error("the table that normalizes characters is damaged")]
pub(super) struct DamagedTable;

impl Normalization {
    /// The changes that the keys of a file describe; none if the file has none of them.
    pub(super) fn of_keys(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let fault = |reason: String| TokenizerError::Vocabulary(reason);
        let table = charsmap(gguf)?.map(|table| {
            check_table(&table).map_err(|error| fault(error.to_string()))?;
            Precompiled::from(&table).map_err(|error| fault(error.to_string()))
        });
        let removes_spaces = gguf.optional_bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false);
        Ok(Normalization { table: table.transpose()?, removes_spaces })
    }

    /// A text with its changes.
    pub(super) fn apply<'a>(&self, text: &'a str, ends: Ends) -> Result<Cow<'a, str>, TokenizerError> {
        let text = match &self.table {
            None => Cow::Borrowed(text),
            Some(table) => {
                let mut normalized = NormalizedString::from(text);
                table.normalize(&mut normalized).map_err(|error| TokenizerError::Pattern(error.to_string()))?;
                Cow::Owned(normalized.get().to_owned())
            }
        };
        Ok(if self.removes_spaces { without_extra_spaces(&text, ends).into() } else { text })
    }
}

/// A text with one space for several, and without spaces at its ends. There, the mark of a space counts as one too.
fn without_extra_spaces(text: &str, ends: Ends) -> String {
    let text = if ends.start { text.trim_start_matches(' ') } else { text };
    let text = if ends.end { text.trim_end_matches([' ', '▁']) } else { text };
    let mut kept = String::with_capacity(text.len());
    for character in text.chars() {
        if character != ' ' || !kept.ends_with(' ') {
            kept.push(character);
        }
    }
    kept
}

/// The table by which SentencePiece normalizes characters.
fn charsmap(gguf: &Gguf) -> Result<Option<Vec<u8>>, TokenizerError> {
    let bytes = gguf.optional_integers("tokenizer.ggml.precompiled_charsmap")?;
    let bytes = bytes.filter(|bytes| !bytes.is_empty());
    Ok(bytes.map(|bytes| bytes.into_iter().map(|byte| byte as u8).collect()))
}

/// A table of characters as SentencePiece stores it: the length of a trie in bytes, the trie, and the texts that its values point
/// to, each with a zero after it.
///
/// The crate that searches the trie trusts it, so a damaged one is found here.
struct Table<'a> {
    trie: &'a [[u8; 4]],
    texts: &'a str,
}

impl<'a> Table<'a> {
    /// `None` if a search could leave the table.
    fn check(bytes: &'a [u8]) -> Option<()> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (trie, texts) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        let (trie, remainder) = trie.as_chunks::<4>();
        let table = Table { trie, texts: str::from_utf8(texts).ok()? };
        remainder.is_empty().then_some(())?;
        table.check_nodes()
    }

    fn unit(&self, place: usize) -> Option<Unit> {
        self.trie.get(place).map(|bytes| Unit(u32::from_le_bytes(*bytes)))
    }

    /// Visits every node that a search can reach. A node's children are the places that differ from it in the lowest byte.
    fn check_nodes(&self) -> Option<()> {
        let mut is_known = vec![false; self.trie.len()];
        let mut nodes = vec![self.unit(0)?.offset()];
        while let Some(node) = nodes.pop() {
            self.unit(node | 0xff)?;
            if std::mem::replace(&mut is_known[node], true) {
                continue;
            }
            for label in 1..=0xff {
                let unit = self.unit(node ^ label)?;
                if unit.has_label(label) {
                    let child = node ^ label ^ unit.offset();
                    self.check_leaf(unit, child)?;
                    nodes.push(child);
                }
            }
        }
        Some(())
    }

    /// Checks that the value of a node, if it has one, is where a text can start.
    fn check_leaf(&self, unit: Unit, place: usize) -> Option<()> {
        let value = self.unit(place)?.value();
        (!unit.has_leaf() || self.texts.is_char_boundary(value)).then_some(())
    }
}

/// A unit of a trie in a double array (Darts).
#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    fn has_leaf(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    fn value(self) -> usize {
        (self.0 & 0x7fff_ffff) as usize
    }

    fn has_label(self, label: usize) -> bool {
        (self.0 & 0x8000_00ff) as usize == label
    }

    fn offset(self) -> usize {
        ((self.0 >> 10) as usize) << ((self.0 & 1 << 9) >> 6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trie that replaces "a" by the text at `value`.
    fn table(value: u32, texts: &[u8]) -> Vec<u8> {
        let mut units = vec![0u32; 512];
        // The root is at 256; its child "a" has its leaf at 0x100 ^ 0x61 ^ 1.
        units[0] = 256 << 10;
        units[256 ^ 0x61] = 1 << 10 | 1 << 8 | 0x61;
        units[256 ^ 0x61 ^ 1] = value;
        let trie: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        [&(trie.len() as u32).to_le_bytes()[..], &trie, texts].concat()
    }

    #[test]
    fn spaces_are_removed_at_ends_and_where_there_are_several() {
        let both = Ends { start: true, end: true };
        assert_eq!(without_extra_spaces("  a  b \n  c ▁ ", both), "a b \n c");
        let neither = Ends { start: false, end: false };
        assert_eq!(without_extra_spaces("  a  b ", neither), " a b ");
        assert_eq!(without_extra_spaces(" ", both), "");
    }

    #[test]
    fn a_table_whose_search_stays_inside_is_used() {
        let bytes = table(2, b"x\0yz\0");
        assert_eq!(Table::check(&bytes), Some(()));
        assert_eq!(Precompiled::from(&bytes).unwrap().normalize_string("bab"), "byzb");
    }

    #[test]
    fn a_search_that_leaves_the_table_is_found() {
        for bytes in [table(7, b"x\0yz\0"), table(1, "é\0".as_bytes()), table(0, &[0xff])] {
            assert_eq!(Table::check(&bytes), None);
        }
        let whole = table(0, b"x\0");
        for end in 0..2052 {
            assert_eq!(Table::check(&whole[..end]), None, "{end} bytes");
        }
        // The offsets of the root and of the child, and a trie that is longer than the file.
        for (at, byte) in [(5, 0xff), (7, 0xff), (4 + 4 * (256 ^ 0x61) + 2, 0xff), (3, 0xff), (0, 1)] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            assert_eq!(Table::check(&bytes), None, "byte {at}");
        }
    }
}
