//! The rotation of a config: its keys, and the divisors of frequencies that GGUF files store as tensors.
//!
//! Older configs have `rope_theta` and `rope_scaling`; newer ones `rope_parameters`, for all layers or for each kind of layer.

use std::f64::consts::PI;

use serde_json::{Map, Value as Json};

use super::config::{Config, FULL, WINDOWED};
use super::error::HuggingFaceError;
use super::family::Family;
use super::keys::Keys;

/// The kinds of rotation in layers with pools of positions and in those without. The second has a base of its own only.
const POOLED: &str = "compress";
const UNPOOLED: &str = "main";

/// The values that a config has for the rotation of one kind of layer.
struct Parameters<'a> {
    config: &'a Config,
    /// The object of these values, if there is one.
    values: Option<&'a Map<String, Json>>,
}

/// The parameters of layers without a window, or of all, and those of layers with a window.
fn parameters(config: &Config) -> (Parameters<'_>, Option<Parameters<'_>>) {
    let all = config.get("rope_parameters").or_else(|| config.get("rope_scaling"));
    let by_kind = |kind: &str| all.and_then(|all| all.get(kind)).and_then(Json::as_object);
    match by_kind(FULL).or_else(|| by_kind(POOLED)) {
        Some(full) => {
            let windowed = by_kind(WINDOWED).map(|values| Parameters { config, values: Some(values) });
            (Parameters { config, values: Some(full) }, windowed)
        }
        None => (Parameters { config, values: all.and_then(Json::as_object) }, None),
    }
}

impl Parameters<'_> {
    fn f32(&self, key: &str) -> Result<Option<f32>, HuggingFaceError> {
        let value = self.values.and_then(|values| values.get(key)).filter(|value| !value.is_null());
        value.map(|value| self.config.as_f32(key, value)).transpose()
    }

    fn has(&self, key: &str) -> bool {
        self.values.is_some_and(|values| values.contains_key(key))
    }

    /// A number that a rule cannot do without.
    fn needed(&self, key: &str) -> Result<f32, HuggingFaceError> {
        self.f32(key)?.ok_or_else(|| self.config.missing(&format!("rope_parameters.{key}")))
    }

    fn list(&self, key: &str) -> Result<Vec<f32>, HuggingFaceError> {
        let list = self.values.and_then(|values| values.get(key)).and_then(Json::as_array);
        let list = list.ok_or_else(|| self.config.missing(&format!("rope_parameters.{key}")))?;
        list.iter().map(|value| self.config.as_f32(key, value)).collect()
    }

    /// The pairs that rotate by each position of images. Ling 3 VL states them outside the object.
    fn sections(&self) -> Result<Option<Vec<u32>>, HuggingFaceError> {
        const KEY: &str = "mrope_section";
        let outside = self.config.list(KEY)?.filter(|_| !self.has(KEY));
        let sections = match outside {
            Some(sections) => sections.iter().map(|pairs| self.config.as_f32(KEY, pairs)).collect::<Result<_, _>>()?,
            None if self.has(KEY) => self.list(KEY)?,
            None => return Ok(None),
        };
        Ok(Some(sections.into_iter().map(|pairs: f32| pairs as u32).collect()))
    }

    /// The rule of scaling.
    fn kind(&self) -> &str {
        let text = |key| self.values.and_then(|values| values.get(key)).and_then(Json::as_str);
        text("rope_type").or_else(|| text("type")).unwrap_or("default")
    }

    fn theta(&self) -> Result<Option<f32>, HuggingFaceError> {
        Ok(self.f32("rope_theta")?.or(self.config.f32("rope_theta")?))
    }

    /// The context length before it was extended.
    fn original_context(&self) -> Result<f32, HuggingFaceError> {
        const KEY: &str = "original_max_position_embeddings";
        let own = self.f32(KEY)?.or(self.config.f32(KEY)?).or(self.config.f32("max_position_embeddings")?);
        own.ok_or_else(|| self.config.missing(KEY))
    }

    /// The part of a head that rotates. Some configs state its length instead.
    fn partial(&self) -> Result<Option<f32>, HuggingFaceError> {
        let stated = self.f32("partial_rotary_factor")?.or(self.config.f32("partial_rotary_factor")?);
        match self.config.u32("rotary_dim")?.filter(|_| stated.is_none()) {
            Some(length) if length as usize <= self.config.head_dim()? => {
                Ok(Some(length as f32 / self.config.head_dim()? as f32))
            }
            Some(length) => Err(self.config.wrong("rotary_dim", length, "at most the length of a head")),
            None => Ok(stated),
        }
    }
}

impl Keys<'_> {
    /// Adds the keys of the rotation. The parts of heads that rotate are those of the family; without them, those of the config.
    pub(super) fn rope(&mut self, family: &Family) -> Result<(), HuggingFaceError> {
        let (all, windowed) = parameters(self.config);
        let of_others = self.config.get("rope_parameters").and_then(|all| all.get(UNPOOLED)?.get("rope_theta"));
        let of_others = of_others.map(|theta| self.config.as_f32("rope_theta", theta)).transpose()?;
        if let Some(theta) = of_others.map_or_else(|| all.theta(), |theta| Ok(Some(theta)))? {
            self.add("rope.freq_base", theta * self.stretch(&all)?);
        }
        let of_windowed = match windowed {
            Some(windowed) => windowed.f32("rope_theta")?,
            None => self.config.f32("rope_local_base_freq")?,
        };
        if let Some(theta) = of_windowed {
            self.add("rope.freq_base_swa", theta);
        }
        if !family.rotates_section {
            self.rotary_lengths(family.rotated_parts)?;
        }
        if let Some(sections) = all.sections()? {
            // llama.cpp reads four.
            let padded: Vec<u32> = sections.into_iter().chain(std::iter::repeat(0)).take(4).collect();
            self.add("rope.dimension_sections", &padded[..]);
        }
        match all.kind() {
            "default" | "llama3" | "proportional" | "mrope" => Ok(()),
            // It changes frequencies only beyond the context of training.
            "dynamic" => Ok(()),
            "linear" => self.scaling("linear", all.needed("factor")?),
            "yarn" => self.yarn(&all),
            "longrope" | "su" => self.longrope(&all),
            other => {
                let known = "\"default\", \"linear\", \"llama3\", \"yarn\", \"longrope\" or \"proportional\"";
                Err(self.config.wrong("rope_type", format!("{other:?}"), known))
            }
        }
    }

    /// The factor on the base of frequencies.
    fn stretch(&self, all: &Parameters<'_>) -> Result<f32, HuggingFaceError> {
        let stated = self.config.f32("rope_ratio")?.unwrap_or(1.0);
        let Some(alpha) = all.f32("alpha")?.filter(|_| all.kind() == "dynamic") else { return Ok(stated) };
        let length = self.config.head_dim()? as f32;
        Ok(alpha.powf(length / (length - 2.0)))
    }

    fn scaling(&mut self, kind: &str, factor: f32) -> Result<(), HuggingFaceError> {
        self.add("rope.scaling.type", kind);
        self.add("rope.scaling.factor", factor);
        Ok(())
    }

    /// The lengths of the rotated parts of heads. Files do not state those that the architecture knows.
    fn rotary_lengths(&mut self, known: Option<[f32; 2]>) -> Result<(), HuggingFaceError> {
        let (all, windowed) = parameters(self.config);
        let part = all.partial()?;
        let of_windowed = windowed.as_ref().map_or(Ok(None), |windowed| windowed.f32("partial_rotary_factor"))?;
        if let Some(known) = known {
            let wrong = [part, of_windowed].into_iter().zip(known).find(|(part, known)| part.unwrap_or(1.0) != *known);
            return wrong.map_or(Ok(()), |(part, known)| {
                Err(self.config.wrong("partial_rotary_factor", part.unwrap_or(1.0), known.to_string()))
            });
        }
        self.rotary_length("rope.dimension_count", &all, part)?;
        windowed.map_or(Ok(()), |windowed| self.rotary_length("rope.dimension_count_swa", &windowed, of_windowed))
    }

    /// The length of the rotated part of a head, where it is not the whole.
    fn rotary_length(&mut self, key: &str, of: &Parameters<'_>, part: Option<f32>) -> Result<(), HuggingFaceError> {
        let Some(part) = part.filter(|_| of.kind() != "proportional") else { return Ok(()) };
        if self.is_latent_section(part)? {
            return Ok(());
        }
        if (0.0..=1.0).contains(&part) {
            let length = u32::try_from(part_of(self.config.head_dim()?, part)).unwrap_or(u32::MAX);
            self.replace(key, length);
            return Ok(());
        }
        Err(self.config.wrong("partial_rotary_factor", part, "between 0 and 1"))
    }

    /// Whether this part of a head is the section that rotates in latent attention, whose length the config has too.
    fn is_latent_section(&self, part: f32) -> Result<bool, HuggingFaceError> {
        let [rotated, other] = ["qk_rope_head_dim", "qk_nope_head_dim"].map(|key| self.config.f32(key));
        let (Some(rotated), Some(other)) = (rotated?, other?) else { return Ok(false) };
        Ok((part * (rotated + other) - rotated).abs() < 0.01)
    }

    fn yarn(&mut self, all: &Parameters<'_>) -> Result<(), HuggingFaceError> {
        let factor = all.needed("factor")?;
        self.scaling("yarn", factor)?;
        self.original_context(all)?;
        for (name, key) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
            if let Some(value) = all.f32(name)? {
                self.add(&format!("rope.scaling.{key}"), value);
            }
        }
        if let Some(strength) = all.f32("llama_4_scaling_beta")? {
            self.add("attention.temperature_scale", strength);
        }
        let (own, of_all) = (all.f32("mscale")?, all.f32("mscale_all_dim")?.filter(|strength| *strength != 0.0));
        let mut usual = magnitude(factor, 1.0);
        let stated = match (all.f32("attention_factor")?, own.filter(|own| *own != 0.0), of_all) {
            (Some(stated), _, _) => stated,
            (None, Some(own), Some(of_all)) => magnitude(factor, own) / magnitude(factor, of_all),
            _ => usual,
        };
        if let Some(of_all) = of_all.filter(|_| self.config.get("kv_lora_rank").is_some()) {
            // Latent attention applies it to all scores, so there is no usual magnitude of rotated values.
            self.add("rope.scaling.yarn_log_multiplier", 0.1 * of_all);
            usual = 1.0;
        }
        if stated != usual {
            // The loader multiplies it by the usual magnitude.
            self.add("rope.scaling.attn_factor", stated / usual);
        }
        Ok(())
    }

    fn longrope(&mut self, all: &Parameters<'_>) -> Result<(), HuggingFaceError> {
        self.original_context(all)?;
        let original = all.original_context()?;
        let context = self.config.f32("max_position_embeddings")?.unwrap_or(original);
        let stretch = context / original;
        let usual = if stretch > 1.0 { (1.0 + stretch.ln() / original.ln()).sqrt() } else { 1.0 };
        self.add("rope.scaling.attn_factor", all.f32("attention_factor")?.unwrap_or(usual));
        Ok(())
    }

    fn original_context(&mut self, all: &Parameters<'_>) -> Result<(), HuggingFaceError> {
        let context = all.original_context()?;
        if !(1.0..=16_777_216.0).contains(&context) {
            let key = "original_max_position_embeddings";
            return Err(self.config.wrong(key, context, "between 1 and 16777216"));
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        self.add("rope.scaling.original_context_length", context as u32);
        Ok(())
    }

    /// The tensors of divisors that follow from the config.
    pub(super) fn rope_tensors(&self) -> Result<Vec<(&'static str, Vec<f32>)>, HuggingFaceError> {
        let (all, _) = parameters(self.config);
        Ok(match all.kind() {
            "llama3" => vec![("rope_freqs.weight", self.llama3(&all)?)],
            "proportional" => vec![("rope_freqs.weight", self.proportional(&all)?)],
            "longrope" | "su" => vec![
                ("rope_factors_long.weight", all.list("long_factor")?),
                ("rope_factors_short.weight", all.list("short_factor")?),
            ],
            _ => Vec::new(),
        })
    }

    /// Llama 3's rule: frequencies below a limit are divided by a factor, those above another are kept.
    fn llama3(&self, all: &Parameters<'_>) -> Result<Vec<f32>, HuggingFaceError> {
        let length = self.rotary_dim(all)?;
        let theta = f64::from(all.theta()?.unwrap_or(10_000.0));
        let [factor, low, high] =
            [all.needed("factor")?, all.needed("low_freq_factor")?, all.needed("high_freq_factor")?];
        let (factor, low, high) = (f64::from(factor), f64::from(low), f64::from(high));
        let original = f64::from(all.original_context()?);
        let divisor = |index: usize| {
            let frequency = theta.powf(-((2 * index) as f64 / length as f64));
            let rotations = original * frequency / (2.0 * PI);
            let smooth = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
            1.0 / ((1.0 - smooth) / factor + smooth)
        };
        // GGUF files have a divisor for each pair of the head, also of those that do not rotate.
        let unscaled = std::iter::repeat_n(1.0, self.config.checked_head_dim()? / 2 - length / 2);
        #[allow(clippy::cast_possible_truncation)] // The tensor is float32.
        Ok((0..length / 2).map(|index| divisor(index) as f32).chain(unscaled).collect())
    }

    /// The length of the rotated part of a head.
    fn rotary_dim(&self, all: &Parameters<'_>) -> Result<usize, HuggingFaceError> {
        Ok(part_of(self.config.checked_head_dim()?, all.partial()?.unwrap_or(1.0).clamp(0.0, 1.0)))
    }

    /// Only the first pairs of a head rotate; the others get a frequency of almost 0.
    fn proportional(&self, all: &Parameters<'_>) -> Result<Vec<f32>, HuggingFaceError> {
        let length = match self.size_of_kind(FULL, "head_dim")? {
            Some(length) => self.config.checked_head(length as usize)?,
            None => self.config.checked_head_dim()?,
        };
        let part = f64::from(all.partial()?.unwrap_or(1.0));
        let rotates = |index: usize| (index as f64) < (part * (length / 2) as f64).floor();
        Ok((0..length / 2).map(|index| if rotates(index) { 1.0 } else { 1e30 }).collect())
    }
}

/// The rotated values of a head whose pairs are divided among the positions of images; 0 where they are not.
pub(super) fn sectioned_length(config: &Config) -> Result<usize, HuggingFaceError> {
    let (all, _) = parameters(config);
    if !all.has("mrope_section") {
        return Ok(0);
    }
    let part = all.partial()?.unwrap_or(1.0).clamp(0.0, 1.0);
    Ok(part_of(config.checked_head_dim()?, part))
}

/// A part, from 0 to 1, of a length, in whole values. Those of transformers are cut off, too, but in float64: what float32 lacks
/// of a whole number counts as that number.
fn part_of(length: usize, part: f32) -> usize {
    const MISSING: f64 = 1e-3;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Neither is negative.
    let whole = (length as f64 * f64::from(part) + MISSING) as usize;
    whole
}

/// YaRN's factor on rotated values.
fn magnitude(factor: f32, strength: f32) -> f32 {
    if factor > 1.0 { 0.1 * strength * factor.ln() + 1.0 } else { 1.0 }
}
