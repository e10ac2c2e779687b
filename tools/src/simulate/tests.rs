//! Simulations of generated traces: the worked example of `docs/planning.md`, bounds, pauses, and what must not matter.

mod results;

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use watermaster_core::policy::{ClientPolicy, Lending, Limit, Mode, Overflow};
use watermaster_core::units::Weight;
use watermaster_settings::Service;

use super::find::{Bound, Goal};
use super::live::LiveRun;
use super::sweep::Capacities;
use super::{Job, Outcome, ReplayOptions, Senders, ServiceModel, leave_out, sweep::Rules, tally::ClientResult};
use crate::load::plan::tests::service;
use crate::load::scenario::RetryPolicy;
use crate::trace_file::reader::TraceSource;
use crate::trace_file::{ANONYMOUS, Contents, TraceRecord, TraceWriter, TracedPartition};

const NAMES: [&str; 4] = ["home-loan", "personal-loan", "car-loan", "credit-card"];
const SHAPE: Rules = Rules { mode: Mode::Shape, lending: Lending::Proportional };
const MAX_MIN: Rules = Rules { mode: Mode::Shape, lending: Lending::MaxMin };

/// Builds a trace with a partition for each client. Each row is a time in milliseconds and an index into [`NAMES`].
fn trace(rows: &[(u64, usize)]) -> TraceSource {
    let partition = |topic: &&str| TracedPartition { topic: (*topic).to_owned(), ..TracedPartition::default() };
    let contents = Contents { partitions: NAMES.iter().map(partition).collect(), ..Contents::default() };
    let mut writer = TraceWriter::new(Vec::new(), contents).unwrap();
    for &(at_ms, index) in rows {
        let client = writer.client(NAMES[index]);
        let record = TraceRecord { at_ms, client, partition: index as u32, bytes: 500, retried: index == 2 };
        writer.push(record).unwrap();
    }
    TraceSource::Memory(writer.finish().unwrap().0.into())
}

/// An hour of four clients at 40, 35, 30 and 45 records a second. From the 20th minute on, the first sends 1.5 times as
/// many and the last eight times as many, for ten minutes.
fn campaign() -> TraceSource {
    let mut rng = Rng::with_seed(4);
    let mut rows = Vec::new();
    for (index, (rate, factor)) in [(40.0, 1.5), (35.0, 1.0), (30.0, 1.0), (45.0, 8.0)].into_iter().enumerate() {
        let mut at = 0.0;
        while at < 3_600.0 {
            rows.push((1_700_000_000_000 + (at * 1e3) as u64, index));
            let now = if (1_200.0..1_800.0).contains(&at) { rate * factor } else { rate };
            at -= (1.0 - rng.f64()).ln() / now;
        }
    }
    rows.sort_unstable();
    trace(&rows)
}

/// A service without tight bounds.
fn roomy() -> Service {
    let mut service = service("[\"key\"]", "[[service.source]]\ntopic = \"in\"\n");
    let policy = &mut service.policy;
    (policy.queue_capacity, policy.queue_bytes, policy.max_delay) = (1 << 40, 1 << 50, None);
    service
}

fn job(trace: TraceSource, service: Service) -> Job {
    let contents = trace.open().unwrap().contents().clone();
    Job {
        senders: Senders::new(&contents, &service),
        options: ReplayOptions {
            step: Duration::from_millis(10),
            warm_up: 2,
            threshold: Duration::from_secs(1),
            cycle_start_ms: None,
            drop_retried: false,
            service: None,
        },
        rules: vec![SHAPE],
        jobs: NonZeroUsize::new(2).unwrap(),
        trace,
        contents,
        service,
    }
}

fn p99(outcome: &Outcome, name: &str) -> f64 {
    let client = outcome.clients.iter().find(|client| client.name == name).unwrap();
    client.delay_seconds.p99.unwrap()
}

/// Another sample of the same arrivals moves a quantile by up to this much.
fn assert_near(found: f64, expected: f64, what: &str) {
    println!("{what}: {found}, expected {expected}");
    assert!((found - expected).abs() <= (expected * 0.03).max(0.3), "{what}: {found}, expected {expected}");
}

/// Without rejections, the campaign's delay can be found by hand: at 4 522 its ten minutes bring 485 records a second
/// against 452, and the backlog of 20 000 is served at 327 a second, in 61 s.
#[test]
fn the_worked_example_is_reproduced() {
    let job = job(campaign(), roomy());
    let rows = [
        (SHAPE, 2_000, 100.0, 1_801.0),
        (SHAPE, 2_500, 0.54, 974.0),
        (SHAPE, 3_000, 0.02, 570.0),
        (SHAPE, 4_000, 0.01, 175.0),
        (MAX_MIN, 2_000, 0.39, 1_801.0),
        (MAX_MIN, 2_500, 0.06, 974.0),
    ];
    for (rules, capacity, first, last) in rows {
        let outcome = job.simulate(rules, capacity).unwrap();
        assert_near(p99(&outcome, NAMES[0]), first, &format!("{rules:?} {capacity}, the first client"));
        assert_near(p99(&outcome, NAMES[3]), last, &format!("{rules:?} {capacity}, the campaign"));
        assert_eq!((outcome.total.rejected_total(), outcome.largest_window <= capacity), (0, true));
        assert_eq!(outcome.total.admitted, outcome.total.records);
    }
}

/// A long run (`WATERMASTER_TEST_LONG`) also searches for the campaign's own delay: thirty simulations more.
#[test]
fn the_smallest_capacities_of_the_worked_example_are_found() {
    let mut job = job(campaign(), roomy());
    job.rules = vec![SHAPE, MAX_MIN];
    let goal =
        |name: &str, seconds| Goal { client: Some(name.to_owned()), bound: Bound::P99(Duration::from_secs(seconds)) };
    let goals = [(NAMES[0], 1, [2_444, 1_900]), (NAMES[3], 60, [4_522, 4_522])];
    let searched = if std::env::var_os("WATERMASTER_TEST_LONG").is_some() { 2 } else { 1 };
    for &(name, seconds, expected) in &goals[..searched] {
        let answers = job.find(&goal(name, seconds)).unwrap().unwrap();
        for (answer, expected) in answers.iter().zip(expected) {
            let (capacity, outcome) = answer.found.answer.as_ref().unwrap();
            assert_near(*capacity as f64, f64::from(expected), &format!("{:?}, {name}", answer.rules));
            assert!(answer.found.monotone && answer.found.runs <= 14, "{} simulations", answer.found.runs);
            // The answer holds when it is simulated again, and one percent less does not.
            let again = job.simulate(answer.rules, *capacity).unwrap();
            assert_eq!((&again, p99(&again, name) <= seconds as f64), (outcome, true));
            assert!(p99(&job.simulate(answer.rules, capacity - capacity / 100).unwrap(), name) > seconds as f64);
        }
    }
}

/// Ten seconds of 100 records a second from each of two clients.
fn steady() -> TraceSource {
    trace(&(0..2_000).map(|n| (1_000_000 + n * 5, n as usize % 2)).collect::<Vec<_>>())
}

fn with(capacity: u64, trace: TraceSource, change: impl FnOnce(&mut Service)) -> Outcome {
    let mut service = roomy();
    service.policy.cycle = Duration::from_secs(1);
    change(&mut service);
    let mode = service.policy.mode;
    let mut job = job(trace, service);
    job.options.warm_up = 0;
    job.simulate(Rules { mode, ..SHAPE }, capacity).unwrap()
}

/// While a partition is paused its records wait in the topic. Their delays and the backlog count that, too.
#[test]
fn a_paused_partition_is_read_later_and_loses_nothing() {
    let free = with(100, steady(), |_| {});
    let paused = with(100, steady(), |service| {
        (service.policy.overflow, service.policy.queue_capacity) = (Overflow::Pause, 20);
    });
    for (free, paused) in free.clients.iter().zip(&paused.clients) {
        assert_eq!((paused.records, paused.admitted, paused.rejected_total()), (1_000, 1_000, 0));
        assert_near(paused.delay_seconds.max.unwrap(), 10.0, "the last record");
        assert_near(paused.delay_seconds.p50.unwrap(), free.delay_seconds.p50.unwrap(), "p50");
        assert!(paused.backlog.records.abs_diff(500) < 30, "{:?}", paused.backlog);
        assert!(paused.seconds_above.is_some_and(|above| (14.0..20.0).contains(&above)), "{:?}", paused.seconds_above);
    }
}

/// Whole partitions pause, so a client that shares its partition with a flood waits for it.
#[test]
fn a_pause_holds_back_all_records_of_a_partition() {
    let p50 = |queue_capacity| {
        let outcome = with(1_000, one_partition(2_000, 10), |service| {
            (service.policy.overflow, service.policy.queue_capacity) = (Overflow::Pause, queue_capacity);
        });
        assert_eq!(outcome.total.admitted, 2_000);
        outcome.clients.iter().find(|client| client.name == "steady").unwrap().delay_seconds.p50.unwrap()
    };
    let (free, paused) = (p50(1 << 40), p50(20));
    assert!(free < 0.1 && paused > 0.2, "{free} and {paused}");
}

/// An hour of four times the capacity on a topic of its own once lost four of five records, with the default bounds.
#[test]
fn a_flood_of_an_hour_on_its_own_topic_waits_in_kafka() {
    let sources: String = NAMES.map(|name| format!("[[service.source]]\ntopic = {name:?}\n")).concat();
    let mut service = service("[\"header:client-id\", \"topic\"]", &sources);
    service.policy.cycle = Duration::from_secs(10);
    let each = |index: usize, every: u64| (0..3_600_000 / every).map(move |n| (1_700_000_000_000 + n * every, index));
    let mut rows: Vec<_> = each(0, 251).chain(each(3, 12)).collect();
    rows.sort_unstable();
    let mut job = job(trace(&rows), service);
    job.options.warm_up = 0;
    let outcome = job.simulate(SHAPE, 200).unwrap();
    assert_eq!((outcome.total.records, outcome.total.rejected_total()), (rows.len() as u64, 0));
    assert!(p99(&outcome, "home-loan") < 1.0, "{outcome:?}");
    let flood = outcome.clients.iter().find(|client| client.name == "credit-card").unwrap();
    assert!(flood.backlog.records > 200_000, "{:?}: the records in the topic count", flood.backlog);
}

#[test]
fn records_beyond_a_bound_are_rejected_with_its_reason() {
    let full = with(100, steady(), |service| service.policy.queue_capacity = 20);
    for client in &full.clients {
        assert_eq!(client.rejected.keys().copied().collect::<Vec<_>>(), ["queue_full"]);
        assert_eq!(client.admitted + client.rejected["queue_full"], 1_000);
        assert!(client.backlog.records <= 22, "{:?}", client.backlog);
    }
    let expired = with(100, steady(), |service| service.policy.max_delay = Some(Duration::from_secs(1)));
    assert!(expired.clients.iter().all(|client| client.rejected["expired"] > 300), "{expired:?}");
    assert!(expired.total.delay_seconds.max.unwrap() <= 1.0);
    let rejecting = with(100, steady(), |service| service.policy.mode = Mode::Reject);
    assert!(rejecting.clients.iter().all(|client| client.rejected["over_allocation"] > 400), "{rejecting:?}");
    assert_eq!((rejecting.total.delayed, rejecting.total.delay_seconds.max), (0, Some(0.0)));
}

/// Shadow mode decides as if it were enforced, and no record waits for another one's completion in the offset map.
#[test]
fn shadow_mode_is_simulated_as_if_it_were_enforced() {
    let enforced = with(100, steady(), |_| {});
    let shadow = with(100, steady(), |service| service.policy.enforce = false);
    assert_eq!(enforced, shadow);
    let enforced = with(1_000, one_partition(360_000, 3), |_| {});
    let shadow = with(1_000, one_partition(360_000, 3), |service| service.policy.enforce = false);
    assert!(enforced.total.rejected_total() > 0, "the offset map bounds what enforcing can keep");
    assert_eq!(shadow.total.rejected_total(), 0);
}

/// Two clients in one partition, two records a millisecond: every so many records one of the steady client.
fn one_partition(records: u64, every: u64) -> TraceSource {
    let contents = Contents { partitions: vec![TracedPartition::default()], ..Contents::default() };
    let mut writer = TraceWriter::new(Vec::new(), contents).unwrap();
    let (flood, steady) = (writer.client("flood"), writer.client("steady"));
    for n in 0..records {
        let client = if n.is_multiple_of(every) { steady } else { flood };
        writer.push(TraceRecord { at_ms: n / 2, client, ..TraceRecord::default() }).unwrap();
    }
    TraceSource::Memory(writer.finish().unwrap().0.into())
}

#[test]
fn the_service_chooses_its_clients_from_the_trace() {
    let with_sources = |change: fn(&mut Service)| with(1_000, steady(), change);
    let refused = with_sources(|service| {
        service.sources[0].topic = NAMES[1].to_owned();
        service.sources[0].allowed_clients = Some(vec![NAMES[0].to_owned()]);
    });
    let rejected: Vec<u64> = refused.clients.iter().map(|client| client.rejected_total()).collect();
    assert_eq!((rejected, refused.clients[1].rejected["unknown_client"]), (vec![0, 1_000], 1_000));
}

/// `allowed_clients` has ids alone, and the names of clients in a trace begin with their groups.
#[test]
fn allowed_clients_mean_ids_without_groups() {
    let partitions = vec![TracedPartition { topic: "in".to_owned(), ..TracedPartition::default() }];
    let mut writer = TraceWriter::new(Vec::new(), Contents { partitions, ..Contents::default() }).unwrap();
    // The group `cards` is not configured, and the last record names no group.
    let clients = ["home/web", "home/batch", "cards/web", "cards/app", "batch"].map(|name| writer.client(name));
    for n in 0..2_000 {
        let record = TraceRecord { at_ms: n * 20, client: clients[n as usize % 5], ..TraceRecord::default() };
        writer.push(record).unwrap();
    }
    let keys = "[\"key\"]\ngroup_from = [\"header:product\"]";
    let source = "[[service.source]]\ntopic = \"in\"\nallowed_clients = [\"web\", \"app\"]\n[service.group.home]\n";
    let service = service(keys, source);
    let outcome = job(TraceSource::Memory(writer.finish().unwrap().0.into()), service).simulate(SHAPE, 1_000).unwrap();
    let rejected = |client: &ClientResult| (client.name.clone(), client.rejected.get("unknown_client").copied());
    let rejected: Vec<_> = outcome.clients.iter().map(rejected).collect();
    let (some, none) = (Some(200), None);
    let expected =
        [("home/web", none), ("home/batch", some), ("cards/web", none), ("cards/app", none), ("batch", some)];
    assert_eq!(rejected, expected.map(|(name, count)| (name.to_owned(), count)));
}

/// The times of rules are those of the trace: a hold from the 30th second to the 60th one delays the records of that time,
/// also if no other record wakes the simulation at its end.
#[test]
fn rules_are_valid_at_the_times_of_the_trace() {
    let start = 1_700_000_000_000_u64;
    let rows: Vec<(u64, usize)> = (0..450).map(|n| (start + n * 100, 3)).collect();
    let hold = |at: u64| format!("{}", humantime::format_rfc3339(SystemTime::UNIX_EPOCH + Duration::from_millis(at)));
    let rule = format!(
        "[[service.rule]]\nname = \"night\"\nclients = [\"credit-card\"]\nhold = true\nfrom = {}\nuntil = {}\n",
        hold(start + 30_000),
        hold(start + 60_000)
    );
    let longest = |rule: &str| {
        let service = service("[\"key\"]", &format!("[[service.source]]\ntopic = \"in\"\n{rule}"));
        let outcome = job(trace(&rows), service).simulate(SHAPE, 1_000).unwrap();
        (outcome.clients[0].admitted, outcome.clients[0].delay_seconds.max.unwrap_or_default())
    };
    let (admitted, waited) = longest(&rule);
    // The first two cycles are not counted.
    assert!(admitted == 250 && (29.9..30.2).contains(&waited), "{admitted} admitted, {waited} s at most");
    assert!(longest("").1 < 0.2);
}

/// The rule's capacity was simulated under the name of each that was tried, and its shadow mode let no record wait.
#[test]
fn no_rule_sets_the_capacity_that_is_tried_or_shadow_mode() {
    let rule = "[[service.rule]]\nname = \"r\"\nservice = true\ncapacity = 1000\nenforce = false\n";
    let with_rule = service("[\"key\"]", &format!("[[service.source]]\ntopic = \"in\"\n{rule}"));
    let simulate = |tried, capacity| {
        let outcome = with(capacity, steady(), |service| {
            service.policy.rules = with_rule.policy.rules.clone();
            leave_out(service, tried);
        });
        (outcome.total.delayed > 0, outcome.largest_window > 100)
    };
    assert_eq!([simulate(true, 100), simulate(true, 2_000)], [(true, false), (false, true)]);
    assert_eq!(simulate(false, 100), (false, true), "as configured, the rule's capacity holds");
    assert_eq!(job(steady(), with_rule).sweep(None).unwrap()[0].capacity, 1_000, "it is shown, too");
}

#[test]
fn hashed_clients_keep_their_settings_and_get_their_names_back() {
    let contents = Contents { hashed_ids: true, partitions: vec![TracedPartition::default()], ..Contents::default() };
    let mut writer = TraceWriter::new(Vec::new(), contents).unwrap();
    let clients = [writer.client("a"), writer.client("b"), ANONYMOUS];
    for n in 0..3_000 {
        let record = TraceRecord { at_ms: n, client: clients[n as usize % 3], ..TraceRecord::default() };
        writer.push(record).unwrap();
    }
    let outcome = with(10_000, TraceSource::Memory(writer.finish().unwrap().0.into()), |service| {
        let limit = Limit { rate: NonZeroU32::MIN, per: Duration::from_secs(1), burst: NonZeroU32::MIN };
        let client = ClientPolicy { name: "a".to_owned(), weight: Weight::ONE, limits: vec![limit] };
        (service.policy.clients, service.policy.mode) = (vec![client], Mode::Reject);
    });
    let facts = |client: &ClientResult| (client.name.clone(), client.rejected.keys().copied().collect::<Vec<_>>());
    let found: Vec<_> = outcome.clients.iter().map(facts).collect();
    let named = |name: &str, reasons: &[&'static str]| (name.to_owned(), reasons.to_vec());
    assert_eq!(found[0], named("(no id)", &["anonymous"]));
    assert_eq!(found[1], named("a", &["client_limit"]));
    assert_eq!(found[2], named(&crate::trace_file::named("b", true), &[]));
}

#[test]
fn retried_records_can_be_left_out() {
    let rows: Vec<_> = (0..300).map(|n| (n * 10, n as usize % 3)).collect();
    let mut job = job(trace(&rows), roomy());
    job.options.warm_up = 0;
    let records = |job: &Job| job.simulate(SHAPE, 1_000).unwrap().total.records;
    assert_eq!(records(&job), 300);
    job.options.drop_retried = true;
    assert_eq!(records(&job), 200);
}

/// A cycle later, an hour later and a day later: the time between two records costs no more than its cycles.
#[test]
fn the_first_cycles_are_not_counted_and_silence_is_skipped() {
    let rows = [0, 9_000, 19_999, 20_000, 3_600_000, 86_400_000].map(|at| (1_000_000 + at, 0));
    let job = job(trace(&rows), roomy());
    let outcome = job.simulate(SHAPE, 1_000).unwrap();
    assert_eq!((outcome.total.records, outcome.total.admitted, outcome.clients.len()), (3, 3, 1));
    assert_eq!(job.largest_window().unwrap(), 2);
}

/// Two clients send 100 records a second each to a capacity of 100; rejected records come back. Each record ends once.
#[test]
fn rejected_records_come_back_and_end_once() {
    let simulate = |retry: Option<RetryPolicy>, jobs: usize| {
        let mut service = roomy();
        service.policy.cycle = Duration::from_secs(1);
        let mut job = job(steady(), service);
        job.senders = job.senders.with_retries(retry, |_| None);
        (job.options.warm_up, job.options.drop_retried, job.jobs) = (0, true, NonZeroUsize::new(jobs).unwrap());
        job.rules = vec![Rules { mode: Mode::Reject, ..SHAPE }, SHAPE];
        job.sweep(Some(&Capacities(vec![100, 150]))).unwrap().into_iter().map(|point| point.outcome).collect::<Vec<_>>()
    };
    let second = Duration::from_secs(1);
    let retry = RetryPolicy { backoff: second, max_backoff: 10 * second, attempts: 4 };
    let (without, with) = (simulate(None, 1), simulate(Some(retry), 1));
    assert_eq!(with, simulate(Some(retry), 3), "the number of threads does not matter");
    let (without, with) = (&without[0], &with[0]);
    for outcome in [without, with] {
        let total = &outcome.total;
        assert_eq!((total.records, total.admitted + total.rejected_total()), (2_000, 2_000), "{total:?}");
        assert!(outcome.largest_window <= 100);
    }
    assert_eq!(without.total.retries, 0);
    // The trace ends after ten seconds; for seven more, records come back to a service that has room for them.
    assert!(with.total.admitted > without.total.admitted + 300, "{with:?}");
    // A record that was rejected for good came back three times.
    assert!(with.total.retries >= 3 * with.total.rejected_total(), "{with:?}");
    let max = with.total.delay_seconds.max.unwrap();
    assert!((7.0..7.1).contains(&max), "a fourth attempt comes 1 + 2 + 4 s after the first: {max}");
}

/// The time in the service adds to the delay before it.
#[test]
fn a_slow_service_takes_longer_than_the_throttle() {
    let simulate = |rate: Option<u32>, capacity: u64| {
        let mut service = roomy();
        service.policy.cycle = Duration::from_secs(1);
        let mut job = job(steady(), service);
        job.options.warm_up = 0;
        job.options.service = rate.map(|rate| ServiceModel { rate, knee: None });
        job.simulate(SHAPE, capacity).unwrap()
    };
    let (slow, none) = (simulate(Some(100), 200), simulate(None, 200));
    let wait = slow.service.unwrap().wait_seconds.max.unwrap();
    assert_near(wait, 10.0, "2 000 records in ten seconds, at 100 a second");
    assert_eq!((slow.total.delay_seconds, none.total.finish_seconds), (none.total.delay_seconds, None));
    let shaped = simulate(Some(100), 100);
    // The bucket lets two commit intervals' worth through at once.
    assert!(shaped.service.unwrap().wait_seconds.max.unwrap() <= 0.2, "{:?}", shaped.service);
    // The client feels the same: the record waits before the service instead of in it.
    let finish = |outcome: &Outcome| outcome.total.finish_seconds.unwrap().max.unwrap();
    assert_near(finish(&shaped), finish(&slow), "the end");
}

/// The report of a live run with the numbers of a simulation, but for a part more of each client's p99.
fn report_of(outcome: &Outcome, more: f64) -> String {
    let client = |client: &ClientResult| {
        let (p50, p99) = (client.delay_seconds.p50.unwrap(), client.delay_seconds.p99.unwrap());
        serde_json::json!({
            "name": client.name, "sent": client.records, "rejected": client.rejected,
            "delay_seconds": { "p50": p50, "p99": p99 * (1.0 + more) },
        })
    };
    serde_json::json!({
        "service": { "mode": "shape", "enforce": true, "capacity": 2_500 },
        "window": { "most_admitted": outcome.largest_window + 20, "allowed": 2_525 },
        "clients": outcome.clients.iter().map(client).collect::<Vec<_>>(),
    })
    .to_string()
}

#[test]
fn a_live_run_agrees_within_bounds_and_belongs_to_one_policy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    let outcome = job(campaign(), roomy()).simulate(SHAPE, 2_500).unwrap();
    let differing = |more: f64| {
        std::fs::write(&path, report_of(&outcome, more)).unwrap();
        let compared = LiveRun::read(&path, SHAPE, 2_500, true).unwrap().compare(&outcome);
        assert_eq!(compared.len(), 4 * NAMES.len() + 1);
        let differing = compared.into_iter().filter(|one| !one.agrees);
        differing.map(|one| (one.client.unwrap(), one.what)).collect::<Vec<_>>()
    };
    assert_eq!(differing(0.05), []);
    // The other clients wait for less than a second, of which a tenth is less than 200 ms.
    assert_eq!(differing(0.1), [("credit-card".to_owned(), "p99")]);
    let other = LiveRun::read(&path, SHAPE, 2_000, true).unwrap_err().to_string();
    assert!(
        other.contains("mode shape, capacity 2500, enforce = true: the configuration has mode shape, capacity 2000")
    );
    std::fs::write(&path, "{\"service\": 1}").unwrap();
    let damaged = LiveRun::read(&path, SHAPE, 2_500, true).unwrap_err().to_string();
    assert!(damaged.contains("is no report of `watermaster load --output json`"), "{damaged}");
}
