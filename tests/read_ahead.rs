//! Measures read-ahead of experts: alternating steps with and without it, of a mixture-of-experts model larger than the memory.
//!
//! Before each step, all experts except a given share are dropped from the page cache. The disk is the machine's own. Needs a file
//! of such a model on a disk, for example from `cuelight bench --synthetic qwen3-moe-16x64:q4_k_m --write FILE`:
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
use cuelight_engine::format::gguf::{Gguf, Metadata};
use cuelight_engine::load::{LoadOptions, plan};

#[path = "support/runner.rs"]
#[allow(dead_code)]
mod runner;
use runner::{Runner, Sequence};

const ROUNDS: usize = 9;

/// The shape of a step.
struct StepShape {
    name: &'static str,
    sequences: usize,
    tokens: usize,
}

const SHAPES: [StepShape; 3] = [
    StepShape { name: "one row", sequences: 1, tokens: 1 },
    StepShape { name: "eight sequences", sequences: 8, tokens: 1 },
    StepShape { name: "prompt of 128", sequences: 1, tokens: 128 },
];

#[test]
#[ignore = "needs a mixture on a disk: set CUELIGHT_TEST_MIXTURE"]
fn read_ahead_compared_with_reading_on_demand() {
    let path = PathBuf::from(std::env::var_os("CUELIGHT_TEST_MIXTURE").unwrap());
    let whole = LoadOptions { context_tokens: Some(1024), kv_bytes: Some(256 << 20), ..LoadOptions::new(&path) };
    let all = plan(&whole).unwrap().memory().clone();
    // Memory for a quarter of the weights.
    let memory_bytes = Some(all.total_bytes() - all.used.weights / 4 * 3);
    let load = |expert_read_ahead| {
        let plan = plan(&LoadOptions { memory_bytes, expert_read_ahead, ..whole.clone() }).unwrap();
        let in_file_bytes = plan.memory().in_file_bytes;
        (Runner::new(plan.load_engine(&mut |_| {}).unwrap()), in_file_bytes)
    };
    let ((on_demand, in_file_bytes), (ahead, _)) = (load(false), load(true));
    println!("{}: {:.2} GB of experts in the file", path.display(), in_file_bytes as f64 / 1e9);
    let experts = ExpertsOnDisk::new(&path, in_file_bytes);
    let mut engines = [on_demand, ahead];
    for shape in &SHAPES {
        for resident in [0.0, 0.5, 0.75, 1.0] {
            compare(shape, resident, &experts, &mut engines);
        }
    }
}

/// Runs steps of one shape alternately on both engines.
fn compare(shape: &StepShape, resident: f64, experts: &ExpertsOnDisk, engines: &mut [Runner<impl Engine>; 2]) {
    let mut times = [vec![], vec![]];
    for round in 0..ROUNDS {
        let seed = (round + shape.sequences * 100) as u64;
        let random = |index: usize| (hash(seed << 32 | index as u64) % 1000) as u32;
        let mut logits = Vec::new();
        for half in 0..2 {
            let which = (half + round) % 2;
            let mut sequences: Vec<Sequence> = (0..shape.sequences).map(|_| Sequence::default()).collect();
            let tokens: Vec<Vec<u32>> = (0..shape.sequences)
                .map(|s| (0..shape.tokens).map(|t| random(s * shape.tokens + t)).collect())
                .collect();
            let mut shares: Vec<_> =
                sequences.iter_mut().zip(&tokens).map(|(s, t)| (s, &t[..], LogitsWanted::Last)).collect();
            experts.leave_resident(resident, seed);
            let began = Instant::now();
            logits.push(engines[which].step(&mut shares));
            times[which].push(began.elapsed());
            sequences.into_iter().for_each(|sequence| engines[which].release(sequence));
        }
        assert!(logits[0] == logits[1], "both engines must give the same bits");
    }
    let [on_demand, ahead] = times.map(|times| median(times).as_secs_f64() * 1e3);
    println!(
        "{:16} {:3.0} % in the page cache: on demand {on_demand:7.1} ms, ahead {ahead:7.1} ms, {:.2} times as fast",
        shape.name,
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

/// The experts in a file that no engine keeps in memory.
struct ExpertsOnDisk {
    path: PathBuf,
    file: File,
    /// The byte ranges of the matrices of each expert of each layer.
    experts: Vec<Vec<Range<u64>>>,
}

impl ExpertsOnDisk {
    /// The experts of the last layers, up to `in_file_bytes` bytes.
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
                let range = |matrix: &cuelight_shaders::weight::Weight| {
                    let expert_bytes = (matrix.bytes().len() / n_experts) as u64;
                    let start = offset_of(matrix.bytes().as_ptr() as u64) + expert as u64 * expert_bytes;
                    start..start + expert_bytes
                };
                matrices.iter().map(range).collect()
            }));
        }
        ExpertsOnDisk { path: path.to_owned(), file: File::open(path).unwrap(), experts }
    }

    /// Reads a share of the experts into the page cache and drops the others from it.
    fn leave_resident(&self, share: f64, seed: u64) {
        let is_kept = |index: usize| (hash(seed ^ (index as u64) << 20) as f64) < share * u64::MAX as f64;
        let maps = maps_of(&self.path);
        let mut buffer = Vec::new();
        for keeps in [false, true] {
            for (_, ranges) in self.experts.iter().enumerate().filter(|(index, _)| is_kept(*index) == keeps) {
                for range in ranges {
                    if keeps {
                        buffer.resize((range.end - range.start) as usize, 0);
                        self.file.read_exact_at(&mut buffer, range.start).unwrap();
                    } else {
                        self.drop_pages(&maps, range);
                    }
                }
            }
        }
    }

    /// Drops a range of the file from the page cache. Its mapped pages are dropped first, because mapped pages stay cached.
    fn drop_pages(&self, maps: &[(Range<u64>, u64)], range: &Range<u64>) {
        // Pages shared with another tensor stay: every step uses them.
        let (start, end) = (range.start.next_multiple_of(4096), range.end & !4095);
        for (at, offset) in maps {
            let (first, last) = (start.max(*offset), end.min(offset + (at.end - at.start)));
            if first < last {
                // SAFETY: the range is in a read-only mapping of a file; its pages are read again on the next access.
                unsafe {
                    let address = (at.start + first - offset) as *mut libc::c_void;
                    assert_eq!(libc::madvise(address, (last - first) as usize, libc::MADV_DONTNEED), 0);
                }
            }
        }
        // SAFETY: the file descriptor is open, and the call does not access memory of this process.
        let advised = unsafe {
            let length = (end - start) as libc::off_t;
            libc::posix_fadvise(self.file.as_raw_fd(), start as libc::off_t, length, libc::POSIX_FADV_DONTNEED)
        };
        assert_eq!(advised, 0);
    }
}

/// The address ranges at which this process has a file mapped, with their offsets in the file.
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
