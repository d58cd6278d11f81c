//! `${VAR}` and `${env:VAR}` in the strings of the file, which stand for variables of the environment.

/// The value of a variable; `None` if it is not set.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Replaces every placeholder. `${VAR:-text}` stands for the text where the variable is not set.
///
/// # Errors
/// A sentence about a variable that is not set, or about a placeholder that is not known.
pub fn replaced(text: &str, variable: Lookup<'_>) -> Result<String, String> {
    let (mut done, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let (inside, after) = after.split_once('}').ok_or_else(|| format!("{text:?} has `${{` without `}}`"))?;
        done.push_str(before);
        done.push_str(&value(inside, variable)?);
        rest = after;
    }
    done.push_str(rest);
    Ok(done)
}

fn value(inside: &str, variable: Lookup<'_>) -> Result<String, String> {
    let (name, default) = inside.split_once(":-").map_or((inside, None), |(name, default)| (name, Some(default)));
    let name = name.strip_prefix("env:").unwrap_or(name);
    let is_name = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if !is_name {
        return Err(format!("`${{{inside}}}` is not known: only `${{VAR}}` and `${{env:VAR}}` are replaced"));
    }
    let found = variable(name).or_else(|| default.map(str::to_owned));
    found.ok_or_else(|| format!("the environment variable {name} is not set"))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn replace(text: &str) -> Result<String, String> {
        replaced(text, &|name| (name == "HOME").then(|| "/home/ada".to_owned()))
    }

    #[test]
    fn both_forms_are_replaced_wherever_they_stand() {
        for (text, expected) in [
            ("${HOME}/notes", "/home/ada/notes"),
            ("a ${env:HOME} b ${HOME}", "a /home/ada b /home/ada"),
            ("${PORT:-8080}", "8080"),
            ("${HOME:-x}", "/home/ada"),
            ("$HOME costs 5$ {}", "$HOME costs 5$ {}"),
        ] {
            assert_eq!(replace(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_has_no_value_is_named() {
        for (text, part) in [
            ("${TOKEN}", "the environment variable TOKEN is not set"),
            ("${input:key}", "`${input:key}` is not known"),
            ("${HOME", "without `}`"),
            ("${}", "is not known"),
        ] {
            let error = replace(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
