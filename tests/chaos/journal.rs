//! The record of a run: a line for each fault as it happens, and a table at the end.

use std::fs::{File, OpenOptions};
use std::time::{Duration, Instant};
use std::{collections::BTreeMap, io::Write, path::Path, sync::Mutex};

use serde::Serialize;
use serde_json::{Value, json};

use crate::outcome::Effect;

/// One injected fault.
#[derive(Debug, Clone)]
pub struct Entry {
    pub kind: &'static str,
    pub target: String,
    pub effect: Effect,
    /// Start and end in ms since 1970.
    pub began: u64,
    pub ended: u64,
    /// Duration of the fault, including the wait for a target.
    pub lasted: Duration,
    /// `None`: no recovery within the timeout.
    pub recovery: Option<Recovery>,
}

/// Times of the recovery from a fault in ms, as a `read_committed` reader sees them; accurate to about 0.2 s.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Recovery {
    /// From the start of the fault to the first record of a partition that another instance had to take over.
    pub first: Option<u64>,
    /// Longest time without an output of some partition, since the start of the fault.
    pub silence: u64,
    /// From the end of the fault until every partition had an output.
    pub after_end: u64,
}

/// Explains the columns of [`table`].
const LEGEND: &str = "\
seconds, median and maximum, of the faults that took effect. first: from the start of the fault to the first record
committed by the instance that takes over. silent: the longest time without a record of some partition, since the start
of the fault. after: from the end of the fault (killed processes started, held requests released; all brokers down: when
they answer) until every partition flows.
";

/// All faults and anomalies of a run; also written to `<dir>/journal.txt`.
pub struct Journal {
    began: Instant,
    entries: Mutex<Vec<Entry>>,
    anomalies: Mutex<Vec<(&'static str, String)>>,
    file: Mutex<File>,
}

impl Journal {
    pub fn new(dir: &Path) -> Journal {
        let file = OpenOptions::new().create(true).append(true).open(dir.join("journal.txt"));
        let file = Mutex::new(file.expect("the run's directory can be written"));
        Journal { began: Instant::now(), entries: Mutex::default(), anomalies: Mutex::default(), file }
    }

    /// Returns the seconds since the start of the run.
    pub fn seconds(&self) -> f32 {
        self.began.elapsed().as_secs_f32()
    }

    pub fn line(&self, text: &str) {
        let line = format!("t={:.1} {text}", self.seconds());
        eprintln!("{line}");
        let _ = writeln!(self.file.lock().expect("no holder panics"), "{line}");
    }

    pub fn fault(&self, entry: Entry) {
        let Entry { kind, target, effect, lasted, recovery, .. } = &entry;
        let effect = match effect {
            Effect::Observed(evidence) => evidence.clone(),
            Effect::Missing(why) => format!("NONE ({why})"),
        };
        let seconds = |ms: u64| ms as f32 / 1000.0;
        let recovery = recovery.map_or("recovery=-".to_owned(), |Recovery { first, silence, after_end }| {
            let first = first.map_or("-".to_owned(), |ms| format!("{:.1}s", seconds(ms)));
            format!("first={first} silent={:.1}s after={:.1}s", seconds(silence), seconds(after_end))
        });
        let lasted = lasted.as_secs_f32();
        self.line(&format!("kind={kind} target={target} effect={effect} took={lasted:.1}s {recovery}"));
        self.entries.lock().expect("no holder panics").push(entry);
    }

    pub fn anomaly(&self, kind: &'static str, what: String) {
        self.line(&format!("ANOMALY {kind}: {what}"));
        self.anomalies.lock().expect("no holder panics").push((kind, what));
    }

    /// Returns the number of anomalies by kind.
    pub fn anomalies(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for (kind, _) in &*self.anomalies.lock().expect("no holder panics") {
            *counts.entry((*kind).to_owned()).or_default() += 1;
        }
        counts
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.entries.lock().expect("no holder panics").clone()
    }
}

/// Figures of one kind of fault.
#[derive(Debug, Default, Serialize)]
pub struct KindRow {
    pub injected: usize,
    pub with_effect: usize,
    pub first: Option<Spread>,
    pub silence: Option<Spread>,
    pub after_end: Option<Spread>,
}

/// Median and maximum of times in ms.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Spread {
    pub median: u64,
    pub max: u64,
}

impl Spread {
    fn of(times: impl Iterator<Item = u64>) -> Option<Spread> {
        let mut times: Vec<u64> = times.collect();
        times.sort_unstable();
        Some(Spread { median: *times.get(times.len() / 2)?, max: *times.last()? })
    }
}

/// Returns the figures of each kind of fault that was injected.
pub fn rows(entries: &[Entry]) -> BTreeMap<&'static str, KindRow> {
    let mut kinds: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    entries.iter().for_each(|entry| kinds.entry(entry.kind).or_default().push(entry));
    let row = |entries: &[&Entry]| {
        let effective = || entries.iter().filter(|entry| entry.effect.is_observed());
        let recoveries = || effective().filter_map(|entry| entry.recovery);
        KindRow {
            injected: entries.len(),
            with_effect: effective().count(),
            first: Spread::of(recoveries().filter_map(|recovery| recovery.first)),
            silence: Spread::of(recoveries().map(|recovery| recovery.silence)),
            after_end: Spread::of(recoveries().map(|recovery| recovery.after_end)),
        }
    };
    kinds.into_iter().map(|(kind, entries)| (kind, row(&entries))).collect()
}

/// Formats the figures of each kind as a table.
pub fn table(entries: &[Entry]) -> String {
    let mut text = format!(
        "{LEGEND}{:<24} {:>5} {:>6} {:>7}{:>7} {:>7}{:>7} {:>7}{:>7}\n",
        "fault", "count", "effect", "first", "max", "silent", "max", "after", "max"
    );
    let spread = |spread: Option<Spread>| {
        let seconds = |ms: u64| format!("{:.1}", ms as f32 / 1000.0);
        let [median, max] = spread.map_or(["-".to_owned(), "-".to_owned()], |s| [seconds(s.median), seconds(s.max)]);
        format!("{median:>7}{max:>7}")
    };
    let rows = rows(entries);
    for (kind, row) in &rows {
        let [first, silence, after] = [row.first, row.silence, row.after_end].map(spread);
        text += &format!("{kind:<24} {:>5} {:>6} {first} {silence} {after}\n", row.injected, row.with_effect);
    }
    let (count, effective) = (entries.len(), entries.iter().filter(|entry| entry.effect.is_observed()).count());
    text + &format!("{:<24} {count:>5} {effective:>6}   ({} kinds)\n", "all", rows.len())
}

/// Describes the verdict, and tells whether it is good.
pub fn summary(verdict: &Value, anomalies: &BTreeMap<String, u64>) -> (String, bool) {
    let mut all = anomalies.clone();
    for (kind, count) in verdict["anomalies"].as_object().into_iter().flatten() {
        *all.entry(kind.clone()).or_default() += count.as_u64().unwrap_or(0);
    }
    const ALWAYS: [&str; 13] = [
        "lost", "duplicated", "in_both", "alien", "altered", "dropped", "reordered", "hanging", "silent",
        "live_differs", "promise", "circulating", "died",
    ];
    ALWAYS.iter().for_each(|kind| _ = all.entry((*kind).to_owned()).or_default());
    let good = all.values().all(|count| *count == 0);
    let counts: Vec<String> = all.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let mut text = format!(
        "{} source records ({} upstream in transactions, {} compacted away, {} of them before an output), {} of them \
         written again by their producer, {} in the target, {} dead letters {}\n",
        verdict["sources"],
        verdict["upstream"],
        verdict["compacted"],
        verdict["compacted_unseen"],
        verdict["written_again"],
        verdict["target"],
        verdict["dead_letter"],
        verdict["reasons"]
    );
    text += &format!(
        "maximum in a window by append time: {} of {} allowed (0: not judged)\n{}\n",
        verdict["most_in_a_window"],
        verdict["allowed_in_a_window"],
        counts.join(", ")
    );
    for sample in verdict["samples"].as_array().into_iter().flatten() {
        text += &format!("  {}\n", sample.as_str().unwrap_or_default());
    }
    text += if good { "verdict: GOOD\n" } else { "verdict: BAD\n" };
    (text, good)
}

/// Returns verdict, anomalies and faults as JSON.
pub fn json_report(verdict: &Value, anomalies: &BTreeMap<String, u64>, entries: &[Entry]) -> Value {
    let faults: Vec<Value> = entries
        .iter()
        .map(|entry| {
            json!({ "kind": entry.kind, "target": entry.target, "took_effect": entry.effect.is_observed(),
                "effect": entry.effect.description(), "lasted_ms": entry.lasted.as_millis() as u64,
                "recovery_ms": entry.recovery })
        })
        .collect();
    json!({ "verdict": verdict, "anomalies": anomalies, "faults": faults })
}
