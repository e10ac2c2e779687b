//! What was asked for on the command line.

use std::path::PathBuf;

use crate::faults;
use crate::plan::Mode;
use crate::teeth;

pub const USAGE: &str = "\
Usage: scripts/chaos [OPTION]...

Runs `delivery = \"exactly_once\"` on a cluster of three real brokers while a seeded schedule of faults goes on, and lets an
oracle of its own process judge what came out. The exit code is 0 if nothing was wrong.

  --minutes N              how long faults go on (default 5); start, quiet phase and judging come on top
  --seed S                 which faults, on whom, when (default: the time)
  --mode shape|reject|both default shape; both: one after the other, half the time each, with the other kind of target in the
                           second half (odd seeds begin with append time, even ones with a compacted target)
  --records-per-second R   of the generator, on average (default 1200)
  --instances N            that run all the time (default 3)
  --faults A,B,C           only these kinds
  --one-at-a-time          no fault before everything has got over the one before: for measuring how long that takes
  --group-protocol P       classic (default) or consumer (KIP-848)
  --short                  a fixed list of a few faults, at most 4 minutes in all
  --teeth                  plants each known mistake in the program: the oracle must find it, and nothing without any
  --plants A,B             with --teeth: only these
  --list                   print the kinds of faults
  --keep DIR               where logs and reports go, and stay; else they go when nothing was wrong
  --help
";

/// What to do.
#[derive(Debug, Clone)]
pub struct Args {
    pub minutes: f64,
    pub seed: u64,
    pub modes: Vec<Mode>,
    pub rate: u64,
    pub instances: usize,
    pub faults: Vec<String>,
    pub group_protocol: String,
    pub one_at_a_time: bool,
    pub short: bool,
    pub teeth: bool,
    /// Only these mistakes.
    pub plants: Vec<String>,
    pub keep: Option<PathBuf>,
}

/// Parses; `Err` is what to say instead of running, and the exit code.
pub fn parse(words: &[String]) -> Result<Args, (String, i32)> {
    let mut args = Args {
        minutes: 5.0,
        seed: crate::plan::now_ms() / 1000,
        modes: vec![Mode::Shape],
        rate: 1200,
        instances: 3,
        faults: Vec::new(),
        group_protocol: "classic".to_owned(),
        one_at_a_time: false,
        short: false,
        teeth: false,
        plants: Vec::new(),
        keep: None,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or_else(|| refuse(&format!("{word} needs a value")));
        match word.as_str() {
            "--help" | "-h" => return Err((USAGE.to_owned(), 0)),
            "--list" => {
                let names: Vec<&str> = faults::KINDS.iter().map(|kind| kind.name).collect();
                return Err((names.join("\n") + "\n", 0));
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
                    other => return Err(refuse(&format!("no mode is called {other:?}"))),
                }
            }
            "--faults" => args.faults = value()?.split(',').map(str::to_owned).collect(),
            "--group-protocol" => {
                args.group_protocol = value()?;
                if !["classic", "consumer"].contains(&args.group_protocol.as_str()) {
                    return Err(refuse("a group protocol is classic or consumer"));
                }
            }
            "--one-at-a-time" => args.one_at_a_time = true,
            "--short" => args.short = true,
            "--teeth" => args.teeth = true,
            "--plants" => args.plants = value()?.split(',').map(str::to_owned).collect(),
            "--keep" => args.keep = Some(value()?.into()),
            other => return Err(refuse(&format!("unknown: {other}"))),
        }
    }
    if let Some(unknown) = args.faults.iter().find(|name| faults::find(name).is_none()) {
        return Err(refuse(&format!("no fault is called {unknown:?}; see --list")));
    }
    if let Some(unknown) = args.plants.iter().find(|name| !teeth::names().any(|known| known == **name)) {
        let known: Vec<&str> = teeth::names().collect();
        return Err(refuse(&format!("no mistake is called {unknown:?}; there are {}", known.join(", "))));
    }
    Ok(args)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, (String, i32)> {
    text.parse().map_err(|_| refuse(&format!("{text:?} is no number")))
}

fn refuse(why: &str) -> (String, i32) {
    (format!("{why}\n\n{USAGE}"), 2)
}
