//! What the JSON schema of a tool says about the types of its parameters.

use serde_json::Value;

/// References and unions within each other that are followed.
const MAX_DEPTH: usize = 8;

/// The types that a value may have. Without any it may have all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Types {
    pub null: bool,
    pub integer: bool,
    pub number: bool,
    pub boolean: bool,
    pub object: bool,
    pub array: bool,
    pub string: bool,
}

impl Types {
    /// Every type.
    pub(super) const ANY: Types =
        Types { null: true, integer: true, number: true, boolean: true, object: true, array: true, string: true };

    /// Only texts.
    pub(super) const STRING: Types =
        Types { null: false, integer: false, number: false, boolean: false, object: false, array: false, string: true };

    /// The types of a parameter by the schema of all parameters.
    pub(super) fn of_parameter(schema: &Value, name: &str) -> Types {
        match schema.get("properties").and_then(|properties| properties.get(name)) {
            Some(parameter) => Types::of(parameter, schema),
            None => schema.get("additionalProperties").map_or(Types::ANY, |other| Types::of(other, schema)),
        }
    }

    /// The types of a schema. `root` has the definitions.
    pub(super) fn of(schema: &Value, root: &Value) -> Types {
        let mut types = Types::default();
        types.collect(schema, root, MAX_DEPTH);
        if types == Types::default() { Types::ANY } else { types }
    }

    fn collect(&mut self, schema: &Value, root: &Value, depth: usize) {
        if depth == 0 {
            return;
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.add(name),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).for_each(|name| self.add(name)),
            _ => self.collect_untyped(schema),
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            let parts = schema.get(key).and_then(Value::as_array);
            parts.into_iter().flatten().for_each(|part| self.collect(part, root, depth - 1));
        }
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
        if let Some(target) = target.and_then(|path| root.pointer(path)) {
            self.collect(target, root, depth - 1);
        }
        self.null |= schema.get("nullable") == Some(&Value::Bool(true));
    }

    /// A schema without a type: its values or its other keys tell.
    fn collect_untyped(&mut self, schema: &Value) {
        let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        values.chain(schema.get("const")).for_each(|value| self.add(type_of(value)));
        self.object |= schema.get("properties").is_some();
        self.array |= schema.get("items").is_some();
    }

    fn add(&mut self, name: &str) {
        match name {
            "null" => self.null = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "boolean" => self.boolean = true,
            "object" => self.object = true,
            "array" => self.array = true,
            "string" => self.string = true,
            _ => {}
        }
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_come_from_all_of_a_schema() {
        let schema = json!({"properties": {
            "a": {"type": "string"}, "b": {"type": ["integer", "null"]}, "c": {"anyOf": [{"type": "object"}, {"$ref": "#/$defs/d"}]},
            "e": {"enum": ["x", 1]}, "f": {"type": "string", "nullable": true}, "g": {}, "h": {"$ref": "#/properties/h"}},
            "$defs": {"d": {"type": "array"}}});
        let none = Types::default();
        let types = |name| Types::of_parameter(&schema, name);
        assert_eq!(types("a"), Types::STRING);
        assert_eq!(types("b"), Types { integer: true, null: true, ..none });
        assert_eq!(types("c"), Types { object: true, array: true, ..none });
        assert_eq!(types("e"), Types { string: true, integer: true, ..none });
        assert_eq!(types("f"), Types { string: true, null: true, ..none });
        assert!(["g", "h", "unknown"].iter().all(|name| types(name) == Types::ANY));
    }
}
