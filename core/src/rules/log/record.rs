//! The records of the rules log as Kafka keys and values.
//!
//! A key is `r/<name>/<id>`, with a new id for each attempt, so compaction removes a change only after its tombstone. A
//! value is an *envelope* in JSON, with the fields `v`, `n`, `until`, `deleted`, `by`, `at` and `rule`. A tombstone has
//! no value.
//!
//! All instances must agree on the versions, whatever their own version is. So a later version of the program may give
//! `rule` another form and raise `v`. It must not change the other fields, nor any bound in this file.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The version of the form of a rule.
pub const VERSION: u32 = 1;
/// The most bytes of a rule's name.
pub const MAX_NAME_BYTES: usize = 64;
/// The most bytes of a rule in JSON.
pub const MAX_RULE_BYTES: usize = 64 << 10;
/// The most bytes of a value: a rule, and room for the other fields.
const MAX_VALUE_BYTES: usize = MAX_RULE_BYTES + (4 << 10);
/// The largest version of a rule. Numbers up to it are exact in every reader of JSON.
pub const MAX_N: u64 = (1 << 53) - 1;

/// The id of one attempt to change a rule. No id is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeId(pub u64);

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The version of a rule: n counts the changes, and the id tells a name's later lives apart. The text is `n-id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleVersion {
    /// The number of changes since the name was last free.
    pub n: u64,
    /// The change that made it.
    pub id: ChangeId,
}

impl RuleVersion {
    /// Reads the text of a version.
    pub fn parse(text: &str) -> Option<RuleVersion> {
        let (n, id) = text.split_once('-')?;
        let version = RuleVersion { n: n.parse().ok()?, id: parse_id(id)? };
        (version.to_string() == text).then_some(version)
    }
}

impl fmt::Display for RuleVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.n, self.id)
    }
}

/// A change of a rule: the envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleChange {
    /// The version of the form of `rule`. The protocol does not depend on it.
    pub v: u32,
    /// The version that the rule has if the change comes in force.
    pub n: u64,
    /// The last offset at which the change can come in force.
    pub until: u64,
    pub deleted: bool,
    /// The author.
    pub by: Box<str>,
    /// The time at which the author made it, in milliseconds since 1970.
    pub at: u64,
    /// The rule in JSON. It is nothing if the change deletes the rule, and may have any form.
    pub rule: Option<Box<str>>,
}

/// A record of the rules log.
#[derive(Debug, PartialEq, Eq)]
pub struct RuleRecord<'k> {
    pub name: &'k str,
    pub id: ChangeId,
    /// The change; nothing for its tombstone.
    pub change: Option<RuleChange>,
}

/// A record that is none of the rules log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableRule {
    #[error(
        "the key is not r/<name>/<id>, with a name of 1 to {MAX_NAME_BYTES} characters a-z 0-9 . _ - and an id of 16 \
         hexadecimal digits"
    )]
    Key,
    /// The rule has too many bytes. If the value is already too large, they are its bytes.
    #[error("the rule has {bytes} bytes; at most {MAX_RULE_BYTES} are allowed")]
    Size { bytes: usize },
    #[error("the version is {n}; it must be from 1 to {MAX_N}")]
    Version { n: u64 },
    /// The value is no envelope; the reason is in the parser's words.
    #[error("the value can't be read: {reason}")]
    Envelope { reason: Box<str> },
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    v: u32,
    n: u64,
    until: u64,
    #[serde(default)]
    deleted: bool,
    #[serde(default, borrow)]
    by: Cow<'a, str>,
    #[serde(default)]
    at: u64,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    rule: Option<&'a RawValue>,
}

pub fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_allowed)
}

fn parse_id(text: &str) -> Option<ChangeId> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let id = (text.len() == 16 && text.bytes().all(is_digit)).then(|| u64::from_str_radix(text, 16))?;
    id.ok().map(ChangeId)
}

/// Returns the key of a change and of its tombstone.
pub fn key(name: &str, id: ChangeId) -> String {
    format!("r/{name}/{id}")
}

/// Returns the value of a change.
///
/// # Errors
/// The rule is not JSON, or too large.
pub fn encode(change: &RuleChange) -> Result<Vec<u8>, UnreadableRule> {
    let RuleChange { v, n, until, deleted, at, .. } = *change;
    let rule = change.rule.as_deref().map(serde_json::from_str::<&RawValue>).transpose().map_err(unreadable)?;
    let by = Cow::Borrowed(&*change.by);
    let value = serde_json::to_vec(&Envelope { v, n, until, deleted, by, at, rule }).map_err(unreadable)?;
    check_size(&value, rule).map(|()| value)
}

/// Reads a record.
///
/// # Errors
/// The record is none of the rules log. It has no effect on any reader.
pub fn decode<'k>(key: &'k [u8], value: Option<&[u8]>) -> Result<RuleRecord<'k>, UnreadableRule> {
    let parts = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix("r/")?.split_once('/'));
    let (name, id) = parts.filter(|(name, _)| is_name(name)).ok_or(UnreadableRule::Key)?;
    let id = parse_id(id).ok_or(UnreadableRule::Key)?;
    let Some(value) = value else { return Ok(RuleRecord { name, id, change: None }) };
    check_size(value, None)?;
    let Envelope { v, n, until, deleted, by, at, rule } = serde_json::from_slice(value).map_err(unreadable)?;
    check_size(value, rule)?;
    if !(1..=MAX_N).contains(&n) {
        return Err(UnreadableRule::Version { n });
    }
    let rule = rule.filter(|_| !deleted).map(|rule| rule.get().into());
    Ok(RuleRecord { name, id, change: Some(RuleChange { v, n, until, deleted, by: by.into(), at, rule }) })
}

fn check_size(value: &[u8], rule: Option<&RawValue>) -> Result<(), UnreadableRule> {
    let rule = rule.map_or(0, |rule| rule.get().len());
    let bytes = if value.len() > MAX_VALUE_BYTES { value.len() } else { rule };
    if bytes > MAX_RULE_BYTES { Err(UnreadableRule::Size { bytes }) } else { Ok(()) }
}

fn unreadable(error: serde_json::Error) -> UnreadableRule {
    UnreadableRule::Envelope { reason: error.to_string().into() }
}
