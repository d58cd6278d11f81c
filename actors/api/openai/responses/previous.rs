//! The conversation that a request continues with `previous_response_id`.

use std::sync::Arc;

use axum::body::Bytes;
use serde_json::Value;

use super::store::{ResponseStore, StoredResponse};
use crate::api::caller::Caller;
use crate::api::extract::{TEXT_COPIES, parse};
use crate::api::fields::Fields;
use crate::api::request_memory::Reservation;
use crate::api::server::Server;
use crate::core::shared_limit::Client;
use crate::serving::blocking::off_worker;
use crate::serving::error::{ApiError, clip};

/// The field that names the response to continue.
pub(super) const FIELD: &str = "previous_response_id";

/// Most responses in one conversation.
const MOST_RESPONSES: usize = 4096;

/// The items of earlier responses.
pub(super) struct Earlier {
    /// For each response the items of its input, then those of its output; the oldest response first.
    pub items: Vec<Value>,
    /// The memory of the body, and of the items and what is made of them.
    pub memory: Reservation,
}

impl Earlier {
    /// Reads `previous_response_id`. Without it there are no items. `memory`: what the body holds.
    ///
    /// # Errors
    /// [`ApiError::PreviousResponseNotFound`] when a response of the conversation is not kept for this client,
    /// [`ApiError::Unsupported`] when this server keeps none, [`ApiError::InvalidRequest`] for a conversation that is longer
    /// than a body may be, and the errors of [`Reservation::grow`].
    pub async fn read(
        server: &Server,
        caller: &Caller,
        fields: &Fields<'_>,
        mut memory: Reservation,
    ) -> Result<Self, ApiError> {
        let Some(id) = fields.string(FIELD)? else { return Ok(Earlier { items: Vec::new(), memory }) };
        let chain = chain(&server.responses, &caller.client(), id)?;
        let texts: Vec<Bytes> = chain.iter().rev().flat_map(|response| items(response)).collect();
        let bytes: usize = texts.iter().map(Bytes::len).sum();
        check_size(bytes, server.options().max_body_bytes)?;
        memory.grow(TEXT_COPIES * bytes)?;
        off_worker(bytes, move || {
            let items = texts.iter().map(|text| parse(text, &mut memory)).collect::<Result<_, _>>()?;
            Ok(Earlier { items, memory })
        })
        .await
    }
}

/// The response with this id and those that it continues, the latest first.
fn chain(store: &ResponseStore, owner: &Client, id: &str) -> Result<Vec<Arc<StoredResponse>>, ApiError> {
    if !store.is_on() {
        let advice = "this server stores no responses; send the whole conversation in `input`";
        let message = format!("`{FIELD}` does not support this value: {advice}");
        return Err(ApiError::Unsupported { param: FIELD.to_owned(), message });
    }
    let mut chain: Vec<Arc<StoredResponse>> = Vec::new();
    let mut next = Some(id.to_owned());
    while let Some(id) = next {
        let response = store.get(owner, &id).ok_or_else(|| ApiError::PreviousResponseNotFound(clip(&id)))?;
        next = response.previous.clone();
        chain.push(response);
        if chain.len() > MOST_RESPONSES {
            let message = format!(
                "the conversation of `{FIELD}` has more than {MOST_RESPONSES} responses; send a shorter one in `input`"
            );
            return Err(ApiError::invalid(FIELD, message));
        }
    }
    Ok(chain)
}

fn items(response: &StoredResponse) -> impl Iterator<Item = Bytes> {
    response.input.iter().map(|item| &item.json).chain(&response.output).cloned()
}

/// A conversation may be as long as a body with all of it.
fn check_size(bytes: usize, most: usize) -> Result<(), ApiError> {
    if bytes <= most {
        return Ok(());
    }
    let message = format!(
        "the conversation of `{FIELD}` has {bytes} bytes, and at most {most} are accepted; send a shorter one in `input`"
    );
    Err(ApiError::invalid(FIELD, message))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn keep(store: &ResponseStore, number: usize) {
        store.insert(StoredResponse {
            id: number.to_string(),
            owner: None,
            previous: number.checked_sub(1).map(|previous| previous.to_string()),
            object: Bytes::new(),
            input: Vec::new(),
            output: Vec::new(),
        });
    }

    #[test]
    fn a_chain_is_followed_to_its_start_and_is_limited() {
        let store = ResponseStore::new(64 << 20);
        (0..=MOST_RESPONSES).for_each(|number| keep(&store, number));
        let ids = |id: &str| chain(&store, &None, id).map(|chain| chain.iter().map(|one| one.id.clone()).collect());
        assert_eq!(ids("2"), Ok(vec!["2".to_owned(), "1".to_owned(), "0".to_owned()]));
        assert_eq!(ids(&(MOST_RESPONSES - 1).to_string()).unwrap().len(), MOST_RESPONSES);
        let error = ids(&MOST_RESPONSES.to_string()).unwrap_err();
        assert!(error.to_string().contains("more than 4096 responses"), "{error}");
        assert!(store.remove(&None, "1"));
        assert_eq!(ids("2"), Err(ApiError::PreviousResponseNotFound("1".to_owned())));
        assert_eq!(ids("0").unwrap().len(), 1);
    }

    #[test]
    fn a_conversation_is_as_long_as_a_body_may_be() {
        assert!(check_size(10, 10).is_ok());
        assert!(check_size(11, 10).unwrap_err().to_string().contains("has 11 bytes, and at most 10"));
    }
}
