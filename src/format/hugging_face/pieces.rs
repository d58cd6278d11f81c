//! What the files next to a `tokenizer.model` state: tokens that are added to it, and tokens before and after a text.
//!
//! | file | |
//! |---|---|
//! | `added_tokens.json` | a number for each spelling |
//! | `tokenizer_config.json` | `added_tokens_decoder`: by number the spelling, and whether it is structure |
//! | `special_tokens_map.json` | spellings of tokens that are structure, and of single tokens that no other file names |

use std::path::Path;

use serde_json::{Map, Value as Json};

use super::error::{HuggingFaceError, HuggingFaceFault};
use super::small_files::SmallFiles;
use crate::engine::TokenId;
use crate::format::tokenizer::piece_keys::{AddedToken, PieceSettings};

/// The settings of a tokenizer. `stated` is the content of `tokenizer_config.json`, `ends` are tokens that end a text.
pub(super) fn settings(
    folder: &Path,
    stated: &Json,
    ends: Vec<TokenId>,
    files: &mut SmallFiles,
) -> Result<PieceSettings, HuggingFaceError> {
    let map = files.json("special_tokens_map.json")?.unwrap_or_default();
    let single = |key: &str| spelling(stated.get(key)).or_else(|| spelling(map.get(key)));
    let flag = |key: &str| stated.get(key).and_then(Json::as_bool);
    let more = [stated, &map].into_iter().filter_map(|file| file.get("additional_special_tokens")?.as_array());
    let names = ["bos_token", "eos_token", "unk_token", "pad_token"];
    let special = names.into_iter().filter_map(single).chain(more.flatten().filter_map(|token| spelling(Some(token))));
    Ok(PieceSettings {
        bos: single("bos_token"),
        eos: single("eos_token"),
        unknown: single("unk_token"),
        ends,
        adds_bos: flag("add_bos_token"),
        adds_eos: flag("add_eos_token"),
        adds_space: flag("add_prefix_space"),
        special: special.collect(),
        added: added(folder, stated, files)?,
    })
}

/// The tokens that are added to a model, by number.
fn added(folder: &Path, stated: &Json, files: &mut SmallFiles) -> Result<Vec<AddedToken>, HuggingFaceError> {
    const NUMBERS: &str = "added_tokens.json";
    const TOKENS: &str = "added_tokens_decoder";
    let numbers = files.json(NUMBERS)?.unwrap_or_default();
    let numbers = numbers.as_object().into_iter().flatten().map(|(text, id)| {
        let id = id.as_u64().and_then(|id| TokenId::try_from(id).ok());
        let id = id.ok_or_else(|| wrong(folder, NUMBERS, text))?;
        Ok(AddedToken { id, text: text.clone(), is_special: false })
    });
    let entries = stated.get(TOKENS).and_then(Json::as_object);
    let tokens = entries.into_iter().flat_map(Map::iter).map(|(id, token)| {
        let text = spelling(Some(token));
        let (Ok(id), Some(text)) = (id.parse(), text) else {
            return Err(wrong(folder, "tokenizer_config.json", id));
        };
        Ok(AddedToken { id, text, is_special: token.get("special") == Some(&Json::Bool(true)) })
    });
    // Of two entries with one number, that which says more comes last and counts.
    let mut added = numbers.chain(tokens).collect::<Result<Vec<_>, _>>()?;
    added.sort_by_key(|token| token.id);
    Ok(added)
}

fn wrong(folder: &Path, file: &str, key: &str) -> HuggingFaceError {
    let wanted = "the number of a token with its spelling".to_owned();
    HuggingFaceFault::WrongValue { key: key.to_owned(), found: "no such entry".to_owned(), wanted }
        .in_file(&folder.join(file))
}

/// A token's spelling: a string, or an object with it.
pub(super) fn spelling(value: Option<&Json>) -> Option<String> {
    let value = value?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}
