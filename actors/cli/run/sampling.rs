//! How `cuelight run` chooses tokens: by the settings, else as the model recommends, else by the defaults.

use crate::config::{Config, Origin};
use crate::core::request::{PartialSampling, SamplingParams};

/// The parameters of the configuration. The model's replace those that have their default.
#[must_use]
pub fn sampling(config: &Config, model: PartialSampling) -> SamplingParams {
    let defaults = SamplingParams {
        temperature: config.temp.0,
        top_k: config.top_k,
        top_p: config.top_p.0,
        min_p: config.min_p.0,
        seed: config.seed,
        ..SamplingParams::default()
    };
    let is_default = |name| *config.origin(name) == Origin::Default;
    let configured = PartialSampling {
        temperature: (!is_default("temp")).then_some(defaults.temperature),
        top_k: (!is_default("top_k")).then_some(defaults.top_k),
        top_p: (!is_default("top_p")).then_some(defaults.top_p),
        min_p: (!is_default("min_p")).then_some(defaults.min_p),
        repetition_penalty: None,
    };
    configured.or(model).over(defaults)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::environment::Environment;
    use crate::config::{Given, Raw, resolve};

    #[test]
    fn a_setting_comes_before_the_model_and_the_model_before_a_default() {
        let flag = |text: &str| (Raw::Text(text.to_owned()), Origin::Flag("flag".to_owned()));
        // The value of the default, but given.
        let given: Given = [("temp", flag("0.7")), ("top_k", flag("5"))].into_iter().collect();
        let config = resolve(None, &Environment::default(), given).unwrap().config;
        let model = PartialSampling {
            temperature: Some(0.0),
            top_k: Some(20),
            top_p: Some(0.8),
            repetition_penalty: Some(1.1),
            ..PartialSampling::default()
        };
        let used = sampling(&config, model);
        assert_eq!((used.temperature, used.top_k, used.top_p), (0.7, 5, 0.8));
        assert_eq!((used.min_p, used.repetition_penalty), (0.05, 1.1));
    }
}
