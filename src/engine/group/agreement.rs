//! Compares the configurations of a group's instances, and logs where they differ.

use std::{sync::Arc, time::Duration};

use tracing::{info, warn};
use watermaster_core::group::state::Terms;
use watermaster_core::units::Time;

/// The most instances that one line of the log names.
const MAX_NAMED: usize = 5;
/// A change reaches one instance after the other, so a difference is told only once it lasts: two heartbeats.
const TOLD_AFTER: Duration = Duration::from_secs(5);

/// The last comparison. At first, no other member is known.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// The number of configurations beside that of this instance.
    different: usize,
    /// The instances with another configuration, with the settings that differ.
    others: Vec<String>,
    /// The time since which they differ in this way.
    since: Time,
    /// The log tells this difference.
    is_told: bool,
    /// The log tells some difference that has not ended.
    has_warned: bool,
    refuses: bool,
}

impl Agreement {
    /// Compares this instance's terms with those of the other live members, and logs a difference that lasts, and its
    /// end. `refuses` is set while this instance does not join because of them.
    pub(super) fn compare(
        &mut self, now: Time, service: &str, own: Terms, members: &[(Arc<str>, Terms)], refuses: bool,
    ) {
        let (mut different, mut others) = (Vec::new(), Vec::new());
        for (seat, terms) in members.iter().filter(|(_, terms)| *terms != own) {
            if !different.contains(terms) {
                different.push(*terms);
            }
            let differences: Vec<_> = own.differences(*terms).collect();
            others.push(format!("{seat} ({})", differences.join(", ")));
        }
        self.different = different.len();
        if (self.refuses, &self.others) != (refuses, &others) {
            (self.refuses, self.others, self.since, self.is_told) = (refuses, others, now, false);
        }
        if self.others.is_empty() && !refuses {
            if std::mem::take(&mut self.has_warned) {
                info!(service, "all instances of the group have the same configuration");
            }
            return;
        }
        // Right after a change of all instances, the terms of the former ones are only those of the bank, for a moment.
        let may_pass = !refuses || self.others.is_empty();
        if self.is_told || (may_pass && now.since(self.since) < TOLD_AFTER) {
            return;
        }
        (self.is_told, self.has_warned) = (true, true);
        let instances = self.named();
        if refuses {
            warn!(service, instances, "not joining the group: instances in it have another cycle or mode");
        } else {
            warn!(service, instances, "instances of the group have another configuration");
        }
    }

    fn named(&self) -> String {
        let named = self.others.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
        match self.others.len().saturating_sub(MAX_NAMED) {
            0 => named,
            more => format!("{named}; {more} more"),
        }
    }

    /// Returns the number of different configurations, that of this instance included.
    pub(super) fn configurations(&self) -> usize {
        1 + self.different
    }
}

#[cfg(test)]
mod tests {
    use watermaster_core::policy::Mode;

    use super::*;

    const OWN: Terms = Terms { capacity: 100, cycle_ms: 1_000, mode: Mode::Shape, digest: 7 };

    fn named(members: &[(&str, Terms)]) -> (usize, String) {
        let members: Vec<(Arc<str>, Terms)> = members.iter().map(|(name, terms)| ((*name).into(), *terms)).collect();
        let mut agreement = Agreement::default();
        agreement.compare(Time::ZERO, "kyc", OWN, &members, false);
        (agreement.configurations(), agreement.named())
    }

    #[test]
    fn each_instance_is_named_with_the_settings_that_differ() {
        assert_eq!(named(&[("wm-1", OWN)]), (1, String::new()));
        let larger = Terms { capacity: 200, digest: 8, ..OWN };
        let longer = Terms { cycle_ms: 2_000, mode: Mode::Reject, ..OWN };
        let members = [("wm-1", larger), ("wm-2", OWN), ("wm-3", larger), ("wm-4", longer)];
        let expected = "wm-1 (capacity, other settings); wm-3 (capacity, other settings); wm-4 (cycle, mode)";
        assert_eq!(named(&members), (3, expected.to_owned()));
    }

    #[test]
    fn a_difference_is_told_once_if_it_lasts() {
        let mut agreement = Agreement::default();
        let other = [("wm-1".into(), Terms { capacity: 200, ..OWN })];
        let mut told_at = |ms: u64, members: &[(Arc<str>, Terms)]| {
            agreement.compare(Time::from_nanos(ms * 1_000_000), "kyc", OWN, members, false);
            (agreement.is_told, agreement.has_warned)
        };
        assert_eq!([0, 4_999].map(|ms| told_at(ms, &other)), [(false, false); 2]);
        assert_eq!(told_at(5_000, &[]), (false, false), "a change that reached the other instance");
        assert_eq!([6_000, 11_000].map(|ms| told_at(ms, &other)), [(false, false), (true, true)]);
        assert_eq!(told_at(12_000, &[]), (false, false));
    }

    /// The bug: after a stop of all instances and a change of the mode, each start warned of instances that were gone.
    #[test]
    fn terms_without_an_instance_are_told_only_if_they_last() {
        let mut agreement = Agreement::default();
        let mut told_at = |ms: u64| {
            agreement.compare(Time::from_nanos(ms * 1_000_000), "kyc", OWN, &[], true);
            agreement.is_told
        };
        assert_eq!([0, 600, 4_999, 5_000].map(&mut told_at), [false, false, false, true]);
    }

    #[test]
    fn a_line_names_few_of_many_instances() {
        let larger = Terms { capacity: 200, ..OWN };
        let (configurations, line) = named(&[("wm", larger); 8]);
        assert_eq!((configurations, line.matches("wm (capacity)").count()), (2, MAX_NAMED));
        assert!(line.ends_with("; 3 more"), "{line}");
    }
}
