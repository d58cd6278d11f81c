//! What `/tools` prints: the servers with their tools, and which of these run without asking.

use super::approval::Approval;
use crate::cli::terminal::{Align, table};
use crate::mcp::servers::{ServerTool, Servers};

/// Characters of a description.
const DESCRIPTION: usize = 60;

/// A table of the tools, with a line for each server that has none.
pub fn listing(servers: &Servers, approval: &Approval) -> String {
    let columns = [("TOOL", Align::Left), ("RUNS", Align::Left), ("DESCRIPTION", Align::Left)];
    let row = |tool: &ServerTool| {
        let runs = match (approval.allows(tool), tool.is_read_only) {
            (true, _) => "without asking",
            (false, true) => "after asking (only reads)",
            (false, false) => "after asking",
        };
        vec![format!("{}.{}", tool.server, tool.name), runs.to_owned(), description(tool)]
    };
    let rows: Vec<Vec<String>> = servers.tools().iter().map(row).collect();
    let has_none = |name: &&str| !servers.tools().iter().any(|tool| tool.server == **name);
    let without = servers.names().filter(has_none).map(|name| format!("{name} has no tools\n"));
    let listed = if rows.is_empty() { String::new() } else { table(&columns, &rows) };
    std::iter::once(listed).chain(without).collect()
}

/// The beginning of the first line.
fn description(tool: &ServerTool) -> String {
    let line = tool.description.as_deref().unwrap_or_default().trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(DESCRIPTION) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
