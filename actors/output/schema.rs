//! What the JSON schema of a tool says about the types of its parameters.

use serde_json::Value;

use super::alternatives::{Keywords, alternatives, property};

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
    const NONE: Types = Types {
        null: false,
        integer: false,
        number: false,
        boolean: false,
        object: false,
        array: false,
        string: false,
    };

    /// Every type.
    pub(super) const ANY: Types =
        Types { null: true, integer: true, number: true, boolean: true, object: true, array: true, string: true };

    /// Only texts.
    pub(super) const STRING: Types = Types { string: true, ..Types::NONE };

    /// Only objects.
    pub(super) const OBJECT: Types = Types { object: true, ..Types::NONE };

    /// Only lists.
    pub(super) const ARRAY: Types = Types { array: true, ..Types::NONE };

    /// The types of a parameter by the schema of all parameters.
    pub(super) fn of_parameter(schema: &Value, name: &str) -> Types {
        let mut types = Types::NONE;
        for object in alternatives(schema, schema) {
            types.extend(Types::of(&property(&object, name), schema));
        }
        types.or_any()
    }

    /// The types of a schema. `root` has the definitions.
    pub(super) fn of(schema: &Value, root: &Value) -> Types {
        let mut types = Types::NONE;
        for alternative in alternatives(schema, root) {
            types.extend(Types::of_keywords(&alternative));
        }
        types.or_any()
    }

    /// The types of a schema that has no compositions.
    pub(super) fn of_keywords(schema: &Keywords) -> Types {
        let mut types = Types::NONE;
        match schema.get("type") {
            Some(Value::String(name)) => types.add(name),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).for_each(|name| types.add(name)),
            _ => types.add_untyped(schema),
        }
        types.null |= schema.get("nullable") == Some(&Value::Bool(true));
        types.or_any()
    }

    /// Whether a value is of one of the types.
    pub(super) fn has(self, value: &Value) -> bool {
        let mut types = self;
        types.integer |= types.number;
        let before = types;
        types.add(type_of(value));
        types == before
    }

    fn or_any(self) -> Types {
        if self == Types::NONE { Types::ANY } else { self }
    }

    fn extend(&mut self, other: Types) {
        self.null |= other.null;
        self.integer |= other.integer;
        self.number |= other.number;
        self.boolean |= other.boolean;
        self.object |= other.object;
        self.array |= other.array;
        self.string |= other.string;
    }

    /// A schema without a type: its values or its other keywords tell.
    fn add_untyped(&mut self, schema: &Keywords) {
        let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        values.for_each(|value| self.add(type_of(value)));
        self.object |= schema.contains_key("properties");
        self.array |= schema.contains_key("items");
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
        let none = Types::NONE;
        let types = |name| Types::of_parameter(&schema, name);
        assert_eq!(types("a"), Types::STRING);
        assert_eq!(types("b"), Types { integer: true, null: true, ..none });
        assert_eq!(types("c"), Types { object: true, array: true, ..none });
        assert_eq!(types("e"), Types { string: true, integer: true, ..none });
        assert_eq!(types("f"), Types { string: true, null: true, ..none });
        assert!(["g", "h", "unknown"].iter().all(|name| types(name) == Types::ANY));
        assert!(types("b").has(&json!(1)) && !types("b").has(&json!(1.5)) && !types("b").has(&json!("1")));
    }

    #[test]
    fn parameters_are_found_in_all_parts_of_a_schema() {
        let zip = json!({"type": "object", "properties": {"zip": {"type": "string"}}});
        for schema in [
            json!({"$ref": "#/definitions/X", "definitions": {"X": zip}}),
            json!({"allOf": [zip, {"required": ["zip"]}]}),
            json!({"anyOf": [zip, {"properties": {"zip": {"const": "1"}}}]}),
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
        ] {
            assert_eq!(Types::of_parameter(&schema, "zip"), Types::STRING, "{schema}");
        }
    }
}
