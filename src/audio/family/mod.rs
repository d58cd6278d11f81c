//! How the audio encoders of each projector are built, as data: one file each.

mod gemma4;
mod qwen2_5o;
mod qwen2a;
mod qwen3a;
mod spec;
mod ultravox;
mod voxtral;
mod whisper;

pub use spec::{Family, Layers, Longest, Positions, Silence};

/// All families.
pub const FAMILIES: &[&Family] = &[
    &gemma4::FAMILY,
    &qwen2a::FAMILY,
    &qwen2_5o::FAMILY,
    &qwen3a::FAMILY,
    &ultravox::FAMILY,
    &voxtral::FAMILY,
    &whisper::FAMILY,
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
        for family in FAMILIES {
            assert!(page.contains(&format!("\n| `{}` |", family.projector)), "{}", family.projector);
        }
    }
}
