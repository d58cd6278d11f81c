//! The names of tools, as clients and as models know them.
//!
//! A client may group tools in namespaces, as Codex does with those of each MCP server. To the model every tool is a function, so
//! its name begins with that of the namespace there.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::api::fields::{Fields, missing};
use crate::serving::error::ApiError;

/// Stands between the namespace and the name.
const SEPARATOR: &str = "__";

/// The name of a tool, as a client knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) struct ToolName {
    pub namespace: Option<String>,
    pub name: String,
}

impl ToolName {
    /// Reads `name` and `namespace` of a tool or of a call.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let name = fields.string("name")?.ok_or_else(|| missing(&fields.path("name"), "the tool's name"))?;
        let namespace = fields.string("namespace")?.filter(|namespace| !namespace.is_empty());
        Ok(ToolName { namespace: namespace.map(str::to_owned), name: name.to_owned() })
    }

    /// The name that the model gets: `mcp__files__read` for `read` of the namespace `mcp__files`.
    pub fn for_model(&self) -> String {
        match self.namespace.as_deref() {
            None => self.name.clone(),
            Some(namespace) if namespace.ends_with(SEPARATOR) => format!("{namespace}{}", self.name),
            Some(namespace) => format!("{namespace}{SEPARATOR}{}", self.name),
        }
    }

    /// Writes `name` and `namespace` into a call.
    pub fn write(&self, call: &mut Value) {
        call["name"] = json!(self.name);
        if let Some(namespace) = &self.namespace {
            call["namespace"] = json!(namespace);
        }
    }
}

/// The tools of a request that clients do not know as functions of the same name, by the names that the model gets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::api) struct ClientTools {
    /// Those that take text. To the model they have one parameter, `input`.
    pub custom: HashSet<String>,
    /// Those in namespaces.
    pub namespaced: HashMap<String, ToolName>,
}

impl ClientTools {
    /// Whether calls of a tool have text instead of arguments.
    pub fn is_custom(&self, for_model: &str) -> bool {
        self.custom.contains(for_model)
    }

    /// The name of a tool as the client knows it.
    pub fn name(&self, for_model: String) -> ToolName {
        self.namespaced.get(&for_model).cloned().unwrap_or(ToolName { namespace: None, name: for_model })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_comes_before_the_name_and_is_separated_once() {
        for (namespace, expected) in
            [(None, "read"), (Some("mcp__files"), "mcp__files__read"), (Some("mcp__files__"), "mcp__files__read")]
        {
            let name = ToolName { namespace: namespace.map(str::to_owned), name: "read".to_owned() };
            assert_eq!(name.for_model(), expected);
        }
    }
}
