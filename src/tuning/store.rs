//! Keeps calibrations in a folder, one file for each CPU, kernel and number of threads.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Calibration, Subject};

/// Files larger than this are not calibrations.
const MOST_BYTES: u64 = 64 << 10;

/// The file of a subject. A newer version of the program replaces it.
#[must_use]
pub fn path(folder: &Path, subject: &Subject) -> PathBuf {
    let name = format!("{} {} {} threads", subject.cpu, subject.kernel, subject.cpus).to_lowercase();
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut name = words.collect::<Vec<_>>().join("-");
    name.truncate(200);
    folder.join(name + ".json")
}

/// The stored calibration; `None` if there is none for this subject, or the file is damaged.
#[must_use]
pub fn read(folder: &Path, subject: &Subject) -> Option<Calibration> {
    let path = path(folder, subject);
    if fs::metadata(&path).ok()?.len() > MOST_BYTES {
        return None;
    }
    let stored: Calibration = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    (stored.subject == *subject && stored.is_valid()).then_some(stored)
}

/// Stores a calibration and returns its file.
///
/// # Errors
/// [`io::Error`] when the file cannot be written.
pub fn write(folder: &Path, calibration: &Calibration) -> io::Result<PathBuf> {
    let path = path(folder, &calibration.subject);
    fs::create_dir_all(folder)?;
    // Other processes see the old file or the new one, never a part.
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let text = serde_json::to_string_pretty(calibration)? + "\n";
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
    written.inspect_err(|_| drop(fs::remove_file(&part)))?;
    Ok(path)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Measured;

    fn calibration() -> Calibration {
        let subject = Subject {
            version: "1.2.3".to_owned(),
            cpu: "Some CPU (family 1, model ../2)".to_owned(),
            kernel: "avx2".to_owned(),
            cpus: 8,
        };
        let measured = Measured {
            prefetch: vec![(0, 0.9), (8192, 1.0)],
            threads: Some((1.25, 1.01)),
            tiles: vec![(5, 1.5)],
            waiting: 0.01,
            seconds: 0.4,
        };
        Calibration { subject, threads: 4, prefetch_ahead: 2048, rows_in_cache: 1 << 20, amx_least_rows: 3, measured }
    }

    #[test]
    fn a_stored_calibration_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (calibration, folder) = (calibration(), folder.path().join("new/folder"));
        assert_eq!(read(&folder, &calibration.subject), None);
        let file = write(&folder, &calibration).unwrap();
        assert_eq!(file.file_name().unwrap(), "some-cpu-family-1-model-2-avx2-8-threads.json");
        assert_eq!(read(&folder, &calibration.subject), Some(calibration.clone()));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no part is left");
        // The file is that of another version, or of another CPU whose name has the same letters.
        let newer = Subject { version: "1.2.4".to_owned(), ..calibration.subject.clone() };
        let other = Subject { cpu: "Some CPU (family 1, model 2)".to_owned(), ..calibration.subject.clone() };
        assert_eq!((read(&folder, &newer), read(&folder, &other)), (None, None));
    }

    #[test]
    fn a_damaged_file_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let calibration = calibration();
        let file = write(folder.path(), &calibration).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let damaged = [
            String::new(),
            "{}".to_owned(),
            text[..text.len() / 2].to_owned(),
            text.replace("2048", "-1"),
            text.replace("2048", "99999999999"),
            text.replace("\"threads\": 4", "\"threads\": 0"),
            text.replace("\"threads\": 4", "\"threads\": 9"),
            text.replace("1048576", "1"),
            " ".repeat(MOST_BYTES as usize) + &text,
        ];
        for damaged in damaged {
            fs::write(&file, &damaged).unwrap();
            assert_eq!(read(folder.path(), &calibration.subject), None, "{damaged}");
        }
        fs::write(&file, [0xff, 0xfe]).unwrap();
        assert_eq!(read(folder.path(), &calibration.subject), None);
        write(folder.path(), &calibration).unwrap();
        assert_eq!(read(folder.path(), &calibration.subject), Some(calibration));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(write(&file.join("below"), &calibration()).is_err());
    }
}
