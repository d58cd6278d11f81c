//! The experts of a model.

use cuelight_shaders::experts::{Groups, Scoring};

use super::keys::Keys;
use crate::model::arch::{FeedForward, RoutingSpec};
use crate::model::error::ModelError;
use crate::model::layer::ExpertSizes;

/// Most experts in a layer. Expert indices up to this are exact in float32.
const MOST_EXPERTS: usize = 1 << 12;

impl Keys<'_> {
    /// The experts of a model; `None` for a model without experts.
    pub(super) fn experts(
        &self,
        routing: RoutingSpec,
        [form, shared_form]: [FeedForward; 2],
        dense_size: Option<usize>,
    ) -> Result<Option<ExpertSizes>, ModelError> {
        let n_experts = self.checkpoint.optional_u32(&self.name("expert_count"))?.unwrap_or(0);
        if n_experts == 0 {
            return Ok(None);
        }
        let n_experts = self.checked_size("expert_count", n_experts as usize)?;
        if n_experts > MOST_EXPERTS {
            return Err(self.invalid("expert_count", n_experts, format!("at most {MOST_EXPERTS}")));
        }
        let top_k = self.size("expert_used_count")?;
        if top_k > n_experts {
            return Err(self.invalid(
                "expert_used_count",
                top_k,
                format!("at most {n_experts}, the number of experts"),
            ));
        }
        let renormalise =
            self.checkpoint.optional_bool(&self.name("expert_weights_norm"))?.unwrap_or(routing.renormalise);
        let scoring = match self.checkpoint.optional_u32(&self.name("expert_gating_func"))? {
            None | Some(0) => routing.scoring,
            Some(1) => Scoring::Softmax,
            Some(2) => Scoring::Sigmoid,
            // A softmax over the chosen experts equals a softmax over all, scaled to sum to 1.
            Some(3) if renormalise => Scoring::Softmax,
            Some(4) => Scoring::SqrtSoftplus,
            Some(other) => {
                let expected = "1 (softmax), 2 (sigmoid) or 4 (square root of softplus)";
                return Err(self.invalid("expert_gating_func", other, expected));
            }
        };
        let count = self.optional_size("expert_group_count")?.filter(|count| *count > 1);
        let groups = match count {
            Some(count) => Some(Groups { count, used: self.size("expert_group_used_count")? }),
            None => None,
        };
        Ok(Some(ExpertSizes {
            n_experts,
            top_k,
            // Without the key, experts have the width of the dense feed-forward.
            intermediate_size: match self.optional_size("expert_feed_forward_length")?.or(dense_size) {
                Some(width) => width,
                None => return Err(self.missing("expert_feed_forward_length")),
            },
            latent_size: self.optional_size("moe_latent_size")?.or(self.optional_size("expert_latent_length")?),
            form,
            shared_form,
            scoring,
            renormalise,
            scale: self.optional_positive("expert_weights_scale")?.unwrap_or(1.0),
            groups,
            weighting: routing.weighting,
            shared: routing.shared,
        }))
    }
}
