//! How `cuelight run` chooses tokens: by the settings, else as the model recommends, else by the defaults.

use crate::config::Config;
use crate::core::request::{PartialSampling, SamplingParams};

/// The parameters of a chat. `stated` are the settings that are set, and what the model recommends.
#[must_use]
pub fn sampling(config: &Config, stated: PartialSampling) -> SamplingParams {
    stated.over(SamplingParams {
        temperature: config.temp.0,
        top_k: config.top_k,
        top_p: config.top_p.0,
        min_p: config.min_p.0,
        seed: config.seed,
        ..SamplingParams::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::environment::Environment;

    #[test]
    fn what_is_not_stated_is_a_default_of_the_settings() {
        let config = Config::defaults(&Environment::default().home());
        let stated = PartialSampling { top_k: Some(5), repetition_penalty: Some(1.1), ..PartialSampling::default() };
        let used = sampling(&config, stated);
        assert_eq!((used.temperature, used.top_k, used.top_p, used.min_p), (0.7, 5, 0.95, 0.05));
        assert_eq!(used.repetition_penalty, 1.1);
    }
}
