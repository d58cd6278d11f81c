//! `adapter_config.json` of PEFT: the scale of each module, and what is not supported.

use std::path::Path;

use regex::Regex;
use serde_json::{Map, Value};

use super::error::{AdapterError, AdapterFault};

/// Most bytes of a configuration.
const MOST_BYTES: u64 = 1 << 20;

/// Fields that must be absent, null, false, or an empty list, object or text: they ask for what is not computed here.
const UNSUPPORTED: &[&str] = &[
    "use_dora",
    "fan_in_fan_out",
    "lora_bias",
    "use_qalora",
    "modules_to_save",
    "target_parameters",
    "layer_replication",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "megatron_config",
    "arrow_config",
    "use_bdlora",
];

/// Initialisations that change the weights of the model, so that the adapter does not fit the published ones.
const CHANGES_THE_MODEL: &[&str] = &["pissa", "olora", "corda", "loftq"];

/// The ranks and scales of an adapter.
pub(super) struct PeftConfig {
    rank: usize,
    alpha: f64,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
    /// Whether the product is divided by the square root of the rank.
    is_rank_stabilised: bool,
}

impl PeftConfig {
    /// Reads the configuration of a directory.
    pub fn read(path: &Path) -> Result<Self, AdapterError> {
        let unreadable = |error| AdapterFault::Unreadable(error).in_file(path);
        let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
        if bytes > MOST_BYTES {
            return Err(AdapterFault::LongConfig { bytes, most: MOST_BYTES }.in_file(path));
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        PeftConfig::parse(&text).map_err(|fault| fault.in_file(path))
    }

    pub fn parse(text: &str) -> Result<Self, AdapterFault> {
        let bad = |error: serde_json::Error| AdapterFault::BadConfig(error.to_string());
        let config: Map<String, Value> = serde_json::from_str(text).map_err(bad)?;
        check_supported(&config)?;
        let rank = number(&config, "r")?;
        if rank < 1.0 || rank.fract() != 0.0 || rank > f64::from(u32::MAX) {
            return Err(AdapterFault::BadConfig(format!("`r` is {rank}, but must be a whole number above 0")));
        }
        Ok(PeftConfig {
            rank: rank as usize,
            alpha: number(&config, "lora_alpha")?,
            ranks: patterns(&config, "rank_pattern")?,
            alphas: patterns(&config, "alpha_pattern")?,
            is_rank_stabilised: config.get("use_rslora").and_then(Value::as_bool).unwrap_or(false),
        })
    }

    /// The rank of a module, and the factor on its product.
    pub fn rank_and_scale(&self, module: &str) -> (usize, f32) {
        let of = |patterns: &[(Regex, f64)]| patterns.iter().find(|(key, _)| key.is_match(module)).map(|found| found.1);
        let rank = of(&self.ranks).unwrap_or(self.rank as f64);
        let alpha = of(&self.alphas).unwrap_or(self.alpha);
        let divisor = if self.is_rank_stabilised { rank.sqrt() } else { rank };
        (rank as usize, (alpha / divisor) as f32)
    }
}

fn check_supported(config: &Map<String, Value>) -> Result<(), AdapterFault> {
    let refused = |field, value: &Value| Err(AdapterFault::Unsupported { field, value: value.to_string() });
    for field in UNSUPPORTED {
        match config.get(*field) {
            Some(value) if !is_empty(value) => return refused(field, value),
            _ => {}
        }
    }
    for (field, allowed) in [("peft_type", "LORA"), ("bias", "none")] {
        match config.get(field) {
            Some(value) if value.as_str() != Some(allowed) => return refused(field, value),
            _ => {}
        }
    }
    let init = config.get("init_lora_weights").filter(|init| {
        let name = init.as_str().unwrap_or("").to_ascii_lowercase();
        CHANGES_THE_MODEL.iter().any(|start| name.starts_with(start))
    });
    init.map_or(Ok(()), |init| refused("init_lora_weights", init))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.is_empty(),
        Value::String(value) => value.is_empty(),
        Value::Number(_) => false,
    }
}

fn number(config: &Map<String, Value>, field: &str) -> Result<f64, AdapterFault> {
    let value = config.get(field).and_then(Value::as_f64);
    value.ok_or_else(|| AdapterFault::BadConfig(format!("`{field}` is missing or not a number")))
}

/// The values of modules whose path ends with a pattern, which is a regular expression.
fn patterns(config: &Map<String, Value>, field: &str) -> Result<Vec<(Regex, f64)>, AdapterFault> {
    let bad = |key: &str| AdapterFault::BadConfig(format!("`{field}` has the entry {key:?}, which cannot be used"));
    let entries = match config.get(field) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(entries) => entries.as_object().ok_or_else(|| bad(""))?,
    };
    let entry = |(key, value): (&String, &Value)| {
        let value = value.as_f64().filter(|value| value.is_finite() && *value > 0.0).ok_or_else(|| bad(key))?;
        Ok((Regex::new(&format!(r"^(?:.*\.)?(?:{key})$")).map_err(|_| bad(key))?, value))
    };
    entries.iter().map(entry).collect()
}
