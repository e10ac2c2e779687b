//! What must hold, at every moment and in the end.
//!
//! Offsets stay below 128, so what is known of a partition is a few 128-bit sets.

use watermaster_core::offset_map;
use watermaster_core::round::{Commit, Round};
use watermaster_core::throttle::Throttle;

use super::broker::{Broker, DEAD_LETTER};
use super::source::{PARTITIONS, Poison, Record, Source};

/// Offsets of one partition.
pub type Offsets = u128;

/// The most offsets of a source partition.
pub const OFFSETS: i64 = 128;

#[derive(Debug, Default, Clone, Copy)]
struct Known {
    /// The records.
    records: Offsets,
    /// What no topic takes.
    poison: Offsets,
    /// What a `read_committed` reader of the target sees.
    target: Offsets,
    /// What one of the dead-letter topic sees.
    dead: Offsets,
    /// What is recorded as completed.
    committed: Offsets,
    base: i64,
    /// Of each client: the last offset in the target and its place there.
    newest: [Option<(i64, usize)>; 8],
}

/// Watches what becomes visible.
#[derive(Debug)]
pub struct Checker {
    known: [Known; PARTITIONS],
    /// Partitions that changed since the last comparison.
    changed: u8,
    /// What does not hold.
    pub broken: Option<String>,
}

impl Checker {
    pub fn new(sources: &[Source]) -> Checker {
        let mut known = [Known::default(); PARTITIONS];
        for record in sources.iter().flat_map(|source| source.entries.iter().flatten()) {
            let of = &mut known[record.partition as usize];
            of.records |= 1 << record.offset;
            if record.poison == Poison::Everywhere {
                of.poison |= 1 << record.offset;
            }
        }
        Checker { known, changed: 0, broken: None }
    }

    /// The first invariant that breaks is the one to tell.
    pub fn breaks(&mut self, what: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(what());
        }
    }

    /// What is recorded as completed beyond the committed offset of a partition.
    pub fn has_map(&self, partition: usize) -> bool {
        let of = &self.known[partition];
        of.base < OFFSETS && of.committed >> of.base != 0
    }

    // ## At every moment

    /// An output became visible.
    pub fn output(&mut self, record: Record, log: usize, place: usize) {
        let Record { partition, offset, client, .. } = record;
        self.changed |= 1 << partition;
        let of = &mut self.known[partition as usize];
        let bit = 1 << offset;
        let place_of = |log| if log == DEAD_LETTER { "dead-letter topic" } else { "target" };
        let (here, there) = if log == DEAD_LETTER { (of.dead, of.target) } else { (of.target, of.dead) };
        let mut broken = None;
        if of.records & bit == 0 {
            broken = Some(format!("alien: {partition}/{offset} is no record of the source"));
        } else if here & bit != 0 {
            broken = Some(format!("duplicated: {partition}/{offset} is twice in the {}", place_of(log)));
        } else if there & bit != 0 {
            broken = Some(format!("in both: {partition}/{offset} is in target and dead-letter topic"));
        }
        if log == DEAD_LETTER {
            of.dead |= bit;
        } else {
            of.target |= bit;
            let newest = of.newest[usize::from(client)].replace((offset, place));
            if broken.is_none() && newest.is_some_and(|(before, at)| before > offset || at > place) {
                broken = Some(format!("reordered: {partition}/{offset} of client {client} comes after {newest:?}"));
            }
        }
        if let Some(broken) = broken {
            self.breaks(|| broken);
        }
    }

    /// An offset with its map was committed.
    pub fn offset(&mut self, commit: &Commit) {
        let Commit { partition, offset, metadata } = commit;
        self.changed |= 1 << partition;
        match offset_map::decode(*offset, metadata.as_bytes()) {
            Ok(map) => {
                let below = if *offset >= OFFSETS { Offsets::MAX } else { (1 << *offset) - 1 };
                let runs = map.completed.iter().flatten().filter(|at| *at < OFFSETS);
                let of = &mut self.known[*partition as usize];
                of.committed = runs.fold(below, |set, at| set | 1 << at);
                of.base = *offset;
            }
            Err(why) => self.breaks(|| format!("unreadable: the map of partition {partition} at {offset}: {why}")),
        }
    }

    /// {offset < base} ∪ map is exactly what can be read.
    pub fn compare(&mut self) {
        for partition in 0..PARTITIONS {
            if self.changed & 1 << partition == 0 {
                continue;
            }
            let of = self.known[partition];
            let (recorded, visible) = (of.committed & of.records, of.target | of.dead);
            if visible & !recorded != 0 {
                let sets = (offsets(visible & !recorded), of.base);
                self.breaks(|| {
                    format!(
                        "unrecorded: {:?} of partition {partition} can be read and are not recorded as completed (base {}): \
                         the next owner repeats them",
                        sets.0, sets.1
                    )
                });
            }
            if recorded & !visible & !of.poison != 0 {
                let lost = offsets(recorded & !visible & !of.poison);
                self.breaks(|| {
                    format!(
                        "lost: {lost:?} of partition {partition} are recorded as completed (base {}) and can't be read",
                        of.base
                    )
                });
            }
        }
        self.changed = 0;
    }

    /// Committed ∪ outputs of the round is what the core counts as completed, where the instance owns the partition.
    pub fn local_view(&mut self, partition: u32, throttle: &Throttle, round: &Round<Record>) {
        let Some(tracker) = throttle.tracker(partition) else { return };
        let of = &self.known[partition as usize];
        let own = round.outputs().iter().filter(|output| output.partition == partition && !output.orphan);
        let expected = own.fold(of.committed, |set, output| set | 1 << output.offset) & of.records;
        let mut left = of.records;
        let mut counted: Offsets = 0;
        while left != 0 {
            let offset = i64::from(left.trailing_zeros());
            left &= left - 1;
            counted |= u128::from(tracker.is_completed(offset)) << offset;
        }
        if counted != expected {
            let (only_core, only_durable) = (offsets(counted & !expected), offsets(expected & !counted));
            self.breaks(|| {
                format!(
                    "drifted: of partition {partition} the core counts {only_core:?} as completed, which are neither \
                     committed nor in the round; and not {only_durable:?}, which are"
                )
            });
        }
    }

    // ## In the end

    /// Nothing is left to do for a partition: every record can be read, and the committed offset is at the log's end.
    pub fn is_finished(&self, partition: usize, end: i64) -> bool {
        let of = &self.known[partition];
        of.target | of.dead | of.poison == of.records && of.base == end
    }

    /// Why it is not.
    pub fn unfinished(&self, partition: usize, end: i64) -> String {
        let of = &self.known[partition];
        let missing = offsets(of.records & !(of.target | of.dead | of.poison));
        format!("partition {partition}: missing {missing:?}, base {} of {end}", of.base)
    }
}

/// All in all, once everything came to rest.
pub fn check_rest(broker: &mut Broker) {
    for log in 0..broker.logs.len() {
        if let Some(at) = broker.logs[log].iter().position(|entry| entry.open) {
            broker.checker.breaks(|| format!("hanging: the transaction of entry {at} in log {log} never ended"));
        }
    }
}

fn offsets(set: Offsets) -> Vec<i64> {
    (0..OFFSETS).filter(|offset| set & 1 << offset != 0).collect()
}
