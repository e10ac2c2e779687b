//! Compares what was in the sources with what came out.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use super::pass::{Found, Pass, Where};
use crate::origin::{Fate, Origin};
use crate::plan::Plan;

/// Of each kind of anomaly so many are told in full.
const SAMPLES: usize = 12;

/// What was found, and everything that is wrong with it.
#[derive(Debug, Default, Serialize)]
pub struct Verdict {
    /// Anomalies by kind.
    pub anomalies: BTreeMap<&'static str, u64>,
    pub samples: Vec<String>,
    /// Records in the sources, in the target, in the dead-letter topic; compacted away before the end.
    pub sources: u64,
    pub target: u64,
    pub dead_letter: u64,
    pub compacted: u64,
    /// Of those, what never came out, because the cleaner may have been faster than the program.
    pub compacted_unseen: u64,
    /// How many more there are because the generator's producer wrote them twice.
    pub written_again: u64,
    /// Records of transactions that were aborted upstream would be `alien`; so many were committed.
    pub upstream: u64,
    pub reasons: BTreeMap<&'static str, u64>,
    pub most_in_a_window: u64,
    pub allowed_in_a_window: u64,
}

impl Verdict {
    pub fn wrong(&mut self, kind: &'static str, what: String) {
        let count = self.anomalies.entry(kind).or_default();
        *count += 1;
        if *count <= SAMPLES as u64 {
            self.samples.push(format!("{kind}: {what}"));
        }
    }
}

/// A source record, and what became of it.
struct Truth<'p> {
    partition: i32,
    found: &'p Found,
    /// It was still there at the end.
    remains: bool,
    /// Where else it stands in its partition: an idempotent producer without transactions may write a record again when it
    /// has to begin its sequence anew. Each of them is a record, and has to come out.
    again: BTreeSet<i64>,
    outputs: Vec<(Where, i32, &'p Found)>,
}

impl Truth<'_> {
    /// The offsets at which it stands, ascending.
    fn places(&self) -> impl Iterator<Item = i64> {
        let mut places = self.again.clone();
        places.insert(self.found.offset);
        places.into_iter()
    }
}

type Truths<'p> = HashMap<u64, Truth<'p>>;

/// Compares; both passes are over by now. `acknowledged`: records that the generator knows to be in the sources.
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
    for (place, partition, found) in last.of(|place| !matches!(place, Where::Source(_))) {
        match place {
            Where::Target => verdict.target += 1,
            _ => verdict.dead_letter += 1,
        }
        judge_output(plan, (place, partition, found), &mut truths, &mut vanished, &mut verdict);
    }
    judge_counts(plan, live, &truths, &vanished, &mut verdict);
    let seen =
        truths.values().filter(|truth| truth.found.origin.is_some_and(|origin| origin.fate != Fate::Aborted)).count();
    if ((seen + vanished.len()) as u64) < acknowledged {
        let why = format!("{acknowledged} records were acknowledged, {seen} were read and {} came out", vanished.len());
        verdict.wrong("unreadable", format!("source topics: {why} without having been read"));
    }
    judge_order(last, &truths, &mut verdict);
    verdict.reasons = last.reasons.clone();
    verdict
}

/// What a reader saw while the run lasted is what it sees afterwards.
fn compare_passes(plan: &Plan, live: &Pass, last: &Pass, verdict: &mut Verdict) {
    let places: BTreeSet<_> = live.found.keys().chain(last.found.keys()).collect();
    for key in places {
        let list = |pass: &'_ Pass| pass.found.get(key).map(Vec::as_slice).unwrap_or_default().to_vec();
        let (mut then, now) = (list(live), list(last));
        if matches!(key.0, Where::Source(n) if plan.sources[usize::from(n)].compacted) {
            let offsets: std::collections::HashSet<i64> = now.iter().map(|found| found.offset).collect();
            then.retain(|found| offsets.contains(&found.offset));
        }
        if then != now {
            let differs = then.iter().zip(&now).find(|(a, b)| a != b);
            let (was, is) = (then.len(), now.len());
            verdict.wrong("live_differs", format!("{key:?}: {was} records were seen, {is} are there: {differs:?}"));
        }
    }
}

fn take_sources<'p>(pass: &'p Pass, remains: bool, truths: &mut Truths<'p>, verdict: &mut Verdict) {
    for (place, partition, found) in pass.of(|place| matches!(place, Where::Source(_))) {
        let Some(origin) = found.origin else {
            verdict.wrong("source", format!("not of the generator: {place:?}/{partition}@{}", found.offset));
            continue;
        };
        if found.is_aborted() {
            verdict.wrong("source", format!("aborted, but there: {}", text(place, partition, found)));
        }
        let unknown = || Truth { partition, found, remains, again: BTreeSet::new(), outputs: Vec::new() };
        let known = truths.entry(origin.id).or_insert_with(unknown);
        if known.found.offset != found.offset {
            known.again.insert(found.offset);
        }
        if known.partition != partition {
            verdict.wrong("source", format!("in two partitions: {}", text(place, partition, found)));
        }
    }
}

fn judge_output<'p>(
    plan: &Plan,
    output: (Where, i32, &'p Found),
    truths: &mut Truths<'p>,
    vanished: &mut HashMap<u64, u32>,
    verdict: &mut Verdict,
) {
    let (place, partition, found) = output;
    let told = || text(place, partition, found);
    let Some(origin) = found.origin else { return verdict.wrong("alien", told()) };
    if found.is_aborted() {
        return verdict.wrong("alien", format!("aborted upstream: {}", told()));
    }
    if place == Where::DeadLetter && found.reason.is_none() {
        verdict.wrong("altered", format!("its throttle headers: {}", told()));
    }
    if !found.placed {
        verdict.wrong("altered", format!("not in the partition of its key: {}", told()));
    }
    if place == Where::Target && origin.fate == Fate::Poison {
        verdict.wrong("alien", format!("poison: {}", told()));
    }
    let Some(truth) = truths.get_mut(&origin.id) else {
        // The cleaner took it before the oracle could read it.
        let compacted = plan.sources.get(usize::from(origin.topic)).is_some_and(|source| source.compacted);
        if !compacted || !found.whole {
            verdict.wrong("alien", told());
        }
        *vanished.entry(origin.id).or_default() += 1;
        return;
    };
    let source = truth.found;
    let same = if place == Where::Target { source.content == found.content } else { source.stripped == found.stripped };
    if !same || source.origin != found.origin {
        verdict.wrong("altered", format!("key, value or headers: {}", told()));
    }
    if (place == Where::DeadLetter || !plan.append_time) && source.timestamp != found.timestamp {
        verdict.wrong("altered", format!("timestamp {} is {}: {}", source.timestamp, found.timestamp, told()));
    }
    truth.outputs.push(output);
}

/// A record that the cleaner took, and that never came out, was there to be read until it was old enough to be taken. If one
/// of its client that came after it in its partition came out before that, it had been read, and was lost.
fn was_read(plan: &Plan, live: &Pass, truth: &Truth<'_>) -> bool {
    let origin = truth.found.origin.filter(|origin| origin.fate == Fate::Plain);
    let taken_from = u64::try_from(truth.found.timestamp).unwrap_or(0) + plan.compaction_lag_ms;
    origin.and_then(|origin| live.overtaken(origin)).is_some_and(|seen| seen < taken_from)
}

fn judge_counts(plan: &Plan, live: &Pass, truths: &Truths<'_>, vanished: &HashMap<u64, u32>, verdict: &mut Verdict) {
    for truth in truths.values() {
        let origin = truth.found.origin.expect("only records with one are taken");
        let told = || {
            let outputs = truth.outputs.iter().map(|(place, partition, found)| {
                let at = found.offset;
                format!("{place:?}/{partition}@{at} (time {})", found.timestamp)
            });
            let outputs: Vec<String> = outputs.collect();
            let source = &plan.sources[usize::from(origin.topic)].name;
            format!("{source}/{}@{} ({origin:?}) is {}", truth.partition, truth.found.offset, outputs.join(", "))
        };
        let count = |wanted| truth.outputs.iter().filter(|(place, ..)| *place == wanted).count();
        let (admitted, rejected, copies) = (count(Where::Target), count(Where::DeadLetter), 1 + truth.again.len());
        verdict.written_again += truth.again.len() as u64;
        match (admitted + rejected).cmp(&copies) {
            Ordering::Less if truth.remains || was_read(plan, live, truth) => verdict.wrong("lost", told()),
            Ordering::Less => verdict.compacted_unseen += 1,
            Ordering::Greater if admitted > 0 && rejected > 0 => verdict.wrong("in_both", told()),
            Ordering::Greater => verdict.wrong("duplicated", told()),
            Ordering::Equal => {}
        }
    }
    for (id, _) in vanished.iter().filter(|(_, outputs)| **outputs > 1) {
        verdict.wrong("duplicated", format!("a record that was compacted away: id {id}"));
    }
}

/// By target partition, client and source partition: the order of the source. Of a record that was written twice the first
/// to come out is the first that was written.
fn judge_order(last: &Pass, truths: &Truths<'_>, verdict: &mut Verdict) {
    let mut newest: HashMap<(i32, u8, i32, u16), i64> = HashMap::new();
    let mut copies: HashMap<u64, usize> = HashMap::new();
    for (place, partition, found) in last.of(|place| place == Where::Target) {
        let Some(Origin { id, topic, partition: source, client, .. }) = found.origin else { continue };
        let Some(truth) = truths.get(&id) else { continue };
        let newest = newest.entry((partition, topic, source, client)).or_insert(-1);
        let mut at = truth.found.offset;
        if !truth.again.is_empty() {
            let copy = copies.entry(id).or_default();
            at = truth.places().nth(*copy).unwrap_or(at);
            *copy += 1;
        }
        if at < *newest {
            verdict.wrong("reordered", format!("{} (offset {at}) after {newest}", text(place, partition, found)));
        }
        *newest = at.max(*newest);
    }
}

fn text(place: Where, partition: i32, found: &Found) -> String {
    format!("{place:?}/{partition}@{} {:?} time {}", found.offset, found.origin, found.timestamp)
}
