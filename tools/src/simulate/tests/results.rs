//! `docs/design/results.md`: the same traffic under each rule, simulated; `UPDATE_DOCS=1 cargo test --lib docs_results` writes
//! the page from `tools/results/results.md`. `scripts/results` measures the live runs first.

mod live;
mod page;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use watermaster_core::policy::{ClientPolicy, Lending, Limit, Mode, Policy};
use watermaster_settings::Service;

use super::super::planned::{Planned, START_MS};
use super::super::replay::{Outcome, Replay, ReplayOptions};
use super::super::senders::Senders;
use super::super::service::ServiceModel;
use super::super::sweep::in_parallel;
use super::super::tally::ClientResult;
use crate::load::scenario::Scenario;

/// The service can do a quarter more than its capacity, and slows down while more than 4 s of work wait in it.
const SERVICE: ServiceModel = ServiceModel { rate: 1_250, knee: Some(Duration::from_secs(4)) };
/// The client that sends more than its share in each scenario.
const OVER: &str = "credit-card";
/// More than any client sends.
const NO_LIMIT: u64 = 1_000_000_000;

/// The scenarios of `config/scenarios`, with their names on the page.
const TRAFFICS: [(&str, &str); 4] =
    [("steady", "steady"), ("burst", "burst"), ("campaign", "campaign"), ("retry-storm", "retry storm")];

/// A way to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    NoLimit,
    /// Each client has a limit of its default share, also while the other clients send less than theirs.
    Fixed(Mode),
    Shared(Mode, Lending),
}

/// The rows of each traffic.
const WAYS: [(Way, &str); 7] = [
    (Way::NoLimit, "no limit; shadow mode"),
    (Way::Fixed(Mode::Shape), "fixed limit per client, delays"),
    (Way::Fixed(Mode::Reject), "fixed limit per client, rejects"),
    (Way::Shared(Mode::Shape, Lending::Proportional), "**shape**, proportional"),
    (Way::Shared(Mode::Shape, Lending::MaxMin), "**shape**, max_min"),
    (Way::Shared(Mode::Reject, Lending::Proportional), "**reject**, proportional"),
    (Way::Shared(Mode::Reject, Lending::MaxMin), "**reject**, max_min"),
];

impl Way {
    fn policy(self, policy: &Policy) -> Policy {
        let policy = policy.clone();
        match self {
            Way::NoLimit => Policy { capacity: NO_LIMIT, mode: Mode::Shape, ..policy },
            Way::Shared(mode, lending) => Policy { mode, lending, ..policy },
            Way::Fixed(mode) => {
                let share = policy.capacity / policy.clients.len() as u64 / policy.cycle.as_secs();
                let rate = u32::try_from(share).ok().and_then(std::num::NonZeroU32::new).expect("the share is small");
                let limit = Some(Limit { rate, per: Duration::from_secs(1), burst: rate });
                let limited =
                    |client: &ClientPolicy| ClientPolicy { limits: limit.into_iter().collect(), ..client.clone() };
                let clients = policy.clients.iter().map(limited).collect();
                Policy { capacity: NO_LIMIT, mode, clients, ..policy }
            }
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn service() -> Service {
    crate::cli::settings(&read("tools/results/watermaster.toml")).services.remove(0)
}

fn scenario(name: &str) -> Scenario {
    let path = format!("config/scenarios/{name}.toml");
    Scenario::parse(&read(&path), Path::new(&path)).expect("the scenario is valid")
}

/// Simulates a scenario; a cycle begins at `cycle_start_ms`.
fn simulate(scenario: &Scenario, way: Way, model: Option<ServiceModel>, cycle_start_ms: u64) -> Outcome {
    let service = service();
    let planned = Planned::new(scenario, &service).expect("the scenario fits the service");
    let mut trace = planned.trace.open().expect("the trace is whole");
    let contents = trace.contents().clone();
    let senders = Senders::new(&contents, &service).with_retries(None, |name| planned.retry_of(name));
    let options = ReplayOptions {
        step: Duration::from_millis(10),
        warm_up: 0,
        threshold: Duration::from_secs(10),
        cycle_start_ms: Some(cycle_start_ms),
        drop_retried: true,
        service: model,
    };
    let replay = Replay::new(&way.policy(&service.policy), &contents, &senders, options);
    replay.run(&mut trace).expect("the trace is whole")
}

/// Simulates each traffic in each way.
fn outcomes() -> Vec<Vec<Outcome>> {
    let jobs = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let scenarios = TRAFFICS.map(|(name, _)| scenario(name));
    let all = in_parallel(jobs, TRAFFICS.len() * WAYS.len(), |index| {
        let (scenario, (way, _)) = (&scenarios[index / WAYS.len()], WAYS[index % WAYS.len()]);
        Ok::<_, ()>(simulate(scenario, way, Some(SERVICE), START_MS))
    });
    all.expect("no simulation fails").chunks(WAYS.len()).map(<[Outcome]>::to_vec).collect()
}

/// Delays and rejections of some clients: the worst of each number.
#[derive(Debug, Default, Clone, Copy)]
struct Felt {
    p99: f64,
    max: f64,
    /// The part of the records that was rejected for good.
    rejected: f64,
}

impl Felt {
    /// Sums up the clients for which `chosen` holds.
    fn by(outcome: &Outcome, chosen: impl Fn(&str) -> bool) -> Felt {
        let clients = outcome.clients.iter().filter(|client| chosen(&client.name));
        clients.fold(Felt::default(), |felt, client: &ClientResult| {
            let times = client.finish_seconds.unwrap_or(client.delay_seconds);
            Felt {
                p99: felt.p99.max(times.p99.unwrap_or(0.0)),
                max: felt.max.max(times.max.unwrap_or(0.0)),
                rejected: felt.rejected.max(client.rejected_total() as f64 / client.records.max(1) as f64),
            }
        })
    }

    fn within(outcome: &Outcome) -> Felt {
        Felt::by(outcome, |name| name != OVER)
    }

    fn over(outcome: &Outcome) -> Felt {
        Felt::by(outcome, |name| name == OVER)
    }
}

#[test]
fn docs_results_are_those_of_the_simulation() {
    let page = page::page(&outcomes());
    let path = root().join("docs/design/results.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let changed = page.lines().zip(written.lines()).find(|(new, old)| new != old);
    assert!(
        page == written,
        "docs/design/results.md differs; UPDATE_DOCS=1 rewrites it. First difference: {changed:#?}"
    );
}

/// home-loan lends nearly all of its share to a campaign and then wants it back. The borrower once weighed as much as its
/// grant, so all weights together were more than the capacity, and fell only as home-loan's records came, over a cycle:
/// 1 % of them waited for 0.68 s, and of personal-loan's for 0.3 s.
#[test]
fn a_lender_that_returns_in_a_campaign_hardly_waits() {
    let way = Way::Shared(Mode::Shape, Lending::Proportional);
    let outcome = simulate(&scenario("campaign"), way, None, START_MS);
    for (name, most) in [("home-loan", 0.2), ("personal-loan", 0.1)] {
        let p99 = super::p99(&outcome, name);
        assert!(p99 <= most, "{name}: p99 {p99} s");
    }
}
