//! Faults of the engine under a real server with real weights.
//!
//! `CUELIGHT_TEST_MODELS=FOLDER cargo test --features fault-injection --test faults -- --ignored --nocapture`

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

#[path = "support/server_process.rs"]
mod server_process;

use server_process::{Answer, ServerProcess, chat, text};

const STREAMS: usize = 16;

/// Sixteen streams, and a fault in their middle.
async fn answers(server: &Arc<ServerProcess>, fault: Option<&'static str>) -> Vec<Answer> {
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let server = server.clone();
        let mut request = chat(&text(60, number as u64), 160);
        request["temperature"] = 0.into();
        streams.push(tokio::spawn(async move { server.stream(&request).await }));
    }
    if let Some(kind) = fault {
        tokio::time::sleep(Duration::from_millis(700)).await;
        server.fault(kind).await;
    }
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(stream.await.unwrap());
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn sixteen_streams_outlive_their_engine_with_the_same_text() {
    let server = Arc::new(ServerProcess::start(&["--step-timeout", "10s"]).await);
    let expected = answers(&server, None).await;
    for kind in ["panic", "device_lost", "hang"] {
        let begin = Instant::now();
        let heard = answers(&server, Some(kind)).await;
        println!("{kind}: {:?} with the fault", begin.elapsed());
        for (heard, expected) in heard.iter().zip(&expected) {
            assert!(heard.status == 200 && heard.is_whole, "{kind}: {heard:?}");
            assert_eq!(heard.text, expected.text, "{kind}");
        }
        assert_eq!(server.get("/ready").await.0, 200);
    }
    assert_eq!(server.metric("cuelight_actor_restarts_total").await, 3.0, "of all actors together");
}
