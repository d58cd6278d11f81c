//! Where the files of a repository are in the cache.
//!
//! All names that a hub gives are checked before they become part of a path, because the hub is not trusted.

use std::path::{Component, Path, PathBuf};

use super::cache::directory_name;
use super::error::HubError;

/// A repository in the cache.
pub(super) struct CachedRepository {
    directory: PathBuf,
}

/// A version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileVersion {
    /// The commit of the repository.
    pub commit: String,
    /// The name of the data: its SHA-256 for large files, a git hash for others.
    pub etag: String,
}

impl FileVersion {
    /// The version that a hub states. `None` if one of its names could leave the cache's directory.
    pub(super) fn new(commit: &str, etag: &str) -> Option<Self> {
        let etag = etag.strip_prefix("W/").unwrap_or(etag);
        (is_name(commit) && is_name(etag)).then(|| FileVersion { commit: commit.to_owned(), etag: etag.to_owned() })
    }

    /// The SHA-256 of the data, if the hub states it.
    pub(super) fn sha256(&self) -> Option<&str> {
        let is_sha256 = self.etag.len() == 64 && self.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_sha256.then_some(&*self.etag)
    }
}

/// Whether a text is one file name: a hash or the like.
pub(super) fn is_name(text: &str) -> bool {
    const LONGEST: usize = 128;
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_usual)
}

/// Whether a name of a file stays within its repository.
pub(super) fn is_inside(file: &str) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    !file.is_empty() && !file.contains(['\\', '\0']) && Path::new(file).components().all(is_plain)
}

impl CachedRepository {
    /// The repository "org/repo" in the cache's directory.
    pub(super) fn new(root: &Path, repo: &str) -> Self {
        CachedRepository { directory: root.join(directory_name(repo)) }
    }

    /// The data of a version.
    pub(super) fn blob(&self, version: &FileVersion) -> PathBuf {
        self.directory.join("blobs").join(&version.etag)
    }

    /// What has arrived of it.
    pub(super) fn part(&self, version: &FileVersion) -> PathBuf {
        self.directory.join("blobs").join(format!("{}.part", version.etag))
    }

    /// A file at a commit.
    pub(super) fn file(&self, commit: &str, file: &str) -> PathBuf {
        self.directory.join("snapshots").join(commit).join(file)
    }

    /// Makes a file of a commit a link to its data, unless it is there. Returns its path.
    ///
    /// # Errors
    /// [`HubError::Io`].
    pub(super) fn link(&self, version: &FileVersion, file: &str) -> Result<PathBuf, HubError> {
        let path = self.file(&version.commit, file);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(HubError::io("create", parent))?;
        }
        // From the folder of the file, past the commit and `snapshots`, to the repository.
        let up: PathBuf = Path::new(file).components().map(|_| "..").chain([".."]).collect();
        let target = up.join("blobs").join(&version.etag);
        match symlink(&target, &self.blob(version), &path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(HubError::io("create", &path)(error))
            }
            _ => Ok(path),
        }
    }

    /// Makes a commit the current one.
    ///
    /// # Errors
    /// [`HubError::Io`].
    pub(super) fn set_main(&self, commit: &str) -> Result<(), HubError> {
        let refs = self.directory.join("refs");
        std::fs::create_dir_all(&refs).map_err(HubError::io("create", &refs))?;
        let main = refs.join("main");
        std::fs::write(&main, commit).map_err(HubError::io("write", &main))
    }
}

#[cfg(unix)]
fn symlink(target: &Path, _blob: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// Users of Windows may not be allowed to create links. Then the file is the data.
#[cfg(not(unix))]
fn symlink(_target: &Path, blob: &Path, link: &Path) -> std::io::Result<()> {
    std::fs::hard_link(blob, link)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_cache_are_refused() {
        let hash = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(FileVersion::new(hash, &format!("W/{hash}")).unwrap().etag, hash);
        for name in ["", ".", "..", "../..", "/home/u/.bashrc", "a/b", "a\\b", "a.part", &"a".repeat(129)] {
            assert_eq!(FileVersion::new(hash, name), None, "{name}");
            assert_eq!(FileVersion::new(name, hash), None, "{name}");
        }
        for file in ["m.gguf", "Q8_0/m-00001-of-00002.gguf", "1_Pooling/config.json"] {
            assert!(is_inside(file), "{file}");
        }
        for file in ["", "../m.gguf", "/m.gguf", "a/../../m.gguf", "..\\m.gguf", "C:\\m.gguf", "a\0"] {
            assert!(!is_inside(file), "{file:?}");
        }
    }

    #[test]
    fn files_in_folders_link_to_their_data() {
        let root = tempfile::tempdir().unwrap();
        let repository = CachedRepository::new(root.path(), "Org/Repo");
        let version = FileVersion::new("c0ffee", "e7a6").unwrap();
        std::fs::create_dir_all(repository.blob(&version).parent().unwrap()).unwrap();
        std::fs::write(repository.blob(&version), "data").unwrap();
        for file in ["m.gguf", "a/b/m.gguf", "m.gguf"] {
            assert_eq!(std::fs::read(repository.link(&version, file).unwrap()).unwrap(), b"data");
        }
    }
}
