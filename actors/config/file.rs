//! Reads the configuration file. Each error has a line number.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Given, Origin, nearest};
use super::settings::{SETTINGS, Section, Setting};
use super::value::Raw;

/// Reads a file.
///
/// # Errors
/// [`ConfigError`] when it cannot be read, is not TOML, or names a setting that does not exist.
pub(super) fn read(path: &Path) -> Result<Given, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    parse(path, &text)
}

/// Reads a file's text. Errors show `path` as the file.
///
/// # Errors
/// As [`read`].
pub(super) fn parse(path: &Path, text: &str) -> Result<Given, ConfigError> {
    Reader { path, text }.read()
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn read(&self) -> Result<Given, ConfigError> {
        let document = DeTable::parse(self.text).map_err(|error| ConfigError::Syntax {
            path: self.path.to_owned(),
            line: self.line(error.span().map_or(0, |span| span.start)),
            reason: error.message().to_owned(),
        })?;
        let mut given = Given::new();
        for (section_name, section_value) in document.get_ref() {
            let section = Section::ALL.iter().find(|section| section.name() == section_name.get_ref());
            let (Some(section), DeValue::Table(table)) = (section, section_value.get_ref()) else {
                return Err(self.unknown(section_name.get_ref(), section_name.span().start));
            };
            for (key, value) in table {
                let setting = self.setting(*section, key)?;
                let origin = Origin::File { path: self.path.to_owned(), line: self.line(key.span().start) };
                given.insert(setting.name, (raw(value.get_ref()), origin));
            }
        }
        Ok(given)
    }

    fn setting(&self, section: Section, key: &Spanned<impl AsRef<str>>) -> Result<&'static Setting, ConfigError> {
        let name = key.get_ref().as_ref();
        SETTINGS
            .iter()
            .find(|setting| setting.section == section && setting.name == name)
            .ok_or_else(|| self.unknown(&format!("{}.{name}", section.name()), key.span().start))
    }

    /// The error for an unknown key. The suggestion is the same key in its right table, else a similar name.
    fn unknown(&self, key: &str, offset: usize) -> ConfigError {
        let name = key.rsplit('.').next().unwrap_or(key).replace('-', "_");
        let key_of = |name: &str| SETTINGS.iter().find(|setting| setting.name == name).map(Setting::key);
        let near_section = || {
            let section = nearest(key, Section::ALL.iter().map(|section| section.name()))?;
            Some(section.to_owned()).filter(|_| !key.contains('.'))
        };
        let near_name = || nearest(&name, SETTINGS.iter().map(|setting| setting.name)).and_then(key_of);
        let suggestion = key_of(&name).or_else(near_section).or_else(near_name);
        ConfigError::UnknownKey { path: self.path.to_owned(), line: self.line(offset), key: key.to_owned(), suggestion }
    }

    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }
}

/// A TOML value as a raw value.
fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(number) => Raw::Number(number.to_string()),
        DeValue::Float(number) => Raw::Number(number.to_string()),
        DeValue::Boolean(on) => Raw::Boolean(*on),
        DeValue::Array(items) => Raw::List(items.iter().map(|item| raw(item.get_ref())).collect()),
        DeValue::Datetime(_) | DeValue::Table(_) => Raw::Other(value.type_str()),
    }
}
