//! The checks of the disk: the caches and their sizes, and the space that is left.

use std::path::{Path, PathBuf};

use cuelight_engine::memory::format_bytes;

use super::check::Check;
use crate::config::Config;
use crate::hub::Hub;

/// Most files of the cache that are counted.
const MOST_FILES: usize = 100_000;
/// Less free space than this is a warning; small models need about as much.
const LITTLE_BYTES: u64 = 2 << 30;

/// The caches: models of the hub, and Cuelight's own files.
pub fn cache(config: &Config) -> Check {
    let hub = Hub::new(config);
    let models = hub.cache().models();
    let bytes = format_bytes(models.iter().map(|model| model.bytes).sum());
    let (root, own) = (hub.cache().root().to_owned(), &config.cache_dir);
    let result = format!(
        "{} models of the hub, {bytes}, in {}; {} in {}",
        models.len(),
        root.display(),
        format_bytes(size(own)),
        own.display()
    );
    Check::ok("cache", result).warn(not_writable(&root, "HF_HOME").or_else(|| not_writable(own, "CUELIGHT_CACHE_DIR")))
}

/// What to do if this user cannot write to a directory, or cannot create it.
fn not_writable(directory: &Path, variable: &str) -> Option<String> {
    let existing = existing(directory)?;
    let advice = || {
        format!(
            "{} cannot be written, so set {variable} to a directory that this user may write to",
            existing.display()
        )
    };
    (!existing.is_dir() || !may_write(&existing)).then(advice)
}

/// The free space where models and Cuelight's own files are kept.
pub fn disk(config: &Config) -> Check {
    let hub = Hub::new(config);
    let [models, own] = [hub.cache().root(), &config.cache_dir].map(existing);
    let places: Vec<(PathBuf, Space)> =
        models.into_iter().chain(own).filter_map(|path| space(&path).map(|space| (path, space))).collect();
    let of =
        |(path, space): &(PathBuf, Space)| format!("{} free at {}", format_bytes(space.free_bytes), path.display());
    // The second is named if it is another file system.
    let differ = |pair: &&[(PathBuf, Space)]| pair[0].1.file_system != pair[1].1.file_system;
    let named = places.iter().take(1).chain(places.windows(2).find(differ).map(|pair| &pair[1]));
    let result: Vec<String> = named.map(of).collect();
    let is_little = places.first().is_some_and(|(_, space)| space.free_bytes < LITTLE_BYTES);
    let remedy = "remove models with `cuelight rm`, or set HF_HOME to a directory on a larger disk".to_owned();
    let result = if result.is_empty() { "unknown".to_owned() } else { result.join(", ") };
    Check::ok("disk", result).warn(is_little.then_some(remedy))
}

/// The path, or the nearest one above it that exists.
fn existing(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|path| path.exists()).map(Path::to_owned)
}

/// Bytes of the files below a directory, without following links.
fn size(directory: &Path) -> u64 {
    let mut pending = vec![directory.to_owned()];
    let (mut bytes, mut files) = (0, 0);
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            files += 1;
            match metadata.is_dir() {
                _ if files > MOST_FILES => return bytes,
                true => pending.push(entry.path()),
                false => bytes += metadata.len(),
            }
        }
    }
    bytes
}

/// The space of a file system.
#[derive(Debug, Clone, Copy)]
struct Space {
    free_bytes: u64,
    file_system: u64,
}

#[cfg(unix)]
fn space(path: &Path) -> Option<Space> {
    use std::os::unix::fs::MetadataExt;

    let stat = rustix::fs::statvfs(path).ok()?;
    let file_system = path.metadata().ok()?.dev();
    Some(Space { free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize), file_system })
}

#[cfg(not(unix))]
fn space(_path: &Path) -> Option<Space> {
    None
}

#[cfg(unix)]
fn may_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

#[cfg(not(unix))]
fn may_write(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.permissions().readonly())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;
    use crate::config;

    /// A configuration with both caches below a directory.
    fn config(directory: &Path) -> Config {
        let (models, own) = (directory.join("hf"), directory.join("own"));
        let text = format!("[hub]\nhf_home = {models:?}\ncache_dir = {own:?}");
        config::of_text("test.toml".as_ref(), &text).unwrap()
    }

    #[test]
    fn caches_that_do_not_exist_yet_are_empty() {
        let directory = tempfile::tempdir().unwrap();
        let check = cache(&config(directory.path()));
        assert_eq!(check.state, State::Ok, "{check:?}");
        assert!(check.result.starts_with("0 models of the hub, 0 B, in "), "{check:?}");
    }

    #[test]
    fn files_count_with_those_of_subdirectories() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("own/demo")).unwrap();
        std::fs::write(directory.path().join("own/demo/a"), [0; 2000]).unwrap();
        std::fs::write(directory.path().join("own/b"), [0; 48]).unwrap();
        assert!(cache(&config(directory.path())).result.contains("; 2.0 KiB in "));
    }

    #[test]
    fn a_file_in_the_place_of_the_cache_gets_a_remedy() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("own"), b"").unwrap();
        let check = cache(&config(directory.path()));
        assert_eq!(check.state, State::Warning);
        assert!(check.remedy.unwrap().contains("set CUELIGHT_CACHE_DIR"));
    }

    #[cfg(unix)]
    #[test]
    fn one_file_system_is_named_once() {
        let directory = tempfile::tempdir().unwrap();
        let check = disk(&config(directory.path()));
        assert_eq!(check.result.matches("free at").count(), 1, "{check:?}");
    }
}
