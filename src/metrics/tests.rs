mod docs;
mod rules;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use strum::VariantNames as _;
use watermaster_api::{ChangeView, ClientGroupView};
use watermaster_core::policy::{GroupPolicy, Mode};
use watermaster_core::{delays::Histogram, reason::Reason, units::Weight};
use watermaster_kafka::dead_letters::Unread;

use super::table::MetricKind;
use super::*;
use crate::services::ServiceHandle;
use crate::snapshot::{ClientSnapshot, Counts, OwnLimit, PartitionSnapshot};

/// The samples of a scrape: metric name and labels as Prometheus reads them, and the value.
type Samples = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// Reads the text format as strictly as Prometheus: HELP and TYPE before the samples, no series twice.
fn parse(text: &str) -> (Samples, BTreeMap<String, String>) {
    let mut samples = Samples::new();
    let mut types = BTreeMap::new();
    let mut helps = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let name = rest.split(' ').next().unwrap();
            assert!(helps.insert(name.to_owned()), "HELP twice: {name}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(helps.contains(name), "no HELP before TYPE {name}");
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "TYPE twice: {name}");
        } else {
            let (name, labels, value) = parse_sample(line);
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix).filter(|bare| types.contains_key(*bare)))
                .unwrap_or(&name);
            assert!(types.contains_key(family), "no TYPE before {line}");
            assert!(samples.insert((name, labels), value).is_none(), "series twice: {line}");
        }
    }
    (samples, types)
}

fn parse_sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    while let Some(inner) = rest.strip_prefix(['{', ',']) {
        let (label, after) = inner.split_once("=\"").unwrap();
        let (value, after) = unescape(after);
        assert!(labels.insert(label.to_owned(), value).is_none(), "label twice: {line}");
        rest = after.strip_prefix('}').unwrap_or(after);
    }
    (name.to_owned(), labels, rest.strip_prefix(' ').unwrap().parse().unwrap())
}

/// Returns a label's value up to its closing quote, and the rest of the text.
fn unescape(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return (value, &text[i + 1..]),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped @ ('\\' | '"'))) => value.push(escaped),
                other => panic!("unknown escape {other:?} in {text}"),
            },
            c => value.push(c),
        }
    }
    panic!("no closing quote: {text}");
}

fn client(name: &str, admitted: u64) -> ClientSnapshot {
    ClientSnapshot { name: name.into(), counts: Counts { admitted, ..Default::default() }, ..Default::default() }
}

fn group(name: &str) -> ClientGroupView {
    ClientGroupView { name: name.to_owned(), clients: 2, default_share: 12.5, granted: 20 }
}

fn snapshot(clients: Vec<ClientSnapshot>) -> ServiceSnapshot {
    ServiceSnapshot { clients: clients.into_iter().collect(), ..Default::default() }
}

/// Publishes a service as it is before its engine has started.
fn publish_start(publisher: &mut Publisher) -> SnapshotCell {
    let handle = ServiceHandle::new(&crate::tests::service(Mode::Shape, true));
    publisher.publish(&handle.name, &handle.cell, true);
    handle.cell
}

fn publish_observed(publisher: &mut Publisher, cell: &SnapshotCell, observed: Observed) {
    cell.observed.set(observed.into());
    publisher.publish("kyc", cell, true);
}

/// Returns answers of the brokers with this lag of the target's consumer group.
fn lag(lag: u64) -> Observed {
    let partitions = [("home-loan.kyc".to_owned(), 12)].into();
    let unread = Some(Unread { offsets: lag, oldest_ms: None });
    Observed { partitions, target_lag: Some(("bureau".to_owned(), lag)), unread }
}

fn scrape(publisher: &mut Publisher, snapshot: ServiceSnapshot) -> Samples {
    let cell = SnapshotCell::default();
    cell.set(snapshot);
    publisher.publish("kyc", &cell, true);
    parse(&publisher.render()).0
}

fn sample(samples: &Samples, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    samples.get(&(name.to_owned(), labels)).copied()
}

fn past_change(at: &str) -> PastChange {
    let change = ChangeView {
        key: "service[0].capacity".to_owned(),
        service: Some("kyc".to_owned()),
        from: 2000.into(),
        to: 20_000.into(),
        origin: "a.toml:3".to_owned(),
        doubtful_factor: Some(10.0),
    };
    PastChange { at: at.to_owned(), by: "SIGHUP".to_owned(), change }
}

/// The bug: a change of a rule with many clients was a label of many kilobytes, ten times in each scrape.
#[test]
fn a_long_value_that_changed_is_shortened_and_no_series_comes_twice() {
    let mut publisher = Publisher::new("2.12.1", 10);
    let change = |last: &str| {
        let mut past = past_change("2026-01-01T00:00:07Z");
        past.change.to = format!("{}{last}", "é".repeat(1_000)).into();
        past
    };
    publisher.publish_reload(LastReload::at_start(), String::new(), vec![change("a"), change("b")]);
    let samples = parse(&publisher.render()).0;
    let changes = samples.keys().filter(|(name, _)| name == "watermaster_config_change_timestamp_seconds");
    let values: Vec<&str> = changes.map(|(_, labels)| labels["to"].as_str()).collect();
    assert_eq!(values, [format!("{}…", "é".repeat(256))]);
}

/// The bug: instances of a group counted what the stopped one had last wanted, admitted and read beside their own.
#[test]
fn a_service_that_stopped_keeps_its_counts_and_wants_nothing() {
    let mut publisher = Publisher::new("2.12.1", 10);
    let levels = Levels { wants: 5, granted: 4, backlog: 3, ..Levels::default() };
    let mut shown = snapshot(vec![ClientSnapshot { levels, ..client("a", 7) }]);
    shown.partitions = vec![PartitionSnapshot { topic: "a.kyc".into(), unread: 9, ..Default::default() }];
    (shown.figures.window_admitted, shown.group.figures.hold, shown.up) = (6, 8, true);
    let cell = SnapshotCell::default();
    cell.set(shown);
    cell.show_stopped("fenced".to_owned());
    publisher.publish("kyc", &cell, true);
    let samples = parse(&publisher.render()).0;
    let admitted = [("service", "kyc"), ("client", "a"), ("decision", "admitted")];
    assert_eq!(sample(&samples, "watermaster_records_total", &admitted), Some(7.0));
    for name in ["watermaster_wants_units", "watermaster_granted_units", "watermaster_backlog_records"] {
        assert_eq!(sample(&samples, name, &[("service", "kyc"), ("client", "a")]), Some(0.0), "{name}");
    }
    for name in ["watermaster_window_admitted_units", "watermaster_group_hold_units", "watermaster_service_up"] {
        assert_eq!(sample(&samples, name, &[("service", "kyc")]), Some(0.0), "{name}");
    }
    let partition = [("service", "kyc"), ("topic", "a.kyc"), ("partition", "0")];
    assert_eq!(sample(&samples, "watermaster_unread_records", &partition), None);
}

#[test]
fn the_table_and_the_scrape_name_the_same_metrics_with_the_same_labels() {
    let mut publisher = Publisher::new("2.12.1", 10);
    publish_start(&mut publisher);
    let mut shown = snapshot(vec![client("a", 1)]);
    shown.partitions = vec![PartitionSnapshot { topic: "a.kyc".into(), ..Default::default() }];
    shown.sources.retention = vec![("a.kyc".into(), std::time::Duration::from_secs(60))];
    shown.throttle.groups = ["", "cards"].map(group).into();
    let cell = SnapshotCell::default();
    cell.set(shown);
    let (found, signal_age) = (Some(70), Some(std::time::Duration::from_secs(1)));
    let pace = PaceView { found, rate: Some(60), signal_age, ..PaceView::default() };
    cell.pace.set(Some(pace.into()));
    publish_observed(&mut publisher, &cell, lag(7));
    publisher.services.get_mut("kyc").unwrap().open = [Some(500), Some(20)];
    rules::publish_known(&mut publisher);
    // The newer one of two equal changes has the series.
    let changes = vec![past_change("2026-01-01T00:00:07Z"), past_change("2026-01-01T00:00:00Z")];
    publisher.publish_reload(LastReload::at_start(), "hash".to_owned(), changes);
    let (samples, types) = parse(&publisher.render());

    let expected: BTreeMap<_, _> = TABLE.iter().map(|m| (m.name.to_owned(), m.kind.into_str().to_owned())).collect();
    assert_eq!(types, expected);
    for metric in TABLE {
        let name = match metric.kind {
            MetricKind::Histogram => format!("{}_count", metric.name),
            _ => metric.name.to_owned(),
        };
        let expected: BTreeSet<String> = metric.labels.iter().map(|label| (*label).to_owned()).collect();
        let mut found = samples.keys().filter(|(found, _)| *found == name).peekable();
        assert!(found.peek().is_some(), "{name} is not rendered");
        for (_, labels) in found {
            assert_eq!(labels.keys().cloned().collect::<BTreeSet<_>>(), expected, "{name}");
        }
    }
    let change = samples.iter().find(|((name, _), _)| name == "watermaster_config_change_timestamp_seconds");
    let ((_, labels), at) = change.unwrap();
    assert_eq!((at % 60.0, &*labels["from"], &*labels["to"]), (7.0, "2000", "20000"));
}

#[test]
fn dead_letters_have_no_series_while_they_are_unknown_and_no_age_if_there_is_none() {
    let mut publisher = Publisher::new("", 10);
    let cell = publish_start(&mut publisher);
    let shown = |publisher: &mut Publisher, unread| {
        publish_observed(publisher, &cell, Observed { unread, ..lag(0) });
        let samples = parse(&publisher.render()).0;
        let names = ["watermaster_dead_letter_unread_offsets", "watermaster_dead_letter_oldest_seconds"];
        names.map(|name| sample(&samples, name, &[("service", "kyc")]))
    };
    assert_eq!(shown(&mut publisher, None), [None, None]);
    assert_eq!(shown(&mut publisher, Some(Unread::default())), [Some(0.0), Some(0.0)]);
    // A record of the first second of 1970.
    let [offsets, age] = shown(&mut publisher, Some(Unread { offsets: 3, oldest_ms: Some(1) }));
    assert!(offsets == Some(3.0) && age > Some(1.7e9), "{offsets:?} {age:?}");
}

#[test]
fn every_series_exists_at_0_before_the_first_snapshot() {
    let mut publisher = Publisher::new("2.12.1", 10);
    publish_start(&mut publisher);
    let (samples, _) = parse(&publisher.render());
    for client in ["home-loan", "_other"] {
        let with = |more: (&'static str, &'static str)| [("service", "kyc"), ("client", client), more];
        for reason in Reason::ALL {
            let labels = with(("reason", reason.into_str()));
            assert_eq!(sample(&samples, "watermaster_rejected_total", &labels), Some(0.0));
            assert_eq!(sample(&samples, "watermaster_shadow_rejected_total", &labels), Some(0.0));
        }
        let labels = with(("decision", "admitted"));
        assert_eq!(sample(&samples, "watermaster_records_total", &labels), Some(0.0));
    }
    for cause in watermaster_core::throttle::Cause::VARIANTS {
        let labels = [("service", "kyc"), ("cause", cause)];
        assert_eq!(sample(&samples, "watermaster_allocations_total", &labels), Some(0.0));
    }
    let retention = [("service", "kyc"), ("topic", "home-loan.kyc")];
    assert_eq!(sample(&samples, "watermaster_source_retention_seconds", &retention), Some(0.0));
    assert_eq!(sample(&samples, "watermaster_delay_seconds_count", &[("service", "kyc")]), Some(0.0));
    assert_eq!(
        sample(&samples, "watermaster_build_info", &[("version", env!("CARGO_PKG_VERSION")), ("librdkafka", "2.12.1")]),
        Some(1.0)
    );
}

#[test]
fn groups_of_clients_have_their_grants_and_shares() {
    let mut publisher = Publisher::new("", 10);
    let names = ["watermaster_client_group_granted_units", "watermaster_client_group_default_share_units"];
    let of =
        |samples: &Samples, group| names.map(|name| sample(samples, name, &[("service", "kyc"), ("group", group)]));
    let mut service = crate::tests::service(Mode::Shape, true);
    service.policy.groups = vec![GroupPolicy {
        name: "cards".to_owned(),
        weight: Weight::ONE,
        limits: Vec::new(),
        hold: false,
        clients: Vec::new(),
    }];
    let handle = ServiceHandle::new(&service);
    publisher.publish(&handle.name, &handle.cell, true);
    let (samples, _) = parse(&publisher.render());
    assert_eq!((of(&samples, "cards"), of(&samples, "_unlisted")), ([Some(0.0); 2], [Some(0.0); 2]));
    let with = |groups: &[&str]| {
        let mut shown = snapshot(Vec::new());
        shown.throttle.groups = groups.iter().map(|name| group(name)).collect();
        shown
    };
    let samples = scrape(&mut publisher, with(&["", "cards"]));
    assert_eq!(of(&samples, "cards"), [Some(20.0), Some(12.5)]);
    let samples = scrape(&mut publisher, with(&[""]));
    assert_eq!(of(&samples, "_unlisted"), [None; 2], "only clients are configured");
    // Rules make twelve groups of the names in records.
    let made: Vec<String> = (10..22).map(|number| format!("made-{number}")).collect();
    let mut shown = with(&["", "cards"]);
    shown.throttle.groups.extend(made.iter().map(|name| group(name)));
    shown.throttle.made_groups = made.len();
    let samples = scrape(&mut publisher, shown);
    assert_eq!((of(&samples, "cards"), of(&samples, "made-19")), ([Some(20.0), Some(12.5)], [Some(20.0), Some(12.5)]));
    assert_eq!((of(&samples, "made-20"), of(&samples, "_other")), ([None; 2], [Some(40.0), Some(25.0)]));
    // A group with the name of another label would have its series twice.
    let samples = scrape(&mut publisher, with(&["", "_other", "_unlisted"]));
    assert_eq!(
        (of(&samples, "_unlisted"), of(&samples, "_other")),
        ([Some(20.0), Some(12.5)], [Some(40.0), Some(25.0)])
    );
}

#[test]
fn the_series_of_a_removed_service_vanish() {
    let mut publisher = Publisher::new("", 10);
    publish_start(&mut publisher);
    publisher.publish("bureau", &SnapshotCell::default(), true);
    publisher.keep_only(|name, _| name == "bureau");
    let (samples, _) = parse(&publisher.render());
    let services: BTreeSet<&str> =
        samples.keys().filter_map(|(_, labels)| labels.get("service").map(String::as_str)).collect();
    assert_eq!(services, BTreeSet::from(["bureau"]));
}

/// The bug: records of clients without a label were missing until there were as many as those that all others had sent
/// before.
#[test]
fn a_service_that_came_back_between_two_scrapes_counts_anew() {
    let mut publisher = Publisher::new("", 1);
    for [labelled, other] in [[100, 5], [1, 2]] {
        let cell = SnapshotCell::default();
        cell.set(snapshot(vec![client("a", labelled), client("b", other)]));
        publisher.keep_only(|_, known| known.is(&cell));
        publisher.publish("kyc", &cell, true);
        let samples = parse(&publisher.render()).0;
        let of = |client| {
            let labels = [("service", "kyc"), ("client", client), ("decision", "admitted")];
            sample(&samples, "watermaster_records_total", &labels)
        };
        assert_eq!(["a", "_other"].map(of), [labelled, other].map(|count| Some(count as f64)));
    }
}

#[test]
fn a_revoked_partition_is_missing_from_the_next_scrape() {
    let mut publisher = Publisher::new("", 10);
    let mut shown = snapshot(Vec::new());
    shown.partitions = vec![PartitionSnapshot { topic: "t".into(), partition: 3, lag: 7, unread: 4, held: 2 }];
    let labels = [("service", "kyc"), ("topic", "t"), ("partition", "3")];
    let samples = scrape(&mut publisher, shown);
    assert_eq!(sample(&samples, "watermaster_consumer_lag_records", &labels), Some(7.0));
    assert_eq!(sample(&samples, "watermaster_unread_records", &labels), Some(4.0));
    assert_eq!(sample(&samples, "watermaster_held_records", &labels), Some(2.0));
    let samples = scrape(&mut publisher, snapshot(Vec::new()));
    assert_eq!(sample(&samples, "watermaster_consumer_lag_records", &labels), None);
}

#[test]
fn a_resumed_partition_counts_0() {
    let mut publisher = Publisher::new("", 10);
    let mut shown = snapshot(Vec::new());
    shown.sources.paused = [0, 0, 2, 0, 1];
    let labels = [("service", "kyc"), ("reason", "map")];
    let samples = scrape(&mut publisher, shown);
    assert_eq!(sample(&samples, "watermaster_paused_partitions", &labels), Some(2.0));
    let waiting = [("service", "kyc"), ("reason", "schema")];
    assert_eq!(sample(&samples, "watermaster_paused_partitions", &waiting), Some(1.0));
    let samples = scrape(&mut publisher, snapshot(Vec::new()));
    assert_eq!(sample(&samples, "watermaster_paused_partitions", &labels), Some(0.0));
}

#[test]
fn histograms_are_cumulative_and_keep_their_sum() {
    let mut publisher = Publisher::new("", 10);
    let mut shown = snapshot(Vec::new());
    let Histogram { counts, sums } = &mut shown.throttle.totals.delays;
    (counts[0], sums[0]) = (3, 0.003);
    (counts[5], sums[5]) = (2, 0.18);
    (counts[18], sums[18]) = (1, 4_000.0);
    let samples = scrape(&mut publisher, shown);
    let bucket = |le| sample(&samples, "watermaster_delay_seconds_bucket", &[("service", "kyc"), ("le", le)]);
    assert_eq!(["0.001", "0.05", "0.1", "1800", "+Inf"].map(bucket), [3.0, 3.0, 5.0, 5.0, 6.0].map(Some));
    assert_eq!(sample(&samples, "watermaster_delay_seconds_sum", &[("service", "kyc")]), Some(4_000.183));
    assert_eq!(sample(&samples, "watermaster_delay_seconds_count", &[("service", "kyc")]), Some(6.0));
}

/// An alert needs its bucket from the first scrape on, at the documented bound.
#[test]
fn buckets_match_the_table_before_and_after_the_first_snapshot() {
    let mut publisher = Publisher::new("", 10);
    publish_start(&mut publisher);
    let before = parse(&publisher.render()).0;
    let mut counted = Histogram::default();
    (counted.counts, counted.sums) = (counted.counts.map(|_| 1), counted.sums.map(|_| 1.0));
    let mut shown = snapshot(Vec::new());
    shown.throttle.totals.delays = counted.clone();
    let delivery = &mut shown.engine.delivery;
    (delivery.end_to_end, delivery.round) = (counted.clone(), counted.clone());
    delivery.round_phases.fill(counted);
    let after = scrape(&mut publisher, shown);
    for metric in TABLE.iter().filter(|metric| metric.kind == MetricKind::Histogram) {
        let name = format!("{}_bucket", metric.name);
        let bound = |bound: &f64| bound.to_string();
        let expected: BTreeSet<String> = metric.buckets().iter().map(bound).chain(["+Inf".to_owned()]).collect();
        for samples in [&before, &after] {
            let buckets = samples.keys().filter(|(found, _)| *found == name);
            assert_eq!(buckets.map(|(_, labels)| labels["le"].clone()).collect::<BTreeSet<_>>(), expected, "{name}");
        }
    }
}

#[test]
fn delays_of_clients_have_buckets_of_their_own() {
    let mut publisher = Publisher::new("", 1);
    let delayed = |name: &str, millis: &[u64]| {
        let mut delayed = client(name, 2);
        for &millis in millis {
            delayed.counts.delays.record(std::time::Duration::from_millis(millis));
            delayed.shadow.delays.record(std::time::Duration::from_millis(2 * millis));
        }
        delayed
    };
    let clients = vec![delayed("a", &[100, 4_200]), delayed("b", &[1_000_000]), delayed("c", &[300])];
    let samples = scrape(&mut publisher, snapshot(clients));
    let bucket = |name: &str, client, le| {
        sample(&samples, &format!("{name}_bucket"), &[("service", "kyc"), ("client", client), ("le", le)])
    };
    let of = |name, client| ["0.1", "0.5", "5", "10", "900", "+Inf"].map(|le| bucket(name, client, le).unwrap());
    assert_eq!(of("watermaster_client_delay_seconds", "a"), [1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
    assert_eq!(of("watermaster_client_delay_seconds", "_other"), [0.0, 1.0, 1.0, 1.0, 1.0, 2.0]);
    assert_eq!(of("watermaster_shadow_client_delay_seconds", "a"), [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    let sum = |name, client| sample(&samples, name, &[("service", "kyc"), ("client", client)]);
    assert_eq!(sum("watermaster_client_delay_seconds_sum", "a"), Some(4.3));
    assert_eq!(sum("watermaster_client_delay_seconds_sum", "_other"), Some(1_000.3));
}

/// The ages of several clients are not added up, their parts of the capacity are.
#[test]
fn other_clients_show_their_oldest_record_and_the_sum_of_their_use() {
    let mut publisher = Publisher::new("", 0);
    let at = |oldest_seconds, admitted_last| {
        let levels = Levels { oldest_seconds, admitted_last, ..Levels::default() };
        ClientSnapshot { levels, ..client(&format!("client-{oldest_seconds}"), 0) }
    };
    let of = |samples: &Samples, name| sample(samples, name, &[("service", "kyc"), ("client", "_other")]);
    let mut shown = snapshot(vec![at(2.5, 30), at(4.5, 50)]);
    shown.figures.capacity = 100;
    let samples = scrape(&mut publisher, shown.clone());
    assert_eq!(of(&samples, "watermaster_client_oldest_seconds"), Some(4.5));
    assert_eq!(of(&samples, "watermaster_client_used_ratio"), Some(0.8));
    shown.figures.capacity = 50;
    let lowered = scrape(&mut publisher, shown);
    assert_eq!(of(&lowered, "watermaster_client_used_ratio"), Some(1.0));
}

#[test]
fn a_lag_that_is_not_known_has_no_series() {
    let mut publisher = Publisher::new("", 10);
    let cell = publish_start(&mut publisher);
    let group = [("service", "kyc"), ("consumer_group", "bureau")];
    let topic = [("service", "kyc"), ("topic", "home-loan.kyc")];
    let shown = |publisher: &Publisher| {
        let samples = parse(&publisher.render()).0;
        let lag = sample(&samples, "watermaster_target_lag_records", &group);
        (lag, sample(&samples, "watermaster_source_partitions", &topic))
    };
    assert_eq!(shown(&publisher), (None, Some(0.0)));
    publish_observed(&mut publisher, &cell, lag(7));
    assert_eq!(shown(&publisher), (Some(7.0), Some(12.0)));
    publish_observed(&mut publisher, &cell, Observed { target_lag: None, ..lag(0) });
    assert_eq!(shown(&publisher), (None, Some(12.0)));
}

#[test]
fn processor_time_has_fractions() {
    let cpu = || {
        let samples = parse(&Publisher::new("", 0).render()).0;
        sample(&samples, "process_cpu_seconds_total", &[]).unwrap()
    };
    let (before, began) = (cpu(), std::time::Instant::now());
    let mut after = before;
    while after == before {
        assert!(began.elapsed().as_secs() < 60, "the time does not grow: {before}");
        after = cpu();
    }
    assert!(after > before && after.fract() > 0.0 && after - before < 1.0, "{before}, {after}");
}

#[test]
fn the_shadow_backlog_has_metrics_of_its_own() {
    let mut publisher = Publisher::new("", 10);
    let mut observed = client("a", 9);
    (observed.shadow.delayed, observed.levels.shadow_backlog) = (7, 3);
    let samples = scrape(&mut publisher, snapshot(vec![observed]));
    let of = |name| sample(&samples, name, &[("service", "kyc"), ("client", "a")]);
    assert_eq!(of("watermaster_shadow_delayed_total"), Some(7.0));
    assert_eq!(of("watermaster_shadow_backlog_records"), Some(3.0));
    assert_eq!([of("watermaster_delayed_total"), of("watermaster_backlog_records")], [Some(0.0); 2]);
}

#[test]
fn a_client_without_a_limit_shows_infinity() {
    let mut publisher = Publisher::new("", 10);
    publish_start(&mut publisher);
    let limit = |samples: &Samples, client| {
        sample(samples, "watermaster_client_limit_units", &[("service", "kyc"), ("client", client)])
    };
    assert_eq!(limit(&parse(&publisher.render()).0, "home-loan"), Some(f64::INFINITY));
    let mut limited = client("home-loan", 0);
    limited.levels.limit = Some(OwnLimit { most: 600, pace: 600.0 });
    let samples = scrape(&mut publisher, snapshot(vec![client("car-loan", 0), limited]));
    let limits = ["home-loan", "car-loan", "credit-card", "_other"].map(|client| limit(&samples, client));
    assert_eq!(limits, [600.0, f64::INFINITY, f64::INFINITY, f64::INFINITY].map(Some));
}

#[test]
fn one_mode_has_the_value_1() {
    let mut publisher = Publisher::new("", 10);
    let modes = |samples: &Samples| {
        ["shape", "reject"].map(|mode| sample(samples, "watermaster_mode", &[("service", "kyc"), ("mode", mode)]))
    };
    for (mode, expected) in [("reject", [Some(0.0), Some(1.0)]), ("shape", [Some(1.0), Some(0.0)])] {
        let mut shown = snapshot(Vec::new());
        shown.figures.mode = mode.into();
        assert_eq!(modes(&scrape(&mut publisher, shown)), expected);
    }
}

#[test]
fn every_cause_of_an_allocation_is_counted() {
    let mut publisher = Publisher::new("", 10);
    let mut shown = snapshot(Vec::new());
    shown.throttle.allocations = [1, 2, 3, 4, 0, 0, 0];
    let samples = scrape(&mut publisher, shown);
    let count = |cause| sample(&samples, "watermaster_allocations_total", &[("service", "kyc"), ("cause", cause)]);
    let causes = ["cycle", "new_client", "recall", "reload"].map(count);
    assert_eq!(causes, [1.0, 2.0, 3.0, 4.0].map(Some));
}

#[test]
fn clients_beyond_the_bound_count_as_other() {
    let mut publisher = Publisher::new("", 2);
    let clients = ["a", "b", "c", "d"].map(|name| client(name, 5)).to_vec();
    let samples = scrape(&mut publisher, snapshot(clients));
    let admitted = |client| {
        let labels = [("service", "kyc"), ("client", client), ("decision", "admitted")];
        sample(&samples, "watermaster_records_total", &labels)
    };
    assert_eq!(["a", "b", "c", "_other"].map(admitted), [Some(5.0), Some(5.0), None, Some(10.0)]);
}

#[test]
fn a_client_that_loses_its_label_is_missing_from_the_next_scrape() {
    let mut publisher = Publisher::new("", 1);
    let at = |cycle, real: u64| {
        let real = ClientSnapshot { levels: Levels { wants: 5, ..Default::default() }, ..client("real", real) };
        let mut shown = snapshot(vec![client("once", 1), real]);
        shown.figures.cycle = cycle;
        shown
    };
    let admitted = |samples: &Samples| {
        ["once", "real", "_other"].map(|client| {
            let labels = [("service", "kyc"), ("client", client), ("decision", "admitted")];
            sample(samples, "watermaster_records_total", &labels)
        })
    };
    assert_eq!(admitted(&scrape(&mut publisher, at(0, 5))), [Some(1.0), None, Some(5.0)]);
    assert_eq!(admitted(&scrape(&mut publisher, at(2, 15))), [None, Some(0.0), Some(16.0)]);
    assert_eq!(admitted(&scrape(&mut publisher, at(3, 20))), [None, Some(5.0), Some(16.0)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Ids are foreign input: with any ids the scrape stays valid, and each id keeps its own series.
    #[test]
    fn any_client_id_survives_the_text_format(names in prop::collection::btree_set(r#"[\\"na\n{},= é]{1,6}"#, 1..20)) {
        let mut publisher = Publisher::new("", 100);
        let clients = names.iter().enumerate().map(|(i, name)| client(name, i as u64)).collect();
        let samples = scrape(&mut publisher, snapshot(clients));
        for (i, name) in names.iter().enumerate() {
            let labels = [("service", "kyc"), ("client", name), ("decision", "admitted")];
            prop_assert_eq!(sample(&samples, "watermaster_records_total", &labels), Some(i as f64));
        }
    }
}
