//! The fields of a request that its response repeats.

use serde_json::{Map, Value, json};

use crate::api::fields::Fields;
use crate::api::json_size;
use crate::core::request::SamplingParams;
use crate::serving::error::ApiError;
use crate::serving::options::GenerationOptions;

/// The fields of a request that its response repeats, with the defaults of those that were absent.
#[derive(Debug, Clone)]
pub(super) struct Echo(pub Map<String, Value>);

impl Echo {
    /// Reads and checks the fields. `is_kept`: the response will be stored.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field.
    pub fn read(fields: &Fields<'_>, options: &GenerationOptions, is_kept: bool) -> Result<Self, ApiError> {
        let mut echo = Map::new();
        let mut add = |name: &str, value: Value| echo.insert(name.to_owned(), value);
        for name in ["instructions", "user", "safety_identifier", "prompt_cache_key", "previous_response_id"] {
            add(name, json!(fields.string(name)?));
        }
        for (name, default) in [("truncation", "disabled"), ("service_tier", "default")] {
            add(name, json!(fields.string(name)?.unwrap_or(default)));
        }
        add("metadata", fields.object("metadata")?.map_or_else(|| json!({}), |metadata| json!(metadata.map())));
        add("text", text(fields)?);
        add("reasoning", reasoning(fields)?);
        add("tools", tools(fields)?);
        add("tool_choice", fields.get("tool_choice").cloned().unwrap_or_else(|| json!("auto")));
        add("parallel_tool_calls", json!(fields.bool("parallel_tool_calls")?.unwrap_or(true)));
        add("max_output_tokens", json!(options.max_tokens));
        add("max_tool_calls", json!(fields.count("max_tool_calls", 1)?));
        add("top_logprobs", json!(options.logprobs.unwrap_or(0)));
        add("background", json!(false));
        add("store", json!(is_kept));
        let mut echo = Echo(echo);
        echo.set_sampling(&options.sampling);
        Ok(echo)
    }

    /// Repeats how the answer is sampled, which is known only when the model is.
    pub fn set_sampling(&mut self, sampling: &SamplingParams) {
        for (name, number) in [
            ("temperature", sampling.temperature),
            ("top_p", sampling.top_p),
            ("presence_penalty", sampling.presence_penalty),
            ("frequency_penalty", sampling.frequency_penalty),
        ] {
            self.0.insert(name.to_owned(), shortest(number));
        }
    }

    /// The estimated memory, in bytes.
    pub fn bytes(&self) -> usize {
        json_size::of_object(&self.0)
    }
}

/// `reasoning`, with both of its fields.
fn reasoning(fields: &Fields<'_>) -> Result<Value, ApiError> {
    let given = fields.object("reasoning")?;
    let read = |name: &str| given.as_ref().map_or(Ok(None), |reasoning| reasoning.string(name));
    Ok(json!({ "effort": read("effort")?, "summary": read("summary")? }))
}

/// `text`, with its format. A schema has all of its fields.
fn text(fields: &Fields<'_>) -> Result<Value, ApiError> {
    let mut text = fields.object("text")?.map_or_else(|| json!({}), |text| json!(text.map()));
    if text["format"].is_null() {
        text["format"] = json!({ "type": "text" });
    }
    if text["format"]["type"] == "json_schema"
        && let Some(format) = text["format"].as_object_mut()
    {
        format.entry("description").or_insert(Value::Null);
        format.entry("strict").or_insert(json!(false));
    }
    Ok(text)
}

/// The tools as they were sent. A function has all of its fields.
fn tools(fields: &Fields<'_>) -> Result<Value, ApiError> {
    let mut tools = fields.array("tools")?.cloned().unwrap_or_default();
    for tool in tools.iter_mut().filter(|tool| tool["type"] == "function").filter_map(Value::as_object_mut) {
        for name in ["description", "parameters", "strict"] {
            tool.entry(name).or_insert(Value::Null);
        }
    }
    Ok(Value::Array(tools))
}

/// The number as a client writes it: 0.1 and not 0.10000000149011612.
fn shortest(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_and_functions_are_repeated_with_all_of_their_fields() {
        let body = json!({
            "text": { "verbosity": "low", "format": { "type": "json_schema", "name": "n", "schema": {} } },
            "tools": [{ "type": "function", "name": "f" }, { "type": "web_search" }],
        });
        let fields = Fields::of_body(&body).unwrap();
        assert_eq!(
            text(&fields).unwrap(),
            json!({ "verbosity": "low", "format": {
                "type": "json_schema", "name": "n", "schema": {}, "description": null, "strict": false
            } })
        );
        let function =
            json!({ "type": "function", "name": "f", "description": null, "parameters": null, "strict": null });
        assert_eq!(tools(&fields).unwrap(), json!([function, { "type": "web_search" }]));
        let empty = json!({ "text": { "verbosity": "low" } });
        let read = text(&Fields::of_body(&empty).unwrap()).unwrap();
        assert_eq!(read, json!({ "verbosity": "low", "format": { "type": "text" } }));
    }

    #[test]
    fn numbers_are_repeated_as_they_were_written() {
        assert_eq!(shortest(0.1), json!(0.1));
        assert_eq!(shortest(1.0), json!(1.0));
    }
}
