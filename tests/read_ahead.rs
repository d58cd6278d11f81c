//! What reading experts ahead is worth: steps of a mixture that is larger than the memory, with and without it, in turn.
//!
//! The page cache is made to have only a share of the experts before each step, by dropping the others from it; the disk is the
//! machine's own. Needs a file of a mixture on a disk, such as
//! `cuelight bench --synthetic qwen3-moe-16x64:q4_k_m --write FILE` makes:
//!
//! `CUELIGHT_TEST_MIXTURE=FILE cargo test --release --test read_ahead -- --ignored --nocapture`

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cuelight_engine::engine::{Engine, LogitsWanted};
use cuelight_engine::format::gguf::Gguf;
use cuelight_engine::load::{LoadOptions, plan};

#[path = "support/runner.rs"]
#[allow(dead_code)]
mod runner;
use runner::{Runner, Sequence};

const ROUNDS: usize = 9;

/// A kind of step.
struct Kind {
    name: &'static str,
    sequences: usize,
    tokens: usize,
}

const KINDS: [Kind; 3] = [
    Kind { name: "one row", sequences: 1, tokens: 1 },
    Kind { name: "eight sequences", sequences: 8, tokens: 1 },
    Kind { name: "prompt of 128", sequences: 1, tokens: 128 },
];

#[test]
#[ignore = "needs a mixture on a disk: set CUELIGHT_TEST_MIXTURE"]
fn reading_ahead_beside_reading_on_demand() {
    let path = PathBuf::from(std::env::var_os("CUELIGHT_TEST_MIXTURE").unwrap());
    let whole = LoadOptions { context_tokens: Some(1024), kv_bytes: Some(256 << 20), ..LoadOptions::new(&path) };
    let all = plan(&whole).unwrap().memory().clone();
    // Room for a quarter of the weights.
    let memory_bytes = Some(all.total_bytes() - all.weights_bytes / 4 * 3);
    let load = |expert_read_ahead| {
        let plan = plan(&LoadOptions { memory_bytes, expert_read_ahead, ..whole.clone() }).unwrap();
        let in_file_bytes = plan.memory().in_file_bytes;
        (Runner::new(plan.load_engine(&mut |_| {}).unwrap()), in_file_bytes)
    };
    let ((on_demand, in_file_bytes), (ahead, _)) = (load(false), load(true));
    println!("{}: {:.2} GB of experts in the file", path.display(), in_file_bytes as f64 / 1e9);
    let experts = ExpertsOnDisk::new(&path, in_file_bytes);
    let mut engines = [on_demand, ahead];
    for kind in &KINDS {
        for resident in [0.0, 0.5, 0.75, 1.0] {
            compare(kind, resident, &experts, &mut engines);
        }
    }
}

/// Steps of one kind on both engines, in turn.
fn compare(kind: &Kind, resident: f64, experts: &ExpertsOnDisk, engines: &mut [Runner<impl Engine>; 2]) {
    let mut times = [vec![], vec![]];
    for round in 0..ROUNDS {
        let seed = (round + kind.sequences * 100) as u64;
        let random = |index: usize| (hash(seed << 32 | index as u64) % 1000) as u32;
        let mut logits = Vec::new();
        for turn in 0..2 {
            let which = (turn + round) % 2;
            let mut sequences: Vec<Sequence> = (0..kind.sequences).map(|_| Sequence::default()).collect();
            let tokens: Vec<Vec<u32>> =
                (0..kind.sequences).map(|s| (0..kind.tokens).map(|t| random(s * kind.tokens + t)).collect()).collect();
            let mut shares: Vec<_> =
                sequences.iter_mut().zip(&tokens).map(|(s, t)| (s, &t[..], LogitsWanted::Last)).collect();
            experts.leave_resident(resident, seed);
            let began = Instant::now();
            logits.push(engines[which].step(&mut shares));
            times[which].push(began.elapsed());
            sequences.into_iter().for_each(|sequence| engines[which].release(sequence));
        }
        assert!(logits[0] == logits[1], "bits, whoever asks for weights");
    }
    let [on_demand, ahead] = times.map(|times| median(times).as_secs_f64() * 1e3);
    println!(
        "{:16} {:3.0} % in the page cache: on demand {on_demand:7.1} ms, ahead {ahead:7.1} ms, {:.2} times as fast",
        kind.name,
        resident * 100.0,
        on_demand / ahead
    );
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// SplitMix64.
fn hash(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Where a file has the experts that no engine keeps in memory.
struct ExpertsOnDisk {
    path: PathBuf,
    file: File,
    /// For each expert of each layer the places of its matrices.
    experts: Vec<Vec<Range<u64>>>,
}

impl ExpertsOnDisk {
    /// Those of the last layers that have so many bytes together.
    fn new(path: &Path, in_file_bytes: u64) -> Self {
        let gguf = Gguf::open(path).unwrap();
        let n_experts: usize = gguf
            .metadata()
            .iter()
            .find(|(key, _)| key.ends_with(".expert_count"))
            .map(|(key, _)| gguf.u32(key).unwrap() as usize)
            .unwrap();
        let maps = maps_of(path);
        let offset_of = |address: u64| {
            let (at, offset) = maps.iter().find(|(at, _)| at.contains(&address)).unwrap();
            address - at.start + offset
        };
        let mut experts = Vec::new();
        let mut left = in_file_bytes;
        for layer in (0..gguf.u32(&format!("{}.block_count", gguf.str("general.architecture").unwrap())).unwrap()).rev()
        {
            let names = ["gate", "up", "down"].map(|stem| format!("blk.{layer}.ffn_{stem}_exps.weight"));
            let matrices = names.map(|name| gguf.weight(&name).unwrap());
            let bytes: usize = matrices.iter().map(|matrix| matrix.bytes().len()).sum();
            if left == 0 {
                break;
            }
            left -= bytes as u64;
            experts.extend((0..n_experts).map(|expert| {
                let place = |matrix: &cuelight_shaders::weight::Weight| {
                    let of_one = (matrix.bytes().len() / n_experts) as u64;
                    let start = offset_of(matrix.bytes().as_ptr() as u64) + expert as u64 * of_one;
                    start..start + of_one
                };
                matrices.iter().map(place).collect()
            }));
        }
        ExpertsOnDisk { path: path.to_owned(), file: File::open(path).unwrap(), experts }
    }

    /// Drops all but a share of them from the page cache, and brings those to it.
    fn leave_resident(&self, share: f64, seed: u64) {
        let is_kept = |index: usize| (hash(seed ^ (index as u64) << 20) as f64) < share * u64::MAX as f64;
        let maps = maps_of(&self.path);
        let mut buffer = Vec::new();
        for keeps in [false, true] {
            for (_, places) in self.experts.iter().enumerate().filter(|(index, _)| is_kept(*index) == keeps) {
                for place in places {
                    if keeps {
                        buffer.resize((place.end - place.start) as usize, 0);
                        self.file.read_exact_at(&mut buffer, place.start).unwrap();
                    } else {
                        self.drop_pages(&maps, place);
                    }
                }
            }
        }
    }

    /// Drops a stretch of the file from the page cache, which takes that nobody has it mapped.
    fn drop_pages(&self, maps: &[(Range<u64>, u64)], place: &Range<u64>) {
        // Pages that another tensor begins or ends in stay: they belong to what every step uses.
        let (start, end) = (place.start.next_multiple_of(4096), place.end & !4095);
        for (at, offset) in maps {
            let (first, last) = (start.max(*offset), end.min(offset + (at.end - at.start)));
            if first < last {
                // SAFETY: these are read-only maps of a file, whose pages come back from it when they are next looked at.
                unsafe {
                    let address = (at.start + first - offset) as *mut libc::c_void;
                    assert_eq!(libc::madvise(address, (last - first) as usize, libc::MADV_DONTNEED), 0);
                }
            }
        }
        // SAFETY: a call of the system with a file that is open.
        let advised = unsafe {
            let length = (end - start) as libc::off_t;
            libc::posix_fadvise(self.file.as_raw_fd(), start as libc::off_t, length, libc::POSIX_FADV_DONTNEED)
        };
        assert_eq!(advised, 0);
    }
}

/// Where this process has a file mapped, and from which offset on.
fn maps_of(path: &Path) -> Vec<(Range<u64>, u64)> {
    let path = fs::canonicalize(path).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let of_line = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let offset = words.nth(1)?;
        Some((hex(start)..hex(end), hex(offset)))
    };
    maps.lines().filter(|line| line.ends_with(path.to_str().unwrap())).filter_map(of_line).collect()
}
