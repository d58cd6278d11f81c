//! Links in a models directory to files of a cache.

use std::path::{Path, PathBuf, absolute};

/// Makes `link` lead to `file`, in one step for those who read it.
pub(super) fn replace(file: &Path, link: &Path) -> std::io::Result<()> {
    let mut fresh = link.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    make(&absolute(file)?, &fresh)?;
    std::fs::rename(&fresh, link)
}

#[cfg(unix)]
pub(super) fn make(file: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(file, link)
}

#[cfg(not(unix))]
pub(super) fn make(_file: &Path, _link: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_replaced_and_a_broken_one_too() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("a"), folder.path().join("b"));
        make(Path::new("/no/such/file"), &link).unwrap();
        std::fs::write(&file, b"1").unwrap();
        replace(&file, &link).unwrap();
        replace(&file, &link).unwrap();
        assert_eq!(
            (std::fs::read(&link).unwrap(), std::fs::read_dir(folder.path()).unwrap().count()),
            (b"1".to_vec(), 2)
        );
    }
}
