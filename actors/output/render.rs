//! How a chat template is asked for what it renders.

use serde_json::{Map, Value};

/// Renders a template with messages, tools, variables and whether the prompt of an answer is added. `None` when it refuses.
pub type Render<'a> = dyn Fn(&Value, Option<&Value>, &Map<String, Value>, bool) -> Option<String> + 'a;
