//! A model inside of a program without async code: a chat that answers in JSON.
//!
//! `cargo run --release --example blocking_session -- MODEL`

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};

use cuelight::session::blocking::Session;
use cuelight::session::{GenerateOptions, Message, SessionOptions};
use cuelight_engine::constraint::Grammar;
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).ok_or("usage: blocking_session MODEL")?;
    let mut session = Session::open(SessionOptions::new(model))?;
    let schema = json!({
        "type": "object",
        "properties": { "answer": { "type": "string", "maxLength": 200 }, "certain": { "type": "boolean" } },
        "required": ["answer", "certain"],
        "additionalProperties": false
    });
    let options = GenerateOptions { grammar: Some(Grammar::JsonSchema(schema)), ..GenerateOptions::default() };
    let mut messages = vec![Message::new("system", "Answer briefly, in JSON.")];
    for line in stdin().lock().lines() {
        messages.push(Message::new("user", line?));
        // The prefix cache has the keys and values of the earlier messages.
        session.converse(&messages)?;
        let mut answer = String::new();
        for text in session.generate(&options)? {
            let text = text?;
            print!("{text}");
            stdout().flush()?;
            answer.push_str(&text);
        }
        println!();
        messages.push(Message::new("assistant", answer));
    }
    Ok(())
}
