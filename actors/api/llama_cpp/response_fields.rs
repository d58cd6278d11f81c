//! Leaves out what a client does not want of an answer.

use serde_json::{Map, Value};

use crate::api::fields::{Fields, wrong_type};
use crate::serving::error::ApiError;

/// The fields that the client wants of a whole answer. Empty: all of them.
#[derive(Default)]
pub(super) struct ResponseFields(Vec<String>);

/// Most names of fields. Each one copies its value.
const MOST_FIELDS: usize = 64;

impl ResponseFields {
    /// Reads `response_fields`: names, or paths such as `timings/prompt_n`.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let path = fields.path("response_fields");
        let read_one = |name: &Value| match name.as_str() {
            Some(name) => Ok(name.to_owned()),
            None => Err(wrong_type(&path, "a list of strings", name)),
        };
        let names = fields.array("response_fields")?.map_or(&[][..], Vec::as_slice);
        if names.len() > MOST_FIELDS {
            let message = format!("`{path}` accepts at most {MOST_FIELDS} names, not {}", names.len());
            return Err(ApiError::invalid(path, message));
        }
        names.iter().map(read_one).collect::<Result<_, _>>().map(ResponseFields)
    }

    /// The wanted fields, each under its path. Those that do not exist are left out.
    pub fn select(&self, object: Value) -> Value {
        if self.0.is_empty() {
            return object;
        }
        let find = |name: &String| {
            let found = name.split('/').try_fold(&object, |object, key| object.get(key))?;
            Some((name.clone(), found.clone()))
        };
        Value::Object(self.0.iter().filter_map(find).collect::<Map<_, _>>())
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(names: Value) -> Result<ResponseFields, ApiError> {
        let body = json!({ "response_fields": names });
        ResponseFields::read(&Fields::of_body(&body).unwrap())
    }

    #[test]
    fn wanted_fields_are_found_by_path() {
        let wanted = read(json!(["stop_type", "timings/prompt_n", "timings/none", "none"])).unwrap();
        let object = json!({ "content": "a", "stop_type": "eos", "timings": { "prompt_n": 5 } });
        assert_eq!(wanted.select(object.clone()), json!({ "stop_type": "eos", "timings/prompt_n": 5 }));
        assert_eq!(ResponseFields::default().select(object.clone()), object);
    }

    #[test]
    fn names_are_strings_and_not_too_many() {
        assert!(read(json!(["content", 7])).is_err() && read(json!(vec!["content"; 65])).is_err());
        assert!(read(json!(vec!["content"; 64])).is_ok());
    }
}
