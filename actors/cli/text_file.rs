//! Reads a text that a command measures.

use std::path::Path;

use super::CliError;

/// The text of a file in UTF-8.
///
/// # Errors
/// [`CliError`] when the file cannot be read, or is not UTF-8, with the place.
pub fn read(file: &Path) -> Result<String, CliError> {
    let bytes = std::fs::read(file).map_err(CliError::io(format!("read the text {}", file.display())))?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        CliError::Failed(format!("{} is not UTF-8 text (at byte {valid})", file.display()))
    })
}
