//! The time of each op of a step, from the engine and from `cuelight bench --profile`.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use cuelight_engine::engine::{Engine, LogitsWanted, Progress, SequenceRows, Step, StepId, StepOutput};
use cuelight_engine::load::{LoadOptions, plan};
use cuelight_engine::profile::Cost;
use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/families/llama-q4_0.gguf");

fn run(engine: &mut impl Engine, step: Step) -> StepOutput {
    match engine.begin(step).unwrap() {
        Progress::Done(output) => output,
        Progress::AwaitExperts(_) => panic!("the model has no experts"),
    }
}

/// A prompt of `tokens` tokens, and one token of another sequence.
fn step(tokens: u32) -> Step {
    let rows = |tokens: u32, block_table: Vec<u32>| SequenceRows {
        tokens: (0..tokens).collect(),
        first_position: 0,
        block_table,
        logits: LogitsWanted::Last,
        ..SequenceRows::default()
    };
    Step { id: StepId(0), sequences: vec![rows(tokens, vec![0, 1]), rows(1, vec![2])] }
}

fn options(profile_ops: bool) -> LoadOptions {
    LoadOptions { context_tokens: Some(64), threads: 1, profile_ops, ..LoadOptions::new(MODEL) }
}

#[test]
fn a_step_reports_each_op_in_order_and_their_costs_sum_to_that_of_the_step() {
    let mut engine = plan(&options(true)).unwrap().load_engine(&mut |_| {}).unwrap();
    for tokens in [1, 20] {
        let cost = engine.cost(&step(tokens)).unwrap();
        let output = run(&mut engine, step(tokens));
        assert_eq!(output.ops[0].op.kind(), "embed token_embd");
        assert_eq!(output.ops.last().unwrap().op.op, "linear");
        assert_eq!(output.ops.iter().map(|op| op.cost).sum::<Cost>(), cost);
        assert!(output.ops.windows(2).all(|pair| pair[0].start + pair[0].elapsed <= pair[1].start));
        let last = output.ops.last().unwrap();
        assert!(last.start + last.elapsed <= output.elapsed);
        let layers: Vec<u32> = output.ops.iter().filter_map(|op| op.op.layer).collect();
        assert!(layers.is_sorted() && layers.first() == Some(&0) && layers.len() > 3, "{layers:?}");
    }
    let (short, long) = (engine.cost(&step(1)).unwrap(), engine.cost(&step(20)).unwrap());
    assert!(
        long.operations() > 3 * short.operations(),
        "the head has two rows in both steps, the layers ten times as many in the second"
    );
    assert!(long.memory_bytes < 2 * short.memory_bytes, "weights are read once for any number of rows");
}

#[test]
fn ops_are_not_measured_unless_requested() {
    let mut engine = plan(&options(false)).unwrap().load_engine(&mut |_| {}).unwrap();
    assert!(run(&mut engine, step(3)).ops.is_empty());
}

#[test]
fn bench_prints_the_time_of_each_op() {
    let bench = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.args(["bench", MODEL, "-p", "8", "-n", "4", "-r", "2"]).args(more).env("CUELIGHT_CALIBRATE", "off");
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let tests: Vec<Value> = serde_json::from_str(&bench(&["--profile", "-o", "json"])).unwrap();
    for (test, steps) in tests.iter().zip([1, 4]) {
        let rows = test["profile"].as_array().unwrap();
        let share: f64 = rows.iter().map(|row| row["share"].as_f64().unwrap()).sum();
        assert!((share - 1.0).abs() < 1e-6, "{share}");
        let head = rows.iter().find(|row| row["op"] == "linear output").unwrap_or(&rows[0]);
        assert_eq!(head["calls"].as_u64().unwrap() % (2 * steps), 0, "two repetitions of {steps} steps");
        assert!(test["gb_per_s"].as_f64().unwrap() > 0.0 && test["gops"].as_f64().unwrap() > 0.0);
        assert!(
            test.get("bandwidth_share").is_none() && test.get("roofline").is_none(),
            "the roofline was not measured"
        );
    }
    let table = bench(&["--profile"]);
    assert!(
        table.contains("| op | calls | ms | longest | share |") && table.contains("| between ops | 0 |"),
        "{table}"
    );
    assert!(!bench(&[]).contains("| op |"));
}
