//! The terminals of Lark's library `common` as regular expressions.

/// The regular expression of a terminal. `None`: the library has no such terminal.
pub(super) fn regex_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "DIGIT" => "[0-9]",
        "HEXDIGIT" => "[0-9a-fA-F]",
        "INT" => "[0-9]+",
        "SIGNED_INT" => "[+-]?[0-9]+",
        "DECIMAL" => r"[0-9]+\.[0-9]*|\.[0-9]+",
        "FLOAT" => r"[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
        "SIGNED_FLOAT" => r"[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
        "NUMBER" => r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
        "SIGNED_NUMBER" => r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
        "ESCAPED_STRING" => r#""(?:[^"\\\n]|\\.)*""#,
        "LCASE_LETTER" => "[a-z]",
        "UCASE_LETTER" => "[A-Z]",
        "LETTER" => "[a-zA-Z]",
        "WORD" => "[a-zA-Z]+",
        "CNAME" => "[_a-zA-Z][_a-zA-Z0-9]*",
        "WS_INLINE" => r"[ \t]+",
        "WS" => r"[ \t\f\r\n]+",
        "CR" => r"\r",
        "LF" => r"\n",
        "NEWLINE" => r"(?:\r?\n)+",
        "SH_COMMENT" => r"#[^\n]*",
        "CPP_COMMENT" => r"//[^\n]*",
        "C_COMMENT" => r"/\*(?:[^*]|\*+[^*/])*\*+/",
        "SQL_COMMENT" => r"--[^\n]*",
        _ => return None,
    })
}
