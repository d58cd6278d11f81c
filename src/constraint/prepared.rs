//! A grammar in the form that the library compiles.

use llguidance::api::TopLevelGrammar;

/// A grammar in the library's form.
pub(super) struct Prepared {
    pub grammar: TopLevelGrammar,
    /// If there are any, the text is free up to one of these.
    pub triggers: Vec<String>,
}

impl From<TopLevelGrammar> for Prepared {
    fn from(grammar: TopLevelGrammar) -> Self {
        Prepared { grammar, triggers: Vec::new() }
    }
}
