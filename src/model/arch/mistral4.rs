//! Mistral Small 4: latent attention as in DeepSeek V3, with queries that grow with their position; experts with a shared expert.
//!
//! Source: Mistral AI 2026, "Mistral Small 4" and its reference code.

use super::deepseek2;
use super::family::Family;

pub(super) const FAMILY: Family = Family { architecture: "mistral4", models: "Mistral Small 4", ..deepseek2::FAMILY };
