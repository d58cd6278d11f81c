//! What a reader of calls says after a character.

/// The state of a reader after a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// The character was taken, and more must follow.
    More,
    /// The character was taken, and nothing more belongs to it.
    Done,
    /// The reader had ended before this character, which must be read again by someone else.
    DoneBefore,
    /// The character was taken and ends what is no call after all, but was written like one.
    Refused,
    /// This character must not stand here. It must be read again by someone else.
    Bad,
}
