//! Rules for tests.

use watermaster_core::policy::ClientPattern;
use watermaster_core::rules::{Effects, Origin, Rule, RuleTarget};

pub fn patterns(texts: &[&str]) -> Vec<ClientPattern> {
    texts.iter().map(|text| ClientPattern::new(text)).collect()
}

/// A rule of the file that is always valid, with priority 0.
pub fn rule(name: &str, target: RuleTarget, effects: Effects) -> Rule {
    Rule {
        name: name.into(),
        origin: Origin::File,
        target,
        priority: 0,
        from_ms: None,
        until_ms: None,
        disabled: false,
        note: String::new(),
        effects,
    }
}

/// Clients by patterns, in any group.
pub fn clients(texts: &[&str]) -> RuleTarget {
    RuleTarget::Clients { patterns: patterns(texts), in_groups: None }
}
