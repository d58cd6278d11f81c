//! Kills actors of a running pipeline.
#![allow(dead_code)]

use cuelight::pipeline::messages::{DrafterMsg, ExecutorMsg, ExpertsMsg, LoaderMsg, SamplerMsg, SchedulerMsg};
use cuelight::pipeline::runtime::Runtime;
use ractor::ActorCell;

/// An actor of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Sampler,
    Scheduler,
    Executor,
    Experts,
    Loader,
    Drafter,
}

impl Role {
    pub const ALL: [Role; 6] =
        [Role::Sampler, Role::Scheduler, Role::Executor, Role::Experts, Role::Loader, Role::Drafter];

    fn is_of(self, actor: &ActorCell) -> bool {
        let is_of = match self {
            Role::Sampler => actor.is_message_type_of::<SamplerMsg>(),
            Role::Scheduler => actor.is_message_type_of::<SchedulerMsg>(),
            Role::Executor => actor.is_message_type_of::<ExecutorMsg>(),
            Role::Experts => actor.is_message_type_of::<ExpertsMsg>(),
            Role::Loader => actor.is_message_type_of::<LoaderMsg>(),
            Role::Drafter => actor.is_message_type_of::<DrafterMsg>(),
        };
        is_of == Some(true)
    }

    /// Kills the actor with this role in one replica, which `choice` chooses. Returns whether there is one now.
    pub fn kill(self, runtime: &Runtime, choice: u64) -> bool {
        let mut actors: Vec<_> = runtime.actors().into_iter().filter(|actor| self.is_of(actor)).collect();
        actors.sort_by_key(ActorCell::get_id);
        let Some(index) = choice.checked_rem(actors.len() as u64) else { return false };
        actors[index as usize].kill();
        true
    }
}
