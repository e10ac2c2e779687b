//! Compares the configurations of a group's instances, and logs where they differ.

use std::sync::Arc;

use tracing::{info, warn};
use watermaster_core::group::state::Terms;

/// The most instances that one line of the log names.
const MAX_NAMED: usize = 5;

/// The last comparison.
#[derive(Debug)]
pub(super) struct Agreement {
    /// The number of different configurations, that of this instance included.
    configurations: usize,
    /// The instances with another configuration, with the settings that differ.
    others: Vec<String>,
    refuses: bool,
}

impl Default for Agreement {
    /// No other member is known yet.
    fn default() -> Agreement {
        Agreement { configurations: 1, others: Vec::new(), refuses: false }
    }
}

impl Agreement {
    /// Compares this instance's terms with those of the other live members, and logs a change. `refuses` is set while
    /// this instance does not join because of them.
    pub(super) fn compare(&mut self, service: &str, own: Terms, members: &[(Arc<str>, Terms)], refuses: bool) {
        let mut known = vec![own];
        let mut others = Vec::new();
        for (seat, terms) in members.iter().filter(|(_, terms)| *terms != own) {
            if !known.contains(terms) {
                known.push(*terms);
            }
            let differences: Vec<_> = own.differences(*terms).collect();
            others.push(format!("{seat} ({})", differences.join(", ")));
        }
        self.configurations = known.len();
        let refused = std::mem::replace(&mut self.refuses, refuses);
        let before = std::mem::replace(&mut self.others, others);
        if (refused, &before) == (refuses, &self.others) {
            return;
        }
        let instances = self.named();
        if refuses {
            warn!(service, instances, "not joining the group: instances in it have another cycle or mode");
        } else if !self.others.is_empty() {
            warn!(service, instances, "instances of the group have another configuration");
        } else {
            info!(service, "all instances of the group have the same configuration");
        }
    }

    fn named(&self) -> String {
        let named = self.others.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
        match self.others.len().saturating_sub(MAX_NAMED) {
            0 => named,
            more => format!("{named}; {more} more"),
        }
    }

    pub(super) fn configurations(&self) -> usize {
        self.configurations
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
        agreement.compare("kyc", OWN, &members, false);
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
    fn a_line_names_few_of_many_instances() {
        let larger = Terms { capacity: 200, ..OWN };
        let (configurations, line) = named(&[("wm", larger); 8]);
        assert_eq!((configurations, line.matches("wm (capacity)").count()), (2, MAX_NAMED));
        assert!(line.ends_with("; 3 more"), "{line}");
    }
}
