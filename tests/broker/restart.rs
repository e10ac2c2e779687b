//! A restart after SIGTERM neither loses nor repeats records; one after SIGKILL repeats at most one round.

use std::time::{Duration, Instant};

use crate::rig::{DRAIN_TIMEOUT, NUMBERED, Rig, TargetTime};
use crate::support::judge::{Judge, Verdict};
use crate::support::producer::{Load, Outgoing, Producer};
use crate::support::record::Identity;
use crate::{
    support::broker::Broker, support::config::SHORT_SESSION, support::promise::Promise, support::reader::Follower,
    support::wait::wait_until, support::watermaster::Watermaster,
};

const CLIENT_FROM: &str = "client_from = [\"header:client-id\"]";

/// Judges numbered records; no reason is allowed, so no record may be rejected.
fn judge(rig: &Rig, repeats_allowed: u64) -> Verdict {
    let judge = Judge { repeats_allowed, ..NUMBERED };
    let verdict = judge.judge(&rig.read_sources(), &rig.read_target(), &rig.read_dead_letter());
    verdict.assert_right();
    verdict
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn sigterm_under_load_loses_and_repeats_nothing() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "sigterm", 2, 4, TargetTime::Create);
    let sources = rig.sources.clone();
    let load = Load::start(&broker, 4_000, move |n| {
        Outgoing::numbered(&sources[n as usize % 2], n, ["one", "two"][n as usize % 2])
    });
    // The capacity is below the load, so records are delayed when the signal arrives.
    let tables = "[service.shape]\nqueue_capacity = 100000\nmax_delay = \"10m\"";
    let slow = rig.config(rig.service(2_000, "1s", CLIENT_FROM, tables));
    let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
    for round in 1..=3 {
        let mut watermaster = Watermaster::start(&slow);
        follower.wait_for(follower.seen() as u64 + 3_000, DRAIN_TIMEOUT);
        wait_until("a backlog", DRAIN_TIMEOUT, || {
            watermaster.metric("watermaster_backlog_records", &[]).is_some_and(|records| records >= 500.0)
        });
        let asked = Instant::now();
        let status = watermaster.terminate(Duration::from_secs(10));
        eprintln!("round {round}: exited after {:.1} s", asked.elapsed().as_secs_f32());
        assert_eq!(status.code(), Some(0), "{}", watermaster.log());
    }
    let sent = load.stop();
    let mut watermaster = Watermaster::start(&rig.config(rig.service(100_000, "1s", CLIENT_FROM, tables)));
    follower.wait_for(sent, DRAIN_TIMEOUT);
    assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0));
    assert_eq!(judge(&rig, 0).admitted, sent);
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_kill_with_thousands_of_delayed_records_repeats_at_most_a_round() {
    const KILLS: u64 = 3;
    let promise = Promise {
        capacity: 1_000,
        cycle: Duration::from_secs(1),
        commit_interval: Duration::from_millis(50),
        burst_percent: 1,
    };
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "kill", 2, 4, TargetTime::Create);
    // One record in forty is of the client `trickle`, which overtakes the backlog of `flood`, so commits contain gaps.
    let client = |n: u64| if n.is_multiple_of(40) { "trickle" } else { "flood" };
    let records = 20_000;
    let numbered = |n: u64| Outgoing::numbered(&rig.sources[n as usize % 2], n, client(n));
    Producer::to(&broker).send_all((0..records).map(numbered));
    let tables = "[service.shape]\nqueue_capacity = 100000\nmax_delay = \"10m\"";
    let mut slow = rig.config(rig.service(promise.capacity, "1s", CLIENT_FROM, tables));
    slow.kafka.push_str(SHORT_SESSION);
    let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
    for _ in 0..KILLS {
        let mut watermaster = Watermaster::start(&slow);
        wait_until("thousands of records to be delayed", DRAIN_TIMEOUT, || {
            watermaster.assert_running();
            watermaster.metric("watermaster_backlog_records", &[]).is_some_and(|held| held >= 5_000.0)
        });
        follower.wait_for(follower.seen() as u64 + 1_000, DRAIN_TIMEOUT);
        watermaster.kill();
    }
    let mut watermaster = Watermaster::start(&rig.config(rig.service(100_000, "1s", CLIENT_FROM, tables)));
    follower.wait_for(records, DRAIN_TIMEOUT);
    assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0));
    let verdict = judge(&rig, KILLS * promise.round());
    eprintln!("{} repeated after {KILLS} kills, a round is {} records", verdict.repeated, promise.round());
    assert_eq!(verdict.admitted, records);
}
