//! The options of the command line.

use std::path::PathBuf;

use watermaster_kafka::failpoint::Fault;

use crate::faults;
use crate::plan::{Mode, Plan, Source};

/// Capacity of all instances together, in percent of the average load. At its peaks the load exceeds it.
const CAPACITY_PERCENT: u64 = 150;
const CYCLE_MS: u64 = 5_000;
pub const COMMIT_INTERVAL_MS: u64 = 200;
/// The same of a campaign: all capacity is in demand, and a round holds little of it.
const CAMPAIGN_CAPACITY_PERCENT: u64 = 85;
const CAMPAIGN_CYCLE_MS: u64 = 10_000;
const CAMPAIGN_COMMIT_INTERVAL_MS: u64 = 100;

/// The silence after which an instance's part of the capacity is claimed. Some pauses are shorter, most are longer.
const SILENCE_MS: u64 = 3_000;

pub const USAGE: &str = "\
Usage: scripts/chaos [OPTION]...

Runs `delivery = \"exactly_once\"` on a cluster of three real brokers under a seeded schedule of faults. An oracle in a
process of its own checks every record. The exit code is 0 if all checks passed.

  --minutes N              time for faults (default 5); the start, the quiet phase and judging take extra time
  --seed S                 decides the faults, their targets and their times (default: the time)
  --mode shape|reject|both mode of the service (default shape); both: one after the other, half the time each. The
                           second half uses the other kind of target (odd seeds begin with append time, even ones with a
                           compacted target)
  --records-per-second R   average rate of the generator (default 1200)
  --instances N            number of instances that run all the time (default 3)
  --scope group|instance   group (default): the instances share one capacity; instance: each has one for itself
  --pace                   the service has a consumer group of its own, and pace searches its capacity
  --rules                  rules change all the time, at any instance: no promise may break, and in the end all
                           instances have the rules that were acknowledged
  --campaign               constant load above the capacity, mode shape, and one fault of instances or of the control
                           topic at a time: tells for each how much capacity was used, and when all of it was again
  --faults A,B,C           only these kinds of faults
  --one-at-a-time          wait for recovery before the next fault: measures the recovery time of each fault alone
  --group-protocol P       classic (default) or consumer (KIP-848)
  --short                  a fixed list of a few faults, at most 4 minutes in all
  --teeth                  check the oracle: it must find each fault planted in the program, and nothing without one
  --plants A,B             with --teeth: only these planted faults
  --list                   print the kinds of faults
  --keep DIR               keep logs and reports in DIR; without it they are removed if all checks passed
  --help
";

/// The parsed options.
#[derive(Debug, Clone)]
pub struct Args {
    pub minutes: f64,
    pub seed: u64,
    pub modes: Vec<Mode>,
    pub rate: u64,
    pub instances: usize,
    pub grouped: bool,
    /// A consumer group works behind the target, and pace searches its capacity (`--pace`).
    pub pace: bool,
    /// Rules change at run time (`--rules`).
    pub rules: bool,
    /// Measures how much of the capacity is used around each fault (`--campaign`).
    pub campaign: bool,
    pub faults: Vec<String>,
    pub group_protocol: String,
    pub one_at_a_time: bool,
    pub short: bool,
    /// Checks the oracle with planted faults (`--teeth`).
    pub mutants: bool,
    /// The planted faults to check; all if empty (`--plants`).
    pub planted: Vec<String>,
    pub keep: Option<PathBuf>,
}

impl Default for Args {
    fn default() -> Args {
        Args {
            minutes: 5.0,
            seed: crate::plan::now_ms() / 1000,
            modes: vec![Mode::Shape],
            rate: 1200,
            instances: 3,
            grouped: true,
            pace: false,
            rules: false,
            campaign: false,
            faults: Vec::new(),
            group_protocol: "classic".to_owned(),
            one_at_a_time: false,
            short: false,
            mutants: false,
            planted: Vec::new(),
            keep: None,
        }
    }
}

/// A text to print instead of running, and the exit code.
#[derive(Debug)]
pub struct EarlyExit {
    pub text: String,
    pub code: i32,
}

/// Parses the words of the command line.
pub fn parse(words: &[String]) -> Result<Args, EarlyExit> {
    let mut args = Args::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or_else(|| refuse(&format!("{word} needs a value")));
        match word.as_str() {
            "--help" | "-h" => return Err(EarlyExit { text: USAGE.to_owned(), code: 0 }),
            "--list" => {
                let names: Vec<&str> = faults::KINDS.iter().map(|kind| kind.name).collect();
                return Err(EarlyExit { text: names.join("\n") + "\n", code: 0 });
            }
            "--minutes" => args.minutes = number(&value()?)?,
            "--seed" => args.seed = number(&value()?)?,
            "--records-per-second" => args.rate = number(&value()?)?,
            "--instances" => args.instances = number(&value()?)?,
            "--mode" => {
                args.modes = match value()?.as_str() {
                    "shape" => vec![Mode::Shape],
                    "reject" => vec![Mode::Reject],
                    "both" => vec![Mode::Shape, Mode::Reject],
                    other => return Err(refuse(&format!("unknown mode {other:?}: expected shape, reject or both"))),
                }
            }
            "--scope" => {
                args.grouped = match value()?.as_str() {
                    "group" => true,
                    "instance" => false,
                    other => return Err(refuse(&format!("unknown scope {other:?}: expected group or instance"))),
                }
            }
            "--pace" => args.pace = true,
            "--rules" => args.rules = true,
            "--campaign" => args.campaign = true,
            "--faults" => args.faults = value()?.split(',').map(str::to_owned).collect(),
            "--group-protocol" => {
                args.group_protocol = value()?;
                if !["classic", "consumer"].contains(&args.group_protocol.as_str()) {
                    return Err(refuse("the group protocol is classic or consumer"));
                }
            }
            "--one-at-a-time" => args.one_at_a_time = true,
            "--short" => args.short = true,
            "--teeth" => args.mutants = true,
            "--plants" => args.planted = value()?.split(',').map(str::to_owned).collect(),
            "--keep" => args.keep = Some(value()?.into()),
            other => return Err(refuse(&format!("unknown option {other}"))),
        }
    }
    if let Some(unknown) = args.faults.iter().find(|name| faults::find(name).is_none()) {
        return Err(refuse(&format!("unknown fault {unknown:?}; see --list")));
    }
    let known: Vec<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
    if let Some(unknown) = args.planted.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(refuse(&format!("unknown planted fault {unknown:?}; known: {}", known.join(", "))));
    }
    Ok(args)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, EarlyExit> {
    text.parse().map_err(|_| refuse(&format!("{text:?} is not a number")))
}

fn refuse(why: &str) -> EarlyExit {
    EarlyExit { text: format!("{why}\n\n{USAGE}"), code: 2 }
}

impl Args {
    /// Returns the timeouts of a session and of a transaction. A short run has no time for long ones.
    pub fn timeouts_ms(&self) -> (u64, u64) {
        if self.short { (4_000, 6_000) } else { (6_000, 8_000) }
    }

    /// Returns the plan of a run in this mode.
    pub fn plan(&self, bootstrap: String, mode: Mode, append_time: bool) -> Plan {
        let group = format!("chaos-{}-{}", self.seed, if mode == Mode::Shape { "shape" } else { "reject" });
        let (percent, cycle_ms, commit_interval_ms) = match self.campaign {
            true => (CAMPAIGN_CAPACITY_PERCENT, CAMPAIGN_CYCLE_MS, CAMPAIGN_COMMIT_INTERVAL_MS),
            false => (CAPACITY_PERCENT, CYCLE_MS, COMMIT_INTERVAL_MS),
        };
        let source = |n: usize, compacted| Source { name: format!("{group}.source-{n}"), partitions: 4, compacted };
        Plan {
            seed: self.seed,
            mode,
            bootstrap,
            service: "kyc".to_owned(),
            // The oracle of a campaign counts records, so that none may be compacted away.
            sources: vec![source(0, false), source(1, false), source(2, !self.campaign)],
            target: format!("{group}.target"),
            dead_letter: format!("{group}.dead-letter"),
            append_time,
            rate: self.rate,
            grouped: self.grouped,
            capacity: self.rate * percent * cycle_ms
                / 1000
                / 100
                / if self.grouped { 1 } else { self.instances as u64 },
            cycle_ms,
            commit_interval_ms,
            session_ms: self.timeouts_ms().0,
            transaction_ms: self.timeouts_ms().1,
            silence_ms: SILENCE_MS,
            steady: self.campaign,
            pace: self.pace,
            rules: self.rules,
            compaction_lag_ms: if self.short { 15_000 } else { 30_000 },
            group_protocol: self.group_protocol.clone(),
            more_kafka: String::new(),
            more_properties: String::new(),
            group,
        }
    }
}
