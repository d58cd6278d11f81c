//! Load tests of the server with a real model.
//!
//! `CUELIGHT_TEST_MODELS=FOLDER cargo test --release --test real_server -- --ignored --nocapture`
//!
//! Figures are printed. Assertions about times allow for [`NOISE`], because the machine may be busy.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

#[path = "support/server_process.rs"]
mod server_process;

use server_process::{Answer, ServerProcess, chat, conversation, gaps, median, percentile, random, text};

/// Tolerance factor of assertions about times.
const NOISE: f64 = 2.0;

/// Runs the jobs concurrently and collects their results in the order in which they end.
async fn all<T: Send + 'static>(jobs: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>) -> Vec<T> {
    jobs.into_iter().collect::<JoinSet<T>>().join_all().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn a_thousand_disconnected_clients_leave_no_requests_behind() {
    const CLIENTS: u64 = 1000;
    const AT_ONCE: usize = 64;
    let server = Arc::new(ServerProcess::start(&["--max-seqs", "16"]).await);
    let turnstile = Arc::new(Semaphore::new(AT_ONCE));
    let client = |number: u64| {
        let (server, turnstile) = (server.clone(), turnstile.clone());
        async move {
            let _turn = turnstile.acquire().await.unwrap();
            // A third disconnect before the server can have responded.
            let patience =
                Duration::from_millis(if number.is_multiple_of(3) { random(number) % 5 } else { random(number) % 800 });
            let body = chat(&text(20, number), 400);
            let answer =
                async { if number.is_multiple_of(2) { server.stream(&body).await } else { server.call(&body).await } };
            tokio::time::timeout(patience, answer).await.is_err()
        }
    };
    let hung_up = all((0..CLIENTS).map(client)).await.into_iter().filter(|&hung_up| hung_up).count();
    println!("{hung_up} of {CLIENTS} clients hung up");
    assert!(hung_up > 900, "{hung_up}");
    let last_left = Instant::now();
    server.assert_empties(Duration::from_secs(5)).await;
    println!("nothing was left {} ms after the last one", last_left.elapsed().as_millis());
    assert_eq!(server.call(&chat("hello", 4)).await.status, 200);
    server.assert_empties(Duration::from_secs(5)).await;
}

/// Runs `clients` clients that send one request after another until `wanted` are answered in total. A refused client waits
/// for its `retry-after`, at most one second, so that the load stays high.
async fn load(server: &Arc<ServerProcess>, clients: u64, wanted: usize, seed: u64) -> Vec<Answer> {
    let answered = Arc::new(AtomicUsize::new(0));
    let client = |number: u64| {
        let (server, answered) = (server.clone(), answered.clone());
        async move {
            let mut answers = Vec::new();
            while answered.load(Ordering::Relaxed) < wanted {
                let request = random(seed + number * 1000 + answers.len() as u64);
                let answer = server.stream(&chat(&text(60, request), 32)).await;
                answer.assert_answered_or_refused();
                if answer.status == 200 {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(answer.pause().min(Duration::from_secs(1))).await;
                answers.push(answer);
            }
            answers
        }
    };
    all((0..clients).map(client)).await.into_iter().flatten().collect()
}

fn all_gaps(answers: &[Answer]) -> Vec<f64> {
    answers.iter().flat_map(Answer::gaps).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn excess_clients_are_refused_and_do_not_slow_accepted_ones() {
    // Eight requests run and eight wait.
    const BATCH: u64 = 8;
    const CAPACITY: u64 = 16;
    let flags = ["--max-seqs", "8", "--max-queued-requests", "8", "--speculate", "off"];
    let server = Arc::new(ServerProcess::start(&flags).await);
    load(&server, BATCH, 8, 1).await;
    let unloaded = load(&server, BATCH, 32, 2).await;
    assert!(unloaded.iter().all(|answer| answer.status == 200), "a full batch is not an overload");
    let overloaded = load(&server, 10 * CAPACITY, 48, 3).await;
    let (answered, refused): (Vec<Answer>, Vec<Answer>) =
        overloaded.into_iter().partition(|answer| answer.status == 200);
    let (alone, loaded) = (percentile(&all_gaps(&unloaded), 0.95), percentile(&all_gaps(&answered), 0.95));
    println!("{} answered, {} refused", answered.len(), refused.len());
    println!("p95 between tokens: {alone:.1} ms at 8 clients, {loaded:.1} ms at 160: {:.2} x", loaded / alone);
    assert!(answered.len() >= 48 && !refused.is_empty());
    assert!(loaded <= 2.0 * NOISE * alone, "{loaded} ms against {alone} ms");
    server.assert_empties(Duration::from_secs(5)).await;
}

/// Times to the first token of a client that sends one short question after the other, in milliseconds.
async fn times_to_first_token(server: &ServerProcess, questions: u64, seed: u64) -> Vec<f64> {
    let mut times = Vec::new();
    for question in 0..questions {
        let body = chat(&text(150, seed + question), 8);
        let answer = server.stream_with_key(&body, Some("modest"), |_| true).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        times.push(answer.time_to_first_token().as_secs_f64() * 1e3);
    }
    times
}

/// One client sends as much as it can: long prompts, long answers, several choices, high priority and many users.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn a_client_that_sends_as_much_as_it_can_does_not_shut_out_another() {
    const CALLS: u64 = 48;
    let keys = ["--api-key", "greedy", "--api-key", "modest"];
    let server = Arc::new(ServerProcess::start(&[&keys[..], &["--max-seqs", "8"]].concat()).await);
    times_to_first_token(&server, 2, 0).await;
    let alone = times_to_first_token(&server, 7, 100).await;
    let greedy: Vec<_> = (0..CALLS)
        .map(|number| {
            let server = server.clone();
            tokio::spawn(async move {
                for call in 0.. {
                    let mut body = chat(&text(100 + 200 * (number as usize % 8), 1000 * number + call), 500);
                    body["n"] = json!(1 + number % 4);
                    body["priority"] = json!(-100);
                    body["user"] = json!(format!("{number} {call}"));
                    let answer = server.stream_with_key(&body, Some("greedy"), |_| true).await;
                    tokio::time::sleep(answer.pause().min(Duration::from_millis(200))).await;
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let next_to_it = times_to_first_token(&server, 9, 200).await;
    greedy.iter().for_each(tokio::task::JoinHandle::abort);
    let (alone, loaded) = (median(&alone), median(&next_to_it));
    println!(
        "first token after {alone:.0} ms alone, after {loaded:.0} ms next to a greedy client: {:.1}x",
        loaded / alone
    );
    println!("each: {next_to_it:.0?}");
    assert!(loaded <= 3.0 * NOISE * alone, "{loaded:.0} ms against {alone:.0} ms");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn a_long_prompt_does_not_block_running_streams() {
    const STREAMS: u64 = 8;
    const SETTLED: usize = 16;
    // Memory for all tokens: a stream that is preempted would wait for the others. One token per step, so that the time
    // between tokens is that of a step.
    let flags = ["--max-seqs", "16", "--kv-memory", "1GiB", "--speculate", "off"];
    let server = Arc::new(ServerProcess::start(&flags).await);
    let (settled, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let stream = |number: u64| {
        let (server, settled, is_over) = (server.clone(), settled.clone(), is_over.clone());
        async move {
            let body = chat(&text(30, number), 4000);
            let mut was_settled = false;
            let watch = |answer: &Answer| {
                if answer.pieces.len() >= SETTLED && !std::mem::replace(&mut was_settled, true) {
                    settled.fetch_add(1, Ordering::Relaxed);
                }
                !is_over.load(Ordering::Relaxed)
            };
            server.stream_while(&body, watch).await
        }
    };
    let streams: JoinSet<Answer> = (0..STREAMS).map(stream).collect();
    while settled.load(Ordering::Relaxed) < STREAMS as usize {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The time per token of eight streams alone.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let arrival = Instant::now();
    let long = server.stream(&chat(&text(1500, 99), 4)).await;
    is_over.store(true, Ordering::Relaxed);
    let prompt_tokens = long.usage["prompt_tokens"].as_u64().unwrap();
    assert!(prompt_tokens >= 1500, "{prompt_tokens}");

    let (mut before, mut during) = (Vec::new(), Vec::new());
    for answer in streams.join_all().await {
        let begin = answer.pieces.partition_point(|&time| time < arrival);
        before.extend(gaps(&answer.pieces[SETTLED - 1..begin]));
        // The gap in which the prompt arrives counts.
        during.extend(gaps(&answer.pieces[begin - 1..]));
    }
    let alone = median(&before);
    println!("{prompt_tokens} tokens of prompt: {:.2} s to the first token", long.time_to_first_token().as_secs_f64());
    println!("between tokens of the others, median before: {alone:.1} ms; during, of {} gaps:", during.len());
    for quantile in [0.5, 0.95, 0.99, 1.0] {
        let gap = percentile(&during, quantile);
        println!("  p{:<3} {gap:.1} ms, {:.2} x", quantile * 100.0, gap / alone);
    }
    // The goal is a factor of 3 for every token, which is not reached: on a shared machine other work determines the worst
    // of thousands. A step with the whole prompt, as without a time budget, would take hundreds of times as long.
    let (usual, slow, worst) = (median(&during), percentile(&during, 0.99), percentile(&during, 1.0));
    assert!(usual <= 3.0 * NOISE * alone, "{usual:.1} ms against {alone:.1} ms");
    assert!(
        slow <= 9.0 * NOISE * alone && worst <= 30.0 * NOISE * alone,
        "{slow:.1} ms, {worst:.1} ms against {alone:.1} ms"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn the_second_message_of_a_conversation_computes_only_new_tokens() {
    let server = ServerProcess::start(&["--max-seqs", "4"]).await;
    server.stream(&chat(&text(200, 1), 4)).await;
    let mut ratios = Vec::new();
    for talk in 0..3 {
        let mut messages = vec![json!({ "role": "user", "content": text(1440, 100 + talk) })];
        let cold = server.stream(&conversation(Value::from(messages.clone()), 40)).await;
        messages.push(json!({ "role": "assistant", "content": cold.text }));
        messages.push(json!({ "role": "user", "content": text(20, 200 + talk) }));
        let warm = server.stream(&conversation(Value::from(messages), 4)).await;
        let cached = warm.usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let (first, second) = (cold.time_to_first_token().as_secs_f64(), warm.time_to_first_token().as_secs_f64());
        println!(
            "{} tokens cold: {:.0} ms; {} tokens, {cached} of them cached: {:.0} ms, {:.3} x",
            cold.usage["prompt_tokens"],
            first * 1e3,
            warm.usage["prompt_tokens"],
            second * 1e3,
            second / first
        );
        assert!(cold.usage["prompt_tokens"].as_u64() > Some(1400));
        assert!(cached > 0, "the second message shares the prefix of the first");
        ratios.push(second / first);
    }
    assert!(median(&ratios) <= 0.15 * NOISE, "{ratios:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn sixteen_clients_get_more_throughput_than_one() {
    let server = Arc::new(ServerProcess::start(&["--max-seqs", "16", "--speculate", "off"]).await);
    server.stream(&chat("warm up", 8)).await;
    let mut speeds = Vec::new();
    for clients in [1, 16] {
        let client = |number: u64| {
            let server = server.clone();
            async move { server.stream(&chat(&text(20, random(clients * 100 + number)), 128)).await }
        };
        let answers = all((0..clients).map(client)).await;
        // From when all of them decode until the first one is done.
        let first = answers.iter().map(|answer| answer.pieces[0]).max().unwrap();
        let last = answers.iter().map(|answer| *answer.pieces.last().unwrap()).min().unwrap();
        let within = answers.iter().flat_map(|answer| &answer.pieces).filter(|&&time| first < time && time <= last);
        assert!(first < last, "the answers must overlap");
        let (tokens, seconds) = (within.count() as f64, (last - first).as_secs_f64());
        println!("{clients:2} clients: {:.1} tok/s while all decode", tokens / seconds);
        speeds.push(tokens / seconds);
    }
    println!("16 clients get {:.2} x what one gets", speeds[1] / speeds[0]);
    // The goal is a factor of 4. Both are bound by the same matrix products, so a prompt is hardly faster than 16 streams.
    assert!(speeds[1] > 3.0 / NOISE * speeds[0], "{speeds:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn drafts_change_no_text() {
    let server = Arc::new(ServerProcess::start(&["--max-seqs", "16", "--speculate", "ngram"]).await);
    // The first half of the prompts is repeated, so that the answers repeat it, too.
    let answers = |number: u64| {
        let server = server.clone();
        async move {
            let passage = text(40, number % 60);
            let mut body = chat(&format!("Repeat this text three times: {passage}. {passage}."), 48);
            body["temperature"] = json!([0.0, 0.7, 1.2][number as usize % 3]);
            body["seed"] = json!(number);
            let drafted = server.call(&body).await;
            body["speculation"] = json!(false);
            (drafted.text, server.call(&body).await.text)
        }
    };
    let answers = all((0..66).map(answers)).await;
    let different = answers.iter().filter(|(drafted, plain)| drafted != plain).count();
    assert_eq!(different, 0, "of {} answers", answers.len());
    let [tokens, accepted] = [
        server.metric("cuelight_generation_tokens_total").await,
        server.metric("cuelight_accepted_draft_tokens_total").await,
    ];
    println!("{accepted} of {tokens} tokens were drafted");
    // Half of the tokens were generated without drafts.
    assert!(accepted > 0.04 * tokens, "{accepted} of {tokens} tokens");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn a_terminated_server_finishes_running_requests() {
    const STREAMS: u64 = 4;
    const TOKENS: usize = 150;
    let server = Arc::new(ServerProcess::start(&["--max-seqs", "4", "--drain-timeout", "120s"]).await);
    assert_eq!(server.get("/ready").await.0, 200);
    let begun = Arc::new(AtomicUsize::new(0));
    let stream = |number: u64| {
        let (server, begun) = (server.clone(), begun.clone());
        async move {
            let watch = |answer: &Answer| {
                if answer.pieces.len() == 1 {
                    begun.fetch_add(1, Ordering::Relaxed);
                }
                true
            };
            server.stream_while(&chat(&text(20, number), TOKENS), watch).await
        }
    };
    let streams: JoinSet<Answer> = (0..STREAMS).map(stream).collect();
    while begun.load(Ordering::Relaxed) < STREAMS as usize {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.terminate();
    // The signal takes a moment to arrive.
    let end = Instant::now() + Duration::from_secs(5);
    while server.get("/ready").await.0 != 503 {
        assert!(Instant::now() < end, "/ready still succeeds after SIGTERM");
    }
    assert_eq!(server.get("/health").await.0, 200, "it is healthy until it stops");
    let refused = server.call(&chat("too late", 4)).await;
    assert_eq!(refused.status, 503);
    refused.assert_answered_or_refused();
    for answer in streams.join_all().await {
        assert!(answer.is_whole && answer.error.is_null(), "{answer:?}");
        assert_eq!(answer.finish_reason.as_deref(), Some("length"));
        assert_eq!(answer.usage["completion_tokens"], TOKENS);
    }
    let mut server = Arc::into_inner(server).expect("no stream uses the server any more");
    assert_eq!(server.ended(Duration::from_secs(15)).await.code(), Some(0), "{}", server.log());
}
