//! A model inside of an async program: one beginning, and two continuations that are generated at the same time.
//!
//! `cargo run --release --example session -- MODEL "Once upon a time"`

use std::error::Error;
use std::io::Write;

use cuelight::core::request::SamplingParams;
use cuelight::session::{GenerateOptions, Session, SessionError, SessionOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(beginning)) = (arguments.next(), arguments.next()) else {
        return Err("usage: session MODEL BEGINNING".into());
    };
    let mut session = Session::open(SessionOptions::new(model)).await?;
    session.extend(&beginning)?;
    print!("{beginning}");
    let mut stream = session.generate(&options(0)).await?;
    while let Some(text) = stream.next().await {
        print!("{}", text?);
        std::io::stdout().flush()?;
    }
    println!("\n");

    // Both share the keys and values of all that came before.
    let (one, other) = (session.fork(), session.fork());
    let (sad, happy) = tokio::try_join!(
        continued(one, " But it ended badly: ", 1),
        continued(other, " In the end everyone was happy: ", 2)
    )?;
    println!("{sad}\n\n{happy}");
    session.close().await;
    Ok(())
}

async fn continued(mut session: Session, next: &str, seed: u64) -> Result<String, SessionError> {
    session.extend(next)?;
    let text = session.generate(&options(seed)).await?.into_text().await?;
    Ok(format!("{next}{text}"))
}

fn options(seed: u64) -> GenerateOptions {
    let sampling = SamplingParams { temperature: 0.7, min_p: 0.05, seed: Some(seed), ..SamplingParams::default() };
    GenerateOptions { max_tokens: Some(48), sampling: Some(sampling), ..GenerateOptions::default() }
}
