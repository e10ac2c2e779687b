//! Reloads while records flow: of capacity, cycle, mode and enforcement, and of malformed files.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::rig::{DRAIN_TIMEOUT, NUMBERED, Rig, TargetTime, now_ms};
use crate::support::producer::{Load, Outgoing};
use crate::support::record::{Identity, Record};
use crate::{
    support::broker::Broker, support::config::Config, support::generator::Random, support::judge::Judge,
    support::reader::Follower, support::wait::wait_until, support::watermaster::Watermaster,
};

const TOKEN: &str = "the-token-of-the-reload";
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

/// The records of a partition of the target in the order of their offsets.
#[derive(Default)]
struct Partition {
    /// The append times of the records.
    times: Vec<i64>,
    /// For each record, the number of records up to the last one of its round.
    round_ends: Vec<usize>,
}

impl Partition {
    /// Returns the records that were appended in (`from`, `until`], without those of the first round in it.
    fn behind_first_round(&self, from: i64, until: i64) -> usize {
        let [first, end] = [from, until].map(|time| self.times.partition_point(|at| *at <= time));
        self.round_ends.get(first).map_or(0, |round_end| end.saturating_sub(*round_end))
    }
}

/// Splits the records of the target by partition. The end of a transaction takes an offset, so a gap separates the
/// records of two rounds.
fn partitions_of(target: &[Record]) -> Vec<Partition> {
    let mut partitions: BTreeMap<i32, BTreeMap<i64, i64>> = BTreeMap::new();
    for record in target {
        partitions.entry(record.partition).or_default().insert(record.offset, record.timestamp);
    }
    let mut split = Vec::new();
    for records in partitions.into_values() {
        let offsets: Vec<i64> = records.keys().copied().collect();
        let rounds = offsets.chunk_by(|before, after| before + 1 == *after).map(<[i64]>::len);
        let mut partition = Partition { times: records.into_values().collect(), round_ends: Vec::new() };
        for records in rounds {
            let end = partition.round_ends.len() + records;
            partition.round_ends.resize(end, end);
        }
        split.push(partition);
    }
    split
}

/// Asserts that no window by append time holds more than the largest capacity in force in it. Considers only windows
/// that were enforced throughout. Returns their number, and the largest part of a capacity that one held.
///
/// Nothing is decided while a round is delivered. So of all rounds in a window only the first one may have been decided
/// before it, however slow the machine is, and the records of the other rounds were decided in the window.
fn windows_are_kept(target: &[Record], history: &[InForce]) -> (usize, f64) {
    let partitions = partitions_of(target);
    let within = |from: i64, until: i64| {
        let ends = history.iter().skip(1).map(|next| next.shown).chain([i64::MAX]);
        history.iter().zip(ends).filter(move |(one, end)| one.asked <= until && *end >= from).map(|(one, _)| one.policy)
    };
    let times: BTreeSet<i64> = target.iter().map(|record| record.timestamp).collect();
    let (mut enforced, mut fullest) = (0, 0.0_f64);
    for until in times {
        let longest = within(until - 1_000, until);
        // The broker truncates its times to milliseconds.
        let from = until + 1 - longest.map(|policy| policy.millis).min().expect("a policy is in force");
        let policies: Vec<Policy> = within(from, until).collect();
        if policies.iter().any(|policy| !policy.enforce) {
            continue;
        }
        let capacity = policies.iter().map(|policy| policy.capacity).max().expect("a policy is in force");
        let count: usize = partitions.iter().map(|partition| partition.behind_first_round(from, until)).sum();
        assert!(count as u64 <= capacity, "{count} records after the first round of ({from}, {until}]: {policies:?}");
        (enforced, fullest) = (enforced + 1, fullest.max(count as f64 / capacity as f64));
    }
    (enforced, fullest)
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
    let (windows, fullest) = windows_are_kept(&target, &history);
    let (admitted, rejected) = (verdict.admitted, verdict.rejected);
    eprintln!(
        "{admitted} admitted, {rejected} rejected; {windows} windows were enforced, the fullest held {fullest:.2}"
    );
    verdict.assert_right();
    assert!(windows > 100 && fullest > 0.5, "too few or too empty windows were enforced for this to prove anything");
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
