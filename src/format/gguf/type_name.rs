//! Names of tensor types, for messages about unsupported formats.

use cuelight_shaders::quant::Format;

/// ggml's types that are no weight formats here.
const OF_GGML: &[(u32, &str)] = &[
    (9, "Q8_1"),
    (15, "Q8_K"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
];

/// The types that only ik_llama.cpp has. PrismML uses 142 and 143 for formats of its own.
const OF_IK_LLAMA: &[(u32, &str)] = &[
    (36, "I2_S"),
    (133, "Q6_0"),
    (134, "IQ1_BN"),
    (135, "IQ2_BN"),
    (136, "Q8_K64"),
    (137, "IQ2_K"),
    (138, "IQ3_K"),
    (139, "IQ4_K"),
    (140, "IQ5_K"),
    (141, "IQ6_K"),
    (142, "IQ2_TN"),
    (143, "IQ1_TN"),
    (144, "IQ4_KS"),
    (145, "IQ2_KS"),
    (146, "IQ4_KSS"),
    (147, "Q8_K16"),
    (148, "Q8_K32"),
    (149, "Q8_KR8"),
    (150, "Q8_K128"),
    (151, "Q8_KV"),
    (152, "IQ5_KS"),
    (153, "IQ2_KT"),
    (154, "IQ3_KT"),
    (155, "IQ4_KT"),
    (156, "IQ3_KS"),
    (157, "IQ2_KL"),
    (158, "IQ1_KT"),
    (202, "Q4_0_R8"),
    (206, "Q5_0_R4"),
    (208, "Q8_0_R8"),
    (210, "Q2_K_R4"),
    (211, "Q3_K_R4"),
    (212, "Q4_K_R4"),
    (213, "Q5_K_R4"),
    (214, "Q6_K_R4"),
    (216, "IQ2_XXS_R4"),
    (217, "IQ2_XS_R4"),
    (218, "IQ3_XXS_R4"),
    (219, "IQ1_S_R4"),
    (220, "IQ4_NL_R4"),
    (221, "IQ3_S_R4"),
    (222, "IQ2_S_R4"),
    (223, "IQ4_XS_R8"),
    (229, "IQ1_M_R4"),
    (230, "BF16_R16"),
    (233, "Q6_0_R4"),
    (335, "IQ2_BN_R4"),
    (337, "IQ2_K_R4"),
    (338, "IQ3_K_R4"),
    (339, "IQ4_K_R4"),
    (340, "IQ5_K_R4"),
    (344, "IQ4_KS_R4"),
    (352, "IQ5_KS_R4"),
    (353, "MXFP4_R8"),
    (397, "Q8_K_R16"),
    (398, "Q8_KV_R8"),
    (399, "Q8_K_R8"),
];

/// The bytes of a value of a type of integers; `None` for other types.
#[must_use]
pub fn integer_bytes(ggml_type: u32) -> Option<u64> {
    (24..28).contains(&ggml_type).then(|| 1 << (ggml_type - 24))
}

/// The name of a tensor type. It says where a type comes from that ggml does not have.
#[must_use]
pub fn ggml_type_name(ggml_type: u32) -> String {
    let named = |types: &[(u32, &'static str)]| types.iter().find(|(id, _)| *id == ggml_type).map(|(_, name)| *name);
    let format = Format::from_ggml(ggml_type).map(Format::name);
    match (format.or_else(|| named(OF_GGML)), named(OF_IK_LLAMA)) {
        (Some(name), _) => name.to_owned(),
        (None, Some(name)) if matches!(ggml_type, 142 | 143) => {
            format!("number {ggml_type} ({name} of ik_llama.cpp, or a format of PrismML)")
        }
        (None, Some(name)) => format!("{name}, which only ik_llama.cpp has"),
        (None, None) => format!("number {ggml_type}"),
    }
}

#[cfg(test)]
mod tests {
    use super::ggml_type_name;

    #[test]
    fn types_are_named_with_their_origin() {
        assert_eq!(ggml_type_name(12), "Q4_K");
        assert_eq!(ggml_type_name(26), "I32");
        assert_eq!(ggml_type_name(144), "IQ4_KS, which only ik_llama.cpp has");
        assert!(ggml_type_name(142).contains("PrismML"));
        assert_eq!(ggml_type_name(9999), "number 9999");
    }
}
