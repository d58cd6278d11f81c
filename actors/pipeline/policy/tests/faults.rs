//! Tests of failed steps, lost executors and replaced schedulers.

use super::*;

#[test]
fn a_request_that_breaks_the_executor_fails_alone() {
    let mut world = World::new(CONFIG, limits());
    let poison = RequestId(2);
    for id in 1..=3 {
        world.submit(submission(id, 20), 10);
    }
    let mut losses = 0;
    for _ in 0..1000 {
        let Some(pending) = world.computing.front() else { break };
        let poisoned = pending.tasks.iter().any(|task| task.id == poison && task.samples);
        if poisoned {
            losses += 1;
            world.lose_executor(true);
            world.restart_executor();
        } else {
            world.finish_step();
            world.sample(false);
        }
    }
    assert_eq!(losses, 2, "once with others, once alone");
    world.assert_all_ended();
    let end = |id| world.requests[&RequestId(id)].end.clone().unwrap();
    assert_eq!(end(2), End::Failed(GenerationError::Engine("lost".into())));
    assert_eq!((end(1), end(3)), (End::Sampled, End::Sampled));
}

#[test]
fn a_refused_step_is_retried_once_and_then_fails_its_request() {
    let mut world = World::new(CONFIG, limits());
    world.submit(submission(1, 5), 5);
    for _ in 0..2 {
        world.refuse_step();
    }
    world.assert_all_ended();
}

#[test]
fn another_policy_continues_requests_with_their_tokens_and_new_step_ids() {
    let mut world = World::new(PolicyConfig { steps_in_flight: 2, ..CONFIG }, limits());
    world.submit(Submission { scores_prompt: true, ..submission(1, 20) }, 10);
    world.submit(submission(2, 5), 10);
    for _ in 0..6 {
        world.finish_step();
        world.sample(false);
    }
    let before = world.policy.next_step;
    let sent: Vec<_> = [1, 2].map(|id| world.requests[&RequestId(id)].tokens.clone()).into();
    world.replace_scheduler(true, false);
    assert_eq!(world.computing[0].step.id, before);
    assert_eq!(world.rows_per_sequence().len(), 1, "a suspect runs alone");
    world.run_out();
    world.assert_all_ended();
    for (id, sent) in [1, 2].into_iter().zip(sent) {
        let state = &world.requests[&RequestId(id)];
        assert!(state.tokens.starts_with(&sent) && state.tokens.len() == state.until, "{id}");
    }
}
