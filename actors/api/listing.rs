//! Lists in parts, in the manner of OpenAI's API: `limit`, `order` and `after`.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::serving::error::{ApiError, clip};

/// The query of a list.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ListQuery {
    limit: Option<String>,
    order: Option<String>,
    after: Option<String>,
}

/// What a list has.
pub(super) struct Items<'a> {
    /// What `after` must be: "an input item of this response".
    pub what: &'a str,
    /// The `limit` of a query without one.
    pub default: usize,
    /// The largest `limit`.
    pub most: usize,
}

/// A part of a list.
#[derive(Debug, PartialEq)]
pub(super) struct Page<T> {
    pub items: Vec<T>,
    /// There are items behind these.
    pub has_more: bool,
}

impl<T> Page<T> {
    /// The object of the list without its `data`.
    pub fn ends(&self, id: impl Fn(&T) -> &str) -> Value {
        let [first_id, last_id] = [self.items.first(), self.items.last()].map(|item| item.map(&id));
        json!({ "object": "list", "first_id": first_id, "last_id": last_id, "has_more": self.has_more })
    }

    /// The object of the list.
    pub fn whole(&self, id: impl Fn(&T) -> &str, object: impl Fn(&T) -> Value) -> Value {
        let mut list = self.ends(id);
        list["data"] = self.items.iter().map(object).collect();
        list
    }
}

impl ListQuery {
    /// The part of `items` that the query asks for. They are in ascending order; the usual order is descending.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the parameter.
    pub fn page<T>(&self, mut items: Vec<T>, id: impl Fn(&T) -> &str, of: &Items<'_>) -> Result<Page<T>, ApiError> {
        let limit = limit(self.limit.as_deref(), of)?;
        if self.is_descending()? {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let at = position(&items, id, ("after", after), of.what)?;
            items.drain(..=at);
        }
        let has_more = items.len() > limit;
        items.truncate(limit);
        Ok(Page { items, has_more })
    }

    fn is_descending(&self) -> Result<bool, ApiError> {
        match self.order.as_deref() {
            None | Some("desc") => Ok(true),
            Some("asc") => Ok(false),
            Some(other) => Err(ApiError::invalid("order", format!("`order` must be asc or desc, not {}", clip(other)))),
        }
    }
}

/// Reads `limit`.
///
/// # Errors
/// [`ApiError::InvalidRequest`] when it is out of range.
pub(super) fn limit(limit: Option<&str>, of: &Items<'_>) -> Result<usize, ApiError> {
    let Some(limit) = limit else { return Ok(of.default) };
    let message = || format!("`limit` must be an integer from 1 to {}, not {}", of.most, clip(limit));
    let parsed = limit.parse().ok().filter(|limit| (1..=of.most).contains(limit));
    parsed.ok_or_else(|| ApiError::invalid("limit", message()))
}

/// Where the item with the id in this parameter is.
///
/// # Errors
/// [`ApiError::InvalidRequest`] when there is none.
pub(super) fn position<T>(
    items: &[T],
    id: impl Fn(&T) -> &str,
    (name, wanted): (&str, &str),
    what: &str,
) -> Result<usize, ApiError> {
    let message = || format!("`{name}` must be the id of {what}, not {}", clip(wanted));
    items.iter().position(|item| id(item) == wanted).ok_or_else(|| ApiError::invalid(name, message()))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    const ITEMS: Items<'_> = Items { what: "an item", default: 20, most: 100 };

    fn page(query: [Option<&str>; 3], count: usize) -> Result<(String, bool), ApiError> {
        let items: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        let [limit, order, after] = query.map(|value| value.map(str::to_owned));
        let page = ListQuery { limit, order, after }.page(items, |item| item, &ITEMS)?;
        Ok((page.items.concat(), page.has_more))
    }

    #[test]
    fn a_page_is_a_part_of_the_items_in_either_order() {
        assert_eq!(page([None, None, None], 3), Ok(("210".to_owned(), false)));
        assert_eq!(page([Some("2"), Some("asc"), None], 3), Ok(("01".to_owned(), true)));
        assert_eq!(page([Some("2"), Some("asc"), Some("1")], 4), Ok(("23".to_owned(), false)));
        assert_eq!(page([Some("1"), None, Some("1")], 3), Ok(("0".to_owned(), false)));
        assert_eq!(page([None, None, Some("0")], 3), Ok((String::new(), false)));
        assert_eq!(page([None, Some("asc"), None], 21).unwrap().0.len(), 10 + 2 * 10);
        assert!(page([None, None, None], 21).unwrap().1);
    }

    #[test]
    fn a_wrong_query_is_named() {
        for (query, name) in [
            ([Some("0"), None, None], "limit"),
            ([Some("101"), None, None], "limit"),
            ([Some("x"), None, None], "limit"),
            ([None, Some("up"), None], "order"),
            ([None, None, Some("9")], "after"),
        ] {
            assert!(page(query, 3).unwrap_err().to_string().starts_with(&format!("`{name}` must be")), "{query:?}");
        }
    }
}
