//! Which encoders of images and audio load from a directory, as data: one file each.

mod gemma3;
mod gemma4;
mod gemma4_audio;
mod glm4v;
mod idefics3;
mod internvl;
mod lfm2_vl;
mod lfm3_vl;
mod llava;
mod paddleocr_vl;
mod pixtral;
mod qwen2_5_omni;
mod qwen2_audio;
mod qwen3_asr;
mod qwen_vl;
mod ultravox;
mod vit;
mod voxtral;
mod whisper;

use super::spec::EncoderFamily;

/// All families. Those of some encoders of a `model_type` come before that of the others.
const FAMILIES: &[&EncoderFamily] = &[
    &idefics3::FAMILY,
    &gemma3::FAMILY,
    &gemma4::FAMILY,
    &gemma4::UNIFIED,
    &gemma4_audio::FAMILY,
    &glm4v::FAMILY,
    &glm4v::GLM5,
    &internvl::FAMILY,
    &lfm2_vl::FAMILY,
    &lfm3_vl::FAMILY,
    &paddleocr_vl::FAMILY,
    &pixtral::OF_LLAVA,
    &llava::FAMILY,
    &pixtral::OF_MISTRAL3,
    &qwen_vl::QWEN2,
    &qwen_vl::QWEN2_5,
    &qwen_vl::QWEN3,
    &qwen_vl::QWEN3_5,
    &qwen_vl::EXAONE4_5,
    &qwen_vl::LING3,
    &qwen2_5_omni::IMAGES,
    &qwen2_5_omni::AUDIO,
    &qwen2_audio::FAMILY,
    &qwen3_asr::FAMILY,
    &voxtral::FAMILY,
    &ultravox::FAMILY,
    &whisper::FAMILY,
];

/// The family of a value of `model_type`. `is_of` says whether a family's encoder is that of the directory.
pub(super) fn of(model_type: &str, is_of: impl Fn(&EncoderFamily) -> bool) -> Option<&'static EncoderFamily> {
    FAMILIES.iter().find(|family| family.model_types.contains(&model_type) && is_of(family)).copied()
}

/// All values of `model_type`, separated by commas.
pub(super) fn known() -> String {
    let mut known: Vec<&str> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
    known.dedup();
    known.join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_of_models_names_every_directory() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/models.md");
        let page = std::fs::read_to_string(page).unwrap();
        // Some projectors have the name of an architecture, whose table is before the section.
        let (_, page) = page.split_once("\n## Vision\n").unwrap();
        for family in FAMILIES {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", family.projector)));
            let row = row.unwrap_or_else(|| panic!("no row of {}", family.projector));
            for model_type in family.model_types {
                assert!(row.contains(&format!("`{model_type}`")), "{row}: {model_type}");
            }
        }
    }
}
