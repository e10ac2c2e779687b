//! The kinds of phase, and how each is written.

use std::time::Duration;

use super::Rate;
use super::read::{self, Table};

/// A part of what a client does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Phase {
    /// The same rate throughout.
    Steady { rate: Rate, length: Duration },
    /// From one rate to another, evenly.
    Ramp { from: Rate, to: Rate, length: Duration },
    /// So many records in a short time.
    Burst { records: u32, length: Duration },
    /// From the base to the peak, at the peak, and back to the base.
    Campaign { base: Rate, peak: Rate, rise: Duration, plateau: Duration, decay: Duration },
}

/// What `kind` may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Steady,
    Ramp,
    Burst,
    Campaign,
}

impl Kind {
    const WORDS: [(&'static str, Kind); 4] =
        [("steady", Kind::Steady), ("ramp", Kind::Ramp), ("burst", Kind::Burst), ("campaign", Kind::Campaign)];

    /// All of them, for people.
    pub fn names() -> String {
        Kind::WORDS.map(|(word, _)| format!("{word:?}")).join(" or ")
    }
}

impl Phase {
    /// How long it takes.
    pub fn length(&self) -> Duration {
        match *self {
            Phase::Steady { length, .. } | Phase::Ramp { length, .. } | Phase::Burst { length, .. } => length,
            Phase::Campaign { rise, plateau, decay, .. } => rise + plateau + decay,
        }
    }

    /// Makes it so many times as long; a burst keeps its records.
    pub fn stretch(&mut self, factor: f64) {
        let stretch = |length: &mut Duration| *length = length.mul_f64(factor);
        match self {
            Phase::Steady { length, .. } | Phase::Ramp { length, .. } | Phase::Burst { length, .. } => stretch(length),
            Phase::Campaign { rise, plateau, decay, .. } => [rise, plateau, decay].into_iter().for_each(stretch),
        }
    }

    /// Its straight pieces: how long, and from which rate to which, in records per second.
    pub fn pieces(&self, capacity_per_second: f64) -> Vec<(Duration, f64, f64)> {
        let per_second = |rate: Rate| rate.per_second(capacity_per_second);
        match *self {
            Phase::Steady { rate, length } => vec![(length, per_second(rate), per_second(rate))],
            Phase::Ramp { from, to, length } => vec![(length, per_second(from), per_second(to))],
            Phase::Burst { records, length } => {
                let rate = f64::from(records) / length.as_secs_f64().max(1e-9);
                vec![(length, rate, rate)]
            }
            Phase::Campaign { base, peak, rise, plateau, decay } => {
                let (base, peak) = (per_second(base), per_second(peak));
                vec![(rise, base, peak), (plateau, peak, peak), (decay, peak, base)]
            }
        }
    }
}

/// Reads one `[[client.phase]]`.
pub fn read(table: &Table<'_>) -> Option<Phase> {
    let kind = table.choice("kind", None, &Kind::WORDS);
    // Without a kind nobody can say which keys belong.
    let phase = match kind? {
        Kind::Steady => {
            let (rate, length) = (table.rate("rate", None), table.duration("for", None));
            rate.zip(length).map(|(rate, length)| Phase::Steady { rate, length })
        }
        Kind::Ramp => {
            let (from, to, length) = (table.rate("from", None), table.rate("to", None), table.duration("for", None));
            from.zip(to).zip(length).map(|((from, to), length)| Phase::Ramp { from, to, length })
        }
        Kind::Burst => {
            let allowed = "a whole number from 1 to 10000000";
            let records = table.value("records", None, allowed, |item| read::count(item, 1, 10_000_000));
            let length = table.duration("for", Some(Duration::from_millis(100)));
            records.zip(length).map(|(records, length)| Phase::Burst { records: records as u32, length })
        }
        Kind::Campaign => campaign(table),
    };
    table.finish();
    phase
}

fn campaign(table: &Table<'_>) -> Option<Phase> {
    let base = table.rate("base", Some(Rate::PerSecond(0.0)));
    let peak = table.rate("peak", None);
    let rise = table.duration("rise", Some(Duration::from_secs(5)));
    let plateau = table.duration("plateau", None);
    let decay = table.duration("decay", Some(Duration::from_secs(10)));
    Some(Phase::Campaign { base: base?, peak: peak?, rise: rise?, plateau: plateau?, decay: decay? })
}
