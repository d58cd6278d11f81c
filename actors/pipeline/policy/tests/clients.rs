//! Tests of the order of requests, and of the shares of clients.

use super::*;

#[test]
fn equal_requests_are_served_in_order_of_arrival() {
    let mut world = World::new(CONFIG, limits());
    for id in 1..=40 {
        world.submit(submission(id, 10), 4);
    }
    let mut order = Vec::new();
    while !world.computing.is_empty() {
        world.finish_step();
        world.sample(false);
        for id in (1..=40).map(RequestId) {
            if world.requests[&id].end.is_some() && !order.contains(&id.0) {
                order.push(id.0);
            }
        }
    }
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn a_client_with_one_request_does_not_wait_for_all_requests_of_another() {
    let mut world = World::new(CONFIG, limits());
    let of = |id: u64, client: &str| Submission { client: Some(client.into()), ..submission(id, 10) };
    for id in 1..=40 {
        world.submit(of(id, "busy"), 10);
    }
    for _ in 0..20 {
        world.finish_step();
        world.sample(false);
    }
    world.submit(of(100, "new"), 10);
    while world.requests[&RequestId(100)].end.is_none() {
        world.finish_step();
        world.sample(false);
    }
    let ended = world.requests.values().filter(|state| state.end.is_some()).count();
    assert!(ended < 20, "{ended} of 40 requests ended before");
}

#[test]
fn a_client_that_holds_every_slot_gives_its_share_to_a_newcomer() {
    let limits = EngineLimits { kv_blocks: 64, ..limits() };
    for steps_in_flight in [1, 2] {
        let mut world = World::new(PolicyConfig { steps_in_flight, ..CONFIG }, limits.clone());
        let of = |id: u64, client: &str| Submission { client: Some(client.into()), ..submission(id, 10) };
        for id in 1..=8 {
            world.submit(of(id, "greedy"), 90);
        }
        for _ in 0..20 {
            world.finish_step();
            world.sample(false);
        }
        assert_eq!((world.policy.counts().running, world.preempted), (4, 0));
        for id in 101..=104 {
            world.submit(of(id, "modest"), 40);
        }
        for _ in 0..12 {
            world.finish_step();
            world.sample(false);
        }
        let generated = |id: u64| world.requests[&RequestId(id)].tokens.len() - 10;
        assert!(generated(101) > 0 && generated(102) > 0, "{} {}", generated(101), generated(102));
        assert_eq!((generated(103), world.preempted), (0, 2), "two slots are its share");
        world.run_out();
        world.assert_all_ended();
        assert!(world.preempted <= 6, "swaps are not undone: {}", world.preempted);
    }
}

#[test]
fn a_prompt_of_another_client_waits_although_one_client_fills_the_queue() {
    let mut policy = Policy::new(PolicyConfig { max_queued_tokens: 50, ..CONFIG }, limits());
    let of = |id: u64, client: &str, tokens| Submission { client: Some(client.into()), ..submission(id, tokens) };
    assert!(policy.submit(of(1, "greedy", 50)).is_ok());
    assert!(policy.submit(of(2, "greedy", 1)).is_err());
    assert!(policy.submit(of(3, "modest", 60)).is_ok(), "the first prompt may be longer than the share");
    assert!(policy.submit(of(4, "modest", 1)).is_err());
}

#[test]
fn past_the_limit_of_queued_tokens_a_request_is_refused_unless_nothing_waits() {
    let config = PolicyConfig { max_queued_tokens: 50, ..CONFIG };
    let mut policy = Policy::new(config, limits());
    assert!(policy.submit(submission(1, 60)).is_ok(), "a single prompt may exceed the limit");
    assert!(matches!(policy.submit(submission(2, 1)), Err(SubmitError::QueueFull { tokens: 60, .. })));
    policy.on(PolicyEvent::Cancel(RequestId(1)));
    assert!(policy.submit(submission(3, 30)).is_ok());
    assert!(policy.submit(submission(4, 20)).is_ok());
    assert!(policy.submit(submission(5, 1)).is_err());
}
