//! Rerankers that answer yes or no: the logits of these two tokens are their scores, so the rows of both in the output matrix are
//! their head. Directories say so by a module of sentence-transformers, or by the key of the config that vLLM reads.

use serde_json::json;

use super::error::HuggingFaceError;
use super::family::Family;
use super::keys::Keys;
use super::table::Entry;
use super::text::Text;
use crate::engine::TokenId;
use crate::format::gguf::TensorInfo;

/// The answers, as the labels of GGUF files.
const ANSWERS: [&str; 2] = ["yes", "no"];

/// The key of vLLM with the tokens of both answers.
const FROM_TOKEN: &str = "classifier_from_token";

/// The tensor of the head.
const HEAD: &str = "cls.output.weight";

/// The output matrix, and the embedding, which is the output matrix of models without one.
const OUTPUTS: [&str; 2] = ["output.weight", "token_embd.weight"];

/// The tokens of a module of sentence-transformers.
pub(super) struct StatedAnswers {
    /// Those of a relevant and of another document.
    pub tokens: [Option<u64>; 2],
    /// What is wrong if they are not yes and no.
    pub wrong: HuggingFaceError,
}

/// Adds the head of a model that answers yes or no, its keys and its prompt.
///
/// # Errors
/// [`HuggingFaceError`] for other answers, and for models whose prompt is not known.
pub(super) fn add(
    (keys, entries): (&mut Keys<'_>, &mut Vec<Entry>),
    family: &Family,
    text: &Text,
    stated: Option<StatedAnswers>,
) -> Result<(), HuggingFaceError> {
    let from_token = keys.config.get(FROM_TOKEN).filter(|_| entries.iter().all(|(tensor, _)| tensor.name != HEAD));
    if stated.is_none() && from_token.is_none() {
        return Ok(());
    }
    let own = tokens(text);
    let (are_own, wrong) = match (stated, from_token) {
        (Some(StatedAnswers { tokens, wrong }), _) => {
            (own.is_some_and(|own| tokens == own.map(|token| Some(u64::from(token)))), wrong)
        }
        (None, found) => {
            let found = json!(found);
            let wanted = "[\"no\", \"yes\"], in a model of the type qwen3";
            (found == json!(["no", "yes"]), keys.config.wrong(FROM_TOKEN, found, wanted))
        }
    };
    let head = own.and_then(|own| head(entries, own));
    let (true, Some(template), Some(head)) = (are_own, family.rerank_template, head) else { return Err(wrong) };
    entries.retain(|(tensor, _)| tensor.name != OUTPUTS[0]);
    entries.push(head);
    keys.ranks(Some(template));
    keys.replace("classifier.output_labels", &ANSWERS.map(str::to_owned)[..]);
    Ok(())
}

/// The tokens of both answers, if each is one token.
fn tokens(text: &Text) -> Option<[TokenId; 2]> {
    let tokenizer = text.tokenizer().ok()?;
    let token = |answer: &str| match tokenizer.encode(answer, false, false).ok()?[..] {
        [token] => Some(token),
        _ => None,
    };
    Some([token(ANSWERS[0])?, token(ANSWERS[1])?])
}

/// The rows of the output matrix for some tokens; `None` if it lacks one of them.
fn head(entries: &[Entry], tokens: [TokenId; 2]) -> Option<Entry> {
    let (tensor, bytes) = OUTPUTS.iter().find_map(|name| entries.iter().find(|(tensor, _)| tensor.name == *name))?;
    let columns = *tensor.dims.first()?;
    let row_bytes = tensor.format()?.row_bytes(usize::try_from(columns).ok()?)?;
    let bytes = bytes.as_slice();
    let row = |token: TokenId| bytes.get(token as usize * row_bytes..(token as usize + 1) * row_bytes);
    let rows: Vec<u8> = [row(tokens[0])?, row(tokens[1])?].concat();
    let dims = vec![columns, tokens.len() as u64];
    let n_bytes = Some(rows.len() as u64);
    Some((TensorInfo { name: HEAD.to_owned(), dims, n_bytes, start: 0, ..tensor.clone() }, rows.into()))
}
