//! Ids of calls that the model gave none.

use uuid::Uuid;

/// What an id looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum IdStyle {
    /// `call_` and 24 hexadecimal digits.
    #[default]
    Call,
    /// Nine letters and digits, which Mistral's chat templates demand.
    Nine,
}

/// Where new ids come from.
#[derive(Debug, Clone)]
pub(super) enum IdSource {
    /// Ids that no one can guess.
    Random,
    /// Ids that count, for tests.
    #[cfg(test)]
    Counting(u64),
}

impl IdSource {
    pub(super) fn next(&mut self, style: IdStyle) -> String {
        let digits = self.digits();
        match style {
            IdStyle::Call => format!("call_{}", &digits[..24]),
            IdStyle::Nine => digits[..9].to_owned(),
        }
    }

    /// 32 hexadecimal digits.
    fn digits(&mut self) -> String {
        match self {
            IdSource::Random => Uuid::new_v4().simple().to_string(),
            #[cfg(test)]
            IdSource::Counting(count) => {
                *count += 1;
                format!("{count:09x}{:023}", 0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_their_style() {
        let mut source = IdSource::Random;
        let id = source.next(IdStyle::Call);
        assert_eq!(id.len(), 29);
        assert_ne!(id, source.next(IdStyle::Call));
        let nine = source.next(IdStyle::Nine);
        assert!(nine.len() == 9 && nine.chars().all(|c| c.is_ascii_alphanumeric()), "{nine}");
        assert_eq!(IdSource::Counting(0).next(IdStyle::Nine), "000000001");
    }
}
