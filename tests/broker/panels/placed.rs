//! The scenario that fills each panel. The test fails for a panel without a line here, and for a line without a panel.

use std::collections::BTreeMap;

use super::stage::{CAMPAIGN, PAUSES, REJECTS, SHADOW};
use crate::support::board::Board;

/// The data that a query must return within the run, and the service that is chosen on the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// A sample that is not zero.
    Filled(&'static str),
    /// A series, which may stay at zero: only for counters of failures.
    Quiet(&'static str),
    /// A series for every service, of which at least one is not always zero.
    AllServices,
    /// A series for every service, none of which is always zero.
    EachService,
}

impl Needs {
    /// Returns the service that is chosen on the board.
    pub fn service(self) -> &'static str {
        match self {
            Needs::Filled(service) | Needs::Quiet(service) => service,
            Needs::AllServices | Needs::EachService => CAMPAIGN,
        }
    }
}

/// A line of the table: a panel and the need of each of its queries, or a single need that applies to all.
pub struct Placed {
    id: u64,
    title: &'static str,
    needs: &'static [Needs],
}

const fn panel(id: u64, title: &'static str, needs: &'static [Needs]) -> Placed {
    Placed { id, title, needs }
}

const SHAPED: Needs = Needs::Filled(CAMPAIGN);
const REJECTED: Needs = Needs::Filled(REJECTS);
const SHADOWED: Needs = Needs::Filled(SHADOW);
const PAUSED: Needs = Needs::Filled(PAUSES);
const ILL_HEALTH: Needs = Needs::Quiet(CAMPAIGN);
const ALL: Needs = Needs::AllServices;
const EACH: Needs = Needs::EachService;

/// The tables of all boards, by the boards' uids.
pub const BOARDS: [(&str, &[Placed]); 4] = [
    ("watermaster-service", SERVICE),
    ("watermaster-client", CLIENT),
    ("watermaster-platform", PLATFORM),
    ("watermaster-capacity-planning", CAPACITY_PLANNING),
];

const SERVICE: &[Placed] = &[
    panel(4, "Protection", &[SHAPED]),
    panel(3, "Ready instances", &[SHAPED]),
    panel(5, "Capacity in use", &[SHAPED]),
    panel(6, "Demand", &[SHAPED]),
    panel(7, "Delayed records", &[SHAPED]),
    panel(8, "Rejected", &[REJECTED]),
    panel(62, "Wait within shares", &[SHAPED]),
    panel(61, "Furthest over share", &[SHAPED]),
    panel(10, "Admitted records and capacity", &[SHAPED]),
    panel(12, "Wants by client, stacked against the capacity", &[SHAPED]),
    panel(40, "Alerts", &[SHAPED]),
    panel(13, "Granted by client, stacked to the capacity", &[SHAPED]),
    panel(14, "Lending and borrowing", &[SHAPED]),
    panel(15, "Admitted by client", &[SHAPED]),
    panel(17, "Time in a backlog", &[SHAPED]),
    panel(19, "Backlog by client", &[SHAPED]),
    panel(22, "Backlogs against their bounds", &[SHAPED]),
    panel(20, "Rejected by reason", &[REJECTED]),
    panel(21, "Rejected by client", &[REJECTED]),
    panel(11, "Decisions", &[SHAPED, SHAPED, REJECTED]),
    panel(63, "Wait of clients within their shares (p99)", &[SHAPED]),
    panel(18, "Record to commit", &[SHAPED]),
    // All clients of the run are configured, so that none is new.
    panel(32, "Known clients", &[SHAPED, SHAPED, ILL_HEALTH]),
    panel(41, "Time in a backlog by client (p99)", &[SHAPED]),
    panel(42, "Capacity used by client", &[SHAPED]),
    panel(43, "Lag of the service", &[SHAPED]),
    // Only this service searches for its capacity.
    panel(51, "Limit in force", &[SHADOWED]),
    panel(52, "Capacity found", &[SHADOWED]),
    panel(53, "Service is late by", &[SHADOWED]),
    panel(54, "Brake", &[SHADOWED]),
    panel(55, "Open offsets", &[SHADOWED]),
    panel(56, "Stuck partitions", &[Needs::Quiet(SHADOW)]),
    panel(57, "Limit and found capacity", &[SHADOWED]),
    panel(58, "How late the service is", &[SHADOWED]),
    panel(59, "State of the search", &[SHADOWED]),
    panel(60, "Changes of the found capacity", &[SHADOWED]),
    panel(65, "Granted by group", &[SHAPED]),
    panel(66, "Lending and borrowing of groups", &[SHAPED]),
];

const CLIENT: &[Placed] = &[
    panel(21, "Now", &[SHAPED]),
    panel(7, "Expected delay", &[SHAPED]),
    panel(6, "Delayed records", &[SHAPED]),
    panel(22, "Backlog empty", &[SHAPED]),
    panel(23, "Rejected", &[REJECTED]),
    // A client's own limit is drawn only if the client has one.
    panel(9, "Wanted, granted, admitted, per cycle", &[SHAPED, SHAPED, SHAPED, SHAPED, REJECTED]),
    panel(18, "Rejected by reason", &[REJECTED]),
    panel(2, "Wants", &[SHAPED]),
    panel(3, "Granted", &[SHAPED]),
    panel(4, "Default share", &[SHAPED]),
    panel(5, "Borrows (lends)", &[SHAPED]),
    panel(11, "Part of the capacity", &[SHAPED]),
    panel(12, "Borrowed and lent", &[SHAPED]),
    panel(15, "Expected delay", &[SHAPED]),
    panel(14, "Backlog", &[SHAPED, SHAPED, SHADOWED]),
    panel(16, "Oldest delayed record", &[SHAPED]),
    panel(24, "Time in a backlog", &[SHAPED]),
    panel(10, "Decisions", &[SHAPED, SHAPED, REJECTED]),
    panel(19, "Rejected part", &[REJECTED]),
    panel(20, "Would be delayed or rejected", &[SHADOWED]),
    panel(25, "Would wait", &[SHADOWED]),
];

const PLATFORM: &[Placed] = &[
    // State, decisions (0 is shadow mode), used, demand, admitted, rejected, delayed, oldest, unread.
    panel(58, "All services", &[EACH, ALL, EACH, EACH, EACH, ALL, ALL, ALL, ALL]),
    panel(60, "Demand by service", &[EACH]),
    panel(61, "Delayed records by service", &[ALL]),
    panel(62, "Rejected records by service", &[ALL]),
    panel(32, "Alerts", &[SHAPED]),
    panel(33, "Versions and configurations", &[SHAPED]),
    panel(27, "State", &[SHAPED]),
    panel(34, "Refused writes", &[ILL_HEALTH]),
    panel(35, "Restarts in 30 min", &[ILL_HEALTH]),
    panel(36, "Lost records", &[ILL_HEALTH]),
    panel(37, "Failed rounds", &[ILL_HEALTH]),
    panel(38, "Last reload", &[SHAPED]),
    panel(39, "Configuration in force since", &[SHAPED]),
    panel(40, "Different configurations", &[PAUSED]),
    panel(63, "Last changes of the configuration", &[SHAPED]),
    panel(41, "Unread records", &[PAUSED]),
    panel(42, "CPU", &[SHAPED]),
    panel(50, "Busy engines", &[SHAPED]),
    panel(43, "Memory", &[SHAPED]),
    panel(44, "File descriptors and threads", &[SHAPED]),
    panel(2, "Lag by cause", &[SHAPED]),
    panel(3, "Unread records by topic", &[SHAPED]),
    panel(4, "Lag by partition", &[SHAPED]),
    panel(5, "Delayed records by partition", &[SHAPED]),
    panel(6, "Oldest delayed record against retention", &[SHAPED]),
    panel(7, "Stubs", &[ILL_HEALTH]),
    panel(52, "Open dead letters", &[REJECTED]),
    panel(53, "Oldest open dead letter", &[REJECTED]),
    panel(9, "Rounds by outcome", &[SHAPED]),
    panel(10, "Round duration", &[SHAPED]),
    panel(11, "Round duration by phase", &[SHAPED]),
    panel(12, "Records per round", &[SHAPED]),
    panel(13, "Slowest phases", &[SHAPED]),
    panel(14, "Transaction errors by class", &[ILL_HEALTH]),
    panel(15, "Transaction errors by phase", &[ILL_HEALTH]),
    panel(16, "Replaced producers and consumers", &[ILL_HEALTH]),
    panel(17, "Resyncs", &[ILL_HEALTH]),
    panel(18, "Records of interrupted rounds", &[ILL_HEALTH]),
    panel(20, "Fullest offset map", &[SHAPED]),
    panel(21, "Longest offset map", &[SHAPED]),
    panel(22, "Widest offset map", &[SHAPED]),
    panel(23, "Paused partitions", &[PAUSED]),
    panel(25, "Assigned partitions", &[SHAPED]),
    // Only this service has a second instance, which joins later.
    panel(26, "Rebalances", &[PAUSED]),
    panel(46, "Allocations", &[SHAPED]),
    // This service has two instances.
    panel(29, "Parts of the shared capacity", &[PAUSED]),
    panel(47, "Circulating capacity", &[PAUSED]),
    panel(56, "Announced records", &[PAUSED]),
    panel(30, "Members", &[PAUSED]),
    panel(48, "Control topic: time until read back", &[PAUSED]),
    panel(31, "Control topic: states", &[PAUSED]),
    // All states may have been read back at each scrape.
    panel(57, "Control topic: behind", &[Needs::Quiet(PAUSES)]),
    panel(49, "Seats: openings and claims", &[Needs::Quiet(PAUSES)]),
    panel(66, "Rules by state", &[SHAPED]),
    panel(67, "Changes of rules", &[Needs::Quiet(CAMPAIGN)]),
    panel(68, "Rules: behind", &[SHAPED]),
];

const CAPACITY_PLANNING: &[Placed] = &[
    // The value 0 is shadow mode.
    panel(2, "Protection", &[SHAPED]),
    panel(3, "Capacity", &[SHADOWED]),
    panel(4, "Most in any cycle", &[SHADOWED]),
    panel(5, "Sufficient for 99 % of the time", &[SHADOWED]),
    panel(6, "Time above the capacity", &[SHADOWED]),
    panel(7, "Used on average", &[SHADOWED]),
    panel(8, "Demand and capacity", &[SHADOWED]),
    panel(10, "Shadow decisions", &[SHADOWED]),
    panel(11, "Would be rejected, by reason", &[SHADOWED]),
    panel(12, "Would be delayed, by client", &[SHADOWED]),
    panel(13, "Would be rejected, by client", &[SHADOWED]),
    panel(14, "Shadow backlog by client", &[SHADOWED]),
    panel(15, "Part that would be delayed or rejected", &[SHADOWED]),
    panel(18, "Time that records would wait, by client (p99)", &[SHADOWED]),
    panel(19, "Clients that would wait for more than 1 s", &[SHADOWED]),
    panel(17, "Clients over the chosen range", &[SHADOWED]),
];

/// Returns the needs of a panel's queries, in their order; `None` if the panel has no line.
pub fn needs(board: &str, id: u64, queries: usize) -> Option<Vec<Needs>> {
    let (_, lines) = BOARDS.iter().find(|(uid, _)| *uid == board)?;
    let line = lines.iter().find(|line| line.id == id)?;
    Some(if let [one] = line.needs { vec![*one; queries] } else { line.needs.to_vec() })
}

#[test]
fn every_panel_has_a_line() {
    let boards = Board::all();
    let mut lines: BTreeMap<_, _> = BTreeMap::new();
    for (uid, placed) in BOARDS {
        for line in placed {
            assert!(lines.insert((uid, line.id), line).is_none(), "{uid}: {} has two lines", line.title);
        }
    }
    let mut problems = Vec::new();
    for (board, panel) in boards.iter().flat_map(|board| board.panels().map(move |panel| (board, panel))) {
        let queries = panel.targets().count();
        match lines.remove(&(board.uid(), panel.id())) {
            None => problems.push(panel.problem(format!("panel {} has no line", panel.id()))),
            Some(line) if line.title != panel.title() => {
                problems.push(panel.problem(format!("its line is titled {:?}", line.title)))
            }
            Some(line) if line.needs.len() != 1 && line.needs.len() != queries => {
                problems.push(panel.problem(format!("{} needs for {queries} queries", line.needs.len())));
            }
            Some(_) => {}
        }
    }
    problems.extend(lines.into_iter().map(|((uid, id), line)| format!("{uid}: no panel {id}, {:?}", line.title)));
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}
