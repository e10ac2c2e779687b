//! What must hold, at every moment and in the end.
//!
//! Offsets stay below 128, so what is known of a partition is a few 128-bit sets.

use watermaster_core::delivery::{Commit, Round};
use watermaster_core::offset_map;
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

/// At least once: the outputs of a partition that its present owner sent. It repeats only outputs of which it does not know
/// whether they arrived; so what comes twice is of a round that its previous owner did not commit, or of unknown fate.
#[derive(Debug, Default, Clone, Copy)]
pub struct SentByOwner {
    /// Recorded as completed at the takeover, or acknowledged since.
    arrived: Offsets,
    /// Still on its way for an earlier ownership: its acknowledgement says nothing about this one.
    in_flight: Offsets,
    tried: Offsets,
    /// By client, the last offset that was sent to the target for the first time.
    newest: [Option<i64>; 8],
}

impl SentByOwner {
    /// An output was acknowledged.
    pub fn arrived(&mut self, offset: i64) {
        self.arrived |= 1 << offset & !self.in_flight;
    }

    /// An output is sent. Returns the rule that this breaks.
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

/// Watches what becomes visible.
#[derive(Debug)]
pub struct Checker {
    known: [Known; PARTITIONS],
    /// Partitions that changed since the last comparison.
    changed: u8,
    /// Otherwise at least once.
    exactly_once: bool,
    /// What does not hold.
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
        } else if here & bit != 0 && self.exactly_once {
            broken = Some(format!("duplicated: {partition}/{offset} is twice in the {}", place_of(log)));
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

    /// An offset with its map was committed.
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

    /// {offset < base} ∪ map is exactly what can be read.
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

    /// Whether the record can be read already.
    pub fn is_visible(&self, record: Record) -> bool {
        let of = &self.known[record.partition as usize];
        (of.target | of.dead) & 1 << record.offset != 0
    }

    /// A round was acknowledged as committed: each of its outputs is recorded as completed, so that no owner repeats it.
    pub fn round_ended(&mut self, round: &Round<Record>) {
        for output in round.outputs().iter().filter(|output| !output.orphan) {
            let of = &self.known[output.partition as usize];
            if of.committed & 1 << output.offset == 0 {
                let (partition, offset) = (output.partition, output.offset);
                self.breaks(|| format!("unrecorded: {partition}/{offset} of a round whose commit was acknowledged"));
            }
        }
    }

    /// The outputs that an owner that takes the partition over now must not send.
    pub fn sent_by_next_owner(&self, partition: u32, in_flight: Offsets) -> SentByOwner {
        let arrived = self.known[partition as usize].committed;
        SentByOwner { arrived, in_flight, ..SentByOwner::default() }
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
