//! What happened: a line for each fault as it happens, a table at the end.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Value, json};

/// One fault, as it went.
#[derive(Debug, Clone)]
pub struct Entry {
    pub kind: &'static str,
    pub target: String,
    /// What shows that it took effect, or why it did not.
    pub effect: Result<String, String>,
    /// Until records of every partition flowed again, in ms.
    pub recovery: Option<u64>,
}

/// All faults and anomalies of a run, also in `<dir>/journal.txt`.
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

    /// Seconds since the run began.
    pub fn seconds(&self) -> f32 {
        self.began.elapsed().as_secs_f32()
    }

    pub fn line(&self, text: &str) {
        let line = format!("t={:.1} {text}", self.seconds());
        eprintln!("{line}");
        let _ = writeln!(self.file.lock().expect("no holder panics"), "{line}");
    }

    pub fn fault(&self, entry: Entry) {
        let Entry { kind, target, effect, recovery } = &entry;
        let effect = match effect {
            Ok(effect) => effect.clone(),
            Err(why) => format!("NONE ({why})"),
        };
        let recovery = recovery.map_or("-".to_owned(), |ms| format!("{:.1}s", ms as f32 / 1000.0));
        self.line(&format!("kind={kind} target={target} effect={effect} recovery={recovery}"));
        self.entries.lock().expect("no holder panics").push(entry);
    }

    pub fn anomaly(&self, kind: &'static str, what: String) {
        self.line(&format!("ANOMALY {kind}: {what}"));
        self.anomalies.lock().expect("no holder panics").push((kind, what));
    }

    /// Anomalies by kind.
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

/// How each kind of fault went, over all these.
pub fn table(entries: &[Entry]) -> String {
    let mut kinds: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    entries.iter().for_each(|entry| kinds.entry(entry.kind).or_default().push(entry));
    let mut text = format!("{:<28} {:>6} {:>6} {:>10} {:>10}\n", "fault", "count", "effect", "median s", "max s");
    let (mut count, mut effective) = (0, 0);
    for (kind, entries) in kinds {
        let mut times: Vec<u64> = entries.iter().filter_map(|entry| entry.recovery).collect();
        times.sort_unstable();
        let seconds = |ms: Option<&u64>| ms.map_or("-".to_owned(), |ms| format!("{:.1}", *ms as f32 / 1000.0));
        let with_effect = entries.iter().filter(|entry| entry.effect.is_ok()).count();
        (count, effective) = (count + entries.len(), effective + with_effect);
        let (median, max) = (seconds(times.get(times.len() / 2)), seconds(times.last()));
        text += &format!("{kind:<28} {:>6} {with_effect:>6} {median:>10} {max:>10}\n", entries.len());
    }
    text + &format!("{:<28} {count:>6} {effective:>6}\n", "all")
}

/// The verdict in words, and whether it is good.
pub fn summary(verdict: &Value, anomalies: &BTreeMap<String, u64>) -> (String, bool) {
    let mut all = anomalies.clone();
    for (kind, count) in verdict["anomalies"].as_object().into_iter().flatten() {
        *all.entry(kind.clone()).or_default() += count.as_u64().unwrap_or(0);
    }
    const ALWAYS: [&str; 11] = [
        "lost",
        "duplicated",
        "in_both",
        "alien",
        "altered",
        "reordered",
        "hanging",
        "silent",
        "live_differs",
        "promise",
        "died",
    ];
    ALWAYS.iter().for_each(|kind| _ = all.entry((*kind).to_owned()).or_default());
    let good = all.values().all(|count| *count == 0);
    let counts: Vec<String> = all.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let mut text = format!(
        "{} source records ({} upstream in transactions, {} compacted away), {} in the target, {} dead letters {}\n",
        verdict["sources"],
        verdict["upstream"],
        verdict["compacted"],
        verdict["target"],
        verdict["dead_letter"],
        verdict["reasons"]
    );
    text += &format!(
        "most in a window by append time: {} of {} allowed (0: not judged)\n{}\n",
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

/// The same for programs.
pub fn json_report(verdict: &Value, anomalies: &BTreeMap<String, u64>, entries: &[Entry]) -> Value {
    let faults: Vec<Value> = entries
        .iter()
        .map(|entry| {
            let (effect, took) = match &entry.effect {
                Ok(effect) => (effect, true),
                Err(why) => (why, false),
            };
            json!({ "kind": entry.kind, "target": entry.target, "took_effect": took, "effect": effect,
                "recovery_ms": entry.recovery })
        })
        .collect();
    json!({ "verdict": verdict, "anomalies": anomalies, "faults": faults })
}
