//! Styles of text on a terminal.

/// How a terminal shows text.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// Bold.
    pub bold: bool,
    /// Faint.
    pub faint: bool,
    /// Italic.
    pub italic: bool,
    /// Underlined.
    pub underlined: bool,
    /// Struck through.
    pub struck: bool,
    /// The colour of code.
    pub code: bool,
}

impl Style {
    /// Whether everything that `other` has is on.
    #[must_use]
    pub fn has(self, other: Style) -> bool {
        self.with(other) == self
    }

    /// Both together.
    #[must_use]
    pub fn with(self, other: Style) -> Style {
        self.combined(other, |own, other| own || other)
    }

    /// This style without what `other` has.
    #[must_use]
    pub fn without(self, other: Style) -> Style {
        self.combined(other, |own, other| own && !other)
    }

    fn combined(self, other: Style, part: fn(bool, bool) -> bool) -> Style {
        Style {
            bold: part(self.bold, other.bold),
            faint: part(self.faint, other.faint),
            italic: part(self.italic, other.italic),
            underlined: part(self.underlined, other.underlined),
            struck: part(self.struck, other.struck),
            code: part(self.code, other.code),
        }
    }

    /// The control sequence that ends all earlier styles and begins this one (ECMA-48, SGR).
    #[must_use]
    pub fn sequence(self) -> String {
        let parts = [
            (self.bold, ";1"),
            (self.faint, ";2"),
            (self.italic, ";3"),
            (self.underlined, ";4"),
            (self.struck, ";9"),
            (self.code, ";36"),
        ];
        let codes: String = parts.iter().filter(|(is_on, _)| *is_on).map(|(_, code)| *code).collect();
        format!("\x1b[0{codes}m")
    }
}
