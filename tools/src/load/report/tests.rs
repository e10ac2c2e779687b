//! Reports of example accounts.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::load::account::{ArrivalTime, tests::arrived, tests::sent};
use crate::load::plan::tests::{plan, service};

const CLIENTS: &str = "name = \"a <b> & c\\u0001\"\ndescription = \"what's \\\"new\\\"\"\n\
    [[client]]\nid = \"a\"\n[[client.phase]]\nkind = \"steady\"\nrate = 10\nfor = \"10s\"\n\
    [[client]]\nid = \"<b>\"\n[[client.phase]]\nkind = \"steady\"\nrate = 10\nfor = \"10s\"\n";

fn kafka() -> Kafka {
    crate::cli::settings(include_str!("../../../../config/watermaster.minimal.toml")).kafka
}

/// Builds a service that takes 1000 records in 10 s.
fn shaped() -> Service {
    service("[\"key\"]", "[[service.source]]\ntopic = \"in\"\n")
}

fn facts(ended: Ended) -> Facts {
    let ten = Duration::from_secs(10);
    Facts {
        run: "r1".to_owned(),
        started_us: 1_700_000_000_000_000,
        ended,
        sending: ten,
        total: ten * 2,
        unknown: None,
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Builds an account of records: client, send time, delay of the output, reason of a rejection; times in milliseconds.
fn account_of(records: &[(usize, u64, Option<u64>, Option<&str>)], appended: bool) -> Account {
    let mut account = Account::new(plan(CLIENTS));
    for (number, (client, at, after, reason)) in records.iter().enumerate() {
        account.apply(&sent(*client, 1, ms(*at)));
        if let Some(after) = after {
            let read = ms(at + after);
            account.apply(&arrived(number, *reason, ArrivalTime { appended: appended.then_some(read), read }));
        }
    }
    account
}

fn some() -> Account {
    account_of(
        &[
            (0, 0, Some(100), None),
            (0, 1_000, Some(2_000), None),
            (1, 500, Some(10), Some("queue_full")),
            (1, 9_000, None, None),
        ],
        true,
    )
}

fn report(account: &Account, service: &Service, ended: Ended) -> LoadReport {
    LoadReport::new(account, &kafka(), service, facts(ended))
}

#[test]
fn the_object_is_as_documented() {
    let report = serde_json::to_value(report(&some(), &shaped(), Ended::NoProgress)).unwrap();
    assert_eq!(report["ok"], true);
    assert_eq!(report["ended"], "no_progress");
    assert_eq!(report["started"], "2023-11-14T22:13:20Z");
    assert_eq!(report["window"]["promise"], "kept");
    assert_eq!(report["window"]["by"], "append_time");
    // Burst of 10, one tenth of a second at 100/s and 25 ms more.
    assert_eq!(report["window"]["allowed"], 1000 + 20 + 13);
    let totals = &report["totals"];
    assert_eq!((&totals["sent"], &totals["admitted"], &totals["waiting"]), (&json!(4), &json!(2), &json!(1)));
    assert_eq!(report["clients"][1]["rejected"], json!({"queue_full": 1}));
    assert_eq!(report["clients"][0]["delay_seconds"]["max"], 2.0);
    assert_eq!(report["series"]["bucket_seconds"], 0.25);
    assert_eq!(report["series"]["clients"][0]["sent"][4], 1);
    let documented = include_str!("../../../../docs/load.md");
    for (key, _) in report.as_object().unwrap() {
        assert!(documented.contains(&format!("`{key}`")), "docs/load.md lacks {key}");
    }
    for (key, _) in totals.as_object().unwrap() {
        assert!(documented.contains(&format!("`{key}`")), "docs/load.md lacks {key}");
    }
}

#[test]
fn a_broken_promise_is_a_problem_and_a_slow_reader_is_not() {
    let mut service = shaped();
    service.policy.capacity = 1;
    let many: Vec<_> = (0..100).map(|n| (0, n, Some(5), None)).collect();
    let by_append = report(&account_of(&many, true), &service, Ended::AccountedFor);
    assert_eq!((by_append.window.promise, by_append.ok), (Promise::Broken, false));
    assert!(text(&by_append).contains("THE PROMISE WAS BROKEN"));
    let by_arrival = report(&account_of(&many, false), &service, Ended::AccountedFor);
    assert_eq!((by_arrival.window.promise, by_arrival.ok), (Promise::NotKnown, true));
    service.policy.enforce = false;
    assert_eq!(report(&account_of(&many, true), &service, Ended::AccountedFor).window.promise, Promise::NotGiven);
    assert_eq!(report(&account_of(&many, true), &service, Ended::NotReadBack).window.promise, Promise::NotRead);
}

#[test]
fn a_round_in_reject_mode_may_hold_the_whole_capacity() {
    let mut service = shaped();
    service.policy.mode = Mode::Reject;
    assert_eq!(round(&service.policy), 1_000);
    service.policy.capacity = 1_000_000;
    assert_eq!(round(&service.policy), 10_000);
}

#[test]
fn lost_and_duplicated_records_are_problems() {
    let mut account = some();
    account.lose(3);
    let one = ArrivalTime { appended: Some(ms(1)), read: ms(1) };
    account.apply(&arrived(0, None, one));
    let exactly_once = report(&account, &shaped(), Ended::AccountedFor);
    assert_eq!(exactly_once.problems.len(), 2, "{:?}", exactly_once.problems);
    let kafka = Kafka { delivery: Delivery::AtLeastOnce, ..kafka() };
    let at_least_once = LoadReport::new(&account, &kafka, &shaped(), facts(Ended::AccountedFor));
    assert_eq!((at_least_once.problems.len(), at_least_once.doubts.len()), (1, 1));
}

#[test]
fn the_text_has_a_row_for_each_client_and_one_for_all() {
    let shown = text(&report(&some(), &shaped(), Ended::NoProgress));
    let expected = "\
client sent again admitted rejected waiting adm/s    p50 p95 p99 max
a         2     0        2        0       0     1 100 ms 2 s 2 s 2 s
<b>       2     0        0        1       1     0      -   -   -   -
total     4     0        2        1       1     1 100 ms 2 s 2 s 2 s
";
    assert!(shown.contains(expected), "{shown}");
    assert!(shown.contains("Rejected: 1 queue_full.") && shown.contains("1 still wait"), "{shown}");
    // Without the outcomes, nothing is known about records that wait.
    let sent = report(&some(), &shaped(), Ended::NotReadBack);
    let expected = "\nclient sent again\na         2     0\n<b>       2     0\ntotal     4     0\n";
    assert!(text(&sent).contains(expected), "{}", text(&sent));
    assert!(!html(&sent).contains("waiting"));
}

/// Checks that a page is well-formed, self-contained, and has no NaN or infinity.
fn check(page: &str) {
    let xml = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let document = roxmltree::Document::parse(xml).unwrap_or_else(|error| panic!("{error}\n{page}"));
    for node in document.descendants().filter(|node| node.is_element()) {
        for attribute in node.attributes() {
            let value = attribute.value();
            assert!(!value.contains("NaN") && !value.contains("inf"), "{}: {value}", attribute.name());
        }
        assert!(!["script", "link", "img"].contains(&node.tag_name().name()), "{:?}", node.tag_name());
    }
    assert!(!page.contains("url(") && !page.contains("@import"));
}

#[test]
fn the_page_is_self_contained() {
    let page = html(&report(&some(), &shaped(), Ended::NoProgress));
    check(&page);
    assert_eq!(page.matches("<svg").count(), 4);
    assert!(page.contains("a &#60;b&#62; &#38; c") && page.contains("capacity 100.0/s"), "{page}");
    assert_eq!(html(&report(&some(), &shaped(), Ended::NotReadBack)).matches("<svg").count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_report_is_a_page(
        records in prop::collection::vec(
            (0..2_usize, 0..200_000_u64, prop::option::of(0..90_000_u64), any::<bool>()),
            0..40,
        ),
        appended: bool,
    ) {
        let reason = |rejected: bool| rejected.then_some("queue_full");
        let records: Vec<_> =
            records.into_iter().map(|(client, at, after, out)| (client, at, after, reason(out))).collect();
        let report = report(&account_of(&records, appended), &shaped(), Ended::AccountedFor);
        check(&html(&report));
        prop_assert!(!text(&report).contains("NaN"));
        prop_assert!(!serde_json::to_string(&report).unwrap().contains("NaN"));
    }
}

fn most(length: u64, times: &[u64]) -> u64 {
    busiest(Duration::from_millis(length), times.iter().map(|ms| Duration::from_millis(*ms)))
}

#[test]
fn the_window_is_open_at_its_start() {
    assert_eq!((most(10, &[]), most(10, &[0, 9]), most(10, &[0, 10])), (0, 2, 1));
    assert_eq!(most(10, &[0, 5, 10, 14, 15]), 3);
}

proptest! {
    #[test]
    fn the_busiest_window_is_found(times in prop::collection::vec(0..200_u64, 0..60), length in 1..50_u64) {
        let counted = (0..250).map(|t| times.iter().filter(|&&at| at <= t && at + length > t).count() as u64);
        prop_assert_eq!(most(length, &times), counted.max().unwrap_or(0));
    }
}
