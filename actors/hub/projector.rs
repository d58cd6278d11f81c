//! The projector file (mmproj) of a model: a GGUF file of its own next to the model's file.

use std::path::{Path, PathBuf};

use super::gguf_names::best_projector;

/// The projector file next to a model's file: in its directory, in that of the snapshot of a repository, or where a link leads to.
#[must_use]
pub fn next_to(model: &Path) -> Option<PathBuf> {
    let target = std::fs::read_link(model).ok().map(|target| model.parent().unwrap_or(model).join(target));
    let of_file = |file: &Path| {
        let directory = file.parent()?.to_owned();
        let above = directory.parent().map(Path::to_owned);
        // A file in a folder of a snapshot: snapshots/COMMIT/FOLDER/FILE.
        let is_snapshot = |above: &PathBuf| above.parent().is_some_and(|parent| parent.ends_with("snapshots"));
        in_directory(&directory).or_else(|| in_directory(&above.filter(is_snapshot)?))
    };
    of_file(model).or_else(|| of_file(&target?))
}

fn in_directory(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?.flatten();
    let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let best = directory.join(best_projector(&names)?);
    best.is_file().then_some(best)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_projector_is_found_next_to_the_file_above_its_folder_and_behind_a_link() {
        let root = tempfile::tempdir().unwrap();
        let snapshot = root.path().join("snapshots/c0ffee");
        std::fs::create_dir_all(snapshot.join("Q8_0")).unwrap();
        for name in ["m.gguf", "Q8_0/m.gguf", "mmproj-F32.gguf", "mmproj-model-f16.gguf"] {
            std::fs::write(snapshot.join(name), "").unwrap();
        }
        let expected = Some(snapshot.join("mmproj-model-f16.gguf"));
        assert_eq!(next_to(&snapshot.join("m.gguf")), expected);
        assert_eq!(next_to(&snapshot.join("Q8_0/m.gguf")), expected);
        let models = tempfile::tempdir().unwrap();
        std::fs::write(models.path().join("other.gguf"), "").unwrap();
        assert_eq!(next_to(&models.path().join("other.gguf")), None);
        #[cfg(unix)]
        {
            let link = models.path().join("m.gguf");
            std::os::unix::fs::symlink(snapshot.join("m.gguf"), &link).unwrap();
            assert_eq!(next_to(&link), expected);
        }
        assert_eq!(next_to(Path::new("/no/such/m.gguf")), None);
    }
}
