//! One check: what was found, and what a user can do about it.

use serde::Serialize;

/// Whether a finding needs attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing to do.
    Ok,
    /// Cuelight runs, and something could be better.
    Warning,
    /// Cuelight cannot run with this.
    Unusable,
}

/// A check and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked, in one word.
    pub check: &'static str,
    /// Whether it needs attention.
    pub state: State,
    /// What was found.
    pub result: String,
    /// What a user can do about a problem, in one sentence.
    pub remedy: Option<String>,
}

impl Check {
    /// A check without a finding.
    pub fn ok(check: &'static str, result: String) -> Self {
        Check { check, state: State::Ok, result, remedy: None }
    }

    /// The check with a warning if there is a remedy.
    #[must_use]
    pub fn warn(self, remedy: Option<String>) -> Self {
        self.or_state(State::Warning, remedy)
    }

    /// The check as a reason why Cuelight cannot run, if there is a remedy.
    #[must_use]
    pub fn unusable(self, remedy: Option<String>) -> Self {
        self.or_state(State::Unusable, remedy)
    }

    /// The worst state counts; what was found first stays.
    fn or_state(self, state: State, remedy: Option<String>) -> Self {
        if remedy.is_none() || self.remedy.is_some() { self } else { Check { state, remedy, ..self } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_remedy_stays() {
        let fine = Check::ok("port", "free".to_owned());
        assert_eq!(fine.clone().warn(None), fine);
        let unusable = fine.clone().unusable(Some("close it".to_owned())).warn(Some("or not".to_owned()));
        assert_eq!((unusable.state, unusable.remedy.as_deref()), (State::Unusable, Some("close it")));
        assert_eq!(fine.warn(Some("close it".to_owned())).state, State::Warning);
    }
}
