//! Compares the records of the sources with those of the outputs.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use super::pass::{Found, Pass, TopicRole};
use crate::origin::{Fate, Origin};
use crate::plan::Plan;

/// Number of samples reported for each kind of anomaly.
const MAX_SAMPLES: usize = 12;

/// The counts of records, and all anomalies.
#[derive(Debug, Default, Serialize)]
pub struct Verdict {
    /// Number of anomalies by kind.
    pub anomalies: BTreeMap<&'static str, u64>,
    pub samples: Vec<String>,
    /// Number of records in each topic.
    pub sources: u64,
    pub target: u64,
    pub dead_letter: u64,
    /// Source records that were compacted away before the end.
    pub compacted: u64,
    /// Compacted records without an output: the cleaner may have been faster than the program.
    pub compacted_unseen: u64,
    /// Additional records because the generator's producer wrote some records twice.
    pub written_again: u64,
    /// Records of the generator's committed transactions. Those of aborted ones would be `alien`.
    pub upstream: u64,
    pub reasons: BTreeMap<&'static str, u64>,
    pub most_in_a_window: u64,
    pub allowed_in_a_window: u64,
}

impl Verdict {
    /// Counts an anomaly.
    pub fn add(&mut self, kind: &'static str, what: String) {
        let count = self.anomalies.entry(kind).or_default();
        *count += 1;
        if *count <= MAX_SAMPLES as u64 {
            self.samples.push(format!("{kind}: {what}"));
        }
    }
}

/// A source record and its outputs.
struct Truth<'p> {
    partition: i32,
    found: &'p Found,
    /// The record was still in the source at the end.
    remains: bool,
    /// Offsets of further copies in the partition: an idempotent producer without transactions may write a record again
    /// when it has to restart its sequence. Each copy is a record and needs an output.
    copies: BTreeSet<i64>,
    outputs: Vec<(TopicRole, i32, &'p Found)>,
}

impl Truth<'_> {
    /// Returns all offsets of the record, ascending.
    fn offsets(&self) -> impl Iterator<Item = i64> {
        let mut offsets = self.copies.clone();
        offsets.insert(self.found.offset);
        offsets.into_iter()
    }
}

type Truths<'p> = HashMap<u64, Truth<'p>>;

/// Judges the two complete passes. `acknowledged` is the number of records that the brokers acknowledged to the
/// generator.
pub fn judge(plan: &Plan, live: &Pass, last: &Pass, acknowledged: u64) -> Verdict {
    let mut verdict = Verdict::default();
    compare_passes(plan, live, last, &mut verdict);
    let mut truths = Truths::new();
    for (pass, remains) in [(last, true), (live, false)] {
        take_sources(pass, remains, &mut truths, &mut verdict);
    }
    verdict.sources = truths.len() as u64;
    verdict.compacted = truths.values().filter(|truth| !truth.remains).count() as u64;
    let is_upstream = |truth: &&Truth<'_>| truth.found.origin.is_some_and(|origin| origin.fate == Fate::Upstream);
    verdict.upstream = truths.values().filter(is_upstream).count() as u64;
    let mut vanished: HashMap<u64, u32> = HashMap::new();
    for (place, partition, found) in last.of(|place| !matches!(place, TopicRole::Source(_))) {
        match place {
            TopicRole::Target => verdict.target += 1,
            _ => verdict.dead_letter += 1,
        }
        judge_output(plan, (place, partition, found), &mut truths, &mut vanished, &mut verdict);
    }
    judge_counts(plan, live, &truths, &vanished, &mut verdict);
    let seen =
        truths.values().filter(|truth| truth.found.origin.is_some_and(|origin| origin.fate != Fate::Aborted)).count();
    if ((seen + vanished.len()) as u64) < acknowledged {
        let vanished = vanished.len();
        let text = format!("{acknowledged} acknowledged, {seen} read in the sources, {vanished} only in the outputs");
        verdict.add("unreadable", format!("source records: {text}"));
    }
    judge_order(last, &truths, &mut verdict);
    verdict.reasons = last.reasons.clone();
    verdict
}

/// Checks that the live pass saw the same records as the pass afterwards, except for compaction.
fn compare_passes(plan: &Plan, live: &Pass, last: &Pass, verdict: &mut Verdict) {
    let places: BTreeSet<_> = live.found.keys().chain(last.found.keys()).collect();
    for key in places {
        let list = |pass: &'_ Pass| pass.found.get(key).map(Vec::as_slice).unwrap_or_default().to_vec();
        let (mut then, now) = (list(live), list(last));
        if matches!(key.0, TopicRole::Source(n) if plan.sources[usize::from(n)].compacted) {
            let offsets: std::collections::HashSet<i64> = now.iter().map(|found| found.offset).collect();
            then.retain(|found| offsets.contains(&found.offset));
        }
        if then != now {
            let differs = then.iter().zip(&now).find(|(a, b)| a != b);
            let (was, is) = (then.len(), now.len());
            verdict
                .add("live_differs", format!("{key:?}: {was} records in the live pass, {is} afterwards: {differs:?}"));
        }
    }
}

fn take_sources<'p>(pass: &'p Pass, remains: bool, truths: &mut Truths<'p>, verdict: &mut Verdict) {
    for (place, partition, found) in pass.of(|place| matches!(place, TopicRole::Source(_))) {
        let Some(origin) = found.origin else {
            verdict.add("source", format!("not from the generator: {place:?}/{partition}@{}", found.offset));
            continue;
        };
        if found.is_aborted() {
            verdict.add("source", format!("aborted, but visible: {}", text(place, partition, found)));
        }
        let unknown = || Truth { partition, found, remains, copies: BTreeSet::new(), outputs: Vec::new() };
        let known = truths.entry(origin.id).or_insert_with(unknown);
        if known.found.offset != found.offset {
            known.copies.insert(found.offset);
        }
        if known.partition != partition {
            verdict.add("source", format!("in two partitions: {}", text(place, partition, found)));
        }
    }
}

fn judge_output<'p>(
    plan: &Plan, output: (TopicRole, i32, &'p Found), truths: &mut Truths<'p>, vanished: &mut HashMap<u64, u32>,
    verdict: &mut Verdict,
) {
    let (place, partition, found) = output;
    let describe = || text(place, partition, found);
    let Some(origin) = found.origin else { return verdict.add("alien", describe()) };
    if found.is_aborted() {
        return verdict.add("alien", format!("aborted upstream: {}", describe()));
    }
    if place == TopicRole::DeadLetter && found.reason.is_none() {
        verdict.add("altered", format!("throttle headers: {}", describe()));
    }
    if let Some(reason) = found.reason.and_then(|reason| reason.wrong_in(plan.mode)) {
        verdict.add("dropped", format!("{reason} in mode shape: {}", describe()));
    }
    if !found.placed {
        verdict.add("altered", format!("not in the partition of its key: {}", describe()));
    }
    if place == TopicRole::Target && origin.fate == Fate::Poison {
        verdict.add("alien", format!("poison: {}", describe()));
    }
    let Some(truth) = truths.get_mut(&origin.id) else {
        // The cleaner may have removed the source record before the oracle could read it.
        let compacted = plan.sources.get(usize::from(origin.topic)).is_some_and(|source| source.compacted);
        if !compacted || !found.whole {
            verdict.add("alien", describe());
        }
        *vanished.entry(origin.id).or_default() += 1;
        return;
    };
    let source = truth.found;
    let same =
        if place == TopicRole::Target { source.content == found.content } else { source.stripped == found.stripped };
    if !same || source.origin != found.origin {
        verdict.add("altered", format!("key, value or headers: {}", describe()));
    }
    if (place == TopicRole::DeadLetter || !plan.append_time) && source.timestamp != found.timestamp {
        verdict.add("altered", format!("timestamp {} is {}: {}", source.timestamp, found.timestamp, describe()));
    }
    truth.outputs.push(output);
}

/// Tells whether the program had read a record that was compacted away without an output. The cleaner may remove a
/// record only at a certain age. If a later record of its client and partition was output before that age, the program
/// had read the earlier one as well, and lost it.
fn was_read(plan: &Plan, live: &Pass, truth: &Truth<'_>) -> bool {
    let origin = truth.found.origin.filter(|origin| origin.fate == Fate::Plain);
    let removable_from = u64::try_from(truth.found.timestamp).unwrap_or(0) + plan.compaction_lag_ms;
    origin.and_then(|origin| live.overtaken(origin)).is_some_and(|seen| seen < removable_from)
}

fn judge_counts(plan: &Plan, live: &Pass, truths: &Truths<'_>, vanished: &HashMap<u64, u32>, verdict: &mut Verdict) {
    for truth in truths.values() {
        let origin = truth.found.origin.expect("source records have an origin");
        let describe = || {
            let outputs = truth.outputs.iter().map(|(place, partition, found)| {
                let at = found.offset;
                format!("{place:?}/{partition}@{at} (time {})", found.timestamp)
            });
            let outputs: Vec<String> = outputs.collect();
            let source = &plan.sources[usize::from(origin.topic)].name;
            format!("{source}/{}@{} ({origin:?}) is {}", truth.partition, truth.found.offset, outputs.join(", "))
        };
        let count = |wanted| truth.outputs.iter().filter(|(place, ..)| *place == wanted).count();
        let (admitted, rejected, copies) =
            (count(TopicRole::Target), count(TopicRole::DeadLetter), 1 + truth.copies.len());
        verdict.written_again += truth.copies.len() as u64;
        match (admitted + rejected).cmp(&copies) {
            Ordering::Less if truth.remains || was_read(plan, live, truth) => verdict.add("lost", describe()),
            Ordering::Less => verdict.compacted_unseen += 1,
            Ordering::Greater if admitted > 0 && rejected > 0 => verdict.add("in_both", describe()),
            Ordering::Greater => verdict.add("duplicated", describe()),
            Ordering::Equal => {}
        }
    }
    for (id, _) in vanished.iter().filter(|(_, outputs)| **outputs > 1) {
        verdict.add("duplicated", format!("a record that was compacted away: id {id}"));
    }
}

/// Checks the order of the source for each target partition, client and source partition. The first output of a record
/// that was written twice counts as that of the first copy.
fn judge_order(last: &Pass, truths: &Truths<'_>, verdict: &mut Verdict) {
    let mut newest: HashMap<(i32, u8, i32, u16), i64> = HashMap::new();
    let mut copies: HashMap<u64, usize> = HashMap::new();
    for (place, partition, found) in last.of(|place| place == TopicRole::Target) {
        let Some(Origin { id, topic, partition: source, client, .. }) = found.origin else { continue };
        let Some(truth) = truths.get(&id) else { continue };
        let newest = newest.entry((partition, topic, source, client)).or_insert(-1);
        let mut at = truth.found.offset;
        if !truth.copies.is_empty() {
            let copy = copies.entry(id).or_default();
            at = truth.offsets().nth(*copy).unwrap_or(at);
            *copy += 1;
        }
        if at < *newest {
            verdict.add("reordered", format!("{} (offset {at}) after {newest}", text(place, partition, found)));
        }
        *newest = at.max(*newest);
    }
}

fn text(place: TopicRole, partition: i32, found: &Found) -> String {
    format!("{place:?}/{partition}@{} {:?} time {}", found.offset, found.origin, found.timestamp)
}
