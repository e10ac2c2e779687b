//! The partitions of a service: which offsets are completed, which records are delayed or wait for room in a commit,
//! what was admitted recently, and which partitions are paused.
//!
//! The ledger knows no clients but in the rejections that it keeps. Before a record completes, its owner asks
//! [`Ledger::has_room`] whether the offset map still fits in the commit metadata afterwards.

mod partition;
mod pauses;

use std::{collections::VecDeque, sync::Arc};

use crate::offset_map::{self, AdmissionSlice, OffsetMap, TooLarge};
use crate::policy::{Overflow, Policy};
use crate::reason::{Grounds, Rejection};
use crate::tracker::{Seen, Tracker};
use crate::units::{NANOS_PER_MILLI, Time};
use crate::{chunks::Chunks, slot::Slot};
use partition::{HeldRecord, MapRoom, NOT_HELD, Partition, SoleClient};
pub use partition::{Location, Observed, PartitionView};
use pauses::Behind;
pub use pauses::{PauseReason, Reading, TopicWait};

/// Wall clocks that differ by no more than this are taken for equal.
const CLOCK_JITTER_MS: u64 = 2;

/// The partitions of a service, and their records that are not completed.
#[derive(Debug, Default)]
pub struct Ledger {
    partitions: Vec<Partition>,
    /// Delayed records and pending rejections, by slot.
    held: Chunks<HeldRecord>,
    /// Partitions with pending rejections.
    pub(crate) rejecting: Vec<u32>,
    /// The number of pending rejections and their bytes.
    pub(crate) pending_rejections: (u64, u64),
    /// Tells which partitions are paused when a bound nears.
    overflow: Overflow,
    paused: usize,
    /// Partitions to pause and to resume that were not announced yet.
    pub(crate) readings: VecDeque<Reading>,
    map_room: MapRoom,
    /// The wall clock less the time of the calls, in milliseconds.
    wall_ahead_ms: i64,
}

/// A rejected record that waits for room in the offset map.
#[derive(Debug)]
pub struct PendingRejection {
    pub slot: Slot,
    pub bytes: u32,
    pub rejection: Rejection,
    /// The name of the client at the time of the rejection.
    pub name: Option<Arc<str>>,
    pub grounds: Grounds,
}

impl Ledger {
    /// A ledger without partitions. The wall clock is taken for the time of the calls until
    /// [`set_wall_clock`](Ledger::set_wall_clock).
    pub fn new(policy: &Policy) -> Ledger {
        Ledger { overflow: policy.overflow(), map_room: MapRoom::new(policy), ..Ledger::default() }
    }

    /// Changes to another policy. Recent admissions count over its cycle from now on.
    pub fn change(&mut self, now: Time, policy: &Policy) {
        if policy.cycle != self.map_room.cycle {
            for admissions in self.partitions.iter_mut().map(|partition| &mut partition.recent_admissions) {
                *admissions = admissions.over(now, policy.cycle);
            }
        }
        self.overflow = policy.overflow();
        self.map_room = MapRoom::new(policy);
    }

    /// Takes the wall clock, in milliseconds since the Unix epoch.
    pub fn set_wall_clock(&mut self, now: Time, wall_ms: i64) {
        let ahead = wall_ms.saturating_sub((now.as_nanos() / NANOS_PER_MILLI) as i64);
        // Two clocks that are read one after the other differ by a rounding. Slices that moved by it would be charged
        // twice when a partition comes back.
        if ahead.abs_diff(self.wall_ahead_ms) > CLOCK_JITTER_MS {
            self.wall_ahead_ms = ahead;
        }
    }

    // ## Partitions

    /// Assigns a partition with the contents of its last commit. `high` is its high watermark. Each slice of recent
    /// admissions that the partition did not know goes to `inherited`.
    pub fn assign(
        &mut self, now: Time, number: u32, base: i64, map: &OffsetMap, high: i64, inherited: impl FnMut(Time, u64),
    ) {
        while self.partitions.len() <= number as usize {
            self.partitions.push(Partition::unassigned(self.map_room.cycle));
        }
        let partition = &mut self.partitions[number as usize];
        partition.assign(base, map, high);
        let ahead_ms = self.wall_ahead_ms;
        let slices = map.admitted.iter().map(|slice| {
            let end_ms = u64::try_from(slice.end_ms.saturating_sub(ahead_ms)).unwrap_or(0);
            (Time::from_nanos(end_ms.saturating_mul(NANOS_PER_MILLI)), slice.admitted)
        });
        partition.recent_admissions.inherit(now, slices, inherited);
    }

    /// Revokes a partition. Returns the slots of its records, oldest first, and those of them that were pending
    /// rejections; none is held any more.
    pub fn revoke(&mut self, number: u32) -> (Vec<Slot>, VecDeque<PendingRejection>) {
        let Some(partition) = self.partitions.get_mut(number as usize) else { return Default::default() };
        partition.assigned = false;
        let rejections = std::mem::take(&mut partition.pending_rejections);
        let slots: Vec<Slot> = partition.held.iter(&self.held, |record| &record.links).collect();
        self.paused -= usize::from(partition.paused.take().is_some());
        self.readings.retain(|reading| !matches!(*reading, Reading::Pause(of) | Reading::Resume(of) if of == number));
        self.rejecting.retain(|other| *other != number);
        rejections.iter().for_each(|rejection| self.subtract(rejection));
        for &slot in &slots {
            self.release(slot);
        }
        (slots, rejections)
    }

    /// Notes that a partition was not fetched for longer than a cycle: records below `high` are catching up.
    pub fn note_fetch_gap(&mut self, number: u32, high: i64) {
        if let Some(partition) = self.partitions.get_mut(number as usize) {
            partition.catch_up_until = partition.catch_up_until.max(high);
        }
    }

    /// Notes that the log of a partition was read up to (excluding) `offset`: skipped offsets are holes.
    pub fn observe_end(&mut self, number: u32, offset: i64) {
        let partition = &mut self.partitions[number as usize];
        let before = partition.tracker.base();
        partition.tracker.observe_end(offset);
        partition.touched |= partition.tracker.base() != before;
    }

    /// Notes that all records of a partition belong to one client by configuration, or that they do not.
    pub fn set_sole_client(&mut self, number: u32, client: Option<&str>) {
        let sole = client.map(|name| SoleClient { name: name.into(), index: u32::MAX });
        self.partitions[number as usize].sole_client = sole;
    }

    /// Notes the client of a record. Another client than the sole one shows that the partition is shared.
    #[inline]
    pub fn note_client(&mut self, number: u32, client: u32, name: &str) {
        let sole = &mut self.partitions[number as usize].sole_client;
        if sole.as_ref().is_some_and(|sole| sole.index != client) {
            match sole {
                // A client that was forgotten comes back with another index.
                Some(sole) if *sole.name == *name => sole.index = client,
                _ => *sole = None,
            }
        }
    }

    /// The client to which all records of an assigned partition belong, as far as its records have shown.
    pub fn sole_client(&self, number: u32) -> Option<&str> {
        Some(&self.assigned(number)?.sole_client.as_ref()?.name)
    }

    /// Returns whether a client has a partition to itself.
    pub fn is_sole_client(&self, number: u32, client: u32) -> bool {
        self.partitions[number as usize].sole_client.as_ref().is_some_and(|sole| sole.index == client)
    }

    // ## Records

    /// Notes that a record was read. Returns `None` for a record that needs no decision: its partition is not assigned,
    /// it is completed, or it is held already.
    #[inline]
    pub fn observe(&mut self, number: u32, offset: i64) -> Option<Observed> {
        let partition = &mut self.partitions[number as usize];
        if !partition.assigned {
            return None;
        }
        let before = partition.tracker.base();
        let seen = partition.tracker.observe(offset);
        // The base moves if only holes before the record held it back.
        partition.touched |= partition.tracker.base() != before;
        if seen != Seen::New {
            return None;
        }
        let first_time = offset >= partition.seen_until;
        partition.seen_until = partition.seen_until.max(offset + 1);
        Some(Observed { first_time, catching_up: offset < partition.catch_up_until })
    }

    #[inline]
    pub fn complete(&mut self, number: u32, offset: i64) {
        let partition = &mut self.partitions[number as usize];
        partition.tracker.complete(offset);
        partition.touched = true;
    }

    /// Completes a record as soon as it is read, and pauses its partition if the offset map is nearly full.
    #[inline(always)]
    pub fn complete_at_once(&mut self, number: u32, offset: i64) {
        let tracker = &self.partitions[number as usize].tracker;
        let map_stays_empty = offset == tracker.base() && tracker.span() == 0;
        if !map_stays_empty {
            self.pause_if_map_is_nearly_full(number);
        }
        self.complete(number, offset);
    }

    /// Counts an admission among the partition's recent ones.
    #[inline]
    pub fn count_admission(&mut self, now: Time, number: u32) {
        self.partitions[number as usize].recent_admissions.add(now, 1);
    }

    /// Holds a record that was observed and is not completed.
    #[inline]
    pub fn hold(&mut self, slot: Slot, number: u32, offset: i64) {
        let list = &mut self.partitions[number as usize].held;
        let links = list.push(&mut self.held, |record| &mut record.links, slot);
        self.held.set(slot.index(), HeldRecord { location: Location { partition: number, offset }, links });
    }

    /// The location of a held record; `None` for a record that only the scheduler knows (shadow mode).
    #[inline]
    pub fn location(&self, slot: Slot) -> Option<Location> {
        let location = self.held.get(slot.index())?.location;
        (location.partition != NOT_HELD).then_some(location)
    }

    /// Holds a record no longer. Returns its location, if it was held.
    #[inline]
    pub fn release(&mut self, slot: Slot) -> Option<Location> {
        let location = self.location(slot)?;
        let list = &mut self.partitions[location.partition as usize].held;
        let links = self.held[slot.index()].links;
        list.remove(&mut self.held, |record| &mut record.links, links);
        self.held[slot.index()].location.partition = NOT_HELD;
        Some(location)
    }

    /// The oldest held record of a partition: its offset is the committable one.
    pub fn oldest(&self, number: u32) -> Option<Slot> {
        let oldest = self.partitions[number as usize].held.head()?;
        debug_assert_eq!(self.held[oldest.index()].location.offset, self.partitions[number as usize].tracker.base());
        Some(oldest)
    }

    // ## Room in the offset map

    /// Returns whether the completion of a record fits in the offset map: that of the oldest one of a partition always
    /// does.
    pub fn may_complete(&self, slot: Slot) -> bool {
        self.location(slot).is_none_or(|Location { partition, offset }| {
            self.has_room(partition, offset) || self.oldest(partition) == Some(slot)
        })
    }

    /// Returns whether `offset` may complete without its partition's offset map outgrowing the commit metadata. The
    /// committable offset always may, even if a former owner had more room: its completion makes no map larger.
    #[inline]
    pub fn has_room(&self, number: u32, offset: i64) -> bool {
        let tracker = &self.partitions[number as usize].tracker;
        offset == tracker.base() || tracker.bits_bound_after(offset) <= self.map_room.set_bits
    }

    // ## Rejected records that wait for room in the offset map

    /// Keeps a rejected record until its completion fits in the offset map.
    #[cold]
    pub fn keep_rejection(&mut self, number: u32, offset: i64, rejection: PendingRejection) {
        self.hold(rejection.slot, number, offset);
        self.pending_rejections.0 += 1;
        self.pending_rejections.1 += u64::from(rejection.bytes);
        let rejections = &mut self.partitions[number as usize].pending_rejections;
        rejections.push_back(rejection);
        if rejections.len() == 1 {
            self.rejecting.push(number);
        }
        if self.pauses(number) {
            self.pause(number, PauseReason::Map);
        }
    }

    /// Returns whether a held record is a pending rejection, given that it is the oldest of its partition.
    pub fn is_pending_rejection(&self, oldest: Slot) -> bool {
        let Some(location) = self.location(oldest) else { return false };
        let rejections = &self.partitions[location.partition as usize].pending_rejections;
        rejections.front().is_some_and(|rejection| rejection.slot == oldest)
    }

    /// Takes the first pending rejection that fits in the offset map of its partition; the record is not held any more,
    /// and not completed.
    pub fn take_rejection(&mut self) -> Option<(Location, PendingRejection)> {
        for at in 0..self.rejecting.len() {
            let number = self.rejecting[at];
            let slot = self.partitions[number as usize].pending_rejections.front()?.slot;
            let location = self.location(slot)?;
            if self.has_room(number, location.offset) {
                let rejections = &mut self.partitions[number as usize].pending_rejections;
                let rejection = rejections.pop_front()?;
                if rejections.is_empty() {
                    self.rejecting.swap_remove(at);
                }
                self.subtract(&rejection);
                self.release(slot);
                return Some((location, rejection));
            }
        }
        None
    }

    /// A partition with a pending rejection for which room is made by an eviction.
    pub fn next_rejecting(&self) -> Option<u32> {
        self.rejecting.iter().copied().find(|&number| !self.pauses(number))
    }

    /// Counts a pending rejection no longer.
    pub(super) fn subtract(&mut self, rejection: &PendingRejection) {
        self.pending_rejections.0 -= 1;
        self.pending_rejections.1 -= u64::from(rejection.bytes);
    }

    // ## Commits

    /// Partitions in which a record completed since their last commit.
    pub fn touched(&self) -> impl Iterator<Item = u32> + '_ {
        let touched = (0u32..).zip(&self.partitions).filter(|(_, partition)| partition.assigned && partition.touched);
        touched.map(|(number, _)| number)
    }

    /// Sets whether a partition has anything to commit.
    pub fn set_touched(&mut self, number: u32, touched: bool) {
        self.partitions[number as usize].touched = touched;
    }

    /// The committable offset and its offset map, as if the offsets of `without` were not completed.
    ///
    /// # Errors
    /// The map does not fit in its budget.
    pub fn commit(&mut self, now: Time, number: u32, without: &[i64]) -> Result<(i64, String), TooLarge> {
        let partition = &mut self.partitions[number as usize];
        let slice =
            |(end, admitted): (Time, u64)| AdmissionSlice { end_ms: wall_ms(end, self.wall_ahead_ms).max(0), admitted };
        let admitted: Vec<AdmissionSlice> = partition.recent_admissions.slices(now).map(slice).collect();
        let earlier = (!without.is_empty()).then(|| partition.tracker.without(without));
        let tracker = earlier.as_ref().unwrap_or(&partition.tracker);
        let text = offset_map::encode(self.map_room.budget, tracker, self.map_room.slice_ms, &admitted, partition.tag)?;
        let base = tracker.base();
        partition.map_characters = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        Ok((base, text))
    }

    // ## Views

    pub fn partition(&self, number: u32) -> Option<PartitionView> {
        self.assigned(number).map(|partition| PartitionView {
            base: partition.tracker.base(),
            next: partition.tracker.next(),
            held: partition.held.len(),
            is_behind: partition.behind != Behind::No,
            span: partition.tracker.span(),
            map_used: partition.tracker.bits_bound() as f64 / self.map_room.set_bits.max(1) as f64,
            map_characters: partition.map_characters,
        })
    }

    /// The completed offsets of an assigned partition.
    pub fn tracker(&self, number: u32) -> Option<&Tracker> {
        self.assigned(number).map(|partition| &partition.tracker)
    }

    pub fn paused(&self, number: u32) -> Option<PauseReason> {
        self.partitions.get(number as usize)?.paused
    }

    fn assigned(&self, number: u32) -> Option<&Partition> {
        self.partitions.get(number as usize).filter(|partition| partition.assigned)
    }
}

/// The wall clock's milliseconds since the Unix epoch at a time, if it is so far ahead.
fn wall_ms(time: Time, ahead_ms: i64) -> i64 {
    ((time.as_nanos() / NANOS_PER_MILLI) as i64).saturating_add(ahead_ms)
}
