//! The kinds of phase, and how each is written.

use std::time::Duration;

use super::Rate;
use super::read::Table;

/// A phase of a client's load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Phase {
    /// One rate throughout.
    Steady { rate: Rate, length: Duration },
    /// From one rate to another, linearly.
    Ramp { from: Rate, to: Rate, length: Duration },
    /// A number of records in a short time.
    Burst { records: u32, length: Duration },
    /// From the base to the peak, at the peak, and back to the base.
    Campaign { base: Rate, peak: Rate, rise: Duration, plateau: Duration, decay: Duration },
}

/// Reads the keys of one kind of phase.
type ReadPhase = fn(&Table<'_>) -> Option<Phase>;

/// The values of `kind`.
const KINDS: [(&str, ReadPhase); 4] = [("steady", steady), ("ramp", ramp), ("burst", burst), ("campaign", campaign)];

/// Lists all kinds, for an error.
pub fn kinds() -> String {
    KINDS.map(|(name, _)| format!("{name:?}")).join(" or ")
}

impl Phase {
    /// Returns the length of the phase.
    pub fn length(&self) -> Duration {
        self.pieces(1.0).iter().map(|(length, ..)| *length).sum()
    }

    /// Multiplies the length of the phase; a burst keeps its records.
    pub fn stretch(&mut self, factor: f64) {
        let stretch = |length: &mut Duration| *length = length.mul_f64(factor);
        match self {
            Phase::Steady { length, .. } | Phase::Ramp { length, .. } | Phase::Burst { length, .. } => stretch(length),
            Phase::Campaign { rise, plateau, decay, .. } => [rise, plateau, decay].into_iter().for_each(stretch),
        }
    }

    /// Returns the linear pieces of the phase: length, first and last rate in records per second.
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
    // The other keys depend on the kind.
    let phase = table.choice("kind", None, &KINDS)?(table);
    table.finish();
    phase
}

fn steady(table: &Table<'_>) -> Option<Phase> {
    let (rate, length) = (table.rate("rate", None), table.duration("for", None));
    Some(Phase::Steady { rate: rate?, length: length? })
}

fn ramp(table: &Table<'_>) -> Option<Phase> {
    let (from, to, length) = (table.rate("from", None), table.rate("to", None), table.duration("for", None));
    Some(Phase::Ramp { from: from?, to: to?, length: length? })
}

fn burst(table: &Table<'_>) -> Option<Phase> {
    let records = table.count("records", None, 1..=10_000_000);
    let length = table.duration("for", Some(Duration::from_millis(100)));
    Some(Phase::Burst { records: records? as u32, length: length? })
}

fn campaign(table: &Table<'_>) -> Option<Phase> {
    let base = table.rate("base", Some(Rate::PerSecond(0.0)));
    let peak = table.rate("peak", None);
    let rise = table.duration("rise", Some(Duration::from_secs(5)));
    let plateau = table.duration("plateau", None);
    let decay = table.duration("decay", Some(Duration::from_secs(10)));
    Some(Phase::Campaign { base: base?, peak: peak?, rise: rise?, plateau: plateau?, decay: decay? })
}
