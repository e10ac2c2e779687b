//! Reloads while records flow: of capacity, cycle, mode and enforcement, and of malformed files.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::rig::{DRAIN_TIMEOUT, NUMBERED, Rig, TargetTime};
use crate::support::producer::{Load, Outgoing};
use crate::support::record::{Identity, Record};
use crate::{
    support::broker::Broker, support::config::Config, support::generator::Random, support::judge::Judge,
    support::promise::Promise, support::reader::Follower, support::wait::wait_until, support::watermaster::Watermaster,
};

const TOKEN: &str = "the-token-of-the-reload";
const COMMIT_INTERVAL: Duration = Duration::from_millis(20);
const TABLES: &str = "[service.shape]\nqueue_capacity = 1000000\nmax_delay = \"10m\"\nburst = 0.01";

/// The values that a reload changes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Policy {
    capacity: u64,
    cycle: &'static str,
    millis: i64,
    mode: &'static str,
    enforce: bool,
}

const FIRST: Policy = Policy { capacity: 1_000, cycle: "500ms", millis: 500, mode: "shape", enforce: true };

impl Policy {
    /// Returns the policy with one random change.
    fn next(self, random: &mut Random) -> Policy {
        match random.below(8) {
            0..=3 if self.capacity >= 2_000 => Policy { capacity: self.capacity / 2, ..self },
            0..=3 if self.capacity <= 250 => Policy { capacity: self.capacity * 2, ..self },
            0..=1 => Policy { capacity: self.capacity * 2, ..self },
            2..=3 => Policy { capacity: self.capacity / 2, ..self },
            4..=5 => {
                let (cycle, millis) = [("250ms", 250), ("500ms", 500), ("1s", 1_000)][random.below(3) as usize];
                Policy { cycle, millis, ..self }
            }
            6 => Policy { mode: if self.mode == "shape" { "reject" } else { "shape" }, ..self },
            _ => Policy { enforce: !self.enforce, ..self },
        }
    }

    fn config(self, rig: &Rig, token: &std::path::Path) -> Config {
        let keys = format!(
            "client_from = [\"header:client-id\"]\nclient_idle_timeout = \"1m\"\nscope = \"instance\"\nmode = {:?}\nenforce = {}",
            self.mode, self.enforce
        );
        let mut config = rig.config(rig.service(self.capacity, self.cycle, &keys, TABLES));
        (config.commit_interval, config.kafka) = ("20ms", String::new());
        config.admin = format!("token_file = {:?}", token.display().to_string());
        config
    }

    fn is_shown(self, watermaster: &Watermaster) -> bool {
        let shown = watermaster.service("kyc");
        shown["capacity"] == self.capacity
            && shown["cycle_seconds"] == self.millis as f64 / 1_000.0
            && shown["mode"] == self.mode
            && shown["enforce"] == self.enforce
    }
}

/// A policy; it is in force from some time between `asked` and `shown` on.
struct InForce {
    policy: Policy,
    asked: i64,
    shown: i64,
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is later than 1970").as_millis() as i64
}

/// Reloads a malformed file; asserts that the answer has errors and that the policy in force does not change.
fn refuse(watermaster: &Watermaster, good: &str, policy: Policy, random: &mut Random) {
    let broken = [
        ("capacity = ", "capacity = 0 # "),
        ("cycle = ", "cycles = "),
        ("[[service]]", "[[service]"),
        ("bootstrap_servers = \"", "bootstrap_servers = \"elsewhere:9092,"),
    ];
    let (from, to) = broken[random.below(4) as usize];
    let (status, body) = watermaster.reload(&good.replacen(from, to, 1), TOKEN);
    assert_eq!(status, 422, "{from} => {to}: {body}");
    let body: serde_json::Value = serde_json::from_str(&body).expect("the admin API speaks JSON");
    assert!(body["errors"].as_array().is_some_and(|errors| !errors.is_empty()), "{body}");
    assert!(policy.is_shown(watermaster), "the policy in force does not change");
    assert_eq!(watermaster.metric("watermaster_config_last_reload_successful", &[]), Some(0.0));
}

/// Asserts that no window by append time holds more than the largest capacity in force in it plus one round. Considers
/// only windows that were enforced throughout, and returns their number.
fn windows_are_kept(target: &[Record], history: &[InForce]) -> usize {
    let mut times: Vec<i64> = target.iter().map(|record| record.timestamp).collect();
    times.sort_unstable();
    let within = |from: i64, until: i64| {
        let ends = history.iter().skip(1).map(|next| next.shown).chain([i64::MAX]);
        // A round is appended up to half a second after its decisions.
        let (from, until) = (from - 500, until);
        history.iter().zip(ends).filter(move |(one, end)| one.asked <= until && *end >= from).map(|(one, _)| one.policy)
    };
    let mut enforced = 0;
    for (last, &until) in times.iter().enumerate() {
        let longest = within(until - 1_000, until);
        let length = longest.map(|policy| policy.millis).min().expect("a policy is in force") - 1;
        let policies: Vec<Policy> = within(until - length, until).collect();
        if policies.iter().any(|policy| !policy.enforce) {
            continue;
        }
        let capacity = policies.iter().map(|policy| policy.capacity).max().expect("a policy is in force");
        let cycle = Duration::from_millis(policies.iter().map(|policy| policy.millis).min().unwrap_or(1) as u64);
        let bound = Promise { capacity, cycle, commit_interval: COMMIT_INTERVAL, burst_percent: 1 }.bound(0);
        let count = last + 1 - times.partition_point(|at| *at <= until - length);
        assert!(count as u64 <= bound, "{count} records in {length} ms until {until}, more than {bound}: {policies:?}");
        enforced += 1;
    }
    enforced
}

fn reloads(count: u32, seed: u64) {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "reload", 2, 4, TargetTime::Append);
    let token = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(token.path(), TOKEN).expect("the token is written");
    let mut random = Random(seed);
    let mut history = vec![InForce { policy: FIRST, asked: 0, shown: 0 }];
    let mut watermaster = Watermaster::start(&FIRST.config(&rig, token.path()));
    let sources = rig.sources.clone();
    let numbered =
        move |n: u64| Outgoing::numbered(&sources[n as usize % 2], n, ["one", "two", "three", "four"][n as usize % 4]);
    let load = Load::start(&broker, 2_500, numbered);
    let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
    follower.wait_for(500, DRAIN_TIMEOUT);
    let began = Instant::now();
    let (mut policy, mut refused) = (FIRST, 0);
    for _ in 0..count {
        let config = policy.config(&rig, token.path()).to_toml();
        if random.below(8) == 0 {
            refuse(&watermaster, &config, policy, &mut random);
            refused += 1;
            continue;
        }
        policy = policy.next(&mut random);
        let asked = now_ms();
        let (status, body) = watermaster.reload(&policy.config(&rig, token.path()).to_toml(), TOKEN);
        assert_eq!(status, 200, "{body}");
        wait_until("the policy to be in force", DRAIN_TIMEOUT, || policy.is_shown(&watermaster));
        history.push(InForce { policy, asked, shown: now_ms() });
        // Reading for a while lets some windows lie between two changes.
        follower.read_on(Duration::from_millis(random.below(150)));
    }
    eprintln!("{count} reloads ({refused} refused) within {:.1} s (seed {seed})", began.elapsed().as_secs_f32());
    assert_eq!(watermaster.metric("watermaster_rebalances_total", &[]), Some(1.0), "no reload costs a rebalance");
    let sent = load.stop();
    // Shadow mode sends the backlog at once and in order, before new records.
    let last = Policy { capacity: 100_000, enforce: false, ..policy };
    let asked = now_ms();
    assert_eq!(watermaster.reload(&last.config(&rig, token.path()).to_toml(), TOKEN).0, 200);
    follower.wait_for(sent, DRAIN_TIMEOUT);
    wait_until("the policy to be in force", DRAIN_TIMEOUT, || last.is_shown(&watermaster));
    history.push(InForce { policy: last, asked, shown: now_ms() });
    assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0));

    let (source, target) = (rig.read_sources(), rig.read_target());
    assert_eq!(source.len() as u64, sent);
    let judge = Judge { reasons: &["over_allocation", "capacity_in_use"], keeps_timestamps: false, ..NUMBERED };
    let verdict = judge.judge(&source, &target, &rig.read_dead_letter());
    let windows = windows_are_kept(&target, &history);
    eprintln!("{} admitted, {} rejected; {windows} windows were enforced", verdict.admitted, verdict.rejected);
    verdict.assert_right();
    assert!(windows * 10 > target.len(), "too few windows were enforced for this to prove anything");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_hundred_reloads_lose_and_repeat_nothing() {
    reloads(100, 501);
}

mod long {
    #[test]
    #[ignore = "takes minutes: scripts/test --long"]
    fn a_thousand_reloads_lose_and_repeat_nothing() {
        super::reloads(1_000, 502);
    }
}
