//! The field `lora` of llama-server: the adapter of a request by its number, with its scale.

use super::fields::{Fields, missing};
use crate::serving::error::ApiError;
use crate::serving::options::AdapterChoice;

/// Reads `lora`, a list of objects with `id` and `scale`. Adapters with scale 0 are not used. `None`: the one that `model` names.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<AdapterChoice>, ApiError> {
    let mut choices = Vec::new();
    for (index, item) in fields.array("lora")?.into_iter().flatten().enumerate() {
        let item = Fields::of(item, fields.path(&format!("lora.{index}")))?;
        let id = item.integer("id", 0..=i64::from(u32::MAX))?;
        let id = id.ok_or_else(|| missing(&item.path("id"), "the number of an adapter"))? as usize;
        choices.push(AdapterChoice { id, scale: item.number("scale", -1e3..=1e3)?.unwrap_or(1.0) });
    }
    choices.retain(|choice| choice.scale != 0.0);
    match choices[..] {
        [] => Ok(None),
        [choice] => Ok(Some(choice)),
        _ => Err(ApiError::invalid("lora", "a request has at most one adapter with a `scale` other than 0")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_of(value: Value) -> Result<Option<AdapterChoice>, ApiError> {
        let body = json!({ "lora": value });
        read(&Fields::of_body(&body)?)
    }

    #[test]
    fn one_adapter_may_have_a_scale() {
        assert_eq!(read_of(json!([])).ok(), Some(None));
        let chosen = read_of(json!([{ "id": 0, "scale": 0.0 }, { "id": 2, "scale": 0.5 }]));
        assert_eq!(chosen.ok(), Some(Some(AdapterChoice { id: 2, scale: 0.5 })));
        for wrong in [json!([{ "id": 0 }, { "id": 1 }]), json!([{ "scale": 1 }]), json!([1]), json!({})] {
            assert!(read_of(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
