//! The names of tools as models know them: one name for the server and the tool, in the letters that all templates take.

use std::collections::HashSet;

use sha2::{Digest, Sha256};

/// Stands between the server and the tool.
const SEPARATOR: &str = "__";

/// Most characters of a name.
const MAX_LENGTH: usize = 64;

/// Makes names that are different from each other.
#[derive(Debug, Default)]
pub struct ToolNames(HashSet<String>);

impl ToolNames {
    /// A name that none before has: `server__tool`, with `_` for letters that names may not have.
    pub fn add(&mut self, server: &str, tool: &str) -> String {
        let whole = shortened(format!("{}{SEPARATOR}{}", valid(server), valid(tool)), server, tool);
        let mut name = whole.clone();
        for number in 2.. {
            if self.0.insert(name.clone()) {
                break;
            }
            let end = format!("_{number}");
            name = format!("{}{end}", &whole[..whole.len().min(MAX_LENGTH - end.len())]);
        }
        name
    }
}

fn valid(text: &str) -> String {
    let is_valid = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    text.chars().map(|letter| if is_valid(letter) { letter } else { '_' }).collect()
}

/// A long name ends with a part of a hash, so that it does not depend on the other tools.
fn shortened(name: String, server: &str, tool: &str) -> String {
    if name.len() <= MAX_LENGTH {
        return name;
    }
    let hash = Sha256::digest(format!("{server}\0{tool}"));
    let end: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}_{end}", &name[..MAX_LENGTH - end.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_server_the_tool_and_valid_letters() {
        let mut names = ToolNames::default();
        assert_eq!(names.add("files", "read"), "files__read");
        assert_eq!(names.add("my files", "read.täxt/now"), "my_files__read_t_xt_now");
    }

    #[test]
    fn names_that_would_be_equal_are_numbered() {
        let mut names = ToolNames::default();
        let all = [("a b", "x"), ("a_b", "x"), ("a.b", "x"), ("a", "b__x"), ("a__b", "x")];
        let all = all.map(|(server, tool)| names.add(server, tool));
        assert_eq!(all, ["a_b__x", "a_b__x_2", "a_b__x_3", "a__b__x", "a__b__x_2"]);
    }

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let mut names = ToolNames::default();
        let long = "t".repeat(100);
        let all = [format!("{long}1"), format!("{long}2"), format!("{long}1")].map(|tool| names.add("server", &tool));
        assert!(all.iter().all(|name| name.len() == 64), "{all:?}");
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 3);
    }
}
