//! The program that libFuzzer drives. The environment variable `CUELIGHT_FUZZ_TARGET` names the target: one program for all of
//! them is built and linked once.

#![no_main]

mod targets;

use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();
    TARGET.get_or_init(target)(data);
});

fn target() -> fn(&[u8]) {
    let name = std::env::var("CUELIGHT_FUZZ_TARGET").unwrap_or_default();
    let found = targets::TARGETS.iter().find(|(target, _)| *target == name);
    let names: Vec<&str> = targets::TARGETS.iter().map(|(target, _)| *target).collect();
    found.unwrap_or_else(|| panic!("CUELIGHT_FUZZ_TARGET is none of {names:?}")).1
}
