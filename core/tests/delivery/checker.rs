//! The invariants: those that hold at every moment, and those that hold in the end.
//!
//! Offsets stay below 128, so the state of a partition fits in a few 128-bit sets.

use watermaster_core::delivery::{Commit, Round};
use watermaster_core::{offset_map, throttle::Throttle};

use super::broker::{Broker, DEAD_LETTER};
use super::source::{PARTITIONS, Poison, Record, Source};

/// A set of offsets of one partition.
pub type Offsets = u128;

/// Maximum number of offsets in a source partition.
pub const OFFSETS: i64 = 128;

#[derive(Debug, Default, Clone, Copy)]
struct Known {
    /// Offsets that are records.
    records: Offsets,
    /// Records that no topic takes.
    poison: Offsets,
    /// Records that a `read_committed` reader of the target sees.
    target: Offsets,
    /// Records that a `read_committed` reader of the dead-letter topic sees.
    dead: Offsets,
    /// Offsets recorded as completed.
    committed: Offsets,
    base: i64,
    /// By client: the last offset in the target and its position there.
    newest: [Option<(i64, usize)>; 8],
}

/// At least once: the outputs of a partition that its present owner sent. The owner repeats only outputs of unknown
/// fate; so a duplicate belongs to a round that the previous owner did not commit, or its fate was unknown.
#[derive(Debug, Default, Clone, Copy)]
pub struct SentByOwner {
    /// Outputs recorded as completed at the takeover, or acknowledged since.
    arrived: Offsets,
    /// Outputs still in flight from an earlier ownership: their acknowledgement says nothing about this one.
    in_flight: Offsets,
    tried: Offsets,
    /// By client: the last offset that was sent to the target for the first time.
    newest: [Option<i64>; 8],
}

impl SentByOwner {
    /// Notes that an output was acknowledged.
    pub fn arrived(&mut self, offset: i64) {
        self.arrived |= 1 << offset & !self.in_flight;
    }

    /// Notes that an output is sent. Returns the invariant that this breaks.
    pub fn sent(&mut self, record: Record, to_target: bool) -> Option<String> {
        let Record { partition, offset, client, .. } = record;
        let bit = 1 << offset;
        if self.arrived & bit != 0 {
            return Some(format!("repeated: {partition}/{offset} is sent again, though it arrived or is committed"));
        }
        if !to_target || self.tried & bit != 0 {
            return None;
        }
        self.tried |= bit;
        let before = self.newest[usize::from(client)].replace(offset)?;
        (before > offset).then(|| format!("reordered: {partition}/{offset} of client {client} is sent after {before}"))
    }
}

/// Checks every output and commit that becomes visible.
#[derive(Debug)]
pub struct Checker {
    known: [Known; PARTITIONS],
    /// Partitions that changed since the last comparison.
    changed: u8,
    /// False under at least once.
    exactly_once: bool,
    /// The first invariant that broke.
    pub broken: Option<String>,
}

impl Checker {
    pub fn new(sources: &[Source], exactly_once: bool) -> Checker {
        let mut known = [Known::default(); PARTITIONS];
        for record in sources.iter().flat_map(|source| source.entries.iter().flatten()) {
            let of = &mut known[record.partition as usize];
            of.records |= 1 << record.offset;
            if record.poison == Poison::Everywhere {
                of.poison |= 1 << record.offset;
            }
        }
        Checker { known, changed: 0, exactly_once, broken: None }
    }

    /// Records a broken invariant; only the first one is kept.
    pub fn breaks(&mut self, what: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(what());
        }
    }

    /// Returns whether the committed offset map of a partition is not empty.
    pub fn has_map(&self, partition: usize) -> bool {
        let of = &self.known[partition];
        of.base < OFFSETS && of.committed >> of.base != 0
    }

    // ## At every moment

    /// Checks an output that became visible.
    pub fn output(&mut self, record: Record, log: usize, place: usize) {
        let Record { partition, offset, client, .. } = record;
        self.changed |= 1 << partition;
        let of = &mut self.known[partition as usize];
        let bit = 1 << offset;
        let place_of = |log| if log == DEAD_LETTER { "dead-letter topic" } else { "target" };
        let (here, there) = if log == DEAD_LETTER { (of.dead, of.target) } else { (of.target, of.dead) };
        let mut broken = None;
        if of.records & bit == 0 {
            broken = Some(format!("alien: {partition}/{offset} is not a record of the source"));
        } else if here & bit != 0 && self.exactly_once {
            broken = Some(format!("duplicated: {partition}/{offset} appears twice in the {}", place_of(log)));
        } else if there & bit != 0 && self.exactly_once {
            broken = Some(format!("in both: {partition}/{offset} is in target and dead-letter topic"));
        }
        if log == DEAD_LETTER {
            of.dead |= bit;
        } else {
            of.target |= bit;
            let newest = of.newest[usize::from(client)].replace((offset, place));
            if self.exactly_once && broken.is_none() && newest.is_some_and(|(before, at)| before > offset || at > place)
            {
                broken = Some(format!("reordered: {partition}/{offset} of client {client} comes after {newest:?}"));
            }
        }
        if let Some(broken) = broken {
            self.breaks(|| broken);
        }
    }

    /// Checks a committed offset with its map.
    pub fn offset(&mut self, commit: &Commit) {
        let Commit { partition, offset, metadata } = commit;
        self.changed |= 1 << partition;
        match offset_map::decode(*offset, metadata.as_bytes()) {
            Ok(map) => {
                let below = if *offset >= OFFSETS { Offsets::MAX } else { (1 << *offset) - 1 };
                let runs = map.completed.iter().flatten().filter(|at| *at < OFFSETS);
                let of = &mut self.known[*partition as usize];
                let before = of.committed & of.records;
                of.committed = runs.fold(below, |set, at| set | 1 << at);
                of.base = *offset;
                let forgotten = before & !of.committed;
                if !self.exactly_once && forgotten != 0 {
                    let (partition, forgotten) = (*partition, offsets(forgotten));
                    self.breaks(|| {
                        format!("forgotten: {forgotten:?} of partition {partition} were recorded as completed")
                    });
                }
            }
            Err(why) => self.breaks(|| format!("unreadable: the map of partition {partition} at {offset}: {why}")),
        }
    }

    /// Checks that {offset < base} ∪ map is exactly the set of visible records.
    pub fn compare(&mut self) {
        for partition in 0..PARTITIONS {
            if self.changed & 1 << partition == 0 {
                continue;
            }
            let of = self.known[partition];
            let (recorded, visible) = (of.committed & of.records, of.target | of.dead);
            if self.exactly_once && visible & !recorded != 0 {
                let sets = (offsets(visible & !recorded), of.base);
                self.breaks(|| {
                    format!(
                        "unrecorded: {:?} of partition {partition} are visible but not recorded as completed (base \
                         {}): the next owner repeats them",
                        sets.0, sets.1
                    )
                });
            }
            if recorded & !visible & !of.poison != 0 {
                let lost = offsets(recorded & !visible & !of.poison);
                self.breaks(|| {
                    format!(
                        "lost: {lost:?} of partition {partition} are recorded as completed (base {}) but not visible",
                        of.base
                    )
                });
            }
        }
        self.changed = 0;
    }

    /// Returns whether the record is visible already.
    pub fn is_visible(&self, record: Record) -> bool {
        let of = &self.known[record.partition as usize];
        (of.target | of.dead) & 1 << record.offset != 0
    }

    /// Checks an acknowledged round: each of its outputs is recorded as completed, so that no owner repeats it.
    pub fn round_ended(&mut self, round: &Round<Record>) {
        for output in round.outputs().iter().filter(|output| !output.orphan) {
            let of = &self.known[output.partition as usize];
            if of.committed & 1 << output.offset == 0 {
                let (partition, offset) = (output.partition, output.offset);
                self.breaks(|| format!("unrecorded: {partition}/{offset} of a round with an acknowledged commit"));
            }
        }
    }

    /// Returns the outputs that the next owner of the partition must not send.
    pub fn sent_by_next_owner(&self, partition: u32, in_flight: Offsets) -> SentByOwner {
        let arrived = self.known[partition as usize].committed;
        SentByOwner { arrived, in_flight, ..SentByOwner::default() }
    }

    /// Checks that, for a partition of the instance, committed ∪ outputs of the round equals the set that the core
    /// counts as completed.
    pub fn local_view(&mut self, partition: u32, throttle: &Throttle, round: &Round<Record>) {
        let Some(tracker) = throttle.ledger().tracker(partition) else { return };
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
                    "drifted: of partition {partition} the core alone counts {only_core:?} as completed (neither \
                     committed nor in the round), and misses {only_durable:?}"
                )
            });
        }
    }

    // ## In the end

    /// Returns whether a partition is done: every record is visible, and the committed offset is at the log's end.
    pub fn is_finished(&self, partition: usize, end: i64) -> bool {
        let of = &self.known[partition];
        of.target | of.dead | of.poison == of.records && of.base == end
    }

    /// Describes the missing records of a partition.
    pub fn unfinished(&self, partition: usize, end: i64) -> String {
        let of = &self.known[partition];
        let missing = offsets(of.records & !(of.target | of.dead | of.poison));
        format!("partition {partition}: missing {missing:?}, base {} of {end}", of.base)
    }
}

/// Checks, once all records are delivered, that no transaction is left open.
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
