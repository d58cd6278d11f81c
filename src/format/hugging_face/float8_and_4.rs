//! Weights in 8-bit floating point, and those of experts in 4 bits, as DeepSeek V4 has them.

use super::error::HuggingFaceFault;
use super::float4::Float4;
use super::float8::Float8;
use super::stored::{Codes, Packed, Scheme};
use crate::format::safetensors::{Safetensors, Tensor};

/// Codes of 8 bits, and codes of 4 bits that are told from them by their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Float8And4(pub Float8);

impl Float8And4 {
    /// The scheme of a tensor of codes.
    fn of(&self, codes: &Tensor) -> &dyn Scheme {
        if Float4::Unnamed.codes(codes).is_some() { &Float4::Unnamed } else { &self.0 }
    }
}

impl Scheme for Float8And4 {
    fn needed(&self) -> &'static str {
        "for codes of 8 bits one for each block of the config; for experts in 4 bits, of type I8, one of type F8_E8M0 for each 32 inputs"
    }

    fn is_part(&self, files: &Safetensors, name: &str) -> bool {
        Float4::Unnamed.is_part(files, name) || self.0.is_part(files, name)
    }

    fn codes(&self, tensor: &Tensor) -> Option<Codes> {
        self.of(tensor).codes(tensor)
    }

    fn packed(&self, files: &Safetensors, codes: &Tensor, scales: &Tensor) -> Result<Option<Packed>, HuggingFaceFault> {
        self.of(codes).packed(files, codes, scales)
    }
}
