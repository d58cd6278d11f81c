//! Which tools run without asking.

use std::collections::HashSet;

use crate::mcp::servers::ServerTool;

/// The patterns of the settings, and what the user has added in this chat.
#[derive(Debug, Clone, Default)]
pub struct Approval {
    patterns: Vec<String>,
    /// Server and tool.
    always: HashSet<(String, String)>,
}

impl Approval {
    /// The tools of these patterns.
    #[must_use]
    pub fn new(patterns: Vec<String>) -> Self {
        Approval { patterns, always: HashSet::new() }
    }

    /// Whether a tool runs without asking. What its server says about it does not count: that may be wrong.
    #[must_use]
    pub fn allows(&self, tool: &ServerTool) -> bool {
        self.patterns.iter().any(|pattern| matches(pattern, tool)) || self.always.contains(&key(tool))
    }

    /// Lets a tool run without asking until the end of the program.
    pub fn always_allow(&mut self, tool: &ServerTool) {
        self.always.insert(key(tool));
    }

    /// The patterns that no tool matches, which may be misspelt.
    #[must_use]
    pub fn unused<'a>(&'a self, tools: &[ServerTool]) -> Vec<&'a str> {
        let is_unused = |pattern: &&String| !tools.iter().any(|tool| matches(pattern, tool));
        self.patterns.iter().filter(is_unused).map(String::as_str).collect()
    }
}

fn key(tool: &ServerTool) -> (String, String) {
    (tool.server.clone(), tool.name.clone())
}

fn matches(pattern: &str, tool: &ServerTool) -> bool {
    let rest = pattern.strip_prefix(tool.server.as_str()).and_then(|rest| rest.strip_prefix('.'));
    pattern == "*" || rest.is_some_and(|name| name == "*" || name == tool.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(server: &str, name: &str) -> ServerTool {
        ServerTool {
            for_model: String::new(),
            server: server.to_owned(),
            name: name.to_owned(),
            description: None,
            parameters: serde_json::json!({}),
            is_read_only: true,
        }
    }

    #[test]
    fn a_pattern_names_a_tool_a_server_or_all() {
        for (pattern, expected) in [
            ("files.read", true),
            ("files.*", true),
            ("*", true),
            ("files.write", false),
            ("files.rea", false),
            ("file.*", false),
            ("files", false),
            ("files.", false),
            ("*.read", false),
            ("", false),
        ] {
            let approval = Approval::new(vec![pattern.to_owned()]);
            assert_eq!(approval.allows(&tool("files", "read")), expected, "{pattern}");
        }
    }

    #[test]
    fn a_tool_that_is_only_read_is_asked_for_until_the_user_allows_it() {
        let mut approval = Approval::default();
        assert!(!approval.allows(&tool("files", "read")));
        approval.always_allow(&tool("files", "read"));
        assert!(approval.allows(&tool("files", "read")));
        assert!(!approval.allows(&tool("files", "write")) && !approval.allows(&tool("other", "read")));
    }

    #[test]
    fn patterns_without_a_tool_are_found() {
        let approval = Approval::new(["files.read", "files.raed", "*"].map(str::to_owned).to_vec());
        assert_eq!(approval.unused(&[tool("files", "read")]), ["files.raed"]);
    }
}
