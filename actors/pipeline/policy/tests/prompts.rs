//! Tests of the time budget of prompts next to decode rows, and of the order of prompts.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn limits() -> EngineLimits {
    EngineLimits {
        context_tokens: 8192,
        kv_blocks: 8192,
        max_sequences: 64,
        max_batched_tokens: 8192,
        ..large_limits()
    }
}

/// A simulation with requests that have been decoding for a while.
fn decoding_world(config: PolicyConfig, machine: Machine, decoding: u64) -> World {
    let mut world = World::new(config, limits());
    world.machine = machine;
    for id in 1..=decoding {
        world.submit(submission(id, 20), 5000);
    }
    while world.requests.values().any(|state| state.tokens.len() < state.prompt_tokens + 20) {
        step(&mut world);
    }
    world
}

/// A simulation without requests whose step times have been measured.
fn measured_world(limits: EngineLimits) -> World {
    let mut world = decoding_world(PolicyConfig::default(), MACHINE, 1);
    world.on(PolicyEvent::Cancel(RequestId(1)));
    world.run_out();
    // A new executor with these limits.
    world.limits = limits;
    world.lose_executor(true);
    world.restart_executor();
    world
}

/// Finishes the step at the device and forms the next one.
fn step(world: &mut World) {
    world.finish_step();
    world.sample(false);
}

/// Measurements of steps with decode rows and prompt rows.
#[derive(Debug, Default)]
struct Measurement {
    /// Time of all steps.
    total: Duration,
    /// Time of their decode rows alone.
    decode: Duration,
    steps: usize,
    /// Prompt rows of each step that has any.
    chunks: Vec<usize>,
    /// Maximum number of consecutive steps without prompt rows.
    longest_pause: usize,
    /// Maximum time of a step as a multiple of the time of its decode rows.
    max_factor: f64,
}

impl Measurement {
    /// Runs at most `max_steps` steps, until the prompts are computed. Requests with an id above `decoding` are prompts.
    fn run(world: &mut World, decoding: u64, max_steps: usize) -> Measurement {
        let (mut measured, mut pause) = (Measurement::default(), 0);
        // The step at the device was formed before the prompts arrived.
        step(world);
        for _ in 0..max_steps {
            if world.requests.iter().all(|(id, state)| id.0 <= decoding || state.end.is_some()) {
                break;
            }
            let step_now = &world.computing[0].step;
            let members: Vec<_> = world.policy.members(step_now.id).collect();
            let mut decode_step = step_now.clone();
            let mut is_decoding = members.iter().map(|id| id.0 <= decoding);
            decode_step.sequences.retain(|_| is_decoding.next().unwrap());
            let (total, decode) = (world.machine.elapsed(step_now), world.machine.elapsed(&decode_step));
            measured.steps += 1;
            measured.total += total;
            measured.decode += decode;
            measured.max_factor = measured.max_factor.max(total.as_secs_f64() / decode.as_secs_f64());
            let rows = step_now.rows() - decode_step.rows();
            pause = if rows > 0 { 0 } else { pause + 1 };
            measured.longest_pause = measured.longest_pause.max(pause);
            measured.chunks.extend((rows > 0).then_some(rows));
            step(world);
        }
        measured
    }

    /// The fraction of their rate that the decoding requests keep.
    fn decode_rate(&self) -> f64 {
        self.decode.as_secs_f64() / self.total.as_secs_f64()
    }
}

fn measure(decoding: u64, prompts: u64) -> Measurement {
    let mut world = decoding_world(PolicyConfig::default(), MACHINE, decoding);
    for id in decoding + 1..=decoding + prompts {
        world.submit(submission(id, 3000), 1);
    }
    Measurement::run(&mut world, decoding, 200)
}

#[test]
fn prompts_use_their_share_of_the_time_and_no_more() {
    let cases = [(8, 1, 6.0 / 7.0), (16, 1, 6.0 / 7.0), (4, 1, 4.0 / 5.0), (8, 3, 2.0 / 3.0), (8, 8, 0.5), (1, 1, 0.5)];
    for (decoding, prompts, expected) in cases {
        let measured = measure(decoding, prompts);
        let rate = measured.decode_rate();
        assert!((expected - 0.01..expected + 0.05).contains(&rate), "{prompts} with {decoding}: {rate}");
        assert!(measured.max_factor < 2.1, "{prompts} with {decoding}: {}", measured.max_factor);
        // The rows that fit into twice the time of the decode rows.
        let most = 5 + decoding as usize;
        let mean = measured.chunks.iter().sum::<usize>() / measured.chunks.len();
        assert!(mean * 4 >= most * 3, "{prompts} with {decoding}: {:?}", measured.chunks);
    }
}

#[test]
fn many_prompts_next_to_one_decode_row_get_larger_steps() {
    let measured = measure(1, 6);
    assert!((5.0..7.1).contains(&measured.max_factor), "{}", measured.max_factor);
    assert!((0.14..0.2).contains(&measured.decode_rate()), "{}", measured.decode_rate());
}

#[test]
fn a_short_prompt_does_not_wait_for_the_prompts_that_another_client_computes() {
    let of = |id: u64, client: &str, tokens| Submission { client: Some(client.into()), ..submission(id, tokens) };
    let mut world = measured_world(EngineLimits { max_sequences: 8, ..limits() });
    for id in 1001..=1040 {
        world.submit(of(id, "greedy", 1500), 100);
    }
    let mut rows_before = Vec::new();
    for id in 2001..=2030 {
        (0..id % 7).for_each(|_| step(&mut world));
        world.submit(of(id, "modest", 150), 4);
        let mut rows = 0;
        while world.requests[&RequestId(id)].tokens.len() == 150 {
            rows += world.computing[0].step.rows();
            step(&mut world);
        }
        rows_before.push(rows);
    }
    rows_before.sort_unstable();
    // A step without decode rows takes up to a second, which are 900 rows.
    assert!(rows_before[15] < 300 && rows_before[29] < 2 * 900 + 150, "{rows_before:?}");
}

#[test]
fn a_saturated_device_gets_as_many_prompt_rows_as_a_step_can_hold() {
    // 900 rows per second, or any number of rows from 1200 on in three seconds.
    let saturation = Some((1200, Duration::from_secs(3)));
    let machine = Machine { per_row: Duration::from_micros(1100), per_attended: Duration::ZERO, saturation, ..MACHINE };
    let rows_of_steps = |prompts: &[usize], decoding: u64| {
        let mut world = decoding_world(PolicyConfig::default(), machine, decoding.max(1));
        if decoding == 0 {
            world.on(PolicyEvent::Cancel(RequestId(1)));
            world.run_out();
        }
        for (id, tokens) in prompts.iter().enumerate() {
            world.submit(submission(10 + id as u64, *tokens), 1);
        }
        let mut rows = Vec::new();
        while let Some(planned) = world.computing.front().filter(|_| rows.len() < 4) {
            rows.push(planned.step.rows());
            step(&mut world);
        }
        rows
    };
    assert_eq!(rows_of_steps(&[6000], 0)[0], 6000);
    assert!(rows_of_steps(&[1000], 0).iter().all(|rows| *rows <= 910), "too few to saturate the device");
    assert!(rows_of_steps(&[600; 10], 0).iter().max() >= Some(&5000), "several prompts together");
    assert!(rows_of_steps(&[6000], 3).iter().all(|rows| *rows < 40), "decode rows must not wait for seconds");
}

#[test]
fn a_prompt_starts_in_the_next_step_next_to_any_number_of_decode_rows() {
    let mut world = decoding_world(PolicyConfig::default(), MACHINE, 16);
    world.submit(submission(17, 4), 1);
    step(&mut world);
    assert_eq!(world.rows_per_sequence()[16..], [4]);
}

#[test]
fn prompt_rows_fill_the_target_time_or_use_their_share_beyond_it() {
    let millis = Duration::from_millis;
    let run = |target| {
        let config = PolicyConfig { inter_token_target: Some(target), ..PolicyConfig::default() };
        let mut world = decoding_world(config, MACHINE, 4);
        world.submit(submission(9, 3000), 1);
        Measurement::run(&mut world, 8, 200)
    };
    let loose = run(millis(100));
    assert_eq!(loose.longest_pause, 0);
    let mean = loose.chunks.iter().sum::<usize>() / loose.chunks.len();
    assert!((70..=91).contains(&mean), "{:?}", loose.chunks);
    // The decode rows alone take at least 9 ms.
    let tight = run(millis(5));
    assert!(tight.chunks.iter().all(|&rows| rows == 4), "the minimum: {:?}", tight.chunks);
    assert!((0.79..0.82).contains(&tight.decode_rate()), "{}", tight.decode_rate());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn on_any_machine_prompts_advance_and_use_at_most_their_share(
        decoding in 1u64..20,
        lengths in prop::collection::vec(1usize..300, 1..9),
        base in 100u64..20_000,
        per_row in 10u64..8_000,
        per_attended in 0u64..2_000,
        target in prop::option::of(1u64..100),
    ) {
        let machine = Machine {
            base: Duration::from_micros(base),
            per_row: Duration::from_micros(per_row),
            per_attended: Duration::from_nanos(per_attended),
            ..MACHINE
        };
        let inter_token_target = target.map(Duration::from_millis);
        let config = PolicyConfig { inter_token_target, verify: false, ..PolicyConfig::default() };
        let mut world = decoding_world(config, machine, decoding);
        for (id, &length) in (decoding + 1..).zip(&lengths) {
            world.submit(submission(id, length), 1);
        }
        let rows: usize = lengths.iter().sum();
        let measured = Measurement::run(&mut world, decoding, 30 * rows);
        let computed = |id| world.requests[&RequestId(id)].end == Some(End::Sampled);
        prop_assert!((decoding + 1..).take(lengths.len()).all(computed), "after {} steps", measured.chunks.len());
        prop_assert!(measured.longest_pause <= 25, "{} steps without a prompt", measured.longest_pause);
        let least_chunk = 4 * (machine.per_row + machine.per_attended * 300);
        let least_step = machine.base + machine.per_row * decoding as u32;
        let shares = decoding.min(6) as usize;
        if target.is_none() && lengths.len() < shares && least_chunk < 4 * least_step {
            // The deficit of the last steps may not be paid back yet.
            let (taken, decode) = (measured.total - measured.decode, measured.decode.as_secs_f64());
            let share = lengths.len() as f64 / shares as f64;
            // The end of each prompt may be computed in addition.
            let deficit = (5 + lengths.len()) as f64 * decode / (measured.steps as f64);
            prop_assert!(taken.as_secs_f64() <= 1.02 * share * decode + deficit, "{taken:?} of {:?}", measured.decode);
        }
    }
}

/// Number of rows of each prompt in the step at the device, by request. Requests up to `decoding` are left out.
fn prompt_rows(world: &World, decoding: u64) -> Vec<(u64, usize)> {
    let members: Vec<_> = world.policy.members(world.computing[0].step.id).map(|id| id.0).collect();
    members.into_iter().zip(world.rows_per_sequence()).filter(|&(id, _)| id > decoding).collect()
}

#[test]
fn short_prompts_do_not_wait_for_a_long_one() {
    let mut world = measured_world(limits());
    world.submit(submission(2, 4000), 1);
    (3..=10).for_each(|id| world.submit(submission(id, 4), 1));
    step(&mut world);
    let rows = prompt_rows(&world, 0);
    let ids: Vec<_> = rows.iter().map(|&(id, _)| id).collect();
    assert_eq!(ids, [3, 4, 5, 6, 7, 8, 9, 10, 2]);
    assert!(rows[..8].iter().all(|&(_, rows)| rows == 4) && rows[8].1 > 850, "{rows:?}");
}

#[test]
fn short_prompts_do_not_wait_for_a_long_one_next_to_decode_rows() {
    let mut world = decoding_world(PolicyConfig::default(), MACHINE, 8);
    world.submit(submission(20, 4000), 1);
    step(&mut world);
    (21..=28).for_each(|id| world.submit(submission(id, 4), 1));
    let (mut seen, mut long_rows) = (Vec::new(), 0);
    // A step has rows for three short prompts.
    for _ in 0..6 {
        step(&mut world);
        let rows = prompt_rows(&world, 8);
        assert!(rows.iter().all(|&(id, rows)| id == 20 || rows == 4), "short ones must be complete: {rows:?}");
        seen.extend(rows.iter().map(|&(id, _)| id).filter(|&id| id > 20));
        long_rows += rows.iter().filter(|&&(id, _)| id == 20).map(|(_, rows)| rows).sum::<usize>();
    }
    assert_eq!(seen, [21, 22, 23, 24, 25, 26, 27, 28]);
    assert!(long_rows >= 4, "the long one must advance: {long_rows} rows");
}

#[test]
fn a_short_prompt_starts_in_the_next_step_while_a_long_one_is_in_deficit() {
    let mut world = decoding_world(PolicyConfig::default(), MACHINE, 8);
    world.submit(submission(20, 3000), 1);
    step(&mut world);
    let (mut without_long, mut long_rows) = (0, 0);
    for id in 21..=60 {
        (0..id % 3).for_each(|_| step(&mut world));
        world.submit(submission(id, 4), 1);
        step(&mut world);
        let rows = prompt_rows(&world, 8);
        assert!(rows.contains(&(id, 4)), "request {id}: {rows:?}");
        without_long += usize::from(rows.len() == 1);
        long_rows += rows.iter().filter(|&&(id, _)| id == 20).map(|(_, rows)| rows).sum::<usize>();
    }
    assert!(without_long > 10, "the long prompt was in deficit {without_long} times");
    assert!(long_rows > 20, "the long prompt had {long_rows} rows");
}

#[test]
fn a_long_prompt_advances_while_a_short_one_arrives_in_every_step() {
    let mut world = decoding_world(PolicyConfig::default(), MACHINE, 8);
    world.submit(submission(20, 4000), 1);
    let (mut without, mut longest) = (0, 0);
    for id in 21..=320 {
        world.submit(submission(id, 4), 1);
        step(&mut world);
        let rows = prompt_rows(&world, 8);
        assert!(rows.contains(&(id, 4)), "request {id}: {rows:?}");
        without = if rows.len() > 1 { 0 } else { without + 1 };
        longest = longest.max(without);
    }
    assert!(longest <= 24, "the long prompt waited for {longest} steps");
}

#[test]
fn a_long_prompt_that_is_mostly_cached_counts_as_short() {
    let mut world = measured_world(limits());
    world.submit(submission(2, 1600), 1);
    world.run_out();
    world.submit(submission(3, 4000), 1);
    let mut prompt = submission(2, 1600).prompt;
    prompt.extend([1, 2, 3]);
    world.submit(Submission { prompt, ..submission(4, 1) }, 1);
    step(&mut world);
    assert_eq!(prompt_rows(&world, 0)[0], (4, 3));
}

#[test]
fn equal_prompts_are_computed_one_after_the_other() {
    let mut worlds = [measured_world(limits()), decoding_world(PolicyConfig::default(), MACHINE, 4)];
    for world in &mut worlds {
        let ids = 11..=16;
        ids.clone().for_each(|id| world.submit(submission(id, 700), 1));
        while ids.clone().any(|id| world.requests[&RequestId(id)].end.is_none()) {
            step(world);
            let Some(planned) = world.computing.front() else { break };
            let rows = prompt_rows(world, 10);
            let is_done = |&(id, _): &(u64, usize)| planned.tasks.iter().any(|task| task.id.0 == id);
            assert!(
                rows.iter().rev().skip(1).all(is_done),
                "a prompt was started before the previous one was complete: {rows:?}"
            );
            assert!(rows.is_sorted(), "{rows:?}");
        }
    }
}

#[test]
fn a_short_prompt_of_lower_priority_overtakes_no_other() {
    let mut world = measured_world(limits());
    world.submit(submission(2, 4000), 1);
    world.submit(Submission { priority: 1, ..submission(3, 4) }, 1);
    world.submit(Submission { priority: -1, ..submission(4, 4) }, 1);
    step(&mut world);
    assert_eq!(prompt_rows(&world, 0).iter().map(|&(id, _)| id).collect::<Vec<_>>(), [4, 2]);
}

#[test]
fn short_prompts_do_not_take_blocks_that_an_earlier_long_one_waits_for() {
    // Blocks for the first prompt and a short one, and after the first one for the second.
    let mut world = measured_world(EngineLimits { kv_blocks: 105, ..limits() });
    world.submit(submission(2, 1600), 1);
    world.submit(submission(3, 1000), 1);
    (4..=6).for_each(|id| world.submit(submission(id, 4), 1));
    while world.requests[&RequestId(2)].end.is_none() {
        assert!(prompt_rows(&world, 0).iter().all(|&(id, _)| id == 2), "{:?}", prompt_rows(&world, 0));
        step(&mut world);
    }
    assert!(prompt_rows(&world, 0).iter().any(|&(id, _)| id == 3), "{:?}", prompt_rows(&world, 0));
    assert_eq!(world.preempted, 0);
}

#[test]
fn a_long_prompt_advances_under_an_endless_flow_of_short_ones() {
    let mut world = measured_world(limits());
    world.submit(submission(2, 4000), 1);
    let mut steps = 0;
    while world.requests[&RequestId(2)].end.is_none() {
        for _ in 0..40 {
            let id = world.requests.len() as u64 + 1;
            world.submit(submission(id, 20), 1);
        }
        step(&mut world);
        steps += 1;
        let is_done = world.requests[&RequestId(2)].end.is_some();
        assert!(is_done || prompt_rows(&world, 0).iter().any(|&(id, _)| id == 2), "a step without the long prompt");
    }
    // Of about 970 rows per step the short prompts use at most 31/32.
    assert!(steps <= 4000 / 30 + 1, "{steps} steps");
}

#[test]
fn a_request_reports_each_part_of_its_prompt_that_is_computed() {
    let mut world = World::new(PolicyConfig::default(), EngineLimits { max_batched_tokens: 64, ..limits() });
    world.submit(Submission { reports_progress: true, ..submission(1, 150) }, 3);
    world.submit(submission(2, 150), 3);
    world.run_out();
    assert_eq!(world.reported, HashMap::from([(RequestId(1), vec![64, 128, 150])]));
}
