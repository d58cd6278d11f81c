//! The rows of the engine: runs `cuelight bench` or llama-bench, whose JSON has the same field names.

use std::path::Path;

use serde::Deserialize;

use super::child;
use super::contender::{BenchPlan, Contender, FlashAttention};
use super::error::{JobError, ResultsError};
use super::rows::Test;

/// The measurements of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineJob {
    tests: Vec<Test>,
    plan: BenchPlan,
}

/// One result of llama-bench's list.
#[derive(Debug, Deserialize)]
struct Measured {
    n_prompt: usize,
    n_gen: usize,
    /// Older builds do not have this field.
    #[serde(default)]
    n_depth: usize,
    avg_ts: f64,
}

impl EngineJob {
    /// The jobs for these rows: one for each depth.
    #[must_use]
    pub fn all(tests: &[Test], threads: usize) -> Vec<EngineJob> {
        let mut jobs: Vec<EngineJob> = Vec::new();
        for &test in tests {
            let (prompt, generated, depth) = match test {
                Test::Prefill { tokens } => (Some(tokens), 0, 0),
                Test::Decode { tokens, depth } => (None, tokens, depth),
                _ => continue,
            };
            let index = jobs.iter().position(|job| job.plan.depth == depth).unwrap_or_else(|| {
                let plan = BenchPlan { prompts: Vec::new(), generated: 0, depth, threads };
                jobs.push(EngineJob { tests: Vec::new(), plan });
                jobs.len() - 1
            });
            let job = &mut jobs[index];
            job.tests.push(test);
            job.plan.prompts.extend(prompt);
            job.plan.generated = job.plan.generated.max(generated);
        }
        jobs
    }

    /// The rows that it measures.
    #[must_use]
    pub fn tests(&self) -> &[Test] {
        &self.tests
    }

    /// The name in notices and errors.
    #[must_use]
    pub fn name(&self) -> String {
        match (self.plan.prompts.is_empty(), self.plan.generated, self.plan.depth) {
            (false, 0, _) => "prefill".to_owned(),
            (false, _, _) => "prefill and decode".to_owned(),
            (true, _, 0) => "decode".to_owned(),
            (true, _, depth) => format!("decode at depth {depth}"),
        }
    }

    /// Runs the job once.
    ///
    /// # Errors
    /// [`JobError`] when the process fails or prints invalid results.
    pub async fn run(
        &self,
        contender: &Contender,
        setting: Option<FlashAttention>,
        model: &Path,
        mut record: impl FnMut(Test, f64),
    ) -> Result<(), JobError> {
        let Some(command) = contender.bench(model, &self.plan, setting) else { return Ok(()) };
        let printed = child::output(command).await?;
        for (test, speed) in read(&self.tests, &printed)? {
            record(test, speed);
        }
        Ok(())
    }
}

/// Tokens per second of each row.
fn read(tests: &[Test], printed: &[u8]) -> Result<Vec<(Test, f64)>, ResultsError> {
    let results: Vec<Measured> = serde_json::from_slice(printed).map_err(ResultsError::NotJson)?;
    let speed = |&test: &Test| {
        let wanted = match test {
            Test::Prefill { tokens } => (tokens, 0, 0),
            Test::Decode { tokens, depth } => (0, tokens, depth),
            _ => return Err(ResultsError::Missing(test.name())),
        };
        // With `-gp` the depth is the prompt.
        let (prompt, generated, depth) = wanted;
        let found = results.iter().find(|result| {
            let shape = (result.n_prompt, result.n_gen, result.n_depth);
            shape == wanted || (generated > 0 && shape == (prompt + depth, generated, 0))
        });
        let speed = found.map(|result| result.avg_ts).filter(|speed| speed.is_finite() && *speed > 0.0);
        speed.map(|speed| (test, speed)).ok_or_else(|| ResultsError::Missing(test.name()))
    };
    tests.iter().map(speed).collect()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    const PREFILL: Test = Test::Prefill { tokens: 512 };
    const DECODE: Test = Test::Decode { tokens: 128, depth: 0 };

    #[test]
    fn results_are_found_by_shape_in_any_order() {
        let printed = br#"[{"n_prompt": 0, "n_gen": 128, "n_depth": 0, "avg_ts": 40.5, "samples_ts": [40.5]},
            {"n_prompt": 0, "n_gen": 128, "n_depth": 2048, "avg_ts": 30.0},
            {"n_prompt": 512, "n_gen": 0, "avg_ts": 500.0, "build_commit": "x"}]"#;
        assert_eq!(read(&[PREFILL, DECODE], printed).unwrap(), [(PREFILL, 500.0), (DECODE, 40.5)]);
    }

    #[test]
    fn a_depth_may_be_reported_as_the_prompt() {
        let deep = Test::Decode { tokens: 128, depth: 2048 };
        let printed = br#"[{"n_prompt": 2048, "n_gen": 128, "avg_ts": 30.0, "test": "tg128@pp2048"}]"#;
        assert_eq!(read(&[deep], printed).unwrap(), [(deep, 30.0)]);
        assert!(read(&[DECODE], printed).is_err());
    }

    #[test]
    fn an_error_names_the_missing_result() {
        let error = |printed: &str| read(&[DECODE], printed.as_bytes()).unwrap_err().to_string();
        assert!(error("").contains("not llama-bench's JSON"));
        assert!(error("| model | size |").contains("not llama-bench's JSON"));
        assert_eq!(error("[]"), "the output has no result for decode 128");
        assert!(error(r#"[{"n_prompt": 0, "n_gen": 128, "avg_ts": 0.0}]"#).contains("no result"));
    }

    #[test]
    fn rows_of_one_depth_share_a_process() {
        let deep = Test::Decode { tokens: 128, depth: 2048 };
        let jobs = EngineJob::all(&[PREFILL, Test::Prefill { tokens: 2048 }, DECODE, deep, Test::ColdStart], 2);
        let plans: Vec<_> =
            jobs.iter().map(|job| (job.plan.prompts.clone(), job.plan.generated, job.plan.depth)).collect();
        assert_eq!(plans, [(vec![512, 2048], 128, 0), (vec![], 128, 2048)]);
    }
}
