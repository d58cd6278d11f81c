//! The engine without the actors: greedy text from a GGUF file, on one page.
//!
//! `cargo run --release --example generate -- MODEL.gguf "Once upon a time"`

use std::error::Error;
use std::io::Write;

use cuelight_engine::engine::{
    BLOCK_TOKENS, Engine, LogitsWanted, Progress, SequenceRows, SequenceState, Step, StepId,
};
use cuelight_engine::format::tokenizer::StreamDecoder;
use cuelight_engine::load::{LoadOptions, plan};

const MAX_TOKENS: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(prompt)) = (arguments.next(), arguments.next()) else {
        return Err("usage: generate MODEL.gguf PROMPT".into());
    };
    // There is one sequence, so its blocks are 0, 1, 2, …
    let options = LoadOptions { max_sequences: 1, ..LoadOptions::new(path) };
    let plan = plan(&options)?;
    eprintln!("{}", plan.memory());
    let mut model = plan.load(&mut |_| {})?;
    let limits = model.engine.limits().clone();

    let mut tokens = model.tokenizer.encode(&prompt, true, true)?;
    let mut decoder = StreamDecoder::continuing();
    let mut position = 0;
    for _ in 0..MAX_TOKENS {
        // First the whole prompt, in steps within the engine's limits, then one token at a time.
        let mut logits = Vec::new();
        while position < tokens.len() {
            let end = tokens.len().min(position + limits.max_batched_tokens);
            let sequence = SequenceRows {
                tokens: tokens[position..end].to_vec(),
                first_position: position as u32,
                block_table: (0..end.div_ceil(BLOCK_TOKENS) as u32).collect(),
                state: SequenceState::in_place(&limits, 0, position as u32, end - position),
                logits: LogitsWanted::Last,
                ..SequenceRows::default()
            };
            let step = Step { id: StepId(position as u64), sequences: vec![sequence] };
            let Progress::Done(output) = model.engine.begin(step)? else { return Err("the model has experts".into()) };
            logits = output.logits;
            position = end;
        }
        let best = (0u32..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(token, _)| token);
        if model.tokenizer.end_of_generation().contains(&best) || tokens.len() == limits.context_tokens {
            break;
        }
        tokens.push(best);
        print!("{}", decoder.push(&model.tokenizer, best, true));
        std::io::stdout().flush()?;
    }
    println!("{}", decoder.finish());
    Ok(())
}
