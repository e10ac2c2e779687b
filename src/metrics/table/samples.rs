//! The samples of metrics that take more than an expression.

use std::collections::HashSet;
use std::time::{Duration, UNIX_EPOCH};

use watermaster_api::{ChangeView, ClientGroupView, PastChange};
use watermaster_core::pace::PaceView;

use crate::clock;
use crate::metrics::client_labels::{Decisions, OTHER};
use crate::metrics::{Publisher, ServiceMetrics, text::Samples};

pub(super) fn put_delays(decisions: Decisions<'_>, out: &mut Samples<'_>) {
    let (counts, sum) = decisions.delays();
    out.put_buckets(&[], counts, sum);
}

/// The label of the clients that are not configured: they are one group.
const UNLISTED: &str = "_unlisted";

/// Writes a sample for each configured group of clients, for as many others as clients have labels, and one for the sum
/// of the rest: records name those groups.
pub(super) fn put_groups(service: &ServiceMetrics, out: &mut Samples<'_>, of: fn(&ClientGroupView) -> f64) {
    let throttle = &service.newest.throttle;
    let groups = &throttle.groups;
    // That of the unlisted clients is there as soon as any client is configured.
    if groups.len() <= 1 {
        return;
    }
    let (named, rest) = groups.split_at(groups.len() - throttle.made_groups.saturating_sub(service.clients.max_labels));
    // Records may name a group as these labels are named.
    let is_taken = |group: &&ClientGroupView| [UNLISTED, OTHER].contains(&&*group.name);
    for group in named.iter().filter(|group| !is_taken(group)) {
        let name = if group.name.is_empty() { UNLISTED } else { &group.name };
        out.put_with(&[name], of(group));
    }
    let mut rest = named.iter().filter(is_taken).chain(rest).peekable();
    if rest.peek().is_some() {
        out.put_with(&[OTHER], rest.map(of).sum::<f64>());
    }
}

/// Returns the seconds since a time in milliseconds since 1970; 0 without a time.
pub(super) fn age(time_ms: Option<i64>) -> f64 {
    let then = Duration::from_millis(time_ms.and_then(|time| u64::try_from(time).ok()).unwrap_or(0));
    if then.is_zero() { 0.0 } else { clock::since_epoch().saturating_sub(then).as_secs_f64() }
}

pub(super) fn put_pace(service: &ServiceMetrics, out: &mut Samples<'_>, of: fn(&PaceView) -> Option<f64>) {
    if let Some(figure) = service.pace.as_deref().and_then(of) {
        out.put(figure);
    }
}

/// The most characters of a value in a label. A rule may list thousands of clients, and stores of metrics refuse series
/// with labels beyond one or two thousand characters.
const MAX_VALUE: usize = 256;

fn shortened(value: String) -> String {
    match value.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value,
    }
}

/// Writes the last changes of the configuration. One that was taken back and made again is one series.
pub(super) fn past_changes(publisher: &Publisher, out: &mut Samples<'_>) {
    let mut written = HashSet::new();
    for PastChange { at, by, change } in &publisher.past_changes {
        let ChangeView { key, service, from, to, origin, .. } = change;
        let [from, to] = [from, to].map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        let [from, to] = [from, to].map(shortened);
        let labels = [key.clone(), service.clone().unwrap_or_default(), from, to, origin.clone(), by.clone()];
        let at = humantime::parse_rfc3339(at).ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let values = labels.each_ref().map(String::as_str);
        if !written.contains(&labels) {
            out.put_with(&values, at.unwrap_or_default().as_secs_f64());
        }
        written.insert(labels);
    }
}
