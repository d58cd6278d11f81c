//! Servers of models that make vectors, scores or classes instead of text.

use std::path::Path;

use cuelight::api::{ServerOptions, router};
use cuelight::pipeline::planned_file::PlannedFile;
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight::pipeline::simulation::SimulatedModel;
use cuelight_engine::engine::{EngineLimits, HiddenLimits};
use cuelight_engine::load::{KvType, LoadOptions, plan};

use super::{MODEL, Server, model};

/// A model that gives `width` values for a text and no tokens, and whose rows see later rows.
pub fn encoder(width: usize) -> SimulatedModel {
    let hidden = HiddenLimits { width, max_rows: 256, whole_sequences: true, ..HiddenLimits::default() };
    let base = model();
    let limits = EngineLimits { max_logits_rows: 0, hidden, context_tokens: 200, ..base.limits.clone() };
    SimulatedModel { limits, ..base }
}

/// The tiny model of this file or directory of the fixtures.
pub async fn real(name: &str) -> Server {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let options = LoadOptions { kv_type: KvType::F32, max_sequences: 3, threads: 2, ..LoadOptions::new(&path) };
    let source = PlannedFile::new(plan(&options).unwrap());
    let runtime = Runtime::start(source, RuntimeOptions::default()).await.unwrap();
    assert!(runtime.wait_ready().await.is_ok());
    let router = router(runtime.clone(), ServerOptions::new(MODEL)).unwrap();
    Server { runtime, router }
}
