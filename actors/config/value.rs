//! The types of settings: how each is read from text or TOML, and how it is printed.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::kv_events::EventFormat;
use crate::pipeline::executor::OverlapMode;
use crate::pipeline::policy::SpeculationMode;
use cuelight_engine::load::{
    ActivationBits, ComputeDevice, CpuExperts, Devices, ExpertStreaming, Kernel, KvType, Shares,
};
use cuelight_engine::quantize::Target;

use super::address::{CollectorUrl, EventsAddress, HttpUrl, PageOrigin};
use crate::api::ClientIdentity;
use crate::metrics::exposition::Compat;
use crate::models::KeepAlive;

/// A value as given, before it is converted to its setting's type.
#[derive(Debug, Clone, PartialEq)]
pub enum Raw {
    /// A TOML string, or anything from a variable or a flag.
    Text(String),
    /// A TOML number, as written.
    Number(String),
    /// A TOML boolean, or a switch.
    Boolean(bool),
    /// A TOML array, or a repeated flag.
    List(Vec<Raw>),
    /// A TOML value of a type that no setting has.
    Other(&'static str),
}

/// How a setting is given on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// Without a value.
    Switch,
    /// With one value.
    Single,
    /// With a value, any number of times.
    List,
}

/// A type of settings.
pub(super) trait SettingValue: Sized {
    const KIND: ValueKind = ValueKind::Single;
    /// Whether the value must not be shown.
    const IS_SECRET: bool = false;

    /// Converts a raw value. The error says which values are accepted.
    fn from_raw(raw: &Raw) -> Result<Self, String>;

    /// The value in TOML; `None` when it is not set.
    fn to_toml(&self) -> Option<String>;
}

/// The text of a scalar.
fn scalar(raw: &Raw) -> Result<String, String> {
    match raw {
        Raw::Text(text) | Raw::Number(text) => Ok(text.clone()),
        Raw::Boolean(on) => Ok(on.to_string()),
        Raw::List(_) => Err("one value is expected, not a list".to_owned()),
        Raw::Other(kind) => Err(format!("one value is expected, not a {kind}")),
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// When CPU kernels are adapted to the CPU by a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrateMode {
    /// At the first start, if no result is stored.
    Auto,
    /// Never; a stored result is used.
    Off,
}

/// Bytes, written like "512MiB", "2GiB", "1.5G" or "1048576".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Suffixes and factors: powers of ten for `kb`, `mb`, `gb` and `tb`, powers of two for the others.
const SIZE_UNITS: &[(&str, u64)] = &[
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
    ("", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a size; write bytes, or a number with KiB, MiB or GiB, like 2GiB");
        let lower = text.trim().to_lowercase();
        let split = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (number, unit) = lower.split_at(split);
        let number: f64 = number.parse().map_err(|_| bad())?;
        let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(bad)?;
        let bytes = number * *factor as f64;
        if bytes < u64::MAX as f64 { Ok(ByteSize(bytes as u64)) } else { Err(bad()) }
    }
}

impl fmt::Display for ByteSize {
    /// In the largest unit that keeps the number at 1 or more: "1.5 GiB".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit =
            SIZE_UNITS[..4].iter().zip(["KiB", "MiB", "GiB", "TiB"]).rev().find(|((_, size), _)| self.0 >= *size);
        match unit {
            Some(((_, size), name)) => f.pad(&format!("{:.1} {name}", self.0 as f64 / *size as f64)),
            None => f.pad(&format!("{} B", self.0)),
        }
    }
}

impl ByteSize {
    /// In the largest unit that represents it exactly: "16MiB".
    fn exact(self) -> String {
        let unit = SIZE_UNITS[..4].iter().zip(["KiB", "MiB", "GiB", "TiB"]).rev();
        match unit.into_iter().find(|((_, size), _)| self.0 > 0 && self.0.is_multiple_of(*size)) {
            Some(((_, size), name)) => format!("{}{name}", self.0 / size),
            None => self.0.to_string(),
        }
    }
}

/// A number from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probability(pub f32);

impl FromStr for Probability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
        number.map(Probability).ok_or_else(|| format!("{text:?} is not a number from 0 to 1"))
    }
}

/// A finite number from 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature(pub f32);

impl FromStr for Temperature {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|number: &f32| number.is_finite() && *number >= 0.0);
        number.map(Temperature).ok_or_else(|| format!("{text:?} is not a number from 0 up"))
    }
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

/// What stands for a secret where settings are shown.
const HIDDEN: &str = "(hidden)";

impl Secret {
    /// Refuses what stands for a secret: a key that all could guess.
    fn of_text(text: String) -> Result<Self, String> {
        match text == HIDDEN {
            true => Err(format!("{HIDDEN:?} stands for a value that is not shown; write the value itself")),
            false => Ok(Secret(text)),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// A list of secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Secrets(pub Vec<Secret>);

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text.
    Text,
    /// One JSON object per line.
    Json,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// On a terminal only.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What is logged: a level or `tracing` filters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLevel(pub String);

impl Default for LogLevel {
    fn default() -> Self {
        LogLevel("info".to_owned())
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let filter = tracing_subscriber::EnvFilter::try_new(text);
        // The filter would read a misspelt level as the name of a module.
        let is_level = text.parse::<tracing::Level>().is_ok() || text == "off";
        match filter {
            Ok(_) if is_level || text.contains('=') => Ok(LogLevel(text.to_owned())),
            _ => Err(format!("{text:?} is not a level; levels are off, error, warn, info, debug and trace")),
        }
    }
}

/// Declares the words of enum settings.
macro_rules! words {
    ($($type:ident { $($word:literal = $value:expr),+ $(,)? })+) => { $(
        impl SettingValue for $type {
            fn from_raw(raw: &Raw) -> Result<Self, String> {
                match scalar(raw)?.to_lowercase().as_str() {
                    $($word => Ok($value),)+
                    other => Err(format!("{other:?} is not one of: {}", [$($word),+].join(", "))),
                }
            }

            fn to_toml(&self) -> Option<String> {
                let word = [$(($word, $value)),+].into_iter().find(|(_, value)| value == self).map(|(word, _)| word);
                word.map(quoted)
            }
        }
    )+ };
}

words! {
    LogFormat { "text" = LogFormat::Text, "json" = LogFormat::Json }
    Compat { "none" = Compat::None, "vllm" = Compat::Vllm }
    ClientIdentity { "key" = ClientIdentity::Key, "user" = ClientIdentity::User }
    EventFormat { "map" = EventFormat::Map, "array" = EventFormat::Array }
    SpeculationMode {
        "auto" = SpeculationMode::Auto,
        "ngram" = SpeculationMode::Ngram,
        "draft" = SpeculationMode::Draft,
        "off" = SpeculationMode::Off,
    }
    CalibrateMode { "auto" = CalibrateMode::Auto, "off" = CalibrateMode::Off }
    OverlapMode { "auto" = OverlapMode::Auto, "off" = OverlapMode::Off }
    Color { "auto" = Color::Auto, "always" = Color::Always, "never" = Color::Never }
    KvType { "f16" = KvType::F16, "f32" = KvType::F32, "q8_0" = KvType::Q8_0 }
}

/// Declares types that are read with [`FromStr`], and how each is printed.
macro_rules! parsed {
    ($($type:ty: |$value:ident| $shown:expr;)+) => { $(
        impl SettingValue for $type {
            fn from_raw(raw: &Raw) -> Result<Self, String> {
                scalar(raw)?.parse::<Self>().map_err(|error| error.to_string())
            }

            fn to_toml(&self) -> Option<String> {
                let $value = self;
                Some($shown)
            }
        }
    )+ };
}

parsed! {
    ByteSize: |size| quoted(&size.exact());
    Target: |target| quoted(&target.to_string());
    Probability: |number| format!("{:?}", number.0);
    Temperature: |number| format!("{:?}", number.0);
    LogLevel: |level| quoted(&level.0);
    Kernel: |kernel| quoted(kernel.name());
    ActivationBits: |bits| bits.to_string();
    CpuExperts: |experts| quoted(&experts.to_string());
    ExpertStreaming: |streaming| quoted(&streaming.to_string());
    Devices: |devices| quoted(&devices.to_string());
    ComputeDevice: |device| quoted(&device.to_string());
    Shares: |shares| quoted(&shares.to_string());
    HttpUrl: |url| quoted(&url.0);
    CollectorUrl: |url| quoted(&url.0);
    EventsAddress: |address| quoted(&address.0);
}

/// Declares types that are whole numbers, with the text of their error.
macro_rules! integers {
    ($($type:ty: $expected:literal;)+) => { $(
        impl SettingValue for $type {
            fn from_raw(raw: &Raw) -> Result<Self, String> {
                let text = scalar(raw)?;
                // TOML allows underscores in numbers, like 10_000.
                text.replace('_', "").parse().map_err(|_| format!("{text:?} is not {}", $expected))
            }

            fn to_toml(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )+ };
}

integers! {
    u16: "a whole number from 0 to 65535";
    i32: "a whole number";
    u64: "a whole number from 0 up";
    usize: "a whole number from 0 up";
    NonZeroUsize: "a whole number from 1 up";
}

impl SettingValue for String {
    fn from_raw(raw: &Raw) -> Result<Self, String> {
        scalar(raw)
    }

    fn to_toml(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl SettingValue for PathBuf {
    fn from_raw(raw: &Raw) -> Result<Self, String> {
        scalar(raw).map(PathBuf::from)
    }

    fn to_toml(&self) -> Option<String> {
        Some(quoted(&self.to_string_lossy()))
    }
}

impl SettingValue for Secret {
    const IS_SECRET: bool = true;

    fn from_raw(raw: &Raw) -> Result<Self, String> {
        Secret::of_text(scalar(raw)?)
    }

    fn to_toml(&self) -> Option<String> {
        Some(quoted(HIDDEN))
    }
}

impl SettingValue for bool {
    const KIND: ValueKind = ValueKind::Switch;

    fn from_raw(raw: &Raw) -> Result<Self, String> {
        match scalar(raw)?.to_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            other => Err(format!("{other:?} is neither true nor false")),
        }
    }

    fn to_toml(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl SettingValue for Duration {
    fn from_raw(raw: &Raw) -> Result<Self, String> {
        let text = scalar(raw)?;
        let bad = || format!("{text:?} is not a time; write seconds, or a number with ms, s, m or h, like 30s");
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let factor = match unit.trim() {
            "ms" => 0.001,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        let seconds: f64 = number.parse().map_err(|_| bad())?;
        Duration::try_from_secs_f64(seconds * factor).map_err(|_| bad())
    }

    fn to_toml(&self) -> Option<String> {
        Some(quoted(&format!("{}s", self.as_secs_f64())))
    }
}

impl SettingValue for KeepAlive {
    fn from_raw(raw: &Raw) -> Result<Self, String> {
        match scalar(raw)?.as_str() {
            "forever" | "-1" => Ok(KeepAlive::Forever),
            text => Duration::from_raw(raw)
                .map(KeepAlive::For)
                .map_err(|_| format!("{text:?} is neither a time, like 30s or 10m, nor forever")),
        }
    }

    fn to_toml(&self) -> Option<String> {
        match self {
            KeepAlive::For(limit) => limit.to_toml(),
            KeepAlive::Forever => Some(quoted("forever")),
        }
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    const KIND: ValueKind = T::KIND;
    const IS_SECRET: bool = T::IS_SECRET;

    /// "auto" resets the setting to "not set", also when a weaker source sets it.
    fn from_raw(raw: &Raw) -> Result<Self, String> {
        match raw {
            Raw::Text(text) if text == "auto" => Ok(None),
            _ => T::from_raw(raw).map(Some),
        }
    }

    fn to_toml(&self) -> Option<String> {
        self.as_ref().and_then(SettingValue::to_toml)
    }
}

/// The items of a list. One text may contain several, separated by commas.
fn items(raw: &Raw) -> Result<Vec<String>, String> {
    match raw {
        Raw::List(list) => list.iter().map(scalar).collect(),
        _ => Ok(scalar(raw)?.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()),
    }
}

impl SettingValue for Vec<String> {
    const KIND: ValueKind = ValueKind::List;

    fn from_raw(raw: &Raw) -> Result<Self, String> {
        items(raw)
    }

    fn to_toml(&self) -> Option<String> {
        let items: Vec<String> = self.iter().map(|item| quoted(item)).collect();
        Some(format!("[{}]", items.join(", ")))
    }
}

impl SettingValue for Vec<PageOrigin> {
    const KIND: ValueKind = ValueKind::List;

    fn from_raw(raw: &Raw) -> Result<Self, String> {
        items(raw)?.iter().map(|item| item.parse::<PageOrigin>()).collect()
    }

    fn to_toml(&self) -> Option<String> {
        let items: Vec<String> = self.iter().map(|origin| quoted(&origin.0)).collect();
        Some(format!("[{}]", items.join(", ")))
    }
}

impl SettingValue for Secrets {
    const KIND: ValueKind = ValueKind::List;
    const IS_SECRET: bool = true;

    fn from_raw(raw: &Raw) -> Result<Self, String> {
        items(raw)?.into_iter().map(Secret::of_text).collect::<Result<Vec<Secret>, String>>().map(Secrets)
    }

    fn to_toml(&self) -> Option<String> {
        let items: Vec<String> = self.0.iter().map(|_| quoted(HIDDEN)).collect();
        Some(format!("[{}]", items.join(", ")))
    }
}
