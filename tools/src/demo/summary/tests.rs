//! Summaries of example accounts.

use serde_json::json;

use super::*;
use crate::load::account::{ArrivalTime, tests::arrived, tests::sent};
use crate::load::plan::tests::plan;

/// Builds the accounts of two clients, `car-loan` and `credit-card`, with these outcomes: client, reason of a
/// rejection. Records are delivered after one second.
fn account(outcomes: &[(usize, Option<&str>)]) -> Account {
    let client = |id: &str| format!("[[client]]\nid = {id:?}\n[[client.phase]]\nkind = \"burst\"\nrecords = 9\n");
    let mut account = Account::new(plan(&[client("car-loan"), client("credit-card")].concat()));
    for (number, (client, reason)) in outcomes.iter().enumerate() {
        let at = Duration::from_millis(number as u64);
        account.apply(&sent(*client, 1, at));
        let at = ArrivalTime { appended: None, read: at + Duration::from_secs(1) };
        account.apply(&arrived(number, *reason, at));
    }
    account
}

/// Builds the status that an instance shows for these accounts.
fn status(mode: &str, account: &Account) -> ServiceStatus {
    let client = |at: usize| {
        let counts = &account.clients[at];
        json!({
            "name": account.plan.clients[at].load.id, "wants": 9, "default_share": 50.0, "granted": 50,
            "admitted": counts.admitted, "delayed": 3, "rejected": counts.rejected, "backlog": counts.waiting,
            "lent": 0.0, "borrowed": 0.0, "oldest_seconds": 0.0,
            "shadow": { "admitted": 1, "delayed": 5, "rejected": { "expired": 1 }, "backlog": 0 },
        })
    };
    let service = json!({
        "name": "kyc", "mode": mode, "enforce": true, "capacity": 200, "cycle_seconds": 1.0, "cycle": 9,
        "window_admitted": 180, "window_admitted_max": 200, "ready": true, "trouble": null,
        "clients": [client(0), client(1)],
    });
    serde_json::from_value(service).unwrap()
}

fn summary(mode: &str, outcomes: &[(usize, Option<&str>)], sent_at: &[Vec<Duration>]) -> Summary {
    let account = account(outcomes);
    Summary::new(&status(mode, &account), &account, sent_at, true)
}

fn broken(summary: &Summary) -> Vec<String> {
    let claims = summary.claims.iter();
    claims.filter(|claim| !claim.kept).map(|claim| format!("{}: {}", claim.claim, claim.found)).collect()
}

const NONE_SENT: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];

#[test]
fn the_object_is_as_documented() {
    let outcomes = [(0, None), (1, None), (1, Some("queue_full"))];
    let json = serde_json::to_value(summary("shape", &outcomes, &NONE_SENT)).unwrap();
    let service = &json;
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let expected =
        ["capacity", "claims", "clients", "max_admitted_in_any_cycle", "max_seen_by_reader", "name"].map(str::to_owned);
    assert_eq!(keys(service), expected);
    let expected =
        ["admitted", "backlog", "delay_p99_seconds", "delayed", "name", "rejected", "sent", "sent_above_share"];
    assert_eq!(keys(&service["clients"][1]), expected);
    assert_eq!(service["clients"][1]["rejected"], json!({ "queue_full": 1 }));
    assert_eq!((&service["max_admitted_in_any_cycle"], &service["max_seen_by_reader"]), (&json!(200), &json!(2)));
}

#[test]
fn a_summary_is_settled_when_every_record_is_decided_and_seen() {
    let sent = account(&[(0, None), (1, Some("expired"))]);
    let status = status("shape", &sent);
    assert!(has_decided(&status, &sent) && has_seen(&status, &sent));
    let more = account(&[(0, None), (1, Some("expired")), (1, None)]);
    assert!(!has_decided(&status, &more));
    assert!(!has_seen(&status, &account(&[(0, None)])));
}

#[test]
fn a_rejection_or_a_long_wait_breaks_a_claim_in_shape_mode() {
    assert_eq!(broken(&summary("shape", &[(0, None), (1, Some("expired"))], &NONE_SENT)), Vec::<String>::new());
    let rejected = summary("shape", &[(0, None), (0, Some("expired"))], &NONE_SENT);
    assert_eq!(broken(&rejected), ["no record of car-loan is rejected: 1 rejected"]);
    let account = account(&[(0, None)]);
    let mut short_cycle = status("shape", &account);
    short_cycle.figures.cycle_seconds = 0.5;
    let late = Summary::new(&short_cycle, &account, &NONE_SENT, true);
    assert_eq!(broken(&late), ["99 of 100 records of car-loan wait at most 500 ms: 1 s"]);
}

#[test]
fn a_rejection_within_the_share_breaks_a_claim_in_reject_mode() {
    let over = [(0, Some("over_allocation"))];
    assert_eq!(
        broken(&summary("reject", &over, &NONE_SENT)),
        ["car-loan is never over_allocation within its share: 1 rejected, 0 sent above it"]
    );
    // The 51st record within one cycle plus the delay of reading.
    let burst: Vec<Duration> = (0..51).map(Duration::from_millis).collect();
    assert_eq!(broken(&summary("reject", &over, &[burst, Vec::new()])), Vec::<String>::new());
    let in_use = summary("reject", &[(0, Some("capacity_in_use"))], &NONE_SENT);
    assert_eq!(broken(&in_use), Vec::<String>::new());
    assert!(in_use.in_words().contains("\n  1 records of these clients were rejected as capacity_in_use: others"));
}

#[test]
fn a_record_a_cycle_after_the_share_is_not_above_it() {
    let spread: Vec<Duration> = (0..200).map(|n| Duration::from_millis(n * 22)).collect();
    assert_eq!(above_share(&spread, 50.0, Duration::from_secs(1)), 0);
    let denser: Vec<Duration> = (0..200).map(|n| Duration::from_micros(n * 21_999)).collect();
    assert_eq!(above_share(&denser, 50.0, Duration::from_secs(1)), 150);
}

#[test]
fn the_text_shows_the_promise_the_clients_and_the_claims() {
    let outcomes = [(0, None), (1, None), (1, Some("queue_full"))];
    let text = summary("shape", &outcomes, &NONE_SENT).in_words();
    assert!(text.starts_with("kyc takes 200 records in any 1 s: the promise was kept.\n"), "{text}");
    let line = "\ncredit-card         2 sent,      1 admitted, 1 rejected (1 queue_full); p99 wait 1 s\n";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("\n  kept   no record of car-loan is rejected (0 rejected)\n"), "{text}");
    let machine = "A slow or busy machine can break a claim";
    let late = summary("shape", &[(0, None), (0, Some("expired"))], &NONE_SENT).in_words();
    assert!(late.contains("\n  BROKEN no record of car-loan") && late.contains(machine), "{late}");
    assert!(!text.contains(machine), "{text}");
    let account = account(&outcomes);
    let mut broken = status("shape", &account);
    broken.figures.window_admitted_max = 201;
    let text = Summary::new(&broken, &account, &NONE_SENT, false).in_words();
    assert!(text.contains("THE PROMISE WAS BROKEN") && text.contains("do not add up"), "{text}");
    assert!(text.contains("\n  BROKEN at most 200 records are admitted in any 1 s (201 at most)\n"), "{text}");
    assert!(!text.contains(machine), "no machine breaks the promise: {text}");
    broken.figures.enforce = false;
    let text = Summary::new(&broken, &account, &NONE_SENT, true).in_words();
    assert!(text.contains("would have delayed 5 and rejected 1") && !text.contains("as checked"), "{text}");
}
