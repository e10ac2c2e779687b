//! Rules, as `/v1` shows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{FieldView, Word};

/// One rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuleView {
    pub name: String,
    /// "file" or "run_time".
    pub origin: Word,
    /// "in_force", "not_yet", "expired", "disabled", "replaced" by a rule of run time, or "not_understood".
    pub state: Word,
    /// The version, for If-Match; "file" for a rule of the file.
    pub etag: String,
    /// The author; null for a rule of the file.
    pub by: Option<String>,
    /// The time of the change in UTC (RFC 3339); null for a rule of the file.
    pub at: Option<String>,
    /// The rule as it was written.
    pub rule: Value,
    /// Doubts about a rule that was just written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The live instances that have the rules of this one; missing if the request did not wait for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<TakenOver>,
}

/// The number of live instances, and of those that have the same rules in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TakenOver {
    pub live: usize,
    pub same_rules: usize,
}

/// Rules in the order of their names, at most a thousand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RulesView {
    pub service: String,
    /// The seconds since the topic of the rules was read last, or since the start until it was; null without a topic.
    pub age_seconds: Option<f64>,
    pub rules: Vec<RuleView>,
    /// The name to ask for the next page with, as `after`; null if there is none.
    pub next: Option<String>,
}

/// A change of a rule that came in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuleChangeView {
    /// The time in UTC (RFC 3339).
    pub at: String,
    pub by: String,
    pub name: String,
    /// The version; null if the rule was deleted.
    pub etag: Option<String>,
    /// The rule; null if it was deleted.
    pub rule: Value,
}

/// The last changes that this instance saw, the newest first; a thousand at most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuleChangesView {
    pub changes: Vec<RuleChangeView>,
}

/// The effect of a change that was not written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuleDryRun {
    pub dry_run: bool,
    /// The number of known clients with another value, and the first hundred of them by wants.
    pub changed: u64,
    pub clients: Vec<ClientEffect>,
    pub warnings: Vec<String>,
}

/// The effect of a change on one client of this instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientEffect {
    pub name: String,
    /// The fields with another value, before and after.
    pub before: Vec<FieldView>,
    pub after: Vec<FieldView>,
    pub wants: u64,
    /// The delayed records of the client.
    pub backlog: u64,
    pub granted_before: u64,
    pub granted_after: u64,
    /// The records in a cycle that its own limits and those of its group allow in the long run, at most; 0 for a client
    /// that is held; null without limits.
    pub limit_before: Option<f64>,
    pub limit_after: Option<f64>,
}
