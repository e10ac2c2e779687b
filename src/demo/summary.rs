//! What the demo has shown, for people and for scripts.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use watermaster_core::policy::Mode;
use watermaster_core::reason::Reason;

use super::setup::{CAMPAIGN, PRODUCTS};
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
    /// The claims of the demo, each as checked; none in shadow mode.
    pub claims: Vec<Claim>,
}

/// One product.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientSummary {
    pub name: String,
    pub sent: u64,
    /// The records sent beyond the default share, counted when they were sent.
    pub sent_above_share: u64,
    pub admitted: u64,
    pub delayed: u64,
    pub rejected: BTreeMap<&'static str, u64>,
    pub backlog: u64,
    pub delay_p99_seconds: f64,
}

/// A claim of the demo, and what was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Claim {
    pub claim: String,
    pub found: String,
    pub kept: bool,
}

impl Summary {
    /// What the last snapshot, the senders and the reader say.
    pub fn new(snapshot: &ServiceSnapshot, sent: &Sent, max_seen_by_reader: u64) -> Summary {
        let clients: Vec<ClientSummary> =
            (0..PRODUCTS.len()).map(|product| client_summary(snapshot, sent, product)).collect();
        let service = ServiceSummary {
            name: snapshot.name.clone(),
            capacity: snapshot.capacity,
            max_admitted_in_any_cycle: snapshot.window_admitted_max,
            max_seen_by_reader,
            claims: claims(snapshot, &clients),
            clients,
        };
        Summary { services: vec![service] }
    }
}

fn client_summary(snapshot: &ServiceSnapshot, sent: &Sent, product: usize) -> ClientSummary {
    let name = PRODUCTS[product];
    let client = client_of(snapshot, name);
    ClientSummary {
        name: name.to_owned(),
        sent: sent.records[product],
        sent_above_share: sent.above_share[product],
        admitted: client.counts.admitted,
        delayed: client.counts.delayed,
        rejected: rejections(&client.counts.rejected),
        backlog: client.backlog,
        delay_p99_seconds: client.delay_p99_seconds,
    }
}

/// The claims that hold in this mode, checked against what was counted. In shadow mode nothing is enforced, so the demo
/// claims nothing.
fn claims(snapshot: &ServiceSnapshot, clients: &[ClientSummary]) -> Vec<Claim> {
    if !snapshot.enforce {
        return Vec::new();
    }
    let (capacity, most, cycle) = (snapshot.capacity, snapshot.window_admitted_max, snapshot.cycle_seconds);
    let mut claims = vec![Claim {
        claim: format!("at most {capacity} records are admitted in any {}", seconds(cycle)),
        found: format!("{most} at most"),
        kept: most <= capacity,
    }];
    for client in within_their_share(clients) {
        match snapshot.mode {
            Mode::Reject => claims.push(never_over_allocation(client)),
            Mode::Shape => claims.extend([never_rejected(client), waits_at_most(client, cycle)]),
        }
    }
    claims
}

/// All clients but that of the campaign.
fn within_their_share(clients: &[ClientSummary]) -> impl Iterator<Item = &ClientSummary> {
    clients.iter().filter(|client| client.name != CAMPAIGN)
}

fn never_over_allocation(client: &ClientSummary) -> Claim {
    let (rejected, above) = (rejected_as(client, Reason::OverAllocation), client.sent_above_share);
    Claim {
        claim: format!("{} is never over_allocation within its share", client.name),
        found: format!("{rejected} rejected, {above} sent above it"),
        kept: rejected <= above,
    }
}

fn never_rejected(client: &ClientSummary) -> Claim {
    let rejected = client.rejected.values().sum::<u64>();
    Claim {
        claim: format!("no record of {} is rejected", client.name),
        found: format!("{rejected} rejected"),
        kept: rejected == 0,
    }
}

fn waits_at_most(client: &ClientSummary, cycle: f64) -> Claim {
    Claim {
        claim: format!("99 of 100 records of {} wait at most {}", client.name, seconds(cycle)),
        found: seconds(client.delay_p99_seconds),
        kept: client.delay_p99_seconds <= cycle,
    }
}

fn rejected_as(client: &ClientSummary, reason: Reason) -> u64 {
    client.rejected.get(reason.as_str()).copied().unwrap_or(0)
}

/// Whether everything that was sent is accounted for: sent = admitted + rejected + backlog, for each product.
pub fn is_settled(snapshot: &ServiceSnapshot, sent: &Sent) -> bool {
    PRODUCTS.iter().zip(sent.records).all(|(name, sent)| {
        let client = client_of(snapshot, name);
        sent == client.counts.admitted + client.counts.rejected.total() + client.backlog
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
        push_claims(&mut text, service);
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

/// Each claim with its verdict, and the rejections that no claim excludes.
fn push_claims(text: &mut String, service: &ServiceSummary) {
    if service.claims.is_empty() {
        return;
    }
    text.push_str("\nThe claims, as checked:\n");
    for Claim { claim, found, kept } in &service.claims {
        let verdict = if *kept { "kept" } else { "BROKEN" };
        let _ = writeln!(text, "  {verdict:<6} {claim} ({found})");
    }
    let in_use: u64 =
        within_their_share(&service.clients).map(|client| rejected_as(client, Reason::CapacityInUse)).sum();
    if in_use > 0 {
        let _ = writeln!(
            text,
            "  {in_use} records of these clients were rejected as capacity_in_use: others had\n  \
             borrowed the room. A larger reservation makes it rarer; --mode shape delays instead."
        );
    }
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
    use watermaster_core::reason::ReasonCounts;

    use super::super::table::tests::snapshot;
    use super::*;

    const SENT: Sent = Sent { records: [10, 20, 30, 400], above_share: [0, 0, 1, 350] };

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
        let [documented @ .., _] =
            ["admitted", "backlog", "delay_p99_seconds", "delayed", "name", "rejected", "sent", "sent_above_share"];
        assert_eq!(keys[..7], documented);
        assert_eq!((keys[7], &client["sent_above_share"]), ("sent_above_share", &json!(350)));
        assert_eq!(summary.as_object().unwrap().len(), 1);
        assert_eq!(service.as_object().unwrap().len(), 6);
        let claims = service["claims"].as_array().unwrap();
        assert!(claims.iter().all(|claim| claim["kept"] == true), "{claims:?}");
    }

    #[test]
    fn settled_means_that_nothing_is_missing() {
        assert!(is_settled(&snapshot(), &SENT));
        assert!(!is_settled(&snapshot(), &Sent { records: [10, 20, 30, 401], ..SENT }));
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

    /// The claims that are broken, of a service with this many records of car-loan rejected, and this wait of home-loan.
    fn broken(mode: Mode, (reason, count): (Reason, u64), wait: f64) -> Vec<String> {
        let mut shown = ServiceSnapshot { mode, ..snapshot() };
        shown.clients.change(|client| match &*client.name {
            "car-loan" => (0..count).for_each(|_| client.counts.rejected.add(reason)),
            "home-loan" => client.delay_p99_seconds = wait,
            _ => {}
        });
        let claims = Summary::new(&shown, &SENT, 203).services.remove(0).claims;
        assert_eq!(claims.len(), if mode == Mode::Reject { 4 } else { 7 });
        claims
            .into_iter()
            .filter(|claim| !claim.kept)
            .map(|claim| format!("{}: {}", claim.claim, claim.found))
            .collect()
    }

    #[test]
    fn a_rejection_within_the_share_breaks_a_claim() {
        let over = |count| broken(Mode::Reject, (Reason::OverAllocation, count), 9.0);
        assert_eq!(over(1), Vec::<String>::new(), "it sent one record above its share");
        let said = "car-loan is never over_allocation within its share: 2 rejected, 1 sent above it";
        assert_eq!(over(2), [said]);
        assert_eq!(broken(Mode::Reject, (Reason::CapacityInUse, 5), 0.0), Vec::<String>::new());
    }

    #[test]
    fn a_rejection_or_a_long_wait_breaks_a_claim_in_shape_mode() {
        assert_eq!(broken(Mode::Shape, (Reason::Expired, 0), 1.0), Vec::<String>::new());
        let said =
            ["99 of 100 records of home-loan wait at most 1 s: 1.1 s", "no record of car-loan is rejected: 1 rejected"];
        assert_eq!(broken(Mode::Shape, (Reason::Expired, 1), 1.1), said);
    }

    #[test]
    fn each_claim_is_a_line_with_its_verdict_and_capacity_in_use_is_counted() {
        let mut shown = ServiceSnapshot { mode: Mode::Reject, window_admitted_max: 201, ..snapshot() };
        let text = in_words(&Summary::new(&shown, &SENT, 203), &shown, true);
        assert!(text.contains("\n  BROKEN at most 200 records are admitted in any 1 s (201 at most)\n"), "{text}");
        assert!(text.contains("\n  kept   home-loan is never over_allocation within its share ("), "{text}");
        assert!(!text.contains("capacity_in_use"), "{text}");
        shown.clients.change(|client| client.counts.rejected.add(Reason::CapacityInUse));
        let text = in_words(&Summary::new(&shown, &SENT, 203), &shown, true);
        assert!(text.contains("\n  3 records of these clients were rejected as capacity_in_use: others"), "{text}");
        shown.enforce = false;
        assert!(!in_words(&Summary::new(&shown, &SENT, 203), &shown, true).contains("as checked"));
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
