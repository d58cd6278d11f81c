//! What prompts have of the time of streams, and which of several prompts has it first.

use super::*;

fn limits() -> EngineLimits {
    EngineLimits { context_tokens: 8192, kv_blocks: 8192, max_sequences: 64, max_batched_tokens: 8192, ..roomy() }
}

/// Streams that have been decoding for a while.
fn world_of_streams(config: PolicyConfig, machine: Machine, streams: u64) -> World {
    let mut world = World::new(config, limits());
    world.machine = machine;
    for id in 1..=streams {
        world.submit(submission(id, 20), 5000);
    }
    while world.requests.values().any(|known| known.tokens.len() < known.prompt_tokens + 20) {
        step(&mut world);
    }
    world
}

/// Nobody is there, but it is known how long steps take.
fn learned_world(limits: EngineLimits) -> World {
    let mut world = world_of_streams(PolicyConfig::default(), MACHINE, 1);
    world.on(PolicyEvent::Cancel(RequestId(1)));
    world.run_out();
    // An executor with other blocks.
    world.limits = limits;
    world.lose_executor(true);
    world.restart_executor();
    world
}

/// Finishes the step at the device and forms the next.
fn step(world: &mut World) {
    world.finish_step();
    world.sample(false);
}

/// What steps of streams and prompts took.
#[derive(Debug, Default)]
struct Shares {
    /// Of all steps, and of their streams alone.
    total: Duration,
    alone: Duration,
    steps: usize,
    /// Rows of prompts in each step that had any.
    chunks: Vec<usize>,
    /// The most steps in a row that had none.
    longest_pause: usize,
    /// The longest step as a multiple of its streams alone.
    most_stretched: f64,
}

impl Shares {
    /// Of steps until the prompts are computed or so many are done. The ids of prompts are above those of streams.
    fn measure(world: &mut World, streams: u64, most_steps: usize) -> Shares {
        let (mut shares, mut pause) = (Shares::default(), 0);
        // The one at the device was formed before they came.
        step(world);
        for _ in 0..most_steps {
            if world.requests.iter().all(|(id, known)| id.0 <= streams || known.end.is_some()) {
                break;
            }
            let step_now = &world.computing[0].step;
            let members: Vec<_> = world.policy.members(step_now.id).collect();
            let mut of_streams = step_now.clone();
            let mut is_stream = members.iter().map(|id| id.0 <= streams);
            of_streams.sequences.retain(|_| is_stream.next().unwrap());
            let (total, alone) = (world.machine.elapsed(step_now), world.machine.elapsed(&of_streams));
            shares.steps += 1;
            shares.total += total;
            shares.alone += alone;
            shares.most_stretched = shares.most_stretched.max(total.as_secs_f64() / alone.as_secs_f64());
            let rows = step_now.rows() - of_streams.rows();
            pause = if rows > 0 { 0 } else { pause + 1 };
            shares.longest_pause = shares.longest_pause.max(pause);
            shares.chunks.extend((rows > 0).then_some(rows));
            step(world);
        }
        shares
    }

    /// What streams keep of their rate.
    fn kept(&self) -> f64 {
        self.alone.as_secs_f64() / self.total.as_secs_f64()
    }
}

fn beside(streams: u64, prompts: u64) -> Shares {
    let mut world = world_of_streams(PolicyConfig::default(), MACHINE, streams);
    for id in streams + 1..=streams + prompts {
        world.submit(submission(id, 3000), 1);
    }
    Shares::measure(&mut world, streams, 200)
}

#[test]
fn prompts_take_their_share_of_the_time_of_streams_and_no_more() {
    let cases = [(8, 1, 6.0 / 7.0), (16, 1, 6.0 / 7.0), (4, 1, 4.0 / 5.0), (8, 3, 2.0 / 3.0), (8, 8, 0.5), (1, 1, 0.5)];
    for (streams, prompts, expected) in cases {
        let shares = beside(streams, prompts);
        let kept = shares.kept();
        assert!((expected - 0.01..expected + 0.05).contains(&kept), "{prompts} beside {streams}: {kept} kept");
        assert!(shares.most_stretched < 2.1, "{prompts} beside {streams}: {}", shares.most_stretched);
        // What two times the time of the streams leaves for rows, fewer the deeper they are.
        let most = 5 + streams as usize;
        let mean = shares.chunks.iter().sum::<usize>() / shares.chunks.len();
        assert!(mean * 4 >= most * 3, "{prompts} beside {streams}: {:?}", shares.chunks);
    }
}

#[test]
fn where_more_rows_take_no_longer_a_step_without_streams_takes_all_it_can() {
    // 900 rows in a second; or, from 1200 on, as many as there are in three.
    let bulk = Some((1200, Duration::from_secs(3)));
    let machine = Machine { per_row: Duration::from_micros(1100), per_attended: Duration::ZERO, bulk, ..MACHINE };
    let rows_of_steps = |prompts: &[usize], streams: u64| {
        let mut world = world_of_streams(PolicyConfig::default(), machine, streams.max(1));
        if streams == 0 {
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
    assert!(rows_of_steps(&[1000], 0).iter().all(|rows| *rows <= 910), "too few for that");
    assert!(rows_of_steps(&[600; 10], 0).iter().max() >= Some(&5000), "of several prompts as well");
    assert!(rows_of_steps(&[6000], 3).iter().all(|rows| *rows < 40), "streams do not wait for seconds");
}

#[test]
fn a_prompt_begins_in_the_next_step_beside_any_number_of_streams() {
    let mut world = world_of_streams(PolicyConfig::default(), MACHINE, 16);
    world.submit(submission(17, 4), 1);
    step(&mut world);
    assert_eq!(world.shares()[16..], [4]);
}

#[test]
fn a_target_is_filled_in_every_step_and_past_it_prompts_have_their_share() {
    let millis = Duration::from_millis;
    let of_target = |target| {
        let config = PolicyConfig { inter_token_target: Some(target), ..PolicyConfig::default() };
        let mut world = world_of_streams(config, MACHINE, 4);
        world.submit(submission(9, 3000), 1);
        Shares::measure(&mut world, 8, 200)
    };
    let roomy = of_target(millis(100));
    assert_eq!(roomy.longest_pause, 0);
    let mean = roomy.chunks.iter().sum::<usize>() / roomy.chunks.len();
    assert!((70..=91).contains(&mean), "{:?}", roomy.chunks);
    // The streams alone take 9 ms and more.
    let tight = of_target(millis(5));
    assert!(tight.chunks.iter().all(|&rows| rows == 4), "the least there is: {:?}", tight.chunks);
    assert!((0.79..0.82).contains(&tight.kept()), "{}", tight.kept());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn whatever_the_machine_a_prompt_beside_streams_goes_on_and_takes_no_more_than_its_share(
        streams in 1u64..20,
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
        let mut world = world_of_streams(config, machine, streams);
        for (id, &length) in (streams + 1..).zip(&lengths) {
            world.submit(submission(id, length), 1);
        }
        let rows: usize = lengths.iter().sum();
        let shares = Shares::measure(&mut world, streams, 30 * rows);
        let computed = |id| world.requests[&RequestId(id)].end == Some(End::Sampled);
        prop_assert!((streams + 1..).take(lengths.len()).all(computed), "after {} steps", shares.chunks.len());
        prop_assert!(shares.longest_pause <= 25, "{} steps without a prompt", shares.longest_pause);
        let least_chunk = 4 * (machine.per_row + machine.per_attended * 300);
        let least_step = machine.base + machine.per_row * streams as u32;
        let whole_share = streams.min(6) as usize;
        if target.is_none() && lengths.len() < whole_share && least_chunk < 4 * least_step {
            // What was owed in the end may not be paid back yet.
            let (taken, alone) = (shares.total - shares.alone, shares.alone.as_secs_f64());
            let share = lengths.len() as f64 / whole_share as f64;
            let owed = 5.0 * alone / (shares.steps as f64);
            prop_assert!(taken.as_secs_f64() <= 1.02 * share * alone + owed, "{taken:?} beside {:?}", shares.alone);
        }
    }
}

/// The tokens of each prompt in the step at the device, by request; streams are left out.
fn prompt_rows(world: &World, streams: u64) -> Vec<(u64, usize)> {
    let members: Vec<_> = world.policy.members(world.computing[0].step.id).map(|id| id.0).collect();
    members.into_iter().zip(world.shares()).filter(|&(id, _)| id > streams).collect()
}

#[test]
fn short_prompts_do_not_wait_for_a_long_one() {
    let mut world = learned_world(limits());
    world.submit(submission(2, 4000), 1);
    (3..=10).for_each(|id| world.submit(submission(id, 4), 1));
    step(&mut world);
    let rows = prompt_rows(&world, 0);
    let ids: Vec<_> = rows.iter().map(|&(id, _)| id).collect();
    assert_eq!(ids, [3, 4, 5, 6, 7, 8, 9, 10, 2]);
    assert!(rows[..8].iter().all(|&(_, rows)| rows == 4) && rows[8].1 > 850, "{rows:?}");
}

#[test]
fn short_prompts_do_not_wait_for_a_long_one_beside_streams() {
    let mut world = world_of_streams(PolicyConfig::default(), MACHINE, 8);
    world.submit(submission(20, 4000), 1);
    step(&mut world);
    (21..=28).for_each(|id| world.submit(submission(id, 4), 1));
    let mut seen = Vec::new();
    // A step has rows for three such prompts.
    for _ in 0..6 {
        step(&mut world);
        let rows = prompt_rows(&world, 8);
        let long = rows.iter().find(|&&(id, _)| id == 20);
        assert!(rows.is_empty() || long.is_some_and(|&(_, rows)| rows >= 4), "the long one goes on: {rows:?}");
        assert!(rows.iter().all(|&(id, rows)| id == 20 || rows == 4), "short ones whole: {rows:?}");
        seen.extend(rows.iter().map(|&(id, _)| id).filter(|&id| id > 20));
    }
    assert_eq!(seen, [21, 22, 23, 24, 25, 26, 27, 28]);
}

#[test]
fn a_long_prompt_that_is_mostly_cached_is_short() {
    let mut world = learned_world(limits());
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
    let mut worlds = [learned_world(limits()), world_of_streams(PolicyConfig::default(), MACHINE, 4)];
    for world in &mut worlds {
        let ids = 11..=16;
        ids.clone().for_each(|id| world.submit(submission(id, 700), 1));
        while ids.clone().any(|id| world.requests[&RequestId(id)].end.is_none()) {
            step(world);
            let Some(planned) = world.computing.front() else { break };
            let rows = prompt_rows(world, 10);
            let is_done = |&(id, _): &(u64, usize)| planned.tasks.iter().any(|task| task.id.0 == id);
            assert!(rows.iter().rev().skip(1).all(is_done), "one is begun before another is done: {rows:?}");
            assert!(rows.is_sorted(), "{rows:?}");
        }
    }
}

#[test]
fn a_short_prompt_of_lower_priority_passes_nobody() {
    let mut world = learned_world(limits());
    world.submit(submission(2, 4000), 1);
    world.submit(Submission { priority: 1, ..submission(3, 4) }, 1);
    world.submit(Submission { priority: -1, ..submission(4, 4) }, 1);
    step(&mut world);
    assert_eq!(prompt_rows(&world, 0).iter().map(|&(id, _)| id).collect::<Vec<_>>(), [4, 2]);
}

#[test]
fn a_short_prompt_does_not_take_the_blocks_that_a_long_one_before_it_waits_for() {
    // Room for the first and a short one, and when the first is done for the second.
    let mut world = learned_world(EngineLimits { kv_blocks: 105, ..limits() });
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
fn a_long_prompt_gets_on_under_an_endless_stream_of_short_ones() {
    let mut world = learned_world(limits());
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
        assert!(is_done || prompt_rows(&world, 0).iter().any(|&(id, _)| id == 2), "a step without it");
    }
    // Of about 970 rows a step the short ones have 31 of 32 parts at most.
    assert!(steps <= 4000 / 30 + 1, "{steps} steps");
}
