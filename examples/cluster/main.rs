//! A model of many servers in simulated time: conversations, a router, and a rack that fails.
//!
//! `cargo run --release --example cluster -- [SERVERS] [SECONDS]`
//!
//! Each server forms its steps with the scheduling policy of the program, which manages the same KV blocks and prefix cache as in
//! production. Only the device is replaced, by a formula for the time of a step. So hit rates and queues are those of the real
//! policy; the network, the API and the routers' own time cost nothing here.

mod random;
mod router;
mod server;
mod workload;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use cuelight::core::block_hash::BlockHash;
use cuelight::core::prefix_scope::PrefixScope;
use cuelight::core::request::RequestId;

use random::Random;
use router::{Router, Rule};
use server::{Happened, Machine, Server};
use workload::{Conversation, Workload};

/// Servers that fail together.
const RACK: usize = 32;

/// A model of 70 billion parameters: 25 ms for the weights, and about 5,000 tokens of prompts per second.
const MACHINE: Machine = Machine {
    base: 0.025,
    per_row: 0.0002,
    per_attended: 5e-9,
    kv_blocks: 8192,
    max_sequences: 64,
    max_batched_tokens: 2048,
};

fn workload(servers: usize) -> Workload {
    Workload {
        conversations_per_second: 0.42 * servers as f64,
        turns: 6,
        system_prompts: 500,
        system_tokens: [400, 1600],
        message_tokens: [50, 450],
        answer_tokens: [50, 250],
        thinking: [2.0, 10.0],
    }
}

/// Something that happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    NewConversation,
    /// A conversation sends its next message.
    Message(u64),
    /// The step of a server ends, if it has not failed since it began.
    StepDone(usize, u32),
    RackFails,
    RackReturns,
}

/// A request that runs.
struct Running {
    conversation: Conversation,
    server: usize,
    sent: f64,
    prompt: usize,
    prompt_blocks: usize,
    /// Its end, as a number of tokens of the conversation.
    until: usize,
    /// Tokens of the conversation that the client has.
    known: usize,
    /// A failed server had it before.
    is_retry: bool,
}

/// What is measured.
#[derive(Default)]
struct Measured {
    prompt_tokens: usize,
    cached_tokens: usize,
    answer_tokens: usize,
    first_tokens: Vec<f64>,
    first_tokens_after_failure: Vec<f64>,
    retried: usize,
}

struct Cluster {
    workload: Workload,
    now: f64,
    /// Events by time in nanoseconds, then in the order of their making.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    made: u64,
    servers: Vec<Server>,
    router: Router,
    random: Random,
    conversations: HashMap<u64, Conversation>,
    requests: HashMap<RequestId, Running>,
    next_request: u64,
    warm_up: f64,
    failure: f64,
    measured: Measured,
}

impl Cluster {
    fn new(rule: Rule, servers: usize, seconds: f64) -> Self {
        let router = Router::new(rule, servers);
        let mut cluster = Cluster {
            workload: workload(servers),
            now: 0.0,
            events: BinaryHeap::new(),
            made: 0,
            servers: (0..servers).map(|_| Server::new(MACHINE, router.uses_events())).collect(),
            router,
            random: Random(1),
            conversations: HashMap::new(),
            requests: HashMap::new(),
            next_request: 1,
            warm_up: seconds * 0.4,
            failure: seconds * 0.8,
            measured: Measured::default(),
        };
        cluster.at(0.0, Event::NewConversation);
        cluster.at(cluster.failure, Event::RackFails);
        cluster.at(seconds * 0.9, Event::RackReturns);
        cluster
    }

    fn at(&mut self, time: f64, event: Event) {
        self.made += 1;
        self.events.push(Reverse(((time * 1e9) as u64, self.made, event)));
    }

    fn run(&mut self, seconds: f64) {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.now = time as f64 * 1e-9;
            if self.now > seconds {
                return;
            }
            match event {
                Event::NewConversation => self.begin_conversation(),
                Event::Message(number) => self.send_message(number),
                Event::StepDone(server, life) => self.step_done(server, life),
                Event::RackFails => self.fail_rack(),
                Event::RackReturns => (0..RACK).for_each(|server| self.router.set_alive(server, true)),
            }
        }
    }

    fn begin_conversation(&mut self) {
        let number = self.random.next() >> 1;
        self.conversations.insert(number, self.workload.begin(number));
        self.send_message(number);
        let wait = self.random.wait(self.workload.conversations_per_second);
        self.at(self.now + wait, Event::NewConversation);
    }

    fn send_message(&mut self, number: u64) {
        let Some(conversation) = self.conversations.remove(&number) else { return };
        let [message, answer] = self.workload.turn(&conversation);
        let prompt = conversation.tokens + message;
        let (sent, is_retry) = (self.now, false);
        let (known, until) = (prompt, prompt + answer);
        self.submit(Running { conversation, server: 0, sent, prompt, prompt_blocks: 0, until, known, is_retry });
    }

    /// Sends what is known of a request to a server.
    fn submit(&mut self, mut request: Running) {
        let prompt = request.conversation.prompt(request.known);
        let blocks: Vec<_> = BlockHash::of_scope(&PrefixScope::default()).blocks_after(&prompt).collect();
        request.server = self.router.choose(request.conversation.number, &blocks);
        request.prompt_blocks = blocks.len();
        let (id, server) = (RequestId(self.next_request), request.server);
        self.next_request += 1;
        let answer = request.until - request.known;
        self.requests.insert(id, request);
        let happened = self.servers[server].submit(id, prompt, answer);
        self.handle(server, happened);
    }

    fn step_done(&mut self, server: usize, life: u32) {
        if self.servers[server].life() != life {
            return;
        }
        let requests = &self.requests;
        let next = |id: RequestId, position: usize| {
            let request = requests.get(&id)?;
            (position < request.until).then(|| request.conversation.token(position))
        };
        let happened = self.servers[server].finish_step(next);
        self.handle(server, happened);
    }

    fn handle(&mut self, server: usize, happened: Vec<Happened>) {
        for one in happened {
            match one {
                Happened::StepBegan { seconds, life } => self.at(self.now + seconds, Event::StepDone(server, life)),
                Happened::CacheChanged(changes) if self.router.uses_events() => {
                    self.router.cache_changed(server, changes);
                }
                Happened::CacheChanged(_) => {}
                Happened::Started { id, cached } => self.started(id, cached),
                Happened::Token { id } => self.token(id),
                Happened::Ended { id } => self.ended(id),
            }
        }
    }

    fn started(&mut self, id: RequestId, cached: usize) {
        let Some(request) = self.requests.get(&id).filter(|_| self.now > self.warm_up) else { return };
        self.measured.prompt_tokens += request.known;
        self.measured.cached_tokens += cached;
    }

    fn token(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let is_first = request.known == request.prompt && !request.is_retry;
        request.known += 1;
        if self.now < self.warm_up {
            return;
        }
        self.measured.answer_tokens += 1;
        if is_first {
            let times = match self.now > self.failure {
                true => &mut self.measured.first_tokens_after_failure,
                false => &mut self.measured.first_tokens,
            };
            times.push(self.now - request.sent);
        }
    }

    fn ended(&mut self, id: RequestId) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        self.router.ended(request.server, request.prompt_blocks);
        request.conversation.tokens = request.until;
        request.conversation.turns_left -= 1;
        if request.conversation.turns_left > 0 {
            let wait = self.workload.thinks(&request.conversation);
            self.at(self.now + wait, Event::Message(request.conversation.number));
            self.conversations.insert(request.conversation.number, request.conversation);
        }
    }

    /// All requests of the rack continue on other servers, from the tokens that the clients have.
    fn fail_rack(&mut self) {
        for server in 0..RACK {
            self.router.set_alive(server, false);
            self.servers[server].restart();
        }
        let mut lost: Vec<RequestId> =
            self.requests.iter().filter(|(_, request)| request.server < RACK).map(|(id, _)| *id).collect();
        lost.sort_unstable();
        self.measured.retried = lost.len();
        for id in lost {
            if let Some(request) = self.requests.remove(&id) {
                self.submit(Running { is_retry: request.known > request.prompt, ..request });
            }
        }
    }
}

fn percentile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>().ok());
    let servers = numbers.next().flatten().unwrap_or(1000).max(RACK * 2);
    let seconds = numbers.next().flatten().unwrap_or(60) as f64;
    println!(
        "{servers} servers, {seconds} s of which the first 40 % are not counted; a rack of {RACK} servers fails after 80 %"
    );
    println!(
        "| router | prompt tokens from the cache | answer tokens/s and server | first token: median | 99 % | 99 % after the failure | requests that moved |"
    );
    println!("|---|---|---|---|---|---|---|");
    for rule in Rule::ALL {
        let mut cluster = Cluster::new(rule, servers, seconds);
        cluster.run(seconds);
        let Measured { prompt_tokens, cached_tokens, answer_tokens, retried, .. } = cluster.measured;
        let (mut before, mut after) = (cluster.measured.first_tokens, cluster.measured.first_tokens_after_failure);
        println!(
            "| {rule:?} | {:.0} % | {:.0} | {:.2} s | {:.2} s | {:.2} s | {retried} |",
            100.0 * cached_tokens as f64 / prompt_tokens.max(1) as f64,
            answer_tokens as f64 / (seconds - cluster.warm_up) / servers as f64,
            percentile(&mut before, 0.5),
            percentile(&mut before, 0.99),
            percentile(&mut after, 0.99),
        );
    }
}
