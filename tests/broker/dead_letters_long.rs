//! The long tests of `watermaster dlq`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::*;
use crate::support::{own_broker::OwnBroker, process::Process, process::Signal, producer::Load};

const DEAD_LETTERS: u64 = 100_000;
const STUBS: u64 = 300;
const KILLS: u64 = 10;
const RESTARTS: [u64; 2] = [3, 7];
/// The numbers of the load begin here.
const LOAD: u64 = 10_000_000;

/// Dead letters of every reason, in a topic in which a tenth of the transactions was aborted.
fn fill(rig: &Rig) -> HashMap<u64, (Outgoing, u64)> {
    let start = crate::rig::an_hour_ago();
    let record = |number: u64| first(number, &rig.sources[(number % 2) as usize], start + number as i64);
    let originals: Vec<Outgoing> = (0..STUBS).map(record).collect();
    let places = produce_to_sources(rig, &originals);
    Producer::to(&rig.broker).send_all((0..DEAD_LETTERS).map(|number| {
        let reason = REASONS[number as usize % REASONS.len()];
        let place = places.get(&number).copied().unwrap_or((0, 1_000_000 + number as i64));
        let letter = dead_letter(rig, &record(number), place, reason, 1 + number % 4);
        if number < STUBS { stub(letter) } else { letter }
    }));
    (0..DEAD_LETTERS).map(|number| (number, (record(number), 1 + number % 4))).collect()
}

/// Starts a throttler that admits all records, and its load.
fn under_load(rig: &Rig) -> (Config, Watermaster, Load) {
    let mut config = rig.config(rig.service(60_000, "1s", "", "[service.shape]\nqueue_capacity = 200000"));
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    keep_redrive_key(&mut config);
    let watermaster = Watermaster::start(&config);
    let topic = rig.sources[0].clone();
    let load = Load::start(&rig.broker, 200, move |number| Outgoing::numbered(&topic, LOAD + number, "load"));
    (config, watermaster, load)
}

fn finish(rig: &Rig, mut watermaster: Watermaster, load: Load) {
    let sent = load.stop();
    let mut follower = Follower::of(&rig.broker, &[&rig.target, &rig.dead_letter], Identity::Value);
    follower.wait_for(DEAD_LETTERS + sent, DRAIN_TIMEOUT);
    assert_eq!(watermaster.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    let loaded = read_all(&rig.broker, &rig.target).into_iter().filter_map(|record| Identity::Value.of(&record));
    assert_eq!(loaded.filter(|number| *number >= LOAD).count() as u64, sent, "the load is admitted once each");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_hundred_thousand_dead_letters_come_back_under_load() {
    let own = OwnBroker::start();
    let rig = rig(&own, "dlq-many");
    let expected = fill(&rig);
    let (config, watermaster, load) = under_load(&rig);
    let done = Desk::new(&config).json("redrive", &["--job", "many"]);
    eprintln!("{done}");
    assert_eq!(done["counts"]["redriven"], DEAD_LETTERS);
    finish(&rig, watermaster, load);
    assert_back(&rig, &expected);
}

/// Returns the number of records that came back so far, as a `read_committed` reader of the target sees them.
fn came_back(watermaster: &Watermaster) -> u64 {
    watermaster.metric("watermaster_records_total", &["client=\"redrive\"", "decision=\"admitted\""]).unwrap_or(0.0)
        as u64
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_redrive_that_is_killed_ten_times_repeats_and_loses_nothing() {
    let mut own = OwnBroker::start();
    let rig = rig(&own, "dlq-killed");
    let expected = fill(&rig);
    let (config, watermaster, load) = under_load(&rig);
    let desk = Desk::new(&config);
    // The rate leaves work for each kill; the progress decides when they come.
    let options = ["--job", "killed", "--rate", "2000"];
    for kill in 0..KILLS {
        let mut command = desk.command("redrive", &options);
        let mut redrive = Process::start(command.stdout(Stdio::null()).stderr(Stdio::inherit()));
        let (before, until) = (came_back(&watermaster), (kill + 1) * DEAD_LETTERS / (KILLS + 2));
        wait_until("more records to come back", DRAIN_TIMEOUT, || came_back(&watermaster) >= until);
        if RESTARTS.contains(&kill) {
            own.kill();
            own.start_again();
        }
        assert!(redrive.try_wait().is_none(), "the job ended before it was killed");
        redrive.signal(Signal::Kill);
        wait_until("the killed redrive to end", DRAIN_TIMEOUT, || redrive.try_wait().is_some());
        eprintln!("kill {kill}: {before} records had come back before, {} after", came_back(&watermaster));
    }
    let done = desk.json("redrive", &["--job", "killed"]);
    eprintln!("{done}");
    assert_eq!(done["complete"], true);
    finish(&rig, watermaster, load);
    assert_back(&rig, &expected);
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn the_rate_is_never_exceeded() {
    const RATE: i64 = 500;
    let broker = Broker::of_this_run();
    let rig = Rig::with_topics(&broker, "dlq-rate", |topic| {
        if topic.name.contains("source") {
            *topic = topic.clone().with_append_time();
        }
    });
    let start = crate::rig::an_hour_ago();
    let record = |number: u64| first(number, &rig.sources[0], start + number as i64);
    Producer::to(&broker).send_all((0..10_000).map(|n| dead_letter(&rig, &record(n), (0, 7), "expired", 1)));
    let mut config = rig.config(rig.service(1_000, "1s", "", ""));
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    keep_redrive_key(&mut config);
    let began = Instant::now();
    let done = Desk::new(&config).json("redrive", &["--rate", &RATE.to_string()]);
    assert_eq!(done["counts"]["redriven"], 10_000);
    let mut times: Vec<i64> = rig.read_sources().iter().map(|record| record.timestamp).collect();
    times.sort_unstable();
    let (first, last) = (times[0], times[times.len() - 1]);
    let in_second =
        |from: i64| times.partition_point(|time| *time < from + 1_000) - times.partition_point(|t| *t < from);
    // A second begins at any millisecond; the last one has to be whole.
    let mut counts: Vec<usize> = (first..=last - 1_000).map(in_second).collect();
    counts.sort_unstable();
    let [least, low, high, most] = [0, 1, 99, 100].map(|percent| counts[(counts.len() - 1) * percent / 100]);
    let mean = (times.len() - 1) as f64 * 1_000.0 / (last - first) as f64;
    eprintln!(
        "{mean:.1} records/s on average, {least} to {most} in any second ({low} to {high} in \
         98 % of them), {:?} in all",
        began.elapsed()
    );
    // A broker that stalls appends late and then much at once, so only the mean is a matter of the pace alone.
    assert!(mean <= RATE as f64 * 1.02, "{mean} records/s");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_redrive_delays_no_client_within_its_share() {
    const CYCLE: Duration = Duration::from_secs(2);
    let own = OwnBroker::start();
    let rig = Rig::new(&own, "dlq-share", 2, 2, TargetTime::Append);
    fill(&rig);
    let tables = "[service.client.load]\nweight = 1\n[service.client.redrive]\nweight = 1";
    let mut config = rig.config(rig.service(2_000, "2s", "", tables));
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    keep_redrive_key(&mut config);
    let mut watermaster = Watermaster::start(&config);
    // 300/s of a share of 500/s, into a source that the redrive floods.
    let topic = rig.sources[0].clone();
    let load = Load::start(&rig.broker, 300, move |number| Outgoing {
        timestamp: Some(crate::rig::now_ms()),
        ..Outgoing::numbered(&topic, LOAD + number, "load")
    });
    wait_until("the load to be admitted", DRAIN_TIMEOUT, || {
        watermaster
            .metric("watermaster_records_total", &["client=\"load\"", "decision=\"admitted\""])
            .is_some_and(|count| count > 600.0)
    });
    // A broker that has just started takes seconds for its first transactions.
    let began = crate::rig::now_ms();
    let done = Desk::new(&config).json("redrive", &["--job", "flood"]);
    assert_eq!(done["complete"], true, "{done}");
    let before = came_back(&watermaster);
    wait_until("the redrive to use its share", DRAIN_TIMEOUT, || came_back(&watermaster) > before + 4_000);
    let sent = load.stop();
    let times = |records: Vec<Record>| -> HashMap<u64, i64> {
        let time = |record: Record| Some((Identity::Value.of(&record)?, record.timestamp));
        records.into_iter().filter_map(time).filter(|(number, _)| *number >= LOAD).collect()
    };
    wait_until("the load to be delivered", DRAIN_TIMEOUT, || times(rig.read_target()).len() as u64 == sent);
    let (produced, appended) = (times(rig.read_sources()), times(rig.read_target()));
    let beside = produced.iter().filter(|(_, time)| **time >= began);
    let mut delays: Vec<i64> = beside.map(|(number, time)| appended[number] - time).collect();
    delays.sort_unstable();
    let [median, p99, most] = [delays.len() / 2, delays.len() * 99 / 100, delays.len() - 1].map(|at| delays[at]);
    eprintln!(
        "{sent} records of the load, {} since the redrive began: median {median} ms, p99 {p99} ms, at most {most} ms",
        delays.len()
    );
    assert!(most <= CYCLE.as_millis() as i64, "a client within its share waited for {most} ms");
    watermaster.terminate(DRAIN_TIMEOUT);
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_poison_loop_ends_in_the_parking_topic() {
    const POISON: u64 = 100;
    let broker = Broker::of_this_run();
    let rig = rig(&broker, "dlq-poison");
    let mut config = rig.config(rig.service(1_000, "1s", "client_from = [\"header:absent\"]", ""));
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    keep_redrive_key(&mut config);
    let start = crate::rig::an_hour_ago();
    let record = |number: u64| first(number, &rig.sources[0], start + number as i64);
    Producer::to(&broker).send_all((0..POISON).map(record));
    let mut watermaster = Watermaster::start(&config);
    let desk = Desk::new(&config);
    for attempt in 1..=5 {
        wait_until("the records to be rejected again", DRAIN_TIMEOUT, || {
            read_all(&broker, &rig.dead_letter).len() as u64 == attempt * POISON
        });
        let done = desk.json("redrive", &["--as-sender"]);
        eprintln!("attempt {attempt}: {done}");
        if attempt == 5 {
            assert_eq!(done["counts"]["parked"]["max_attempts"], POISON, "{done}");
        }
    }
    watermaster.terminate(DRAIN_TIMEOUT);
}
