//! The figures of the rules of a service.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use watermaster_settings::Service;

use super::text::Samples;
use crate::rules::{CHANGE_RESULTS, CHANGE_VERBS, KnownRules, RULE_STATES, RulesCell, UNREADABLE};

/// Numbers by two labels.
type Numbers = BTreeMap<(&'static str, &'static str), u64>;

/// The rules of one service, in numbers.
#[derive(Debug, Default)]
pub struct RulesFigures {
    /// The number of rules by origin and state.
    pub(super) rules: Numbers,
    /// The number of changes by verb and result.
    pub(super) changes: Numbers,
    /// The offset up to which the topic was read, and the sum over the rules there; none before all was read once.
    pub(super) position: Option<(u64, u64)>,
    pub(super) behind: Option<Duration>,
    /// The time of the newest change, since the Unix epoch.
    pub(super) last_change: Option<Duration>,
}

impl RulesFigures {
    /// Returns the figures of the rules of the service's file and of those of run time.
    pub fn of(service: &Service, cell: &RulesCell, now_ms: i64) -> RulesFigures {
        let known = cell.known();
        let mut figures = RulesFigures::default();
        let of_file: Vec<_> = service.policy.rules.iter().filter(|rule| !rule.is_table()).collect();
        let has_topic = service.rules_topic.is_some();
        for (origin, has_rules) in [("file", has_topic || !of_file.is_empty()), ("run_time", has_topic)] {
            if has_rules {
                figures.rules.extend(RULE_STATES.map(|state| ((origin, state), 0)));
            }
        }
        for rule in of_file {
            *figures.rules.entry(("file", known.state_in_file(rule, now_ms))).or_default() += 1;
        }
        if !has_topic {
            return figures;
        }
        for rule in known.rules.values() {
            *figures.rules.entry(("run_time", rule.state(now_ms))).or_default() += 1;
        }
        let none = CHANGE_VERBS.into_iter().flat_map(|verb| CHANGE_RESULTS.map(|result| ((verb, result), 0)));
        figures.changes = none.chain([(UNREADABLE, 0)]).collect();
        figures.changes.extend(&known.counts);
        figures.position = known.read_at.map(|_| (known.read_offset, known.checksum()));
        figures.last_change = last_change(&known);
        drop(known);
        figures.behind = Some(cell.silence());
        figures
    }
}

/// Returns the time of the newest change. A change that deleted a rule is only in the list of changes.
fn last_change(known: &KnownRules) -> Option<Duration> {
    let of_rules = known.rules.values().map(|rule| Duration::from_millis(rule.at_ms));
    let listed = known.changes.front().and_then(|change| humantime::parse_rfc3339(&change.at).ok());
    let since_epoch = |at: SystemTime| at.duration_since(UNIX_EPOCH).ok();
    of_rules.chain(listed.and_then(since_epoch)).max()
}

/// Writes a sample for each pair of labels.
pub(super) fn put_numbers(numbers: &Numbers, out: &mut Samples<'_>) {
    for ((first, second), number) in numbers {
        out.put_with(&[first, second], number);
    }
}
