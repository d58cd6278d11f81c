//! How the vision towers of each projector are built, as data: one file each.
//!
//! What can be read from tensors needs no option: biases, a class token, norms before and after the layers, scales of branches,
//! norms of queries and keys, norms after attention and feed-forwards, limits of the inputs and outputs of matrices, gates.

mod exaone4_5;
mod gemma3;
mod gemma4;
mod gemma4_unified;
mod glm4v;
mod glm5v;
mod idefics3;
mod internvl;
mod lfm2;
mod lfm3;
mod ling3vl;
mod llava;
mod paddleocr;
mod pixtral;
mod qwen2_5o;
mod qwen2_5vl;
mod qwen2vl;
mod qwen3vl;
mod spec;

pub use spec::Family;

/// All families.
pub const FAMILIES: &[&Family] = &[
    &idefics3::FAMILY,
    &gemma3::FAMILY,
    &exaone4_5::FAMILY,
    &gemma4::FAMILY,
    &gemma4_unified::FAMILY,
    &glm4v::FAMILY,
    &glm5v::FAMILY,
    &internvl::FAMILY,
    &lfm2::FAMILY,
    &lfm3::FAMILY,
    &ling3vl::FAMILY,
    &llava::FAMILY,
    &paddleocr::FAMILY,
    &pixtral::FAMILY,
    &qwen2vl::FAMILY,
    &qwen2_5vl::FAMILY,
    &qwen2_5o::FAMILY,
    &qwen3vl::FAMILY,
];

/// The family of a projector.
#[must_use]
pub fn of(projector: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.projector == projector).copied()
}

/// The projectors of all families, separated by commas.
#[must_use]
pub fn known() -> String {
    FAMILIES.iter().map(|family| family.projector).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_of_models_names_every_projector() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/models.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, page) = page.split_once("\n## Vision\n").unwrap();
        for family in FAMILIES {
            assert!(page.contains(&format!("\n| `{}` |", family.projector)), "{}", family.projector);
        }
    }
}
