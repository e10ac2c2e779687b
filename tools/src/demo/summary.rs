//! The accounts of the demo, and the claims that were checked, for people and for scripts.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use serde::Serialize;
use watermaster_api::{ClientView, ServiceFigures};
use watermaster_core::{policy::Mode, reason::Reason};

use crate::load::account::{Account, ClientCounts};
use crate::top::fetch::ServiceStatus;
use crate::{format::seconds, load::report::busiest};

/// The only client that sends far more than its share.
const CAMPAIGN: &str = "credit-card";
/// Records that are read late come closer together than they were sent.
const READ_DELAY: Duration = Duration::from_millis(100);

/// The result of the demo: its service. Scripts rely on its JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    name: String,
    capacity: u64,
    /// By time of decision.
    max_admitted_in_any_cycle: u64,
    /// By arrival at the watcher; at most a round more.
    max_seen_by_reader: u64,
    clients: Vec<ClientSummary>,
    /// Empty in shadow mode.
    claims: Vec<CheckedClaim>,
    /// The last answer of the instance.
    #[serde(skip)]
    status: ServiceStatus,
    /// Every record that was sent was read and accounted for.
    #[serde(skip)]
    pub settled: bool,
}

/// The result of a client: sent = admitted + rejected + backlog.
#[derive(Debug, Clone, Serialize)]
struct ClientSummary {
    name: String,
    sent: u64,
    /// Records sent beyond the default share.
    sent_above_share: u64,
    admitted: u64,
    delayed: u64,
    rejected: BTreeMap<String, u64>,
    backlog: u64,
    /// From the intended time of sending until the record came out of the target.
    delay_p99_seconds: f64,
}

/// A claim of the demo, and what was found.
#[derive(Debug, Clone, Serialize)]
struct CheckedClaim {
    claim: String,
    found: String,
    kept: bool,
}

impl Summary {
    /// Sums up the last answer of the instance, the account, and the times at which each client sent.
    pub fn new(status: &ServiceStatus, account: &Account, sent_at: &[Vec<Duration>], settled: bool) -> Summary {
        let cycle = Duration::from_secs_f64(status.figures.cycle_seconds);
        let clients: Vec<_> = pairs(status, account)
            .map(|(at, client, counts)| {
                ClientSummary::new(client, counts, above_share(&sent_at[at], client.default_share, cycle))
            })
            .collect();
        Summary {
            name: status.figures.name.clone(),
            capacity: status.figures.capacity,
            max_admitted_in_any_cycle: status.figures.window_admitted_max,
            max_seen_by_reader: busiest(cycle, account.admitted_at.iter().copied()),
            claims: claims(&status.figures, &clients),
            clients,
            status: status.clone(),
            settled,
        }
    }

    pub fn in_words(&self) -> String {
        let mut text = self.promise();
        for client in &self.clients {
            text += &client.in_words(&self.status);
        }
        text += &self.verdicts();
        if !self.settled {
            let _ = writeln!(text, "\n{NOT_SETTLED}");
        }
        text
    }

    fn promise(&self) -> String {
        let Summary { name, capacity, max_admitted_in_any_cycle: admitted, max_seen_by_reader: seen, .. } = self;
        let cycle = seconds(self.status.figures.cycle_seconds);
        let verdict = match (self.status.figures.enforce, admitted <= capacity) {
            (true, true) => "the promise was kept",
            (true, false) => "THE PROMISE WAS BROKEN",
            (false, true) => "nothing was held back (shadow mode), and it was not too much",
            (false, false) => "nothing was held back (shadow mode), and it was too much",
        };
        let most_admitted = format!("most admitted in any {cycle}");
        format!(
            "{name} takes {capacity} records in any {cycle}: {verdict}.\n  \
             {most_admitted:<25} {admitted:>6}   by decision time\n  \
             {:<25} {seen:>6}   by arrival, which may add a round\n\n",
            "most seen by a reader"
        )
    }

    /// Writes each claim with its verdict, and the rejections that no claim excludes.
    fn verdicts(&self) -> String {
        if self.claims.is_empty() {
            return String::new();
        }
        let mut text = "\nThe claims, as checked:\n".to_owned();
        for CheckedClaim { claim, found, kept } in &self.claims {
            let verdict = if *kept { "kept" } else { "BROKEN" };
            let _ = writeln!(text, "  {verdict:<6} {claim} ({found})");
        }
        if self.claims.iter().skip(1).any(|claim| !claim.kept) {
            text += "  A slow or busy machine can break a claim about a client: records that it sends or reads\n  \
                     late come closer together, and wait longer. It can't break the first one.\n";
        }
        let in_use = within_their_share(&self.clients).map(|client| client.rejected_as(Reason::CapacityInUse));
        let in_use: u64 = in_use.sum();
        if in_use > 0 {
            let _ = writeln!(
                text,
                "  {in_use} records of these clients were rejected as capacity_in_use: others had\n  \
                 borrowed the room. A larger reservation makes it rarer; --mode shape delays instead."
            );
        }
        text
    }
}

/// Warns that records are missing from the summary.
pub const NOT_SETTLED: &str = "Not all records that were sent have been read: the numbers do not add up.";

/// Counts the records that exceed the default share of a cycle.
fn above_share(sent_at: &[Duration], share: f64, cycle: Duration) -> u64 {
    let share = share.round() as usize;
    let exceeds = |times: &[Duration]| times[share].saturating_sub(times[0]) < cycle + READ_DELAY;
    sent_at.windows(share + 1).filter(|times| exceeds(times)).count() as u64
}

/// Reports whether the throttler has decided on every record of the account.
pub fn has_decided(status: &ServiceStatus, account: &Account) -> bool {
    pairs(status, account).all(|(_, client, counts)| {
        counts.sent == client.done.admitted + client.done.rejected_total() + client.done.backlog
    })
}

/// Reports whether the account has every decision that the instance shows.
pub fn has_seen(status: &ServiceStatus, account: &Account) -> bool {
    pairs(status, account).all(|(_, client, counts)| {
        counts.admitted >= client.done.admitted && counts.rejected_total() >= client.done.rejected_total()
    })
}

/// Returns each client that the instance shows, with its index in the plan and its counts.
fn pairs<'a>(
    status: &'a ServiceStatus, account: &'a Account,
) -> impl Iterator<Item = (usize, &'a ClientView, &'a ClientCounts)> {
    account.plan.clients.iter().zip(&account.clients).enumerate().filter_map(|(at, (plan, counts))| {
        let client = status.clients.iter().find(|client| client.view.name == plan.load.id)?;
        Some((at, &client.view, counts))
    })
}

impl ClientSummary {
    fn new(status: &ClientView, counts: &ClientCounts, sent_above_share: u64) -> ClientSummary {
        let reasons = status.done.rejected.keys().map(|reason| (reason.to_string(), 0));
        let mut rejected: BTreeMap<String, u64> = reasons.collect();
        rejected.extend(counts.rejected.clone());
        ClientSummary {
            name: status.name.clone(),
            sent: counts.sent,
            sent_above_share,
            admitted: counts.admitted,
            delayed: status.done.delayed,
            rejected,
            backlog: counts.sent - counts.admitted - counts.rejected_total(),
            delay_p99_seconds: counts.delays.quantile(0.99),
        }
    }

    fn rejected_as(&self, reason: Reason) -> u64 {
        self.rejected.get(reason.into_str()).copied().unwrap_or(0)
    }

    fn in_words(&self, service: &ServiceStatus) -> String {
        let ClientSummary { name, sent, admitted, rejected, backlog, delay_p99_seconds, .. } = self;
        let mut text = format!("{name:<14} {sent:>6} sent, {admitted:>6} admitted");
        let total: u64 = rejected.values().sum();
        if total > 0 {
            let reasons = rejected.iter().filter(|(_, n)| **n > 0).map(|(reason, n)| format!("{n} {reason}"));
            text += &format!(", {total} rejected ({})", reasons.collect::<Vec<_>>().join(", "));
        }
        if *backlog > 0 {
            text += &format!(", {backlog} still wait");
        }
        match service.clients.iter().map(|client| &client.view).find(|client| client.name == *name) {
            Some(ClientView { shadow, .. }) if !service.figures.enforce => {
                let (delayed, rejected) = (shadow.delayed, shadow.rejected_total());
                text + &format!("; would have delayed {delayed} and rejected {rejected}\n")
            }
            _ => text + &format!("; p99 wait {}\n", seconds(*delay_p99_seconds)),
        }
    }
}

/// Checks the claims that hold in this mode. Shadow mode enforces nothing, so the demo claims nothing.
fn claims(status: &ServiceFigures, clients: &[ClientSummary]) -> Vec<CheckedClaim> {
    if !status.enforce {
        return Vec::new();
    }
    let (capacity, most, cycle) = (status.capacity, status.window_admitted_max, status.cycle_seconds);
    let claim = |claim, found, kept| CheckedClaim { claim, found, kept };
    let promise = format!("at most {capacity} records are admitted in any {}", seconds(cycle));
    let mut claims = vec![claim(promise, format!("{most} at most"), most <= capacity)];
    for client in within_their_share(clients) {
        let ClientSummary { name, sent_above_share: above, delay_p99_seconds: wait, .. } = client;
        if status.mode == Mode::Reject.into_str() {
            let rejected = client.rejected_as(Reason::OverAllocation);
            let found = format!("{rejected} rejected, {above} sent above it");
            claims.push(claim(format!("{name} is never over_allocation within its share"), found, rejected <= *above));
        } else {
            let rejected = client.rejected.values().sum::<u64>();
            let in_time = format!("99 of 100 records of {name} wait at most {}", seconds(cycle));
            claims.push(claim(
                format!("no record of {name} is rejected"),
                format!("{rejected} rejected"),
                rejected == 0,
            ));
            claims.push(claim(in_time, seconds(*wait), *wait <= cycle));
        }
    }
    claims
}

fn within_their_share(clients: &[ClientSummary]) -> impl Iterator<Item = &ClientSummary> {
    clients.iter().filter(|client| client.name != CAMPAIGN)
}

#[cfg(test)]
mod tests;
