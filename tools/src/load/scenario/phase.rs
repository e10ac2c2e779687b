//! The kinds of phase, and how each is written.

use std::time::Duration;

use strum::{Display, EnumString, VariantNames};
use watermaster_settings::reader::{Choice, Section};

use super::Rate;

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

/// The values of `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum PhaseKind {
    Steady,
    Ramp,
    Burst,
    Campaign,
}

impl Choice for PhaseKind {}

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

/// Reads one variant of a phase: each field from a key of its name, the length from `for`.
macro_rules! variant {
    ($section:ident => $variant:ident { $($field:ident),+ }) => {{
        $(let $field = $section.get(if stringify!($field) == "length" { "for" } else { stringify!($field) });)+
        Some(Phase::$variant { $($field: $field?),+ })
    }};
}

/// Reads one `[[client.phase]]`.
pub fn read(section: &Section<'_>) -> Option<Phase> {
    let kind: PhaseKind = section.get("kind")?;
    let section = section.variant(&kind.to_string());
    match kind {
        PhaseKind::Steady => variant!(section => Steady { rate, length }),
        PhaseKind::Ramp => variant!(section => Ramp { from, to, length }),
        PhaseKind::Burst => variant!(section => Burst { records, length }),
        PhaseKind::Campaign => variant!(section => Campaign { base, peak, rise, plateau, decay }),
    }
}
