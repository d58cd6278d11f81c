//! Reads the message of a caught panic.

use std::any::Any;

/// The text of a panic payload, or `no message` when the payload is not a string.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
