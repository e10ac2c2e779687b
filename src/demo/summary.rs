//! What the demo has shown, for people and for scripts.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use watermaster_core::policy::Mode;

use super::setup::PRODUCTS;
use super::table::client_of;
use super::traffic::Sent;
use crate::admin::rejections;
use crate::snapshot::ServiceSnapshot;
use crate::words::seconds;

/// What `--output json` prints: fixed, scripts rely on it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub services: Vec<ServiceSummary>,
}

/// One service.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceSummary {
    pub name: String,
    pub capacity: u64,
    /// By decision time.
    pub max_admitted_in_any_cycle: u64,
    /// By arrival at a separate reader of the target; at most a round more.
    pub max_seen_by_reader: u64,
    pub clients: Vec<ClientSummary>,
}

/// One product.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientSummary {
    pub name: String,
    pub sent: u64,
    pub admitted: u64,
    pub delayed: u64,
    pub rejected: BTreeMap<&'static str, u64>,
    pub backlog: u64,
    pub delay_p99_seconds: f64,
}

impl Summary {
    /// What the last snapshot, the senders and the reader say.
    pub fn new(snapshot: &ServiceSnapshot, sent: &Sent, max_seen_by_reader: u64) -> Summary {
        let service = ServiceSummary {
            name: snapshot.name.clone(),
            capacity: snapshot.capacity,
            max_admitted_in_any_cycle: snapshot.window_admitted_max,
            max_seen_by_reader,
            clients: PRODUCTS.iter().zip(sent).map(|(name, sent)| client_summary(snapshot, name, *sent)).collect(),
        };
        Summary { services: vec![service] }
    }
}

fn client_summary(snapshot: &ServiceSnapshot, name: &str, sent: u64) -> ClientSummary {
    let client = client_of(snapshot, name);
    ClientSummary {
        name: name.to_owned(),
        sent,
        admitted: client.counts.admitted,
        delayed: client.counts.delayed,
        rejected: rejections(&client.counts.rejected),
        backlog: client.backlog,
        delay_p99_seconds: client.delay_p99_seconds,
    }
}

/// Whether everything that was sent is accounted for: sent = admitted + rejected + backlog, for each product.
pub fn is_settled(snapshot: &ServiceSnapshot, sent: &Sent) -> bool {
    PRODUCTS.iter().zip(sent).all(|(name, sent)| {
        let client = client_of(snapshot, name);
        *sent == client.counts.admitted + client.counts.rejected.total() + client.backlog
    })
}

/// The summary in words.
pub fn in_words(summary: &Summary, snapshot: &ServiceSnapshot, settled: bool) -> String {
    let mut text = String::new();
    for service in &summary.services {
        push_promise(&mut text, service, snapshot);
        for client in &service.clients {
            push_client(&mut text, client, snapshot);
        }
    }
    if !settled {
        text.push_str("\nNot everything that was sent has been read: the numbers do not add up to what was sent.\n");
    }
    text
}

fn push_promise(text: &mut String, service: &ServiceSummary, snapshot: &ServiceSnapshot) {
    let ServiceSummary { name, capacity, max_admitted_in_any_cycle: admitted, max_seen_by_reader: seen, .. } = service;
    let cycle = seconds(snapshot.cycle_seconds);
    let verdict = match (snapshot.enforce, admitted <= capacity) {
        (true, true) => "the promise was kept",
        (true, false) => "THE PROMISE WAS BROKEN",
        (false, true) => "nothing was held back (passthrough), and it was not too much",
        (false, false) => "nothing was held back (passthrough), and it was too much",
    };
    let _ = writeln!(text, "{name} takes {capacity} records in any {cycle}: {verdict}.");
    let most_admitted = format!("most admitted in any {cycle}");
    let _ = writeln!(text, "  {most_admitted:<25} {admitted:>6}   by decision time");
    let _ = writeln!(text, "  {:<25} {seen:>6}   by arrival, which may add a round\n", "most seen by a reader");
}

/// What one product felt.
fn push_client(text: &mut String, client: &ClientSummary, snapshot: &ServiceSnapshot) {
    let ClientSummary { name, sent, admitted, backlog, delay_p99_seconds, .. } = client;
    let _ = write!(text, "{name:<14} {sent:>6} sent, {admitted:>6} admitted");
    let rejected: u64 = client.rejected.values().sum();
    if rejected > 0 {
        let reasons: Vec<_> =
            client.rejected.iter().filter(|(_, n)| **n > 0).map(|(r, n)| format!("{n} {r}")).collect();
        let _ = write!(text, ", {rejected} rejected ({})", reasons.join(", "));
    }
    if *backlog > 0 {
        let _ = write!(text, ", {backlog} still wait");
    }
    if !snapshot.enforce {
        let shadow = client_of(snapshot, name).shadow;
        let (later, never) = (shadow.delayed, shadow.rejected.total());
        let _ = writeln!(text, "; would have delayed {later} and rejected {never}");
    } else if snapshot.mode == Mode::Shape || *delay_p99_seconds > 0.0 {
        let _ = writeln!(text, "; p99 wait {}", seconds(*delay_p99_seconds));
    } else {
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use watermaster_core::reason::{Reason, ReasonCounts};

    use super::super::table::tests::snapshot;
    use super::*;

    const SENT: Sent = [10, 20, 30, 400];

    #[test]
    fn the_object_is_as_the_contract_says() {
        let summary = serde_json::to_value(Summary::new(&snapshot(), &SENT, 203)).unwrap();
        let service = &summary["services"][0];
        assert_eq!(
            (
                &service["name"],
                &service["capacity"],
                &service["max_admitted_in_any_cycle"],
                &service["max_seen_by_reader"]
            ),
            (&json!("kyc"), &json!(200), &json!(200), &json!(203))
        );
        let client = &service["clients"][3];
        assert_eq!(client["name"], "credit-card");
        assert_eq!(client["rejected"]["queue_full"], 1);
        let keys: Vec<_> = client.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["admitted", "backlog", "delay_p99_seconds", "delayed", "name", "rejected", "sent"]);
        assert_eq!(summary.as_object().unwrap().len(), 1);
        assert_eq!(service.as_object().unwrap().len(), 5);
    }

    #[test]
    fn settled_means_that_nothing_is_missing() {
        assert!(is_settled(&snapshot(), &SENT));
        assert!(!is_settled(&snapshot(), &[10, 20, 30, 401]));
        assert!(!is_settled(&ServiceSnapshot::default(), &SENT));
    }

    #[test]
    fn a_broken_promise_is_not_hidden() {
        let words = |snapshot: &ServiceSnapshot| in_words(&Summary::new(snapshot, &SENT, 203), snapshot, true);
        assert!(words(&snapshot()).contains("the promise was kept"));
        let broken = ServiceSnapshot { window_admitted_max: 201, ..snapshot() };
        assert!(words(&broken).contains("THE PROMISE WAS BROKEN"));
        assert!(in_words(&Summary::new(&snapshot(), &SENT, 0), &snapshot(), false).contains("do not add up"));
    }

    #[test]
    fn what_each_product_felt_is_told_in_words() {
        let words = in_words(&Summary::new(&snapshot(), &SENT, 203), &snapshot(), true);
        let card = words.lines().find(|line| line.starts_with("credit-card")).unwrap();
        assert_eq!(
            card,
            "credit-card       400 sent,    300 admitted, 1 rejected (1 queue_full), 99 still wait; p99 wait 7.5 s"
        );
    }

    #[test]
    fn passthrough_tells_what_would_have_been() {
        let mut shown = snapshot();
        shown.enforce = false;
        let mut rejected = ReasonCounts::default();
        rejected.add(Reason::OverAllocation);
        shown.clients.change(|client| {
            if &*client.name == "credit-card" {
                (client.shadow.rejected, client.shadow.delayed) = (rejected, 5);
            }
        });
        let words = in_words(&Summary::new(&shown, &SENT, 203), &shown, true);
        assert!(words.contains("would have delayed 5 and rejected 1"), "{words}");
    }
}
